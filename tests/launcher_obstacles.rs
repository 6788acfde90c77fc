//! The launcher with servers into which nothing can be preloaded, and with wrapper scripts. The
//! servers of these tests print the file that they get as an argument, such as their own
//! environment.
#![cfg(target_os = "linux")]

use std::fs::{self, File, Permissions};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

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
            // Not writable by others, whatever the umask of this process is.
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

    /// The server is this script, in which `REAL` stands for the path of the compiled server.
    fn script(body: &str) -> Self {
        let machine = Self::new(&[]);
        fs::rename(machine.server(), machine.path("real-server")).unwrap();
        // Written by another process. If this process wrote the file, a child that another test
        // starts at that moment could still have it open, and then it could not be executed.
        let written = Command::new("/bin/sh")
            .args(["-c", "printf '%s' \"$1\" > \"$0\" && chmod 755 \"$0\""])
            .arg(machine.server())
            .arg(body.replace("REAL", machine.path("real-server").to_str().unwrap()))
            .status();
        assert!(written.unwrap().success());
        machine
    }

    /// Makes the server as large as one that contains llama.cpp. The launcher takes a smaller
    /// program for a wrapper.
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

/// `LD_PRELOAD` in an output that is an environment.
fn preload(output: &Output) -> Option<String> {
    let environment = text(&output.stdout);
    let mut entries = environment.split('\0');
    entries.find_map(|entry| entry.strip_prefix("LD_PRELOAD=").map(str::to_owned))
}

/// The hook must be preloaded. The launcher must print one line that says so, and one with `advice`
/// if there is any.
#[track_caller]
fn assert_hooked(machine: &Machine, advice: &[&str]) {
    let output = machine.launch().output().unwrap();
    let message = text(&output.stderr);
    assert!(output.status.success(), "{message}");
    let preload = preload(&output).unwrap_or_else(|| panic!("not preloaded: {message}"));
    assert!(preload.contains("libcontextpilot_llama_hook"), "{preload}");
    let lines = 1 + usize::from(!advice.is_empty());
    // The real hook is loaded, and prints that it is inactive in a server with one function.
    let ours = message.lines().filter(|line| !line.contains("Inactive: "));
    assert_eq!(ours.count(), lines, "{message}");
    for advice in advice {
        assert!(message.contains(advice), "{advice:?} is not in: {message}");
    }
}

/// The launcher must print one line that says `why`, and run the server without the hook. With
/// `CONTEXTPILOT_STRICT=1` it must not run the server. `runs`: whether the server can run here.
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
/// The server must run without the hook, and no library may be written to the cache folder.
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
fn a_stripped_single_executable_runs_without_the_hook() {
    assert_not_reached(
        &Machine::new(&["-s"]).enlarged(),
        &[
            "llama-server\" was stripped",
            "if it is inside",
            "use a shared build",
        ],
    );
}

#[test]
fn a_stripped_executable_that_exports_its_functions_is_hooked() {
    assert_hooked(&Machine::new(&["-s", "-rdynamic"]).enlarged(), &[]);
}

/// As in a container or a chroot without it. The hook would find no function, and say nothing.
#[test]
fn a_single_executable_runs_without_the_hook_where_there_is_no_proc() {
    const WITHOUT: &[&str] = &[
        "unshare",
        "-rm",
        "sh",
        "-c",
        "mount -t tmpfs none /proc && exec \"$@\"",
        "sh",
    ];
    let mut probe = Command::new(WITHOUT[0]);
    let probe = probe.args(&WITHOUT[1..]).arg("true").output();
    if !probe.is_ok_and(|probe| probe.status.success()) {
        contextpilot_testbed::skip("no mount namespace can be made here (unshare -rm)");
        return;
    }
    let message = |machine: &Machine| {
        let launch = machine.launch();
        let mut command = Command::new(WITHOUT[0]);
        command.args(&WITHOUT[1..]).arg(LAUNCHER).arg("/dev/null");
        for (name, value) in launch.get_envs() {
            command.env(name, value.unwrap_or_default());
        }
        text(&command.output().unwrap().stderr)
    };
    let said = message(&Machine::new(&[]).enlarged());
    assert!(said.contains("without the hook: "), "{said}");
    assert!(said.contains("mount /proc here"), "{said}");
    // A wrapper, or a server whose engine is in libraries.
    let said = message(&Machine::new(&[]));
    assert!(said.contains("Launching with LD_PRELOAD"), "{said}");
}

#[test]
fn a_program_that_is_called_otherwise_and_has_no_engine_is_said_to_be_no_server() {
    let machine = Machine::new(&["-s"]);
    let said_of = |program: &Path| {
        let mut launch = Command::new(LAUNCHER);
        for (name, value) in machine.launch().get_envs() {
            launch.env(name, value.unwrap_or_default());
        }
        launch
            .env("LLAMA_SERVER_BIN", program)
            .args(["-c", ":"])
            .stdin(Stdio::null());
        text(&launch.output().unwrap().stderr)
    };
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("other");
    fs::copy("/bin/sh", &other).unwrap();
    for (program, line) in [
        (
            &*other,
            format!(
                "[ContextPilot] {} is no llama-server: there is no llama.cpp in it; unless it starts one, set \
                 LLAMA_SERVER_BIN to a llama-server",
                other.display()
            ),
        ),
        // Its name says so.
        (
            Path::new("/bin/sh"),
            "[ContextPilot] LLAMA_SERVER_BIN is /bin/sh, which is no llama-server, and runs what it is told: set it \
             to the path of llama-server"
                .to_owned(),
        ),
    ] {
        let said = said_of(program);
        let lines: Vec<&str> = said
            .lines()
            .filter(|one| one.contains("llama-server"))
            .filter(|one| !one.contains("Launching"))
            .collect();
        assert_eq!(lines, [line], "{said}");
    }
}

/// A wrapper is a program such as `tini` or `nice` that starts the server.
#[test]
fn a_small_stripped_program_counts_as_a_wrapper_and_gets_the_hook() {
    assert_hooked(&Machine::new(&["-s"]), &[]);
    assert_hooked(&Machine::new(&["-s", "-static"]), &[]);
}

#[test]
fn a_fully_static_server_runs_without_the_hook() {
    for flags in [&["-static"][..], &["-static-pie", "-fPIE"]] {
        assert_not_reached(
            &Machine::new(flags).enlarged(),
            &["linked fully statically", "use a build"],
        );
    }
}

#[test]
fn a_server_of_another_architecture_is_named_and_passed_to_exec() {
    // EM_S390: no machine is set up to emulate this one.
    assert_plain(
        for_another_machine(22).launch(),
        &["is built for machine 22"],
        false,
    );
}

/// Only with `CONTEXTPILOT_STRICT`, where the launcher does not call `exec`: some machines emulate
/// this architecture, and `exec` would succeed there.
#[test]
fn in_strict_mode_a_server_of_another_architecture_is_refused() {
    let (number, advice) = if cfg!(target_arch = "aarch64") {
        (62, ["is built for x86-64", "this hook for aarch64"])
    } else {
        (183, ["is built for aarch64", "this hook for x86-64"])
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

/// A server with another machine number in its ELF header, and no other change.
fn for_another_machine(number: u16) -> Machine {
    let machine = Machine::new(&[]);
    let mut file = File::options().write(true).open(machine.server()).unwrap();
    file.seek(SeekFrom::Start(18)).unwrap();
    file.write_all(&number.to_le_bytes()).unwrap();
    machine
}

/// The server's ELF interpreter has a name like musl's dynamic linker.
#[test]
fn a_server_linked_with_musl_runs_without_the_hook() {
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
    // A copy of glibc's dynamic linker, so the server runs.
    fs::copy(&real, &linker).unwrap();
    let flag = format!("-Wl,--dynamic-linker={}", linker.display());
    assert_not_reached(&Machine::new(&[&flag]), &["linked with musl", "glibc"]);
}

#[test]
fn a_set_user_id_server_runs_without_the_hook() {
    let machine = Machine::new(&[]);
    let server = machine.server();
    let given = std::os::unix::fs::chown(&server, Some(65534), None).is_ok();
    fs::set_permissions(machine.0.path(), Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&server, Permissions::from_mode(0o4755)).unwrap();
    if !given || Program::open(&server).unwrap().privilege.is_none() {
        contextpilot_testbed::skip("needs root, and a system that honours the set-user-ID bit");
        return;
    }
    assert_plain_file(&machine, &["set-user-ID bit", "chmod ug-s"]);
}

/// Like [`assert_plain`], for a server with the set-user-ID bit. It cannot read its environment from
/// `/proc`, so it prints a plain file.
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
fn a_script_gets_the_hook() {
    assert_hooked(&Machine::script("#!/bin/sh\nexec REAL \"$@\"\n"), &[]);
    assert_hooked(&Machine::script("exec REAL \"$@\"\n"), &[]);
}

#[test]
fn if_a_script_resets_the_environment_the_launcher_gives_advice() {
    let machine =
        Machine::script("#!/bin/sh\ncase $1 in x) env -i REAL x ;; esac\nexec REAL \"$@\"\n");
    assert_hooked(
        &machine,
        &["env -i", "may keep the hook", "LLAMA_SERVER_BIN"],
    );
}

#[test]
fn if_a_script_sets_its_own_preload_the_launcher_gives_advice() {
    let machine = Machine::script("#!/bin/sh\nexec REAL \"$@\"; LD_PRELOAD=/a.so x\n");
    assert_hooked(&machine, &["\"LD_PRELOAD=/a.so\"", "may keep the hook"]);
    let kept = "#!/bin/sh\nLD_PRELOAD=\"$LD_PRELOAD:\"\nunset LD_PRELOAD_OLD\nexec REAL \"$@\"\n";
    assert_hooked(&Machine::script(kept), &[]);
}

#[test]
fn a_server_without_read_permission_is_hooked() {
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
    // Runs a script in a new mount namespace, so that its mounts are seen by no other process.
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
    // `-m` works for root, `-rm` where user namespaces are allowed.
    let how = ["-m", "-rm"].into_iter().find(|how| {
        let output = unshared(how, MOUNT).output();
        output.is_ok_and(|output| output.status.success())
    });
    let Some(how) = how else {
        contextpilot_testbed::skip("nothing can be mounted here");
        return;
    };
    let run = "exec \"$0\" \"$@\"";
    let given = "export CONTEXTPILOT_HOOK_LIB=\"$XDG_CACHE_HOME/hook.so\"";
    let script = format!("{MOUNT} && {given} && : >\"$CONTEXTPILOT_HOOK_LIB\" && {run}");
    assert_plain(unshared(how, &script), &["hook.so", "mounted noexec"], true);
}

#[test]
fn without_an_index_the_server_runs_and_nothing_is_printed() {
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
