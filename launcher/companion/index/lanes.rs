//! Threads for what takes long, so that one kind of request never waits for another.

use std::sync::Arc;

use contextpilot_index::{IndexAnswer, Next, Work};
use contextpilot_proxy::{Lane, NotDone, Tally, Turn};

use super::ids;
use super::shared::SharedIndex;

/// One for each kind of request.
#[derive(Clone)]
pub(super) struct Lanes {
    /// A batch may take seconds: one at a time.
    pub(super) batches: Lane,
    /// Milliseconds each.
    pub(super) others: Lane,
    /// The same, for evictions alone.
    pub(super) evictions: Lane,
}

impl Lanes {
    pub(super) fn new(tally: &Arc<Tally>) -> Self {
        let lane = |threads, waiting| Lane::new(threads, waiting, Arc::clone(tally));
        Self {
            batches: lane(1, 32),
            others: lane(2, 128),
            evictions: lane(2, 128),
        }
    }
}

/// The answer to a request for which there was no thread.
pub(super) fn not_done(why: NotDone) -> IndexAnswer {
    IndexAnswer::error(why.status(), &why.to_string())
}

/// Does all of a request that takes long, in its turn. Pieces that need the state are short, and done at the usual
/// priority, so that no request waits for the state longer than one of them takes. What needs no state is done at the
/// turn's own.
pub(super) async fn work_off(
    mut work: Box<Work>,
    turn: &Turn,
    shared: &SharedIndex,
) -> Result<Box<Work>, NotDone> {
    loop {
        work = match work.next() {
            Next::State => with_state(work, shared.clone()).await?,
            Next::Alone => {
                let computed = turn.run(move || {
                    work.compute();
                    work
                });
                computed.await?
            }
            Next::Answer => return Ok(work),
        }
    }
}

/// Does pieces that need the state, until there is something else to do.
async fn with_state(mut work: Box<Work>, shared: SharedIndex) -> Result<Box<Work>, NotDone> {
    let done = tokio::task::spawn_blocking(move || {
        while work.next() == Next::State {
            shared.piece(|index| index.proceed(&mut work, &mut ids::new));
        }
        work
    });
    done.await.map_err(|_| NotDone::Failed)
}

/// The same for one that takes less than a millisecond, on a thread that serves.
pub(super) async fn work_off_here(mut work: Box<Work>, shared: &SharedIndex) -> Box<Work> {
    loop {
        match work.next() {
            Next::State => shared.lock().await.proceed(&mut work, &mut ids::new),
            Next::Alone => work.compute(),
            Next::Answer => return work,
        }
    }
}
