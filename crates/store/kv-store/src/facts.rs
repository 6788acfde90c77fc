//! What KV depends on besides its tokens: the parts that a [`Fingerprint`] is made of.
//!
//! They have flags of the server, and with them its secrets. So they stay in memory: what is written down
//! is an [`Origin`](crate::Origin).

use crate::Fingerprint;
use crate::bytes::Bytes;

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
        Fingerprint::of(&parts)
    }

    /// The parts.
    pub(crate) fn parts(&self) -> &[(What, Vec<u8>)] {
        &self.0
    }

    pub(crate) fn encode(&self, into: &mut Vec<u8>) {
        into.extend((self.0.len() as u32).to_le_bytes());
        for (what, fact) in &self.0 {
            into.push(*what as u8);
            into.extend((fact.len() as u32).to_le_bytes());
            into.extend(fact);
        }
    }

    pub(crate) fn decode(bytes: &mut Bytes<'_>) -> Option<Self> {
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
