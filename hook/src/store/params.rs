//! What a program that is no llama-server creates its contexts and models with. KV depends on some of it, and
//! there are no flags that say the same. If it is not understood, there is no store.

use super::calls::acts;
use super::engine::Context;
use super::records::with_record;
use super::working::is_on;
use super::{purpose, surroundings};
use crate::attach::{is_embedded, plain, unstorable};
use crate::base::abi::ContextParams;
use crate::base::guard::EngineCall;
use crate::base::params::Read;

/// A context was created with these parameters.
pub(crate) fn note_context(context: Context<'_>, params: &ContextParams) {
    if !is_embedded() || !acts(context) {
        return;
    }
    if let Some(why) = unstorable() {
        return purpose::refuse(context, why);
    }
    // SAFETY: no preconditions.
    let defaults = unsafe { plain::default_context() };
    let read = defaults.and_then(|defaults| Read::of(&defaults, params));
    let Some(read) = read else {
        return purpose::refuse(context, "the parameters of the context are not understood");
    };
    if read.has_callback {
        return purpose::refuse(context, "the program looks at each evaluation (cb_eval)");
    }
    let Ok(variables) = surroundings::changed() else {
        return purpose::refuse(
            context,
            "it cannot be known which variables the program has set, and the engine reads some",
        );
    };
    with_record(context, |record| {
        record.set_params([read.relevant, variables].concat());
        record.set_embeddings(read.embeddings);
    });
}

/// Whether a model that is loaded with these parameters is what its file says.
pub(crate) fn may_store_model(call: &EngineCall, params: &ContextParams) -> bool {
    let is_followed = is_on() && call.is_hosts();
    if !is_embedded() || !is_followed {
        return true;
    }
    // SAFETY: no preconditions.
    let defaults = unsafe { plain::default_model() };
    let at = defaults.and_then(|defaults| overrides(defaults.words()));
    at.is_some_and(|at| params.words()[at] == 0)
}

/// No known structure is longer, in words.
const LONGEST: usize = 32;

/// Where the pointer to the metadata that replace those of the file stands: the last of four pointers, before the
/// flags, of which some are set.
fn overrides(defaults: &[u64; 64]) -> Option<usize> {
    (4..LONGEST).find(|&at| defaults[at - 3..=at] == [0; 4] && defaults[at + 1] != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pointer_before_the_flags_replaces_metadata() {
        let flags = 0x01_0000_0100;
        let mut old = [u64::MAX; 64];
        old[..9].copy_from_slice(&[0, 0, 1 << 32 | 999, 0, 0, 0, 0, 0, flags]);
        assert_eq!(overrides(&old), Some(7));
        let mut new = [u64::MAX; 64];
        new[..10].copy_from_slice(&[0, 0, 1 << 32, 1, 0xdead_0000_0000, 0, 0, 0, 0, flags]);
        assert_eq!(overrides(&new), Some(8));
        assert_eq!(overrides(&[1; 64]), None);
    }
}
