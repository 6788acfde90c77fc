//! The page that shows the cache in a browser: `GET /` of the control endpoint, and the frame of a report.
//!
//! Its sources are in `page/` of the repository (TypeScript, one style sheet). `scripts/page` builds them into
//! one file, `built/page.html`, which is committed, so that building this crate needs no node. The hook library
//! has it compressed.
//!
//! The page holds no data. A browser gets it and then asks the endpoint, as other clients do. So it is the same
//! for every client, and may be served to a client without a token.

#![forbid(unsafe_code)]

mod report;

pub use contextpilot_http_server::{Request, Response};
pub use report::report;

/// The page, a zlib stream.
static COMPRESSED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/page.html.z"));

/// What the page may do: run its own script, use its own style sheet, and ask where it came from. The hashes are
/// of these two. The page itself has the same policy, but for what only a header can say.
const POLICY: &str = include_str!("../built/policy.txt");

/// The page, if a browser asks for one: it names HTML among what it accepts, and can read a compressed answer.
/// `None`: another client asks.
#[must_use]
pub fn answer(request: &Request) -> Option<Response> {
    let has = |header, wanted: &[u8]| {
        let mut values = request.header(header);
        values.any(|value| value.windows(wanted.len()).any(|part| part == wanted))
    };
    if !has("Accept", b"text/html") || !has("Accept-Encoding", b"deflate") {
        return None;
    }
    let page = Response::whole(200, "text/html; charset=utf-8", COMPRESSED.to_vec());
    let policy = format!("{}; frame-ancestors 'none'", POLICY.trim_end());
    let page = page
        .with("Content-Encoding", "deflate")
        .with("Content-Security-Policy", policy)
        .with("Cross-Origin-Opener-Policy", "same-origin")
        .with("Cross-Origin-Resource-Policy", "same-origin")
        .with("Referrer-Policy", "no-referrer")
        .with("X-Content-Type-Options", "nosniff")
        .with("X-Frame-Options", "DENY")
        .with("Vary", "Accept, Accept-Encoding")
        .with("Cache-Control", "no-store");
    Some(page)
}
