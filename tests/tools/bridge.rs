//! `open` passes the page's queries on. Others on this machine can connect to its port, too.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};

use crate::support::{Watched, two_slots};

struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whoever keeps connections and asks nothing has half of them at most.
#[test]
fn idle_connections_make_room_for_the_page() {
    let watched = Watched::start(two_slots());
    let mut command = watched.command(&["open", "--no-browser", "--port", "0"]);
    let mut open = Ended(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut url = String::new();
    let output = open.0.stdout.take().unwrap();
    BufReader::new(output).read_line(&mut url).unwrap();
    let (page, token) = url.trim().split_once("/#token=").unwrap();
    let (_, address) = page.split_once("http://").unwrap();
    let connect = || TcpStream::connect(address).unwrap();
    let mut idle: Vec<TcpStream> = (0..40).map(|_| connect()).collect();
    // The last that had a place: its end comes by itself. (Those behind it are turned away.)
    idle[31].read_to_end(&mut Vec::new()).unwrap();
    idle[0].set_nonblocking(true).unwrap();
    let first = idle[0].read(&mut [0]).map_err(|error| error.kind());
    assert_eq!(first, Err(ErrorKind::WouldBlock), "it may stay");
    let mut asking = connect();
    let request =
        format!("GET /stats HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n\r\n");
    asking.write_all(request.as_bytes()).unwrap();
    let mut answer = [0; 15];
    asking.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200 OK");
}
