//! The sockets against libzmq's, in Python.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use contextpilot_testbed::skip;
use contextpilot_zmtp::{Limits, Publisher, Router};

/// What `scripts/kv-router` exits with when there is no Python to be had.
const NO_PYTHON: i32 = 77;
/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);
/// Of one long message: more than any socket's buffer.
const LARGE: usize = 3 << 20;

fn python() -> Option<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../scripts/kv-router");
    let made = Command::new(script).arg("zmq").output().expect("a script");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if made.status.code() == Some(NO_PYTHON) {
        skip(text(&made.stderr));
        return None;
    }
    assert!(made.status.success(), "{}", text(&made.stderr));
    Some(PathBuf::from(text(&made.stdout)))
}

/// The other side, and what it says.
struct Peers {
    child: Child,
    said: Receiver<String>,
}

impl Peers {
    fn start(python: &Path, ports: [u16; 2]) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/libzmq.py");
        let mut child = Command::new(python)
            .arg(script)
            .args(ports.map(|port| port.to_string()))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("Python runs");
        let (send, said) = channel();
        let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let _ = send.send(line);
            }
        });
        Self { child, said }
    }

    fn expect(&self, line: &str) {
        let said = self.said.recv_timeout(LONG).expect("it says something");
        assert_eq!(said, line);
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn libzmq_understands_all_of_it() {
    let Some(python) = python() else { return };
    let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
    // Those that send no heartbeats of their own answer ours, or are gone after a second.
    let limits = Limits {
        heartbeat: Duration::from_millis(150),
        ..Limits::default()
    };
    let publisher = Publisher::bind(any_port, limits, || ()).expect("a port is free");
    let answer = |parts: &[Vec<u8>], send: &mut dyn FnMut(&[&[u8]]) -> std::io::Result<()>| {
        assert_eq!(parts.len(), 2);
        send(&[&parts[0], b"kv@", &parts[1], b"first"])?;
        send(&[&parts[0], b"kv@", &parts[1], &[0xff; 300]])?;
        send(&[&parts[0], b"", &[0xff; 8], b""])
    };
    let router = Router::bind(any_port, Limits::default(), || (), answer).expect("a port is free");
    let peers = Peers::start(
        &python,
        [publisher.address().port(), router.address().port()],
    );

    peers.expect(r#"["subscribed", true]"#);
    let begun = loop {
        publisher.publish(&[b"kv@begin", b""]);
        if let Ok(line) = peers.said.recv_timeout(Duration::from_millis(20)) {
            break line;
        }
    };
    assert_eq!(begun, r#"["begun", true]"#);
    assert_eq!(publisher.figures().subscribers, 3);
    publisher.publish(&[b"other", b"1"]);
    publisher.publish(&[b"kv@a", b"", b"\x00\xff"]);
    publisher.publish(&[b"kv@a", &vec![1; 255]]);
    publisher.publish(&[b"kv@a", &vec![1; 256]]);
    publisher.publish(&[b"kv@a", &vec![1; LARGE]]);
    publisher.publish(&[b"kv@end"]);
    let some = format!(
        r#"["6b764061", "", "00ff"], ["6b764061", 255], ["6b764061", 256], ["6b764061", {LARGE}]"#
    );
    peers.expect(&format!(r#"["all", [["6f74686572", "31"], {some}]]"#));
    peers.expect(&format!(r#"["some", [{some}]]"#));
    peers.expect(&format!(r#"["raw", [{some}]]"#));
    peers.expect(r#"["lost", false]"#);
    let figures = publisher.figures();
    assert_eq!((figures.dropped, figures.expelled), (0, 0));
    assert_eq!(figures.subscribers, 3);

    peers.expect(r#"["changed", true]"#);
    let other = loop {
        publisher.publish(&[b"kv@a"]);
        publisher.publish(&[b"other"]);
        if let Ok(line) = peers.said.recv_timeout(Duration::from_millis(20)) {
            break line;
        }
    };
    assert_eq!(other, r#"["other", ["6f74686572"]]"#);

    let answers = |number: u8| {
        let ones = "ff".repeat(300);
        format!(
            r#"["", "6b7640", "000000000000000{number}", "6669727374"], ["", "6b7640", "000000000000000{number}", "{ones}"], ["", "", "ffffffffffffffff", ""]"#
        )
    };
    let short = |text: String| text.replace(&"ff".repeat(300), "long");
    for (name, number) in [("dealer", 7), ("request", 8), ("named", 9)] {
        let said = peers.said.recv_timeout(LONG).expect("it says something");
        let expected = match name {
            // A REQ socket takes the first, without the empty part.
            "request" => r#"["request", ["6b7640", "0000000000000008", "6669727374"]]"#.to_owned(),
            _ => format!(r#"["{name}", [{}]]"#, answers(number)),
        };
        assert_eq!(short(said), short(expected));
    }
    peers.expect(r#"["wrong", true]"#);
    peers.expect(r#"["wrong", true]"#);
    peers.expect(r#"["plain", false]"#);
    // A peer may see the end of its connection before the publisher has counted it.
    let begun = Instant::now();
    while publisher.figures().expelled < 3 {
        assert!(begun.elapsed() < LONG, "the three that do not fit");
        thread::sleep(Duration::from_millis(1));
    }
}
