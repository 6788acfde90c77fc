//! The addresses of our hooks. The hooks are in a module of a higher layer, which passes them here once
//! ([`set`]), before anything is patched.

use std::sync::OnceLock;

/// The hook for one function of the table.
pub(crate) struct Replacement {
    /// Returns the hook's address. A function, because addresses are not constants.
    pub(crate) code: fn() -> *const (),
}

impl Replacement {
    /// The hook's address.
    pub(super) fn code(&self) -> *const () {
        (self.code)()
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
