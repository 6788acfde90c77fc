//! The connections that are open: how many there may be, what each is doing, and how long it may take.
//!
//! Places are never all taken by clients that do nothing. If none is left, a new connection takes that of a client
//! that is expected to send something: first of one that is slow within a request, then of one that waits between two.
//! If all of them wait for answers, the new one gets a place of the reserve, for requests that must not wait
//! ([`Handler::urgent`](crate::Handler::urgent)).

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::task::AbortHandle;

/// A request on this machine or in its network arrives in less.
const SLOW: Duration = Duration::from_secs(1);

/// The limits for clients.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at a time.
    pub connections: usize,
    /// Further ones, for urgent requests alone.
    pub reserve: usize,
    /// How long the head of a request may take to arrive.
    pub head: Duration,
    /// How long the body of a request may take to arrive, and a second more for each 64 KiB.
    pub body: Duration,
    /// How long a kept connection may be idle.
    pub idle: Duration,
    /// How long a client may read nothing of its answer.
    pub answer: Duration,
    /// How long answers may still take after the server was asked to stop.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1024,
            reserve: 64,
            head: Duration::from_secs(20),
            body: Duration::from_secs(30),
            idle: Duration::from_secs(75),
            answer: Duration::from_secs(60),
            drain: Duration::from_secs(5),
        }
    }
}

/// What was refused, and to how many.
#[derive(Debug, Default)]
pub struct Tally {
    open: AtomicU64,
    displaced: AtomicU64,
    late: AtomicU64,
    refused: AtomicU64,
    forbidden: AtomicU64,
    busy: AtomicU64,
}

/// A [`Tally`] at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections now.
    pub open: u64,
    /// Connections that were closed because others needed their places.
    pub displaced: u64,
    /// Connections that were closed, and requests that got 408, because they took longer than they may.
    pub late: u64,
    /// Requests that got 503 because all places were taken, or 431 because their head was too long.
    pub refused: u64,
    /// Requests that got 403 or 421: of a web page, or with a `Host` that is not allowed.
    pub forbidden: u64,
    /// Requests that got 429 because too many waited for a thread ([`Lane`](crate::Lane)).
    pub busy: u64,
}

impl Tally {
    /// What was counted so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            open: of(&self.open),
            displaced: of(&self.displaced),
            late: of(&self.late),
            refused: of(&self.refused),
            forbidden: of(&self.forbidden),
            busy: of(&self.busy),
        }
    }

    pub(crate) fn late(&self) {
        self.late.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn forbidden(&self) {
        self.forbidden.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn busy(&self) {
        self.busy.fetch_add(1, Ordering::Relaxed);
    }
}

/// What a client is expected to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// To begin a request.
    Idle,
    /// To send the rest of a head.
    Head,
    /// To send the rest of a body.
    Body,
    /// Nothing: to wait for its answer.
    Answer,
    /// To read the end of its answer, which is being written.
    End,
}

#[derive(Debug)]
struct Doing {
    step: Step,
    since: Instant,
    /// Since when there is something to write that the client does not read.
    unread: Option<Instant>,
}

/// What one connection is doing.
#[derive(Debug)]
pub(crate) struct Progress(Mutex<Doing>);

impl Progress {
    fn new() -> Self {
        Self(Mutex::new(Doing {
            step: Step::Head,
            since: Instant::now(),
            unread: None,
        }))
    }

    pub(crate) fn step(&self, step: Step) {
        let mut doing = lock(&self.0);
        (doing.step, doing.since) = (step, Instant::now());
    }

    /// Nothing more is expected of a body. It may be noticed only when the answer has been passed on already.
    pub(crate) fn body_ended(&self) {
        let mut doing = lock(&self.0);
        if doing.step == Step::Body {
            (doing.step, doing.since) = (Step::Answer, Instant::now());
        }
    }

    /// Bytes have arrived.
    pub(crate) fn arrived(&self) {
        let mut doing = lock(&self.0);
        if doing.step == Step::Idle {
            (doing.step, doing.since) = (Step::Head, Instant::now());
        }
    }

    /// Everything there was to write has been passed to the system.
    pub(crate) fn flushed(&self) {
        let mut doing = lock(&self.0);
        if doing.step == Step::End {
            (doing.step, doing.since) = (Step::Idle, Instant::now());
        }
    }

    /// Whether the client reads what there is to write.
    pub(crate) fn reads(&self, reads: bool) {
        let mut doing = lock(&self.0);
        if reads {
            doing.unread = None
        } else {
            doing.unread.get_or_insert_with(Instant::now);
        }
    }

    /// A body has a time of its own, for which the client gets an answer.
    fn is_late(&self, limits: &Limits) -> bool {
        let doing = lock(&self.0);
        let longer = |since: Instant, than: Duration| since.elapsed() > than;
        doing
            .unread
            .is_some_and(|since| longer(since, limits.answer))
            || match doing.step {
                Step::Idle => longer(doing.since, limits.idle),
                Step::Head => longer(doing.since, limits.head),
                Step::Body | Step::Answer | Step::End => false,
            }
    }

    /// Those that come first lose their places first. `None`: not this one.
    fn rank(&self, now: Instant) -> Option<(u8, Instant)> {
        let doing = lock(&self.0);
        let class = match doing.step {
            Step::Answer | Step::End => return None,
            Step::Head | Step::Body if now.saturating_duration_since(doing.since) > SLOW => 0,
            Step::Idle => 1,
            Step::Head | Step::Body => 2,
        };
        Some((class, doing.since))
    }
}

/// All connections of a listener.
#[derive(Debug)]
pub(crate) struct Places {
    limits: Limits,
    pub(crate) tally: Arc<Tally>,
    open: Mutex<Open>,
    left: Notify,
}

#[derive(Debug, Default)]
struct Open {
    connections: HashMap<u64, Connection>,
    next: u64,
    reserved: usize,
}

#[derive(Debug)]
struct Connection {
    progress: Arc<Progress>,
    reserved: bool,
    task: Arc<OnceLock<AbortHandle>>,
}

/// The place of one connection, until this is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    places: Arc<Places>,
    number: u64,
    pub(crate) progress: Arc<Progress>,
    task: Arc<OnceLock<AbortHandle>>,
}

impl Places {
    pub(crate) fn new(limits: Limits, tally: Arc<Tally>) -> Arc<Self> {
        Arc::new(Self {
            limits,
            tally,
            open: Mutex::default(),
            left: Notify::new(),
        })
    }

    /// Waits for a place, if none is left and no client can be displaced.
    pub(crate) async fn enter(self: &Arc<Self>) -> Permit {
        loop {
            let left = self.left.notified();
            if let Some(place) = self.try_enter() {
                return place;
            }
            left.await;
        }
    }

    fn try_enter(self: &Arc<Self>) -> Option<Permit> {
        let mut open = lock(&self.open);
        let reserved = if self.has_room(&mut open) {
            false
        } else if open.reserved < self.limits.reserve || self.displace(&mut open, true) {
            true
        } else {
            return None;
        };
        let number = open.next;
        open.next += 1;
        open.reserved += usize::from(reserved);
        let (progress, task) = (Arc::new(Progress::new()), Arc::default());
        let connection = Connection {
            progress: Arc::clone(&progress),
            reserved,
            task: Arc::clone(&task),
        };
        open.connections.insert(number, connection);
        self.count(&open);
        Some(Permit {
            places: Arc::clone(self),
            number,
            progress,
            task,
        })
    }

    /// Whether there is a place that is not of the reserve, if need be by displacing a client.
    fn has_room(&self, open: &mut Open) -> bool {
        open.connections.len() - open.reserved < self.limits.connections
            || self.displace(open, false)
    }

    fn displace(&self, open: &mut Open, reserved: bool) -> bool {
        let of_kind = open
            .connections
            .iter()
            .filter(|(_, connection)| connection.reserved == reserved);
        let now = Instant::now();
        let ranked = of_kind
            .filter_map(|(number, connection)| Some((connection.progress.rank(now)?, *number)));
        let Some((_, number)) = ranked.min() else {
            return false;
        };
        self.close(open, number);
        self.tally.displaced.fetch_add(1, Ordering::Relaxed);
        true
    }

    fn close(&self, open: &mut Open, number: u64) {
        let Some(connection) = open.connections.remove(&number) else {
            return;
        };
        open.reserved -= usize::from(connection.reserved);
        if let Some(task) = connection.task.get() {
            task.abort();
        }
        self.count(open);
    }

    fn count(&self, open: &Open) {
        let connections = open.connections.len() as u64;
        self.tally.open.store(connections, Ordering::Relaxed);
    }

    /// Closes connections that take longer than they may.
    pub(crate) fn sweep(&self) {
        let mut open = lock(&self.open);
        let connections = open.connections.iter();
        let late = connections.filter(|(_, connection)| connection.progress.is_late(&self.limits));
        let late: Vec<u64> = late.map(|(number, _)| *number).collect();
        for number in &late {
            self.close(&mut open, *number);
            self.tally.late();
        }
        drop(open);
        if !late.is_empty() {
            self.left.notify_one();
        }
    }
}

impl Permit {
    /// For the task that serves the connection, to end it.
    pub(crate) fn task(&self) -> Arc<OnceLock<AbortHandle>> {
        Arc::clone(&self.task)
    }

    /// Whether any request may be answered here, and not only those that must not wait.
    pub(crate) fn is_for_all(&self) -> bool {
        let mut open = lock(&self.places.open);
        let reserved = |open: &Open| {
            open.connections
                .get(&self.number)
                .is_some_and(|it| it.reserved)
        };
        if !reserved(&open) {
            return true;
        }
        if !self.places.has_room(&mut open) {
            return false;
        }
        if let Some(connection) = open.connections.get_mut(&self.number) {
            connection.reserved = false;
            open.reserved -= 1;
        }
        true
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut open = lock(&self.places.open);
        if let Some(connection) = open.connections.remove(&self.number) {
            open.reserved -= usize::from(connection.reserved);
            self.places.count(&open);
        }
        drop(open);
        self.places.left.notify_one();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(connections: usize, reserve: usize) -> Arc<Places> {
        let limits = Limits {
            connections,
            reserve,
            ..Limits::default()
        };
        Places::new(limits, Arc::default())
    }

    fn is_open(place: &Permit) -> bool {
        lock(&place.places.open)
            .connections
            .contains_key(&place.number)
    }

    #[test]
    fn who_waits_for_an_answer_keeps_its_place_and_others_make_room() {
        let places = places(2, 1);
        let enter = || places.try_enter().expect("a place");
        let (waits, slow) = (enter(), enter());
        waits.progress.step(Step::Answer);
        slow.progress.step(Step::Body);
        let third = enter();
        assert!(is_open(&waits) && !is_open(&slow) && is_open(&third));
        assert!(third.is_for_all());
        // No client can be displaced: the next one gets the reserve.
        third.progress.step(Step::Answer);
        let fourth = enter();
        assert!(!fourth.is_for_all());
        // Within the reserve the same rule holds, and then there is nothing.
        let fifth = enter();
        assert!(!is_open(&fourth) && is_open(&fifth));
        fifth.progress.step(Step::Answer);
        assert!(places.try_enter().is_none());
        // A place that is left is for all.
        drop(third);
        assert!(fifth.is_for_all());
        let counts = places.tally.counts();
        assert_eq!((counts.open, counts.displaced), (2, 2));
    }

    #[test]
    fn slow_requests_lose_their_places_before_idle_connections_do() {
        let places = places(3, 0);
        let enter = || places.try_enter().expect("a place");
        let (idle, slow, quick) = (enter(), enter(), enter());
        idle.progress.step(Step::Idle);
        lock(&slow.progress.0).since = Instant::now().checked_sub(2 * SLOW).expect("a while");
        let _fourth = enter();
        assert!(!is_open(&slow));
        let _fifth = enter();
        assert!(!is_open(&idle) && is_open(&quick));
    }

    #[test]
    fn who_is_still_to_read_the_end_of_its_answer_is_not_idle() {
        let places = places(1, 1);
        let enter = || places.try_enter().expect("a place");
        let reads = enter();
        reads.progress.step(Step::End);
        let second = enter();
        assert!(is_open(&reads) && !second.is_for_all());
        reads.progress.flushed();
        let _third = enter();
        assert!(!is_open(&reads));
    }

    #[test]
    fn each_step_has_its_time() {
        let limits = Limits::default();
        let late = |step, after: Duration| {
            let progress = Progress::new();
            progress.step(step);
            lock(&progress.0).since = Instant::now().checked_sub(after).expect("a while");
            progress.is_late(&limits)
        };
        let more = Duration::from_secs(1);
        assert!(late(Step::Head, limits.head + more) && !late(Step::Head, limits.head - more));
        assert!(late(Step::Idle, limits.idle + more) && !late(Step::Idle, limits.idle - more));
        assert!(!late(Step::Answer, 10 * limits.idle));
        let progress = Progress::new();
        progress.step(Step::Answer);
        progress.reads(false);
        lock(&progress.0).unread = Instant::now().checked_sub(limits.answer + more);
        progress.reads(false);
        assert!(progress.is_late(&limits));
        progress.reads(true);
        assert!(!progress.is_late(&limits));
    }
}
