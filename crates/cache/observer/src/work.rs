//! Requests under way.

use std::sync::Arc;

use contextpilot_control::{Evaluation, Evicted, LogLine, Outcome, Sections, Timestamp, Title};
use contextpilot_request::Sent;
use contextpilot_residency::{Account, RequestId, TokenCounts, Wishes};

use crate::evaluations::evaluation;
use crate::names::MOST_NAMED;
use crate::note::{Now, Stamp, Took};

/// A request for inference that is not answered yet.
#[derive(Debug, Default)]
pub(crate) struct Work {
    pub(crate) id: Option<RequestId>,
    pub(crate) received: Stamp,
    /// When it was answered, or its client left.
    pub(crate) ended: Stamp,
    /// How many tasks it posted.
    pub(crate) tasks: u32,
    pub(crate) slot: Option<i32>,
    pub(crate) wishes: Wishes,
    pub(crate) sections: Option<Sections>,
    /// The tokens of its only prompt.
    pub(crate) prompt_tokens: Option<u32>,
    /// The title. It is not for the log file, which others may read.
    pub(crate) title: Option<Arc<Title>>,
    /// Which dates and numbers it has.
    pub(crate) sent: Option<Arc<Sent>>,
    /// Tokens of its prompts that were kept as they were generated.
    pub(crate) kept: u64,
    /// Its entry in [`Evaluations`](crate::evaluations::Evaluations).
    pub(crate) entry: Option<u64>,
    evaluation: Option<Box<Evaluation>>,
    took: Took,
    /// The largest number of evaluated tokens of one of its prompts.
    most: u64,
    prompts: u32,
    taken: TokenCounts,
    first_token: Option<f64>,
    evicted: Vec<Evicted>,
}

impl Work {
    /// Counts one of its prompts that has been evaluated. Returns the seconds since its receipt.
    pub(crate) fn completed(&mut self, taken: TokenCounts, at: Stamp) -> Option<f64> {
        self.prompts += 1;
        self.taken.add(taken);
        let seconds = at.seconds_since(self.received);
        if self.first_token.is_none() {
            self.first_token = seconds;
        }
        seconds
    }

    /// One of its prompts was evaluated up to here when its client left.
    pub(crate) fn gave_up(&mut self, taken: TokenCounts) {
        self.taken.add(taken);
    }

    /// A further answer to one of its prompts took that over.
    pub(crate) fn took_over(&mut self) {
        self.prompts += 1;
    }

    /// Seconds from its receipt to the end of the evaluation of its first prompt.
    pub(crate) fn first_token(&self) -> Option<f64> {
        self.first_token
    }

    /// One of its prompts was launched, and had been evaluated, then.
    pub(crate) fn took(&mut self, since: Stamp, until: Stamp) {
        let seconds = self.took.add(since, until);
        if let Some(evaluation) = &mut self.evaluation {
            evaluation.seconds = seconds;
        }
    }

    /// Adds why one of its prompts was evaluated.
    pub(crate) fn accounted(&mut self, account: &Account, entry: u64) {
        self.entry = Some(entry);
        let evaluation = evaluation(account);
        let is_largest = account.evaluated > self.most;
        self.most = self.most.max(account.evaluated);
        let all = match &mut self.evaluation {
            Some(all) => {
                all.add(evaluation, is_largest);
                all
            }
            None => self.evaluation.insert(Box::new(evaluation)),
        };
        all.kept = self.kept;
    }

    pub(crate) fn pushed_out(&mut self, evicted: Evicted) {
        if self.evicted.len() < MOST_NAMED {
            self.evicted.push(evicted);
        }
    }

    pub(crate) fn line(self, now: Now) -> LogLine {
        let complete = self.prompts > 0 && self.prompts >= self.tasks;
        LogLine {
            at: Timestamp::from_unix_ms(now.unix_ms),
            id: self.id.as_deref().map(str::to_owned),
            outcome: if complete {
                Outcome::Answered
            } else {
                Outcome::Unfinished
            },
            slot: self.slot,
            prompts: self.prompts,
            prompt_tokens: self.taken.tokens,
            reused: self.taken.reused,
            evaluated: self.taken.evaluated,
            time_to_first_token_seconds: self.first_token,
            total_seconds: self.ended.seconds_since(self.received).unwrap_or(0.0),
            evicted: self.evicted,
            evaluation: self.evaluation,
            sections: self.sections,
        }
    }
}
