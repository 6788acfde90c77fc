//! Where executables are no ELF files, words stay as they are: dyld has led whom it should to us
//! before any of our code runs.

use std::ffi::CStr;

use super::evidence::Counts;
use super::linker;
use super::original::{ROWS, Row};

/// What dyld has done.
pub(super) struct Survey;

impl Survey {
    /// Counts the interpose pairs that have a second half.
    pub(super) fn take() -> Self {
        for row in ROWS.iter().filter(|row| linker::is_paired(row)) {
            let counts = Counts {
                found: 1,
                strays: 0,
            };
            row.places.set_words(counts);
        }
        Self
    }

    /// Nobody can tell who calls what.
    pub(super) fn is_called_by_callers_of(
        &self,
        _: &str,
        wanted: impl Fn(&Row) -> bool,
    ) -> Option<bool> {
        Some(ROWS.iter().any(|row| wanted(row) && row.places.found() > 0))
    }

    /// There are no such words.
    pub(super) fn is_called_by_executable(&self, _: &str) -> bool {
        false
    }

    /// Nothing is known of it.
    pub(super) fn beside(&self, _: &str, _: &CStr) -> Option<usize> {
        None
    }

    /// Has been done.
    ///
    /// # Errors
    /// None.
    ///
    /// # Safety
    /// None is needed.
    pub(super) unsafe fn patch(self, _: impl Fn(&Row) -> bool) -> Result<(), &'static str> {
        let paired = ROWS.iter().filter(|row| row.places.found() > 0);
        paired.for_each(|row| row.places.count_patched());
        Ok(())
    }
}

/// dyld does that.
pub(crate) fn patch_late() {}
