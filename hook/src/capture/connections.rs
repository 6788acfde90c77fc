//! Keeps which request each HTTP thread of the server is serving.
//!
//! One thread serves a connection from `accept` to its end (cpp-httplib). So the bytes that it receives,
//! the task numbers that it draws, and the end of its answer belong to the same request. If the hook
//! cannot see task numbers, it uses the texts that the thread tokenizes instead: see [`prompts`].

use std::cell::RefCell;

use contextpilot_kept_tokens::Kept;
use contextpilot_request::{ConnectionReader, Infill, Loss, Step};
use contextpilot_residency::{TaskId, Token};

use super::requests::{Current, have_titles};
use super::sockets::generation;
use crate::base::status::STATUS;
use crate::base::{clock, guard, mode};
use crate::capture::salts::{self, Salt};
use crate::capture::{prompts, uncached};

/// Where bytes were read or written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layer {
    /// On the socket. If the connection is encrypted, these bytes are ignored.
    Socket,
    /// Within a TLS session.
    Tls,
}

/// This connection is encrypted: from now on, only bytes within TLS count.
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
        // If the handshake was not seen, the server is the client of this session.
        Layer::Tls => with(|connection| {
            let connection = connection.as_mut().filter(|c| c.socket == socket);
            connection.map(feed);
        }),
    }
}

/// Calls `work` with the thread's connection, which from now on is the one over this socket. Does
/// nothing if the socket does not belong to a client of the server.
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

/// The server is about to send these bytes on this connection. Returns what is to be sent in their place, if not they.
pub(crate) fn sending(socket: i32, layer: Layer, bytes: &[u8]) -> Option<Vec<u8>> {
    let mut instead = None;
    with(|connection| {
        let connection = connection.as_mut();
        if let Some(this) = connection.filter(|c| c.socket == socket && c.layer == layer) {
            let step = this.reader.sending(bytes);
            this.go_on(step);
            if let Some(current) = &mut this.current {
                current.send(bytes);
                instead = current.instead_of(bytes);
            }
        }
    });
    instead
}

/// The server drew a task number on this thread.
pub(crate) fn posted(task: TaskId) {
    // Task numbers without launches are of no use.
    if prompts::are_engaged() {
        return;
    }
    current(|current| current.post(task));
    if uncached::are_of_interest() {
        // What such a request says of its salt is not known.
        let unread = |connection: &Connection| connection.is_unread();
        with(|connection| {
            if connection.as_ref().is_some_and(unread) {
                salts::note_salt(task, Salt::Unknown);
            }
        });
    }
}

/// Whether the request of this thread is for `/infill`.
pub(crate) fn is_infill() -> bool {
    let mut is = false;
    current(|current| is = current.is_infill());
    is
}

/// Whether the prompt of this thread's request gets the tokens of earlier answers.
pub(crate) fn keeps_tokens() -> bool {
    let mut keeps = false;
    current(|current| keeps = current.keeps_tokens());
    keeps
}

/// The prompt that was tokenized on this thread got tokens of earlier answers.
pub(crate) fn kept(kept: &Kept) {
    STATUS.kept_prompts.add(1);
    STATUS.kept_tokens.add(kept.kept as u64);
    current(|current| current.kept(kept));
}

/// The server made so many tokens of what may be a prompt, on this thread; negative: there was no room for them.
pub(crate) fn counted(tokens: i32) {
    if let (Ok(tokens @ 1..), true) = (u32::try_from(tokens), clock::is_engaged()) {
        current(|current| current.counted(tokens));
    }
}

/// The server tokenized a text on this thread, with or without adding special tokens. `infill`:
/// the rule for `/infill`, if the request is for that.
pub(crate) fn tokenized(special: bool, text: &[u8], tokens: &[Token], infill: Option<&Infill>) {
    current(|current| current.tokenized(special, text, tokens, infill));
}

/// The salt of the request that this thread serves.
pub(crate) fn salt() -> Salt {
    let mut salt = Salt::None;
    current(|current| salt = current.salt());
    salt
}

/// A prompt that may have media is being tokenized on this thread. The single texts in it do not count.
pub(crate) fn tokenizing_media() {
    current(Current::tokenizing_media);
}

/// The prompt with media has these tokens; `None` if they cannot be known.
pub(crate) fn tokenized_media(tokens: Option<&[Token]>) {
    current(|current| current.tokenized_media(tokens));
}

/// Calls `work` with the request that this thread serves, if it is of interest.
fn current(work: impl FnOnce(&mut Current)) {
    with(|connection| {
        if let Some(connection) = connection {
            let step = connection.reader.goes_on();
            connection.go_on(step);
            if let Some(current) = &mut connection.current {
                work(current);
            }
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
    reader: ConnectionReader,
    /// The request that was received last, if it is of interest. It is if it has an id, if the server
    /// will forget its prompt, or if it names adapters. Any other request for inference is of interest if
    /// there is an observer, or if requests are tied by prompts, because another request may have the
    /// same prompt.
    current: Option<Current>,
}

impl Connection {
    fn new(socket: i32, generation: u32) -> Self {
        let reader = if prompts::are_engaged() {
            ConnectionReader::with_prompts()
        } else {
            ConnectionReader::new()
        };
        Self {
            socket,
            generation,
            layer: Layer::Socket,
            reader: if have_titles() {
                reader.with_titles()
            } else {
                reader
            },
            current: None,
        }
    }

    /// The server works for a request that could not be read.
    fn is_unread(&self) -> bool {
        let lost = self.reader.lost().is_some_and(|why| why != Loss::Closed);
        lost && self.current.is_none()
    }

    fn feed(&mut self, bytes: &[u8]) {
        // The server reads again only after it has answered the previous request.
        let step = self.reader.received(bytes);
        self.go_on(Some(step));
    }

    /// If there is a step, the previous request is over, and the server works for the one that the step has.
    fn go_on(&mut self, step: Option<Step>) {
        let Some(step) = step else { return };
        if let Some(mut current) = self.current.take() {
            current.answer(false);
        }
        match step {
            Step::More => {}
            Step::Complete(request) => {
                if request.is_inference() {
                    mode::serving();
                }
                self.current = Current::of(request);
                if self.reader.lost() == Some(Loss::Behind) {
                    STATUS.unreadable_connections.add(1);
                }
            }
            Step::Lost(_) => STATUS.unreadable_connections.add(1),
        }
    }
}

/// The thread's connection. This is our only thread-local with a destructor. It is registered with
/// the C library at the thread's first request, and runs at the thread's end. Later accesses
/// (`try_with`) fail. The destructor uses only statics, and flags that have no destructor themselves.
struct AtThread(RefCell<Option<Connection>>);

thread_local! {
    static CONNECTION: AtThread = const { AtThread(RefCell::new(None)) };
}

impl Drop for AtThread {
    fn drop(&mut self) {
        let connection = self.0.get_mut();
        guard::guarded(|| finish(connection));
    }
}

fn with(work: impl FnOnce(&mut Option<Connection>)) {
    let _ = CONNECTION.try_with(|at| {
        if let Ok(mut connection) = at.0.try_borrow_mut() {
            work(&mut connection);
        }
    });
}
