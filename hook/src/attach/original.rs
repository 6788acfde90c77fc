//! The originals: the functions that the host would have called without us.
//!
//! A slot is filled in when the library attaches, before any call is redirected: with the definition
//! that the server calls ([`got`](super::got)), or with the trampoline around our jump
//! ([`inline`](super::inline)). A function that we call but do not hook is looked up at its first use.
//! On macOS dyld redirects callers before our constructor runs, so there all functions are.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::evidence::{Called, Places};
use super::linker;
use super::table::{Generations, newest};
use crate::base::abi::{Batch, ContextParams, Embeddings, Pointer};

/// The address of one original.
pub(crate) struct Slot {
    name: &'static CStr,
    /// Null: not looked up yet.
    address: AtomicPtr<c_void>,
}

/// The value of a [`Slot`] whose function was not found. No function has this address.
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
        // Relaxed: the address publishes nothing else.
        let mut address = self.address.load(Ordering::Relaxed);
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
        self.address
            .store(address.cast_mut().cast(), Ordering::Relaxed);
    }

    /// The address as it is: null before it was filled in.
    pub(crate) fn raw(&self) -> *const () {
        self.address.load(Ordering::Relaxed).cast_const().cast()
    }

    #[cold]
    fn resolve(&self) -> *mut c_void {
        let found = linker::behind(self.name);
        let address = if found.is_null() { MISSING } else { found };
        self.address.store(address, Ordering::Relaxed);
        address
    }
}

/// What a hook returns if it was called although there is no original.
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

/// A row of the [table](super::table), at run time.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) generation: &'static str,
    pub(crate) need: &'static str,
    pub(crate) slot: &'static Slot,
    pub(crate) places: &'static Places,
    pub(crate) called: &'static Called,
}

impl Row {
    /// Whether the host has the function, and its calls can be redirected to us.
    pub(crate) fn found(&self) -> bool {
        self.slot.get().is_some() && linker::hears(self)
    }

    /// Whether it is one of the server's own functions.
    pub(crate) fn is_servers(&self) -> bool {
        self.generation.starts_with("server")
    }

    /// Whether it is a function of the engine or of the server, and not of a library that other
    /// code uses as well.
    pub(crate) fn is_engines(&self) -> bool {
        !matches!(self.generation, "cxx" | "libc" | "openssl")
    }

    /// Whether the library attaches without it.
    pub(crate) fn is_optional(&self) -> bool {
        self.need == "optional"
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
        /// One for each row.
        #[allow(non_upper_case_globals)]
        mod places {
            $(pub(super) static $name: super::Places = super::Places::new();)*
        }
        /// One for each row.
        #[allow(non_upper_case_globals)]
        pub(crate) mod called {
            $(pub(crate) static $name: super::Called = super::Called::new();)*
        }
        $(
            /// The host's function of this name.
            #[allow(clippy::type_complexity)]
            #[inline]
            pub(crate) fn $name() -> Option<unsafe extern "C-unwind" fn($($type),*) $(-> $result)?> {
                // SAFETY: the function of this name has this signature (see the headers of the
                // host's libraries), and function pointers are as large as data pointers here.
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
                places: &places::$name,
                called: &called::$name,
            },
        )*];
    };
}
for_each_hooked!(slots);

/// Calls the original of the hook with this name.
macro_rules! original {
    ($($name:ident)::+($($argument:expr),* $(,)?)) => {
        match $crate::attach::original::$($name)::+() {
            // SAFETY: these are the arguments with which our caller meant to call this function.
            Some(original) => unsafe { original($($argument),*) },
            None => $crate::attach::original::Absent::VALUE,
        }
    };
}
pub(crate) use original;

/// Functions that we call but do not hook.
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
                /// Calls the function, if the host has it.
                ///
                /// # Safety
                /// As the function itself requires.
                pub(crate) unsafe fn $name($($argument: $type),*) -> Option<$result> {
                    slot::$name.get().map(|address| {
                        // SAFETY: as for the hooked ones: the name stands for the signature.
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
        sequences, "llama_n_seq_max", fn(context: Pointer) -> u32;
        model_desc, "llama_model_desc", fn(model: Pointer, text: *mut c_char, size: usize) -> i32;
        invocation_count, "llama_adapter_get_alora_n_invocation_tokens", fn(adapter: Pointer) -> u64;
        invocation, "llama_adapter_get_alora_invocation_tokens", fn(adapter: Pointer) -> *const i32;
        state_size, "llama_state_seq_get_size", fn(context: Pointer, sequence: i32) -> usize;
        version, "llama_version", fn() -> *const c_char;
        build, "_Z16llama_build_infov", fn() -> *const c_char;
        chunk_count, "mtmd_input_chunks_size", fn(chunks: Pointer) -> usize;
        chunk, "mtmd_input_chunks_get", fn(chunks: Pointer, index: usize) -> Pointer;
        chunk_text, "mtmd_input_chunk_get_tokens_text", fn(chunk: Pointer, count: *mut usize) -> *const i32;
        chunk_positions, "mtmd_input_chunk_get_n_pos", fn(chunk: Pointer) -> i32;
        shares_positions, "mtmd_decode_use_mrope", fn(projector: Pointer) -> bool;
        infill_prefix, "llama_vocab_fim_pre", fn(vocabulary: Pointer) -> i32;
        infill_suffix, "llama_vocab_fim_suf", fn(vocabulary: Pointer) -> i32;
        infill_middle, "llama_vocab_fim_mid", fn(vocabulary: Pointer) -> i32;
        infill_repository, "llama_vocab_fim_rep", fn(vocabulary: Pointer) -> i32;
        infill_separator, "llama_vocab_fim_sep", fn(vocabulary: Pointer) -> i32;
        vocabulary, "llama_model_get_vocab", fn(model: Pointer) -> Pointer;
        vocabulary_kind, "llama_vocab_type", fn(vocabulary: Pointer) -> c_int;
        vocabulary_size, "llama_vocab_n_tokens", fn(vocabulary: Pointer) -> i32;
        piece, "llama_token_to_piece", fn(vocabulary: Pointer, token: i32, text: *mut c_char, size: i32, strip: i32, special: bool) -> i32;
        begins_with, "llama_vocab_bos", fn(vocabulary: Pointer) -> i32;
        has_beginning, "llama_vocab_get_add_bos", fn(vocabulary: Pointer) -> bool;
        socket_of_session, "SSL_get_fd", fn(session: Pointer) -> c_int;
    }

    /// Whether the host has the function with this name.
    pub(crate) fn has(name: &str) -> bool {
        SLOTS
            .iter()
            .any(|slot| slot.name() == name && slot.get().is_some())
    }

    /// Sets the function with this name to the address that `find` returns. False if
    /// it returns none.
    pub(crate) fn set(name: &str, find: impl FnOnce(&CStr) -> Option<usize>) -> bool {
        let slot = SLOTS.iter().find(|slot| slot.name() == name);
        let found = slot.and_then(|slot| Some((slot, find(slot.c_name())?)));
        if let Some((slot, address)) = found {
            slot.set(std::ptr::with_exposed_provenance(address));
        }
        found.is_some()
    }

    /// A text that the host never frees.
    pub(crate) fn text(pointer: Option<*const c_char>) -> Option<&'static str> {
        let pointer = pointer.filter(|p| !p.is_null())?;
        // SAFETY: the functions that return it return string literals or statics, ended by a zero byte.
        unsafe { CStr::from_ptr(pointer) }.to_str().ok()
    }
}
