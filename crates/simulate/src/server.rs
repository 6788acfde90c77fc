//! The server: slots, the queue, the host cache (`server_context_impl`).

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use contextpilot_traffic::{Applied, Memory, Traffic, TrafficRequest};

use crate::files::Files;
use crate::host::{HostCache, Prompt};
use crate::marks::Marks;
use crate::point::Outcome;
use crate::rates::Rates;
use crate::setting::{Generation, Setting};
use crate::sizes::Sizes;
use crate::store::PrefixStore;
use crate::timeline::{Arrival, Coming, Job, Timeline, Wait};
use crate::times::Times;
use crate::window::Positions;

mod change;
mod choose;
mod serve;
mod work;

use work::Phase;

#[derive(Debug)]
struct Slot {
    prompt: Prompt,
    /// Places of media in it.
    media: Vec<(u32, u32)>,
    /// When it was released, in releases; −1: never.
    last_used: i64,
    adapters: Applied,
    /// The job that it works on.
    job: Option<usize>,
    /// How far it is with that.
    phase: Phase,
}

impl Default for Slot {
    fn default() -> Self {
        Self {
            prompt: Prompt::default(),
            media: Vec::new(),
            last_used: -1,
            adapters: Applied::default(),
            job: None,
            phase: Phase::Idle,
        }
    }
}

pub(crate) struct Server<'a> {
    traffic: &'a Traffic,
    jobs: &'a [Job],
    setting: &'a Setting,
    sizes: &'a Sizes,
    times: Times,
    marks: Marks,
    /// Then no chunks are moved.
    has_projector: bool,
    /// All prompts begin with the same token, which a shift keeps.
    begins_alike: bool,
    slots: Vec<Slot>,
    positions: Positions,
    pub(crate) host: Option<HostCache>,
    pub(crate) store: Option<PrefixStore>,
    queue: VecDeque<Coming>,
    /// With a number that keeps the order of what happens at the same time.
    ahead: BinaryHeap<Reverse<(u64, u64, Coming)>>,
    /// What comes after a job, and when.
    after: Vec<Vec<(Coming, Wait)>>,
    crowding: u64,
    /// For what waits for several jobs: for how many still, and when it comes at the earliest.
    waiting: HashMap<Coming, (usize, u64)>,
    /// Slots with prompts of which nothing was evaluated yet, if there is a prefix store.
    fresh: Vec<usize>,
    /// Slots that still work on a job.
    at_work: Vec<usize>,
    files: Files,
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
        timeline: &'a Timeline,
        setting: &'a Setting,
        sizes: &'a Sizes,
        rates: Rates,
    ) -> Self {
        let jobs = &*timeline.jobs;
        let batch =
            Setting::recorded(traffic).map_or(setting.batch_size, |recorded| recorded.batch_size);
        let mut server = Self {
            traffic,
            jobs,
            setting,
            sizes,
            times: Times::of(traffic, batch),
            marks: match Setting::recorded(traffic) {
                Some(recorded) if recorded.memory != Memory::Full => Marks::of(traffic, &recorded),
                _ => Marks::default(),
            },
            has_projector: traffic.has_projector(),
            begins_alike: begins_alike(&traffic.requests),
            slots: (0..setting.parallel).map(|_| Slot::default()).collect(),
            positions: Positions::new(setting),
            host: HostCache::of(setting),
            store: PrefixStore::of(setting, traffic, sizes, rates),
            queue: VecDeque::new(),
            ahead: BinaryHeap::new(),
            after: vec![Vec::new(); jobs.len()],
            crowding: timeline.crowding,
            waiting: HashMap::new(),
            fresh: Vec::new(),
            at_work: vec![0; jobs.len()],
            files: Files::of(traffic),
            arrived: vec![0; jobs.len()],
            count: 0,
            releases: 0,
            now: 0,
            outcomes: vec![None; traffic.requests.len()],
        };
        for (coming, arrival) in timeline.all() {
            match arrival {
                Arrival::At(time) => server.plan(*time, coming),
                Arrival::After(waits) => {
                    for &wait in waits {
                        server.after[wait.job].push((coming, wait));
                    }
                    if waits.len() > 1 {
                        server.waiting.insert(coming, (waits.len(), 0));
                    }
                }
            }
        }
        server
    }

    /// All that was recorded.
    pub(crate) fn run(&mut self) {
        loop {
            while let Some(coming) = self.came() {
                self.offer(coming);
            }
            if self.work() {
                continue;
            }
            match self.next_arrival() {
                Some(time) => {
                    if !self.sleeps_as_recorded() && self.falls_asleep(time) {
                        self.sleep();
                    }
                    self.now = time;
                }
                None => break,
            }
        }
    }

    /// What kept the recorded server awake is not recorded (questions for its slots and metrics), but when it slept is.
    fn sleeps_as_recorded(&self) -> bool {
        let setup = self.traffic.setup.as_ref();
        setup.is_some_and(|setup| setup.sleep_idle_seconds == self.setting.sleep_idle_seconds)
    }

    /// Whether the server, which has nothing to do, sleeps before something comes at this time.
    fn falls_asleep(&self, next: u64) -> bool {
        let after = self.setting.sleep_idle_seconds;
        after.is_some_and(|seconds| next.saturating_sub(self.now) >= u64::from(seconds) * 1_000_000)
    }

    /// When the next job or change comes.
    fn next_arrival(&self) -> Option<u64> {
        self.ahead.peek().map(|Reverse((time, ..))| *time)
    }

    /// What came first of what has come by now.
    fn came(&mut self) -> Option<Coming> {
        let time = self.next_arrival().filter(|time| *time <= self.now)?;
        let Reverse((.., coming)) = self.ahead.pop()?;
        if let Coming::Job(job) = coming {
            self.arrived[job] = time;
        }
        Some(coming)
    }

    /// Slots end after the same batch, in their order. Each calls one of those that wait, and puts it in front of those
    /// that were called before. What came during that batch has not been looked at yet, and stands behind those.
    fn release_all(&mut self, ended: &[usize]) {
        let called: Vec<Coming> = ended
            .iter()
            .filter_map(|slot| self.release(*slot, ended.len() as u64 - 1))
            .collect();
        called.into_iter().rev().for_each(|one| self.offer(one));
    }

    fn plan(&mut self, time: u64, coming: Coming) {
        self.count += 1;
        self.ahead.push(Reverse((time, self.count, coming)));
    }

    fn request(&self, job: usize) -> &'a TrafficRequest {
        &self.traffic.requests[self.jobs[job].request]
    }

    /// `process_single_task`
    fn offer(&mut self, coming: Coming) {
        let done = match coming {
            Coming::Job(job) => self.take_on(job),
            Coming::Change(change) => self.change(change),
        };
        if !done {
            self.queue.push_back(coming);
        }
    }

    /// Whether there are slots for the job now.
    fn take_on(&mut self, job: usize) -> bool {
        let request = self.request(job);
        let Some(slot) = self.choose(request) else {
            return false;
        };
        let children = self.jobs[job].children.len();
        if children >= self.slots.len() {
            // The server refuses it: more answers than slots.
            self.finish(job, 0);
            return true;
        }
        let mut free = self.idle();
        free.retain(|&other| other != slot);
        if self.setting.generation != Generation::Late2026 {
            free.sort_unstable();
        }
        free.truncate(children);
        if free.len() < children {
            return false;
        }
        self.slots[slot].job = Some(job);
        for &other in &free {
            self.slots[other].job = Some(job);
        }
        self.save_idle();
        self.now = self.now.saturating_add(self.jobs[job].delay);
        self.serve(slot, job, &free);
        true
    }

    /// `server_slot::release`; returns what waited longest, or for this slot. `others`: how many end with it.
    fn release(&mut self, nth: usize, others: u64) -> Option<Coming> {
        let slot = &mut self.slots[nth];
        let job = slot.job.take()?;
        slot.phase = Phase::Idle;
        self.releases += 1;
        slot.last_used = self.releases;
        let request = self.jobs[job].request;
        let is_child = self.outcomes[request].is_some_and(|first| first.slot as usize != nth);
        for answer in self.jobs[job].requests() {
            if let Some(outcome) = self.outcomes[answer]
                .as_mut()
                .filter(|o| o.slot as usize == nth)
            {
                outcome.ended = self.now;
            }
        }
        let is_embedding = self.traffic.requests[request].record.embedding;
        // A further answer's slot: the parent's content is enough.
        if is_child || is_embedding && self.setting.generation.empties_after_embedding() {
            self.erase(nth);
        }
        self.at_work[job] -= 1;
        if self.at_work[job] == 0 {
            self.finish(job, others);
        }
        let wants = |coming: &Coming| {
            let Coming::Job(job) = *coming else {
                return false;
            };
            let asked = self.request(job).record.id_slot;
            asked.is_some_and(|asked| asked as usize == nth)
        };
        let waiting = self.queue.iter().position(wants).unwrap_or(0);
        self.queue.remove(waiting)
    }

    /// A slot keeps only the first `kept` tokens of what it holds in the engine.
    fn cut(&mut self, nth: usize, kept: u32) {
        if let Some(store) = &mut self.store {
            store.cut(nth, kept);
        }
        self.positions.cut(nth, kept);
    }

    /// The job is answered, in the same batch as so many others.
    fn finish(&mut self, job: usize, others: u64) {
        for (next, wait) in std::mem::take(&mut self.after[job]) {
            let mut time = self.now.saturating_add(wait.pause);
            if wait.is_quick {
                time = time.saturating_add(self.crowding.saturating_mul(others));
            }
            if let Some((left, earliest)) = self.waiting.get_mut(&next) {
                *left -= 1;
                *earliest = time.max(*earliest);
                if *left > 0 {
                    continue;
                }
                time = *earliest;
            }
            self.plan(time, next);
        }
    }
}

fn begins_alike(requests: &[TrafficRequest]) -> bool {
    let firsts = requests.iter().filter_map(|r| r.tokens.runs().first());
    let mut firsts = firsts.map(|run| run.first);
    let Some(first) = firsts.next() else {
        return false;
    };
    requests.len() > 1 && firsts.all(|other| other == first)
}
