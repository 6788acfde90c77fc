//! How much of each prompt the prefix store has loaded, for the usage in its answer: the server's thread knows it, and the
//! request's thread sends the answer.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

use contextpilot_control::CountedAnswers;
use contextpilot_residency::TaskId;
use contextpilot_usage::{Account, Sending};

use super::by_task::{ByTask, Said};

/// The usage in answers is put right.
static ENGAGED: AtomicBool = AtomicBool::new(false);

/// An answer was sent whole, or as a stream, in such pieces that its figures could be put right.
static WHOLE: AtomicBool = AtomicBool::new(false);
static STREAMED: AtomicBool = AtomicBool::new(false);

/// Tasks with prompts of which something was loaded: all tokens of the prompt, and the ones that were loaded and submitted.
static TASKS: ByTask<4096> = ByTask::new();

/// What is known of the prompt in each slot. Only the server's thread writes and reads them. All zeros at first: so they are
/// no bytes of the library's file.
static SLOTS: [SlotUsage; 512] = [const {
    SlotUsage {
        after_task: AtomicI32::new(NONE),
        loaded: AtomicU32::new(0),
        submitted: AtomicU32::new(0),
    }
}; 512];
const NONE: i32 = 0;

struct SlotUsage {
    /// One more than the number of the task whose prompt it is evaluating, or [`NONE`].
    after_task: AtomicI32,
    /// Tokens that were not evaluated, of those that the server has submitted.
    loaded: AtomicU32,
    submitted: AtomicU32,
}

/// From now on the usage in answers is put right.
pub(crate) fn engage() {
    ENGAGED.store(true, Ordering::Relaxed);
}

pub(crate) fn is_engaged() -> bool {
    ENGAGED.load(Ordering::Relaxed)
}

/// An answer is being sent like this.
pub(super) fn sends(sending: &Sending) {
    match sending {
        Sending::Whole => WHOLE.store(true, Ordering::Relaxed),
        Sending::Chunks => STREAMED.store(true, Ordering::Relaxed),
        Sending::Nothing | Sending::Events | Sending::Other => {}
    }
}

/// Which answers count what was loaded as cached.
pub(crate) fn counted() -> CountedAnswers {
    CountedAnswers {
        whole: WHOLE.load(Ordering::Relaxed),
        streamed: STREAMED.load(Ordering::Relaxed),
    }
}

/// A slot takes a task.
pub(crate) fn launched(sequence: i32, task: TaskId) {
    if let Some(slot) = slot(sequence) {
        slot.after_task
            .store(task.wrapping_add(1), Ordering::Relaxed);
        slot.loaded.store(0, Ordering::Relaxed);
        slot.submitted.store(0, Ordering::Relaxed);
    }
}

/// So many tokens of the slot's prompt, which the server has submitted, were loaded.
pub(crate) fn loaded(sequence: i32, tokens: usize) {
    if let Some(slot) = slot(sequence) {
        add(&slot.loaded, tokens);
    }
}

/// The server has submitted so many tokens of this slot, and the engine holds them.
pub(crate) fn submitted(sequence: i32, tokens: usize) {
    if let Some(slot) = slot(sequence) {
        add(&slot.submitted, tokens);
    }
}

/// The prompt in this slot is complete. `all`: how many tokens the slot holds, if that is known. What follows is no prompt.
pub(crate) fn is_complete(sequence: i32, all: impl FnOnce() -> Option<usize>) {
    let Some(slot) = slot(sequence) else { return };
    let after_task = slot.after_task.swap(NONE, Ordering::Relaxed);
    let loaded = slot.loaded.load(Ordering::Relaxed);
    if after_task == NONE || loaded == 0 {
        return;
    }
    let counts = u64::from(loaded) << 32 | u64::from(slot.submitted.load(Ordering::Relaxed));
    if let Some(all) = all() {
        TASKS.note_task(after_task - 1, [all as u64, counts]);
    }
}

/// What the answer to this task is to say. `None`: nothing was loaded, or it is not known.
pub(super) fn account_of(task: TaskId) -> Option<Account> {
    let Said::This([all, counts]) = TASKS.said_of(task) else {
        return None;
    };
    let (loaded, submitted) = (counts >> 32, counts & u64::from(u32::MAX));
    let evaluated = submitted.checked_sub(loaded)?;
    Some(Account {
        reused: all.checked_sub(evaluated)?,
        evaluated,
        loaded,
    })
}

fn add(count: &AtomicU32, tokens: usize) {
    let sum = (count.load(Ordering::Relaxed) as usize).saturating_add(tokens);
    count.store(u32::try_from(sum).unwrap_or(u32::MAX), Ordering::Relaxed);
}

fn slot(sequence: i32) -> Option<&'static SlotUsage> {
    SLOTS
        .get(usize::try_from(sequence).ok()?)
        .filter(|_| is_engaged())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test, as the tables are the process's.
    #[test]
    fn a_task_has_the_account_of_its_prompt() {
        engage();
        let account = |reused, evaluated, loaded| {
            Some(Account {
                reused,
                evaluated,
                loaded,
            })
        };
        launched(3, 10);
        loaded(3, 512);
        submitted(3, 512);
        loaded(3, 200);
        submitted(3, 300);
        assert_eq!(account_of(10), None, "the prompt is not complete");
        is_complete(3, || Some(900));
        // 88 were in the slot.
        assert_eq!(account_of(10), account(800, 100, 712));
        // What is generated changes nothing.
        submitted(3, 1);
        is_complete(3, || Some(901));
        assert_eq!(account_of(10), account(800, 100, 712));
        // A prompt of which nothing was loaded, and one whose tokens are not known.
        launched(3, 11);
        submitted(3, 20);
        is_complete(3, || Some(920));
        launched(4, 12);
        loaded(4, 5);
        submitted(4, 9);
        is_complete(4, || None);
        launched(512, 13);
        assert_eq!([11, 12, 13].map(account_of), [None; 3]);
    }
}
