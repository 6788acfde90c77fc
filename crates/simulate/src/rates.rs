//! How fast the recorded server was.

use contextpilot_traffic::{RequestRecord, Traffic};

/// How fast the recorded server evaluated and generated tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Microseconds for each evaluated token of a prompt.
    pub prompt_token: f64,
    /// Microseconds for each generated token.
    pub answer_token: f64,
}

impl Rates {
    /// The average rates of a recording.
    #[must_use]
    pub fn of(traffic: &Traffic) -> Self {
        let rate = |time: u64, tokens: u64| match tokens {
            0 => 0.0,
            tokens => time as f64 / tokens as f64,
        };
        let served = || traffic.requests.iter().filter(|r| !r.record.child);
        let sum = |of: fn(&RequestRecord) -> u64| served().map(|r| of(&r.record)).sum();
        let prompts = sum(|r| r.prompted.saturating_sub(r.launched));
        let answers = sum(|r| r.ended.saturating_sub(r.prompted));
        Self {
            prompt_token: rate(prompts, sum(|r| u64::from(r.evaluated))),
            answer_token: rate(answers, served().map(|r| u64::from(r.generated())).sum()),
        }
    }

    /// The time to evaluate `tokens` tokens of a request's prompt, microseconds. It is the request's own
    /// recorded rate if that evaluated 64 tokens or more, or just as many; else the average rate.
    pub(crate) fn prompt_time(&self, record: &RequestRecord, tokens: u32) -> u64 {
        const ENOUGH: u32 = 64;
        let took = record.prompted.saturating_sub(record.launched);
        let rate = match record.evaluated {
            0..ENOUGH if record.evaluated != tokens => self.prompt_token,
            0 => self.prompt_token,
            evaluated => took as f64 / f64::from(evaluated),
        };
        (rate * f64::from(tokens)).round() as u64
    }
}
