//! Runs vllm-router, and the gateways between it and its servers.

use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::{Connection, Error, KillOnDrop, Result};

/// How long a process may take until it listens.
const PATIENCE: Duration = Duration::from_secs(60);

/// `contextpilot-llama gateway` in front of a server.
#[derive(Debug)]
pub struct Gateway {
    _process: KillOnDrop,
    port: u16,
    events: u16,
}

impl Gateway {
    /// Starts a gateway that listens at `port`. The server is at `server`, and publishes its events at
    /// the port `events`.
    ///
    /// # Errors
    /// If the gateway does not listen in time.
    pub fn start(companion: &Path, server: SocketAddr, port: u16, events: u16) -> Result<Self> {
        let child = Command::new(companion)
            .args(["gateway", "--server", &format!("http://{server}")])
            .args(["--port", &port.to_string()])
            .env(
                "CONTEXTPILOT_KV_EVENTS",
                format!("tcp://127.0.0.1:{events}"),
            )
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let gateway = Self {
            _process: KillOnDrop(child),
            port,
            events,
        };
        await_port(gateway.address())?;
        Ok(gateway)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        loopback(self.port)
    }

    /// Its URL, by which the router knows it.
    pub fn url(&self) -> String {
        format!("http://{}", self.address())
    }
}

/// `vllm-router`. Its debug log says what it decides.
#[derive(Debug)]
pub struct Router {
    _process: KillOnDrop,
    folder: TempDir,
    port: u16,
}

/// The router's decision for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The server that it chose.
    pub worker: String,
    /// How many tokens the router believes to be cached there.
    pub credited: u64,
}

impl Router {
    /// Starts the router in front of these gateways, with this `--policy`.
    ///
    /// # Errors
    /// If the router does not listen in time.
    pub fn start(python: &Path, policy: &str, port: u16, gateways: &[Gateway]) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let log = File::create(folder.path().join(LOG))?;
        let mut command = Command::new(python);
        command
            .args(["-m", "vllm_router.launch_router", "--host", "127.0.0.1"])
            .args(["--port", &port.to_string(), "--policy", policy])
            .args(["--log-level", "debug", "--worker-urls"])
            .args(gateways.iter().map(Gateway::url));
        if policy == "kv_aware" {
            command.args(["--kv-event-block-size", "16", "--kv-event-model", "m"]);
            // Tokens in the host prompt cache or a prefix store count like tokens in a slot: loading them is a copy.
            command.args(["--kv-penalty-host", "1.0", "--kv-penalty-disk", "1.0"]);
            for gateway in gateways {
                let (url, events) = (gateway.url(), gateway.events);
                command.arg("--kv-event-source");
                command.arg(format!("{url}=tcp://127.0.0.1:{events}"));
                command.arg("--kv-event-replay-source");
                command.arg(format!("{url}=tcp://127.0.0.1:{}", events + 1));
            }
        }
        command.stdin(Stdio::null()).stdout(log.try_clone()?);
        let router = Self {
            _process: KillOnDrop(command.stderr(log).spawn()?),
            folder,
            port,
        };
        await_port(router.address())?;
        Ok(router)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        loopback(self.port)
    }

    /// Its log so far, without colours.
    ///
    /// # Errors
    /// Those of its log file.
    pub fn log(&self) -> Result<String> {
        let bytes = std::fs::read(self.folder.path().join(LOG))?;
        let text = String::from_utf8_lossy(&bytes);
        let mut parts = text.split('\u{1b}');
        let mut plain = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            plain.push_str(part.split_once('m').map_or("", |(_, rest)| rest));
        }
        Ok(plain)
    }

    /// The number of the newest batch of events that the router has received from a gateway's server.
    ///
    /// # Errors
    /// Those of its log file.
    pub fn heard(&self, gateway: &Gateway) -> Result<Option<u64>> {
        let log = self.log()?;
        let source = format!("source={} ", gateway.url());
        let mut lines = log.lines().rev();
        let line = lines.find(|line| line.contains("sequence advanced") && line.contains(&source));
        Ok(line.and_then(|line| field(line, "seq")?.parse().ok()))
    }

    /// Its last decision.
    ///
    /// # Errors
    /// Those of its log file.
    pub fn decision(&self) -> Result<Option<Decision>> {
        let log = self.log()?;
        let line = log.lines().rev().find(|l| l.contains("KV prefix decision"));
        Ok(line.and_then(|line| {
            Some(Decision {
                worker: field(line, "worker")?.trim_matches('"').to_owned(),
                credited: field(line, "credited_prefix_tokens")?.parse().ok()?,
            })
        }))
    }
}

const LOG: &str = "router.log";

fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let value = line.split_once(&format!(" {name}="))?.1;
    value.split(' ').next()
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn await_port(address: SocketAddr) -> Result<()> {
    let begun = Instant::now();
    while Connection::open(address).is_err() {
        if begun.elapsed() > PATIENCE {
            return Err(Error::new(format!("nothing listens at {address}")));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decision_is_read_from_the_fields_of_a_log_line() {
        let line = "DEBUG x: y: KV decision worker=\"http://a:1\" tokens=12 last=3";
        assert_eq!(field(line, "tokens"), Some("12"));
        assert_eq!(field(line, "last"), Some("3"));
        assert_eq!(field(line, "worker"), Some("\"http://a:1\""));
        assert_eq!(field(line, "none"), None);
    }
}
