//! What the launcher leaves as it is: arguments, environment, signals, exit codes.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

use crate::machine::{LAUNCHER, Machine, URL, stderr};

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

/// Settings that need another one do not ask for the hook. They are only named.
#[test]
fn without_an_index_the_environment_is_untouched_and_nothing_is_printed() {
    let machine = Machine::new();
    let named = "[ContextPilot] CONTEXTPILOT_INDEX_TIMEOUT_MS does nothing without CONTEXTPILOT_INDEX_URL: set it, too\n\
                 [ContextPilot] CONTEXTPILOT_LISTEN_TOKEN does nothing without CONTEXTPILOT_LISTEN: set it, too\n";
    // Wrong settings. Without an index they are not read.
    let wrong = [
        ("CONTEXTPILOT_INDEX_TIMEOUT_MS", "soon"),
        ("CONTEXTPILOT_LISTEN_TOKEN", "not a token"),
    ];
    for (settings, said) in [(&[] as &[_], ""), (&wrong, named)] {
        for url in [None, Some("")] {
            let set_up = |mut command: Command| {
                command
                    .args(["/proc/self/environ", "/proc/self/cmdline"])
                    .env("LD_PRELOAD", "")
                    .env("STRANGE", OsStr::from_bytes(b"\xff=\n"))
                    .envs(settings.iter().copied())
                    .envs(url.map(|url| ("CONTEXTPILOT_INDEX_URL", url)));
                command.output().unwrap()
            };
            let mut plain = machine.command(machine.server());
            std::os::unix::process::CommandExt::arg0(&mut plain, "llama-server");
            let (plain, launched) = (set_up(plain), set_up(machine.launcher()));
            assert!(plain.stdout.windows(8).any(|part| part == b"STRANGE="));
            assert_eq!(
                (launched.status, &launched.stdout),
                (plain.status, &plain.stdout)
            );
            assert_eq!(stderr(&launched), said);
            assert!(!machine.path("home/.cache").exists());
        }
    }
}

#[test]
fn with_the_hook_only_ld_preload_is_added_to_the_environment() {
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
    // Bit 0 is SIGHUP (1), bit 12 is SIGPIPE (13).
    assert_eq!(plain[1] & 0x1001, 0x1001, "{plain:x?}");
    assert_eq!(signals(Path::new(LAUNCHER), ""), plain);
    assert_eq!(signals(Path::new(LAUNCHER), URL), plain);
}

#[test]
fn the_exit_code_and_signal_are_the_servers() {
    let machine = Machine::with_script("#!/bin/sh\nexit 42\n");
    assert_eq!(machine.launcher().status().unwrap().code(), Some(42));
    assert_eq!(machine.hooked().output().unwrap().status.code(), Some(42));
    let machine = Machine::with_script("#!/bin/sh\nkill -TERM $$\n");
    assert_eq!(machine.launcher().status().unwrap().signal(), Some(15));
}

#[test]
fn if_stderr_cannot_be_written_the_server_still_starts() {
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
    // A pipe whose reader is closed.
    let (_, broken) = std::io::pipe().unwrap();
    assert_eq!(
        machine.hooked().stderr(broken).status().unwrap().code(),
        Some(42)
    );
}

/// A file that the hook opens must not become a stream that the server writes to.
#[cfg(target_os = "linux")]
#[test]
fn with_a_hook_closed_streams_lead_nowhere() {
    let machine = Machine::new();
    let out = machine.path("streams");
    let server = format!(
        "#!/bin/sh\n(for n in 0 1 2; do [ /proc/$$/fd/$n -ef /dev/null ] && echo $n; done) >{}\n",
        out.display()
    );
    let machine = Machine::with_script(&server);
    let hooked = machine.hooked();
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", "exec <&- >&- 2>&-; exec \"$0\"", LAUNCHER]);
    let variables = hooked.get_envs();
    shell.env_clear();
    shell.envs(variables.filter_map(|(name, value)| Some((name, value?))));
    assert!(shell.status().unwrap().success());
    let streams = fs::read_to_string(out).unwrap();
    assert_eq!(streams, "0\n1\n2\n");
}

#[test]
fn a_script_without_a_first_line_for_its_interpreter_runs() {
    let machine = Machine::with_script("echo \"$1\"\n");
    let output = machine.launcher().arg("hello").output().unwrap();
    assert_eq!(output.stdout, b"hello\n", "{}", stderr(&output));
}

/// Seen in a trace of the system calls: until it calls `exec`, the launcher opens
/// what the dynamic loader opens for it, and nothing else.
#[test]
fn without_an_index_no_file_is_opened() {
    let machine = Machine::new();
    let trace = machine.path("trace");
    // By its path: a name would be looked for in the folders that the launcher is given.
    let Ok(strace) = which::which("strace") else {
        return contextpilot_testbed::skip("strace is not installed");
    };
    let traced = Command::new(strace)
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
        .output()
        .unwrap();
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
