//! Composes a request's prompts as tokens, from the body and from the texts that the server tokenizes.

use std::collections::VecDeque;

use crate::endpoint::Endpoint;
use crate::infill::{Assembled, Filling, Infill};
use crate::json::Piece;
use crate::reader::Request;

/// Composes the prompts of one request.
///
/// The server (`tokenize_input_prompts`) goes through a list of prompts in order and tokenizes
/// each text in it. It adds special tokens (a `<s>` in front) to a text that begins a prompt, and none to
/// other texts. Texts of parameters and triggers get none either.
///
/// ```
/// # use contextpilot_request::{Assembly, ConnectionReader, Step};
/// let mut reader = ConnectionReader::with_prompts();
/// let body = br#"{"prompt": ["ab", 7, 8]}"#;
/// let mut bytes = format!("POST /completion HTTP/1.1\r\nContent-Length: {}\r\n\r\n", body.len());
/// bytes += std::str::from_utf8(body).unwrap();
/// let Step::Complete(request) = reader.received(bytes.as_bytes()) else {
///     panic!("the request is complete");
/// };
/// let mut assembly = Assembly::from_request(&request);
/// assert_eq!(assembly.next(), None);
/// assembly.text(true, b"ab", &[1, 97, 98], None);
/// let whole = assembly.next().expect("it is whole");
/// assert_eq!((whole.tokens, whole.extra), (vec![1, 97, 98, 7, 8], 0));
/// assert_eq!(assembly.next(), None);
/// ```
#[derive(Debug)]
pub struct Assembly {
    source: PromptSource,
    ready: VecDeque<Assembled>,
}

/// Where the tokens of a request's prompts come from.
#[derive(Debug)]
enum PromptSource {
    /// Each text that is tokenized with special tokens is a prompt.
    EachText,
    /// The body has the prompts: those that are left, and the tokens so far of the first.
    Given(VecDeque<VecDeque<Piece>>, Option<Vec<i32>>),
    /// From parts, by the server's rule for `/infill`.
    Infill(Box<Filling>),
    /// The prompts cannot be known.
    Unknown,
}

impl Assembly {
    /// For a request that was read [with its prompts](crate::ConnectionReader::with_prompts).
    #[must_use]
    pub fn from_request(request: &Request) -> Self {
        let source = match (request.endpoint, &request.prompts) {
            _ if !request.is_inference() => PromptSource::Unknown,
            (Endpoint::Completion, Some(prompts)) => {
                let prompts = prompts
                    .iter()
                    .map(|prompt| prompt.iter().cloned().collect());
                PromptSource::Given(prompts.collect(), None)
            }
            (Endpoint::Infill, _) => match &request.infill {
                Some(parts) => PromptSource::Infill(Box::new(Filling::new(parts.clone()))),
                None => PromptSource::Unknown,
            },
            // Only the server knows how to compose these from their parts.
            (Endpoint::Completion | Endpoint::Rerank | Endpoint::Decision, _) => {
                PromptSource::Unknown
            }
            _ => PromptSource::EachText,
        };
        let mut assembly = Self {
            source,
            ready: VecDeque::new(),
        };
        assembly.go_on();
        assembly
    }

    /// Whether the server's rule for `/infill` is needed to use its texts.
    #[must_use]
    pub fn is_infill(&self) -> bool {
        matches!(self.source, PromptSource::Infill(_))
    }

    /// The server has tokenized a text on the request's thread, with or without adding special tokens.
    /// `infill`: its rule for `/infill`, if it is known.
    pub fn text(&mut self, special: bool, text: &[u8], tokens: &[i32], infill: Option<&Infill>) {
        match &mut self.source {
            PromptSource::EachText if special => self.ready.push_back(tokens.to_vec().into()),
            PromptSource::Infill(filling) => {
                let Some(infill) = infill.filter(|_| !special) else {
                    self.source = PromptSource::Unknown;
                    return;
                };
                self.ready.extend(filling.text(text, tokens, infill));
            }
            PromptSource::Given(prompts, begun) if !prompts.is_empty() => {
                match (special, begun) {
                    (true, begun @ None) => *begun = Some(tokens.to_vec()),
                    (false, Some(begun)) => begun.extend_from_slice(tokens),
                    // The text belongs to something else.
                    (false, None) => return,
                    (true, Some(_)) => {
                        self.source = PromptSource::Unknown;
                        return;
                    }
                }
                if let Some(first) = prompts.front_mut() {
                    first.pop_front();
                }
                self.go_on();
            }
            _ => {}
        }
    }

    /// The next complete prompt.
    #[allow(clippy::should_implement_trait, reason = "there may be more later")]
    pub fn next(&mut self) -> Option<Assembled> {
        self.ready.pop_front()
    }

    /// Adds the pieces that are tokens already.
    fn go_on(&mut self) {
        let PromptSource::Given(prompts, begun) = &mut self.source else {
            return;
        };
        while let Some(first) = prompts.front_mut() {
            match first.pop_front() {
                Some(Piece::Tokens(tokens)) => match begun {
                    Some(begun) => begun.extend(tokens),
                    None => *begun = Some(tokens),
                },
                Some(text) => {
                    first.push_front(text);
                    return;
                }
                None => {
                    prompts.pop_front();
                    self.ready.extend(begun.take().map(Assembled::from));
                }
            }
        }
    }
}
