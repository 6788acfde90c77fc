//! The address of the prefix store's remote, as far as it is known here: its form, and what of it may be shown.

use crate::url::{looks_like_scheme, redact};

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
