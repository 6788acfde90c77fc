//! The functions behind ours: what the host would have called without us.
//!
//! Found by the [linker]. A slot is resolved at its first use, since constructors of other
//! libraries may call us before ours has run. What is linked into the executable is put into its
//! slot by [`inside`](crate::inside) instead, before anything calls us there.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::abi::{Batch, ContextParams, Embeddings, Pointer};
use crate::hooks::linker;
use crate::table::{Generations, newest};

/// One function of the host's.
pub(crate) struct Slot {
    name: &'static CStr,
    /// Null: not looked for yet.
    address: AtomicPtr<c_void>,
}

/// Stands in a [`Slot`] for "looked for in vain"; no function has this address.
const MISSING: *mut c_void = ptr::without_provenance_mut(1);

impl Slot {
    /// `name` ends in a zero byte.
    pub(crate) const fn new(name: &'static str) -> Self {
        let Ok(name) = CStr::from_bytes_with_nul(name.as_bytes()) else {
            panic!("a symbol's name ends in its only zero byte")
        };
        Self {
            name,
            address: AtomicPtr::new(ptr::null_mut()),
        }
    }

    #[inline]
    pub(crate) fn get(&self) -> Option<*mut c_void> {
        // Relaxed is enough: an address publishes nothing but itself.
        let mut address = self.address.load(Ordering::Relaxed);
        if address.is_null() {
            address = self.resolve();
        }
        (address != MISSING).then_some(address)
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name.to_str().unwrap_or_default()
    }

    /// As the linker knows it.
    pub(crate) fn c_name(&self) -> &'static CStr {
        self.name
    }

    /// Sets it to what calls by this name reach, if anything: for a function that we do not
    /// export, and so are not asked to find behind ours.
    pub(crate) fn set_to_everybodys(&self) -> Option<*mut c_void> {
        // SAFETY: as in `resolve`.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, self.name.as_ptr()) };
        self.set(found.cast_const().cast());
        (!found.is_null()).then_some(found)
    }

    /// What the dynamic linker would not find.
    pub(crate) fn set(&self, address: *const ()) {
        self.address
            .store(address.cast_mut().cast(), Ordering::Relaxed);
    }

    /// Takes [`set`](Self::set) back: what is behind is looked for again.
    pub(crate) fn unset(&self) {
        self.address.store(ptr::null_mut(), Ordering::Relaxed);
    }

    #[cold]
    fn resolve(&self) -> *mut c_void {
        let found = linker::behind(self.name);
        let address = if found.is_null() { MISSING } else { found };
        self.address.store(address, Ordering::Relaxed);
        address
    }
}

/// What a hook returns if, against all odds, it was called and there is nothing behind it.
pub(crate) trait Absent {
    const VALUE: Self;
}

impl Absent for () {
    const VALUE: Self = ();
}
impl Absent for bool {
    const VALUE: Self = false;
}
impl Absent for i32 {
    const VALUE: Self = -1;
}
impl Absent for isize {
    const VALUE: Self = -1;
}
impl Absent for usize {
    const VALUE: Self = 0;
}
impl Absent for Pointer {
    const VALUE: Self = ptr::null_mut();
}

/// A row of the [table](crate::table), to be looked at while the process runs.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) generation: &'static str,
    pub(crate) need: &'static str,
    pub(crate) slot: &'static Slot,
}

impl Row {
    /// Whether the host has the function, and we are called in its place.
    pub(crate) fn found(&self) -> bool {
        self.slot.get().is_some() && linker::hears(self)
    }
}

/// Whether the host has the function of the table with this name.
pub(crate) fn has(name: &str) -> bool {
    ROWS.iter().any(|row| row.name == name && row.found())
}

/// Whether the host has any of these.
pub(crate) fn has_any(generations: Generations) -> bool {
    newest(generations, has).is_some()
}

macro_rules! slots {
    ($( $module:ident $generation:ident $need:ident
        fn $name:ident($($argument:ident : $type:ty),*) $(-> $result:ty)?; )*) => {
        /// One for each row.
        #[allow(non_upper_case_globals)]
        mod slot {
            $(pub(super) static $name: super::Slot =
                super::Slot::new(concat!(stringify!($name), "\0"));)*
        }
        $(
            /// The host's function of this name.
            #[allow(clippy::type_complexity)]
            #[inline]
            pub(crate) fn $name() -> Option<unsafe extern "C-unwind" fn($($type),*) $(-> $result)?> {
                // SAFETY: what has this name has this signature (see the headers of the host's
                // libraries), and function pointers are as large as data pointers here.
                slot::$name.get().map(|address| unsafe {
                    std::mem::transmute::<Pointer, unsafe extern "C-unwind" fn($($type),*) $(-> $result)?>(address)
                })
            }
        )*
        /// All rows, in the table's order.
        pub(crate) static ROWS: &[Row] = &[$(
            Row {
                name: stringify!($name),
                generation: stringify!($generation),
                need: stringify!($need),
                slot: &slot::$name,
            },
        )*];
    };
}
for_each_interposed!(slots);

/// Those that are not exported. Their slots are set when imports are pointed to us.
pub(crate) mod redirected {
    use super::{Pointer, Row, Slot};
    use std::ffi::c_int;

    for_each_redirected!(slots);
}

/// Calls the host's function behind the hook of the same name.
macro_rules! original {
    ($($name:ident)::+($($argument:expr),* $(,)?)) => {
        match $crate::original::$($name)::+() {
            // SAFETY: we hand on what our caller, who meant to call this very function, gave us.
            Some(original) => unsafe { original($($argument),*) },
            None => $crate::original::Absent::VALUE,
        }
    };
}
pub(crate) use original;

/// Functions that are called but not interposed.
pub(crate) mod plain {
    use super::{Pointer, Slot};
    use std::ffi::{CStr, c_char, c_int};

    macro_rules! plain {
        ($($name:ident, $symbol:literal, fn($($argument:ident : $type:ty),*) -> $result:ty;)*) => {
            #[allow(non_upper_case_globals)]
            mod slot {
                $(pub(super) static $name: super::Slot =
                    super::Slot::new(concat!($symbol, "\0"));)*
            }
            /// All of them.
            pub(crate) static SLOTS: &[&Slot] = &[$(&slot::$name),*];
            $(
                /// Calls it, if the host has it.
                ///
                /// # Safety
                /// What the function itself asks of its arguments.
                pub(crate) unsafe fn $name($($argument: $type),*) -> Option<$result> {
                    slot::$name.get().map(|address| {
                        // SAFETY: as for the interposed ones: the name stands for the signature.
                        let function = unsafe {
                            std::mem::transmute::<Pointer, unsafe extern "C-unwind" fn($($type),*) -> $result>(address)
                        };
                        // SAFETY: the caller's promise.
                        unsafe { function($($argument),*) }
                    })
                }
            )*
        };
    }

    plain! {
        last_in_memory, "llama_memory_seq_pos_max", fn(memory: Pointer, sequence: i32) -> i32;
        last_in_self, "llama_kv_self_seq_pos_max", fn(context: Pointer, sequence: i32) -> i32;
        last_in_cache, "llama_kv_cache_seq_pos_max", fn(context: Pointer, sequence: i32) -> i32;
        first_in_memory, "llama_memory_seq_pos_min", fn(memory: Pointer, sequence: i32) -> i32;
        first_in_self, "llama_kv_self_seq_pos_min", fn(context: Pointer, sequence: i32) -> i32;
        kv_self, "llama_get_kv_self", fn(context: Pointer) -> Pointer;
        window, "llama_model_n_swa", fn(model: Pointer) -> i32;
        is_recurrent, "llama_model_is_recurrent", fn(model: Pointer) -> bool;
        is_hybrid, "llama_model_is_hybrid", fn(model: Pointer) -> bool;
        media_name, "mtmd_input_chunk_get_id", fn(chunk: Pointer) -> *const c_char;
        get_model, "llama_get_model", fn(context: Pointer) -> Pointer;
        embedding_size_in, "llama_model_n_embd_inp", fn(model: Pointer) -> i32;
        embedding_size, "llama_model_n_embd", fn(model: Pointer) -> i32;
        context_size, "llama_n_ctx", fn(context: Pointer) -> u32;
        context_size_of_one, "llama_n_ctx_seq", fn(context: Pointer) -> u32;
        model_desc, "llama_model_desc", fn(model: Pointer, text: *mut c_char, size: usize) -> i32;
        state_size, "llama_state_seq_get_size", fn(context: Pointer, sequence: i32) -> usize;
        version, "llama_version", fn() -> *const c_char;
        build, "_Z16llama_build_infov", fn() -> *const c_char;
        chunk_count, "mtmd_input_chunks_size", fn(chunks: Pointer) -> usize;
        chunk, "mtmd_input_chunks_get", fn(chunks: Pointer, index: usize) -> Pointer;
        chunk_text, "mtmd_input_chunk_get_tokens_text", fn(chunk: Pointer, count: *mut usize) -> *const i32;
        chunk_positions, "mtmd_input_chunk_get_n_pos", fn(chunk: Pointer) -> i32;
        shares_positions, "mtmd_decode_use_mrope", fn(projector: Pointer) -> bool;
        socket_of_session, "SSL_get_fd", fn(session: Pointer) -> c_int;
    }

    /// Whether the host has the function with this name.
    pub(crate) fn has(name: &str) -> bool {
        SLOTS
            .iter()
            .any(|slot| slot.name() == name && slot.get().is_some())
    }

    /// A text that the host keeps for ever.
    pub(crate) fn text(pointer: Option<*const c_char>) -> Option<&'static str> {
        let pointer = pointer.filter(|p| !p.is_null())?;
        // SAFETY: the functions asked return string literals or statics, ended by a zero.
        unsafe { CStr::from_ptr(pointer) }.to_str().ok()
    }
}
