//! Makes the token ids of a request, with the server's own template and tokenizer.

use bytes::Bytes;
use contextpilot_proxy::{
    Body, Held, NoRoom, Request, Response, Room, TooLarge, TooSlow, Upstream, error_response,
    json_response,
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

/// `POST /v1/completions/render`.
pub(crate) async fn completion(server: &Upstream, room: &Room, request: Request) -> Response {
    let mut held = room.enter();
    let result = try_completion(server, &mut held, request).await;
    either(result, held)
}

/// `POST /v1/chat/completions/render`.
pub(crate) async fn chat(server: &Upstream, room: &Room, request: Request) -> Response {
    let mut held = room.enter();
    let result = try_chat(server, &mut held, request).await;
    either(result, held)
}

fn either(result: Result<Value, Response>, mut held: Held) -> Response {
    let value = match result {
        Ok(value) => value.to_string(),
        Err(response) => return response,
    };
    match held.hold(value.len()) {
        Ok(()) => json_response(200, value).map(|body| body.holding(held)),
        Err(why) => no_room(why),
    }
}

async fn try_completion(
    server: &Upstream,
    held: &mut Held,
    request: Request,
) -> Result<Value, Response> {
    let (asker, _, body) = read(server, held, request).await?;
    let prompts = prompts::of_completion(&body).map_err(|why| match why {
        NoPrompt::Malformed => error_response(
            400,
            INVALID,
            "\"prompt\" must be a text, a list of token ids, or a list of those",
        ),
        NoPrompt::Media => media(),
    })?;
    let is_text = |prompt: &&Prompt| matches!(prompt, Prompt::Text(_));
    let texts = prompts.iter().filter(is_text).count();
    if texts > MOST_TEXTS {
        let message = format!(
            "{texts} prompts in one request, and {MOST_TEXTS} are allowed: send several requests"
        );
        return Err(error_response(413, INVALID, &message));
    }
    let mut rendered = Vec::new();
    for prompt in prompts {
        let tokens = match prompt {
            Prompt::Tokens(tokens) => tokens.into(),
            Prompt::Text(text) => asker.tokenize(&text).await?,
        };
        rendered.push(json!({ "token_ids": tokens }));
    }
    Ok(rendered.into())
}

async fn try_chat(server: &Upstream, held: &mut Held, request: Request) -> Result<Value, Response> {
    let (asker, bytes, body) = read(server, held, request).await?;
    if prompts::has_media(&body) {
        return Err(media());
    }
    // Pass the whole body: it also contains tools and arguments of the template.
    let answer = asker.ask("/apply-template", bytes).await?;
    let prompt =
        member(answer, "prompt", Value::is_string).ok_or_else(|| unexpected("/apply-template"))?;
    let tokens = asker.tokenize(&prompt).await?;
    Ok(json!({ "token_ids": tokens }))
}

async fn read<'a>(
    server: &'a Upstream,
    held: &mut Held,
    request: Request,
) -> Result<(Asker<'a>, Bytes, Value), Response> {
    let (head, body) = request.into_parts();
    let bytes = body.collect_in(LARGEST_REQUEST, held).await;
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
    held.hold(WEIGHT * bytes.len()).map_err(no_room)?;
    let body: Value = serde_json::from_slice(&bytes).map_err(|error| {
        let message = format!("the body is no JSON: {error}");
        error_response(400, INVALID, &message)
    })?;
    let asker = Asker {
        server,
        headers: head.headers,
        model: body["model"].clone(),
    };
    Ok((asker, bytes, body))
}

/// Asks the server in the name of a client.
struct Asker<'a> {
    server: &'a Upstream,
    /// The client's.
    headers: HeaderMap,
    /// Which one is asked for: a server in router mode asks the server of that.
    model: Value,
}

impl Asker<'_> {
    /// The token ids of a text, as of a prompt.
    async fn tokenize(&self, content: &Value) -> Result<Value, Response> {
        let mut body = json!({"content": content, "add_special": true, "parse_special": true});
        if self.model.is_string() {
            body["model"] = self.model.clone();
        }
        let answer = self.ask("/tokenize", body.to_string().into()).await?;
        member(answer, "tokens", Value::is_array).ok_or_else(|| unexpected("/tokenize"))
    }

    /// The server's answer. Errors are passed on.
    async fn ask(&self, path: &'static str, body: Bytes) -> Result<Value, Response> {
        let mut request = Request::new(Body::full(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = hyper::Uri::from_static(path);
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        for name in [AUTHORIZATION.as_str(), "x-api-key"] {
            for value in self.headers.get_all(name) {
                headers.append(hyper::header::HeaderName::from_static(name), value.clone());
            }
        }
        let response = self.server.forward(request).await;
        if response.status() != StatusCode::OK {
            return Err(response);
        }
        let body = response.into_body().collect(LARGEST_ANSWER).await;
        let value = body
            .ok()
            .and_then(|body| serde_json::from_slice(&body).ok());
        value.ok_or_else(|| unexpected(path))
    }
}

/// A member of an answer, if the answer is an object and the member what is expected.
fn member(mut answer: Value, name: &str, expected: fn(&Value) -> bool) -> Option<Value> {
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
