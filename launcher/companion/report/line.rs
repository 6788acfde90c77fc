//! What a report says of a recording, a request or a branch at a time: what the control endpoint says of them, in the order of the
//! names, and of requests without what is zero or not known. Of 50,000 requests that is most of the text, and a tree of values
//! for each would take most of the time.

use contextpilot_client::control::{Causes, Elsewhere, Timestamp};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::Value;

/// A request.
#[derive(Serialize)]
pub(super) struct Line {
    pub(super) at: Timestamp,
    pub(super) ended: Timestamp,
    pub(super) evaluation: Account,
    pub(super) generated: u32,
    pub(super) number: u64,
    pub(super) slot: i32,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) time_to_first_token_seconds: f64,
}

/// How its prompt was evaluated.
#[derive(Serialize)]
pub(super) struct Account {
    #[serde(serialize_with = "known_causes")]
    pub(super) causes: Causes,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) diverged: Option<Diverged>,
    pub(super) evaluated: u64,
    pub(super) from: Sources,
    pub(super) prompt_tokens: u64,
    pub(super) reused: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) seconds: f64,
}

/// Where a prompt left an earlier one.
#[derive(Serialize)]
pub(super) struct Diverged {
    #[serde(skip_serializing_if = "is_default")]
    pub(super) at: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) request: Option<u64>,
}

/// Where its reused tokens came from.
#[derive(Serialize)]
pub(super) struct Sources {
    #[serde(skip_serializing_if = "is_default")]
    pub(super) host: u64,
    pub(super) slot: u64,
}

/// A prompt took tokens of a slot that another one had left there.
#[derive(Serialize)]
pub(super) struct Replaced {
    pub(super) at: Timestamp,
    pub(super) by: String,
    pub(super) change: &'static str,
    pub(super) id: String,
    pub(super) slot: u32,
    pub(super) tokens: u32,
}

/// All prompts.
#[derive(Serialize)]
pub(super) struct Tree<'a> {
    pub(super) at: Timestamp,
    pub(super) branches: Vec<Branch<'a>>,
    pub(super) epoch: &'static str,
    pub(super) resident: u64,
}

/// Tokens that they have in common.
#[derive(Serialize)]
pub(super) struct Branch<'a> {
    pub(super) from: u32,
    pub(super) host: u32,
    pub(super) merged: &'a Value,
    pub(super) parent: Option<usize>,
    pub(super) requests: &'a [u64],
    pub(super) requests_total: usize,
    pub(super) slots: &'a [u32],
    pub(super) to: u32,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn known_causes<S: Serializer>(causes: &Causes, serializer: S) -> Result<S::Ok, S::Error> {
    let &Causes {
        last_token,
        new,
        repeated,
        evicted,
        elsewhere,
        no_way_back,
        uncached,
        moved,
        adapter,
        not_known,
    } = causes;
    let mut map = serializer.serialize_map(None)?;
    known(&mut map, &[("adapter", adapter)])?;
    if elsewhere.sum() > 0 {
        map.serialize_entry("elsewhere", &KnownElsewhere(elsewhere))?;
    }
    let others = [
        ("evicted", evicted),
        ("last_token", last_token),
        ("moved", moved),
        ("new", new),
        ("no_way_back", no_way_back),
        ("not_known", not_known),
        ("repeated", repeated),
        ("uncached", uncached),
    ];
    known(&mut map, &others)?;
    map.end()
}

struct KnownElsewhere(Elsewhere);

impl Serialize for KnownElsewhere {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Elsewhere {
            pinned,
            busy,
            similarity,
            least_recently_used,
            host_rule,
        } = self.0;
        let all = [
            ("busy", busy),
            ("host_rule", host_rule),
            ("least_recently_used", least_recently_used),
            ("pinned", pinned),
            ("similarity", similarity),
        ];
        let mut map = serializer.serialize_map(None)?;
        known(&mut map, &all)?;
        map.end()
    }
}

/// Those that are not zero.
fn known<M: SerializeMap>(map: &mut M, all: &[(&'static str, u64)]) -> Result<(), M::Error> {
    let mut known = all.iter().filter(|(_, tokens)| *tokens > 0);
    known.try_for_each(|(name, tokens)| map.serialize_entry(name, tokens))
}
