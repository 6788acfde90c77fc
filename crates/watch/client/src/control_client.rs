use std::io::Read;
use std::time::Duration;

use contextpilot_control::{
    EventId, Health, Latest, Like, Match, RequestState, RequestStates, Reset, Slot, Stats, Tree,
};
use contextpilot_settings::percent;
use serde::Deserialize;
use serde_json::json;

use crate::http::{Http, Patience};
use crate::{Events, Metrics, Result};

/// How long an answer may take. The endpoint has a thread of its own, which
/// does not wait for the model.
const QUICK: Duration = Duration::from_secs(10);

/// The control endpoint of a hooked server (`CONTEXTPILOT_LISTEN`).
///
/// ```no_run
/// # use contextpilot_client::Control;
/// let control = Control::new("unix:/run/user/1000/llama.sock")?;
/// let stats = control.stats()?;
/// println!("{} tokens are cached", stats.tokens.resident);
/// # Ok::<(), contextpilot_client::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Control {
    http: Http,
}

/// The one field of [`Stats`] that every version has.
#[derive(Deserialize)]
struct Version {
    hook_version: String,
}

impl Control {
    /// A client for an address as in `CONTEXTPILOT_LISTEN` (`host:port` or
    /// `unix:/path`), or for a URL. Opens no connection.
    ///
    /// # Errors
    /// [`Error::Address`](crate::Error::Address).
    pub fn new(address: &str) -> Result<Self> {
        Ok(Self {
            http: Http::new(address)?,
        })
    }

    /// The token of an endpoint with `CONTEXTPILOT_LISTEN_TOKEN`.
    ///
    /// # Errors
    /// [`Error::Unauthorized`](crate::Error::Unauthorized) for a token that no header can carry.
    pub fn with_token(mut self, token: &str) -> Result<Self> {
        self.http.authorize(token)?;
        Ok(self)
    }

    /// The address of the endpoint.
    pub fn address(&self) -> &str {
        self.http.address()
    }

    /// `GET /stats`: everything at one moment.
    ///
    /// # Errors
    /// Those of the connection,
    /// [`Error::Unauthorized`](crate::Error::Unauthorized).
    pub fn stats(&self) -> Result<Stats> {
        self.http.get("/stats", Patience::Whole(QUICK))?.json()
    }

    /// The version of the hook, from `GET /stats`. This works even if the hook's other figures have a form
    /// that this client does not know.
    ///
    /// # Errors
    /// As [`Control::stats`].
    pub fn hook_version(&self) -> Result<String> {
        let answer = self.http.get("/stats", Patience::Whole(QUICK))?;
        let version: Version = answer.json()?;
        Ok(version.hook_version)
    }

    /// The content of a slot: tokens, capacity, bytes. `None` if the slot was never
    /// used.
    ///
    /// ```no_run
    /// # use contextpilot_client::Control;
    /// # let control = Control::new("127.0.0.1:8890")?;
    /// if let Some(slot) = control.slot(0)? {
    ///     println!("{} of {:?} tokens, {:?} bytes", slot.tokens, slot.capacity, slot.bytes);
    /// }
    /// # Ok::<(), contextpilot_client::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Control::stats`].
    pub fn slot(&self, slot: i32) -> Result<Option<Slot>> {
        let slots = self.stats()?.slots;
        Ok(slots.into_iter().find(|state| state.slot == slot))
    }

    /// `GET /requests/{id}`: where a request's prompt is, or what became of it.
    /// An id that is not known is an answer, not an error.
    ///
    /// # Errors
    /// As [`Control::stats`].
    pub fn request(&self, id: &str) -> Result<RequestState> {
        // Unencoded, `last` is another path: see `latest`.
        let encoded = match id {
            "last" => "%6Cast".to_owned(),
            _ => percent::encode(id).to_string(),
        };
        let path = format!("/requests/{encoded}");
        let answer = self.http.get(&path, Patience::Whole(QUICK))?;
        match answer.status.as_u16() {
            404 => answer.json_whatever_the_status(),
            _ => answer.json(),
        }
    }

    /// `POST /requests`: where many requests are, in the order of `ids`, without evaluations. At most
    /// [`RequestsQuery::MOST`](contextpilot_control::RequestsQuery::MOST).
    ///
    /// # Errors
    /// As [`Control::stats`]. A hook that is older than this refuses it with 404.
    pub fn requests(&self, ids: &[String]) -> Result<Vec<RequestState>> {
        let body = json!({ "ids": ids });
        let answer = self.http.post("/requests", &body, Patience::Whole(QUICK))?;
        let states: RequestStates = answer.json()?;
        Ok(states.requests)
    }

    /// `GET /requests/last`: the last requests whose prompts were evaluated, with and without ids,
    /// the latest first; at most so many.
    ///
    /// # Errors
    /// As [`Control::stats`].
    pub fn latest(&self, most: usize) -> Result<Latest> {
        let path = format!("/requests/last?n={most}");
        self.http.get(&path, Patience::Whole(QUICK))?.json()
    }

    /// `GET /recent`: the last requests, as a recording of traffic.
    ///
    /// # Errors
    /// As [`Control::stats`]; [`Error::Refused`](crate::Error::Refused) if they are not kept, and
    /// from a hook that is older.
    pub fn recent(&self) -> Result<Vec<u8>> {
        let answer = self.http.get("/recent", Patience::Whole(QUICK))?;
        answer.success()?.bytes()
    }

    /// `GET /tree`: what is cached, as a tree of prefixes, with so many branches at most.
    ///
    /// # Errors
    /// As [`Control::stats`].
    pub fn tree(&self, most: usize) -> Result<Tree> {
        let path = format!("/tree?most={most}");
        self.http.get(&path, Patience::Whole(QUICK))?.json()
    }

    /// `POST /match`: what the engine would reuse for a prompt of these tokens that came now
    /// as a completion.
    ///
    /// # Errors
    /// As [`Control::stats`].
    pub fn matching(&self, tokens: &[i32]) -> Result<Match> {
        let body = json!({ "tokens": tokens });
        let patience = Patience::Whole(QUICK);
        self.http.post("/match", &body, patience)?.json()
    }

    /// The same for a prompt that begins like that of an earlier request, with an answer within this
    /// time or none.
    ///
    /// # Errors
    /// As [`Control::stats`].
    pub fn matching_like(&self, like: &Like, within: Duration) -> Result<Match> {
        let body = json!({ "like": like });
        let patience = Patience::Whole(within);
        self.http.post("/match", &body, patience)?.json()
    }

    /// `POST /reset`: everything that is tracked is reported as evicted, and
    /// forgotten. For an index that was cleared.
    ///
    /// # Errors
    /// As [`Control::stats`].
    pub fn reset(&self) -> Result<Reset> {
        let patience = Patience::Whole(QUICK);
        self.http.post("/reset", &json!({}), patience)?.json()
    }

    /// `GET /health`: whether the process answers. [`ready`](Self::ready) says whether something else is
    /// wrong.
    ///
    /// # Errors
    /// As [`Control::stats`].
    pub fn health(&self) -> Result<Health> {
        self.http.get("/health", Patience::Whole(QUICK))?.json()
    }

    /// `GET /ready`: whether evictions are seen, and reported to the index (if there is one). If not, that
    /// is an answer, not an error.
    ///
    /// # Errors
    /// As [`Control::stats`].
    pub fn ready(&self) -> Result<Health> {
        let answer = self.http.get("/ready", Patience::Whole(QUICK))?;
        match answer.status.as_u16() {
            503 => answer.json_whatever_the_status(),
            _ => answer.json(),
        }
    }

    /// `GET /metrics`.
    ///
    /// # Errors
    /// As [`Control::stats`].
    pub fn metrics(&self) -> Result<Metrics> {
        let answer = self.http.get("/metrics", Patience::Whole(QUICK))?;
        Ok(Metrics::parse(&answer.success()?.text()?))
    }

    /// The answer to any `GET`, as it was sent: its status, and its body. For programs that pass it on.
    ///
    /// # Errors
    /// Those of the connection. A refusal is an answer, not an error.
    pub fn raw(&self, target: &str) -> Result<(u16, String)> {
        let answer = self.http.get(target, Patience::Whole(QUICK))?;
        let status = answer.status.as_u16();
        Ok((status, answer.text()?))
    }

    /// The stream of `GET /events` as it was sent, after the event with the id `last`.
    ///
    /// # Errors
    /// As [`Control::stats`].
    pub fn raw_events(&self, last: Option<&str>) -> Result<Box<dyn Read + Send>> {
        let headers: Vec<_> = last
            .map(|last| ("Last-Event-ID", last.to_owned()))
            .into_iter()
            .collect();
        let answer = self
            .http
            .get_with("/events", &headers, Patience::Head(QUICK))?;
        Ok(Box::new(answer.success()?.reader().0))
    }

    /// `GET /events`: the events from now on or, after a break, since the
    /// event with this id, as far as the server still has them.
    ///
    /// # Errors
    /// As [`Control::stats`].
    pub fn events(&self, after: Option<&EventId>) -> Result<Events> {
        let headers: Vec<_> = after
            .map(|id| ("Last-Event-ID", id.to_string()))
            .into_iter()
            .chain([("Accept", "text/event-stream".to_owned())])
            .collect();
        let answer = self
            .http
            .get_with("/events", &headers, Patience::Head(QUICK))?
            .success()?;
        let (stream, address) = answer.reader();
        Ok(Events::new(Box::new(stream), address, after.cloned()))
    }
}
