//! A prompt while it is evaluated.

use contextpilot_residency::Entry;

use crate::note::Stamp;

/// Counts what is submitted for a slot from the launch of a task on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Prompt {
    /// Evaluated, in entries.
    evaluated: u64,
    /// One past the last position that was evaluated.
    tokens: u64,
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
    end: u64,
    ends: bool,
}

/// What a prompt took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) tokens: u64,
    pub(crate) reused: u64,
    pub(crate) evaluated: u64,
}

impl Prompt {
    /// Entries of the slot are in the batch.
    pub(crate) fn submitted(&mut self, entries: &[Entry]) {
        let Some(last) = entries.last() else { return };
        let pending = &mut self.pending;
        pending.entries += entries.len() as u64;
        pending.outputs += entries.iter().filter(|entry| entry.output).count() as u64;
        pending.end = u64::try_from(i64::from(last.position) + 1).unwrap_or(0);
        pending.ends = last.output;
    }

    /// The batch has been evaluated, or has failed: then the server submits it again, in parts.
    /// Returns what the prompt took if that was the end of it.
    pub(crate) fn evaluated(&mut self, failed: bool, at: Stamp) -> Option<(Taken, Stamp)> {
        let Pending {
            entries,
            outputs,
            end,
            ends,
        } = std::mem::take(&mut self.pending);
        if failed || entries == 0 {
            return None;
        }
        self.evaluated += entries;
        self.tokens = end;
        self.at = at;
        self.every_output |= entries > 1 && outputs == entries;
        (ends && !self.every_output).then(|| (self.taken(), at))
    }

    /// Its request is over. Returns what it took, if it had come to an end that could not be
    /// told from a pause.
    pub(crate) fn over(&self) -> Option<(Taken, Stamp)> {
        self.every_output.then(|| (self.taken(), self.at))
    }

    /// Nothing of it was evaluated yet.
    pub(crate) fn is_untouched(&self) -> bool {
        self.evaluated == 0 && self.pending.entries == 0
    }

    fn taken(&self) -> Taken {
        Taken {
            tokens: self.tokens.max(self.evaluated),
            reused: self.tokens.saturating_sub(self.evaluated),
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
        prompt.submitted(&entries(30..60, |_| false));
        assert_eq!(prompt.evaluated(false, AT), None);
        // Failed, and tried again in halves.
        prompt.submitted(&entries(60..80, |p| p == 79));
        assert_eq!(prompt.evaluated(true, AT), None);
        prompt.submitted(&entries(60..70, |_| false));
        assert_eq!(prompt.evaluated(false, AT), None);
        prompt.submitted(&entries(70..80, |p| p == 79));
        let (taken, at) = prompt.evaluated(false, AT).unwrap();
        assert_eq!(at, AT);
        assert_eq!((taken.tokens, taken.reused, taken.evaluated), (80, 30, 50));
        assert_eq!(prompt.over(), None);
    }

    #[test]
    fn a_full_hit_is_one_token() {
        let mut prompt = Prompt::default();
        assert!(prompt.is_untouched());
        prompt.submitted(&entries(79..80, |_| true));
        let (taken, _) = prompt.evaluated(false, AT).unwrap();
        assert_eq!((taken.reused, taken.evaluated), (79, 1));
    }

    #[test]
    fn an_embedding_is_over_when_its_request_is() {
        let mut prompt = Prompt::default();
        for part in [0..32, 32..40] {
            prompt.submitted(&entries(part, |_| true));
            assert_eq!(prompt.evaluated(false, AT), None);
        }
        let (taken, _) = prompt.over().unwrap();
        assert_eq!((taken.reused, taken.evaluated), (0, 40));
    }
}
