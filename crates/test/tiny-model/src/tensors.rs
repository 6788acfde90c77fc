//! The tensors of each architecture, under the names and with the shapes that
//! llama.cpp's loader asks for.
//!
//! # Letters only
//! Feature 0 of the hidden state is a bias: every token's embedding sets it to
//! something positive and no block writes to it (its row in the projections
//! back into the hidden state is zero). The output layer weighs it up for
//! letters and down for everything else, by far more than random weights can
//! make up for.

use crate::{
    gguf::{Tensor, Values},
    spec::{Arch, Spec},
    vocab::{self, Chat},
};

/// A bound for uniform weights that keeps the size of what passes through.
pub(crate) fn bound(inputs: u64) -> f32 {
    (3.0 / inputs as f32).sqrt()
}

/// Numbers that [`Arch::Dspark`] remembers of the token before.
const RANK: u64 = 16;

struct Tensors(Vec<Tensor>);

impl Tensors {
    fn add(&mut self, name: impl Into<String>, extents: &[u64], values: Values) {
        self.0.push(Tensor::new(name, extents, values));
    }

    fn ones(&mut self, name: impl Into<String>, length: u64) {
        self.add(name, &[length], Values::Constant(1.0));
    }
}

/// All tensors of a model.
pub(crate) fn of(spec: &Spec, chat: &Chat) -> Vec<Tensor> {
    let mut tensors = Tensors(Vec::new());
    let width = u64::from(spec.width);
    let vocabulary = vocab::tokens(spec, chat);
    let rows = [width, vocabulary.len() as u64];
    let per_token = |letter: f32, other: f32| -> Vec<f32> {
        let value = |token| {
            if vocab::is_letter(token) {
                letter
            } else {
                other
            }
        };
        vocabulary.iter().map(value).collect()
    };

    if spec.arch == Arch::Gemma2 {
        // Embedding and output are one matrix here, so letters and others must
        // differ in size, not in sign. Embeddings are scaled by √width.
        tensors.add(
            "token_embd.weight",
            &rows,
            Values::RandomAfter(0.2, per_token(0.4, 0.2)),
        );
        tensors.add(
            "output_norm.weight",
            &[width],
            Values::FirstAndRest(300.0, 1.0),
        );
    } else {
        tensors.add(
            "token_embd.weight",
            &rows,
            Values::RandomAfter(1.0, per_token(1.0, 1.0)),
        );
        tensors.ones("output_norm.weight", width);
        tensors.add(
            "output.weight",
            &rows,
            Values::RandomAfter(2.0 * bound(width), per_token(60.0, -60.0)),
        );
    }
    if spec.arch == Arch::LongRope {
        for (name, factor) in [("short", 1.0), ("long", 8.0)] {
            let name = format!("rope_factors_{name}.weight");
            tensors.add(name, &[u64::from(spec.pairs())], Values::Constant(factor));
        }
    }
    if spec.arch.follows_layers() {
        // What goes into the first of the three layers, and a part of the others.
        tensors.add(
            "fc.weight",
            &[3 * width, width],
            Values::DiagonalAndRandom(1.0, 0.3 * bound(2 * width)),
        );
    }
    if spec.arch.fills_masks() {
        tensors.ones("enc.output_norm.weight", width);
    }
    if spec.arch == Arch::Dspark {
        let of_each = [RANK, rows[1]];
        for name in ["markov_w1", "markov_w2"] {
            let name = format!("{name}.weight");
            tensors.add(name, &of_each, Values::Random(bound(RANK)));
        }
        let inputs = width + RANK;
        let sure = Values::Random(bound(inputs));
        tensors.add("conf_proj.weight", &[inputs, 1], sure);
    }
    for layer in 0..spec.layers {
        let block = format!("blk.{layer}");
        if spec.is_recurrent(layer) && spec.arch == Arch::Qwen35 {
            delta_net(&mut tensors, &block, spec);
        } else if spec.is_recurrent(layer) {
            state_space(&mut tensors, &block, spec);
        } else {
            attention(&mut tensors, &block, spec);
        }
    }
    if spec.drafting_heads() > 0 {
        soften(&mut tensors);
    }
    for head in 0..spec.drafting_heads() {
        drafting_head(&mut tensors, &format!("blk.{}", spec.layers + head), spec);
    }
    tensors.0
}

/// Layers behind the first one change little, so that who knows the first one alone is often right.
fn soften(tensors: &mut Tensors) {
    const PART: f32 = 0.1;
    let all = tensors.0.iter_mut();
    for tensor in all.filter(|tensor| !tensor.name.starts_with("blk.0.")) {
        if let Values::RandomExceptFirstRow(bound) = &mut tensor.values {
            *bound *= PART;
        }
    }
}

/// A block that drafts a token. It is given the token before it and the hidden state before that, and does what the first
/// layer does.
fn drafting_head(tensors: &mut Tensors, block: &str, spec: &Spec) {
    /// The size of an embedding: 1, and the others uniform in ±1. Normalised and multiplied by this, it is as it was.
    const SIZE: f32 = 0.586;
    /// How much of the hidden state is added: other states, other drafts.
    const STATE: f32 = 0.1;
    let width = u64::from(spec.width);
    let first = tensors.0.len();
    attention(tensors, block, spec);
    tensors.add(
        format!("{block}.nextn.eh_proj.weight"),
        &[2 * width, width],
        Values::DiagonalAndRandom(1.0, STATE * bound(width)),
    );
    tensors.add(
        format!("{block}.nextn.enorm.weight"),
        &[width],
        Values::Constant(SIZE),
    );
    tensors.ones(format!("{block}.nextn.hnorm.weight"), width);
    for tensor in &mut tensors.0[first..] {
        tensor.drawn_as = tensor.name.replace(block, "blk.0");
    }
}

fn attention(tensors: &mut Tensors, block: &str, spec: &Spec) {
    let width = u64::from(spec.width);
    let square = [width, width];
    // Behind a token's embedding some drafts have what comes from the model that they draft for.
    let inputs = match spec.arch {
        Arch::Eagle3 => 2 * width,
        _ => width,
    };
    tensors.ones(format!("{block}.attn_norm.weight"), width);
    if spec.arch == Arch::Eagle3 {
        tensors.ones(format!("{block}.attn_norm_2.weight"), width);
    }
    // Pointed rather than even attention, or distant tokens would not matter.
    for name in ["attn_q", "attn_k"] {
        // Some queries have a gate behind each head.
        let is_gated = spec.arch == Arch::Qwen35 && name == "attn_q";
        let extents = [inputs, if is_gated { 2 * width } else { width }];
        tensors.add(
            format!("{block}.{name}.weight"),
            &extents,
            Values::Random(2.0 * bound(inputs)),
        );
    }
    tensors.add(
        format!("{block}.attn_v.weight"),
        &[inputs, width],
        Values::Random(2.0 * bound(inputs)),
    );
    tensors.add(
        format!("{block}.attn_output.weight"),
        &square,
        Values::RandomExceptFirstRow(bound(width)),
    );
    if spec.drafting_heads() > 0 || spec.arch.fills_masks() {
        // The engine gives queries and keys the size of 1 each: pointed, as above.
        for name in ["attn_q_norm", "attn_k_norm"] {
            let head = 2 * u64::from(spec.pairs());
            tensors.add(
                format!("{block}.{name}.weight"),
                &[head],
                Values::Constant(1.4),
            );
        }
    }
    if spec.arch == Arch::Qwen2Vl {
        // Newer servers do without them.
        for name in ["attn_q", "attn_k", "attn_v"] {
            tensors.add(
                format!("{block}.{name}.bias"),
                &[width],
                Values::Constant(0.0),
            );
        }
    }
    feed_forward(tensors, block, spec);
    if spec.arch == Arch::Gemma2 {
        for name in ["post_attention_norm", "post_ffw_norm"] {
            tensors.add(
                format!("{block}.{name}.weight"),
                &[width],
                Values::FirstAndRest(0.0, 2.0),
            );
        }
    }
}

fn feed_forward(tensors: &mut Tensors, block: &str, spec: &Spec) {
    let width = u64::from(spec.width);
    let inner = u64::from(spec.feed_forward());
    let norm = match spec.arch {
        Arch::Qwen35 => "post_attention_norm",
        _ => "ffn_norm",
    };
    tensors.ones(format!("{block}.{norm}.weight"), width);
    for name in ["ffn_gate", "ffn_up"] {
        tensors.add(
            format!("{block}.{name}.weight"),
            &[width, inner],
            Values::Random(bound(width)),
        );
    }
    tensors.add(
        format!("{block}.ffn_down.weight"),
        &[inner, width],
        Values::RandomExceptFirstRow(bound(inner)),
    );
}

/// As many heads for keys as for values, each as long as its state.
fn delta_net(tensors: &mut Tensors, block: &str, spec: &Spec) {
    let width = u64::from(spec.width);
    let heads = u64::from(spec.ssm_rank());
    let head = u64::from(Spec::SSM_STATE);
    let conv = u64::from(Spec::SSM_CONV);
    tensors.ones(format!("{block}.attn_norm.weight"), width);
    for (name, extents) in [
        ("attn_qkv", [width, 3 * width]),
        ("attn_gate", [width, width]),
        ("ssm_conv1d", [conv, 3 * width]),
        ("ssm_beta", [width, heads]),
        ("ssm_alpha", [width, heads]),
    ] {
        tensors.add(
            format!("{block}.{name}.weight"),
            &extents,
            Values::Random(bound(extents[0])),
        );
    }
    // A slow decay, as below.
    for (name, value) in [("ssm_dt.bias", -2.0), ("ssm_a", -0.1)] {
        tensors.add(format!("{block}.{name}"), &[heads], Values::Constant(value));
    }
    tensors.ones(format!("{block}.ssm_norm.weight"), head);
    tensors.add(
        format!("{block}.ssm_out.weight"),
        &[width, width],
        Values::RandomExceptFirstRow(bound(width)),
    );
    feed_forward(tensors, block, spec);
}

fn state_space(tensors: &mut Tensors, block: &str, spec: &Spec) {
    let width = u64::from(spec.width);
    let inner = 2 * width;
    let state = u64::from(Spec::SSM_STATE);
    let rank = u64::from(spec.ssm_rank());
    let conv = u64::from(Spec::SSM_CONV);
    let mut random = |name: &str, extents: &[u64]| {
        tensors.add(
            format!("{block}.{name}"),
            extents,
            Values::Random(bound(extents[0])),
        );
    };
    random("ssm_in.weight", &[width, 2 * inner]);
    random("ssm_conv1d.weight", &[conv, inner]);
    random("ssm_x.weight", &[inner, rank + 2 * state]);
    random("ssm_dt.weight", &[rank, inner]);
    tensors.ones(format!("{block}.attn_norm.weight"), width);
    let constants: [(&str, &[u64], f32); 4] = [
        ("ssm_conv1d.bias", &[inner], 0.0),
        // A slow decay (the matrix is stored as -exp(A_log)), or the state
        // would forget the beginning of the prompt.
        ("ssm_dt.bias", &[inner], -2.0),
        ("ssm_a", &[state, inner], -0.1),
        ("ssm_d", &[inner], 1.0),
    ];
    for (name, extents, value) in constants {
        tensors.add(format!("{block}.{name}"), extents, Values::Constant(value));
    }
    tensors.add(
        format!("{block}.ssm_out.weight"),
        &[inner, width],
        Values::RandomExceptFirstRow(bound(inner)),
    );
    if spec.arch == Arch::Jamba {
        for (name, length) in [("dt", rank), ("b", state), ("c", state)] {
            tensors.ones(format!("{block}.ssm_{name}_norm.weight"), length);
        }
        feed_forward(tensors, block, spec);
    }
}
