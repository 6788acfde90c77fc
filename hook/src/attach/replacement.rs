//! The addresses of our hooks. The hooks are in a module of a higher layer, which passes them here once
//! ([`set`]), before anything is patched.

use std::sync::OnceLock;

use super::engines::{self, ENGINES};

/// The hook for one function of the table.
pub(crate) struct Replacement {
    /// For each engine, returns the address of its hook. Functions, because addresses are not constants.
    pub(crate) code: [fn() -> *const (); ENGINES],
}

impl Replacement {
    /// The hook's address, of the engine that the thread is in.
    pub(super) fn code(&self) -> *const () {
        (self.code[engines::current() % ENGINES])()
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
