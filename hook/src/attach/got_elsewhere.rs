//! Replaces GOT patching where executables are not ELF files: there dyld has bound callers to our
//! replacements before any of our code runs.

use std::ffi::CStr;

use super::evidence::Counts;
use super::original::ROWS;
use super::row::Row;

/// The result of dyld's work.
pub(super) struct Survey;

impl Survey {
    /// Counts the interpose pairs whose original exists.
    pub(super) fn take() -> Self {
        for row in ROWS.iter().filter(|row| row.is_paired()) {
            let counts = Counts {
                found: 1,
                strays: 0,
            };
            row.places.set_words(counts);
        }
        Self
    }

    /// Unknown: callers cannot be found here.
    pub(super) fn is_called_by_callers_of(
        &self,
        _: &str,
        wanted: impl Fn(&Row) -> bool,
    ) -> Option<bool> {
        Some(ROWS.iter().any(|row| wanted(row) && row.places.found() > 0))
    }

    /// Never: there are no such words.
    pub(super) fn is_called_by_executable(&self, _: &str) -> bool {
        false
    }

    /// Nothing is known of it.
    pub(super) fn beside(&self, _: &str, _: &CStr) -> Option<usize> {
        None
    }

    /// Does nothing: dyld has done it.
    ///
    /// # Errors
    /// None.
    ///
    /// # Safety
    /// Always safe here; it is unsafe on Linux.
    pub(super) unsafe fn patch(self, _: impl Fn(&Row) -> bool) -> Result<(), &'static str> {
        let paired = ROWS.iter().filter(|row| row.places.found() > 0);
        paired.for_each(|row| row.places.count_patched());
        Ok(())
    }
}

/// Does nothing: dyld does this too.
pub(crate) fn patch_late() {}
