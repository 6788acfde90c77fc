use std::io::{self, IsTerminal};
use std::time::Instant;

use super::trial::Trial;
use crate::companion::progress::write;
use crate::companion::show::span;

const WIDTH: u32 = 24;

/// A line on stderr that is written over, if stderr is a terminal.
pub(super) struct Progress {
    total: u32,
    started: Instant,
    shown: bool,
}

impl Progress {
    pub(super) fn new(total: u32) -> Self {
        Self {
            total,
            started: Instant::now(),
            shown: io::stderr().is_terminal(),
        }
    }

    /// Shows the progress before a trial. `last` is the previous trial.
    pub(super) fn show(&self, last: Option<&Trial>) {
        if self.shown {
            let done = last.map_or(0, |trial| trial.number);
            let left = self.started.elapsed() * (self.total - done) / done.max(1);
            let mut line = bar(done, self.total);
            if let Some(Trial { hit, miss, .. }) = last {
                line += &format!(
                    "  hit {:.1} ms, miss {:.1} ms, {} to go",
                    hit.first_token_ms,
                    miss.first_token_ms,
                    span(left)
                );
            }
            write(&line);
        }
    }

    pub(super) fn clear(&self) {
        if self.shown {
            write("");
        }
    }
}

fn bar(done: u32, total: u32) -> String {
    let full = (u64::from(WIDTH) * u64::from(done) / u64::from(total.max(1))) as usize;
    let empty = WIDTH as usize - full;
    format!("{}{} {done}/{total}", "█".repeat(full), "░".repeat(empty))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_fills() {
        assert_eq!(bar(0, 4), format!("{} 0/4", "░".repeat(24)));
        assert_eq!(
            bar(1, 4),
            format!("{}{} 1/4", "█".repeat(6), "░".repeat(18))
        );
        assert_eq!(bar(4, 4), format!("{} 4/4", "█".repeat(24)));
    }
}
