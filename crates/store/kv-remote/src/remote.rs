//! Where other machines' chunks are.

mod holder;
mod redis;
mod s3;

use std::time::Duration;

use contextpilot_settings::{BUCKET_SCHEME, REDIS_SCHEMES, REMOTE_FORMS, shown_remote};

use self::holder::Holder;
pub(crate) use self::holder::{Body, LARGEST, Listed, Sending};
pub use self::holder::{RemoteError, Trouble};
use self::redis::Redis;
#[cfg(test)]
pub(crate) use self::s3::Bucket;
use self::s3::S3;

/// A Redis or a bucket that holds chunks. Nothing is opened before something is asked.
pub struct Remote(pub(crate) Box<dyn Holder>);

impl Remote {
    /// `redis://[user:password@]host[:port][/number]`, the same with `rediss` for TLS, `redis+unix:///path`, or
    /// `s3://bucket[/prefix]`. Of the environment only a bucket's server and credentials are read.
    ///
    /// # Errors
    /// It is no such address, or the environment does not say what a bucket needs.
    pub fn new(
        url: &str,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, RemoteError> {
        if url.starts_with(BUCKET_SCHEME) {
            return Ok(Self(Box::new(S3::new(url, environment)?)));
        }
        if REDIS_SCHEMES.iter().any(|scheme| url.starts_with(scheme)) {
            return Ok(Self(Box::new(Redis::new(url)?)));
        }
        Err(RemoteError::address(&shown_remote(url), &REMOTE_FORMS))
    }

    /// The address, without a password.
    pub fn shown(&self) -> &str {
        self.0.shown()
    }

    /// From one look at what is new to the next. A bucket's requests cost money.
    pub fn pause(&self) -> Duration {
        self.0.pause()
    }

    /// The longest time from an error to the next attempt.
    pub fn longest_retry(&self) -> Duration {
        self.0.longest_retry()
    }

    /// Asks whether it can be used, without looking at what is there.
    ///
    /// # Errors
    /// It cannot.
    pub fn reach(&mut self) -> Result<(), RemoteError> {
        self.0.reach()
    }
}

#[cfg(test)]
mod tests {
    use contextpilot_kv_store::{Fingerprint, Name};

    use super::*;

    fn new(url: &str) -> Result<Remote, RemoteError> {
        Remote::new(url, |_| None)
    }

    #[test]
    fn a_password_is_not_shown() {
        let remote = new("redis://me:secret@127.0.0.1:1/2").ok().unwrap();
        assert_eq!(remote.shown(), "redis://127.0.0.1:1/2");
        let remote = new("rediss://me:secret@cache.lan").ok().unwrap();
        assert_eq!(remote.shown(), "rediss://cache.lan");
        for wrong in [
            "s3://me:secret@bucket",
            "valkeys://me:secret@host",
            "rediss://me:secret@host/#insecure",
            "host:6379",
            "me:secret@host:6379",
            "redis:/:secret@host:6379",
            "host:6379?password=secret",
            "",
        ] {
            let error = new(wrong).err().unwrap();
            assert_eq!(error.trouble, Trouble::Address);
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }

    #[test]
    fn who_does_not_answer_is_away() {
        let mut remote = new("redis://127.0.0.1:1").ok().unwrap();
        let error = remote
            .0
            .get(&Fingerprint([0; 16]), &Name([0; 16]), 1)
            .unwrap_err();
        assert_eq!(error.trouble, Trouble::Away, "{error}");
    }
}
