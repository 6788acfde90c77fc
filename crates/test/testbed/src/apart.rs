//! What keeps a test apart from everything else on this machine: namespaces, an address at which no process listens, a
//! private folder, and processes that end with it.

use std::fs::Permissions;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::{Deref, DerefMut};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU8, Ordering};

use tempfile::TempDir;

/// Set in the process that runs apart.
const INSIDE: &str = "CONTEXTPILOT_TEST_APART";

/// Makes the namespaces, and the folders in them. A folder that others own cannot be private, so it is no
/// use where root is not root.
const ENTER: &str = r#"
ip link set lo up && mount -t tmpfs -o mode=755 none /run && mount -t tmpfs -o mode=1777 none /dev/shm &&
test "$(stat -c %u /)" = 0 && exec "$@""#;

/// Where a test runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Apart {
    /// In namespaces of its own.
    Alone,
    /// Beside everything else: no namespaces can be made here. Ports may be taken.
    Beside,
    /// It has run, in another process.
    Done,
}

/// Runs a test again as a process of its own, in namespaces: with all ports free, and with empty folders where servers
/// put their sockets (`/run`, `/dev/shm`). What looks for servers of this user finds all of them, and what uses a
/// default port needs it to be free.
///
/// Call this first in the test of this name, as `--exact` takes it.
///
/// # Panics
/// If the test fails in the other process.
pub fn apart(test: &str) -> Apart {
    if std::env::var_os(INSIDE).is_some() {
        return Apart::Alone;
    }
    let enter = |program: &std::ffi::OsStr| {
        let mut command = Command::new("unshare");
        command.args(["-rnm", "sh", "-c", ENTER, "sh"]).arg(program);
        command
    };
    if !enter("true".as_ref())
        .output()
        .is_ok_and(|probe| probe.status.success())
    {
        // Not eprintln!, whose output a test harness may hide.
        let _ = writeln!(
            std::io::stderr(),
            "{test}: no namespaces can be made here (unshare -rnm, of util-linux, and ip)"
        );
        return Apart::Beside;
    }
    let program = std::env::current_exe().expect("this program has a path");
    let output = enter(program.as_os_str())
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, "1")
        .output()
        .expect("it can be run again");
    let said = String::from_utf8_lossy(&output.stdout);
    let passed = output.status.success() && said.contains("1 passed");
    assert!(
        passed,
        "{test}, apart:\n{said}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Apart::Done
}

/// A loopback address with a port at which no process listens. On Linux none will begin to by chance:
/// other tests and programs use other addresses in 127.0.0.0/8.
///
/// # Panics
/// If no port is free at that address.
pub fn nowhere() -> SocketAddr {
    static NUMBER: AtomicU8 = AtomicU8::new(1);
    let own = match NUMBER.fetch_add(1, Ordering::Relaxed) {
        number if cfg!(target_os = "linux") => {
            let [.., high, low] = std::process::id().to_be_bytes();
            Ipv4Addr::new(127, 1 | high, low, number | 1)
        }
        _ => Ipv4Addr::LOCALHOST,
    };
    let free = TcpListener::bind((own, 0)).and_then(|free| free.local_addr());
    match free {
        Ok(address) => address,
        Err(error) => panic!("no port at {own}: {error}"),
    }
}

/// A new folder that is closed to others, whatever the umask of this process is: the hook and its commands
/// trust no other.
///
/// # Panics
/// It cannot be made.
pub fn private_folder() -> TempDir {
    let private = Permissions::from_mode(0o700);
    let made = tempfile::Builder::new().permissions(private).tempdir();
    made.expect("a folder for temporary files")
}

/// Kills the process when it is dropped, also if the test fails.
#[derive(Debug)]
pub struct KillOnDrop(pub Child);

impl Deref for KillOnDrop {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for KillOnDrop {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        // Both fail only if the process was waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
