//! Memory that slides or only goes forward: what is believed, and what the engine takes.
//!
//! Such a memory can be gone back to at certain points only. A chain of blocks is published up to the
//! last of them, so a prompt that has all of it is credited with what the engine takes. A prompt that
//! leaves the chain before is credited with what it has in common, and the engine goes back to an
//! earlier point, or evaluates all of it. No events can be right for both: a router counts how many
//! blocks from the first on are there, so whatever lets it count *n* for one prompt lets it count as many for
//! each prompt that begins with these *n* blocks.

use std::cmp::Ordering;

use contextpilot_testbed::{Error, Result};

use crate::adapters::Asked;
use crate::cases::Case;
use crate::indexer::{BLOCK, Indexer};
use crate::publisher::Publisher;
use crate::slots::common;
use crate::traces::{Seen, plain_prompts, tokenize};

/// In how many prompts of a trace too much is believed, at most: of all others it is nothing.
const TOO_MUCH: [(&str, usize); 3] = [
    ("recurrent: a conversation that grows", 1),
    ("recurrent: branches from a trunk", 4),
    ("recurrent: conversation, host prompt cache", 1),
];

/// How many beliefs are right, how many are less than what the engine takes, and how many more.
pub(crate) fn compare(
    case: &Case,
    publisher: &Publisher,
    indexer: &Indexer,
    seen: &Seen,
) -> Result<[usize; 3]> {
    let mut counts = [0; 3];
    for request in plain_prompts(case) {
        let adapter = match Asked::of(request) {
            Asked::Plain => None,
            Asked::Named(name) => Some(name),
            Asked::Nameless => continue,
        };
        let tokens = tokenize(&publisher.server, &request.body()["prompt"])?;
        let all = indexer
            .believes_for(adapter, publisher.events, &tokens)?
            .any;
        let replayed = case.server.plain().spawn()?;
        case.trace.run(&replayed)?;
        let found = replayed.complete(request)?.cache_n / BLOCK;
        let believed = all.min((tokens.len() - 1) / BLOCK);
        let order = believed.cmp(&found);
        if order == Ordering::Greater {
            leaves_inside(publisher, indexer, seen, &tokens, all).map_err(|error| {
                Error::new(format!("{error}, and the engine takes {found} of them"))
            })?;
        }
        counts[match order {
            Ordering::Equal => 0,
            Ordering::Less => 1,
            Ordering::Greater => 2,
        }] += 1;
    }
    let known = TOO_MUCH.iter().find(|(name, _)| *name == case.name);
    match counts[2] <= known.map_or(0, |(_, most)| *most) {
        true => Ok(counts),
        false => Err(Error::new(format!(
            "too much is believed of {} prompts",
            counts[2]
        ))),
    }
}

/// Too much is believed of a prompt: that may be only if it leaves what is published inside, before the
/// point that the memory can go back to.
fn leaves_inside(
    publisher: &Publisher,
    indexer: &Indexer,
    seen: &Seen,
    tokens: &[i32],
    believed: usize,
) -> Result<()> {
    for content in seen.contents() {
        let published = indexer.believes(publisher.events, content)?.any;
        let common = common(content, tokens);
        // The point lies behind the last full block that is published, and before the next.
        if common >= believed * BLOCK && common < (published + 1) * BLOCK {
            return Ok(());
        }
    }
    Err(Error::new(format!(
        "it believes in {believed} blocks of a prompt that has all that is published"
    )))
}
