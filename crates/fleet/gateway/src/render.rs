//! Makes the token ids of a request, with the server's own template and tokenizer.

use std::sync::Arc;

use bytes::Bytes;
use contextpilot_proxy::{
    Body, Held, Lane, NoRoom, Request, Response, Room, Tally, TooLarge, TooSlow, Upstream,
    error_response, json_response,
};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Method, StatusCode};
use serde_json::{Value, json};

use crate::prompts::{self, NoPrompt, Prompt};

/// Bytes of a request.
const LARGEST_REQUEST: usize = 64 << 20;
/// Bytes of an answer of the server: token ids take a little more than their text.
const LARGEST_ANSWER: usize = 256 << 20;

/// For each byte of a request: a text has no more tokens than bytes, and each is a number in the server's answer, a
/// value of ours, a copy of it, and a number in our answer.
const WEIGHT: usize = 100;

/// Texts of one request: the server is asked once for each.
const MOST_TEXTS: usize = 256;

const INVALID: &str = "invalid_request_error";
const NOT_SUPPORTED: &str = "not_supported_error";

/// Bodies up to this length are worked on where they were received: that takes less than a millisecond.
const SMALL: usize = 8 << 10;
/// Requests that are worked on at a time, and those that may wait with them.
const THREADS: usize = 2;
const WAITING: usize = 1024;

/// Makes token ids.
#[derive(Clone, Debug)]
pub(crate) struct Renderer {
    lane: Lane,
    pub(crate) room: Room,
}

/// What a request is worked on with.
struct Bench<'a> {
    lane: &'a Lane,
    held: Held,
}

/// A prompt of an answer that is being made.
enum Part {
    /// Its token ids, as JSON.
    Ids(String),
    /// The question for them.
    Question(Bytes),
}

impl Renderer {
    pub(crate) fn new(bodies: usize, tally: Arc<Tally>) -> Self {
        Self {
            lane: Lane::new(THREADS, WAITING, tally),
            room: Room::new(bodies),
        }
    }

    /// `POST /v1/completions/render`.
    pub(crate) async fn completion(&self, server: &Upstream, request: Request) -> Response {
        let mut bench = self.bench();
        let result = try_completion(server, &mut bench, request).await;
        either(result, bench.held)
    }

    /// `POST /v1/chat/completions/render`.
    pub(crate) async fn chat(&self, server: &Upstream, request: Request) -> Response {
        let mut bench = self.bench();
        let result = try_chat(server, &mut bench, request).await;
        either(result, bench.held)
    }

    fn bench(&self) -> Bench<'_> {
        Bench {
            lane: &self.lane,
            held: self.room.enter(),
        }
    }
}

impl Bench<'_> {
    /// Runs this here, or in the lane if there is much to do.
    async fn run<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Response> {
        if bytes <= SMALL {
            return Ok(work());
        }
        let done = self.lane.run(work).await;
        done.map_err(|why| error_response(why.status(), INVALID, &why.to_string()))
    }

    /// Receives a request, and counts all that will be made of it.
    async fn receive(&mut self, body: Body) -> Result<Bytes, Response> {
        let bytes = body.collect_in(LARGEST_REQUEST, &mut self.held).await;
        let bytes = bytes.map_err(|error| match error.downcast_ref::<NoRoom>() {
            Some(why) => no_room(*why),
            None => {
                let status = match () {
                    () if error.is::<TooLarge>() => 413,
                    () if error.is::<TooSlow>() => 408,
                    () => 400,
                };
                error_response(status, INVALID, &error.to_string())
            }
        })?;
        let weight = WEIGHT * bytes.len();
        self.held.hold(weight).map_err(no_room)?;
        Ok(bytes)
    }
}

fn either(result: Result<String, Response>, mut held: Held) -> Response {
    let text = match result {
        Ok(text) => text,
        Err(response) => return response,
    };
    match held.hold(text.len()) {
        Ok(()) => json_response(200, text).map(|body| body.holding(held)),
        Err(why) => no_room(why),
    }
}

async fn try_completion(
    server: &Upstream,
    bench: &mut Bench<'_>,
    request: Request,
) -> Result<String, Response> {
    let (head, body) = request.into_parts();
    let bytes = bench.receive(body).await?;
    let parts = bench.run(bytes.len(), move || completion_parts(&bytes));
    let parts = parts.await?.map_err(|why| why.response(&bench.held))?;
    let headers = head.headers;
    let mut rendered = Vec::with_capacity(parts.len());
    for part in parts {
        rendered.push(match part {
            Part::Ids(ids) => ids,
            Part::Question(question) => tokenize(server, &headers, bench, question).await?,
        });
    }
    let length = rendered.iter().map(String::len).sum();
    bench.run(length, move || list(&rendered)).await
}

/// `[{"token_ids": …}, …]`.
fn list(all: &[String]) -> String {
    let each: Vec<String> = all.iter().map(|ids| object(ids)).collect();
    format!("[{}]", each.join(","))
}

fn object(ids: &str) -> String {
    format!("{{\"token_ids\":{ids}}}")
}

/// Why a request is not rendered.
enum Refused {
    /// It is no JSON, for this reason.
    NoJson(String),
    NoPrompt(NoPrompt),
    /// It has so many texts.
    Texts(usize),
}

impl Refused {
    fn response(self, held: &Held) -> Response {
        match self {
            Self::NoJson(why) => {
                error_response(400, INVALID, &format!("the body is no JSON: {why}"))
            }
            Self::NoPrompt(NoPrompt::Malformed) => error_response(
                400,
                INVALID,
                "\"prompt\" must be a text, a list of token ids, or a list of those",
            ),
            Self::NoPrompt(NoPrompt::Media) => media(),
            Self::Texts(texts) => {
                held.refuse();
                let message = format!(
                    "{texts} prompts in one request, and {MOST_TEXTS} are allowed: send several requests"
                );
                error_response(413, INVALID, &message)
            }
        }
    }
}

fn completion_parts(bytes: &[u8]) -> Result<Vec<Part>, Refused> {
    let body = json(bytes)?;
    let prompts = prompts::of_completion(&body).map_err(Refused::NoPrompt)?;
    let is_text = |prompt: &&Prompt| matches!(prompt, Prompt::Text(_));
    let texts = prompts.iter().filter(is_text).count();
    if texts > MOST_TEXTS {
        return Err(Refused::Texts(texts));
    }
    let parts = prompts.into_iter().map(|prompt| match prompt {
        Prompt::Tokens(tokens) => Part::Ids(Value::from(tokens).to_string()),
        Prompt::Text(text) => Part::Question(question(&text, &body["model"])),
    });
    Ok(parts.collect())
}

/// Asks for the token ids of a text, as of a prompt.
fn question(content: &Value, model: &Value) -> Bytes {
    let mut body = json!({"content": content, "add_special": true, "parse_special": true});
    // A server in router mode asks the server of that model.
    if model.is_string() {
        body["model"] = model.clone();
    }
    body.to_string().into()
}

async fn try_chat(
    server: &Upstream,
    bench: &mut Bench<'_>,
    request: Request,
) -> Result<String, Response> {
    let (head, body) = request.into_parts();
    let bytes = bench.receive(body).await?;
    let read = bytes.clone();
    let model = bench.run(bytes.len(), move || {
        let body = json(&read)?;
        if prompts::has_media(&body) {
            Err(Refused::NoPrompt(NoPrompt::Media))
        } else {
            Ok(body["model"].clone())
        }
    });
    let model = model.await?.map_err(|why| why.response(&bench.held))?;
    // Pass the whole body: it also contains tools and arguments of the template.
    let answer = ask(server, &head.headers, "/apply-template", bytes).await?;
    let asked = bench.run(answer.len(), move || {
        let prompt = member(&answer, "prompt", Value::is_string);
        prompt.map(|prompt| question(&prompt, &model))
    });
    let asked = asked.await?.ok_or_else(|| unexpected("/apply-template"))?;
    let ids = tokenize(server, &head.headers, bench, asked).await?;
    Ok(object(&ids))
}

fn json(bytes: &[u8]) -> Result<Value, Refused> {
    serde_json::from_slice(bytes).map_err(|error| Refused::NoJson(error.to_string()))
}

/// The token ids that the server answers with, as JSON.
async fn tokenize(
    server: &Upstream,
    headers: &HeaderMap,
    bench: &Bench<'_>,
    question: Bytes,
) -> Result<String, Response> {
    let answer = ask(server, headers, "/tokenize", question).await?;
    let ids = bench.run(answer.len(), move || {
        member(&answer, "tokens", Value::is_array).map(|ids| ids.to_string())
    });
    ids.await?.ok_or_else(|| unexpected("/tokenize"))
}

/// The server's answer to a client with these headers. Errors are passed on.
async fn ask(
    server: &Upstream,
    headers: &HeaderMap,
    path: &'static str,
    body: Bytes,
) -> Result<Bytes, Response> {
    let mut request = Request::new(Body::full(body));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = hyper::Uri::from_static(path);
    let own = request.headers_mut();
    own.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    for name in [AUTHORIZATION.as_str(), "x-api-key"] {
        for value in headers.get_all(name) {
            own.append(hyper::header::HeaderName::from_static(name), value.clone());
        }
    }
    let response = server.forward(request).await;
    if response.status() != StatusCode::OK {
        return Err(response);
    }
    let body = response.into_body().collect(LARGEST_ANSWER).await;
    body.map_err(|_| unexpected(path))
}

/// A member of an answer, if the answer is an object and the member what is expected.
fn member(answer: &[u8], name: &str, expected: fn(&Value) -> bool) -> Option<Value> {
    let mut answer: Value = serde_json::from_slice(answer).ok()?;
    let member = answer.get_mut(name)?.take();
    expected(&member).then_some(member)
}

fn no_room(why: NoRoom) -> Response {
    error_response(why.status(), INVALID, &why.to_string())
}

fn media() -> Response {
    error_response(
        501,
        NOT_SUPPORTED,
        "images and sounds have no token ids, so this request cannot be rendered: send it as it is",
    )
}

fn unexpected(path: &str) -> Response {
    let message = format!(
        "the server's answer to {path} was not understood: is it a llama-server of 2025 or later?"
    );
    error_response(502, "proxy_error", &message)
}
