//! Waits until a llama-server is ready, and prints its slots.
//!
//! ```sh
//! cargo run -p contextpilot-client --example slots -- http://127.0.0.1:8080
//! ```

use std::time::Duration;

use contextpilot_client::{LlamaServer, Result};

/// A line for each slot.
pub(crate) fn slots(address: &str) -> Result<Vec<String>> {
    let server = LlamaServer::new(address)?;
    server.wait_ready(Duration::from_secs(60))?;
    let line = |slot: contextpilot_client::ServerSlot| {
        let work = if slot.is_processing { "works" } else { "idle" };
        let (tokens, room) = (
            slot.tokens.unwrap_or_default(),
            slot.n_ctx.unwrap_or_default(),
        );
        format!("slot {}: {work}, {tokens} of {room} tokens", slot.id)
    };
    Ok(server.slots()?.into_iter().map(line).collect())
}

#[allow(dead_code, reason = "the tests bring their own")]
fn main() -> Result<()> {
    let address = std::env::args().nth(1);
    let address = address.as_deref().unwrap_or("http://127.0.0.1:8080");
    for line in slots(address)? {
        println!("{line}");
    }
    Ok(())
}
