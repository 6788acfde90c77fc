//! A disk that is full for a while: the journal and the log file go on when there is room again.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::Command;

use contextpilot_control::LogLine;
use contextpilot_testbed::{Apart, Index, apart, skip, test_name, until};

use crate::support::{Home, ask, assert_told_at_least_once};

/// Mounts a disk of this many KiB there.
fn mount(at: &Path, size: u32) {
    let options = format!("size={size}k,mode=700");
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", &options, "none"]).arg(at);
    assert!(mount.status().expect("mount runs").success());
}

/// Fills the disk with a file.
fn fill(path: &Path) {
    let mut file = File::create(path).unwrap();
    while file.write_all(&[0; 4096]).is_ok() {}
}

#[test]
fn when_there_is_room_again_the_journal_has_every_id_and_the_log_goes_on() {
    match apart(test_name!()) {
        Apart::Done => return,
        Apart::Beside => return skip("nothing can be mounted here"),
        Apart::Alone => {}
    }
    let (home, index) = (Home::new(), Index::start().unwrap());
    mount(home.path(), 256);
    let (log, filler) = (home.path().join("log"), home.path().join("filler"));
    let builder = home.server(&index, 4).env("CONTEXTPILOT_LOG_FILE", &log);
    let mut server = builder.spawn().unwrap();
    ask(&server, 0, "req-before");
    until("it is kept", || home.hold("req-before").then_some(()));
    until("it is logged", || {
        fs::read(&log).ok().filter(|log| !log.is_empty())
    });

    fill(&filler);
    // The last page of each file has room for some more.
    let long = |n: u32| format!("req-{n}-{}", "x".repeat(400));
    (0..24).for_each(|n| drop(ask(&server, n % 4, &long(n))));
    let said = |what: &str| until(what, || server.stderr().contains(what).then_some(()));
    said("journal \"");
    said("CONTEXTPILOT_LOG_FILE is ");

    fs::remove_file(&filler).unwrap();
    said("can be written again");
    ask(&server, 0, "req-after");
    until("the id is kept", || home.hold("req-after").then_some(()));
    let live: Vec<_> = (21..24).map(long).collect();
    for id in &live {
        assert!(home.hold(id), "{id}");
    }
    let lines = until("the request is logged", || {
        let text = String::from_utf8(fs::read(&log).unwrap()).unwrap();
        text.contains("\"id\":\"req-after\"").then_some(text)
    });
    let is_torn = |line: &&str| serde_json::from_str::<LogLine>(line).is_err();
    let torn: Vec<_> = lines.lines().filter(is_torn).collect();
    assert!(!torn.is_empty(), "the disk was not full: {lines}");
    for line in torn {
        assert_eq!(line.matches("{\"at\":").count(), 1, "{line}");
    }

    server.stop(libc::SIGKILL).unwrap();
    let next = builder.spawn().unwrap();
    let mut all: Vec<_> = (0..24).map(long).collect();
    all.extend(["req-before".to_owned(), "req-after".to_owned()]);
    let all: Vec<_> = all.iter().map(String::as_str).collect();
    assert_told_at_least_once(&index, &[&next], &all);
}
