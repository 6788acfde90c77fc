//! A request, from its bytes to its answer, and what the worker is told of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use contextpilot_observer::Note;
use contextpilot_request::{Adapters, Assembly, Identity, Infill, Request};
use contextpilot_residency::{Arrival, Event, Prompt, RequestId, Scale, TaskId, Token, Wishes};
use contextpilot_worker::Waiting;

use crate::attach::claims;
use crate::base::status::STATUS;
use crate::base::{clock, faults};
use crate::capture::{adapters, contexts, prompts, recent};
use crate::channel::{introduce, note, push, tell_waiting};

/// The server forgets prompts that are not to be cached without a call.
static FORGETS: AtomicBool = AtomicBool::new(false);

static NEXT_ARRIVAL: AtomicU64 = AtomicU64::new(1);

/// Of each request that says `"cache_prompt": false` the ledger has to be told so: the server is of
/// the kind that forgets such prompts without a call (see the table's `UNCACHED`).
pub(crate) fn expect_forgetting() {
    FORGETS.store(true, Ordering::Relaxed);
}

/// The request that a thread is at.
pub(super) struct Current {
    arrival: Arrival,
    id: Option<RequestId>,
    inference: bool,
    /// The server samples tokens for it, unless it rejects it.
    generates: bool,
    /// The server will forget its prompts.
    forgotten: bool,
    /// The LoRA adapters that it names.
    adapters: Vec<(i32, Scale)>,
    /// To be put together, where there is no other way to know the request.
    prompts: Option<Assembly>,
    /// What is tokenized is part of a prompt that will be told as a whole.
    within_media: bool,
    known: Known,
    answer: Answer,
    /// The answer begins with 200, to a request that generates.
    succeeds: bool,
    /// Should the process die, the next start will know of the id.
    kept: bool,
}

/// What the worker knows of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    /// It has drawn no task number.
    Nothing,
    /// At least its first task.
    Posted,
    /// There was no room to tell it: the id is stranded, so it is over for the index.
    Lost,
}

/// How far the answer to a request is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    None,
    /// In chunks. The first is sent when a slot takes on the task, long before the prompt has
    /// been evaluated, so it says nothing.
    Streamed,
    Whole,
}

impl Current {
    pub(super) fn of(request: Request) -> Option<Self> {
        let inference = request.is_inference();
        let generates = request.generates();
        let forbids_cache = request.forbids_cache();
        let wishes = Wishes {
            slot: request.wants_slot(),
            uncached: request.reuses_nothing(),
        };
        // Where it cannot be told what the named adapters come to, nothing of it is claimed.
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
        let prompts = by_prompts.then(|| Assembly::of(&request));
        let id = match request.identity {
            Identity::Id(id) => {
                counted(&STATUS.with_id);
                Some(Arc::from(id))
            }
            Identity::Refused(_) => {
                counted(&STATUS.refused_id);
                None
            }
            _ => {
                counted(&STATUS.without_id);
                None
            }
        };
        let observed = inference && clock::is_engaged();
        let forgotten = forgotten || (forbids_cache && FORGETS.load(Ordering::Relaxed));
        let of_interest = id.is_some() || observed || forgotten || !adapters.is_empty();
        if !of_interest && prompts.is_none() {
            return None;
        }
        let arrival = Arrival(NEXT_ARRIVAL.fetch_add(1, Ordering::Relaxed));
        if observed {
            note(|| Note::Received { arrival });
            if wishes != Wishes::default() {
                note(|| Note::Wishes { arrival, wishes });
            }
        }
        let mut current = Self {
            arrival,
            id,
            inference,
            generates,
            forgotten,
            adapters,
            prompts,
            within_media: false,
            known: Known::Nothing,
            answer: Answer::None,
            succeeds: false,
            kept: false,
        };
        if let (true, Some(id)) = (inference, &current.id) {
            current.kept = recent::note(arrival, id);
        }
        current.wait();
        Some(current)
    }

    /// Part of the answer. The server writes the head in one piece, then each chunk in one, and
    /// last the empty one (cpp-httplib, `write_response_core`, `write_content_chunked`).
    pub(super) fn send(&mut self, bytes: &[u8]) {
        if self.generates && bytes.starts_with(b"HTTP/1.1 200") {
            self.succeeds = true;
        }
        match self.answer {
            Answer::None if is_head_of_chunks(bytes) => self.answer = Answer::Streamed,
            Answer::None => self.answer(is_head_of_success(bytes)),
            Answer::Streamed if !bytes.starts_with(b"0\r\n") => {}
            // A server that cannot serve says so before it begins to stream.
            Answer::Streamed | Answer::Whole => self.answer(true),
        }
    }

    pub(super) fn is_infill(&self) -> bool {
        self.prompts.as_ref().is_some_and(Assembly::is_infill)
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

    /// What is tokenized from now on is part of a prompt that will be told as a whole.
    pub(super) fn tokenizing_media(&mut self) {
        self.within_media = true;
    }

    /// It is this one, if that can be known.
    pub(super) fn tokenized_media(&mut self, tokens: Option<&[Token]>) {
        self.within_media = false;
        if let (Some(prompts), Some(tokens)) = (&mut self.prompts, tokens) {
            prompts.text(true, &[], tokens, None);
            self.wait();
        }
    }

    /// Waits with the prompts that are whole, before the server posts any of them.
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
        if self.forgotten {
            push(Event::Uncached { task });
        }
        let arrival = self.arrival;
        match &self.id {
            Some(id) => {
                let id = Arc::clone(id);
                self.tell(Event::Posted { arrival, task, id });
            }
            None => {
                self.known = Known::Posted;
                note(|| Note::Posted { arrival, task });
            }
        }
        // Last: if this cannot be told, nothing is believed of what was told before it either.
        if !self.adapters.is_empty() {
            push(Event::NamedAdapters {
                task,
                scales: self.adapters.clone(),
            });
        }
    }

    /// What is not inference and drew no number was never expected to be cached. `served`: with what
    /// it asked for, so its prompts were evaluated.
    pub(super) fn answer(&mut self, served: bool) {
        let begun = self.inference || self.known != Known::Nothing;
        if begun && std::mem::replace(&mut self.answer, Answer::Whole) != Answer::Whole {
            if self.succeeds {
                claims::answered();
            }
            let arrival = self.arrival;
            if self.prompts.take().is_some() {
                if self.id.is_some() && self.known == Known::Nothing {
                    // With a prompt that cannot be known: still, an older one of this id is over.
                    self.post(prompts::next_task());
                }
                tell_waiting(Waiting::Over { arrival, served });
            }
            match &self.id {
                Some(id) => {
                    let id = Arc::clone(id);
                    self.tell(Event::Answered { arrival, id });
                }
                None => note(|| Note::Answered { arrival }),
            }
        }
    }

    /// Of a request with an id.
    fn tell(&mut self, event: Event) {
        let Some(id) = &self.id else { return };
        match self.known {
            Known::Nothing => {
                if !self.inference {
                    self.kept = recent::note(self.arrival, id);
                }
                let told = introduce(event, self.arrival, id, self.kept);
                self.known = if told { Known::Posted } else { Known::Lost };
            }
            Known::Posted => push(event),
            Known::Lost => {}
        }
    }
}

/// Whether this begins an answer with a status of the two hundreds.
fn is_head_of_success(bytes: &[u8]) -> bool {
    bytes.starts_with(b"HTTP/1.") && bytes.get(8..10) == Some(b" 2")
}

/// Whether this begins an answer that will be sent in chunks.
fn is_head_of_chunks(bytes: &[u8]) -> bool {
    const FIELD: &[u8] = b"\r\ntransfer-encoding: chunked\r\n";
    bytes.starts_with(b"HTTP/")
        && bytes
            .windows(FIELD.len())
            .any(|window| window.eq_ignore_ascii_case(FIELD))
}
