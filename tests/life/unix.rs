//! An index at a Unix socket.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use contextpilot_testbed::{Builder, KillOnDrop, Server};

use crate::support::{Home, PATIENCE, ask, kill_when_kept, lines};

/// How long `listen` may take to print an id that it has been told.
const PRINTED: Duration = Duration::from_millis(400);

/// `contextpilot-llama listen`. It ends when this value is dropped.
struct Listening {
    _process: KillOnDrop,
    ids: Receiver<String>,
}

impl Listening {
    fn at(path: &Path) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_contextpilot-llama"))
            .args(["listen", "--json", "--unix"])
            .arg(path)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // The first byte on stderr says that it listens.
        let mut said = [0];
        process
            .stderr
            .take()
            .unwrap()
            .read_exact(&mut said)
            .unwrap();
        let stdout = BufReader::new(process.stdout.take().unwrap());
        let (sender, ids) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let line: serde_json::Value = serde_json::from_str(&line).unwrap();
                if sender
                    .send(line["request_id"].as_str().unwrap().to_owned())
                    .is_err()
                {
                    return;
                }
            }
        });
        Self {
            _process: KillOnDrop(process),
            ids,
        }
    }

    #[track_caller]
    fn assert_told(&self, ids: &[&str], server: Option<&Server>) {
        let mut told: Vec<String> = ids
            .iter()
            .map(|id| {
                self.ids
                    .recv_timeout(PATIENCE)
                    .unwrap_or_else(|_| panic!("{id}"))
            })
            .collect();
        told.sort();
        assert_eq!(told, ids);
        self.assert_told_nothing(server);
    }

    /// These ids, and perhaps one again: a server was killed, maybe before it noted that it had reported that one.
    #[track_caller]
    fn assert_told_and_perhaps_again(&self, ids: &[&str], again: &str, server: &Server) {
        let mut told = BTreeSet::new();
        while !ids.iter().all(|id| told.contains(*id)) {
            told.insert(
                self.ids
                    .recv_timeout(PATIENCE)
                    .unwrap_or_else(|_| panic!("{told:?}")),
            );
        }
        server.come_to_rest().unwrap();
        while let Ok(id) = self.ids.recv_timeout(PRINTED) {
            told.insert(id);
        }
        told.remove(again);
        assert!(told.iter().eq(ids), "{told:?}");
    }

    /// `server`: the one that reports to it, if it runs.
    #[track_caller]
    fn assert_told_nothing(&self, server: Option<&Server>) {
        if let Some(server) = server {
            server.come_to_rest().unwrap();
        }
        if let Ok(id) = self.ids.recv_timeout(PRINTED) {
            panic!("{id} was told");
        }
    }
}

#[test]
fn an_index_at_a_unix_socket_gets_reports_and_has_its_own_journal() {
    let home = Home::new();
    let sockets = tempfile::tempdir().unwrap();
    let path = |name: &str| -> PathBuf { sockets.path().join(name) };
    let server = |url: &str| -> Builder {
        Server::tiny()
            .bare_slots(2)
            .launcher(env!("CARGO_BIN_EXE_contextpilot-llama-server"))
            .env("XDG_STATE_HOME", home.path())
            .index_url(url)
            .observed()
    };
    let one = format!("unix:{}", path("one").display());
    let index = Listening::at(&path("one"));
    let first = server(&one).spawn().unwrap();
    ask(&first, 0, "req-a");
    ask(&first, 1, "req-b");
    index.assert_told_nothing(Some(&first));
    ask(&first, 0, "req-c");
    index.assert_told(&["req-a"], Some(&first));
    let banner = format!("; index {one}\n");
    assert!(first.stderr().contains(&banner), "{}", first.stderr());
    assert_eq!(lines(&first), [""; 0]);
    kill_when_kept(&home, first, "req-c");

    // Another index must not get these ids.
    let two = format!("unix:{}", path("two").display());
    let other = Listening::at(&path("two"));
    let mut second = server(&two).spawn().unwrap();
    ask(&second, 0, "req-d");
    other.assert_told_nothing(Some(&second));
    second.stop(libc::SIGTERM).unwrap();
    other.assert_told(&["req-d"], None);

    // The first index again, with its URL in another form. It starts after the server.
    drop(index);
    let third = server(&format!("unix://{}:/", path("one").display()));
    let third = third.spawn().unwrap();
    ask(&third, 0, "req-e");
    let index = Listening::at(&path("one"));
    index.assert_told_and_perhaps_again(&["req-b", "req-c"], "req-a", &third);
    drop(third);
}
