//! Runs the index and the engine under the launcher, and compares what they hold.

use crate::{relay::Relay, server::IndexServer};
use contextpilot_testbed::{Builder, Completion, Request, Response, Server, Trace, truth_of};
use serde_json::Value;
use std::{
    collections::BTreeSet,
    path::Path,
    time::{Duration, Instant},
};

/// How long an eviction may take to arrive. Only a failure takes this long.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(20);

/// The index adds an id to each chat, but neither returns nor lists it
/// (`_intercept_and_forward` in 0.5.0). So it is seen in reported evictions only.
const UNLISTED: &str = "/v1/chat/completions";

type Ids = BTreeSet<String>;

pub(crate) struct Agreement {
    pub(crate) index: IndexServer,
    pub(crate) engine: Server,
    relay: Relay,
    options: Builder,
    /// Ids that `/reorder` has returned and no request has used yet. The index lists them.
    unused: Ids,
    /// Ids that were evicted. No id is used twice, so they stay evicted.
    gone: Ids,
}

impl Agreement {
    pub(crate) fn start(python: &Path, options: Builder) -> Self {
        let relay = Relay::start();
        let index = IndexServer::start(python, relay.address());
        let engine = options
            .clone()
            .launcher(env!("CARGO_BIN_EXE_contextpilot-llama-server"))
            .index_url(index.url())
            .observed()
            .spawn()
            .unwrap();
        relay.engine(engine.address());
        Self {
            index,
            engine,
            relay,
            options,
            unused: Ids::new(),
            gone: Ids::new(),
        }
    }

    /// Lets the index order contexts. Returns each ordered context with its id, in the
    /// order in which the requests should be sent.
    pub(crate) fn reorder(&mut self, contexts: &[&[&str]]) -> Vec<(String, String)> {
        let owned = |context: &&[&str]| context.iter().map(|text| (*text).to_owned()).collect();
        let contexts: Vec<Vec<String>> = contexts.iter().map(owned).collect();
        let answer = self.index.reorder(&contexts);
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let order = answer["original_indices"].as_array().unwrap().iter();
        let order = order.map(|place| place.as_u64().unwrap() as usize);
        let contexts = answer["reordered_contexts"].as_array().unwrap().iter();
        let mut all = Vec::new();
        for (context, place) in contexts.zip(order) {
            let documents = context.as_array().unwrap().iter().map(text);
            let id = text(&answer["request_ids"][place]);
            self.unused.insert(id.clone());
            all.push((documents.collect::<Vec<_>>().join("\n"), id));
        }
        all
    }

    /// Sends a request to the index, which sends it on to the engine.
    pub(crate) fn send(&mut self, request: &Request) -> Response {
        // Like a client of the index: only the field `request_id`, not `rid`.
        let mut body = request.body().clone();
        if let Some(id) = request.request_id() {
            body["request_id"] = id.into();
            self.unused.remove(id);
        }
        let before = self.relay.requests().len();
        let answer = self
            .index
            .exchange("POST", request.path(), &body.to_string());
        self.engine.wait_idle().unwrap();
        let requests = self.relay.requests();
        assert_eq!(requests.len(), before + 1, "{}", answer.text());
        let sent = requests[before].request_id();
        if request.path() != UNLISTED && request.request_id().is_some() {
            assert_eq!(sent, request.request_id(), "the index passes it on");
        }
        answer
    }

    /// Sends a request that must be answered.
    pub(crate) fn complete(&mut self, request: &Request) -> Completion {
        Completion::first(&self.send(request)).unwrap()
    }

    /// Sends a request. Then index and engine must agree.
    pub(crate) fn step(&mut self, what: &str, request: &Request) -> Completion {
        let completion = self.complete(request);
        self.agree(what);
        completion
    }

    /// The ids of all requests to the engine.
    pub(crate) fn sent(&self) -> Ids {
        Trace::ids(&self.trace()).into_iter().collect()
    }

    fn trace(&self) -> Trace {
        self.relay
            .requests()
            .into_iter()
            .fold(Trace::new(), Trace::ask)
    }

    /// Determines what the engine holds, by a replay without the hook. Then waits until
    /// the index agrees.
    ///
    /// # Panics
    /// If the index does not agree in time. The message shows the difference.
    pub(crate) fn agree(&mut self, what: &str) {
        let trace = self.trace();
        let asked: Vec<String> = trace
            .ids()
            .into_iter()
            .filter(|id| !self.gone.contains(id))
            .collect();
        let truth = truth_of(&trace, &asked, &self.options).unwrap();
        self.gone.extend(truth.gone());
        self.settle(what, &trace);
    }

    /// Waits until the index lists exactly the ids that are not evicted, and until each
    /// evicted id has been reported once.
    fn settle(&self, what: &str, trace: &Trace) {
        let unlisted = trace.requests().filter(|one| one.path() == UNLISTED);
        let unlisted: Ids = unlisted
            .filter_map(|one| one.request_id().map(str::to_owned))
            .collect();
        let held: Ids = self.sent().difference(&self.gone).cloned().collect();
        let mut listed: Ids = held.difference(&unlisted).cloned().collect();
        listed.extend(self.unused.iter().cloned());

        let difference = || {
            let told = self.told();
            let seen = told.iter().cloned().collect::<Ids>();
            let now = self.index.requests();
            let twice = told.len() - seen.len();
            (now != listed || seen != self.gone || twice > 0).then(|| {
                format!(
                    "listed, but not held: {:?}\nheld, but not listed: {:?}\n\
                     gone, but not told: {:?}\ntold, but not gone: {:?}\ntold again: {twice}",
                    now.difference(&listed).collect::<Vec<_>>(),
                    listed.difference(&now).collect::<Vec<_>>(),
                    self.gone.difference(&seen).collect::<Vec<_>>(),
                    seen.difference(&self.gone).collect::<Vec<_>>(),
                )
            })
        };
        let deadline = Instant::now() + PATIENCE;
        while let Some(difference) = difference() {
            assert!(
                Instant::now() < deadline,
                "{what}: the index and the engine disagree after {PATIENCE:?}\n{difference}\n\
                 the engine's requests were {:?}\nthe index was told {:?}\n{}",
                trace.ids(),
                self.index.evictions(),
                self.hook_says(),
            );
            std::thread::sleep(LOOK);
        }
    }

    /// Checks that no false report arrives late, that every id of `/reorder` was used (so
    /// that the index lists only what the engine holds), and that the index lists nothing
    /// after the engine has ended. Returns the ids that were evicted before that end.
    pub(crate) fn finish(mut self) -> Ids {
        self.engine.come_to_rest().unwrap();
        self.agree("afterwards");
        assert!(self.unused.is_empty(), "never used: {:?}", self.unused);
        let sent = self.sent();
        let gone = std::mem::replace(&mut self.gone, sent);
        self.engine.stop(libc::SIGTERM).unwrap();
        self.settle("the engine has ended", &self.trace());
        gone
    }

    /// The ids of all evictions that the index accepted, with repetitions.
    pub(crate) fn told(&self) -> Vec<String> {
        let evictions = self.index.evictions().into_iter();
        let accepted = evictions.filter(|eviction| eviction.status == 200);
        accepted.flat_map(|eviction| eviction.ids).collect()
    }

    pub(crate) fn hook_says(&self) -> String {
        let log = self.engine.stderr();
        let ours = log.lines().filter(|line| line.contains("[ContextPilot]"));
        ours.collect::<Vec<_>>().join("\n")
    }
}
