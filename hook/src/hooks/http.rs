//! Hooks for the server's sockets.

use std::ffi::c_int;

use crate::attach::original::original;
use crate::base::abi::Pointer;
use crate::base::guard::{errno, guarded};
use crate::capture::connections::{self, Layer};
use crate::capture::{listeners, sockets};

/// The server calls this once for each address of its own, before it loads a model.
pub(crate) unsafe fn listen(socket: c_int, backlog: c_int) -> c_int {
    let result = original!(listen(socket, backlog));
    if result == 0 {
        guarded(|| listeners::listens(socket));
    }
    result
}

pub(crate) unsafe fn accept(listener: c_int, address: Pointer, length: Pointer) -> c_int {
    let socket = original!(accept(listener, address, length));
    guarded(|| sockets::accepted(socket));
    socket
}

pub(crate) unsafe fn accept4(
    listener: c_int,
    address: Pointer,
    length: Pointer,
    flags: c_int,
) -> c_int {
    let socket = original!(accept4(listener, address, length, flags));
    guarded(|| sockets::accepted(socket));
    socket
}

pub(crate) unsafe fn recv(socket: c_int, buffer: Pointer, length: usize, flags: c_int) -> isize {
    let received = original!(recv(socket, buffer, length, flags));
    // `MSG_PEEK` leaves the bytes in the socket.
    if flags & libc::MSG_PEEK == 0 {
        guarded(|| match usize::try_from(received) {
            Ok(0) if length > 0 => connections::ended(socket),
            Ok(0) => {}
            Ok(count) => {
                // SAFETY: the kernel has just written so many bytes there. Our caller
                // does not use them before we return.
                let bytes = unsafe { std::slice::from_raw_parts(buffer.cast(), count) };
                connections::received(socket, Layer::Socket, bytes);
            }
            Err(_) if !matches!(errno(), libc::EAGAIN | libc::EINTR) => connections::ended(socket),
            Err(_) => {}
        });
    }
    received
}

/// Notes the answer before it is sent, so that the client cannot see it first.
pub(crate) unsafe fn send(socket: c_int, buffer: Pointer, length: usize, flags: c_int) -> isize {
    let mut instead = None;
    guarded(|| {
        if !buffer.is_null() {
            // SAFETY: our caller passes so many bytes to be sent.
            let bytes = unsafe { std::slice::from_raw_parts(buffer.cast(), length) };
            instead = connections::sending(socket, Layer::Socket, bytes);
        }
    });
    let Some(instead) = instead else {
        return original!(send(socket, buffer, length, flags));
    };
    // The server does not know how many of these bytes were sent. The socket blocks: a part alone is sent if the client has read
    // nothing for as long as the server waits for it.
    let mut sent = 0;
    while let Some(rest @ [_, ..]) = instead.get(sent..) {
        let rest: Pointer = rest.as_ptr().cast_mut().cast();
        match original!(send(socket, rest, instead.len() - sent, flags)) {
            count @ 1.. => sent += count.unsigned_abs(),
            _ if sent > 0 && errno() == libc::EINTR => {}
            failed => return failed,
        }
    }
    isize::try_from(length).unwrap_or(isize::MAX)
}

/// The server ends a connection with this, before `close`. Other code calls `close` for other files.
pub(crate) unsafe fn shutdown(socket: c_int, how: c_int) -> c_int {
    guarded(|| {
        connections::ended(socket);
        // The server cannot answer any more. It may read and drop what the client has sent until then.
        if how != libc::SHUT_RD {
            sockets::released(socket);
        }
    });
    original!(shutdown(socket, how))
}
