//! Of what a fingerprint is made, in memory and as it is written down.
//!
//! A [`Fingerprint`] is a hash, and two that differ do not say in what. The [`Facts`] of which it is made have flags of the
//! server, and with them its secrets. So they stay in memory. An [`Origin`] is written down, for a person and for users of
//! the same model elsewhere: the same without secrets (`shown.rs`).

mod shown;
#[cfg(test)]
mod tests;

use sha2::{Digest, Sha256};

use crate::bytes::Bytes;
use crate::{Fingerprint, Layout};

/// How the fact begins that [`What::Rows`] are hidden states.
pub const HIDDEN_STATES: &[u8] = b"hidden states";
/// In front of an encoded [`Origin`], with its version.
const MAGIC: &[u8; 8] = b"CPorigi2";
/// The version before had the flags as they were.
const WITH_SECRETS: &[u8; 8] = b"CPorigi1";
/// Bytes of the checksum at the end.
const SUM: usize = 16;

/// What a part of a fingerprint is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum What {
    /// The flags that matter, each with its length in front of it (8 bytes), and the engine's version; or a digest
    /// of the engine.
    Program = 1,
    /// A digest of the layout of the rows.
    Layout = 2,
    /// A digest of the model's file.
    Model = 3,
    /// Whether the context is longer than the model was trained for.
    Context = 4,
    /// What a program that is no llama-server created its context with.
    Parameters = 5,
    /// A digest of an adapter's file.
    Adapter = 6,
    /// The scale of the adapter before it.
    Scale = 7,
    /// A digest of the salt that a request names: prompts of another one share nothing with it.
    Salt = 8,
    /// What the rows are, if they are not KV: hidden states, or what an encoder has made of images.
    Rows = 9,
}

const ALL: [What; 9] = [
    What::Program,
    What::Layout,
    What::Model,
    What::Context,
    What::Parameters,
    What::Adapter,
    What::Scale,
    What::Salt,
    What::Rows,
];

/// The parts of a fingerprint, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts(Vec<(What, Vec<u8>)>);

impl Facts {
    /// Adds a part.
    pub fn push(&mut self, what: What, fact: Vec<u8>) {
        self.0.push((what, fact));
    }

    /// The fingerprint that is made of them.
    pub fn fingerprint(&self) -> Fingerprint {
        let parts: Vec<&[u8]> = self.0.iter().map(|(_, fact)| &**fact).collect();
        Fingerprint::from_facts(&parts)
    }

    /// The parts.
    fn parts(&self) -> &[(What, Vec<u8>)] {
        &self.0
    }

    fn encode(&self, into: &mut Vec<u8>) {
        into.extend((self.0.len() as u32).to_le_bytes());
        for (what, fact) in &self.0 {
            into.push(*what as u8);
            into.extend((fact.len() as u32).to_le_bytes());
            into.extend(fact);
        }
    }

    fn decode(bytes: &mut Bytes<'_>) -> Option<Self> {
        let count = bytes.u32()?;
        let mut facts = Self::default();
        for _ in 0..count {
            let kind = bytes.take(1)?[0];
            let what = ALL.into_iter().find(|what| *what as u8 == kind)?;
            let length = bytes.u32()? as usize;
            facts.push(what, bytes.take(length)?.to_vec());
        }
        Some(facts)
    }
}

/// Of which model chunks are, and how their rows are laid out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// What people call the model.
    pub model: String,
    /// Stands for all that the chunks depend on.
    pub fingerprint: Fingerprint,
    /// What it was made of, without secrets.
    facts: Facts,
    /// The layout of rows. `None`: the model has none that can be divided.
    pub layout: Option<Layout>,
}

impl Origin {
    /// What may be written down of these facts.
    pub fn new(model: String, facts: &Facts, layout: Option<Layout>) -> Self {
        let mut without_secrets = Facts::default();
        for (what, fact) in facts.parts() {
            let fact = match what {
                What::Program => shown::program(fact),
                _ => fact.clone(),
            };
            without_secrets.push(*what, fact);
        }
        Self {
            model,
            fingerprint: facts.fingerprint(),
            facts: without_secrets,
            layout,
        }
    }

    /// Whether the chunks are of requests that named a `cache_salt`.
    pub fn is_salted(&self) -> bool {
        self.all(What::Salt).next().is_some()
    }

    /// Whether the rows are hidden states of tokens whose KV is of that origin.
    pub fn is_hidden_of(&self, kv: &Self) -> bool {
        let is_other = |(what, _): &&(What, Vec<u8>)| *what != What::Rows;
        let others = self.facts.parts().iter().filter(is_other);
        let mut rows = self.all(What::Rows);
        others.eq(kv.facts.parts()) && rows.any(|fact| fact.starts_with(HIDDEN_STATES))
    }

    /// Whether the origin of that KV is among these.
    pub fn is_hidden_among(&self, all: &[Self]) -> bool {
        all.iter().any(|kv| self.is_hidden_of(kv))
    }

    /// The digest of the layout of the rows.
    pub fn layout_digest(&self) -> Option<&[u8]> {
        self.all(What::Layout).next()
    }

    /// In what others differ, for a person: their side, and this one's. `None`: in nothing.
    pub fn difference(&self, other: &Self) -> Option<String> {
        if self.fingerprint == other.fingerprint {
            return None;
        }
        // What a person would look at first.
        let order = [
            (What::Model, "the model's file is another one"),
            (What::Adapter, "the LoRA adapters are others"),
            (What::Scale, "the scales of the LoRA adapters are others"),
            (What::Program, ""),
            (
                What::Layout,
                "KV is laid out otherwise (its types, flash attention, or the engine's version)",
            ),
            (
                What::Context,
                "only one of both contexts is longer than the model was trained for, or than the original context length in its file",
            ),
            (
                What::Parameters,
                "the program's parameters of the context are others",
            ),
            (What::Salt, "the requests named another cache_salt"),
            (
                What::Rows,
                "the rows are not of one kind: KV, hidden states for drafts, or what an encoder has made of images",
            ),
        ];
        let differs = |what: What| !self.all(what).eq(other.all(what));
        let found = order.into_iter().find(|(what, _)| differs(*what));
        Some(match found {
            Some((What::Program, _)) => shown::difference(
                self.all(What::Program).next().unwrap_or_default(),
                other.all(What::Program).next().unwrap_or_default(),
            ),
            Some((_, text)) => text.to_owned(),
            None => "they differ in something that is not written down".to_owned(),
        })
    }

    fn all(&self, what: What) -> impl Iterator<Item = &[u8]> {
        let parts = self.facts.parts().iter();
        let of_kind = parts.filter(move |(kind, _)| *kind == what);
        of_kind.map(|(_, fact)| &**fact)
    }

    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut into = MAGIC.to_vec();
        into.extend((self.model.len() as u32).to_le_bytes());
        into.extend(self.model.as_bytes());
        into.extend(self.fingerprint.0);
        self.facts.encode(&mut into);
        let layout = self.layout.as_ref().map(Layout::encode);
        into.push(u8::from(layout.is_some()));
        into.extend(layout.unwrap_or_default());
        into.extend(sum(&into));
        into
    }

    /// From bytes, also from those of the version that had secrets in them. `None`: they are something else, another
    /// version's, or damaged.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let is_old = Self::has_secrets(bytes);
        let mut bytes = if is_old {
            Bytes(bytes.get(MAGIC.len()..)?)
        } else {
            let (all, end) = bytes.split_at_checked(bytes.len().checked_sub(SUM)?)?;
            (end == sum(all)).then_some(())?;
            Bytes(all.strip_prefix(MAGIC)?)
        };
        let length = bytes.u32()? as usize;
        let model = String::from_utf8(bytes.take(length)?.to_vec()).ok()?;
        let fingerprint = if is_old {
            None
        } else {
            Some(Fingerprint(bytes.take(16)?.try_into().ok()?))
        };
        let facts = Facts::decode(&mut bytes)?;
        let layout = match bytes.take(1)?[0] {
            0 => None,
            1 => Some(Layout::decode(&mut bytes)?),
            _ => return None,
        };
        bytes.0.is_empty().then_some(match fingerprint {
            None => Self::new(model, &facts, layout),
            Some(fingerprint) => Self {
                model,
                fingerprint,
                facts,
                layout,
            },
        })
    }

    /// Whether these are the bytes of an origin that an older version wrote: the server's flags stand in them as they were.
    pub fn has_secrets(bytes: &[u8]) -> bool {
        bytes.starts_with(WITH_SECRETS)
    }
}

fn sum(bytes: &[u8]) -> [u8; SUM] {
    let whole = Sha256::digest(bytes);
    std::array::from_fn(|i| whole[i])
}
