//! ContextPilot's own index server, as a child process.

use contextpilot_testbed::{Connection, KillOnDrop, Response};
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    fs::File,
    net::SocketAddr,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// How long the start may take. The imports take about a second, and much longer on a busy machine.
const READY: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(10);

/// Runs the server as `python -m contextpilot.server.http_server` would.
///
/// There is one difference. Version 0.5.0 computes the distances of several contexts
/// in forked workers, and ends them with SIGTERM. The workers have inherited
/// uvicorn's handler, which only sets a flag. So a worker that waits for work goes on
/// waiting, and `/reorder` never answers. On a busy machine one call in five hangs.
const START: &str = "\
import os, runpy, signal
os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
runpy.run_module('contextpilot.server.http_server', run_name='__main__', alter_sys=True)
";

/// A running index. Dropping it kills it.
pub(crate) struct IndexServer {
    child: KillOnDrop,
    address: SocketAddr,
    folder: TempDir,
}

/// A `POST /evict` in the log of the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Eviction {
    pub(crate) status: u16,
    /// Empty if the index was not initialised: then it does not read the ids.
    pub(crate) ids: Vec<String>,
}

impl IndexServer {
    /// Starts an index on a free port. It forwards completions to `engine`.
    pub(crate) fn start(python: &Path, engine: SocketAddr) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(python);
        // The environment of the test run must not change the result.
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if ["CONTEXTPILOT_", "PYTHON", "LD_PRELOAD"]
                .iter()
                .any(|start| text.starts_with(start))
            {
                command.env_remove(&name);
            }
        }
        // stdout gets the answers, stderr the ids. Both go to one file, in order.
        let log = File::create(folder.path().join(LOG)).unwrap();
        let child = command
            .args(["-c", START])
            // By default it listens on every interface.
            .args(["--host", "127.0.0.1", "--port", "0"])
            .args(["--infer-api-url", &format!("http://{engine}")])
            // Only this level logs the ids of evictions.
            .args(["--log-level", "debug"])
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut index = Self {
            child: KillOnDrop(child),
            // Replaced once the index listens.
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            folder,
        };
        let deadline = Instant::now() + READY;
        index.address = loop {
            let log = index.log();
            if let Some(address) = listening(&log) {
                break address;
            }
            let ended = index.child.try_wait().unwrap();
            assert!(
                ended.is_none() && Instant::now() < deadline,
                "the index server does not start ({ended:?}):\n{log}"
            );
            std::thread::sleep(LOOK);
        };
        index
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends a request on a new connection: the index closes idle ones.
    pub(crate) fn exchange(&self, method: &str, path: &str, body: &str) -> Response {
        let mut connection = Connection::open(self.address).unwrap();
        connection.exchange(method, path, body.as_bytes()).unwrap()
    }

    /// `POST /reorder`.
    pub(crate) fn reorder(&self, contexts: &[Vec<String>]) -> Value {
        let body = json!({ "contexts": contexts });
        let answer = self.exchange("POST", "/reorder", &body.to_string());
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json().unwrap()
    }

    /// `GET /requests`: the ids that it believes to be cached.
    pub(crate) fn requests(&self) -> BTreeSet<String> {
        let answer = self.exchange("GET", "/requests", "");
        assert_eq!(answer.status, 200, "{}", answer.text());
        let answer = answer.json().unwrap();
        let ids = answer["request_ids"].as_array().unwrap().iter();
        ids.map(|id| id.as_str().unwrap().to_owned()).collect()
    }

    /// All `POST /evict` that the index has answered.
    pub(crate) fn evictions(&self) -> Vec<Eviction> {
        evictions(&self.log())
    }

    fn log(&self) -> String {
        let bytes = std::fs::read(self.folder.path().join(LOG)).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

const LOG: &str = "index.log";

/// The address in `Uvicorn running on http://127.0.0.1:4711 (Press …)`.
fn listening(log: &str) -> Option<SocketAddr> {
    let (_, rest) = log.split_once("Uvicorn running on http://")?;
    rest.split_once(' ')?.0.parse().ok()
}

/// Reads the lines that version 0.5.0 logs for an eviction:
/// ```text
/// … - DEBUG - Eviction incoming IDs: ['req-1', 'req-2']
/// …"POST /evict HTTP/1.1" 200 OK
/// ```
/// The two lines of a request follow each other, as the index awaits nothing between
/// them.
fn evictions(log: &str) -> Vec<Eviction> {
    let mut all = Vec::new();
    let mut ids = Vec::new();
    for line in log.lines() {
        if let Some((_, list)) = line.split_once("Eviction incoming IDs: ") {
            let quoted = list.split('\'').skip(1).step_by(2);
            ids = quoted.map(str::to_owned).collect();
        } else if let Some((_, status)) = line.split_once("\"POST /evict HTTP/1.1\" ") {
            let status = status.split(' ').next().and_then(|code| code.parse().ok());
            all.push(Eviction {
                status: status.expect("a status"),
                ids: std::mem::take(&mut ids),
            });
        }
    }
    all
}

#[test]
fn lines_of_the_indexs_log_are_parsed() {
    let log = "INFO:     Uvicorn running on http://127.0.0.1:46853 (Press CTRL+C to quit)\n\
        INFO:     127.0.0.1:1 - \"POST /evict HTTP/1.1\" 503 Service Unavailable\n\
        2026-11-21 08:43:38,784 - x - DEBUG - Eviction incoming IDs: ['req-1', 'req-2']\n\
        2026-11-21 08:43:38,784 - x - INFO - Eviction: removed 0 requests from index\n\
        INFO:     127.0.0.1:1 - \"POST /evict HTTP/1.1\" 200 OK\n";
    assert_eq!(listening(log), Some(([127, 0, 0, 1], 46853).into()));
    let [refused, accepted] = &evictions(log)[..] else {
        panic!("two evictions")
    };
    assert_eq!((refused.status, refused.ids.len()), (503, 0));
    assert_eq!((accepted.status, accepted.ids.len()), (200, 2));
    assert_eq!(accepted.ids[1], "req-2");
}
