//! The installed command, run against servers that are `cat`: it prints what it
//! was started with, byte for byte, when it is told to read its own /proc files.
#![cfg(target_os = "linux")]

use std::ffi::{OsStr, OsString};
use std::fs::{self, Permissions};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const LAUNCHER: &str = env!("CARGO_BIN_EXE_contextpilot-llama-server");
const COMPANION: &str = env!("CARGO_BIN_EXE_contextpilot-llama");
const URL: &str = "http://127.0.0.1:9";

/// A home, and a folder for `PATH` with a server in it.
struct Machine {
    root: tempfile::TempDir,
}

impl Machine {
    fn new() -> Self {
        let machine = Self::without_server();
        symlink("/bin/cat", machine.server()).unwrap();
        machine
    }

    fn without_server() -> Self {
        let root = tempfile::tempdir().unwrap();
        for folder in ["", "home", "bin"] {
            let path = root.path().join(folder);
            fs::create_dir_all(&path).unwrap();
            // Closed to others whatever the mask of this process is.
            fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
        }
        Self { root }
    }

    fn with_script(script: &str) -> Self {
        let machine = Self::without_server();
        write_executable(&machine.server(), script.as_bytes());
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn server(&self) -> PathBuf {
        self.path("bin/llama-server")
    }

    fn cache(&self) -> PathBuf {
        self.path("home/.cache/contextpilot-llama")
    }

    fn make_cache(&self) {
        fs::create_dir_all(self.cache()).unwrap();
        let above = self.path("home/.cache");
        fs::set_permissions(above, Permissions::from_mode(0o755)).unwrap();
    }

    /// `program` with nothing but this machine in its environment.
    fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("HOME", self.path("home"))
            .env("PATH", self.path("bin"));
        command
    }

    fn launcher(&self) -> Command {
        self.command(LAUNCHER)
    }

    /// The launcher with the hook asked for.
    fn hooked(&self) -> Command {
        let mut command = self.launcher();
        command.env("CONTEXTPILOT_INDEX_URL", URL);
        command
    }

    /// The preloaded library's path, when nothing else is preloaded.
    fn library(&self) -> PathBuf {
        let output = self.hooked().arg("/proc/self/environ").output().unwrap();
        preloaded(&output).map(PathBuf::from).unwrap()
    }
}

fn write_executable(path: &Path, content: &[u8]) {
    let data = path.with_extension("data");
    fs::write(&data, content).unwrap();
    copy_executable(&data, path);
    fs::remove_file(data).unwrap();
}

/// Copies in another process: a file that this one has open for writing, if only
/// in a child that another test is starting just then, cannot be executed.
fn copy_executable(from: &Path, to: &Path) {
    let script = "cp \"$0\" \"$1\" && chmod 755 \"$1\"";
    let copied = Command::new("/bin/sh")
        .args(["-c", script])
        .args([from, to])
        .status();
    assert!(copied.unwrap().success());
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// `LD_PRELOAD` in an output that is an environment.
fn preloaded(output: &Output) -> Option<OsString> {
    output
        .stdout
        .split(|b| *b == 0)
        .find_map(|entry| entry.strip_prefix(b"LD_PRELOAD="))
        .map(|value| OsString::from_vec(value.to_vec()))
}

/// One line, ours, that says `what`; and the exit code.
#[track_caller]
fn assert_refused(output: &Output, code: i32, what: &[&str]) {
    let message = stderr(output);
    assert_eq!(output.status.code(), Some(code), "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
    assert!(message.starts_with("[ContextPilot] "), "{message}");
    for what in what {
        assert!(message.contains(what), "{what:?} is not in: {message}");
    }
    assert!(output.stdout.is_empty(), "the server ran: {message}");
}

/// The plain server ran, after one line that says `why`.
#[track_caller]
fn assert_plain(command: &mut Command, why: &str) {
    let output = command.arg("/proc/self/environ").output().unwrap();
    let message = stderr(&output);
    assert!(output.status.success(), "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
    assert!(message.starts_with("[ContextPilot] "), "{message}");
    assert!(message.contains("without the hook"), "{message}");
    assert!(message.contains(why), "{why:?} is not in: {message}");
    assert_eq!(preloaded(&output), None, "{message}");

    let output = command.env("CONTEXTPILOT_STRICT", "1").output().unwrap();
    assert_refused(&output, 3, &[why, "CONTEXTPILOT_STRICT"]);
}

#[test]
fn arguments_reach_the_server_untouched() {
    let machine = Machine::new();
    let strange = [
        OsStr::new("/proc/self/cmdline"),
        OsStr::new("--"),
        OsStr::new(""),
        OsStr::new("two words\n"),
        OsStr::from_bytes(b"\xff\xfe$HOME'\""),
        OsStr::new("--help"),
    ];
    for url in [None, Some(URL)] {
        let mut command = machine.launcher();
        command
            .args(strange)
            .envs(url.map(|url| ("CONTEXTPILOT_INDEX_URL", url)));
        let mut expected = b"llama-server\0".to_vec();
        for argument in strange {
            expected.extend_from_slice(argument.as_bytes());
            expected.push(0);
        }
        let output = command.output().unwrap();
        assert_eq!(
            output.stdout.escape_ascii().to_string(),
            expected.escape_ascii().to_string()
        );
    }
}

#[test]
fn without_an_index_the_environment_is_untouched_and_nothing_is_printed() {
    let machine = Machine::new();
    let set_up = |mut command: Command, url: Option<&str>| {
        command
            .args(["/proc/self/environ", "/proc/self/cmdline"])
            .env("LD_PRELOAD", "")
            .env("STRANGE", OsStr::from_bytes(b"\xff=\n"))
            // Wrong, and none of anybody's business without an index.
            .env("CONTEXTPILOT_INDEX_TIMEOUT_MS", "soon")
            .env("CONTEXTPILOT_LISTEN_TOKEN", "not a token")
            .envs(url.map(|url| ("CONTEXTPILOT_INDEX_URL", url)));
        command.output().unwrap()
    };
    for url in [None, Some("")] {
        let mut plain = machine.command(machine.server());
        std::os::unix::process::CommandExt::arg0(&mut plain, "llama-server");
        let plain = set_up(plain, url);
        let launched = set_up(machine.launcher(), url);
        assert!(plain.stdout.starts_with(b"CONTEXTPILOT_") || plain.stdout.starts_with(b"HOME="));
        assert_eq!(launched, plain);
        assert_eq!(stderr(&launched), "");
        assert!(!machine.path("home/.cache").exists());
    }
}

#[test]
fn who_only_observes_has_the_hook_too() {
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
fn kv_events_that_cannot_be_published_are_refused_before_the_server_starts() {
    let machine = Machine::new();
    let good = ("CONTEXTPILOT_KV_EVENTS", "tcp://127.0.0.1:5557");
    for (name, value, why) in [
        ("CONTEXTPILOT_KV_EVENTS", "127.0.0.1:5557", "give tcp://"),
        ("CONTEXTPILOT_KV_EVENTS_REPLAY", good.1, "or off"),
        ("CONTEXTPILOT_KV_EVENTS_TOPIC", "a\nb", "control character"),
        ("CONTEXTPILOT_KV_BLOCK_SIZE", "16k", "from 1 to 4096"),
    ] {
        let set = |mut command: Command| {
            let output = command.env(good.0, good.1).env(name, value).output();
            output.unwrap()
        };
        assert_refused(&set(machine.launcher()), 2, &[name, why]);
        assert_refused(&set(machine.hooked()), 2, &[name, why]);
    }
}

#[test]
fn an_address_that_cannot_be_listened_at_is_refused_before_the_server_starts() {
    let machine = Machine::new();
    for (address, why) in [
        ("8890", "no port; give one, as in 127.0.0.1:8890"),
        ("http://127.0.0.1:8890", "a URL"),
        ("::1:8890", "brackets"),
        ("127.0.0.1:88900", "its port is not a number"),
        ("unix:relative", "absolute path"),
        ("0.0.0.0:8890", "CONTEXTPILOT_LISTEN_TOKEN"),
        ("[::]:8890", "CONTEXTPILOT_LISTEN_TOKEN"),
    ] {
        let set = |mut command: Command| {
            let output = command.env("CONTEXTPILOT_LISTEN", address).output();
            output.unwrap()
        };
        assert_refused(&set(machine.launcher()), 2, &["CONTEXTPILOT_LISTEN", why]);
        assert_refused(&set(machine.hooked()), 2, &["CONTEXTPILOT_LISTEN", why]);
    }
    let with_token = machine
        .launcher()
        .arg("/dev/null")
        .env("CONTEXTPILOT_LISTEN", "0.0.0.0:8890")
        .env("CONTEXTPILOT_LISTEN_TOKEN", "s3same")
        .output()
        .unwrap();
    assert!(with_token.status.success(), "{}", stderr(&with_token));
    assert!(!stderr(&with_token).contains("s3same"));
    let bad_token = machine
        .launcher()
        .env("CONTEXTPILOT_LISTEN", "127.0.0.1:0")
        .env("CONTEXTPILOT_LISTEN_TOKEN", "s3 same")
        .output()
        .unwrap();
    assert_refused(&bad_token, 2, &["CONTEXTPILOT_LISTEN_TOKEN", "position 3"]);
    assert!(!stderr(&bad_token).contains("s3 same"));
}

#[test]
fn signal_dispositions_reach_the_server() {
    let machine = Machine::new();
    let signals = |program: &Path, url: &str| {
        let output = machine
            .command("/bin/sh")
            .args(["-c", "trap '' PIPE HUP; exec \"$0\" /proc/self/status"])
            .arg(program)
            .env("CONTEXTPILOT_INDEX_URL", url)
            .output()
            .unwrap();
        let status = String::from_utf8(output.stdout).unwrap();
        ["SigBlk:\t", "SigIgn:\t", "SigCgt:\t"].map(|name| {
            let mask = status.lines().find_map(|line| line.strip_prefix(name));
            u64::from_str_radix(mask.unwrap(), 16).unwrap()
        })
    };
    let plain = signals(&machine.server(), "");
    // SIGHUP is 1, SIGPIPE 13.
    assert_eq!(plain[1] & 0x1001, 0x1001, "{plain:x?}");
    assert_eq!(signals(Path::new(LAUNCHER), ""), plain);
    assert_eq!(signals(Path::new(LAUNCHER), URL), plain);
}

#[test]
fn the_servers_end_is_ours() {
    let machine = Machine::with_script("#!/bin/sh\nexit 42\n");
    assert_eq!(machine.launcher().status().unwrap().code(), Some(42));
    assert_eq!(machine.hooked().output().unwrap().status.code(), Some(42));
    let machine = Machine::with_script("#!/bin/sh\nkill -TERM $$\n");
    assert_eq!(machine.launcher().status().unwrap().signal(), Some(15));
}

#[test]
fn a_full_disk_under_stderr_does_not_keep_the_server_from_starting() {
    let machine = Machine::with_script("#!/bin/sh\nexit 42\n");
    let full = || fs::File::options().write(true).open("/dev/full").unwrap();
    assert_eq!(
        machine.hooked().stderr(full()).status().unwrap().code(),
        Some(42)
    );
    let missing = Machine::without_server();
    assert_eq!(
        missing.launcher().stderr(full()).status().unwrap().code(),
        Some(127)
    );
}

#[test]
fn a_script_without_an_interpreter_runs_as_from_a_shell() {
    let machine = Machine::with_script("echo \"$1\"\n");
    let output = machine.launcher().arg("hello").output().unwrap();
    assert_eq!(output.stdout, b"hello\n", "{}", stderr(&output));
}

/// By a system call trace: between its own start and the server's, the launcher
/// opens what the dynamic loader opens for it, and nothing else.
#[test]
fn without_an_index_no_file_is_opened() {
    let machine = Machine::new();
    let trace = machine.path("trace");
    let traced = Command::new("strace")
        .args([
            "-f",
            "-e",
            "trace=execve,open,openat,openat2,creat,write",
            "-o",
        ])
        .arg(&trace)
        .arg(LAUNCHER)
        .arg("/dev/null")
        .env("PATH", machine.path("bin"))
        .env_remove("CONTEXTPILOT_INDEX_URL")
        .env_remove("CONTEXTPILOT_LISTEN")
        .env_remove("CONTEXTPILOT_LOG_FILE")
        .env_remove("LLAMA_SERVER_BIN")
        .output();
    let Ok(traced) = traced else {
        eprintln!("skipped: strace is not installed");
        return;
    };
    assert!(traced.status.success(), "{}", stderr(&traced));
    let trace = fs::read_to_string(trace).unwrap();
    let calls: Vec<&str> = trace
        .lines()
        .take_while(|line| !line.contains(r#"["llama-server", "/dev/null"]"#))
        .collect();
    assert!(
        calls.len() < trace.lines().count(),
        "no exec of the server in:\n{trace}"
    );
    for call in &calls[1..] {
        let loader = [
            "/ld.so.cache",
            "/libc.so.6",
            "/libgcc_s.so.1",
            "/libm.so.6",
            "/glibc-hwcaps",
        ];
        assert!(
            loader.iter().any(|file| call.contains(file)),
            "{call}\nin:\n{trace}"
        );
    }
}

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
    assert_refused(&run(&no_interpreter), 127, &["could not be executed"]);
    let truncated = machine.path("truncated");
    write_executable(&truncated, b"\x7fELF\x02\x01\x01");
    assert_ne!(run(&truncated).status.code(), Some(0));
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

#[test]
fn the_launcher_never_runs_itself() {
    let machine = Machine::without_server();
    fs::create_dir(machine.path("bin2")).unwrap();
    let both = std::env::join_paths([machine.path("bin"), machine.path("bin2")]).unwrap();
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
    let machine = Machine::without_server();
    fs::create_dir(machine.path("bin2")).unwrap();
    let both = std::env::join_paths([machine.path("bin"), machine.path("bin2")]).unwrap();
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

#[test]
fn with_an_index_the_hook_is_preloaded_in_front() {
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
fn the_rest_of_the_environment_stays_as_it_is() {
    let machine = Machine::new();
    let run = |program: &Path| {
        let mut command = machine.command(program);
        command
            .env("CONTEXTPILOT_INDEX_URL", URL)
            .env("A", "1")
            .env("Z", "2");
        command.arg("/proc/self/environ").output().unwrap().stdout
    };
    let launched = run(Path::new(LAUNCHER));
    let entry = format!("LD_PRELOAD={}\0", machine.library().display());
    let plain = [run(&machine.server()), entry.into_bytes()].concat();
    assert_eq!(
        launched.escape_ascii().to_string(),
        plain.escape_ascii().to_string()
    );
}

#[test]
fn a_bad_setting_is_2_and_says_what_is_wrong() {
    let machine = Machine::new();
    let with_url = |url: &str| {
        machine
            .launcher()
            .env("CONTEXTPILOT_INDEX_URL", url)
            .output()
    };
    for (url, what) in [
        ("localhost:8765", "no scheme"),
        ("ftp://h", "\"ftp\""),
        ("http://h:99999", "\"99999\""),
        ("http://", "no host"),
        ("http://h/?q", "query"),
        ("http://h /", "' '"),
    ] {
        assert_refused(
            &with_url(url).unwrap(),
            2,
            &["CONTEXTPILOT_INDEX_URL", what],
        );
    }
    let output = with_url("http://user:s3cret@h:0").unwrap();
    assert_refused(&output, 2, &["http://user:***@h:0"]);
    assert!(!stderr(&output).contains("s3cret"));

    for (variable, value) in [
        ("CONTEXTPILOT_STRICT", "yes"),
        ("CONTEXTPILOT_INDEX_TIMEOUT_MS", "5s"),
        ("CONTEXTPILOT_EXIT_DRAIN_MS", "-1"),
    ] {
        let output = machine.hooked().env(variable, value).output().unwrap();
        assert_refused(&output, 2, &[variable, value]);
    }
}

#[test]
fn a_spoilt_library_is_replaced() {
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
fn many_at_once_share_one_library() {
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
fn the_cache_follows_the_xdg_specification() {
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

/// Where it is loaded from then: `tests/launcher_library.rs`.
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
fn a_cache_that_others_may_change_is_not_used() {
    let machine = Machine::new();
    machine.make_cache();
    fs::set_permissions(machine.cache(), Permissions::from_mode(0o777)).unwrap();
    assert_not_from_the_cache(&mut machine.hooked(), "not private");
    fs::remove_dir(machine.cache()).unwrap();
    fs::write(machine.cache(), "in the way").unwrap();
    assert_not_from_the_cache(&mut machine.hooked(), "not a folder");
}

#[test]
fn a_cache_of_another_user_is_not_used() {
    let machine = Machine::new();
    machine.make_cache();
    if std::os::unix::fs::chown(machine.cache(), Some(65534), None).is_err() {
        eprintln!("skipped: only root can give a folder away");
        return;
    }
    assert_not_from_the_cache(&mut machine.hooked(), "another user");
}

#[test]
fn a_cache_below_a_folder_that_a_group_may_write_to_is_not_used() {
    let machine = Machine::new();
    let home = machine.path("home");
    fs::set_permissions(&home, Permissions::from_mode(0o775)).unwrap();
    assert_not_from_the_cache(&mut machine.hooked(), "its group may write to it");
    assert!(!machine.cache().exists());

    fs::set_permissions(&home, Permissions::from_mode(0o755)).unwrap();
    assert!(machine.library().starts_with(machine.cache()));
}

#[test]
fn another_library_can_be_given() {
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
fn the_companion_says_where_the_library_is() {
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
