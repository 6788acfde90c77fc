//! Other processes that use the same folder: servers of this user, on this machine or on another one that
//! has the folder, and `contextpilot-llama store`.
//!
//! Processes do not notify each other. Each process looks at the folder every two seconds. What another one has
//! written is then in its own tree, and counts in its budget: a process that finds that all together is too much
//! removes what was used least recently. Two that remove the same do no harm. Until the next look they may
//! exceed the budget by what they write in that time.
//!
//! If several write for the same place at the same moment (prompts that part within one chunk), all keep the few with the
//! least names; another one leaves, with what continues it. A chunk whose parent has left counts until the process that
//! wrote it has seen that, or until it is the one that was used least recently.
//!
//! All count time in the same way, so that they agree on what is old. What a neighbour *uses* is seen by the
//! next process that starts: the times of files that are known already are not looked at again.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use contextpilot_control::{StoreRemote, Timestamp};
use contextpilot_kv_files::{Watch, clock};

use super::context::Basis;
use super::figures::{self, Kind};
use super::index::held::on_index;
use super::index::kept;
use super::index::noted::AGAIN;
use super::index::{Opened, StoreIndex, say_problem};
use super::records;
use super::working::works;
use crate::base::faults;
/// How often the folder is looked at.
const LOOK: Duration = Duration::from_secs(2);
/// How often what is known of fingerprints without chunks is removed.
const SWEEP: Duration = Duration::from_secs(3600);
/// So many chunks at a time are put into the tree, which the server's thread may want meanwhile: some ten
/// microseconds.
const AT_A_TIME: usize = 16;
/// How often it is written down what is where, if that has changed.
const INDEX: Duration = Duration::from_secs(60);
/// So many chunks are looked at while the lock is held, to write that down.
const INDEXED: usize = 64;

/// Looks at the folder until the process ends, on a thread of its own that gives way.
pub(super) fn follow(mut watch: Watch, opened: Opened) {
    if !opened.is_read {
        read_rest(&mut watch, opened.limit);
    }
    look_for_life(watch, opened.has_remote);
}

/// Reads all of the folder, while prompts are looked up by its index. `limit`: the budget, if the settings give one.
fn read_rest(watch: &mut Watch, limit: Option<u64>) {
    faults::hold_reading();
    while works() {
        let (mut some, mut future) = (Vec::with_capacity(AT_A_TIME), Vec::new());
        let read = watch.look(|header| {
            if header.last_used > clock::time() {
                future.push(header)
            } else {
                some.push(header);
                if some.len() == AT_A_TIME {
                    with_index(|index| index.load_some(some.drain(..)));
                }
            }
        });
        with_index(|index| index.load_some(some.drain(..)));
        match read {
            Ok(_) => {
                with_index(|index| index.end_reading(future, limit));
                figures::READING.store(false, Ordering::Release);
                return;
            }
            Err(error) => {
                say_unreadable(&error);
                thread::sleep(LOOK);
            }
        }
    }
}

fn say_unreadable(error: &io::Error) {
    say_problem(
        Kind::Looking,
        &format!("its folder cannot be read ({error})"),
    );
}

/// Writes down what is where, for the process that starts next.
fn write_index() {
    let Some((folder, changed)) = on_index(|index| {
        let index = index.as_ref()?;
        Some((index.folder(), index.must_write_index()?))
    }) else {
        return;
    };
    let (mut all, mut last) = (Vec::new(), None);
    while let Some((some, now @ Some(_))) = with_index(|index| index.children_after(last, INDEXED))
    {
        all.extend(some);
        last = now;
    }
    // What writes chunks reports a folder that cannot be written.
    let _ = folder.keep_index(all);
    with_index(|index| index.has_written_index(changed));
}

/// `has_remote`: a process keeps the folder and a remote alike.
fn look_for_life(mut watch: Watch, has_remote: bool) {
    let mut noted = None;
    let mut swept: Option<Instant> = None;
    let mut indexed: Option<Instant> = None;
    while works() {
        if indexed.is_none_or(|indexed| indexed.elapsed() > INDEX) {
            indexed = Some(Instant::now());
            write_index();
        }
        if swept.is_none_or(|swept| swept.elapsed() > SWEEP) {
            swept = Some(Instant::now());
            forget_unused();
        }
        thread::sleep(LOOK);
        if has_remote {
            note_origin(&mut noted);
            look_at_remote();
        }
        // What could not be written is not there.
        while with_index(|index| index.settle_some(AT_A_TIME)) == Some(true) {}
        let mut written = Vec::new();
        let changed = match watch.look(|header| written.push(header)) {
            Ok(changed) => changed,
            // A folder that is gone is made again when something is written.
            Err(error) => {
                say_unreadable(&error);
                continue;
            }
        };
        figures::clear_problem(Kind::Looking, Duration::ZERO);
        figures::clear_problem(Kind::Reading, figures::REPORTED_FOR);
        if watch.is_another() {
            with_index(StoreIndex::begin_notes);
            noted = None;
        }
        for some in written.chunks(AT_A_TIME) {
            with_index(|index| index.share(some));
        }
        look_at_kept();
        for lost in &changed {
            let unknown = with_index(|index| index.lose(lost));
            watch.again(&unknown.unwrap_or_default());
        }
    }
}

/// Writes down which prompts are to be kept, and reads what others were asked to keep.
fn look_at_kept() {
    let Some((folder, news)) = with_index(StoreIndex::take_kept_news) else {
        return;
    };
    let there = kept::write_down(&folder, &news);
    with_index(|index| index.share_kept(&there));
}

/// Removes what was written down of fingerprints of which there are no chunks any more.
fn forget_unused() {
    let there = with_index(|index| (index.folder(), index.fingerprints()));
    if let Some((folder, used)) = there {
        folder.forget_unused(|of| used.contains(of));
    }
}

/// Writes down what the chunks that this server will use are made of, as soon as that is known: before its first prompt,
/// if it warms up. So the process that keeps the folder and a remote alike fetches them in time. (What is stored writes it
/// down again.)
fn note_origin(noted: &mut Option<(Arc<Basis>, Instant)>) {
    let Some(basis) = records::oldest() else {
        return;
    };
    let is_noted =
        |(of, at): &(Arc<Basis>, Instant)| Arc::ptr_eq(of, &basis) && at.elapsed() < AGAIN;
    if noted.as_ref().is_some_and(is_noted) {
        return;
    }
    let origins = basis.origins();
    if !origins.is_empty() {
        with_index(|index| {
            origins
                .into_iter()
                .for_each(|origin| index.tell_origin(origin))
        });
        *noted = Some((basis, Instant::now()));
    }
}

/// Looks at what the process that keeps the folder and the remote alike says.
fn look_at_remote() {
    let folder = on_index(|index| index.as_ref().map(StoreIndex::folder));
    let note = folder.and_then(|folder| folder.remote_note());
    let now = Timestamp::from_unix_ms(clock::time() / 1_000_000);
    figures::set_remote(note.and_then(|note| StoreRemote::read(&note, now)));
}

fn with_index<T>(work: impl FnOnce(&mut StoreIndex) -> T) -> Option<T> {
    on_index(|index| index.as_mut().map(work))
}
