//! Why a peer is disconnected.

use std::fmt;

/// A peer broke the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The connection does not begin with a greeting of ZMTP.
    NoGreeting,
    /// It speaks an older version than ZMTP 3.
    Version,
    /// It wants a security mechanism other than NULL.
    Mechanism,
    /// A frame with unknown flags, or a command in several parts.
    Flags,
    /// A frame longer than [`LONGEST_FRAME`](crate::LONGEST_FRAME).
    LongFrame,
    /// A command that cannot be read.
    Command,
    /// Something else than READY during the handshake.
    NotReady,
    /// Its kind of socket cannot connect to ours.
    SocketType,
    /// It reported an error.
    Reported,
    /// A message of more than [`MOST_PARTS`](crate::MOST_PARTS) parts.
    ManyParts,
    /// More than [`MOST_SUBSCRIPTIONS`](crate::MOST_SUBSCRIPTIONS) subscriptions, or more than
    /// [`MOST_SUBSCRIPTION_BYTES`](crate::MOST_SUBSCRIPTION_BYTES) in them.
    ManySubscriptions,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoGreeting => "it does not speak ZMTP",
            Self::Version => "it speaks a version of ZMTP older than 3",
            Self::Mechanism => "it wants a security mechanism other than NULL",
            Self::Flags => "a frame has unknown flags",
            Self::LongFrame => "a frame is too long",
            Self::Command => "a command cannot be read",
            Self::NotReady => "it sent something else than READY",
            Self::SocketType => "its socket type does not go with ours",
            Self::Reported => "it reported an error",
            Self::ManyParts => "a message has too many parts",
            Self::ManySubscriptions => "it has too many subscriptions",
        })
    }
}

impl std::error::Error for Refusal {}
