//! Reads a body's `prompt` if it is a list.

use crate::scan::StringSkipper;

/// The most tokens that are kept of one request; a request with more is not followed.
pub const MOST_TOKENS: usize = 1 << 20;
/// The most texts and prompts of one request, which take more room.
pub const MOST_PIECES: usize = 1 << 12;

/// Part of a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Text, which the server tokenizes. It may be in an object with media, which is then a whole
    /// prompt.
    Text,
    /// Tokens.
    Tokens(Vec<i32>),
}

/// Reads a list after its opening bracket: of tokens and texts (one prompt), or of prompts.
#[derive(Debug, Clone)]
pub(super) struct List {
    state: State,
    /// Inside a nested list.
    inside: bool,
    /// Open brackets of an object in the list.
    object: u32,
    skipper: StringSkipper,
    /// The elements of the list itself, in case it is one prompt.
    whole: Vec<Piece>,
    /// Its elements as prompts, in case there are several.
    several: Vec<Vec<Piece>>,
    has_tokens: bool,
    /// It contains lists or objects.
    has_lists: bool,
    tokens: usize,
    /// The number of texts and lists.
    pieces: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Between,
    Number(i32),
    Text,
    /// The list has ended.
    Whole,
    /// It is not a prompt, or too long.
    Odd,
}

impl List {
    pub(super) const fn new() -> Self {
        Self {
            state: State::Between,
            inside: false,
            object: 0,
            skipper: StringSkipper::new(),
            whole: Vec::new(),
            several: Vec::new(),
            has_tokens: false,
            has_lists: false,
            tokens: 0,
            pieces: 0,
        }
    }

    /// The prompts, by the server's rule: a list with a number in it is one prompt.
    pub(super) fn prompts(self) -> Option<Vec<Vec<Piece>>> {
        match (self.state, self.has_tokens, self.has_lists) {
            (State::Whole, true, false) => Some(vec![self.whole]),
            (State::Whole, false, _) if !self.several.is_empty() => Some(self.several),
            _ => None,
        }
    }

    /// Whether the list has ended and is empty.
    pub(super) fn is_empty(&self) -> bool {
        self.state == State::Whole && self.whole.is_empty() && self.several.is_empty()
    }

    pub(super) fn feed(&mut self, mut bytes: &[u8]) {
        while let Some((&byte, rest)) = bytes.split_first() {
            match self.state {
                State::Whole | State::Odd => return,
                State::Text => match self.skipper.feed(bytes) {
                    None => return,
                    Some(used) => {
                        self.state = State::Between;
                        bytes = &bytes[used..];
                    }
                },
                State::Number(before) => {
                    let digit = byte.is_ascii_digit().then(|| i32::from(byte - b'0'));
                    self.state = match digit {
                        Some(digit) => before
                            .checked_mul(10)
                            .and_then(|tens| tens.checked_add(digit))
                            .map_or(State::Odd, State::Number),
                        None => {
                            self.add_token(before);
                            self.between(byte)
                        }
                    };
                    bytes = rest;
                }
                State::Between => {
                    self.state = self.between(byte);
                    bytes = rest;
                }
            }
        }
    }

    /// A byte outside of texts and numbers, or right after a number.
    fn between(&mut self, byte: u8) -> State {
        self.tokens += usize::from(byte.is_ascii_digit());
        self.pieces += usize::from(matches!(byte, b'"' | b'[' | b'{'));
        if self.object > 0 {
            return self.within_object(byte);
        }
        match byte {
            b' ' | b'\t' | b'\n' | b'\r' | b',' => State::Between,
            _ if self.tokens > MOST_TOKENS => State::Odd,
            b'"' | b'[' | b'{' if self.pieces > MOST_PIECES => State::Odd,
            b'0'..=b'9' => State::Number(i32::from(byte - b'0')),
            b'"' => {
                self.skipper = StringSkipper::new();
                if !self.inside {
                    self.several.push(vec![Piece::Text]);
                }
                self.pieces().push(Piece::Text);
                State::Text
            }
            b'{' if !self.inside => {
                self.object = 1;
                self.has_lists = true;
                self.several.push(vec![Piece::Text]);
                State::Between
            }
            b'[' if !self.inside => {
                self.inside = true;
                self.has_lists = true;
                self.several.push(Vec::new());
                State::Between
            }
            b']' if self.inside => {
                self.inside = false;
                State::Between
            }
            b']' => State::Whole,
            _ => State::Odd,
        }
    }

    /// The server rejects brackets that do not match.
    fn within_object(&mut self, byte: u8) -> State {
        match byte {
            b'{' | b'[' => self.object += 1,
            b'}' | b']' => self.object -= 1,
            b'"' => {
                self.skipper = StringSkipper::new();
                return State::Text;
            }
            _ => {}
        }
        State::Between
    }

    fn add_token(&mut self, token: i32) {
        self.has_tokens |= !self.inside;
        let pieces = self.pieces();
        match pieces.last_mut() {
            Some(Piece::Tokens(tokens)) => tokens.push(token),
            _ => pieces.push(Piece::Tokens(vec![token])),
        }
    }

    fn pieces(&mut self) -> &mut Vec<Piece> {
        match self.several.last_mut() {
            Some(last) if self.inside => last,
            _ => &mut self.whole,
        }
    }
}
