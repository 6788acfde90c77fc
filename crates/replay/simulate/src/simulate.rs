//! The simulation of one setting.

use contextpilot_random::Random;
use contextpilot_traffic::{RequestRecord, Traffic};

use crate::host::HostCache;
use crate::point::{Outcome, Point};
use crate::replay::Replay;
use crate::server::SimulatedServer;
use crate::setting::Setting;

/// Simulates a server with this setting under the recorded traffic. Of several settings, a [`Replay`] does it in half of
/// the time.
#[must_use]
pub fn simulate(traffic: &Traffic, setting: &Setting) -> Point {
    Replay::new(traffic).simulate(setting)
}

/// Shares of tokens that are [spared](Point::spared_share), from 0 to 1, in several courses of the same traffic.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// In the course that spares least.
    pub lowest: f64,
    /// In the one that spares most.
    pub highest: f64,
}

impl Replay<'_> {
    /// Simulates a server with this setting.
    #[must_use]
    pub fn simulate(&self, setting: &Setting) -> Point {
        point(self, setting, Course::Simulated)
    }

    /// What the recorded server did, in its own order and in the slots that it chose: the recorded setting's rules without
    /// its times. `setting`: the recorded one.
    #[must_use]
    pub fn as_recorded(&self, setting: &Setting) -> Point {
        point(self, setting, Course::Recorded)
    }

    /// What the engine did by its own figures, which the recording has. The bytes are those of a replay of the recorded flags.
    #[must_use]
    pub fn engine(&self, replayed: &Point) -> Point {
        let records = || self.traffic.requests.iter().map(|request| &request.record);
        let outcome = |record: &RequestRecord| Outcome {
            slot: record.slot,
            reused: record.reused,
            loaded: record.loaded,
            evaluated: record.computed(),
            arrived: record.arrived,
            launched: record.launched,
            ended: record.ended,
        };
        let outcomes: Vec<_> = records().map(|record| Some(outcome(record))).collect();
        Point {
            store_seconds: replayed.store_seconds,
            host_bytes: replayed.host_bytes,
            host_needs: replayed.host_needs,
            store_bytes: replayed.store_bytes,
            ..self.of_outcomes(&replayed.setting, outcomes)
        }
    }

    /// A setting and what became of each request with it, added up. What a host prompt cache and a store took is not known.
    fn of_outcomes(&self, setting: &Setting, outcomes: Vec<Option<Outcome>>) -> Point {
        let server = &setting.server;
        let mut point = Point {
            setting: setting.clone(),
            prompt_tokens: 0,
            reused_tokens: 0,
            loaded_tokens: 0,
            evaluated_tokens: 0,
            prompt_seconds: self.prompt_seconds(server.batch_size, &outcomes),
            store_seconds: 0.0,
            waited_seconds: 0.0,
            refused: 0,
            too_many_answers: 0,
            context_bytes: self.sizes.state(server.context),
            host_bytes: 0,
            host_needs: 0,
            store_bytes: 0,
            outcomes: Vec::new(),
        };
        let requests = self.traffic.requests.iter().map(|request| &request.record);
        for (record, outcome) in requests.zip(&outcomes).filter(|(record, _)| !record.child) {
            let Some(outcome) = outcome else {
                point.refused += 1;
                // What is not too long was refused for this.
                point.too_many_answers += u64::from(record.prompt < server.slot_context);
                continue;
            };
            point.prompt_tokens += u64::from(record.prompt);
            point.reused_tokens += u64::from(outcome.reused);
            point.loaded_tokens += u64::from(outcome.loaded);
            point.evaluated_tokens += u64::from(outcome.evaluated);
            let waited = outcome.launched.saturating_sub(outcome.arrived);
            point.waited_seconds += waited as f64 / 1e6;
        }
        point.outcomes = outcomes;
        point
    }

    /// The time that evaluating takes what was evaluated, at the recorded speed: each token costs the same in all replays, so
    /// that less to evaluate never takes longer. (What a token took in the recording depends on what else the machine did then.)
    /// What the engine evaluated takes as long as it took.
    fn prompt_seconds(&self, batch: u32, outcomes: &[Option<Outcome>]) -> f64 {
        let requests = self.traffic.requests.iter().zip(outcomes);
        let evaluated = requests.filter_map(|(request, outcome)| {
            let record = &request.record;
            let evaluated = outcome.filter(|_| !record.child)?.evaluated;
            Some(self.times.of_prompt(record.prompt, evaluated, batch))
        });
        evaluated.sum::<f64>() / 1e6
    }

    /// Simulates a setting again, several times, each time with other pauses of the clients that do not think. Which of them asks first
    /// may decide which finds a slot that still has its session, and so the course of all that follows. The range has the
    /// [simulation](Self::simulate) that is given, too. `None`: there are no such clients.
    #[must_use]
    pub fn spread(&self, simulated: &Point) -> Option<Spread> {
        if !self.is_of_many() {
            return None;
        }
        let shares = (0..COURSES).map(|nth| self.share(&simulated.setting, nth));
        let share = simulated.spared_share();
        let itself = Spread {
            lowest: share,
            highest: share,
        };
        Some(shares.fold(itself, |spread, share| Spread {
            lowest: spread.lowest.min(share),
            highest: spread.highest.max(share),
        }))
    }

    /// The share of the tokens that is spared in one of the [`COURSES`] of a [spread](Self::spread).
    pub(crate) fn share(&self, setting: &Setting, nth: usize) -> f64 {
        point(self, setting, Course::Drawn(drawn(nth))).spared_share()
    }

    /// Whether this share of the tokens, or more, is spared in one of the [`COURSES`] of a [spread](Self::spread). No more of
    /// the course is simulated than it takes to know that.
    pub(crate) fn spares(&self, setting: &Setting, nth: usize, share: f64) -> bool {
        let asked = self.traffic.requests.iter().map(|request| &request.record);
        let asked = asked.filter(|record| !record.child);
        let all: u64 = asked.map(|record| u64::from(record.prompt)).sum();
        let mut server = SimulatedServer::new(self, setting);
        server.draw(drawn(nth));
        // What is spared stays so, and what is refused makes all only less.
        let is_enough = |spared: u64| all > 0 && spared as f64 / all as f64 >= share;
        server.run_until(is_enough) || result(self, setting, server).spared_share() >= share
    }
}

/// In how many courses a spread is seen.
pub(crate) const COURSES: usize = 16;

/// By what the pauses of a course are drawn.
fn drawn(nth: usize) -> Random {
    let mut random = Random(1);
    for _ in 0..nth {
        random.split();
    }
    random.split()
}

/// In which order things happen.
enum Course {
    /// As the recorded clients would ask.
    Simulated,
    /// The same, with other pauses.
    Drawn(Random),
    /// As they happened.
    Recorded,
}

fn point(replay: &Replay<'_>, setting: &Setting, course: Course) -> Point {
    let mut server = SimulatedServer::new(replay, setting);
    match course {
        Course::Simulated => server.run(),
        Course::Drawn(random) => {
            server.draw(random);
            server.run();
        }
        Course::Recorded => server.follow(),
    }
    result(replay, setting, server)
}

/// What came of the simulation.
fn result(replay: &Replay<'_>, setting: &Setting, server: SimulatedServer<'_>) -> Point {
    let host = server.host.as_ref();
    let store = server.store.as_ref();
    let (store_bytes, store_seconds) =
        store.map_or((0, 0.0), |store| (store.peak(), store.seconds()));
    Point {
        store_seconds,
        host_bytes: host.map_or(0, |host| host.peak),
        host_needs: host.map_or(0, HostCache::needs),
        store_bytes,
        ..replay.of_outcomes(setting, server.outcomes)
    }
}

#[cfg(test)]
mod tests {
    use contextpilot_traffic::Setup;

    use super::*;
    use crate::made::{recorded, request, row, traffic};

    /// A client that waits for each answer asks in one order.
    #[test]
    fn one_client_has_no_spread() {
        let requests = (0..30).map(|nth| {
            let mut asked = request(nth, row(&[(nth * 1000, 100)]));
            // The next comes 10 ms later.
            asked.record.ended = asked.record.arrived + 990_000;
            asked
        });
        let traffic = Traffic {
            requests: requests.collect(),
            ..Traffic::default()
        };
        let replay = Replay::new(&traffic);
        let haste = &replay.timeline.haste;
        assert!(haste.draw(1, &mut Random(1)).is_some(), "it hurries");
        assert!(!haste.is_known());
    }

    /// Two clients. The first has a session of three requests, and 10 ms after it ends it begins another one, which shares nothing
    /// with it. The second has one long prompt, which took until after that. On one slot its answer comes before the
    /// first one's second: so it is the second client that is free first, and begins the new session.
    #[test]
    fn a_session_is_begun_by_the_client_whose_own_ends_first() {
        let prompts = [
            (row(&[(0, 1000)]), (0, 100)),
            (row(&[(5000, 3000)]), (10, 600)),
            (row(&[(0, 1010)]), (110, 120)),
            (row(&[(0, 1020)]), (130, 140)),
            (row(&[(9000, 100)]), (150, 160)),
        ];
        let requests = prompts.into_iter().enumerate();
        let requests = requests.map(|(nth, (tokens, (begin, end)))| {
            let mut asked = request(nth as u64, tokens);
            let record = &mut asked.record;
            (record.arrived, record.launched) = (begin * 1000, begin * 1000);
            (record.prompted, record.ended) = (end * 1000, end * 1000);
            record.slot = u32::from(nth == 1);
            asked
        });
        let setup = Setup {
            parallel: 2,
            batch_size: 100,
            ..Setup::default()
        };
        let traffic = traffic(setup, requests.collect());
        let replay = Replay::new(&traffic);
        let recorded = recorded(&traffic);
        let times = |setting: &Setting| {
            let outcomes = replay.simulate(setting).outcomes;
            outcomes
                .into_iter()
                .map(|outcome| outcome.map_or((0, 0), |outcome| (outcome.arrived, outcome.ended)))
                .collect::<Vec<(u64, u64)>>()
        };
        let one_slot = times(&recorded.clone().with_slots(1, false));
        assert!(one_slot[1].1 < one_slot[2].1, "{one_slot:?}");
        assert_eq!(one_slot[4].0, one_slot[1].1 + 10_000, "{one_slot:?}");
        let two_slots = times(&recorded);
        assert!(two_slots[3].1 < two_slots[1].1, "{two_slots:?}");
        assert_eq!(two_slots[4].0, two_slots[3].1 + 10_000, "{two_slots:?}");
    }

    /// Of a recording of a real server: a course that is ended early says the same as the whole.
    #[test]
    fn whether_a_course_spares_enough_is_what_its_share_says() {
        let traffic = contextpilot_traffic::read(include_bytes!("../tests/recordings/two-clients"));
        let recorded = Setting::recorded(&traffic).expect("it says what server it is of");
        let replay = Replay::new(&traffic);
        let shares = (0..COURSES).map(|nth| replay.share(&recorded, nth));
        let (lowest, highest) = shares.fold((1.0_f64, 0.0_f64), |(lowest, highest), share| {
            (lowest.min(share), highest.max(share))
        });
        let spread = replay
            .spread(&replay.simulate(&recorded))
            .expect("there are two clients");
        assert!(spread.lowest <= lowest && spread.highest >= highest);
        let spare = |share| {
            (0..COURSES)
                .filter(|&nth| replay.spares(&recorded, nth, share))
                .count()
        };
        assert_eq!(spare(lowest), COURSES);
        assert!(spare(lowest + 1e-9) < COURSES);
        assert!(spare(highest) > 0);
        assert_eq!(spare(highest + 1e-9), 0);
    }
}
