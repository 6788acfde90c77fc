//! What a simulation of one setting finds.

use contextpilot_traffic::{RequestRecord, Traffic};

use crate::server::Server;
use crate::setting::Setting;
use crate::sizes::Sizes;
use crate::timeline::Timeline;

/// How a request was served. Times are microseconds since the recording began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The slot that served it.
    pub slot: u32,
    /// Tokens of its prompt that were reused.
    pub reused: u32,
    /// Tokens of its prompt that were evaluated.
    pub evaluated: u32,
    /// When it arrived.
    pub arrived: u64,
    /// When a slot took it on.
    pub launched: u64,
    /// When its answer was complete.
    pub ended: u64,
}

/// A setting, and what the simulation of it found.
#[derive(Clone, Debug)]
pub struct Point {
    /// The setting.
    pub setting: Setting,
    /// For each request of the recording. `None`: the server would have refused it, because its prompt
    /// does not fit into a slot, or because it wants more answers (`n`) than there are slots.
    pub outcomes: Vec<Option<Outcome>>,
    /// Tokens in prompts that were served. Further answers to one prompt (`n`) are not counted.
    pub prompt_tokens: u64,
    /// Prompt tokens that were reused.
    pub reused_tokens: u64,
    /// Prompt tokens that were evaluated.
    pub evaluated_tokens: u64,
    /// The time that evaluating these takes, seconds.
    pub prompt_seconds: f64,
    /// The time from arrival to launch, summed over all requests, seconds.
    pub waited_seconds: f64,
    /// The number of refused requests. Further answers to one prompt are not counted.
    pub refused: u64,
    /// The size of a full context, bytes. 0: the recording has no sizes.
    pub context_bytes: u64,
    /// The most that the host prompt cache held, bytes. 0: it held nothing, or the recording has no sizes.
    pub host_bytes: u64,
}

impl Point {
    /// The share of prompt tokens that was reused, from 0 to 1.
    #[must_use]
    pub fn reused_share(&self) -> f64 {
        match self.prompt_tokens {
            0 => 0.0,
            tokens => self.reused_tokens as f64 / tokens as f64,
        }
    }
}

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

/// Simulates a server with this setting under the recorded traffic.
#[must_use]
pub fn simulate(traffic: &Traffic, setting: &Setting) -> Point {
    let sizes = Sizes::new(&traffic.sizes);
    let rates = Rates::of(traffic);
    let timeline = Timeline::of(traffic);
    let mut server = Server::new(traffic, &timeline, setting, &sizes, rates);
    server.run();
    let host_bytes = server.host.as_ref().map_or(0, |host| host.peak);
    let outcomes = server.outcomes;
    let mut point = Point {
        setting: setting.clone(),
        prompt_tokens: 0,
        reused_tokens: 0,
        evaluated_tokens: 0,
        prompt_seconds: 0.0,
        waited_seconds: 0.0,
        refused: 0,
        context_bytes: sizes.state(setting.context),
        host_bytes,
        outcomes: Vec::new(),
    };
    for (request, outcome) in traffic.requests.iter().zip(&outcomes) {
        if request.record.child {
            continue;
        }
        let Some(outcome) = outcome else {
            point.refused += 1;
            continue;
        };
        point.prompt_tokens += u64::from(request.record.prompt);
        point.reused_tokens += u64::from(outcome.reused);
        point.evaluated_tokens += u64::from(outcome.evaluated);
        point.waited_seconds += (outcome.launched - outcome.arrived) as f64 / 1e6;
    }
    point.prompt_seconds = rates.prompt_token * point.evaluated_tokens as f64 / 1e6;
    point.outcomes = outcomes;
    point
}
