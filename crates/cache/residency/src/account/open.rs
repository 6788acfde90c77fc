//! A prompt that is being evaluated, and what was cached when that began.

use super::past::{LossId, Moment, Nearest, Nth, Past, common};
use super::rules::Rules;
use super::types::Wishes;
use crate::adapters::AppliedAdapter;
use crate::entries::Entry;
use crate::fact::Asker;
use crate::ids::{CacheEntry, SequenceId};
use crate::ledger::Ledger;
use crate::token::{FILLER, Position, Token, is_unseen};
use std::ops::Range;

/// Tokens of other slots and host entries that are copied for one prompt: 16 MiB. Beyond that, it is
/// not known how they go on behind the first batch.
const MOST_COPIED: usize = 4 << 20;

/// A prompt that a slot is at work on.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) nth: Nth,
    pub(super) asker: Asker,
    pub(super) wishes: Wishes,
    /// Launched for [`UNTIED`](crate::UNTIED): whose prompt it is will be known at its end.
    pub(super) untied: bool,
    /// When the engine chose the slot. What was saved to host memory later was in a slot then.
    pub(super) decided: u64,
    /// `None`: nothing of the prompt was submitted yet.
    pub(super) begun: Option<Begun>,
    /// The slot did not take the task after all.
    pub(super) declined: bool,
    /// The tokens that the slot held after the last batch that asked for an output.
    pub(super) prompt: Option<Vec<Token>>,
    /// Its client has left.
    pub(super) given_up: bool,
    /// Its slot was emptied before its end was known: what the past had of it then. From then on it would find itself
    /// there.
    pub(super) before: Option<Before>,
    spans: Spans,
    /// Ranges of positions that came from the prefix store.
    loaded: Vec<(i64, i64, u64)>,
}

/// What the past has of some tokens.
#[derive(Clone, Debug)]
pub(super) struct Before {
    /// The earlier prompt that is nearest to them, if there is one.
    pub(super) nearest: Option<Nearest>,
    /// See [`Past::repeats`].
    pub(super) repeats: Vec<Range<u32>>,
    /// See [`Past::losses`].
    pub(super) losses: Vec<(LossId, Range<u32>)>,
    /// See [`Past::has_forgotten`].
    pub(super) forgotten: bool,
}

impl Before {
    pub(super) fn new(past: &Past, tokens: &[Token], nth: Nth, begun: Moment) -> Self {
        let nearest = past.nearest(tokens, nth, begun);
        let (before, earlier) = nearest
            .as_ref()
            .map_or((0, 0), |nearest| (nearest.before, nearest.earlier));
        Self {
            repeats: past.repeats(tokens, earlier, begun),
            losses: past.losses(tokens, (0, before), begun),
            forgotten: past.has_forgotten(tokens, begun),
            nearest,
        }
    }
}

/// What was cached when the first batch of a prompt was submitted.
#[derive(Debug)]
pub(super) struct Begun {
    pub(super) moment: Moment,
    /// The number of the event.
    pub(super) at: u64,
    /// The first position that was evaluated: how many tokens of the slot were reused.
    pub(super) from: u32,
    /// What the slot held before room was made in it.
    pub(super) own: Vec<Token>,
    pub(super) others: Vec<Other>,
    /// The reused tokens are not known.
    pub(super) blind: bool,
    pub(super) bounded: bool,
    /// What the slot held and did not reuse, the server could not go back to.
    pub(super) no_way_back: bool,
    /// The slot went back to a checkpoint.
    pub(super) checkpoint: bool,
    pub(super) prepared: Prepared,
    /// The adapters that are applied to the first batch. `None`: not known.
    pub(super) adapters: Option<Vec<AppliedAdapter>>,
}

/// Another slot or host entry that held the beginning of a prompt when its first batch was
/// submitted.
#[derive(Debug)]
pub(super) struct Other {
    pub(super) holds: CacheEntry,
    /// Tokens that it had in common with the prompt up to the end of the first batch.
    common: u32,
    /// How many tokens it held.
    pub(super) tokens: u32,
    /// Its tokens behind `common`, if these were all that was known of the prompt then.
    tail: Vec<Token>,
    /// There was such a tail, but it was too long to be copied.
    pub(super) endless: bool,
    /// It is a slot that worked under other adapters.
    pub(super) of_other_adapters: bool,
}

impl Other {
    /// How many of the first tokens of a prompt it held.
    pub(super) fn common(&self, prompt: &[Token]) -> u32 {
        let rest = prompt.get(self.common as usize..).unwrap_or_default();
        self.common + common(&self.tail, rest) as u32
    }
}

impl Open {
    pub(super) fn new(nth: Nth, asker: Asker, wishes: Wishes, untied: bool, decided: u64) -> Self {
        Self {
            nth,
            asker,
            wishes,
            untied,
            decided,
            begun: None,
            declined: false,
            prompt: None,
            given_up: false,
            before: None,
            spans: Spans::default(),
            loaded: Vec::new(),
        }
    }

    /// Entries of the slot are about to be submitted.
    pub(super) fn submitting(&mut self, run: &[Entry]) {
        self.spans.submitting(run);
    }

    /// The batch was evaluated, or has failed.
    pub(super) fn evaluated(&mut self, failed: bool) {
        self.spans.evaluated(failed);
    }

    /// So many entries of the submitted batch at positions `[from, to)` come from the prefix store.
    pub(super) fn loaded(&mut self, (from, to): (Position, Position), entries: u32) {
        let loaded = (i64::from(from), i64::from(to), u64::from(entries));
        self.loaded.push(loaded);
    }

    /// How many tokens came from the prefix store.
    pub(super) fn loaded_tokens(&self) -> u64 {
        self.loaded_in(0, i64::MAX)
    }

    /// How many entries at the positions `[from, to)` came from the prefix store. Each of several positions holds one; an image
    /// may have all of its rows at one.
    fn loaded_in(&self, from: i64, to: i64) -> u64 {
        let overlap = |&(begin, end, entries): &(i64, i64, u64)| {
            if from <= begin && end <= to {
                entries
            } else {
                u64::try_from(end.min(to) - begin.max(from)).unwrap_or(0)
            }
        };
        self.loaded.iter().map(overlap).sum()
    }

    /// How many entries were evaluated for the prompt at positions `[from, to)`.
    pub(super) fn entries(&self, from: u32, to: u32) -> u64 {
        let (from, to) = (i64::from(from), i64::from(to));
        let submitted = self.spans.count(from, to);
        submitted.saturating_sub(self.loaded_in(from, to))
    }

    /// Whether the server forgets this prompt ([`Event::Uncached`](crate::Event::Uncached)).
    pub(super) fn is_forgotten(&self) -> bool {
        let last = self.prompt.as_ref().and_then(|prompt| prompt.last());
        last.is_some_and(|&token| is_unseen(token))
    }
}

/// What was done to a slot since the first batch of its last prompt.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Prepared {
    /// When the slot was last loaded from the host prompt cache.
    pub(super) at: u64,
    /// The slot was loaded from the host prompt cache.
    pub(super) restored: bool,
    /// How many tokens were moved towards the beginning (`--cache-reuse`).
    pub(super) moved: u32,
    /// The slot was emptied because its next prompt is for other adapters.
    pub(super) readapted: bool,
    /// LoRA adapters were applied in this server at some time.
    pub(super) adapted: bool,
}

impl Begun {
    /// Compares the prompt with all that is cached before its first batch is written. `left`: what the
    /// slot held before tokens were removed to make room for the prompt. `buffers` says where a holder
    /// was when the engine chose the slot.
    pub(super) fn look(
        slot: SequenceId,
        left: Option<Vec<Token>>,
        run: &[Entry],
        ledger: &Ledger,
        buffers: impl Fn(CacheEntry) -> CacheEntry,
        prepared: Prepared,
        (moment, at): (Moment, u64),
    ) -> Self {
        let from = run.first().map_or(0, |entry| entry.position.max(0) as u32);
        let held = ledger.tokens_from(CacheEntry::Slot(slot), 0);
        let own = left.unwrap_or_else(|| held.clone());
        let mut known = held;
        known.truncate(from as usize);
        let gap = from as usize - known.len();
        let after_media = known.last().is_some_and(|&token| token < 0);
        let blind = ledger.may_hold_more(slot) && from > 0
            || gap > 0 && !after_media
            || known.iter().any(|&token| is_unseen(token));
        if gap > 0 && after_media {
            known.resize(from as usize, FILLER);
        }
        let places = || (from as Position..).zip(run);
        let plain = places().all(|(place, entry)| entry.position == place);
        if !blind && plain {
            known.extend(run.iter().map(|entry| entry.token));
        }
        let mut room = MOST_COPIED;
        let mut others = Vec::new();
        for holding in ledger.holdings(&known) {
            if holding.holds == CacheEntry::Slot(slot) || holding.common == 0 {
                continue;
            }
            let goes_on = holding.common as usize == known.len() && holding.tokens > holding.common;
            let length = (holding.tokens - holding.common) as usize;
            let copied = goes_on && length <= room;
            if copied {
                room -= length;
            }
            others.push(Other {
                holds: buffers(holding.holds),
                common: holding.common,
                tokens: holding.tokens,
                tail: if copied {
                    ledger.tokens_from(holding.holds, holding.common)
                } else {
                    Vec::new()
                },
                endless: goes_on && !copied,
                of_other_adapters: false,
            });
        }
        let bounded = ledger.is_bounded();
        Self {
            moment,
            at,
            from,
            own,
            others,
            blind,
            bounded,
            no_way_back: bounded || ledger.gave_up(slot),
            checkpoint: bounded && from > 0 && !ledger.reaches(slot, from),
            prepared,
            adapters: ledger.applied_adapters(),
        }
    }

    /// Notes which other slots work under other adapters. Only the batch tells under which adapters
    /// this slot works.
    pub(super) fn look_again(&mut self, slot: SequenceId, ledger: &Ledger) {
        if !self.prepared.adapted {
            return;
        }
        for other in &mut self.others {
            if let CacheEntry::Slot(id) = other.holds {
                other.of_other_adapters = ledger.blends_differ(slot, id);
            }
        }
    }

    /// The ranges of the prompt to which `--cache-reuse` would have moved tokens that the slot held
    /// further on, by the engine's rule (`update_slots`). None if the server runs with
    /// `--cache-reuse`: then it has moved them already.
    pub(super) fn movable(&self, prompt: &[Token], rules: &Rules) -> Vec<(u32, u32)> {
        let mut ranges = Vec::new();
        if rules.cache_reuse > 0 || self.bounded || self.own.iter().any(|&token| token < 0) {
            return ranges;
        }
        let start = common(&self.own, prompt);
        let (mut cached, mut place) = (start, start);
        // A bound on the comparisons: text that repeats itself could take quadratic time.
        let mut looks = MOST_COPIED;
        while cached < self.own.len() && place < prompt.len() && looks > 0 {
            let alike = common(&self.own[cached..], &prompt[place..]);
            looks = looks.saturating_sub(alike + 1);
            if alike >= MOVABLE {
                ranges.push((place as u32, (place + alike) as u32));
                cached += alike;
                place += alike;
            } else {
                cached += 1;
            }
        }
        ranges
    }
}

/// The shortest chunk, in tokens, that counts as movable if `--cache-reuse` does not say. Short under
/// test.
pub(super) const MOVABLE: usize = if cfg!(test) { 3 } else { 64 };

/// How many entries were evaluated for a prompt at each position. Rows of media can share a position.
#[derive(Debug, Default)]
struct Spans {
    spans: Vec<Span>,
    /// The spans before the batch that is being evaluated, in case it fails.
    before: Vec<Span>,
}

#[derive(Clone, Copy, Debug)]
struct Span {
    from: i64,
    positions: i64,
    /// Entries at each of the positions.
    entries: u64,
}

impl Spans {
    fn submitting(&mut self, run: &[Entry]) {
        for entry in run {
            let position = i64::from(entry.position);
            match self.spans.last_mut() {
                Some(last) if last.entries == 1 && position == last.from + last.positions => {
                    last.positions += 1;
                }
                Some(last) if last.positions == 1 && position == last.from => last.entries += 1,
                Some(last) if position == last.from + last.positions - 1 => {
                    last.positions -= 1;
                    self.push(position, 2);
                }
                _ => self.push(position, 1),
            }
        }
    }

    fn push(&mut self, from: i64, entries: u64) {
        self.spans.push(Span {
            from,
            positions: 1,
            entries,
        });
    }

    fn evaluated(&mut self, failed: bool) {
        if failed {
            self.spans.clone_from(&self.before)
        } else {
            self.before.clone_from(&self.spans)
        }
    }

    fn count(&self, from: i64, to: i64) -> u64 {
        let inside = |span: &Span| {
            let end = (span.from + span.positions).min(to);
            let positions = (end - span.from.max(from)).max(0);
            u64::try_from(positions).unwrap_or(0) * span.entries
        };
        self.spans.iter().map(inside).sum()
    }
}
