//! Requests for generation on their way to the server, and their answers on the way back.

use std::sync::Arc;

use bytes::Bytes;
use contextpilot_proxy::{
    Accounts, Reading, Request, Response, Stabiliser, TooSlow, Upstream, correct_usage,
    error_response, give_id, request_id,
};

/// Bytes of a request that is read. Longer ones pass as they are, and so do their answers.
const LONGEST: usize = 64 << 20;

const INVALID: &str = "invalid_request_error";

/// Puts requests right, and the usage in their answers.
#[derive(Clone)]
pub(crate) struct Passing {
    accounts: Option<Arc<dyn Accounts>>,
    pub(crate) reading: Reading,
}

impl Passing {
    /// `bytes`: what requests take together while they are read, and answers in one piece. `accounts`: by which usage is
    /// put right. `rules`: by which prompts are. `None`: there is nothing to do.
    pub(crate) fn new(
        bytes: usize,
        accounts: Option<Arc<dyn Accounts>>,
        rules: Option<Arc<Stabiliser>>,
    ) -> Option<Self> {
        let has_work = accounts.is_some() || rules.is_some();
        has_work.then(|| Self {
            accounts,
            reading: Reading::new(LONGEST, bytes, rules),
        })
    }

    /// Passes a request on, and its answer back. With accounts, a request for generation has an id then.
    pub(crate) async fn forward(&self, server: &Upstream, request: Request) -> Response {
        let accounts = self.accounts.clone();
        let accounts = accounts.filter(|accounts| accounts.are_needed());
        if accounts.is_none() && self.reading.rules().is_none() {
            return server.forward(request).await;
        }
        let name = move |path: &str, body| match accounts {
            Some(accounts) => named(path, body, &*accounts),
            None => (body, None),
        };
        let (request, id) = match self.reading.read(request, name).await {
            Ok((request, found)) => (request, found.flatten()),
            Err(error) => {
                let status = if error.is::<TooSlow>() { 408 } else { 400 };
                return error_response(status, INVALID, &error.to_string());
            }
        };
        let answer = server.forward(request).await;
        let accounts = self.accounts.as_ref().zip(id);
        match accounts.and_then(|(accounts, id)| accounts.ask(id, &answer)) {
            Some(ask) => correct_usage(answer, ask, self.reading.room().enter()).await,
            None => answer,
        }
    }
}

/// The request and its id. One without gets a new one.
fn named(path: &str, body: Bytes, accounts: &dyn Accounts) -> (Bytes, Option<String>) {
    if let Some(id) = request_id(&body) {
        return (body, Some(id));
    }
    let new = accounts.new_id();
    match give_id(path, &body, &new) {
        Some(given) => (given.into(), Some(new)),
        None => (body, None),
    }
}
