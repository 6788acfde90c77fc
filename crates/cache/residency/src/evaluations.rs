//! Evaluations that are not claimed yet, and how far each is.

use crate::adapters::Named;
use crate::fact::{Place, Reason};
use crate::ids::{EvaluationId, SequenceId};
use crate::requests::RequestKey;
use std::collections::BTreeMap;

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

/// A request that claimed an evaluation while it was running, and the adapters that it names.
pub(crate) type Claim = (RequestKey, Option<Named>);

/// All evaluations that may still be claimed, or are still running.
#[derive(Debug, Default)]
pub(crate) struct Evaluations(BTreeMap<EvaluationId, Unclaimed>);

/// An evaluation that is not claimed yet.
#[derive(Debug)]
struct Unclaimed {
    stand_in: RequestKey,
    state: Evaluation,
    /// The slot in which the prompt was evaluated, and its length in tokens.
    settled: Option<(SequenceId, u32)>,
    claims: Vec<Claim>,
    /// No other task will claim the evaluation.
    closed: bool,
}

impl Evaluations {
    /// `None`: the number is unknown, or the evaluation is closed and over.
    pub(crate) fn state(&self, evaluation: EvaluationId) -> Option<Evaluation> {
        self.0.get(&evaluation).map(|unclaimed| unclaimed.state)
    }

    /// The stand-in of an evaluation, and where the prompt was evaluated.
    pub(crate) fn settled(
        &self,
        evaluation: EvaluationId,
    ) -> Option<(RequestKey, (SequenceId, u32))> {
        let unclaimed = self.0.get(&evaluation)?;
        Some((unclaimed.stand_in, unclaimed.settled?))
    }

    pub(crate) fn begin(&mut self, evaluation: EvaluationId, stand_in: RequestKey) {
        let unclaimed = Unclaimed {
            stand_in,
            state: Evaluation::Running,
            settled: None,
            claims: Vec::new(),
            closed: false,
        };
        self.0.insert(evaluation, unclaimed);
    }

    /// A request claims an evaluation that is still running.
    pub(crate) fn claim(&mut self, evaluation: EvaluationId, claim: Claim) {
        if let Some(unclaimed) = self.0.get_mut(&evaluation) {
            unclaimed.claims.push(claim);
        }
    }

    /// The prompt has been evaluated. Returns the claims on it; `None`: the number is unknown.
    pub(crate) fn cached(
        &mut self,
        evaluation: EvaluationId,
        sequence: SequenceId,
        tokens: u32,
    ) -> Option<Vec<Claim>> {
        let unclaimed = self.0.get_mut(&evaluation)?;
        unclaimed.settled = Some((sequence, tokens));
        Some(unclaimed.turn(Evaluation::Cached))
    }

    /// The slot took another task before the prompt was evaluated. Returns the claims on it.
    pub(crate) fn failed(&mut self, evaluation: EvaluationId) -> Option<Vec<Claim>> {
        let unclaimed = self.0.get_mut(&evaluation)?;
        Some(unclaimed.turn(Evaluation::Failed))
    }

    /// The evaluated prompt is no longer cached. Returns its stand-in, and the claims on it.
    pub(crate) fn lost(
        &mut self,
        evaluation: EvaluationId,
        reason: Reason,
        place: Place,
    ) -> Option<(RequestKey, Vec<Claim>)> {
        let unclaimed = self.0.get_mut(&evaluation)?;
        let claims = unclaimed.turn(Evaluation::Lost(reason, place));
        Some((unclaimed.stand_in, claims))
    }

    /// No other task will claim an evaluation. If it is over, it is forgotten: returns its stand-in.
    pub(crate) fn close(&mut self, evaluation: EvaluationId) -> Option<RequestKey> {
        let unclaimed = self.0.get_mut(&evaluation)?;
        unclaimed.closed = true;
        match unclaimed.state {
            Evaluation::Running => None,
            _ => self.forget_if_closed(evaluation),
        }
    }

    /// Forgets an evaluation that is over if no other task will claim it: returns its stand-in.
    pub(crate) fn forget_if_closed(&mut self, evaluation: EvaluationId) -> Option<RequestKey> {
        let closed = self.0.get(&evaluation)?.closed;
        closed
            .then(|| self.0.remove(&evaluation))?
            .map(|unclaimed| unclaimed.stand_in)
    }
}

impl Unclaimed {
    fn turn(&mut self, state: Evaluation) -> Vec<Claim> {
        self.state = state;
        std::mem::take(&mut self.claims)
    }
}
