//! The checkpoints of a slot or host entry, and what the server could reuse with them.

use crate::ids::BufferId;
use crate::rewinding::{RewindGeneration, Rewinding};

/// How many tokens of a prompt the engine must reuse for the prompt to count as cached in a bounded context: nine
/// tenths, rounded up, but no more than all before the last token, which is always evaluated again.
pub(super) fn enough(prompt: u32) -> u32 {
    let tenths = prompt - prompt / 10;
    tenths.min(prompt - 1).max(1)
}

/// How far the layers of a context look back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    /// In tokens; 0 for a recurrent model.
    pub(super) tokens: u32,
    /// All positions are kept (`--swa-full`), but a saved state has only the window at its end.
    pub(super) is_whole: bool,
}

impl Window {
    pub(super) fn of_bounded(tokens: u32) -> Self {
        Self {
            tokens,
            is_whole: false,
        }
    }

    pub(super) fn whole(tokens: u32) -> Self {
        Self {
            tokens,
            is_whole: true,
        }
    }
}

/// How far the layers of a context look back, and by which rules the server goes back in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) window: Window,
    pub(super) rules: Rewinding,
}

impl Bounds {
    /// How far the server takes the layers to look back: with `--swa-full`, not at all.
    fn looks_back(self) -> u32 {
        if self.window.is_whole {
            0
        } else {
            self.window.tokens
        }
    }

    /// For a sequence to go on behind `tokens` tokens, the first position in memory must be below this
    /// one. In a sliding window, servers before 0.7.0 ask for two positions more than the model looks at.
    pub(super) fn needed(self, tokens: u32) -> i64 {
        let window = self.looks_back();
        let is_exact = self.rules.generation == RewindGeneration::Late2026 && window > 0;
        let spare = if is_exact { 1 } else { -1 };
        (i64::from(tokens) - i64::from(window) + spare).max(0)
    }

    /// The first position in a saved state of a sequence that holds `held` tokens from position `first`
    /// on: the server does not save what has left the window.
    pub(super) fn first_saved(self, first: i64, held: u32) -> i64 {
        match self.rules.generation {
            RewindGeneration::Mid2026 | RewindGeneration::Late2026 if self.window.tokens > 0 => {
                first.max(i64::from(held) - i64::from(self.window.tokens))
            }
            _ => first,
        }
    }
}

/// A checkpoint: state of a slot that the server has saved.
#[derive(Clone, Debug)]
pub(super) struct Checkpoint {
    /// The buffer that holds it; `None` for a copy that came with another sequence or a host entry.
    /// The freeing of such a copy cannot be seen, so the ledger drops it by the server's rules
    /// ([`Reach::cut`], [`Reach::make_room`]).
    pub(super) buffer: Option<BufferId>,
    /// Its buffer was freed. It stays in its place until the next checkpoint is made: the server's rule
    /// for that depends on what was there before.
    pub(super) freed: bool,
    /// It was made for the task that the slot works on now.
    pub(super) current: bool,
    /// How many tokens the sequence held when the checkpoint was made.
    pub(super) tokens: u32,
    /// The first and last position of the sequence at that time.
    pub(super) first: i64,
    pub(super) last: i64,
}

impl Checkpoint {
    /// How many tokens need not be evaluated after the server has gone back to this checkpoint.
    fn goes_on_behind(&self) -> u32 {
        let position = (self.first + 1).max(self.last);
        u32::try_from(position).unwrap_or(0).min(self.tokens)
    }
}

/// The positions from which a sequence can go on.
#[derive(Clone, Debug, Default)]
pub(super) struct Reach {
    /// The first position in memory.
    pub(super) first: i64,
    /// The checkpoints, in the order in which they were made.
    pub(super) checkpoints: Vec<Checkpoint>,
    /// How many tokens at the beginning are those that were there when the marks of this slot were checked last.
    pub(super) unchanged: u32,
    /// Of whole windows: with the last removal the server gave up what the slot held, since it could not go back.
    pub(super) given_up: bool,
}

impl Reach {
    /// With nothing before this position.
    pub(super) fn from(first: i64) -> Self {
        Self {
            first,
            ..Self::default()
        }
    }

    /// How many of the first `prompt` tokens of a sequence the engine would reuse for a prompt that begins with them,
    /// if the first position in memory must be below `needed`.
    pub(super) fn reuse_of(&self, prompt: u32, needed: i64) -> u32 {
        if self.first < needed {
            return prompt;
        }
        let tokens = i64::from(prompt);
        let back = self.there().rev().find(|checkpoint| {
            checkpoint.last <= tokens && (checkpoint.first < needed || checkpoint.first == 0)
        });
        back.map_or(0, |checkpoint| checkpoint.goes_on_behind().min(prompt))
    }

    /// Whether the engine would reuse enough of a prompt of `prompt` tokens, from a sequence that begins with `common`
    /// of them. The whole of it counts as one token less, since the last one is evaluated again.
    pub(super) fn serves(&self, common: u32, prompt: u32, bounds: Bounds) -> bool {
        let needed = bounds.needed(common + u32::from(common < prompt));
        self.reuse_of(common, needed) >= enough(prompt)
    }

    /// The last point, in tokens, from which the server could go on with another prompt, in a
    /// sequence that holds `held` tokens. Tokens that were generated since the last checkpoint do
    /// not count, although a prompt that begins with all of them could go on behind them.
    pub(super) fn furthest(&self, held: u32, bounds: Bounds) -> u32 {
        if bounds.window.is_whole || self.first == 0 && bounds.needed(held) > 0 {
            return held;
        }
        let back = self.there().map(Checkpoint::goes_on_behind);
        back.filter(|&position| position <= held).max().unwrap_or(0)
    }

    /// The reach of a copy of the sequence.
    pub(super) fn copy(&self) -> Self {
        let copies = self.there().map(|checkpoint| Checkpoint {
            buffer: None,
            current: false,
            ..checkpoint.clone()
        });
        Self {
            first: self.first,
            checkpoints: copies.collect(),
            unchanged: 0,
            given_up: false,
        }
    }

    /// Of whole windows: positions `[from, to)` were removed, of `held`.
    pub(super) fn remove(&mut self, (from, to): (i64, i64), held: i64) {
        self.given_up = false;
        if from > self.first {
            return;
        }
        if to >= held {
            // What is evaluated next begins there.
            self.given_up = self.first > 0;
            self.first = from;
        } else {
            self.first = self.first.max(to);
        }
    }

    /// Of whole windows: positions `[from, to)` were moved.
    pub(super) fn shift(&mut self, (from, to): (i64, i64), delta: i64) {
        if (from..to).contains(&self.first) {
            self.first = (self.first + delta).max(0);
        }
    }

    fn there(&self) -> impl DoubleEndedIterator<Item = &Checkpoint> {
        self.checkpoints
            .iter()
            .filter(|checkpoint| !checkpoint.freed)
    }

    /// The sequence was cut at a position. The server drops the checkpoints beyond what it reuses. If a
    /// whole prompt is cached, that is one token more than it keeps, so a checkpoint may end one
    /// position behind the cut. It keeps none of an emptied sequence.
    pub(super) fn cut(&mut self, from: i64) {
        self.unchanged = self.unchanged.min(u32::try_from(from).unwrap_or(0));
        let goes_on = |checkpoint: &Checkpoint| from > 0 && checkpoint.last <= from + 1;
        let stays = |checkpoint: &Checkpoint| checkpoint.buffer.is_some() || goes_on(checkpoint);
        self.checkpoints
            .retain(|checkpoint| !checkpoint.freed && stays(checkpoint));
    }

    /// The server is about to make a checkpoint behind `tokens` tokens, and may have erased others for
    /// it. Drops the copies that it has erased by its rules. Where these rules do not say of the buffers
    /// that are seen what has become of them, all copies are dropped: the server has other rules.
    pub(super) fn make_room(&mut self, tokens: u32, rules: Rewinding) {
        // Those beyond were erased before, when the server went back.
        self.checkpoints
            .retain(|checkpoint| !checkpoint.freed || checkpoint.last < i64::from(tokens));
        let stays = self.staying(tokens, rules);
        let pairs = || self.checkpoints.iter().zip(&stays);
        let is_copy = |checkpoint: &Checkpoint| checkpoint.buffer.is_none() && !checkpoint.freed;
        let as_seen =
            pairs().all(|(checkpoint, &stays)| is_copy(checkpoint) || stays != checkpoint.freed);
        let mut stays = stays.into_iter();
        self.checkpoints.retain(|checkpoint| {
            let stays = stays.next().unwrap_or(false);
            if is_copy(checkpoint) {
                stays && as_seen
            } else {
                !checkpoint.freed
            }
        });
    }

    /// Which checkpoints the server keeps when it makes another (`create_checkpoint`).
    fn staying(&self, tokens: u32, rules: Rewinding) -> Vec<bool> {
        let most = rules.checkpoints as usize;
        let all = &self.checkpoints;
        let mut stays = vec![true; all.len()];
        let mut count = all.len();
        let mut last: Option<u32> = None;
        let thins_out = rules.generation != RewindGeneration::Early2026;
        for (checkpoint, stays) in all.iter().zip(&mut stays).filter(|_| thins_out) {
            // While there is no room for one more, those of other tasks go that are too close to the one
            // before.
            if count + 1 < most {
                break;
            }
            let close =
                last.is_some_and(|last| checkpoint.tokens <= last.saturating_add(rules.min_step));
            if close && !checkpoint.current {
                *stays = false;
                count -= 1;
            } else {
                last = Some(checkpoint.tokens);
            }
        }
        for stays in stays.iter_mut().filter(|stays| **stays) {
            // Then the oldest go.
            if count < most.max(1) {
                break;
            }
            *stays = false;
            count -= 1;
        }
        for (checkpoint, stays) in all.iter().zip(&mut stays) {
            // The new one replaces one at the same place.
            *stays &= !thins_out || checkpoint.tokens != tokens;
        }
        stays
    }
}
