//! How fast the recorded server was.

use contextpilot_traffic::{RequestRecord, Traffic};

use crate::times;

/// How fast the recorded server evaluated and generated tokens, on average.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Microseconds for each evaluated token of a prompt.
    pub prompt_token: f64,
    /// Microseconds for each generated token.
    pub answer_token: f64,
}

impl Rates {
    /// The average rates of a recording. Prompts that were evaluated in the same batches share the time.
    #[must_use]
    pub fn new(traffic: &Traffic) -> Self {
        let rate = |time: u64, tokens: u64| match tokens {
            0 => 0.0,
            tokens => time as f64 / tokens as f64,
        };
        let (prompts, tokens) = times::of_prompts(traffic);
        let served = || traffic.requests.iter().filter(|r| !r.record.child);
        let took = |r: &RequestRecord| r.ended.saturating_sub(r.prompted);
        let answers = served().map(|r| took(&r.record)).sum();
        Self {
            prompt_token: rate(prompts, tokens),
            answer_token: rate(answers, served().map(|r| u64::from(r.generated())).sum()),
        }
    }
}
