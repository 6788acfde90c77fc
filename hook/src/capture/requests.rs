//! A request, from its bytes to its answer, and the events that are sent for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use contextpilot_control::Title;
use contextpilot_kept_tokens::Kept;
use contextpilot_observer::{KeptPrompt, Note};
use contextpilot_request::{
    Adapters, Assembly, Identity, Infill, Request, Sections, is_head_of_chunks, is_interim,
};
use contextpilot_residency::{Arrival, Event, Prompt, RequestId, Scale, TaskId, Token, Wishes};
use contextpilot_usage::Sending;
use contextpilot_worker::Waiting;

use crate::attach::claims;
use crate::base::status::STATUS;
use crate::base::{clock, faults};
use crate::capture::salts::{self, Salt};
use crate::capture::{
    adapters, contexts, hints, kept, prompts, recent, refused_ids, uncached, usage,
};
use crate::channel::{introduce, note, push, push_observed, tell_waiting};

/// The server forgets prompts with `"cache_prompt": false` without a call to the engine.
static FORGETS: AtomicBool = AtomicBool::new(false);

/// The server evaluates all of a prompt, unless its request wants the cache (`--no-cache-prompt`).
static AVOIDS_CACHE: AtomicBool = AtomicBool::new(false);

/// What requests are about is shown.
static HAVE_TITLES: AtomicBool = AtomicBool::new(false);

static NEXT_ARRIVAL: AtomicU64 = AtomicU64::new(1);

/// From now on, each request with `"cache_prompt": false` is sent to the ledger as such: this server
/// forgets such prompts without a call (see `UNCACHED` in the table).
pub(crate) fn expect_forgetting() {
    FORGETS.store(true, Ordering::Relaxed);
}

/// The server was started with `--no-cache-prompt`.
pub(crate) fn expect_no_cache() {
    AVOIDS_CACHE.store(true, Ordering::Relaxed);
}

/// From now on the observer hears what requests are about.
pub(crate) fn expect_titles() {
    HAVE_TITLES.store(true, Ordering::Relaxed);
}

pub(super) fn have_titles() -> bool {
    HAVE_TITLES.load(Ordering::Relaxed)
}

/// The request that a thread serves.
pub(super) struct Current {
    arrival: Arrival,
    id: Option<RequestId>,
    inference: bool,
    /// The request is for generation: the server samples tokens for it, unless it rejects it.
    generates: bool,
    /// Its prompts get the tokens of earlier answers.
    keeps_tokens: bool,
    /// The server will forget its prompts.
    forgotten: bool,
    /// Its prompts are to be evaluated, whatever a prefix store has.
    avoids_store: bool,
    /// Which requests share its prompts in a prefix store.
    salt: Salt,
    /// For how long its prompts are worth keeping there.
    lifetime: Option<hints::Lifetime>,
    /// The LoRA adapters that it names.
    adapters: Vec<(i32, Scale)>,
    /// The tokens of each of its prompts that was tokenized: of the first, and whether there are more.
    counted: (Option<u32>, bool),
    /// Composes the prompts, if requests are tied to slots by their prompts.
    prompts: Option<Assembly>,
    /// The server is tokenizing parts of a prompt with media, which is sent as a whole later.
    within_media: bool,
    known: Reported,
    answer: AnswerSeen,
    /// Its tasks, for the usage in its answer.
    tasks: Tasks,
    sending: Sending,
    /// The request is for generation, and its answer begins with 200.
    succeeds: bool,
    /// The id is stored where the next start finds it if the process dies.
    kept: bool,
}

/// What the worker knows of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reported {
    /// Nothing: no task number was drawn yet.
    Nothing,
    /// At least its first task.
    Posted,
    /// The first event was dropped. The id is stranded, and will be reported as evicted.
    Lost,
}

/// The tasks that a request has posted.
#[derive(Clone, Copy)]
enum Tasks {
    None,
    One(TaskId),
    Several,
}

/// How far the answer to a request is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AnswerSeen {
    None,
    /// In chunks. The first chunk is sent when a slot takes the task, long before the prompt has
    /// been evaluated, so it does not count as an answer.
    Streamed,
    Whole,
}

impl Current {
    pub(super) fn of(request: Request) -> Option<Self> {
        if let (Some(slot), true) = (request.erases(), clock::is_engaged()) {
            note(|| Note::Erasing { sequence: slot });
        }
        let inference = request.is_inference();
        let generates = request.generates();
        let keeps_tokens = kept::are_engaged() && request.is_continuation();
        let caches = !AVOIDS_CACHE.load(Ordering::Relaxed);
        let forbids_cache = request.forbids_cache(caches);
        let wants = request.wants();
        // A negative number of tokens counts as 0.
        let tokens = |number| u32::try_from(number).unwrap_or(0);
        let wishes = Wishes {
            slot: request.wants_slot(),
            uncached: request.reuses_nothing(caches),
            cache_reuse: wants.cache_reuse.map(tokens),
            keep: wants.keep,
            discard: tokens(wants.discard),
            infill: request.is_infill(),
        };
        // If the named adapters cannot be understood, the request counts as never cached.
        let (adapters, forgotten) = match request.adapters() {
            None => (Vec::new(), false),
            Some(Adapters::Named(named)) if adapters::are_seen() => {
                let named = named.iter().map(|&(id, scale)| (id, Scale::new(scale)));
                (named.collect(), false)
            }
            Some(_) => (Vec::new(), true),
        };
        let counted = |counter: &crate::base::status::Counter| {
            if inference {
                counter.add(1);
            }
        };
        let by_prompts = inference && prompts::are_engaged();
        let prompts = by_prompts.then(|| Assembly::from_request(&request));
        let id = match request.identity {
            Identity::Id(id) => {
                counted(&STATUS.with_id);
                Some(Arc::from(id))
            }
            Identity::Refused(why) => {
                counted(&STATUS.refused_id);
                if inference {
                    refused_ids::note(why);
                }
                None
            }
            _ => {
                counted(&STATUS.without_id);
                None
            }
        };
        let observed = inference && clock::is_engaged();
        let forgotten = forgotten || (forbids_cache && FORGETS.load(Ordering::Relaxed));
        let avoids_store = forbids_cache && uncached::are_of_interest();
        let salt = if inference && uncached::are_of_interest() {
            Salt::of(&request.cache_salt)
        } else {
            Salt::None
        };
        if salt != Salt::None && prompts::are_engaged() {
            salts::lose();
        }
        let lifetime = request
            .keep_seconds
            .filter(|_| inference && uncached::are_of_interest());
        let of_interest = id.is_some()
            || observed
            || forgotten
            || avoids_store
            || salt != Salt::None
            || lifetime.is_some()
            || (inference && usage::is_engaged())
            || !adapters.is_empty();
        if !of_interest && prompts.is_none() && !keeps_tokens {
            return None;
        }
        let arrival = Arrival(NEXT_ARRIVAL.fetch_add(1, Ordering::Relaxed));
        if observed {
            note(|| Note::Received { arrival });
            if wishes != Wishes::default() {
                note(|| Note::Wishes { arrival, wishes });
            }
            if let Some(Sections {
                system,
                tools,
                messages,
            }) = request.sections
            {
                let bytes = [system, tools, messages];
                note(|| Note::Sections { arrival, bytes });
            }
            if let Some(title) = request.title {
                let title = Arc::new(Title {
                    words: title.words.into(),
                    agent: title.agent.into(),
                });
                note(|| Note::Titled { arrival, title });
            }
            if let Some(sent) = request.sent {
                let sent = Arc::new(sent);
                note(|| Note::Sent { arrival, sent });
            }
        }
        let mut current = Self {
            arrival,
            id,
            inference,
            generates,
            keeps_tokens,
            forgotten,
            avoids_store,
            salt,
            lifetime,
            adapters,
            counted: (None, wishes.infill),
            prompts,
            within_media: false,
            known: Reported::Nothing,
            answer: AnswerSeen::None,
            tasks: Tasks::None,
            sending: Sending::default(),
            succeeds: false,
            kept: false,
        };
        if let (true, Some(id)) = (inference, &current.id) {
            current.kept = recent::store_id(arrival, id);
        }
        current.wait();
        Some(current)
    }

    /// A part of the answer. The server writes the head in one piece, then each chunk in one piece, and
    /// at the end the empty chunk (cpp-httplib, `write_response_core`, `write_content_chunked`).
    pub(super) fn send(&mut self, bytes: &[u8]) {
        // `100 Continue`, also to a client that has sent the body with the head.
        if is_interim(bytes) {
            return;
        }
        if self.generates && bytes.starts_with(b"HTTP/1.1 200") {
            self.succeeds = true;
        }
        match self.answer {
            AnswerSeen::None if is_head_of_chunks(bytes) => self.answer = AnswerSeen::Streamed,
            AnswerSeen::None => self.answer(is_head_of_success(bytes)),
            AnswerSeen::Streamed if !bytes.starts_with(b"0\r\n") => {}
            // If the server cannot serve the request, it answers with an error before it streams.
            AnswerSeen::Streamed | AnswerSeen::Whole => self.answer(true),
        }
    }

    /// A part of the answer, with the usage that is right after a load from the prefix store. `None`: it is to be sent as it is.
    pub(super) fn instead_of(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        if !usage::is_engaged() || is_interim(bytes) {
            return None;
        }
        let Tasks::One(task) = self.tasks else {
            return None;
        };
        let instead = self.sending.piece(bytes, || usage::account_of(task));
        usage::sends(&self.sending);
        instead
    }

    pub(super) fn keeps_tokens(&self) -> bool {
        self.keeps_tokens
    }

    /// Its prompt, or a text in it, got tokens of earlier answers.
    pub(super) fn kept(&self, kept: &Kept) {
        let arrival = self.arrival;
        note(|| Note::Kept {
            arrival,
            kept: KeptPrompt {
                tokens: u32::try_from(kept.tokens.len()).unwrap_or(u32::MAX),
                kept: u32::try_from(kept.kept).unwrap_or(u32::MAX),
                others: kept.others.as_slice().into(),
            },
        });
    }

    pub(super) fn is_infill(&self) -> bool {
        self.prompts.as_ref().is_some_and(Assembly::is_infill)
    }

    /// See [`connections::counted`](super::connections::counted).
    pub(super) fn counted(&mut self, tokens: u32) {
        let (first, more) = &mut self.counted;
        *more |= first.is_some();
        first.get_or_insert(tokens);
    }

    /// See [`connections::tokenized`](super::connections::tokenized).
    pub(super) fn tokenized(
        &mut self,
        special: bool,
        text: &[u8],
        tokens: &[Token],
        infill: Option<&Infill>,
    ) {
        if let (Some(prompts), false) = (&mut self.prompts, self.within_media) {
            prompts.text(special, text, tokens, infill);
            self.wait();
        }
    }

    /// Which requests share its prompts in a prefix store.
    pub(super) fn salt(&self) -> Salt {
        self.salt
    }

    /// From now on the server tokenizes parts of a prompt with media, which is sent as a whole later.
    pub(super) fn tokenizing_media(&mut self) {
        self.within_media = true;
    }

    /// The prompt with media has these tokens; `None` if they cannot be known.
    pub(super) fn tokenized_media(&mut self, tokens: Option<&[Token]>) {
        self.within_media = false;
        if let (Some(prompts), Some(tokens)) = (&mut self.prompts, tokens) {
            prompts.text(true, &[], tokens, None);
            self.wait();
        }
    }

    /// Sends the prompts that are complete, before the server posts any of them as a task.
    fn wait(&mut self) {
        while let Some(whole) = self.prompts.as_mut().and_then(Assembly::next) {
            let (arrival, task) = (self.arrival, prompts::next_task());
            self.post(task);
            let prompt = Prompt {
                tokens: whole.tokens,
                extra: whole.extra,
                slot: contexts::slot(),
            };
            tell_waiting(Waiting::Prompt {
                arrival,
                task,
                prompt,
            });
        }
    }

    pub(super) fn post(&mut self, task: TaskId) {
        faults::at_request();
        if self.avoids_store {
            uncached::note_task(task);
        }
        salts::note_salt(task, self.salt);
        hints::note_lifetime(task, self.lifetime);
        self.tasks = match self.tasks {
            Tasks::One(same) if same == task => self.tasks,
            Tasks::None => Tasks::One(task),
            _ => Tasks::Several,
        };
        if self.forgotten {
            push(Event::Uncached { task });
        }
        let arrival = self.arrival;
        if let (Reported::Nothing, (Some(tokens), false)) = (self.known, self.counted) {
            note(|| Note::Counted { arrival, tokens });
        }
        let id = self.id.clone();
        self.tell(Event::Posted { arrival, task, id });
        // Last: if this does not fit into the channel, it opens a gap, and what was sent before is void.
        if !self.adapters.is_empty() {
            push(Event::NamedAdapters {
                task,
                scales: self.adapters.clone(),
            });
        }
    }

    /// The request was answered. If it drew no task number and is not for inference, nothing is sent.
    /// `served`: the answer is a success, so its prompts were evaluated.
    pub(super) fn answer(&mut self, served: bool) {
        let begun = self.inference || self.known != Reported::Nothing;
        if begun && std::mem::replace(&mut self.answer, AnswerSeen::Whole) != AnswerSeen::Whole {
            if self.succeeds {
                claims::answered();
            }
            let arrival = self.arrival;
            if self.prompts.take().is_some() {
                if self.id.is_some() && self.known == Reported::Nothing {
                    // Its prompt cannot be known. Still, it replaces an older request with the same id.
                    self.post(prompts::next_task());
                }
                tell_waiting(Waiting::Over { arrival, served });
            }
            let id = self.id.clone();
            self.tell(Event::Answered { arrival, id });
        }
    }

    /// Sends an event of this request.
    fn tell(&mut self, event: Event) {
        let Some(id) = &self.id else {
            self.known = Reported::Posted;
            return push_observed(event);
        };
        match self.known {
            Reported::Nothing => {
                if !self.inference {
                    self.kept = recent::store_id(self.arrival, id);
                }
                let told = introduce(event, self.arrival, id, self.kept);
                self.known = if told {
                    Reported::Posted
                } else {
                    Reported::Lost
                };
            }
            Reported::Posted => push(event),
            Reported::Lost => {}
        }
    }
}

/// Whether these bytes begin an answer with a 2xx status.
fn is_head_of_success(bytes: &[u8]) -> bool {
    bytes.starts_with(b"HTTP/1.") && bytes.get(8..10) == Some(b" 2")
}
