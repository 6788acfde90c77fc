//! A context of an engine.

use contextpilot_kv_store::media;

/// A context of an engine, while the calling thread uses it and no batch of the host is being evaluated.
///
/// Where a token of a sequence stands that the store knows, its tokens say ([`media::position`]): at its index, but for images
/// whose rows share a position. All numbers here are positions.
pub trait Engine {
    /// Removes the tokens of a sequence from this position on.
    ///
    /// Never refused for position 0: the sequence is empty then. A context that cannot go back to any position may refuse
    /// every other one without saying so.
    fn cut(&self, sequence: i32, from: usize);

    /// One more than the last position at which the engine holds a token of a sequence. `None`: it has no function that says so.
    fn length(&self, sequence: i32) -> Option<usize>;

    /// The first position that the engine still has of a sequence. Of sliding windows that is not 0 for long. `None`: it has
    /// no function that says so, or the sequence is empty.
    fn first(&self, sequence: i32) -> Option<usize>;

    /// Copies the state of a sequence to `state`, whose memory is used again. The sequence stays as it is. False: the engine
    /// did not; then `state` holds anything.
    fn save(&self, sequence: i32, state: &mut Vec<u8>) -> bool;

    /// The size of that part of a sequence's state that cannot be cut back: windows, a recurrent state. `None`: the engine
    /// has no such function.
    fn part_size(&self, sequence: i32) -> Option<usize>;

    /// As [`Engine::save`], of that part.
    fn save_part(&self, sequence: i32, state: &mut Vec<u8>) -> bool;

    /// Replaces a sequence by a state. False: the engine refuses; then the sequence is empty, or holds anything, and must be
    /// [cut](Engine::cut) to nothing. An engine may also take a state of another length than its name says, so ask for the
    /// [length](Engine::length).
    fn load(&self, sequence: i32, state: &[u8]) -> bool;

    /// Evaluates tokens of a sequence from this position on, at most `most` at a time, and asks for no output.
    ///
    /// # Errors
    /// If the engine refuses, the sequence holds what stands before and some of these; only after
    /// [`Refusal::Stopped`] it is known to say how many.
    fn evaluate(
        &self,
        sequence: i32,
        from: usize,
        tokens: &[i32],
        most: usize,
    ) -> Result<(), Refusal>;

    /// Whether the engine holds these tokens of a sequence and no more, as far as it says.
    fn holds(&self, sequence: i32, tokens: &[i32]) -> bool {
        let there = self.length(sequence);
        there.is_none_or(|there| there == media::reach(tokens))
    }
}

/// What an engine says if there is no room for a batch.
pub const NO_ROOM: i32 = 1;

/// What it says if the host's own callback has stopped it: the parts of the batch that it had computed stay.
pub const STOPPED: i32 = 2;

/// What the host hears if a sequence was lost: "compute error". A server then clears its slots.
pub const LOST: i32 = -3;

/// Why an engine does not evaluate tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The context has no room for them. A server makes some, and tries again.
    NoRoom,
    /// The host's own callback has stopped it.
    Stopped,
    /// Any other error.
    Failed,
}

impl Refusal {
    /// What the host hears if the engine has refused tokens that are needed before its batch.
    pub fn code(self) -> i32 {
        match self {
            Self::NoRoom => NO_ROOM,
            Self::Stopped => STOPPED,
            Self::Failed => LOST,
        }
    }

    /// Why the engine has evaluated nothing, or not all; 0: it has.
    ///
    /// # Errors
    /// The reason.
    pub fn of_code(code: i32) -> Result<(), Self> {
        match code {
            0 => Ok(()),
            NO_ROOM => Err(Self::NoRoom),
            STOPPED => Err(Self::Stopped),
            _ => Err(Self::Failed),
        }
    }
}
