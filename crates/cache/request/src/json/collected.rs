//! A small array or object of a body: collected as it streams past, and read when it has ended.

use super::text::Text;
use crate::scan::{StringSkipper, find_quote_or_bracket};

/// What stands behind the opening bracket, at most so many bytes.
#[derive(Debug, Clone)]
pub(super) struct Collected<const MOST: usize> {
    bytes: Vec<u8>,
    too_long: bool,
}

impl<const MOST: usize> Collected<MOST> {
    pub(super) const fn new() -> Self {
        Self {
            bytes: Vec::new(),
            too_long: false,
        }
    }

    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.too_long |= self.bytes.len() + bytes.len() > MOST;
        if !self.too_long {
            self.bytes.extend_from_slice(bytes);
        }
    }

    /// `None`: it is longer.
    pub(super) fn reader(&self) -> Option<Reader<'_>> {
        (!self.too_long).then_some(Reader { rest: &self.bytes })
    }
}

/// Reads valid JSON only: the server rejects anything else. `None`: there is something else than what is asked for.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// The next byte that is no white space.
    pub(super) fn next(&mut self) -> Option<u8> {
        let found = self.rest.iter().position(|byte| !is_space(*byte))?;
        let byte = self.rest[found];
        self.rest = &self.rest[found + 1..];
        Some(byte)
    }

    /// A string of at most so many bytes, behind its opening quote.
    pub(super) fn text(&mut self, most: usize) -> Option<Text> {
        let mut text = Text::new();
        text.start(most);
        let used = text.feed(self.rest)?;
        self.rest = &self.rest[used..];
        Some(text)
    }

    /// The name of a member, behind its opening quote, and the colon.
    pub(super) fn key(&mut self, most: usize) -> Option<Text> {
        let key = self.text(most)?;
        (self.next()? == b':').then_some(key)
    }

    /// A value that is neither a string, nor an array or object.
    pub(super) fn scalar(&mut self) -> Option<&'a [u8]> {
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
    pub(super) fn skip(&mut self) -> Option<()> {
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
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}
