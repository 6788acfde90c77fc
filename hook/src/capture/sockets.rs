//! Which descriptors are connections of the server's clients.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::base::bounds::SOCKETS;

/// How often each descriptor was accepted or released, so that a number that is used again is not
/// taken for the same connection. Odd: it is a client of the server's. Even: it is not, or not
/// any more; the server itself may be somebody's client, to fetch an image for instance.
static ACCEPTED: [AtomicU32; SOCKETS] = {
    #[allow(clippy::declare_interior_mutable_const)]
    const NEVER: AtomicU32 = AtomicU32::new(0);
    [NEVER; SOCKETS]
};

/// A connection was accepted.
pub(crate) fn accepted(socket: i32) {
    count_to(socket, |count| (count + 1) | 1);
}

/// What comes over this socket from now on is none of a client's.
pub(crate) fn released(socket: i32) {
    count_to(socket, |count| count + (count & 1));
}

/// Nobody else counts: a descriptor belongs to one thread at a time.
fn count_to(socket: i32, next: impl Fn(u32) -> u32) {
    if let Some(cell) = cell(socket) {
        cell.store(next(cell.load(Ordering::Relaxed)), Ordering::Relaxed);
    }
}

fn cell(socket: i32) -> Option<&'static AtomicU32> {
    ACCEPTED.get(usize::try_from(socket).ok()?)
}

/// Which of the clients' connections that had this descriptor it is now; `None`: it is no client's.
pub(super) fn generation(socket: i32) -> Option<u32> {
    cell(socket)
        .map(|count| count.load(Ordering::Relaxed))
        .filter(|count| count % 2 == 1)
}
