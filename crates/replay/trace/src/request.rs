//! A request of a trace.

use crate::tree::Node;

/// No request.
pub const NONE: u32 = u32::MAX;

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Microseconds since the trace began.
    pub at: u64,
    /// Where its chain of blocks ends.
    pub end: Node,
    /// Tokens of the prompt.
    pub input: u32,
    /// Tokens in the last block of its chain. The other blocks are full.
    pub last: u32,
    /// Tokens of the answer.
    pub output: u32,
    /// The session that it belongs to, from 0.
    pub session: u32,
    /// The request after whose answer it came, or [`NONE`]: then it comes at its time, whatever becomes of others.
    pub after: u32,
    /// How long after that answer, milliseconds.
    pub pause: u32,
}
