//! Finds out which request an evaluation belongs to, where several requests wait with equal prompts.
//!
//! The server evaluates the prompt of each request once, but not in the order of arrival: a request
//! that waits for a busy slot is overtaken by later ones. (In the servers of 2025 every request that
//! had to wait goes to the end of the queue.) So when a slot holds a prompt that several requests
//! wait with, the evaluation belongs to one of them. Which one becomes known later:
//!
//! * A request that was served has been evaluated. It claims the oldest evaluation that was begun
//!   while it waited. Why the oldest: a slot that has lost the prompt since has finished its request,
//!   so that request's answer comes first. Slots with later evaluations may still be generating.
//! * When there are as many evaluations as waiting requests, all of these requests have been
//!   evaluated. Which evaluation belongs to which request does not matter any more.
//! * A request that left (its client went away, or the server refused it) may have been evaluated or
//!   not. If its prompt is cached, the request counts as cached: it claims that evaluation, and
//!   others may claim it too. From then on one evaluation may belong to a request that is gone, so
//!   counting proves nothing: these evaluations are *doubtful*. A request that is served while it
//!   waits for doubtful ones claims any that is cached.
//!
//! Until a request has claimed an evaluation, it counts as on its way and has no facts.

use crate::evaluations::Evaluation;
use crate::event::Event;
use crate::ids::{EvaluationId, TaskId};
use crate::ledger::Ledger;

/// Evaluations that may be open at a time. A prompt beyond that is not tied. A server has a few for
/// each slot: the one that runs, and those whose answers are about to be sent.
const MOST_OPEN: usize = 256;

/// The open evaluations: those that may still be claimed.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// The number of the last evaluation.
    opened: u64,
    /// The oldest first.
    open: Vec<Open>,
}

#[derive(Debug)]
struct Open {
    evaluation: EvaluationId,
    /// The waiting tasks that the evaluation may belong to, the oldest first.
    tasks: Vec<TaskId>,
    /// The evaluation may belong to a request that no longer waits.
    doubtful: bool,
}

impl Claims {
    /// Without open evaluations, but the numbers go on: none is used twice.
    pub(super) fn renewed(&self) -> Self {
        Self {
            opened: self.opened,
            open: Vec::new(),
        }
    }

    /// Opens an evaluation of a prompt that these tasks wait with. `None`: too many evaluations are
    /// open.
    pub(super) fn open(&mut self, tasks: Vec<TaskId>, doubtful: bool) -> Option<EvaluationId> {
        if self.open.len() >= MOST_OPEN {
            return None;
        }
        self.opened += 1;
        let evaluation = EvaluationId(self.opened);
        self.open.push(Open {
            evaluation,
            tasks,
            doubtful,
        });
        Some(evaluation)
    }

    /// Whether an open evaluation may belong to this task.
    pub(super) fn may_have(&self, task: TaskId) -> bool {
        self.open.iter().any(|open| open.tasks.contains(&task))
    }

    /// The request of a task was served and no longer waits. Returns whether the task has claimed an
    /// evaluation.
    pub(super) fn served(
        &mut self,
        task: TaskId,
        ledger: &Ledger,
        events: &mut Vec<Event>,
    ) -> bool {
        let mut may_be = self.open.iter().filter(|open| open.tasks.contains(&task));
        if may_be.clone().any(|open| open.doubtful) {
            return self.left(task, ledger, events);
        }
        // If a later evaluation was in truth this task's, then the oldest one belongs to another
        // task that may claim either. That task will claim the later one.
        let claimed = may_be.next().map(|open| open.evaluation);
        if let Some(evaluation) = claimed {
            events.push(Event::Claimed { evaluation, task });
            self.close(|open| open.evaluation == evaluation, events);
        }
        self.forget(task);
        claimed.is_some()
    }

    /// The request of a task has left and no longer waits. Returns whether the task has claimed an
    /// evaluation.
    pub(super) fn left(&mut self, task: TaskId, ledger: &Ledger, events: &mut Vec<Event>) -> bool {
        let may_be = self.open.iter().filter(|open| open.tasks.contains(&task));
        let best = may_be.min_by_key(|open| match ledger.evaluation(open.evaluation) {
            Some(Evaluation::Cached) => 0,
            Some(Evaluation::Running) | None => 1,
            Some(Evaluation::Lost(..) | Evaluation::Failed) => 2,
        });
        let claimed = best.map(|open| open.evaluation);
        if let Some(evaluation) = claimed {
            events.push(Event::Claimed { evaluation, task });
        }
        for open in &mut self.open {
            open.doubtful |= open.tasks.contains(&task);
        }
        self.forget(task);
        claimed.is_some()
    }

    fn forget(&mut self, task: TaskId) {
        for open in &mut self.open {
            open.tasks.retain(|other| *other != task);
        }
    }

    /// Makes the claims that follow from the number of evaluations. Returns the tasks that have
    /// claimed one: they no longer wait. Closes the evaluations that no task can claim.
    pub(super) fn settle(&mut self, ledger: &Ledger, events: &mut Vec<Event>) -> Vec<TaskId> {
        let failed = |open: &Open| ledger.evaluation(open.evaluation) == Some(Evaluation::Failed);
        self.close(failed, events);
        let mut bound = Vec::new();
        while let Some(tasks) = self.certain(ledger) {
            let members = self.open.iter().filter(|open| is_within(open, &tasks));
            let pairs = tasks.iter().zip(members);
            events.extend(pairs.map(|(&task, open)| Event::Claimed {
                evaluation: open.evaluation,
                task,
            }));
            self.close(|open| is_within(open, &tasks), events);
            tasks.iter().for_each(|&task| self.forget(task));
            bound.extend(tasks);
        }
        self.close(|open| open.tasks.is_empty(), events);
        bound
    }

    /// A set of tasks that have all been evaluated. Which evaluation is whose does not matter: the
    /// evaluated prompts are either all still cached or all lost.
    fn certain(&self, ledger: &Ledger) -> Option<Vec<TaskId>> {
        let all = self.open.iter().map(|open| &open.tasks);
        let few = all.filter(|tasks| (1..=self.open.len()).contains(&tasks.len()));
        let mut certain = few.filter(|tasks| {
            let members = || self.open.iter().filter(|open| is_within(open, tasks));
            let lost = members().filter(|open| is_lost(open, ledger)).count();
            let count = members().count();
            count >= tasks.len()
                && (lost == 0 || lost == count)
                && members().all(|open| !open.doubtful)
        });
        certain.next().cloned()
    }

    fn close(&mut self, which: impl Fn(&Open) -> bool, events: &mut Vec<Event>) {
        self.open.retain(|open| {
            let closes = which(open);
            if closes {
                let evaluation = open.evaluation;
                events.push(Event::ClaimsClosed { evaluation });
            }
            !closes
        });
    }
}

/// Whether an evaluation can belong to no other tasks than these.
fn is_within(open: &Open, tasks: &[TaskId]) -> bool {
    !open.tasks.is_empty() && open.tasks.iter().all(|task| tasks.contains(task))
}

fn is_lost(open: &Open, ledger: &Ledger) -> bool {
    let evaluation = ledger.evaluation(open.evaluation);
    matches!(evaluation, Some(Evaluation::Lost(..)))
}
