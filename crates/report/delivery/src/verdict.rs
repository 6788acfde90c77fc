//! What an answer means for the ids that were posted.
//!
//! A program between us and the index (an ingress, a proxy, a firewall, a service mesh) can
//! answer with any status and any text: a login page, `{"error":"login required"}`, or a 202 for
//! what it means to pass on later. So an id is settled only by an answer that only the index gives.
//! After anything else the ids are sent again.
//!
//! The answers of a ContextPilot index 0.5.0 to `POST /evict`, recorded with these bodies (0.3.0 to
//! 0.4.1 give the same; so do our own index and `contextpilot-llama listen`):
//!
//! | body | answer |
//! |---|---|
//! | `{"request_ids":["a"]}` before the first `/reorder`, or with `--stateless` | 503 `{"detail":"Index not initialized. Call POST /reorder first."}` |
//! | the same later | 200 `{"status":"success",…,"removed_count":0,…,"not_found":["a"]}` |
//! | `{"request_ids":["a",1,null]}` | 422 `{"detail":[{"type":"string_type","loc":["body","request_ids",1],…},{…,"loc":["body","request_ids",2],…}]}` |
//! | not JSON, or without the list | 422, with a `loc` of `["body",15]`, `["body","request_ids"]` or `["body"]` |
//! | an id that it cannot encode (half a surrogate pair, which we never send) | 500 `Internal Server Error` |

use std::borrow::Cow;
use std::time::Duration;

use serde::Deserialize;
use serde::de::IgnoredAny;

#[cfg(test)]
mod tests;

/// The parts of an answer that decide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexReply<'a> {
    /// The status code.
    pub status: u16,
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
pub fn classify(answer: &IndexReply<'_>) -> Verdict {
    match answer.status {
        200 if says_evicted(answer.body) => Verdict::Delivered,
        503 if says_not_initialized(answer.body) => Verdict::NothingThere,
        422 => match refused_places(answer.body) {
            Some(places) => Verdict::Refused(places),
            None => retry(answer),
        },
        _ => retry(answer),
    }
}

fn retry(answer: &IndexReply<'_>) -> Verdict {
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
            "this is no answer of an index, but perhaps of a login or a portal before it: check \
             that CONTEXTPILOT_INDEX_URL leads to the index"
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

/// The answer to an eviction. More may be in it, in any order.
#[derive(Deserialize)]
struct Evicted<'a> {
    #[serde(borrow)]
    status: Cow<'a, str>,
    #[serde(rename = "removed_count")]
    _removed: u64,
    #[serde(rename = "not_found")]
    _missing: Vec<IgnoredAny>,
}

/// The answer to an error.
#[derive(Deserialize)]
struct Detail<T> {
    detail: T,
}

/// An entry of the list that names what is wrong with a request.
#[derive(Deserialize)]
struct Fault {
    loc: Vec<Step>,
}

/// A step on the way to a value in the request.
#[derive(Deserialize)]
#[serde(untagged)]
enum Step {
    Position(usize),
    Name(String),
}

/// A body that is not complete is no JSON, and never counts.
fn says_evicted(body: &[u8]) -> bool {
    serde_json::from_slice(body).is_ok_and(|answer: Evicted<'_>| answer.status == "success")
}

fn says_not_initialized(body: &[u8]) -> bool {
    let says = |answer: Detail<String>| answer.detail.starts_with("Index not initialized");
    serde_json::from_slice(body).is_ok_and(says)
}

/// The positions in `request_ids` that the index does not accept, in order. `None` if it objects to
/// anything else.
fn refused_places(body: &[u8]) -> Option<Vec<usize>> {
    let faults: Detail<Vec<Fault>> = serde_json::from_slice(body).ok()?;
    let place = |fault: &Fault| match fault.loc.as_slice() {
        [Step::Name(body), Step::Name(list), Step::Position(at), ..]
            if body == "body" && list == "request_ids" =>
        {
            Some(*at)
        }
        _ => None,
    };
    let mut places: Vec<usize> = faults.detail.iter().map(place).collect::<Option<_>>()?;
    places.sort_unstable();
    places.dedup();
    (!places.is_empty()).then_some(places)
}

/// Reads seconds only: the date form needs synchronised clocks.
fn parse_retry_after(value: Option<&str>) -> Option<Duration> {
    value?.trim().parse().ok().map(Duration::from_secs)
}
