//! What an account says.

use crate::event::{Reason, RequestId, Token};

/// Who asked for a prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asker {
    /// The number of the HTTP request ([`Arrival`](crate::Arrival)); 0: it was not seen.
    pub number: u64,
    /// Its id, if it has one.
    pub id: Option<RequestId>,
}

/// What a request asks for that decides how much of its prompt is reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// The slot that it names (`id_slot`).
    pub slot: Option<crate::SequenceId>,
    /// It does not want its prompt from the cache (`"cache_prompt": false`), or is of a kind that
    /// never has it from there (embeddings, reranking).
    pub uncached: bool,
}

/// What became of the tokens of one prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Counts prompts, in the order in which their evaluation began.
    pub nth: u64,
    /// Who asked for it.
    pub asker: Asker,
    /// Tokens: the reused and the evaluated.
    pub tokens: u64,
    /// Tokens that were in the cache, the engine's `cache_n`.
    pub reused: u64,
    /// Tokens that were evaluated, the engine's `prompt_n`.
    pub evaluated: u64,
    /// Where the reused ones were. They add up.
    pub from: Sources,
    /// Why the others were evaluated. They add up.
    pub causes: Causes,
    /// Where it left the last of those earlier prompts with which it has the most in common. `None`:
    /// there is none, or one of the two begins with all of the other.
    pub diverged: Option<Diverged>,
    /// How the first of the tokens that were `evicted` was lost. `None`: none were, or it is not
    /// known any more.
    pub lost: Option<Loss>,
}

/// Reused tokens, by where they were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    /// In the slot, at the same positions.
    pub slot: u64,
    /// In an entry of the host prompt cache, which was loaded into the slot.
    pub host: u64,
    /// In the slot, which was put back to a checkpoint that they end with.
    pub checkpoint: u64,
    /// In the slot, further on (`--cache-reuse`).
    pub moved: u64,
}

/// Evaluated tokens, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Causes {
    /// The one that is always evaluated.
    pub last_token: u64,
    /// Never seen behind the tokens before them.
    pub new: u64,
    /// Were cached and are no more.
    pub evicted: u64,
    /// Are cached, but not where the engine looked.
    pub elsewhere: Elsewhere,
    /// In the slot, but it cannot go back to them.
    pub no_way_back: u64,
    /// The request does not want them from the cache.
    pub uncached: u64,
    /// In the slot, further on: `--cache-reuse` would have moved them, if the context can.
    pub moved: u64,
    /// Cached for other LoRA adapters.
    pub adapter: u64,
    /// Beyond what is remembered, or events were lost.
    pub not_known: u64,
}

impl Causes {
    /// All of them.
    #[must_use]
    pub fn sum(&self) -> u64 {
        let Self {
            last_token,
            new,
            evicted,
            elsewhere,
            no_way_back,
            uncached,
            moved,
            adapter,
            not_known,
        } = *self;
        let known = last_token + new + evicted + elsewhere.sum() + no_way_back;
        known + uncached + moved + adapter + not_known
    }

    pub(super) fn of(&mut self, cause: Cause) -> &mut u64 {
        match cause {
            Cause::New => &mut self.new,
            Cause::Evicted => &mut self.evicted,
            Cause::Elsewhere(kind) => self.elsewhere.of(kind),
            Cause::NoWayBack => &mut self.no_way_back,
            Cause::Uncached => &mut self.uncached,
            Cause::Moved => &mut self.moved,
            Cause::Adapter => &mut self.adapter,
            Cause::NotKnown => &mut self.not_known,
        }
    }
}

/// Tokens that are cached elsewhere, by why they were not used there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Elsewhere {
    /// The request named another slot (`id_slot`).
    pub pinned: u64,
    /// Their slot was at work.
    pub busy: u64,
    /// Too small a share of the prompt for `--slot-prompt-similarity`.
    pub similarity: u64,
    /// Slots are not chosen by similarity (`--slot-prompt-similarity 0`), but by age.
    pub least_recently_used: u64,
    /// In the host prompt cache: less than a quarter of the entry, or not better in both shares; or
    /// it was not searched.
    pub host_rule: u64,
}

impl Elsewhere {
    /// All of them.
    #[must_use]
    pub fn sum(&self) -> u64 {
        let Self {
            pinned,
            busy,
            similarity,
            least_recently_used,
            host_rule,
        } = *self;
        pinned + busy + similarity + least_recently_used + host_rule
    }

    fn of(&mut self, kind: Kind) -> &mut u64 {
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
    Evicted,
    Elsewhere(Kind),
    NoWayBack,
    Uncached,
    Moved,
    Adapter,
    NotKnown,
}

/// Why what is cached elsewhere was not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Pinned,
    Busy,
    Similarity,
    LeastRecentlyUsed,
    HostRule,
}

/// Where a prompt left an earlier one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diverged {
    /// Tokens that both begin with.
    pub at: u32,
    /// Who asked for the earlier one; `None`: that is not remembered.
    pub request: Option<Asker>,
    /// Tokens that differ then: the more of [`Self::inserted`] and [`Self::deleted`].
    pub differing: u32,
    /// Tokens that only this prompt has there. With no deleted ones, it is an insertion.
    pub inserted: u32,
    /// Tokens that only the earlier one has there. With no inserted ones, it is a deletion.
    pub deleted: u32,
    /// Tokens behind the difference that are the same again in both.
    pub same_after: u32,
    /// The tokens there, if they are asked for ([`Accounts::quoting`](super::Accounts::quoting)).
    pub around: Option<Box<Around>>,
}

/// Some tokens around a difference.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Around {
    /// The last that both have before it: at most [`Self::BEFORE`].
    pub before: Vec<Token>,
    /// What the earlier prompt has from there on: at most [`Self::BEHIND`].
    pub old: Vec<Token>,
    /// What this prompt has from there on: at most as many.
    pub new: Vec<Token>,
}

impl Around {
    /// Tokens before a difference.
    pub const BEFORE: usize = 16;
    /// Tokens of each prompt from the difference on.
    pub const BEHIND: usize = 24;

    pub(super) fn of(prompt: &[Token], at: usize, earlier: &[Token]) -> Self {
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
    /// When, in milliseconds since 1970.
    pub at_unix_ms: u64,
    /// Why.
    pub reason: Reason,
    /// The request for which the engine did it; `None`: for none, or that is not known.
    pub by: Option<Asker>,
}
