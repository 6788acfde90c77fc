//! Why a prompt was evaluated.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{ChosenBy, Reason, Timestamp};

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Which tokens of a request's prompt were reused or evaluated, and why. If a request has several prompts
/// (a list, `n`), numbers are added up, and the other fields are of the prompt with the most evaluated
/// tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Evaluation {
    /// Tokens: [`reused`](Self::reused) and [`evaluated`](Self::evaluated).
    pub prompt_tokens: u64,
    /// Tokens that were not evaluated: the engine's `cache_n`, and what the prefix store loaded
    /// ([`Sources::store`]).
    pub reused: u64,
    /// Tokens that were evaluated: the engine's `prompt_n`, less what the prefix store loaded.
    pub evaluated: u64,
    /// The time that this took, from the launch of the prompt's task in its slot to the first token of the
    /// answer. `None`: not measured, or there is no first token yet.
    pub seconds: Option<f64>,
    /// Why tokens were evaluated. Adds up to [`evaluated`](Self::evaluated).
    pub causes: Causes,
    /// Where reused tokens were. Adds up to [`reused`](Self::reused).
    pub from: Sources,
    /// The LoRA adapters that were applied when its evaluation began, as far as the hook sees them, in the
    /// server's order. `None`: not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adapters: Option<Vec<AppliedAdapter>>,
    /// The client left before all of the prompt was evaluated: these are the tokens up to there, and the time up to
    /// the end of its last batch.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub given_up: bool,
    /// How many requests for this prompt, one after the other, were given up before this one.
    #[serde(skip_serializing_if = "is_zero")]
    pub attempts: u64,
    /// Tokens of the prompts that are an answer's own, where the tokenizer has others (`CONTEXTPILOT_KEEP_TOKENS`).
    #[serde(skip_serializing_if = "is_zero")]
    pub kept: u64,
    /// Where the prompt diverged from the earlier prompt with the longest common prefix, the latest if there
    /// are several. `None` if there is none, or if one prompt is a prefix of the other.
    pub diverged: Option<Diverged>,
    /// How most tokens of [`Causes::evicted`] were lost. `None` if no token was, or if that is no longer
    /// known.
    pub lost: Option<Lost>,
    /// What the request is about, with `CONTEXTPILOT_EXPLAIN_TEXT=1`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<Title>,
}

/// What a request is about, for people. Without characters that a terminal obeys, and short.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Title {
    /// The first words of its last user message, or of its prompt; empty: not known.
    pub words: String,
    /// The program that sent it, by the first word of `User-Agent`; empty: not known.
    pub agent: String,
}

impl Evaluation {
    /// Adds another prompt of the same request. `is_largest`: more of its tokens were evaluated than of
    /// any earlier prompt of the request.
    pub fn add(&mut self, other: Self, is_largest: bool) {
        if is_largest {
            self.adapters = other.adapters;
            self.attempts = other.attempts;
            self.diverged = other.diverged;
            self.lost = other.lost;
        }
        self.given_up |= other.given_up;
        self.prompt_tokens += other.prompt_tokens;
        self.reused += other.reused;
        self.evaluated += other.evaluated;
        self.causes.add(other.causes);
        self.from.slot += other.from.slot;
        self.from.host += other.from.host;
        self.from.checkpoint += other.from.checkpoint;
        self.from.moved += other.from.moved;
        self.from.store += other.from.store;
    }
}

/// Evaluated tokens, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Causes {
    /// The last token of the prompt, which is always evaluated.
    pub last_token: u64,
    /// Never seen by this server behind the tokens before them, nor, in a row of 16 or more, behind others.
    pub new: u64,
    /// Stood in an earlier prompt or in an answer, in a row of 16 tokens or more, but behind something else. An older
    /// hook counts these as [`new`](Self::new).
    pub repeated: u64,
    /// Were cached once, and evicted: see [`Evaluation::lost`].
    pub evicted: u64,
    /// Were cached in another slot or in the host prompt cache, and not used there.
    pub elsewhere: Elsewhere,
    /// Were in the slot, but a sliding-window or recurrent context could not go back to them, because there
    /// was no checkpoint.
    pub no_way_back: u64,
    /// Were cached, but the request says `"cache_prompt": false`, or is of a kind that
    /// never uses the cache (embeddings, reranking).
    pub uncached: u64,
    /// Were in the slot at other positions: `--cache-reuse` would have moved them, if this context
    /// supports that.
    pub moved: u64,
    /// Were cached for other LoRA adapters.
    pub adapter: u64,
    /// The cause is no longer known, or events were lost.
    pub not_known: u64,
}

impl Causes {
    /// Each cause with its number, as `/metrics` names them.
    #[must_use]
    pub fn all(&self) -> [(&'static str, u64); 14] {
        let elsewhere = &self.elsewhere;
        [
            ("last_token", self.last_token),
            ("new", self.new),
            ("repeated", self.repeated),
            ("evicted", self.evicted),
            ("elsewhere_pinned", elsewhere.pinned),
            ("elsewhere_busy", elsewhere.busy),
            ("elsewhere_similarity", elsewhere.similarity),
            (
                "elsewhere_least_recently_used",
                elsewhere.least_recently_used,
            ),
            ("elsewhere_host_rule", elsewhere.host_rule),
            ("no_way_back", self.no_way_back),
            ("uncached", self.uncached),
            ("moved", self.moved),
            ("adapter", self.adapter),
            ("not_known", self.not_known),
        ]
    }

    /// The tokens of all causes.
    #[must_use]
    pub fn sum(&self) -> u64 {
        let numbers = self.all().map(|(_, number)| number);
        numbers.into_iter().fold(0, u64::saturating_add)
    }

    /// Adds the numbers of another evaluation.
    pub fn add(&mut self, other: Self) {
        let ours = [
            &mut self.last_token,
            &mut self.new,
            &mut self.repeated,
            &mut self.evicted,
            &mut self.elsewhere.pinned,
            &mut self.elsewhere.busy,
            &mut self.elsewhere.similarity,
            &mut self.elsewhere.least_recently_used,
            &mut self.elsewhere.host_rule,
            &mut self.no_way_back,
            &mut self.uncached,
            &mut self.moved,
            &mut self.adapter,
            &mut self.not_known,
        ];
        for (ours, (_, theirs)) in ours.into_iter().zip(other.all()) {
            *ours += theirs;
        }
    }
}

/// Tokens that were cached elsewhere, by why they were not used there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Elsewhere {
    /// The request named another slot (`id_slot`).
    pub pinned: u64,
    /// Their slot was busy.
    pub busy: u64,
    /// Their slot held too small a share of the prompt (`--slot-prompt-similarity`).
    pub similarity: u64,
    /// Slots are chosen by age alone (`--slot-prompt-similarity 0`).
    pub least_recently_used: u64,
    /// They were in the host prompt cache, which takes an entry only if at least a quarter of it
    /// is used and both shares, of the entry and of the prompt, are better than the slot's.
    pub host_rule: u64,
}

impl Elsewhere {
    /// The tokens of all reasons.
    #[must_use]
    pub fn sum(&self) -> u64 {
        let Self {
            pinned,
            busy,
            similarity,
            least_recently_used,
            host_rule,
        } = *self;
        [pinned, busy, similarity, least_recently_used, host_rule]
            .into_iter()
            .fold(0, u64::saturating_add)
    }
}

/// Reused tokens, by where they were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sources {
    /// In the slot.
    pub slot: u64,
    /// In an entry of the host prompt cache, which was loaded into the slot.
    pub host: u64,
    /// In the slot, after going back to a context checkpoint.
    pub checkpoint: u64,
    /// Further on in the slot, from where they were moved (`--cache-reuse`).
    pub moved: u64,
    /// In the prefix store (`CONTEXTPILOT_STORE`), which loaded them. The server does not know: its `prompt_n`
    /// counts them as evaluated.
    pub store: u64,
}

/// A LoRA adapter that was applied.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AppliedAdapter {
    /// Its `id` in `GET /lora-adapters` of the server. `None`: not known, because servers of 2025 do not tell
    /// the engine which of them it is.
    pub id: Option<u32>,
    /// How strongly it was applied. Never 0.
    pub scale: f32,
}

/// Where a prompt diverged from an earlier one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Diverged {
    /// The length of the common prefix, in tokens.
    pub at: u64,
    /// The request of the earlier prompt; `None` if that is no longer known.
    pub request: Option<RequestName>,
    /// Tokens that differ there: the larger of [`inserted`](Self::inserted) and
    /// [`deleted`](Self::deleted).
    pub differing: u64,
    /// Tokens behind the difference that are the same in both prompts.
    pub same_after: u64,
    /// Tokens from the difference on that the earlier prompt has, too, in whatever order, and that were
    /// still cached. So many more could have been reused if they had come as in the earlier prompt, and
    /// before what differs.
    pub repeated: u64,
    /// At least so many of these stand in another order than in the earlier prompt: a list of tools may
    /// have been sorted anew.
    pub reordered: u64,
    /// Tokens right at the difference that are not [`repeated`](Self::repeated). If these are few and
    /// others are reordered, the order is all that differs.
    pub unmatched: u64,
    /// Tokens that only this prompt has there.
    pub inserted: u64,
    /// Tokens that only the earlier prompt has there.
    pub deleted: u64,
    /// The difference lies in what was generated for the earlier prompt: the client sends its answer back otherwise,
    /// or not at all.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub answer: bool,
    /// The difference lies in an answer before that one, which the earlier prompt had sent back: it is left out now, or
    /// changed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub earlier_answer: bool,
    /// Tokens of one block that the earlier prompt has right at the difference. Here it stands behind text that stood
    /// behind it there. 0: no such block is seen.
    #[serde(skip_serializing_if = "is_zero")]
    pub block: u64,
    /// Both prompts have media there (an image), and the server does not take them for the same.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub media: bool,
    /// Whether the request may have what is new at the difference, with `CONTEXTPILOT_EXPLAIN_TEXT=1`: a date or another
    /// text with digits. `Some(false)`: no client sent it, but the server's chat template wrote it. `None`: not known, or there
    /// is no such text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sent: Option<bool>,
    /// The tokens around the difference as text, with `CONTEXTPILOT_EXPLAIN_TEXT=1`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<DivergedText>,
}

/// The tokens around a difference, as text. Bytes that are not UTF-8 are replaced.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DivergedText {
    /// Some tokens that both prompts have before the difference.
    pub before: String,
    /// Some tokens of the earlier prompt from the difference on.
    pub old: String,
    /// Some tokens of this prompt from the difference on.
    pub new: String,
    /// How many characters of [`old`](Self::old) are of tokens that differ; this prompt has the others, too, behind
    /// [`new_differs`](Self::new_differs). `None`: an older hook does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old_differs: Option<usize>,
    /// How many characters of [`new`](Self::new) are of tokens that differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new_differs: Option<usize>,
}

/// How tokens were lost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lost {
    /// When they were lost.
    pub when: Timestamp,
    /// Why they were lost.
    pub reason: Reason,
    /// The request that took their place; `None` if there was none, or it is not known.
    pub by: Option<RequestName>,
    /// What took them, if no prompt did. `None`: a prompt, or it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub through: Option<Through>,
    /// How many tokens of [`Causes::evicted`] were lost so.
    #[serde(default)]
    pub tokens: u64,
    /// How the slot that had them was chosen for that request. `None`: not known, or the slot's content was
    /// saved to the host prompt cache before.
    #[serde(default)]
    pub chosen_by: Option<ChosenBy>,
    /// The share of that request's prompt that the slot held, 0 to 1. `None` as for
    /// [`chosen_by`](Self::chosen_by).
    #[serde(default)]
    pub similarity: Option<f64>,
    /// The share of the slot's content that stayed there, 0 to 1. Below a half, the server saves the content
    /// to the host prompt cache first, if it has one. `None` as for [`chosen_by`](Self::chosen_by).
    #[serde(default)]
    pub kept: Option<f64>,
}

/// What takes tokens from a slot, besides prompts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Through {
    /// A client erased the slot (`POST /slots/0?action=erase`).
    Erase,
    /// A client restored something else into the slot (`POST /slots/0?action=restore`).
    Restore,
    /// The context that all slots share was full, and the server emptied an idle slot to go on.
    NoRoom,
    /// The router ended the process of the model to make room for another model. Only `why` says so: for the next process
    /// of the model, such tokens are new.
    Swap,
    /// The same, because a client unloaded the model.
    Unload,
    /// A newer server's word.
    #[serde(other)]
    Other,
}

/// Names a request: by its id or, without one, by the number that this process gave it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum RequestName {
    /// Its id.
    Id(String),
    /// Its number.
    Number(u64),
}

impl RequestName {
    /// The number in `#17`: so lists name a request without an id.
    #[must_use]
    pub fn number(name: &str) -> Option<u64> {
        name.strip_prefix('#')?.parse().ok()
    }
}

impl fmt::Display for RequestName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => f.write_str(id),
            Self::Number(number) => write!(f, "#{number}"),
        }
    }
}

/// A request whose prompt was evaluated: an entry of `GET /requests/last`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evaluated {
    /// The number that this process gave it, in the order of arrival. 0 if it came on a
    /// connection that could not be read.
    pub number: u64,
    /// Its id; `None`: it had none.
    pub id: Option<String>,
    /// When (the last of) its prompts was evaluated.
    pub at: Timestamp,
    /// The slot of (the last of) its prompts.
    pub slot: i32,
    /// From the complete receipt of the request to the end of the evaluation that completed its (first)
    /// prompt. `None` until it is answered.
    #[serde(default)]
    pub time_to_first_token_seconds: Option<f64>,
    /// When it was answered. `None`: it is not answered yet.
    #[serde(default)]
    pub ended: Option<Timestamp>,
    /// The sections of a request for a chat. `None`: it is for something else, or its body was not read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sections: Option<Sections>,
    /// Which tokens were reused or evaluated, and why.
    pub evaluation: Evaluation,
}

/// The sections of a request for a chat, in bytes of its body's JSON. Which of the prompt's tokens belong to
/// each is not known: the server's chat template decides that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sections {
    /// `system` (`/v1/messages`), `instructions` (`/v1/responses`), and messages with the role `system` or
    /// `developer`.
    pub system: u64,
    /// `tools`.
    pub tools: u64,
    /// All other messages.
    pub messages: u64,
}

/// `GET /requests/last?n=…`: the latest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Latest {
    /// At most as many as were asked for.
    pub requests: Vec<Evaluated>,
}
