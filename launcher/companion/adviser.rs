//! The one adviser: *these requests, with this change: what would have been evaluated?*
//!
//! `advise` and `why` ask it the same of the same simulator. Nothing is advised that was not replayed, or that did
//! not help all requests together.

use std::cell::OnceCell;
use std::fmt;
use std::time::Duration;

use contextpilot_client::Control;
use contextpilot_client::control::{Evaluated, Through};
use contextpilot_simulate::{
    Change, Client, Difference, Kind, Outcome, Point, Replay, Setting, Trials, continued,
    error_of_replay, put_right, without_swaps,
};
use contextpilot_traffic::{ChangeKind, Traffic, TrafficRequest, read};
use serde::Serialize;

use super::show::percent;
use super::simulate::many::Simulations;

/// Said wherever chunks would be moved.
const MOVES: &str = "answers may change, as what is moved was evaluated behind something else, and the \
                                prefix store keeps nothing of it";

/// Said with `--spm-infill`.
const SUFFIX_FIRST: &str = "answers may change, as the model reads what is behind the cursor first";

/// Said with `--swa-full`.
const WHOLE_WINDOWS: &str =
    "the layers with sliding windows keep all positions then, and the prefix store keeps nothing";

/// What is said with a change, and which flag it is that does that.
pub(super) fn caveat(change: &Change) -> Option<(&'static str, &'static str)> {
    match change.kind {
        _ if change.moves_chunks() => Some(("--cache-reuse", MOVES)),
        Kind::Infill => Some(("--spm-infill", SUFFIX_FIRST)),
        Kind::Windows => Some(("--swa-full", WHOLE_WINDOWS)),
        _ => None,
    }
}

/// Recorded traffic, with what was tried on it.
pub(super) struct Adviser {
    pub(super) traffic: Traffic,
    pub(super) recorded: Setting,
    trials: OnceCell<Trials>,
    /// The replay, had a router ended no process of the model.
    without_swaps: OnceCell<Point>,
}

/// Why nothing of a running server can be replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoAdviser {
    /// It keeps no requests.
    NotKept,
    /// It keeps them, and has none.
    NoRequest,
    /// What it is was not told.
    NoFlags,
}

impl fmt::Display for NoAdviser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotKept => {
                "the server keeps no recent requests (CONTEXTPILOT_RECENT_MB is 0, or its hook is older)"
            }
            Self::NoRequest => "no recent request is known",
            Self::NoFlags => "it is not known what flags the server has",
        })
    }
}

/// What a change brings one request, and all of them together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Gain {
    /// Tokens that this request would not have evaluated.
    pub(super) own: u64,
    /// Tokens that all of them would have evaluated less, or (negative) more.
    pub(super) all: i64,
    /// Tokens that all of them evaluated.
    pub(super) of: u64,
    /// Requests that would have evaluated more, [`COSTS`] tokens or above, and how many all of these.
    pub(super) costs: (u64, u64),
    /// Requests that were replayed.
    pub(super) requests: u64,
    /// Those of them whose replay without the change reuses as many tokens as the engine did.
    pub(super) exact: u64,
}

/// Tokens that went with a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Swap {
    pub(super) tokens: u64,
    /// How long before the prompt was evaluated.
    pub(super) before: Duration,
    pub(super) through: Through,
}

/// From so many tokens on, a change costs a request something.
const COSTS: u32 = 64;

impl Adviser {
    /// Of the last requests of a running server.
    pub(super) fn of_server(control: &Control) -> Result<Self, NoAdviser> {
        let recent = control.recent().map_err(|_| NoAdviser::NotKept)?;
        let traffic = read(&recent);
        if traffic.requests.is_empty() {
            return Err(NoAdviser::NoRequest);
        }
        let recorded = Setting::recorded(&traffic).ok_or(NoAdviser::NoFlags)?;
        Ok(Self::new(traffic, recorded))
    }

    pub(super) fn new(traffic: Traffic, recorded: Setting) -> Self {
        Self {
            traffic,
            recorded,
            trials: OnceCell::new(),
            without_swaps: OnceCell::new(),
        }
    }

    /// What was tried by itself.
    pub(super) fn trials(&self) -> &Trials {
        self.trials
            .get_or_init(|| Simulations::new(&self.traffic).trials(&self.recorded))
    }

    /// What would have saved the most evaluation, in a line: `--parallel 2: 61 % reused, not 20 %`.
    pub(super) fn best(&self) -> Option<String> {
        let trials = self.trials();
        let best = trials.best()?;
        let share = |point: &Point| percent(Some(point.spared_share()));
        Some(format!(
            "{}: {} {}, not {}",
            words(best, &self.recorded),
            share(&best.point),
            spared_by(&best.point),
            share(&trials.recorded)
        ))
    }

    /// What a change, which was replayed as `point`, brings the request with this number.
    pub(super) fn gain(&self, nth: usize, point: &Point) -> Gain {
        let now = &self.trials().simulated.outcomes;
        let mut gain = Gain::default();
        let requests = self.traffic.requests.iter();
        for (at, (request, (now, then))) in
            requests.zip(now.iter().zip(&point.outcomes)).enumerate()
        {
            let (Some(now), Some(then)) = (now, then) else {
                continue;
            };
            if request.record.child {
                continue;
            }
            gain.requests += 1;
            gain.exact += u64::from(spared(now) == recorded(request));
            gain.of += u64::from(now.evaluated);
            gain.all += i64::from(now.evaluated) - i64::from(then.evaluated);
            let more = then.evaluated.saturating_sub(now.evaluated);
            if at == nth {
                gain.own = u64::from(now.evaluated.saturating_sub(then.evaluated));
            } else if more >= COSTS {
                gain.costs.0 += 1;
                gain.costs.1 += u64::from(more);
            }
        }
        gain
    }

    /// What a request would have found in the cache, had a router not ended the process before it.
    pub(super) fn swap(&self, nth: usize) -> Option<Swap> {
        let order = self.traffic.requests.get(nth)?.record.order;
        let swaps = self.traffic.changes.iter().map(|change| &change.record);
        let is_swap = |kind: ChangeKind| matches!(kind, ChangeKind::Swapped { .. });
        let mut earlier = swaps.filter(|change| is_swap(change.kind) && change.order <= order);
        let last = earlier.next_back()?;
        let then = self.without_swaps.get_or_init(|| {
            let loaded = Client::NoUnload.applied(&self.traffic);
            let changed = without_swaps(&loaded).map_or(loaded, |(_, changed)| changed);
            Replay::new(&changed).simulate(&self.recorded)
        });
        let gain = self.gain(nth, then);
        let asked = &self.traffic.requests[nth].record;
        (gain.own > 0 && self.is_exact(nth)).then_some(Swap {
            tokens: gain.own,
            before: Duration::from_micros(asked.prompted.saturating_sub(last.at)),
            through: match last.kind {
                ChangeKind::Swapped { models: 0 } => Through::Unload,
                _ => Through::Swap,
            },
        })
    }

    /// The replay, had a prompt gone on for `more` tokens like the earlier one that it shares the most with.
    pub(super) fn continued(&self, nth: usize, more: u64) -> Option<Point> {
        let more = u32::try_from(more).ok()?;
        let traffic = continued(&self.traffic, nth, more)?;
        Some(Replay::new(&traffic).simulate(&self.recorded))
    }

    /// The replay, had these prompts not left the earlier ones that they share the most with.
    pub(super) fn put_right(&self, prompts: &[usize], difference: Difference) -> Option<Point> {
        let traffic = put_right(&self.traffic, prompts, difference)?;
        Some(Replay::new(&traffic).simulate(&self.recorded))
    }

    /// Tokens of the media of a request's prompt that begin at this token.
    pub(super) fn media_at(&self, nth: usize, at: u64) -> u64 {
        let request = self.traffic.requests.get(nth);
        let mut media = request
            .into_iter()
            .flat_map(|request| &request.record.media);
        let there = media.find(|(begin, _)| u64::from(*begin) == at);
        there.map_or(0, |(begin, end)| u64::from(end - begin))
    }

    /// Some of what a request reused from its slot was evaluated under other LoRA adapters or scales than its own.
    pub(super) fn is_of_other_adapters(&self, nth: usize) -> bool {
        let Some(asked) = self.traffic.requests.get(nth) else {
            return false;
        };
        // Before they are activated, they are not applied.
        let applied = |request: &TrafficRequest| {
            let record = &request.record;
            (record.activated_at.unwrap_or(0), record.adapters.hash)
        };
        let mut held: Option<&TrafficRequest> = None;
        // Under which adapters each part of what the slot holds was evaluated: up to which token.
        let mut parts: Vec<(u32, u64)> = Vec::new();
        let all = self.traffic.requests[..=nth].iter();
        for request in all.filter(|request| request.record.slot == asked.record.slot) {
            let reused = request.record.reused;
            let kept = held.map_or(0, |held| held.tokens.common_prefix(&request.tokens));
            if kept < reused {
                // It came from elsewhere.
                parts.clear();
            }
            let whole = parts.iter().take_while(|(end, _)| *end < reused).count();
            parts.truncate(whole + 1);
            if let Some((end, _)) = parts.last_mut() {
                *end = (*end).min(reused);
            }
            if std::ptr::eq(request, asked) {
                break;
            }
            let (activated, own) = applied(request);
            parts.extend((activated > reused).then_some((activated, 0)));
            parts.push((request.tokens.len(), own));
            held = Some(request);
        }
        let (activated, own) = applied(asked);
        let mut begin = 0;
        parts.iter().any(|&(end, hash)| {
            let is_part = begin < end;
            begin = end;
            is_part && hash != if end <= activated { 0 } else { own }
        })
    }

    /// Whether a request is for `/infill`, whose prompt the server composes.
    pub(super) fn is_infill(&self, nth: usize) -> bool {
        let request = self.traffic.requests.get(nth);
        request.is_some_and(|request| {
            self.traffic
                .suffix_first
                .contains_key(&request.record.order)
        })
    }

    /// The replay of a request does what the engine did with it.
    pub(super) fn is_exact(&self, nth: usize) -> bool {
        let now = self.trials().simulated.outcomes.get(nth);
        let request = self.traffic.requests.get(nth);
        now.zip(request)
            .is_some_and(|(now, request)| now.as_ref().map(spared) == Some(recorded(request)))
    }

    /// Which of the recorded requests each of the last ones is, the latest first. Several that are alike are told apart by
    /// their order.
    pub(super) fn find(&self, latest: &[Evaluated]) -> Vec<Option<usize>> {
        let mut is_taken = vec![false; self.traffic.requests.len()];
        let find = |evaluated: &Evaluated| {
            let is_it = |request: &TrafficRequest| {
                let (record, evaluation) = (&request.record, &evaluated.evaluation);
                i64::from(record.slot) == i64::from(evaluated.slot)
                    && u64::from(record.prompt) == evaluation.prompt_tokens
                    && u64::from(recorded(request)) == evaluation.reused
            };
            let mut all = self.traffic.requests.iter().enumerate().rev();
            let (nth, _) = all.find(|(nth, request)| !is_taken[*nth] && is_it(request))?;
            is_taken[nth] = true;
            Some(nth)
        };
        latest.iter().map(find).collect()
    }
}

/// What became of tokens that were not evaluated.
pub(super) fn spared_by(point: &Point) -> &'static str {
    match point.loaded_tokens {
        0 => "reused",
        _ => "reused or loaded",
    }
}

/// A line, where a replay of the recorded flags does not do what the engine did. Empty: it does.
pub(super) fn estimates(engine: &Point, replayed: &Point) -> String {
    let share = |point: &Point| format!("{:.1} %", 100.0 * point.spared_share());
    match error_of_replay(engine, replayed) {
        Some(_) => format!(
            "A replay of these requests, with the server as it is, has {} {} where the engine had {}: what is said of changes is \
             an estimate.\n",
            share(replayed),
            spared_by(replayed),
            share(engine),
        ),
        None => String::new(),
    }
}

/// Tokens that the engine did not evaluate.
fn recorded(request: &TrafficRequest) -> u32 {
    request.record.reused + request.record.loaded
}

fn spared(outcome: &Outcome) -> u32 {
    outcome.reused + outcome.loaded
}

/// A change as data: the flags to add, the settings, or what clients do.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct ChangeData {
    pub(super) flags: Vec<String>,
    pub(super) setting: Vec<String>,
    pub(super) client: Option<&'static str>,
}

impl ChangeData {
    pub(super) fn new(change: &Change, recorded: &Setting) -> Self {
        let mut setting = Vec::new();
        if let Some(limit) = change.store_limit {
            // Without a folder, the budget turns nothing on.
            if recorded.store_limit == 0 {
                setting.push("CONTEXTPILOT_STORE=a folder".to_owned());
            }
            setting.push(format!("CONTEXTPILOT_STORE_GB={}", limit as f64 / 1e9));
        }
        Self {
            flags: change.flags.clone(),
            setting,
            client: change.client.map(|client| named(client).0),
        }
    }
}

/// What clients can do: its name, and in words.
fn named(client: Client) -> (&'static str, &'static str) {
    match client {
        Client::NoSlot => (
            "no_id_slot",
            "leave out id_slot: the server looks for the beginning in all slots, and in the host cache",
        ),
        Client::NoErase => (
            "no_erase",
            "do not erase slots: the server makes room in them itself",
        ),
        Client::NoRestore => (
            "no_restore",
            "do not restore slots: the server finds by itself what it has",
        ),
        Client::Cache => (
            "cache_prompt",
            "start the server without --no-cache-prompt, and leave out \"cache_prompt\": false",
        ),
        Client::FlagsChunks => (
            "no_n_cache_reuse",
            "leave out n_cache_reuse: the server's --cache-reuse counts then",
        ),
        Client::NoUnload => (
            "no_unload",
            "do not unload the model (POST /models/unload): the router makes room itself",
        ),
        Client::LateRetry => (
            "late_retry",
            "do not ask again before the server has let go of what was given up: it looks once a second, and lets go \
             after its batch; or wait longer for the answer",
        ),
    }
}

/// A change as one would write it.
pub(super) fn words(change: &Change, recorded: &Setting) -> String {
    let ChangeData { flags, setting, .. } = ChangeData::new(change, recorded);
    let client = change.client.map(|client| named(client).1.to_owned());
    let all: Vec<String> = flags.into_iter().chain(setting).chain(client).collect();
    all.join(" ")
}
