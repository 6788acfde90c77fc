use std::io::{self, Write};
use std::process::exit;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::json;

use crate::companion::cannot_print;
use crate::say::say;
use crate::sys::{self, LocalTime};

/// Writes evictions to standard output, one line each, whole POSTs at a time.
pub(super) struct Printer {
    json: bool,
    /// The lines of one POST stay together.
    turn: Mutex<()>,
}

impl Printer {
    pub(super) fn new(json: bool) -> Self {
        Self {
            json,
            turn: Mutex::new(()),
        }
    }

    /// Shows ids that were evicted, and ends the process when nobody can see
    /// them: quietly when the reader has gone, as `head` does.
    pub(super) fn evicted(&self, ids: &[String]) {
        let now = Moment::now();
        let mut lines = String::new();
        for id in ids {
            if self.json {
                let line = json!({"time": now.full(), "request_id": id});
                lines.push_str(&line.to_string());
            } else {
                lines.push_str(&format!("{}  evicted  {}", now.of_day(), Visible(id)));
            }
            lines.push('\n');
        }
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let mut stdout = io::stdout();
        let written = stdout
            .write_all(lines.as_bytes())
            .and_then(|()| stdout.flush());
        match written {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => exit(0),
            Err(e) => {
                say(cannot_print(&e));
                exit(1);
            }
        }
    }
}

/// An id without what would move a terminal's cursor or hide characters:
/// anybody who can post chooses it.
struct Visible<'a>(&'a str);

impl std::fmt::Display for Visible<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for c in self.0.chars() {
            match c {
                '"' | '\'' | '\\' => write!(f, "{c}")?,
                _ => write!(f, "{}", c.escape_debug())?,
            }
        }
        Ok(())
    }
}

/// A point in time, for people in this time zone.
struct Moment {
    local: LocalTime,
    millisecond: u32,
}

impl Moment {
    fn now() -> Self {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let seconds = since.as_secs().try_into().unwrap_or_default();
        Self {
            local: sys::local_time(seconds),
            millisecond: since.subsec_millis(),
        }
    }

    /// `HH:MM:SS.mmm`
    fn of_day(&self) -> String {
        let t = &self.local;
        let ms = self.millisecond;
        format!("{:02}:{:02}:{:02}.{ms:03}", t.hour, t.minute, t.second)
    }

    /// As RFC 3339 has it: `2026-11-21T07:25:03.123+01:00`
    fn full(&self) -> String {
        let t = &self.local;
        let sign = if t.offset < 0 { '-' } else { '+' };
        let minutes = t.offset.unsigned_abs() / 60;
        format!(
            "{:04}-{:02}-{:02}T{}{sign}{:02}:{:02}",
            t.year,
            t.month,
            t.day,
            self.of_day(),
            minutes / 60,
            minutes % 60
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_written_in_full() {
        let local = LocalTime {
            year: 2026,
            month: 1,
            day: 2,
            hour: 3,
            minute: 4,
            second: 5,
            offset: -12_600,
        };
        let moment = Moment {
            local,
            millisecond: 6,
        };
        assert_eq!(moment.full(), "2026-01-02T03:04:05.006-03:30");
    }

    #[test]
    fn ids_cannot_control_the_terminal() {
        assert_eq!(Visible("req-\"1' \\é").to_string(), "req-\"1' \\é");
        assert_eq!(
            Visible("a\n\u{1b}[2J\u{202e}").to_string(),
            "a\\n\\u{1b}[2J\\u{202e}"
        );
    }
}
