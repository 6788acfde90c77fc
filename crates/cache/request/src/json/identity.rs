//! The id and the salt that a body gives, or why it gives none.

/// The longest request id that is honoured, in bytes of UTF-8.
pub const MAX_ID_BYTES: usize = 512;

/// Why an id that was given is not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refusal {
    /// A number, object, array, `true` or `false`. (`null` counts as absent:
    /// clients with typed requests send it for a field that is not set.)
    NotAString,
    /// The empty string.
    Empty,
    /// More than [`MAX_ID_BYTES`] bytes.
    TooLong,
    /// The bytes are not UTF-8.
    NotUtf8,
    /// An escape that JSON does not know, half of a surrogate pair, a bare
    /// control character, or a body that ends inside the id.
    Malformed,
    /// The body is compressed, so whether it carries an id is not known.
    Compressed,
}

impl Refusal {
    /// All of them, each at its number.
    pub const ALL: [Self; 6] = [
        Self::NotAString,
        Self::Empty,
        Self::TooLong,
        Self::NotUtf8,
        Self::Malformed,
        Self::Compressed,
    ];

    /// What a client does to have its id used.
    #[must_use]
    pub fn remedy(self) -> &'static str {
        match self {
            Refusal::NotAString => "send it as a string, as in \"rid\": \"41\"",
            Refusal::Empty => "send 1 to 512 bytes, or leave it out",
            Refusal::TooLong => "send at most 512 bytes of UTF-8",
            Refusal::NotUtf8 | Refusal::Malformed => "send a JSON string in UTF-8",
            Refusal::Compressed => "send the body as it is",
        }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Refusal::NotAString => "not a string",
            Refusal::Empty => "empty",
            Refusal::TooLong => "longer than 512 bytes",
            Refusal::NotUtf8 => "not UTF-8",
            Refusal::Malformed => "malformed string",
            Refusal::Compressed => "compressed body",
        })
    }
}

/// The id of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Identity {
    /// The id, exactly as given after JSON unescaping.
    Id(Box<str>),
    /// The body has no id.
    Absent,
    /// The body has an id that cannot be used.
    Refused(Refusal),
}

/// The `cache_salt` of a request: only prompts with the same one may share what was stored of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum CacheSalt {
    /// There is none, or it is empty.
    #[default]
    None,
    /// The salt.
    Text(Box<str>),
    /// There is one that is no text of at most [`MAX_ID_BYTES`] bytes, or there may be one in a body that is not read.
    Unreadable,
}
