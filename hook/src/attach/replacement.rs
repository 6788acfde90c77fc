//! The addresses of our hooks. The hooks are in a module of a higher layer, which passes them here once
//! ([`set`]), before anything is patched.

use std::sync::OnceLock;

use super::engines::{self, ENGINES};

/// The hook for one function of the table. Functions return the address, because addresses are not constants.
pub(crate) struct Replacement {
    /// In a llama-server, which has one engine.
    pub(crate) of_server: fn() -> *const (),
    /// In another program, for each of its engines.
    pub(crate) of_engines: [fn() -> *const (); ENGINES],
}

impl Replacement {
    /// The hook's address, of the engine that the thread is in.
    pub(super) fn code(&self) -> *const () {
        if engines::may_be_several() {
            (self.of_engines[engines::current() % ENGINES])()
        } else {
            (self.of_server)()
        }
    }

    /// The hook's address, as a number.
    pub(super) fn address(&self) -> usize {
        self.code().expose_provenance()
    }
}

static REPLACEMENTS: OnceLock<&'static [Replacement]> = OnceLock::new();

/// Sets the hooks, in the table's order.
pub(super) fn set(replacements: &'static [Replacement]) {
    let _ = REPLACEMENTS.set(replacements);
}

/// All hooks, in the table's order. Empty before they were set.
pub(super) fn all() -> &'static [Replacement] {
    REPLACEMENTS.get().copied().unwrap_or_default()
}
