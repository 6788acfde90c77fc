use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// A moment in UTC, to the millisecond. In JSON as RFC 3339: `2026-01-02T03:04:05.006Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Timestamp {
    unix_ms: u64,
}

/// The last moment that RFC 3339 can write.
const LAST: u64 = 253_402_300_799_999;
const MS_A_DAY: u64 = 86_400_000;

impl Timestamp {
    /// From milliseconds since 1970. What lies beyond the year 9999 becomes its end.
    #[must_use]
    pub const fn from_unix_ms(unix_ms: u64) -> Self {
        let unix_ms = if unix_ms > LAST { LAST } else { unix_ms };
        Self { unix_ms }
    }

    /// Milliseconds since 1970.
    #[must_use]
    pub const fn unix_ms(self) -> u64 {
        self.unix_ms
    }

    /// How long after `earlier` this is; zero if it is not.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.unix_ms.saturating_sub(earlier.unix_ms))
    }
}

/// A clock before 1970 reads as 1970.
impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self::from_unix_ms(u64::try_from(since.as_millis()).unwrap_or(LAST))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = date_of(self.unix_ms / MS_A_DAY);
        let ms = self.unix_ms % MS_A_DAY;
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:03}Z",
            ms / 3_600_000,
            ms / 60_000 % 60,
            ms / 1000 % 60,
            ms % 1000
        )
    }
}

impl From<Timestamp> for String {
    fn from(time: Timestamp) -> Self {
        time.to_string()
    }
}

impl TryFrom<String> for Timestamp {
    type Error = NotATime;

    fn try_from(text: String) -> Result<Self, NotATime> {
        text.parse()
    }
}

/// Reads what [`Display`](fmt::Display) writes, and nothing else.
impl FromStr for Timestamp {
    type Err = NotATime;

    fn from_str(text: &str) -> Result<Self, NotATime> {
        let number = |from: usize, to: usize| {
            let digits = text.get(from..to).ok_or(NotATime)?;
            digits.parse::<u64>().map_err(|_| NotATime)
        };
        let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
        let days = days_until(number(0, 4)?, number(5, 7)?, number(8, 10)?).ok_or(NotATime)?;
        let ms = ((hour * 60 + minute) * 60 + second) * 1000 + number(20, 23)?;
        let time = Self::from_unix_ms(days * MS_A_DAY + ms);
        // Whatever is not as we write it becomes something else when it is written again.
        if time.to_string() == text {
            Ok(time)
        } else {
            Err(NotATime)
        }
    }
}

/// A text that is no [`Timestamp`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotATime;

impl fmt::Display for NotATime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a UTC time such as 2026-01-02T03:04:05.006Z")
    }
}

impl std::error::Error for NotATime {}

const fn is_leap(year: u64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

const fn days_of(year: u64, month: u64) -> u64 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if is_leap(year) => 29,
        2 => 28,
        _ => 31,
    }
}

/// Leap days from year 1 up to, and without, this one.
const fn leap_days_before(year: u64) -> u64 {
    let whole = year - 1;
    whole / 4 - whole / 100 + whole / 400
}

/// Days from 1970 to the first of a year.
const fn new_year(year: u64) -> u64 {
    (year - 1970) * 365 + leap_days_before(year) - leap_days_before(1970)
}

fn date_of(days: u64) -> (u64, u64, u64) {
    // The guess is a year too late at most, where leap days make years longer than 365 days.
    let mut year = 1970 + days / 365;
    while new_year(year) > days {
        year -= 1;
    }
    let (mut month, mut rest) = (1, days - new_year(year));
    while rest >= days_of(year, month) {
        rest -= days_of(year, month);
        month += 1;
    }
    (year, month, rest + 1)
}

fn days_until(year: u64, month: u64, day: u64) -> Option<u64> {
    if year < 1970 || !(1..=12).contains(&month) || !(1..=days_of(year, month)).contains(&day) {
        return None;
    }
    let months: u64 = (1..month).map(|month| days_of(year, month)).sum();
    Some(new_year(year) + months + day - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_moments_are_written_as_the_standard_says() {
        for (unix_ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (951_868_799_999, "2000-02-29T23:59:59.999Z"),
            (951_868_800_000, "2000-03-01T00:00:00.000Z"),
            (1_798_761_599_000, "2026-12-31T23:59:59.000Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
            (LAST, "9999-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(Timestamp::from_unix_ms(unix_ms).to_string(), text);
            assert_eq!(text.parse(), Ok(Timestamp::from_unix_ms(unix_ms)));
        }
        assert_eq!(Timestamp::from_unix_ms(u64::MAX).unix_ms(), LAST);
    }

    #[test]
    fn what_is_no_such_time_is_refused() {
        for text in [
            "",
            "now",
            "2026-01-02T03:04:05Z",
            "2026-01-02 03:04:05.006Z",
            "2026-01-02T03:04:05.006+00:00",
            "2026-02-30T00:00:00.000Z",
            "2026-13-01T00:00:00.000Z",
            "1969-12-31T23:59:59.999Z",
            "2026-01-02T24:00:00.000Z",
            "2026-01-02T03:04:60.000Z",
            "+026-01-02T03:04:05.006Z",
            "2026-01-02T03:04:05.006Zé",
            "20é6-01-02T03:04:05.006Z",
        ] {
            assert_eq!(text.parse::<Timestamp>(), Err(NotATime), "{text}");
        }
    }
}
