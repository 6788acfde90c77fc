//! The batch that is being evaluated.

use crate::ids::SequenceId;

/// The batch that is being evaluated: one element for each sequence in it.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) in_flight: Vec<InFlight>,
    pub(crate) evaluating: bool,
}

/// What one batch does to one sequence.
#[derive(Debug)]
pub(crate) struct InFlight {
    pub(crate) sequence: SequenceId,
    pub(crate) entries: usize,
    pub(crate) outputs: usize,
    /// The last entry asks for its output: the prompt ends with this batch, or this is generation.
    pub(crate) ends: bool,
    /// The tokens before those of this batch are not known.
    pub(crate) obscured: bool,
    /// Some entry is a token of text, not of media.
    pub(crate) has_text: bool,
}

impl Batch {
    /// The element at this index. It is made if there is none yet.
    pub(crate) fn at(&mut self, index: usize, sequence: SequenceId) -> &mut InFlight {
        if index == self.in_flight.len() {
            self.in_flight.push(InFlight {
                sequence,
                entries: 0,
                outputs: 0,
                ends: false,
                obscured: false,
                has_text: false,
            });
        }
        &mut self.in_flight[index]
    }

    /// Its context was freed.
    pub(crate) fn drop_all(&mut self) {
        self.in_flight.clear();
        self.evaluating = false;
    }
}

impl InFlight {
    /// Whether this is the batch of an embedding task. Such tasks ask for the output of each token,
    /// others for that of the last one. A batch of one token does not tell.
    pub(crate) fn wants_every_output(&self) -> bool {
        self.entries > 1 && self.outputs == self.entries
    }
}
