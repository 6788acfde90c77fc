//! The server behind the index. It may not listen yet when the index does.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use contextpilot_client::LlamaServer;
use contextpilot_proxy::{Request, Response, Upstream, error_response};
use hyper::header::{HeaderValue, RETRY_AFTER};

use crate::companion::engine::with_key;

/// The server, as soon as it is known where it listens.
#[derive(Clone, Default)]
pub(crate) struct Behind(Arc<BehindState>);

#[derive(Default)]
struct BehindState {
    known: OnceLock<KnownServer>,
    /// Why it is not known.
    why: Mutex<String>,
}

/// A server, and how to reach it.
pub(crate) struct KnownServer {
    upstream: Upstream,
    /// `None`: it cannot be asked for the lengths of documents, which are then estimated.
    client: Option<LlamaServer>,
}

impl KnownServer {
    /// The server at this URL.
    pub(crate) fn at(url: &str) -> Result<Self, String> {
        let upstream = Upstream::new(url).map_err(|e| e.to_string())?;
        let client = LlamaServer::new(url).ok().map(with_key).transpose()?;
        Ok(Self { upstream, client })
    }
}

impl Behind {
    /// It is there.
    pub(crate) fn found(&self, server: KnownServer) {
        let _ = self.0.known.set(server);
    }

    /// It is not there yet: what to answer until then.
    pub(crate) fn waits(&self, why: String) {
        *self.why() = why;
    }

    fn why(&self) -> MutexGuard<'_, String> {
        self.0.why.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn client(&self) -> Option<&LlamaServer> {
        self.0.known.get()?.client.as_ref()
    }

    /// Passes a request on, or refuses it as the server does while it loads its model.
    pub(super) async fn forward(&self, request: Request) -> Response {
        match self.0.known.get() {
            Some(known) => known.upstream.forward(request).await,
            None => {
                let why = self.why().clone();
                let mut response = error_response(503, "unavailable_error", &why);
                let soon = HeaderValue::from_static("1");
                response.headers_mut().insert(RETRY_AFTER, soon);
                response
            }
        }
    }
}
