//! Who sends what, and which answer was waited for.
//!
//! Clients wait for answers: however slow a server is, no more requests are at work than there are clients. A recording
//! does not name the clients. But each had one request at a time, so there were as many as requests were ever at work at
//! once. And prompts tell *sessions*: a prompt that shares tokens with an earlier one that no other session sent continues
//! its session, if that had been answered. A client goes on with its session. If another begins, a client takes
//! it that has the longest time until its own session goes on. What the client waited for is its own last answer.
//! If nothing was at work when the request came, it also waited for the last answer to any client.
//!
//! A client that does not think sends its next request after a few milliseconds, which it and the server's thread for it
//! are at work. If several answers end in the same batch, they are at work at once, on the same processors, and each takes
//! longer: with four answers three times as long was seen. Who is first may decide who gets a slot that still has its
//! session. So such a pause is kept as it would be after an answer that ended alone, and the simulation adds what those
//! that end with it make of that.
//!
//! To let requests come at their recorded times instead would be right of traffic that waits for nothing. But then
//! a small delay lets requests of one session pass each other, and a server that is a little too slow gets a queue that
//! grows without end: of a recording of two clients without pauses 50 % were found to be reused, and in truth it was 89 %.

use std::collections::{BTreeMap, HashMap};

use contextpilot_random::Random;
use contextpilot_traffic::TrafficRequest;

use super::job::{Arrival, Job, Wait, ended};
use crate::prefixes::Prefixes;

/// No client that thinks does so this briefly, microseconds.
const QUICK: u64 = 50_000;
/// Fewer tokens that prompts begin with say nothing of a session: a template begins all alike, and of made-up ones some do by
/// chance.
const SHARED: u32 = 16;
/// So many pauses must be known of either kind.
const ENOUGH: usize = 8;

/// How clients went on that do not think.
#[derive(Clone, Debug, Default)]
pub(crate) struct Haste {
    /// By how much each is later for each other answer that ends in the same batch as its own: the median, microseconds.
    pub(crate) crowding: u64,
    /// How long they took after answers that ended in the same batch, in the order of the slots: of each such batch whose
    /// clients all went on like this, microseconds. By how many answers ended.
    seen: BTreeMap<usize, Vec<Vec<u64>>>,
}

impl Haste {
    /// How long the clients take this time whose answers end in the same batch, as it was seen once of so many. `None`: it
    /// was not.
    pub(crate) fn draw(&self, clients: usize, random: &mut Random) -> Option<&[u64]> {
        let seen = self.seen.get(&clients)?;
        Some(&seen[random.index(seen.len())])
    }

    /// Whether clients were seen that do not think, and two at least whose answers ended in the same batch.
    pub(crate) fn is_known(&self) -> bool {
        self.seen.len() > 1
    }
}

/// When each job comes, and [`Job::ends_session`]. `queued`: when it came in the recording. Both in this order.
pub(super) fn arrivals(
    requests: &[TrafficRequest],
    jobs: &[Job],
    queued: &[u64],
) -> (Vec<(Arrival, Option<usize>)>, Haste) {
    let ends: Vec<u64> = jobs.iter().map(|job| ended(job, requests)).collect();
    let before = sessions(requests, jobs, queued, &ends);
    // When the session of each goes on.
    let mut next = vec![u64::MAX; jobs.len()];
    for (job, earlier) in before.iter().enumerate() {
        if let Some(earlier) = *earlier {
            next[earlier] = queued[job];
        }
    }
    let mut by_end: Vec<usize> = (0..jobs.len()).collect();
    by_end.sort_by_key(|&job| ends[job]);
    let at_once = at_once(queued, &before, &ends, &by_end);
    let mut over = by_end.iter().peekable();
    let mut last = None;
    let mut done = 0;
    // The last job of each client.
    let mut clients: Vec<usize> = Vec::new();
    let mut arrivals = Vec::with_capacity(jobs.len());
    for (job, &at) in queued.iter().enumerate() {
        while let Some(&earlier) = over.next_if(|&&earlier| ends[earlier] <= at) {
            last = Some(earlier);
            done += 1;
        }
        let is_free = |client: &usize| ends[clients[*client]] <= at;
        let own = before[job].and_then(|earlier| clients.iter().position(|&last| last == earlier));
        let free = (0..clients.len()).filter(is_free);
        let client = own
            .or_else(|| free.max_by_key(|&client| (next[clients[client]], ends[clients[client]])));
        let answer = client.map(|client| clients[client]);
        // One that names a slot does not stand in the queue, so it may have come before those in front of it.
        let was_idle = |last: &usize| done == job && *last < job && ends[*last] <= at;
        // One that goes on with its session at once has waited for that one's answer alone: with other flags another client may
        // be far behind.
        let goes_on = |last: &usize| {
            let own = own.map(|client| ends[clients[client]]);
            own.is_some_and(|own| at - own <= at_once || ends[*last] <= own)
        };
        let of_all = last.filter(|last| was_idle(last) && !goes_on(last));
        let mut waits: Vec<Wait> = Vec::new();
        for earlier in answer.into_iter().chain(of_all) {
            let pause = at - ends[earlier];
            let wait = Wait {
                job: earlier,
                pause,
                is_quick: pause <= QUICK,
                is_of_any: false,
            };
            if !waits.contains(&wait) {
                waits.push(wait);
            }
        }
        if let Some(wait) = waits.first_mut() {
            wait.is_of_any = before[job].is_none() && next[wait.job] == u64::MAX;
        }
        match client {
            Some(client) => clients[client] = job,
            None => clients.push(job),
        }
        arrivals.push(if waits.is_empty() {
            Arrival::At(at)
        } else {
            Arrival::After(waits)
        });
    }
    let mut together: HashMap<u64, u64> = HashMap::new();
    for end in &ends {
        *together.entry(*end).or_default() += 1;
    }
    let others = |wait: &Wait| together[&ends[wait.job]] - 1;
    let seen = seen(
        &arrivals,
        &ends,
        |job| requests[jobs[job].request].record.slot,
        &together,
    );
    let crowding = crowding(&arrivals, others);
    let waits = arrivals.iter_mut().filter_map(|arrival| match arrival {
        Arrival::At(_) => None,
        Arrival::After(waits) => Some(waits),
    });
    for wait in waits.flatten().filter(|wait| wait.is_quick) {
        wait.pause = wait
            .pause
            .saturating_sub(crowding.saturating_mul(others(wait)));
    }
    let ends_session = ends_session(&arrivals, &by_end, &next);
    let arrivals = arrivals.into_iter().zip(ends_session).collect();
    (arrivals, Haste { crowding, seen })
}

/// [`Job::ends_session`] of each. Only what frees a client counts: one that goes on after that very answer, whatever else
/// was answered before, must not begin another session as well.
fn ends_session(arrivals: &[Arrival], by_end: &[usize], next: &[u64]) -> Vec<Option<usize>> {
    let mut frees: Vec<bool> = next.iter().map(|&next| next == u64::MAX).collect();
    for arrival in arrivals {
        if let Arrival::After(waits) = arrival
            && let Some(own) = waits.first().filter(|wait| !wait.is_of_any)
        {
            frees[own.job] = false;
        }
    }
    let mut nth = vec![None; arrivals.len()];
    let over = by_end.iter().filter(|&&job| frees[job]);
    over.enumerate()
        .for_each(|(order, &job)| nth[job] = Some(order));
    nth
}

/// How long a client takes at most that goes on with its session at once: as long as any did whose request came while others were
/// at work, and so waited for that session's answer alone. `by_end`: all jobs in the order of their ends.
fn at_once(queued: &[u64], before: &[Option<usize>], ends: &[u64], by_end: &[usize]) -> u64 {
    let all = queued.iter().zip(before).enumerate();
    let pauses = all.filter_map(|(job, (&at, earlier))| {
        let over = by_end.partition_point(|&job| ends[job] <= at);
        let earlier = earlier.filter(|_| over < job)?;
        Some(at - ends[earlier])
    });
    let pauses: Vec<u64> = pauses.collect();
    let longest = pauses.iter().max().filter(|_| pauses.len() >= ENOUGH);
    longest.map_or(QUICK, |longest| QUICK.max(*longest))
}

/// See [`Haste`]. `together`: how many answers ended at each time.
fn seen(
    arrivals: &[Arrival],
    ends: &[u64],
    slot: impl Fn(usize) -> u32,
    together: &HashMap<u64, u64>,
) -> BTreeMap<usize, Vec<Vec<u64>>> {
    let mut batches: BTreeMap<u64, Vec<(u32, u64)>> = BTreeMap::new();
    for arrival in arrivals {
        if let Arrival::After(waits) = arrival
            && let Some(wait) = waits.first().filter(|wait| wait.is_quick)
        {
            let clients = batches.entry(ends[wait.job]).or_default();
            clients.push((slot(wait.job), wait.pause));
        }
    }
    let mut seen: BTreeMap<usize, Vec<Vec<u64>>> = BTreeMap::new();
    for (end, mut clients) in batches {
        if clients.len() as u64 == together[&end] {
            clients.sort_unstable();
            let pauses = clients.iter().map(|(_, pause)| *pause).collect();
            seen.entry(clients.len()).or_default().push(pauses);
        }
    }
    seen
}

/// By how much a quick client is later for each other answer that ended with its own: the median.
fn crowding(arrivals: &[Arrival], others: impl Fn(&Wait) -> u64) -> u64 {
    let own = arrivals.iter().filter_map(|arrival| match arrival {
        Arrival::At(_) => None,
        Arrival::After(waits) => waits.first().filter(|wait| wait.is_quick),
    });
    let (alone, crowded): (Vec<&Wait>, Vec<&Wait>) = own.partition(|wait| others(wait) == 0);
    if alone.len().min(crowded.len()) < ENOUGH {
        return 0;
    }
    let usual = median(alone.iter().map(|wait| wait.pause));
    median(
        crowded
            .iter()
            .map(|wait| wait.pause.saturating_sub(usual) / others(wait)),
    )
}

/// 0: there are none.
pub(super) fn median(of: impl Iterator<Item = u64>) -> u64 {
    let mut all: Vec<u64> = of.collect();
    all.sort_unstable();
    all.get(all.len() / 2).copied().unwrap_or(0)
}

/// The job whose session each goes on with.
fn sessions(
    requests: &[TrafficRequest],
    jobs: &[Job],
    queued: &[u64],
    ends: &[u64],
) -> Vec<Option<usize>> {
    let mut rows = Prefixes::new();
    // The last job of each session.
    let mut lasts: Vec<usize> = Vec::new();
    let continued = jobs.iter().enumerate().map(|(nth, job)| {
        let request = &requests[job.request];
        let session = rows
            .only(&request.tokens, request.record.prompt, SHARED)
            .filter(|&session| ends[lasts[session]] <= queued[nth]);
        let before = session.map(|session| lasts[session]);
        let session = session.unwrap_or(lasts.len());
        match lasts.get_mut(session) {
            Some(last) => *last = nth,
            None => lasts.push(nth),
        }
        rows.insert(&request.tokens, request.tokens.len(), session);
        before
    });
    continued.collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use contextpilot_traffic::{RequestRecord, Tokens};

    use super::*;
    use crate::made::row;

    /// When it came and ended, and its tokens: runs of identities, twenty each.
    fn request((arrived, ended): (u64, u64), runs: &[u64]) -> TrafficRequest {
        let runs: Vec<(u64, u32)> = runs.iter().map(|run| (100 * run, 20)).collect();
        let tokens = row(&runs);
        TrafficRequest {
            record: RequestRecord {
                arrived,
                launched: arrived,
                prompted: arrived,
                ended,
                prompt: tokens.len(),
                ..RequestRecord::default()
            },
            tokens: Arc::new(tokens),
            junction: Tokens::new(),
        }
    }

    /// For each: what it waits for, and the pause after that. Nothing: it comes at its time.
    fn waits(requests: &[TrafficRequest]) -> Vec<Vec<(usize, u64)>> {
        crowded(requests).0
    }

    /// The same, and by how much clients are later for each other answer that ends with their own.
    fn crowded(requests: &[TrafficRequest]) -> (Vec<Vec<(usize, u64)>>, u64) {
        let job = |request| Job {
            request,
            children: Vec::new(),
            arrival: Arrival::At(0),
            delay: 0,
            ends_session: None,
        };
        let jobs: Vec<Job> = (0..requests.len()).map(job).collect();
        let times: Vec<u64> = requests.iter().map(|asked| asked.record.arrived).collect();
        let (arrivals, haste) = arrivals(requests, &jobs, &times);
        let waits = arrivals
            .into_iter()
            .zip(&times)
            .map(|((arrival, _), &time)| match arrival {
                Arrival::At(at) => {
                    assert_eq!(at, time);
                    Vec::new()
                }
                Arrival::After(waits) => waits.iter().map(|wait| (wait.job, wait.pause)).collect(),
            });
        (waits.collect(), haste.crowding)
    }

    /// Two clients. In every other round their answers end together, and both are 2 ms later than after answers that
    /// ended alone; one thinks in between.
    #[test]
    fn who_hurries_is_later_if_answers_end_together() {
        let (mut requests, mut runs) = (Vec::new(), [vec![1, 2], vec![1, 3]]);
        let (mut came, thinks) = ([0, 0], [0, 1_000_000]);
        for round in 0..40 {
            let is_together = round % 2 == 0;
            let end = came[1].max(came[0]) + 100_000;
            let ends = [end, if is_together { end } else { end + 20_000 }];
            for client in 0..2 {
                requests.push(request((came[client], ends[client]), &runs[client]));
                runs[client].push(100 + 2 * round + client as u64);
                let pause = if is_together { 6000 } else { 4000 };
                let thinks = if round == 20 { thinks[client] } else { 0 };
                came[client] = ends[client] + pause + thinks;
            }
        }
        let (waits, crowding) = crowded(&requests);
        assert_eq!(crowding, 2000);
        let own = waits.iter().filter_map(|waits| waits.first());
        let pauses: Vec<u64> = own.map(|(_, pause)| *pause).collect();
        assert_eq!(pauses.len(), 78);
        let thought: Vec<&u64> = pauses.iter().filter(|pause| **pause > QUICK).collect();
        assert_eq!(thought, [&1_006_000]);
        assert!(pauses.iter().all(|pause| [4000, 1_006_000].contains(pause)));
    }

    /// The second one came late, though it was launched before the third, which names a slot. By the time at which the
    /// second one came, both others were answered, but not when the third came.
    #[test]
    fn what_came_before_those_in_front_of_it_waits_for_no_later_answer() {
        let requests = [
            request((0, 380), &[1]),
            request((400, 600), &[2]),
            request((150, 300), &[3]),
        ];
        assert_eq!(waits(&requests), [vec![], vec![(0, 20)], vec![]]);
    }

    /// All begin with run 1. What else they share is their session.
    #[test]
    fn a_client_goes_on_with_its_session() {
        let requests = [
            request((0, 100), &[1, 2]),
            request((10, 90), &[1, 3]),
            // Not behind the last answer of all, but behind its own.
            request((95, 200), &[1, 3, 4]),
            request((150, 300), &[1, 2, 5]),
            request((210, 250), &[1, 3, 4, 6]),
            // The first session goes on at 310, the second does not go on.
            request((305, 400), &[7, 8]),
            request((310, 320), &[1, 2, 5, 9]),
        ];
        let waits = waits(&requests);
        assert_eq!(waits[0], []);
        assert_eq!(waits[1], []);
        assert_eq!(waits[2], [(1, 5)]);
        assert_eq!(waits[3], [(0, 50)]);
        assert_eq!(waits[4], [(2, 10)]);
        // Nothing else was at work.
        assert_eq!(waits[5], [(4, 55), (3, 5)]);
        assert_eq!(waits[6], [(3, 10)]);
    }

    /// The second client's answer was there when the first one asked again, both times: at once, and after a second, in which it
    /// may have waited for the second's.
    #[test]
    fn who_goes_on_at_once_has_waited_for_its_own_answer_alone() {
        let requests = [
            request((0, 100), &[1]),
            request((50, 1000), &[2]),
            request((1010, 2000), &[1, 3]),
            request((1020, 3000), &[2, 4]),
            request((1_003_000, 1_004_000), &[1, 3, 5]),
        ];
        let waits = waits(&requests);
        assert_eq!(waits[2], [(0, 910)]);
        assert_eq!(waits[4], [(2, 1_001_000), (3, 1_000_000)]);
    }

    /// Both begin alike and are at work at once, so they are two sessions, whatever else was sent like that.
    #[test]
    fn who_does_not_wait_is_somebody_else() {
        let requests = [
            request((0, 100), &[1]),
            request((50, 300), &[1, 2]),
            request((120, 200), &[1, 3]),
            request((250, 400), &[1, 3, 4]),
            request((350, 500), &[1, 2, 5]),
        ];
        let waits = waits(&requests);
        assert_eq!(waits[1], []);
        assert_eq!(waits[2], [(0, 20)]);
        assert_eq!(waits[3], [(2, 50)]);
        assert_eq!(waits[4], [(1, 50)]);
    }

    /// The third begins with the first's first tokens, and is another session: so the first goes on with its own.
    #[test]
    fn a_few_tokens_in_common_are_no_session() {
        let mut requests = [
            request((0, 100), &[1, 2]),
            request((50, 300), &[3]),
            request((110, 600), &[4]),
            request((320, 400), &[1, 2, 5]),
        ];
        requests[2].tokens = Arc::new(row(&[(100, 15), (400, 20)]));
        assert_eq!(
            waits(&requests),
            [vec![], vec![], vec![(0, 10)], vec![(1, 20)]]
        );
        requests[2].tokens = Arc::new(row(&[(100, 16), (400, 20)]));
        requests[3].record.arrived = 620;
        assert_eq!(waits(&requests)[3][0], (2, 20));
    }

    #[test]
    fn one_client_waits_for_each_answer() {
        let requests = [
            request((0, 10), &[1, 2]),
            request((20, 30), &[3]),
            request((35, 40), &[1, 2, 4]),
        ];
        assert_eq!(waits(&requests), [vec![], vec![(0, 10)], vec![(1, 5)]]);
    }
}
