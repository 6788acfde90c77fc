//! Evaluations that may belong to any of several requests.
//!
//! Where requests are tied to slots by their prompts, and two requests wait with the same prompt, an
//! evaluation of it may belong to either. A *stand-in* takes the request's place: it is launched and
//! marked like a request, but has no facts. A request that claims the evaluation later gets a mark
//! where the stand-in's mark is. If that mark was lost meanwhile, the request is evicted. All of
//! these requests name the same LoRA adapters ([`Ledger::are_alike`]), and so does the stand-in.

use super::*;
use crate::adapters::Named;

/// How far an unclaimed evaluation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evaluation {
    /// The prompt is being evaluated.
    Running,
    /// The prompt is cached, in a slot or in host memory.
    Cached,
    /// The prompt is no longer cached: why, and where it was last.
    Lost(Reason, Place),
    /// The slot was given to another task before the prompt was evaluated.
    Failed,
}

/// An evaluation that is not claimed yet.
#[derive(Debug)]
pub(super) struct Unclaimed {
    stand_in: RequestKey,
    state: Evaluation,
    /// The slot in which the prompt was evaluated, and its length in tokens.
    settled: Option<(SequenceId, u32)>,
    /// Requests that claimed the evaluation while it was running, and the adapters that they name.
    claims: Vec<(RequestKey, Option<Named>)>,
    /// No other task will claim the evaluation.
    closed: bool,
}

impl Ledger {
    /// The state of an unclaimed evaluation. `None`: the number is unknown, or the evaluation is
    /// closed and over.
    #[must_use]
    pub fn evaluation(&self, evaluation: EvaluationId) -> Option<Evaluation> {
        let unclaimed = self.unclaimed.get(&evaluation);
        unclaimed.map(|unclaimed| unclaimed.state)
    }

    pub(super) fn launched_unclaimed(
        &mut self,
        id: SequenceId,
        evaluation: EvaluationId,
        likely: TaskId,
        facts: &mut Vec<Fact>,
    ) {
        if let Some(jobs) = &mut self.jobs {
            jobs.launched(id, likely, Some(evaluation), facts);
        }
        self.launches = true;
        let stand_in = self.requests.stand_in(evaluation);
        let unclaimed = Unclaimed {
            stand_in,
            state: Evaluation::Running,
            settled: None,
            claims: Vec::new(),
            closed: false,
        };
        self.unclaimed.insert(evaluation, unclaimed);
        let named = self.adapters.named(likely).cloned();
        self.begin(id, Some(stand_in), None, named, facts);
    }

    pub(super) fn claimed(
        &mut self,
        evaluation: EvaluationId,
        task: TaskId,
        facts: &mut Vec<Fact>,
    ) {
        if let Some(jobs) = &mut self.jobs {
            jobs.claimed(evaluation, task, facts);
        }
        let named = self.adapters.take_named(task);
        let Some(name) = self.requests.launch(task) else {
            return;
        };
        match self.unclaimed.get_mut(&evaluation) {
            Some(unclaimed) => match unclaimed.state {
                Evaluation::Running => unclaimed.claims.push((name, named)),
                Evaluation::Cached => self.join_unclaimed(evaluation, name, named, facts),
                Evaluation::Lost(reason, place) => self.end(name, reason, place, facts),
                Evaluation::Failed => self.fail(name, facts),
            },
            None => self.fail(name, facts),
        }
    }

    pub(super) fn close_claims(&mut self, evaluation: EvaluationId, facts: &mut Vec<Fact>) {
        if let Some(jobs) = &mut self.jobs {
            jobs.claims_closed(evaluation, facts);
        }
        let Some(unclaimed) = self.unclaimed.get_mut(&evaluation) else {
            return;
        };
        unclaimed.closed = true;
        if unclaimed.state != Evaluation::Running {
            self.forget_unclaimed(evaluation);
        }
    }

    /// The prompt has been evaluated, and the stand-in has its mark.
    pub(super) fn settle_unclaimed(
        &mut self,
        evaluation: EvaluationId,
        id: SequenceId,
        tokens: u32,
        facts: &mut Vec<Fact>,
    ) {
        let Some(unclaimed) = self.unclaimed.get_mut(&evaluation) else {
            return;
        };
        unclaimed.state = Evaluation::Cached;
        unclaimed.settled = Some((id, tokens));
        for (name, named) in std::mem::take(&mut unclaimed.claims) {
            self.join_unclaimed(evaluation, name, named, facts);
        }
        self.forget_if_closed(evaluation);
    }

    /// The slot took another task before the prompt was evaluated.
    pub(super) fn fail_unclaimed(&mut self, evaluation: EvaluationId, facts: &mut Vec<Fact>) {
        let Some(unclaimed) = self.unclaimed.get_mut(&evaluation) else {
            return;
        };
        unclaimed.state = Evaluation::Failed;
        for (name, _) in std::mem::take(&mut unclaimed.claims) {
            self.fail(name, facts);
        }
        self.forget_if_closed(evaluation);
    }

    /// The evaluated prompt is no longer cached. Requests that claimed the evaluation while the
    /// prompt was cached are not handled here: they have marks of their own.
    pub(super) fn lose_unclaimed(
        &mut self,
        evaluation: EvaluationId,
        reason: Reason,
        place: Place,
        facts: &mut Vec<Fact>,
    ) {
        if let Some(unclaimed) = self.unclaimed.get_mut(&evaluation) {
            unclaimed.state = Evaluation::Lost(reason, place);
            let stand_in = unclaimed.stand_in;
            let claims = std::mem::take(&mut unclaimed.claims);
            self.forget(stand_in);
            for (name, _) in claims {
                self.end(name, reason, place, facts);
            }
            self.forget_if_closed(evaluation);
        }
    }

    fn forget_if_closed(&mut self, evaluation: EvaluationId) {
        let unclaimed = self.unclaimed.get(&evaluation);
        if unclaimed.is_some_and(|unclaimed| unclaimed.closed) {
            self.forget_unclaimed(evaluation);
        }
    }

    fn forget_unclaimed(&mut self, evaluation: EvaluationId) {
        if let Some(unclaimed) = self.unclaimed.remove(&evaluation) {
            self.forget(unclaimed.stand_in);
        }
    }

    /// Gives a request that claimed the evaluation a mark where the stand-in's mark is.
    fn join_unclaimed(
        &mut self,
        evaluation: EvaluationId,
        name: RequestKey,
        named: Option<Named>,
        facts: &mut Vec<Fact>,
    ) {
        let Some(unclaimed) = self.unclaimed.get(&evaluation) else {
            return;
        };
        let (stand_in, settled) = (unclaimed.stand_in, unclaimed.settled);
        let marks = self.requests.get(stand_in).map(|request| &request.marks);
        let mark = marks.and_then(|marks| marks.first().copied().flatten());
        let (Some(mark), Some((sequence, tokens)), Some(request)) =
            (mark, settled, self.requests.get_mut(name))
        else {
            return;
        };
        let nth = request.marks.len();
        let label = Label { request: name, nth };
        request.marks.push(Some(self.tree.mark_beside(mark, label)));
        let id = request.id.clone();
        let other = Label {
            request: stand_in,
            nth: 0,
        };
        self.watch_beside(other, label);
        self.want_as_claimed(name, stand_in, named);
        if !self.is_wholly_served(name) {
            self.end(name, Reason::NeverCached, Place::Nowhere, facts);
            return;
        }
        if self.requests.settle(name) {
            facts.push(Fact::Cached {
                id,
                sequence,
                tokens,
            });
        }
    }
}
