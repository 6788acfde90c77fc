//! What holds chunks: what it is asked, and why it may not answer.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use contextpilot_kv_store::{Fingerprint, Name};
use contextpilot_random::Random;

/// The largest chunk that is fetched, bytes. A chunk has 256 tokens at most.
pub(crate) const LARGEST: u64 = 1 << 30;

/// A chunk that is listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) name: Name,
    /// Bytes on the disk.
    pub(crate) size: u64,
    /// Later ones have larger numbers. They are good until there is an error.
    pub(crate) nth: u64,
}

/// Some of a model's list.
#[derive(Debug, Default)]
pub(crate) struct Page {
    pub(crate) listed: Vec<Listed>,
    /// The number of the last one that was looked at, also if that is refused. `None`: there was none.
    pub(crate) end: Option<u64>,
    /// There are no more.
    pub(crate) is_last: bool,
    /// What cannot be one of ours.
    pub(crate) refused: u64,
}

/// What a look at what is new has found.
#[derive(Debug, Default)]
pub(crate) struct Round {
    /// It has lost what it had, or is another one: nothing that was known of it holds.
    pub(crate) is_anew: bool,
    /// Of each model, what changes when something was sent.
    pub(crate) marks: Vec<u64>,
}

/// What is at a chunk's name.
#[derive(Debug)]
pub(crate) enum Body {
    Whole(Vec<u8>),
    Nothing,
    /// More than it may have.
    TooLarge,
}

/// A chunk that is sent.
pub(crate) struct Sending {
    pub(crate) name: Name,
    /// Bytes on the disk.
    pub(crate) size: u64,
    /// The chunk as its file has it.
    pub(crate) whole: Vec<u8>,
}

/// What a remote is asked. Each question is answered within a bound of time, and of bytes.
pub(crate) trait Holder: Send {
    /// The address, without a password.
    fn shown(&self) -> &str;

    /// From one look at what is new to the next.
    fn pause(&self) -> Duration;

    /// The longest time from an error to the next attempt.
    fn longest_retry(&self) -> Duration;

    /// What comes may have a number that is smaller by so much than one that came before.
    fn overlap(&self) -> u64 {
        0
    }

    /// Asks whether it can be used, without looking at what is there.
    fn reach(&mut self) -> Result<(), RemoteError>;

    /// Looks at what is new, of all these models with one request.
    fn round(&mut self, models: &[Fingerprint]) -> Result<Round, RemoteError>;

    /// Which of these are there. `None`: to be asked in a later turn.
    fn has(
        &mut self,
        of: &Fingerprint,
        chunks: &[(Name, u64)],
    ) -> Result<Option<Vec<bool>>, RemoteError>;

    /// Sends chunks. Others may hear of them with [`publish`](Self::publish) only.
    fn put(&mut self, of: &Fingerprint, chunks: &[Sending]) -> Result<(), RemoteError>;

    /// Tells others what was sent, if they were not told with each chunk.
    fn publish(&mut self) -> Result<(), RemoteError> {
        Ok(())
    }

    /// What was sent after the `nth`, in order; at most so many.
    fn after(&mut self, of: &Fingerprint, nth: u64, most: usize) -> Result<Page, RemoteError>;

    /// What was sent before the `nth`, or last; the last one first; at most so many.
    fn before(
        &mut self,
        of: &Fingerprint,
        nth: Option<u64>,
        most: usize,
    ) -> Result<Page, RemoteError>;

    /// A chunk of at most so many bytes, if it is there.
    fn get(&mut self, of: &Fingerprint, name: &Name, most: u64) -> Result<Body, RemoteError>;

    /// The first bytes of a chunk, if it is there.
    fn head(&mut self, of: &Fingerprint, name: &Name, bytes: u64) -> Result<Body, RemoteError>;

    /// Takes a chunk off the list, and removes it if it is there.
    fn forget(&mut self, of: &Fingerprint, listed: &Listed) -> Result<(), RemoteError>;
}

/// A number that no other process draws.
pub(super) fn random_id() -> String {
    let mut random = Random::of_system();
    format!("{:016x}{:016x}", random.draw(), random.draw())
}

/// Why a remote is of no use now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The address is wrong, or lacks something.
    Address,
    /// It does not answer, or has no time.
    Away,
    /// It takes no more.
    Full,
    /// It refuses: a password is missing, or it is something else.
    Refused,
}

/// Why a remote is of no use now. `Display` has one line, which says what to do if that is known.
#[derive(Clone, Debug)]
pub struct RemoteError {
    /// The kind.
    pub trouble: Trouble,
    text: String,
}

impl RemoteError {
    pub(super) fn new(trouble: Trouble, text: String) -> Self {
        let text = text.replace(['\n', '\r'], " ");
        Self { trouble, text }
    }

    pub(super) fn address(shown: &str, why: &dyn fmt::Display) -> Self {
        Self::new(
            Trouble::Address,
            format!("{shown} cannot be used as the store's remote: {why}"),
        )
    }
}

/// What to do about an error of TLS, to be added to it.
pub(super) fn tls_advice(error: &rustls::Error) -> &'static str {
    match error {
        rustls::Error::InvalidCertificate(_) => {
            "; if an authority of your own has signed it, name its PEM file in SSL_CERT_FILE"
        }
        rustls::Error::AlertReceived(rustls::AlertDescription::CertificateRequired) => {
            "; it asks for a certificate of the client, and there is none"
        }
        rustls::Error::InvalidMessage(_) => NO_TLS,
        _ => "",
    }
}

pub(super) const NO_TLS: &str = "; does it speak TLS at this port?";

impl fmt::Display for RemoteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Error for RemoteError {}
