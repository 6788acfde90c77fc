//! Sliding-window and recurrent models: what the indexer believes, and what the engine reuses.
//!
//! The cache of such a model can go back to certain points only. The hook publishes the blocks up to
//! the last of these points. A prompt that has all of these blocks is credited with what the engine
//! reuses. A prompt that diverges earlier is credited with the common blocks, but the engine goes back
//! to an earlier point, or evaluates the whole prompt. No events can be right for both: a router counts
//! consecutive blocks from the first. So if it counts *n* blocks for one prompt, it counts *n* for each
//! prompt that begins with these *n* blocks.

use std::cmp::Ordering;

use contextpilot_testbed::{Error, Result};

use crate::adapters::Asked;
use crate::cases::Case;
use crate::indexer::{BLOCK, Indexer};
use crate::publisher::Publisher;
use crate::slots::common;
use crate::traces::{Seen, plain_prompts, tokenize};

/// For how many prompts of a trace the indexer may believe too much. For traces that are not listed,
/// this is 0.
const TOO_MUCH: [(&str, usize); 9] = [
    ("recurrent: a conversation that grows", 1),
    ("recurrent: branches from a trunk", 4),
    ("recurrent: conversation, host prompt cache", 1),
    // A recurrent state goes back to no place within a prompt.
    (
        "recurrent: prompts that part after nine tenths, and before",
        7,
    ),
    ("recurrent: the same, host prompt cache", 7),
    // Turns whose checkpoints the server has erased, in the middle of a longer conversation.
    ("sliding window: many turns, host prompt cache", 14),
    ("recurrent: many turns, host prompt cache", 10),
    // What comes back from host memory goes back no farther than the window at its end.
    ("whole windows: back to any place, host prompt cache", 5),
    (
        "whole windows: a long answer goes to the host prompt cache",
        1,
    ),
];

/// For how many prompts the indexer believes exactly what the engine reuses, for how many less, and for
/// how many more.
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
        let replayed = case.server.plain().spawn()?;
        case.trace.run(&replayed)?;
        let found = replayed.complete(request)?.cache_n / BLOCK;
        // After the replay: when the trace has ended, its last events may still be on their way.
        let all = indexer
            .believes_for(adapter, publisher.events, &tokens)?
            .any;
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
    if counts[2] <= known.map_or(0, |(_, most)| *most) {
        Ok(counts)
    } else {
        Err(Error::new(format!(
            "too much is believed of {} prompts",
            counts[2]
        )))
    }
}

/// Believing too much is allowed only for a prompt that diverges within the published blocks, before
/// the point to which the cache can go back. Fails for all others.
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
        // That point is after the last full published block, and before the end of the next block.
        if common >= believed * BLOCK && common < (published + 1) * BLOCK {
            return Ok(());
        }
    }
    Err(Error::new(format!(
        "it believes in {believed} blocks of a prompt that has all that is published"
    )))
}
