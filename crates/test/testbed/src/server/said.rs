//! Reads the logs of a server.

use std::net::SocketAddr;
use std::path::Path;

use super::Server;
use crate::wait::try_until;
use crate::{Endpoint, Error, Result};

pub(super) const STDOUT: &str = "stdout.log";
pub(super) const STDERR: &str = "stderr.log";

/// The addresses in lines such as `server is listening on http://127.0.0.1:4711`. Not those of
/// a router's children. Paths are relative to the server's folder.
pub(super) fn listening(log: &str, folder: &Path) -> Vec<Endpoint> {
    let lines = log
        .lines()
        .filter(|line| line.contains("listening") && !line.starts_with('['));
    lines
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            words.find_map(Endpoint::of_url)
        })
        .map(|endpoint| match endpoint {
            Endpoint::Unix(path) => Endpoint::Unix(folder.join(path)),
            tcp => tcp,
        })
        .collect()
}

impl Server {
    /// All of its stderr so far.
    pub fn stderr(&self) -> String {
        self.log(STDERR)
    }

    /// Where the hook's control endpoint listens, if its line is in the log: `127.0.0.1:8890`, or
    /// `unix:/path`.
    pub fn control(&self) -> Option<String> {
        const SAYS: &str = "[ContextPilot] Control endpoint: ";
        let said = self.stderr();
        // The server writes a line in pieces: the hook's line may follow the first piece.
        let at = said
            .lines()
            .find_map(|line| Some(line.split_once(SAYS)?.1))?;
        // Instead of an address the line may have the reason why there is none.
        let named = at.starts_with("http://") || at.starts_with("unix:");
        named.then(|| at.trim_start_matches("http://").to_owned())
    }

    /// Waits until the log says at which TCP address the control endpoint listens.
    ///
    /// # Errors
    /// If it does not within a minute.
    pub fn await_control(&self) -> Result<SocketAddr> {
        try_until("the hook says where it listens", || {
            Ok(self.control().and_then(|at| at.parse().ok()))
        })
        .map_err(|error| Error::new(format!("{error}; it says:\n{}", self.stderr())))
    }

    /// All of its stdout so far.
    pub fn stdout(&self) -> String {
        self.log(STDOUT)
    }

    fn log(&self, name: &str) -> String {
        let bytes = std::fs::read(self.folder.path().join(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    pub(super) fn last_words(&self) -> String {
        let log = self.stderr();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}
