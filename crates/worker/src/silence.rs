//! When the engine has been silent for long enough that something follows from it.

use std::time::{Duration, Instant};

use contextpilot_residency::Event;

/// Up to this long the worker may rest without hearing of events that can wait. Each look costs
/// a core some 20 microseconds, which a server that generates may want itself.
pub const NAP: Duration = Duration::from_millis(25);
/// Up to this long it may rest without hearing of generated tokens. Where all cores compute, each
/// look holds up whoever waits for the core that it takes.
pub const DOZE: Duration = Duration::from_millis(100);

/// Each silence is remarked upon at these ages, once.
const AGES: [Duration; 3] = [
    Duration::from_millis(10),
    Duration::from_millis(100),
    Duration::from_millis(1000),
];

/// The time since the engine last did something.
pub(crate) struct Silence {
    since: Instant,
    /// Something happened at `since` or later, which is when the clock was last read.
    broken: bool,
    /// The engine is computing: that is not silence, however long it takes.
    computing: bool,
    /// Since the last evaluation nothing has happened but that the next one began.
    generating: bool,
    /// How many of [`AGES`] were remarked upon.
    told: usize,
}

impl Silence {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            since: now,
            broken: false,
            computing: false,
            generating: false,
            told: AGES.len(),
        }
    }

    /// An event was applied. What happened with it has happened by the next [`due`](Self::due).
    pub(crate) fn note(&mut self, event: &Event) {
        self.generating = match event {
            Event::Evaluated { .. } => true,
            Event::Submitted { .. } | Event::Reaches { .. } => self.generating,
            _ => false,
        };
        match event {
            // Of the server, and of ourselves.
            Event::Posted { .. }
            | Event::Uncached { .. }
            | Event::NamedAdapters { .. }
            | Event::Answered { .. }
            | Event::Quiet { .. } => {}
            _ => {
                self.broken = true;
                self.told = 0;
                self.computing = matches!(event, Event::Submitted { .. });
            }
        }
    }

    /// It begins anew, for a reason that is no event.
    pub(crate) fn interrupt(&mut self) {
        self.broken = true;
        self.told = 0;
    }

    /// Whether it has lasted so long. Asked after [`due`](Self::due).
    pub(crate) fn has_lasted(&self, age: Duration, now: Instant) -> bool {
        !self.computing && now.saturating_duration_since(self.since) >= age
    }

    /// The age to remark upon now, if there is one.
    pub(crate) fn due(&mut self, now: Instant) -> Option<Duration> {
        if std::mem::take(&mut self.broken) {
            self.since = now;
        }
        let age = now.saturating_duration_since(self.since);
        if self.computing || self.told >= AGES.len() || age < AGES[self.told] {
            return None;
        }
        self.told += 1;
        Some(age)
    }

    /// Whether the engine began to compute since the last [`due`](Self::due), or less than a nap
    /// before now: somebody waits for a first token, and what can wait should.
    pub(crate) fn just_ended(&self, now: Instant) -> bool {
        let age = now.saturating_duration_since(self.since);
        self.computing && (self.broken || age < NAP)
    }

    /// Whether nothing is expected but one token after the other.
    pub(crate) fn generating(&self) -> bool {
        self.generating
    }

    /// How long the worker may rest if nothing happens; `None`: for ever. `awaited`: something
    /// hangs on the next remark. Asked after [`due`](Self::due).
    pub(crate) fn rest(&self, now: Instant, awaited: bool) -> Option<Duration> {
        let age = now.saturating_duration_since(self.since);
        // While the engine may go on at any moment, a nap: it spares it waking us.
        let nap = if self.generating && !awaited {
            DOZE
        } else {
            NAP
        };
        let nap = (age < nap).then_some(nap);
        if self.computing {
            return nap;
        }
        let left = AGES.get(self.told)?.saturating_sub(age);
        Some(nap.filter(|_| !awaited).unwrap_or(left))
    }
}

#[cfg(test)]
mod tests {
    use contextpilot_residency::{Arrival, ContextId};

    use super::*;

    const CONTEXT: ContextId = ContextId(1);
    const CLEARED: Event = Event::Cleared { context: CONTEXT };
    const EVALUATED: Event = Event::Evaluated {
        context: CONTEXT,
        failed: Vec::new(),
    };

    fn after(start: Instant, ms: u64) -> Instant {
        start + Duration::from_millis(ms)
    }

    fn ms(ms: u64) -> Option<Duration> {
        Some(Duration::from_millis(ms))
    }

    fn submitted() -> Event {
        let entries = Vec::new().into();
        let context = CONTEXT;
        Event::Submitted { context, entries }
    }

    /// The events happen, and the worker looks.
    fn happens(silence: &mut Silence, events: &[Event], now: Instant) {
        events.iter().for_each(|event| silence.note(event));
        assert_eq!(silence.due(now), None, "no silence");
    }

    #[test]
    fn each_age_is_remarked_upon_once() {
        let start = Instant::now();
        let mut silence = Silence::new(start);
        assert_eq!(
            silence.due(after(start, 5000)),
            None,
            "nothing happened yet"
        );
        happens(&mut silence, &[CLEARED], start);
        let mut told = Vec::new();
        for ms in 0..3000 {
            told.extend(silence.due(after(start, ms)));
        }
        assert_eq!(told, AGES);
        assert_eq!(silence.rest(after(start, 3000), true), None);
    }

    #[test]
    fn a_long_evaluation_is_no_silence() {
        let start = Instant::now();
        let mut silence = Silence::new(start);
        happens(&mut silence, &[submitted()], start);
        assert_eq!(silence.due(after(start, 2000)), None);
        assert_eq!(silence.rest(after(start, 1), true), Some(NAP));
        assert_eq!(silence.rest(after(start, 2000), true), None);
        happens(&mut silence, &[EVALUATED], after(start, 2000));
        assert_eq!(silence.due(after(start, 2009)), None);
        assert_eq!(silence.due(after(start, 2010)), Some(AGES[0]));
    }

    #[test]
    fn lasts_from_the_end_of_what_the_engine_did() {
        let start = Instant::now();
        let mut silence = Silence::new(start);
        let has_lasted = |silence: &Silence, now| {
            silence.has_lasted(Duration::from_millis(100), after(start, now))
        };
        happens(&mut silence, &[submitted()], after(start, 50));
        assert!(!has_lasted(&silence, 5000), "it computes");
        happens(&mut silence, &[EVALUATED], after(start, 5000));
        assert!(!has_lasted(&silence, 5099));
        assert!(has_lasted(&silence, 5100));
        silence.interrupt();
        assert_eq!(silence.due(after(start, 5200)), None);
        assert!(!has_lasted(&silence, 5299));
        assert_eq!(silence.due(after(start, 5210)), Some(AGES[0]));
        assert!(has_lasted(&silence, 5300));
    }

    #[test]
    fn has_just_ended_for_a_nap_from_when_the_engine_began() {
        let start = Instant::now();
        let mut silence = Silence::new(start);
        assert!(!silence.just_ended(start));
        silence.note(&submitted());
        let began = after(start, 500);
        assert!(silence.just_ended(began), "since the last look");
        assert_eq!(silence.due(began), None);
        assert!(silence.just_ended(after(began, 24)));
        assert!(!silence.just_ended(after(began, 25)), "a long evaluation");
        happens(&mut silence, &[EVALUATED], after(began, 24));
        assert!(!silence.just_ended(after(began, 24)));
    }

    #[test]
    fn rests_until_the_next_age() {
        let start = Instant::now();
        let mut silence = Silence::new(start);
        happens(&mut silence, &[CLEARED], start);
        assert_eq!(silence.rest(start, true), ms(10));
        assert_eq!(silence.rest(after(start, 8), true), ms(2));
        assert_eq!(silence.rest(after(start, 8), false), Some(NAP));
        assert!(silence.due(after(start, 33)).is_some());
        assert_eq!(silence.rest(after(start, 33), false), ms(67));
        assert!(silence.due(after(start, 100)).is_some());
        assert_eq!(silence.rest(after(start, 100), false), ms(900));
    }

    #[test]
    fn dozes_while_tokens_are_all_that_comes() {
        let start = Instant::now();
        let mut silence = Silence::new(start);
        happens(&mut silence, &[submitted()], start);
        assert!(!silence.generating(), "a prompt");
        for events in [
            vec![EVALUATED],
            vec![submitted(), EVALUATED, submitted()],
            vec![EVALUATED, submitted()],
        ] {
            happens(&mut silence, &events, start);
            assert!(silence.generating());
            assert_eq!(silence.rest(start, false), Some(DOZE));
        }
        assert_eq!(silence.rest(start, true), Some(NAP), "something is awaited");
        assert_eq!(silence.rest(after(start, 200), false), None, "a long one");
        let answered = Event::Answered {
            arrival: Arrival(1),
            id: "a".into(),
        };
        happens(&mut silence, &[answered], start);
        assert!(!silence.generating());
        assert_eq!(silence.rest(start, false), Some(NAP));
    }
}
