//! A batch of the host: what is done before, and what is noted behind.

use contextpilot_kv_store::media;

use crate::Refusal;
use crate::engine::{LOST, NO_ROOM};
use crate::host::{Host, HostBatch, Part, Record, is_bounded};
use crate::journal::Journal;
use crate::{bounded, dense};

/// A batch that can be evaluated.
#[derive(Debug)]
pub struct Ready {
    /// The indexes of the entries that are left out of it, in order: those that the engine holds already, and those that wait.
    pub left_out: Vec<u32>,
    /// No more is left for one call than the context computes at once, if that matters.
    pub is_whole: bool,
}

/// Does what is to be done before a batch of so many entries is evaluated.
///
/// # Errors
/// Why that is not possible. What was done of it is undone.
pub fn prepare<H: Host>(host: &H, parts: &[Part], entries: usize) -> Result<Ready, Refusal> {
    let is_bounded = is_bounded(host);
    let prepared = if is_bounded {
        bounded::prepare_batch(host, parts, entries)
    } else {
        let mut all = parts.iter();
        all.try_for_each(|part| dense::prepare_part(host, part))
            .map(|()| true)
    };
    match prepared {
        Ok(is_whole) => Ok(Ready {
            left_out: left_out(host, parts),
            is_whole,
        }),
        Err(refusal) => {
            // The batch is not evaluated: what was loaded or evaluated of it must not stay.
            if is_bounded {
                bounded::undo(host, -1);
            } else {
                dense::cut_ahead(host, -1);
            }
            host.journal(|journal| journal.forget_aside(-1));
            Err(refusal)
        }
    }
}

/// See [`Ready::left_out`]. None if the library has stopped.
fn left_out<H: Host>(host: &H, parts: &[Part]) -> Vec<u32> {
    let all = host.record(|record| {
        let mut all = Vec::new();
        for part in parts {
            all.extend_from_slice(&part.indexes[..part.left_out(record.session())]);
        }
        all.sort_unstable();
        all
    });
    all.unwrap_or_default()
}

/// Evaluates a batch of so many entries that is [ready](prepare), and notes what came of it. Returns the result that the host gets.
pub fn evaluate<H: Host>(
    host: &H,
    parts: &[Part],
    entries: usize,
    ready: Ready,
    batch: &mut impl HostBatch<H::Record>,
) -> i32 {
    let mut left_out = ready.left_out;
    let is_bounded = is_bounded(host);
    // After this, nothing is asked of the record until the engine has evaluated.
    if !host.goes_on() {
        if host.journal(|journal| journal.is_any_lost()) == Some(true) {
            return LOST;
        }
        left_out.clear();
        for part in parts {
            part.pending.set(false);
            part.ours.set(0);
        }
    }
    batch.leave_out(&left_out);
    // Ends as "not known" if the engine throws.
    let mut open = Open {
        host,
        parts,
        is_bounded,
        ended: false,
    };
    let mut result = 0;
    if left_out.is_empty() || left_out.len() < entries {
        result = batch.evaluate(&left_out);
    }
    if result == 0 {
        // The host believes in the tokens of these parts now. (Those that wait are noted by `end`.)
        for part in parts.iter().filter(|part| !part.pending.get()) {
            let first = usize::try_from(part.run.first).unwrap_or(0);
            let end = first + media::position(&part.run.tokens);
            host.journal(|journal| journal.evaluated(part.run.sequence, end));
        }
        let count = entries - left_out.len();
        if count > 0 {
            host.record(|record| {
                batch.evaluated(record, count);
                record.session_mut().updated();
            });
        }
    } else if is_bounded {
        bounded::undo(host, -1);
    } else {
        let was_uncertain = host.journal(|journal| Journal::is_any_uncertain(journal));
        dense::cut_ahead(host, -1);
        host.goes_on();
        // After any other error a part of the batch may be there.
        if was_uncertain == Some(true) && result == NO_ROOM {
            // What was ahead took room that the server believes to be free.
            left_out.clear();
            batch.leave_out(&[]);
            result = batch.evaluate(&[]);
        }
    }
    open.ended = true;
    if result == 0 && !left_out.is_empty() {
        batch.loaded(&loaded(host, parts));
    }
    end(host, parts, is_bounded, result);
    if !ready.is_whole {
        // More was evaluated by one call than may be: what became of it is not for the store.
        host.record(|record| {
            for part in parts.iter().filter(|part| !part.pending.get()) {
                record.session_mut().obscure(part.run.sequence);
            }
        });
    }
    result
}

/// An evaluation that has not ended yet. If the engine throws an exception, it is not known what the engine did.
struct Open<'a, H: Host> {
    host: &'a H,
    parts: &'a [Part],
    is_bounded: bool,
    ended: bool,
}

impl<H: Host> Drop for Open<'_, H> {
    fn drop(&mut self) {
        if !self.ended {
            end(self.host, self.parts, self.is_bounded, -2);
        }
    }
}

/// The entries that were left out because the engine has them from the store, in order. (Of those that wait it is not known yet.)
fn loaded<H: Host>(host: &H, parts: &[Part]) -> Vec<u32> {
    let all = host.record(|record| {
        let held = parts.iter().filter(|part| !part.pending.get());
        let of_store = |part: &Part| {
            let there = record.session().there(&part.run) - part.ours.get();
            // Of an image whose rows share a position it is all of them, whichever are in this batch.
            part.indexes[..there.min(part.indexes.len())].to_vec()
        };
        let mut all: Vec<u32> = held.flat_map(of_store).collect();
        all.sort_unstable();
        all
    });
    all.unwrap_or_default()
}

/// The engine has evaluated the batch (0), or refused to.
fn end<H: Host>(host: &H, parts: &[Part], is_bounded: bool, result: i32) {
    // Of others nothing is put aside, and a generated token takes no lock more.
    if is_bounded && host.record(|_| ()).is_some() {
        host.journal(|journal| journal.forget_aside(-1));
    }
    // There was no room, or the batch was invalid: all is as before.
    if matches!(result, NO_ROOM | -1) {
        return;
    }
    let noted = host.record(|record| {
        for part in parts {
            let sequence = part.run.sequence;
            match result {
                0 if part.pending.get() => record.session_mut().leave_pending(&part.run),
                0 => {
                    record.session_mut().evaluated(&part.run);
                    record.note_evaluated(&part.run);
                }
                // Its entries were not in the batch.
                _ if part.pending.get() => {}
                _ => {
                    let session = record.session_mut();
                    let is_pending = session.believed_if_pending(sequence).is_some();
                    session.obscure(sequence);
                    if is_pending {
                        session.lose(sequence);
                    }
                }
            }
        }
    });
    if noted.is_none() && result == 0 {
        for part in parts.iter().filter(|part| part.pending.get()) {
            host.journal(|journal| journal.left_pending(&part.run));
        }
    }
}
