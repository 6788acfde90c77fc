//! Keeps which descriptors are connections of the server's clients.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::base::bounds::SOCKETS;

/// How often each descriptor was accepted or released, so that a reused descriptor is not
/// taken for the same connection. Odd: it belongs to a client of the server. Even: it does not, or no
/// longer. (In some connections the server is the client, to fetch an image for instance.)
static ACCEPTED: [AtomicU32; SOCKETS] = {
    #[allow(clippy::declare_interior_mutable_const)]
    const NEVER: AtomicU32 = AtomicU32::new(0);
    [NEVER; SOCKETS]
};

/// A connection was accepted.
pub(crate) fn accepted(socket: i32) {
    count_to(socket, |count| (count + 1) | 1);
}

/// This descriptor no longer belongs to a client.
pub(crate) fn released(socket: i32) {
    count_to(socket, |count| count + (count & 1));
}

/// Sets the count. There is no race: a descriptor belongs to one thread at a time.
fn count_to(socket: i32, next: impl Fn(u32) -> u32) {
    if let Some(cell) = cell(socket) {
        cell.store(next(cell.load(Ordering::Relaxed)), Ordering::Relaxed);
    }
}

fn cell(socket: i32) -> Option<&'static AtomicU32> {
    ACCEPTED.get(usize::try_from(socket).ok()?)
}

/// The number of the connection among those that had this descriptor; `None` if it belongs to no client.
pub(super) fn generation(socket: i32) -> Option<u32> {
    cell(socket)
        .map(|count| count.load(Ordering::Relaxed))
        .filter(|count| count % 2 == 1)
}
