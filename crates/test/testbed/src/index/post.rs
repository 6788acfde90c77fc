//! What arrives at the index.

use std::{io::BufRead, time::Instant};

use serde_json::Value;

/// A request as it arrived.
#[derive(Clone, Debug)]
pub struct Post {
    /// When its first byte arrived.
    pub at: Instant,
    /// The number of the connection, from 0.
    pub connection: usize,
    /// The first line and the headers, as they came.
    pub head: String,
    /// The body, as it came.
    pub body: Vec<u8>,
    /// `request_ids` in the body; empty if there are none.
    pub ids: Vec<String>,
    /// Whether it was a well-formed `POST …/evict` that was, or is being, accepted.
    pub accepted: bool,
}

impl Post {
    /// The first line: method, path and version.
    pub fn line(&self) -> &str {
        self.head.lines().next().unwrap_or_default()
    }

    /// The value of the first header with this name, in any case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (key, value) = line.split_once(':')?;
            let wanted = key.eq_ignore_ascii_case(name);
            wanted.then(|| value.strip_prefix(' ').unwrap_or(value))
        })
    }

    /// The ids of a well-formed `POST …/evict`. `None`: it is something else.
    pub(super) fn evicts(&self) -> Option<&[String]> {
        let mut words = self.line().split(' ');
        let evict = words.next() == Some("POST")
            && words.next().is_some_and(|path| path.ends_with("/evict"));
        (evict && ids(&self.body).is_some()).then_some(&self.ids)
    }

    /// Reads the next request of a connection. `None`: the connection ends before its end.
    pub(super) fn receive(reader: &mut impl BufRead, connection: usize) -> Option<Self> {
        if reader.fill_buf().ok()?.is_empty() {
            return None;
        }
        let mut post = Self {
            at: Instant::now(),
            connection,
            head: String::new(),
            body: Vec::new(),
            ids: Vec::new(),
            accepted: false,
        };
        while !post.head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut post.head).ok()? == 0 {
                return None;
            }
        }
        let length = post.header("content-length");
        let length = length.and_then(|length| length.trim().parse().ok());
        post.body.resize(length.unwrap_or(0), 0);
        reader.read_exact(&mut post.body).ok()?;
        post.ids = ids(&post.body).unwrap_or_default();
        Some(post)
    }
}

fn ids(body: &[u8]) -> Option<Vec<String>> {
    let body: Value = serde_json::from_slice(body).ok()?;
    let ids = body["request_ids"].as_array()?.iter();
    ids.map(|id| id.as_str().map(str::to_owned)).collect()
}
