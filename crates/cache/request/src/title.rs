//! What a request is about, in a few words, for people: the beginning of what its user wrote, and the program that sent it.

use crate::json::Text;
use crate::scan::{StringSkipper, find};

/// The longest beginning of a text that is kept, in bytes.
pub const MOST_WORDS: usize = 200;
/// The longest name of a program that is kept, in bytes.
pub const MOST_AGENT: usize = 40;
/// So much of a text is decoded: white space may stand before and between its words.
const DECODED: usize = 4 * MOST_WORDS;
/// Brackets that are told apart: the body, the list of messages, a message, the list of its parts, a part.
const LEVELS: usize = 5;

/// What a request is about.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Title {
    /// The first words of its last user message, or of its prompt; empty: there are none.
    ///
    /// Agents put what they add to a user's words between tags. So text that begins with a tag counts only if
    /// there is no other.
    pub words: Box<str>,
    /// The first word of the header `User-Agent`; empty: there is none.
    pub agent: Box<str>,
}

/// Finds the title of one request, as its body streams past. It is lenient where the body is no JSON: the server
/// rejects it then.
#[derive(Debug, Clone)]
pub(crate) struct TitleReader {
    agent: Box<str>,
    found: Found,
    /// What the message that is being read says.
    message: Found,
    is_user: bool,
    /// Open brackets.
    depth: usize,
    /// For the outermost of them: whether each is an object's, and the name of the member whose value is read.
    levels: [Level; LEVELS],
    text: Text,
    reading: Reading,
}

/// The best text so far.
#[derive(Debug, Clone, Default)]
struct Found(Box<str>);

impl Found {
    /// Takes a text that comes behind those before.
    fn take(&mut self, words: Box<str>) {
        let is_tagged = |words: &str| words.starts_with('<');
        if !words.is_empty() && (self.0.is_empty() || !is_tagged(&words) || is_tagged(&self.0)) {
            self.0 = words;
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Level {
    is_object: bool,
    name: Name,
    /// The next string of an object is the name of a member.
    names: bool,
}

/// The names of members that matter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Name {
    #[default]
    Other,
    Prompt,
    Messages,
    Role,
    Content,
    Text,
}

const NAMES: [(&[u8], Name); 6] = [
    (b"prompt", Name::Prompt),
    (b"messages", Name::Messages),
    (b"input", Name::Messages),
    (b"role", Name::Role),
    (b"content", Name::Content),
    (b"text", Name::Text),
];

#[derive(Debug, Clone)]
enum Reading {
    Structure,
    /// The name of a member.
    Name,
    Role,
    /// A text that may be the title.
    Words,
    /// Another string.
    Other(StringSkipper),
}

impl Default for TitleReader {
    fn default() -> Self {
        Self {
            agent: Box::default(),
            found: Found::default(),
            message: Found::default(),
            is_user: false,
            depth: 0,
            levels: [Level::default(); LEVELS],
            text: Text::new(),
            reading: Reading::Structure,
        }
    }
}

impl TitleReader {
    /// The header `User-Agent`, or its beginning.
    pub(crate) fn agent(&mut self, value: &[u8]) {
        let first = value.split(|byte| *byte == b' ').next();
        self.agent = beginning(first.unwrap_or_default(), MOST_AGENT);
    }

    /// The title of the request whose body has ended, if it has one. The next request begins.
    pub(crate) fn take(&mut self) -> Option<Title> {
        let Self { agent, found, .. } = std::mem::take(self);
        let title = Title {
            words: found.0,
            agent,
        };
        (title != Title::default()).then_some(title)
    }

    /// Takes the next bytes of the body.
    pub(crate) fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let ended = match &mut self.reading {
                Reading::Structure => {
                    let used = self.structure(bytes);
                    bytes = &bytes[used..];
                    continue;
                }
                Reading::Other(skipper) => skipper.feed(bytes),
                Reading::Name | Reading::Role | Reading::Words => self.text.feed(bytes),
            };
            let Some(used) = ended else { return };
            self.end_string();
            bytes = &bytes[used..];
        }
    }

    /// Takes bytes up to a quote or a bracket, and returns how many.
    fn structure(&mut self, bytes: &[u8]) -> usize {
        let wanted = |byte: u8| matches!(byte, b'"' | b'{' | b'}' | b'[' | b']' | b',');
        let Some(at) = find(bytes, wanted) else {
            return bytes.len();
        };
        match bytes[at] {
            b'"' => self.begin_string(),
            b',' => {
                if let Some(level) = self.level() {
                    level.names = level.is_object;
                }
            }
            bracket @ (b'{' | b'[') => self.open(bracket == b'{'),
            _ => self.close(),
        }
        at + 1
    }

    fn level(&mut self) -> Option<&mut Level> {
        self.levels.get_mut(self.depth.checked_sub(1)?)
    }

    fn open(&mut self, is_object: bool) {
        self.depth += 1;
        if self.depth == 3 {
            self.message = Found::default();
            self.is_user = false;
        }
        if let Some(level) = self.level() {
            *level = Level {
                is_object,
                name: Name::Other,
                names: is_object,
            };
        }
    }

    fn close(&mut self) {
        if self.depth == 3 && self.is_user {
            self.found.take(std::mem::take(&mut self.message).0);
        }
        self.depth = self.depth.saturating_sub(1);
    }

    /// A string begins, behind its quote.
    fn begin_string(&mut self) {
        let names = self.level().is_some_and(|level| level.names);
        let [body, list, message, parts, part] = self.levels;
        let in_message = body.name == Name::Messages && !list.is_object && message.is_object;
        self.reading = match self.depth {
            _ if names => Reading::Name,
            1 if matches!(body.name, Name::Prompt | Name::Messages) => Reading::Words,
            // The first of several prompts.
            2 if body.name == Name::Prompt && !list.is_object && self.found.0.is_empty() => {
                Reading::Words
            }
            3 if in_message && message.name == Name::Role => Reading::Role,
            3 if in_message && message.name == Name::Content => Reading::Words,
            5 if in_message
                && message.name == Name::Content
                && !parts.is_object
                && part.name == Name::Text =>
            {
                Reading::Words
            }
            _ => Reading::Other(StringSkipper::new()),
        };
        self.text.start(match self.reading {
            Reading::Words => DECODED,
            _ => b"messages".len(),
        });
    }

    fn end_string(&mut self) {
        match std::mem::replace(&mut self.reading, Reading::Structure) {
            Reading::Name => {
                let known = NAMES.iter().find(|(name, _)| self.text.is(name));
                let name = known.map_or(Name::Other, |(_, name)| *name);
                if let Some(level) = self.level() {
                    level.name = name;
                    level.names = false;
                }
            }
            Reading::Role => self.is_user = self.text.is(b"user"),
            Reading::Words => {
                let words = beginning(self.text.beginning(), MOST_WORDS);
                match self.depth {
                    1 | 2 => self.found.take(words),
                    _ => self.message.take(words),
                }
            }
            Reading::Structure | Reading::Other(_) => {}
        }
    }
}

/// The first words of a text, with single blanks between them: at most `most` bytes, the last of which say that
/// there are more. Characters that a terminal obeys and invisible ones are left out.
fn beginning(bytes: &[u8], most: usize) -> Box<str> {
    let text = String::from_utf8_lossy(bytes);
    // The end may be within a character.
    let text = text.trim_end_matches(char::REPLACEMENT_CHARACTER);
    let visible = text.chars().filter(|c| c.is_whitespace() || is_visible(*c));
    let shown: String = visible.collect();
    let mut words = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    if words.len() > most {
        while words.len() + ELLIPSIS.len_utf8() > most {
            words.pop();
        }
        words.push(ELLIPSIS);
    }
    words.into()
}

const ELLIPSIS: char = '…';

fn is_visible(c: char) -> bool {
    let is_format = matches!(
        c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'
    );
    !c.is_control() && !is_format
}
