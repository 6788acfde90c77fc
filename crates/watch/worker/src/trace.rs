//! `CONTEXTPILOT_TRACE_FILE`: a file with every event and fact, one line each, for finding faults.
//!
//! The worker thread appends to the file, so it shows the order in which the ledger applied the events. It
//! contains request ids and numbers of tokens, but no tokens and no text.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Instant;

use contextpilot_residency::{Entry, Event, Fact};

/// The open file.
pub struct Trace {
    file: File,
    start: Instant,
}

impl Trace {
    /// Appends to the file.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path)?;
        Ok(Self {
            file,
            start: Instant::now(),
        })
    }

    pub(crate) fn event(&mut self, event: &Event) {
        self.line("-", format_args!("{}", Brief(event)));
    }

    pub(crate) fn fact(&mut self, fact: &Fact) {
        self.line("=>", format_args!("{fact:?}"));
    }

    /// One write for each line, so that lines are whole even if the process is killed.
    fn line(&mut self, mark: &str, what: fmt::Arguments<'_>) {
        let seconds = self.start.elapsed().as_secs_f64();
        let line = format!("{seconds:12.6} {mark:>2} {what}\n");
        // A full disk must not end the worker. There is no place to report it.
        let _ = self.file.write_all(line.as_bytes());
    }
}

/// An event without its tokens.
struct Brief<'a>(&'a Event);

impl fmt::Display for Brief<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Event::Submitted { context, entries } => {
                write!(
                    f,
                    "Submitted {{ context: {context:?}, entries: {}",
                    entries.len()
                )?;
                for run in entries.chunk_by(|a, b| {
                    a.sequence == b.sequence && a.position.checked_add(1) == Some(b.position)
                }) {
                    write_run(f, run)?;
                }
                f.write_str(" }")
            }
            Event::Adapters {
                context,
                adapters,
                compared,
            } => {
                write!(
                    f,
                    "Adapters {{ context: {context:?}, compared: {compared:?}"
                )?;
                for adapter in adapters {
                    let (address, scale) = (adapter.address, adapter.scale.get());
                    write!(f, ", {address:#x}: {scale}")?;
                    if !adapter.invocation.is_empty() {
                        f.write_str(" if invoked")?;
                    }
                }
                f.write_str(" }")
            }
            Event::Replaced {
                context,
                sequence,
                tokens,
            } => write!(
                f,
                "Replaced {{ context: {context:?}, sequence: {sequence}, tokens: {} }}",
                tokens.len()
            ),
            event => write!(f, "{event:?}"),
        }
    }
}

/// Consecutive entries of one sequence: `seq 0: 5..9`, and `!` if an output was asked for.
fn write_run(f: &mut fmt::Formatter<'_>, run: &[Entry]) -> fmt::Result {
    let [first, .., last] = run else {
        let mark = if run.iter().any(|e| e.output) {
            "!"
        } else {
            ""
        };
        let (sequence, position) = run.first().map_or((-1, -1), |e| (e.sequence, e.position));
        return write!(f, ", seq {sequence}: {position}{mark}");
    };
    let mark = if run.iter().any(|e| e.output) {
        "!"
    } else {
        ""
    };
    write!(
        f,
        ", seq {}: {}..={}{mark}",
        first.sequence, first.position, last.position
    )
}

#[cfg(test)]
mod tests {
    use contextpilot_residency::ContextId;

    use super::*;

    #[test]
    fn a_batch_is_shown_in_runs_without_tokens() {
        let entry = |sequence, position, output| Entry {
            sequence,
            position,
            token: 4711,
            output,
        };
        let event = Event::Submitted {
            context: ContextId(1),
            entries: vec![entry(0, 3, false), entry(0, 4, true), entry(1, 9, false)].into(),
        };
        assert_eq!(
            Brief(&event).to_string(),
            "Submitted { context: ContextId(1), entries: 3, seq 0: 3..=4!, seq 1: 9 }"
        );
    }
}
