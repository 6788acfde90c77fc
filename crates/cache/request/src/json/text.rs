//! Collects the content of one JSON string and decodes its escapes, as it streams past.

use super::identity::Refusal;
use crate::endpoint::hex_digit;
use crate::scan::{StringSkipper, find};

/// Collects a string of at most `limit` bytes. For a string with a problem it
/// only finds the end.
#[derive(Debug, Clone)]
pub(crate) struct Text {
    bytes: Vec<u8>,
    limit: usize,
    escape: Escape,
    /// The first half of a surrogate pair, waiting for the second.
    high: Option<u16>,
    problem: Option<Refusal>,
    skipper: StringSkipper,
}

#[derive(Debug, Clone, Copy)]
enum Escape {
    None,
    /// After a backslash.
    Begun,
    /// After `\u`: digits seen and their value.
    Unicode(u8, u16),
}

impl Text {
    pub(crate) const fn new() -> Self {
        Self {
            bytes: Vec::new(),
            limit: 0,
            escape: Escape::None,
            high: None,
            problem: None,
            skipper: StringSkipper::new(),
        }
    }

    /// Begins after an opening quote.
    pub(crate) fn start(&mut self, limit: usize) {
        self.bytes.clear();
        self.limit = limit;
        self.escape = Escape::None;
        self.high = None;
        self.problem = None;
        self.skipper = StringSkipper::new();
    }

    /// Takes bytes up to the closing quote; returns the index after it, or
    /// `None` when it is still to come.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        while at < bytes.len() {
            if self.problem.is_some() {
                return self.skipper.feed(&bytes[at..]).map(|end| at + end);
            }
            match self.escape {
                Escape::None => {
                    let special = |b: u8| b == b'"' || b == b'\\' || b < 0x20;
                    let plain = find(&bytes[at..], special).unwrap_or(bytes.len() - at);
                    if plain > 0 {
                        self.push(&bytes[at..at + plain]);
                        at += plain;
                        continue;
                    }
                    match bytes[at] {
                        b'"' => {
                            if self.high.is_some() {
                                self.problem = Some(Refusal::Malformed);
                            }
                            return Some(at + 1);
                        }
                        b'\\' => self.escape = Escape::Begun,
                        _ => self.problem = Some(Refusal::Malformed),
                    }
                    at += 1;
                }
                Escape::Begun => {
                    self.escape = Escape::None;
                    self.simple_escape(bytes[at]);
                    at += 1;
                }
                Escape::Unicode(digits, value) => match hex_digit(bytes[at]) {
                    // Do not consume it: it may be the closing quote.
                    None => self.problem = Some(Refusal::Malformed),
                    Some(digit) => {
                        let value = value << 4 | u16::from(digit);
                        self.escape = match digits {
                            3 => Escape::None,
                            _ => Escape::Unicode(digits + 1, value),
                        };
                        if digits == 3 {
                            self.code_unit(value);
                        }
                        at += 1;
                    }
                },
            }
        }
        None
    }

    /// Whether the string equals `wanted`. Call this after its end.
    pub(crate) fn is(&self, wanted: &[u8]) -> bool {
        self.problem.is_none() && self.bytes == wanted
    }

    /// As much of the string as there is room for, or as could be decoded. Call this after its end.
    pub(crate) fn beginning(&self) -> &[u8] {
        &self.bytes
    }

    /// The string. Call this after its end.
    pub(crate) fn take(&mut self) -> Result<Box<str>, Refusal> {
        if let Some(problem) = self.problem {
            return Err(problem);
        }
        match std::str::from_utf8(&self.bytes) {
            Err(_) => Err(Refusal::NotUtf8),
            Ok("") => Err(Refusal::Empty),
            Ok(text) => Ok(text.into()),
        }
    }

    fn simple_escape(&mut self, byte: u8) {
        let plain = match byte {
            b'"' | b'\\' | b'/' => byte,
            b'b' => 0x08,
            b'f' => 0x0C,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => {
                self.escape = Escape::Unicode(0, 0);
                return;
            }
            _ => {
                self.problem = Some(Refusal::Malformed);
                return;
            }
        };
        self.push(&[plain]);
    }

    /// A `\uXXXX` has ended.
    fn code_unit(&mut self, unit: u16) {
        let code = match (self.high.take(), unit) {
            (None, 0xD800..=0xDBFF) => {
                self.high = Some(unit);
                return;
            }
            (Some(high), 0xDC00..=0xDFFF) => {
                0x1_0000 + (u32::from(high - 0xD800) << 10) + u32::from(unit - 0xDC00)
            }
            (None, unit) => u32::from(unit),
            (Some(_), _) => {
                self.problem = Some(Refusal::Malformed);
                return;
            }
        };
        match char::from_u32(code) {
            Some(c) => self.push(c.encode_utf8(&mut [0; 4]).as_bytes()),
            // The second half of a surrogate pair without the first.
            None => self.problem = Some(Refusal::Malformed),
        }
    }

    fn push(&mut self, bytes: &[u8]) {
        if self.high.is_some() {
            self.problem = Some(Refusal::Malformed);
        } else {
            let room = self.limit - self.bytes.len();
            self.bytes
                .extend_from_slice(&bytes[..room.min(bytes.len())]);
            if bytes.len() > room {
                self.problem = Some(Refusal::TooLong);
            }
        }
    }
}
