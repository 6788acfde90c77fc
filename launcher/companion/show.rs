//! Prints numbers, times and ids for people.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use contextpilot_client::control::{RequestName, Timestamp};
use serde::Serialize;

use crate::say::plain;
use crate::sys::{self, LocalTime};
use crate::variables::{Lookup, of_process};

/// Whether the output is still open. A command that goes on for ever ends when it is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(super) enum Reader {
    There,
    /// As `head` once it has its lines.
    Gone,
}

/// Prints text. It is no error if the reader has gone.
pub(super) fn print(text: &str) -> Result<(), String> {
    offer(text).map(|_| ())
}

/// Prints one JSON object as a line. It is no error if the reader has gone.
pub(super) fn print_json(value: &impl Serialize) -> Result<(), String> {
    offer_json(value).map(|_| ())
}

/// Prints one of these: `value` as JSON, or the text.
pub(super) fn print_as(
    json: bool,
    value: &impl Serialize,
    text: impl FnOnce() -> String,
) -> Result<(), String> {
    if json {
        print_json(value)
    } else {
        print(&text())
    }
}

/// Prints text, and says whether there is a reader.
pub(super) fn offer(text: &str) -> Result<Reader, String> {
    write(plain(text).as_bytes())
}

/// As [`offer`]. At a terminal, lines for which there is a colour (as terminals count them) have it, unless `NO_COLOR` is set.
pub(super) fn offer_coloured(
    text: &str,
    colour: impl Fn(&str) -> Option<u8>,
) -> Result<Reader, String> {
    if !io::stdout().is_terminal() || of_process.non_empty("NO_COLOR").is_some() {
        return offer(text);
    }
    write(coloured(&plain(text), colour).as_bytes())
}

fn coloured(text: &str, colour: impl Fn(&str) -> Option<u8>) -> String {
    let lines = text.lines().map(|line| match colour(line) {
        Some(colour) => format!("\x1b[{colour}m{line}\x1b[0m\n"),
        None => format!("{line}\n"),
    });
    lines.collect()
}

/// Prints one JSON object as a line, and says whether there is a reader.
pub(super) fn offer_json(value: &impl Serialize) -> Result<Reader, String> {
    let text = serde_json::to_string(value).map_err(|e| format!("no JSON can be made: {e}"))?;
    write((text + "\n").as_bytes())
}

/// Prints a path as a line, with the very bytes that it has: what reads it opens it.
pub(super) fn print_path(path: &Path) -> Result<(), String> {
    write(&[path.as_os_str().as_bytes(), b"\n"].concat()).map(|_| ())
}

fn write(bytes: &[u8]) -> Result<Reader, String> {
    match io::stdout().write_all(bytes) {
        Ok(()) => Ok(Reader::There),
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(Reader::Gone),
        Err(e) => Err(cannot_print(&e)),
    }
}

pub(super) fn cannot_print(error: &io::Error) -> String {
    format!("standard output cannot be written to ({error}): check where it leads")
}

/// Shows an id without characters that move a terminal's cursor or hide text:
/// any client can choose an id.
pub(super) struct Visible<'a>(pub(super) &'a str);

impl fmt::Display for Visible<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
pub(super) struct Moment {
    local: LocalTime,
    millisecond: u32,
}

impl Moment {
    pub(super) fn now() -> Self {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Self::at(since)
    }

    fn at(since: Duration) -> Self {
        Self {
            local: sys::local_time(since.as_secs().try_into().unwrap_or_default()),
            millisecond: since.subsec_millis(),
        }
    }

    /// `HH:MM:SS.mmm`
    pub(super) fn of_day(&self) -> String {
        let t = &self.local;
        let ms = self.millisecond;
        format!("{:02}:{:02}:{:02}.{ms:03}", t.hour, t.minute, t.second)
    }

    /// `YYYY-MM-DD HH:MM`
    pub(super) fn minute(&self) -> String {
        let t = &self.local;
        format!(
            "{:04}-{:02}-{:02} {:02}:{:02}",
            t.year, t.month, t.day, t.hour, t.minute
        )
    }

    /// As RFC 3339 has it: `2026-11-21T07:25:03.123+01:00`
    pub(super) fn full(&self) -> String {
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

impl From<Timestamp> for Moment {
    fn from(time: Timestamp) -> Self {
        Self::at(Duration::from_millis(time.unix_ms()))
    }
}

/// `1,234,567`
pub(super) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The number of a request, as lists name those without an id: `#17`.
pub(super) fn number(name: &str) -> Option<u64> {
    RequestName::number(name)
}

/// `1 chunk`, `2 chunks`
pub(super) fn counted(number: u64, what: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{} {what}{ending}", count(number))
}

/// `1.5 MiB`
pub(super) fn bytes(number: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = number as f64;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{number} B"),
        _ if value < 10.0 => format!("{value:.1} {}", UNITS[unit]),
        _ => format!("{value:.0} {}", UNITS[unit]),
    }
}

/// `62 %`; a dash where there is none.
pub(super) fn percent(ratio: Option<f64>) -> String {
    ratio.map_or("–".to_owned(), |ratio| format!("{:.0} %", ratio * 100.0))
}

/// `350 ms`, `3.1 s`, then as [`span`].
pub(super) fn duration(seconds: f64) -> String {
    match seconds {
        ..0.9995 => format!("{:.0} ms", seconds * 1000.0),
        ..9.95 => format!("{seconds:.1} s"),
        _ => span(seconds_of(seconds.round())),
    }
}

/// A time that an endpoint says. What is absurd is the longest or the shortest that there is.
pub(super) fn seconds_of(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)
}

/// `3 min 12 s`: two units at most.
pub(super) fn span(span: Duration) -> String {
    let seconds = span.as_secs();
    match seconds {
        0 => format!("{} ms", span.as_millis()),
        1..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_with_a_colour_ends_with_none() {
        let text = coloured("a\nb\n", |line| (line == "b").then_some(33));
        assert_eq!(text, "a\n\x1b[33mb\x1b[0m\n");
    }

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

    #[test]
    fn numbers_are_written_for_people() {
        let counts = [0, 999, 1000, 1_234_567].map(count);
        assert_eq!(counts, ["0", "999", "1,000", "1,234,567"]);
        let sizes = [0, 999, 1536, 10 << 20, 8 << 30].map(bytes);
        assert_eq!(sizes, ["0 B", "999 B", "1.5 KiB", "10 MiB", "8.0 GiB"]);
        let spans = [0, 59, 61, 3700, 90_000].map(|s| span(Duration::from_secs(s)));
        assert_eq!(spans, ["0 ms", "59 s", "1 min 1 s", "1 h 1 min", "1 d 1 h"]);
        let durations = [0.0, 0.9994, 1.26, 9.94, 9.96, 61.0].map(duration);
        assert_eq!(
            durations,
            ["0 ms", "999 ms", "1.3 s", "9.9 s", "10 s", "1 min 1 s"]
        );
        assert_eq!(seconds_of(-1e300), Duration::ZERO);
        assert_eq!(duration(1e300), span(Duration::MAX));
        assert_eq!([Some(0.625), None].map(percent), ["62 %", "–"]);
        let chunks = [0, 1, 1234].map(|number| counted(number, "chunk"));
        assert_eq!(chunks, ["0 chunks", "1 chunk", "1,234 chunks"]);
        let numbers = ["#17", "#", "17", "#1a"].map(number);
        assert_eq!(numbers, [Some(17), None, None, None]);
    }
}
