//! Answers the index's own routes, and passes the others on.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use contextpilot_index::{
    Endpoint, IndexAnswer, Limits, Mode, Next, Outcome, Query, Timings, Work, timings, weight,
};
use contextpilot_proxy::{
    Accounts as _, BoxError, Counts, Handler, Held, Lane, NoRoom, NotDone, Reading, Request,
    Response, Room, Stabiliser, Tally, Tap, TooLarge, TooSlow, correct_usage, give_id,
    json_response, metrics, metrics_response, request_id,
};
use contextpilot_settings::AllowedHosts;
use hyper::StatusCode;
use hyper::body::Bytes;

use super::behind::Behind;
use super::hook::{Hook, PATIENCE};
use super::ids;
use super::lanes::{Lanes, not_done, work_off, work_off_here};
use super::rooms::Rooms;
use super::shared::SharedIndex;
use super::tokens::Wishes;
use crate::sys;

/// Larger bodies are read on other threads than those that serve.
const SMALL: usize = 8 << 10;
/// Bytes of the end of an answer that are kept: the engine's figures are there.
const TAIL: usize = 64 << 10;
/// The beginning of its metrics' names.
const NAME: &str = "contextpilot_index";

struct Service {
    behind: Behind,
    shared: SharedIndex,
    limits: Limits,
    wishes: Wishes,
    hook: Hook,
    /// What the prefix store has loaded counts as cached in answers.
    usage: bool,
    lanes: Lanes,
    rooms: Rooms,
    /// Completions, which are read for their ids.
    reading: Reading,
    tally: Arc<Tally>,
}

/// Serves until the process is ended.
#[expect(clippy::too_many_arguments, reason = "each is another thing")]
pub(super) fn serve(
    listener: TcpListener,
    behind: Behind,
    shared: SharedIndex,
    wishes: Wishes,
    hook: Hook,
    usage: bool,
    rules: Option<Arc<Stabiliser>>,
    hosts: AllowedHosts,
    clients: contextpilot_proxy::Limits,
) -> Result<(), String> {
    let tally = Arc::<Tally>::default();
    sys::return_large_blocks();
    let limits = *shared.wait().limits();
    let service = Service {
        behind,
        shared,
        limits,
        wishes,
        hook,
        usage,
        lanes: Lanes::new(&tally),
        rooms: Rooms::new(limits.bodies),
        reading: Reading::new(limits.body, limits.bodies / 4, rules),
        tally: Arc::clone(&tally),
    };
    let cannot = |e: std::io::Error| format!("The index cannot serve ({e}): try again");
    contextpilot_proxy::run(listener, service, hosts, clients, tally).map_err(cannot)
}

impl Handler for Service {
    fn urgent(&self, method: &str, path: &str) -> bool {
        matches!(
            Endpoint::find(method, path),
            Ok(Some(
                Endpoint::Health | Endpoint::Ready | Endpoint::Metrics | Endpoint::Evict
            ))
        )
    }

    async fn handle(&self, request: Request) -> Response {
        match Endpoint::find(request.method().as_str(), request.uri().path()) {
            Ok(Some(Endpoint::Metrics)) => self.metrics().await,
            Ok(Some(Endpoint::Ready)) => response(&self.shared.ready()),
            Ok(Some(endpoint)) => self.own(endpoint, request).await,
            Ok(None) => self.pass_on(request).await,
            Err(answer) => response(&answer),
        }
    }
}

fn response(answer: &IndexAnswer) -> Response {
    json_response(answer.status, answer.body.to_string())
}

impl Service {
    async fn metrics(&self) -> Response {
        let mut text = self.shared.lock().await.metrics();
        let counts = self.tally.counts();
        text.push_str(&metrics(NAME, counts, &self.rooms()));
        if let Some(rules) = self.reading.rules() {
            text.push_str(&rules.metrics(NAME));
        }
        metrics_response(text)
    }

    fn rooms(&self) -> Vec<&Room> {
        let own = self.rooms.all().into_iter();
        own.chain([self.reading.room()]).collect()
    }

    async fn own(&self, endpoint: Endpoint, request: Request) -> Response {
        let mut held = self.rooms.for_endpoint(endpoint).enter();
        let limit = self.limits.body_of(endpoint);
        let body = match request.into_body().collect_in(limit, &mut held).await {
            Ok(body) => body,
            Err(error) => return response(&not_received(&error)),
        };
        match self.answered(endpoint, body, held).await {
            Ok(response) => response,
            Err(answer) => response(&answer),
        }
    }

    async fn answered(
        &self,
        endpoint: Endpoint,
        body: Bytes,
        mut held: Held,
    ) -> Result<Response, IndexAnswer> {
        let (limits, mode) = (self.limits, self.shared.mode());
        let lane = self.lane(endpoint);
        let small = body.len() <= SMALL;
        let parse = move || {
            let query = parse(endpoint, &body, &limits, mode, &mut held)?;
            Ok((query, held))
        };
        let (query, held) = if small {
            parse()?
        } else {
            lane.run(parse).await.map_err(not_done)??
        };
        // A small request, as an eviction, gets all that it needs of the state at once: it waits for others once.
        let (outcome, wishes) = {
            let mut index = self.shared.lock().await;
            let mut outcome = index.answer(query, now(), &mut ids::new);
            if let Outcome::Work(work) = &mut outcome
                && work.is_small()
                && work.next() == Next::State
            {
                index.proceed(work, &mut ids::new);
            }
            (outcome, index.wishes())
        };
        self.wishes.pass(wishes);
        let response = match outcome {
            Outcome::Answer(mut answer) => {
                if endpoint == Endpoint::Stats {
                    tell_of(&self.rooms(), &mut answer.body);
                    tell(self.tally.counts(), &mut answer.body);
                    if let Some(rules) = self.reading.rules() {
                        let used: serde_json::Map<_, _> = rules
                            .used()
                            .map(|(rule, count)| (rule.to_owned(), count.into()))
                            .collect();
                        answer.body["stabilised"] = used.into();
                    }
                }
                response(&answer)
            }
            Outcome::Emptied(answer, forgotten) => {
                lane.run(move || drop(forgotten)).await.map_err(not_done)?;
                response(&answer)
            }
            Outcome::Work(work) if work.next() == Next::Answer && work.question().is_none() => {
                last(*work, held)
            }
            Outcome::Work(work) => {
                let done = self.work(work, lane, held).await;
                let wishes = self.shared.lock().await.wishes();
                self.wishes.pass(wishes);
                done.map_err(not_done)?
            }
        };
        Ok(response)
    }

    fn lane(&self, endpoint: Endpoint) -> &Lane {
        match endpoint {
            Endpoint::Evict => &self.lanes.evictions,
            _ => &self.lanes.others,
        }
    }

    async fn work(&self, work: Box<Work>, lane: &Lane, held: Held) -> Result<Response, NotDone> {
        if work.is_small() {
            let mut work = work_off_here(work, &self.shared).await;
            self.foresee(&mut work).await;
            return Ok(last(*work, held));
        }
        let lane = if work.is_batch() {
            &self.lanes.batches
        } else {
            lane
        };
        let (shared, turn) = (self.shared.clone(), lane.enter().await?);
        // It goes on if the client leaves: what was begun is not left half done.
        let done = tokio::spawn(async move {
            let work = work_off(work, &turn, &shared).await;
            (work, turn)
        });
        let (work, turn) = done.await.map_err(|_| NotDone::Failed)?;
        let mut work = work?;
        self.foresee(&mut work).await;
        turn.run(move || last(*work, held)).await
    }

    /// Asks the hook what the engine would reuse or load: it knows the engine's rules, which slots are busy, and what
    /// the prefix store has.
    async fn foresee(&self, work: &mut Work) {
        let until = Instant::now() + PATIENCE;
        while let Some(question) = work.question() {
            let Some(found) = self.hook.ask(question, until).await else {
                return;
            };
            self.shared.lock().await.answered(work, found);
        }
    }

    /// Passes a request on to the engine. A completion without an id gets one, and the engine's figures are
    /// compared with the forecast. What the prefix store has loaded then counts as cached.
    async fn pass_on(&self, request: Request) -> Response {
        let (request, id) = match self.reading.read(request, named).await {
            Ok((request, found)) => (request, found.flatten()),
            Err(error) => return response(&not_received(&error)),
        };
        let usage = id.clone().filter(|_| self.usage);
        let tracked = match id {
            Some(id) => {
                let tracks = self.shared.lock().await.tracks(&id);
                tracks.then_some(id)
            }
            None => None,
        };
        let response = self.behind.forward(request).await;
        let response = match tracked {
            Some(id) if response.status() == StatusCode::OK => {
                let tail = Tail {
                    id,
                    shared: self.shared.clone(),
                    hook: self.hook.clone(),
                    end: Vec::new(),
                };
                response.map(|body| body.tapped(tail))
            }
            _ => response,
        };
        match usage.and_then(|id| self.hook.usage.ask(id, &response)) {
            Some(ask) => correct_usage(response, ask, self.reading.room().enter()).await,
            None => response,
        }
    }
}

/// A completion and its id. One without gets a new one.
fn named(path: &str, body: Bytes) -> (Bytes, Option<String>) {
    if let Some(id) = request_id(&body) {
        return (body, Some(id));
    }
    let new = ids::new();
    match give_id(path, &body, &new) {
        Some(given) => (given.into(), Some(new)),
        None => (body, None),
    }
}

/// Reads a request, if there is room for all that follows from it.
fn parse(
    endpoint: Endpoint,
    body: &[u8],
    limits: &Limits,
    mode: Mode,
    held: &mut Held,
) -> Result<Query, IndexAnswer> {
    let weight = weight(endpoint, body);
    held.hold(weight).map_err(refused)?;
    let query = Query::parse(endpoint, body, limits).inspect_err(|answer| {
        if answer.status == 413 {
            held.refuse();
        }
    })?;
    let all = weight.saturating_add(query.more_weight(mode));
    held.hold(all).map_err(refused)?;
    Ok(query)
}

/// The answer to a request, which holds only that from now on. Lists alone can be refused here: others hold as
/// much as their answer from the start.
fn last(work: Work, mut held: Held) -> Response {
    let answer = work.answer();
    let text = answer.body.to_string();
    if let Err(why) = held.hold(text.len()) {
        return response(&refused(why));
    }
    json_response(answer.status, text).map(|body| body.holding(held))
}

/// For `/stats`: what requests hold.
fn tell_of(rooms: &[&Room], stats: &mut serde_json::Value) {
    let held: usize = rooms.iter().map(|room| room.held()).sum();
    let refused: u64 = rooms.iter().map(|room| room.refused()).sum();
    stats["bodies"] = serde_json::json!({"held_bytes": held, "refused": refused});
}

/// For `/stats`.
fn tell(counts: Counts, stats: &mut serde_json::Value) {
    stats["connections"] = serde_json::json!({
        "open": counts.open,
        "displaced": counts.displaced,
        "late": counts.late,
        "refused": counts.refused,
        "forbidden": counts.forbidden,
        "busy": counts.busy,
    });
}

/// Why the body of a request is not there.
fn not_received(error: &BoxError) -> IndexAnswer {
    match error.downcast_ref::<NoRoom>() {
        Some(why) => refused(*why),
        None if error.is::<TooLarge>() => IndexAnswer::error(413, &error.to_string()),
        None if error.is::<TooSlow>() => IndexAnswer::error(408, &error.to_string()),
        None => IndexAnswer::error(400, &error.to_string()),
    }
}

fn refused(why: NoRoom) -> IndexAnswer {
    IndexAnswer::error(why.status(), &why.to_string())
}

fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
}

/// Keeps the end of an answer.
struct Tail {
    id: String,
    shared: SharedIndex,
    hook: Hook,
    end: Vec<u8>,
}

impl Tap for Tail {
    fn data(&mut self, data: &[u8]) {
        self.end.extend_from_slice(data);
        if self.end.len() > 2 * TAIL {
            let over = self.end.len() - TAIL;
            self.end.drain(..over);
        }
    }

    fn end(&mut self, complete: bool) {
        let found: Option<Timings> = complete.then(|| timings(&self.end)).flatten();
        let Some(timings) = found else {
            return;
        };
        let id = std::mem::take(&mut self.id);
        if !self.hook.has_store() {
            return self.shared.soon(move |index| index.completed(&id, timings));
        }
        let (shared, hook) = (self.shared.clone(), self.hook.clone());
        tokio::spawn(async move {
            shared.lock().await.finished(&id, timings.prompt);
            let Some((account, kept)) = hook.account(&id).await else {
                return;
            };
            let mut index = shared.lock().await;
            // The server counts what the prefix store has loaded as evaluated, the hook does not. A request with several
            // prompts has one account.
            if timings
                .prompt
                .is_none_or(|prompt| prompt == account.prompt_tokens)
            {
                index.compare(&id, account.reused);
            }
            index.kept_until(&id, kept);
        });
    }
}
