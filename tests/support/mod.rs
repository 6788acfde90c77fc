//! What tests against a real server under the launcher share.

use contextpilot_testbed::{Builder, Index, Server};
use std::time::Duration;

/// How long to wait for what must come: only a failure takes that long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// How long to listen for what ought not to come; the ledger waits for 100 ms of
/// silence at most before it decides anything.
pub(crate) const LISTEN: Duration = Duration::from_millis(250);

/// The server under the launcher, telling the index.
pub(crate) fn hooked(server: &Builder, index: &Index) -> Server {
    server
        .clone()
        .launcher(env!("CARGO_BIN_EXE_contextpilot-llama-server"))
        .index_url(index.url())
        .spawn()
        .unwrap()
}
