//! Which request waits for which.

use contextpilot_traffic::{Traffic, TrafficChange, TrafficRequest};

mod clients;
mod job;

pub(crate) use clients::Haste;
use clients::median;
use job::ended;
pub(crate) use job::{Arrival, Coming, Job, Wait};

/// All that comes.
#[derive(Clone, Debug)]
pub(crate) struct Timeline {
    /// In the order of their arrivals.
    pub(crate) jobs: Vec<Job>,
    /// When each change comes.
    changes: Vec<Arrival>,
    /// How clients go on that do not think.
    pub(crate) haste: Haste,
}

impl Timeline {
    /// Of a recording.
    pub(crate) fn new(traffic: &Traffic) -> Self {
        let (jobs, haste) = jobs(traffic);
        let changes = changes(traffic, &jobs);
        Self {
            jobs,
            changes,
            haste,
        }
    }

    /// What comes when. Changes first: whatever is planned for the same time happens in this order.
    pub(crate) fn all(&self) -> impl Iterator<Item = (Coming, &Arrival)> + '_ {
        let changes = self.changes.iter().enumerate();
        let changes = changes.map(|(nth, arrival)| (Coming::Change(nth), arrival));
        let jobs = self.jobs.iter().enumerate();
        changes.chain(jobs.map(|(nth, job)| (Coming::Job(nth), &job.arrival)))
    }
}

/// The jobs of a recording, in the order of their arrivals, and [`Timeline::haste`].
fn jobs(traffic: &Traffic) -> (Vec<Job>, Haste) {
    let requests = &traffic.requests;
    let mut jobs: Vec<Job> = Vec::new();
    let mut children = Vec::new();
    for (nth, request) in requests.iter().enumerate() {
        if request.record.child {
            children.push(nth)
        } else {
            jobs.push(Job {
                request: nth,
                children: Vec::new(),
                arrival: Arrival::At(request.record.arrived),
                delay: 0,
                ends_session: None,
            })
        }
    }
    for child in children {
        let record = &requests[child].record;
        let parents = jobs.iter_mut().filter(|job| {
            let parent = &requests[job.request].record;
            parent.arrived == record.arrived && parent.prompt == record.prompt
        });
        let distance = |job: &&mut Job| requests[job.request].record.order.abs_diff(record.order);
        if let Some(parent) = parents.min_by_key(distance) {
            parent.children.push(child);
        }
    }
    let mut ends: Vec<u64> = requests.iter().map(|r| r.record.ended).collect();
    ends.sort_unstable();
    let mut queued = queued(requests, &ends, &mut jobs);
    let mut delays = delays(requests, &jobs, &mut queued).into_iter();
    let (arrivals, haste) = clients::arrivals(requests, &jobs, &queued);
    for (job, (arrival, ends_session)) in jobs.iter_mut().zip(arrivals) {
        job.delay = delays.next().unwrap_or(0);
        job.arrival = arrival;
        job.ends_session = ends_session;
    }
    (jobs, haste)
}

/// How long it took to take each job on. That is known of one that waited for a slot, and where the server's thread had
/// nothing else to do. Elsewhere the median counts, and not more than the time since something else is known to have
/// happened. One that was taken on while answers were generated, long after that, has come that late: its time in
/// `queued` is corrected, and of those that stand behind it in the queue, too.
fn delays(requests: &[TrafficRequest], jobs: &[Job], queued: &mut [u64]) -> Vec<u64> {
    let prompts = Prompts::new(requests);
    // Of what happened at the same time, what frees a slot comes last.
    let moments = requests.iter().flat_map(|r| {
        let record = &r.record;
        let ended = (record.ended, true);
        [(record.launched, false), (record.prompted, false), ended]
    });
    let mut moments: Vec<(u64, bool)> = moments.collect();
    moments.sort_unstable();
    let answers = requests
        .iter()
        .map(|r| (r.record.prompted, r.record.ended))
        .filter(|(begin, end)| end > begin);
    let mut answers: Vec<(u64, u64)> = answers.collect();
    answers.sort_unstable();
    let measure = |(job, &queued): (&Job, &u64)| {
        let record = &requests[job.request].record;
        let launched = record.launched;
        let mut at_work = prompts.added_before(launched);
        let evaluates = at_work.any(|(_, evaluated)| evaluated > launched);
        let begun = answers.partition_point(|&(begin, _)| begin < launched);
        let mut latest = answers[..begun].iter().rev().take(SLOTS);
        let generates = latest.any(|&(_, end)| end > launched);
        let before = moments.partition_point(|&(moment, _)| moment < launched);
        let last = before.checked_sub(1).map(|last| moments[last]);
        let (last, frees) = last.unwrap_or((0, false));
        let waits = frees && record.arrived <= last;
        let most = launched - last.max(queued).min(launched);
        (most, waits || !(evaluates || generates), evaluates)
    };
    let measured: Vec<(u64, bool, bool)> = jobs.iter().zip(queued.iter()).map(measure).collect();
    let known = measured.iter().filter(|(_, is_known, _)| *is_known);
    let median = median(known.map(|(most, ..)| *most));
    let mut earliest = 0;
    let taken = jobs.iter().zip(queued).zip(measured);
    let delays = taken.map(|((job, queued), (most, is_known, evaluates))| {
        let record = &requests[job.request].record;
        let delay = if is_known { most } else { most.min(median) };
        if record.id_slot.is_none() && job.children.is_empty() {
            if !is_known && !evaluates && most > median {
                *queued = record.launched - delay;
            }
            *queued = earliest.max(*queued);
            earliest = *queued + 1;
        }
        delay
    });
    delays.collect()
}

/// Sorts jobs by when they came into the queue, and says when that was at the earliest.
fn queued(requests: &[TrafficRequest], ends: &[u64], jobs: &mut [Job]) -> Vec<u64> {
    jobs.sort_by_key(|job| requests[job.request].record.order);
    let (times, order): (Vec<u64>, Vec<usize>) =
        order_of_queue(requests, ends, jobs).into_iter().unzip();
    let mut sorted: Vec<Job> = order.into_iter().map(|nth| jobs[nth].clone()).collect();
    jobs.swap_with_slice(&mut sorted);
    apart(times)
}

/// When jobs came into the queue, and which. A recording says when a request arrived. Its prompt is
/// tokenized after that, so that of several requests at once the first to arrive need not be the first in
/// the queue. But the order in which they were launched tells: the queue is served in its order, except
/// that slots which end at once each call one of those that wait, and put it in front of the one before
/// (see `SimulatedServer::release_all`). `jobs`: in the order in which they were launched.
fn order_of_queue(requests: &[TrafficRequest], ends: &[u64], jobs: &[Job]) -> Vec<(u64, usize)> {
    let over = |time: u64| ends.partition_point(|&end| end <= time);
    let record = |nth: usize| &requests[jobs[nth].request].record;
    let mut queued: Vec<(u64, usize)> = Vec::with_capacity(jobs.len());
    let prompts = Prompts::new(requests);
    let mut latest = 0;
    let all: Vec<usize> = (0..jobs.len()).collect();
    for together in all.chunk_by(|&a, &b| over(record(a).launched) == over(record(b).launched)) {
        let last = over(record(together[0]).launched).checked_sub(1);
        let end = last.map(|last| ends[last]);
        let began = end.map_or(0, |end| batch_began(prompts.added_before(end), end));
        let (waiting, came) = together
            .iter()
            .partition::<Vec<usize>, _>(|&&nth| record(nth).arrived <= began);
        for nth in waiting.into_iter().rev().chain(came) {
            let record = record(nth);
            // Those that name a slot, or want several, wait for these.
            let for_any = record.id_slot.is_none() && jobs[nth].children.is_empty();
            let at = if for_any {
                record.arrived.max(latest).min(record.launched)
            } else {
                record.arrived
            };
            if for_any {
                latest = at;
            }
            queued.push((at, nth));
        }
    }
    // Stable: at the same time in the order of the queue.
    queued.sort_by_key(|&(at, _)| at);
    queued
}

/// The same times in the same order, no two alike: in a simulation, requests of the same time may follow
/// different answers, and must not pass each other for that.
fn apart(times: Vec<u64>) -> Vec<u64> {
    let mut next = 0;
    let after = |at: u64| {
        let at = at.max(next);
        next = at + 1;
        at
    };
    times.into_iter().map(after).collect()
}

/// At most so many prompts are evaluated at once: more slots than a server has.
const SLOTS: usize = 256;

/// When each prompt was added to the batch, and when it was evaluated, in this order.
struct Prompts(Vec<(u64, u64)>);

impl Prompts {
    fn new(requests: &[TrafficRequest]) -> Self {
        let both = requests
            .iter()
            .map(|r| (r.record.launched, r.record.prompted));
        let mut all: Vec<(u64, u64)> = both.collect();
        all.sort_unstable();
        Self(all)
    }

    /// Those that can still have been at work.
    fn added_before(&self, time: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let added = self.0.partition_point(|&(added, _)| added < time);
        self.0[..added].iter().rev().take(SLOTS).copied()
    }
}

/// When the batch began that was over at `end`: when the last prompt was added that it evaluated. One that
/// evaluated none is short, and counts as nothing. `prompts`: when each was added, and evaluated.
fn batch_began(prompts: impl Iterator<Item = (u64, u64)>, end: u64) -> u64 {
    let at_work = prompts.filter(|&(_, evaluated)| evaluated >= end);
    at_work.map(|(added, _)| added).max().unwrap_or(end)
}

/// A change that came while nothing was at work comes after the last of what had been.
fn changes(traffic: &Traffic, jobs: &[Job]) -> Vec<Arrival> {
    let mut ends: Vec<(u64, usize)> = (0..jobs.len())
        .map(|job| (ended(&jobs[job], &traffic.requests), job))
        .collect();
    ends.sort_unstable();
    let mut launched: Vec<u64> = jobs
        .iter()
        .map(|job| traffic.requests[job.request].record.order)
        .collect();
    launched.sort_unstable();
    let arrival = |change: &TrafficChange| {
        let record = &change.record;
        let over = ends.partition_point(|&(end, _)| end <= record.at);
        let before = launched.partition_point(|&order| order < record.order);
        match over.checked_sub(1).filter(|_| over == before) {
            Some(last) => Arrival::After(vec![Wait {
                job: ends[last].1,
                pause: record.at - ends[last].0,
                is_quick: false,
                is_of_any: false,
            }]),
            None => Arrival::At(record.at),
        }
    };
    traffic.changes.iter().map(arrival).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use contextpilot_traffic::{RequestRecord, Tokens};

    use super::*;

    /// How long it takes to take on requests that arrive, are launched, have their prompt evaluated and are answered then.
    fn delays(all: &[(u64, u64, u64, u64)]) -> Vec<u64> {
        let request = |&(arrived, launched, prompted, ended): &_| TrafficRequest {
            record: RequestRecord {
                order: launched,
                arrived,
                launched,
                prompted,
                ended,
                prompt: 10,
                evaluated: 10,
                ..RequestRecord::default()
            },
            tokens: Arc::default(),
            junction: Tokens::new(),
        };
        let traffic = Traffic {
            requests: all.iter().map(request).collect(),
            ..Traffic::default()
        };
        let jobs = Timeline::new(&traffic).jobs;
        jobs.iter().map(|job| job.delay).collect()
    }

    #[test]
    fn a_request_that_waits_for_nothing_is_taken_on_by_an_idle_thread() {
        let all = [(1000, 1400, 1500, 1600), (3000, 3700, 3800, 3900)];
        assert_eq!(delays(&all), [400, 700]);
    }

    /// Nothing was generated yet when the second was taken on: the thread could have done so before.
    #[test]
    fn an_answer_that_begins_then_keeps_nobody_waiting() {
        let all = [(0, 0, 1000, 5000), (200, 1000, 1500, 6000)];
        assert_eq!(delays(&all), [0, 800]);
    }
}
