//! Evaluations that may belong to any of several requests.

use super::*;

pub(super) struct Unclaimed {
    /// The stand-in for the request that this evaluation belongs to.
    serial: Serial,
    state: State,
    /// No further task will claim it.
    closed: bool,
}

/// The request that claims an evaluation, and the adapters that its task names.
type Claim = (Serial, Option<Vec<(i32, Scale)>>);

enum State {
    /// The prompt is not evaluated yet. The claims so far.
    Running(Vec<Claim>),
    /// The prompt was evaluated: the slot, and the length of the prompt in tokens.
    Cached(SequenceId, u32),
    /// The prompt is no longer cached.
    Lost(Reason, Place),
    /// The task ended without its prompt having been evaluated.
    Failed,
}

impl Naive {
    pub(super) fn launch_unclaimed(
        &mut self,
        id: SequenceId,
        evaluation: EvaluationId,
        likely: TaskId,
    ) {
        self.launches = true;
        self.posted += 1;
        let stand_in = Request {
            id: "".into(),
            arrival: Arrival(u64::MAX),
            evaluation: Some(evaluation),
            waiting: Vec::new(),
            running: 1,
            launched: true,
            failed: false,
            answered: false,
            prompts: Vec::new(),
            wants: Wants::Anything,
        };
        self.requests.insert(self.posted, stand_in);
        let unclaimed = Unclaimed {
            serial: self.posted,
            state: State::Running(Vec::new()),
            closed: false,
        };
        self.evaluations.insert(evaluation, unclaimed);
        let named = self.named.get(&likely).cloned();
        self.occupy(id, Some(self.posted), None, named);
    }

    pub(super) fn claim(&mut self, evaluation: EvaluationId, task: TaskId) {
        let named = self.named.remove(&task);
        let Some(serial) = self.tasks.remove(&task) else {
            return;
        };
        self.requests
            .get_mut(&serial)
            .expect("its task")
            .begin(task);
        let unclaimed = self.evaluations.get_mut(&evaluation);
        match unclaimed.map(|unclaimed| &mut unclaimed.state) {
            Some(State::Running(claims)) => claims.push((serial, named)),
            Some(&mut State::Cached(slot, tokens)) => {
                self.join(evaluation, (serial, named), (slot, tokens));
            }
            Some(&mut State::Lost(reason, place)) => self.end(serial, reason, place),
            Some(State::Failed) | None => self.fail(serial),
        }
    }

    /// A request gets the evaluated prompt of an evaluation that it has claimed.
    fn join(&mut self, evaluation: EvaluationId, claim: Claim, at: (SequenceId, u32)) {
        let stand_in = self.evaluations[&evaluation].serial;
        let (serial, named) = claim;
        let prompt = self.requests[&stand_in].prompts[0].clone();
        let Some(request) = self.requests.get_mut(&serial) else {
            return;
        };
        request.prompts.push(prompt);
        self.want_as_claimed(serial, stand_in, named);
        if self.is_found_whole(serial) {
            self.settle_prompt(serial, at);
        } else {
            self.end(serial, Reason::NeverCached, Place::Nowhere);
        }
    }

    pub(super) fn close_claims(&mut self, evaluation: EvaluationId) {
        if let Some(unclaimed) = self.evaluations.get_mut(&evaluation) {
            unclaimed.closed = true;
            self.forget_closed(evaluation);
        }
    }

    fn forget_closed(&mut self, evaluation: EvaluationId) {
        let Some(unclaimed) = self.evaluations.get(&evaluation) else {
            return;
        };
        if unclaimed.closed && !matches!(unclaimed.state, State::Running(_)) {
            let stand_in = unclaimed.serial;
            self.forget(stand_in);
            self.evaluations.remove(&evaluation);
        }
    }

    /// Changes the state of an evaluation. If it was running, returns its claims.
    fn turn(&mut self, evaluation: EvaluationId, state: State) -> Vec<Claim> {
        let Some(unclaimed) = self.evaluations.get_mut(&evaluation) else {
            return Vec::new();
        };
        match std::mem::replace(&mut unclaimed.state, state) {
            State::Running(claims) => claims,
            _ => Vec::new(),
        }
    }

    pub(super) fn settle_unclaimed(&mut self, evaluation: EvaluationId, at: (SequenceId, u32)) {
        for claim in self.turn(evaluation, State::Cached(at.0, at.1)) {
            self.join(evaluation, claim, at);
        }
        self.forget_closed(evaluation);
    }

    pub(super) fn fail_unclaimed(&mut self, evaluation: EvaluationId) {
        for (serial, _) in self.turn(evaluation, State::Failed) {
            self.fail(serial);
        }
        self.forget_closed(evaluation);
    }

    pub(super) fn lose_unclaimed(
        &mut self,
        evaluation: EvaluationId,
        reason: Reason,
        place: Place,
    ) {
        for (serial, _) in self.turn(evaluation, State::Lost(reason, place)) {
            self.end(serial, reason, place);
        }
        self.forget_closed(evaluation);
    }
}
