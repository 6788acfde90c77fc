//! Replaces inline hooking where executables are not ELF files: there, only calls through the dynamic
//! linker can be hooked.

use std::convert::Infallible;

/// Never exists.
pub(super) struct Inside(Infallible);

/// Always empty.
#[derive(Default)]
pub(super) struct Ready {
    pub(super) tls: Option<bool>,
}

impl Inside {
    pub(super) fn with_engine() -> Option<Self> {
        None
    }

    pub(super) fn with_server() -> Option<Self> {
        None
    }

    pub(super) fn with_runtime() -> Option<Self> {
        None
    }

    pub(super) fn has_server(&self) -> bool {
        match self.0 {}
    }

    pub(super) fn prepare_all(self) -> Result<Ready, String> {
        match self.0 {}
    }

    pub(super) fn prepare_server(&self, _: &mut Ready) {
        match self.0 {}
    }

    pub(super) fn prepare_runtime(&self, _: &mut Ready) {
        match self.0 {}
    }
}

impl Ready {
    pub(super) fn has_runtime(&self) -> bool {
        false
    }

    /// Does nothing.
    ///
    /// # Errors
    /// None.
    ///
    /// # Safety
    /// Always safe here; it is unsafe on Linux.
    pub(super) unsafe fn install(self) -> Result<(), Infallible> {
        Ok(())
    }

    pub(super) fn abandon(self) {}
}
