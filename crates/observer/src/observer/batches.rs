//! Tasks and batches: which request a batch works for, and how many tokens its prompt took.

use contextpilot_residency::{Arrival, Entry, RequestId, SequenceId, TaskId};

use super::Observer;
use crate::note::{Now, Stamp};
use crate::work::SlotWork;

impl Observer {
    pub(super) fn posted(&mut self, arrival: Arrival, task: TaskId, id: Option<&RequestId>) {
        let work = self.works.entry(arrival).or_default();
        work.id = id.cloned();
        work.tasks.push(task);
        self.tasks.insert(task, arrival);
    }

    pub(super) fn submitted(&mut self, entries: &[Entry], at: Stamp) {
        self.flying.clear();
        let untimed = self.slots.iter();
        let untimed = untimed.filter(|(_, slot)| slot.untimed.is_some());
        for sequence in untimed.map(|(&id, _)| id).collect::<Vec<_>>() {
            self.has_first_token(sequence, at);
        }
        for run in entries.chunk_by(|a, b| a.sequence == b.sequence) {
            let Some(sequence) = run.first().map(|entry| entry.sequence) else {
                continue;
            };
            let slot = self.slots.get_mut(&sequence);
            if let Some((prompt, surplus)) = slot.and_then(SlotWork::prompt) {
                prompt.submitted(run, surplus);
                if !self.flying.contains(&sequence) {
                    self.flying.push(sequence);
                }
            }
        }
    }

    /// So many entries of the batch came from the prefix store.
    pub(super) fn loaded(&mut self, sequence: SequenceId, tokens: i32) {
        let slot = self.slots.get_mut(&sequence);
        if let Some((prompt, _)) = slot.and_then(SlotWork::prompt) {
            prompt.loaded(u64::try_from(tokens).unwrap_or(0));
        }
    }

    pub(super) fn evaluated(&mut self, failed: bool, at: Stamp, now: Now) {
        for sequence in std::mem::take(&mut self.flying) {
            let slot = self.slots.get_mut(&sequence);
            let ended = slot
                .and_then(SlotWork::prompt)
                .and_then(|(prompt, surplus)| prompt.evaluated(failed, at, surplus));
            if let Some((taken, at)) = ended {
                self.ended(sequence, taken, at, now);
            }
        }
    }

    pub(super) fn answered(
        &mut self,
        arrival: Arrival,
        id: Option<&RequestId>,
        at: Stamp,
        now: Now,
    ) {
        self.counts.finished += 1;
        let of_it: Vec<SequenceId> = self
            .slots
            .iter()
            .filter(|(_, slot)| {
                let launch = slot.launch.as_ref();
                launch.is_some_and(|launch| launch.arrival == Some(arrival) && launch.busy)
            })
            .map(|(&sequence, _)| sequence)
            .collect();
        for sequence in of_it {
            self.end_prompt(sequence, now);
            self.has_first_token(sequence, at);
            let slot = self.slots.get_mut(&sequence);
            if let Some(launch) = slot.and_then(|slot| slot.launch.as_mut()) {
                launch.busy = false;
            }
        }
        let Some(mut work) = self.works.remove(&arrival) else {
            return;
        };
        work.id = work.id.or(id.cloned());
        for task in &work.tasks {
            self.tasks.remove(task);
        }
        if let Some(entry) = work.entry {
            let first_token = work.first_token();
            self.evaluations.ended(entry, first_token, now.unix_ms);
        }
        self.output.lines.push(work.line(at, now));
    }
}
