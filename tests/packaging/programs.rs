//! Packages with the programs of this build, which are not optimised; and the programs in a container.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::{root, text};

/// A bash script that does what `scripts/package` does after the build. $1 is the checkout, $2 the folder
/// of the packages, $3 the architecture. It compresses less, because programs that are not optimised are
/// large.
const PACK: &str = r#"
    umask 022
    repository=$1 packages=$2
    cd "$repository"
    . scripts/lib/tools.sh
    . scripts/lib/packages.sh
    gzip() { command gzip "${@/--best/-1}"; }
    dpkg-deb() { :; }
    mkdir -p "$packages/out"
    strip "$packages/$3"/bin/*
    stage "$3" "$packages/$3/stage"
    tarball "$3" "$packages/$3/stage"
    deb "$3" "$packages/$3/stage"
"#;

fn companion() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_contextpilot-llama"));
    command.env_clear();
    command
}

/// The path of the hook library, as `command hook-path` prints it.
fn hook_path(mut command: Command, home: &Path) -> PathBuf {
    let output = command.arg("hook-path").env("HOME", home).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    PathBuf::from(OsStr::from_bytes(output.stdout.trim_ascii_end()))
}

fn run(program: &str, arguments: &[&OsStr]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .env("SOURCE_DATE_EPOCH", "1700000000")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

/// Makes the packages of this build in `folder/out`.
fn pack(folder: &Path, machine: &str) {
    let built = folder.join(machine);
    fs::create_dir_all(built.join("bin")).unwrap();
    fs::create_dir(built.join("lib")).unwrap();
    for program in [
        env!("CARGO_BIN_EXE_contextpilot-llama"),
        env!("CARGO_BIN_EXE_contextpilot-llama-server"),
    ] {
        let name = Path::new(program).file_name().unwrap();
        fs::copy(program, built.join("bin").join(name)).unwrap();
    }
    let library = hook_path(companion(), folder);
    fs::copy(
        &library,
        built.join("lib").join(library.file_name().unwrap()),
    )
    .unwrap();
    let arguments = ["-euc", PACK, "pack"].map(OsStr::new);
    let more = [root("").into_os_string(), folder.into(), machine.into()];
    let arguments: Vec<_> = arguments
        .into_iter()
        .chain(more.iter().map(|argument| argument.as_os_str()))
        .collect();
    run("bash", &arguments);
}

#[test]
fn packages_are_reproducible_and_the_tarball_uses_its_own_library() {
    let tools = ["python3", "strip"].map(|tool| Command::new(tool).arg("--version").output());
    if tools.iter().any(Result::is_err) {
        contextpilot_testbed::skip("python3 or strip (binutils) is not installed");
        return;
    }
    let machine = std::env::consts::ARCH;
    let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
    for folder in &folders {
        pack(folder.path(), machine);
    }
    let [first, second] = folders.each_ref().map(tempfile::TempDir::path);
    let mut names: Vec<_> = fs::read_dir(first.join("out"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    assert!(names.len() >= 2, "{names:?}");
    for name in &names {
        let [one, other] = [first, second].map(|folder| fs::read(folder.join("out").join(name)));
        assert!(one.unwrap() == other.unwrap(), "{name:?}");
    }

    let version = env!("CARGO_PKG_VERSION");
    let name = format!("contextpilot-llama-server-{version}-{machine}-linux");
    let tarball = first.join("out").join(format!("{name}.tar.gz"));
    let place = tempfile::tempdir().unwrap();
    let (from, to) = (tarball.as_os_str(), place.path().as_os_str());
    run("tar", &["-xzf".as_ref(), from, "-C".as_ref(), to]);
    let unpacked = place.path().join(name);
    let mut program = Command::new(unpacked.join("bin/contextpilot-llama"));
    program.env_clear();
    let library = hook_path(program, Path::new("/proc/nowhere"));
    let library = library.canonicalize().unwrap();
    let expected = unpacked.join("lib/contextpilot-llama-server");
    assert_eq!(library.parent().unwrap(), expected.canonicalize().unwrap());

    let package = first.join(machine).join("deb");
    let control = fs::read_to_string(package.join("DEBIAN/control")).unwrap();
    // Every @NAME@ of the template is replaced.
    let open = control.lines().find(|line| line.matches('@').count() > 1);
    assert_eq!(open, None, "{control}");
    assert!(
        control.contains(&format!("\nVersion: {version}\n")),
        "{control}"
    );
    for file in [
        "usr/bin/contextpilot-llama-server",
        "usr/lib/systemd/system/contextpilot-llama-server@.service",
        "etc/default/contextpilot-llama-server",
    ] {
        assert!(package.join(file).is_file(), "{file}");
    }
}

/// In a container the index is process 1. Signals that such a process does not handle are ignored.
#[test]
fn in_a_container_sigterm_ends_the_index() {
    let apart = ["--user", "--map-root-user", "--pid", "--fork"];
    let probe = Command::new("unshare").args(apart).arg("true").output();
    if !probe.is_ok_and(|output| output.status.success()) {
        contextpilot_testbed::skip(
            "no namespace for processes can be made here (unshare, of util-linux)",
        );
        return;
    }
    let mut parent = Command::new("unshare")
        .args(apart)
        .arg("--kill-child")
        .arg(env!("CARGO_BIN_EXE_contextpilot-llama"))
        .args(["listen", "--port", "0"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(parent.stderr.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("Listening on")));
    let children = format!("/proc/{0}/task/{0}/children", parent.id());
    let first = fs::read_to_string(children).unwrap();
    let signal = |name| Command::new("kill").args([name, first.trim()]).status();
    assert!(signal("-TERM").unwrap().success());
    let (sender, ended) = mpsc::channel();
    thread::spawn(move || sender.send(parent.wait().unwrap().code()));
    let code = ended.recv_timeout(Duration::from_secs(20));
    if code.is_err() {
        signal("-KILL").unwrap();
    }
    assert_eq!(code, Ok(Some(128 + 15)));
}
