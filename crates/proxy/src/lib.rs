//! A transparent HTTP/1.1 reverse proxy for one llama-server, with routes of one's own before it.
//!
//! Used by the companion command only: the hook library links nothing of it.
//!
//! A [`Handler`] sees every request. It answers those that are its own and gives the others to
//! [`Upstream::forward`]:
//!
//! ```no_run
//! use contextpilot_proxy::{Handler, Limits, Request, Response, Upstream, json_response, serve};
//!
//! struct Gateway {
//!     upstream: Upstream,
//! }
//!
//! impl Handler for Gateway {
//!     async fn handle(&self, request: Request) -> Response {
//!         match request.uri().path() {
//!             "/own" => json_response(200, "{}"),
//!             _ => self.upstream.forward(request).await,
//!         }
//!     }
//! }
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let gateway = Gateway { upstream: Upstream::new("http://127.0.0.1:8080")? };
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:8081").await?;
//! serve(listener, gateway, Limits::default(), std::future::pending()).await;
//! # Ok(())
//! # }
//! ```
//!
//! **What is kept.** The bodies, byte for byte and as they arrive, in both directions; the method,
//! the path and the query; every header with its case, `Authorization` and `Host` included (headers of
//! one name stand together afterwards, in their order). Only the headers that concern one connection (RFC 9110, 7.6.1) end here, and
//! `Expect`, which the proxy answers itself. Nothing is added.
//!
//! **Connections.** Each request has a connection of its own to the server. llama-server gives
//! each connection a thread for as long as it is kept open, and may close an idle one at the very
//! moment at which a request is sent on it; both are avoided at the price of one connection set-up
//! on loopback. When the client leaves, that connection is closed, which is how llama-server
//! learns that it can stop generating.
//!
//! **Upgrades** (`101 Switching Protocols`) join the two connections.

#![forbid(unsafe_code)]

mod body;
mod headers;
mod rid;
mod server;
mod tls;
mod upstream;

pub use body::{Body, BoxError, Tap, TooLarge};
pub use rid::{generates, give_id, request_id};
pub use server::{Handler, Limits, serve};
pub use upstream::{AddressError, Upstream};

/// What a client asks.
pub type Request = hyper::Request<Body>;
/// What it is answered.
pub type Response = hyper::Response<Body>;

/// An answer with a JSON body. A status that HTTP does not know becomes 500.
#[must_use]
pub fn json_response(status: u16, body: impl Into<String>) -> Response {
    let mut response = Response::new(Body::full(body.into()));
    *response.status_mut() =
        hyper::StatusCode::from_u16(status).unwrap_or(hyper::StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(
        hyper::header::CONTENT_TYPE,
        hyper::header::HeaderValue::from_static("application/json"),
    );
    response
}

/// An error in the form of llama-server's own (and OpenAI's): `{"error": {…}}`.
#[must_use]
pub fn error_response(status: u16, kind: &str, message: &str) -> Response {
    let error = serde_json::json!({"code": status, "message": message, "type": kind});
    json_response(status, serde_json::json!({ "error": error }).to_string())
}
