//! Puts the usage in an answer right after a load from a prefix store.
//!
//! The server evaluates, as it believes, what the hook has loaded, and says so: *4 of 1,520 tokens were cached*. With an
//! [`Account`] of the request it is known how many were loaded, and these count as cached then. Only the numbers
//! change; every other byte of an answer stays. Numbers that are not those of the account (several prompts in one request,
//! say) stay as well.
//!
//! | | what it puts right |
//! |---|---|
//! | [`correct`] | a JSON text |
//! | [`correct_lines`] | lines of an event stream |
//! | [`Sending`] | what a server is about to send, with its HTTP framing |

#![forbid(unsafe_code)]

mod figures;
mod sending;
mod spans;

pub use figures::{correct, correct_lines, has_figures, has_final_figures};
pub use sending::{LONGEST, Sending};
pub use spans::{Edit, Value, apply};

/// What is known of a request's prompt, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    /// Tokens that were not evaluated.
    pub reused: u64,
    /// Tokens that were evaluated.
    pub evaluated: u64,
    /// Reused tokens that came from the store.
    pub loaded: u64,
}

/// What the tests' answers are of.
#[cfg(test)]
const ACCOUNT: Account = Account {
    reused: 1519,
    evaluated: 1,
    loaded: 1515,
};
