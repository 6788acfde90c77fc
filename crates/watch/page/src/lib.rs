//! The page that shows the cache in a browser: `GET /` of the control endpoint, and the frame of a report.
//!
//! Its sources are in `page/` of the repository (TypeScript, one style sheet). `scripts/page` builds them into
//! one file, `built/page.html`, which is committed, so that building this crate needs no node. The hook library
//! has it compressed.
//!
//! The page holds no data. A browser gets it and then asks the endpoint, as other clients do. So it is the same
//! for every client, and may be served to a client without a token.

#![forbid(unsafe_code)]

pub use contextpilot_http_server::{Request, Response};

/// The page as it was built.
static PAGE: &str = include_str!("../built/page.html");

/// Where the data of a report stands in the page.
const DATA: &str = "id=\"data\">";

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

/// The page with data inside: one file that needs nothing else. `packed`: JSON in a zlib stream in base64, which
/// has no character that means anything in HTML.
#[must_use]
pub fn report(packed: &str) -> String {
    let (before, after) = PAGE.split_once(DATA).unwrap_or((PAGE, ""));
    [before, DATA, packed, after].concat()
}
