//! How the server composes a prompt for `/infill`.
//!
//! The server's function is `format_infill`, called `format_prompt_infill` since late 2025. By comparison of
//! the sources, it is the same in all servers from May 2025 (llama-cpp-python 0.3.9) to autumn 2026 (0.3.36).
//!
//! ```text
//! [repository] myproject\n  ([separator] filename\n  text)…  [separator] filename\n
//! [bos] [prefix] input_prefix prompt [suffix] input_suffix [middle]
//! ```
//!
//! The first line is extra context. The server keeps as many of its last tokens as its settings have room
//! for. It keeps the last tokens of the prefix and the first tokens of the suffix, as many as fit in a
//! batch.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::json::{InfillParts, Piece};

/// A complete prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assembled {
    /// Its tokens.
    pub tokens: Vec<i32>,
    /// How many of the first tokens are extra context. The server keeps as many of the last of these as it
    /// has room for.
    pub extra: usize,
}

impl From<Vec<i32>> for Assembled {
    fn from(tokens: Vec<i32>) -> Self {
        Self { tokens, extra: 0 }
    }
}

/// What a server needs to compose prompts for `/infill`.
#[derive(Debug)]
pub struct Infill {
    /// `llama_vocab_fim_pre`.
    pub prefix: i32,
    /// `llama_vocab_fim_suf`.
    pub suffix: i32,
    /// `llama_vocab_fim_mid`.
    pub middle: i32,
    /// `llama_vocab_fim_rep`; `None`: the vocabulary has none, here and below.
    pub repository: Option<i32>,
    /// `llama_vocab_fim_sep`.
    pub separator: Option<i32>,
    /// `llama_vocab_bos`, if prompts begin with it.
    pub bos: Option<i32>,
    /// Tokens of a batch, by the server's flag (`--batch-size`).
    pub batch: usize,
    /// `--spm-infill`.
    pub suffix_first: bool,
    /// The texts that the server itself adds.
    pub texts: InfillTexts,
}

/// Tokens of the texts that the server adds. It tokenizes each once, at its first use: such a call does not
/// belong to the request.
#[derive(Debug, Default)]
pub struct InfillTexts {
    repository: OwnText,
    snippet: OwnText,
    file: Vec<i32>,
}

#[derive(Debug, Default)]
struct OwnText {
    tokens: Vec<i32>,
    /// The server has tokenized the text.
    made: AtomicBool,
}

impl OwnText {
    /// Whether this call was the server tokenizing its own text, just before it uses the text.
    fn is_made_by(&self, text: &[u8], own: &[u8]) -> bool {
        text == own && !self.made.swap(true, Ordering::Relaxed)
    }
}

impl InfillTexts {
    const REPOSITORY: &'static [u8] = b"myproject\n";
    const SNIPPET: &'static [u8] = b"\n\n--- snippet ---\n\n";
    const FILE: &'static [u8] = b"filename\n";

    /// `tokenize` makes tokens of a text as the server does for its own texts: without adding or parsing
    /// special tokens.
    pub fn new(mut tokenize: impl FnMut(&[u8]) -> Option<Vec<i32>>) -> Option<Self> {
        let mut own = |text| {
            tokenize(text).map(|tokens| OwnText {
                tokens,
                made: AtomicBool::new(false),
            })
        };
        Some(Self {
            repository: own(Self::REPOSITORY)?,
            snippet: own(Self::SNIPPET)?,
            file: tokenize(Self::FILE)?,
        })
    }
}

/// A prompt that is being composed.
#[derive(Debug)]
pub(crate) struct Filling {
    prefix: VecDeque<Piece>,
    suffix: VecDeque<Piece>,
    files: usize,
    /// Which part the next text is.
    next: Next,
    prompt_tokens: Vec<i32>,
    prefix_tokens: Vec<i32>,
    suffix_tokens: Vec<i32>,
    extra: Vec<i32>,
}

/// The parts, in the order in which the server tokenizes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Prompt,
    Prefix,
    Suffix,
    FileName,
    FileText,
    /// No part: the prompt is complete.
    Other,
}

impl Filling {
    pub(crate) fn new(parts: InfillParts) -> Self {
        Self {
            prefix: parts.prefix.into(),
            suffix: parts.suffix.into(),
            files: parts.files,
            next: Next::Prompt,
            prompt_tokens: Vec::new(),
            prefix_tokens: Vec::new(),
            suffix_tokens: Vec::new(),
            extra: Vec::new(),
        }
    }

    /// The server has tokenized a text. Returns the prompt when it is complete.
    pub(crate) fn text(&mut self, text: &[u8], tokens: &[i32], rule: &Infill) -> Option<Assembled> {
        if self.is_servers_own(text, rule) {
            return None;
        }
        match self.next {
            Next::Prompt => {
                self.prompt_tokens.extend_from_slice(tokens);
                self.next = Next::Prefix;
            }
            Next::Prefix => {
                self.prefix.pop_front();
                self.prefix_tokens.extend_from_slice(tokens);
            }
            Next::Suffix => {
                self.suffix.pop_front();
                self.suffix_tokens.extend_from_slice(tokens);
            }
            Next::FileName => {
                self.extra.extend(rule.separator);
                self.extra.extend_from_slice(tokens);
                self.next = Next::FileText;
            }
            Next::FileText => {
                if rule.separator.is_none() {
                    self.extra.extend_from_slice(&rule.texts.snippet.tokens);
                }
                self.extra.extend_from_slice(tokens);
                self.files -= 1;
                self.next = Next::FileName;
            }
            Next::Other => return None,
        }
        self.go_on(rule)
    }

    /// Whether the server tokenizes one of its own texts here. It does so right before the first use of
    /// the tokens.
    fn is_servers_own(&self, text: &[u8], rule: &Infill) -> bool {
        let after_suffix = matches!(self.next, Next::FileName | Next::FileText | Next::Other);
        let repository = after_suffix && rule.repository.is_some();
        let snippet = self.next == Next::FileText && rule.separator.is_none();
        let texts = &rule.texts;
        repository && texts.repository.is_made_by(text, InfillTexts::REPOSITORY)
            || snippet && texts.snippet.is_made_by(text, InfillTexts::SNIPPET)
    }

    /// Takes what needs no text.
    fn go_on(&mut self, rule: &Infill) -> Option<Assembled> {
        if self.next == Next::Prefix && !needs_text(&mut self.prefix, &mut self.prefix_tokens) {
            self.next = Next::Suffix;
        }
        if self.next == Next::Suffix && !needs_text(&mut self.suffix, &mut self.suffix_tokens) {
            self.next = Next::FileName;
            if let Some(repository) = rule.repository {
                self.extra.push(repository);
                self.extra.extend_from_slice(&rule.texts.repository.tokens);
            }
        }
        if self.next != Next::FileName {
            return None;
        }
        if self.files == 0 {
            self.next = Next::Other;
            return Some(self.whole(rule));
        }
        if rule.separator.is_none() {
            // The server does not tokenize its name then.
            self.next = Next::FileText;
        }
        None
    }

    fn whole(&mut self, rule: &Infill) -> Assembled {
        let (prompt, extra) = (&self.prompt_tokens, &mut self.extra);
        if let Some(separator) = rule.separator {
            extra.push(separator);
            extra.extend_from_slice(&rule.texts.file);
        }
        let quarter = rule.batch / 4;
        let first = self.prefix_tokens.len().saturating_sub(3 * quarter);
        let prefix = &self.prefix_tokens[first..];
        let room = quarter.saturating_sub(2 + prompt.len());
        let suffix = &self.suffix_tokens[..self.suffix_tokens.len().min(room)];
        let before: [&[i32]; 3] = [&[rule.prefix], prefix, prompt];
        let after: [&[i32]; 2] = [&[rule.suffix], suffix];
        let mut tokens = std::mem::take(extra);
        let extra = tokens.len();
        tokens.extend(rule.bos);
        let (before, after) = (before.concat(), after.concat());
        let [first, second] = if rule.suffix_first {
            [after, before]
        } else {
            [before, after]
        };
        tokens.extend(first);
        tokens.extend(second);
        tokens.push(rule.middle);
        Assembled { tokens, extra }
    }
}

/// Moves tokens up to the next text. Returns whether there is a text.
fn needs_text(pieces: &mut VecDeque<Piece>, tokens: &mut Vec<i32>) -> bool {
    while let Some(Piece::Tokens(given)) = pieces.front() {
        tokens.extend_from_slice(given);
        pieces.pop_front();
    }
    !pieces.is_empty()
}
