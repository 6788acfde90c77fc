//! Finds the request id in a JSON body without building or keeping the body.

mod adapters;
mod collected;
mod control;
mod identity;
mod member;
mod number;
mod prompt;
mod sections;
mod text;

use crate::endpoint::Endpoint;
use crate::scan::{StringSkipper, find, find_quote_or_bracket};
pub use adapters::Adapters;
pub(crate) use control::in_header;
pub use identity::{CacheSalt, Identity, MAX_ID_BYTES, Refusal};
use member::{Member, NAME_BYTES};
pub use number::Numbers;
use number::{Number, Reading};
use prompt::List;
pub use prompt::{MOST_PIECES, MOST_TOKENS, Piece};
pub use sections::Sections;
use sections::{IN_MESSAGE, Part, Parts};
pub(crate) use text::Text;

/// Streams over one JSON body.
///
/// Strings, escapes and nesting are tracked exactly, everything else leniently:
/// the server rejects invalid JSON by itself, and an id found before the
/// error is still that of the rejected request. The last occurrence of a
/// repeated key counts, as in the server's parser (nlohmann).
#[derive(Debug, Clone)]
pub(crate) struct JsonScanner {
    state: State,
    /// Bytes of the body that were read before the current step.
    at: u64,
    /// Open brackets, the outermost object included, while in a nested value.
    depth: u64,
    /// The member whose value comes next, if we read it.
    member: Option<Member>,
    /// The section whose value comes next.
    part: Option<Part>,
    parts: Parts,
    text: Text,
    skipper: StringSkipper,
    rid: Value,
    request_id: Value,
    cache_prompt: Option<bool>,
    cache_salt: Value,
    /// How long the prompt is to be kept, if the member `cache_control` is an object.
    control: Option<control::Control>,
    /// The list of adapters, if the member `lora` is a list.
    adapters: Option<adapters::List>,
    /// The members that are numbers, as far as they were read.
    numbers: Reading,
    /// The content of the members that prompts come from, if it is to be read.
    made_of: Option<MadeOf>,
}

/// The content of the members that prompts come from.
#[derive(Debug, Clone, Default)]
struct MadeOf {
    prompt: Contents,
    input_prefix: Contents,
    input_suffix: Contents,
    input_extra: Contents,
}

impl MadeOf {
    fn contents_of(&mut self, member: Member) -> Option<&mut Contents> {
        match member {
            Member::Prompt => Some(&mut self.prompt),
            Member::InputPrefix => Some(&mut self.input_prefix),
            Member::InputSuffix => Some(&mut self.input_suffix),
            Member::InputExtra => Some(&mut self.input_extra),
            _ => None,
        }
    }
}

/// The content of such a member.
#[derive(Debug, Clone, Default)]
enum Contents {
    /// There is no such member, or it is of another kind.
    #[default]
    None,
    /// A text, or an object with a text.
    Text,
    List(List),
}

impl Contents {
    /// The prompts, each as its pieces.
    fn prompts(self) -> Option<Vec<Vec<Piece>>> {
        match self {
            Self::Text => Some(vec![vec![Piece::Text]]),
            Self::List(list) => list.prompts(),
            Self::None => None,
        }
    }

    /// The pieces of a single prompt, whose list may have texts only.
    fn pieces(self) -> Option<Vec<Piece>> {
        match self {
            Self::List(list) if list.is_empty() => Some(Vec::new()),
            contents => contents.prompts().map(|prompts| prompts.concat()),
        }
    }
}

/// The parts of a prompt in the body of an `/infill` request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InfillParts {
    /// `input_prefix`.
    pub prefix: Vec<Piece>,
    /// `input_suffix`.
    pub suffix: Vec<Piece>,
    /// How many files there are in `input_extra`.
    pub files: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before the body: this many bytes of a byte order mark were seen.
    ByteOrderMark(u8),
    Start,
    KeyOrEnd,
    Key,
    Colon,
    Value,
    /// In a string value: an id, or one to skip.
    IdText,
    OtherText,
    /// A number or literal.
    Scalar,
    Nested,
    NestedText,
    AfterValue,
    /// The rest cannot change the result: the object has ended, the
    /// body is not an object, or it is not JSON from here on.
    Over,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Value {
    Absent,
    Good(Box<str>),
    Bad(Refusal),
}

const BYTE_ORDER_MARK: [u8; 3] = [0xEF, 0xBB, 0xBF];
impl JsonScanner {
    pub(crate) const fn new() -> Self {
        Self {
            state: State::ByteOrderMark(0),
            at: 0,
            depth: 0,
            member: None,
            part: None,
            parts: Parts::new(),
            text: Text::new(),
            skipper: StringSkipper::new(),
            rid: Value::Absent,
            request_id: Value::Absent,
            cache_prompt: None,
            cache_salt: Value::Absent,
            control: None,
            adapters: None,
            numbers: Reading::new(),
            made_of: None,
        }
    }

    /// A scanner that also reads prompts.
    pub(crate) fn with_prompts() -> Self {
        Self {
            made_of: Some(MadeOf::default()),
            ..Self::new()
        }
    }

    /// A new scanner of the same kind, for the next body.
    pub(crate) fn renewed(&self) -> Self {
        match self.made_of {
            None => Self::new(),
            Some(_) => Self::with_prompts(),
        }
    }

    /// The prompts in the member `prompt`, each as its pieces. Call this at the end of the body.
    pub(crate) fn take_prompts(&mut self) -> Option<Vec<Vec<Piece>>> {
        std::mem::take(&mut self.made_of.as_mut()?.prompt).prompts()
    }

    /// The other parts of a prompt for `/infill`. Call this at the end of the body.
    pub(crate) fn take_infill(&mut self) -> Option<InfillParts> {
        let made_of = self.made_of.as_mut()?;
        let extra = std::mem::take(&mut made_of.input_extra).prompts();
        Some(InfillParts {
            prefix: std::mem::take(&mut made_of.input_prefix).pieces()?,
            suffix: std::mem::take(&mut made_of.input_suffix).pieces()?,
            files: extra.map_or(0, |files| files.len()),
        })
    }

    /// Takes the next bytes of the body.
    pub(crate) fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && self.state != State::Over {
            let used = self.step(bytes);
            self.at += used as u64;
            if self.state == State::AfterValue {
                self.parts.end(self.at);
            }
            bytes = &bytes[used..];
        }
    }

    /// What the body says of `cache_prompt`. If that is `false`, the prompt may neither come from the cache nor
    /// stay there. A value that is not a boolean is ignored, as the server ignores it.
    pub(crate) fn caches_prompt(&self) -> Option<bool> {
        self.cache_prompt
    }

    /// For how many seconds the prompt is to be kept. Call this at the end of the body.
    pub(crate) fn take_lifetime(&mut self) -> Option<u32> {
        control::lifetime(&self.control.take()?)
    }

    /// The `cache_salt` of the body. Call this at the end of the body.
    pub(crate) fn take_salt(&mut self) -> CacheSalt {
        match std::mem::replace(&mut self.cache_salt, Value::Absent) {
            Value::Absent | Value::Bad(Refusal::Empty) => CacheSalt::None,
            Value::Good(text) => CacheSalt::Text(text),
            Value::Bad(_) => CacheSalt::Unreadable,
        }
    }

    /// The sections of a body for this endpoint. Call this at the end of the body.
    pub(crate) fn sections(&self, endpoint: Endpoint) -> Option<Sections> {
        self.parts.sections(endpoint)
    }

    /// The numbers in the body. Call this at the end of the body.
    pub(crate) fn numbers(&self) -> Numbers {
        self.numbers.get()
    }

    /// The adapters that the body names. Call this at the end of the body.
    pub(crate) fn take_adapters(&mut self) -> Option<Adapters> {
        adapters::read(&self.adapters.take()?)
    }

    /// The id in the body. Call this at the end of the body.
    pub(crate) fn finish(self) -> Identity {
        match (self.rid, self.request_id) {
            (Value::Good(id), _) | (_, Value::Good(id)) => Identity::Id(id),
            (Value::Bad(why), _) | (Value::Absent, Value::Bad(why)) => Identity::Refused(why),
            (Value::Absent, Value::Absent) => Identity::Absent,
        }
    }

    /// Makes progress in the current state; returns how many bytes it used.
    /// Zero only when the state changed.
    fn step(&mut self, bytes: &[u8]) -> usize {
        match self.state {
            State::ByteOrderMark(seen) => self.byte_order_mark(seen, bytes[0]),
            State::Key => match self.text.feed(bytes) {
                None => bytes.len(),
                Some(used) => {
                    self.member = Member::named(&self.text, self.made_of.is_some());
                    self.part = Part::named(|name| self.text.is(name));
                    self.state = State::Colon;
                    used
                }
            },
            State::IdText => match self.text.feed(bytes) {
                None => bytes.len(),
                Some(used) => {
                    let value = match self.text.take() {
                        Ok(id) => Value::Good(id),
                        Err(why) => Value::Bad(why),
                    };
                    self.set(value);
                    self.state = State::AfterValue;
                    used
                }
            },
            State::OtherText => self.skip_text(bytes, State::AfterValue),
            State::NestedText | State::Nested => {
                let used = match self.state {
                    State::Nested => self.nested(bytes),
                    _ => self.nested_text(bytes),
                };
                if let Some(Contents::List(list)) = self.contents() {
                    list.feed(&bytes[..used]);
                }
                if let (Some(list), Some(Member::Lora)) = (&mut self.adapters, self.member) {
                    list.feed(&bytes[..used]);
                }
                if let (Some(control), Some(Member::CacheControl)) =
                    (&mut self.control, self.member)
                {
                    control.feed(&bytes[..used]);
                }
                used
            }
            State::Scalar => {
                let end = |b| matches!(b, b',' | b'}' | b'"' | b'{' | b'[' | b']' | b':');
                let ended = find(bytes, end);
                let used = ended.unwrap_or(bytes.len());
                if let Some(Some(number)) = self.number() {
                    bytes[..used].iter().for_each(|&byte| number.push(byte));
                }
                if ended.is_some() {
                    self.state = State::AfterValue;
                }
                used
            }
            State::Start | State::KeyOrEnd | State::Colon | State::Value | State::AfterValue => {
                match find(bytes, |b| !matches!(b, b' ' | b'\t' | b'\n' | b'\r')) {
                    None => bytes.len(),
                    Some(at) => {
                        self.structure(bytes[at], self.at + at as u64);
                        at + 1
                    }
                }
            }
            State::Over => bytes.len(),
        }
    }

    /// nlohmann skips a byte order mark, and rejects half of one.
    fn byte_order_mark(&mut self, seen: u8, byte: u8) -> usize {
        if BYTE_ORDER_MARK.get(usize::from(seen)) == Some(&byte) {
            self.state = match seen {
                2 => State::Start,
                _ => State::ByteOrderMark(seen + 1),
            };
            return 1;
        }
        self.state = match seen {
            0 => State::Start,
            _ => State::Over,
        };
        0
    }

    /// A significant byte of the outermost object, outside strings. `at`: where it is in the body.
    fn structure(&mut self, byte: u8, at: u64) {
        if self.state == State::Value && matches!(byte, b'"' | b'{' | b'[') {
            self.parts.begin(self.part, at);
        }
        self.state = match (self.state, byte) {
            (State::Start, b'{') => State::KeyOrEnd,
            (State::KeyOrEnd, b'"') => {
                self.text.start(NAME_BYTES);
                State::Key
            }
            (State::Colon, b':') => State::Value,
            (State::Value, b'"') => {
                // Remains if the body ends inside the string.
                self.set(Value::Bad(Refusal::Malformed));
                self.set_contents(Contents::Text);
                if let Some(Member::Rid | Member::RequestId | Member::CacheSalt) = self.member {
                    self.text.start(MAX_ID_BYTES);
                    State::IdText
                } else {
                    self.skipper = StringSkipper::new();
                    State::OtherText
                }
            }
            (State::Value, bracket @ (b'{' | b'[')) => {
                self.set(Value::Bad(Refusal::NotAString));
                self.set_contents(match bracket {
                    b'[' => Contents::List(List::new()),
                    _ => Contents::Text,
                });
                if self.member == Some(Member::Lora) && bracket == b'[' {
                    self.adapters = Some(adapters::List::new());
                }
                if self.member == Some(Member::CacheControl) && bracket == b'{' {
                    self.control = Some(control::Control::new());
                }
                self.depth = 2;
                State::Nested
            }
            (State::Value, b',' | b'}' | b']' | b':') => State::Over,
            (State::Value, first) => {
                self.set(match first {
                    b'n' => Value::Absent,
                    _ => Value::Bad(Refusal::NotAString),
                });
                if self.member == Some(Member::CachePrompt) {
                    self.cache_prompt = match first {
                        b't' => Some(true),
                        b'f' => Some(false),
                        _ => None,
                    };
                }
                if let Some(read) = self.number() {
                    let mut number = Number::default();
                    number.push(first);
                    *read = Some(number);
                }
                self.set_contents(Contents::None);
                State::Scalar
            }
            (State::AfterValue, b',') => State::KeyOrEnd,
            // The end of the object, or not JSON.
            _ => State::Over,
        };
    }

    /// Inside a nested value only strings and the depth matter. The server
    /// rejects brackets that do not match.
    fn nested(&mut self, bytes: &[u8]) -> usize {
        if self.parts.in_messages() {
            self.nested_with::<true>(bytes)
        } else {
            self.nested_with::<false>(bytes)
        }
    }

    /// `MESSAGES`: looks for the roles of messages, too. Other values do not pay for that.
    #[inline(always)]
    fn nested_with<const MESSAGES: bool>(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        while let Some(found) = find_quote_or_bracket(&bytes[at..]) {
            if MESSAGES {
                self.parts.roles.between(&bytes[at..at + found]);
            }
            at += found + 1;
            match bytes[at - 1] {
                b'"' => {
                    self.skipper = StringSkipper::new();
                    let ended = self.skipper.feed(&bytes[at..]);
                    if MESSAGES && self.depth == IN_MESSAGE {
                        self.parts.roles.begin_text(&bytes[at..], ended);
                    }
                    match ended {
                        Some(used) => at += used,
                        None => {
                            self.state = State::NestedText;
                            return bytes.len();
                        }
                    }
                }
                b'{' | b'[' => {
                    self.depth += 1;
                    if MESSAGES {
                        let place = self.at + at as u64 - 1;
                        self.parts.roles.open(self.depth, place);
                    }
                }
                _ => {
                    if MESSAGES {
                        self.parts.roles.close(self.depth, self.at + at as u64);
                    }
                    self.depth -= 1;
                    if self.depth == 1 {
                        self.state = State::AfterValue;
                        return at;
                    }
                }
            }
        }
        if MESSAGES {
            self.parts.roles.between(&bytes[at..]);
        }
        bytes.len()
    }

    /// Further bytes of a string inside a nested value.
    fn nested_text(&mut self, bytes: &[u8]) -> usize {
        let used = self.skip_text(bytes, State::Nested);
        let ended = (self.state == State::Nested).then_some(used);
        if self.parts.in_messages() && self.depth == IN_MESSAGE {
            self.parts.roles.go_on_with_text(bytes, ended);
        }
        used
    }

    fn skip_text(&mut self, bytes: &[u8], then: State) -> usize {
        match self.skipper.feed(bytes) {
            None => bytes.len(),
            Some(used) => {
                self.state = then;
                used
            }
        }
    }

    fn set(&mut self, value: Value) {
        if let Some(number) = self.number() {
            *number = None;
        }
        match self.member {
            Some(Member::Rid) => self.rid = value,
            Some(Member::RequestId) => self.request_id = value,
            // The last member counts.
            Some(Member::CachePrompt) => self.cache_prompt = None,
            Some(Member::CacheSalt) => self.cache_salt = value,
            Some(Member::Lora) => self.adapters = None,
            Some(Member::CacheControl) => self.control = None,
            _ => {}
        }
    }

    /// The number whose value comes next.
    fn number(&mut self) -> Option<&mut Option<Number>> {
        self.numbers.number_of(self.member?)
    }

    fn set_contents(&mut self, contents: Contents) {
        if let Some(member) = self.contents() {
            *member = contents;
        }
    }

    /// The content of the member whose value comes next.
    fn contents(&mut self) -> Option<&mut Contents> {
        self.made_of.as_mut()?.contents_of(self.member?)
    }
}

#[cfg(test)]
mod tests;
