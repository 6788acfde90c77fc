//! Multimodal projectors: a vision encoder and what turns its output into rows
//! that a language model takes in place of token embeddings. For `--mmproj`.
//!
//! Keys and tensor names are those that llama.cpp's `tools/mtmd/clip.cpp` asks
//! for.

use std::{
    io::{self, Write},
    path::Path,
    str::FromStr,
};

use crate::{
    gguf::{self, Header, Tensor, Values},
    tensors::bound,
    whole_file,
};

/// The kinds whose rows are placed differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProjectorKind {
    /// LLaVA: 16 rows at successive positions, whatever the size of the image.
    /// For [`crate::Arch::Llama`] and all others of one position dimension.
    Llava,
    /// Qwen2-VL: eight rows or more, by the size of the image, that share a
    /// position. For [`crate::Arch::Qwen2Vl`].
    ///
    /// llama-server warms it up with an image of 46 × 46 rows unless told
    /// `--no-warmup`.
    Qwen2Vl,
    /// Idefics3 (SmolVLM): an image is made 112 pixels wide or high, and cut into
    /// tiles of 56, beside one of all of it; four rows each. For the models that
    /// [`Self::Llava`] is for, whose vocabulary must have the tokens around tiles.
    Idefics3,
}

impl FromStr for ProjectorKind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "llava" => Ok(Self::Llava),
            "qwen2vl" => Ok(Self::Qwen2Vl),
            "idefics3" => Ok(Self::Idefics3),
            _ => Err(format!(
                "unknown projector {name:?} (known: llava, qwen2vl, idefics3)"
            )),
        }
    }
}

/// A projector to write.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Projector {
    /// What it does with an image.
    pub kind: ProjectorKind,
    /// Embedding length of the language model ([`crate::Spec::width`]).
    pub width: u32,
    /// Equal seeds, equal weights.
    pub seed: u64,
}

/// Of the encoder.
const WIDTH: u32 = 32;
const FEED_FORWARD: u32 = 64;
const HEADS: u32 = 2;
/// LLaVA takes the output of the last layer but one.
const LAYERS: u32 = 2;
/// Pixels, a side.
const IMAGE: u32 = 56;
const PATCH: u32 = 14;
/// Patches that Qwen2-VL makes one row of.
const MERGED: u32 = 4;
/// Idefics3 makes one row of so many patches on each side.
const SCALE: u32 = 2;

impl Projector {
    /// For a model of this embedding length.
    pub fn new(kind: ProjectorKind, width: u32) -> Self {
        Self {
            kind,
            width,
            seed: 1,
        }
    }

    fn describe(&self, header: &mut Header) {
        header.string("general.architecture", "clip");
        header.string("general.name", "tiny projector");
        header.bool("clip.has_vision_encoder", true);
        header.bool("clip.use_gelu", true);
        let kind = match self.kind {
            ProjectorKind::Llava => "mlp",
            ProjectorKind::Qwen2Vl => "qwen2vl_merger",
            ProjectorKind::Idefics3 => "idefics3",
        };
        header.string("clip.projector_type", kind);
        for (key, value) in [
            ("image_size", IMAGE),
            ("patch_size", PATCH),
            ("embedding_length", WIDTH),
            ("feed_forward_length", FEED_FORWARD),
            ("block_count", LAYERS),
            ("projection_dim", self.width),
            ("attention.head_count", HEADS),
        ] {
            header.u32(&format!("clip.vision.{key}"), value);
        }
        if self.kind == ProjectorKind::Idefics3 {
            header.u32("clip.vision.projector.scale_factor", SCALE);
            header.u32("clip.vision.preproc_image_size", 2 * IMAGE);
        }
        header.f32("clip.vision.attention.layer_norm_epsilon", 1e-5);
        header.f32s("clip.vision.image_mean", [0.5; 3].into_iter());
        header.f32s("clip.vision.image_std", [0.5; 3].into_iter());
    }

    fn tensors(&self) -> Vec<Tensor> {
        let [width, inner, out] = [WIDTH, FEED_FORWARD, self.width].map(u64::from);
        let patch = u64::from(PATCH);
        let mut tensors = Vec::new();
        let mut random = |name: &str, extents: &[u64], inputs: u64| {
            tensors.push(Tensor::new(name, extents, Values::Random(bound(inputs))));
        };
        let pixels = [patch, patch, 3, width];
        random("v.patch_embd.weight", &pixels, 3 * patch * patch);
        let merged = match self.kind {
            ProjectorKind::Llava | ProjectorKind::Idefics3 => {
                let patches = u64::from(IMAGE / PATCH).pow(2);
                random("v.position_embd.weight", &[width, patches], width);
                width
            }
            ProjectorKind::Qwen2Vl => {
                // For the second of two frames, which a still image fills as well.
                random("v.patch_embd.weight.1", &pixels, 3 * patch * patch);
                width * u64::from(MERGED)
            }
        };
        if self.kind == ProjectorKind::Idefics3 {
            let inputs = width * u64::from(SCALE).pow(2);
            random("mm.model.fc.weight", &[inputs, out], inputs);
        }
        let mut linear = |name: String, from: u64, to: u64| {
            random(&format!("{name}.weight"), &[from, to], from);
            random(&format!("{name}.bias"), &[to], from);
        };
        let hidden = match self.kind {
            ProjectorKind::Llava => Some(out),
            ProjectorKind::Qwen2Vl => Some(merged),
            ProjectorKind::Idefics3 => None,
        };
        if let Some(hidden) = hidden {
            linear("mm.0".into(), merged, hidden);
            linear("mm.2".into(), hidden, out);
        }
        for layer in 0..LAYERS {
            let block = format!("v.blk.{layer}");
            for name in ["attn_q", "attn_k", "attn_v", "attn_out"] {
                linear(format!("{block}.{name}"), width, width);
            }
            linear(format!("{block}.ffn_up"), width, inner);
            linear(format!("{block}.ffn_down"), inner, width);
        }
        for layer in 0..LAYERS {
            for (name, value) in [("weight", 1.0), ("bias", 0.0)] {
                tensors.extend(["ln1", "ln2"].map(|norm| {
                    let name = format!("v.blk.{layer}.{norm}.{name}");
                    Tensor::new(name, &[width], Values::Constant(value))
                }));
            }
        }
        tensors
    }
}

/// Writes a projector to `path`; everything else is as with [`crate::write`].
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] for a width that no model can have,
/// otherwise whatever writing the file answers.
pub fn write_projector(path: &Path, projector: &Projector) -> io::Result<()> {
    if projector.width == 0 {
        let wrong = "width must be positive";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, wrong));
    }
    whole_file(path, |out| write_to(out, projector))
}

pub(crate) fn write_to(out: &mut impl Write, projector: &Projector) -> io::Result<()> {
    let mut header = Header::default();
    projector.describe(&mut header);
    gguf::write(out, &header, &projector.tensors(), projector.seed)
}
