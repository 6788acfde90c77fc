//! Which requests the control endpoint answers, where it listens, and what happens if it cannot listen.

use crate::support::{Hooked, LAUNCHER, ask, bare, until};
use contextpilot_control::{RequestName, Stats, Tree};
use contextpilot_testbed::{Arch, Connection, Model, Request, Response, Server};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

fn send(hooked: &Hooked, request: &str) -> Response {
    let mut connection = Connection::open(hooked.control).unwrap();
    connection.write(request.as_bytes()).unwrap();
    connection.response().unwrap()
}

#[test]
fn requests_by_web_pages_are_refused() {
    let hooked = Hooked::observing(&bare(1));
    hooked.complete(&ask(1, 60).id("req-1"));
    hooked.settled(1);
    for headers in [
        "Host: attacker.example:8890\r\n",
        "Host: attacker.example\r\nHost: localhost\r\n",
        "Host: localhost\r\nOrigin: http://attacker.example\r\n",
        "Host: localhost\r\nOrigin: null\r\n",
        "Host: localhost\r\nSec-Fetch-Site: cross-site\r\n",
    ] {
        for request in ["POST /reset", "GET /stats"] {
            let response = send(&hooked, &format!("{request} HTTP/1.1\r\n{headers}\r\n"));
            assert!([403, 421].contains(&response.status), "{headers}");
        }
    }
    assert_eq!(hooked.stats().tokens.live_requests, 1);
    assert_eq!(hooked.stats().control.unwrap().refused, 10);
    for host in ["127.0.0.1", "[::1]:1", "localhost:8890"] {
        let response = send(
            &hooked,
            &format!("GET /stats HTTP/1.1\r\nHost: {host}\r\n\r\n"),
        );
        assert_eq!(response.status, 200, "{host}");
    }
}

/// A browser marks what our own page reads so, and nothing else.
#[test]
fn the_page_of_the_endpoint_may_read_and_do_nothing_else() {
    let hooked = Hooked::observing(&bare(1));
    hooked.complete(&ask(1, 60).id("req-1"));
    hooked.settled(1);
    let own = "Host: 127.0.0.1:1\r\nSec-Fetch-Site: same-origin\r\n";
    let status = |request: &str, more: &str| {
        send(&hooked, &format!("{request} HTTP/1.1\r\n{own}{more}\r\n")).status
    };
    for path in [
        "/stats",
        "/tree",
        "/requests/last",
        "/requests/req-1",
        "/metrics",
    ] {
        assert_eq!(status(&format!("GET {path}"), ""), 200, "{path}");
    }
    let origin = "Origin: http://127.0.0.1:1\r\n";
    for (request, more) in [
        ("POST /reset", ""),
        ("POST /reset", origin),
        ("POST /match", ""),
        ("POST /requests", ""),
        ("GET /stats", origin),
        ("GET /stats", "Sec-Fetch-Site: cross-site\r\n"),
    ] {
        assert_eq!(status(request, more), 403, "{request} {more}");
    }
    let foreign =
        "GET /stats HTTP/1.1\r\nHost: attacker.example\r\nSec-Fetch-Site: same-origin\r\n\r\n";
    assert_eq!(send(&hooked, foreign).status, 421);
    assert_eq!(hooked.stats().tokens.live_requests, 1);
}

#[test]
fn browsers_get_a_page_without_the_token_and_nothing_with_data_in_it() {
    let hooked = Hooked::observing(&bare(1).env("CONTEXTPILOT_LISTEN_TOKEN", "s3same"));
    hooked.complete(&ask(1, 60).id("req-secret"));
    let browser =
        "Host: any.example\r\nAccept: text/html,*/*\r\nAccept-Encoding: gzip, deflate\r\n";
    let get = |path: &str| send(&hooked, &format!("GET {path} HTTP/1.1\r\n{browser}\r\n"));
    let page = get("/");
    assert_eq!(page.status, 200);
    assert_eq!(page.header("content-encoding"), Some("deflate"));
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.starts_with("default-src 'none'"), "{policy}");
    for path in [
        "/stats",
        "/tree",
        "/events",
        "/requests/last",
        "/metrics",
        "/x",
    ] {
        assert_eq!(get(path).status, 401, "{path}");
    }
}

#[test]
fn the_tree_has_the_branches_that_were_asked_for() {
    let hooked = Hooked::observing(&bare(2));
    let system = "z".repeat(100);
    for (slot, id) in [(0, "tea"), (1, "sea")] {
        let prompt = format!("{system}{}", id.repeat(20));
        hooked.complete(&Request::completion(prompt).id(id).slot(slot));
    }
    hooked.settled(2);
    let tree = |query: &str| -> Tree {
        let response = hooked.get(&format!("/tree{query}"));
        assert_eq!(response.status, 200, "{}", response.text());
        serde_json::from_str(&response.text()).unwrap()
    };
    let whole = tree("");
    let held: u32 = whole.branches.iter().map(|one| one.to - one.from).sum();
    assert_eq!(u64::from(held), hooked.stats().tokens.resident);
    let of = |id: &str| {
        let name = RequestName::Id(id.to_owned());
        let found = whole
            .branches
            .iter()
            .find(|one| one.requests.contains(&name));
        found.unwrap().clone()
    };
    let (tea, sea) = (of("tea"), of("sea"));
    assert_eq!((&*tea.slots, &*sea.slots), (&[0][..], &[1][..]));
    assert_eq!(tea.parent, sea.parent);
    let shared = &whole.branches[tea.parent.unwrap()];
    assert_eq!((&*shared.slots, shared.from), (&[0, 1][..], 0));
    assert_eq!(tree("?most=1").branches.len(), 1);
    assert_eq!(hooked.get("/tree?most=x").status, 400);
}

#[test]
fn unknown_paths_and_methods_get_an_error() {
    let hooked = Hooked::observing(&bare(1));
    for (method, path, status) in [
        ("GET", "/", 200),
        ("GET", "/stats?x=1", 200),
        ("GET", "/reset", 405),
        ("POST", "/stats", 405),
        ("GET", "/slots", 404),
        ("GET", "/requests/", 404),
    ] {
        let response = hooked.exchange(method, path);
        assert_eq!(
            response.status,
            status,
            "{method} {path}: {}",
            response.text()
        );
    }
    let refused = send(
        &hooked,
        "GET /stats HTTP/1.1\r\nContent-Length: 5000000\r\n\r\n",
    );
    assert_eq!(refused.status, 413);
}

#[test]
fn with_a_token_every_request_must_carry_it() {
    let hooked = Hooked::observing(&bare(1).env("CONTEXTPILOT_LISTEN_TOKEN", "s3same"));
    let ask = |headers: &str| {
        let request = format!("GET /stats HTTP/1.1\r\nHost: any.example\r\n{headers}\r\n");
        send(&hooked, &request).status
    };
    assert_eq!(ask(""), 401);
    assert_eq!(ask("Authorization: Bearer s3samE\r\n"), 401);
    assert_eq!(ask("Authorization: Bearer s3same\r\n"), 200);
    assert!(!hooked.server.stderr().contains("s3same"));
}

/// A kubelet sends its probes without the token, to an address of the pod.
#[test]
fn without_the_token_probes_get_a_status_and_no_reason() {
    let hooked = Hooked::observing(&bare(1).env("CONTEXTPILOT_LISTEN_TOKEN", "s3same"));
    let ask = |path: &str, headers: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nHost: 192.0.2.7:8890\r\n{headers}\r\n");
        let answer = send(&hooked, &request);
        (answer.status, answer.text())
    };
    let kubelet = "User-Agent: kube-probe/1.31\r\nAccept: */*\r\n";
    let token = "Authorization: Bearer s3same\r\n";
    for (path, reason) in [("/health", "serves"), ("/ready", "no index")] {
        let (status, text) = ask(path, kubelet);
        assert_eq!(status, 200, "{path}: {text}");
        assert!(text.contains(r#""status":"ok""#), "{path}: {text}");
        assert!(!text.contains(reason), "{path}: {text}");
        let (status, text) = ask(path, token);
        assert_eq!(status, 200, "{path}: {text}");
        assert!(text.contains(reason), "{path}: {text}");
        let page = "Origin: http://192.0.2.7:8890\r\n";
        assert_eq!(ask(path, page).0, 401, "{path}");
    }
    for path in ["/", "/stats", "/metrics", "/health/", "/requests/ready"] {
        assert_eq!(ask(path, kubelet).0, 401, "{path}");
    }
}

fn get(socket: &Path, target: &str) -> Option<String> {
    let mut stream = UnixStream::connect(socket).ok()?;
    let request = format!("GET {target} HTTP/1.1\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

#[test]
fn a_unix_socket_is_private_and_removed_when_the_server_ends() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control");
    let builder = bare(1)
        .launcher(LAUNCHER)
        .env("CONTEXTPILOT_LISTEN", format!("unix:{}", path.display()));
    let mut server = builder.spawn().unwrap();
    let health = || get(&path, "/health");
    until("it answers", || {
        health().filter(|answer| answer.starts_with("HTTP/1.1 200 OK"))
    });
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    // A killed server leaves the socket file, and the next server replaces it.
    server.stop(libc::SIGKILL).unwrap();
    assert!(path.exists());
    let mut server = builder.spawn().unwrap();
    until("it answers again", health);
    // A llama-server may miss the signal before its first answer.
    server.complete(&ask(1, 60)).unwrap();
    server.stop(libc::SIGTERM).unwrap();
    assert!(!path.exists());
}

#[test]
fn if_the_port_is_in_use_the_server_runs_without_the_endpoint() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let server = bare(1)
        .launcher(LAUNCHER)
        .env("CONTEXTPILOT_LISTEN", address.to_string())
        .spawn()
        .unwrap();
    let line = until("it says so", || {
        let stderr = server.stderr();
        let mut lines = stderr.lines();
        lines
            .find(|line| line.contains("cannot listen"))
            .map(str::to_owned)
    });
    assert!(line.contains("[ContextPilot] Control endpoint"), "{line}");
    assert!(line.contains(&address.to_string()), "{line}");
    assert!(line.contains("in use"), "{line}");
    server.complete(&ask(1, 60).id("req-1")).unwrap();
    assert_eq!(server.control(), None);
}

/// A router starts a server for each model, all with the same environment. So all of them try to
/// listen at the same address.
#[test]
fn in_router_mode_the_first_server_gets_the_address() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["tea", "sea"] {
        let model = Model::tiny(Arch::Llama);
        std::fs::copy(model.path(), folder.path().join(format!("{name}.gguf"))).unwrap();
    }
    let socket = folder.path().join("control");
    let router = Server::builder()
        .args(["--models-dir".into(), folder.path().as_os_str().to_owned()])
        .launcher(LAUNCHER)
        .env("CONTEXTPILOT_LISTEN", format!("unix:{}", socket.display()))
        .spawn()
        .unwrap();
    assert!(!socket.exists(), "the router loads no model");
    for name in ["tea", "sea"] {
        let request = ask(1, 60).id(format!("req-{name}")).with("model", name);
        until("the model answers", || router.complete(&request).ok());
        // The second model is loaded only after the first server listens.
        until("one of them listens", || get(&socket, "/health"));
    }
    let said = |what: &str| {
        let all = format!("{}{}", router.stderr(), router.stdout());
        all.lines()
            .filter(|line| line.contains("[ContextPilot] Control endpoint: "))
            .filter(|line| line.contains(what))
            .count()
    };
    until("both have tried", || {
        (said("endpoint: unix:") == 1 && said("cannot listen") == 1).then_some(())
    });
    let stats = until("it answers", || get(&socket, "/stats"));
    let body = stats.split_once("\r\n\r\n").unwrap().1;
    let stats: Stats = serde_json::from_str(body).unwrap();
    assert_eq!(stats.model.unwrap().name, "tea");
}

#[test]
fn what_the_endpoint_refuses_is_counted() {
    let hooked = Hooked::observing(&bare(1));
    let refused = || hooked.stats().control.unwrap().refused;
    let host = "Host: localhost\r\n";
    let many = "X: y\r\n".repeat(65);
    for (request, status) in [
        ("nothing that is HTTP\r\n\r\n".to_owned(), 505),
        (
            format!("POST /match HTTP/1.1\r\n{host}Content-Length: 9999999\r\n\r\n"),
            413,
        ),
        (format!("GET /stats HTTP/1.1\r\n{host}{many}\r\n"), 431),
    ] {
        let before = refused();
        assert_eq!(send(&hooked, &request).status, status);
        assert_eq!(refused(), before + 1, "{status}");
    }
    // What is answered with an error is no refusal.
    let before = refused();
    assert_eq!(hooked.get("/nothing").status, 404);
    assert_eq!(refused(), before);
    // More than there are places.
    let mut open: Vec<_> = (0..16)
        .map(|_| Connection::open(hooked.control).unwrap())
        .collect();
    until("one too many is turned away", || {
        open.push(Connection::open(hooked.control).ok()?);
        let answer = open.last_mut()?.exchange("GET", "/health", b"").ok()?;
        (answer.status == 503).then_some(())
    });
    drop(open);
    let counted = until("there is a place again", || {
        let mut connection = Connection::open(hooked.control).ok()?;
        let answer = connection.exchange("GET", "/stats", b"").ok()?;
        let stats: Option<Stats> = answer
            .json()
            .ok()
            .and_then(|value| serde_json::from_value(value).ok());
        Some(stats?.control?.refused)
    });
    assert!(counted > before, "{counted}");
    let page = hooked.get("/metrics").text();
    let metric = page
        .lines()
        .find(|line| line.starts_with("contextpilot_llama_control_refused_total{"));
    let value: u64 = metric.unwrap().rsplit_once(' ').unwrap().1.parse().unwrap();
    assert!(value >= counted, "{metric:?}");
}

#[test]
fn connections_and_their_time_are_settings() {
    let server = bare(1)
        .env("CONTEXTPILOT_LISTEN_CONNECTIONS", "2")
        .env("CONTEXTPILOT_LISTEN_TIMEOUT_MS", "3000");
    let hooked = Hooked::observing(&server);
    let open = || Connection::open(hooked.control).unwrap();
    // Connections of the start may still be about to end.
    let served = || {
        let mut connection = open();
        let answer = connection.exchange("GET", "/health", b"").ok()?;
        (answer.status == 200).then_some(connection)
    };
    let mut first = until("there is a place", served);
    let _second = until("there is another", served);
    assert_eq!(open().exchange("GET", "/health", b"").unwrap().status, 503);
    // Both are closed when they were idle for so long. Either may be the first.
    until("there is room for two again", || {
        let one = served()?;
        let other = served()?;
        Some((one, other))
    });
    assert!(first.exchange("GET", "/health", b"").is_err());
}

#[test]
fn a_client_that_works_the_hook_too_hard_is_made_to_wait_and_others_are_not() {
    let hooked = Hooked::observing(&bare(1));
    // Reading it is all that it costs, and that is done for the connection: the worker, which is paid for by all of them,
    // never gets it.
    let mut tokens: Vec<_> = (0..320_000).map(|n| Value::from(n % 97)).collect();
    tokens.push("no number".into());
    let heavy = json!({ "tokens": tokens }).to_string();
    let spent = || Duration::from_micros(hooked.stats().control.unwrap().work_us);
    let others = AtomicUsize::new(0);
    let (begun, enough) = (Instant::now(), Duration::from_millis(1300));
    let (owed, waits, meanwhile) = std::thread::scope(|scope| {
        let greedy = scope.spawn(|| {
            let mut greedy = Connection::open(hooked.control).unwrap();
            let (mut waits, mut meanwhile) = (0, 0);
            loop {
                let (before, answered) = (spent(), others.load(Ordering::Relaxed));
                let answer = greedy.exchange("POST", "/match", heavy.as_bytes()).unwrap();
                assert_eq!(answer.status, 400, "{}", answer.text());
                if before > Duration::from_secs(1) {
                    waits += 1;
                    meanwhile += others.load(Ordering::Relaxed) - answered;
                }
                if before > enough {
                    return (before - Duration::from_secs(1), waits, meanwhile);
                }
            }
        });
        while !greedy.is_finished() {
            assert_eq!(hooked.get("/health").status, 200);
            others.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(20));
        }
        greedy.join().unwrap()
    });
    // A second of work at once, then a tenth of a second each second. What the others ask takes a little, too.
    assert!(
        begun.elapsed() > 5 * owed,
        "{owed:?} after {:?}",
        begun.elapsed()
    );
    // One that waited for the same debt would be answered as often as the one that caused it.
    assert!(meanwhile > 2 * waits, "{meanwhile} during {waits}");
}
