//! A line on stderr that says how far something has come, if stderr is a terminal.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::show::count;

/// How often it is written.
const PAUSE: Duration = Duration::from_millis(100);

/// The terminal is drawn as a whole, and a line would be written over what is drawn.
static DRAWN: AtomicBool = AtomicBool::new(false);

/// From now on nothing is written.
pub(super) fn keep_off_the_screen() {
    DRAWN.store(true, Ordering::Relaxed);
}

/// It is written over by the next one, and erased at the end. Several threads may write it.
pub(super) struct Progress {
    /// What is counted: `chunks checked`.
    what: &'static str,
    shown: bool,
    begun: Instant,
    /// When it is to be written next, in milliseconds since it began.
    next: AtomicU64,
}

impl Progress {
    pub(super) fn new(what: &'static str) -> Self {
        Self {
            what,
            shown: !DRAWN.load(Ordering::Relaxed) && io::stderr().is_terminal(),
            begun: Instant::now(),
            next: AtomicU64::new(0),
        }
    }

    /// So many are done, of so many where that is known.
    pub(super) fn at(&self, done: u64, of: Option<u64>) {
        if !self.shown {
            return;
        }
        let now = self.begun.elapsed();
        let next = self.next.load(Ordering::Relaxed);
        let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        if now_ms < next {
            return;
        }
        let later = now_ms.saturating_add(PAUSE.as_millis() as u64);
        let is_mine = self
            .next
            .compare_exchange(next, later, Ordering::Relaxed, Ordering::Relaxed);
        if is_mine.is_ok() {
            write(&line(self.what, done, of));
        }
    }

    /// Makes room for a line of something else.
    pub(super) fn erase(&self) {
        if self.shown {
            write("");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.erase();
    }
}

fn line(what: &str, done: u64, of: Option<u64>) -> String {
    match of {
        Some(of) => format!("{} of {} {what}", count(done), count(of)),
        None => format!("{} {what}", count(done)),
    }
}

/// Writes over the line, and erases its rest.
pub(super) fn write(line: &str) {
    let _ = io::stderr().write_all(format!("\r\u{1b}[K{line}").as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_of_how_many_where_that_is_known() {
        let known = line("chunks checked", 1200, Some(3000));
        assert_eq!(known, "1,200 of 3,000 chunks checked");
        assert_eq!(line("simulations done", 12, None), "12 simulations done");
    }
}
