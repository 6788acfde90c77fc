//! The parts of an account.

use crate::adapters::AppliedAdapter;
use crate::fact::{Asker, Reason};
use crate::ids::SequenceId;
use crate::token::Token;

/// Fields of a request that decide how much of its prompt is reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// The slot that the request names (`id_slot`).
    pub slot: Option<crate::SequenceId>,
    /// The request must not reuse the cache (`"cache_prompt": false`), or is of a kind that never
    /// does (embeddings, reranking).
    pub uncached: bool,
    /// The shortest chunk that may be moved for it (`n_cache_reuse`), in place of the flag's; 0: none is.
    pub cache_reuse: Option<u32>,
    /// How many tokens a context shift keeps (`n_keep`); negative: the prompt.
    pub keep: i32,
    /// How many it discards (`n_discard`); 0: half of the others.
    pub discard: u32,
    /// It is for `/infill`.
    pub infill: bool,
}

/// What became of the tokens of one prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// The number of the prompt, in the order in which prompts were launched.
    pub nth: u64,
    /// Who asked for the prompt.
    pub asker: Asker,
    /// Tokens of the prompt: `reused` + `evaluated`.
    pub tokens: u64,
    /// Tokens that were reused from the cache, the engine's `cache_n`.
    pub reused: u64,
    /// Tokens that were evaluated, the engine's `prompt_n`.
    pub evaluated: u64,
    /// Where the reused tokens were. The parts add up to `reused`.
    pub from: Sources,
    /// The LoRA adapters that were applied to the prompt's first batch, in the server's order, without those
    /// at a scale of 0. `None`: not known.
    pub adapters: Option<Vec<AppliedAdapter>>,
    /// Why the others were evaluated. The parts add up to `evaluated`.
    pub causes: Causes,
    /// Its client left before all of it was evaluated. The tokens are those up to there.
    pub given_up: bool,
    /// How many requests for this prompt, one after the other, were given up before it.
    pub attempts: u32,
    /// Where this prompt differs from the earlier prompt with the longest common beginning (of
    /// several, the latest). `None`: there is no such prompt, or one of the two begins with the whole
    /// other one.
    pub diverged: Option<Diverged>,
    /// How most of the tokens with the cause `evicted` were lost. `None`: there is no such token, or no
    /// loss is remembered.
    pub lost: Option<Loss>,
}

/// Reused tokens, by where they were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct Sources {
    /// In the slot, at the same positions.
    pub slot: u64,
    /// In an entry of the host prompt cache, which was loaded into the slot.
    pub host: u64,
    /// In the slot, which was put back to a checkpoint at the end of these tokens.
    pub checkpoint: u64,
    /// In the slot, at later positions (`--cache-reuse` moved them).
    pub moved: u64,
    /// In the prefix store (`CONTEXTPILOT_STORE`), which loaded them. The server does not know: its `prompt_n`
    /// counts them as evaluated.
    pub store: u64,
}

impl Sources {
    /// Adds the numbers of another evaluation.
    pub fn add(&mut self, other: Self) {
        let Self {
            slot,
            host,
            checkpoint,
            moved,
            store,
        } = other;
        self.slot += slot;
        self.host += host;
        self.checkpoint += checkpoint;
        self.moved += moved;
        self.store += store;
    }
}

/// Evaluated tokens, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct Causes {
    /// The last token of the prompt, which is always evaluated.
    pub last_token: u64,
    /// Tokens that were never seen behind the tokens before them, nor, in a row of 16 or more, behind others.
    pub new: u64,
    /// Tokens that stood in an earlier prompt or in an answer, in a row of 16 or more, but behind something else. An
    /// older hook counts these as [`new`](Self::new).
    pub repeated: u64,
    /// Tokens that were cached once and are not any more: see [`Account::lost`].
    pub evicted: u64,
    /// Tokens that are cached, but not where the engine looked.
    pub elsewhere: Elsewhere,
    /// Tokens in the slot that its bounded context (sliding windows, recurrent) cannot go back to, as there was no
    /// checkpoint; with `--swa-full`, as the slot's content came from a saved state.
    pub no_way_back: u64,
    /// Tokens that are cached, but that the request must not reuse. All tokens of a prompt that the
    /// server forgets.
    pub uncached: u64,
    /// Tokens in the slot at later positions: `--cache-reuse` would have moved them, if the context
    /// can.
    pub moved: u64,
    /// Tokens that are cached for other LoRA adapters.
    pub adapter: u64,
    /// Tokens without a known cause: their past is forgotten, or events were lost.
    pub not_known: u64,
}

impl Causes {
    /// Each cause with its number, as `/metrics` names them.
    #[must_use]
    pub fn all(&self) -> [(&'static str, u64); 14] {
        // All fields, so that none is forgotten.
        let Self {
            last_token,
            new,
            repeated,
            evicted,
            elsewhere:
                Elsewhere {
                    pinned,
                    busy,
                    similarity,
                    least_recently_used,
                    host_rule,
                },
            no_way_back,
            uncached,
            moved,
            adapter,
            not_known,
        } = *self;
        [
            ("last_token", last_token),
            ("new", new),
            ("repeated", repeated),
            ("evicted", evicted),
            ("elsewhere_pinned", pinned),
            ("elsewhere_busy", busy),
            ("elsewhere_similarity", similarity),
            ("elsewhere_least_recently_used", least_recently_used),
            ("elsewhere_host_rule", host_rule),
            ("no_way_back", no_way_back),
            ("uncached", uncached),
            ("moved", moved),
            ("adapter", adapter),
            ("not_known", not_known),
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

    pub(super) fn count_of(&mut self, cause: Cause) -> &mut u64 {
        match cause {
            Cause::New => &mut self.new,
            Cause::Repeated => &mut self.repeated,
            Cause::Evicted => &mut self.evicted,
            Cause::Elsewhere(kind) => self.elsewhere.count_of(kind),
            Cause::NoWayBack => &mut self.no_way_back,
            Cause::Uncached => &mut self.uncached,
            Cause::Moved => &mut self.moved,
            Cause::Adapter => &mut self.adapter,
            Cause::NotKnown => &mut self.not_known,
        }
    }
}

/// Tokens that are cached elsewhere, or were evaluated there at the same time, by the reason why they were not used there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct Elsewhere {
    /// The request named another slot (`id_slot`).
    pub pinned: u64,
    /// Their slot was at work, or evaluated them for an earlier prompt at the same time.
    pub busy: u64,
    /// Their slot is less similar to the prompt than `--slot-prompt-similarity` demands.
    pub similarity: u64,
    /// Slots are not chosen by similarity (`--slot-prompt-similarity 0`), but by age.
    pub least_recently_used: u64,
    /// In an entry of the host prompt cache that the server did not load: they are less than a quarter
    /// of the entry, or the entry is not better than the slot in both shares, or the host prompt cache
    /// was not searched.
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

    fn count_of(&mut self, kind: Kind) -> &mut u64 {
        match kind {
            Kind::Pinned => &mut self.pinned,
            Kind::Busy => &mut self.busy,
            Kind::Similarity => &mut self.similarity,
            Kind::LeastRecentlyUsed => &mut self.least_recently_used,
            Kind::HostRule => &mut self.host_rule,
        }
    }
}

/// Why a token was evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    New,
    Repeated,
    Evicted,
    Elsewhere(Kind),
    NoWayBack,
    Uncached,
    Moved,
    Adapter,
    NotKnown,
}

/// Why tokens that are cached elsewhere were not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Pinned,
    Busy,
    Similarity,
    LeastRecentlyUsed,
    HostRule,
}

/// The first difference between a prompt and an earlier one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diverged {
    /// How many tokens both have in common before the difference.
    pub at: u32,
    /// Who asked for the earlier prompt; `None`: that is not remembered.
    pub request: Option<Asker>,
    /// How many tokens differ: the larger of [`Self::inserted`] and [`Self::deleted`].
    pub differing: u32,
    /// Tokens of the difference that only this prompt has. If `deleted` is 0, this is an insertion.
    pub inserted: u32,
    /// Tokens of the difference that only the earlier prompt has. If `inserted` is 0, this is a
    /// deletion.
    pub deleted: u32,
    /// Tokens behind the difference that are the same again in both prompts.
    pub same_after: u32,
    /// Tokens from the difference on that the earlier prompt has, too, in whatever order, as far as they
    /// were still cached: so many more could have been reused if they had come as in the earlier prompt.
    pub repeated: u32,
    /// At least so many of these stand in another order than in the earlier prompt.
    pub reordered: u32,
    /// Tokens right at the difference that are not repeated. If there are only few and others are
    /// reordered, the order is all that differs.
    pub unmatched: u32,
    /// The difference lies in what was generated for the earlier prompt, or reaches into it from the last tokens of that prompt: its
    /// answer comes back otherwise, or not at all.
    pub answer: bool,
    /// The difference lies in an answer before that one, which the earlier prompt had sent back.
    pub earlier_answer: bool,
    /// Tokens of one block that the earlier prompt has right at the difference. Here it stands behind text that stood behind
    /// it there. 0: no such block is seen.
    pub block: u32,
    /// Both prompts have media there, and not the same.
    pub media: bool,
    /// The tokens around the difference, with
    /// [`Accounts::quoting`](super::Accounts::quoting).
    pub around: Option<Box<Around>>,
}

/// Some tokens around a difference.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Around {
    /// The last tokens that both prompts have before the difference: at most [`Self::BEFORE`].
    pub before: Vec<Token>,
    /// The tokens of the earlier prompt from the difference on: at most [`Self::BEHIND`].
    pub old: Vec<Token>,
    /// The tokens of this prompt from the difference on: at most [`Self::BEHIND`].
    pub new: Vec<Token>,
}

impl Around {
    /// The most tokens before a difference.
    pub const BEFORE: usize = 16;
    /// The most tokens of each prompt from the difference on.
    pub const BEHIND: usize = 24;

    pub(super) fn new(prompt: &[Token], at: usize, earlier: &[Token]) -> Self {
        let (before, new) = prompt.split_at(at);
        let beginning = |tokens: &[Token]| tokens[..tokens.len().min(Self::BEHIND)].to_vec();
        Self {
            before: before[at.saturating_sub(Self::BEFORE)..].to_vec(),
            old: beginning(earlier),
            new: beginning(new),
        }
    }
}

/// How tokens were lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// When the tokens were lost, in milliseconds since 1970.
    pub at_unix_ms: u64,
    /// Why they were lost.
    pub reason: Reason,
    /// The request for which the engine removed them; `None`: for no request, or not known.
    pub by: Option<Asker>,
    /// What took them, if no prompt did.
    pub through: Option<Through>,
    /// How many of the tokens with the cause `evicted` were lost like this.
    pub tokens: u32,
    /// How that request came into the slot that had them; `None`: not known.
    pub taking: Option<Taking>,
}

/// What takes tokens from a slot, besides prompts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Through {
    /// A client erased the slot (`POST /slots/0?action=erase`).
    Erase,
    /// A client restored something else into the slot (`POST /slots/0?action=restore`).
    Restore,
    /// The context that all slots share was full, and the server emptied an idle slot to go on.
    NoRoom,
}

/// How a prompt came into its slot, and what it did to the slot's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taking {
    /// How the slot was chosen.
    pub choice: Choice,
    /// The share of the prompt that the slot held, in thousandths.
    pub similarity: u16,
    /// The share of the slot's content that stayed there, in thousandths. Below a half, the server saves
    /// the content to the host prompt cache first, if it has one.
    pub kept: u16,
}

/// A slot or a host entry, compared with a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matched {
    /// The slot; `None`: it is an entry of the host prompt cache.
    pub slot: Option<SequenceId>,
    /// How many tokens it holds.
    pub tokens: u32,
    /// How many tokens both have in common from the beginning.
    pub common: u32,
    /// How many tokens the server would reuse in that slot: never the last one of the prompt, in a
    /// bounded context only those that it can go on from, and with `--cache-reuse` also those that
    /// it would move.
    pub reusable: u32,
    /// The slot is at work, so it cannot take the prompt now.
    pub busy: bool,
}

/// How a slot is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The request names it.
    Pinned,
    /// It is the most similar to the prompt (`--slot-prompt-similarity`).
    Similarity,
    /// It holds nothing, or is the least recently used.
    LeastRecentlyUsed,
}

/// What a prompt would find if it came now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// Slots, ascending, and host entries, oldest first, that hold anything.
    pub all: Vec<Matched>,
    /// The slot that would be chosen, and how. `None`: the prompt would have to wait for a slot, or
    /// the number of slots is not known.
    pub choice: Option<(SequenceId, Choice)>,
    /// The host entry that would be loaded into the slot: its index in [`Self::all`].
    pub loads: Option<usize>,
    /// How many tokens would be reused.
    pub reused: u32,
}

/// What is known of the server, beyond what the ledger sees.
#[derive(Clone, Debug, Default)]
pub struct Occupied {
    /// Slots at work.
    pub busy: Vec<SequenceId>,
    /// How many slots there are, if that is known.
    pub slots: Option<u32>,
}
