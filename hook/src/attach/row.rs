//! A row of the [table](super::table) at run time: one hooked function, and what is known of it.

use std::sync::atomic::{AtomicBool, Ordering};

use super::evidence::{Called, Places};
#[cfg(target_os = "macos")]
use super::linker;
use super::slot::AddressSlot;
use super::table::PROMPTS;
use super::table::{ENCODER, MEMBER, STORE, STRAIGHT, WITH_MEDIA};
#[cfg(not(target_os = "macos"))]
use super::table::{EVALUATION, Generations, MEMORY};

/// Functions of the prefix store are hooked.
static STORE_WANTED: AtomicBool = AtomicBool::new(false);
/// What tokenizes prompts is hooked, also where requests need not be tied by their prompts.
static TOKENS_WANTED: AtomicBool = AtomicBool::new(false);

/// Called by the constructor, before anything is hooked: prompts get the tokens of earlier answers, or their tokens are
/// counted.
pub(crate) fn want_tokens() {
    TOKENS_WANTED.store(true, Ordering::Relaxed);
}

/// See [`want_tokens`].
fn are_tokens_wanted() -> bool {
    TOKENS_WANTED.load(Ordering::Relaxed)
}

/// The functions of the prefix store are to be hooked, too. Call this before anything is patched.
pub(crate) fn want_store() {
    STORE_WANTED.store(true, Ordering::Relaxed);
}

fn is_store_wanted() -> bool {
    STORE_WANTED.load(Ordering::Relaxed)
}

/// One hooked function.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) generation: &'static str,
    pub(crate) need: &'static str,
    pub(crate) slot: &'static AddressSlot,
    pub(crate) places: &'static Places,
    pub(crate) called: &'static Called,
}

impl Row {
    /// Whether the host has the function, and its calls can be redirected to us.
    pub(crate) fn found(&self) -> bool {
        self.slot.get().is_some() && self.hears()
    }

    /// Whether it is one of the server's own functions.
    pub(crate) fn is_servers(&self) -> bool {
        self.generation.starts_with("server")
    }

    /// Whether it is a function of the engine or of the server, and not of a library that other
    /// code uses as well.
    pub(crate) fn is_engines(&self) -> bool {
        !matches!(self.generation, "cxx" | "libc" | "openssl")
    }

    /// Whether it is a function of llama.cpp's own library.
    #[cfg(target_os = "linux")]
    pub(super) fn is_of_library(&self) -> bool {
        let is_prompts = self.generation == PROMPTS.0;
        self.is_engines() && !self.is_servers() && (!is_prompts || are_tokens_wanted())
    }

    /// Whether it is hooked in this process: functions of the prefix store only if there is one.
    pub(crate) fn is_wanted(&self) -> bool {
        let is_stores = matches!(self.generation, STORE | STRAIGHT | ENCODER);
        let is_members = self.generation == MEMBER;
        !is_members && (!is_stores || is_store_wanted())
    }

    /// Whether it tokenizes prompts, and what it is given is not needed. `by_prompts`: requests are tied by their prompts.
    pub(super) fn is_idle(&self, by_prompts: bool) -> bool {
        let is_for_encoder = self.name == WITH_MEDIA && is_store_wanted();
        self.generation == PROMPTS.0 && !by_prompts && !are_tokens_wanted() && !is_for_encoder
    }

    /// Whether the library attaches without it.
    pub(crate) fn is_optional(&self) -> bool {
        self.need == "optional"
    }
}

/// Calls between files are redirected in their words ([`got`](super::got)).
#[cfg(not(target_os = "macos"))]
impl Row {
    /// Whether the process has the function. One that no code calls may be another engine's.
    pub(super) fn is_there(&self) -> bool {
        self.found()
    }

    /// Whether calls of the function can be redirected to us. Calls between files can be. Calls within
    /// one file may bypass the dynamic linker (`-Bsymbolic`), and then there is no word to patch. If a
    /// function that every server calls has no word, that is the reason. If any other function has no
    /// word, no code calls it. A process with two engines cannot be followed.
    fn hears(&self) -> bool {
        let is_anchor =
            |generations: Generations| generations.iter().any(|(_, name)| *name == self.name);
        let is_called_by_all = self.is_servers() || is_anchor(MEMORY) || is_anchor(EVALUATION);
        let is_one = self.places.strays() == 0 || !self.is_engines();
        is_one && (self.places.found() > 0 || !is_called_by_all)
    }
}

/// Calls between files are redirected by dyld.
#[cfg(target_os = "macos")]
impl Row {
    /// Whether the process has the function, though its calls may not come to us.
    pub(super) fn is_there(&self) -> bool {
        self.slot.get().is_some()
    }

    /// Whether dyld binds callers of the function to our replacement.
    pub(super) fn is_paired(&self) -> bool {
        linker::has_pair(self.name) && self.found()
    }

    /// Whether our replacement sees the calls of the function. It does not see calls within one file:
    /// those of an engine inside the executable, and those of the server's own functions, which its
    /// library calls itself.
    fn hears(&self) -> bool {
        !self.is_servers()
            && self
                .slot
                .get()
                .is_some_and(|theirs| !linker::is_in_executable(theirs))
    }
}
