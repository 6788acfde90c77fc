//! The truth: asks the engine itself which prompts are cached.
//!
//! A question sends a prompt again and reads `cache_n` of the answer. That changes what is cached. So
//! for each question a new server without the hook is started and the whole trace is replayed.
//!
//! # An id may be called gone only if *no* request could find its KV
//! One question is not enough, because the engine does not always look
//! everywhere (llama-server 0.7.0, `get_available_slot` and
//! `server_prompt_cache::load`):
//! - It looks into one slot: the one that is most similar, or least recently
//!   used. So each slot is asked, by `id_slot`.
//! - It looks into the host prompt cache only when that slot is about to lose
//!   more than half of its content; never if `id_slot` names a slot with
//!   unrelated content. So the host cache is asked after erasing all slots,
//!   which have been asked by then.
//! - It empties a slot whose last LoRA adapters differ from those of a request, even
//!   if it has just loaded this very prompt from the host cache. So before the host
//!   cache is asked, each slot evaluates another prompt under the adapters of the
//!   question. A question names the same adapters as its request. If the request names
//!   none, the server's own adapters are set to what they were then.
//! - It takes a host entry only if at least a quarter of the *entry* is common
//!   with the new prompt, and of several prefers what keeps most of the entry.
//!   An entry of a short prompt and a long answer is thus found only by the next
//!   turn of the conversation. So the continuations are asked as well: the
//!   prompt with its answer, and the trace's longer prompts with theirs.
//!
//! # What counts as cached
//! A prompt counts as cached if the engine reuses all of its tokens but the last, which
//! it always evaluates again. So two prompts that differ in their last token only count
//! as equal. With sliding windows and recurrent models, which go back to checkpoints,
//! nine tenths of the tokens are enough, rounded up, wherever the engine has them from: it may also hold only
//! the beginning of the prompt, or a prompt that begins like it. With LoRA adapters, a prompt must reuse as many
//! tokens as it does if it is sent twice to an otherwise unused server: the tokens from
//! the activation of an adapter on are evaluated each time.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZero,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use serde_json::{Value, json};

use crate::{Builder, Completion, Error, Outcome, Request, Result, Score, Server, Step, Trace};

/// One question to the engine, and its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Where the engine was made to look.
    pub place: String,
    /// Tokens of the prompt that the engine reused.
    pub cache_n: usize,
    /// Tokens of the prompt in question.
    pub prompt_tokens: usize,
}

/// Whether a request's prompt is cached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Residency {
    /// It is cached. This is the question that found it.
    Resident(Probe),
    /// No question found it. This is the question with the most reused tokens. `None`: the server
    /// refuses the prompt.
    Gone(Option<Probe>),
}

impl Residency {
    /// Whether no question found it.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Gone(_))
    }
}

/// The truth about the ids of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Truth {
    /// Whether each request is cached, by its id.
    pub residency: BTreeMap<String, Residency>,
}

impl Truth {
    /// The ids that were asked about.
    pub fn ids(&self) -> BTreeSet<String> {
        self.residency.keys().cloned().collect()
    }

    /// The ids that are gone.
    pub fn gone(&self) -> BTreeSet<String> {
        let gone = self.residency.iter().filter(|(_, here)| here.is_gone());
        gone.map(|(id, _)| id.clone()).collect()
    }

    /// Compares the truth with what was reported.
    pub fn score(&self, reported: &BTreeSet<String>) -> Score {
        Score::of(&self.ids(), &self.gone(), reported)
    }
}

/// The truth about every id of the trace, at its end.
///
/// # Errors
/// If the server cannot be run, or if its answers differ when the trace is replayed: then its answers
/// would prove nothing.
pub fn truth(trace: &Trace, server: &Builder) -> Result<Truth> {
    truth_of(trace, &trace.ids(), server)
}

/// The truth about one id.
///
/// # Errors
/// As [`truth`]; also when there is no such id.
pub fn residency(trace: &Trace, id: &str, server: &Builder) -> Result<Residency> {
    let mut truth = truth_of(trace, &[id.to_owned()], server)?;
    let found = truth.residency.remove(id);
    found.ok_or_else(|| Error::new(format!("nothing about {id}")))
}

/// The truth about some ids of the trace.
///
/// # Errors
/// As [`truth`]; also when there is no such id.
pub fn truth_of(trace: &Trace, ids: &[String], server: &Builder) -> Result<Truth> {
    let engine = Engine::new(trace, server)?;
    // Equal prompts have equal truths. A list, since JSON values cannot be hashed.
    let mut questions: Vec<Question> = Vec::new();
    let mut asked: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for id in ids {
        let mut requests = trace.steps.iter().map(Step::request).enumerate();
        let found = requests.find_map(|(step, request)| {
            let request = request.filter(|request| request.request_id() == Some(id))?;
            Some((step, request))
        });
        let (step, request) =
            found.ok_or_else(|| Error::new(format!("no request {id} in the trace")))?;
        for question in engine.questions(step, request) {
            let known = questions.iter().position(|known| *known == question);
            let place = known.unwrap_or_else(|| {
                questions.push(question);
                questions.len() - 1
            });
            asked.entry(id).or_default().push(place);
        }
    }

    let answers = in_parallel(&questions, |question| engine.find(question))?;
    let mut truth = Truth::default();
    for (id, places) in asked {
        // A request with several prompts is cached if all of them are.
        let mut here = places.iter().map(|&place| &answers[place]);
        let worst = here.find(|answer| answer.is_gone());
        let answer = worst.unwrap_or(&answers[places[0]]).clone();
        truth.residency.insert(id.to_owned(), answer);
    }
    Ok(truth)
}

/// Runs two at a time: a replay mostly waits for the start of a process.
fn in_parallel<A: Sync, B: Send>(
    items: &[A],
    work: impl Fn(&A) -> Result<B> + Sync,
) -> Result<Vec<B>> {
    let workers = thread::available_parallelism().map_or(1, NonZero::get);
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..workers.min(2) {
            scope.spawn(|| {
                while let Some((place, item)) = {
                    let place = next.fetch_add(1, Ordering::Relaxed);
                    items.get(place).map(|item| (place, item))
                } {
                    let result = work(item);
                    let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                    done.push((place, result));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(place, _)| *place);
    done.into_iter().map(|(_, result)| result).collect()
}

/// A question, and the state of the server in which it is asked.
#[derive(Clone, PartialEq)]
struct Question {
    request: Request,
    /// The adapters for requests that name none, if these must be set before.
    adapters: Option<Value>,
}

/// Where the engine is made to look, in the state that the trace leaves.
#[derive(Clone, Copy)]
enum LookIn {
    /// The engine chooses.
    OwnChoice,
    Slot(u32),
    /// In the host cache: all slots are erased before.
    Host,
}

struct Engine<'a> {
    trace: &'a Trace,
    server: Builder,
    slots: u32,
    /// The adapters that a server applies when it starts; `None`: it has none.
    adapters: Option<Value>,
    /// The answers to the trace's requests in the first run.
    first: Vec<Outcome>,
}

impl<'a> Engine<'a> {
    fn new(trace: &'a Trace, server: &Builder) -> Result<Self> {
        let server = server.plain();
        let running = server.spawn()?;
        Ok(Self {
            trace,
            slots: running.slots()?,
            adapters: if server.has_adapters() {
                Some(running.get("/lora-adapters")?.json()?)
            } else {
                None
            },
            first: trace.run(&running)?,
            server,
        })
    }

    /// The questions for a request that is a step of the trace.
    fn questions(&self, step: usize, request: &Request) -> Vec<Question> {
        let then = self.trace.adapters_after(step).or(self.adapters.as_ref());
        let unnamed = request.adapters().is_none();
        let question = |request| Question {
            request,
            adapters: then.filter(|_| unnamed).cloned(),
        };
        request.questions().into_iter().map(question).collect()
    }

    /// Starts a new server and brings it into the state that the trace leaves.
    fn replay(&self) -> Result<Server> {
        let server = self.server.spawn()?;
        let outcomes = self
            .trace
            .run(&server)
            .map_err(|error| Error::new(format!("without the hook, {error}")))?;
        for (number, step) in self.trace.steps.iter().enumerate() {
            let contents = |outcome: &Outcome| -> Vec<(String, usize)> {
                let answers = outcome.completions.iter();
                answers
                    .map(|answer| (answer.content.clone(), answer.cache_n))
                    .collect()
            };
            let (first, now) = (&self.first[number], &outcomes[number]);
            if matches!(step, Step::Ask(_)) && contents(first) != contents(now) {
                return Err(Error::new(format!(
                    "not deterministic: step {number} was answered {:?}, and on replay {:?}",
                    contents(first),
                    contents(now)
                )));
            }
        }
        Ok(server)
    }

    /// The question itself, then everything that goes on from it.
    fn continuations(&self, question: &Request) -> Vec<Request> {
        let mut all = vec![question.clone()];
        for (step, outcome) in self.trace.steps.iter().zip(&self.first) {
            let Some(request) = step.request() else {
                continue;
            };
            for (longer, answer) in request.questions().iter().zip(&outcome.completions) {
                if longer.extends(question) {
                    let longer = longer.continued(&answer.content);
                    all.extend(longer.map(|longer| longer.with_adapters_of(question)));
                }
            }
        }
        let mut distinct: Vec<Request> = Vec::new();
        for one in all {
            if !distinct.contains(&one) {
                distinct.push(one);
            }
        }
        distinct
    }

    fn find(&self, question: &Question) -> Result<Residency> {
        let Question {
            request: question,
            adapters,
        } = question;
        let most = if self.adapters.is_some() && self.server.keeps_any_prefix() {
            Some(self.most(question, adapters.as_ref())?)
        } else {
            None
        };
        if most == Some(0) {
            return Ok(Residency::Gone(None));
        }
        let continuations = self.continuations(question);
        let slots = || (0..self.slots).map(LookIn::Slot);
        // The replays to make. In each, the questions are asked one after the other: several only if
        // one cannot disturb the next.
        let mut replays: Vec<Vec<(LookIn, &Request)>> = Vec::new();
        // A slot that has gone on from the prompt serves it directly or, if only checkpoints lead
        // back, from the last of these.
        let in_slots = &continuations[..1];
        for asked in in_slots {
            if !question.names_a_slot() {
                replays.push(vec![(LookIn::OwnChoice, asked)]);
            } else if self.server.has_separate_slots() {
                replays.push(slots().map(|slot| (slot, asked)).collect());
            } else {
                replays.push(vec![(LookIn::OwnChoice, asked)]);
                replays.extend(slots().map(|slot| vec![(slot, asked)]));
            }
        }
        if self.server.has_host_cache() {
            // If only checkpoints lead back, a continuation that goes on from the end of an entry
            // proves nothing of a way back to the prompt.
            let asked = if self.server.saves_any_prefix() {
                &continuations[..]
            } else {
                &continuations[..1]
            };
            replays.extend(asked.iter().map(|asked| vec![(LookIn::Host, asked)]));
        }

        // The first answer is to the question itself: it tells the length of the prompt.
        let mut prompt_tokens = None;
        let mut closest: Option<Probe> = None;
        for questions in replays {
            let server = self.replay()?;
            set_adapters(&server, adapters.as_ref())?;
            for (place, asked) in questions {
                let Some(answer) = self.ask(&server, place, asked)? else {
                    if prompt_tokens.is_none() {
                        return Ok(Residency::Gone(None));
                    }
                    // A continuation may be too long for a slot although the prompt is not.
                    continue;
                };
                let prompt_tokens = *prompt_tokens.get_or_insert(answer.prompt_tokens);
                let probe = Probe {
                    place: place.describe(asked == question),
                    cache_n: answer.cache_n,
                    prompt_tokens,
                };
                if probe.cache_n >= most.unwrap_or_else(|| self.enough(prompt_tokens)) {
                    return Ok(Residency::Resident(probe));
                }
                if closest
                    .as_ref()
                    .is_none_or(|best| best.cache_n < probe.cache_n)
                {
                    closest = Some(probe);
                }
            }
        }
        Ok(Residency::Gone(closest))
    }

    /// How many tokens of a prompt a new server reuses if only this prompt is sent to it, twice.
    fn most(&self, question: &Request, adapters: Option<&Value>) -> Result<usize> {
        let server = self.server.spawn()?;
        set_adapters(&server, adapters)?;
        self.ask(&server, LookIn::OwnChoice, question)?;
        let again = self.ask(&server, LookIn::OwnChoice, question)?;
        Ok(again.map_or(0, |answer| answer.cache_n))
    }

    fn enough(&self, prompt_tokens: usize) -> usize {
        if self.server.keeps_any_prefix() {
            prompt_tokens - 1
        } else {
            (prompt_tokens * 9).div_ceil(10).min(prompt_tokens - 1)
        }
    }

    /// `None`: the server refuses the request.
    fn ask(&self, server: &Server, place: LookIn, asked: &Request) -> Result<Option<Completion>> {
        let asked = match place {
            LookIn::OwnChoice => asked.clone(),
            LookIn::Slot(slot) => asked.clone().slot(slot),
            LookIn::Host => {
                for slot in 0..self.slots {
                    erase(server, slot)?;
                }
                if self.adapters.is_some() {
                    for slot in 0..self.slots {
                        let other = Request::completion("~").predict(1).slot(slot);
                        server.send(&other.with_adapters_of(asked))?;
                        server.wait_idle()?;
                        erase(server, slot)?;
                    }
                }
                asked.clone()
            }
        };
        let outcome = Trace::new().ask(asked).run(server)?.swap_remove(0);
        if outcome.response.status >= 500 {
            return Err(Error::new(outcome.response.text()));
        }
        Ok(outcome.completions.into_iter().next())
    }
}

fn set_adapters(server: &Server, adapters: Option<&Value>) -> Result<()> {
    let Some(adapters) = adapters else {
        return Ok(());
    };
    let response = server.post("/lora-adapters", adapters)?;
    match response.status {
        200 => Ok(()),
        _ => Err(Error::new(format!("adapters: {}", response.text()))),
    }
}

/// Empties a slot, if the server can. Servers from before spring 2026 cannot if they take images. Such
/// a server is asked without that: it looks into the host cache for a prompt that has next to nothing
/// in common with its slots.
fn erase(server: &Server, slot: u32) -> Result<()> {
    let response = server.post(&format!("/slots/{slot}?action=erase"), &json!({}))?;
    match response.status {
        200 | 501 => server.wait_idle(),
        _ => Err(Error::new(format!("erase {slot}: {}", response.text()))),
    }
}

impl LookIn {
    fn describe(self, itself: bool) -> String {
        let place = match self {
            Self::OwnChoice => "by the engine's own choice".to_owned(),
            Self::Slot(slot) => format!("in slot {slot}"),
            Self::Host => "with all slots erased".to_owned(),
        };
        if itself {
            place
        } else {
            format!("{place}, by a continuation")
        }
    }
}
