//! Servers whose flags differ.

/// Servers whose flags, or their defaults, differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Generation {
    /// Without a host prompt cache: until autumn 2025.
    Of2025,
    /// With `llama_decode`: until mid 2026.
    Early2026,
    /// With `llama_process`, listening on port 8080.
    Mid2026,
    /// Since build 11669 (0.7.0), listening on port 9931.
    Late2026,
}

impl Generation {
    /// `version` and `build`: in the engine's own words, such as `0.7.0` and `b11669-Debian`; empty if
    /// it has none. An engine that states neither is older than 0.7.
    #[must_use]
    pub fn detect(has_host_cache: bool, has_process: bool, version: &str, build: &str) -> Self {
        match (has_host_cache, has_process, is_of_0_7(version, build)) {
            (false, ..) => Self::Of2025,
            (true, false, _) => Self::Early2026,
            (true, true, Some(true)) => Self::Late2026,
            (true, true, _) => Self::Mid2026,
        }
    }
}

/// Whether an engine is at least 0.7.0, by the number of its build, else by its version. `None`: it
/// states neither.
#[must_use]
pub fn is_of_0_7(version: &str, build: &str) -> Option<bool> {
    match (build_number(build), version_numbers(version)) {
        (Some(build), _) => Some(build >= 11_669),
        (None, Some(version)) => Some(version >= (0, 7)),
        (None, None) => None,
    }
}

/// The number in a build such as `b11669-Debian`. `None` for builds outside llama.cpp's repository, which
/// have 0 or 1.
fn build_number(build: &str) -> Option<u32> {
    let begin = build.find(|c: char| c.is_ascii_digit())?;
    let digits = build[begin..].split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok().filter(|&number| number >= 1000)
}

/// The major and minor number of a version.
fn version_numbers(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit());
    let mut next = || numbers.next()?.parse().ok();
    Some((next()?, next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_build_decides_and_then_the_version() {
        for (version, build, expected) in [
            ("0.7.0", "b11669-Debian", Some(true)),
            ("0.7.0-dev", "b11434", Some(false)),
            ("0.5.0-dev", "b1-0c1e570", Some(false)),
            ("0.10.0", "b1-0c1e570", Some(true)),
            ("1.0.0", "", Some(true)),
            ("", "b9246", Some(false)),
            ("", "b1-8733e0c", None),
            ("", "", None),
        ] {
            assert_eq!(is_of_0_7(version, build), expected, "{version} {build}");
        }
    }

    #[test]
    fn an_engine_that_does_not_tell_its_version_is_older() {
        let of = |cache, process, version| Generation::detect(cache, process, version, "");
        assert_eq!(of(false, true, "0.7.0"), Generation::Of2025);
        assert_eq!(of(true, false, "0.7.0"), Generation::Early2026);
        assert_eq!(of(true, true, ""), Generation::Mid2026);
        assert_eq!(of(true, true, "0.7.1"), Generation::Late2026);
    }
}
