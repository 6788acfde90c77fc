//! What KV depends on besides its tokens, in words that can be told to a person.
//!
//! A [`Fingerprint`] is a hash, and two that differ do not say in what. So it is written down of what it was made,
//! and whoever has that can make it again.

use std::fmt::Write as _;

use crate::bytes::Bytes;
use crate::{Fingerprint, Layout};

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
}

const ALL: [What; 7] = [
    What::Program,
    What::Layout,
    What::Model,
    What::Context,
    What::Parameters,
    What::Adapter,
    What::Scale,
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

    /// The digest of the layout of the rows.
    pub fn layout(&self) -> Option<&[u8]> {
        self.all(What::Layout).next()
    }

    /// In what others differ, for a person: their side, and this one's. `None`: in nothing.
    pub fn difference(&self, other: &Self) -> Option<String> {
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
        ];
        let differs = |what: What| !self.all(what).eq(other.all(what));
        let (what, text) = order.into_iter().find(|(what, _)| differs(*what))?;
        Some(match what {
            What::Program => programs(
                self.all(what).next().unwrap_or_default(),
                other.all(what).next().unwrap_or_default(),
            ),
            _ => text.to_owned(),
        })
    }

    fn all(&self, what: What) -> impl Iterator<Item = &[u8]> {
        let all = self.0.iter().filter(move |(one, _)| *one == what);
        all.map(|(_, fact)| &**fact)
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
    /// What the fingerprint is made of.
    pub facts: Facts,
    /// The layout of rows. `None`: the model has none that can be divided.
    pub layout: Option<Layout>,
}

/// In front of an encoded [`Origin`], with its version.
const MAGIC: &[u8; 8] = b"CPorigi1";

impl Origin {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut into = MAGIC.to_vec();
        into.extend((self.model.len() as u32).to_le_bytes());
        into.extend(self.model.as_bytes());
        self.facts.encode(&mut into);
        let layout = self.layout.as_ref().map(Layout::encode);
        into.push(u8::from(layout.is_some()));
        into.extend(layout.unwrap_or_default());
        into
    }

    /// From bytes. `None`: they are something else, or another version's.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut bytes = Bytes(bytes.strip_prefix(MAGIC)?);
        let length = bytes.u32()? as usize;
        let model = String::from_utf8(bytes.take(length)?.to_vec()).ok()?;
        let facts = Facts::decode(&mut bytes)?;
        let layout = match bytes.take(1)?[0] {
            0 => None,
            1 => Some(Layout::decode(&mut bytes)?),
            _ => return None,
        };
        bytes.0.is_empty().then_some(Self {
            model,
            facts,
            layout,
        })
    }
}

/// In what two programs differ.
fn programs(theirs: &[u8], ours: &[u8]) -> String {
    let (theirs, ours) = (Program::of(theirs), Program::of(ours));
    if theirs.engine != ours.engine {
        return format!(
            "the engine is another one: {}, here {}",
            theirs.engine, ours.engine
        );
    }
    let list = |flags: &[String], without: &[String]| {
        let mut text = String::new();
        for flag in flags.iter().filter(|flag| !without.contains(flag)) {
            let _ = write!(text, "{}{flag}", if text.is_empty() { "" } else { " " });
        }
        match text.is_empty() {
            true => "none".to_owned(),
            false => text,
        }
    };
    format!(
        "flags differ: {}, here {}",
        list(&theirs.flags, &ours.flags),
        list(&ours.flags, &theirs.flags)
    )
}

struct Program {
    flags: Vec<String>,
    engine: String,
}

impl Program {
    /// A length is followed by that much, and no version looks like a length.
    fn of(text: &[u8]) -> Self {
        let mut bytes = Bytes(text);
        let mut flags = Vec::new();
        let mut rest = text;
        while let Some(flag) = bytes
            .u64()
            .and_then(|length| bytes.take(usize::try_from(length).ok()?))
        {
            flags.push(String::from_utf8_lossy(flag).into_owned());
            rest = bytes.0;
        }
        let engine = match std::str::from_utf8(rest) {
            Ok(version) => version.to_owned(),
            Err(_) => rest.iter().map(|byte| format!("{byte:02x}")).collect(),
        };
        Self { flags, engine }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(flags: &[&str], engine: &str) -> Vec<u8> {
        let mut text = Vec::new();
        for flag in flags {
            text.extend((flag.len() as u64).to_le_bytes());
            text.extend(flag.as_bytes());
        }
        text.extend(engine.as_bytes());
        text
    }

    fn facts(model: u8, program: Vec<u8>) -> Facts {
        let mut facts = Facts::default();
        facts.push(What::Program, program);
        facts.push(What::Layout, vec![1; 16]);
        facts.push(What::Model, vec![model; 16]);
        facts.push(What::Context, vec![0]);
        facts
    }

    #[test]
    fn what_differs_is_named() {
        let plain = facts(1, program(&[], "0.7.0 (build b11669)"));
        assert_eq!(plain.difference(&plain.clone()), None);
        let other = facts(2, program(&[], "0.7.0 (build b11669)"));
        assert_eq!(
            plain.difference(&other).as_deref(),
            Some("the model's file is another one")
        );
        let newer = facts(1, program(&[], "0.8.0"));
        assert_eq!(
            newer.difference(&plain).as_deref(),
            Some("the engine is another one: 0.8.0, here 0.7.0 (build b11669)")
        );
        let flags = facts(
            1,
            program(&["--rope-freq-base", "5"], "0.7.0 (build b11669)"),
        );
        assert_eq!(
            flags.difference(&plain).as_deref(),
            Some("flags differ: --rope-freq-base 5, here none")
        );
        assert_ne!(flags.fingerprint(), plain.fingerprint());
    }

    #[test]
    fn an_origin_is_read_as_it_was_written_and_nothing_else_is() {
        let origin = Origin {
            model: "tea".to_owned(),
            facts: facts(1, program(&["-fa", "on"], "0.7.0")),
            layout: None,
        };
        let bytes = origin.encode();
        assert_eq!(Origin::decode(&bytes), Some(origin.clone()));
        let again = Origin::decode(&bytes).unwrap().facts;
        assert_eq!(again.fingerprint(), origin.facts.fingerprint());
        for end in 0..bytes.len() {
            assert_eq!(Origin::decode(&bytes[..end]), None, "{end}");
        }
        let longer = [&*bytes, &[0]].concat();
        assert_eq!(Origin::decode(&longer), None);
    }
}
