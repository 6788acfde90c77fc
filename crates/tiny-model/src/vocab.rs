//! A SentencePiece-style vocabulary in which a character is a token; on demand also two letters side by side.

use crate::gguf::Header;

// Token types of the format.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
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

/// Text and type of every token, in the order of their ids. `pairs`: two letters up to h are a token, too, and the tokenizer
/// prefers these, so that most of what a random model says is tokenized otherwise when it comes back.
pub(crate) fn tokens(pairs: bool) -> Vec<(String, i32)> {
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
    if pairs {
        let letters = || (b'a'..=b'h').map(char::from);
        let all = letters().flat_map(|first| letters().map(move |second| (first, second)));
        tokens.extend(all.map(|(first, second)| (format!("{first}{second}"), NORMAL)));
    }
    tokens
}

/// Whether this is a token that the model may say: ASCII letters.
pub(crate) fn is_letter((text, kind): &(String, i32)) -> bool {
    *kind == NORMAL && text.bytes().all(|byte| byte.is_ascii_alphabetic())
}

pub(crate) fn describe(header: &mut Header, pairs: bool) {
    let tokens = tokens(pairs);
    header.string("tokenizer.ggml.model", "llama");
    header.strings(
        "tokenizer.ggml.tokens",
        tokens.iter().map(|(text, _)| text.as_str()),
    );
    // A pair is worth more than its letters, and one that stands further in front more than others.
    let score =
        |(nth, (text, kind)): (usize, &(String, i32))| match *kind == NORMAL && text.len() == 2 {
            true => 2000.0 - nth as f32,
            false => 0.0,
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
    header.u32("tokenizer.ggml.bos_token_id", BOS);
    header.u32("tokenizer.ggml.eos_token_id", EOS);
    header.bool("tokenizer.ggml.add_bos_token", true);
    header.bool("tokenizer.ggml.add_eos_token", false);
    header.bool("tokenizer.ggml.add_space_prefix", false);
    for (text, key) in INFILL {
        let id = tokens.iter().position(|token| token.0 == text);
        header.u32(key, id.unwrap_or_default() as u32);
    }
    header.string("tokenizer.chat_template", CHAT_TEMPLATE);
}
