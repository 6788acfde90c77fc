//! Changes of sequences, and how the journal and the record are kept alike: each change goes through one of these functions.

use crate::Change;
use crate::host::Host;
use crate::journal::ANYTHING;

/// Changes a sequence of the engine in which the host believes up to this position. The journal knows of it before `work`, and
/// until the record does: `note` tells that what came of it, and returns up to which the engine may hold it now, or [`ANYTHING`].
///
/// If the library stops meanwhile, [`repair`](crate::repair()) finds the sequence in the journal.
pub(crate) fn change_engine<H: Host, D>(
    host: &H,
    sequence: i32,
    believed: usize,
    work: impl FnOnce() -> D,
    note: impl FnOnce(&mut H::Record, &D) -> usize,
) -> D {
    host.journal(|journal| journal.uncertain(sequence, believed, ANYTHING));
    let done = work();
    if let Some(held) = host.record(|record| note(record, &done)) {
        host.journal(|journal| journal.uncertain(sequence, believed, held));
    }
    done
}

/// The host has changed sequences: `work` notes it in the record.
pub fn changed<H: Host>(host: &H, change: Change, work: impl FnOnce(&mut H::Record)) {
    let heard = host.record(work).is_some();
    host.journal(|journal| journal.changed(change, heard));
}
