//! The setting of the prefix store.

use std::path::PathBuf;

use crate::secret::Secret;

/// Where the prefix store is, and how large it may become.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreAt {
    /// The folder, an absolute path. Not opened here.
    pub folder: PathBuf,
    /// The largest size, bytes; `None`: to be chosen by what is free there.
    pub limit: Option<u64>,
    /// The address of a Redis or a bucket that holds the store for several machines, as it was given. To the hook only whether there is one matters.
    pub remote: Option<Secret>,
    /// Whether contexts that cannot go back to any position have a store, too.
    pub bounded: bool,
    /// Whether answers count what was loaded as cached.
    pub usage: bool,
}

/// A million times 10⁹ bytes. More is taken for a typing error.
pub(crate) const LARGEST_GB: u64 = 1_000_000;

/// Bytes, from a decimal number of 10⁹ bytes with at most nine decimals.
#[must_use]
pub fn read_gigabytes(text: &str) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(part) || part.len() > 9 {
        return None;
    }
    let whole: u64 = whole.parse().ok()?;
    let part: u64 = format!("{part:0<9}").parse().ok()?;
    (whole <= LARGEST_GB).then(|| whole * 1_000_000_000 + part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_may_have_decimals() {
        let read = |text| read_gigabytes(text);
        assert_eq!(read("20"), Some(20_000_000_000));
        assert_eq!(read("0.5"), Some(500_000_000));
        assert_eq!(read("0.000000001"), Some(1));
        assert_eq!(read("0"), Some(0));
        for wrong in [
            "",
            ".5",
            "5.",
            "-1",
            "1e3",
            "1,5",
            "0.0000000001",
            "1000001",
            "20GB",
            " 1",
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
