//! The idle timer: how long the engine has been silent. Some evictions are decided by that.

use std::time::{Duration, Instant};

use contextpilot_residency::EngineWork;

/// How long the worker may rest while events that can wait do not wake it. Each look costs
/// a core some 20 microseconds, which a generating server may need itself.
pub const NAP: Duration = Duration::from_millis(25);
/// How long the worker may rest while generated tokens do not wake it. If all cores compute, each
/// look delays a thread of the server.
pub const DOZE: Duration = Duration::from_millis(100);

/// At these lengths of a silence, the ledger gets an `Event::Quiet`, once each.
const AGES: [Duration; 3] = [
    Duration::from_millis(10),
    Duration::from_millis(100),
    Duration::from_millis(1000),
];

/// The time since the engine last did something.
pub(crate) struct IdleTimer {
    since: Instant,
    /// An event was applied at or after `since`, the last time that the clock was read.
    broken: bool,
    /// The engine is computing, which is not silence, however long it takes.
    computing: bool,
    /// Since the last evaluation, only the next evaluation has begun.
    generating: bool,
    /// How many of [`AGES`] have passed.
    reported: usize,
}

impl IdleTimer {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            since: now,
            broken: false,
            computing: false,
            generating: false,
            reported: AGES.len(),
        }
    }

    /// An event was applied that says this of the engine's work. The clock is read at the next
    /// [`due`](Self::due).
    pub(crate) fn note(&mut self, work: EngineWork) {
        self.generating = match work {
            EngineWork::Ends => true,
            EngineWork::Begins | EngineWork::Told => self.generating,
            EngineWork::None | EngineWork::Awaited | EngineWork::Other => false,
        };
        if work != EngineWork::None {
            self.broken = true;
            self.reported = 0;
            self.computing = work == EngineWork::Begins;
        }
    }

    /// The silence begins again, for a reason that is not an event.
    pub(crate) fn interrupt(&mut self) {
        self.broken = true;
        self.reported = 0;
    }

    /// Whether the silence has lasted so long. Call this after [`due`](Self::due).
    pub(crate) fn has_lasted(&self, age: Duration, now: Instant) -> bool {
        !self.computing && now.saturating_duration_since(self.since) >= age
    }

    /// The length of silence that has just been reached, if there is one.
    pub(crate) fn due(&mut self, now: Instant) -> Option<Duration> {
        if std::mem::take(&mut self.broken) {
            self.since = now;
        }
        let age = now.saturating_duration_since(self.since);
        if self.computing || self.reported >= AGES.len() || age < AGES[self.reported] {
            return None;
        }
        self.reported += 1;
        Some(age)
    }

    /// Whether the engine began to compute since the last [`due`](Self::due), or less than a [`NAP`]
    /// ago. Then a client may be waiting for a first token, and work that can wait should wait.
    pub(crate) fn just_ended(&self, now: Instant) -> bool {
        let age = now.saturating_duration_since(self.since);
        self.computing && (self.broken || age < NAP)
    }

    /// Whether only generated tokens are expected.
    pub(crate) fn generating(&self) -> bool {
        self.generating
    }

    /// How long the worker may rest if nothing happens; `None`: for ever. `awaited`: the next length of
    /// silence decides something. Call this after [`due`](Self::due).
    pub(crate) fn rest(&self, now: Instant, awaited: bool) -> Option<Duration> {
        let age = now.saturating_duration_since(self.since);
        // While the engine may continue at any moment, take a nap: then it need not wake us.
        let nap = if self.generating && !awaited {
            DOZE
        } else {
            NAP
        };
        let nap = (age < nap).then_some(nap);
        if self.computing {
            return nap;
        }
        let left = AGES.get(self.reported)?.saturating_sub(age);
        Some(nap.filter(|_| !awaited).unwrap_or(left))
    }
}

#[cfg(test)]
mod tests {
    use super::EngineWork::{Begins, Ends, None as Nothing, Other};
    use super::*;

    fn after(start: Instant, ms: u64) -> Instant {
        start + Duration::from_millis(ms)
    }

    fn ms(ms: u64) -> Option<Duration> {
        Some(Duration::from_millis(ms))
    }

    /// Applies the events, then looks at the clock.
    fn happens(idle: &mut IdleTimer, events: &[EngineWork], now: Instant) {
        events.iter().for_each(|&work| idle.note(work));
        assert_eq!(idle.due(now), None, "no silence");
    }

    #[test]
    fn each_length_of_a_silence_is_returned_once() {
        let start = Instant::now();
        let mut idle = IdleTimer::new(start);
        assert_eq!(idle.due(after(start, 5000)), None, "nothing happened yet");
        happens(&mut idle, &[Other], start);
        let mut reported = Vec::new();
        for ms in 0..3000 {
            reported.extend(idle.due(after(start, ms)));
        }
        assert_eq!(reported, AGES);
        assert_eq!(idle.rest(after(start, 3000), true), None);
    }

    #[test]
    fn during_a_long_evaluation_there_is_no_silence() {
        let start = Instant::now();
        let mut idle = IdleTimer::new(start);
        happens(&mut idle, &[Begins], start);
        assert_eq!(idle.due(after(start, 2000)), None);
        assert_eq!(idle.rest(after(start, 1), true), Some(NAP));
        assert_eq!(idle.rest(after(start, 2000), true), None);
        happens(&mut idle, &[Ends], after(start, 2000));
        assert_eq!(idle.due(after(start, 2009)), None);
        assert_eq!(idle.due(after(start, 2010)), Some(AGES[0]));
    }

    #[test]
    fn a_silence_begins_when_the_engine_ends_its_work() {
        let start = Instant::now();
        let mut idle = IdleTimer::new(start);
        let has_lasted =
            |idle: &IdleTimer, now| idle.has_lasted(Duration::from_millis(100), after(start, now));
        happens(&mut idle, &[Begins], after(start, 50));
        assert!(!has_lasted(&idle, 5000), "it computes");
        happens(&mut idle, &[Ends], after(start, 5000));
        assert!(!has_lasted(&idle, 5099));
        assert!(has_lasted(&idle, 5100));
        idle.interrupt();
        assert_eq!(idle.due(after(start, 5200)), None);
        assert!(!has_lasted(&idle, 5299));
        assert_eq!(idle.due(after(start, 5210)), Some(AGES[0]));
        assert!(has_lasted(&idle, 5300));
    }

    #[test]
    fn for_a_nap_after_the_engine_began_the_silence_has_just_ended() {
        let start = Instant::now();
        let mut idle = IdleTimer::new(start);
        assert!(!idle.just_ended(start));
        idle.note(Begins);
        let began = after(start, 500);
        assert!(idle.just_ended(began), "since the last look");
        assert_eq!(idle.due(began), None);
        assert!(idle.just_ended(after(began, 24)));
        assert!(!idle.just_ended(after(began, 25)), "a long evaluation");
        happens(&mut idle, &[Ends], after(began, 24));
        assert!(!idle.just_ended(after(began, 24)));
    }

    #[test]
    fn the_worker_rests_until_the_next_length_of_silence() {
        let start = Instant::now();
        let mut idle = IdleTimer::new(start);
        happens(&mut idle, &[Other], start);
        assert_eq!(idle.rest(start, true), ms(10));
        assert_eq!(idle.rest(after(start, 8), true), ms(2));
        assert_eq!(idle.rest(after(start, 8), false), Some(NAP));
        assert!(idle.due(after(start, 33)).is_some());
        assert_eq!(idle.rest(after(start, 33), false), ms(67));
        assert!(idle.due(after(start, 100)).is_some());
        assert_eq!(idle.rest(after(start, 100), false), ms(900));
    }

    #[test]
    fn while_only_tokens_are_generated_the_worker_dozes() {
        let start = Instant::now();
        let mut idle = IdleTimer::new(start);
        happens(&mut idle, &[Begins], start);
        assert!(!idle.generating(), "a prompt");
        for events in [vec![Ends], vec![Begins, Ends, Begins], vec![Ends, Begins]] {
            happens(&mut idle, &events, start);
            assert!(idle.generating());
            assert_eq!(idle.rest(start, false), Some(DOZE));
        }
        assert_eq!(idle.rest(start, true), Some(NAP), "something is awaited");
        assert_eq!(idle.rest(after(start, 200), false), None, "a long one");
        happens(&mut idle, &[Nothing], start);
        assert!(!idle.generating());
        assert_eq!(idle.rest(start, false), Some(NAP));
    }
}
