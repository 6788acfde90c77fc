//! `simulate` and `advise` on recordings that no server was needed for.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use contextpilot_traffic::{
    Key, Memory, Recorded, RequestRecord, Setup, SizeKind, SizeSample, Writer,
};
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::support::{companion, good, json};

/// A recording of a server that serves these prompts one after the other.
fn recording(setup: &Setup, store: Option<u64>, prompts: &[(RequestRecord, Vec<i32>)]) -> Vec<u8> {
    let (mut writer, mut bytes) = Writer::new(Key::new([7; 16]), false, 1 << 30);
    let mut add = |recorded: Recorded| match recorded {
        Recorded::Bytes(more) => bytes.extend(more),
        Recorded::Full => panic!("the recording is full"),
    };
    add(writer.setup(setup));
    if let Some(limit) = store {
        add(writer.store(limit));
    }
    for tokens in [1000, 2000] {
        add(writer.size(SizeSample {
            kind: SizeKind::State,
            tokens,
            bytes: u64::from(tokens) * 500,
        }));
    }
    let mut at = 0;
    for (order, (record, tokens)) in (0_u64..).zip(prompts) {
        // A further answer comes with its parent.
        if !record.child {
            at = order * 1_000_000;
        }
        let prompt = tokens.len() as u32;
        let record = RequestRecord {
            order,
            arrived: at,
            launched: at + 10,
            prompted: at + 500_000,
            ended: at + 600_000,
            prompt,
            evaluated: prompt - record.reused,
            ..record.clone()
        };
        add(writer.request(record, tokens, None));
    }
    bytes
}

/// So many tokens that no other prompt has.
fn tokens(nth: i32, count: i32) -> Vec<i32> {
    (0..count).map(|token| nth * 10_000 + token).collect()
}

fn on(path: &Path, arguments: &[&str]) -> Output {
    companion(arguments).arg(path).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// What a command writes to stderr, if that is a terminal.
fn at_terminal(mut command: Command) -> String {
    let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&controller).unwrap();
    unlockpt(&controller).unwrap();
    let name = ptsname(&controller, Vec::new()).unwrap();
    let flags = OFlags::RDWR | OFlags::NOCTTY;
    let user = rustix::fs::open(&name, flags, Mode::empty()).unwrap();
    command.stderr(Stdio::from(user)).stdout(Stdio::null());
    let mut child = command.spawn().unwrap();
    // The terminal ends with the last who has it open.
    drop(command);
    let (mut screen, mut seen) = (File::from(controller), Vec::new());
    let mut bytes = [0; 4096];
    while let Ok(read @ 1..) = screen.read(&mut bytes) {
        seen.extend_from_slice(&bytes[..read]);
    }
    assert!(child.wait().unwrap().success());
    String::from_utf8(seen).unwrap()
}

#[test]
fn who_waits_for_simulations_at_a_terminal_sees_how_many_there_were() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("traffic");
    let setup = Setup {
        memory: Memory::Full,
        parallel: 1,
        cache_ram: Some(0),
        ..Setup::default()
    };
    let prompts: Vec<_> = (0..10)
        .map(|nth| (RequestRecord::default(), tokens(nth % 3, 900)))
        .collect();
    std::fs::write(&path, recording(&setup, None, &prompts)).unwrap();
    let report = folder.path().join("report.html");
    for arguments in [
        &["advise"][..],
        &["simulate", "--parallel", "1,2"],
        &["report", "-o", report.to_str().unwrap()],
    ] {
        let mut command = companion(arguments);
        command.arg(&path);
        let seen = at_terminal(command);
        assert!(seen.contains("0 simulations done"), "{seen:?}");
        // The line is gone in the end.
        assert!(seen.ends_with("\r\u{1b}[K"), "{seen:?}");
        // In a file, stderr has none of it.
        assert_eq!(stderr(&on(&path, arguments)), "");
    }
}

#[test]
fn a_report_may_go_to_standard_output() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("traffic");
    let prompts = [(RequestRecord::default(), tokens(1, 90))];
    std::fs::write(&path, recording(&Setup::default(), None, &prompts)).unwrap();
    let mut command = companion(&["report", "-o", "-"]);
    let answer = command.arg(&path).current_dir(&folder).output().unwrap();
    assert!(
        answer.stdout.starts_with(b"<!doctype html>"),
        "{}",
        stderr(&answer)
    );
    assert!(!folder.path().join("-").exists());
}

/// Two texts that take turns in one slot with sliding windows. With `--swa-full` a store keeps nothing.
#[test]
fn a_store_below_sliding_windows_is_simulated_where_it_keeps_something() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("traffic");
    let points = |setup: Setup| {
        let prompts: Vec<(RequestRecord, Vec<i32>)> = (0..10)
            .map(|nth| (RequestRecord::default(), tokens(nth % 2, 1000)))
            .collect();
        std::fs::write(&path, recording(&setup, None, &prompts)).unwrap();
        let simulated = on(&path, &["simulate", "--store-gb", "0,10", "--json"]);
        (json(&good(&simulated)), stderr(&simulated))
    };
    let setup = Setup {
        memory: Memory::Window(512),
        parallel: 1,
        cache_ram: Some(0),
        ..Setup::default()
    };
    let (of_windows, said) = points(setup.clone());
    let loaded = |nth: usize| of_windows[nth]["loaded_tokens"].as_u64();
    // The last checkpoint is four tokens before the end of a prompt.
    assert_eq!((loaded(0), loaded(1)), (Some(0), Some(8 * 996)), "{said}");
    let (whole, said) = points(Setup {
        memory: Memory::Full,
        whole_windows: true,
        ..setup
    });
    assert_eq!(whole.as_array().unwrap().len(), 1, "{whole}");
    assert!(said.contains("keeps nothing below this server"), "{said}");
}

/// Six clients that wait for nothing but their answers, on fewer slots: how much is reused depends on who asks first.
#[test]
fn where_the_order_of_clients_decides_other_orders_are_shown() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("crates/replay/simulate/tests/recordings/small-store");
    let flags = ["simulate", "--store-gb", "0,1"];
    let points = json(&good(&on(&path, &[&flags[..], &["--json"]].concat())));
    let share = |nth: usize, name: &str| points[nth][name].as_f64().unwrap();
    let (low, high) = ("spared_share_lowest", "spared_share_highest");
    assert!(share(0, high) - share(0, low) > 0.02, "{points}");
    assert!(
        share(1, high) - share(1, low) < 0.01,
        "there is room: {points}"
    );
    let text = good(&on(&path, &flags));
    let mut lines = text.lines();
    assert!(lines.next().unwrap().contains("  or  "), "{text}");
    assert!(lines.next().unwrap().contains(" % to "), "{text}");
    assert!(!lines.next().unwrap().contains(" to "), "{text}");
    assert!(text.contains("\nor: how much is reused"), "{text}");
}

#[test]
fn what_is_no_recording_is_not_read_to_its_end() {
    for command in ["simulate", "advise"] {
        let said = crate::support::fails({
            let mut command = companion(&[command]);
            command.arg("/dev/zero");
            command
        });
        assert!(said.contains("not a recording"), "{said}");
    }
}

#[test]
fn a_recording_that_ends_before_its_first_request_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let whole = recording(
        &Setup::default(),
        None,
        &[(RequestRecord::default(), tokens(1, 90))],
    );
    let said = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        crate::support::fails({
            let mut command = companion(&["advise"]);
            command.arg(&path);
            command
        })
    };
    let cut = said("cut", &whole[..20]);
    assert!(cut.ends_with(", before its first request\n"), "{cut}");
    let empty = said("empty", b"");
    assert!(empty.ends_with("/empty is empty\n"), "{empty}");
    let mut simulate = companion(&["simulate"]);
    simulate.arg(folder.path().join("empty"));
    let empty = crate::support::fails(simulate);
    assert!(
        empty.contains("There are no requests in ") && empty.contains("/empty: "),
        "{empty}"
    );
}

#[test]
fn too_many_answers_and_too_long_prompts_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("traffic");
    let setup = Setup {
        parallel: 4,
        auto_parallel: false,
        slot_context: 1024,
        kv_unified: false,
        ..Setup::default()
    };
    // One prompt that wants three answers, and one that is as long as half of the context.
    let mut prompts = vec![(RequestRecord::default(), tokens(1, 100))];
    for slot in 1..3 {
        let child = RequestRecord {
            child: true,
            slot,
            ..RequestRecord::default()
        };
        prompts.push((child, tokens(1, 100)));
    }
    prompts.push((RequestRecord::default(), tokens(2, 1000)));
    std::fs::write(&path, recording(&setup, None, &prompts)).unwrap();
    let text = good(&on(&path, &["simulate", "--parallel", "1,2,16"]));
    let answers = "1 prompt would be refused, for more answers (n) than there are slots";
    assert!(text.contains(&format!("With 1 slot {answers}")), "{text}");
    assert!(text.contains(&format!("With 2 slots {answers}")), "{text}");
    assert!(
        text.contains("With 16 slots 1 prompt would be refused, too long for a slot"),
        "{text}"
    );
}
