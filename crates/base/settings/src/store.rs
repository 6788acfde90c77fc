//! The settings of the prefix store: where it is, how large it may become, and the address of its remote. Of that only its
//! form is known here, and what of it may be shown.

use std::path::PathBuf;

use crate::secret::Secret;
use crate::url::{looks_like_scheme, redact};

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

/// What an address of a Redis begins with.
pub const REDIS_SCHEMES: [&str; 3] = ["redis://", "rediss://", "redis+unix://"];
/// What an address of a bucket begins with.
pub const BUCKET_SCHEME: &str = "s3://";

/// What to write instead of an address of another form.
pub const REMOTE_FORMS: &str =
    "write redis://host:6379, rediss://host:6379, redis+unix:///path or s3://bucket/prefix";

/// Whether the address has the form of one. Whether it is right is known only after connecting.
pub(crate) fn is_remote(address: &str) -> bool {
    let mut schemes = REDIS_SCHEMES.into_iter().chain([BUCKET_SCHEME]);
    let rest = schemes.find_map(|scheme| address.strip_prefix(scheme));
    rest.is_some_and(|rest| !rest.is_empty() && !rest.contains(char::is_whitespace))
}

/// The address without what may be a password. User and password are left out where the scheme says where they
/// stand. Of anything else, `***` takes their place. A query is left out, as that of `redis+unix://` has the password.
#[must_use]
pub fn shown_remote(address: &str) -> String {
    let shown = redact(address);
    let shown = match shown.split_once('?') {
        Some((shown, _)) => format!("{shown}?***"),
        None => shown,
    };
    match shown.split_once("://") {
        Some((scheme, rest)) if looks_like_scheme(scheme) => {
            let at = rest.rsplit_once('@').map_or(rest, |(_, at)| at);
            format!("{scheme}://{at}")
        }
        _ => match shown.split_once('@') {
            // Some tools take a user without a password for the password.
            Some((user, at)) if !user.contains(':') => format!("***@{at}"),
            _ => shown,
        },
    }
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

    #[test]
    fn an_address_begins_with_a_scheme_and_goes_on() {
        for right in [
            "redis://h",
            "rediss://u:p@h:1/2",
            "redis+unix:///a",
            "s3://b/c",
        ] {
            assert!(is_remote(right), "{right}");
        }
        for wrong in [
            "", "nonsense", "h:6379", "redis:/h", "redis://", "s3:// b", "http://h",
        ] {
            assert!(!is_remote(wrong), "{wrong}");
        }
    }

    #[test]
    fn an_address_is_shown_without_what_may_be_a_password() {
        for (address, shown) in [
            ("redis://me:hunter2@host:6379/2", "redis://host:6379/2"),
            ("redis://hunter2@host", "redis://host"),
            ("redis://me:hunt?er2@host", "redis://host"),
            ("redis+unix:///a?pass=hunter2", "redis+unix:///a?***"),
            ("redis+unix:///a?pass=h:u@nter2", "redis+unix:///a?***"),
            ("user:hunter2@host:6379", "user:***@host:6379"),
            ("redis:/:hunter2@host:6379", "redis:***@host:6379"),
            ("u:hunter2://w@host", "u:***@host"),
            ("hunter2@host:6379", "***@host:6379"),
            ("host:6379?password=hunter2", "host:6379?***"),
            ("host:6379", "host:6379"),
            ("", ""),
        ] {
            assert_eq!(shown_remote(address), shown);
        }
    }
}
