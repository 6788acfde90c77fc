use std::fmt;

/// Longest URL that is read, in bytes. No client or server that matters takes a
/// longer request line.
pub(super) const LONGEST: usize = 4096;

/// Longest path of a Unix socket, in bytes: `sun_path` has 108 on Linux and 104 on macOS, and the
/// last one is zero.
pub(super) const LONGEST_SOCKET: usize = 103;

/// A URL that cannot be used: the URL, without its password, and what is wrong
/// with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexUrlError {
    /// For people only: redacted, escaped, shortened.
    shown: String,
    problem: Problem,
}

/// What is wrong with a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// Nothing there.
    Empty,
    /// More bytes than any server would take.
    TooLong(usize),
    /// A character that no URL may hold; not named where it could be part of a
    /// password.
    Character {
        /// Which character of the text, from 1.
        position: usize,
        /// The character, where it may be shown.
        character: Option<char>,
    },
    /// No `://`.
    NoScheme,
    /// A scheme other than `http`, `https` and `unix`.
    Scheme(String),
    /// What follows `unix:` is not the absolute path of a file.
    Socket(String),
    /// Its path has so many bytes, more than a Unix socket's may have.
    LongSocket(usize),
    /// Nothing between `://` (or `@`) and the port, path or end.
    NoHost,
    /// Not a host name, an IPv4 address or a bracketed IPv6 address.
    Host(String),
    /// Not a number from 1 to 65535.
    Port(String),
    /// User info that is badly percent-encoded, or decodes to something that
    /// basic authentication cannot carry. Not shown: it may be the password.
    UserInfo(&'static str),
    /// An `@` where none may stand: either user info with an unencoded
    /// `/`, `?`, `#` or `@` in it, or a path with one.
    At,
    /// A character that no path may hold.
    Path(char),
    /// A `%` in the path that is not followed by two hexadecimal digits.
    PathEncoding,
    /// A `?`: evictions are posted below the path, a query has no place there.
    Query,
    /// A `#`: fragments are not sent to servers.
    Fragment,
}

impl IndexUrlError {
    pub(super) fn new(text: &str, problem: Problem) -> Self {
        Self {
            shown: shorten(&redact(text).escape_debug().to_string(), 200),
            problem,
        }
    }

    /// What is wrong, for programs.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }
}

impl fmt::Display for IndexUrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\": {}", self.shown, self.problem)
    }
}

impl std::error::Error for IndexUrlError {}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the URL is empty; give one such as http://127.0.0.1:8765"),
            Self::TooLong(bytes) => {
                write!(
                    f,
                    "{bytes} bytes are too long for a URL (at most {LONGEST})"
                )
            }
            Self::Character {
                position,
                character: Some(c),
            } => write!(f, "a URL cannot hold {c:?} (character {position})"),
            Self::Character {
                position,
                character: None,
            } => write!(
                f,
                "character {position} must be percent-encoded in the user info"
            ),
            Self::NoScheme => f.write_str(
                "no scheme; a URL begins with http:// or https://, as in http://127.0.0.1:8765 \
                 (or is a Unix socket, as in unix:/run/index.sock)",
            ),
            Self::Scheme(scheme) => {
                write!(
                    f,
                    "scheme \"{scheme}\" is not known; use http, https or unix"
                )
            }
            Self::Socket(path) => write!(
                f,
                "\"{}\" is not the path of a Unix socket, which begins at the root; give one such \
                 as unix:/run/index.sock, and a path below it as unix:/run/index.sock:/prefix",
                path.escape_debug()
            ),
            Self::LongSocket(bytes) => write!(
                f,
                "{bytes} bytes are too long for the path of a Unix socket (at most \
                 {LONGEST_SOCKET})"
            ),
            Self::NoHost => f.write_str("no host; give one, as in http://127.0.0.1:8765"),
            Self::Host(host) => write!(
                f,
                "\"{host}\" is not a host name, an IPv4 address or an IPv6 address in brackets"
            ),
            Self::Port(port) if port.is_empty() => {
                f.write_str("no port after the ':'; give a number from 1 to 65535 or remove it")
            }
            Self::Port(port) => write!(f, "port \"{port}\" is not a number from 1 to 65535"),
            Self::UserInfo(what) => write!(f, "the user info {what}"),
            Self::At => f.write_str(
                "an '@' in the wrong place; percent-encode / ? # @ in the user info \
                 (%2F %3F %23 %40) and @ in the path (%40)",
            ),
            Self::Path(c) => write!(f, "a path cannot hold {c:?}; percent-encode it"),
            Self::PathEncoding => {
                f.write_str("a '%' in the path is not followed by two hexadecimal digits")
            }
            Self::Query => f.write_str("a query ('?…') has no place here; remove it"),
            Self::Fragment => f.write_str("a fragment ('#…') has no place here; remove it"),
        }
    }
}

/// The text with whatever could be a password replaced by `***`.
///
/// It works on text that is no URL at all, so it errs on hiding too much:
/// everything from the first `:` after the scheme to the last `@`.
pub(crate) fn redact(text: &str) -> String {
    let Some(at) = text.rfind('@') else {
        return text.to_owned();
    };
    let start = match text.find("://") {
        Some(colon) if colon < at && looks_like_scheme(&text[..colon]) => colon + "://".len(),
        _ => 0,
    };
    match text[start..at].find(':') {
        Some(colon) => format!("{}:***{}", &text[..start + colon], &text[at..]),
        None => text.to_owned(),
    }
}

/// Whether `text` has the form of a scheme (RFC 3986), whichever it is.
pub(crate) fn looks_like_scheme(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'))
}

/// At most `limit` characters of `text`, marked where it was cut.
pub(super) fn shorten(text: &str, limit: usize) -> String {
    match text.char_indices().nth(limit) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
