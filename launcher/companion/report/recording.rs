//! What a recording says of each request. It has no causes: they follow from what slots held.

use std::collections::HashMap;
use std::sync::Arc;

use contextpilot_client::control::{Causes, Timestamp};
use contextpilot_simulate::Seen;
use contextpilot_traffic::{ChangeKind, Memory, Setup, Tokens, Traffic, TrafficRequest};
use serde_json::{Value, json};

use super::data::Data;
use super::line::{Account, Diverged, Line, Replaced, Sources, Tree};
use super::prefixes::{Nearest, Prefixes};

/// What a slot holds.
#[derive(Clone, Default)]
struct SlotContent {
    row: Arc<Tokens>,
    /// The number of the request that left it.
    by: u64,
    /// When its last token was evaluated, microseconds.
    ended: u64,
}

/// The report's data. Times are since the recording began: it does not say when that was.
pub(super) fn data(traffic: &Traffic) -> Result<Data, String> {
    let setup = traffic.setup.clone().unwrap_or_default();
    let mut slots: HashMap<u32, SlotContent> = HashMap::new();
    let mut prefixes = Prefixes::new();
    let mut seen = Seen::default();
    let mut requests = Vec::new();
    let mut changes = Vec::new();
    let mut sums = Sums::default();
    let mut other = traffic.changes.iter().peekable();
    for (nth, request) in traffic.requests.iter().enumerate() {
        let record = &request.record;
        while let Some(change) = other.next_if(|change| change.record.order <= record.order) {
            if !matches!(change.record.kind, ChangeKind::Refused(refusal) if refusal.declined) {
                let slot = slots.entry(change.record.slot).or_default();
                slot.row = Arc::clone(&change.tokens);
            }
        }
        let number = nth as u64 + 1;
        let nearest = prefixes.insert(&request.tokens, record.prompt, number);
        let own = slots.get(&record.slot).cloned().unwrap_or_default();
        let kept = own.row.common_prefix(&request.tokens).min(record.prompt);
        let mut evaluation = evaluation(request, nearest, &slots, kept, &setup);
        let (repeated, _) = seen.behind(request, traffic.gram, nearest.common);
        let causes = &mut evaluation.causes;
        causes.repeated = causes.new.min(repeated.into());
        causes.new -= causes.repeated;
        seen.add(&request.tokens);
        let taken = own.row.len().saturating_sub(kept);
        if taken > 0 && own.by > 0 && !record.child {
            changes.push(Replaced {
                at: at(record.launched),
                by: format!("#{number}"),
                change: "replaced",
                id: format!("#{}", own.by),
                slot: record.slot,
                tokens: taken,
            });
        }
        if !record.abandoned && !record.child {
            sums.add(&evaluation);
        }
        requests.push(Line {
            at: at(record.prompted),
            ended: at(record.ended),
            evaluation,
            generated: request.generated(),
            number,
            slot: i32::try_from(record.slot).unwrap_or(-1),
            time_to_first_token_seconds: seconds(record.prompted - record.arrived),
        });
        let slot = slots.entry(record.slot).or_default();
        *slot = SlotContent {
            row: Arc::clone(&request.tokens),
            by: number,
            ended: record.ended,
        };
    }
    let mut held: Vec<(u32, &SlotContent)> =
        slots.iter().map(|(slot, held)| (*slot, held)).collect();
    held.sort_unstable_by_key(|(slot, _)| *slot);
    for (slot, held) in &held {
        prefixes.hold(&held.row, *slot);
    }
    let ends = traffic.requests.iter().map(|request| request.record.ended);
    let end = ends.max().unwrap_or(0);
    let mut notes = vec![
        "Times are since the recording began. A recording does not say what the host cache held.",
    ];
    if traffic.damage.is_some() {
        notes.push("The file is damaged; this is what is before the damage.");
    }
    let engine = if setup.version.is_empty() {
        json!({ "name": "llama.cpp", "version": setup.engine })
    } else {
        json!({ "name": "llama.cpp", "version": setup.version, "build": setup.engine })
    };
    let held: Vec<Value> = held
        .into_iter()
        .map(|(slot, held)| json!({ "slot": slot, "tokens": held.row.len(), "capacity": setup.slot_context }))
        .collect();
    let reused = sums.reused + sums.evaluated;
    let mut data = Data::from(json!({
        "about": { "kind": "recording", "title": "A recording of traffic", "notes": notes, "relative": true },
        "stats": {
            "at": at(end), "engine": engine, "slots": held,
            "tokens": { "resident": prefixes.held(), "shared": 0, "live_requests": 0 },
            "reuse": {
                "total": {
                    "prompts": sums.prompts, "reused": sums.reused, "evaluated": sums.evaluated,
                    "hit_ratio": (reused > 0).then(|| sums.reused as f64 / reused as f64),
                },
                "causes": sums.causes, "seconds": sums.seconds,
            },
        },
    }));
    let none = json!({ "branches": 0, "tokens": 0, "requests": 0 });
    data.add("requests", &requests)?;
    data.add("changes", &changes)?;
    data.add(
        "tree",
        &Tree {
            at: at(end),
            branches: prefixes.branches(&none),
            epoch: "",
            resident: prefixes.held(),
        },
    )?;
    Ok(data)
}

#[derive(Default)]
struct Sums {
    prompts: u64,
    reused: u64,
    evaluated: u64,
    seconds: f64,
    causes: Causes,
}

impl Sums {
    fn add(&mut self, evaluation: &Account) {
        self.prompts += 1;
        self.reused += evaluation.reused;
        self.evaluated += evaluation.evaluated;
        self.seconds += evaluation.seconds;
        self.causes.add(evaluation.causes);
    }
}

fn at(microseconds: u64) -> Timestamp {
    Timestamp::from_unix_ms(microseconds / 1000)
}

fn seconds(microseconds: u64) -> f64 {
    microseconds as f64 / 1e6
}

/// `kept`: what the slot had in common with the prompt.
fn evaluation(
    request: &TrafficRequest,
    nearest: Nearest,
    slots: &HashMap<u32, SlotContent>,
    kept: u32,
    setup: &Setup,
) -> Account {
    let record = &request.record;
    let [prompt, reused, evaluated] =
        [record.prompt, record.reused, record.evaluated].map(u64::from);
    let of_slot = reused.min(u64::from(kept));
    let diverged = nearest.common < record.prompt && nearest.goes_on;
    Account {
        causes: if record.child {
            Causes {
                not_known: evaluated,
                ..Causes::default()
            }
        } else {
            causes(request, nearest, slots, kept, setup)
        },
        diverged: diverged.then(|| Diverged {
            at: nearest.common.into(),
            request: nearest.request,
        }),
        evaluated,
        from: Sources {
            host: reused - of_slot,
            slot: of_slot,
        },
        prompt_tokens: prompt,
        reused,
        seconds: seconds(record.prompted - record.launched),
    }
}

/// The tokens behind the longest common prefix with any earlier request are new, or stood elsewhere before. The others were evaluated
/// although they had been before. Why, follows from what slots held when the request was launched.
fn causes(
    request: &TrafficRequest,
    nearest: Nearest,
    slots: &HashMap<u32, SlotContent>,
    kept: u32,
    setup: &Setup,
) -> Causes {
    let record = &request.record;
    let evaluated = u64::from(record.evaluated);
    let last = evaluated.min(1);
    let known = u64::from(nearest.common.min(record.prompt.saturating_sub(1)));
    let again = known
        .saturating_sub(record.reused.into())
        .min(evaluated - last);
    let mut causes = Causes {
        last_token: last,
        new: evaluated - last - again,
        ..Causes::default()
    };
    if again == 0 {
        return causes;
    }
    if record.uncached || record.embedding {
        causes.uncached = again;
        return causes;
    }
    // What its own slot had, and did not go back to.
    let unused = u64::from(kept)
        .saturating_sub(record.reused.into())
        .min(again);
    match (record.names_adapters, setup.memory) {
        (true, _) => causes.adapter = unused,
        (false, Memory::Full) => causes.not_known = unused,
        (false, _) => causes.no_way_back = unused,
    }
    let base = u64::from(record.reused.max(kept));
    let others = slots.iter().filter(|(slot, _)| **slot != record.slot);
    let best = others
        .map(|(_, held)| (held.row.common_prefix(&request.tokens), held.ended))
        .max();
    let (common, ended) = best.unwrap_or((0, 0));
    let elsewhere = u64::from(common).saturating_sub(base).min(again - unused);
    let share = common as f32 / record.prompt.max(1) as f32;
    match () {
        () if record.id_slot.is_some() => causes.elsewhere.pinned = elsewhere,
        () if ended > record.launched => causes.elsewhere.busy = elsewhere,
        () if setup.slot_prompt_similarity == 0.0 => {
            causes.elsewhere.least_recently_used = elsewhere
        }
        () if share <= setup.slot_prompt_similarity => causes.elsewhere.similarity = elsewhere,
        () => {}
    }
    causes.evicted = again - unused - causes.elsewhere.sum();
    causes
}
