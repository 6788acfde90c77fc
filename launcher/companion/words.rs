//! The words for what the hook reports: one word for one thing, in all commands. `docs/words.md` lists
//! them.

use contextpilot_client::control::{Place, Reason, RequestName};

use super::show::Visible;

/// What became of a request that is [`Reason::NeverCached`]: it is no eviction, and was in no place.
pub(super) const NEVER_CACHED: &str =
    "never cached: it was refused, or its client left before the prompt was evaluated";

/// A request: by its id or, without one, by its number.
pub(super) fn request(name: &RequestName) -> String {
    Visible(&name.to_string()).to_string()
}

/// A place, as part of a sentence.
pub(super) fn place(place: &Place) -> String {
    match place {
        Place::Slot { slot } => format!("in slot {slot}"),
        Place::Host => "in the host cache".to_owned(),
        Place::Nowhere => "nowhere".to_owned(),
    }
}

/// A reason, as one or two words.
pub(super) fn reason(reason: Reason) -> String {
    reason.as_str().replace('_', " ")
}

/// A reason, and the request that caused it.
pub(super) fn lost(why: Reason, by: Option<&str>) -> String {
    let word = reason(why);
    match by {
        Some(by) => format!("{word} by {}", Visible(by)),
        None => word,
    }
}

/// Why a request is not cached any more, and where it was.
pub(super) fn evicted(why: Reason, by: Option<&str>, from: &Place) -> String {
    match why {
        Reason::NeverCached => NEVER_CACHED.to_owned(),
        _ => format!("{}; it was {}", lost(why, by), place(from)),
    }
}

/// A cause of evaluated tokens, as it stands behind their number.
pub(super) fn cause(name: &str) -> &str {
    match name {
        "last_token" => "last token",
        "elsewhere_pinned" => "in another slot than the one named",
        "elsewhere_busy" => "in a busy slot",
        "elsewhere_similarity" => "in another slot, too small a share",
        "elsewhere_least_recently_used" => "in another slot, not looked for",
        "elsewhere_host_rule" => "in the host cache, not taken",
        "no_way_back" => "in the slot, without a way back",
        "uncached" => "not wanted from the cache",
        "moved" => "in the slot further on",
        "adapter" => "for other adapters",
        "not_known" => "not known",
        other => other,
    }
}
