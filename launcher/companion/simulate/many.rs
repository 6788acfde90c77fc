//! Several simulations, side by side.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use contextpilot_simulate::{
    Advice, Point, Replay, Setting, Spread, Trials, advise_with, points_with, trials_with,
};
use contextpilot_traffic::Traffic;

use crate::companion::progress::Progress;

/// Simulations of one recording, with a line that says how many there were, on a terminal.
pub(in crate::companion) struct Simulations<'a> {
    replay: Replay<'a>,
    progress: Progress,
    done: AtomicUsize,
}

impl<'a> Simulations<'a> {
    pub(in crate::companion) fn new(traffic: &'a Traffic) -> Self {
        Self {
            replay: Replay::new(traffic),
            progress: Progress::new("simulations done"),
            done: AtomicUsize::new(0),
        }
    }

    /// One of each setting, in their order.
    pub(in crate::companion) fn all(&self, settings: &[Setting]) -> Vec<Point> {
        points_with(&self.replay, settings, &|count, work| {
            self.each(count, work);
        })
    }

    /// The same for people who compare: at the recorded setting of several clients, in the order in which they asked.
    pub(in crate::companion) fn grid(
        &self,
        settings: &[Setting],
        recorded: &Setting,
    ) -> Vec<Point> {
        let is_followed = |setting: &Setting| self.replay.is_of_many() && setting == recorded;
        let unfollowed = settings.iter().filter(|setting| !is_followed(setting));
        let others: Vec<Setting> = unfollowed.cloned().collect();
        let mut others = self.all(&others).into_iter();
        let point = |setting: &Setting| {
            if is_followed(setting) {
                Some(self.replay.as_recorded(recorded))
            } else {
                others.next()
            }
        };
        settings.iter().filter_map(point).collect()
    }

    /// What the engine did, and what a replay of the recorded flags does, which may be one of these points.
    pub(super) fn recorded(&self, points: &[Point], recorded: &Setting) -> (Point, Point) {
        let known = points.iter().find(|point| point.setting == *recorded);
        let replayed = known.cloned().or_else(|| {
            let mut points = self.grid(std::slice::from_ref(recorded), recorded);
            points.pop()
        });
        let replayed = replayed.unwrap_or_else(|| self.replay.simulate(recorded));
        (self.replay.engine(&replayed), replayed)
    }

    /// How far each simulation may be off, if clients ask in other orders ([`Replay::spread`]). `None`: at the
    /// recorded setting it is known how they did, or none hurries.
    pub(super) fn spreads(&self, points: &[Point], recorded: &Setting) -> Vec<Option<Spread>> {
        self.each(points.len(), |nth| {
            let other = Some(&points[nth]).filter(|point| point.setting != *recorded)?;
            self.replay.spread(other)
        })
    }

    /// So many simulations, by their numbers, side by side. What came of them, in their order.
    fn each<T: Send>(&self, count: usize, simulate: impl Fn(usize) -> T + Sync) -> Vec<T> {
        let next = AtomicUsize::new(0);
        let work = || {
            let mut done = Vec::new();
            loop {
                let nth = next.fetch_add(1, Ordering::Relaxed);
                if nth >= count {
                    return done;
                }
                self.progress
                    .at(self.done.load(Ordering::Relaxed) as u64, None);
                done.push((nth, simulate(nth)));
                self.done.fetch_add(1, Ordering::Relaxed);
            }
        };
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let mut done: Vec<(usize, T)> = thread::scope(|scope| {
            let others = threads.min(count).saturating_sub(1);
            let others: Vec<_> = (0..others).map(|_| scope.spawn(work)).collect();
            let mut done = work();
            for other in others {
                match other.join() {
                    Ok(more) => done.extend(more),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            done
        });
        done.sort_by_key(|(nth, _)| *nth);
        done.into_iter().map(|(_, result)| result).collect()
    }

    /// What other flags would have brought.
    pub(in crate::companion) fn advise(&self, recorded: &Setting) -> Advice {
        advise_with(&self.replay, recorded, &|count, work| {
            self.each(count, work);
        })
    }

    /// What would have helped by itself.
    pub(in crate::companion) fn trials(&self, recorded: &Setting) -> Trials {
        trials_with(&self.replay, recorded, &|count, work| {
            self.each(count, work);
        })
    }
}
