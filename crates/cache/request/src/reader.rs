//! Reads the requests of one connection.

use crate::chunked::{Chunked, Part};
use crate::endpoint::Endpoint;
use crate::fields::{Event, Fields};
use crate::head::{Framing, Head, Method, RequestLine};
use crate::json::{
    Adapters, CacheSalt, Identity, InfillParts, JsonScanner, Numbers, Piece, Refusal, Sections,
};
use crate::loss::Loss;
use crate::sent::{Sent, SentReader};
use crate::title::{Title, TitleReader};

/// A request whose last byte has been received.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The method.
    pub method: Method,
    /// The kind of work that the path asks for.
    pub endpoint: Endpoint,
    /// The request id. Always absent when the method is not POST and when the
    /// body is a multipart form.
    pub identity: Identity,
    /// The top-level `cache_prompt` of the body; `None` if it is not a boolean, or the body is not read.
    pub cache_prompt: Option<bool>,
    /// The top-level `cache_salt` of the body.
    pub cache_salt: CacheSalt,
    /// For how many seconds the prompt is to be kept, by the top-level `cache_control` of the body, or else by the header field
    /// `x-cache-control-ttl`. 0: no longer. `None`: nothing is said of that.
    pub keep_seconds: Option<u32>,
    /// The top-level numbers of the body; none if the body is not read.
    pub numbers: Numbers,
    /// The LoRA adapters in the last member `lora`; `None` if there is no non-empty
    /// list of that name, or the body is not read.
    pub lora: Option<Adapters>,
    /// The sections of a request for a chat; `None` if it is for something else, or the body is not read.
    pub sections: Option<Sections>,
    /// The prompts in the member `prompt`, each as its pieces; `None` if there is no
    /// text and no list of that name, or the reader was not made [with prompts](RequestReader::with_prompts).
    pub prompts: Option<Vec<Vec<Piece>>>,
    /// The other parts of a prompt for `/infill`; `None` if a part is missing, or the reader was not made
    /// [with prompts](RequestReader::with_prompts).
    pub infill: Option<InfillParts>,
    /// What it is about; `None` if nothing says that, or the reader was not made [with titles](RequestReader::with_titles).
    pub title: Option<Box<Title>>,
    /// Which dates and numbers a request for a chat has; `None` if it is for something else, or the reader was not made
    /// [with titles](RequestReader::with_titles).
    pub sent: Option<Sent>,
}

impl Request {
    /// Whether the server would start inference for it, unless it rejects it.
    pub fn is_inference(&self) -> bool {
        self.method == Method::Post && self.endpoint.is_inference()
    }

    /// Whether tokens are sampled for it, unless the server rejects it.
    pub fn generates(&self) -> bool {
        self.method == Method::Post && self.endpoint.generates()
    }

    /// Whether it is for `/infill`.
    pub fn is_infill(&self) -> bool {
        self.generates() && self.endpoint == Endpoint::Infill
    }

    /// Whether it asks for text behind a prompt: a chat or a completion.
    pub fn is_continuation(&self) -> bool {
        self.generates() && self.endpoint != Endpoint::Infill
    }

    /// Whether its prompt may not come from the cache: its body says `"cache_prompt": false`, or the body says
    /// nothing, and that is the server's default (`--no-cache-prompt`).
    pub fn forbids_cache(&self, default: bool) -> bool {
        let read = self.cache_prompt.filter(|_| self.endpoint.generates());
        self.is_inference() && !read.unwrap_or(default)
    }

    /// The slot that a request for inference names. Negative: any.
    pub fn wants_slot(&self) -> Option<i32> {
        self.numbers
            .slot
            .filter(|&slot| slot >= 0 && self.is_inference())
    }

    /// The numbers that the server reads from its body for a completion. None if the server converts the body to one
    /// without them (`/v1/messages`).
    pub fn wants(&self) -> Numbers {
        if self.generates() && self.endpoint != Endpoint::Messages {
            self.numbers
        } else {
            Numbers::default()
        }
    }

    /// Whether its prompt never comes from the cache: [it may not](Self::forbids_cache), or the server does
    /// not use the cache for its kind (embeddings, reranking).
    pub fn reuses_nothing(&self, default: bool) -> bool {
        let is_stateless = matches!(self.endpoint, Endpoint::Embedding | Endpoint::Rerank);
        self.forbids_cache(default) || self.is_inference() && is_stateless
    }

    /// The slot that a client erases (`POST /slots/0?action=erase`).
    pub fn erases(&self) -> Option<i32> {
        match self.endpoint {
            Endpoint::Erase(slot) if self.method == Method::Post => Some(slot),
            _ => None,
        }
    }

    /// The adapters that the server reads from its body. `None` if it names none, or if the server converts
    /// the body to one without adapters (`/v1/messages`).
    pub fn adapters(&self) -> Option<&Adapters> {
        let read = self.endpoint.generates() && self.endpoint != Endpoint::Messages;
        self.lora.as_ref().filter(|_| read && self.is_inference())
    }
}

/// The result of reading some bytes.
#[derive(Debug, Clone, PartialEq)]
#[allow(
    clippy::large_enum_variant,
    reason = "it is moved once for each request"
)]
pub enum Step {
    /// Nothing yet: the request continues.
    More,
    /// A request is complete.
    Complete(Request),
    /// The reader has just lost track of where requests end. It ignores all
    /// further bytes of this connection.
    Lost(Loss),
}

/// Follows the requests of one connection. See the [crate's docs](crate).
#[derive(Debug, Clone)]
pub struct RequestReader {
    phase: Phase,
    body: BodyScanner,
    /// The last request's method allows a body, but it announced none.
    unannounced: bool,
}

/// All that reads a body as it streams past.
#[derive(Debug, Clone)]
struct BodyScanner {
    json: JsonScanner,
    titles: Option<Box<TitleReader>>,
    sent: Option<Box<SentReader>>,
}

impl BodyScanner {
    const fn new(json: JsonScanner) -> Self {
        Self {
            json,
            titles: None,
            sent: None,
        }
    }

    /// Takes some bytes of a body.
    fn scan(&mut self, bytes: &[u8]) {
        self.json.feed(bytes);
        if let Some(titles) = &mut self.titles {
            titles.feed(bytes);
        }
        if let Some(sent) = &mut self.sent {
            sent.feed(bytes);
        }
    }
}

#[derive(Debug, Clone)]
enum Phase {
    Line(RequestLine),
    Fields(Head, Fields),
    /// This many bytes of the body are left, at least one.
    Length(Head, u64),
    Chunked(Head, Chunked),
    Lost(Loss),
}

impl Default for RequestReader {
    fn default() -> Self {
        Self::new()
    }
}

impl RequestReader {
    /// A reader for a connection on which nothing was received yet.
    pub const fn new() -> Self {
        Self {
            phase: Phase::Line(RequestLine::new()),
            body: BodyScanner::new(JsonScanner::new()),
            unannounced: false,
        }
    }

    /// The same, but also reads the prompts in the bodies, for [`Assembly`](crate::Assembly).
    pub fn with_prompts() -> Self {
        Self {
            body: BodyScanner::new(JsonScanner::with_prompts()),
            ..Self::new()
        }
    }

    /// The same, but also says what requests are about, and which dates and numbers they have.
    pub fn with_titles(self) -> Self {
        Self {
            body: BodyScanner {
                titles: Some(Box::default()),
                sent: Some(Box::default()),
                ..self.body
            },
            ..self
        }
    }

    /// A reader of the same kind for a connection on which nothing was received yet.
    pub(crate) fn renewed(&self) -> Self {
        Self {
            body: BodyScanner {
                json: self.body.json.renewed(),
                titles: self.body.titles.as_ref().map(|_| Box::default()),
                sent: self.body.sent.as_ref().map(|_| Box::default()),
            },
            ..Self::new()
        }
    }

    /// Takes bytes up to the end of a request at most; returns how many were
    /// used, and what they amounted to. Depends on the bytes alone, not on how
    /// they are cut into calls: after [`Step::Complete`], the rest can be fed
    /// for the next request.
    pub fn feed(&mut self, bytes: &[u8]) -> (usize, Step) {
        let mut used = 0;
        while used < bytes.len() {
            match self.advance(&bytes[used..]) {
                Ok((here, None)) => used += here,
                Ok((here, Some(request))) => return (used + here, Step::Complete(request)),
                Err(loss) => return (bytes.len(), Step::Lost(self.lose(loss))),
            }
        }
        (used, Step::More)
    }

    /// Why the reader ignores this connection; `None` if it does not.
    pub fn lost(&self) -> Option<Loss> {
        match self.phase {
            Phase::Lost(loss) => Some(loss),
            _ => None,
        }
    }

    /// Whether the last request announced no body although its method allows one.
    pub(crate) fn is_unannounced(&self) -> bool {
        self.unannounced
    }

    /// Takes some bytes, at least one, within one phase.
    fn advance(&mut self, bytes: &[u8]) -> Result<(usize, Option<Request>), Loss> {
        match &mut self.phase {
            Phase::Line(line) => {
                self.unannounced = false;
                for (at, &byte) in bytes.iter().enumerate() {
                    if let Some(head) = line.push(byte)? {
                        self.phase = Phase::Fields(head, Fields::new());
                        return Ok((at + 1, None));
                    }
                }
                Ok((bytes.len(), None))
            }
            Phase::Fields(head, fields) => {
                for (at, &byte) in bytes.iter().enumerate() {
                    match fields.push(byte)? {
                        None => {}
                        Some(Event::Line) => {
                            head.field(fields)?;
                            if let (Some(titles), b"user-agent") =
                                (&mut self.body.titles, fields.name())
                            {
                                titles.agent(fields.value_start());
                            }
                        }
                        Some(Event::End) => {
                            let head = head.clone();
                            return Ok((at + 1, self.begin_body(head)?));
                        }
                    }
                }
                Ok((bytes.len(), None))
            }
            Phase::Length(head, left) => {
                let here = usize::try_from(*left)
                    .unwrap_or(usize::MAX)
                    .min(bytes.len());
                *left -= here as u64;
                if head.scanned() {
                    self.body.scan(&bytes[..here]);
                }
                if *left > 0 {
                    return Ok((here, None));
                }
                let head = head.clone();
                Ok((here, Some(self.complete(&head))))
            }
            Phase::Chunked(head, chunked) => match chunked.feed(bytes)? {
                Part::Framing(used) => Ok((used, None)),
                Part::Content(used) => {
                    if head.scanned() {
                        self.body.scan(&bytes[..used]);
                    }
                    Ok((used, None))
                }
                Part::End(used) => {
                    let head = head.clone();
                    Ok((used, Some(self.complete(&head))))
                }
            },
            Phase::Lost(_) => Ok((bytes.len(), None)),
        }
    }

    /// After the empty line; a request without a body is complete with it.
    fn begin_body(&mut self, head: Head) -> Result<Option<Request>, Loss> {
        self.phase = match head.framing()? {
            Framing::Chunked => Phase::Chunked(head, Chunked::new()),
            Framing::Length(0) => return Ok(Some(self.complete(&head))),
            Framing::Length(length) => Phase::Length(head, length),
            Framing::Unframed => {
                self.unannounced = head.takes_content;
                return Ok(Some(self.complete(&head)));
            }
        };
        Ok(None)
    }

    fn complete(&mut self, head: &Head) -> Request {
        let next = self.body.json.renewed();
        let mut json = std::mem::replace(&mut self.body.json, next);
        self.phase = if head.closes() {
            Phase::Lost(Loss::Closed)
        } else {
            Phase::Line(RequestLine::new())
        };
        let is_compressed = head.compressed && head.method == Method::Post;
        let sections = json.sections(head.endpoint);
        // The next body begins with nothing.
        let sent = self.body.sent.as_mut().map(|sent| sent.take());
        Request {
            method: head.method,
            endpoint: head.endpoint,
            cache_prompt: json.caches_prompt(),
            keep_seconds: json.take_lifetime().or(head.keep_seconds),
            cache_salt: if is_compressed {
                CacheSalt::Unreadable
            } else {
                json.take_salt()
            },
            numbers: json.numbers(),
            lora: json.take_adapters(),
            sent: sent.filter(|_| sections.is_some() && !is_compressed),
            sections,
            prompts: json.take_prompts(),
            infill: json.take_infill(),
            title: self
                .body
                .titles
                .as_mut()
                .and_then(|titles| titles.take())
                .map(Box::new),
            identity: if is_compressed {
                Identity::Refused(Refusal::Compressed)
            } else {
                json.finish()
            },
        }
    }

    /// Ignores all further bytes.
    pub(crate) fn lose(&mut self, loss: Loss) -> Loss {
        self.phase = Phase::Lost(loss);
        // Frees what was collected.
        self.body = BodyScanner::new(JsonScanner::new());
        loss
    }
}
