//! What an event is about to change, for code that must see the state before it.

use super::Ledger;
use crate::entries::Entry;
use crate::event::Event;
use crate::fact::Reason;
use crate::ids::{BufferId, ContextId, SequenceId, TaskId};
use crate::token::{Position, Token};

/// What an event is about to change in the primary context and in the host prompt cache.
/// [`Ledger::upcoming`] tells it before the event is applied, while the ledger has what will be gone.
/// Afterwards, [facts](crate::Fact) tell what has come of the event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upcoming<'event> {
    /// A slot takes a task.
    Launch {
        /// The slot.
        sequence: SequenceId,
        /// The task; of several that wait for one evaluation, the most likely.
        task: TaskId,
    },
    /// A batch will be evaluated.
    Batch {
        /// Its entries, in their order.
        entries: &'event [Entry],
    },
    /// The prefix store had a part of the batch that is being evaluated.
    Loaded {
        /// The slot.
        sequence: SequenceId,
        /// The position of the first such entry.
        from: Position,
        /// One past the position of the last.
        to: Position,
        /// How many they are.
        entries: u32,
    },
    /// The batch has been evaluated.
    BatchEnd {
        /// The evaluation failed.
        failed: bool,
        /// It failed because there was no room.
        no_room: bool,
    },
    /// Positions of a slot are removed; the same tokens may be written again.
    Removal {
        /// The slot.
        sequence: SequenceId,
        /// First position; negative: from the beginning.
        from: Position,
        /// One past the last; negative: to the end.
        to: Position,
    },
    /// Positions of a slot move.
    Shift {
        /// The slot.
        sequence: SequenceId,
        /// First position; negative: from the beginning.
        from: Position,
        /// One past the last; negative: to the end.
        to: Position,
        /// By how many positions; negative: towards the beginning.
        delta: Position,
    },
    /// A slot loses all that it holds, or nothing is known of it any more.
    Emptied {
        /// The slot.
        sequence: SequenceId,
        /// Why its content does not count any more.
        reason: Reason,
    },
    /// Something else takes the place of all that a slot holds.
    Replaced {
        /// The slot.
        sequence: SequenceId,
        /// What takes its place.
        by: Successor<'event>,
    },
    /// A slot's content is copied to the host prompt cache. If the buffer held something else, that is lost.
    Save {
        /// The slot.
        sequence: SequenceId,
        /// The buffer.
        buffer: BufferId,
    },
    /// An entry of the host prompt cache, or something else that the ledger does not know, is dropped.
    Dropped {
        /// The buffer.
        buffer: BufferId,
        /// Why it is dropped.
        reason: Reason,
    },
}

/// What takes the place of a slot's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Successor<'event> {
    /// An entry of the host prompt cache.
    Host,
    /// These tokens, from a state file.
    File(&'event [Token]),
    /// The content of another slot.
    Slot,
}

impl Ledger {
    /// Tells what an event is about to change, before it is [applied](Self::apply).
    pub fn upcoming<'event>(&self, event: &'event Event, tell: &mut dyn FnMut(Upcoming<'event>)) {
        if let Some(context) = event.context() {
            if !self.counts_as_primary(context) {
                return;
            }
        }
        match *event {
            Event::Launched { sequence, task }
            | Event::LaunchedUnclaimed {
                sequence,
                likely: task,
                ..
            } => tell(Upcoming::Launch { sequence, task }),
            Event::Freed { buffer } => tell(Upcoming::Dropped {
                buffer,
                reason: Reason::DroppedFromHost,
            }),
            Event::Submitted { ref entries, .. } => tell(Upcoming::Batch { entries }),
            Event::Loaded {
                sequence,
                from,
                to,
                entries,
                ..
            } => tell(Upcoming::Loaded {
                sequence,
                from,
                to,
                entries,
            }),
            Event::Evaluated {
                ref failed,
                no_room,
                ..
            } => tell(Upcoming::BatchEnd {
                failed: !failed.is_empty(),
                no_room,
            }),
            Event::Removed {
                sequence: ..0,
                from: ..=0,
                to: ..0,
                ..
            }
            | Event::Cleared { .. } => self.all_emptied(Reason::Cleared, None, tell),
            Event::Removed {
                sequence, from, to, ..
            } => {
                for sequence in self.named(sequence) {
                    tell(Upcoming::Removal { sequence, from, to });
                }
            }
            Event::Shifted {
                sequence,
                from,
                to,
                delta,
                ..
            } => tell(Upcoming::Shift {
                sequence,
                from,
                to,
                delta,
            }),
            Event::Kept { sequence, .. } => self.all_emptied(Reason::Cleared, Some(sequence), tell),
            Event::Obscured { sequence, .. } => {
                for sequence in self.named(sequence) {
                    let reason = Reason::OutOfStep;
                    tell(Upcoming::Emptied { sequence, reason });
                }
            }
            Event::Copied { source, target, .. } if source != target => tell(Upcoming::Replaced {
                sequence: target,
                by: Successor::Slot,
            }),
            Event::Restored { sequence, .. } => tell(Upcoming::Replaced {
                sequence,
                by: Successor::Host,
            }),
            Event::Replaced {
                sequence,
                ref tokens,
                ..
            } => tell(Upcoming::Replaced {
                sequence,
                by: Successor::File(tokens),
            }),
            Event::Saved {
                sequence, buffer, ..
            } => tell(Upcoming::Save { sequence, buffer }),
            Event::ContextFreed { .. } => {
                let reason = Reason::ContextFreed;
                self.all_emptied(reason, None, tell);
                // In the order in which they are given up: equal events tell the same.
                let mut buffers: Vec<_> = self.buffers.keys().copied().collect();
                buffers.sort_unstable();
                for buffer in buffers {
                    tell(Upcoming::Dropped { buffer, reason });
                }
            }
            _ => {}
        }
    }

    /// Whether this is the primary context, or will be when the event is applied.
    pub(super) fn counts_as_primary(&self, context: ContextId) -> bool {
        self.primary().is_none_or(|primary| primary == context)
    }

    fn all_emptied<'event>(
        &self,
        reason: Reason,
        but: Option<SequenceId>,
        tell: &mut dyn FnMut(Upcoming<'event>),
    ) {
        for sequence in self.slots().filter(|&slot| Some(slot) != but) {
            tell(Upcoming::Emptied { sequence, reason });
        }
    }
}
