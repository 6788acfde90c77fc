//! Where the launcher takes the hook library from: a package, the cache folder, or memory. The
//! servers of these tests are `cat`. It prints the file that it gets as an argument, such as its
//! own environment.
#![cfg(target_os = "linux")]

use contextpilot_testbed::or_return;
use std::ffi::OsStr;
use std::fs::{self, File, FileTimes, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, SystemTime};

const LAUNCHER: &str = env!("CARGO_BIN_EXE_contextpilot-llama-server");
const COMPANION: &str = env!("CARGO_BIN_EXE_contextpilot-llama");
const ENVIRONMENT: &str = "/proc/self/environ";
const MAPS: &str = "/proc/self/maps";

/// A home, a server, and the launcher as a package installs it.
struct Machine(tempfile::TempDir);

impl Machine {
    fn new() -> Self {
        let machine = Self(tempfile::tempdir().unwrap());
        for folder in ["", "home", "usr", "usr/bin", "usr/lib", PACKAGE] {
            let path = machine.path(folder);
            fs::create_dir_all(&path).unwrap();
            // Whatever the umask of this process is.
            set_mode(&path, 0o755);
        }
        symlink("/bin/cat", machine.path("llama-server")).unwrap();
        for (program, name) in [(LAUNCHER, "launcher"), (COMPANION, "companion")] {
            // Written by another process. If this process wrote the file, a child that another test
            // starts at that moment could still have it open, and then it could not be executed.
            let path = machine.path("usr/bin").join(name);
            let copied = Command::new("cp")
                .args([Path::new(program), &path])
                .status();
            assert!(copied.unwrap().success());
        }
        machine
    }

    /// A machine where the package includes the library, and the path of that library.
    fn packaged() -> (Self, PathBuf) {
        let machine = Self::new();
        let library = machine.cached();
        let packaged = machine.path(PACKAGE).join(library.file_name().unwrap());
        fs::copy(&library, &packaged).unwrap();
        set_mode(&packaged, 0o644);
        fs::remove_dir_all(machine.path("home/.cache")).unwrap();
        (machine, packaged)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn cache(&self) -> PathBuf {
        self.path("home/.cache/contextpilot-llama")
    }

    /// `program`, in an environment that has only this machine's home and server, and an index URL.
    fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("HOME", self.path("home"))
            .env("LLAMA_SERVER_BIN", self.path("llama-server"))
            .env("CONTEXTPILOT_INDEX_URL", "http://127.0.0.1:9");
        command
    }

    fn launch(&self, file: &str) -> Command {
        let mut command = self.command(self.path("usr/bin/launcher"));
        command.arg(file);
        command
    }

    /// The path of the library in the cache folder. The launcher writes it there if it is missing.
    fn cached(&self) -> PathBuf {
        let output = self.command(COMPANION).arg("hook-path").output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        PathBuf::from(text(&output.stdout).trim_end())
    }
}

const PACKAGE: &str = "usr/lib/contextpilot-llama-server";

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The preloaded library. stderr must have one line, which says that it was preloaded.
#[track_caller]
fn preloaded(output: &Output) -> PathBuf {
    let message = text(&output.stderr);
    assert!(output.status.success(), "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
    assert!(message.contains("injected"), "{message}");
    let environment = text(&output.stdout);
    let mut entries = environment.split('\0');
    let preload = entries.find_map(|entry| entry.strip_prefix("LD_PRELOAD="));
    PathBuf::from(preload.unwrap_or_else(|| panic!("not preloaded: {message}")))
}

/// The library must be loaded from memory, and one line on stderr must say why.
#[track_caller]
fn assert_in_memory(command: &mut Command, why: &str) {
    let output = command.output().unwrap();
    let (maps, message) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(message.lines().count(), 1, "{message}");
    assert!(message.contains("hook in memory, as "), "{message}");
    assert!(message.contains(why), "{why:?} is not in: {message}");
    assert!(
        maps.contains("/memfd:libcontextpilot_llama_hook-"),
        "{maps}"
    );
}

#[test]
fn the_library_of_a_package_is_loaded_from_the_package() {
    let (machine, library) = Machine::packaged();
    assert_eq!(
        preloaded(&machine.launch(ENVIRONMENT).output().unwrap()),
        library
    );
    let mut homeless = machine.launch(ENVIRONMENT);
    homeless.env_remove("HOME");
    assert_eq!(preloaded(&homeless.output().unwrap()), library);

    let mut companion = machine.command(machine.path("usr/bin/companion"));
    let said = companion.arg("hook-path").output().unwrap();
    assert_eq!(text(&said.stdout).trim_end(), library.to_str().unwrap());
    assert!(!machine.path("home/.cache").exists(), "it was copied");
}

#[test]
fn if_the_library_of_the_package_is_of_another_build_it_is_not_loaded() {
    let (machine, library) = Machine::packaged();
    let ours = fs::read(&library).unwrap();
    let used = || preloaded(&machine.launch(ENVIRONMENT).output().unwrap());
    for changed in [0, ours.len() - 1] {
        let mut other = ours.clone();
        other[changed] ^= 1;
        fs::write(&library, other).unwrap();
        assert_eq!(used().parent(), Some(&*machine.cache()), "{changed}");
    }
    fs::write(&library, &ours[..ours.len() / 2]).unwrap();
    assert_eq!(used().parent(), Some(&*machine.cache()));
    fs::write(&library, &ours).unwrap();
    assert_eq!(used(), library);
}

#[test]
fn if_others_may_write_to_the_library_of_the_package_it_is_not_loaded() {
    let (machine, library) = Machine::packaged();
    let package = machine.path(PACKAGE);
    for (open, mode) in [(&library, 0o666), (&package, 0o777)] {
        set_mode(open, mode);
        let used = preloaded(&machine.launch(ENVIRONMENT).output().unwrap());
        assert_eq!(used.parent(), Some(&*machine.cache()), "{open:?}");
        set_mode(open, 0o755);
        assert_eq!(
            preloaded(&machine.launch(ENVIRONMENT).output().unwrap()),
            library
        );
    }
}

#[test]
fn without_a_home_the_library_is_loaded_from_memory() {
    let machine = Machine::new();
    let mut homeless = machine.launch(MAPS);
    homeless.env_remove("HOME");
    assert_in_memory(&mut homeless, "neither XDG_CACHE_HOME nor HOME");

    // Processes that the server starts must load the library, too.
    let script = machine.path("script");
    fs::write(&script, "#!/bin/sh\ncat \"$1\"; exit\n").unwrap();
    set_mode(&script, 0o755);
    homeless.env("LLAMA_SERVER_BIN", &script);
    assert_in_memory(&mut homeless, "neither XDG_CACHE_HOME nor HOME");
}

#[test]
fn if_the_cache_folder_cannot_be_used_the_library_is_loaded_from_memory() {
    let machine = Machine::new();
    let mut nowhere = machine.launch(MAPS);
    // No user can create folders in /proc, not even root.
    nowhere.env("XDG_CACHE_HOME", "/proc/contextpilot");
    assert_in_memory(&mut nowhere, "/proc/contextpilot");
    let mut inexpressible = machine.launch(MAPS);
    inexpressible.env("XDG_CACHE_HOME", machine.path("with space"));
    assert_in_memory(&mut inexpressible, "cannot express");
}

/// Runs `script` in new namespaces. In the script, `"$0" "$@"` runs the launcher with `file`.
/// `None` if this machine allows no namespaces.
fn unshared(machine: &Machine, script: &str, file: &str) -> Option<Command> {
    let flags = ["-m", "-rm"].into_iter().find(|flags| {
        let probe = Command::new("unshare")
            .args([flags, "mount", "-t", "tmpfs", "none", "/mnt"])
            .stderr(Stdio::null())
            .status();
        probe.is_ok_and(|status| status.success())
    });
    let Some(flags) = flags else {
        contextpilot_testbed::skip("nothing can be mounted here");
        return None;
    };
    let mut command = machine.command("unshare");
    command
        .args([
            flags,
            "--pid",
            "--fork",
            "--mount-proc",
            "/bin/sh",
            "-c",
            script,
        ])
        .arg(machine.path("usr/bin/launcher"))
        .arg(file);
    Some(command)
}

#[test]
fn on_a_read_only_root_the_library_is_loaded_from_memory_or_the_package() {
    let machine = Machine::new();
    let script = "mount --bind \"$HOME\" \"$HOME\" && mount -o remount,bind,ro \"$HOME\" \
                  && mount -o remount,bind,ro / && \"$0\" \"$@\"";
    let mut read_only = or_return!(unshared(&machine, script, MAPS));
    assert_in_memory(&mut read_only, "Read-only file system");

    let (machine, library) = Machine::packaged();
    let mut read_only = unshared(&machine, script, ENVIRONMENT).unwrap();
    assert_eq!(preloaded(&read_only.output().unwrap()), library);
}

#[test]
fn with_noexec_folders_the_library_is_loaded_from_memory() {
    let machine = Machine::new();
    let script = "mount -t tmpfs -o mode=700 none \"$HOME\" && mount -o remount,noexec \"$HOME\" \
                  && mount -t tmpfs -o noexec,mode=1777 none /dev/shm && \"$0\" \"$@\"";
    if let Some(mut noexec) = unshared(&machine, script, MAPS) {
        assert_in_memory(&mut noexec, "mounted noexec");
    }
}

#[test]
fn if_memory_cannot_be_executed_either_one_line_says_why() {
    let machine = Machine::new();
    let script = "echo 2 >/proc/sys/vm/memfd_noexec && unset HOME && \"$0\" \"$@\"";
    let mut refused = or_return!(unshared(&machine, script, ENVIRONMENT));
    let output = refused.output().unwrap();
    let message = text(&output.stderr);
    if message.contains("/proc/sys/vm/memfd_noexec") {
        contextpilot_testbed::skip(message);
        return;
    }
    assert_eq!(message.lines().count(), 1, "{message}");
    for part in [
        "without the hook",
        "HOME",
        "nor can it be loaded from memory",
    ] {
        assert!(message.contains(part), "{part:?} is not in: {message}");
    }
    assert!(!text(&output.stdout).contains("LD_PRELOAD"));
}

const MONTH: Duration = Duration::from_secs(31 * 24 * 60 * 60);

/// Puts a library into the cache folder that was last used that long ago.
fn left_behind(machine: &Machine, name: &str, ago: Duration) -> PathBuf {
    let path = machine.cache().join(name);
    let library = machine.cached();
    // Its content does not matter: libraries are told apart by their names.
    fs::copy(library, &path).unwrap();
    used(&path, ago);
    path
}

fn used(path: &Path, ago: Duration) {
    let then = SystemTime::now() - ago;
    let times = FileTimes::new().set_accessed(then).set_modified(then);
    File::options()
        .append(true)
        .open(path)
        .unwrap()
        .set_times(times)
        .unwrap();
}

#[test]
fn old_libraries_in_the_cache_folder_are_removed_if_no_process_uses_them() {
    let machine = Machine::new();
    let name = |what: &str| format!("libcontextpilot_llama_hook-{what}.so");
    let old = left_behind(&machine, &name("old"), MONTH);
    let unfinished = left_behind(&machine, ".new-1-0", MONTH);
    let recent = left_behind(&machine, &name("recent"), MONTH / 2);
    let loaded = left_behind(&machine, &name("loaded"), MONTH);
    let foreign = left_behind(&machine, "notes.txt", MONTH);

    // The launcher tidies up only when it writes the library.
    machine.cached();
    assert!(old.exists());

    // It runs until its input ends, which is when this test ends.
    let mut running = Command::new("cat")
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("LD_PRELOAD", &loaded)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // Once it answers, it has loaded its libraries.
    std::io::Write::write_all(running.stdin.as_mut().unwrap(), b"x").unwrap();
    let mut answer = [0];
    std::io::Read::read_exact(running.stdout.as_mut().unwrap(), &mut answer).unwrap();
    used(&loaded, MONTH);

    let library = machine.cached();
    fs::remove_file(&library).unwrap();
    assert_eq!(machine.cached(), library);
    for (path, stays) in [
        (&old, false),
        (&unfinished, false),
        (&recent, true),
        (&loaded, true),
        (&foreign, true),
        (&library, true),
    ] {
        assert_eq!(path.exists(), stays, "{path:?}");
    }

    drop(running.stdin.take());
    running.wait().unwrap();
    fs::remove_file(&library).unwrap();
    machine.cached();
    assert!(!loaded.exists());
}
