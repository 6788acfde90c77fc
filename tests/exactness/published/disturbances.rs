//! Restarts and interruptions of a server, its router, or the network between them. Shortly after each,
//! the router must agree with the engine again.

use contextpilot_testbed::{Builder, Error, Request, Result, Server};
use serde_json::json;
use std::path::Path;

use crate::indexer::{Indexer, next_port};
use crate::prompts::text;
use crate::publisher::Publisher;
use crate::relay::Relay;
use crate::three;
use crate::traces::Seen;
use contextpilot_testbed::try_until;

type Test = fn(&Indexer, &Path) -> Result<String>;

pub(crate) const ALL: [(&str, Test); 8] = [
    ("a router that comes late", late),
    ("a router that comes to a server of many days", very_late),
    ("a network that fails for a while", cut),
    ("a server that is killed and started again", restarted),
    ("a router that is started again", another_router),
    (
        "three routers, one of them killed again and again",
        three::run,
    ),
    ("slots that are erased", erased),
    ("a server that is told to end", ended),
];

/// Two slots, and no host prompt cache.
fn builder() -> Builder {
    let llama = Server::tiny();
    llama.bare_slots(2)
}

/// Sends prompts. The later ones overwrite the earlier ones.
fn ask(publisher: &Publisher, seeds: std::ops::Range<u64>) -> Result<()> {
    for seed in seeds {
        publisher
            .server
            .complete(&Request::completion(text(seed, 100)))?;
    }
    publisher.server.wait_idle()
}

/// The result of a test: how much was compared.
fn said(seen: &Seen) -> Result<String> {
    match seen.asked {
        0 => Err(Error::new("nothing was compared")),
        asked => Ok(format!("{asked} beliefs")),
    }
}

fn late(indexer: &Indexer, _: &Path) -> Result<String> {
    let publisher = Publisher::start(&builder(), next_port(), None)?;
    ask(&publisher, 0..5)?;
    indexer.register(publisher.events, publisher.events)?;
    let mut seen = Seen::default();
    seen.compare(&publisher, publisher.events, indexer, true)?;
    ask(&publisher, 5..8)?;
    seen.compare(&publisher, publisher.events, indexer, true)?;
    said(&seen)
}

/// The batch numbers begin at five million. A new router asks for all batches since the first, and gets
/// the last ones only.
fn very_late(indexer: &Indexer, _: &Path) -> Result<String> {
    let state = tempfile::tempdir()?;
    let events = next_port();
    let folder = state.path().join("contextpilot-llama");
    std::fs::create_dir(&folder)?;
    let kept = folder.join(format!("kv-events-127.0.0.1:{events}.next"));
    std::fs::write(&kept, 5_000_000_u64.to_be_bytes())?;
    let publisher = Publisher::start(&builder(), events, Some(state.path()))?;
    ask(&publisher, 0..5)?;
    indexer.register(events, events)?;
    let mut seen = Seen::default();
    seen.compare(&publisher, events, indexer, true)?;
    let next = std::fs::read(&kept)?.try_into().map(u64::from_be_bytes);
    if !next.as_ref().is_ok_and(|&next| next > 5_000_000) {
        return Err(Error::new(format!("the number was not kept: {next:?}")));
    }
    said(&seen)
}

fn cut(indexer: &Indexer, _: &Path) -> Result<String> {
    let publisher = Publisher::start(&builder(), next_port(), None)?;
    let relay = Relay::start(next_port(), publisher.events)?;
    indexer.register(publisher.events, relay.port)?;
    publisher.await_subscribers(1)?;
    let mut seen = Seen::default();
    for round in 0..3 {
        ask(&publisher, round * 10..round * 10 + 3)?;
        seen.compare(&publisher, publisher.events, indexer, true)?;
        relay.cut();
        publisher.await_subscribers(0)?;
        ask(&publisher, round * 10 + 3..round * 10 + 6)?;
        relay.mend();
        // The router reconnects by itself. From the number of the next heartbeat it learns that it
        // missed batches, and asks for them.
        seen.compare(&publisher, publisher.events, indexer, true)?;
    }
    let replays = publisher.figures()?["replays"].as_u64();
    match replays {
        Some(3..) => said(&seen),
        _ => Err(Error::new(format!("{replays:?} replays"))),
    }
}

fn restarted(indexer: &Indexer, _: &Path) -> Result<String> {
    let state = tempfile::tempdir()?;
    let events = next_port();
    let mut seen = Seen::default();
    for round in 0..3 {
        let mut publisher = Publisher::start(&builder(), events, Some(state.path()))?;
        if round == 0 {
            indexer.register(events, events)?;
        }
        publisher.await_subscribers(1)?;
        // The cache of the killed server is gone. That server could not announce it.
        seen.compare(&publisher, events, indexer, true)?;
        ask(&publisher, round * 10..round * 10 + 3)?;
        seen.compare(&publisher, events, indexer, true)?;
        // The first batch came before the router, which has asked for it. If the server is killed meanwhile, the
        // indexer waits for the rest of the answer for ever, and subscribes to no other server.
        try_until("the router has the first batch", || {
            Ok((publisher.figures()?["replays"] == 1).then_some(()))
        })?;
        publisher.server.stop(9)?;
    }
    said(&seen)
}

fn another_router(_: &Indexer, python: &Path) -> Result<String> {
    let publisher = Publisher::start(&builder(), next_port(), None)?;
    let mut seen = Seen::default();
    for round in 0..2 {
        let indexer = Indexer::start(python)?;
        indexer.register(publisher.events, publisher.events)?;
        ask(&publisher, round * 10..round * 10 + 3)?;
        seen.compare(&publisher, publisher.events, &indexer, true)?;
    }
    said(&seen)
}

fn erased(indexer: &Indexer, _: &Path) -> Result<String> {
    let publisher = Publisher::start(&builder(), next_port(), None)?;
    indexer.register(publisher.events, publisher.events)?;
    let mut seen = Seen::default();
    ask(&publisher, 0..3)?;
    seen.compare(&publisher, publisher.events, indexer, true)?;
    for slot in 0..2 {
        let path = format!("/slots/{slot}?action=erase");
        publisher.server.post(&path, &json!({}))?;
        seen.compare(&publisher, publisher.events, indexer, true)?;
    }
    let blocks = publisher.figures()?["gpu_blocks"].as_u64();
    match blocks {
        Some(0) => said(&seen),
        _ => Err(Error::new(format!("{blocks:?} blocks are left"))),
    }
}

/// A server that ends in order announces that all blocks are removed.
fn ended(indexer: &Indexer, _: &Path) -> Result<String> {
    let mut publisher = Publisher::start(&builder(), next_port(), None)?;
    let instance = publisher.events;
    indexer.register(instance, instance)?;
    publisher.await_subscribers(1)?;
    ask(&publisher, 0..2)?;
    let mut seen = Seen::default();
    seen.compare(&publisher, instance, indexer, true)?;
    publisher.server.stop(15)?;
    try_until("the indexer knows that it has ended", || {
        for content in seen.contents() {
            if indexer.believes(instance, content)?.any > 0 {
                return Ok(None);
            }
        }
        Ok(Some(()))
    })?;
    said(&seen)
}
