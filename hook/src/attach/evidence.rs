//! What is known of each function. *Found* is the number of places that lead to it. *Patched* is the
//! number of these that were read back and lead to our replacement. *Called* says whether a call was
//! seen.
//!
//! A place is an entry of the global offset table, an entry of a table of functions, the function's
//! own first instructions if it is hooked inline, or an interpose pair on macOS.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use super::engines::{self, ENGINES};
use crate::base::mode::{self, Phase};

/// How a row's function is hooked, and in how many places, in each engine. All methods are about the engine that the
/// thread is in.
pub(crate) struct Places([InEngine; ENGINES]);

struct InEngine {
    way: AtomicU8,
    found: AtomicU32,
    patched: AtomicU32,
    /// Places in the server's own objects that lead to another definition of the function. That
    /// one is not hooked.
    strays: AtomicU32,
}

impl InEngine {
    const fn new() -> Self {
        Self {
            way: AtomicU8::new(BY_WORDS),
            found: AtomicU32::new(0),
            patched: AtomicU32::new(0),
            strays: AtomicU32::new(0),
        }
    }
}

const BY_WORDS: u8 = 0;
const INLINE: u8 = 1;

/// The numbers of a function's places.
#[derive(Clone, Copy)]
pub(super) struct Counts {
    /// Words that lead to the definition that is hooked.
    pub(super) found: u32,
    /// Words of the server's own objects that lead to another definition.
    pub(super) strays: u32,
}

impl Places {
    pub(super) const fn new() -> Self {
        Self([const { InEngine::new() }; ENGINES])
    }

    fn here(&self) -> &InEngine {
        &self.0[engines::current() % ENGINES]
    }

    pub(super) fn set_words(&self, counts: Counts) {
        self.here().found.store(counts.found, Ordering::Relaxed);
        self.here().strays.store(counts.strays, Ordering::Relaxed);
    }

    pub(super) fn add_word(&self) {
        self.here().found.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_patched(&self) {
        self.here().patched.fetch_add(1, Ordering::Relaxed);
    }

    /// The function is hooked inline, so every caller reaches us. Returns the previous counts.
    pub(super) fn set_inline(&self) -> Counts {
        self.here().way.store(INLINE, Ordering::Relaxed);
        self.here().patched.store(1, Ordering::Relaxed);
        Counts {
            found: self.here().found.swap(1, Ordering::Relaxed),
            strays: self.here().strays.swap(0, Ordering::Relaxed),
        }
    }

    /// Undoes [`set_inline`](Self::set_inline).
    pub(super) fn restore(&self, counts: Counts) {
        self.here().way.store(BY_WORDS, Ordering::Relaxed);
        self.here().patched.store(0, Ordering::Relaxed);
        self.set_words(counts);
    }

    pub(super) fn is_inline(&self) -> bool {
        self.here().way.load(Ordering::Relaxed) == INLINE
    }

    pub(super) fn found(&self) -> u32 {
        self.here().found.load(Ordering::Relaxed)
    }

    pub(super) fn patched(&self) -> u32 {
        self.here().patched.load(Ordering::Relaxed)
    }

    pub(super) fn strays(&self) -> u32 {
        self.here().strays.load(Ordering::Relaxed)
    }
}

/// The phase in which a function was called last.
pub(crate) struct Called(AtomicU8);

/// No phase.
const NEVER: u8 = u8::MAX;

impl Called {
    pub(super) const fn new() -> Self {
        Self(AtomicU8::new(NEVER))
    }

    /// Notes a call, and says whether hooks observe. Costs two loads, and one store per phase: every hook calls this.
    #[inline]
    pub(crate) fn note(&self) -> bool {
        let phase = mode::phase();
        self.0.load(Ordering::Relaxed) == phase || self.note_first(phase)
    }

    /// The first call of a phase, or any call while hooks do not observe: that is never noted.
    #[cold]
    fn note_first(&self, phase: u8) -> bool {
        let observes = phase != Phase::Inactive as u8;
        if observes {
            self.0.store(phase, Ordering::Relaxed);
        }
        observes
    }

    /// Whether a call was seen.
    pub(crate) fn ever(&self) -> bool {
        self.0.load(Ordering::Relaxed) != NEVER
    }

    /// Whether a call was seen since the first request.
    pub(super) fn while_serving(&self) -> bool {
        self.0.load(Ordering::Relaxed) == Phase::Serving as u8
    }
}
