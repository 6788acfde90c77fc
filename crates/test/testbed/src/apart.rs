//! Runs a test apart from everything else on this machine.
//!
//! What looks for servers of this user finds all of them, and what uses a default port needs it to be free.
//! So such a test runs again as a process of its own, in namespaces: with all ports free, and with empty
//! folders where servers put their sockets (`/run`, `/dev/shm`).

use std::io::Write;
use std::process::Command;

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
