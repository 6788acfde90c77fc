//! Which server of a program is followed. A program may stop its server and start another one, and may have two at once. Both
//! number their tasks and slots from 0, so the requests of two cannot be told apart.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::attach::{claims, serves_inside};

/// The address of the queue of the server that is followed. Zero: none was seen.
static QUEUE: AtomicUsize = AtomicUsize::new(0);

/// Whether this is the queue of the server that is followed. If it is another one's, no server is followed any more.
pub(crate) fn is_followed(queue: usize) -> bool {
    if !serves_inside() {
        return true;
    }
    let first = QUEUE.compare_exchange(0, queue, Ordering::Relaxed, Ordering::Relaxed);
    if first.is_err_and(|known| known != queue) {
        claims::note_several();
    }
    !claims::are_several()
}

/// The last context was freed, so the server has ended: the next one is followed.
pub(crate) fn ended() {
    QUEUE.store(0, Ordering::Relaxed);
}
