//! Shared by the tests that run a real server under the launcher.

use contextpilot_testbed::{Builder, Index, Server};
use std::time::Duration;

/// How long to wait for something that must happen. Only a failure takes this long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Starts the server under the launcher. The hook reports to the index.
pub(crate) fn hooked(server: &Builder, index: &Index) -> Server {
    server
        .clone()
        .launcher(env!("CARGO_BIN_EXE_contextpilot-llama-server"))
        .index_url(index.url())
        .spawn()
        .unwrap()
}
