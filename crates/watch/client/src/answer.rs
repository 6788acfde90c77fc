//! Answers, and the errors in them.

use std::io::Read;

use serde::de::DeserializeOwned;
use serde_json::Value;
use ureq::Body;
use ureq::http::StatusCode;

use crate::error::one_line;
use crate::{Error, Result};

/// The most bytes that are read of a whole answer. A slot's state with a
/// prompt of a million tokens has some megabytes.
const MAX_BODY: u64 = 64 << 20;

/// The head of an answer; the body has not been read yet.
pub(crate) struct HttpAnswer {
    pub(crate) status: StatusCode,
    body: Body,
    address: String,
}

impl HttpAnswer {
    pub(crate) fn new(status: StatusCode, body: Body, address: String) -> Self {
        Self {
            status,
            body,
            address,
        }
    }

    /// The body of a success, as JSON.
    pub(crate) fn json<T: DeserializeOwned>(self) -> Result<T> {
        self.success()?.json_whatever_the_status()
    }

    /// The body as JSON, where the status only repeats what it says.
    pub(crate) fn json_whatever_the_status<T: DeserializeOwned>(self) -> Result<T> {
        let address = self.address.clone();
        let text = self.text()?;
        serde_json::from_str(&text).map_err(|e| Error::Unexpected {
            address,
            why: format!(
                "{e} in {:?}",
                one_line(&text.chars().take(80).collect::<String>())
            ),
        })
    }

    /// The body, whatever the status.
    pub(crate) fn text(self) -> Result<String> {
        let bytes = self.bytes()?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The body as bytes, which need not be text.
    pub(crate) fn bytes(mut self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let read = self.body.as_reader().take(MAX_BODY).read_to_end(&mut bytes);
        match read {
            Ok(_) => Ok(bytes),
            Err(e) => Err(Error::Unreachable {
                address: self.address,
                why: one_line(&format!("the answer broke off: {e}")),
            }),
        }
    }

    /// The body as it arrives.
    pub(crate) fn reader(self) -> (impl Read + Send + 'static, String) {
        (self.body.into_reader(), self.address)
    }

    /// Returns the answer, unless its status is an error.
    pub(crate) fn success(self) -> Result<Self> {
        let status = self.status;
        if status.is_success() {
            return Ok(self);
        }
        let text = self.text()?;
        Err(refused(status.as_u16(), &message(&text)))
    }
}

/// The message in an error's body: llama-server and OpenAI have it in
/// `error.message`, the control endpoint and others in `error` or `detail`.
pub(crate) fn message(body: &str) -> String {
    let value: Value = serde_json::from_str(body).unwrap_or_default();
    let said = [
        &value["error"]["message"],
        &value["error"],
        &value["message"],
        &value["detail"],
    ]
    .into_iter()
    .find_map(Value::as_str)
    .map(str::to_owned);
    let said = said.as_deref().unwrap_or(body);
    // What a chat template says itself stands behind a part of its source.
    let said = said.rsplit("\nError: ").next().unwrap_or(said);
    one_line(said.trim())
}

fn refused(status: u16, message: &str) -> Error {
    let message = message.to_owned();
    match status {
        401 | 403 => Error::Unauthorized { message },
        503 if message.to_ascii_lowercase().contains("loading model") => Error::Loading,
        501 => Error::Disabled {
            flag: match () {
                () if message.contains("--slot-save-path") => "--slot-save-path <folder>",
                () if message.contains("--metrics") => "--metrics",
                () if message.contains("--slots") => "--slots",
                () => return Error::Refused { status, message },
            },
        },
        400 if message.contains("exceed") && message.contains("context") => {
            Error::TooLong { message }
        }
        _ => Error::Refused { status, message },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_of_an_error_is_found_in_every_form() {
        for body in [
            r#"{"error":{"code":400,"message":"so"}}"#,
            r#"{"error":"so"}"#,
            r#"{"detail":"so"}"#,
            "so\n",
        ] {
            assert_eq!(message(body), "so", "{body}");
        }
        assert_eq!(message("a\u{1b}[2J\nb"), "a [2J b");
        let template = r#"{"error":{"message":"at line 1:\n...{{ so() }}\n   ^\nError: Jinja Exception: so"}}"#;
        assert_eq!(message(template), "Jinja Exception: so");
    }

    #[test]
    fn an_error_says_what_to_do() {
        let loading = refused(503, "Loading model");
        assert_eq!(loading, Error::Loading);
        let metrics = refused(501, "Start it with `--metrics`").to_string();
        assert!(metrics.ends_with("start it with --metrics"), "{metrics}");
        let key = refused(401, "Invalid API Key").to_string();
        assert!(key.contains("give the key or token"), "{key}");
    }
}
