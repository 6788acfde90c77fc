//! The worker's side of telemetry: passes events to the observer, passes on what it returns, and
//! answers queries.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use contextpilot_control::{
    Delivery, Flags, Mode, Model, ModelState, RequestState, Stats, Timestamp,
};
use contextpilot_delivery::Sender;
use contextpilot_kv_publisher::Watch;
use contextpilot_observer::{Asked, Note, Now, Observer, Outside, Recorder, Stamp};
use contextpilot_residency::{Accounts, Fact, Ledger, Token, Upcoming};

use super::ask::{Question, Questions};
use super::handover::Beginning;
use super::log_file::LogFile;
use super::recording::{RecentTraffic, Recording};
use super::setup::StoreLimit;
use super::stream::Stream;
use crate::library::Library;
use crate::peers::Peers;

/// What does not change while the process lives.
pub(crate) struct Facts {
    pub(crate) library: &'static dyn Library,
    pub(crate) model: Option<Model>,
    pub(crate) flags: Flags,
    /// See [`Stats::routed`].
    pub(crate) routed: bool,
    pub(crate) host_limit: (Option<u64>, &'static str),
    pub(crate) started: Instant,
    /// The sender of evictions, and the URL of its index; `None` if there is no index.
    pub(crate) index: Option<(Arc<Sender>, String)>,
    /// The URL of an index that asks the control endpoint.
    pub(crate) index_in_front: Option<String>,
    /// The publication for routers.
    pub(crate) published: Option<Watch>,
}

/// Telemetry on the worker thread.
pub(crate) struct Telemetry {
    /// `None`: it panicked.
    observer: Option<Observer>,
    facts: Facts,
    /// Where changes go, and queries come from; `None` if there is no control endpoint.
    endpoint: Option<(Arc<Stream>, Questions)>,
    log: Option<LogFile>,
    recording: Option<Recording>,
    recent: Option<RecentTraffic>,
    /// For both of them.
    store_limit: StoreLimit,
    /// Whether the server slept when this turn of the worker began. What the engine freed by then is
    /// known to the observer when it answers; what it has freed since is not.
    asleep: bool,
}

impl Telemetry {
    pub(crate) fn new(
        epoch: String,
        accounts: Option<Accounts>,
        facts: Facts,
        endpoint: Option<(Arc<Stream>, Questions)>,
        log: Option<LogFile>,
        recording: Option<Recording>,
        recent: Option<RecentTraffic>,
    ) -> Self {
        Self {
            observer: Some(Observer::new(epoch, accounts)),
            facts,
            endpoint,
            log,
            recording,
            recent,
            store_limit: StoreLimit::default(),
            asleep: false,
        }
    }

    /// A turn begins. Called before its events are taken.
    pub(crate) fn begin_turn(&mut self) {
        self.asleep = self.facts.library.model_state() == ModelState::Asleep;
    }

    /// The state of the model as far as its events are applied.
    fn model_state(&self) -> ModelState {
        match self.facts.library.model_state() {
            ModelState::Asleep if !self.asleep => ModelState::Loaded,
            state => state,
        }
    }

    pub(crate) fn note(&mut self, note: Note, at: Stamp) {
        self.record(|recorder, _| recorder.note(&note));
        self.watch(|observer, _| observer.note(note, at));
        self.pass_on();
    }

    pub(crate) fn upcoming(&mut self, upcoming: Upcoming<'_>, at: Stamp, ledger: &Ledger) {
        if matches!(upcoming, Upcoming::Launch { .. }) && self.records() {
            if let Some(limit) = self.store_limit.take(self.facts.library) {
                self.record(|recorder, _| recorder.store(limit));
            }
        }
        self.record(|recorder, began| recorder.upcoming(upcoming, began.since(at), ledger));
        self.watch(|observer, _| observer.upcoming(upcoming, ledger));
    }

    pub(crate) fn fact(&mut self, fact: &Fact, at: Stamp, ledger: &Ledger) {
        self.record(|recorder, began| recorder.fact(fact, began.since(at), ledger));
        self.watch(|observer, now| observer.fact(fact, at, now, ledger));
    }

    pub(crate) fn after(&mut self, ledger: &Ledger) {
        self.watch(|observer, now| observer.after(now, ledger));
        self.pass_on();
    }

    /// The ledger panicked: every request is lost.
    pub(crate) fn lose_all(&mut self) {
        self.watch(|observer, now| observer.lose_all(now));
        self.pass_on();
    }

    /// The process ends.
    pub(crate) fn finish(&mut self, ledger: Option<&Ledger>) {
        if let Some(recording) = &mut self.recording {
            recording.leave(ledger);
        }
        if let Some(recent) = &mut self.recent {
            recent.leave(ledger);
        }
    }

    fn records(&self) -> bool {
        self.recording.is_some() || self.recent.is_some()
    }

    /// Does `work` for the recording and for the last requests, each with the time when it began.
    fn record(&mut self, work: impl Fn(&mut Recorder, &Beginning)) {
        if let Some(recording) = &mut self.recording {
            recording.watch(&work);
        }
        if let Some(recent) = &mut self.recent {
            recent.watch(&work);
        }
    }

    pub(crate) fn next_question(&self) -> Option<Question> {
        self.endpoint.as_ref()?.1.next()
    }

    /// Answers every query except a reset, which the worker does. The client may have left; a client
    /// that gets no answer sees an error.
    pub(crate) fn answer(
        &mut self,
        question: Question,
        ledger: Option<&Ledger>,
        peers: Option<&Peers>,
    ) {
        let clients = self
            .endpoint
            .as_ref()
            .map(|(_, questions)| Arc::clone(&questions.clients));
        match clients {
            Some(clients) => clients
                .work
                .during(|| self.answer_now(question, ledger, peers)),
            None => self.answer_now(question, ledger, peers),
        }
    }

    fn answer_now(&mut self, question: Question, ledger: Option<&Ledger>, peers: Option<&Peers>) {
        let library = self.facts.library;
        let (routed, started) = (self.facts.routed, self.facts.started);
        let outside = Outside {
            at_work: peers.map(|peers| peers.at_work(library.now().stamp)),
            ..self.outside(ledger.is_some())
        };
        if let Question::Recent(to) = question {
            let recent = self.recent.as_mut();
            let recording = recent.and_then(|recent| recent.recording(ledger));
            let _ = to.send(recording);
            return;
        }
        self.watch(|observer, now| match question {
            Question::Stats(to) => {
                let _ = to.send(Box::new(observer.stats(ledger, outside, now)));
            }
            Question::Metrics(to) => {
                let stats: Stats = observer.stats(ledger, outside, now);
                let _ = to.send(observer.metrics(&stats));
            }
            Question::Request(id, to) => {
                let stored = |tokens: &[Token]| library.stored(tokens);
                let asked = Asked {
                    ledger,
                    store: if library.has_store() {
                        Some(&stored)
                    } else {
                        None
                    },
                };
                let mut state = observer.request(&id, asked);
                if let (RequestState::Unknown { hint, .. }, true) = (&mut state, routed) {
                    *hint += &format!(
                        "; the router started it {} s ago, and what the model's processes before it had cached went with them",
                        started.elapsed().as_secs()
                    );
                }
                // If nothing is kept, the store need not be asked.
                if let Some(kept) = state.kept_mut().filter(|_| library.store_keeps()) {
                    let prompt = observer.remembered(&id);
                    *kept = prompt.and_then(|prompt| library.stored(&prompt)?.kept);
                }
                let _ = to.send((state, observer.difference(&id)));
            }
            Question::Requests(ids, to) => {
                let _ = to.send(observer.requests(ids, ledger));
            }
            Question::Match(asked, to) => {
                let stored = |tokens: &[Token]| library.stored(tokens);
                let store = library.has_store().then_some(stored);
                let found = ledger.and_then(|ledger| observer.matching(&asked, ledger, store));
                let _ = to.send(found);
            }
            Question::Latest(most, to) => {
                let _ = to.send(observer.latest(most));
            }
            Question::Tree(most, to) => {
                let _ = to.send(observer.tree(most, ledger, now));
            }
            Question::Recent(_) | Question::Reset(_) => {}
        });
    }

    /// Runs `work`. A panic ends the observation, and nothing else.
    fn watch<R>(&mut self, work: impl FnOnce(&mut Observer, Now) -> R) -> Option<R> {
        let library = self.facts.library;
        let observer = self.observer.as_mut()?;
        let now = library.now();
        let result = catch_unwind(AssertUnwindSafe(|| work(observer, now)));
        if result.is_err() {
            self.observer = None;
            library.say(format_args!(
                "Observation stopped after an internal error at {}: /stats and the log file end \
                 here, all else goes on. Please report this line",
                library.place_of_panic()
            ));
        }
        result.ok()
    }

    fn pass_on(&mut self) {
        let Some(observer) = &mut self.observer else {
            return;
        };
        let output = observer.take_output();
        if let Some((stream, _)) = &self.endpoint {
            stream.push(output.events);
        }
        if let Some(log) = &self.log {
            output.lines.into_iter().for_each(|line| log.write(line));
        }
    }

    fn outside(&self, alive: bool) -> Outside {
        let facts = &self.facts;
        Outside {
            process: std::process::id(),
            uptime_seconds: facts.started.elapsed().as_secs_f64(),
            hook_version: env!("CARGO_PKG_VERSION").to_owned(),
            mode: match (alive && facts.library.is_running(), &facts.index) {
                (false, _) => Mode::Stopped,
                (true, Some(_)) => Mode::Reporting,
                (true, None) => Mode::Observing,
            },
            listening: facts.library.listening(),
            routed: facts.routed,
            engine: facts.library.engine(),
            model: facts.model.clone(),
            model_state: self.model_state(),
            flags: facts.flags.clone(),
            host_limit: facts.host_limit.0,
            host_limit_from: facts.host_limit.1.to_owned(),
            requests: facts.library.requests(),
            at_work: None,
            delivery: facts
                .index
                .as_ref()
                .map(|(sender, endpoint)| delivery(sender, endpoint)),
            index_in_front: facts.index_in_front.clone(),
            control: self
                .endpoint
                .as_ref()
                .map(|(_, questions)| questions.clients.figures()),
            kv_events: facts.published.as_ref().map(Watch::figures),
            recording: self.recording.as_ref().map(Recording::state),
            store: facts.library.store(),
            kept: facts.library.kept(),
            losses: facts.library.losses(),
        }
    }
}

fn delivery(sender: &Sender, endpoint: &str) -> Delivery {
    let stats = sender.stats();
    Delivery {
        endpoint: endpoint.to_owned(),
        waiting: stats.waiting as u64,
        set_aside: stats.set_aside as u64,
        in_flight: stats.in_flight as u64,
        sent: stats.sent,
        not_needed: stats.not_needed,
        rejected: stats.rejected,
        dropped: stats.overflowed,
        posts: stats.posts,
        failed_posts: stats.failed_posts,
        failures_in_a_row: stats.failures_in_a_row,
        last_error: stats.last_error,
        last_error_at: stats.last_error_unix_ms.map(Timestamp::from_unix_ms),
        last_success_at: stats.last_success_unix_ms.map(Timestamp::from_unix_ms),
    }
}
