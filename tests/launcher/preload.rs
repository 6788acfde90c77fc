//! Which hook library is preloaded, and from which folder.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use crate::machine::{COMPANION, Machine, assert_plain, assert_refused, preloaded, stderr};

#[test]
fn with_an_index_the_hook_is_preloaded_before_other_libraries() {
    let machine = Machine::new();
    let output = machine.hooked().arg("/proc/self/environ").output().unwrap();
    let message = stderr(&output);
    let library = PathBuf::from(preloaded(&output).unwrap());
    assert_eq!(library.parent(), Some(machine.cache().as_path()));
    let server = machine.server();
    let expected = format!(
        "[ContextPilot] Launching with LD_PRELOAD injected: {}",
        server.display()
    );
    assert!(message.starts_with(&expected), "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");

    let others = "/nowhere/a.so /nowhere/b.so";
    let output = machine
        .hooked()
        .env("LD_PRELOAD", others)
        .arg("/proc/self/environ")
        .output();
    let expected = format!("{}:{others}", library.display());
    assert_eq!(preloaded(&output.unwrap()).unwrap(), *expected);
}

#[test]
fn without_an_index_settings_that_only_observe_preload_the_hook() {
    let machine = Machine::new();
    for (name, value) in [
        ("CONTEXTPILOT_LISTEN", "127.0.0.1:0"),
        ("CONTEXTPILOT_LISTEN", "unix:/tmp/none"),
        ("CONTEXTPILOT_LOG_FILE", "queries.jsonl"),
        ("CONTEXTPILOT_KV_EVENTS", "tcp://127.0.0.1:0"),
    ] {
        let output = machine
            .launcher()
            .arg("/proc/self/environ")
            .env(name, value)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(stderr(&output).contains("Launching with LD_PRELOAD"));
        let library = preloaded(&output).expect("it is preloaded");
        assert_eq!(PathBuf::from(library), machine.library());
    }
}

#[test]
fn a_damaged_library_in_the_cache_folder_is_replaced() {
    let machine = Machine::new();
    let library = machine.library();
    let good = fs::read(&library).unwrap();
    let mut flipped = good.clone();
    *flipped.last_mut().unwrap() ^= 1;
    for spoilt in [&flipped[..], &good[..good.len() / 2], b""] {
        fs::write(&library, spoilt).unwrap();
        assert_eq!(machine.library(), library);
        assert!(fs::read(&library).unwrap() == good);
    }
    assert_eq!(fs::read_dir(machine.cache()).unwrap().count(), 1);
}

#[test]
fn many_launches_at_once_share_one_library() {
    let machine = Machine::new();
    let children: Vec<_> = (0..8)
        .map(|_| {
            let mut command = machine.hooked();
            command
                .arg("/proc/self/environ")
                .stdout(std::process::Stdio::piped());
            command
                .stderr(std::process::Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let mut libraries = Vec::new();
    for child in children {
        let output = child.wait_with_output().unwrap();
        libraries.push(preloaded(&output).unwrap_or_else(|| panic!("{}", stderr(&output))));
    }
    libraries.dedup();
    assert_eq!(libraries.len(), 1);
    assert_eq!(fs::read_dir(machine.cache()).unwrap().count(), 1);
}

#[test]
fn the_cache_folder_follows_the_xdg_specification() {
    let machine = Machine::new();
    let run = |cache: &OsStr| {
        let mut command = machine.hooked();
        command
            .env("XDG_CACHE_HOME", cache)
            .arg("/proc/self/environ");
        PathBuf::from(preloaded(&command.output().unwrap()).unwrap())
    };
    let elsewhere = machine.path("elsewhere");
    assert!(run(elsewhere.as_os_str()).starts_with(&elsewhere));
    assert!(run(OsStr::new("relative")).starts_with(machine.cache()));
    assert!(run(OsStr::new("")).starts_with(machine.cache()));
}

/// The library must be loaded from memory, and one line must say why. `tests/launcher_library.rs`
/// tests the other places.
#[track_caller]
fn assert_not_from_the_cache(command: &mut Command, why: &str) {
    let output = command.arg("/proc/self/environ").output().unwrap();
    let message = stderr(&output);
    assert_eq!(message.lines().count(), 1, "{message}");
    assert!(message.contains("in memory, as "), "{message}");
    assert!(message.contains(why), "{why:?} is not in: {message}");
    let library = preloaded(&output).unwrap().into_string().unwrap();
    assert!(library.starts_with("/proc/"), "{library}");
}

#[test]
fn a_cache_folder_that_others_may_write_to_is_not_used() {
    let machine = Machine::new();
    machine.make_cache();
    fs::set_permissions(machine.cache(), Permissions::from_mode(0o777)).unwrap();
    assert_not_from_the_cache(&mut machine.hooked(), "not private");
    fs::remove_dir(machine.cache()).unwrap();
    fs::write(machine.cache(), "in the way").unwrap();
    assert_not_from_the_cache(&mut machine.hooked(), "not a folder");
}

#[test]
fn a_cache_folder_of_another_user_is_not_used() {
    let machine = Machine::new();
    machine.make_cache();
    if std::os::unix::fs::chown(machine.cache(), Some(65534), None).is_err() {
        contextpilot_testbed::skip("only root can give a folder away");
        return;
    }
    assert_not_from_the_cache(&mut machine.hooked(), "another user");
}

#[test]
fn if_a_group_may_write_to_the_parent_the_cache_folder_is_not_used() {
    let machine = Machine::new();
    let home = machine.path("home");
    fs::set_permissions(&home, Permissions::from_mode(0o775)).unwrap();
    assert_not_from_the_cache(&mut machine.hooked(), "its group may write to it");
    assert!(!machine.cache().exists());

    fs::set_permissions(&home, Permissions::from_mode(0o755)).unwrap();
    assert!(machine.library().starts_with(machine.cache()));
}

#[test]
fn the_library_of_contextpilot_hook_lib_is_preloaded() {
    let machine = Machine::new();
    let embedded = machine.library();
    let given = machine.path("given.so");
    fs::copy(&embedded, &given).unwrap();
    fs::remove_dir_all(machine.cache()).unwrap();

    for name in [given.as_os_str(), OsStr::new("given.so")] {
        let mut command = machine.hooked();
        command
            .env("CONTEXTPILOT_HOOK_LIB", name)
            .arg("/proc/self/environ");
        let output = command.current_dir(machine.root.path()).output().unwrap();
        assert_eq!(
            preloaded(&output).as_deref(),
            Some(given.as_os_str()),
            "{}",
            stderr(&output)
        );
    }
    assert!(!machine.cache().exists());

    let mut missing = machine.hooked();
    missing.env("CONTEXTPILOT_HOOK_LIB", "/nowhere.so");
    assert_plain(&mut missing, "/nowhere.so");
}

#[test]
fn the_companion_prints_the_path_of_the_library() {
    let machine = Machine::new();
    let path = |command: &mut Command| {
        let output = command.arg("hook-path").output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        let line = String::from_utf8(output.stdout).unwrap();
        PathBuf::from(line.strip_suffix('\n').unwrap())
    };
    let library = path(&mut machine.command(COMPANION));
    assert!(library.is_file());
    assert_eq!(machine.library(), library);

    let given = machine.path("given.so");
    fs::copy(&library, &given).unwrap();
    let mut command = machine.command(COMPANION);
    assert_eq!(path(command.env("CONTEXTPILOT_HOOK_LIB", &given)), given);

    let mut lost = machine.command(COMPANION);
    let output = lost.env_remove("HOME").arg("hook-path").output().unwrap();
    assert_refused(&output, 1, &["XDG_CACHE_HOME"]);
}
