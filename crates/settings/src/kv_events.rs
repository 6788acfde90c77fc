//! Where KV cache events are published, for routers.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::str::FromStr;

use crate::listen::{ListenAddress, ListenAddressError};

/// Tokens of a block, unless something else is asked for: what vLLM's routers take for granted.
pub const DEFAULT_BLOCK_SIZE: u32 = 16;
/// A block of more tokens is a slip of the keyboard.
const LARGEST_BLOCK: u32 = 4096;
/// Bytes of a topic.
const LONGEST_TOPIC: usize = 255;

/// What is published for routers: which parts of prompts this server has in its cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvEvents {
    /// Where subscribers connect to.
    pub publish: SocketAddr,
    /// Where those ask who missed something; `None`: nobody may.
    pub replay: Option<SocketAddr>,
    /// What each message begins with.
    pub topic: String,
    /// Tokens of a block.
    pub block_size: u32,
}

impl KvEvents {
    /// Whether other machines can read the events, and with them all prompts.
    #[must_use]
    pub fn is_open(&self) -> bool {
        [Some(self.publish), self.replay]
            .into_iter()
            .flatten()
            .any(|address| !ListenAddress::Tcp(address).is_local())
    }
}

/// An address as ZeroMQ writes them: `tcp://127.0.0.1:5557`, `tcp://[::1]:5557`, or
/// `tcp://*:5557` for all addresses of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint(pub(crate) SocketAddr);

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let address = text.strip_prefix("tcp://").ok_or(EndpointError::Scheme)?;
        let everywhere = address.strip_prefix("*:");
        let local = match everywhere {
            Some(port) => format!("{}:{port}", Ipv4Addr::UNSPECIFIED),
            None => address.to_owned(),
        };
        match local.parse().map_err(EndpointError::Address)? {
            ListenAddress::Tcp(address) => Ok(Self(address)),
            ListenAddress::Unix(_) => Err(EndpointError::Scheme),
        }
    }
}

/// Why a text is no [`Endpoint`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndpointError {
    /// It does not begin with `tcp://`.
    Scheme,
    /// What follows is no address.
    Address(ListenAddressError),
}

impl fmt::Display for EndpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scheme => {
                f.write_str("give tcp://, an address and a port, as in tcp://127.0.0.1:5557")
            }
            Self::Address(ListenAddressError::Url | ListenAddressError::NoPort) => {
                f.write_str("no port; give one, as in tcp://127.0.0.1:5557")
            }
            Self::Address(error) => error.fmt(f),
        }
    }
}

/// Why these settings cannot be used together, or one of them not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KvEventsError {
    /// An address is none.
    Endpoint { text: String, error: EndpointError },
    /// There is no port after the highest one.
    NoNextPort,
    /// Both are one address.
    SameAddress,
    /// The topic is too long.
    LongTopic,
    /// The topic has a character that no log shows.
    TopicCharacter,
    /// The size of a block is none.
    BlockSize(String),
}

/// The values of the variables, in the order of [`KvEvents`].
pub(crate) struct Given {
    pub(crate) publish: String,
    pub(crate) replay: Option<String>,
    pub(crate) topic: Option<String>,
    pub(crate) block_size: Option<String>,
}

/// Which of them is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    Publish,
    Replay,
    Topic,
    BlockSize,
}

impl KvEvents {
    pub(crate) fn read(given: Given) -> Result<Self, (At, KvEventsError)> {
        let endpoint = |at: At, text: String| match text.parse() {
            Ok(Endpoint(address)) => Ok(address),
            Err(error) => Err((at, KvEventsError::Endpoint { text, error })),
        };
        let publish = endpoint(At::Publish, given.publish)?;
        let replay = match given.replay {
            Some(off) if off == "off" => None,
            Some(text) => Some(endpoint(At::Replay, text)?),
            None => Some(next_port(publish).ok_or((At::Publish, KvEventsError::NoNextPort))?),
        };
        if publish.port() != 0 && replay == Some(publish) {
            return Err((At::Replay, KvEventsError::SameAddress));
        }
        let topic = given.topic.unwrap_or_default();
        if topic.len() > LONGEST_TOPIC {
            return Err((At::Topic, KvEventsError::LongTopic));
        }
        if topic.chars().any(char::is_control) {
            return Err((At::Topic, KvEventsError::TopicCharacter));
        }
        let block_size = match given.block_size {
            None => DEFAULT_BLOCK_SIZE,
            Some(text) => {
                let digits = text.bytes().all(|b| b.is_ascii_digit());
                match text.parse() {
                    Ok(size) if digits && (1..=LARGEST_BLOCK).contains(&size) => size,
                    _ => return Err((At::BlockSize, KvEventsError::BlockSize(text))),
                }
            }
        };
        Ok(Self {
            publish,
            replay,
            topic,
            block_size,
        })
    }
}

/// Any port, after any port.
fn next_port(address: SocketAddr) -> Option<SocketAddr> {
    let port = match address.port() {
        0 => 0,
        port => port.checked_add(1)?,
    };
    Some(SocketAddr::new(address.ip(), port))
}

impl KvEventsError {
    /// After the variable's name.
    pub(crate) fn show(
        &self,
        f: &mut fmt::Formatter<'_>,
        shortened: impl Fn(&str) -> String,
    ) -> fmt::Result {
        match self {
            Self::Endpoint { text, error } => write!(f, "is {}: {error}", shortened(text)),
            Self::NoNextPort => write!(
                f,
                "has the highest port, and the next one is for replays: give a lower one, or set \
                 {}",
                crate::env::KV_EVENTS_REPLAY
            ),
            Self::SameAddress => write!(
                f,
                "is the address of {}: give another port, or off",
                crate::env::KV_EVENTS
            ),
            Self::LongTopic => write!(f, "is too long: a topic has {LONGEST_TOPIC} bytes at most"),
            Self::TopicCharacter => f.write_str("has a control character in it: leave it out"),
            Self::BlockSize(text) => write!(
                f,
                "is {}: give whole tokens, from 1 to {LARGEST_BLOCK}; routers take 16 unless told \
                 otherwise",
                shortened(text)
            ),
        }
    }
}
