//! Where KV cache events are published, for routers.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::str::FromStr;

use crate::listen::{ListenAddress, ListenAddressError};

/// Tokens in a block by default: the value that vLLM's routers expect.
const DEFAULT_BLOCK_SIZE: u32 = crate::table::KV_BLOCK_SIZE.kind.default as u32;
/// Bytes of a topic, and of an adapter's name.
const LONGEST_TOPIC: usize = 255;
/// Adapters that can be named.
const MOST_ADAPTERS: usize = 64;
/// Stands in a topic for the model's name, if each model has an address.
const MODEL: &str = "{model}";

/// Settings of the KV cache events for routers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvEvents {
    /// Where subscribers connect to.
    pub publish: SocketAddr,
    /// Where routers ask for events that they missed; `None`: nowhere.
    pub replay: Option<SocketAddr>,
    /// The topic: what each message begins with.
    pub topic: String,
    /// Tokens in a block.
    pub block_size: u32,
    /// The names by which requests to the router call the server's LoRA adapters, in the
    /// server's order (`/lora-adapters`). For other adapters nothing is published.
    pub adapters: Vec<String>,
    /// Connections at a time; a quarter as many where replays are asked for.
    pub connections: usize,
}

/// Which server publishes with which settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvEventsOf {
    /// One server, whatever its model is.
    Server(KvEvents),
    /// The servers that a llama-server in router mode starts, by the names of their models.
    Models(Vec<(String, KvEvents)>),
}

/// Why a server publishes nothing although there are settings: see [`KvEventsOf::server`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotPublished {
    /// Several servers would share an address.
    Shared {
        /// Its model.
        model: String,
    },
    /// No address is given for its model.
    NotNamed {
        /// Its model.
        model: String,
    },
}

impl KvEventsOf {
    /// The settings of one server. `model`: its model's name. `routed`: a llama-server in router mode
    /// has started it, and may have started others.
    ///
    /// # Errors
    /// The server publishes nothing, and a message should say why.
    pub fn server(&self, model: &str, routed: bool) -> Result<&KvEvents, NotPublished> {
        let model = model.to_owned();
        match self {
            Self::Server(_) if routed => Err(NotPublished::Shared { model }),
            Self::Server(events) => Ok(events),
            Self::Models(models) => {
                let found = models.iter().find(|(name, _)| *name == model);
                found
                    .map(|(_, events)| events)
                    .ok_or(NotPublished::NotNamed { model })
            }
        }
    }

    /// The settings, if they are for a single server.
    #[must_use]
    pub fn only(&self) -> Option<&KvEvents> {
        match self {
            Self::Server(events) => Some(events),
            Self::Models(_) => None,
        }
    }

    /// The settings that all models share.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        match self {
            Self::Server(events) => events.block_size,
            Self::Models(models) => models
                .first()
                .map_or(DEFAULT_BLOCK_SIZE, |(_, events)| events.block_size),
        }
    }
}

/// What happened, and what to do.
impl fmt::Display for NotPublished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = crate::env::KV_EVENTS;
        match self {
            Self::Shared { model } => write!(
                f,
                "not published in router mode, where all models would share one address: give each \
                 its own, as in {name}={model}=tcp://127.0.0.1:5557,other=tcp://127.0.0.1:5567"
            ),
            Self::NotNamed { model } => write!(
                f,
                "not published for {model}: {name} names other models; add \
                 {model}=tcp://127.0.0.1:5557 if this one is to be routed by its cache"
            ),
        }
    }
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

/// Why a text is not an [`Endpoint`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndpointError {
    /// It does not begin with `tcp://`.
    Scheme,
    /// What follows is not an address.
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
            Self::Address(ListenAddressError::OnlyPort(port)) => {
                write!(f, "a port without an address; give tcp://127.0.0.1:{port}")
            }
            Self::Address(error) => error.fmt(f),
        }
    }
}

/// Why these settings cannot be used together, or one of them not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KvEventsError {
    /// An address cannot be read.
    Endpoint { text: String, error: EndpointError },
    /// There is no port after the highest one.
    NoNextPort,
    /// Both addresses are the same.
    SameAddress,
    /// The topic is too long.
    LongTopic,
    /// The topic has a control character.
    TopicCharacter,
    /// If each model has an address, replays can only be at the next port, or off.
    ReplayOfModels,
    /// A model has two addresses, or none.
    Model(String),
    /// Two servers would listen at this address.
    Twice(SocketAddr),
    /// The list of adapters' names cannot be read.
    Adapters,
}

/// The values of the variables, in the order of [`KvEvents`].
#[derive(Clone)]
pub(crate) struct Given {
    pub(crate) publish: String,
    pub(crate) replay: Option<String>,
    pub(crate) topic: Option<String>,
    pub(crate) block_size: u32,
    pub(crate) adapters: Option<String>,
    pub(crate) connections: usize,
}

/// The variable at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    Publish,
    Replay,
    Topic,
    Adapters,
}

impl KvEventsOf {
    pub(crate) fn read(given: Given) -> Result<Self, (At, KvEventsError)> {
        let text = given.publish.clone();
        if text.starts_with("tcp://") || !text.contains('=') {
            return Ok(Self::Server(KvEvents::read(given)?));
        }
        if given.replay.as_ref().is_some_and(|text| text != "off") {
            return Err((At::Replay, KvEventsError::ReplayOfModels));
        }
        let mut models: Vec<(String, KvEvents)> = Vec::new();
        let mut taken = BTreeSet::new();
        for part in text.split(',') {
            // A name may have an `=` in it.
            let (model, endpoint) = part.rsplit_once('=').unwrap_or(("", part));
            let again = models.iter().any(|(name, _)| name == model);
            if model.is_empty() || again {
                let part = part.to_owned();
                return Err((At::Publish, KvEventsError::Model(part)));
            }
            let events = KvEvents::read(Given {
                publish: endpoint.to_owned(),
                topic: given.topic.as_ref().map(|text| text.replace(MODEL, model)),
                ..given.clone()
            })?;
            for address in [Some(events.publish), events.replay].into_iter().flatten() {
                if address.port() != 0 && !taken.insert(address) {
                    return Err((At::Publish, KvEventsError::Twice(address)));
                }
            }
            models.push((model.to_owned(), events));
        }
        Ok(Self::Models(models))
    }
}

/// The names of adapters, separated by commas.
fn adapters(text: &str) -> Option<Vec<String>> {
    let names: Vec<String> = text.split(',').map(|name| name.trim().to_owned()).collect();
    let right = |name: &String| {
        (1..=LONGEST_TOPIC).contains(&name.len()) && !name.chars().any(char::is_control)
    };
    let mut distinct = BTreeSet::new();
    let mut fine = names
        .iter()
        .map(|name| right(name) && distinct.insert(name));
    (names.len() <= MOST_ADAPTERS && fine.all(|fine| fine)).then_some(names)
}

impl KvEvents {
    fn read(given: Given) -> Result<Self, (At, KvEventsError)> {
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
        let adapters = match given.adapters {
            None => Vec::new(),
            Some(text) => adapters(&text).ok_or((At::Adapters, KvEventsError::Adapters))?,
        };
        Ok(Self {
            publish,
            replay,
            topic,
            block_size: given.block_size,
            adapters,
            connections: given.connections,
        })
    }
}

/// The same address with the next port. Port 0 (any free port) stays 0.
fn next_port(address: SocketAddr) -> Option<SocketAddr> {
    let port = match address.port() {
        0 => 0,
        port => port.checked_add(1)?,
    };
    Some(SocketAddr::new(address.ip(), port))
}

impl KvEventsError {
    /// Writes the rest of the message, after the variable's name.
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
            Self::ReplayOfModels => write!(
                f,
                "is one address, and {} has one for each model: leave it out, which is the next \
                 port of each, or say off",
                crate::env::KV_EVENTS
            ),
            Self::Model(text) => write!(
                f,
                "has {}: give each model once, by its name, as in \
                 a=tcp://127.0.0.1:5557,b=tcp://127.0.0.1:5567",
                shortened(text)
            ),
            Self::Twice(address) => write!(
                f,
                "has two models at {address}: each takes two ports, the second one for replays; \
                 leave more room between them"
            ),
            Self::Adapters => write!(
                f,
                "is no list of names: give up to {MOST_ADAPTERS} different ones, in the order of the \
                 server's /lora-adapters, as in sql,chat"
            ),
        }
    }
}
