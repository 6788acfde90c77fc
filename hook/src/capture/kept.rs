//! Where the text of a prompt goes on as an earlier answer did, it gets the tokens that were generated
//! (`CONTEXTPILOT_KEEP_TOKENS`): see [`contextpilot_kept_tokens`].
//!
//! Everything here runs on the thread that tokenizes the prompt, which in a server is that of the request. Answers are
//! remembered by the worker.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, SyncSender};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use contextpilot_admission::STACK;
use contextpilot_kept_tokens::{AnswerId, Answers, Kept, Vocabulary};
use contextpilot_kv_files::Folder;

use crate::attach::plain;
use crate::base::abi::Pointer;
use crate::base::bounds::ANSWER_TOKENS;
use crate::base::guard;
use crate::channel::nudge;

static ENGAGED: AtomicBool = AtomicBool::new(false);
/// JSON may be spelled otherwise than it was generated.
static CALLS: AtomicBool = AtomicBool::new(false);
static ANSWERS: OnceLock<Mutex<Answers>> = OnceLock::new();
/// Turns of the worker.
static TURNS: AtomicU64 = AtomicU64::new(0);

/// Called by the constructor, or when an engine is attached to.
pub(crate) fn engage(calls: bool) {
    CALLS.store(calls, Ordering::Relaxed);
    ENGAGED.store(true, Ordering::Relaxed);
}

#[inline]
pub(crate) fn are_engaged() -> bool {
    ENGAGED.load(Ordering::Relaxed)
}

/// Where the worker remembers answers.
pub(crate) fn answers() -> Option<&'static Mutex<Answers>> {
    are_engaged().then(|| ANSWERS.get_or_init(|| Mutex::new(Answers::new(ANSWER_TOKENS))))
}

/// The worker has applied what was sent before this turn.
pub(crate) fn note_turn() {
    TURNS.fetch_add(1, Ordering::SeqCst);
}

/// The worker may not have heard yet of the last tokens of an answer that the client has. It is waited for: 0.1 ms as a rule,
/// and on a busy machine less than evaluating an answer takes.
fn catch_up() {
    const MOST: Duration = Duration::from_millis(250);
    const PAUSE: Duration = Duration::from_micros(30);
    // The turn that lasts may have begun before.
    let target = TURNS.load(Ordering::SeqCst) + 2;
    let start = Instant::now();
    while TURNS.load(Ordering::SeqCst) < target && start.elapsed() < MOST {
        nudge();
        std::thread::sleep(PAUSE);
    }
}

/// Answers that are to be written.
static LOG: OnceLock<SyncSender<Vec<u8>>> = OnceLock::new();
/// How many of them are not written yet.
static UNWRITTEN: AtomicU64 = AtomicU64::new(0);

/// Answers are also kept in the store's folder: what other servers have left there is read, on a thread of its own.
///
/// # Errors
/// Why they are not, as the rest of a message.
pub(crate) fn keep_in(folder: &Path) -> Result<(), String> {
    /// Answers that may wait for the disk. Another one is not written.
    const MOST: usize = 256;
    let Some(answers) = answers() else {
        return Ok(());
    };
    let folder = Folder::open(folder).map_err(|error| error.to_string())?;
    let (log, records) = mpsc::sync_channel::<Vec<u8>>(MOST);
    let thread = thread::Builder::new()
        .name("contextpilot-kept".to_owned())
        .stack_size(STACK);
    let started = thread.spawn(move || {
        guard::enter_for_life();
        let lock = || answers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Ok(all) = folder.answers() {
            lock().load(&all);
        }
        // What cannot be written is evaluated again after a restart.
        let _ = folder.shorten_answers(|all| {
            lock().load(all);
            lock().encode_all()
        });
        for record in records {
            let _ = folder.append_answer(&record);
            UNWRITTEN.fetch_sub(1, Ordering::SeqCst);
        }
    });
    started.map_err(|error| error.to_string())?;
    let _ = LOG.set(log);
    Ok(())
}

/// An answer has ended, or pauses.
pub(crate) fn keep_answer(answer: AnswerId) {
    let (Some(log), Some(answers)) = (LOG.get(), answers()) else {
        return;
    };
    let record = answers
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .encode(answer);
    if let Some(record) = record {
        UNWRITTEN.fetch_add(1, Ordering::SeqCst);
        if log.try_send(record).is_err() {
            UNWRITTEN.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// The process ends: waits until answers are written, at most until then.
pub(crate) fn finish(until: Instant) {
    while UNWRITTEN.load(Ordering::SeqCst) > 0 && Instant::now() < until {
        thread::sleep(Duration::from_millis(1));
    }
}

/// What a vocabulary consists of.
struct Pieces {
    vocabulary: usize,
    bytes: Vec<u8>,
    /// Where a token's bytes end, and whether it is special.
    ends: Vec<(u32, bool)>,
}

impl Vocabulary for Pieces {
    fn piece(&self, token: i32) -> &[u8] {
        let end_of = |at: usize| self.ends.get(at).map(|(end, _)| *end as usize);
        let bytes = usize::try_from(token).ok().and_then(|token| {
            let from = match token {
                0 => 0,
                _ => end_of(token - 1)?,
            };
            self.bytes.get(from..end_of(token)?)
        });
        bytes.unwrap_or_default()
    }

    fn token_of(&self, piece: &[u8]) -> Option<i32> {
        // Once or twice in a prompt, some hundred microseconds.
        let all = 0..i32::try_from(self.ends.len()).unwrap_or(0);
        let is_it = |token: &i32| self.piece(*token) == piece && !self.is_special(*token);
        all.into_iter().find(is_it).filter(|_| !piece.is_empty())
    }

    fn is_special(&self, token: i32) -> bool {
        let known = usize::try_from(token)
            .ok()
            .and_then(|token| self.ends.get(token));
        known.is_none_or(|(_, special)| *special)
    }
}

/// The vocabulary that was read last. A server has one; of several in a program, each is read again.
static PIECES: Mutex<Option<Pieces>> = Mutex::new(None);

/// A model was loaded: its vocabulary may be at the address of one that is gone.
pub(crate) fn forget_vocabulary() {
    if are_engaged() {
        *PIECES.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl Pieces {
    /// Asks the engine for all of it, once. `None`: it does not say what tokens are.
    ///
    /// # Safety
    /// The vocabulary is alive.
    unsafe fn of(vocabulary: Pointer) -> Option<Self> {
        /// `UNKNOWN`, `CONTROL` and `USER_DEFINED` of `llama_token_attr`.
        const SPECIAL: i32 = 1 | 8 | 16;
        // SAFETY: the caller's promise, here and below.
        let size = unsafe { plain::vocabulary_size(vocabulary) }?;
        let mut pieces = Self {
            vocabulary: vocabulary.addr(),
            bytes: Vec::new(),
            ends: Vec::new(),
        };
        let mut text = [0_u8; 1024];
        for token in 0..size {
            // SAFETY: see above; the token exists.
            let attribute = unsafe { plain::attribute(vocabulary, token) }?;
            let (room, most) = (text.as_mut_ptr().cast(), text.len() as i32);
            // SAFETY: as above, and the buffer has `most` bytes.
            let length = unsafe { plain::piece(vocabulary, token, room, most, 0, true) }?;
            // Negative: it is longer than any text that is worth it.
            let length = usize::try_from(length).unwrap_or(0).min(text.len());
            pieces.bytes.extend_from_slice(&text[..length]);
            let end = u32::try_from(pieces.bytes.len()).ok()?;
            pieces.ends.push((end, attribute & SPECIAL != 0));
        }
        Some(pieces)
    }
}

/// What the tokenizer has added in front of a text.
///
/// # Safety
/// The vocabulary is alive.
unsafe fn added(vocabulary: Pointer, canonical: &[i32]) -> usize {
    // SAFETY: the caller's promise, here and below.
    let begins = unsafe { plain::has_beginning(vocabulary) } == Some(true);
    // SAFETY: see above.
    let bos = unsafe { plain::begins_with(vocabulary) };
    usize::from(begins && bos == canonical.first().copied())
}

/// The tokens that a prompt gets; `None`: those of the tokenizer, which was asked to add special tokens. This calls the
/// engine.
///
/// # Safety
/// The vocabulary is alive.
pub(crate) unsafe fn keep(vocabulary: Pointer, text: &[u8], canonical: &[i32]) -> Option<Kept> {
    let answers = answers()?;
    catch_up();
    let is_empty = || {
        answers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_empty()
    };
    if is_empty() {
        return None;
    }
    // SAFETY: the caller's promise, here and below.
    let added = unsafe { added(vocabulary, canonical) };
    let mut pieces = PIECES.lock().unwrap_or_else(PoisonError::into_inner);
    if pieces
        .as_ref()
        .is_none_or(|known| known.vocabulary != vocabulary.addr())
    {
        // SAFETY: see above.
        *pieces = unsafe { Pieces::of(vocabulary) };
    }
    let answers = answers.lock().unwrap_or_else(PoisonError::into_inner);
    let calls = CALLS.load(Ordering::Relaxed);
    answers.keep(text, canonical, added, pieces.as_ref()?, calls)
}
