//! Texts that are not shown as they are: secrets, and what comes from outside, in a message.

use std::fmt;

/// A string that is never shown: `Debug` prints `***`, and there is no
/// `Display`.
///
/// This keeps secrets out of logs and panics. It does not protect them from a user who can
/// read the process's memory or environment.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub(crate) fn new(value: String) -> Self {
        Self(value)
    }

    /// The value, for the one place that sends it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Text from outside, such as an error of a peer, as part of one line: no control characters, and no more
/// than `most` characters.
#[must_use]
pub fn one_line(text: &str, most: usize) -> String {
    let visible = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    visible.take(most).collect()
}
