//! `GET /tree`.

use serde::{Deserialize, Serialize};

use crate::{RequestName, Timestamp};

/// What slots and the host prompt cache hold, as the tree of prefixes that it is; and where the last prompts
/// end in it, also those that were lost. It holds no tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tree {
    /// When this was so.
    pub at: Timestamp,
    /// See [`ResidencyEvent::epoch`](crate::ResidencyEvent::epoch).
    pub epoch: String,
    /// Distinct tokens that are held, also in branches that are left out.
    pub resident: u64,
    /// The branches, at most as many as were asked for. A branch comes after the one that it follows.
    pub branches: Vec<Branch>,
}

/// A run of tokens. All prompts that go through it have all of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Branch {
    /// The branch that it follows: an index into [`Tree::branches`]. `None`: it begins at the first token.
    pub parent: Option<usize>,
    /// The position of its first token.
    pub from: u32,
    /// The position after its last token.
    pub to: u32,
    /// The slots that hold all of it.
    pub slots: Vec<i32>,
    /// How many entries of the host prompt cache hold all of it. If this is 0 and there are no slots, the
    /// branch was lost.
    pub host: u32,
    /// Requests whose prompts end here, 32 at most. The last token of a prompt, which the server always
    /// evaluates again, comes behind this end.
    pub requests: Vec<RequestName>,
    /// How many requests' prompts end here.
    pub requests_total: u64,
    /// What is left out behind it.
    pub merged: Merged,
}

/// Branches that are left out because they are small.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Merged {
    /// How many branches are left out.
    pub branches: u64,
    /// The tokens in all of them.
    pub tokens: u64,
    /// How many requests' prompts end in them.
    pub requests: u64,
}
