//! When batches are submitted, by a library that is preloaded in front of the hook.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use contextpilot_testbed::{Builder, Result};
use rustix::time::{ClockId, clock_gettime};

use crate::lab::Lab;

/// As in `probe.c`.
const RECORDS: u64 = 1 << 20;

/// The library.
pub(crate) struct Probe {
    library: PathBuf,
}

impl Probe {
    /// # Errors
    /// When there is no C compiler.
    pub(crate) fn build(lab: &Lab) -> Result<Self> {
        let library = lab.library("probe")?;
        Ok(Self { library })
    }

    /// A server that is watched. `next` is what stands between the probe and the engine: a hook,
    /// or nothing.
    pub(crate) fn watch(&self, server: Builder, next: Option<&Path>, log: &Path) -> Builder {
        let mut preload = self.library.clone().into_os_string();
        if let Some(next) = next {
            preload.push(":");
            preload.push(next);
        }
        server.env("LD_PRELOAD", preload).env("BENCH_PROBE", log)
    }
}

/// What the probe has seen in a server.
pub(crate) struct Submissions {
    file: File,
}

impl Submissions {
    /// # Errors
    /// When the server did not load the probe.
    pub(crate) fn open(log: &Path) -> Result<Self> {
        Ok(Self {
            file: File::open(log)?,
        })
    }

    fn number(&self, at: u64) -> Result<u64> {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, at)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    /// How many batches there were.
    ///
    /// # Errors
    /// Those of reading.
    pub(crate) fn count(&self) -> Result<u64> {
        self.number(0)
    }

    /// When the first batch that has tokens of this sequence was submitted, of those from number
    /// `from` on; in nanoseconds of the monotonic clock.
    ///
    /// # Errors
    /// Those of reading.
    pub(crate) fn first_with(&self, sequence: u32, from: u64) -> Result<Option<u64>> {
        for number in from..self.count()? {
            let record = 8 + number % RECORDS * 16;
            if self.number(record + 8)? >> sequence & 1 == 1 {
                return self.number(record).map(Some);
            }
        }
        Ok(None)
    }
}

/// Tells instants in nanoseconds of the monotonic clock, which is what they are made of.
pub(crate) struct Clock {
    instant: Instant,
    nanoseconds: u64,
}

impl Clock {
    pub(crate) fn new() -> Self {
        // Of several, the one that was interrupted least.
        let pair = || {
            let before = Instant::now();
            let time = clock_gettime(ClockId::Monotonic);
            let nanoseconds = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
            (before.elapsed(), before, nanoseconds)
        };
        let best = (0..100).map(|_| pair()).min();
        let (_, instant, nanoseconds) = best.unwrap_or_else(pair);
        Self {
            instant,
            nanoseconds,
        }
    }

    /// Milliseconds from a time of the monotonic clock to an instant.
    pub(crate) fn since(&self, nanoseconds: u64, until: Instant) -> f64 {
        let until = match until.checked_duration_since(self.instant) {
            Some(after) => after.as_nanos() as f64,
            None => -(self.instant.duration_since(until).as_nanos() as f64),
        };
        (self.nanoseconds as f64 - nanoseconds as f64 + until) / 1e6
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn instants_and_the_clock_agree() {
        let clock = Clock::new();
        let time = clock_gettime(ClockId::Monotonic);
        let nanoseconds = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
        let now = Instant::now();
        // Nothing but the time between two lines, however busy the machine is.
        let between = clock.since(nanoseconds, now);
        assert!((-0.5..20_000.0).contains(&between), "{between}");
        let later = clock.since(nanoseconds, now + Duration::from_secs(1));
        assert!((later - between - 1000.0).abs() < 0.01, "{later} {between}");
    }

    #[test]
    fn the_first_batch_of_a_sequence_is_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log");
        let numbers: [u64; 7] = [3, 100, 0b10, 200, 0b01, 300, 0b11];
        let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_ne_bytes()).collect();
        std::fs::write(&path, bytes).expect("it is written");
        let submissions = Submissions::open(&path).expect("it is there");
        let first = |sequence, from| submissions.first_with(sequence, from).expect("it is read");
        assert_eq!(first(0, 0), Some(200));
        assert_eq!(first(1, 0), Some(100));
        assert_eq!(first(1, 1), Some(300));
        assert_eq!(first(0, 3), None);
    }
}
