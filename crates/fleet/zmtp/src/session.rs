//! One connection without its socket: bytes in, steps out.

use std::collections::HashMap;

use crate::frame::{self, Frame};
use crate::{LONGEST_FRAME, Refusal};

#[cfg(test)]
mod tests;

/// Most parts of a message from a peer.
pub const MOST_PARTS: usize = 8;
/// Most subscriptions of one subscriber.
pub const MOST_SUBSCRIPTIONS: usize = 64;
/// Most bytes of all of them.
pub const MOST_SUBSCRIPTION_BYTES: usize = 16 << 10;

/// Bytes of a greeting.
const GREETING: usize = 64;

/// Which socket we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// PUB: sends to those who subscribe.
    Publisher,
    /// ROUTER: answers those who ask.
    Router,
}

/// What follows from bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// These bytes are to be sent.
    Reply(Vec<u8>),
    /// The handshake is over: messages may be sent.
    Ready,
    /// Messages that begin with this are wanted from now on.
    Subscribe(Vec<u8>),
    /// They no longer are.
    Cancel(Vec<u8>),
    /// A message came, in these parts. Only for [`Role::Router`].
    Message(Vec<Vec<u8>>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Greeting,
    Handshake,
    Open,
}

/// The state of one connection.
#[derive(Debug)]
pub struct Session {
    role: Role,
    stage: Stage,
    /// The peer speaks ZMTP 3.1, which has heartbeats.
    beats: bool,
    /// What has come and is not complete yet.
    unread: Vec<u8>,
    /// The parts of a message whose last part has not come yet.
    parts: Vec<Vec<u8>>,
    subscriptions: Subscriptions,
}

impl Session {
    /// A connection that was just made.
    #[must_use]
    pub fn new(role: Role) -> Self {
        Self {
            role,
            stage: Stage::Greeting,
            beats: false,
            unread: Vec::new(),
            parts: Vec::new(),
            subscriptions: Subscriptions::default(),
        }
    }

    /// What is sent first.
    #[must_use]
    pub fn greeting() -> [u8; GREETING] {
        let mut greeting = [0; GREETING];
        greeting[0] = 0xff;
        greeting[9] = 0x7f;
        greeting[10] = 3;
        greeting[12..16].copy_from_slice(b"NULL");
        greeting
    }

    /// Whether the peer answers a PING: others may take it for an error.
    #[must_use]
    pub fn has_heartbeats(&self) -> bool {
        self.beats
    }

    /// What asks the peer whether it is still there.
    #[must_use]
    pub fn ping() -> Vec<u8> {
        // Our heartbeats promise nothing: the peer need not notice if they end.
        const NO_TIME_TO_LIVE: [u8; 2] = [0; 2];
        frame::command(b"PING", &NO_TIME_TO_LIVE)
    }

    /// Takes in bytes, and adds to `steps` what follows. Between two calls it keeps less than a
    /// frame and a message of the longest kind.
    ///
    /// # Errors
    /// The peer is to be disconnected.
    pub fn feed(&mut self, bytes: &[u8], steps: &mut Vec<Step>) -> Result<(), Refusal> {
        self.unread.extend_from_slice(bytes);
        let unread = std::mem::take(&mut self.unread);
        let mut rest = &unread[..];
        if self.stage == Stage::Greeting {
            check_greeting(rest)?;
            let Some(after) = rest.get(GREETING..) else {
                self.unread = unread;
                return Ok(());
            };
            self.beats = (rest[10], rest[11]) >= (3, 1);
            rest = after;
            self.stage = Stage::Handshake;
            steps.push(Step::Reply(self.ready()));
        }
        while let Some((frame, taken)) = frame::decode(rest)? {
            match frame {
                Frame::Command(body) => self.command(body, steps)?,
                Frame::Part { body, more } => self.part(body, more, steps)?,
            }
            rest = &rest[taken..];
        }
        self.unread = rest.to_vec();
        Ok(())
    }

    fn command(&mut self, body: &[u8], steps: &mut Vec<Step>) -> Result<(), Refusal> {
        let (name, data) = frame::name_of(body)?;
        match (self.stage, name) {
            (_, b"ERROR") => return Err(Refusal::Reported),
            (Stage::Handshake, b"READY") => {
                self.check_socket_type(data)?;
                self.stage = Stage::Open;
                steps.push(Step::Ready);
            }
            (Stage::Handshake, _) => return Err(Refusal::NotReady),
            // A time to live (two bytes), and up to 16 bytes that come back.
            (_, b"PING") => {
                let context = data.get(2..).ok_or(Refusal::Command)?;
                if context.len() > 16 {
                    return Err(Refusal::Command);
                }
                steps.push(Step::Reply(frame::command(b"PONG", context)));
            }
            (_, b"SUBSCRIBE") if self.role == Role::Publisher => self.subscribe(data, steps)?,
            (_, b"CANCEL") if self.role == Role::Publisher => self.cancel(data, steps),
            // PONG, and what newer versions may know.
            _ => {}
        }
        Ok(())
    }

    fn part(&mut self, body: &[u8], more: bool, steps: &mut Vec<Step>) -> Result<(), Refusal> {
        if self.stage != Stage::Open {
            return Err(Refusal::NotReady);
        }
        if self.role == Role::Publisher {
            // ZMTP 3.0 subscribes by messages. Others are those of an XSUB socket's user.
            match body.split_first() {
                Some((1, prefix)) => self.subscribe(prefix, steps)?,
                Some((0, prefix)) => self.cancel(prefix, steps),
                _ => {}
            }
            return Ok(());
        }
        let bytes: usize = self.parts.iter().map(Vec::len).sum();
        if self.parts.len() == MOST_PARTS || bytes + body.len() > LONGEST_FRAME {
            return Err(Refusal::ManyParts);
        }
        self.parts.push(body.to_vec());
        if !more {
            steps.push(Step::Message(std::mem::take(&mut self.parts)));
        }
        Ok(())
    }

    fn subscribe(&mut self, prefix: &[u8], steps: &mut Vec<Step>) -> Result<(), Refusal> {
        if self.subscriptions.add(prefix)? {
            steps.push(Step::Subscribe(prefix.to_vec()));
        }
        Ok(())
    }

    fn cancel(&mut self, prefix: &[u8], steps: &mut Vec<Step>) {
        if self.subscriptions.cancel(prefix) {
            steps.push(Step::Cancel(prefix.to_vec()));
        }
    }

    fn ready(&self) -> Vec<u8> {
        let kind: &[u8] = match self.role {
            Role::Publisher => b"PUB",
            Role::Router => b"ROUTER",
        };
        let mut data = Vec::new();
        for (name, value) in [(&b"Socket-Type"[..], kind), (b"Identity", b"")] {
            data.push(name.len() as u8);
            data.extend_from_slice(name);
            data.extend_from_slice(&(value.len() as u32).to_be_bytes());
            data.extend_from_slice(value);
        }
        frame::command(b"READY", &data)
    }

    fn check_socket_type(&self, properties: &[u8]) -> Result<(), Refusal> {
        let fitting: &[&[u8]] = match self.role {
            Role::Publisher => &[b"SUB", b"XSUB"],
            Role::Router => &[b"REQ", b"DEALER", b"ROUTER"],
        };
        let mut rest = properties;
        let mut fits = false;
        while !rest.is_empty() {
            let (name, after) = frame::name_of(rest)?;
            let (size, after) = after.split_first_chunk().ok_or(Refusal::Command)?;
            let size = usize::try_from(u32::from_be_bytes(*size)).unwrap_or(usize::MAX);
            let (value, after) = after.split_at_checked(size).ok_or(Refusal::Command)?;
            if name.eq_ignore_ascii_case(b"Socket-Type") {
                fits = fitting.contains(&value);
            }
            rest = after;
        }
        if fits {
            Ok(())
        } else {
            Err(Refusal::SocketType)
        }
    }
}

/// Checks the greeting as far as it has come.
fn check_greeting(bytes: &[u8]) -> Result<(), Refusal> {
    let is = |at: usize, fits: fn(u8) -> bool| bytes.get(at).is_none_or(|&byte| fits(byte));
    if !is(0, |byte| byte == 0xff) || !is(9, |byte| byte & 1 == 1) {
        return Err(Refusal::NoGreeting);
    }
    if !is(10, |major| major >= 3) {
        return Err(Refusal::Version);
    }
    // The name is followed by zeros.
    let name = bytes.get(12..32).is_none_or(|name| {
        let (null, zeros) = name.split_at(4);
        null == b"NULL" && zeros.iter().all(|&byte| byte == 0)
    });
    if name {
        Ok(())
    } else {
        Err(Refusal::Mechanism)
    }
}

/// What one peer has subscribed to: prefixes, and how often each is.
#[derive(Debug, Default)]
struct Subscriptions {
    counts: HashMap<Vec<u8>, u32>,
    bytes: usize,
}

impl Subscriptions {
    /// Returns whether it is new.
    fn add(&mut self, prefix: &[u8]) -> Result<bool, Refusal> {
        if let Some(count) = self.counts.get_mut(prefix) {
            *count = count.saturating_add(1);
            return Ok(false);
        }
        let bytes = self.bytes + prefix.len();
        if self.counts.len() >= MOST_SUBSCRIPTIONS || bytes > MOST_SUBSCRIPTION_BYTES {
            return Err(Refusal::ManySubscriptions);
        }
        self.bytes = bytes;
        self.counts.insert(prefix.to_vec(), 1);
        Ok(true)
    }

    /// Returns whether it was the last one of this prefix.
    fn cancel(&mut self, prefix: &[u8]) -> bool {
        let Some(count) = self.counts.get_mut(prefix) else {
            return false;
        };
        *count -= 1;
        if *count > 0 {
            return false;
        }
        self.counts.remove(prefix);
        self.bytes -= prefix.len();
        true
    }
}
