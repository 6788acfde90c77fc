//! What is called in place of the host's functions. The hooks themselves are in a room above, so they
//! are told once ([`set`]), before anything is patched.

use std::sync::OnceLock;

/// For one function of the table.
pub(crate) struct Replacement {
    /// Where its code is. A function, since addresses are no constants.
    pub(crate) code: fn() -> *const (),
}

impl Replacement {
    /// Where its code is.
    pub(super) fn code(&self) -> *const () {
        (self.code)()
    }

    /// The same, as a number.
    pub(super) fn address(&self) -> usize {
        self.code().expose_provenance()
    }
}

static REPLACEMENTS: OnceLock<&'static [Replacement]> = OnceLock::new();

/// These it will be, in the table's order.
pub(super) fn set(replacements: &'static [Replacement]) {
    let _ = REPLACEMENTS.set(replacements);
}

/// All of them, in the table's order: none before they were set.
pub(super) fn all() -> &'static [Replacement] {
    REPLACEMENTS.get().copied().unwrap_or_default()
}
