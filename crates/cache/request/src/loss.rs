//! Why the boundaries of requests are no longer known.

use std::fmt;

/// Why a reader no longer knows where the requests of its connection end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Loss {
    /// Not a request line of HTTP/1.0 or 1.1, or one that is too long.
    RequestLine,
    /// A header or trailer line that the server does not accept, or too many.
    Fields,
    /// Lengths and transfer codings that contradict each other or are unusual.
    Framing,
    /// A chunked body that breaks the rules.
    Chunk,
    /// Bytes came right after a POST (or PUT, PATCH, DELETE) that announced no
    /// body. Some servers take them for its body, others drop them.
    Unannounced,
    /// More bytes came behind a request than are kept,
    /// [`MOST_BEHIND`](crate::MOST_BEHIND). Not reported as a step: the request itself is known.
    Behind,
    /// The server closes the connection after the last request. Not an error,
    /// and not reported as a step.
    Closed,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Loss::RequestLine => "not an HTTP/1 request line",
            Loss::Fields => "malformed header fields",
            Loss::Framing => "ambiguous body length",
            Loss::Chunk => "malformed chunk",
            Loss::Unannounced => "body without a length",
            Loss::Behind => "too many bytes behind a request",
            Loss::Closed => "connection ends after this request",
        })
    }
}
