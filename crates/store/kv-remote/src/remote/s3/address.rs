//! Which bucket, on which server, and who asks.

use std::fmt::Display;

use contextpilot_settings::BUCKET_SCHEME;
use rusty_s3::{Bucket, Credentials, UrlStyle};

/// All that a request needs.
pub(super) struct Address {
    pub(super) bucket: Bucket,
    pub(super) credentials: Credentials,
    /// What keys begin with: empty, or it ends with `/`.
    pub(super) prefix: String,
    /// Without credentials.
    pub(super) shown: String,
    /// The server is on this machine: no proxy is asked.
    pub(super) is_near: bool,
}

impl Address {
    /// From `s3://bucket[/prefix]` and the variables that tools for S3 read.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub(super) fn new(
        url: &str,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, String> {
        let set = |name: &str| environment(name).filter(|value| !value.is_empty());
        let rest = url.strip_prefix(BUCKET_SCHEME).unwrap_or_default();
        let (name, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
        // Nothing that would have another meaning in the address of a request.
        let is_word = |text: &str| {
            let good = |c: u8| c.is_ascii_alphanumeric() || b"._-".contains(&c);
            text.bytes().all(good) && text.bytes().any(|c| c != b'.')
        };
        if !is_word(name) || !(3..=63).contains(&name.len()) {
            return Err("write s3://bucket/prefix".to_owned());
        }
        if !prefix.is_empty() && !prefix.split('/').all(is_word) {
            return Err(
                "a prefix has letters, digits, '.', '_', '-', and '/' between them".to_owned(),
            );
        }
        let (key, secret) = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY");
        let (Some(key), Some(secret)) = (set(key), set(secret)) else {
            return Err(format!("set {key} and {secret}"));
        };
        let credentials = match set("AWS_SESSION_TOKEN") {
            Some(token) => Credentials::new_with_token(key, secret, token),
            None => Credentials::new(key, secret),
        };
        let region = set("AWS_REGION")
            .or_else(|| set("AWS_DEFAULT_REGION"))
            .unwrap_or_else(|| "us-east-1".to_owned());
        if !is_word(&region) {
            return Err("AWS_REGION is no name of a region".to_owned());
        }
        let endpoint = set("AWS_ENDPOINT_URL_S3").or_else(|| set("AWS_ENDPOINT_URL"));
        let at = endpoint.as_ref().map(|_| ());
        // A certificate for *.s3.… does not cover a name with a dot.
        let style = if at.is_none() && !name.contains('.') {
            UrlStyle::VirtualHost
        } else {
            UrlStyle::Path
        };
        let endpoint = endpoint.unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com"));
        let no_endpoint = |why: &dyn Display| format!("AWS_ENDPOINT_URL is no address ({why})");
        // What stands in it besides a host may be a password, and none of it is of use.
        if endpoint.contains(['@', '?', '#']) {
            return Err(no_endpoint(&"it is https://host:port"));
        }
        let endpoint = format!("{}/", endpoint.trim_end_matches('/'));
        let parsed = endpoint.parse().map_err(|error| no_endpoint(&error))?;
        let bucket = Bucket::new(parsed, style, name.to_owned(), region)
            .map_err(|_| no_endpoint(&"it is https://host:port"))?;
        let host = bucket.base_url().host_str().unwrap_or_default();
        let is_near = matches!(host, "localhost" | "[::1]") || host.starts_with("127.");
        let shown = match at {
            Some(()) => format!("{url} at {}", endpoint.trim_end_matches('/')),
            None => url.to_owned(),
        };
        Ok(Self {
            is_near,
            bucket,
            credentials,
            prefix: match prefix {
                "" => String::new(),
                prefix => format!("{prefix}/"),
            },
            shown,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [(&str, &str); 2] = [
        ("AWS_ACCESS_KEY_ID", "key"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
    ];

    fn new(url: &str, more: &[(&str, &str)]) -> Result<Address, String> {
        Address::new(url, |name| {
            let mut all = more.iter().chain(&KEYS);
            let found = all.find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_environment_says_which_server() {
        let at = |url: &str, more: &[(&str, &str)]| {
            let address = new(url, more).ok().unwrap();
            let base = address.bucket.base_url().to_string();
            (base, address.prefix, address.bucket.region().to_owned())
        };
        let expect = |base: &str, prefix: &str, region: &str| {
            (base.to_owned(), prefix.to_owned(), region.to_owned())
        };
        assert_eq!(
            at("s3://tea", &[]),
            expect("https://tea.s3.us-east-1.amazonaws.com/", "", "us-east-1")
        );
        assert_eq!(
            at("s3://tea/a/b/", &[("AWS_REGION", "eu-north-1")]),
            expect(
                "https://tea.s3.eu-north-1.amazonaws.com/",
                "a/b/",
                "eu-north-1"
            )
        );
        assert_eq!(
            at("s3://tea.sea", &[("AWS_DEFAULT_REGION", "eu-north-1")]),
            expect(
                "https://s3.eu-north-1.amazonaws.com/tea.sea/",
                "",
                "eu-north-1"
            )
        );
        for endpoint in ["http://10.0.0.2:9000", "http://10.0.0.2:9000/"] {
            let set = [("AWS_ENDPOINT_URL", endpoint), ("AWS_REGION", "")];
            assert_eq!(
                at("s3://tea/a", &set),
                expect("http://10.0.0.2:9000/tea/", "a/", "us-east-1")
            );
        }
    }

    #[test]
    fn what_is_missing_or_wrong_is_said_without_secrets() {
        for url in [
            "s3://",
            "s3:///a",
            "s3://ab",
            "s3://key:secret@tea",
            "s3://tea/a//b",
            "s3://tea/../b",
            "s3://tea/a?b",
            "s3://tea/a b",
        ] {
            let why = new(url, &[]).err().unwrap_or_else(|| panic!("{url}"));
            assert!(!why.contains("secret"), "{why}");
        }
        for endpoint in ["host:9000", "ftp://host", "http://me:secret@host", "x"] {
            let why = new("s3://tea", &[("AWS_ENDPOINT_URL", endpoint)])
                .err()
                .unwrap();
            assert!(why.contains("AWS_ENDPOINT_URL"), "{why}");
            assert!(!why.contains("secret"), "{why}");
        }
        let why = Address::new("s3://tea", |_| None).err().unwrap();
        assert_eq!(why, "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY");
        let empty = [("AWS_ACCESS_KEY_ID", "")];
        assert!(new("s3://tea", &empty).is_err());
    }
}
