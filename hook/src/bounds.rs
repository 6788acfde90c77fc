//! Every bound of the memory that this library takes in a server, in one place.
//!
//! The bounds of the hook are set here; those of a crate are set there, and listed here. What is full
//! is never waited for: something is given up, counted, and told as gone if an index believes in it.
//!
//! `docs/memory.md` is for people. Its table is made from [`ALL`], and a test compares them. What
//! follows the size of something in the server, and so has no number here, is described there.

use contextpilot_control::{Evicted, LogLine, ResidencyEvent};
use contextpilot_delivery::Limits;
use contextpilot_http_server::LARGEST_HEAD;
use contextpilot_journal::{MAX_CHANGES, MAX_IDS, RECENT_BYTES};
use contextpilot_observer::{MOST_EVENTS, MOST_GONE, MOST_IDS};
use contextpilot_request::MAX_ID_BYTES;
use contextpilot_residency::{
    Arrival, Entry, LIVE_BYTES, MOST_LIVE, MOST_UNCACHED, MOST_WAITING, MOST_WAITING_TOKENS,
    RequestId, TaskId, Token,
};

use crate::channel::Item;

// ---- from the host's threads to the worker ----

/// Events that may wait: several seconds of a busy server. Almost none do, as a rule.
pub(crate) const EVENTS: usize = 65_536;
/// Events that may wait while there is no worker: requests that come before the server begins to
/// load a model. A process that never does (a router) leaves it at that.
pub(crate) const EVENTS_BEFORE_WORKER: usize = 1024;
/// Entries of submitted batches, and tokens of prompts, in these events, all together.
pub(crate) const ENTRIES: usize = 4 << 20;
/// Ids that may be stranded when events find no room.
pub(crate) const STRANDED: usize = 16_384;

// ---- tables that the host's threads look into ----

/// Sockets beyond this number are not followed: their requests count as having no id.
pub(crate) const SOCKETS: usize = 65_536;
/// Buckets of eight saved buffers.
pub(crate) const BUFFER_BUCKETS: usize = 8192;
/// Counters of these by kind of address.
pub(crate) const BUFFER_KINDS: usize = 2048;
/// Contexts alive at once: a server has one, or two with a draft model.
pub(crate) const CONTEXTS: usize = 64;
/// Batches alive at once: a server has about three.
pub(crate) const BATCHES: usize = 64;
/// Entries for which an unused copy of a batch keeps room.
pub(crate) const BATCH_KEEPS: usize = 16_384;

// ---- the control endpoint and the log file ----

/// Connections at a time.
pub(crate) const CONNECTIONS: usize = 16;
/// Of these, those that may follow the stream: the others are for short questions.
pub(crate) const READERS: usize = 8;
/// Bytes of a request's body. Nothing is asked for with one.
pub(crate) const BODY: usize = 4 << 10;
/// Questions to the worker that may wait: more than there are connections.
pub(crate) const QUESTIONS: usize = 64;
/// Lines that may wait for the disk.
pub(crate) const LOG_LINES: usize = 4096;
/// Request ids in these, all together.
pub(crate) const LOG_IDS: usize = 65_536;

/// Less than this is taken if everything is full at once, with the longest of ids: MiB.
pub(crate) const TOTAL_MIB: usize = 640;

/// What may be kept of one kind.
#[cfg_attr(not(test), allow(dead_code, reason = "for the page"))]
pub(crate) struct Bound {
    pub(crate) what: &'static str,
    pub(crate) most: usize,
    /// Bytes of one, with what the table around it takes.
    pub(crate) each: usize,
    /// What happens to one more.
    pub(crate) beyond: &'static str,
}

/// An id of the greatest length, as it is shared: with its counts, and what an allocation adds.
const ID: usize = MAX_ID_BYTES + 2 * size_of::<usize>() + ALLOCATION;
const ALLOCATION: usize = 16;

/// An entry of a hash table, just after it has doubled.
const fn hashed(entry: usize) -> usize {
    (entry + 1) * 16 / 7 + 1
}

/// An element of a vector, just after it has doubled.
const fn listed(element: usize) -> usize {
    2 * element
}

const SHARED_ID: usize = size_of::<RequestId>();

pub(crate) const ALL: &[Bound] = &[
    Bound {
        what: "events on their way to the ledger",
        most: EVENTS,
        // With the mark that the place is full.
        each: size_of::<Item>() + size_of::<usize>() + ID,
        beyond: "the ledger starts anew: everything live is told as gone (`losses.events`, `losses.gaps`)",
    },
    Bound {
        what: "entries of batches, and tokens of prompts, in these",
        most: ENTRIES,
        each: size_of::<Entry>(),
        beyond: "the same",
    },
    Bound {
        what: "ids of requests whose first event found no room",
        most: STRANDED,
        each: size_of::<(Arrival, RequestId)>() + size_of::<usize>() + ID,
        beyond: "the index goes on believing in the id (`losses.ids`)",
    },
    Bound {
        what: "sockets by number",
        most: SOCKETS,
        each: size_of::<u32>(),
        beyond: "requests on it count as having no id",
    },
    Bound {
        what: "buffers of the host prompt cache, by address",
        most: 8 * BUFFER_BUCKETS,
        each: size_of::<usize>(),
        beyond: "the copy counts as none (`losses.untracked_buffers`)",
    },
    Bound {
        what: "kinds of these addresses",
        most: BUFFER_KINDS,
        each: size_of::<u32>(),
        beyond: "none: kinds are shared",
    },
    Bound {
        what: "contexts",
        most: CONTEXTS,
        each: 64,
        beyond: "the ledger starts anew",
    },
    Bound {
        what: "entries in copies of 64 batches that are not in use",
        most: BATCHES * BATCH_KEEPS,
        each: size_of::<Entry>(),
        beyond: "given back; with a 65th batch at once, slots may hold anything (`losses.untracked_batches`)",
    },
    Bound {
        what: "live requests, in the ledger and where the index is told",
        most: MOST_LIVE,
        each: LIVE_BYTES + 2 * hashed(SHARED_ID + size_of::<[u64; 2]>()) + ID,
        beyond: "the oldest is told as gone (reason `too_many`)",
    },
    Bound {
        what: "prompts that wait for a slot, where requests are tied by them",
        most: MOST_WAITING,
        each: listed(size_of::<(Arrival, TaskId, Vec<Token>)>()),
        beyond: "the request counts as never cached",
    },
    Bound {
        what: "tokens of these",
        most: MOST_WAITING_TOKENS,
        each: size_of::<Token>(),
        beyond: "the same",
    },
    Bound {
        what: "tasks that are not to be cached and wait for a slot",
        most: MOST_UNCACHED,
        each: listed(size_of::<TaskId>()),
        beyond: "the oldest counts as one to be cached",
    },
    Bound {
        what: "ids in the journal",
        most: MAX_IDS,
        each: hashed(SHARED_ID + size_of::<u64>()),
        beyond: "the id is not kept: a crash would leave it in the index (one line)",
    },
    Bound {
        what: "changes that wait to be written there",
        most: MAX_CHANGES,
        each: listed(SHARED_ID),
        beyond: "they are written at once",
    },
    Bound {
        what: "the ring of ids that have just arrived, in shared memory",
        most: RECENT_BYTES,
        each: 1,
        beyond: "the journal is written at once",
    },
    Bound {
        what: "ids that wait for the index",
        most: Limits::DEFAULT.ids,
        each: listed(SHARED_ID) + hashed(SHARED_ID + size_of::<u64>()) + ID - MAX_ID_BYTES,
        beyond: "the oldest is dropped (`delivery.dropped`)",
    },
    Bound {
        what: "their text",
        most: Limits::DEFAULT.bytes,
        each: 1,
        beyond: "the same",
    },
    Bound {
        what: "with `CONTEXTPILOT_LISTEN`: the last events",
        most: MOST_EVENTS,
        each: listed(size_of::<usize>()) + size_of::<ResidencyEvent>() + 4 * ALLOCATION,
        beyond: "the oldest is forgotten: a reader who has not read it gets `missed`",
    },
    Bound {
        what: "ids in these",
        most: MOST_IDS,
        each: size_of::<String>() + ID,
        beyond: "the same",
    },
    Bound {
        what: "the last evictions",
        most: MOST_GONE,
        each: hashed(SHARED_ID + 96) + listed(SHARED_ID + size_of::<u64>()) + 2 * ID,
        beyond: "the oldest is forgotten: `/requests/{id}` says `unknown`",
    },
    Bound {
        what: "connections",
        most: CONNECTIONS,
        // What a thread's stack has room for; little of it is ever touched.
        each: (2 << 20) + 2 * LARGEST_HEAD + BODY,
        beyond: "503",
    },
    Bound {
        what: "questions to the worker",
        most: QUESTIONS,
        each: 64 + ID,
        beyond: "503",
    },
    Bound {
        what: "with `CONTEXTPILOT_LOG_FILE`: lines that wait for the disk",
        most: LOG_LINES,
        each: size_of::<LogLine>() + ALLOCATION,
        beyond: "the line is dropped (`losses.log_lines`)",
    },
    Bound {
        what: "ids in these",
        most: LOG_IDS,
        each: size_of::<Evicted>() + ID,
        beyond: "the same",
    },
    Bound {
        what: "with `CONTEXTPILOT_TRAFFIC_FILE`: tokens of recorded prompts",
        most: contextpilot_traffic::MOST_TOKENS,
        // The token, a quarter of an entry that finds it, and its share of the tree.
        each: 16,
        beyond: "all are forgotten: prompts are related by the hashes of their blocks, to the block",
    },
    Bound {
        what: "tasks and requests that wait to be recorded",
        most: contextpilot_observer::MOST_WAITING,
        each: 128,
        beyond: "when they came, and which slot they asked for, is not recorded",
    },
];

const fn total() -> usize {
    let mut total = 0;
    let mut nth = 0;
    while nth < ALL.len() {
        total += ALL[nth].most * ALL[nth].each;
        nth += 1;
    }
    total
}

const _: () = assert!(
    total() < TOTAL_MIB << 20,
    "a bound was raised: state the new total"
);

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> String {
        let head = "| what | at most | bytes of one | MiB | beyond |\n|---|--:|--:|--:|---|\n";
        let mut table = head.to_owned();
        for bound in ALL {
            let mib = (bound.most * bound.each) as f64 / f64::from(1 << 20);
            let (what, most, each) = (bound.what, bound.most, bound.each);
            table += &format!(
                "| {what} | {most} | {each} | {mib:.1} | {} |\n",
                bound.beyond
            );
        }
        let total = total() as f64 / f64::from(1 << 20);
        table + &format!("| **all of it** | | | **{total:.0}** | |\n")
    }

    #[test]
    fn the_page_has_these_bounds() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/memory.md");
        let page = std::fs::read_to_string(page).unwrap();
        let table = table();
        assert!(
            page.contains(&table),
            "docs/memory.md lacks this table:\n{table}"
        );
        let stated = format!("less than {TOTAL_MIB} MiB");
        assert!(page.contains(&stated), "docs/memory.md lacks: {stated}");
    }
}
