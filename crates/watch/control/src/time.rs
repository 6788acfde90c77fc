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

impl From<Timestamp> for SystemTime {
    fn from(time: Timestamp) -> Self {
        UNIX_EPOCH + Duration::from_millis(time.unix_ms)
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_rfc3339_millis((*self).into()).fmt(f)
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
        let time = Self::from(humantime::parse_rfc3339(text).map_err(|_| NotATime)?);
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
    fn no_moment_is_before_an_earlier_one() {
        let (one, other) = (Timestamp::from_unix_ms(2), Timestamp::from_unix_ms(1500));
        assert_eq!(other.since(one), Duration::from_millis(1498));
        assert_eq!(one.since(other), Duration::ZERO);
        assert_eq!(Timestamp::from(SystemTime::from(other)), other);
        let before_1970 = UNIX_EPOCH - Duration::from_secs(1);
        assert_eq!(Timestamp::from(before_1970).unix_ms(), 0);
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
