//! What comes of a setting.

use contextpilot_traffic::{RequestRecord, Traffic};

use crate::server::Server;
use crate::setting::Setting;
use crate::sizes::Sizes;
use crate::timeline::Timeline;

/// What became of a request. Times are microseconds since the recording began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The slot that served it.
    pub slot: u32,
    /// Tokens of its prompt that were reused.
    pub reused: u32,
    /// Tokens of its prompt that were evaluated.
    pub evaluated: u32,
    /// When it came.
    pub arrived: u64,
    /// When a slot took it on.
    pub launched: u64,
    /// When it was answered.
    pub ended: u64,
}

/// A setting, and what comes of it.
#[derive(Clone, Debug)]
pub struct Point {
    /// The setting.
    pub setting: Setting,
    /// By request; `None`: the server would have refused it, since it does not fit into a slot.
    pub outcomes: Vec<Option<Outcome>>,
    /// Tokens in prompts that were served. Further answers to one prompt (`n`) are not counted.
    pub prompt_tokens: u64,
    /// Of these, reused.
    pub reused_tokens: u64,
    /// Of these, evaluated.
    pub evaluated_tokens: u64,
    /// What evaluating them takes.
    pub prompt_seconds: f64,
    /// Requests that waited for a slot, in all.
    pub waited_seconds: f64,
    /// Requests that were refused.
    pub refused: u64,
    /// Bytes of the context, and the most that the host cache held. 0: nothing is known of sizes.
    pub context_bytes: u64,
    /// See there.
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

/// How fast the recorded server was.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Microseconds for each evaluated token of a prompt.
    pub prompt_token: f64,
    /// Microseconds for each generated token.
    pub answer_token: f64,
}

impl Rates {
    /// All that was recorded, together.
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

    /// Microseconds for so many tokens of a prompt: at the rate of that request where it tells one.
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

/// Plays the traffic to a server of this setting.
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
