//! A llama-server within another program: llama-server's library in a Python, as xllamacpp has it. Its requests have ids, its slots
//! and its host prompt cache are followed, and it may be stopped and started. The truth is what the engine reuses.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::time::Duration;

use contextpilot_client::{Control, LlamaServer, Prompt};
use contextpilot_control::RequestState;
use contextpilot_testbed::{Index, KillOnDrop, nowhere, or_return, private_folder, skip, until};

use crate::program::{Program, hooked};

const PATIENCE: Duration = Duration::from_secs(120);

/// The program, and what talks to it.
struct Serving {
    _process: KillOnDrop,
    commands: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Serving {
    /// `None`, after a line on stderr, where the server has no library of its own.
    fn start(program: &Program, variables: &[(&str, &str)]) -> Option<Self> {
        let engine = program.library();
        let library = engine.with_file_name("libllama-server-impl.so");
        if !library.exists() {
            skip(format!("there is no {}", library.display()));
            return None;
        }
        let script =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/embedded/fixtures/serves.py");
        let mut command = program.command_of(&script, &library, variables);
        let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = KillOnDrop(pipes.spawn().unwrap());
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let commands = child.stdin.take().unwrap();
        Some(Self {
            _process: child,
            commands,
            lines,
        })
    }

    fn tell(&mut self, command: &str) {
        writeln!(self.commands, "{command}").unwrap();
        assert_eq!(self.lines.next().unwrap().unwrap(), command);
    }

    /// Starts a server with these flags, and waits until its model is loaded.
    fn serve(&mut self, flags: &str) -> LlamaServer {
        let port = nowhere().port();
        self.tell(format!("start {port} {flags}").trim());
        let server = LlamaServer::new(&format!("127.0.0.1:{port}")).unwrap();
        server.wait_ready(PATIENCE).unwrap();
        server
    }
}

/// A prompt that begins as no other.
fn prompt(name: &str) -> Prompt {
    let words = format!(
        "{name} is where it begins; {}",
        "the sea is wide ".repeat(8)
    );
    Prompt::new(words).predict(2)
}

fn ask(server: &LlamaServer, name: &str, slot: impl Into<Option<u32>>) {
    let prompt = prompt(name).id(name);
    let asked = match slot.into() {
        Some(slot) => prompt.slot(slot),
        None => prompt,
    };
    server.complete(&asked).unwrap();
}

/// Whether the engine still has the whole prompt. In the slot of this number, if one is given.
fn reuses(server: &LlamaServer, name: &str, slot: Option<u32>) -> bool {
    let prompt = prompt(name);
    let asked = match slot {
        Some(slot) => prompt.slot(slot),
        None => prompt,
    };
    let got = server.complete(&asked).unwrap();
    got.timings.cached + 1 == got.prompt_tokens
}

/// Exactly these ids must be reported. `kills`: how many reports there were at each kill of the program. What the index had confirmed a
/// moment before a kill may not have been noted, and is then reported again (docs/delivery.md); no life reports an id twice.
#[track_caller]
fn told(index: &Index, kills: &[usize], expected: &[&str]) {
    index.wait_until(|evicted| evicted.len() >= expected.len(), PATIENCE);
    let reports = index.reports();
    let told: BTreeSet<&str> = reports.iter().map(String::as_str).collect();
    assert_eq!(told, expected.iter().copied().collect(), "{reports:?}");
    let mut rest = &reports[..];
    for &kill in kills.iter().rev().chain([&0]) {
        let (before, life) = rest.split_at(kill);
        let distinct: BTreeSet<&String> = life.iter().collect();
        assert_eq!(distinct.len(), life.len(), "{life:?} in one life");
        rest = before;
    }
}

#[test]
fn requests_of_a_server_within_a_program_have_ids_and_it_may_be_stopped_and_started() {
    let program = or_return!(Program::find());
    let (store, state) = (private_folder(), private_folder());
    let index = Index::start().unwrap();
    let listen = format!("unix:{}", program.folder().join("control.sock").display());
    let mut kills = Vec::new();
    for stored in [false, true] {
        let url = index.url();
        let hooked = hooked(store.path());
        let hooked = hooked
            .into_iter()
            .filter(|(name, _)| stored || !name.contains("STORE"));
        let more = [
            ("CONTEXTPILOT_INDEX_URL", url.as_str()),
            ("CONTEXTPILOT_LISTEN", &listen),
            ("XDG_STATE_HOME", state.path().to_str().unwrap()),
        ];
        let variables: Vec<_> = hooked.chain(more).collect();
        let mut serving = or_return!(Serving::start(&program, &variables));
        let before = index.evicted().len();
        assert_eq!(before, if stored { 7 } else { 0 });
        let name = |name: &str| format!("{name}-{stored}");
        let [a, b, c, d, e, f, g] = ["a", "b", "c", "d", "e", "f", "g"].map(name);
        let earlier: Vec<String> = if stored {
            ["a", "b", "c", "d", "e", "f", "g"]
                .map(|one| format!("{one}-false"))
                .to_vec()
        } else {
            Vec::new()
        };
        let told_now = |kills: &[usize], now: &[&String]| {
            let all: Vec<&str> = earlier
                .iter()
                .chain(now.iter().copied())
                .map(String::as_str)
                .collect();
            told(&index, kills, &all);
        };

        // The host prompt cache is off: what is overwritten is gone.
        let server = serving.serve("--cache-ram 0");
        let control = Control::new(&listen).unwrap();
        ask(&server, &a, 0);
        ask(&server, &b, 1);
        ask(&server, &c, 0);
        told_now(&kills, &[&a]);
        assert!(reuses(&server, &b, Some(1)) && reuses(&server, &c, Some(0)));
        // This overwrites c. With a store, its own tokens are loaded, which the server does not know of.
        assert!(!reuses(&server, &a, Some(0)));
        told_now(&kills, &[&a, &c]);
        let stats = control.stats().unwrap();
        let attached = &stats.engine.attached;
        for part in [
            "KV cache",
            "request ids",
            "slot assignment",
            "host prompt cache",
        ] {
            assert!(attached.iter().any(|one| one == part), "{attached:?}");
        }
        assert_eq!(stats.slots.len(), 2, "{:?}", stats.slots);
        serving.tell("stop");
        told_now(&kills, &[&a, &b, &c]);

        // With one, what leaves its slot is in host memory. (One that is named is overwritten.)
        let server = serving.serve("");
        ask(&server, &d, None);
        ask(&server, &e, None);
        ask(&server, &f, None);
        let found = control.request(&d).unwrap();
        assert!(matches!(found, RequestState::Cached { .. }), "{found:?}");
        assert!(reuses(&server, &d, None));
        told_now(&kills, &[&a, &b, &c]);
        serving.tell("stop");
        told_now(&kills, &[&a, &b, &c, &d, &e, &f]);

        // Killed: the next start of the program tells what this one held, though its ports are others.
        let server = serving.serve("");
        ask(&server, &g, 0);
        until("the id is kept", || {
            let files = std::fs::read_dir(state.path().join("contextpilot-llama")).unwrap();
            let mut files = files.map(|file| std::fs::read(file.unwrap().path()).unwrap());
            let holds = files.any(|file| file.windows(g.len()).any(|part| part == g.as_bytes()));
            holds.then_some(())
        });
        drop(serving);
        kills.push(index.reports().len());
        if stored {
            continue;
        }
        let mut next = Serving::start(&program, &variables).unwrap();
        next.serve("");
        told_now(&kills, &[&a, &b, &c, &d, &e, &f, &g]);
        drop(next);
        kills.push(index.reports().len());
    }
}

/// Both number their tasks and slots from 0. Nothing of either is believed then.
#[test]
fn of_two_servers_at_once_in_a_program_no_request_counts_as_cached() {
    let program = or_return!(Program::find());
    let (index, state) = (Index::start().unwrap(), private_folder());
    let url = index.url();
    let variables = [
        ("LD_PRELOAD", hooked(state.path())[0].1),
        ("CONTEXTPILOT_ENGINE", "1"),
        ("CONTEXTPILOT_INDEX_URL", url.as_str()),
        ("XDG_STATE_HOME", state.path().to_str().unwrap()),
    ];
    let mut serving = or_return!(Serving::start(&program, &variables));
    let first = serving.serve("");
    ask(&first, "a", 0);
    let second = serving.serve("");
    ask(&second, "b", 0);
    ask(&first, "c", 1);
    // The second's was never believed to be cached, and c came when nothing was believed any more.
    let is_told = index.wait_until(|evicted| evicted.contains("a"), PATIENCE);
    assert!(is_told, "{:?}", index.reports());
}
