//! Who sends what, and which answer was waited for.
//!
//! Clients wait for answers: however slow a server is, no more requests are at work than there are clients. A recording
//! does not name the clients. But each had one request at a time, so there were as many as requests were ever at work at
//! once. And prompts tell *sessions*: a prompt that shares tokens with an earlier one that nobody else sent continues
//! its session, if that had been answered. A client goes on with its session. If another begins, a client takes
//! it that has the longest time until its own session goes on. What the client waited for is its own last answer.
//! If nothing was at work when the request came, it also waited for the last answer to anybody.
//!
//! To let requests come at their recorded times instead would be right of traffic that waits for nothing. But then
//! a small delay lets requests of one session pass each other, and a server that is a little too slow gets a queue that
//! grows without end: of a recording of two clients without pauses 50 % were found to be reused, and in truth it was 89 %.

use contextpilot_traffic::TrafficRequest;

use super::{Arrival, Job, Wait, ended};
use crate::prefixes::Prefixes;

/// When each job comes. `queued`: when it came in the recording. Both in this order.
pub(super) fn arrivals(requests: &[TrafficRequest], jobs: &[Job], queued: &[u64]) -> Vec<Arrival> {
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
        let of_all = last.filter(|&last| done == job && last < job);
        let mut waits: Vec<Wait> = Vec::new();
        for earlier in answer.into_iter().chain(of_all) {
            let wait = Wait {
                job: earlier,
                pause: at - ends[earlier],
            };
            if !waits.contains(&wait) {
                waits.push(wait);
            }
        }
        match client {
            Some(client) => clients[client] = job,
            None => clients.push(job),
        }
        arrivals.push(match waits.is_empty() {
            true => Arrival::At(at),
            false => Arrival::After(waits),
        });
    }
    arrivals
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
        let session = rows.only(&request.tokens, request.record.prompt);
        let session = session.filter(|&session| ends[lasts[session]] <= queued[nth]);
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

    use contextpilot_traffic::{RequestRecord, Run, Tokens};

    use super::*;

    /// When it came and ended, and its tokens: runs of identities, ten each.
    fn request((arrived, ended): (u64, u64), runs: &[u64]) -> TrafficRequest {
        let mut tokens = Tokens::new();
        for run in runs {
            tokens.push(Run {
                first: 100 * run,
                length: 10,
            });
        }
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
        let job = |request| Job {
            request,
            children: Vec::new(),
            arrival: Arrival::At(0),
            delay: 0,
        };
        let jobs: Vec<Job> = (0..requests.len()).map(job).collect();
        let times: Vec<u64> = requests.iter().map(|one| one.record.arrived).collect();
        let arrivals = arrivals(requests, &jobs, &times).into_iter();
        let waits = arrivals.zip(&times).map(|(arrival, &time)| match arrival {
            Arrival::At(at) => {
                assert_eq!(at, time);
                Vec::new()
            }
            Arrival::After(waits) => waits.iter().map(|wait| (wait.job, wait.pause)).collect(),
        });
        waits.collect()
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
