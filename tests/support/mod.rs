//! Shared by the tests that run a real server under the launcher.

use contextpilot_testbed::{Builder, Index, Server};
use std::time::Duration;

/// How long to wait for something that must happen. Only a failure takes this long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// How long to wait for reports that must not come. The ledger decides after at
/// most 100 ms of silence.
pub(crate) const LISTEN: Duration = Duration::from_millis(250);

/// Starts the server under the launcher. The hook reports to the index.
pub(crate) fn hooked(server: &Builder, index: &Index) -> Server {
    server
        .clone()
        .launcher(env!("CARGO_BIN_EXE_contextpilot-llama-server"))
        .index_url(index.url())
        .spawn()
        .unwrap()
}
