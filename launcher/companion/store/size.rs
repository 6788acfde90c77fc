//! A size that people type: `10GB`.

use std::str::FromStr;

/// Bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size(u64);

/// The longest first where one ends as another does.
const UNITS: [(&str, u64); 13] = [
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("k", 1000),
    ("m", 1_000_000),
    ("g", 1_000_000_000),
    ("t", 1_000_000_000_000),
    ("b", 1),
];

impl Size {
    pub(super) fn bytes(self) -> u64 {
        self.0
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let lower = text.trim().to_ascii_lowercase();
        let unit = UNITS.iter().find(|(unit, _)| lower.ends_with(unit));
        let (number, factor) = match unit {
            Some((unit, factor)) => (lower[..lower.len() - unit.len()].trim_end(), *factor),
            None => (&*lower, 1),
        };
        let plain = |c: char| c.is_ascii_digit() || c == '.';
        let value: Option<f64> = number.parse().ok().filter(|_| number.chars().all(plain));
        match value {
            // Beyond 2⁵³ bytes a fraction of a byte does not matter.
            Some(value) => Ok(Self((value * factor as f64) as u64)),
            None => Err("write a number with a unit, as 10GB or 500MiB".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        let size = |text: &str| text.parse().map(Size::bytes);
        assert_eq!(size("0"), Ok(0));
        assert_eq!(size("12345"), Ok(12_345));
        assert_eq!(size("10GB"), Ok(10_000_000_000));
        assert_eq!(size("1.5 gb"), Ok(1_500_000_000));
        assert_eq!(size("500MiB"), Ok(500 << 20));
        assert_eq!(size("2k"), Ok(2000));
        for wrong in ["", "GB", "-1GB", "1e3", "ten", "10 GBs", "inf", "nan"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
