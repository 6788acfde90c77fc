//! A request's prompts as tokens, put together from the body and from what the server tokenizes.

use std::collections::VecDeque;

use crate::infill::Filling;
use crate::{Endpoint, Infill, Piece, Request};

/// Puts the prompts of one request together.
///
/// The server (`tokenize_input_prompts`) goes through a list of prompts in order and tokenizes
/// each text in it, with special tokens (a `<s>` in front) where it begins a prompt and without
/// where it does not. Other texts, of parameters and triggers, it tokenizes without.
///
/// ```
/// # use contextpilot_request::{Assembly, RequestReader, Step};
/// let mut reader = RequestReader::with_prompts();
/// let body = br#"{"prompt": ["ab", 7, 8]}"#;
/// let mut bytes = format!("POST /completion HTTP/1.1\r\nContent-Length: {}\r\n\r\n", body.len());
/// bytes += std::str::from_utf8(body).unwrap();
/// let Step::Complete(request) = reader.feed_recv(bytes.as_bytes()) else {
///     panic!("the request is complete");
/// };
/// let mut assembly = Assembly::of(&request);
/// assert_eq!(assembly.next(), None);
/// assembly.text(true, b"ab", &[1, 97, 98], None);
/// let whole = assembly.next().expect("it is whole");
/// assert_eq!((whole.tokens, whole.extra), (vec![1, 97, 98, 7, 8], 0));
/// assert_eq!(assembly.next(), None);
/// ```
#[derive(Debug)]
pub struct Assembly {
    way: Way,
    ready: VecDeque<Assembled>,
}

/// A prompt that is whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assembled {
    /// Its tokens.
    pub tokens: Vec<i32>,
    /// So many of the first are extra context, of which the server takes the last ones, as far as
    /// there is room.
    pub extra: usize,
}

impl From<Vec<i32>> for Assembled {
    fn from(tokens: Vec<i32>) -> Self {
        Self { tokens, extra: 0 }
    }
}

#[derive(Debug)]
enum Way {
    /// What is tokenized with special tokens is a prompt.
    EachText,
    /// As the body has it: what is left of the prompts, and what there is of the first.
    Given(VecDeque<VecDeque<Piece>>, Option<Vec<i32>>),
    /// From parts, by a rule of the server's.
    Infill(Box<Filling>),
    /// It cannot be told.
    Unknown,
}

impl Assembly {
    /// Of a request that was read [with its prompts](crate::RequestReader::with_prompts).
    #[must_use]
    pub fn of(request: &Request) -> Self {
        let way = match (request.endpoint, &request.prompts) {
            _ if !request.is_inference() => Way::Unknown,
            (Endpoint::Completion, Some(prompts)) => {
                let prompts = prompts
                    .iter()
                    .map(|prompt| prompt.iter().cloned().collect());
                Way::Given(prompts.collect(), None)
            }
            (Endpoint::Infill, _) => match &request.infill {
                Some(parts) => Way::Infill(Box::new(Filling::of(parts.clone()))),
                None => Way::Unknown,
            },
            // Made of parts that only the server knows how to put together.
            (Endpoint::Completion | Endpoint::Rerank, _) => Way::Unknown,
            _ => Way::EachText,
        };
        let mut assembly = Self {
            way,
            ready: VecDeque::new(),
        };
        assembly.go_on();
        assembly
    }

    /// Whether its texts are of use only together with the server's rule for `/infill`.
    #[must_use]
    pub fn is_infill(&self) -> bool {
        matches!(self.way, Way::Infill(_))
    }

    /// The server has made tokens of a text on the request's thread, with or without special ones.
    /// `infill`: its rule for such requests, if it is known.
    pub fn text(&mut self, special: bool, text: &[u8], tokens: &[i32], infill: Option<&Infill>) {
        match &mut self.way {
            Way::EachText if special => self.ready.push_back(tokens.to_vec().into()),
            Way::Infill(filling) => {
                let Some(infill) = infill.filter(|_| !special) else {
                    self.way = Way::Unknown;
                    return;
                };
                self.ready.extend(filling.text(text, tokens, infill));
            }
            Way::Given(prompts, begun) if !prompts.is_empty() => {
                match (special, begun) {
                    (true, begun @ None) => *begun = Some(tokens.to_vec()),
                    (false, Some(begun)) => begun.extend_from_slice(tokens),
                    // Something else's.
                    (false, None) => return,
                    (true, Some(_)) => {
                        self.way = Way::Unknown;
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

    /// The next prompt that is whole.
    #[allow(clippy::should_implement_trait, reason = "there may be more later")]
    pub fn next(&mut self) -> Option<Assembled> {
        self.ready.pop_front()
    }

    /// Takes what needs no text.
    fn go_on(&mut self) {
        let Way::Given(prompts, begun) = &mut self.way else {
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
