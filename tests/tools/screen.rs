//! `top` in a terminal, in a pipe, and as a picture.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};

use contextpilot_testbed::{Arch, Model, Request, Server};
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::support::{Watched, good, read, two_slots, until};

const LEAVES: &str = "\u{1b}[?1049l";

/// `top` in a terminal of 80×24.
struct Terminal {
    child: Child,
    keyboard: File,
    user: File,
    seen: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    fn top(watched: &Watched, environment: &[(&str, &str)]) -> Self {
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&controller).unwrap();
        unlockpt(&controller).unwrap();
        let name = ptsname(&controller, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY;
        let user = File::from(rustix::fs::open(&name, flags, Mode::empty()).unwrap());
        let size = Winsize {
            ws_row: 24,
            ws_col: 80,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&user, size).unwrap();
        let stdio = || Stdio::from(user.try_clone().unwrap());
        let child = watched
            .command(&["top", "--interval", "100"])
            .envs(environment.iter().copied())
            .env("TERM", "xterm-256color")
            .stdin(stdio())
            .stdout(stdio())
            .stderr(stdio())
            .spawn()
            .unwrap();
        let keyboard = File::from(controller);
        let mut screen = keyboard.try_clone().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        std::thread::spawn({
            let seen = Arc::clone(&seen);
            move || {
                let mut bytes = [0; 4096];
                while let Ok(read @ 1..) = screen.read(&mut bytes) {
                    seen.lock().unwrap().extend_from_slice(&bytes[..read]);
                }
            }
        });
        Self {
            child,
            keyboard,
            user,
            seen,
        }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.seen.lock().unwrap()).into_owned()
    }

    fn wait_for(&self, part: &str) {
        until(&format!("{part:?} is on the screen"), || {
            self.text().contains(part).then_some(())
        });
    }

    fn end(&mut self) -> ExitStatus {
        until("it ends", || self.child.try_wait().unwrap())
    }

    /// The terminal must be in the state that a shell expects.
    fn assert_restored(&self) {
        self.wait_for(LEAVES);
        let modes = tcgetattr(&self.user).unwrap().local_modes;
        assert!(
            modes.contains(LocalModes::ICANON | LocalModes::ECHO),
            "{modes:?}"
        );
    }
}

#[test]
fn top_shows_the_cache_until_q_is_pressed() {
    let watched = Watched::start(two_slots());
    let mut top = Terminal::top(&watched, &[]);
    top.wait_for("Slots");
    top.wait_for("Ids evicted");
    let mut number = 0;
    // Each prompt evicts the one before. Evictions from before `top` has connected are not shown,
    // so this is repeated.
    until("an eviction is shown", || {
        number += 1;
        let text = format!("{number} is a number that no other prompt begins with.");
        let id = format!("req-{number}");
        watched.complete(Request::completion(text).id(id).slot(0));
        top.text().contains("overwritten").then_some(())
    });
    assert!(top.text().contains("\u{1b}[38;"), "there are colours");
    top.keyboard.write_all(b"q").unwrap();
    assert!(top.end().success());
    top.assert_restored();
}

/// A line on stderr would stand in what is drawn.
#[test]
fn while_top_replays_requests_no_line_of_that_stands_on_the_screen() {
    let model = Model::tiny(Arch::Llama);
    let one_slot = Server::builder().model(&model).bare_slots(1);
    let watched = Watched::start(one_slot);
    let text =
        |nth: usize| format!("{nth} is what this begins with. ") + &"It goes on. ".repeat(40);
    for nth in [1, 2, 1, 2] {
        watched.complete(Request::completion(text(nth)).predict(1));
    }
    let mut top = Terminal::top(&watched, &[]);
    top.wait_for("Try ");
    assert!(!top.text().contains("simulations"), "{:?}", top.text());
    top.keyboard.write_all(b"q").unwrap();
    assert!(top.end().success());
}

#[test]
fn after_a_signal_top_restores_the_terminal() {
    let watched = Watched::start(two_slots());
    let mut top = Terminal::top(&watched, &[("NO_COLOR", "1")]);
    top.wait_for("Slots");
    let pid = rustix::process::Pid::from_child(&top.child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(top.end().signal(), Some(libc::SIGTERM));
    top.assert_restored();
    assert!(!top.text().contains("\u{1b}[38;"), "{:?}", top.text());
}

#[test]
fn in_a_pipe_top_prints_one_snapshot() {
    let watched = Watched::start(two_slots());
    watched.complete(Request::completion("Tea is picked in spring.").id("tea"));
    watched.wait_state("tea", "cached");
    let text = watched.text(&["top"]);
    assert!(text.starts_with("llama.cpp "), "{text}");
    assert!(
        text.contains("host cache") && !text.contains('\u{1b}'),
        "{text}"
    );
    assert_eq!(watched.json(&["top"])["requests"]["with_id"], 1);
}

#[test]
fn without_a_terminal_top_draws_a_picture() {
    let watched = Watched::start(two_slots());
    watched.complete(Request::completion("Tea is picked in spring.").id("tea"));
    watched.wait_state("tea", "cached");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("top.svg");
    let path = file.to_str().unwrap();
    let mut command = watched.command(&["top", "--picture", path, "--watch", "0"]);
    good(&command.output().unwrap());
    let svg = read(&file);
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    for part in ["tea", "Slots by id", "Reused, 1 min"] {
        assert!(svg.contains(part), "{part:?} is not in {svg}");
    }
}
