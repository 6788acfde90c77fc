//! Counts the tokens of a prompt while it is evaluated.

use crate::entries::Entry;
use crate::fact::TokenCounts;

/// A prompt: counts the batch entries of a slot from the launch of a task on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Prompt {
    /// Tokens that the slot had before the first entry.
    reused: u64,
    /// Entries that were evaluated.
    evaluated: u64,
    /// Entries that came from the prefix store instead.
    loaded: u64,
    /// The position of the last entry; `None` before the first.
    last: Option<i64>,
    /// All entries ask for an output, as those of embeddings do. So outputs do not tell where the prompt
    /// ends: it ends when its request is over.
    every_output: bool,
    pending: Pending,
}

/// The part of a prompt in the batch that is being evaluated.
#[derive(Clone, Copy, Debug, Default)]
struct Pending {
    entries: u64,
    /// How many of them, and of those before, turned out to come from the prefix store.
    loaded: u64,
    outputs: u64,
    ends: bool,
    /// The state before the batch, which is restored if the batch fails: the last position, and the
    /// number of steps in the surplus.
    last: Option<i64>,
    steps: usize,
}

/// What a batch did to a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Nothing: the batch failed, or had no entries of it.
    None,
    /// The prompt goes on.
    GoesOn,
    /// This was its end.
    Ended(TokenCounts),
}

/// How many more tokens than positions a slot has. That differs only after images whose rows share
/// positions. Each entry is a position, and the surplus from there on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Surplus(Vec<(i64, i64)>);

impl Surplus {
    /// Whether the slot has as many tokens as positions.
    pub(crate) fn is_none(&self) -> bool {
        self.0.is_empty()
    }

    fn now(&self) -> i64 {
        self.0.last().map_or(0, |&(_, surplus)| surplus)
    }

    /// Forgets the steps after a position: what follows is overwritten.
    fn cut(&mut self, position: i64) {
        while self.0.last().is_some_and(|&(at, _)| at > position) {
            self.0.pop();
        }
    }

    fn note(&mut self, position: i64, tokens: i64) {
        let surplus = tokens - position;
        if surplus != self.now() {
            self.0.push((position, surplus));
        }
    }
}

impl Prompt {
    /// Call with the slot's entries in a batch that is submitted.
    pub(crate) fn submitted(&mut self, entries: &[Entry], surplus: &mut Surplus) {
        let (Some(first), Some(last)) = (entries.first(), entries.last()) else {
            return;
        };
        if self.pending.entries == 0 {
            self.pending.last = self.last;
            if self.last.is_none() {
                let position = i64::from(first.position);
                surplus.cut(position);
                self.reused = u64::try_from(position + surplus.now()).unwrap_or(0);
            }
            self.pending.steps = surplus.0.len();
        }
        for entry in entries {
            let position = i64::from(entry.position);
            if self.last.is_none_or(|last| position > last) {
                let tokens = self.reused + self.loaded + self.evaluated + self.pending.entries;
                surplus.note(position, i64::try_from(tokens).unwrap_or(i64::MAX));
            }
            self.last = Some(position);
            self.pending.entries += 1;
            self.pending.outputs += u64::from(entry.output);
        }
        self.pending.ends = last.output;
    }

    /// Call when so many entries of the batch, or of earlier ones, came from the prefix store.
    pub(crate) fn loaded(&mut self, tokens: u64) {
        self.pending.loaded += tokens;
    }

    /// Call when the batch has been evaluated or has failed. After a failure the server submits it again
    /// in parts.
    pub(crate) fn evaluated(&mut self, failed: bool, surplus: &mut Surplus) -> Progress {
        let pending = std::mem::take(&mut self.pending);
        if pending.entries == 0 || failed {
            if pending.entries > 0 {
                self.last = pending.last;
                surplus.0.truncate(pending.steps);
            }
            self.pending.loaded = pending.loaded;
            return Progress::None;
        }
        let entries = self.evaluated + pending.entries;
        let loaded = pending.loaded.min(entries);
        self.loaded += loaded;
        self.evaluated = entries - loaded;
        self.every_output |= pending.entries > 1 && pending.outputs == pending.entries;
        if pending.ends && !self.every_output {
            Progress::Ended(self.so_far())
        } else {
            Progress::GoesOn
        }
    }

    /// Call when its request is over. Returns the counts if the prompt is one whose end its outputs do not
    /// tell.
    pub(crate) fn over(&self) -> Option<TokenCounts> {
        self.every_output.then(|| self.so_far())
    }

    /// The counts up to now.
    pub(crate) fn so_far(&self) -> TokenCounts {
        TokenCounts {
            tokens: self.reused + self.loaded + self.evaluated,
            reused: self.reused + self.loaded,
            evaluated: self.evaluated,
        }
    }

    /// Its tokens in the batch that is being evaluated.
    pub(crate) fn in_batch(&self) -> u64 {
        let pending = &self.pending;
        pending.entries.saturating_sub(pending.loaded)
    }

    /// Whether nothing of it was evaluated yet, and nothing is being evaluated.
    pub(crate) fn is_untouched(&self) -> bool {
        self.evaluated + self.loaded == 0 && self.pending.entries == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(positions: std::ops::Range<i32>, output_of: impl Fn(i32) -> bool) -> Vec<Entry> {
        positions
            .map(|position| Entry {
                sequence: 0,
                position,
                token: 1,
                output: output_of(position),
            })
            .collect()
    }

    fn ended(progress: Progress) -> TokenCounts {
        match progress {
            Progress::Ended(counts) => counts,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn tokens_before_the_first_entry_are_reused_and_failed_batches_not_counted() {
        let mut prompt = Prompt::default();
        let surplus = &mut Surplus::default();
        prompt.submitted(&entries(30..60, |_| false), surplus);
        assert_eq!(prompt.evaluated(false, surplus), Progress::GoesOn);
        // The batch fails, and comes again in halves.
        prompt.submitted(&entries(60..80, |p| p == 79), surplus);
        assert_eq!(prompt.evaluated(true, surplus), Progress::None);
        prompt.submitted(&entries(60..70, |_| false), surplus);
        assert_eq!(prompt.evaluated(false, surplus), Progress::GoesOn);
        prompt.submitted(&entries(70..80, |p| p == 79), surplus);
        let taken = ended(prompt.evaluated(false, surplus));
        assert!(surplus.0.is_empty());
        assert_eq!((taken.tokens, taken.reused, taken.evaluated), (80, 30, 50));
        assert_eq!(prompt.over(), None);
    }

    /// The rows of an image share a position. None of them is there if the batch fails.
    #[test]
    fn a_failed_batch_leaves_no_trace_of_its_image() {
        let (mut prompt, mut surplus) = (Prompt::default(), Surplus::default());
        let surplus = &mut surplus;
        let image = [entries(0..10, |_| false), entries(9..10, |_| false)].concat();
        let behind = entries(10..20, |_| false);
        prompt.submitted(&[image, behind].concat(), surplus);
        assert!(!surplus.is_none());
        assert_eq!(prompt.evaluated(true, surplus), Progress::None);
        assert!(surplus.is_none());
        assert_eq!(prompt.last, None);
    }

    #[test]
    fn what_the_prefix_store_loads_counts_as_reused() {
        let (mut prompt, mut surplus) = (Prompt::default(), Surplus::default());
        let surplus = &mut surplus;
        prompt.submitted(&entries(30..50, |_| false), surplus);
        prompt.loaded(20);
        assert_eq!(prompt.evaluated(false, surplus), Progress::GoesOn);
        assert!(!prompt.is_untouched());
        prompt.submitted(&entries(50..80, |p| p == 79), surplus);
        prompt.loaded(10);
        let taken = ended(prompt.evaluated(false, surplus));
        assert_eq!((taken.tokens, taken.reused, taken.evaluated), (80, 60, 20));
    }

    /// Of models whose cache cannot go back, that is found out later.
    #[test]
    fn what_was_loaded_may_be_known_some_batches_later() {
        let (mut prompt, mut surplus) = (Prompt::default(), Surplus::default());
        let surplus = &mut surplus;
        prompt.submitted(&entries(0..50, |_| false), surplus);
        assert_eq!(prompt.evaluated(false, surplus), Progress::GoesOn);
        prompt.loaded(40);
        // A batch of other slots.
        assert_eq!(prompt.evaluated(false, surplus), Progress::None);
        prompt.submitted(&entries(50..80, |p| p == 79), surplus);
        prompt.loaded(20);
        let taken = ended(prompt.evaluated(false, surplus));
        assert_eq!((taken.tokens, taken.reused, taken.evaluated), (80, 60, 20));
    }

    #[test]
    fn of_a_prompt_that_is_wholly_cached_one_token_is_evaluated() {
        let mut prompt = Prompt::default();
        assert!(prompt.is_untouched());
        let surplus = &mut Surplus::default();
        prompt.submitted(&entries(79..80, |_| true), surplus);
        let taken = ended(prompt.evaluated(false, surplus));
        assert_eq!((taken.reused, taken.evaluated), (79, 1));
    }

    #[test]
    fn the_prompt_of_an_embedding_ends_with_its_request() {
        let mut prompt = Prompt::default();
        let surplus = &mut Surplus::default();
        for part in [0..32, 32..40] {
            prompt.submitted(&entries(part, |_| true), surplus);
            assert_eq!(prompt.evaluated(false, surplus), Progress::GoesOn);
        }
        let taken = prompt.over().unwrap();
        assert_eq!((taken.reused, taken.evaluated), (0, 40));
    }

    /// Four rows of an image share the position 10, and the text after it begins at 12.
    #[test]
    fn rows_of_an_image_that_share_a_position_are_counted_as_tokens() {
        let surplus = &mut Surplus::default();
        let mut run = |from: i32, failed: bool| {
            let mut prompt = Prompt::default();
            let mut image = entries(10..11, |_| false).repeat(4);
            image.retain(|entry| entry.position >= from);
            for part in [
                entries(from.min(10)..10, |_| false),
                image,
                entries(from.max(12)..20, |p| p == 19),
            ] {
                if failed {
                    prompt.submitted(&part, surplus);
                    assert_eq!(prompt.evaluated(true, surplus), Progress::None);
                }
                prompt.submitted(&part, surplus);
                if let Progress::Ended(taken) = prompt.evaluated(false, surplus) {
                    return (taken.reused, taken.evaluated);
                }
            }
            panic!("the prompt has an end");
        };
        assert_eq!(run(0, false), (0, 22));
        // Again from the last token on, from after the image, from its beginning, from before it, and from
        // within the text after it.
        assert_eq!(run(19, false), (21, 1));
        assert_eq!(run(12, true), (14, 8));
        assert_eq!(run(10, false), (10, 12));
        assert_eq!(run(5, true), (5, 17));
        assert_eq!(run(15, false), (17, 5));
    }
}
