//! Which server is run, and what is said if there is none.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::machine::{
    LAUNCHER, Machine, assert_refused, copy_executable, stderr, write_executable,
};

#[test]
fn no_server_is_127_and_says_what_to_do() {
    let machine = Machine::without_server();
    let output = machine.launcher().output().unwrap();
    assert_refused(
        &output,
        127,
        &["not found on PATH", "LLAMA_SERVER_BIN", "install"],
    );
    assert_refused(
        &machine.hooked().output().unwrap(),
        127,
        &["not found on PATH"],
    );

    let missing = machine
        .launcher()
        .env("LLAMA_SERVER_BIN", "/nowhere")
        .output();
    assert_refused(
        &missing.unwrap(),
        127,
        &["LLAMA_SERVER_BIN", "/nowhere", "does not exist"],
    );
}

#[test]
fn what_cannot_be_executed_is_126_or_127() {
    let machine = Machine::new();
    let run = |path: &Path| {
        machine
            .launcher()
            .env("LLAMA_SERVER_BIN", path)
            .output()
            .unwrap()
    };
    let file = machine.path("file");
    fs::write(&file, "text").unwrap();
    assert_refused(&run(&file), 126, &["LLAMA_SERVER_BIN", "not executable"]);
    assert_refused(
        &run(machine.root.path()),
        126,
        &["LLAMA_SERVER_BIN", "not a file"],
    );
    assert_refused(&run(Path::new(LAUNCHER)), 126, &["this launcher itself"]);

    let no_interpreter = machine.path("no-interpreter");
    write_executable(&no_interpreter, b"#!/nowhere/interpreter\n");
    assert_refused(
        &run(&no_interpreter),
        127,
        &["could not be executed", "the program in its first line"],
    );
    let truncated = machine.path("truncated");
    write_executable(&truncated, b"\x7fELF\x02\x01\x01");
    assert_ne!(run(&truncated).status.code(), Some(0));
}

#[test]
fn arguments_that_only_fit_without_the_hook_are_said_to_be_too_long() {
    let machine = Machine::with_script("#!/bin/sh\nexit 0\n");
    let run = |bytes: usize| {
        let mut command = machine.hooked();
        // No argument may have more than 128 KiB.
        let all = vec![b'x'; bytes];
        command.args(all.chunks(100_000).map(OsStr::from_bytes));
        command.output()
    };
    // The most that the system passes on to the launcher itself.
    let (mut fits, mut does_not) = (0, 64 << 20);
    while fits + 1 < does_not {
        let middle = (fits + does_not) / 2;
        match run(middle) {
            Ok(_) => fits = middle,
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::ArgumentListTooLong);
                does_not = middle;
            }
        }
    }
    let refused = run(fits).unwrap();
    let message = stderr(&refused);
    assert_eq!(refused.status.code(), Some(126), "{message}");
    let last = message.lines().last().unwrap_or_default();
    assert!(last.starts_with("[ContextPilot] "), "{message}");
    assert!(last.contains("shorten them"), "{message}");
}

#[test]
fn llama_server_bin_is_used_and_called_by_its_name() {
    let machine = Machine::with_script("#!/bin/sh\nexit 1\n");
    symlink("/bin/cat", machine.path("other")).unwrap();
    let run = |name: &OsStr| {
        let mut command = machine.launcher();
        command
            .env("LLAMA_SERVER_BIN", name)
            .arg("/proc/self/cmdline");
        command.current_dir(machine.root.path()).output().unwrap()
    };
    let absolute = machine.path("other");
    for name in [
        absolute.as_os_str(),
        OsStr::new("./other"),
        OsStr::new("other"),
    ] {
        let expected = [name.as_bytes(), b"\0/proc/self/cmdline\0"].concat();
        assert_eq!(run(name).stdout, expected);
    }
    assert_eq!(run(OsStr::new("")).status.code(), Some(1));
}

/// A machine without a server, and a `PATH` of two of its folders, `bin` and `bin2`.
fn two_folders() -> (Machine, OsString) {
    let machine = Machine::without_server();
    fs::create_dir(machine.path("bin2")).unwrap();
    let both = std::env::join_paths([machine.path("bin"), machine.path("bin2")]).unwrap();
    (machine, both)
}

#[test]
fn the_launcher_never_runs_itself() {
    let (machine, both) = two_folders();
    let in_bin2 = machine.path("bin2/llama-server");
    let by_link = |at: &Path| symlink(LAUNCHER, at).unwrap();
    let by_copy = |at: &Path| copy_executable(Path::new(LAUNCHER), at);
    let ways: [&dyn Fn(&Path); 2] = [&by_link, &by_copy];

    for first in ways {
        for second in ways {
            first(&machine.server());
            second(&in_bin2);
            for program in [Path::new(LAUNCHER), &machine.server(), &in_bin2] {
                let output = machine
                    .command(program)
                    .env("PATH", &both)
                    .output()
                    .unwrap();
                assert_refused(&output, 127, &["not found on PATH"]);
            }
            fs::remove_file(&in_bin2).unwrap();
            write_executable(&in_bin2, b"#!/bin/sh\nexit 42\n");
            let output = machine
                .command(machine.server())
                .env("PATH", &both)
                .output();
            assert_eq!(output.unwrap().status.code(), Some(42));
            fs::remove_file(&in_bin2).unwrap();
            fs::remove_file(machine.server()).unwrap();
        }
    }
}

#[test]
fn another_version_of_the_launcher_does_not_start_a_circle() {
    let (machine, both) = two_folders();
    symlink(LAUNCHER, machine.server()).unwrap();
    let other = machine.path("bin2/llama-server");
    let longer = [&fs::read(LAUNCHER).unwrap()[..], b"another version"].concat();
    write_executable(&other, &longer);
    for program in [Path::new(LAUNCHER), &machine.server(), &other] {
        let output = machine
            .command(program)
            .env("PATH", &both)
            .output()
            .unwrap();
        assert_refused(&output, 127, &["not found on PATH"]);
    }
}
