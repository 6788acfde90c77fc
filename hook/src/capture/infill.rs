//! What the server puts prompts for `/infill` together with: asked of the engine, once.

use std::sync::OnceLock;

use contextpilot_request::{Infill, InfillTexts};

use crate::attach::original::{original, plain};
use crate::base::abi::Pointer;
use crate::capture::contexts;

/// A token that a vocabulary does not have.
const NO_TOKEN: i32 = -1;

/// The server's rule; `None` if the engine cannot be asked. It stays as it is while the process
/// lives: a server has one model and one command line.
///
/// Calls the engine: not to be called in [`observe`](crate::base::guard::observe).
///
/// # Safety
/// The vocabulary is one of the engine's.
pub(crate) unsafe fn rule(vocabulary: Pointer) -> Option<&'static Infill> {
    static RULE: OnceLock<Infill> = OnceLock::new();
    if RULE.get().is_none() {
        // SAFETY: the caller's promise.
        let asked = unsafe { ask(vocabulary) }?;
        // Somebody else may have been faster, with the same.
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
        // Taken as it is: a vocabulary may well ask for a beginning that it does not have.
        bos: bos.filter(|_| begins),
        batch: contexts::batch()?.try_into().ok()?,
        suffix_first: std::env::args_os().any(|argument| argument == "--spm-infill"),
        // SAFETY: see above.
        texts: InfillTexts::new(|text| unsafe { tokens(vocabulary, text) })?,
    })
}

/// As the server makes them of its own texts: without special ones, neither added nor read.
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
