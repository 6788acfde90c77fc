//! The simulation of one setting.

use contextpilot_traffic::Traffic;

use crate::point::Point;
use crate::rates::Rates;
use crate::server::Server;
use crate::setting::Setting;
use crate::sizes::Sizes;
use crate::timeline::Timeline;

/// Simulates a server with this setting under the recorded traffic. Of several settings, a [`Replay`] does it in half of
/// the time.
#[must_use]
pub fn simulate(traffic: &Traffic, setting: &Setting) -> Point {
    Replay::of(traffic).simulate(setting)
}

/// Recorded traffic, with what each simulation of it needs.
#[derive(Debug)]
pub struct Replay<'a> {
    traffic: &'a Traffic,
    sizes: Sizes,
    rates: Rates,
    timeline: Timeline,
}

impl<'a> Replay<'a> {
    /// Of a recording.
    #[must_use]
    pub fn of(traffic: &'a Traffic) -> Self {
        Self {
            traffic,
            sizes: Sizes::new(&traffic.sizes),
            rates: Rates::of(traffic),
            timeline: Timeline::of(traffic),
        }
    }

    /// Simulates a server with this setting.
    #[must_use]
    pub fn simulate(&self, setting: &Setting) -> Point {
        point(self, setting)
    }
}

fn point(replay: &Replay<'_>, setting: &Setting) -> Point {
    let Replay {
        traffic,
        ref sizes,
        rates,
        ref timeline,
    } = *replay;
    let mut server = Server::new(traffic, timeline, setting, sizes, rates);
    server.run();
    let host_bytes = server.host.as_ref().map_or(0, |host| host.peak);
    let store = server.store.as_ref();
    let (store_bytes, store_seconds) =
        store.map_or((0, 0.0), |store| (store.peak, store.seconds()));
    let outcomes = server.outcomes;
    let mut point = Point {
        setting: setting.clone(),
        prompt_tokens: 0,
        reused_tokens: 0,
        loaded_tokens: 0,
        evaluated_tokens: 0,
        prompt_seconds: 0.0,
        store_seconds,
        waited_seconds: 0.0,
        refused: 0,
        too_many_answers: 0,
        context_bytes: sizes.state(setting.context),
        host_bytes,
        store_bytes,
        outcomes: Vec::new(),
    };
    for (request, outcome) in traffic.requests.iter().zip(&outcomes) {
        if request.record.child {
            continue;
        }
        let Some(outcome) = outcome else {
            point.refused += 1;
            // What is not too long was refused for this.
            point.too_many_answers += u64::from(request.record.prompt < setting.slot_context);
            continue;
        };
        point.prompt_tokens += u64::from(request.record.prompt);
        point.reused_tokens += u64::from(outcome.reused);
        point.loaded_tokens += u64::from(outcome.loaded);
        point.evaluated_tokens += u64::from(outcome.evaluated);
        point.waited_seconds += (outcome.launched - outcome.arrived) as f64 / 1e6;
    }
    point.prompt_seconds = rates.prompt_token * point.evaluated_tokens as f64 / 1e6;
    point.outcomes = outcomes;
    point
}
