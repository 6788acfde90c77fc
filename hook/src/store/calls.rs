//! Which calls of the host the store acts on, and how contexts are put right after the library has stopped: see [`repair()`].
//!
//! That is done by the context's own next call, on the thread that makes it, before the engine's function runs: no thread
//! touches a context that another thread may be using. A call in which the library stops does so itself, if the engine's
//! function is still to come.

use contextpilot_kv_engine::{Host, Journal, repair};

use super::engine::Context;
use super::records::{self, PATIENCE, Row, be_patient};
use super::working::is_on;
use crate::base::{guard, mode};

/// Whether the store hears of the call, which may be over.
pub(super) fn hears(context: Context<'_>) -> bool {
    is_on() && context.is_hosts()
}

/// Whether the store acts on this call, before the engine's function runs. If the library has stopped, this puts the
/// context right, and from then on it has no store.
pub(super) fn acts(context: Context<'_>) -> bool {
    hears(context) && goes_on(context)
}

/// What comes before the engine's function. If the library stops meanwhile, the context is right at the end.
pub(super) fn before(context: Context<'_>, work: impl FnOnce()) {
    if acts(context) {
        be_patient(context, PATIENCE);
        work();
        goes_on(context);
    }
}

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
