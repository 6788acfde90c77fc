use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;

use super::*;

/// A runtime folder, and nothing but that.
struct Run(tempfile::TempDir);

impl Run {
    fn new() -> Self {
        Self(contextpilot_testbed::private_folder())
    }

    fn lookup(&self, name: &str) -> Option<OsString> {
        (name == "XDG_RUNTIME_DIR").then(|| self.0.path().into())
    }

    fn place(&self) -> PathBuf {
        place(|name| self.lookup(name)).unwrap()
    }

    /// What is found in this folder. This machine may have others.
    fn found(&self) -> Vec<Socket> {
        let sockets = sockets(|name| self.lookup(name)).into_iter();
        sockets
            .filter(|socket| socket.path.starts_with(&self.0))
            .collect()
    }
}

impl AsRef<Path> for Run {
    fn as_ref(&self) -> &Path {
        self.0.path()
    }
}

#[test]
fn a_socket_is_found_as_long_as_its_server_listens() {
    let run = Run::new();
    assert!(run.found().is_empty());
    let path = run.place();
    assert!(path.starts_with(run.0.path()), "{path:?}");
    assert!(run.found().is_empty(), "nothing listens there yet");
    let listener = UnixListener::bind(&path).unwrap();
    let socket = Socket {
        process: std::process::id(),
        path: path.clone(),
    };
    assert_eq!(run.found(), std::slice::from_ref(&socket));
    assert_eq!(socket.address(), format!("unix:{}", path.display()));

    // A second one of the same process has its own name.
    let second = run.place();
    assert_ne!(second, path);
    let other = UnixListener::bind(&second).unwrap();
    assert_eq!(run.found().len(), 2);

    drop((listener, other));
    assert!(path.exists(), "as after a kill");
    assert!(run.found().is_empty());
    assert!(!path.exists() && !second.exists());
}

#[test]
fn a_server_removes_what_killed_ones_left_and_nothing_else() {
    let run = Run::new();
    let (dead, alive) = (run.place(), run.place());
    drop(UnixListener::bind(&dead).unwrap());
    let _alive = UnixListener::bind(&alive).unwrap();
    let folder = dead.parent().unwrap();
    let others = [
        // About to be renamed, and a socket of something else.
        folder.join("control-1-0123abcd.sock.1"),
        folder.join("other.sock"),
    ];
    others
        .iter()
        .for_each(|path| drop(UnixListener::bind(path).unwrap()));
    let file = folder.join("control-1-0123abcd.sock");
    fs::write(&file, "").unwrap();
    run.place();
    assert!(!dead.exists());
    assert!(alive.exists() && file.exists());
    assert!(others.iter().all(|path| path.exists()));
    assert_eq!(run.found().len(), 1);
}

#[test]
fn a_name_has_a_process_id_and_a_random_number() {
    let process = |name: &str| super::process(OsStr::new(name));
    assert_eq!(process("control-17-0123abcd.sock"), Some(17));
    for other in [
        "control-17.sock",
        "control-17-.sock",
        "control-17-0123abcd",
        "control-x-0123abcd.sock",
        "control-17-0123abcx.sock",
        "recent-17-0123abcd.sock",
    ] {
        assert_eq!(process(other), None, "{other}");
    }
}

#[test]
fn a_folder_whose_path_is_too_long_is_not_used() {
    let run = Run::new();
    let deep = run.0.path().join("x".repeat(80));
    fs::create_dir(&deep).unwrap();
    fs::set_permissions(&deep, Permissions::from_mode(0o700)).unwrap();
    let lookup = |name: &str| match name {
        "XDG_RUNTIME_DIR" => Some(deep.clone().into()),
        "XDG_STATE_HOME" => Some(run.0.path().into()),
        _ => None,
    };
    let place = place(lookup).unwrap();
    assert!(!place.starts_with(&deep), "{place:?}");
    assert!(place.as_os_str().len() <= LONGEST_PATH);
}
