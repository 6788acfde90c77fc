//! The server: slots, the queue, the host cache (`server_context_impl`).

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use contextpilot_random::Random;
use contextpilot_traffic::{Applied, Traffic, TrafficRequest};

use crate::alike::Alike;
use crate::content::Content;
use crate::files::Files;
use crate::host::{HostCache, Prompt};
use crate::marks::Marks;
use crate::point::Outcome;
use crate::replay::Replay;
use crate::setting::{Generation, Setting};
use crate::sizes::Sizes;
use crate::store::PrefixStore;
use crate::timeline::{Arrival, Coming, Haste, Job, Wait};
use crate::times::Times;
use crate::window::Positions;

mod change;
mod choose;
mod follow;
mod serve;
mod work;

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

/// How far a slot is with its job.
#[derive(Clone, Copy, Debug, Default)]
enum Phase {
    /// There is no job.
    #[default]
    Idle,
    /// The prompt is evaluated, from the position `at` on. What is before `loaded` comes from the prefix store, and
    /// takes no time.
    Prompt { at: u32, loaded: u32 },
    /// A further answer (the request of that number) waits for the prompt, which another slot evaluates.
    Waits { answer: usize },
    /// Tokens are generated, one with each batch: so many, and each takes so long if there are no prompts. Microseconds.
    Answer { left: u64, step: u64 },
}

/// How long a client takes until its next request that does not think, microseconds.
#[derive(Clone, Copy, Debug)]
enum Pause {
    Is(u64),
    /// So much longer than after an answer that ended alone.
    Grows(u64),
}

pub(crate) struct SimulatedServer<'a> {
    traffic: &'a Traffic,
    jobs: &'a [Job],
    setting: &'a Setting,
    sizes: &'a Sizes,
    times: &'a Times,
    marks: &'a Marks,
    alike: &'a Alike,
    has_projector: bool,
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
    /// What comes after the n-th session that ends, and how many have ended.
    next_sessions: Vec<Option<(Coming, Wait)>>,
    sessions_over: usize,
    haste: &'a Haste,
    /// How long clients take that do not think is drawn by this. `None`: it is as in the recording.
    drawn: Option<Random>,
    /// The slot that the recorded server chose, where that is followed.
    forced: Option<usize>,
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
    /// Tokens of prompts that were reused or loaded.
    spared: u64,
    pub(crate) outcomes: Vec<Option<Outcome>>,
}

impl<'a> SimulatedServer<'a> {
    pub(crate) fn new(replay: &'a Replay<'a>, setting: &'a Setting) -> Self {
        let Replay {
            traffic,
            sizes,
            timeline,
            ..
        } = replay;
        let jobs = &*timeline.jobs;
        let mut server = Self {
            traffic,
            jobs,
            setting,
            sizes,
            times: &replay.times,
            marks: &replay.marks,
            alike: &replay.alike,
            has_projector: replay.has_projector,
            begins_alike: replay.begins_alike,
            slots: (0..setting.server.parallel)
                .map(|_| Slot::default())
                .collect(),
            positions: Positions::new(setting),
            host: HostCache::with_limit_of(setting),
            store: PrefixStore::new(setting, traffic, sizes, replay.rates),
            queue: VecDeque::new(),
            ahead: BinaryHeap::new(),
            after: vec![Vec::new(); jobs.len()],
            next_sessions: vec![None; jobs.len()],
            sessions_over: 0,
            haste: &timeline.haste,
            drawn: None,
            forced: None,
            waiting: HashMap::new(),
            fresh: Vec::new(),
            at_work: vec![0; jobs.len()],
            files: Files::new(traffic),
            arrived: vec![0; jobs.len()],
            count: 0,
            releases: 0,
            now: 0,
            spared: 0,
            outcomes: vec![None; traffic.requests.len()],
        };
        for (coming, arrival) in timeline.all() {
            match arrival {
                Arrival::At(time) => server.plan(*time, coming),
                Arrival::After(waits) => {
                    for &wait in waits {
                        match jobs[wait.job].ends_session.filter(|_| wait.is_of_any) {
                            Some(nth) => server.next_sessions[nth] = Some((coming, wait)),
                            None => server.after[wait.job].push((coming, wait)),
                        }
                    }
                    if waits.len() > 1 {
                        server.waiting.insert(coming, (waits.len(), 0));
                    }
                }
            }
        }
        server
    }

    /// Clients that do not think take as long as others of the recording did.
    pub(crate) fn draw(&mut self, random: Random) {
        self.drawn = Some(random);
    }

    /// All that was recorded.
    pub(crate) fn run(&mut self) {
        self.run_until(|_| false);
    }

    /// The same, but no further than until so many tokens were spared. Returns whether they were.
    pub(crate) fn run_until(&mut self, is_enough: impl Fn(u64) -> bool) -> bool {
        loop {
            if is_enough(self.spared) {
                return true;
            }
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
                None => return false,
            }
        }
    }

    /// What kept the recorded server awake is not recorded (questions for its slots and metrics), but when it slept is.
    fn sleeps_as_recorded(&self) -> bool {
        let setup = self.traffic.setup.as_ref();
        setup
            .is_some_and(|setup| setup.sleep_idle_seconds == self.setting.server.sleep_idle_seconds)
    }

    /// Whether the server, which has nothing to do, sleeps before something comes at this time.
    fn falls_asleep(&self, next: u64) -> bool {
        let after = self.setting.server.sleep_idle_seconds;
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
        let haste = self.haste;
        let drawn = self.drawn.as_mut();
        let drawn = drawn.and_then(|random| haste.draw(ended.len(), random));
        let called: Vec<Coming> = ended
            .iter()
            .enumerate()
            .filter_map(|(nth, slot)| {
                let pause = match drawn {
                    Some(pauses) => Pause::Is(pauses[nth]),
                    None => Pause::Grows(haste.crowding.saturating_mul(ended.len() as u64 - 1)),
                };
                self.release(*slot, pause)
            })
            .collect();
        called
            .into_iter()
            .rev()
            .for_each(|coming| self.offer(coming));
    }

    fn plan(&mut self, time: u64, coming: Coming) {
        self.count += 1;
        self.ahead.push(Reverse((time, self.count, coming)));
    }

    fn request(&self, job: usize) -> &'a TrafficRequest {
        &self.traffic.requests[self.jobs[job].request]
    }

    /// The first `length` tokens of a job's request.
    fn content(&self, job: usize, length: u32) -> Content {
        let row = &self.request(job).tokens;
        Content::of_request(self.alike, self.jobs[job].request, row, length)
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
        let Some(slot) = self.choose(job) else {
            return false;
        };
        let children = self.jobs[job].children.len();
        if children >= self.slots.len() {
            // The server refuses it: more answers than slots.
            self.finish(job, Pause::Grows(0));
            return true;
        }
        let mut free = match children {
            0 => Vec::new(),
            _ => self.idle(),
        };
        free.retain(|&other| other != slot);
        if self.setting.generation != Generation::Late2026 {
            free.sort_unstable();
        }
        if self.forced.is_some() {
            let recorded = self.recorded_slots(job);
            free.sort_by_key(|other| !recorded.contains(other));
        }
        free.truncate(children);
        if free.len() < children {
            return false;
        }
        self.slots[slot].job = Some(job);
        // Those for further answers are idle until the prompt is launched, and saved as the others are.
        self.save_idle();
        for &other in &free {
            self.slots[other].job = Some(job);
        }
        self.now = self.now.saturating_add(self.jobs[job].delay);
        self.serve(slot, job, &free);
        true
    }

    /// The slots that further answers got in the recording.
    fn recorded_slots(&self, job: usize) -> Vec<usize> {
        let children = self.jobs[job].children.iter();
        children
            .map(|&answer| self.traffic.requests[answer].record.slot as usize)
            .collect()
    }

    /// `server_slot::release`; returns what waited longest, or for this slot. `haste`: of a client that does not think.
    fn release(&mut self, nth: usize, haste: Pause) -> Option<Coming> {
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
            self.finish(job, haste);
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
            store.cut(nth, kept, &mut self.positions);
        }
        self.positions.cut(nth, kept);
    }

    /// The job is answered. `haste`: as in [`Self::release`].
    fn finish(&mut self, job: usize, haste: Pause) {
        let mut after = std::mem::take(&mut self.after[job]);
        if self.jobs[job].ends_session.is_some() {
            let next = self.next_sessions.get_mut(self.sessions_over);
            after.extend(next.and_then(Option::take));
            self.sessions_over += 1;
        }
        for (next, wait) in after {
            let pause = match haste {
                Pause::Is(pause) if wait.is_quick => pause,
                Pause::Grows(more) if wait.is_quick => wait.pause.saturating_add(more),
                _ => wait.pause,
            };
            let mut time = self.now.saturating_add(pause);
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
