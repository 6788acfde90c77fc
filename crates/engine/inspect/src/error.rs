use std::{fmt, io};

/// Why nothing can be said about a file.
#[derive(Debug)]
pub enum Error {
    /// The file cannot be opened or read.
    Unreadable(io::Error),
    /// The file says that it is an ELF file, and then contradicts itself.
    Malformed(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(error) => write!(f, "cannot be read: {error}"),
            Self::Malformed(what) => write!(f, "is not a sound ELF file: {what}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Unreadable(error) => Some(error),
            Self::Malformed(_) => None,
        }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Unreadable(error)
    }
}

impl From<object::read::Error> for Error {
    fn from(error: object::read::Error) -> Self {
        Self::Malformed(error.to_string())
    }
}
