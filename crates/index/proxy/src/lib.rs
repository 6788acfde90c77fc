//! A transparent HTTP/1.1 reverse proxy for one llama-server, with additional routes.
//!
//! Used by the companion command only: the hook library links nothing of it.
//!
//! A [`Handler`] gets every request. It answers those for its own routes and passes the others to
//! [`Upstream::forward`]:
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use contextpilot_proxy::{Handler, Limits, Request, Response, Tally, Upstream, json_response, run};
//! use contextpilot_settings::AllowedHosts;
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
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let gateway = Gateway { upstream: Upstream::new("http://127.0.0.1:8080")? };
//! let listener = std::net::TcpListener::bind("127.0.0.1:8081")?;
//! let (hosts, limits) = (AllowedHosts::default(), Limits::default());
//! run(listener, gateway, hosts, limits, Arc::<Tally>::default())?;
//! # Ok(())
//! # }
//! ```
//!
//! **What is kept.** The bodies, byte for byte and as they arrive, in both directions; the method,
//! the path and the query; every header with its case, `Authorization` and `Host` included (headers of
//! one name stand together afterwards, in their order). Only the headers that concern one connection (RFC 9110, 7.6.1) end here, and
//! `Expect`, which the proxy answers itself. Nothing is added.
//!
//! **Connections.** Each request has its own connection to the server. llama-server keeps a thread
//! for each open connection, and may close an idle one just when a request is sent on it. A new
//! connection avoids both, for the price of one connection set-up
//! on loopback. When the client leaves, that connection is closed, so that llama-server
//! stops generating.
//!
//! **Pages.** [`serve`] refuses requests by web pages of other machines: every request with a `Host` that is
//! not allowed (421), and every request that may change something with such an `Origin` (403). A page that may
//! send a request is not allowed to read the answer: what the server says about that
//! (`Access-Control-Allow-Origin`) is removed. Loopback names are always allowed; further names are a setting
//! (`AllowedHosts`). At an address that other machines can reach, IP addresses are allowed as well.
//!
//! **Slow clients.** Each step has a time ([`Limits`]): the head of a request, its body, the pause between two
//! requests, and a client that reads nothing of its answer. If all places are taken, clients that are expected
//! to send something lose theirs to new ones. Beyond that there is a reserve for urgent requests
//! ([`Handler::urgent`]). A [`Tally`] counts all of it.
//!
//! **Urgent requests** have a thread of their own, which has little to do: it accepts, and hands all others over
//! ([`run`]).
//!
//! **Memory.** A [`Room`] bounds what all requests together hold while they are received, worked on and
//! answered: [`Body::collect_in`] counts what has arrived, and [`Body::holding`] what was not sent yet.
//!
//! **Work.** A [`Lane`] does what takes more than a moment on threads of low priority, so that other requests do not
//! wait for it.
//!
//! **Stable prompts.** A [`Stabiliser`] puts right what changes at the beginning of prompts, by a user's rules.
//!
//! **Upgrades** (`101 Switching Protocols`) join the two connections.

#![forbid(unsafe_code)]

mod arriving;
mod body;
mod guard;
mod headers;
mod lane;
mod metrics;
mod places;
mod reading;
mod rid;
mod room;
mod server;
mod stabilise;
mod stream;
mod tls;
mod upstream;
mod usage;

pub use arriving::TooSlow;
pub use body::{Body, BoxError, Collected, Tap, TooLarge};
pub use contextpilot_usage::{Account, LONGEST as LONGEST_COUNTED};
pub use lane::{Lane, NotDone, Turn};
pub use metrics::{metrics, metrics_response};
pub use places::{Counts, Limits, Tally};
pub use reading::Reading;
pub use rid::{generates, give_id, request_id};
pub use room::{FREE, Held, NoRoom, Room};
pub use server::{Handler, run, serve};
pub use stabilise::{Proposal, RulesError, Stabiliser, propose, propose_order};
pub use upstream::{AddressError, Upstream};
pub use usage::{Accounts, Asked, Form, correct_usage};

/// A client's request.
pub type Request = hyper::Request<Body>;
/// The answer.
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
