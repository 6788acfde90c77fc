//! ContextPilot's own index server, as a child process.

use contextpilot_testbed::{Connection, Response};
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    fs::File,
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// Its imports take about a second; much more where cores are scarce.
const READY: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(10);

/// Runs the server as `python -m contextpilot.server.http_server` would.
///
/// With one difference: 0.5.0 computes the distances of several contexts in forked
/// workers and ends them with SIGTERM. They have inherited uvicorn's handler, which
/// only takes a note, so that a worker that was still waiting for work goes on
/// waiting and `/reorder` never answers; on a busy machine that is one in five.
const START: &str = "\
import os, runpy, signal
os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
runpy.run_module('contextpilot.server.http_server', run_name='__main__', alter_sys=True)
";

/// A running index. Dropping it kills it.
pub(crate) struct IndexServer {
    child: Child,
    address: SocketAddr,
    folder: TempDir,
}

/// A `POST /evict` as the index has it in its log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Eviction {
    pub(crate) status: u16,
    /// Empty where the index did not look at them, being not initialised.
    pub(crate) ids: Vec<String>,
}

impl IndexServer {
    /// Starts one on a port of its own choice that forwards completions to `engine`.
    pub(crate) fn start(python: &Path, engine: SocketAddr) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(python);
        // What happens to be set around a test run must not change its result.
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if ["CONTEXTPILOT_", "PYTHON", "LD_PRELOAD"]
                .iter()
                .any(|start| text.starts_with(start))
            {
                command.env_remove(&name);
            }
        }
        // One description for both: what it answered goes to stdout, the ids to stderr.
        let log = File::create(folder.path().join(LOG)).unwrap();
        let child = command
            .args(["-c", START])
            // Its default is to listen on every interface.
            .args(["--host", "127.0.0.1", "--port", "0"])
            .args(["--infer-api-url", &format!("http://{engine}")])
            // With the ids of evictions, which it says nowhere else.
            .args(["--log-level", "debug"])
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut index = Self {
            child,
            // Known once it listens.
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

    /// On a connection of its own, so that no test relies on one that the index
    /// has closed.
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

    /// All `POST /evict` that it has answered.
    pub(crate) fn evictions(&self) -> Vec<Eviction> {
        evictions(&self.log())
    }

    fn log(&self) -> String {
        let bytes = std::fs::read(self.folder.path().join(LOG)).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

const LOG: &str = "index.log";

impl Drop for IndexServer {
    fn drop(&mut self) {
        // It may have ended already; nothing else can go wrong here.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The address in `Uvicorn running on http://127.0.0.1:4711 (Press …)`.
fn listening(log: &str) -> Option<SocketAddr> {
    let (_, rest) = log.split_once("Uvicorn running on http://")?;
    rest.split_once(' ')?.0.parse().ok()
}

/// Reads, in version 0.5.0,
/// ```text
/// … - DEBUG - Eviction incoming IDs: ['req-1', 'req-2']
/// …"POST /evict HTTP/1.1" 200 OK
/// ```
/// Nothing is awaited between the two, so those of one request follow each other.
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
