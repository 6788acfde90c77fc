//! Asks the index a question, in the way in which evictions are reported.

use crate::config::Config;
use crate::http::Client;

/// What the index answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexAnswer {
    /// The HTTP status.
    pub status: u16,
    /// The body, or the beginning of a long one.
    pub body: Vec<u8>,
}

/// Asks the endpoint of `config` with `GET`: by the same proxy, with the same trust, credentials and
/// redirects as a [`Sender`](crate::Sender) of this configuration.
///
/// # Errors
/// No answer, or a configuration that cannot be used: why, as a part of one line.
pub fn ask(config: &Config) -> Result<IndexAnswer, String> {
    let client = Client::new(config).map_err(|error| error.to_string())?;
    let received = client.get().map_err(|none| none.why)?;
    Ok(IndexAnswer {
        status: received.status,
        body: received.body,
    })
}
