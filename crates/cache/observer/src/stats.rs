//! All figures at one moment.

use std::collections::BTreeSet;

use contextpilot_control::{
    ControlEndpoint, Delivery, Engine, Flags, HostCache, KeptTokens, KvBytes, KvEvents, Losses,
    Memory, Mode, Model, ModelState, PrefixStore, Recording, Requests, Reuse, ReuseOver, Slot,
    Stats, Timestamp, Tokens, UnfinishedPrompt,
};
use contextpilot_residency::program::{PROGRAM, sequence_of};
use contextpilot_residency::{Ledger, SequenceId, Unfinished};

use crate::names::each_once;
use crate::note::Now;
use crate::observer::{Context, Kind, Observer};

/// Figures that come from elsewhere.
#[derive(Clone, Debug)]
pub struct Outside {
    /// See [`Stats::process`].
    pub process: u32,
    /// See [`Stats::uptime_seconds`].
    pub uptime_seconds: f64,
    /// See [`Stats::hook_version`].
    pub hook_version: String,
    /// See [`Stats::mode`].
    pub mode: Mode,
    /// See [`Stats::listening`].
    pub listening: Vec<String>,
    /// See [`Stats::routed`].
    pub routed: bool,
    /// See [`Stats::engine`].
    pub engine: Engine,
    /// The model named by the command line or the environment. If there is none, the engine's own
    /// description is used.
    pub model: Option<Model>,
    /// See [`Stats::model_state`].
    pub model_state: ModelState,
    /// See [`Stats::flags`]. The observer fills in what the context says.
    pub flags: Flags,
    /// See [`HostCache::limit_bytes`].
    pub host_limit: Option<u64>,
    /// See [`HostCache::limit_from`].
    pub host_limit_from: String,
    /// See [`Stats::requests`]. The observer overwrites [`Requests::finished`].
    pub requests: Requests,
    /// The slots of a program that are at work. `None`: this is a server, whose requests say so.
    pub at_work: Option<BTreeSet<SequenceId>>,
    /// See [`Stats::delivery`].
    pub delivery: Option<Delivery>,
    /// See [`Stats::index_in_front`].
    pub index_in_front: Option<String>,
    /// See [`Stats::control`].
    pub control: Option<ControlEndpoint>,
    /// See [`Stats::kv_events`]. If it names no problem, the observer looks for one.
    pub kv_events: Option<KvEvents>,
    /// See [`Stats::recording`].
    pub recording: Option<Recording>,
    /// See [`Stats::store`].
    pub store: Option<PrefixStore>,
    /// See [`Stats::kept`].
    pub kept: Option<KeptTokens>,
    /// See [`Stats::losses`].
    pub losses: Losses,
}

impl Observer {
    /// All figures at this moment. Without a ledger, after it panicked, the cache is shown as empty.
    #[must_use]
    pub fn stats(&self, ledger: Option<&Ledger>, outside: Outside, now: Now) -> Stats {
        let context = self.context_of(None, ledger);
        let kv = kv_bytes(context);
        let slots = self.slots(ledger, outside.at_work.as_ref(), now);
        let host = self.host(ledger, &outside);
        let held: u64 = slots.iter().map(|slot| u64::from(slot.tokens)).sum();
        let resident = ledger.map_or(0, |ledger| ledger.tokens() as u64);
        let said = context.and_then(|context| context.model.as_ref());
        let counts = &self.counts;
        let kv_events = outside.kv_events.map(|mut events| {
            let blind = !outside
                .engine
                .attached
                .iter()
                .any(|part| part == "KV cache");
            events.problem = explain(&events, blind, counts.prompts);
            events
        });
        Stats {
            at: Timestamp::from_unix_ms(now.unix_ms),
            epoch: self.epoch.clone(),
            process: outside.process,
            uptime_seconds: outside.uptime_seconds,
            hook_version: outside.hook_version,
            mode: outside.mode,
            listening: outside.listening,
            routed: outside.routed,
            engine: outside.engine,
            model: outside.model.or_else(|| {
                said.map(|name| Model {
                    name: name.to_string(),
                    from: "engine".to_owned(),
                })
            }),
            model_state: outside.model_state,
            flags: Some(Flags {
                parallel: context.and_then(|context| context.slots),
                can_shift: context.and_then(|context| context.can_shift),
                memory: context.map_or(Memory::default(), |context| context.memory),
                ..outside.flags
            }),
            tokens: Tokens {
                resident,
                shared: (held + host.tokens).saturating_sub(resident),
                live_requests: ledger.map_or(0, |ledger| ledger.live() as u64),
            },
            contexts: self.program_contexts(ledger, &slots),
            slots,
            host,
            kv,
            requests: Requests {
                finished: counts.finished,
                ..outside.requests
            },
            reuse: Reuse {
                total: ReuseOver::new(counts.prompts, counts.taken.reused, counts.taken.evaluated),
                last_minute: self.minute.sum(now.stamp),
                causes: self.evaluations.causes,
                seconds: counts.seconds,
            },
            evictions: counts.evictions.clone(),
            undecided: ledger.is_some_and(Ledger::awaits_silence),
            delivery: outside.delivery,
            index_in_front: outside.index_in_front,
            control: outside.control,
            kv_events,
            recording: outside.recording,
            store: outside.store,
            kept: outside.kept,
            losses: outside.losses,
        }
    }

    fn slots(
        &self,
        ledger: Option<&Ledger>,
        at_work: Option<&BTreeSet<SequenceId>>,
        now: Now,
    ) -> Vec<Slot> {
        let is_program = ledger.and_then(Ledger::primary) == Some(PROGRAM);
        let known = ledger.into_iter().flat_map(Ledger::slots);
        let mut numbers: Vec<SequenceId> = known.chain(self.slots.keys().copied()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        // The ledger knows slots of contexts that are gone.
        numbers.retain(|&slot| !is_program || self.context_of(Some(slot), ledger).is_some());
        let slot = |number| {
            let context = self.context_of(Some(number), ledger);
            let bytes_per_token = context.and_then(Context::bytes_per_token);
            let place = is_program.then(|| sequence_of(number).0.0);
            let tokens = ledger.map_or(0, |ledger| ledger.held(number));
            let ids = ledger.map(|ledger| ledger.requests_in(number, usize::MAX));
            let (requests, requests_total) = each_once(ids.unwrap_or_default());
            let times = self.slots.get(&number);
            let launched = times.and_then(|times| times.launched_unix_ms);
            let job = times
                .and(ledger)
                .and_then(|ledger| ledger.works_for(number));
            let (asker, busy) = job.unwrap_or_default();
            let busy = at_work.map_or(busy, |slots| slots.contains(&number));
            let unfinished = ledger.and_then(|ledger| ledger.unfinished(number));
            // The server finds that out between two batches, and evaluates no more of the prompt.
            let client_left = !busy && at_work.is_none() && asker.arrival().is_some();
            let goes_on = |prompt: &Unfinished| busy || client_left && prompt.in_batch > 0;
            let unfinished = unfinished.filter(goes_on).zip(times);
            let last_title = times.and_then(|times| times.title.as_deref());
            let last_request = asker.id.as_deref().map(str::to_owned);
            Slot {
                slot: number,
                context: place.and_then(|place| u32::try_from(place).ok()),
                tokens,
                capacity: context.and_then(|context| context.capacity),
                bytes: bytes_per_token.map(|bytes| (bytes * f64::from(tokens)).round() as u64),
                busy,
                requests,
                requests_total,
                last_request,
                last_launch: launched.map(Timestamp::from_unix_ms),
                last_title: last_title.cloned(),
                prompt: unfinished.map(|(prompt, times)| UnfinishedPrompt {
                    client_left,
                    ..times.so_far(asker, prompt, self.usual_rate, now.stamp)
                }),
            }
        };
        numbers.into_iter().map(slot).collect()
    }

    fn host(&self, ledger: Option<&Ledger>, outside: &Outside) -> HostCache {
        let saved = ledger.map(Ledger::saved).unwrap_or_default();
        let of = |kind| self.buffers.values().filter(move |b| b.kind == kind);
        HostCache {
            entries: saved.buffers as u64,
            tokens: saved.tokens,
            bytes: of(Kind::Sequence).map(|buffer| buffer.bytes).sum(),
            checkpoints: of(Kind::Checkpoint).count() as u64,
            checkpoint_bytes: of(Kind::Checkpoint).map(|buffer| buffer.bytes).sum(),
            limit_bytes: outside.host_limit,
            limit_from: outside.host_limit_from.clone(),
        }
    }
}

/// Why fewer blocks are published than should be. `None`: nothing is wrong.
fn explain(events: &KvEvents, blind: bool, prompts: u64) -> Option<String> {
    if events.problem.is_some() {
        return events.problem.clone();
    }
    if blind {
        return Some("the KV cache is not seen, so nothing counts as cached".to_owned());
    }
    (events.stored == 0 && prompts > 0).then(|| {
        let after = match prompts {
            1 => "1 prompt: it filled no".to_owned(),
            many => format!("{many} prompts: none filled a"),
        };
        format!(
            "nothing was published yet, after {after} block of {} tokens that can be used again",
            events.block_size
        )
    })
}

fn kv_bytes(context: Option<&Context>) -> KvBytes {
    let (tokens, bytes) = context.map_or((0, 0), |context| context.measured);
    KvBytes {
        bytes_per_token: context.and_then(Context::bytes_per_token),
        measured_tokens: u64::from(tokens),
        measured_bytes: bytes,
    }
}
