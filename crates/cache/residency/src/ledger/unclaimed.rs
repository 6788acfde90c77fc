//! Evaluations that may belong to any of several requests.
//!
//! Where requests are tied to slots by their prompts, and two requests wait with the same prompt, an
//! evaluation of it may belong to either. A *stand-in* takes the request's place: it is launched and
//! marked like a request, but has no facts. A request that claims the evaluation later gets a mark
//! where the stand-in's mark is. If that mark was lost meanwhile, the request is evicted. All of
//! these requests name the same LoRA adapters ([`Ledger::are_alike`]), and so does the stand-in.

use super::Ledger;
use crate::adapters::Named;
use crate::evaluations::Evaluation;
use crate::fact::{Fact, Place, Reason};
use crate::ids::{EvaluationId, SequenceId, TaskId};
use crate::requests::{Label, MarkKind, RequestKey};

impl Ledger {
    /// The state of an unclaimed evaluation. `None`: the number is unknown, or the evaluation is
    /// closed and over.
    #[must_use]
    pub fn evaluation(&self, evaluation: EvaluationId) -> Option<Evaluation> {
        self.evaluations.state(evaluation)
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
        self.evaluations.begin(evaluation, stand_in);
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
        match self.evaluations.state(evaluation) {
            Some(Evaluation::Running) => self.evaluations.claim(evaluation, (name, named)),
            Some(Evaluation::Cached) => self.join_unclaimed(evaluation, name, named, facts),
            Some(Evaluation::Lost(reason, place)) => self.end(name, reason, place, facts),
            Some(Evaluation::Failed) | None => self.fail(name, facts),
        }
    }

    pub(super) fn close_claims(&mut self, evaluation: EvaluationId, facts: &mut Vec<Fact>) {
        if let Some(jobs) = &mut self.jobs {
            jobs.claims_closed(evaluation, facts);
        }
        if let Some(stand_in) = self.evaluations.close(evaluation) {
            self.forget(stand_in);
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
        let Some(claims) = self.evaluations.cached(evaluation, id, tokens) else {
            return;
        };
        for (name, named) in claims {
            self.join_unclaimed(evaluation, name, named, facts);
        }
        self.forget_if_closed(evaluation);
    }

    /// The slot took another task before the prompt was evaluated.
    pub(super) fn fail_unclaimed(&mut self, evaluation: EvaluationId, facts: &mut Vec<Fact>) {
        let Some(claims) = self.evaluations.failed(evaluation) else {
            return;
        };
        for (name, _) in claims {
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
        if let Some((stand_in, claims)) = self.evaluations.lost(evaluation, reason, place) {
            self.forget(stand_in);
            for (name, _) in claims {
                self.end(name, reason, place, facts);
            }
            self.forget_if_closed(evaluation);
        }
    }

    fn forget_if_closed(&mut self, evaluation: EvaluationId) {
        if let Some(stand_in) = self.evaluations.forget_if_closed(evaluation) {
            self.forget(stand_in);
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
        let Some((stand_in, (sequence, tokens))) = self.evaluations.settled(evaluation) else {
            return;
        };
        let (Some(other), Some(request)) = (self.requests.get(stand_in), self.requests.get(name))
        else {
            return;
        };
        let Some(mark) = other.mark(0) else { return };
        let nth = request.marks().len();
        let id = request.id.clone();
        let mut remainder = other.remainder(0).cloned();
        let kind = match remainder {
            Some(_) => MarkKind::Enough,
            None => MarkKind::Whole,
        };
        let label = |kind| Label::new(name, nth, kind);
        let mark = self.tree.mark_beside(mark, label(kind));
        if let Some(end) = remainder
            .as_mut()
            .and_then(|remainder| remainder.end.as_mut())
        {
            *end = self.tree.mark_beside(*end, label(MarkKind::End));
        }
        self.requests.push_mark(name, mark, remainder);
        self.watch_beside(stand_in, (name, nth));
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
