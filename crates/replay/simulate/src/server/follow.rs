//! What the recorded server did, in its own order.
//!
//! With many clients, who asks first decides who gets a slot that still has its session. A recording has when each request was
//! launched and when its last token was evaluated, and in which slot, so at the recorded setting nothing of that needs to
//! be simulated: what is left are the rules by which content is kept, exchanged with the host prompt cache and reused.

use super::{Coming, Pause, Phase, SimulatedServer};

/// Requests that are launched within so long are launched before the same batch, microseconds: no batch with a prompt is
/// evaluated faster.
const TURN: u64 = 1000;

/// What happened. Of what happened at the same time, ends come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Moment {
    /// The last token of a request was evaluated.
    Ended(usize),
    Change(usize),
    /// A job was launched.
    Launched(usize),
}

impl SimulatedServer<'_> {
    /// All that was recorded, in the order in which it happened.
    pub(crate) fn follow(&mut self) {
        self.ahead.clear();
        self.after.iter_mut().for_each(Vec::clear);
        self.next_sessions.clear();
        let mut last = 0;
        for (time, _, moment) in self.moments() {
            let is_launch = matches!(moment, Moment::Launched(_));
            if !is_launch || time.saturating_sub(last) > TURN || self.has_evaluated(time) {
                self.load();
            }
            last = time;
            self.now = time;
            match moment {
                Moment::Ended(request) => self.end(request),
                Moment::Change(change) => _ = self.change(change),
                Moment::Launched(job) => self.launch(job, time),
            }
        }
        self.load();
    }

    /// When, the number of the launch, and what.
    fn moments(&self) -> Vec<(u64, u64, Moment)> {
        let requests = self.traffic.requests.iter().enumerate();
        let ends = requests.map(|(nth, request)| (request.record.ended, 0, Moment::Ended(nth)));
        let changes = self.traffic.changes.iter().enumerate();
        let changes = changes.map(|(nth, change)| (change.record.at, 0, Moment::Change(nth)));
        let jobs = self.jobs.iter().enumerate();
        let launches = jobs.map(|(nth, job)| {
            let record = &self.traffic.requests[job.request].record;
            (record.launched, record.order, Moment::Launched(nth))
        });
        let mut all: Vec<_> = ends.chain(changes).chain(launches).collect();
        all.sort_unstable_by_key(|&(time, order, moment)| {
            let is_launch = matches!(moment, Moment::Launched(_));
            (time, is_launch, order, moment)
        });
        all
    }

    /// Whether one of the prompts of which nothing is evaluated yet was, in the recording, before this time.
    fn has_evaluated(&self, time: u64) -> bool {
        let mut fresh = self.fresh.iter();
        fresh.any(|&nth| {
            let job = self.slots[nth].job;
            job.is_some_and(|job| self.request(job).record.prompted <= time)
        })
    }

    fn launch(&mut self, job: usize, time: u64) {
        let record = &self.request(job).record;
        self.arrived[job] = record.arrived;
        let slot = record.slot as usize;
        if slot < self.slots.len() {
            // It had ended, whatever else was recorded of it.
            if self.slots[slot].job.is_some() {
                self.load();
                self.let_go(slot);
            }
            self.forced = Some(slot);
        }
        self.take_on(job);
        self.forced = None;
        for answer in self.jobs[job].requests() {
            if let Some(outcome) = &mut self.outcomes[answer] {
                outcome.launched = time;
            }
        }
    }

    fn end(&mut self, request: usize) {
        let Some(outcome) = self.outcomes[request] else {
            return;
        };
        let nth = outcome.slot as usize;
        let job = self.slots[nth].job;
        if job.is_some_and(|job| self.jobs[job].requests().any(|of_job| of_job == request)) {
            self.let_go(nth);
        }
    }

    fn let_go(&mut self, nth: usize) {
        self.slots[nth].phase = Phase::Answer { left: 0, step: 0 };
        if let Some(Coming::Job(job)) = self.release(nth, Pause::Is(0)) {
            self.queue.push_back(Coming::Job(job));
        }
    }
}
