//! Puts contexts right after the library has stopped: see [`repair()`].
//!
//! Each context is put right by its own next call, on the thread that makes it, before the engine's function runs: no thread
//! touches a context that another thread may be using. A call in which the library stops does so itself, if the engine's
//! function is still to come.

use contextpilot_kv_engine::{Host, Journal, repair};

use super::Context;
use super::records::{self, Row};
use crate::base::{guard, mode};

/// Whether the store goes on with a context. If the library has stopped, this puts the context right; then there is
/// nothing to do for it any more. The engine's function must be still to come: this may evaluate.
pub(super) fn goes_on(context: Context<'_>) -> bool {
    if mode::is_active() {
        return true;
    }
    if let Some(row) = records::find(context) {
        put_right(context, row);
    }
    false
}

#[cold]
fn put_right(context: Context<'_>, row: &Row) {
    let record = row.take_record();
    let Some(journal) = context.journal(Journal::take_repairable) else {
        return;
    };
    let lost = repair(&context, record.as_deref(), journal, |work| {
        guard::compute(work);
    });
    context.journal(|journal| journal.set_lost(lost));
    guard::compute(|| drop(record));
}

/// Whether a sequence could not be put right, and was not removed since.
pub(super) fn is_any_lost(context: Context<'_>) -> bool {
    context.journal(|journal| journal.is_any_lost()) == Some(true)
}
