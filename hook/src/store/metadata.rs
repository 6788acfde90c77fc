//! What KV depends on besides the tokens before, by the model's metadata: the context's length, or tokens behind.
//!
//! A model may have two sets of factors for its positions (LongRoPE: Phi-3 and others). The engine takes those for long contexts
//! if a sequence has room for more tokens than the *original* context length, `rope.scaling.original_context_length` in the
//! model's file, whatever the model was trained for otherwise. So servers with different `-c` or `-np` may not share what
//! is stored.

use std::ffi::{CStr, CString};

use super::surroundings;
use crate::attach::plain;
use crate::base::abi::Pointer;

const ORIGINAL: &str = "rope.scaling.original_context_length";

/// The lengths of the contexts that a model's factors are for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lengths {
    /// The length that it was trained for; 0: not known.
    trained: usize,
    /// The original length, if the file names any.
    original: Option<usize>,
}

impl Lengths {
    /// Do not call this within the guard.
    ///
    /// # Safety
    /// The model is alive.
    pub(super) unsafe fn of(model: Pointer) -> Self {
        // SAFETY: the caller's promise.
        let trained = unsafe { plain::trained_size(model) };
        // SAFETY: as above.
        let original = unsafe { original(model) };
        Self {
            trained: trained.and_then(|n| usize::try_from(n).ok()).unwrap_or(0),
            original,
        }
    }

    /// What KV depends on of a context in which a sequence has room for so many tokens.
    pub(super) fn fact(self, size: usize) -> Vec<u8> {
        self.fact_if(size, surroundings::replace_metadata(ORIGINAL))
    }

    fn fact_if(self, size: usize, is_replaced: bool) -> Vec<u8> {
        match self.original {
            // The engine does not say by what.
            _ if is_replaced => (size as u64).to_le_bytes().to_vec(),
            Some(original) => vec![2 | u8::from(size > original)],
            None => vec![u8::from(self.trained > 0 && size > self.trained)],
        }
    }
}

/// # Safety
/// The model is alive.
unsafe fn original(model: Pointer) -> Option<usize> {
    // SAFETY: the caller's promise.
    unsafe { of_arch(model, ORIGINAL) }?.parse().ok()
}

const CAUSAL: &str = "attention.causal";

/// Whether tokens depend on none behind them, as far as the model's file and the server's flags say.
///
/// # Safety
/// The model is alive.
pub(super) unsafe fn is_causal(model: Pointer) -> bool {
    let is_replaced =
        surroundings::replace_metadata(CAUSAL) || surroundings::replace_metadata("non-causal");
    // SAFETY: the caller's promise.
    !is_replaced && unsafe { of_arch(model, CAUSAL) }.is_none_or(|causal| causal == "true")
}

/// The name of the model's architecture.
///
/// # Safety
/// The model is alive.
pub(super) unsafe fn architecture(model: Pointer) -> Option<String> {
    // SAFETY: the caller's promise.
    unsafe { value(model, c"general.architecture") }
}

/// What the file says for a key that has the architecture before it.
///
/// # Safety
/// The model is alive.
unsafe fn of_arch(model: Pointer, key: &str) -> Option<String> {
    // SAFETY: the caller's promise, here and below.
    let arch = unsafe { architecture(model) }?;
    let key = CString::new(format!("{arch}.{key}")).ok()?;
    // SAFETY: see above.
    unsafe { value(model, &key) }
}

/// What the model's file says for this key. `None`: nothing, or something long.
///
/// # Safety
/// The model is alive.
unsafe fn value(model: Pointer, key: &CStr) -> Option<String> {
    let mut text = [0_u8; 128];
    // SAFETY: the caller's promise; there is room for so many bytes, a zero among them.
    let length =
        unsafe { plain::metadata(model, key.as_ptr(), text.as_mut_ptr().cast(), text.len()) }?;
    let length = usize::try_from(length).ok().filter(|n| *n < text.len())?;
    Some(std::str::from_utf8(&text[..length]).ok()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_differ_by_which_factors_the_engine_takes() {
        let phi = Lengths {
            trained: 131_072,
            original: Some(4096),
        };
        assert_eq!(phi.fact_if(4096, false), phi.fact_if(2048, false));
        assert_ne!(phi.fact_if(4096, false), phi.fact_if(4097, false));
        assert_eq!(phi.fact_if(4097, false), phi.fact_if(200_000, false));
        let others = Lengths {
            original: None,
            ..phi
        };
        assert_eq!(others.fact_if(4096, false), others.fact_if(131_072, false));
        assert_ne!(others.fact_if(4096, false), others.fact_if(131_073, false));
        // What was stored before this was known is of either.
        assert_ne!(phi.fact_if(4096, false), others.fact_if(4096, false));
        assert_ne!(phi.fact_if(5000, true), phi.fact_if(5001, true));
    }
}
