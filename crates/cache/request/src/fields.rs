//! Header and trailer lines, byte by byte.

use crate::loss::Loss;

/// The longest line, with its CRLF; cpp-httplib's `CPPHTTPLIB_HEADER_MAX_LENGTH`.
const MAX_LINE_BYTES: usize = 8192;
/// The most lines in a section; cpp-httplib's `CPPHTTPLIB_HEADER_MAX_COUNT`.
const MAX_LINES: usize = 100;

/// Room for the longest name that we compare (`transfer-encoding`).
const NAME_BYTES: usize = 20;
/// Room for the longest value that we compare. A longer value equals none of them.
const VALUE_BYTES: usize = 64;

/// Reads a section of field lines up to the empty line that ends it. Fails where
/// the server answers 400: the server then takes whatever it reads next for a
/// new request, so the boundaries of requests are no longer certain.
#[derive(Debug, Clone)]
pub(crate) struct Fields {
    state: State,
    line_bytes: usize,
    lines: usize,
    name: Short<NAME_BYTES>,
    value: Short<VALUE_BYTES>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// At the beginning of a line.
    Start,
    Name,
    Value,
    /// After the CR that ends a line.
    ValueEnd,
    /// After the CR of the empty line.
    SectionEnd,
}

/// What was completed.
pub(crate) enum Event {
    /// A line: see [`Fields::name`] and [`Fields::value`].
    Line,
    /// The section has ended.
    End,
}

impl Fields {
    pub(crate) const fn new() -> Self {
        Self {
            state: State::Start,
            line_bytes: 0,
            lines: 0,
            name: Short::new(),
            value: Short::new(),
        }
    }

    pub(crate) fn push(&mut self, byte: u8) -> Result<Option<Event>, Loss> {
        self.line_bytes += 1;
        if self.line_bytes > MAX_LINE_BYTES {
            return Err(Loss::Fields);
        }
        self.state = match (self.state, byte) {
            (State::Start, b'\r') => State::SectionEnd,
            (State::SectionEnd, b'\n') => return Ok(Some(Event::End)),
            (State::Start, byte) if is_token(byte) => {
                if self.lines == MAX_LINES {
                    return Err(Loss::Fields);
                }
                self.name = Short::new();
                self.value = Short::new();
                self.name.push(byte.to_ascii_lowercase());
                State::Name
            }
            (State::Name, byte) if is_token(byte) => {
                self.name.push(byte.to_ascii_lowercase());
                State::Name
            }
            (State::Name, b':') => State::Value,
            (State::Value, b' ' | b'\t') => {
                if !self.value.is_empty() {
                    self.value.push_blank();
                }
                State::Value
            }
            (State::Value, 0x21..=0x7E | 0x80..) => {
                self.value.push(byte);
                State::Value
            }
            (State::Value, b'\r') => State::ValueEnd,
            (State::ValueEnd, b'\n') => {
                self.state = State::Start;
                self.line_bytes = 0;
                self.lines += 1;
                return Ok(Some(Event::Line));
            }
            // Folded lines, blanks before the colon, bare CR or LF, control
            // characters, no colon.
            _ => return Err(Loss::Fields),
        };
        Ok(None)
    }

    /// The name of the line just completed, in lower case; empty when it is
    /// longer than any that we compare.
    pub(crate) fn name(&self) -> &[u8] {
        self.name.get().unwrap_or_default()
    }

    /// The value of the line just completed, without blanks around it; `None`
    /// when it is longer than any that we compare.
    pub(crate) fn value(&self) -> Option<&[u8]> {
        self.value.get().map(<[u8]>::trim_ascii_end)
    }

    /// The beginning of the value of the line just completed.
    pub(crate) fn value_start(&self) -> &[u8] {
        self.value.start().trim_ascii_end()
    }
}

/// `tchar` of RFC 9110.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// A few bytes without allocation, and whether there were more.
#[derive(Debug, Clone)]
pub(crate) struct Short<const N: usize> {
    bytes: [u8; N],
    len: usize,
    overflowed: bool,
}

impl<const N: usize> Short<N> {
    pub(crate) const fn new() -> Self {
        Self {
            bytes: [0; N],
            len: 0,
            overflowed: false,
        }
    }

    pub(crate) fn push(&mut self, byte: u8) {
        match self.bytes.get_mut(self.len) {
            Some(place) => {
                *place = byte;
                self.len += 1;
            }
            None => self.overflowed = true,
        }
    }

    /// Adds a blank, which does not count if only blanks follow.
    fn push_blank(&mut self) {
        if self.len < N {
            self.push(b' ');
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The whole value, if it fits.
    pub(crate) fn get(&self) -> Option<&[u8]> {
        (!self.overflowed).then(|| self.start())
    }

    fn start(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}
