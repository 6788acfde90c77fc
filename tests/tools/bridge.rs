//! `open` passes the page's queries on. Others on this machine can connect to its port, too.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use crate::support::{Watched, two_slots};

/// Connections that ask nothing are half of all at most.
#[test]
fn idle_connections_make_room_for_the_page() {
    let watched = Watched::start(two_slots());
    let open = watched.open();
    let connect = || TcpStream::connect(open.address).unwrap();
    let mut idle: Vec<TcpStream> = (0..40).map(|_| connect()).collect();
    // The last that had a place: its end comes by itself. (Those behind it are turned away.)
    idle[31].read_to_end(&mut Vec::new()).unwrap();
    idle[0].set_nonblocking(true).unwrap();
    let first = idle[0].read(&mut [0]).map_err(|error| error.kind());
    assert_eq!(first, Err(ErrorKind::WouldBlock), "it may stay");
    let mut asking = connect();
    let token = &open.token;
    let request =
        format!("GET /stats HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n\r\n");
    asking.write_all(request.as_bytes()).unwrap();
    let mut answer = [0; 15];
    asking.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200 OK");
}
