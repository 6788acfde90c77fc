//! How many bytes of a body are its instructions, its tools and its messages.

use crate::endpoint::Endpoint;
use crate::fields::Short;

/// The sections of a request for a chat, in bytes of the body's JSON. How many tokens of the prompt belong to
/// each cannot be known from them: the chat template decides that.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sections {
    /// `system` or `instructions`, and the messages with the role `system` or `developer`.
    pub system: u64,
    /// The definitions of tools.
    pub tools: u64,
    /// All other messages.
    pub messages: u64,
}

/// A member of the body that a prompt is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    System,
    Instructions,
    Tools,
    Messages,
    Input,
}

const NAMES: [(&[u8], Part); 5] = [
    (b"system", Part::System),
    (b"instructions", Part::Instructions),
    (b"tools", Part::Tools),
    (b"messages", Part::Messages),
    (b"input", Part::Input),
];

impl Part {
    pub(super) fn named(is: impl Fn(&[u8]) -> bool) -> Option<Self> {
        let found = NAMES.iter().find(|(name, _)| is(name));
        found.map(|(_, part)| *part)
    }
}

/// The length of a part.
#[derive(Debug, Clone, Copy, Default)]
struct Length {
    all: u64,
    /// The messages in it that are the system's.
    system: u64,
}

/// The parts of a body, as it streams past. Places are bytes since its beginning. If a member is repeated, the
/// last one counts.
#[derive(Debug, Clone)]
pub(super) struct Parts {
    /// The part that is being read, and where it begins.
    current: Option<(Part, u64)>,
    lengths: [Length; NAMES.len()],
    pub(super) roles: Roles,
}

impl Parts {
    pub(super) const fn new() -> Self {
        Self {
            current: None,
            lengths: [Length { all: 0, system: 0 }; NAMES.len()],
            roles: Roles::new(),
        }
    }

    /// The value of a member begins at `at`, with a quote or a bracket.
    pub(super) fn begin(&mut self, part: Option<Part>, at: u64) {
        self.current = part.map(|part| (part, at));
        if let Some(part) = part {
            self.lengths[part as usize] = Length::default();
            self.roles = Roles::new();
        }
    }

    /// The value of the member has ended before `at`.
    pub(super) fn end(&mut self, at: u64) {
        if let Some((part, from)) = self.current.take() {
            self.lengths[part as usize] = Length {
                all: at - from,
                system: self.roles.system,
            };
        }
    }

    /// Whether messages are being read.
    pub(super) fn in_messages(&self) -> bool {
        matches!(self.current, Some((Part::Messages | Part::Input, _)))
    }

    /// The sections of a body for this endpoint. `None`: it is not for a chat, or there are none.
    pub(crate) fn sections(&self, endpoint: Endpoint) -> Option<Sections> {
        let of = |part: Part| self.lengths[part as usize];
        let (system, messages) = match endpoint {
            Endpoint::Chat => (0, of(Part::Messages)),
            Endpoint::Messages => (of(Part::System).all, of(Part::Messages)),
            Endpoint::Responses => (of(Part::Instructions).all, of(Part::Input)),
            _ => return None,
        };
        let sections = Sections {
            system: system + messages.system,
            tools: of(Part::Tools).all,
            messages: messages.all - messages.system,
        };
        (sections != Sections::default()).then_some(sections)
    }
}

/// The depth inside a message: the body, the list, the message.
pub(super) const IN_MESSAGE: u64 = 3;
/// Room for the longest word that matters (`developer`).
const WORD: usize = 9;

/// Finds the messages of the system in a list of messages. It looks only at texts at the depth [`IN_MESSAGE`].
#[derive(Debug, Clone)]
pub(super) struct Roles {
    /// Bytes of the system's messages so far.
    system: u64,
    /// Where the last message begins.
    begun: u64,
    is_system: bool,
    /// The beginning of a string that is cut by the end of the bytes that came with it. Escapes are not
    /// decoded: no client writes these words with any.
    word: Short<WORD>,
    before: Before,
}

/// What stands before the next string of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    Other,
    /// The string `role`.
    Role,
    /// The member's name `role` with its colon.
    Colon,
}

impl Roles {
    const fn new() -> Self {
        Self {
            system: 0,
            begun: 0,
            is_system: false,
            word: Short::new(),
            before: Before::Other,
        }
    }

    /// Bytes between strings and brackets.
    #[inline(always)]
    pub(super) fn between(&mut self, bytes: &[u8]) {
        if self.before == Before::Other {
            return;
        }
        for byte in bytes {
            match byte {
                b':' => self.before = Before::Colon,
                b',' => self.before = Before::Other,
                _ => {}
            }
        }
    }

    /// A bracket opens at `at`. `depth`: that of what is inside.
    #[inline(always)]
    pub(super) fn open(&mut self, depth: u64, at: u64) {
        self.before = Before::Other;
        if depth == IN_MESSAGE {
            self.begun = at;
            self.is_system = false;
        }
    }

    /// A bracket closes before `at`. `depth`: that of what was inside.
    #[inline(always)]
    pub(super) fn close(&mut self, depth: u64, at: u64) {
        self.before = Before::Other;
        if depth == IN_MESSAGE && self.is_system {
            self.system += at - self.begun;
            self.is_system = false;
        }
    }

    /// A string begins with `bytes`. `ended`: with so many of them, the closing quote included.
    #[inline(always)]
    pub(super) fn begin_text(&mut self, bytes: &[u8], ended: Option<usize>) {
        match ended {
            Some(used) => self.word(&bytes[..used - 1]),
            None => {
                self.word = Short::new();
                self.go_on_with_text(bytes, None);
            }
        }
    }

    /// Further bytes of a string.
    pub(super) fn go_on_with_text(&mut self, bytes: &[u8], ended: Option<usize>) {
        let text = &bytes[..ended.map_or(bytes.len(), |used| used - 1)];
        // One more than there is room for, so that a longer word is none of these.
        text.iter().take(WORD + 1).for_each(|&b| self.word.push(b));
        if ended.is_some() {
            let word = std::mem::replace(&mut self.word, Short::new());
            self.word(word.get().unwrap_or_default());
        }
    }

    #[inline(always)]
    fn word(&mut self, word: &[u8]) {
        self.before = match self.before {
            Before::Colon => {
                self.is_system = matches!(word, b"system" | b"developer");
                Before::Other
            }
            _ if word == b"role" => Before::Role,
            _ => Before::Other,
        };
    }
}
