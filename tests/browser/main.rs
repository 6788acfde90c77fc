//! The page in a real browser: what it shows, against what the endpoint of a real server says.
//!
//! `page/test/browser.mjs` drives the browser. `scripts/page` fetches what it needs; without node or a Chromium
//! these tests say that they are skipped, and so do two of them without a Firefox.

mod recording;
#[path = "../control/support.rs"]
#[allow(dead_code, reason = "each test program uses a part of it")]
mod support;

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use contextpilot_testbed::{KillOnDrop, or_return, script, skip};
use support::{Hooked, LAUNCHER, ask, bare, model, text};

const COMPANION: &str = env!("CARGO_BIN_EXE_contextpilot-llama");

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[derive(Clone, Copy)]
enum Browser {
    Chromium,
    Firefox,
}

impl Browser {
    /// Its name for `scripts/page` and for the driver, and the variable in which the driver gets its path.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Chromium => ("chromium", "CHROMIUM"),
            Self::Firefox => ("firefox", "FIREFOX"),
        }
    }

    /// Its path, or why there is none.
    fn path(self) -> &'static Result<PathBuf, String> {
        static CHROMIUM: OnceLock<Result<PathBuf, String>> = OnceLock::new();
        static FIREFOX: OnceLock<Result<PathBuf, String>> = OnceLock::new();
        let found = match self {
            Self::Chromium => &CHROMIUM,
            Self::Firefox => &FIREFOX,
        };
        found.get_or_init(|| {
            page("tools")?;
            Ok(page(self.names().0)?.into())
        })
    }
}

/// What `scripts/page` prints, or why it cannot.
fn page(what: &str) -> Result<String, String> {
    script("page", &[what]).map_err(|why| why.why_skipped().to_owned())
}

/// What drives Chromium. `None`: it cannot run here.
#[track_caller]
fn browser(arguments: &[&str]) -> Option<Command> {
    browser_of(Browser::Chromium, arguments)
}

#[track_caller]
fn browser_of(browser: Browser, arguments: &[&str]) -> Option<Command> {
    let path = match browser.path() {
        Ok(path) => path,
        Err(why) => {
            skip(why);
            return None;
        }
    };
    let (name, variable) = browser.names();
    let mut command = Command::new("node");
    command
        .arg(repository().join("page/test/browser.mjs"))
        .args(arguments)
        .env("BROWSER", name)
        .env(variable, path)
        .stdin(Stdio::null());
    Some(command)
}

/// Runs it to its end, and returns what it found to be right.
#[track_caller]
fn look(arguments: &[&str]) -> Option<String> {
    look_with(Browser::Chromium, arguments)
}

#[track_caller]
fn look_with(browser: Browser, arguments: &[&str]) -> Option<String> {
    let output = browser_of(browser, arguments)?.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{errors}");
    println!("{said}");
    Some(said)
}

fn count(said: &str) -> usize {
    said.lines().filter(|line| line.starts_with("ok ")).count()
}

/// Conversations that share a beginning, and prompts that share nothing, on two slots.
fn talk(hooked: &Hooked) {
    let system = text(1, 300);
    for turn in 0..4 {
        for session in 0..3 {
            let words = text(100 + session, 60 * (turn + 1));
            let prompt = format!("{system}{words}");
            let id = format!("chat-{session}/turn {turn} <b>&</b>");
            hooked.complete(&contextpilot_testbed::Request::completion(prompt).id(&*id));
        }
    }
    for seed in 0..3 {
        hooked.complete(&ask(40 + seed, 500).id(&*format!("other-{seed}")));
    }
    // One that was sent before, behind something else.
    let behind = format!("{}{}", text(90, 40), text(42, 500));
    hooked.complete(&contextpilot_testbed::Request::completion(behind).id("behind"));
    // One without an id.
    hooked.complete(&ask(77, 200));
    hooked.settled(17);
}

#[test]
fn each_view_says_what_the_endpoint_says() {
    let hooked = Hooked::observing(&bare(2));
    talk(&hooked);
    let address = format!("http://{}", hooked.control);
    let Some(said) = look(&["endpoint", &format!("{address}/"), &address]) else {
        return;
    };
    assert_eq!(count(&said), 6, "{said}");
    // Only our own page was answered.
    assert_eq!(hooked.stats().control.unwrap().refused, 0);
}

#[test]
fn in_firefox_too_each_view_says_what_the_endpoint_says() {
    let hooked = Hooked::observing(&bare(2));
    talk(&hooked);
    let address = format!("http://{}", hooked.control);
    let arguments = ["endpoint", &format!("{address}/"), &address];
    if let Some(said) = look_with(Browser::Firefox, &arguments) {
        assert_eq!(count(&said), 6, "{said}");
    }
}

#[test]
fn with_a_host_cache_the_page_tells_apart_what_is_where() {
    let builder = model(contextpilot_testbed::Arch::Llama);
    let builder = builder.args(["-c", "4096", "--parallel", "2", "--cache-ram", "64"]);
    let hooked = Hooked::observing(&builder);
    talk(&hooked);
    assert!(hooked.stats().host.entries > 0);
    let address = format!("http://{}", hooked.control);
    if let Some(said) = look(&["endpoint", &format!("{address}/"), &address]) {
        assert_eq!(count(&said), 6, "{said}");
    }
}

#[test]
fn an_eviction_is_shown_when_it_happens() {
    let hooked = Hooked::observing(&bare(1));
    hooked.complete(&ask(1, 200).id("first <i>one</i>"));
    hooked.settled(1);
    let url = format!("http://{}/", hooked.control);
    let mut command = or_return!(browser(&["follow", &url, "first <i>one</i>"]));
    let mut child = KillOnDrop(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    hooked.complete(&ask(2, 200).id("second"));
    let mut said = String::new();
    lines.read_to_string(&mut said).unwrap();
    assert!(child.wait().unwrap().success(), "{said}");
    assert_eq!(count(&said), 1, "{said}");
}

#[test]
fn an_endpoint_with_a_token_gives_the_page_to_everybody_and_figures_to_whoever_has_it() {
    let hooked = Hooked::observing(&bare(1).env("CONTEXTPILOT_LISTEN_TOKEN", "s3same"));
    let url = format!("http://{}/", hooked.control);
    if let Some(said) = look(&["token", &url, "s3same"]) {
        assert_eq!(count(&said), 2, "{said}");
    }
}

#[test]
fn open_serves_the_page_for_an_endpoint_at_a_unix_socket() {
    let folder = tempfile::tempdir().unwrap();
    let socket = format!("unix:{}", folder.path().join("control").display());
    let server = bare(2)
        .launcher(LAUNCHER)
        .env("CONTEXTPILOT_LISTEN", &socket)
        .spawn()
        .unwrap();
    for turn in 1..4 {
        server
            .complete(&ask(turn, 200).id(&*format!("turn-{turn}")))
            .unwrap();
    }
    let open = Command::new(COMPANION)
        .args(["open", "--no-browser", "--control", &socket])
        .stdout(Stdio::piped())
        .spawn();
    let mut open = KillOnDrop(open.unwrap());
    let mut url = String::new();
    BufReader::new(open.stdout.take().unwrap())
        .read_line(&mut url)
        .unwrap();
    let (page, token) = url.trim().split_once("#token=").unwrap();
    assert_eq!(token.len(), 32, "{url}");
    if let Some(said) = look(&["token", page, token]) {
        assert_eq!(count(&said), 2, "{said}");
    }
}

#[test]
fn made_up_traffic_hostile_ids_keyboard_accessibility_and_many_events() {
    if let Some(said) = look(&["made-up"]) {
        assert_eq!(count(&said), 11, "{said}");
    }
}

#[test]
fn in_firefox_too_hostile_ids_keyboard_accessibility_and_many_events() {
    if let Some(said) = look_with(Browser::Firefox, &["made-up"]) {
        assert_eq!(count(&said), 11, "{said}");
    }
}

#[test]
fn a_report_of_50_000_requests_can_be_read() {
    const REQUESTS: usize = 50_000;
    let folder = tempfile::tempdir().unwrap();
    let traffic = folder.path().join("traffic");
    std::fs::write(&traffic, recording::of(REQUESTS)).unwrap();
    let report = folder.path().join("report.html");
    let made = Command::new(COMPANION)
        .arg("report")
        .arg(&traffic)
        .arg("--no-simulation")
        .arg("-o")
        .arg(&report)
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let bytes = std::fs::metadata(&report).unwrap().len();
    println!("{bytes} bytes");
    if let Some(said) = look(&["report", report.to_str().unwrap(), &REQUESTS.to_string()]) {
        assert_eq!(count(&said), 1, "{said}");
    }
}

#[test]
fn the_page_says_in_sentences_what_why_says() {
    if let Err(why) = page("tools") {
        return skip(&why);
    }
    let program = repository().join("page/test/words.mjs");
    let output = Command::new("node").arg(program).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}
