//! For people: the control endpoint, the log file, and what they are told.
//!
//! ```text
//!  host's threads      worker thread                         threads of ours
//!  events, notes ──► ledger ──► observer ──► [`Ring`] ─────► connections: GET /events
//!                                   │ ▲
//!                                   │ └─ questions ◄───────► connections: everything else
//!                                   └─ lines ──────────────► log file
//! ```
//!
//! **Cost.** Without `CONTEXTPILOT_LISTEN` and `CONTEXTPILOT_LOG_FILE` one relaxed load of
//! [`ENGAGED`] in a few hooks, and nothing else. With one of them, on the host's threads: the
//! clock is read (without a system call) when a request was received, an evaluation ended, a
//! request was answered, and one more entry goes into the queue for each request, each save, and
//! for each time that a sequence is twice as long as any before: then the engine is asked for
//! the size of its state, which it computes without copying anything. All else happens on the
//! worker thread and on threads of ours.
//!
//! Each of these threads is ours for life ([`guard::enter_for_life`](crate::guard)), since what
//! they do goes through our own `accept`, `recv` and `send`, and has all signals blocked.

mod answers;
mod ask;
mod attend;
mod control;
mod facts;
mod log_file;
mod recording;
mod setup;
mod stream;

use std::collections::hash_map::RandomState;
use std::ffi::{OsString, c_char};
use std::hash::BuildHasher;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use contextpilot_delivery::Sender;
use contextpilot_observer::{Note, Now, Stamp};
use contextpilot_residency::{Accounts, ContextId, Entry};
use contextpilot_settings::Settings;

use crate::abi::Pointer;
use crate::attach::Attached;
use crate::attach::original::plain;
use crate::channel::note;
use crate::{contexts, log};
use answers::Answers;
use attend::Facts;
use facts::CommandLine;
use log_file::LogFile;
use recording::Recording;
use stream::Stream;

pub(crate) use ask::Question;
pub(crate) use attend::Attendant;
pub(crate) use control::remove_socket;
pub(crate) use log_file::has_ended as log_is_written;

/// Somebody observes.
static ENGAGED: AtomicBool = AtomicBool::new(false);
static START: OnceLock<Instant> = OnceLock::new();

/// From the constructor: somebody will observe.
pub(crate) fn engage() {
    START.get_or_init(Instant::now);
    ENGAGED.store(true, Ordering::Relaxed);
}

#[inline]
pub(crate) fn is_engaged() -> bool {
    ENGAGED.load(Ordering::Relaxed)
}

/// The time, if somebody observes.
pub(crate) fn stamp() -> Stamp {
    if !is_engaged() {
        return Stamp::default();
    }
    let since = START.get().map_or(0, |start| start.elapsed().as_nanos());
    // One more, since zero means that it was not taken; 64 bits last for 580 years.
    Stamp(u64::try_from(since).unwrap_or(u64::MAX - 1) + 1)
}

/// The time on both clocks.
pub(crate) fn now() -> Now {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let unix_ms = since.map_or(0, |since| since.as_millis());
    Now {
        stamp: stamp(),
        unix_ms: u64::try_from(unix_ms).unwrap_or(u64::MAX),
    }
}

/// Starts what the settings ask for. The caller has blocked all signals.
///
/// # Errors
/// No thread can be had.
pub(crate) fn start(
    settings: &Settings,
    attached: Attached,
    index: Option<(Arc<Sender>, String)>,
) -> io::Result<Option<Attendant>> {
    if !settings.observes() {
        return Ok(None);
    }
    let log = match &settings.log_file {
        Some(path) => Some(LogFile::start(path.clone(), settings.log_file_limit)?),
        None => None,
    };
    let epoch = epoch();
    let endpoint = match &settings.listen {
        Some(address) => {
            let (asker, questions) = ask::questions();
            let stream = Arc::new(Stream::new(epoch.clone()));
            let answers = Answers {
                listen: address.clone(),
                token: settings.listen_token.clone(),
                asker,
                stream: Arc::clone(&stream),
                attached,
                sender: index.as_ref().map(|(sender, _)| Arc::clone(sender)),
                readers: Arc::default(),
            };
            control::start(address.clone(), answers)?;
            Some((stream, questions))
        }
        None => None,
    };
    let command = command_line();
    let recording = match &settings.traffic_file {
        Some(wanted) => {
            let engine = attached.describe().build.unwrap_or_default();
            let setup = setup::setup(&command, engine, attached.sees_host_cache());
            // All else goes on without it.
            Recording::start(wanted, setup)
                .inspect_err(|error| log::line(format_args!("No traffic is recorded: {error}")))
                .ok()
        }
        None => None,
    };
    let reads = settings.listen.is_some() || settings.log_file.is_some();
    let accounts = settings.explain_limit.filter(|_| reads).map(|bytes| {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        Accounts::new(command.rules(), bytes)
    });
    let facts = Facts {
        attached,
        model: command.model(),
        host_limit: command.host_limit(attached.sees_host_cache()),
        started: Instant::now(),
        index,
    };
    Ok(Some(Attendant::new(
        epoch, accounts, facts, endpoint, log, recording,
    )))
}

/// What the server was told, as far as we look at it.
fn command_line() -> CommandLine<impl Fn(&str) -> Option<OsString>> {
    CommandLine::new(std::env::args_os(), |name: &str| std::env::var_os(name))
}

/// Bytes that the host prompt cache may take; `None` if there is no limit, or no cache.
pub(crate) fn host_limit(attached: &Attached) -> Option<u64> {
    let (limit, _) = command_line().host_limit(attached.sees_host_cache());
    limit.filter(|bytes| *bytes > 0)
}

/// Another one for each process. `RandomState` is seeded by the system.
fn epoch() -> String {
    let time = now().unix_ms;
    let random = RandomState::new().hash_one((time, std::process::id()));
    format!("{random:016x}")
}

/// A sequence whose size is worth asking for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Longest {
    sequence: i32,
    tokens: u32,
}

/// Whether a batch makes a sequence twice as long as any that was measured, which happens some
/// twenty times in the life of a context at most.
pub(crate) fn worth_measuring(context: Pointer, entries: &[Entry]) -> Option<Longest> {
    if !is_engaged() || entries.len() < 2 {
        return None;
    }
    let last = entries.last()?;
    let tokens = u32::try_from(last.position).ok()?.saturating_add(1);
    let measured = contexts::measured(context)?.load(Ordering::Relaxed);
    (tokens >= measured.saturating_mul(2)).then_some(Longest {
        sequence: last.sequence,
        tokens,
    })
}

/// Asks the engine for the size of a sequence, right after it was evaluated; bytes. Not to be called
/// within the guard.
pub(crate) fn ask_size(context: Pointer, longest: Longest) -> Option<usize> {
    // SAFETY: a living context that is not at work now, on the thread that uses it.
    unsafe { plain::state_size(context, longest.sequence) }
}

/// The engine has said how large a sequence is.
pub(crate) fn note_size(context: Pointer, longest: Longest, size: Option<usize>) {
    let Longest { tokens, .. } = longest;
    if let Some(measured) = contexts::measured(context) {
        measured.store(tokens, Ordering::Relaxed);
    }
    if let Some(bytes) = size {
        note(|| Note::Measured {
            context: ContextId(context.addr()),
            tokens,
            bytes: bytes as u64,
        });
    }
}

/// What the engine says of a context to whoever observes.
pub(crate) struct ContextFacts {
    capacity: Option<u32>,
    /// What it calls the model, ended by a zero.
    model: [u8; 128],
}

/// Asks it, if somebody observes. Not to be called within the guard.
pub(crate) fn ask_context(context: Pointer, model: Option<Pointer>) -> Option<ContextFacts> {
    if !is_engaged() {
        return None;
    }
    // SAFETY: a living context, here and below.
    let of_one = unsafe { plain::context_size_of_one(context) };
    // SAFETY: see above.
    let capacity = of_one.or_else(|| unsafe { plain::context_size(context) });
    let mut text = [0_u8; 128];
    if let Some(model) = model {
        // SAFETY: a living context's model, and a buffer of that size, which is ended by a zero.
        unsafe { plain::model_desc(model, text.as_mut_ptr().cast::<c_char>(), text.len()) };
    }
    Some(ContextFacts {
        capacity,
        model: text,
    })
}

/// A context was made.
pub(crate) fn note_context(context: Pointer, facts: Option<&ContextFacts>) {
    if let Some(facts) = facts {
        note(|| Note::Context {
            context: ContextId(context.addr()),
            capacity: facts.capacity,
            model: model_of(facts),
        });
    }
}

/// What the engine calls the context's model.
fn model_of(facts: &ContextFacts) -> Option<Arc<str>> {
    let text = facts.model.split(|&byte| byte == 0).next()?;
    let text = String::from_utf8_lossy(text);
    (!text.is_empty()).then(|| Arc::from(&*text))
}
