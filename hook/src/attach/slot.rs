//! Where the address of an original is kept: the function that the host would have called without us.
//!
//! A slot is filled in when the library attaches, before any call is redirected: with the definition
//! that the server calls ([`got`](super::got)), or with the trampoline around our jump
//! ([`inline`](super::inline)). A function that we call but do not hook is looked up at its first use.
//! On macOS dyld redirects callers before our constructor runs, so there all functions are.

use std::ffi::{CStr, c_void};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering};

use super::engines::{self, ENGINES};
use super::linker;

/// The address of one original. In a program, where there may be several [engines](engines), all methods are about the engine
/// that the thread is in.
pub(crate) struct AddressSlot {
    name: &'static CStr,
    /// In a llama-server. Null: not looked up yet, as below.
    of_server: AtomicPtr<c_void>,
    /// In another program.
    of_engines: [AtomicPtr<c_void>; ENGINES],
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
            of_server: AtomicPtr::new(ptr::null_mut()),
            of_engines: [const { AtomicPtr::new(ptr::null_mut()) }; ENGINES],
        }
    }

    fn address(&self) -> &AtomicPtr<c_void> {
        if engines::may_be_several() {
            &self.of_engines[engines::current() % ENGINES]
        } else {
            &self.of_server
        }
    }

    #[inline]
    pub(crate) fn get(&self) -> Option<NonNull<c_void>> {
        self.get_at_once().or_else(|| self.look_up())
    }

    /// The address, if this is a server and it is known. Every hook asks for its original, some for every token.
    #[inline]
    pub(super) fn get_at_once(&self) -> Option<NonNull<c_void>> {
        // Relaxed: the address publishes nothing else.
        let address = self.of_server.load(Ordering::Relaxed);
        NonNull::new(address).filter(|_| address.addr() > MISSING.addr())
    }

    /// The address, in any process.
    #[cold]
    #[inline(never)]
    pub(super) fn look_up(&self) -> Option<NonNull<c_void>> {
        let mut address = self.address().load(Ordering::Relaxed);
        if address.is_null() {
            address = self.resolve();
        }
        NonNull::new(address).filter(|found| found.as_ptr() != MISSING)
    }

    /// The program may have several engines, which was not known when this was set.
    #[cfg(target_os = "linux")]
    pub(super) fn forget_server(&self) {
        self.of_server.store(ptr::null_mut(), Ordering::Relaxed);
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

    fn resolve(&self) -> *mut c_void {
        let found = linker::behind(self.name);
        let address = if found.is_null() { MISSING } else { found };
        self.address().store(address, Ordering::Relaxed);
        address
    }
}
