//! Prints requests as they fall out of the cache of a hooked server, and goes
//! on where it ended when the connection breaks.
//!
//! ```sh
//! cargo run -p contextpilot-client --example evictions -- 127.0.0.1:8890
//! ```

use std::time::Duration;

use contextpilot_client::control::Change;
use contextpilot_client::{Control, Error, Result, Update};

/// Hands over the ids of evicted requests until `take` wants no more.
pub(crate) fn evictions(address: &str, mut take: impl FnMut(&str) -> bool) -> Result<()> {
    let control = Control::new(address)?;
    let mut last = None;
    loop {
        let mut events = control.events(last.as_ref())?;
        for update in &mut events {
            match update {
                Ok(Update::Event(event)) => {
                    if let Change::Evicted { id, .. } = event.change {
                        if !take(&id) {
                            return Ok(());
                        }
                    }
                }
                Ok(Update::Missed(missed)) => eprintln!("missed: {:?}", missed.missed),
                Err(Error::Unreachable { .. }) => break,
                Err(error) => return Err(error),
            }
        }
        last = events.last_id().cloned();
        std::thread::sleep(Duration::from_secs(1));
    }
}

#[allow(dead_code, reason = "the tests bring their own")]
fn main() -> Result<()> {
    let address = std::env::args().nth(1);
    let address = address.as_deref().unwrap_or("127.0.0.1:8890");
    evictions(address, |id| {
        println!("{id}");
        true
    })
}
