//! What kind of thing differs between what a slot holds and the next prompt.

use serde::Serialize;

/// A kind of difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    ReasoningLeftOutAtUserMessage,
    ReasoningLeftOutAtToolResult,
    SystemTextMoved,
    ToolsMoved,
    Date,
    DateWithoutSystemMessage,
    WhiteSpaceTrimmed,
    CallSpelledOtherwise,
    ThinkBlockNotInHistory,
    GenerationPromptNotInHistory,
    ContentLeftOut,
    CallLeftOut,
    Other,
}

impl Kind {
    /// As part of a sentence.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::ReasoningLeftOutAtUserMessage => "reasoning is left out at a new user message",
            Self::ReasoningLeftOutAtToolResult => "reasoning is left out at a tool result",
            Self::SystemTextMoved => "the system text moves",
            Self::ToolsMoved => "the tools move",
            Self::Date => "a date stands near the beginning",
            Self::DateWithoutSystemMessage => "a date, in chats without a system message",
            Self::WhiteSpaceTrimmed => "white space at an end of an answer is trimmed",
            Self::CallSpelledOtherwise => "a call is spelled otherwise",
            Self::ThinkBlockNotInHistory => "a think block that the history lacks",
            Self::GenerationPromptNotInHistory => {
                "the generation prompt has what the history lacks"
            }
            Self::ContentLeftOut => "the content of an answer is left out",
            Self::CallLeftOut => "calls are left out of the history",
            Self::Other => "something else",
        }
    }
}

/// A difference, and what is known of the texts around it.
pub(super) struct Difference<'a> {
    /// What the slot holds: the prompt, and what was generated.
    pub(super) held: &'a str,
    /// The length of the prompt in it.
    pub(super) prompt: usize,
    /// Where the last message of the prompt ends, and its closing and the generation prompt begin.
    pub(super) tail: usize,
    pub(super) next: &'a str,
    /// Where they differ.
    pub(super) at: usize,
    pub(super) system: &'a str,
    /// The description of a tool.
    pub(super) tool: &'a str,
    /// All reasoning up to here.
    pub(super) reasoning: &'a [String],
    /// The content of each answer up to here, and what stands in each call.
    pub(super) contents: &'a [String],
    pub(super) calls: &'a [String],
    /// Whether what was said last is a call.
    pub(super) is_call: bool,
    /// Whether the next message is the user's.
    pub(super) at_user: bool,
}

impl Difference<'_> {
    pub(super) fn kinds(&self) -> Vec<Kind> {
        // Some templates show a text twice, and move one of them.
        let moved = |text: &str| {
            let next: Vec<_> = self.next.match_indices(text).collect();
            let mut held = self.held.match_indices(text);
            held.any(|place| !next.contains(&place))
        };
        let moved: Vec<Kind> = [
            (Kind::SystemTextMoved, self.system),
            (Kind::ToolsMoved, self.tool),
        ]
        .into_iter()
        .filter(|(_, text)| !text.is_empty() && moved(text))
        .map(|(kind, _)| kind)
        .collect();
        if !moved.is_empty() {
            return moved;
        }
        vec![self.kind()]
    }

    fn kind(&self) -> Kind {
        let lost = |texts: &[String]| texts.iter().any(|text| !self.next.contains(text.as_str()));
        if lost(self.reasoning) {
            return if self.at_user {
                Kind::ReasoningLeftOutAtUserMessage
            } else {
                Kind::ReasoningLeftOutAtToolResult
            };
        }
        // A tag may have begun before the place where the texts differ.
        let around = |text: &str| {
            let from = floor(text, self.at.saturating_sub(12));
            let to = floor(text, self.at + 40);
            let part = text[from..to].to_ascii_lowercase();
            part.contains("think") || part.contains("reason") || part.contains("thought")
        };
        let in_tail = (self.tail..self.prompt).contains(&self.at);
        if around(self.held) && (in_tail || !around_is_text(self.held, self.at)) {
            return Kind::ThinkBlockNotInHistory;
        }
        if in_tail {
            return Kind::GenerationPromptNotInHistory;
        }
        if lost(self.contents) {
            return Kind::ContentLeftOut;
        }
        if lost(self.calls) {
            return Kind::CallLeftOut;
        }
        if self.is_call || self.at < self.prompt {
            Kind::CallSpelledOtherwise
        } else {
            Kind::Other
        }
    }
}

/// Whether plain small letters stand there, as in our texts, and no markup.
fn around_is_text(text: &str, at: usize) -> bool {
    let part = &text[floor(text, at)..floor(text, at + 12)];
    part.len() == 12 && part.bytes().all(|b| b.is_ascii_lowercase() || b == b' ')
}

/// The last boundary of a character up to there.
pub(super) fn floor(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}
