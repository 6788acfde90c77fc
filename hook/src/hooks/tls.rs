//! The server's TLS sessions, where OpenSSL is a library of its own or inside the executable.
//!
//! OpenSSL reads and writes its sockets itself; what the client and the server say to each other
//! is seen here only.

use std::ffi::c_int;

use crate::attach::original::{original, plain};
use crate::base::abi::Pointer;
use crate::base::guard::observe;
use crate::capture::connections::{self, Layer};

/// The server's side of a handshake, called again until it is done. Clients have another one.
pub(crate) unsafe fn SSL_accept(session: Pointer) -> c_int {
    observe(|| {
        if let Some(socket) = socket_of(session) {
            connections::encrypted(socket);
        }
    });
    original!(SSL_accept(session))
}

pub(crate) unsafe fn SSL_read(session: Pointer, buffer: Pointer, length: c_int) -> c_int {
    let received = original!(SSL_read(session, buffer, length));
    // The end is seen when the socket is shut down.
    if let Ok(count @ 1..) = usize::try_from(received) {
        observe(|| {
            if let Some(socket) = socket_of(session) {
                // SAFETY: OpenSSL has just written so many bytes there, for our caller, who does
                // not read or change them before we return.
                let bytes = unsafe { std::slice::from_raw_parts(buffer.cast(), count) };
                connections::received(socket, Layer::Tls, bytes);
            }
        });
    }
    received
}

/// Noted before: the client must not be able to see the answer first.
pub(crate) unsafe fn SSL_write(session: Pointer, buffer: Pointer, length: c_int) -> c_int {
    observe(|| {
        if let (Some(socket), Ok(count), false) = (
            socket_of(session),
            usize::try_from(length),
            buffer.is_null(),
        ) {
            // SAFETY: our caller hands over so many bytes to be sent.
            let bytes = unsafe { std::slice::from_raw_parts(buffer.cast(), count) };
            connections::sending(socket, Layer::Tls, bytes);
        }
    });
    original!(SSL_write(session, buffer, length))
}

/// None for a session over something else than a socket.
fn socket_of(session: Pointer) -> Option<c_int> {
    // SAFETY: a session of the caller's, who is about to use or has just used it.
    let socket = unsafe { plain::socket_of_session(session) };
    socket.filter(|socket| *socket >= 0)
}
