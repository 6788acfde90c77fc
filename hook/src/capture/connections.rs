//! Which request an HTTP thread of the server is at.
//!
//! One thread serves a connection from `accept` to its end (cpp-httplib), so what it receives,
//! which task numbers it draws and when it has answered belong together. Where these numbers are
//! not to be seen, what it makes tokens of stands in for them: see [`prompts`].

use std::cell::RefCell;

use contextpilot_request::{Infill, RequestReader, Step};
use contextpilot_residency::{TaskId, Token};

use super::requests::Current;
use super::sockets::generation;
use crate::attach::evidence;
use crate::base::guard;
use crate::base::status::STATUS;
use crate::capture::prompts;

/// What is said on a connection, and what travels.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layer {
    /// The socket: nothing but noise where the connection is encrypted.
    Socket,
    /// Within TLS.
    Tls,
}

/// What counts on this connection is within TLS, from the handshake on.
pub(crate) fn encrypted(socket: i32) {
    at(socket, |connection| connection.layer = Layer::Tls);
}

/// Bytes were received.
pub(crate) fn received(socket: i32, layer: Layer, bytes: &[u8]) {
    let feed = |connection: &mut Connection| {
        if connection.layer == layer {
            connection.feed(bytes);
        }
    };
    match layer {
        Layer::Socket => at(socket, feed),
        // Known since the handshake, or a session in which the server is the client.
        Layer::Tls => with(|connection| {
            let connection = connection.as_mut().filter(|c| c.socket == socket);
            connection.map(feed);
        }),
    }
}

/// The thread's connection, which is the one over this socket from now on. None of the server's
/// clients: nothing happens.
fn at(socket: i32, work: impl FnOnce(&mut Connection)) {
    let Some(generation) = generation(socket) else {
        return;
    };
    with(|connection| {
        let same = connection
            .as_ref()
            .is_some_and(|c| c.socket == socket && c.generation == generation);
        if !same {
            finish(connection);
            *connection = Some(Connection::new(socket, generation));
        }
        if let Some(connection) = connection {
            work(connection);
        }
    });
}

/// The connection has ended, or is being ended.
pub(crate) fn ended(socket: i32) {
    with(|connection| {
        if connection.as_ref().is_some_and(|c| c.socket == socket) {
            finish(connection);
        }
    });
}

/// The server is about to send these bytes on this connection.
pub(crate) fn sending(socket: i32, layer: Layer, bytes: &[u8]) {
    with(|connection| {
        let connection = connection.as_mut();
        let this = connection.filter(|c| c.socket == socket && c.layer == layer);
        if let Some(current) = this.and_then(|c| c.current.as_mut()) {
            current.send(bytes);
        }
    });
}

/// The server drew a task number on this thread.
pub(crate) fn posted(task: TaskId) {
    // One half of the link only.
    if prompts::are_engaged() {
        return;
    }
    current(|current| current.post(task));
}

/// Whether what this thread makes tokens of is for `/infill`.
pub(crate) fn is_infill() -> bool {
    let mut is = false;
    current(|current| is = current.is_infill());
    is
}

/// The server made these tokens of a text on this thread, with or without special ones. `infill`:
/// the rule, if it is for that.
pub(crate) fn tokenized(special: bool, text: &[u8], tokens: &[Token], infill: Option<&Infill>) {
    current(|current| current.tokenized(special, text, tokens, infill));
}

/// A prompt that may have media is being tokenized on this thread: its texts say nothing.
pub(crate) fn tokenizing_media() {
    current(Current::tokenizing_media);
}

/// It is this one, if that can be known.
pub(crate) fn tokenized_media(tokens: Option<&[Token]>) {
    current(|current| current.tokenized_media(tokens));
}

/// With the request that this thread is at, if it is of interest.
fn current(work: impl FnOnce(&mut Current)) {
    with(|connection| {
        if let Some(current) = connection.as_mut().and_then(|c| c.current.as_mut()) {
            work(current);
        }
    });
}

fn finish(connection: &mut Option<Connection>) {
    if let Some(Connection {
        current: Some(mut current),
        ..
    }) = connection.take()
    {
        current.answer(false);
    }
}

struct Connection {
    socket: i32,
    generation: u32,
    layer: Layer,
    reader: RequestReader,
    /// The request that was received last, if it is of interest: if it has an id, if its prompt
    /// will be forgotten, if it names adapters; if it is for inference, also while somebody observes, or where its prompt
    /// may be another's, too.
    current: Option<Current>,
}

impl Connection {
    fn new(socket: i32, generation: u32) -> Self {
        Self {
            socket,
            generation,
            layer: Layer::Socket,
            reader: match prompts::are_engaged() {
                true => RequestReader::with_prompts(),
                false => RequestReader::new(),
            },
            current: None,
        }
    }

    fn feed(&mut self, bytes: &[u8]) {
        // The server reads on when it is done with what it has read.
        if let Some(mut current) = self.current.take() {
            current.answer(false);
        }
        match self.reader.feed_recv(bytes) {
            Step::More => {}
            Step::Complete(request) => {
                if request.is_inference() {
                    evidence::serving();
                }
                self.current = Current::of(request);
            }
            Step::Lost(_) => STATUS.unreadable_connections.add(1),
        }
    }
}

/// The thread's connection. The one thread-local of ours that has a destructor: registered with
/// the C library at the thread's first request, run at the thread's end before its memory goes,
/// and whoever calls later (`try_with`) is turned away. It uses nothing else that may be gone by
/// then: statics, and flags without a destructor.
struct AtThread(RefCell<Option<Connection>>);

thread_local! {
    static CONNECTION: AtThread = const { AtThread(RefCell::new(None)) };
}

impl Drop for AtThread {
    fn drop(&mut self) {
        let connection = self.0.get_mut();
        guard::observe(|| finish(connection));
    }
}

fn with(work: impl FnOnce(&mut Option<Connection>)) {
    let _ = CONNECTION.try_with(|at| {
        if let Ok(mut connection) = at.0.try_borrow_mut() {
            work(&mut connection);
        }
    });
}
