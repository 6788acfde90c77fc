//! What is noted before and after a batch of the host is evaluated.

use crate::host::{Host, Part, Record};

/// The indexes of the entries that are left out of the batch, in order: those that the engine holds already, and those that
/// wait. `None`: the library has stopped.
pub fn left_out<'a, H: Host>(
    host: &H,
    parts: impl IntoIterator<Item = &'a Part>,
) -> Option<Vec<u32>> {
    host.record(|one| {
        let mut all = Vec::new();
        for part in parts {
            let there = if part.pending.get() {
                part.indexes.len()
            } else {
                one.session().there(&part.run)
            };
            all.extend_from_slice(&part.indexes[..there]);
        }
        all.sort_unstable();
        all
    })
}

/// The engine has evaluated the batch, but for what was left out: the host believes in the tokens of these parts now. (Those
/// that wait are noted by [`end`].)
pub fn evaluated<H: Host>(host: &H, parts: &[Part]) {
    for part in parts.iter().filter(|part| !part.pending.get()) {
        let first = usize::try_from(part.run.first).unwrap_or(0);
        let end = first + part.run.tokens.len();
        host.journal(|journal| journal.evaluated(part.run.sequence, end));
    }
}

/// The engine has evaluated the batch (0), or refused to.
pub fn end<H: Host>(host: &H, parts: &[Part], result: i32) {
    // There was no room, or the batch was invalid: all is as before.
    if matches!(result, 1 | -1) {
        return;
    }
    let noted = host.record(|one| {
        for part in parts {
            let sequence = part.run.sequence;
            match result {
                0 if part.pending.get() => one.session_mut().leave_pending(&part.run),
                0 => {
                    one.session_mut().evaluated(&part.run);
                    one.note_evaluated(&part.run);
                }
                // Its entries were not in the batch.
                _ if part.pending.get() => {}
                _ => {
                    let session = one.session_mut();
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
