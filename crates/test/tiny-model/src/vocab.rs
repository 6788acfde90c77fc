//! A SentencePiece-style vocabulary in which a character is a token; on demand also two letters side by side.

use crate::gguf::Header;
use crate::spec::Spec;

// Token types of the format.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const BYTE: i32 = 6;

const BOS: u32 = 1;
const EOS: u32 = 2;

/// Fill-in-the-middle markers, without which `/infill` is refused.
const INFILL: [(&str, &str); 3] = [
    ("<|fim_prefix|>", "tokenizer.ggml.fim_pre_token_id"),
    ("<|fim_suffix|>", "tokenizer.ggml.fim_suf_token_id"),
    ("<|fim_middle|>", "tokenizer.ggml.fim_mid_token_id"),
];

/// Plain text, no special tokens: a conversation that goes on begins with the
/// very tokens of the shorter one, as with real chat templates.
const CHAT_TEMPLATE: &str = "{%- for message in messages -%}\
    {{- message['role'] + ': ' + message['content'] + '\\n' -}}\
    {%- endfor -%}\
    {%- if add_generation_prompt -%}{{- 'assistant: ' -}}{%- endif -%}";

/// Chat templates, and the tokens that they name: those of another model.
///
/// A server that is started with such a model renders chats as it would for the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chat {
    /// `tokenizer.chat_template`.
    pub template: String,
    /// `tokenizer.chat_template.tool_use`: the one for requests with tools.
    pub tool_use: Option<String>,
    /// The text of the token that a prompt begins with.
    pub bos: String,
    /// The text of the token that ends an answer.
    pub eos: String,
    /// Other texts that are tokens. Those in angle brackets with bars, and in square brackets, are control tokens.
    pub markers: Vec<String>,
}

impl Chat {
    /// A template, with the usual tokens `<s>` and `</s>`.
    pub fn new(template: impl Into<String>) -> Self {
        Self {
            template: template.into(),
            tool_use: None,
            bos: "<s>".to_owned(),
            eos: "</s>".to_owned(),
            markers: Vec::new(),
        }
    }
}

impl Default for Chat {
    fn default() -> Self {
        Self::new(CHAT_TEMPLATE)
    }
}

/// The markers of gpt-oss's format.
const HARMONY: [&str; 7] = [
    "<|start|>",
    "<|end|>",
    "<|channel|>",
    "<|constrain|>",
    "<|message|>",
    "<|call|>",
    "<|return|>",
];

/// Text and type of every token, in the order of their ids. With `letter_pairs`, two letters up to h are a token, too, and the tokenizer
/// prefers these, so that most of what a random model says is tokenized otherwise when it comes back.
pub(crate) fn tokens(spec: &Spec, chat: &Chat) -> Vec<(String, i32)> {
    let mut tokens = vec![
        ("<unk>".to_owned(), UNKNOWN),
        ("<s>".to_owned(), CONTROL),
        ("</s>".to_owned(), CONTROL),
    ];
    tokens.extend((0..=255).map(|byte| (format!("<0x{byte:02X}>"), BYTE)));
    // SentencePiece writes a space as U+2581.
    tokens.push(("\u{2581}".to_owned(), NORMAL));
    tokens.extend((b'!'..=b'~').map(|char| (char::from(char).to_string(), NORMAL)));
    tokens.extend(INFILL.map(|(text, _)| (text.to_owned(), CONTROL)));
    if spec.letter_pairs {
        let letters = || (b'a'..=b'h').map(char::from);
        let all = letters().flat_map(|first| letters().map(move |second| (first, second)));
        tokens.extend(all.map(|(first, second)| (format!("{first}{second}"), NORMAL)));
    }
    if spec.harmony {
        tokens.extend(HARMONY.map(|text| (text.to_owned(), CONTROL)));
    }
    tokens.extend(chat.markers.iter().map(|text| (text.clone(), kind(text))));
    // No two tokens may have the same text.
    for (id, text) in [(BOS, &chat.bos), (EOS, &chat.eos)] {
        if tokens.iter().all(|(taken, _)| taken != text) {
            tokens[id as usize].0.clone_from(text);
        }
    }
    tokens
}

fn kind(marker: &str) -> i32 {
    let is_control = ["<|", "<\u{ff5c}", "["]
        .iter()
        .any(|begin| marker.starts_with(begin));
    if is_control { CONTROL } else { USER_DEFINED }
}

/// Whether a token of this kind is found in text before all others.
pub(crate) fn is_marker(kind: i32) -> bool {
    matches!(kind, CONTROL | USER_DEFINED)
}

/// Whether this is a token that the model may say: ASCII letters.
pub(crate) fn is_letter((text, kind): &(String, i32)) -> bool {
    *kind == NORMAL && text.bytes().all(|byte| byte.is_ascii_alphabetic())
}

pub(crate) fn describe(header: &mut Header, chat: &Chat, spec: &Spec) {
    let tokens = tokens(spec, chat);
    let id_of = |text: &str| {
        let id = tokens.iter().position(|token| token.0 == text);
        id.unwrap_or_default() as u32
    };
    header.string("tokenizer.ggml.model", "llama");
    header.strings(
        "tokenizer.ggml.tokens",
        tokens.iter().map(|(text, _)| text.as_str()),
    );
    // A pair is worth more than its letters, and one that stands further in front more than others.
    let score = |(nth, (text, kind)): (usize, &(String, i32))| {
        if *kind == NORMAL && text.len() == 2 {
            2000.0 - nth as f32
        } else {
            0.0
        }
    };
    header.f32s(
        "tokenizer.ggml.scores",
        tokens.iter().enumerate().map(score),
    );
    header.i32s(
        "tokenizer.ggml.token_type",
        tokens.iter().map(|(_, kind)| *kind),
    );
    header.u32("tokenizer.ggml.unknown_token_id", 0);
    header.u32("tokenizer.ggml.bos_token_id", id_of(&chat.bos));
    header.u32("tokenizer.ggml.eos_token_id", id_of(&chat.eos));
    header.bool("tokenizer.ggml.add_bos_token", true);
    header.bool("tokenizer.ggml.add_eos_token", false);
    header.bool("tokenizer.ggml.add_space_prefix", false);
    for (text, key) in INFILL {
        header.u32(key, id_of(text));
    }
    header.string("tokenizer.chat_template", &chat.template);
    if let Some(template) = &chat.tool_use {
        header.string("tokenizer.chat_template.tool_use", template);
    }
}
