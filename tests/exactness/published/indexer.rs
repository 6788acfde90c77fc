//! Dynamo's indexer, as a process that is asked over HTTP.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use contextpilot_testbed::{Connection, Error, KillOnDrop, Result, skip_case};
use serde_json::{Value, json};

/// How long to wait for something that must happen. Only a failure takes this long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// Tokens of a block.
pub(crate) const BLOCK: usize = 16;
const MODEL: &str = "tiny";
/// The exit code of `scripts/kv-router` if there is no Python.
const NO_PYTHON: i32 = 77;

/// The next free port. No other process uses ports in this namespace.
static PORT: AtomicU16 = AtomicU16::new(20_000);

pub(crate) fn next_port() -> u16 {
    PORT.fetch_add(2, Ordering::Relaxed)
}

/// The Python with this router. `None`, after a line that says why, if there is none.
pub(crate) fn python(router: &str) -> Option<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/kv-router");
    let made = Command::new(script).arg(router).output().expect("a script");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if made.status.code() == Some(NO_PYTHON) {
        skip_case(router, text(&made.stderr));
        return None;
    }
    assert!(made.status.success(), "{}", text(&made.stderr));
    Some(PathBuf::from(text(&made.stdout)))
}

pub(crate) struct Indexer {
    _process: KillOnDrop,
    address: SocketAddr,
}

/// What the indexer believes to be cached of a prompt, in full blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Belief {
    /// In slots.
    pub(crate) device: usize,
    /// In slots, and after those in host memory.
    pub(crate) any: usize,
}

impl Indexer {
    pub(crate) fn start(python: &Path) -> Result<Self> {
        let port = next_port();
        let child = Command::new(python)
            .args(["-m", "dynamo.indexer", "--threads", "2", "--port"])
            .arg(port.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let indexer = Self {
            _process: KillOnDrop(child),
            address,
        };
        let begun = Instant::now();
        while Connection::open(address).is_err() {
            if begun.elapsed() > PATIENCE {
                return Err(Error::new("the indexer does not listen"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(indexer)
    }

    /// Lets the indexer follow a server, under this number.
    pub(crate) fn register(&self, instance: u16, events: u16) -> Result<()> {
        let answer = self.post(
            "/register",
            &json!({
                "instance_id": instance,
                "endpoint": format!("tcp://127.0.0.1:{events}"),
                "replay_endpoint": format!("tcp://127.0.0.1:{}", events + 1),
                "model_name": MODEL,
                "block_size": BLOCK,
            }),
        )?;
        if answer["status"] == "ok" {
            Ok(())
        } else {
            Err(Error::new(format!("/register: {answer}")))
        }
    }

    /// What the indexer believes a server to have of these tokens.
    pub(crate) fn believes(&self, instance: u16, tokens: &[i32]) -> Result<Belief> {
        self.believes_for(None, instance, tokens)
    }

    /// The same for a request that names an adapter, or none.
    pub(crate) fn believes_for(
        &self,
        adapter: Option<&str>,
        instance: u16,
        tokens: &[i32],
    ) -> Result<Belief> {
        let question = json!({"token_ids": tokens, "model_name": MODEL, "lora_name": adapter});
        let answer = self.post("/query", &question)?;
        let here = &answer["instances"][instance.to_string()];
        let blocks = |field: &str| here[field].as_u64().unwrap_or(0) as usize / BLOCK;
        Ok(Belief {
            device: blocks("gpu"),
            any: blocks("longest_matched"),
        })
    }

    /// The hashes of the blocks that the indexer believes to be in a server's slots.
    pub(crate) fn blocks(&self, instance: u16) -> Result<BTreeSet<u64>> {
        let mut connection = Connection::open(self.address)?;
        let dump = connection.exchange("GET", "/dump", b"")?.json()?;
        let models = dump.as_object().into_iter().flatten();
        let events = models.filter_map(|(_, model)| model["events"].as_array());
        let here = events
            .flatten()
            .filter(|event| event["worker_id"] == instance && event["storage_tier"] == "device");
        let stored = here.filter_map(|event| event["event"]["data"]["stored"]["blocks"].as_array());
        let names = stored.flatten().map(|block| block["block_hash"].as_u64());
        names
            .map(|name| name.ok_or_else(|| Error::new(format!("/dump: {dump}"))))
            .collect()
    }

    fn post(&self, path: &str, body: &Value) -> Result<Value> {
        let mut connection = Connection::open(self.address)?;
        let response = connection.exchange("POST", path, body.to_string().as_bytes())?;
        response.json()
    }
}
