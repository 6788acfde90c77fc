//! The server: slots, the queue, the host cache (`server_context_impl`).

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use contextpilot_traffic::{Applied, Memory, Tokens, Traffic, TrafficRequest};

use crate::checkpoints::{self, Batch};
use crate::content::Content;
use crate::host::{HostCache, Prompt};
use crate::marks::Marks;
use crate::point::{Outcome, Rates};
use crate::reuse;
use crate::setting::{Generation, Setting};
use crate::sizes::Sizes;
use crate::timeline::{Arrival, Job};
use crate::window::Positions;

#[derive(Debug, Default)]
struct Slot {
    prompt: Prompt,
    /// Places of media in it.
    media: Vec<(u32, u32)>,
    /// When it was released, in releases; −1: never.
    last_used: i64,
    adapters: Applied,
    /// The job that it works on.
    job: Option<usize>,
}

/// What happens next, in the order of its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    /// A slot is released.
    Ends(usize),
    /// A job comes.
    Comes(usize),
}

/// `lora_should_clear_cache`: whether a slot that worked under these keeps what it has for a request
/// under others.
fn keeps_for(slot: Applied, next: Applied) -> bool {
    slot == next || (next.invoked && (slot.invoked || !slot.enabled))
}

pub(crate) struct Server<'a> {
    traffic: &'a Traffic,
    jobs: &'a [Job],
    setting: &'a Setting,
    sizes: &'a Sizes,
    rates: Rates,
    marks: Marks,
    /// Some request has media, so nothing is moved.
    has_media: bool,
    /// All prompts begin with the same token, which a shift keeps.
    begins_alike: bool,
    slots: Vec<Slot>,
    positions: Positions,
    pub(crate) host: Option<HostCache>,
    queue: VecDeque<usize>,
    /// With a number that keeps the order of what happens at the same time.
    ahead: BinaryHeap<Reverse<(u64, u64, Happening)>>,
    /// Jobs that come after a job, and how long after.
    after: Vec<Vec<(usize, u64)>>,
    /// Slots that still work on a job.
    at_work: Vec<usize>,
    /// When each job came.
    arrived: Vec<u64>,
    count: u64,
    releases: i64,
    now: u64,
    pub(crate) outcomes: Vec<Option<Outcome>>,
}

impl<'a> Server<'a> {
    pub(crate) fn new(
        traffic: &'a Traffic,
        jobs: &'a [Job],
        setting: &'a Setting,
        sizes: &'a Sizes,
        rates: Rates,
    ) -> Self {
        let slot = |_| Slot {
            last_used: -1,
            ..Slot::default()
        };
        let mut server = Self {
            traffic,
            jobs,
            setting,
            sizes,
            rates,
            marks: match Setting::recorded(traffic) {
                Some(recorded) if recorded.memory != Memory::Full => Marks::of(traffic, &recorded),
                _ => Marks::default(),
            },
            has_media: traffic.requests.iter().any(|r| !r.record.media.is_empty()),
            begins_alike: begins_alike(&traffic.requests),
            slots: (0..setting.parallel).map(slot).collect(),
            positions: Positions::new(setting),
            host: HostCache::of(setting),
            queue: VecDeque::new(),
            ahead: BinaryHeap::new(),
            after: vec![Vec::new(); jobs.len()],
            at_work: vec![0; jobs.len()],
            arrived: vec![0; jobs.len()],
            count: 0,
            releases: 0,
            now: 0,
            outcomes: vec![None; traffic.requests.len()],
        };
        for (nth, job) in jobs.iter().enumerate() {
            match job.arrival {
                Arrival::At(time) => server.plan(time, Happening::Comes(nth)),
                Arrival::After { request, pause } => server.after[request].push((nth, pause)),
            }
        }
        server
    }

    /// All that was recorded.
    pub(crate) fn run(&mut self) {
        while let Some(Reverse((time, _, happening))) = self.ahead.pop() {
            self.now = time;
            match happening {
                Happening::Comes(job) => {
                    self.arrived[job] = time;
                    self.offer(job);
                }
                Happening::Ends(slot) => self.release_all(slot),
            }
        }
    }

    /// Slots that end at the same time do so after the same batch, in their order. Each calls one of
    /// those that wait, and puts it in front of those that were called before.
    fn release_all(&mut self, slot: usize) {
        let mut ended = vec![slot];
        while let Some(&Reverse((time, _, Happening::Ends(other)))) = self.ahead.peek() {
            if time > self.now {
                break;
            }
            self.ahead.pop();
            ended.push(other);
        }
        ended.sort_unstable();
        let called: Vec<usize> = ended
            .into_iter()
            .filter_map(|slot| self.release(slot))
            .collect();
        called.into_iter().rev().for_each(|job| self.offer(job));
    }

    fn plan(&mut self, time: u64, happening: Happening) {
        self.count += 1;
        self.ahead.push(Reverse((time, self.count, happening)));
    }

    fn request(&self, job: usize) -> &'a TrafficRequest {
        &self.traffic.requests[self.jobs[job].request]
    }

    /// `process_single_task`
    fn offer(&mut self, job: usize) {
        let request = self.request(job);
        let Some(slot) = self.choose(request) else {
            self.queue.push_back(job);
            return;
        };
        let children = self.jobs[job].children.len();
        if children >= self.slots.len() {
            // The server refuses it: more answers than slots.
            self.finish(job);
            return;
        }
        let mut free = self.idle();
        free.retain(|&other| other != slot);
        if self.setting.generation != Generation::Late2026 {
            free.sort_unstable();
        }
        free.truncate(children);
        if free.len() < children {
            self.queue.push_back(job);
            return;
        }
        self.slots[slot].job = Some(job);
        for &other in &free {
            self.slots[other].job = Some(job);
        }
        self.save_idle();
        self.serve(slot, job, &free);
    }

    /// `get_available_slot`
    fn choose(&mut self, request: &TrafficRequest) -> Option<usize> {
        let record = &request.record;
        let prompt = Content::new(Arc::clone(&request.tokens), record.prompt);
        let asked = record.id_slot.map(|slot| slot as usize % self.slots.len());
        if asked.is_some_and(|slot| self.slots[slot].job.is_some()) {
            return None;
        }
        let mut chosen = asked;
        let mut replaces = false;
        let threshold = self.setting.similarity();
        if threshold != 0.0 {
            let mut best = 0.0;
            for (nth, slot) in self.slots.iter().enumerate() {
                let content = &slot.prompt.content;
                if asked.is_some_and(|asked| asked != nth)
                    || slot.job.is_some()
                    || content.is_empty()
                {
                    continue;
                }
                let whole = match self.setting.generation {
                    Generation::Of2025 => content.len(),
                    Generation::Older | Generation::Late2026 => prompt.len(),
                };
                let similarity = self.common(slot, &prompt) as f32 / whole as f32;
                if similarity > best && similarity > threshold {
                    (best, chosen) = (similarity, Some(nth));
                }
            }
            if let Some(chosen) = chosen {
                let held = self.slots[chosen].prompt.content.len();
                // An empty slot keeps neither much nor little: the server divides by zero there.
                replaces = (best * prompt.len() as f32) / (held as f32) < 0.5;
            }
        }
        if chosen.is_none() {
            chosen = self.idle().first().copied();
            replaces = chosen.is_some();
        }
        let chosen = chosen?;
        if replaces && !record.embedding {
            self.exchange(chosen, &prompt);
        }
        Some(chosen)
    }

    /// Idle slots, the one that is taken first at the front.
    fn idle(&self) -> Vec<usize> {
        let all = (0..self.slots.len()).filter(|&nth| self.slots[nth].job.is_none());
        let mut idle: Vec<usize> = all.collect();
        match self.setting.generation {
            Generation::Of2025 | Generation::Older => {
                idle.sort_by_key(|&nth| (self.slots[nth].last_used, Reverse(nth)));
            }
            Generation::Late2026 => idle.sort_by_key(|&nth| {
                let slot = &self.slots[nth];
                (!slot.prompt.content.is_empty(), slot.last_used, nth)
            }),
        }
        idle
    }

    fn common(&self, slot: &Slot, prompt: &Content) -> u32 {
        reuse::outside_media(slot.prompt.content.common_prefix(prompt), &slot.media)
    }

    /// `prompt_save`, `prompt_load` and `update`
    fn exchange(&mut self, nth: usize, prompt: &Content) {
        let Some(host) = &mut self.host else { return };
        let slot = &mut self.slots[nth];
        host.save(&slot.prompt, self.sizes);
        if let Some(loaded) = host.load(&slot.prompt.content, prompt) {
            slot.prompt = loaded;
            let last = i64::from(slot.prompt.content.len()) - 1;
            self.positions.restore(nth, (0, last));
        }
        host.update();
    }

    /// `--cache-idle-slots`
    fn save_idle(&mut self) {
        let Some(host) = self.host.as_mut().filter(|_| self.setting.cache_idle_slots) else {
            return;
        };
        for (nth, slot) in self.slots.iter_mut().enumerate() {
            if slot.job.is_some() {
                continue;
            }
            if host.save(&slot.prompt, self.sizes) {
                host.update();
            }
            if self.setting.kv_unified {
                slot.prompt.clear();
                self.positions.cut(nth, 0);
            }
        }
    }

    /// `launch_slot_with_task`, `pre_decode`, and all that follows until the slot is released.
    fn serve(&mut self, nth: usize, job: usize, children: &[usize]) {
        let request = self.request(job);
        let record = &request.record;
        let slot = &mut self.slots[nth];
        if record.names_adapters && !keeps_for(slot.adapters, record.adapters) {
            slot.prompt.clear();
        }
        slot.adapters = record.adapters;
        if record.prompt >= self.setting.slot_context {
            self.at_work[job] = 1 + children.len();
            self.plan(self.now, Happening::Ends(nth));
            for &child in children {
                self.plan(self.now, Happening::Ends(child));
            }
            return;
        }
        let reused = self.reuse(nth, request);
        self.evaluate(nth, request, reused);
        let evaluated = record.prompt - reused;
        let launched = self.now + self.jobs[job].delay;
        let prompted = launched + self.rates.prompt_time(record, evaluated);
        self.at_work[job] = 1 + children.len();
        let slots = std::iter::once(nth).chain(children.iter().copied());
        let requests = std::iter::once(&self.jobs[job].request).chain(&self.jobs[job].children);
        for (slot, &answer) in slots.zip(requests) {
            let answered = &self.traffic.requests[answer];
            let took = answered
                .record
                .ended
                .saturating_sub(answered.record.prompted);
            self.outcomes[answer] = Some(Outcome {
                slot: slot as u32,
                reused,
                evaluated,
                arrived: self.arrived[job],
                launched,
                ended: prompted + took,
            });
            self.plan(prompted + took, Happening::Ends(slot));
        }
        self.make_room(nth);
    }

    /// How much of the prompt is there; the rest of what the slot had is gone then.
    fn reuse(&mut self, nth: usize, request: &TrafficRequest) -> u32 {
        let record = &request.record;
        let prompt = Content::new(Arc::clone(&request.tokens), record.prompt);
        let mut past = 0;
        if !record.uncached && !record.embedding {
            past = self.common(&self.slots[nth], &prompt);
            let slot = &mut self.slots[nth];
            let least = self.setting.cache_reuse;
            let moves = self.setting.memory == Memory::Full && !self.has_media;
            if least > 0 && moves {
                past = reuse::with_chunks(&slot.prompt.content, &prompt, past, least);
            }
            if let Some(at @ 1..) = record.activated_at {
                past = past.min(at - 1);
            }
            let first = self.positions.of(nth).0;
            let held = slot.prompt.content.len();
            let reach = checkpoints::reach(
                &mut slot.prompt.checkpoints,
                (past, record.prompt, held),
                first,
                self.setting,
            );
            past = reach.past;
            if let Some(first) = reach.restored {
                self.positions.restore(nth, (first, i64::from(past) - 1));
            }
        }
        if past == record.prompt && past > 0 {
            past -= 1;
        }
        self.positions.cut(nth, past);
        self.slots[nth].prompt.content = Content::new(Arc::clone(&request.tokens), past);
        past
    }

    /// The prompt, batch by batch, and then the answer.
    fn evaluate(&mut self, nth: usize, request: &TrafficRequest, from: u32) {
        let record = &request.record;
        let checks = !record.embedding
            && self.setting.ctx_checkpoints > 0
            && match self.setting.memory {
                Memory::Full => false,
                Memory::Window(_) => true,
                Memory::Recurrent => self.setting.generation != Generation::Of2025,
            };
        let marks = match checks {
            true => self.marks.of_prompt(request),
            false => Vec::new(),
        };
        let slot = &mut self.slots[nth];
        let mut begin = from;
        while begin < record.prompt {
            let held = &slot.prompt.checkpoints;
            let end = match checks {
                true => checkpoints::batch_end(begin, record.prompt, self.setting, &marks, held),
                false => record
                    .prompt
                    .min(begin.saturating_add(self.setting.batch_size)),
            };
            if checks {
                let (first, last) = self.positions.of(nth);
                let batch = Batch {
                    task: record.order,
                    begin,
                    end,
                    prompt: record.prompt,
                    marked: marks.contains(&begin),
                    last_marked: marks.last() == Some(&begin),
                    first,
                    last,
                };
                let checkpoints = &mut slot.prompt.checkpoints;
                checkpoints::note(checkpoints, &batch, self.setting, self.sizes);
            }
            let step = self.setting.ubatch_size;
            self.positions.write(nth, (begin, end), step);
            begin = end;
        }
        slot.media.clone_from(&record.media);
        self.answer(nth, request);
    }

    /// What the slot holds at the end of the answer, with the shifts on the way.
    fn answer(&mut self, nth: usize, request: &TrafficRequest) {
        let record = &request.record;
        let most = self.setting.slot_context.saturating_sub(1);
        let whole = request.tokens.len();
        let slot = &mut self.slots[nth];
        if whole <= most || !self.setting.context_shift {
            let end = whole.min(most);
            slot.prompt.content = Content::new(Arc::clone(&request.tokens), end);
            self.positions.write(nth, (record.prompt, end), 1);
            return;
        }
        let keep = match record.keep {
            0 => u32::from(self.begins_alike),
            keep => keep,
        };
        let row = Arc::new(shifted(&request.tokens, most, keep));
        slot.prompt.checkpoints.clear();
        slot.prompt.content = Content::new(Arc::clone(&row), row.len());
        self.positions.cut(nth, 0);
        self.positions.write(nth, (0, row.len()), 1);
    }

    /// `try_clear_idle_slots`: when a shared context is full, idle slots go in their order.
    fn make_room(&mut self, nth: usize) {
        if !self.setting.kv_unified {
            return;
        }
        let held = |slots: &[Slot]| -> u64 {
            let held = slots.iter().map(|slot| slot.prompt.content.len());
            held.map(u64::from).sum()
        };
        for other in 0..self.slots.len() {
            if held(&self.slots) <= u64::from(self.setting.context) {
                return;
            }
            if other != nth && self.slots[other].job.is_none() {
                self.slots[other].prompt.clear();
                self.positions.cut(other, 0);
            }
        }
    }

    /// `server_slot::release`; returns the job that waited longest, or for this slot.
    fn release(&mut self, nth: usize) -> Option<usize> {
        let slot = &mut self.slots[nth];
        let job = slot.job.take()?;
        self.releases += 1;
        slot.last_used = self.releases;
        let request = self.jobs[job].request;
        let is_child = self.outcomes[request].is_some_and(|first| first.slot as usize != nth);
        if is_child {
            // The parent's content is enough.
            slot.prompt.clear();
            self.positions.cut(nth, 0);
        }
        self.at_work[job] -= 1;
        if self.at_work[job] == 0 {
            self.finish(job);
        }
        let wants = |&job: &usize| {
            let asked = self.request(job).record.id_slot;
            asked.is_some_and(|asked| asked as usize == nth)
        };
        let waiting = self.queue.iter().position(wants).unwrap_or(0);
        self.queue.remove(waiting)
    }

    fn finish(&mut self, job: usize) {
        for (next, pause) in std::mem::take(&mut self.after[job]) {
            self.plan(self.now + pause, Happening::Comes(next));
        }
    }
}

/// `n_keep` tokens stay, half of the others go, as often as the slot is full.
fn shifted(tokens: &Tokens, most: u32, keep: u32) -> Tokens {
    let keep = keep.min((most + 1).saturating_sub(4));
    let mut row = Tokens::new();
    let mut at = 0;
    while at < tokens.len() {
        if row.len() >= most {
            let discard = (row.len() - keep) / 2;
            let mut left = Tokens::new();
            left.extend(&row, 0, keep);
            left.extend(&row, keep + discard.max(1), row.len());
            row = left;
        }
        let next = tokens.len().min(at + (most - row.len()).max(1));
        row.extend(tokens, at, next);
        at = next;
    }
    row
}

fn begins_alike(requests: &[TrafficRequest]) -> bool {
    let firsts = requests.iter().filter_map(|r| r.tokens.runs().first());
    let mut firsts = firsts.map(|run| run.first);
    let Some(first) = firsts.next() else {
        return false;
    };
    requests.len() > 1 && firsts.all(|other| other == first)
}
