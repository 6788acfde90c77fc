//! A model that says what is written in its table of positions, whatever its prompt is.
//!
//! It is a GPT-2 of one block, whose weights are zero, as are the embeddings of its tokens. So what goes into the output is the
//! position alone: row p − 1 of the table is the code of the token that is to be said at position p, and the output has
//! the codes of all tokens. Where nothing is written, it ends its answer.

use std::io;
use std::path::Path;

use crate::gguf::{self, Header, Tensor, Values};
use crate::rng::Rng;
use crate::spec::{Arch, Spec};
use crate::vocab::{self, Chat};

/// The length of a code: those of two tokens are far enough from each other.
const WIDTH: u64 = 128;

/// What is said, and from which position on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// The tokens of the prompt before it.
    pub at: usize,
    /// The text. Two letters are a token wherever there is one for them, from the left on. The tokenizer prefers others: of `bad` it
    /// makes `b` and `ad`.
    pub text: String,
}

/// Writes such a model. Its tokens are those of a spec with [`letter_pairs`](Spec::letter_pairs), and the markers of
/// `chat`. `positions`: how many it has.
///
/// # Errors
/// A text has what is no token, or goes beyond the positions; otherwise whatever writing the file answers.
pub fn write_script(path: &Path, chat: &Chat, said: &[Said], positions: u32) -> io::Result<()> {
    let spec = Spec {
        letter_pairs: true,
        ..Spec::new(Arch::Llama)
    };
    let tokens = vocab::tokens(&spec, chat);
    let codes: Vec<Vec<f32>> = (0..tokens.len()).map(code).collect();
    let end = id_of(&tokens, &chat.eos)?;
    let mut table = vec![end; positions as usize];
    for one in said {
        let ids = ids(&tokens, &one.text)?;
        let from = one
            .at
            .checked_sub(1)
            .ok_or_else(|| wrong("a prompt has a token"))?;
        let places = table.get_mut(from..from + ids.len());
        let places = places.ok_or_else(|| wrong("too few positions"))?;
        if places.iter().any(|&place| place != end) {
            return Err(wrong("two texts are to be said at one position"));
        }
        places.copy_from_slice(&ids);
    }
    let rows = |ids: &[usize]| ids.iter().flat_map(|&id| codes[id].clone()).collect();
    let all: Vec<usize> = (0..tokens.len()).collect();
    let tensors = tensors(rows(&table), rows(&all), tokens.len() as u64);

    let mut header = Header::default();
    header.string("general.architecture", "gpt2");
    header.string("general.name", "scripted");
    for (key, value) in [
        ("context_length", positions),
        ("embedding_length", WIDTH as u32),
        ("feed_forward_length", WIDTH as u32),
        ("block_count", 1),
        ("attention.head_count", 2),
    ] {
        header.u32(&format!("gpt2.{key}"), value);
    }
    header.f32("gpt2.attention.layer_norm_epsilon", 1e-5);
    vocab::describe(&mut header, chat, &spec);
    crate::whole_file(path, |out| gguf::write(out, &header, &tensors, 1))
}

fn tensors(table: Vec<f32>, codes: Vec<f32>, tokens: u64) -> Vec<Tensor> {
    let mut all = Vec::new();
    let mut add =
        |name: &str, extents: &[u64], values| all.push(Tensor::new(name, extents, values));
    let positions = table.len() as u64 / WIDTH;
    let (zero, one) = (Values::Constant(0.0), Values::Constant(1.0));
    add("token_embd.weight", &[WIDTH, tokens], zero.clone());
    add(
        "position_embd.weight",
        &[WIDTH, positions],
        Values::Given(table),
    );
    add("output_norm.weight", &[WIDTH], one.clone());
    add("output_norm.bias", &[WIDTH], zero.clone());
    add("output.weight", &[WIDTH, tokens], Values::Given(codes));
    for norm in ["attn_norm", "ffn_norm"] {
        add(&format!("blk.0.{norm}.weight"), &[WIDTH], one.clone());
        add(&format!("blk.0.{norm}.bias"), &[WIDTH], zero.clone());
    }
    for (name, outputs) in [
        ("attn_qkv", 3 * WIDTH),
        ("attn_output", WIDTH),
        ("ffn_up", WIDTH),
        ("ffn_down", WIDTH),
    ] {
        add(
            &format!("blk.0.{name}.weight"),
            &[WIDTH, outputs],
            zero.clone(),
        );
        add(&format!("blk.0.{name}.bias"), &[outputs], zero.clone());
    }
    all
}

/// The code of a token: ±1, drawn for it.
fn code(token: usize) -> Vec<f32> {
    let mut rng = Rng::named(token as u64, "code");
    (0..WIDTH).map(|_| rng.next().signum()).collect()
}

/// Markers first, then two letters, then single characters.
fn ids(tokens: &[(String, i32)], mut text: &str) -> io::Result<Vec<usize>> {
    let markers: Vec<(usize, &str)> = tokens
        .iter()
        .enumerate()
        .filter(|(_, (text, kind))| text.len() > 1 && vocab::is_marker(*kind))
        .map(|(id, (text, _))| (id, text.as_str()))
        .collect();
    let mut ids = Vec::new();
    while let Some(first) = text.chars().next() {
        let found = markers
            .iter()
            .filter(|(_, marker)| text.starts_with(marker));
        if let Some((id, marker)) = found.max_by_key(|(_, marker)| marker.len()) {
            ids.push(*id);
            text = &text[marker.len()..];
            continue;
        }
        let second = first.len_utf8() + 1;
        let pair = text.get(..second).and_then(|pair| id_of(tokens, pair).ok());
        if let Some(id) = pair {
            ids.push(id);
            text = &text[second..];
            continue;
        }
        let name = match first {
            ' ' => "\u{2581}".to_owned(),
            '!'..='~' => first.to_string(),
            '\n' => "<0x0A>".to_owned(),
            other => return Err(wrong(&format!("{other:?} is no token"))),
        };
        ids.push(id_of(tokens, &name)?);
        text = &text[first.len_utf8()..];
    }
    Ok(ids)
}

fn id_of(tokens: &[(String, i32)], text: &str) -> io::Result<usize> {
    let found = tokens.iter().position(|(one, _)| one == text);
    found.ok_or_else(|| wrong(&format!("{text:?} is no token")))
}

fn wrong(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}
