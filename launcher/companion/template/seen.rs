//! What was seen of a template.

use std::collections::BTreeMap;

use serde::Serialize;

use super::measure::Outcome;
use super::renderer::Call;

/// What the template does with reasoning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Reasoning {
    /// It knows of none.
    #[default]
    None,
    /// The model reasons, but `reasoning_content` is never rendered.
    NeverRendered,
    Rendered,
}

/// What was seen of a template.
#[derive(Debug, Default, Serialize)]
pub(super) struct Study {
    pub(super) template: String,
    pub(super) reasoning: Reasoning,
    pub(super) plain: Option<Outcome>,
    pub(super) tools: Option<Outcome>,
    pub(super) reasoning_back: Option<Outcome>,
    pub(super) reasoning_out: Option<Outcome>,
    pub(super) parallel_calls: Option<Outcome>,
    pub(super) another_day: Option<Outcome>,
    /// An answer with white space at its ends, and a call without white space in its arguments.
    pub(super) spelling: Option<Outcome>,
    /// A call that the template spells otherwise, and what is evaluated again if that is not.
    #[serde(skip)]
    pub(super) call: Option<(Call, Outcome)>,
    pub(super) helps: Vec<Help>,
    /// Which conversations the server refuses, and its message.
    pub(super) refused: BTreeMap<&'static str, String>,
}

/// Fewer characters a request are no help.
const SOME: f64 = 2.0;

/// Something that was tried, and helps.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Help {
    /// What to do.
    pub(super) what: String,
    /// In place of which conversation: its name in the JSON.
    pub(super) instead_of: &'static str,
    /// The share of all characters that was evaluated again without it, and with it.
    pub(super) from: f64,
    pub(super) to: f64,
    /// The difference.
    pub(super) saves: f64,
}

impl Help {
    /// `with`: what was seen so. A longer prompt makes the share smaller, and saves nothing: the characters count.
    pub(super) fn seen(
        what: impl Into<String>,
        instead_of: &'static str,
        without: &Outcome,
        with: &Outcome,
    ) -> Option<Self> {
        let saved = without.again_characters - with.again_characters;
        (saved >= SOME).then(|| Self {
            what: what.into(),
            instead_of,
            from: without.again,
            to: with.again,
            saves: ((without.again - with.again) * 1e5).round() / 1e5,
        })
    }
}
