//! What kind of model to write.

use std::{fmt, str::FromStr};

use crate::gguf::Header;

/// The architectures whose KV cache behaves differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arch {
    /// Full attention: any prefix of a sequence can be kept.
    Llama,
    /// Sliding-window attention in every other layer, so that the server keeps
    /// context checkpoints.
    Gemma2,
    /// Recurrent: a sequence has one state, and cannot be cut at all.
    Mamba,
    /// Hybrid: layers with a recurrent state and layers with full attention take turns.
    Jamba,
    /// The first layer of [`Arch::Llama`] with the same seed: a draft model for
    /// speculative decoding that is right often enough, and often wrong.
    Draft,
    /// Full attention with positions of several dimensions (M-RoPE): the rows of
    /// an image share one, and what follows continues after a gap.
    Qwen2Vl,
    /// [`Arch::Llama`] with the metadata of a decision model, which answers `/v1/systemone`: it is asked a
    /// question about a state, and its answer is read off the last token of the prompt.
    Decision,
    /// [`Arch::Llama`] with two sets of factors for its positions, as Phi-3 has: a context of more than 1,024 tokens
    /// uses the other one.
    LongRope,
    /// Full attention, with one head or more that draft what comes next (MTP). A head does what the first layer does, and
    /// looks at the hidden state before it besides: it is right often enough, and which drafts it makes depends on each of
    /// these states.
    Mtp,
    /// As [`Arch::Mtp`], but a hybrid: of two layers side by side the first has full attention with positions of several
    /// dimensions, and the second a recurrent state (a gated delta net).
    Qwen35,
    /// A draft for [`Arch::Llama`] with four layers or more, of the same width and seed. It starts from what goes into three of
    /// these layers (EAGLE-3), and is hardly ever right, but which drafts it makes, and how sure it is, depends on each
    /// of these.
    Eagle3,
    /// As [`Arch::Eagle3`], but it drafts some tokens at once, in place of masks (DFlash).
    Dflash,
    /// As [`Arch::Dflash`], and each of them depends on the one before (DSpark).
    Dspark,
}

impl Arch {
    /// Every architecture, in the order of the documentation.
    pub const ALL: [Self; 13] = [
        Self::Llama,
        Self::Gemma2,
        Self::Mamba,
        Self::Jamba,
        Self::Draft,
        Self::Qwen2Vl,
        Self::Decision,
        Self::LongRope,
        Self::Mtp,
        Self::Qwen35,
        Self::Eagle3,
        Self::Dflash,
        Self::Dspark,
    ];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Gemma2 => "gemma2",
            Self::Mamba => "mamba",
            Self::Jamba => "jamba",
            Self::Draft => "draft",
            Self::Qwen2Vl => "qwen2vl",
            Self::Decision => "decision",
            Self::LongRope => "longrope",
            Self::Mtp => "mtp",
            Self::Qwen35 => "qwen35",
            Self::Eagle3 => "eagle3",
            Self::Dflash => "dflash",
            Self::Dspark => "dspark",
        }
    }

    /// Whether it is a draft that follows another model's layers.
    pub fn follows_layers(self) -> bool {
        matches!(self, Self::Eagle3 | Self::Dflash | Self::Dspark)
    }

    /// Whether it drafts several tokens at once, in place of masks.
    pub(crate) fn fills_masks(self) -> bool {
        matches!(self, Self::Dflash | Self::Dspark)
    }

    /// The name in the file, `general.architecture`.
    pub(crate) fn in_file(self) -> &'static str {
        match self {
            Self::Llama | Self::Draft | Self::Decision | Self::LongRope => "llama",
            Self::Gemma2 => "gemma2",
            Self::Mamba => "mamba",
            Self::Jamba => "jamba",
            Self::Qwen2Vl => "qwen2vl",
            Self::Mtp => "hy_v3",
            Self::Qwen35 => "qwen35",
            Self::Eagle3 => "eagle3",
            Self::Dflash | Self::Dspark => "dflash",
        }
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Arch {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|arch| arch.name() == name);
        known.ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            format!("unknown architecture {name:?} (known: {known})")
        })
    }
}

/// How [`Arch::Decision`] makes a prompt of a question: the state, a space, the instructions.
const DECISION_TEMPLATE: &str = "{{- state + ' ' + instructions -}}";

/// A model to write. Start from [`Spec::new`] and change what matters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Spec {
    /// Architecture.
    pub arch: Arch,
    /// The longest context, in tokens, that the model claims to be trained for.
    /// It costs nothing here; what a server allocates is decided by its `-c`.
    pub context_length: u32,
    /// Equal seeds, equal weights.
    pub seed: u64,
    /// Transformer (or state-space) blocks. Time per token and file size grow
    /// with it.
    pub layers: u32,
    /// Embedding length, a multiple of 16. Time per token and file size grow
    /// with its square: 8 layers of 512 make 85 MB and take some 4 ms a token
    /// on one core (seen with llama-server 0.7.0), so that a prompt of a hundred
    /// tokens keeps the engine busy for about half a second.
    pub width: u32,
    /// [`Arch::Gemma2`] only: tokens that a sliding-window layer looks back.
    pub window: u32,
    /// [`Arch::Mtp`] and [`Arch::Qwen35`] only: heads that draft, behind the layers. The n-th one drafts the n-th token.
    pub heads: u32,
    /// Two small letters side by side are a token, too: most answers are tokenized otherwise when they come back as text.
    pub letter_pairs: bool,
    /// The markers of gpt-oss's format are tokens.
    pub harmony: bool,
}

impl Spec {
    /// The tiny one: about half a megabyte, some 0.1 ms a token.
    pub fn new(arch: Arch) -> Self {
        Self {
            arch,
            context_length: 131_072,
            seed: 1,
            layers: match arch {
                Arch::Draft => 1,
                arch if arch.follows_layers() => 1,
                _ => 2,
            },
            width: 64,
            window: 64,
            heads: 1,
            letter_pairs: false,
            harmony: false,
        }
    }

    /// The number of tokens that a server makes of `text`, `<s>` included.
    ///
    /// Printable ASCII is one token a character, and everything else is one
    /// token a byte; newlines are among the latter.
    pub fn tokens_in(text: &str) -> usize {
        text.len() + 1
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        let at_least_one = [
            ("layers", self.layers),
            ("context length", self.context_length),
            ("window", self.window),
            ("heads", self.heads),
        ];
        for (name, value) in at_least_one {
            if value == 0 {
                return Err(format!("{name} must be at least 1"));
            }
        }
        if self.width == 0 || self.width % 16 != 0 {
            return Err(format!(
                "width must be a positive multiple of 16, not {}",
                self.width
            ));
        }
        if self.width > 1 << 14 || self.layers > 1 << 10 {
            return Err(format!(
                "{} layers of width {} are not tiny (at most 1024 of 16384)",
                self.layers, self.width
            ));
        }
        Ok(())
    }

    /// Pairs of dimensions of a head, which turn with the position.
    pub(crate) fn pairs(&self) -> u32 {
        self.width / self.attention_heads() / 2
    }

    /// Attention heads; wide models get wide heads, as real ones do.
    fn attention_heads(&self) -> u32 {
        let head = if self.width >= 512 && self.width % 64 == 0 {
            64
        } else {
            16
        };
        self.width / head
    }

    pub(crate) fn feed_forward(&self) -> u32 {
        2 * self.width
    }

    /// Hyperparameters, under the names that llama.cpp's loader asks for.
    pub(crate) fn describe(&self, header: &mut Header) {
        let arch = self.arch.in_file();
        header.string("general.architecture", arch);
        header.string("general.name", &format!("tiny {}", self.arch));
        let mut number = |key: &str, value: u32| header.u32(&format!("{arch}.{key}"), value);
        number("context_length", self.context_length);
        number("embedding_length", self.width);
        number("block_count", self.layers + self.drafting_heads());
        if matches!(self.arch, Arch::Mamba | Arch::Jamba) {
            number("ssm.conv_kernel", Self::SSM_CONV);
            number("ssm.inner_size", 2 * self.width);
            number("ssm.state_size", Self::SSM_STATE);
            number("ssm.time_step_rank", self.ssm_rank());
        }
        if self.arch == Arch::Mamba {
            number("feed_forward_length", 0);
            number("attention.head_count", 0);
        } else {
            let head = self.width / self.attention_heads();
            number("feed_forward_length", self.feed_forward());
            number("attention.head_count", self.attention_heads());
            if self.arch != Arch::Jamba {
                number("attention.head_count_kv", self.attention_heads());
            }
            number("attention.key_length", head);
            number("attention.value_length", head);
            number("rope.dimension_count", head);
        }
        if self.arch == Arch::Jamba {
            // A layer without heads is recurrent.
            let heads = |layer| {
                if self.is_recurrent(layer) {
                    0
                } else {
                    self.attention_heads() as i32
                }
            };
            let heads: Vec<i32> = (0..self.layers).map(heads).collect();
            header.i32s("jamba.attention.head_count_kv", heads.into_iter());
        }
        if self.arch == Arch::Eagle3 {
            header.u32("eagle3.target_hidden_size", self.width);
        }
        if self.arch.follows_layers() {
            header.i32s(&format!("{arch}.target_layers"), [1, 2, 3].into_iter());
        }
        if self.arch.fills_masks() {
            header.u32("dflash.block_size", 4);
            header.u32("tokenizer.ggml.mask_token_id", 0);
        }
        if self.arch == Arch::Mtp {
            header.u32("hy_v3.nextn_predict_layers", self.heads);
            // The loader asks for it, although there are no experts.
            header.u32("hy_v3.expert_feed_forward_length", self.feed_forward());
        }
        if self.arch == Arch::Qwen35 {
            let layers = 0..self.layers + self.heads;
            let is_recurrent = layers.map(|layer| u32::from(self.is_recurrent(layer)));
            let is_recurrent: Vec<u32> = is_recurrent.collect();
            let mut number = |key: &str, value: u32| header.u32(&format!("qwen35.{key}"), value);
            number("nextn_predict_layers", self.heads);
            number("ssm.conv_kernel", Self::SSM_CONV);
            number("ssm.inner_size", self.width);
            number("ssm.state_size", Self::SSM_STATE);
            number("ssm.time_step_rank", self.ssm_rank());
            number("ssm.group_count", self.ssm_rank());
            header.u32s(
                "qwen35.attention.recurrent_layers",
                is_recurrent.into_iter(),
            );
        }
        if matches!(self.arch, Arch::Qwen2Vl | Arch::Qwen35) {
            // Pairs of dimensions that turn with time, row and column; together
            // they are the head of 16 of a tiny model.
            let pairs = self.pairs();
            let (time, rest) = (pairs / 4, pairs - pairs / 4);
            let sections = [time, rest / 2, rest - rest / 2, 0].map(|n| n as i32);
            let key = format!("{arch}.rope.dimension_sections");
            header.i32s(&key, sections.into_iter());
        }
        if self.arch == Arch::Gemma2 {
            let mut number = |key: &str, value: u32| header.u32(&format!("{arch}.{key}"), value);
            number("attention.sliding_window", self.window);
            header.f32("gemma2.attn_logit_softcapping", 50.0);
            // As good as none: the bias of `tensors` must reach the sampler.
            header.f32("gemma2.final_logit_softcapping", 1000.0);
        }
        if self.arch == Arch::LongRope {
            header.string("llama.rope.scaling.type", "longrope");
            header.u32("llama.rope.scaling.original_context_length", 1024);
        }
        if self.arch == Arch::Decision {
            // The kind whose questions share the beginning of a prompt; each option is a letter.
            header.string("llama.decision.type", "openjev");
            header.string("tokenizer.chat_template.systemone", DECISION_TEMPLATE);
        }
        header.f32(&format!("{arch}.attention.layer_norm_rms_epsilon"), 1e-5);
    }

    /// Whether a layer has a recurrent state.
    pub(crate) fn is_recurrent(&self, layer: u32) -> bool {
        match self.arch {
            Arch::Mamba => true,
            Arch::Jamba => layer % 2 == 0,
            Arch::Qwen35 => layer % 2 == 1 && layer < self.layers,
            _ => false,
        }
    }

    /// Heads that draft.
    pub(crate) fn drafting_heads(&self) -> u32 {
        match self.arch {
            Arch::Mtp | Arch::Qwen35 => self.heads,
            _ => 0,
        }
    }

    pub(crate) const SSM_CONV: u32 = 4;
    pub(crate) const SSM_STATE: u32 = 16;

    pub(crate) fn ssm_rank(&self) -> u32 {
        (self.width / 16).max(1)
    }
}
