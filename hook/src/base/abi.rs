//! The C types in the signatures of hooked functions, as far as we read them.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr;

/// A pointer of the host's that is only passed on.
pub(crate) type Pointer = *mut c_void;

/// `llama_context_params`, `llama_model_params` or `mtmd_context_params`, passed by value and only
/// passed on.
///
/// Their sizes differ by version (136 to 168 bytes in 2026, 72 to 80, 24 to 104), so this type is larger
/// than any of them. Both the System V and the AArch64 calling convention pass a structure of this kind
/// in memory, at a place that does not depend on its size. The bytes behind the real structure are
/// part of the caller's stack: they are copied along, and no code reads them. That the real one is no larger than this is
/// [asked](crate::attach) before anything is hooked.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ContextParams([u64; 64]);

impl ContextParams {
    /// `n_batch`, in tokens. Since 2023 the structure begins with the `uint32_t`s `n_ctx`, `n_batch`,
    /// `n_ubatch`, `n_seq_max`; this is the second.
    pub(crate) fn batch(&self) -> u32 {
        (self.0[0] >> 32) as u32
    }

    /// `n_ubatch`, the third: how many tokens are computed at once, at most. The engine takes no more than of a batch.
    pub(crate) fn at_once(&self) -> u32 {
        match self.0[1] as u32 {
            0 => self.batch(),
            some => some.min(self.batch()),
        }
    }

    /// All of it, with what lies behind it on the caller's stack.
    pub(crate) fn words(&self) -> &[u64; 64] {
        &self.0
    }

    /// `n_seq_max`, the fourth `uint32_t`: how many slots the server has.
    pub(crate) fn slots(&self) -> u32 {
        (self.0[1] >> 32) as u32
    }
}

const _: () = assert!(cfg!(target_endian = "little"));

/// `llama_embd`: one entry's embedding. No function returns one; only llama.cpp since 0.5 has functions that take it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Embeddings {
    pub(crate) data: *const f32,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
}

/// `llama_batch`, and what lies behind it where it is passed by value. In a fork more of it lies there: so what is only
/// passed on is passed on whole.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Batch {
    pub(crate) len: i32,
    /// Tokens, or null if there are embeddings instead.
    pub(crate) token: *const i32,
    pub(crate) embedding: *const f32,
    /// Null: positions are consecutive, from the end of each sequence on.
    pub(crate) position: *const i32,
    /// How many sequences each entry belongs to.
    pub(crate) sequences: *const i32,
    /// Null: every entry belongs to sequence 0.
    pub(crate) sequence: *const *const i32,
    /// Null: an output is wanted for the last entry only.
    pub(crate) output: *const i8,
    /// No code reads it.
    pub(crate) beyond: [u64; 9],
}

impl Batch {
    /// Bytes behind the structure that is known.
    pub(crate) const BEYOND: usize = 72;

    /// The batch at this address, where nothing of a batch lies behind it.
    ///
    /// # Safety
    /// There is a `llama_batch`, which no thread changes meanwhile.
    pub(crate) unsafe fn at(batch: *const Self) -> Self {
        let mut read = MaybeUninit::<Self>::zeroed();
        let size = size_of::<Self>() - Self::BEYOND;
        // SAFETY: the caller's promise, and there is room.
        unsafe { ptr::copy_nonoverlapping(batch.cast::<u8>(), read.as_mut_ptr().cast(), size) };
        // SAFETY: all that was not read may be zero.
        unsafe { read.assume_init() }
    }
}

const _: () = assert!(size_of::<Batch>() - Batch::BEYOND == 56 || size_of::<usize>() != 8);
