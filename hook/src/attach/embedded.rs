//! Attaches to llama.cpp in a program that is not a llama-server, if it is asked to (`CONTEXTPILOT_ENGINE=1`).
//!
//! Such a program has the engine in a library that it loads by itself, or is linked with it, or contains it. It
//! calls functions through addresses that it has asked for, or directly, so all are hooked inline.

use std::sync::OnceLock;

use super::attached::{self, Attached};
use super::claims::{self, Claim};
use super::engines::{self, ENGINES};
pub(crate) use super::found::Embedded;
use super::got;
use super::hidden::{self, AS_EVER};
use super::host::missing_of;
use super::kind::{is_embedded, set_embedded};
use super::layout;
use super::loading;
pub(crate) use super::loading::OwnFunction;
use super::original::ROWS;
use super::plain;
use super::replacement::{self, Replacement};
use super::row::Row;
use super::served;
pub(crate) use super::served::serves_inside;
use super::slot::AddressSlot;
use crate::base::environment;

/// A function that the prefix store needs of each engine, and why it cannot be hooked.
static UNSTORABLE: [OnceLock<String>; ENGINES] = [const { OnceLock::new() }; ENGINES];

/// Why the engine that the thread is in can have no prefix store.
pub(crate) fn unstorable() -> Option<&'static str> {
    let why = UNSTORABLE[engines::current() % ENGINES].get();
    why.map(String::as_str)
}

/// Whether this process was attached to, is no llama-server, and has no [server inside](served) either. It has no requests then.
pub(crate) fn is_program() -> bool {
    is_embedded() && !serves_inside()
}

/// Calls `found` with each engine of this program: now, or when the program has loaded it.
/// `replacements`: what is called in place of the host's functions, in the table's order. `answers`: our functions
/// that the program may ask the dynamic linker for. `hidden` is called with the reason why an engine in a library that the
/// program has loaded is not followed: another one may come.
///
/// # Safety
/// From the library's constructor only.
pub(crate) unsafe fn watch(
    replacements: &'static [Replacement],
    answers: &'static [OwnFunction],
    found: fn(Result<Embedded, String>),
    hidden: Option<fn(String)>,
) {
    replacement::set(replacements);
    engines::expect_several();
    let rows = ROWS.iter().map(|row| row.slot);
    let all = rows.chain(plain::SLOTS.iter().copied());
    all.for_each(AddressSlot::forget_server);
    if let Some(engine) = Embedded::in_program() {
        found(Ok(engine));
        // SAFETY: the caller's promise.
        return unsafe { loading::watch(answers, found, hidden, true) };
    }
    let program = environment::program();
    if let Some(why) = environment::is_run()
        .then(|| hidden::reason(&program))
        .flatten()
    {
        found(Err(why));
    }
    // SAFETY: the caller's promise.
    unsafe { loading::watch(answers, found, hidden, false) };
}

impl Embedded {
    /// Hooks the engine's functions, of the engine that the thread has [entered](engines::enter_next).
    ///
    /// # Errors
    /// Why nothing was changed, as the rest of a message.
    ///
    /// # Safety
    /// No thread may be in one of the functions: from the library's constructor, or before any code was told of
    /// an address in the library.
    pub(crate) unsafe fn attach(self) -> Result<Attached, String> {
        let shown = self.file.display().to_string();
        let ready = self
            .inside
            .prepare_engine()
            .map_err(|refused| format!("in {shown}, {refused}; {AS_EVER}"))?;
        let lacking: Vec<&str> = missing_of(Row::is_of_library).collect();
        if !lacking.is_empty() {
            ready.abandon();
            return Err(hidden::lacks(&self.file, &lacking));
        }
        if let Some(other) = layout::obstacle() {
            ready.abandon();
            return Err(format!(
                "the llama.cpp of {shown} is another one: {other}; {AS_EVER}"
            ));
        }
        let unstorable = ready.unstorable.clone();
        // SAFETY: the caller's promise.
        unsafe { ready.install() }
            .map_err(|refused| format!("the code of {shown} {refused}; {AS_EVER}"))?;
        if let Some(why) = unstorable {
            let _ = UNSTORABLE[engines::current() % ENGINES].set(why);
        }
        if let Some(library) = self.library {
            got::redirect_calls_of(library);
        }
        attached::keep_file(&self.file);
        engines::keep_next();
        set_embedded();
        claims::make(Claim::KvCache);
        // SAFETY: the caller's promise.
        let server = |engine| unsafe { served::attach(engine) };
        // Slots and tasks are numbers of one server.
        let engine = self.library.filter(|_| engines::current() == 0);
        let served = engine.and_then(server);
        Ok(Attached::embedded(self.file, self.since.elapsed(), served))
    }
}
