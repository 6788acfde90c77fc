//! Announces to routers what the store has (KV cache events), on a thread of its own.
//!
//! The tree notes the names of chunks that come and leave. This thread takes the notes, looks the chunks up, some at a
//! time, and makes blocks of their tokens. So it does not matter what changed the tree: the server's thread, a
//! neighbour, or a damaged file. At the start, or after more changes than are noted, it looks at all chunks.
//!
//! What an earlier server left is announced before the first prompt, if that server was like this one ([`Origin`]).
//!
//! Announced is what the server would load for a request that names no adapter. That is known only of
//! a server without adapters. Of a context that cannot go back to any position, each way through the tree is announced up to the
//! last tail on it.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use contextpilot_admission::STACK;
use contextpilot_kv_publisher::{MOST_BLOCKS, Run, Stored};
use contextpilot_kv_store::{Change, Changes, Chunk, Fingerprint, Name, Origin};

use super::index::StoreIndex;
use super::index::held::on_index;
use super::working::works;
use super::{figures, records};
use crate::base::guard;

/// How often the thread looks at what has changed.
const TURN: Duration = Duration::from_millis(100);
/// So many chunks are looked up while the lock is held, which the server's thread may want: some ten microseconds.
const AT_A_TIME: usize = 64;

/// Starts the thread.
///
/// # Errors
/// Why it cannot be started, as the rest of a message.
pub(super) fn start(stored: Stored) -> Result<(), String> {
    let announce = move || {
        guard::enter_for_life();
        contextpilot_admission::give_way();
        announce_for_life(stored);
    };
    let thread = thread::Builder::new()
        .name("contextpilot-announce".to_owned())
        .stack_size(STACK);
    let started = thread.spawn(announce).map(drop);
    started.map_err(|e| format!("no thread can be started ({e})"))
}

fn announce_for_life(mut stored: Stored) {
    let mut announced = None;
    let mut origins: Option<Vec<Origin>> = None;
    while works() {
        thread::sleep(TURN);
        // Until all is announced, further changes wait in the tree, which bounds them.
        if !stored.publish() || figures::is_reading() {
            continue;
        }
        let (now, changes) = changes(origins.as_deref().unwrap_or_default());
        let is_new = origins.is_none() || !changes.chunks.is_empty() || changes.too_many;
        if now.is_none() && is_new {
            // One may have been written since, by a neighbour.
            origins = read_origins();
        }
        if now != announced || changes.too_many {
            stored.clear(now.is_some_and(|loadable| loadable.has_tails));
            announced = now;
            if let Some(loadable) = now {
                read_all(loadable, &mut stored);
            }
        } else if let Some(loadable) = now {
            apply(loadable, &changes, &mut stored);
        }
        stored.publish();
    }
    stored.clear(false);
    while !stored.publish() {
        thread::sleep(TURN);
    }
}

/// The chunks that the server would load now.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Loadable {
    fingerprint: Fingerprint,
    /// A prompt is loaded up to a tail that lies on its way.
    has_tails: bool,
}

impl Loadable {
    fn has(&self, chunk: &Chunk) -> bool {
        chunk.fingerprint == self.fingerprint && (self.has_tails || !chunk.is_tail())
    }
}

/// What the server would load now, and what has changed.
fn changes(origins: &[Origin]) -> (Option<Loadable>, Changes) {
    let changes = on_index(|index| index.as_mut().map(StoreIndex::changes));
    let Some(changes) = changes else {
        return Default::default();
    };
    let loadable = records::oldest().and_then(|basis| {
        Some(Loadable {
            fingerprint: basis.fingerprint(origins)?,
            has_tails: !basis.goes_back(),
        })
    });
    (loadable, changes)
}

/// `None`: the folder has not been read yet.
fn read_origins() -> Option<Vec<Origin>> {
    let folder = on_index(|index| index.as_ref().map(StoreIndex::folder))?;
    Some(folder.origins())
}

/// Announces all chunks: those that are kept and those used last, if there are too many.
fn read_all(loadable: Loadable, stored: &mut Stored) {
    let mut all: Vec<((bool, u64), Chunk)> = Vec::new();
    let mut last = None;
    loop {
        let some = on_index(|index| Some(index.as_ref()?.chunks_after(last, AT_A_TIME)));
        let Some(some) = some.filter(|some| !some.is_empty()) else {
            break;
        };
        last = some.last().map(|(_, chunk)| chunk.name);
        all.extend(some.into_iter().filter(|(_, chunk)| loadable.has(chunk)));
    }
    all.sort_by_key(|(worth, _)| std::cmp::Reverse(*worth));
    let mut size = 0;
    let fits = |(_, chunk): &&((bool, u64), Chunk)| {
        size += stored.size_of(chunk.tokens.len());
        size <= MOST_BLOCKS
    };
    let count = all.iter().take_while(fits).count();
    all.truncate(count);
    // What others continue comes before them.
    all.sort_by_key(|(_, chunk)| chunk.start);
    for ((kept, _), chunk) in all {
        stored.add(run(&chunk, kept));
    }
}

fn apply(loadable: Loadable, changes: &Changes, stored: &mut Stored) {
    for some in changes.chunks.chunks(AT_A_TIME) {
        let found = on_index(|index| {
            let index = index.as_ref();
            let find = |name: &Name| {
                let index = index?;
                Some((index.chunk(name)?.clone(), index.is_kept(name)))
            };
            let each = some.iter().map(|change| match change {
                // It may have left again.
                Change::Came(name) => find(name),
                Change::Left(_) => None,
            });
            each.collect::<Vec<_>>()
        });
        for (change, chunk) in some.iter().zip(found) {
            match (change, chunk) {
                (Change::Left(name), _) => stored.remove(&name.0),
                (Change::Came(_), Some((chunk, kept))) if loadable.has(&chunk) => {
                    stored.add(run(&chunk, kept));
                }
                (Change::Came(_), _) => {}
            }
        }
    }
}

fn run(chunk: &Chunk, kept: bool) -> Run {
    Run {
        name: chunk.name.0,
        behind: chunk.parent.map(|(name, tokens)| (name.0, tokens)),
        start: chunk.start,
        tokens: if chunk.is_tail() {
            Arc::default()
        } else {
            Arc::clone(&chunk.tokens)
        },
        kept,
    }
}
