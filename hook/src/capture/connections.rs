//! Which request an HTTP thread of the server is at.
//!
//! One thread serves a connection from `accept` to its end (cpp-httplib), so what it receives,
//! which task numbers it draws and when it has answered belong together. Where these numbers are
//! not to be seen, what it makes tokens of stands in for them: see [`prompts`].

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use contextpilot_observer::Note;
use contextpilot_request::{Adapters, Assembly, Identity, Infill, Request, RequestReader, Step};
use contextpilot_residency::{Arrival, Event, Prompt, RequestId, Scale, TaskId, Token, Wishes};
use contextpilot_worker::Waiting;

use crate::attach::{claims, evidence};
use crate::base::bounds::SOCKETS;
use crate::base::clock;
use crate::base::status::STATUS;
use crate::base::{faults, guard};
use crate::capture::{adapters, contexts, prompts, recent};
use crate::channel::{introduce, note, push, tell_waiting};

/// How often each descriptor was accepted or released, so that a number that is used again is not
/// taken for the same connection. Odd: it is a client of the server's. Even: it is not, or not
/// any more; the server itself may be somebody's client, to fetch an image for instance.
static ACCEPTED: [AtomicU32; SOCKETS] = {
    #[allow(clippy::declare_interior_mutable_const)]
    const NEVER: AtomicU32 = AtomicU32::new(0);
    [NEVER; SOCKETS]
};

/// The server forgets prompts that are not to be cached without a call.
static FORGETS: AtomicBool = AtomicBool::new(false);

static NEXT_ARRIVAL: AtomicU64 = AtomicU64::new(1);

/// Of each request that says `"cache_prompt": false` the ledger has to be told so: the server is of
/// the kind that forgets such prompts without a call (see the table's `UNCACHED`).
pub(crate) fn expect_forgetting() {
    FORGETS.store(true, Ordering::Relaxed);
}

/// A connection was accepted.
pub(crate) fn accepted(socket: i32) {
    count_to(socket, |count| (count + 1) | 1);
}

/// What comes over this socket from now on is none of a client's.
pub(crate) fn released(socket: i32) {
    count_to(socket, |count| count + (count & 1));
}

/// Nobody else counts: a descriptor belongs to one thread at a time.
fn count_to(socket: i32, next: impl Fn(u32) -> u32) {
    if let Some(cell) = cell(socket) {
        cell.store(next(cell.load(Ordering::Relaxed)), Ordering::Relaxed);
    }
}

fn cell(socket: i32) -> Option<&'static AtomicU32> {
    ACCEPTED.get(usize::try_from(socket).ok()?)
}

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
    current(|current| is = current.prompts.as_ref().is_some_and(Assembly::is_infill));
    is
}

/// The server made these tokens of a text on this thread, with or without special ones. `infill`:
/// the rule, if it is for that.
pub(crate) fn tokenized(special: bool, text: &[u8], tokens: &[Token], infill: Option<&Infill>) {
    current(|current| {
        if let (Some(prompts), false) = (&mut current.prompts, current.within_media) {
            prompts.text(special, text, tokens, infill);
            current.wait();
        }
    });
}

/// A prompt that may have media is being tokenized on this thread: its texts say nothing.
pub(crate) fn tokenizing_media() {
    current(|current| current.within_media = true);
}

/// It is this one, if that can be known.
pub(crate) fn tokenized_media(tokens: Option<&[Token]>) {
    current(|current| {
        current.within_media = false;
        if let (Some(prompts), Some(tokens)) = (&mut current.prompts, tokens) {
            prompts.text(true, &[], tokens, None);
            current.wait();
        }
    });
}

/// With the request that this thread is at, if it is of interest.
fn current(work: impl FnOnce(&mut Current)) {
    with(|connection| {
        if let Some(current) = connection.as_mut().and_then(|c| c.current.as_mut()) {
            work(current);
        }
    });
}

fn generation(socket: i32) -> Option<u32> {
    cell(socket)
        .map(|count| count.load(Ordering::Relaxed))
        .filter(|count| count % 2 == 1)
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

struct Current {
    arrival: Arrival,
    id: Option<RequestId>,
    inference: bool,
    /// The server samples tokens for it, unless it rejects it.
    generates: bool,
    /// The server will forget its prompts.
    forgotten: bool,
    /// The LoRA adapters that it names.
    adapters: Vec<(i32, Scale)>,
    /// To be put together, where there is no other way to know the request.
    prompts: Option<Assembly>,
    /// What is tokenized is part of a prompt that will be told as a whole.
    within_media: bool,
    known: Known,
    answer: Answer,
    /// The answer begins with 200, to a request that generates.
    succeeds: bool,
    /// Should the process die, the next start will know of the id.
    kept: bool,
}

/// What the worker knows of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    /// It has drawn no task number.
    Nothing,
    /// At least its first task.
    Posted,
    /// There was no room to tell it: the id is stranded, so it is over for the index.
    Lost,
}

/// How far the answer to a request is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    None,
    /// In chunks. The first is sent when a slot takes on the task, long before the prompt has
    /// been evaluated, so it says nothing.
    Streamed,
    Whole,
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

impl Current {
    fn of(request: Request) -> Option<Self> {
        let inference = request.is_inference();
        let generates = request.generates();
        let forbids_cache = request.forbids_cache();
        let wishes = Wishes {
            slot: request.wants_slot(),
            uncached: request.reuses_nothing(),
        };
        // Where it cannot be told what the named adapters come to, nothing of it is claimed.
        let (adapters, forgotten) = match request.adapters() {
            None => (Vec::new(), false),
            Some(Adapters::Named(named)) if adapters::are_seen() => {
                let named = named.iter().map(|&(id, scale)| (id, Scale::new(scale)));
                (named.collect(), false)
            }
            Some(_) => (Vec::new(), true),
        };
        let counted = |counter: &crate::base::status::Counter| {
            if inference {
                counter.add(1);
            }
        };
        let by_prompts = inference && prompts::are_engaged();
        let prompts = by_prompts.then(|| Assembly::of(&request));
        let id = match request.identity {
            Identity::Id(id) => {
                counted(&STATUS.with_id);
                Some(Arc::from(id))
            }
            Identity::Refused(_) => {
                counted(&STATUS.refused_id);
                None
            }
            _ => {
                counted(&STATUS.without_id);
                None
            }
        };
        let observed = inference && clock::is_engaged();
        let forgotten = forgotten || (forbids_cache && FORGETS.load(Ordering::Relaxed));
        let of_interest = id.is_some() || observed || forgotten || !adapters.is_empty();
        if !of_interest && prompts.is_none() {
            return None;
        }
        let arrival = Arrival(NEXT_ARRIVAL.fetch_add(1, Ordering::Relaxed));
        if observed {
            note(|| Note::Received { arrival });
            if wishes != Wishes::default() {
                note(|| Note::Wishes { arrival, wishes });
            }
        }
        let mut current = Self {
            arrival,
            id,
            inference,
            generates,
            forgotten,
            adapters,
            prompts,
            within_media: false,
            known: Known::Nothing,
            answer: Answer::None,
            succeeds: false,
            kept: false,
        };
        if let (true, Some(id)) = (inference, &current.id) {
            current.kept = recent::note(arrival, id);
        }
        current.wait();
        Some(current)
    }

    /// Part of the answer. The server writes the head in one piece, then each chunk in one, and
    /// last the empty one (cpp-httplib, `write_response_core`, `write_content_chunked`).
    fn send(&mut self, bytes: &[u8]) {
        if self.generates && bytes.starts_with(b"HTTP/1.1 200") {
            self.succeeds = true;
        }
        match self.answer {
            Answer::None if is_head_of_chunks(bytes) => self.answer = Answer::Streamed,
            Answer::None => self.answer(is_head_of_success(bytes)),
            Answer::Streamed if !bytes.starts_with(b"0\r\n") => {}
            // A server that cannot serve says so before it begins to stream.
            Answer::Streamed | Answer::Whole => self.answer(true),
        }
    }

    /// Waits with the prompts that are whole, before the server posts any of them.
    fn wait(&mut self) {
        while let Some(whole) = self.prompts.as_mut().and_then(Assembly::next) {
            let (arrival, task) = (self.arrival, prompts::next_task());
            self.post(task);
            let prompt = Prompt {
                tokens: whole.tokens,
                extra: whole.extra,
                slot: contexts::slot(),
            };
            tell_waiting(Waiting::Prompt {
                arrival,
                task,
                prompt,
            });
        }
    }

    fn post(&mut self, task: TaskId) {
        faults::at_request();
        if self.forgotten {
            push(Event::Uncached { task });
        }
        let arrival = self.arrival;
        match &self.id {
            Some(id) => {
                let id = Arc::clone(id);
                self.tell(Event::Posted { arrival, task, id });
            }
            None => {
                self.known = Known::Posted;
                note(|| Note::Posted { arrival, task });
            }
        }
        // Last: if this cannot be told, nothing is believed of what was told before it either.
        if !self.adapters.is_empty() {
            push(Event::NamedAdapters {
                task,
                scales: self.adapters.clone(),
            });
        }
    }

    /// What is not inference and drew no number was never expected to be cached. `served`: with what
    /// it asked for, so its prompts were evaluated.
    fn answer(&mut self, served: bool) {
        let begun = self.inference || self.known != Known::Nothing;
        if begun && std::mem::replace(&mut self.answer, Answer::Whole) != Answer::Whole {
            if self.succeeds {
                claims::answered();
            }
            let arrival = self.arrival;
            if self.prompts.take().is_some() {
                if self.id.is_some() && self.known == Known::Nothing {
                    // With a prompt that cannot be known: still, an older one of this id is over.
                    self.post(prompts::next_task());
                }
                tell_waiting(Waiting::Over { arrival, served });
            }
            match &self.id {
                Some(id) => {
                    let id = Arc::clone(id);
                    self.tell(Event::Answered { arrival, id });
                }
                None => note(|| Note::Answered { arrival }),
            }
        }
    }

    /// Of a request with an id.
    fn tell(&mut self, event: Event) {
        let Some(id) = &self.id else { return };
        match self.known {
            Known::Nothing => {
                if !self.inference {
                    self.kept = recent::note(self.arrival, id);
                }
                let told = introduce(event, self.arrival, id, self.kept);
                self.known = if told { Known::Posted } else { Known::Lost };
            }
            Known::Posted => push(event),
            Known::Lost => {}
        }
    }
}

/// Whether this begins an answer with a status of the two hundreds.
fn is_head_of_success(bytes: &[u8]) -> bool {
    bytes.starts_with(b"HTTP/1.") && bytes.get(8..10) == Some(b" 2")
}

/// Whether this begins an answer that will be sent in chunks.
fn is_head_of_chunks(bytes: &[u8]) -> bool {
    const FIELD: &[u8] = b"\r\ntransfer-encoding: chunked\r\n";
    bytes.starts_with(b"HTTP/")
        && bytes
            .windows(FIELD.len())
            .any(|window| window.eq_ignore_ascii_case(FIELD))
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
