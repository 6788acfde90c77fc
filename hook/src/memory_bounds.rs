//! Every bound of the memory that this library takes in a server, in one place.
//!
//! [`ALL`] lists the hook's own bounds and those that crates set. Nothing waits for room: beyond a bound,
//! something is dropped and counted, and ids that an index may believe to be cached are reported as
//! evicted.
//!
//! A test compares [`ALL`] with the table in `docs/memory.md`. That page also describes memory that
//! grows with something in the server, and so has no number here.

use contextpilot_control::{Evaluated, Evaluation, Evicted, LogLine, ResidencyEvent};
use contextpilot_delivery::Limits;
use contextpilot_journal::{MAX_CHANGES, MAX_IDS, RECENT_BYTES};
use contextpilot_kv_publisher::{
    CONNECTIONS as ROUTERS, MOST_WAITING as MOST_PUBLISHED, QUEUED_BYTES_OF_ALL,
};
use contextpilot_observer::{MOST_EVALUATIONS, MOST_EVENTS, MOST_GONE, MOST_IDS, MOST_SENT};
use contextpilot_request::{MAX_ID_BYTES, MOST_AGENT, MOST_WORDS, Sent};
use contextpilot_residency::{
    Around, Arrival, Entry, LIVE_BYTES, MOST_LIVE, MOST_REMEMBERED, MOST_TAIL_TOKENS,
    MOST_UNCACHED, MOST_WAITING, MOST_WAITING_TOKENS, REMEMBERED_BYTES, REMEMBERED_EACH, RequestId,
    TaskId, Token,
};
use contextpilot_worker::{LARGEST_HEAD, MOST_HELD, MOST_HELD_ENTRIES};

use crate::base::bounds::*;
use crate::capture::engine_prompts;
use contextpilot_worker::Item;
use contextpilot_worker::bounds::{BODY, CONNECTIONS, LOG_IDS, LOG_LINES, QUESTIONS};

/// An upper bound of the sum, in MiB: everything is full at once, with ids of the greatest length.
pub(crate) const TOTAL_MIB: usize = 1042;

/// A bound on one kind of thing.
#[cfg_attr(not(test), allow(dead_code, reason = "for the page"))]
pub(crate) struct Bound {
    pub(crate) what: &'static str,
    pub(crate) most: usize,
    /// Bytes of one, with its share of the table around it.
    pub(crate) each: usize,
    /// What happens when there is one more.
    pub(crate) beyond: &'static str,
}

/// A shared id of the greatest length, with its two reference counts and the overhead of an allocation.
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
        // With the word that marks the place as full.
        each: size_of::<Item>() + size_of::<usize>() + ID,
        beyond: "the ledger starts from empty, and every live id is reported as evicted (`losses.events`, `losses.gaps`)",
    },
    Bound {
        what: "entries of batches, and tokens of prompts, in these events",
        most: ENTRIES,
        each: size_of::<Entry>(),
        beyond: "the same",
    },
    Bound {
        what: "ids of requests whose first event did not fit into the queue",
        most: STRANDED,
        each: size_of::<(Arrival, RequestId)>() + size_of::<usize>() + ID,
        beyond: "the index keeps the id (`losses.ids`)",
    },
    Bound {
        what: "sockets, by number",
        most: SOCKETS,
        each: size_of::<u32>(),
        beyond: "requests on this socket count as having no id",
    },
    Bound {
        what: "sockets on which the server listens",
        most: LISTENERS,
        each: 16,
        beyond: "the address is not named (`listening`)",
    },
    Bound {
        what: "buffers of the host prompt cache, by address",
        most: 8 * BUFFER_BUCKETS,
        each: size_of::<usize>(),
        beyond: "the copy is not seen (`losses.untracked_buffers`)",
    },
    Bound {
        what: "kinds of buffers",
        most: BUFFER_KINDS,
        each: size_of::<u32>(),
        beyond: "none: kinds are shared",
    },
    Bound {
        what: "contexts",
        most: CONTEXTS,
        each: 64,
        beyond: "the ledger starts from empty",
    },
    Bound {
        what: "sequences whose prompts are told apart, in programs that are no llama-server",
        most: SEQUENCES,
        each: size_of::<engine_prompts::Sequence>() + 2 * ID,
        beyond: "the prompts that they are at are told as new ones",
    },
    Bound {
        what: "events of one context that wait while a batch of another one is evaluated, in such programs",
        most: MOST_HELD,
        each: listed(size_of::<Item>()) + ID,
        beyond: "the ledger starts from empty, and every live id is reported as evicted",
    },
    Bound {
        what: "entries of batches in these events",
        most: MOST_HELD_ENTRIES,
        each: size_of::<Entry>(),
        beyond: "the same",
    },
    Bound {
        what: "entries in shadow copies of 64 batches that are not in use",
        most: BATCHES * BATCH_KEEPS,
        each: size_of::<Entry>(),
        beyond: "the memory is freed. With a 65th batch at the same time, slots may hold unknown tokens (`losses.untracked_batches`)",
    },
    Bound {
        what: "live requests, in the ledger and in the list of live ids. One with several prompts counts for each of them",
        most: MOST_LIVE,
        each: LIVE_BYTES + 2 * hashed(SHARED_ID + size_of::<[u64; 2]>()) + ID,
        beyond: "the oldest is reported as evicted (reason `too_many`)",
    },
    Bound {
        what: "tokens at the ends of prompts, with sliding windows and recurrent models",
        most: MOST_TAIL_TOKENS,
        each: size_of::<Token>(),
        beyond: "the id is reported as evicted when any token of the prompt but the last one is not held any more",
    },
    Bound {
        what: "prompts that wait for a slot, where requests are tied to slots by their prompts",
        most: MOST_WAITING,
        each: listed(size_of::<(Arrival, TaskId, Vec<Token>)>()),
        beyond: "the request counts as never cached",
    },
    Bound {
        what: "tokens of these prompts",
        most: MOST_WAITING_TOKENS,
        each: size_of::<Token>(),
        beyond: "the same",
    },
    Bound {
        what: "tasks with `\"cache_prompt\": false` that wait for a slot",
        most: MOST_UNCACHED,
        each: listed(size_of::<TaskId>()),
        beyond: "the oldest counts as a task that is cached",
    },
    Bound {
        what: "ids in the journal",
        most: MAX_IDS,
        each: hashed(SHARED_ID + size_of::<u64>()),
        beyond: "the id is not written: after a crash the index keeps it (one line on stderr)",
    },
    Bound {
        what: "changes that wait to be written to the journal",
        most: MAX_CHANGES,
        each: listed(SHARED_ID),
        beyond: "the changes are written at once",
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
        what: "bytes of these ids",
        most: Limits::DEFAULT.bytes,
        each: 1,
        beyond: "the same",
    },
    Bound {
        what: "with `CONTEXTPILOT_LISTEN`: the last events",
        most: MOST_EVENTS,
        each: listed(size_of::<usize>()) + size_of::<ResidencyEvent>() + 4 * ALLOCATION,
        beyond: "the oldest is forgotten: a reader that has not read it gets `missed`",
    },
    Bound {
        what: "ids in these events",
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
        what: "with `CONTEXTPILOT_EXPLAIN_MB`, the last evaluations",
        most: MOST_EVALUATIONS,
        each: size_of::<Evaluated>() + hashed(SHARED_ID + size_of::<u64>()) + 4 * ID,
        beyond: "the oldest is forgotten: `evaluation` is `null`",
    },
    Bound {
        what: "with `CONTEXTPILOT_EXPLAIN_TEXT`, the tokens around each divergence",
        most: MOST_EVALUATIONS,
        each: size_of::<Around>()
            + (Around::BEFORE + 2 * Around::BEHIND) * size_of::<Token>()
            + 4 * ALLOCATION,
        beyond: "the oldest is forgotten: `diverged.text` is left out",
    },
    Bound {
        what: "with `CONTEXTPILOT_EXPLAIN_TEXT`, what these requests are about",
        most: MOST_EVALUATIONS,
        each: MOST_WORDS + MOST_AGENT + 2 * ALLOCATION,
        beyond: "the oldest is forgotten: `title` is left out",
    },
    Bound {
        what: "with `CONTEXTPILOT_EXPLAIN_TEXT`, which dates and numbers their requests have (no text)",
        most: MOST_SENT,
        each: Sent::BYTES + 2 * size_of::<usize>() + 2 * ALLOCATION,
        beyond: "the oldest is forgotten: `diverged.sent` is left out",
    },
    Bound {
        what: "with `CONTEXTPILOT_KEEP_TOKENS`, tokens of answers, and of what came before them",
        most: ANSWER_TOKENS,
        each: listed(size_of::<Token>()),
        beyond: "the oldest answer is forgotten: a prompt gets the tokenizer's tokens",
    },
    Bound {
        what: "tokens that were in slots, by the default of `CONTEXTPILOT_EXPLAIN_MB`",
        most: REMEMBERED_BYTES,
        each: 1,
        beyond: "the least recently used are forgotten: the cause is `not_known`",
    },
    Bound {
        what: "the last requests, by the default of `CONTEXTPILOT_RECENT_MB`",
        most: contextpilot_settings::DEFAULT_RECENT_BYTES,
        each: 1,
        beyond: "the oldest are forgotten: `why` says that they were not replayed",
    },
    Bound {
        what: "of these tokens: which request they belong to, and how they were lost",
        most: MOST_REMEMBERED,
        each: REMEMBERED_EACH + ID,
        beyond: "`diverged.request` and `lost` are `null`",
    },
    Bound {
        what: "connections to the control endpoint, by the default of `CONTEXTPILOT_LISTEN_CONNECTIONS`",
        most: CONNECTIONS,
        // The whole stack of a thread, although little of it is ever touched; the heads; the
        // body, and the tokens in it; or the ids in it, their states, and an answer with all of them.
        each: (2 << 20) + 2 * LARGEST_HEAD + 5 * BODY,
        beyond: "503",
    },
    Bound {
        what: "queries from these to the worker",
        most: QUESTIONS,
        each: 64 + ID,
        beyond: "503",
    },
    Bound {
        what: "with `CONTEXTPILOT_LOG_FILE`: lines that wait for the disk",
        most: LOG_LINES,
        each: size_of::<LogLine>() + size_of::<Evaluation>() + 2 * ALLOCATION + 2 * ID,
        beyond: "the line is dropped (`losses.log_lines`)",
    },
    Bound {
        what: "ids in these lines",
        most: LOG_IDS,
        each: size_of::<Evicted>() + ID,
        beyond: "the same",
    },
    Bound {
        what: "with `CONTEXTPILOT_TRAFFIC_FILE`: tokens of recorded prompts",
        most: contextpilot_observer::MOST_RECORDED_TOKENS,
        // An entry of a hash table of 8/7 places, and a 64th part of one.
        each: 20,
        beyond: "all are forgotten: what prompts have in common is then recorded to the block, by hashes, not to the token",
    },
    Bound {
        what: "tasks and requests that wait to be recorded, or kept among the last ones",
        // In the recording, and in the last requests.
        most: 2 * contextpilot_observer::MOST_WAITING,
        each: 128,
        beyond: "their arrival time, and the slot they asked for, are not recorded",
    },
    Bound {
        what: "the tokenizer's tokens in place of kept ones, in prompts that wait to be recorded, or kept among the last ones",
        // In the recording, and in the last requests.
        most: 2 * contextpilot_observer::MOST_OTHER_TOKENS,
        each: size_of::<Token>(),
        beyond: "what the prompt would have been without is not recorded, nor how many tokens were kept",
    },
    Bound {
        what: "with `CONTEXTPILOT_KV_EVENTS`: tokens and blocks that wait to be published",
        most: MOST_PUBLISHED,
        each: size_of::<u64>(),
        beyond: "everything is published again from the beginning (`kv_events.started_over`)",
    },
    Bound {
        what: "bytes of batches that wait for routers",
        most: QUEUED_BYTES_OF_ALL,
        each: 1,
        beyond: "the router for which most waits is disconnected (`kv_events.refused`); above 4 MiB for one router, the batch is dropped for it, and it asks for a replay (`kv_events.dropped`)",
    },
    Bound {
        what: "connections of routers, by the default of `CONTEXTPILOT_KV_EVENTS_CONNECTIONS`",
        // Those that lost their places may not have noticed yet.
        most: 2 * (ROUTERS + ROUTERS / 4),
        // The stacks of two threads, subscriptions, replies, and the largest message that is read.
        each: (512 << 10) + (56 << 10),
        beyond: "the connection is closed (`kv_events.refused`)",
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
