//! The launcher before servers that a preload does not reach, and before wrappers that it
//! passes through. The servers print the file that they are given, such as their environment.
#![cfg(target_os = "linux")]

use std::fs::{self, File, Permissions};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use contextpilot_inspect::Program;

const LAUNCHER: &str = env!("CARGO_BIN_EXE_contextpilot-llama-server");

const SERVER: &str = r#"
    #include <stdio.h>
    __attribute__((noinline)) int llama_memory_seq_rm(int x) { return x + 1; }
    int main(int argc, char **argv) {
        FILE *file = fopen(argv[1], "r");
        for (int c; (c = getc(file)) != EOF;) putchar(c);
        return llama_memory_seq_rm(argc) != 3;
    }
"#;

/// A folder with a home and a server in it.
struct Machine(tempfile::TempDir);

impl Machine {
    /// Compiles the server with these flags.
    fn new(flags: &[&str]) -> Self {
        let machine = Self(tempfile::tempdir().unwrap());
        for folder in ["", "home"] {
            let path = machine.path(folder);
            fs::create_dir_all(&path).unwrap();
            // Closed to others whatever the mask of this process is.
            fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
        }
        fs::write(machine.path("server.c"), SERVER).unwrap();
        let built = Command::new("cc")
            .args(["server.c", "-O1", "-o", "llama-server"])
            .args(flags)
            .current_dir(machine.0.path())
            .output()
            .unwrap();
        assert!(built.status.success(), "{}", text(&built.stderr));
        machine
    }

    fn script(body: &str) -> Self {
        let machine = Self::new(&[]);
        fs::rename(machine.server(), machine.path("real-server")).unwrap();
        // By another process: a file that this one has open for writing, if only in a child
        // that another test is starting just then, cannot be executed.
        let written = Command::new("/bin/sh")
            .args(["-c", "printf '%s' \"$1\" > \"$0\" && chmod 755 \"$0\""])
            .arg(machine.server())
            .arg(body.replace("REAL", machine.path("real-server").to_str().unwrap()))
            .status();
        assert!(written.unwrap().success());
        machine
    }

    /// Makes the server as large as one that has an engine inside.
    fn enlarged(self) -> Self {
        let grown = Command::new("truncate")
            .args(["--size", "+2M"])
            .arg(self.server())
            .status();
        assert!(grown.unwrap().success());
        self
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn server(&self) -> PathBuf {
        self.path("llama-server")
    }

    fn launch(&self) -> Command {
        let mut command = Command::new(LAUNCHER);
        command
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", self.path("home"))
            .env("LLAMA_SERVER_BIN", self.server())
            .env("CONTEXTPILOT_INDEX_URL", "http://127.0.0.1:9")
            .arg("/proc/self/environ");
        command
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn preload(output: &Output) -> Option<String> {
    let environment = text(&output.stdout);
    let mut entries = environment.split('\0');
    entries.find_map(|entry| entry.strip_prefix("LD_PRELOAD=").map(str::to_owned))
}

/// The hook went in, with no more to say than that and `advice`.
#[track_caller]
fn assert_hooked(machine: &Machine, advice: &[&str]) {
    let output = machine.launch().output().unwrap();
    let message = text(&output.stderr);
    assert!(output.status.success(), "{message}");
    let preload = preload(&output).unwrap_or_else(|| panic!("not preloaded: {message}"));
    assert!(preload.contains("libcontextpilot_llama_hook"), "{preload}");
    let lines = 1 + usize::from(!advice.is_empty());
    // The hook, which is real, has its own opinion on a server of one function.
    let ours = message.lines().filter(|line| !line.contains("Inactive: "));
    assert_eq!(ours.count(), lines, "{message}");
    for advice in advice {
        assert!(message.contains(advice), "{advice:?} is not in: {message}");
    }
}

/// One line that says `why`, then the server as it is; strictly, no server.
#[track_caller]
fn assert_plain(mut launch: Command, why: &[&str], runs: bool) {
    let output = launch.output().unwrap();
    let message = text(&output.stderr);
    assert_eq!(output.status.success(), runs, "{message}");
    let first = message.lines().next().unwrap_or_default();
    assert!(first.starts_with("[ContextPilot] "), "{message}");
    for why in why.iter().chain(&["without the hook"]) {
        assert!(first.contains(why), "{why:?} is not in: {first}");
    }
    if runs {
        assert_eq!(message.lines().count(), 1, "{message}");
        assert_eq!(preload(&output), None);
        assert!(text(&output.stdout).contains("LLAMA_SERVER_BIN="));
    }

    let output = launch.env("CONTEXTPILOT_STRICT", "1").output().unwrap();
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
    for why in why.iter().chain(&["CONTEXTPILOT_STRICT"]) {
        assert!(message.contains(why), "{why:?} is not in: {message}");
    }
    assert!(output.stdout.is_empty(), "the server ran: {message}");
}

#[track_caller]
fn assert_not_reached(machine: &Machine, why: &[&str]) {
    assert_plain(machine.launch(), why, true);
    let cache = machine.path("home/.cache");
    assert!(!cache.exists(), "a library was laid down for nothing");
}

#[test]
fn a_single_executable_with_symbols_is_hooked() {
    assert_hooked(&Machine::new(&[]).enlarged(), &[]);
}

#[test]
fn a_stripped_single_executable_is_not() {
    assert_not_reached(
        &Machine::new(&["-s"]).enlarged(),
        &[
            "llama-server\" has llama.cpp inside",
            "stripped",
            "use a shared build",
        ],
    );
}

/// Nor is it taken for one whose functions are out of reach if they are not.
#[test]
fn a_stripped_executable_that_exports_its_functions_is_hooked() {
    assert_hooked(&Machine::new(&["-s", "-rdynamic"]).enlarged(), &[]);
}

/// Such as `tini` or `nice`, called with the server as an argument.
#[test]
fn a_small_stripped_program_is_a_wrapper() {
    assert_hooked(&Machine::new(&["-s"]), &[]);
    assert_hooked(&Machine::new(&["-s", "-static"]), &[]);
}

#[test]
fn a_fully_static_server_is_not_reached() {
    for flags in [&["-static"][..], &["-static-pie", "-fPIE"]] {
        assert_not_reached(
            &Machine::new(flags).enlarged(),
            &["linked fully statically", "use a build"],
        );
    }
}

#[test]
fn a_server_for_another_machine_is_left_to_exec() {
    // EM_S390, which nobody emulates unasked.
    assert_plain(
        for_another_machine(22).launch(),
        &["is built for machine 22"],
        false,
    );
}

/// Where such servers are emulated, exec succeeds: it is not tried here.
#[test]
fn a_server_of_the_other_common_machine_is_not_reached() {
    let (number, advice) = match cfg!(target_arch = "aarch64") {
        true => (62, ["is built for x86-64", "this hook for aarch64"]),
        false => (183, ["is built for aarch64", "this hook for x86-64"]),
    };
    let machine = for_another_machine(number);
    let mut launch = machine.launch();
    let output = launch.env("CONTEXTPILOT_STRICT", "1").output().unwrap();
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
    for advice in advice {
        assert!(message.contains(advice), "{advice:?} is not in: {message}");
    }
}

/// Only the number is changed.
fn for_another_machine(number: u16) -> Machine {
    let machine = Machine::new(&[]);
    let mut file = File::options().write(true).open(machine.server()).unwrap();
    file.seek(SeekFrom::Start(18)).unwrap();
    file.write_all(&number.to_le_bytes()).unwrap();
    machine
}

/// Only its interpreter's name is changed, to a file that is there.
#[test]
fn a_server_linked_with_musl_is_not_reached() {
    let folder = tempfile::tempdir().unwrap();
    let linker = folder.path().join("ld-musl-test.so.1");
    let mut real = String::new();
    let program = Program::open(Path::new("/bin/sh")).unwrap();
    if let contextpilot_inspect::Linkage::Dynamic { interpreter, .. } =
        &program.executable().unwrap().linkage
    {
        real.clone_from(interpreter);
    }
    assert!(!real.is_empty());
    // It is glibc's in truth, so the server runs.
    fs::copy(&real, &linker).unwrap();
    let flag = format!("-Wl,--dynamic-linker={}", linker.display());
    assert_not_reached(&Machine::new(&[&flag]), &["linked with musl", "glibc"]);
}

#[test]
fn a_server_with_more_rights_than_ours_is_not_reached() {
    let machine = Machine::new(&[]);
    let server = machine.server();
    let given = std::os::unix::fs::chown(&server, Some(65534), None).is_ok();
    fs::set_permissions(machine.0.path(), Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&server, Permissions::from_mode(0o4755)).unwrap();
    if !given || Program::open(&server).unwrap().privilege.is_none() {
        eprintln!("skipped: needs root, and a system that honours the set-user-ID bit");
        return;
    }
    assert_plain_file(&machine, &["set-user-ID bit", "chmod ug-s"]);
}

/// Its environment is not for others to read: it is given a plain file.
#[track_caller]
fn assert_plain_file(machine: &Machine, why: &[&str]) {
    let file = machine.path("file");
    fs::write(&file, "LLAMA_SERVER_BIN=").unwrap();
    let mut launch = Command::new(LAUNCHER);
    launch
        .env_clear()
        .env("HOME", machine.path("home"))
        .env("LLAMA_SERVER_BIN", machine.server())
        .env("CONTEXTPILOT_INDEX_URL", "http://127.0.0.1:9")
        .arg(file);
    assert_plain(launch, why, true);
}

#[test]
fn a_script_is_passed_through() {
    assert_hooked(&Machine::script("#!/bin/sh\nexec REAL \"$@\"\n"), &[]);
    assert_hooked(&Machine::script("exec REAL \"$@\"\n"), &[]);
}

#[test]
fn a_script_that_resets_the_environment_is_advised_on() {
    let machine =
        Machine::script("#!/bin/sh\ncase $1 in x) env -i REAL x ;; esac\nexec REAL \"$@\"\n");
    assert_hooked(
        &machine,
        &["env -i", "may keep the hook", "LLAMA_SERVER_BIN"],
    );
}

#[test]
fn a_script_with_a_preload_of_its_own_is_advised_on() {
    let machine = Machine::script("#!/bin/sh\nexec REAL \"$@\"; LD_PRELOAD=/a.so x\n");
    assert_hooked(&machine, &["\"LD_PRELOAD=/a.so\"", "may keep the hook"]);
    let kept = "#!/bin/sh\nLD_PRELOAD=\"$LD_PRELOAD:\"\nunset LD_PRELOAD_OLD\nexec REAL \"$@\"\n";
    assert_hooked(&Machine::script(kept), &[]);
}

#[test]
fn a_server_that_may_not_be_read_is_hooked() {
    let machine = Machine::new(&[]);
    fs::set_permissions(machine.server(), Permissions::from_mode(0o711)).unwrap();
    assert_hooked(&machine, &[]);
    fs::write(machine.server(), b"\x7fELF\x02\x01\x01").unwrap();
    let output = machine.launch().output().unwrap();
    let first = text(&output.stderr);
    assert!(first.contains("injected"), "{first}");
}

#[test]
fn a_given_library_on_a_noexec_mount_is_not_used() {
    const MOUNT: &str = "mount -t tmpfs -o noexec,mode=700 none \"$XDG_CACHE_HOME\"";
    let machine = Machine::new(&[]);
    let cache = machine.path("cache");
    fs::create_dir(&cache).unwrap();
    fs::set_permissions(&cache, Permissions::from_mode(0o755)).unwrap();
    // A mount that only this process and its children see.
    let unshared = |how: &str, script: &str| {
        let mut unshared = Command::new("unshare");
        unshared
            .args([how, "/bin/sh", "-c", script, LAUNCHER, "/proc/self/environ"])
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("XDG_CACHE_HOME", &cache)
            .env("LLAMA_SERVER_BIN", machine.server())
            .env("CONTEXTPILOT_INDEX_URL", "http://127.0.0.1:9");
        unshared
    };
    // As root, or with a user namespace.
    let how = ["-m", "-rm"].into_iter().find(|how| {
        let output = unshared(how, MOUNT).output();
        output.is_ok_and(|output| output.status.success())
    });
    let Some(how) = how else {
        eprintln!("skipped: nothing can be mounted here");
        return;
    };
    let run = "exec \"$0\" \"$@\"";
    let given = "export CONTEXTPILOT_HOOK_LIB=\"$XDG_CACHE_HOME/hook.so\"";
    let script = format!("{MOUNT} && {given} && : >\"$CONTEXTPILOT_HOOK_LIB\" && {run}");
    assert_plain(unshared(how, &script), &["hook.so", "mounted noexec"], true);
}

#[test]
fn without_an_index_a_server_of_any_kind_just_runs() {
    let machine = Machine::new(&["-static"]).enlarged();
    let output = machine
        .launch()
        .env_remove("CONTEXTPILOT_INDEX_URL")
        .env("CONTEXTPILOT_STRICT", "1")
        .output()
        .unwrap();
    assert_eq!(text(&output.stderr), "");
    assert!(text(&output.stdout).contains("LLAMA_SERVER_BIN="));
}
