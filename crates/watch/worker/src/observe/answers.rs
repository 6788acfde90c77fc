//! The routes of the control endpoint, and who may use them.
//!
//! **Access.** With `CONTEXTPILOT_LISTEN_TOKEN`, a request must carry the token. Without, the address is
//! a loopback address or a Unix socket that only this user can open. A web page in a browser on this
//! machine could still reach a loopback address ([`BrowserHeaders`]). So without a token the
//! `Host` must be a loopback name, and requests by pages are refused.
//!
//! One page is answered: our own, which `/` serves to browsers ([`contextpilot_page`]). It may read, and do
//! nothing else. It has no data in it, so a client without a token gets it too, and it asks for the token.
//!
//! `/health` and `/ready` are answered without the token too, but with the status alone. A kubelet cannot
//! keep the token secret from users who may read the pod's description.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use contextpilot_control::{
    Evaluation, EventId, Health, HealthStatus, Latest, MatchRequest, ModelState, Refusal,
    RequestState, RequestStates, RequestsQuery, Reset,
};
use contextpilot_delivery::Sender;
use contextpilot_http_server::{Body, Follow, Request, Response};
use contextpilot_observer::Difference;
use contextpilot_settings::{BrowserHeaders, Secret, percent};
use serde::Serialize;

use super::ask::{Asker, NoAnswer, Question};
use super::stream::{Reader, Stream};
use crate::library::Library;

/// What all connections share.
pub(crate) struct Answers {
    /// It is a Unix socket, which no web page can reach.
    pub(crate) is_unix: bool,
    pub(crate) token: Option<Secret>,
    pub(crate) asker: Asker,
    pub(crate) stream: Arc<Stream>,
    pub(crate) library: &'static dyn Library,
    pub(crate) sender: Option<Arc<Sender>>,
    pub(crate) index_in_front: Option<String>,
    pub(crate) readers: Arc<AtomicUsize>,
    /// How many connections may follow the stream.
    pub(crate) most_readers: usize,
}

impl Answers {
    /// Adds the text around a divergence to an evaluation. This runs on the connection's thread, so that it
    /// does not hold up the worker.
    fn quote(&self, evaluation: &mut Evaluation, difference: Option<Difference>) {
        if let (Some(diverged), Some(difference)) = (&mut evaluation.diverged, difference) {
            difference.describe(diverged, |token| self.library.piece(token));
        }
    }
}

/// An error with its reason.
pub(crate) fn refuse(status: u16, why: &str) -> Response {
    let error = why.to_owned();
    json(status, &Refusal { error })
}

fn json(status: u16, body: &impl Serialize) -> Response {
    match serde_json::to_string(body) {
        Ok(body) => Response::json(status, body).with("Cache-Control", "no-store"),
        Err(_) => Response::json(500, "{}".to_owned()),
    }
}

impl Answers {
    pub(crate) fn answer(&self, request: &Request) -> Response {
        // A panic here affects only this request.
        let answer = catch_unwind(AssertUnwindSafe(|| match self.may_ask(request) {
            Ok(access) => self.route(request, access),
            Err(refusal) => {
                self.asker.clients.refuse();
                refusal
            }
        }));
        answer.unwrap_or_else(|_| {
            let place = self.library.place_of_panic();
            refuse(
                500,
                &format!("an internal error at {place}; please report it"),
            )
        })
    }

    fn may_ask(&self, request: &Request) -> Result<Access, Response> {
        if let Some(token) = &self.token {
            let probes = is_probe(request.path()) && !browser(request).from_a_page();
            return if request.bears(token.expose()) {
                Ok(Access::Whole)
            } else if wants_page(request) {
                Ok(Access::Page)
            } else if probes {
                Ok(Access::Probe)
            } else {
                Err(refuse(
                    401,
                    "send the token of CONTEXTPILOT_LISTEN_TOKEN, as Authorization: Bearer …",
                )
                .with("WWW-Authenticate", "Bearer"))
            };
        }
        let browser = browser(request);
        let refused = match request.method.as_str() {
            // Our own page reads, and does nothing else.
            "GET" | "HEAD" => browser.from_another_page(),
            _ => browser.from_a_page(),
        };
        if refused {
            return Err(refuse(403, "web pages are not answered"));
        }
        if !self.is_unix && !browser.names_this_machine() {
            return Err(refuse(
                421,
                "the Host is not this machine's: use 127.0.0.1, [::1] or localhost",
            ));
        }
        Ok(Access::Whole)
    }

    fn route(&self, request: &Request, access: Access) -> Response {
        let path = request.path();
        let only = match path {
            "/reset" | "/match" | REQUESTS => "POST",
            "/" | "/stats" | "/tree" | "/recent" | "/metrics" | "/events" => "GET",
            _ if is_probe(path) => "GET",
            _ if path.starts_with("/requests/") => "GET",
            _ => {
                return refuse(
                    404,
                    "nothing here: there are /stats, /tree, /requests/{id}, /requests/last, /recent, /events, /metrics, \
                     /health, /ready, POST /requests, POST /match and POST /reset",
                );
            }
        };
        let method = match request.method.as_str() {
            "HEAD" => "GET",
            method => method,
        };
        if method != only {
            return refuse(405, &format!("use {only} here")).with("Allow", only);
        }
        let answer = match path {
            "/" => Ok(contextpilot_page::answer(request)
                .unwrap_or_else(|| Response::whole(200, "text/plain; charset=utf-8", ROOT.into()))),
            "/stats" => self
                .asker
                .ask(Question::Stats)
                .map(|stats| json(200, &stats)),
            "/tree" => self.tree(request),
            "/recent" => self.recent(),
            "/metrics" => self.asker.ask(Question::Metrics).map(|text| {
                let kind = "text/plain; version=0.0.4; charset=utf-8";
                Response::whole(200, kind, text.into_bytes())
            }),
            "/events" => Ok(self.events(request)),
            HEALTH => Ok(probed(HealthStatus::Ok, ALIVE.to_owned(), access)),
            READY => {
                let (status, reason) = self.readiness();
                Ok(probed(status, reason, access))
            }
            "/reset" => self
                .asker
                .ask(Question::Reset)
                .map(|evicted| json(200, &Reset { evicted })),
            "/match" => self.matching(request),
            LATEST => self.latest(request),
            REQUESTS => self.requests(request),
            _ => self.request(path),
        };
        answer.unwrap_or_else(|NoAnswer| {
            refuse(
                503,
                "the worker does not answer: the process is ending, or see what it says on stderr",
            )
        })
    }

    fn latest(&self, request: &Request) -> Result<Response, NoAnswer> {
        let most = match request.query("n").map(str::parse) {
            None => DEFAULT_LATEST,
            Some(Ok(most)) => usize::min(most, LATEST_AT_MOST),
            Some(Err(_)) => return Ok(refuse(400, "n is how many: a whole number")),
        };
        let latest = self.asker.ask(|to| Question::Latest(most, to))?.into_iter();
        let requests = latest.map(|(mut request, difference)| {
            self.quote(&mut request.evaluation, difference);
            request
        });
        let requests = requests.collect();
        Ok(json(200, &Latest { requests }))
    }

    fn tree(&self, request: &Request) -> Result<Response, NoAnswer> {
        let most = match request.query("most").map(str::parse) {
            None => DEFAULT_BRANCHES,
            Some(Ok(most)) => usize::clamp(most, 1, BRANCHES_AT_MOST),
            Some(Err(_)) => return Ok(refuse(400, "most is how many branches: a whole number")),
        };
        let tree = self.asker.ask(|to| Question::Tree(most, to))?;
        Ok(json(200, &tree))
    }

    fn recent(&self) -> Result<Response, NoAnswer> {
        Ok(match self.asker.ask(Question::Recent)? {
            Some(recording) => Response::whole(200, "application/octet-stream", recording)
                .with("Cache-Control", "no-store"),
            None => refuse(
                503,
                "recent requests are not kept: CONTEXTPILOT_RECENT_MB is 0",
            ),
        })
    }

    fn matching(&self, request: &Request) -> Result<Response, NoAnswer> {
        let asked: MatchRequest = match serde_json::from_slice(&request.body) {
            Ok(asked) => asked,
            Err(error) => {
                let why = format!("send {{\"tokens\": [1, 2, …]}}: {error}");
                return Ok(refuse(400, &why));
            }
        };
        let found = self.asker.ask(|to| Question::Match(asked, to))?;
        Ok(match found {
            Some(found) => json(200, &found),
            None => refuse(503, "nothing is remembered: CONTEXTPILOT_EXPLAIN_MB is 0"),
        })
    }

    fn request(&self, path: &str) -> Result<Response, NoAnswer> {
        let encoded = path.trim_start_matches("/requests/");
        let Ok(id) = percent::decode(encoded) else {
            return Ok(refuse(400, "the id is not percent-encoded UTF-8"));
        };
        let (mut state, difference) = self.asker.ask(|to| Question::Request(id, to))?;
        if let Some(evaluation) = state.evaluation_mut() {
            self.quote(evaluation, difference);
        }
        let status = match state {
            RequestState::Unknown { .. } => 404,
            _ => 200,
        };
        Ok(json(status, &state))
    }

    fn requests(&self, request: &Request) -> Result<Response, NoAnswer> {
        let RequestsQuery { ids } = match serde_json::from_slice(&request.body) {
            Ok(asked) => asked,
            Err(error) => {
                let why = format!("send {{\"ids\": [\"a\", \"b\", …]}}: {error}");
                return Ok(refuse(400, &why));
            }
        };
        let requests = self.asker.ask(|to| Question::Requests(ids, to))?;
        Ok(json(200, &RequestStates { requests }))
    }

    fn events(&self, request: &Request) -> Response {
        let Some(place) = StreamPermit::take(&self.readers, self.most_readers) else {
            self.asker.clients.refuse();
            return refuse(503, "too many readers: close one, or try again later");
        };
        // An id that we did not give was given by another process.
        let last = request.header("Last-Event-ID").next().map(|value| {
            let text = String::from_utf8_lossy(value);
            text.parse().unwrap_or(EventId {
                epoch: String::new(),
                sequence: 0,
            })
        });
        let reader = Reader::new(&self.stream, last);
        Response {
            body: Body::Endless(Box::new(Placed {
                reader,
                _place: place,
            })),
            ..Response::whole(200, "text/event-stream", Vec::new())
        }
        .with("Cache-Control", "no-store")
    }

    /// The status for `/ready`, and its reason.
    fn readiness(&self) -> (HealthStatus, String) {
        if !self.library.is_running() {
            let place = self.library.place_of_panic();
            let reason = format!(
                "the hook stopped after an internal error at {place}, and llama-server goes on \
                 without it; restart the server to get the hook back"
            );
            return (HealthStatus::Stopped, reason);
        }
        let engine = self.library.engine();
        if let Some(why) = engine.not_followed {
            return (
                HealthStatus::NotAttached,
                format!("nothing is followed: {why}"),
            );
        }
        let missing = engine.missing;
        if !missing.is_empty() {
            let missing = missing.join("; ");
            let reason = format!(
                "not observed: {missing}; `contextpilot-llama doctor` shows which functions"
            );
            return (HealthStatus::NotAttached, reason);
        }
        if self.library.model_state() == ModelState::Loading {
            let reason = "llama-server is still loading its model; wait until it answers";
            return (HealthStatus::Loading, reason.to_owned());
        }
        let Some(sender) = &self.sender else {
            let reason = match &self.index_in_front {
                Some(url) => format!("the hook works, and the index at {url} asks it"),
                None => {
                    "the hook works; no index is set (CONTEXTPILOT_INDEX_URL), so evictions are \
                         not reported"
                        .to_owned()
                }
            };
            return (HealthStatus::Ok, reason);
        };
        let stats = sender.stats();
        if stats.failures_in_a_row > 0 || !stats.running {
            let why = stats.last_error.unwrap_or_default();
            let waiting = stats.waiting + stats.in_flight;
            let reason = format!(
                "evictions cannot be reported to the index, {waiting} wait: {why}; check the index \
                 and CONTEXTPILOT_INDEX_URL"
            );
            return (HealthStatus::IndexFailing, reason);
        }
        (
            HealthStatus::Ok,
            "the hook works, and reports evictions to the index".to_owned(),
        )
    }
}

/// The last requests. A request with the id `last` is asked for as `/requests/%6Cast`.
const LATEST: &str = "/requests/last";
/// The state of many requests.
const REQUESTS: &str = "/requests";
const DEFAULT_LATEST: usize = 10;
/// An evaluation takes up to 3 KB, and as much again as text.
const LATEST_AT_MOST: usize = 1000;

const DEFAULT_BRANCHES: usize = 500;
/// A branch takes some hundred bytes, and the ids of its requests.
const BRANCHES_AT_MOST: usize = 4000;

/// For liveness probes: answered by every process that serves, whatever else is wrong.
const HEALTH: &str = "/health";
/// For readiness probes.
const READY: &str = "/ready";

const ALIVE: &str = "the process serves; for the state of the hook, ask /ready";

/// Whether this asks for the page.
fn wants_page(request: &Request) -> bool {
    let reads = matches!(request.method.as_str(), "GET" | "HEAD");
    reads && request.path() == "/" && contextpilot_page::answer(request).is_some()
}

fn is_probe(path: &str) -> bool {
    path == HEALTH || path == READY
}

/// How much a request may see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// Everything.
    Whole,
    /// The status of the two probes, without the reason.
    Probe,
    /// The page, which holds no data. It asks for the token, and sends it along.
    Page,
}

fn probed(status: HealthStatus, reason: String, access: Access) -> Response {
    let code = match status {
        HealthStatus::Ok => 200,
        _ => 503,
    };
    let reason = match access {
        Access::Whole => reason,
        Access::Probe | Access::Page => "send the token to get the reason".to_owned(),
    };
    json(code, &Health { status, reason })
}

const ROOT: &str = "\
contextpilot-llama control endpoint (a browser gets a page here)
GET /stats           everything, as JSON
GET /requests/{id}   where a request's prompt is, or what became of it
GET /requests/last   the last prompts, and why they were evaluated (?n=10)
GET /tree            what is cached, as a tree of prefixes (?most=500)
GET /events          server-sent events, one for each change
GET /metrics         for Prometheus
GET /health          200 while the process serves
GET /ready           200, or 503 with the reason
POST /requests       where many requests are: {\"ids\": [\"a\", …]}
POST /match          what would be reused for a prompt: {\"tokens\": […]}
POST /reset          report everything as evicted, and forget it
";

fn browser(request: &Request) -> BrowserHeaders<'_> {
    BrowserHeaders::of(|name| request.header(name).collect())
}

/// The right to follow the stream, returned on drop.
struct StreamPermit(Arc<AtomicUsize>);

impl StreamPermit {
    fn take(readers: &Arc<AtomicUsize>, most: usize) -> Option<Self> {
        let place = Self(Arc::clone(readers));
        // If it is refused, the drop returns it.
        (readers.fetch_add(1, Ordering::AcqRel) < most).then_some(place)
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

struct Placed {
    reader: Reader,
    _place: StreamPermit,
}

impl Follow for Placed {
    fn next(&mut self, longest: Duration) -> Option<Vec<u8>> {
        self.reader.next(longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(headers: &[(&str, &str)]) -> Request {
        Request {
            method: "GET".to_owned(),
            target: "/".to_owned(),
            keep_alive: true,
            headers: headers
                .iter()
                .map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec()))
                .collect(),
            body: Vec::new(),
        }
    }

    #[test]
    fn only_the_whole_token_is_accepted() {
        let brings = |value: &str| request(&[("authorization", value)]).bears("s3same");
        assert!(brings("Bearer s3same"));
        assert!(brings("bearer s3same"));
        for wrong in [
            "",
            "Bearer",
            "Bearer ",
            "Bearer s3sam",
            "Bearer s3samE",
            "Bearer s3same ",
            "Bearer s3sames3same",
            "Basic s3same",
            "s3same",
        ] {
            assert!(!brings(wrong), "{wrong:?}");
        }
        assert!(!request(&[]).bears("s3same"));
    }
}
