//! The members of a body that are read.

use super::text::Text;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Member {
    Rid,
    RequestId,
    CachePrompt,
    CacheSalt,
    CacheControl,
    Lora,
    Slot,
    CacheReuse,
    Keep,
    Discard,
    Prompt,
    InputPrefix,
    InputSuffix,
    InputExtra,
}

const RID: &[u8] = b"rid";
const REQUEST_ID: &[u8] = b"request_id";
const CACHE_PROMPT: &[u8] = b"cache_prompt";
const CACHE_SALT: &[u8] = b"cache_salt";
const CACHE_CONTROL: &[u8] = b"cache_control";
const LORA: &[u8] = b"lora";
/// The members that are numbers.
const NUMBERS: [(&[u8], Member); 4] = [
    (b"id_slot", Member::Slot),
    (b"n_cache_reuse", Member::CacheReuse),
    (b"n_keep", Member::Keep),
    (b"n_discard", Member::Discard),
];
/// The members that prompts come from.
const PROMPTS: [(&[u8], Member); 4] = [
    (b"prompt", Member::Prompt),
    (b"input_prefix", Member::InputPrefix),
    (b"input_suffix", Member::InputSuffix),
    (b"input_extra", Member::InputExtra),
];
/// Room for the longest name that matters (`n_cache_reuse`).
pub(super) const NAME_BYTES: usize = 13;

impl Member {
    /// The member with this name, if it is read. `with_prompts`: also those that prompts come from.
    pub(super) fn named(text: &Text, with_prompts: bool) -> Option<Self> {
        if text.is(RID) {
            Some(Member::Rid)
        } else if text.is(REQUEST_ID) {
            Some(Member::RequestId)
        } else if text.is(CACHE_PROMPT) {
            Some(Member::CachePrompt)
        } else if text.is(CACHE_SALT) {
            Some(Member::CacheSalt)
        } else if text.is(CACHE_CONTROL) {
            Some(Member::CacheControl)
        } else if text.is(LORA) {
            Some(Member::Lora)
        } else {
            let prompts = PROMPTS.iter().filter(|_| with_prompts);
            let mut members = NUMBERS.iter().chain(prompts);
            let found = members.find(|(name, _)| text.is(name));
            found.map(|(_, member)| *member)
        }
    }
}
