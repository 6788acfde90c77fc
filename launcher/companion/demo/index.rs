//! An index that only receives evictions.

use std::io;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use contextpilot_http_server::{Limits, Listener, Pool, accept_for_ever, serve};

use crate::companion::listen::api;

const LIMITS: Limits = Limits {
    body: 1 << 20,
    patience: Duration::from_secs(60),
    whole_request: Duration::from_secs(60),
    connections: 8,
};

/// One `POST /evict`.
pub(super) struct EvictPost {
    pub(super) ids: Vec<String>,
    pub(super) at: Instant,
}

/// Starts it. Returns its URL, and a channel of the evictions. It lives as long as the process.
pub(super) fn start() -> io::Result<(String, Receiver<EvictPost>)> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let url = format!("http://{}", listener.local_addr()?);
    let (sender, posts) = channel();
    thread::spawn(move || {
        accept_for_ever(
            &Listener::Tcp(listener),
            Pool::new(LIMITS.connections),
            || api::error(503, "too many connections"),
            |_| {},
            move |stream, _| {
                let answer = |request: &_| {
                    api::answer(request, |ids| {
                        let (ids, at) = (ids.to_vec(), Instant::now());
                        // An error means that the demo is over.
                        let _ = sender.send(EvictPost { ids, at });
                    })
                };
                // The server reports a broken connection.
                let _ = serve(stream, &LIMITS, answer, api::error);
            },
        )
    });
    Ok((url, posts))
}
