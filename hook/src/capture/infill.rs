//! The special tokens and texts with which the server composes prompts for `/infill`. The engine is asked
//! for them once.

use std::sync::OnceLock;

use contextpilot_request::{Infill, InfillTexts};

use crate::attach::original::original;
use crate::attach::{self, plain};
use crate::base::abi::Pointer;
use crate::capture::contexts;

/// The value for a token that a vocabulary does not have.
const NO_TOKEN: i32 = -1;

/// The server's rule; `None` if the engine lacks the functions. It does not change during the life of the
/// process: a server has one model and one command line.
///
/// Do not call this within [`guarded`](crate::base::guard::guarded), because it calls the engine.
///
/// # Safety
/// The vocabulary is one of the engine's.
pub(crate) unsafe fn rule(vocabulary: Pointer) -> Option<&'static Infill> {
    static RULE: OnceLock<Infill> = OnceLock::new();
    if RULE.get().is_none() {
        // SAFETY: the caller's promise.
        let asked = unsafe { ask(vocabulary) }?;
        // Another thread may have set the same rule first.
        let _ = RULE.set(asked);
    }
    RULE.get()
}

/// # Safety
/// As for [`rule`].
unsafe fn ask(vocabulary: Pointer) -> Option<Infill> {
    let known = |token: Option<i32>| token.filter(|&token| token != NO_TOKEN);
    // SAFETY: the caller's promise, here and below.
    let begins = unsafe { plain::has_beginning(vocabulary) }?;
    // SAFETY: see above.
    let bos = unsafe { plain::begins_with(vocabulary) };
    // SAFETY: see above.
    let repository = unsafe { plain::infill_repository(vocabulary) };
    // SAFETY: see above.
    let separator = unsafe { plain::infill_separator(vocabulary) };
    Some(Infill {
        // SAFETY: see above.
        prefix: unsafe { plain::infill_prefix(vocabulary) }?,
        // SAFETY: see above.
        suffix: unsafe { plain::infill_suffix(vocabulary) }?,
        // SAFETY: see above.
        middle: unsafe { plain::infill_middle(vocabulary) }?,
        repository: known(repository),
        separator: known(separator),
        // Not checked further: a vocabulary may ask for a BOS token that it does not have.
        bos: bos.filter(|_| begins),
        batch: contexts::batch()?.try_into().ok()?,
        suffix_first: attach::flags().spm_infill(),
        // SAFETY: see above.
        texts: InfillTexts::new(|text| unsafe { tokens(vocabulary, text) })?,
    })
}

/// Tokenizes one of the server's own texts as the server does: without adding or parsing special tokens.
///
/// # Safety
/// As for [`rule`].
unsafe fn tokens(vocabulary: Pointer, text: &[u8]) -> Option<Vec<i32>> {
    // More than any vocabulary needs.
    let mut tokens = vec![0; 2 * text.len() + 16];
    let (length, most) = (text.len().try_into().ok()?, tokens.len().try_into().ok()?);
    let (text, room) = (text.as_ptr().cast(), tokens.as_mut_ptr());
    let count = original!(llama_tokenize(
        vocabulary, text, length, room, most, false, false
    ));
    tokens.truncate(usize::try_from(count).ok()?);
    Some(tokens)
}
