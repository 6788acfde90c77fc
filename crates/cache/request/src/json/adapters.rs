//! The LoRA adapters that a body names: `"lora": [{"id": 0, "scale": 0.5}]`.

use super::text::Text;
use crate::scan::{StringSkipper, find_quote_or_bracket};

/// The longest list that is read, in bytes.
const LONGEST: usize = 4096;

/// The LoRA adapters that a request is for.
#[derive(Debug, Clone, PartialEq)]
pub enum Adapters {
    /// Index in the server's list, and scale, as in the body. Never empty: an empty list
    /// counts as no list, as it does in the server.
    Named(Vec<(i32, f32)>),
    /// Something that the server may accept, but this crate cannot read.
    Unreadable,
}

/// Collects the list as it streams past, after its opening bracket.
#[derive(Debug, Clone)]
pub(super) struct List {
    bytes: Vec<u8>,
    too_long: bool,
}

impl List {
    pub(super) const fn new() -> Self {
        Self {
            bytes: Vec::new(),
            too_long: false,
        }
    }

    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.too_long |= self.bytes.len() + bytes.len() > LONGEST;
        if !self.too_long {
            self.bytes.extend_from_slice(bytes);
        }
    }

    pub(super) fn adapters(self) -> Option<Adapters> {
        if self.too_long {
            return Some(Adapters::Unreadable);
        }
        match (Reader { rest: &self.bytes }).list() {
            Some(named) if named.is_empty() => None,
            Some(named) => Some(Adapters::Named(named)),
            None => Some(Adapters::Unreadable),
        }
    }
}

/// Reads valid JSON only: the server rejects anything else.
struct Reader<'a> {
    rest: &'a [u8],
}

impl Reader<'_> {
    fn list(&mut self) -> Option<Vec<(i32, f32)>> {
        let mut named = Vec::new();
        loop {
            match self.next()? {
                b']' => return Some(named),
                b',' => {}
                b'{' => named.push(self.entry()?),
                _ => return None,
            }
        }
    }

    /// Missing members have the server's defaults.
    fn entry(&mut self) -> Option<(i32, f32)> {
        let (mut id, mut scale) = (-1, 0.0);
        loop {
            match self.next()? {
                b'}' => return Some((id, scale)),
                b',' => {}
                b'"' => {
                    let mut key = Text::new();
                    key.start(b"scale".len());
                    let used = key.feed(self.rest)?;
                    self.rest = &self.rest[used..];
                    if self.next()? != b':' {
                        return None;
                    }
                    if key.is(b"id") {
                        id = self.number(-1)?;
                    } else if key.is(b"scale") {
                        scale = self.number(0.0)?;
                    } else {
                        self.skip()?;
                    }
                }
                _ => return None,
            }
        }
    }

    /// A number, or the default for `null`.
    fn number<T: std::str::FromStr>(&mut self, default: T) -> Option<T> {
        let text = std::str::from_utf8(self.scalar()?).ok()?;
        match text {
            "null" => Some(default),
            _ => text.parse().ok(),
        }
    }

    /// A value that is neither a string, nor an array or object.
    fn scalar(&mut self) -> Option<&[u8]> {
        let spaces = self.rest.iter().position(|byte| !is_space(*byte))?;
        let rest = &self.rest[spaces..];
        let end = rest
            .iter()
            .position(|byte| is_space(*byte) || b",]}[{\"".contains(byte))?;
        let (scalar, rest) = rest.split_at(end);
        self.rest = rest;
        (!scalar.is_empty()).then_some(scalar)
    }

    /// Any value.
    fn skip(&mut self) -> Option<()> {
        if self.scalar().is_some() {
            return Some(());
        }
        let mut depth = 0_usize;
        loop {
            let found = find_quote_or_bracket(self.rest)?;
            let byte = self.rest[found];
            self.rest = &self.rest[found + 1..];
            match byte {
                b'"' => {
                    let used = StringSkipper::new().feed(self.rest)?;
                    self.rest = &self.rest[used..];
                }
                b'{' | b'[' => depth += 1,
                _ => depth = depth.checked_sub(1)?,
            }
            if depth == 0 {
                return Some(());
            }
        }
    }

    fn next(&mut self) -> Option<u8> {
        let found = self.rest.iter().position(|byte| !is_space(*byte))?;
        let byte = self.rest[found];
        self.rest = &self.rest[found + 1..];
        Some(byte)
    }
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}
