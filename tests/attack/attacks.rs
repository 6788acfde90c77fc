//! The attacks of issue 28, and their relatives.

use std::thread;
use std::time::{Duration, Instant};

use contextpilot_zmtp::{Session, encode};
use serde_json::json;

use super::dice::Dice;
use super::peers::{Raw, Sent, ask, crowd, request};
use super::target::{Front, Target};

pub(crate) struct Attack {
    pub(crate) name: &'static str,
    run: Run,
    /// The server itself gets large requests, and takes memory for them without the hook, too.
    pub(crate) fills: bool,
}

enum Run {
    /// What the hook listens at.
    Hook(fn(&Target, &mut Dice, Instant) -> Sent),
    /// What there is before a server without the hook as well.
    Front(fn(&Front, &mut Dice, Instant) -> Sent),
}

impl Attack {
    pub(crate) fn run(&self, target: &Target, dice: &mut Dice, until: Instant) -> Sent {
        match self.run {
            Run::Hook(run) => run(target, dice, until),
            Run::Front(run) => run(&target.front, dice, until),
        }
    }

    /// The same at a plain server, as far as it has what is attacked.
    pub(crate) fn run_at_plain(&self, front: &Front, dice: &mut Dice, until: Instant) -> Sent {
        match self.run {
            Run::Hook(_) => Sent::default(),
            Run::Front(run) => run(front, dice, until),
        }
    }

    const fn at_hook(name: &'static str, run: fn(&Target, &mut Dice, Instant) -> Sent) -> Self {
        Self {
            name,
            run: Run::Hook(run),
            fills: false,
        }
    }

    const fn at_front(name: &'static str, run: fn(&Front, &mut Dice, Instant) -> Sent) -> Self {
        Self {
            name,
            run: Run::Front(run),
            fills: false,
        }
    }

    const fn filling(self) -> Self {
        Self {
            fills: true,
            ..self
        }
    }
}

pub(crate) const ATTACKS: &[Attack] = &[
    Attack::at_front("nobody", nobody),
    Attack::at_hook("events: subscriptions repeated", subscriptions),
    Attack::at_hook("events: PINGs that nobody reads", pings),
    Attack::at_hook("events: idle peers", idle_peers),
    Attack::at_hook("events: replays", replays),
    Attack::at_hook("events: anything", anything_at_events),
    Attack::at_hook("control: queries", queries),
    Attack::at_hook("control: unfinished requests", unfinished_control),
    Attack::at_front("server: broken and smuggled requests", smuggled),
    Attack::at_front("server: hostile ids", ids),
    Attack::at_front("index: large contexts", large_contexts),
    Attack::at_front("index: large bodies", large_bodies).filling(),
    Attack::at_front("index: unfinished bodies", unfinished_index),
    Attack::at_front("index: answers that nobody reads", unread),
    Attack::at_front("gateway: unfinished bodies", unfinished_gateway),
    Attack::at_front("gateway: prompts to render", rendered).filling(),
];

/// To compare with.
fn nobody(_: &Front, _: &mut Dice, until: Instant) -> Sent {
    thread::sleep(until.saturating_duration_since(Instant::now()));
    Sent::default()
}

/// A ZeroMQ peer after its handshake.
fn peer(address: std::net::SocketAddr, kind: &str, sent: &Sent) -> Raw {
    let mut raw = Raw::open(address);
    let mut ready = b"\x05READY\x0bSocket-Type\0\0\0".to_vec();
    ready.push(kind.len() as u8);
    ready.extend_from_slice(kind.as_bytes());
    let ready = [&[4, ready.len() as u8], &ready[..]].concat();
    raw.say(&[&Session::greeting()[..], &ready].concat(), sent);
    raw
}

fn subscriptions(target: &Target, dice: &mut Dice, until: Instant) -> Sent {
    crowd(8, dice, until, |dice, sent| {
        let mut peer = peer(target.events, "SUB", sent);
        for nth in 0..63_u8 {
            let topic = vec![nth + 1; 1 + dice.below(4000)];
            peer.say(&encode(&[&[b"\x01", &topic[..]].concat()]), sent);
        }
        let again = b"\0\x01\x01".repeat(2000);
        while Instant::now() < until && peer.say(&again, sent) {}
    })
}

fn pings(target: &Target, dice: &mut Dice, until: Instant) -> Sent {
    crowd(32, dice, until, |_, sent| {
        let mut peer = peer(target.events, "SUB", sent);
        let many = b"\x04\x09\x04PING\0\0on".repeat(1000);
        while Instant::now() < until && peer.say(&many, sent) {}
    })
}

fn idle_peers(target: &Target, dice: &mut Dice, until: Instant) -> Sent {
    crowd(48, dice, until, |dice, sent| {
        let mut peer = match dice.below(3) {
            0 => Raw::open(target.events),
            1 => peer(target.events, "SUB", sent),
            _ => peer(target.replays, "DEALER", sent),
        };
        peer.hear();
        thread::sleep(Duration::from_millis(dice.below(300) as u64));
    })
}

fn replays(target: &Target, dice: &mut Dice, until: Instant) -> Sent {
    crowd(8, dice, until, |_, sent| {
        let mut peer = peer(target.replays, "DEALER", sent);
        let from_the_beginning = encode(&[b"", &0_u64.to_be_bytes()]);
        while Instant::now() < until && peer.say(&from_the_beginning, sent) {
            peer.hear();
        }
    })
}

fn anything_at_events(target: &Target, dice: &mut Dice, until: Instant) -> Sent {
    crowd(4, dice, until, |dice, sent| {
        let address = *dice.one(&[target.events, target.replays]);
        let mut peer = match dice.below(2) {
            0 => Raw::open(address),
            _ => peer(address, "SUB", sent),
        };
        let bytes: Vec<u8> = (0..dice.below(5000))
            .map(|_| dice.below(256) as u8)
            .collect();
        peer.say(&bytes, sent);
    })
}

fn queries(target: &Target, dice: &mut Dice, until: Instant) -> Sent {
    let ids: Vec<String> = (0..1000).map(|n| format!("neighbour-{n}")).collect();
    let ids = json!({ "ids": ids }).to_string();
    let tokens: Vec<u32> = (0..100_000).map(|n| n % 97).collect();
    let tokens = json!({ "tokens": tokens }).to_string();
    crowd(16, dice, until, |dice, sent| {
        let (method, path, body) = *dice.one(&[
            ("GET", "/stats", ""),
            ("GET", "/metrics", ""),
            ("GET", "/requests/last?n=10000", ""),
            ("POST", "/requests", &ids),
            ("POST", "/match", &tokens),
            ("POST", "/match", "{\"tokens\": [1"),
        ]);
        ask(target.control, method, path, body.as_bytes(), sent);
    })
}

/// A part of a request, and then nothing. Those that were opened stay, until there are so many.
fn unfinished(
    address: std::net::SocketAddr,
    most: usize,
    paths: &[&str],
    dice: &mut Dice,
    until: Instant,
) -> Sent {
    crowd(4, dice, until, |dice, sent| {
        let mut open = Vec::new();
        while Instant::now() < until {
            let path = dice.one(paths);
            let whole = request("POST", path, &[b' '; 2000]);
            let mut raw = Raw::open(address);
            raw.say(&whole[..1 + dice.below(whole.len() - 1)], sent);
            open.push(raw);
            if open.len() >= most / 4 {
                thread::sleep(Duration::from_millis(20));
                open.swap_remove(dice.below(open.len()));
            }
        }
    })
}

fn unfinished_control(target: &Target, dice: &mut Dice, until: Instant) -> Sent {
    unfinished(
        target.control,
        64,
        &["/match", "/requests", "/reset"],
        dice,
        until,
    )
}

fn unfinished_index(front: &Front, dice: &mut Dice, until: Instant) -> Sent {
    let paths = [
        "/evict",
        "/reorder",
        "/v1/completions",
        "/deduplicate",
        "/ready",
    ];
    unfinished(front.index.address, 1400, &paths, dice, until)
}

fn unfinished_gateway(front: &Front, dice: &mut Dice, until: Instant) -> Sent {
    let paths = [
        "/v1/completions/render",
        "/v1/chat/completions/render",
        "/health",
    ];
    unfinished(front.gateway.address, 1400, &paths, dice, until)
}

fn smuggled(front: &Front, dice: &mut Dice, until: Instant) -> Sent {
    let body = r#"{"prompt": "x", "n_predict": 1, "rid": "smuggled"}"#;
    let inner = String::from_utf8(request("POST", "/completion", body.as_bytes())).unwrap();
    let heads = [
        "Content-Length: 3\r\nContent-Length: 300\r\n",
        "Content-Length: +3\r\n",
        "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        "Transfer-Encoding : chunked\r\n",
        "Transfer-Encoding: \x0bchunked\r\n",
        "Content-Length: 0x3\r\n",
        "Expect: 100-continue\r\nContent-Length: 3\r\n",
        " Content-Length: 3\r\n",
        "Content-Length: 99999999999999999999\r\n",
    ];
    crowd(4, dice, until, |dice, sent| {
        let head = dice.one(&heads);
        let start = format!("POST /completion HTTP/1.1\r\nHost: localhost\r\n{head}\r\n");
        let mut bytes = [start.as_bytes(), b"0\r\n\r\n", inner.as_bytes()].concat();
        for _ in 0..dice.below(4) {
            let at = dice.below(bytes.len());
            bytes[at] = dice.below(256) as u8;
        }
        bytes.truncate(1 + dice.below(2 * bytes.len()));
        let at = *dice.one(&[front.server.address(), front.index.address]);
        let mut raw = Raw::open(at).impatient();
        raw.say(&bytes, sent);
        raw.hear();
    })
}

fn ids(front: &Front, dice: &mut Dice, until: Instant) -> Sent {
    crowd(2, dice, until, |dice, sent| {
        let id = match dice.below(5) {
            0 => "x".repeat(dice.below(100_000)),
            1 => "\u{0}\u{1b}[2J\r\n\"\\".repeat(dice.below(60)),
            2 => "\u{202e}\u{10ffff}".repeat(dice.below(60)),
            3 => "../../../etc/passwd%00".to_owned(),
            _ => format!("neighbour-{}", dice.below(100)),
        };
        let body = json!({"prompt": "x", "n_predict": 1, "rid": id, "request_id": [id]});
        ask(
            front.server.address(),
            "POST",
            "/completion",
            body.to_string().as_bytes(),
            sent,
        );
    })
}

fn large_contexts(front: &Front, dice: &mut Dice, until: Instant) -> Sent {
    crowd(4, dice, until, |dice, sent| {
        let first = dice.below(1 << 30);
        let documents: Vec<usize> = (first..first + 10_000).collect();
        let some = &documents[..1 + dice.below(40)];
        let hint = "{current_docs} {previous_docs}".repeat(30);
        let body = match dice.below(4) {
            0 => json!({"contexts": [documents]}),
            1 => json!({"contexts": [documents], "importance_note": true, "order": "none"}),
            2 => json!({"contexts": vec![some; 200], "order": "clustered"}),
            _ => json!({"contexts": [documents], "deduplicate": true, "hint_template": hint,
                        "parent_request_ids": ["nobody"]}),
        };
        let path = *dice.one(&["/reorder", "/reorder", "/schedule", "/deduplicate"]);
        ask(
            front.index.address,
            "POST",
            path,
            body.to_string().as_bytes(),
            sent,
        );
    })
}

fn large_bodies(front: &Front, dice: &mut Dice, until: Instant) -> Sent {
    let id = format!("\"{}\",", "x".repeat(150));
    let ids = format!("{{\"request_ids\": [{}\"x\"]}}", id.repeat(99_998));
    let values = format!("{{\"contexts\": [{}1]}}", "[],".repeat(5_000_000));
    let text = format!("\"{}\",", "y".repeat(100_000));
    let texts = format!("{{\"contexts\": [[{}\"y\"]]}}", text.repeat(300));
    crowd(8, dice, until, |dice, sent| {
        let (path, body) = *dice.one(&[
            ("/evict", &ids),
            ("/evict", &values),
            ("/reorder", &values),
            ("/reorder", &texts),
            ("/v1/completions", &texts),
        ]);
        ask(front.index.address, "POST", path, body.as_bytes(), sent);
    })
}

/// Asks for long answers, and reads none.
fn unread(front: &Front, dice: &mut Dice, until: Instant) -> Sent {
    let contexts: Vec<Vec<String>> = (0..500)
        .map(|n| vec![format!("{n} {}", "z".repeat(2000))])
        .collect();
    let body = json!({"contexts": contexts, "order": "none"}).to_string();
    crowd(8, dice, until, |dice, sent| {
        let mut open = Vec::new();
        while Instant::now() < until && open.len() < 60 {
            let mut raw = Raw::open(front.index.address);
            let asked = match dice.below(2) {
                0 => request("GET", "/requests", b""),
                _ => request("POST", "/reorder", body.as_bytes()),
            };
            raw.say(&asked, sent);
            open.push(raw);
        }
    })
}

fn rendered(front: &Front, dice: &mut Dice, until: Instant) -> Sent {
    let many = json!({"prompt": vec!["x"; 200_000]}).to_string();
    let long = json!({"prompt": "x".repeat(2_000_000)}).to_string();
    let tokens = json!({"prompt": vec![1; 1_000_000]}).to_string();
    let few = json!({"prompt": vec!["word"; 50]}).to_string();
    crowd(4, dice, until, |dice, sent| {
        let body = *dice.one(&[&many, &tokens, &few, &few, &long]);
        ask(
            front.gateway.address,
            "POST",
            "/v1/completions/render",
            body.as_bytes(),
            sent,
        );
    })
}
