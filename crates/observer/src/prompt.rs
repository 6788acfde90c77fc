//! A prompt while it is evaluated.

use contextpilot_residency::Entry;

use crate::note::Stamp;

/// Counts what is submitted for a slot from the launch of a task on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Prompt {
    /// Tokens that the slot had before the first entry.
    reused: u64,
    /// Evaluated, in entries.
    evaluated: u64,
    /// Position of the last entry; `None` before the first.
    last: Option<i64>,
    /// Outputs of all tokens are asked for, as embedding tasks do: it may go on in the next
    /// batch, and is over when its request is.
    every_output: bool,
    /// When its last part was evaluated.
    at: Stamp,
    pending: Pending,
}

/// Of the batch that is being evaluated.
#[derive(Clone, Copy, Debug, Default)]
struct Pending {
    entries: u64,
    outputs: u64,
    ends: bool,
    /// What was before it, should it fail.
    last: Option<i64>,
    steps: usize,
}

/// What a prompt took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) tokens: u64,
    pub(crate) reused: u64,
    pub(crate) evaluated: u64,
}

/// How many tokens a slot has at a position. As many as the position says, but for images whose
/// rows share positions: where that begins to differ, by how much.
#[derive(Clone, Debug, Default)]
pub(crate) struct Surplus(Vec<(i64, i64)>);

impl Surplus {
    fn now(&self) -> i64 {
        self.0.last().map_or(0, |&(_, surplus)| surplus)
    }

    /// What is written from here on takes the place of what was.
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
    /// Entries of the slot are in the batch.
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
                let tokens = self.reused + self.evaluated + self.pending.entries;
                surplus.note(position, i64::try_from(tokens).unwrap_or(i64::MAX));
            }
            self.last = Some(position);
            self.pending.entries += 1;
            self.pending.outputs += u64::from(entry.output);
        }
        self.pending.ends = last.output;
    }

    /// The batch has been evaluated, or has failed: then the server submits it again, in parts.
    /// Returns what the prompt took if that was the end of it.
    pub(crate) fn evaluated(
        &mut self,
        failed: bool,
        at: Stamp,
        surplus: &mut Surplus,
    ) -> Option<(Taken, Stamp)> {
        let pending = std::mem::take(&mut self.pending);
        if pending.entries == 0 {
            return None;
        }
        if failed {
            self.last = pending.last;
            surplus.0.truncate(pending.steps);
            return None;
        }
        self.evaluated += pending.entries;
        self.at = at;
        self.every_output |= pending.entries > 1 && pending.outputs == pending.entries;
        (pending.ends && !self.every_output).then(|| (self.taken(), at))
    }

    /// Its request is over. Returns what it took, if it had come to an end that could not be
    /// told from a pause.
    pub(crate) fn over(&self) -> Option<(Taken, Stamp)> {
        self.every_output.then(|| (self.taken(), self.at))
    }

    /// What it took until now.
    pub(crate) fn so_far(&self) -> (Taken, Stamp) {
        (self.taken(), self.at)
    }

    /// Nothing of it was evaluated yet.
    pub(crate) fn is_untouched(&self) -> bool {
        self.evaluated == 0 && self.pending.entries == 0
    }

    fn taken(&self) -> Taken {
        Taken {
            tokens: self.reused + self.evaluated,
            reused: self.reused,
            evaluated: self.evaluated,
        }
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

    const AT: Stamp = Stamp(9);

    #[test]
    fn what_was_not_submitted_was_reused() {
        let mut prompt = Prompt::default();
        let surplus = &mut Surplus::default();
        prompt.submitted(&entries(30..60, |_| false), surplus);
        assert_eq!(prompt.evaluated(false, AT, surplus), None);
        // Failed, and tried again in halves.
        prompt.submitted(&entries(60..80, |p| p == 79), surplus);
        assert_eq!(prompt.evaluated(true, AT, surplus), None);
        prompt.submitted(&entries(60..70, |_| false), surplus);
        assert_eq!(prompt.evaluated(false, AT, surplus), None);
        prompt.submitted(&entries(70..80, |p| p == 79), surplus);
        let (taken, at) = prompt.evaluated(false, AT, surplus).unwrap();
        assert!(surplus.0.is_empty());
        assert_eq!(at, AT);
        assert_eq!((taken.tokens, taken.reused, taken.evaluated), (80, 30, 50));
        assert_eq!(prompt.over(), None);
    }

    #[test]
    fn a_full_hit_is_one_token() {
        let mut prompt = Prompt::default();
        assert!(prompt.is_untouched());
        let surplus = &mut Surplus::default();
        prompt.submitted(&entries(79..80, |_| true), surplus);
        let (taken, _) = prompt.evaluated(false, AT, surplus).unwrap();
        assert_eq!((taken.reused, taken.evaluated), (79, 1));
    }

    #[test]
    fn an_embedding_is_over_when_its_request_is() {
        let mut prompt = Prompt::default();
        let surplus = &mut Surplus::default();
        for part in [0..32, 32..40] {
            prompt.submitted(&entries(part, |_| true), surplus);
            assert_eq!(prompt.evaluated(false, AT, surplus), None);
        }
        let (taken, _) = prompt.over().unwrap();
        assert_eq!((taken.reused, taken.evaluated), (0, 40));
    }

    /// Rows of an image share a position, and what follows stands some positions further on.
    #[test]
    fn an_image_has_more_tokens_than_positions() {
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
                    assert_eq!(prompt.evaluated(true, AT, surplus), None);
                }
                prompt.submitted(&part, surplus);
                if let Some((taken, _)) = prompt.evaluated(false, AT, surplus) {
                    return (taken.reused, taken.evaluated);
                }
            }
            panic!("the prompt has an end");
        };
        assert_eq!(run(0, false), (0, 22));
        // From the last token on, from after the image, from before it, from its beginning.
        assert_eq!(run(19, false), (21, 1));
        assert_eq!(run(12, true), (14, 8));
        assert_eq!(run(10, false), (10, 12));
        assert_eq!(run(5, true), (5, 17));
        assert_eq!(run(15, false), (17, 5));
    }
}
