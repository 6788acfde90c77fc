//! Tokens that the engine holds and the server has not asked for yet.

use contextpilot_kv_engine::synchronise;

use super::bounded;
use super::calls::{acts, before};
use super::engine::Context;
use super::records::with_record;

/// The position at which the server's view of a sequence ends, if the engine holds more.
pub(crate) fn believed(context: Context<'_>, sequence: i32) -> Option<usize> {
    if !acts(context) {
        return None;
    }
    let end = with_record(context, |record| {
        let session = &record.session;
        let believed = session.ahead_of(sequence)?;
        Some(session.position(sequence, believed))
    });
    end.flatten()
}

/// The last position that the server has of a sequence, if the engine holds more.
pub(crate) fn last(context: Context<'_>, sequence: i32) -> Option<i32> {
    if !acts(context) {
        return None;
    }
    let last = with_record(context, |record| {
        record.session.last_position_if_ahead(sequence)
    });
    // -1: it has nothing.
    last.flatten()?
        .map_or(Some(-1), |last| i32::try_from(last).ok())
}

/// The host is about to ask a question that the engine would answer otherwise: if the library has stopped, the context is
/// put right first.
pub(crate) fn about_to_ask(context: Option<Context<'_>>) {
    if let Some(context) = context {
        acts(context);
    }
}

/// Removes what a sequence has ahead, and gives the engine what is [pending](super::bounded) of it; a negative sequence stands
/// for all. Code that is about to read or change a sequence calls this first.
pub(crate) fn remove(context: Context<'_>, sequence: i32) {
    before(context, || {
        synchronise(&context, sequence);
    });
}

/// Whether a sequence holds nothing from a position on but what is ahead: nothing that the server
/// could remove.
pub(crate) fn holds_nothing_else(
    context: Option<Context<'_>>,
    sequence: i32,
    from: i32,
    to: i32,
) -> bool {
    let context = context.filter(|_| to < 0);
    let believed = context.and_then(|context| believed(context, sequence));
    believed.is_some_and(|believed| usize::try_from(from).is_ok_and(|from| from >= believed))
}

/// As [`remove`], if the context is known.
pub(crate) fn remove_from(context: Option<Context<'_>>, sequence: i32) {
    if let Some(context) = context {
        remove(context, sequence);
    }
}

/// As [`remove_from`], and what a load has left out of the sequence is there, too: it is about to be moved, or copied where it
/// is not followed. Negative: of all sequences.
pub(crate) fn remove_all_of(context: Option<Context<'_>>, sequence: i32) {
    if let Some(context) = context {
        remove(context, sequence);
        bounded::make_whole(context, sequence);
    }
}
