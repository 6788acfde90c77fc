//! Which change of flags would have gained most, and which tokens no flag saves.

use std::collections::BTreeMap;

use contextpilot_traffic::{Memory, Traffic, TrafficRequest};

use crate::point::Point;
use crate::prefixes::Prefixes;
use crate::setting::Setting;
use crate::simulate::simulate;

/// A change must gain this share of all prompt tokens to be advised: the simulation is not more exact.
pub const LEAST_GAIN: f64 = 0.02;
/// The most slots that are tried.
const MOST_SLOTS: u32 = 32;

/// What other flags would have brought.
#[derive(Clone, Debug)]
pub struct Advice {
    /// The simulation of the recorded setting.
    pub recorded: Point,
    /// At most two: one change of flags, and that one together with another. Each gains at least
    /// [`LEAST_GAIN`] over the setting before it. Empty: no change would have helped.
    pub changes: Vec<Change>,
    /// The tokens of all prompts, by whether they were sent before.
    pub tokens: Repeated,
}

/// A setting that is better than the recorded one.
#[derive(Clone, Debug)]
pub struct Change {
    /// What to add to the command line. A flag and its value are two entries.
    pub flags: Vec<String>,
    /// The simulation of it.
    pub point: Point,
}

/// The tokens of all prompts, by what could have saved their evaluation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repeated {
    /// Tokens in the prefix that the prompt shares with an earlier request. Flags decide whether they are
    /// reused.
    pub prefix: u64,
    /// Tokens that were in an earlier request, but follow a difference in this one. Only the client can
    /// save them, by sending them before what differs.
    pub behind_a_difference: u64,
    /// Tokens that were in no earlier request. They have to be evaluated.
    pub never_sent: u64,
    /// Where prompts differ first from earlier ones: the median position, in tokens. Counts only prompts
    /// of which more than a quarter is repeated behind a difference. `None`: there is no such prompt.
    pub differs_at: Option<u32>,
}

/// Tries single changes, and then each of them together with the best one.
#[must_use]
pub fn advise(traffic: &Traffic, recorded: &Setting) -> Advice {
    let mut changes: Vec<Change> = Vec::new();
    let first = simulate(traffic, recorded);
    for _ in 0..2 {
        let (base, flags, setting) = match changes.last() {
            Some(last) => (&last.point, last.flags.clone(), &last.point.setting),
            None => (&first, Vec::new(), recorded),
        };
        let tried = candidates(setting, traffic).into_iter().map(|candidate| {
            let point = simulate(traffic, &candidate.setting);
            (candidate, point)
        });
        // A later candidate must be better by `LEAST_GAIN` than the best so far. Those that take more
        // memory or more slots come later, so the cheaper ones win.
        let mut best: Option<(Candidate, Point)> = None;
        for (candidate, point) in tried {
            let known = best.as_ref().map_or(base, |(_, point)| point);
            if point.refused <= base.refused && is_better(&point, known) {
                best = Some((candidate, point));
            }
        }
        let Some((candidate, point)) = best else {
            break;
        };
        let flags = [flags, candidate.flags].concat();
        changes.push(Change { flags, point });
    }
    Advice {
        recorded: first,
        changes,
        tokens: repeated(&traffic.requests, traffic.gram.max(1)),
    }
}

fn is_better(point: &Point, than: &Point) -> bool {
    point.reused_share() >= than.reused_share() + LEAST_GAIN
}

struct Candidate {
    flags: Vec<String>,
    setting: Setting,
}

fn candidates(setting: &Setting, traffic: &Traffic) -> Vec<Candidate> {
    let mut all = Vec::new();
    let mut add = |flags: &[&str], setting: Setting| {
        let flags = flags.iter().map(|&flag| flag.to_owned()).collect();
        all.push(Candidate { flags, setting });
    };
    for thousandths in [0, 10, 50, 100, 250, 500] {
        if thousandths != setting.slot_prompt_similarity {
            let (share, changed) = with_similarity(setting, thousandths);
            add(&["--slot-prompt-similarity", &share], changed);
        }
    }
    let has_media = traffic.requests.iter().any(|r| !r.record.media.is_empty());
    if setting.memory == Memory::Full && !has_media && setting.cache_reuse == 0 {
        for chunk in [256, 64] {
            let mut changed = setting.clone();
            changed.cache_reuse = chunk;
            let chunk = chunk.to_string();
            add(&["--cache-reuse", &chunk], changed.clone());
            // A prompt that lacks what follows its first tokens is similar to hardly any slot. So it gets
            // the slot that has the chunks only if little similarity is enough.
            for thousandths in [50, 10] {
                if thousandths < setting.slot_prompt_similarity {
                    let (share, changed) = with_similarity(&changed, thousandths);
                    let similar = ["--slot-prompt-similarity", &share];
                    add(
                        &[&["--cache-reuse", &chunk], &similar[..]].concat(),
                        changed,
                    );
                }
            }
        }
    }
    if setting.memory != Memory::Full {
        for (checkpoints, step) in [(32, 8192), (128, 1024)] {
            if checkpoints > setting.ctx_checkpoints {
                let mut changed = setting.clone();
                changed.ctx_checkpoints = checkpoints;
                changed.checkpoint_min_step = step;
                let (checkpoints, step) = (checkpoints.to_string(), step.to_string());
                let flags = [
                    "--ctx-checkpoints",
                    &checkpoints,
                    "--checkpoint-min-step",
                    &step,
                ];
                add(&flags, changed);
            }
        }
    }
    if setting.has_host_cache && !setting.cache_idle_slots {
        let mut changed = setting.clone();
        changed.cache_idle_slots = true;
        add(&["--cache-idle-slots"], changed);
    }
    if setting.cache_ram >= 0 {
        let base = setting.cache_ram.max(1);
        let sizes = (1..12).map(|doublings| base << doublings);
        for mib in sizes.filter(|&mib| mib <= 262_144) {
            if let Ok(changed) = setting.clone().with_cache_ram(mib) {
                add(&["--cache-ram", &mib.to_string()], changed);
            }
        }
    }
    let mut slots = setting.parallel + 1;
    while slots <= MOST_SLOTS {
        let text = slots.to_string();
        if !setting.kv_unified || setting.auto_parallel {
            add(
                &["--parallel", &text],
                setting.clone().with_slots(slots, false),
            );
        }
        let flags = ["--parallel", &text, "--kv-unified"];
        add(&flags, setting.clone().with_slots(slots, true));
        slots = (slots + 1).next_power_of_two();
    }
    all
}

/// The flag's value, and the setting with it.
fn with_similarity(setting: &Setting, thousandths: u32) -> (String, Setting) {
    let mut changed = setting.clone();
    changed.slot_prompt_similarity = thousandths;
    (format!("{}", f64::from(thousandths) / 1000.0), changed)
}

/// `gram`: how many tokens decide about an identity. Whoever has it has all of them.
fn repeated(requests: &[TrafficRequest], gram: u32) -> Repeated {
    let mut sum = Repeated::default();
    let mut differ = Vec::new();
    let mut rows = Prefixes::new();
    // Stretches of identities that were seen: from their first identity to one past their last.
    let mut seen: BTreeMap<u64, u64> = BTreeMap::new();
    for (nth, request) in requests.iter().enumerate() {
        let record = &request.record;
        if record.child {
            continue;
        }
        let (prefix, _) = rows.find(&request.tokens, record.prompt);
        let known = u64::from(repeats(&seen, request, gram));
        rows.insert(&request.tokens, request.tokens.len(), nth);
        for run in request.tokens.runs() {
            insert(&mut seen, run.first, run.first + u64::from(run.length));
        }
        let behind = known.saturating_sub(u64::from(prefix));
        sum.prefix += u64::from(prefix);
        sum.behind_a_difference += behind;
        sum.never_sent += u64::from(record.prompt)
            .saturating_sub(u64::from(prefix))
            .saturating_sub(behind);
        if behind > u64::from(record.prompt / 4) {
            differ.push(prefix);
        }
    }
    differ.sort_unstable();
    sum.differs_at = differ.get(differ.len() / 2).copied();
    sum
}

/// How many tokens of a prompt were seen.
fn repeats(seen: &BTreeMap<u64, u64>, request: &TrafficRequest, gram: u32) -> u32 {
    let (mut at, mut upto, mut sum) = (0, 0, 0);
    for run in request.tokens.runs() {
        let left = request.record.prompt.saturating_sub(at).min(run.length);
        for (from, to) in overlaps(seen, run.first, run.first + u64::from(left)) {
            let (from, to) = (from - run.first, to - run.first);
            let begin = (at + from as u32).saturating_sub(gram - 1).max(upto);
            upto = at + to as u32;
            sum += upto - begin;
        }
        at += run.length;
    }
    sum
}

/// The parts of the identities `[from, to)` that were seen.
fn overlaps(
    seen: &BTreeMap<u64, u64>,
    from: u64,
    to: u64,
) -> impl Iterator<Item = (u64, u64)> + '_ {
    let earlier = seen.range(..=from).next_back().map(|(&begin, _)| begin);
    let parts = seen.range(earlier.unwrap_or(from).min(to)..to);
    parts
        .map(move |(&begin, &end)| (begin.max(from), end.min(to)))
        .filter(|(begin, end)| begin < end)
}

/// Adds the stretch `[from, to)`, joined with those that it touches.
fn insert(seen: &mut BTreeMap<u64, u64>, mut from: u64, mut to: u64) {
    while let Some((&begin, &end)) = seen.range(..=to).next_back() {
        if end < from {
            break;
        }
        from = from.min(begin);
        to = to.max(end);
        seen.remove(&begin);
    }
    seen.insert(from, to);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_that_touch_are_joined_and_overlaps_counted() {
        let mut seen = BTreeMap::new();
        for (from, to) in [(10, 20), (30, 40), (20, 25), (24, 31)] {
            insert(&mut seen, from, to);
        }
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [(10, 40)]);
        let seen = BTreeMap::from([(10, 20), (30, 40)]);
        let parts = |from, to| overlaps(&seen, from, to).collect::<Vec<_>>();
        assert_eq!(parts(15, 35), [(15, 20), (30, 35)]);
        assert_eq!(parts(0, 100), [(10, 20), (30, 40)]);
        assert_eq!(parts(20, 30), []);
    }
}
