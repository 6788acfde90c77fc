//! Hooks for the server's TLS sessions, if OpenSSL is a library or inside the executable.
//!
//! OpenSSL reads and writes encrypted bytes on its sockets. Only these hooks see the plain text.

use std::ffi::c_int;

use crate::attach::original::original;
use crate::attach::plain;
use crate::base::abi::Pointer;
use crate::base::guard::guarded;
use crate::capture::connections::{self, Layer};

/// The server's side of a handshake, called again until the handshake is complete. Clients call another
/// function.
pub(crate) unsafe fn SSL_accept(session: Pointer) -> c_int {
    guarded(|| {
        if let Some(socket) = socket_of(session) {
            connections::encrypted(socket);
        }
    });
    original!(SSL_accept(session))
}

pub(crate) unsafe fn SSL_read(session: Pointer, buffer: Pointer, length: c_int) -> c_int {
    let received = original!(SSL_read(session, buffer, length));
    // The end of the connection is noticed when the socket is shut down.
    if let Ok(count @ 1..) = usize::try_from(received) {
        guarded(|| {
            if let Some(socket) = socket_of(session) {
                // SAFETY: OpenSSL has just written so many bytes there. Our caller
                // does not use them before we return.
                let bytes = unsafe { std::slice::from_raw_parts(buffer.cast(), count) };
                connections::received(socket, Layer::Tls, bytes);
            }
        });
    }
    received
}

/// Notes the answer before it is sent, so that the client cannot see it first.
pub(crate) unsafe fn SSL_write(session: Pointer, buffer: Pointer, length: c_int) -> c_int {
    let mut instead = None;
    guarded(|| {
        if let (Some(socket), Ok(count), false) = (
            socket_of(session),
            usize::try_from(length),
            buffer.is_null(),
        ) {
            // SAFETY: our caller passes so many bytes to be sent.
            let bytes = unsafe { std::slice::from_raw_parts(buffer.cast(), count) };
            instead = connections::sending(socket, Layer::Tls, bytes);
        }
    });
    let Some((mut instead, count)) = instead.and_then(|instead| {
        let count = c_int::try_from(instead.len()).ok()?;
        Some((instead, count))
    }) else {
        return original!(SSL_write(session, buffer, length));
    };
    // OpenSSL sends all of it, or the server tries again.
    match original!(SSL_write(session, instead.as_mut_ptr().cast(), count)) {
        1.. => length,
        failed => failed,
    }
}

/// `None` for a session that is not over a socket.
fn socket_of(session: Pointer) -> Option<c_int> {
    // SAFETY: the session belongs to the caller, which uses it before or after this call.
    let socket = unsafe { plain::socket_of_session(session) };
    socket.filter(|socket| *socket >= 0)
}
