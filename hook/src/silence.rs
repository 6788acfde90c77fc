//! When the engine has been silent for long enough that something follows from it.

use std::time::{Duration, Instant};

use contextpilot_residency::Event;

use crate::channel::NAP;

/// Each silence is remarked upon at these ages, once.
const AGES: [Duration; 3] = [
    Duration::from_millis(10),
    Duration::from_millis(100),
    Duration::from_millis(1000),
];

/// The time since the engine last did something.
pub(crate) struct Silence {
    since: Instant,
    /// The engine is computing: that is not silence, however long it takes.
    computing: bool,
    /// How many of [`AGES`] were remarked upon.
    told: usize,
}

impl Silence {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            since: now,
            computing: false,
            told: AGES.len(),
        }
    }

    /// An event was applied.
    pub(crate) fn note(&mut self, event: &Event, now: Instant) {
        match event {
            // Of the server, and of ourselves.
            Event::Posted { .. }
            | Event::Uncached { .. }
            | Event::Answered { .. }
            | Event::Quiet { .. } => {}
            _ => {
                self.since = now;
                self.told = 0;
                self.computing = matches!(event, Event::Submitted { .. });
            }
        }
    }

    /// The age to remark upon now, if there is one.
    pub(crate) fn due(&mut self, now: Instant) -> Option<Duration> {
        let age = now.saturating_duration_since(self.since);
        if self.computing || self.told >= AGES.len() || age < AGES[self.told] {
            return None;
        }
        self.told += 1;
        Some(age)
    }

    /// How long the worker may rest if nothing happens; `None`: for ever. `awaited`: something
    /// hangs on the next remark.
    pub(crate) fn rest(&self, now: Instant, awaited: bool) -> Option<Duration> {
        let age = now.saturating_duration_since(self.since);
        // While the engine may go on at any moment, a nap: it spares it waking us.
        let nap = (age < NAP).then_some(NAP);
        if self.computing {
            return nap;
        }
        let left = AGES.get(self.told)?.saturating_sub(age);
        Some(nap.filter(|_| !awaited).unwrap_or(left))
    }
}

#[cfg(test)]
mod tests {
    use contextpilot_residency::{ContextId, Event};

    use super::*;

    const CONTEXT: ContextId = ContextId(1);

    fn after(start: Instant, ms: u64) -> Instant {
        start + Duration::from_millis(ms)
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
        silence.note(&Event::Cleared { context: CONTEXT }, start);
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
        let entries = Vec::new().into();
        let context = CONTEXT;
        silence.note(&Event::Submitted { context, entries }, start);
        assert_eq!(silence.due(after(start, 2000)), None);
        assert_eq!(silence.rest(after(start, 1), true), Some(NAP));
        assert_eq!(silence.rest(after(start, 2000), true), None);
        let failed = Vec::new();
        silence.note(&Event::Evaluated { context, failed }, after(start, 2000));
        assert_eq!(silence.due(after(start, 2009)), None);
        assert_eq!(silence.due(after(start, 2010)), Some(AGES[0]));
    }

    #[test]
    fn rests_until_the_next_age() {
        let start = Instant::now();
        let mut silence = Silence::new(start);
        silence.note(&Event::Cleared { context: CONTEXT }, start);
        let ms = |ms| Some(Duration::from_millis(ms));
        assert_eq!(silence.rest(start, true), ms(10));
        assert_eq!(silence.rest(after(start, 8), true), ms(2));
        assert_eq!(silence.rest(after(start, 8), false), Some(NAP));
        assert!(silence.due(after(start, 33)).is_some());
        assert_eq!(silence.rest(after(start, 33), false), ms(67));
        assert!(silence.due(after(start, 100)).is_some());
        assert_eq!(silence.rest(after(start, 100), false), ms(900));
    }
}
