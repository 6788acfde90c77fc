//! Where the address of an original is kept: the function that the host would have called without us.
//!
//! A slot is filled in when the library attaches, before any call is redirected: with the definition
//! that the server calls ([`got`](super::got)), or with the trampoline around our jump
//! ([`inline`](super::inline)). A function that we call but do not hook is looked up at its first use.
//! On macOS dyld redirects callers before our constructor runs, so there all functions are.

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::engines::{self, ENGINES};
use super::linker;

/// The address of one original, in each engine. All methods are about the engine that the thread is in.
pub(crate) struct AddressSlot {
    name: &'static CStr,
    /// Null: not looked up yet.
    addresses: [AtomicPtr<c_void>; ENGINES],
}

/// The value of an [`AddressSlot`] whose function was not found. No function has this address.
const MISSING: *mut c_void = ptr::without_provenance_mut(1);

impl AddressSlot {
    /// `name` ends in a zero byte.
    pub(crate) const fn new(name: &'static str) -> Self {
        let Ok(name) = CStr::from_bytes_with_nul(name.as_bytes()) else {
            panic!("a symbol's name ends in its only zero byte")
        };
        Self {
            name,
            addresses: [const { AtomicPtr::new(ptr::null_mut()) }; ENGINES],
        }
    }

    #[inline]
    fn address(&self) -> &AtomicPtr<c_void> {
        &self.addresses[engines::current() % ENGINES]
    }

    #[inline]
    pub(crate) fn get(&self) -> Option<*mut c_void> {
        // Relaxed: the address publishes nothing else.
        let mut address = self.address().load(Ordering::Relaxed);
        if address.is_null() {
            address = self.resolve();
        }
        (address != MISSING).then_some(address)
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name.to_str().unwrap_or_default()
    }

    /// The symbol's name.
    pub(crate) fn c_name(&self) -> &'static CStr {
        self.name
    }

    /// Sets the address.
    pub(crate) fn set(&self, address: *const ()) {
        self.address()
            .store(address.cast_mut().cast(), Ordering::Relaxed);
    }

    /// The function is not there, and is not to be looked up.
    #[cfg(target_os = "linux")]
    pub(super) fn set_missing(&self) {
        self.address().store(MISSING, Ordering::Relaxed);
    }

    /// The address as it is: null before it was filled in.
    pub(crate) fn raw(&self) -> *const () {
        self.address().load(Ordering::Relaxed).cast_const().cast()
    }

    #[cold]
    fn resolve(&self) -> *mut c_void {
        let found = linker::behind(self.name);
        let address = if found.is_null() { MISSING } else { found };
        self.address().store(address, Ordering::Relaxed);
        address
    }
}
