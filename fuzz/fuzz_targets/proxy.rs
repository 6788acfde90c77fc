//! Whatever a client and the server behind the proxy send, nothing panics, each side gets whole messages or none, and a
//! page of another machine is never allowed to read an answer.
//!
//! The first byte of an input selects the side. For the server's, the client sends a request in order, and the rest of
//! the input is the server's answer. For the client's, the rest is the request, and the server answers in order.
#![no_main]

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use contextpilot_proxy::{Handler, Limits, Request, Response, Tally, Upstream, run};
use contextpilot_settings::AllowedHosts;
use libfuzzer_sys::fuzz_target;

/// What the server sends next, and what it was sent last.
static SERVER: Mutex<(Vec<u8>, Vec<u8>)> = Mutex::new((Vec::new(), Vec::new()));
static PROXY: LazyLock<SocketAddr> = LazyLock::new(start);

struct Behind(Upstream);

impl Handler for Behind {
    /// Both ways to be served have their inputs.
    fn urgent(&self, _: &str, path: &str) -> bool {
        path.len() % 2 == 0
    }

    async fn handle(&self, request: Request) -> Response {
        self.0.forward(request).await
    }
}

fn start() -> SocketAddr {
    // A panic on any thread is a finding.
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        usual(info);
        std::process::abort();
    }));
    let path = std::env::temp_dir().join(format!("proxy-fuzz-{}", std::process::id()));
    let behind = UnixListener::bind(&path).expect("a socket");
    std::thread::spawn(move || {
        for stream in behind.incoming() {
            let mut stream = stream.expect("a connection");
            let _ = stream.set_read_timeout(Some(Duration::from_millis(200)));
            let mut all = Vec::new();
            let mut some = [0; 8192];
            while !is_whole(&all) {
                match stream.read(&mut some) {
                    Ok(length) if length > 0 => all.extend_from_slice(&some[..length]),
                    _ => break,
                }
            }
            let mut server = SERVER.lock().unwrap();
            let _ = stream.write_all(&server.0);
            server.1 = all;
        }
    });
    let upstream = Upstream::new(&format!("unix:{}", path.display())).expect("an address");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        let (hosts, limits) = (AllowedHosts::default(), Limits::default());
        run(
            listener,
            Behind(upstream),
            hosts,
            limits,
            Arc::<Tally>::default(),
        )
        .expect("it serves");
    });
    address
}

/// Whether a request with a `Content-Length`, chunks, or no body has arrived.
fn is_whole(bytes: &[u8]) -> bool {
    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
        return false;
    };
    let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
    let length = head.split_once("content-length: ");
    let length = length.and_then(|(_, rest)| rest.split("\r\n").next()?.parse().ok());
    if head.contains("transfer-encoding") {
        bytes.ends_with(b"0\r\n\r\n")
    } else {
        bytes.len() - end - 4 >= length.unwrap_or(0)
    }
}

fn answered(request: &[u8], leaves: bool) -> Vec<u8> {
    let mut client = TcpStream::connect(*PROXY).expect("the proxy");
    let _ = client.set_read_timeout(Some(Duration::from_secs(10)));
    let _ = client.write_all(request);
    if leaves {
        let _ = client.shutdown(Shutdown::Write);
    }
    let mut answer = Vec::new();
    if let Err(error) = client.read_to_end(&mut answer) {
        let late = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
        assert!(
            !late,
            "no end of an answer: {:?}",
            String::from_utf8_lossy(&answer)
        );
    }
    answer
}

fuzz_target!(|data: &[u8]| {
    let Some((&side, rest)) = data.split_first() else {
        return;
    };
    LazyLock::force(&PROXY);
    match side % 2 {
        0 => {
            SERVER.lock().unwrap().0 = rest.to_vec();
            let request =
                b"GET /slots HTTP/1.1\r\nHost: localhost\r\nOrigin: http://page.example\r\n\
                Connection: close\r\n\r\n";
            let answer = answered(request, false);
            if answer.is_empty() {
                // Only an answer that broke off has none.
                assert!(!rest.is_empty());
                return;
            }
            assert!(answer.starts_with(b"HTTP/1.1 "), "{answer:?}");
            let head = answer.windows(4).position(|four| four == b"\r\n\r\n");
            let head = &answer[..head.expect("a whole head")];
            let head = String::from_utf8_lossy(head).to_ascii_lowercase();
            assert!(!head.contains("\naccess-control-allow-origin"), "{head}");
            if !rest.starts_with(b"HTTP/1.") {
                assert!(head.starts_with("http/1.1 502 "), "{head}");
            }
        }
        _ => {
            {
                let mut server = SERVER.lock().unwrap();
                server.0 =
                    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok".to_vec();
                server.1.clear();
            }
            let answer = answered(rest, true);
            assert!(
                answer.is_empty() || answer.starts_with(b"HTTP/1."),
                "{answer:?}"
            );
            let sent = std::mem::take(&mut SERVER.lock().unwrap().1);
            let Some(end) = sent.windows(4).position(|four| four == b"\r\n\r\n") else {
                return;
            };
            // The server sees one length at most, and never a length with chunks: nothing to smuggle with.
            let head = String::from_utf8_lossy(&sent[..end]).to_ascii_lowercase();
            let lengths = head.matches("\ncontent-length:").count();
            let chunks = head.matches("\ntransfer-encoding:").count();
            assert!(lengths + chunks <= 1, "{head}");
        }
    }
});
