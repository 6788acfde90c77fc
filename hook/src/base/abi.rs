//! The C types that cross our functions, as far as they matter here.

use std::ffi::c_void;

/// Something of the host's that is only passed on.
pub(crate) type Pointer = *mut c_void;

/// `llama_context_params`, `llama_model_params` or `mtmd_context_params`, passed by value and only
/// passed on.
///
/// Their sizes differ by version (136 to 168 bytes in 2026, 72 to 80, 24 to 104), so this is more
/// than any will ever be: both the System V and the AArch64 calling convention hand a structure of this kind over in
/// memory, in a place that does not depend on its size. What lies behind the real one there is
/// some of the caller's stack, copied along and looked at by nobody.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ContextParams([u64; 64]);

impl ContextParams {
    /// `n_batch`, tokens: the second of the `uint32_t` that it begins with in all versions since
    /// 2023 (`n_ctx`, `n_batch`, `n_ubatch`, `n_seq_max`).
    pub(crate) fn batch(&self) -> u32 {
        (self.0[0] >> 32) as u32
    }

    /// `n_seq_max`, the fourth: how many slots the server has.
    pub(crate) fn slots(&self) -> u32 {
        (self.0[1] >> 32) as u32
    }
}

const _: () = assert!(cfg!(target_endian = "little"));

/// `llama_embd`: one entry's embedding.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Embeddings {
    pub(crate) data: *const f32,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
}

/// `llama_batch`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Batch {
    pub(crate) len: i32,
    /// Tokens, or null if there are embeddings instead.
    pub(crate) token: *const i32,
    pub(crate) embedding: *const f32,
    /// Null: consecutive, from the end of each sequence on.
    pub(crate) position: *const i32,
    /// How many sequences each entry has.
    pub(crate) sequences: *const i32,
    /// Null: sequence 0 for every entry.
    pub(crate) sequence: *const *const i32,
    /// Null: only the last entry's output.
    pub(crate) output: *const i8,
}

const _: () = assert!(size_of::<Batch>() == 56 || size_of::<usize>() != 8);
