//! Serves the connections to the index.

use std::{
    io::{self, BufReader, Read, Write},
    net::Shutdown,
    sync::Arc,
    thread,
};

use rustls::{ServerConfig, ServerConnection};
use serde_json::json;

use super::{Behaviour, Post, shared::IndexShared};
use crate::stream::Plain;

/// Serves what `next` accepts, each connection in its own thread, until the index is closed.
pub(super) fn accept(
    next: impl Fn() -> io::Result<Plain>,
    tls: Option<&Arc<ServerConfig>>,
    shared: &Arc<IndexShared>,
) {
    loop {
        let accepted = next().and_then(|stream| Ok((stream.try_clone()?, stream)));
        let mut state = shared.state();
        if state.closed {
            return;
        }
        let Ok((twin, mut stream)) = accepted else {
            continue;
        };
        let number = state.connections.len();
        state.connections.push(twin);
        drop(state);
        let (tls, shared) = (tls.cloned(), Arc::clone(shared));
        thread::spawn(move || {
            match tls.map(ServerConnection::new) {
                None => drop(serve(&mut stream, number, &shared)),
                Some(Ok(mut tls)) => {
                    let mut stream = rustls::Stream::new(&mut tls, &mut stream);
                    serve(&mut stream, number, &shared);
                }
                // The client sees that the connection is closed.
                Some(Err(_)) => {}
            }
            // The clone in the list would keep the connection open.
            let _ = stream.shutdown(Shutdown::Both);
        });
    }
}

/// Serves a connection until its end, then returns `None`.
fn serve(stream: &mut (impl Read + Write), connection: usize, shared: &IndexShared) -> Option<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let post = Post::receive(&mut reader, connection)?;
        let ids = post.ids.len();
        let behaviour = shared.take(post);
        answer(reader.get_mut(), &behaviour, ids)?;
        reader.get_mut().flush().ok()?;
    }
}

/// Answers one request with so many ids. `None`: the connection must end.
fn answer(stream: &mut impl Write, behaviour: &Behaviour, ids: usize) -> Option<()> {
    let json = ["Content-Type: application/json".to_owned()];
    match behaviour {
        Behaviour::Accept => {
            let body = json!({"status": "success", "removed_count": ids, "not_found": []});
            say(stream, 200, &json, &body.to_string())
        }
        Behaviour::Status(status, body) => say(stream, *status, &json, body),
        Behaviour::Answer(status, headers, body) => say(stream, *status, headers, body),
        Behaviour::CloseMidAnswer => {
            let answer = b"HTTP/1.1 200 -\r\nContent-Length: 1000\r\n\r\n{\"status\":";
            end_after(stream, answer)
        }
        Behaviour::Raw(bytes) => end_after(stream, bytes),
        Behaviour::Endless(bytes) => {
            stream.write_all(bytes).ok()?;
            while stream.write_all(&[b'x'; 4096]).is_ok() {}
            None
        }
        // `IndexShared::take` returns none of the last three.
        Behaviour::Close
        | Behaviour::Hang
        | Behaviour::RefuseIds(..)
        | Behaviour::RefuseAbove(..) => None,
    }
}

fn say(stream: &mut impl Write, status: u16, headers: &[String], body: &str) -> Option<()> {
    let headers: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
    let length = body.len();
    let answer = format!("HTTP/1.1 {status} -\r\nContent-Length: {length}\r\n{headers}\r\n{body}");
    stream.write_all(answer.as_bytes()).ok()
}

fn end_after(stream: &mut impl Write, bytes: &[u8]) -> Option<()> {
    stream.write_all(bytes).ok()?;
    // The connection ends in either case.
    let _ = stream.flush();
    None
}
