//! What an answer means for the ids that were posted.
//!
//! A program between us and the index (an ingress, a proxy, a firewall, a service mesh) can
//! answer with any status and any text. So an id is dropped only after an answer that only the
//! index gives, and that names this id. After anything else the ids are sent again.
//!
//! The answers of a ContextPilot index 0.5.0 to `POST /evict`, recorded with these bodies:
//!
//! | body | answer |
//! |---|---|
//! | `{"request_ids":["a"]}` before the first `/reorder`, or with `--stateless` | 503 `{"detail":"Index not initialized. Call POST /reorder first."}` |
//! | the same later | 200 `{"status":"success",…,"removed_count":0,…,"not_found":["a"]}` |
//! | `{"request_ids":["a",1,null]}` | 422 `{"detail":[{"type":"string_type","loc":["body","request_ids",1],…},{…,"loc":["body","request_ids",2],…}]}` |
//! | not JSON, or without the list | 422, with a `loc` of `["body",15]`, `["body","request_ids"]` or `["body"]` |
//! | an id that it cannot encode (half a surrogate pair, which we never send) | 500 `Internal Server Error` |

use std::time::Duration;

#[cfg(test)]
mod tests;

/// The parts of an answer that decide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answer<'a> {
    /// The status code.
    pub status: u16,
    /// `Content-Type`.
    pub content_type: Option<&'a str>,
    /// `Retry-After`.
    pub retry_after: Option<&'a str>,
    /// The body, or its beginning.
    pub body: &'a [u8],
}

/// What to do with the ids of a POST that was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The ids are confirmed.
    Delivered,
    /// The index holds nothing yet (before its first `/reorder`), so there is
    /// nothing to evict: the ids are settled.
    NothingThere,
    /// The index does not accept these ids, given by their positions in the POST. It has
    /// not acted on the other ids either: they must be sent again, without these.
    Refused(Vec<usize>),
    /// The answer settles nothing: try again.
    Retry(Retry),
}

/// How to go on after an answer that settles nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// How long the answer asks to wait.
    pub after: Option<Duration>,
    /// What to send next.
    pub next: Next,
    /// What a user should check if this continues.
    pub advice: Option<&'static str>,
}

/// What to send after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The same ids: the failure does not depend on the content of the POST.
    Same,
    /// Half of the ids: something in the POST may be the cause.
    Half,
    /// Half of the ids, without a pause: the POST was too large, and a smaller one may be accepted.
    HalfAtOnce,
}

/// Judges an answer.
#[must_use]
pub fn classify(answer: &Answer<'_>) -> Verdict {
    match answer.status {
        200..=299 if !is_page(answer) => Verdict::Delivered,
        503 if says_not_initialized(answer.body) => Verdict::NothingThere,
        422 => match refused_places(answer.body) {
            Some(places) => Verdict::Refused(places),
            None => retry(answer),
        },
        _ => retry(answer),
    }
}

fn retry(answer: &Answer<'_>) -> Verdict {
    let next = match answer.status {
        413 => Next::HalfAtOnce,
        // These are about the address, permission or time, not about the ids.
        401 | 404 | 405 | 407 | 408 | 410 | 421 | 425 | 426 | 429 => Next::Same,
        // A firewall that refuses an id, or an index that fails on one, must not stop the
        // reports of all others.
        400..=501 => Next::Half,
        _ => Next::Same,
    };
    Verdict::Retry(Retry {
        after: parse_retry_after(answer.retry_after),
        next,
        advice: advice(answer.status),
    })
}

fn advice(status: u16) -> Option<&'static str> {
    Some(match status {
        200..=299 => {
            "this is a web page, as of a login or a portal: check that CONTEXTPILOT_INDEX_URL \
             leads to the index"
        }
        300..=399 => {
            "this redirect is not followed: set CONTEXTPILOT_INDEX_URL to the final address"
        }
        401 | 403 => {
            "check CONTEXTPILOT_INDEX_TOKEN or the user and password in CONTEXTPILOT_INDEX_URL"
        }
        404 | 405 | 410 | 421 => {
            "if this lasts, check the host, port and path in CONTEXTPILOT_INDEX_URL: no index \
             answers there"
        }
        400 | 422 => {
            "check that CONTEXTPILOT_INDEX_URL leads to a ContextPilot index of a known version"
        }
        407 => "check the user and password of the HTTP proxy",
        413 => "check the body size limit of the proxy before the index",
        // For these it is enough to wait and try again.
        408 | 425 | 429 | 500..=599 => return None,
        _ => "check CONTEXTPILOT_INDEX_URL",
    })
}

/// Whether the answer is a web page. No index sends one, but logins, portals and maintenance
/// notices do, some with status 200.
fn is_page(answer: &Answer<'_>) -> bool {
    let kind = answer.content_type.unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    let declared = ["text/html", "application/xhtml+xml"];
    declared.iter().any(|page| kind.eq_ignore_ascii_case(page))
        || answer.body.trim_ascii_start().starts_with(b"<")
}

/// The two answers of the index that must be understood are searched for as text, with white
/// space where JSON allows it. A JSON parser would make the hook 25 KB larger.
fn says_not_initialized(body: &[u8]) -> bool {
    let detail = || {
        let rest = eat(eat(eat(body, "{")?, "\"detail\"")?, ":")?;
        eat(rest, "\"Index not initialized")
    };
    detail().is_some() && is_whole(body)
}

/// The positions in `request_ids` that the index does not accept, in order. `None` if it objects to
/// anything else.
fn refused_places(body: &[u8]) -> Option<Vec<usize>> {
    let mut rest = eat(eat(eat(eat(body, "{")?, "\"detail\"")?, ":")?, "[")?;
    let mut places = Vec::new();
    // Text that is quoted in the answer cannot contain this key: within a string, quotation marks
    // have a backslash before them.
    const KEY: &[u8] = b"\"loc\"";
    while let Some(at) = rest.windows(KEY.len()).position(|part| part == KEY) {
        rest = &rest[at + KEY.len()..];
        if let Some(location) = eat(rest, ":") {
            let place = place(location)?;
            if let Err(at) = places.binary_search(&place) {
                places.insert(at, place);
            }
        }
    }
    (!places.is_empty() && is_whole(body)).then_some(places)
}

/// The number in `["body","request_ids",7`, if `location` begins with that.
fn place(location: &[u8]) -> Option<usize> {
    let mut rest = location;
    for token in ["[", "\"body\"", ",", "\"request_ids\"", ","] {
        rest = eat(rest, token)?;
    }
    let rest = rest.trim_ascii_start();
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (number, after) = rest.split_at(digits);
    let ends = eat(after, ",").or_else(|| eat(after, "]")).is_some();
    std::str::from_utf8(number)
        .ok()?
        .parse()
        .ok()
        .filter(|_| ends)
}

/// The text behind `token`, if the text begins with it.
fn eat<'a>(text: &'a [u8], token: &str) -> Option<&'a [u8]> {
    text.trim_ascii_start().strip_prefix(token.as_bytes())
}

/// Whether the JSON object at the beginning of a body is complete.
fn is_whole(body: &[u8]) -> bool {
    body.trim_ascii_end().ends_with(b"}")
}

/// Reads seconds only: the date form needs synchronised clocks.
fn parse_retry_after(value: Option<&str>) -> Option<Duration> {
    value?.trim().parse().ok().map(Duration::from_secs)
}
