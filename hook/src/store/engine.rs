//! A context of the engine, as the store uses it. None of its functions is called within the
//! [guard](crate::base::guard).

use crate::attach::original::{self, original};
use crate::attach::plain;
use crate::base::abi::Pointer;
use crate::base::guard::EngineCall;
use crate::capture::contexts;

/// A context of the engine that the calling thread uses while a call of the host lasts.
///
/// Only unsafe code makes one, and it neither leaves its thread nor outlives the call. So what takes one need not be unsafe.
#[derive(Clone, Copy)]
pub(crate) struct Context<'call> {
    pointer: Pointer,
    call: &'call EngineCall,
}

impl<'call> Context<'call> {
    /// # Safety
    /// The context is alive, and no other thread uses it, until the call ends or frees it. After that this value and its copies
    /// are not used.
    pub(crate) unsafe fn of(call: &'call EngineCall, pointer: Pointer) -> Self {
        Self { pointer, call }
    }

    /// The context that has this memory, or that this is (in old engines). `None`: there is no store, or it is not known.
    ///
    /// # Safety
    /// As for [`Context::of`]. No other thread uses its memory, either.
    pub(crate) unsafe fn of_memory(call: &'call EngineCall, memory: Pointer) -> Option<Self> {
        let owner = super::working::is_on()
            .then(|| contexts::owner(memory))
            .flatten()?;
        // SAFETY: the caller's promise.
        Some(unsafe { Self::of(call, owner) })
    }

    /// The engine's own name for it.
    pub(crate) fn pointer(self) -> Pointer {
        self.pointer
    }

    /// Whether the host itself made the call.
    pub(crate) fn is_hosts(self) -> bool {
        self.call.is_hosts()
    }

    /// The call.
    pub(crate) fn call(self) -> &'call EngineCall {
        self.call
    }

    /// The size of a sequence's state.
    pub(super) fn state_size(self, sequence: i32) -> Option<usize> {
        // SAFETY: the context is in use by this thread.
        unsafe { plain::state_size(self.pointer, sequence) }
    }

    /// Copies the state of a sequence to `target`. Returns how many bytes were written; 0: the engine did not.
    ///
    /// # Safety
    /// There is room for `size` bytes.
    pub(super) unsafe fn write(self, target: *mut u8, size: usize, sequence: i32) -> usize {
        let context = self.pointer;
        if original::llama_state_seq_get_data_ext().is_some() {
            original!(llama_state_seq_get_data_ext(
                context, target, size, sequence, 0
            ))
        } else {
            original!(llama_state_seq_get_data(context, target, size, sequence))
        }
    }

    /// As [`Engine::load`](contextpilot_kv_engine::Engine::load), of a state that the engine has given a moment ago.
    pub(super) fn put_back(self, sequence: i32, state: &[u8]) -> bool {
        self.read(sequence, state) == state.len()
    }

    /// How many bytes the engine has read.
    pub(super) fn read(self, sequence: i32, state: &[u8]) -> usize {
        let (context, source, size) = (self.pointer, state.as_ptr(), state.len());
        if original::llama_state_seq_set_data_ext().is_some() {
            original!(llama_state_seq_set_data_ext(
                context, source, size, sequence, 0
            ))
        } else {
            original!(llama_state_seq_set_data(context, source, size, sequence))
        }
    }

    /// Says whether a token of its vocabulary stands for no text. `None`: the context has no vocabulary.
    pub(super) fn is_control(self) -> Option<impl Fn(i32) -> bool> {
        /// `CONTROL` of `llama_token_attr`.
        const CONTROL: i32 = 8;
        let vocabulary = contexts::vocabulary_of(self.pointer)?;
        // SAFETY: the vocabulary lives as long as the context, here and below.
        let size = unsafe { plain::vocabulary_size(vocabulary) }?;
        Some(move |token| {
            // For any other number the engine throws.
            let exists = (0..size).contains(&token);
            // SAFETY: see above; the token exists.
            let attribute = exists.then(|| unsafe { plain::attribute(vocabulary, token) });
            attribute.flatten().is_some_and(|kind| kind & CONTROL != 0)
        })
    }
}

/// `LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY`: of a state, what cannot be cut back.
pub(crate) const PARTIAL: u32 = 1;
