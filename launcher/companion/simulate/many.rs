//! Several simulations, side by side.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use contextpilot_simulate::{Advice, Point, Replay, Setting, Trials, advise_with, trials_with};
use contextpilot_traffic::Traffic;

use crate::companion::progress::Progress;

/// Simulations of one recording, with a line that says how many there were, on a terminal.
pub(in crate::companion) struct Simulations<'a> {
    replay: Replay<'a>,
    progress: Progress,
    done: AtomicUsize,
}

impl<'a> Simulations<'a> {
    pub(in crate::companion) fn of(traffic: &'a Traffic) -> Self {
        Self {
            replay: Replay::of(traffic),
            progress: Progress::new("settings simulated"),
            done: AtomicUsize::new(0),
        }
    }

    /// One of each setting, in their order.
    pub(in crate::companion) fn all(&self, settings: &[Setting]) -> Vec<Point> {
        let next = AtomicUsize::new(0);
        let work = || {
            let mut points = Vec::new();
            loop {
                let nth = next.fetch_add(1, Ordering::Relaxed);
                let Some(setting) = settings.get(nth) else {
                    return points;
                };
                self.progress
                    .at(self.done.load(Ordering::Relaxed) as u64, None);
                points.push((nth, self.replay.simulate(setting)));
                self.done.fetch_add(1, Ordering::Relaxed);
            }
        };
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let mut points: Vec<(usize, Point)> = thread::scope(|scope| {
            let others = threads.min(settings.len()).saturating_sub(1);
            let others: Vec<_> = (0..others).map(|_| scope.spawn(work)).collect();
            let mut points = work();
            for other in others {
                match other.join() {
                    Ok(more) => points.extend(more),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            points
        });
        points.sort_by_key(|(nth, _)| *nth);
        points.into_iter().map(|(_, point)| point).collect()
    }

    /// The lowest and the highest share of tokens that are not evaluated with each setting, if clients ask in other orders
    /// ([`Replay::spread`]). `None`: at the recorded setting it is known how they did, or none hurries.
    pub(super) fn spreads(
        &self,
        settings: &[Setting],
        recorded: &Setting,
    ) -> Vec<Option<(f64, f64)>> {
        let others = settings.iter().map(|setting| {
            let other = Some(setting).filter(|setting| *setting != recorded)?;
            self.replay.spread(other)
        });
        others.collect()
    }

    /// What other flags would have brought.
    pub(in crate::companion) fn advise(&self, recorded: &Setting) -> Advice {
        advise_with(&self.replay, recorded, &mut |settings| self.all(settings))
    }

    /// What would have helped by itself.
    pub(in crate::companion) fn trials(&self, recorded: &Setting) -> Trials {
        trials_with(&self.replay, recorded, &mut |settings| self.all(settings))
    }
}
