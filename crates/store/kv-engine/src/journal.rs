//! What is needed to put a context right, whatever became of its record.

use contextpilot_kv_store::{Conditions, Run};

/// Noted outside the record of a context, by code that cannot panic: an error may come anywhere in the record's code.
///
/// A step that changes the engine is noted before it is taken (`uncertain`), and again when the record knows of it
/// (`settled`). [`repair`](crate::repair) reads what is left.
#[derive(Debug, Default)]
pub struct Journal {
    /// Sequences of which the engine may hold something else than the host believes.
    pub(crate) uncertain: Vec<Uncertain>,
    /// Tokens that were left out, and could not be noted in the record as pending.
    pub(crate) pending: Vec<Pending>,
    /// Sequences that the host has changed while the record did not hear of it. Negative: all.
    pub(crate) unheard: Vec<i32>,
    /// The host has removed all sequences but this one, while the record did not hear of it.
    pub(crate) kept: Option<i32>,
    /// Sequences that could not be put right.
    pub(crate) lost: Vec<i32>,
    /// What the engine held of sequences before a state was loaded, where that cannot be evaluated again. Until it holds no more
    /// than the host believes.
    pub(crate) aside: Vec<Aside>,
    /// The entries that were left out of the last evaluation, in order. The indexes of outputs are those of that evaluation, so
    /// they are kept until the next one, even if the library stops.
    left_out: Vec<u32>,
    /// Of which the host was told how large they are: it asks for them next, and must get as much, whatever became of the
    /// library.
    announced: Vec<Checkpoint>,
}

/// What a host's checkpoint of a sequence gets of which tokens are pending.
#[derive(Debug)]
pub struct Checkpoint {
    /// The sequence.
    pub sequence: i32,
    /// What the host believes in.
    pub tokens: Vec<i32>,
    /// Under what that was evaluated.
    pub conditions: Conditions,
    /// What the engine would write.
    pub bytes: Vec<u8>,
}

/// A state of a sequence with an image or a sound in it, whose rows are gone.
#[derive(Debug)]
pub(crate) struct Aside {
    pub(crate) sequence: i32,
    /// Of so many tokens, in all of which the host believes.
    pub(crate) tokens: usize,
    pub(crate) state: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Uncertain {
    pub(crate) sequence: i32,
    /// The position up to which the host believes in it.
    pub(crate) believed: usize,
    /// Up to which the engine may hold it.
    pub(crate) held: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pending {
    pub(crate) sequence: i32,
    pub(crate) from: usize,
    pub(crate) tokens: Vec<i32>,
}

/// What the host did to the sequences of a context. The store does not repeat it: the engine has done it already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A part of a sequence was removed.
    Shortened(i32),
    /// A whole sequence was removed, or replaced by a state; negative: all of them.
    Removed(i32),
    /// The engine holds something in a sequence that is what the host wants there, though not what was evaluated: it was
    /// copied there, or moved. Negative: in all of them.
    Replaced(i32),
    /// All sequences but one were removed.
    Kept(i32),
}

/// A number of tokens that stands for anything: see [`Journal::uncertain`].
pub(crate) const ANYTHING: usize = usize::MAX;

impl Journal {
    /// Nothing is noted.
    pub const EMPTY: Self = Self {
        uncertain: Vec::new(),
        pending: Vec::new(),
        unheard: Vec::new(),
        kept: None,
        lost: Vec::new(),
        aside: Vec::new(),
        left_out: Vec::new(),
        announced: Vec::new(),
    };

    /// The engine may soon hold a sequence up to the position `held`, or [`ANYTHING`]; the host believes in it up to `believed`.
    /// Call this before the engine is changed. If `held` is not more, the two agree from now on.
    pub(crate) fn uncertain(&mut self, sequence: i32, believed: usize, held: usize) {
        self.settled(sequence);
        if held > believed {
            self.uncertain.push(Uncertain {
                sequence,
                believed,
                held,
            });
        }
    }

    /// The engine holds what the host believes, and the record knows how much of it; negative: of all sequences.
    pub(crate) fn settled(&mut self, sequence: i32) {
        self.uncertain
            .retain(|known| sequence >= 0 && known.sequence != sequence);
    }

    /// The host's batch was evaluated, and it believes in this sequence up to this position now.
    pub(crate) fn evaluated(&mut self, sequence: i32, end: usize) {
        self.withdraw(sequence);
        for known in &mut self.uncertain {
            if known.sequence == sequence {
                known.believed = end;
            }
        }
        self.uncertain.retain(|known| known.held > known.believed);
    }

    /// The host has changed sequences. `heard`: the record knows of it.
    pub(crate) fn changed(&mut self, change: Change, heard: bool) {
        match change {
            Change::Shortened(_) => {}
            Change::Removed(sequence) => {
                self.withdraw(sequence);
                self.settled(sequence);
                self.lost.retain(|lost| sequence >= 0 && *lost != sequence);
            }
            Change::Replaced(sequence) => self.settled(sequence),
            Change::Kept(sequence) => {
                self.uncertain.retain(|known| known.sequence == sequence);
                self.lost.retain(|lost| *lost == sequence);
            }
        }
        match change {
            _ if heard => {}
            Change::Kept(sequence) => self.kept = Some(sequence),
            Change::Shortened(sequence)
            | Change::Removed(sequence)
            | Change::Replaced(sequence) => self.unheard.push(sequence),
        }
    }

    /// What the engine holds is about to be replaced.
    pub(crate) fn put_aside(&mut self, aside: Aside) {
        self.forget_aside(aside.sequence);
        self.aside.push(aside);
    }

    /// What was put aside of a sequence is of no use any more; negative: of all.
    pub(crate) fn forget_aside(&mut self, sequence: i32) {
        self.aside
            .retain(|aside| sequence >= 0 && aside.sequence != sequence);
    }

    /// What was put aside of a sequence.
    pub(crate) fn aside_of(&self, sequence: i32) -> Option<&Aside> {
        self.aside.iter().find(|aside| aside.sequence == sequence)
    }

    /// What was put aside of a sequence; it is not any more.
    pub(crate) fn take_aside(&mut self, sequence: i32) -> Option<Aside> {
        let mut all = self.aside.iter();
        let place = all.position(|aside| aside.sequence == sequence)?;
        Some(self.aside.swap_remove(place))
    }

    /// A run was left out, and the record could not note that it is pending.
    pub(crate) fn left_pending(&mut self, run: &Run) {
        self.pending.push(Pending {
            sequence: run.sequence,
            from: usize::try_from(run.first).unwrap_or(0),
            tokens: run.tokens.clone(),
        });
    }

    /// The host hears how large this checkpoint of a sequence is; `None`: it hears of the engine's.
    pub fn announce(&mut self, sequence: i32, checkpoint: Option<Checkpoint>) {
        self.withdraw(sequence);
        self.announced.extend(checkpoint);
    }

    /// Whether a checkpoint of the sequence is announced.
    pub fn is_announced(&self, sequence: i32) -> bool {
        self.announced
            .iter()
            .any(|checkpoint| checkpoint.sequence == sequence)
    }

    /// The checkpoint of the sequence that was announced. It is not announced any more.
    pub fn take_announced(&mut self, sequence: i32) -> Option<Checkpoint> {
        let mut all = self.announced.iter();
        let place = all.position(|checkpoint| checkpoint.sequence == sequence)?;
        Some(self.announced.swap_remove(place))
    }

    fn withdraw(&mut self, sequence: i32) {
        self.announced
            .retain(|checkpoint| sequence >= 0 && checkpoint.sequence != sequence);
    }

    /// These sequences could not be put right.
    pub fn set_lost(&mut self, lost: Vec<i32>) {
        self.lost = lost;
    }

    /// Whether the engine may hold something else of any sequence than the host believes.
    pub(crate) fn is_any_uncertain(&self) -> bool {
        !self.uncertain.is_empty()
    }

    /// Whether a sequence could not be put right, and was not removed since.
    pub fn is_any_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    /// The entries that were left out of the last evaluation, in order.
    pub fn left_out(&self) -> &[u32] {
        &self.left_out
    }

    /// These entries are left out of the evaluation that follows.
    pub fn set_left_out(&mut self, left_out: Vec<u32>) {
        self.left_out = left_out;
    }

    /// What is to be put right by [`repair`](crate::repair()). What the host may still ask for stays.
    pub fn take_repairable(&mut self) -> Self {
        let left_out = std::mem::take(&mut self.left_out);
        std::mem::replace(
            self,
            Self {
                left_out,
                ..Self::EMPTY
            },
        )
    }

    /// Whether the host has changed a sequence while the record did not hear of it.
    pub(crate) fn is_unheard(&self, sequence: i32) -> bool {
        let mut unheard = self.unheard.iter();
        unheard.any(|id| *id < 0 || *id == sequence)
            || self.kept.is_some_and(|kept| kept != sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(journal: &Journal) -> Vec<(i32, usize, usize)> {
        let all = journal.uncertain.iter();
        all.map(|known| (known.sequence, known.believed, known.held))
            .collect()
    }

    #[test]
    fn a_sequence_is_uncertain_until_the_host_believes_in_all_that_the_engine_holds() {
        let mut journal = Journal::EMPTY;
        journal.uncertain(1, 10, 50);
        journal.uncertain(2, 0, 9);
        journal.evaluated(1, 30);
        assert_eq!(left(&journal), [(1, 30, 50), (2, 0, 9)]);
        journal.evaluated(1, 50);
        assert_eq!(left(&journal), [(2, 0, 9)]);
        journal.uncertain(2, 9, 9);
        assert_eq!(left(&journal), []);
    }

    #[test]
    fn an_announced_checkpoint_is_kept_until_the_sequence_is_evaluated_or_removed() {
        let left = |work: fn(&mut Journal)| {
            let mut journal = Journal::EMPTY;
            for sequence in [1, 2] {
                let checkpoint = Checkpoint {
                    sequence,
                    tokens: vec![7],
                    conditions: Conditions::default(),
                    bytes: vec![3],
                };
                journal.announce(sequence, Some(checkpoint));
            }
            work(&mut journal);
            let left = journal
                .announced
                .iter()
                .map(|checkpoint| checkpoint.sequence);
            left.collect::<Vec<_>>()
        };
        assert_eq!(left(|_| {}), [1, 2]);
        assert_eq!(left(|all| all.evaluated(1, 3)), [2]);
        assert_eq!(left(|all| all.changed(Change::Removed(2), true)), [1]);
        assert_eq!(left(|all| all.changed(Change::Removed(-1), true)), [0; 0]);
        assert_eq!(left(|all| all.announce(1, None)), [2]);
        assert_eq!(left(|all| assert!(all.take_announced(1).is_some())), [2]);
    }

    #[test]
    fn what_the_host_removes_is_neither_uncertain_nor_lost() {
        let left = |change: Change| {
            let mut journal = Journal::EMPTY;
            for sequence in 0..3 {
                journal.uncertain(sequence, 1, 2);
                journal.lost.push(sequence);
            }
            journal.changed(change, true);
            let uncertain: Vec<i32> = journal
                .uncertain
                .iter()
                .map(|known| known.sequence)
                .collect();
            (uncertain, journal.lost)
        };
        assert_eq!(left(Change::Removed(1)), (vec![0, 2], vec![0, 2]));
        assert_eq!(left(Change::Removed(-1)), (vec![], vec![]));
        assert_eq!(left(Change::Kept(1)), (vec![1], vec![1]));
        assert_eq!(left(Change::Replaced(1)), (vec![0, 2], vec![0, 1, 2]));
        assert_eq!(left(Change::Shortened(1)), (vec![0, 1, 2], vec![0, 1, 2]));
    }

    #[test]
    fn a_change_that_the_record_did_not_hear_of_is_noted() {
        let mut journal = Journal::EMPTY;
        journal.changed(Change::Shortened(1), false);
        journal.changed(Change::Removed(2), true);
        assert_eq!(
            [0, 1, 2].map(|id| journal.is_unheard(id)),
            [false, true, false]
        );
        journal.changed(Change::Kept(2), false);
        assert_eq!(
            [0, 1, 2].map(|id| journal.is_unheard(id)),
            [true, true, false]
        );
    }
}
