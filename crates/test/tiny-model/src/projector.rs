//! Multimodal projectors: an encoder of images, of sounds or of both, and what
//! turns its output into rows that a language model takes in place of token
//! embeddings. For `--mmproj`.
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
    /// Ultravox: a sound is cut into pieces of 30 seconds, the last one filled up
    /// with silence. Each has 16 rows at successive positions. For every model.
    Ultravox,
    /// [`Self::Llava`] for images, and [`Self::Ultravox`] for sounds.
    LlavaUltravox,
}

impl FromStr for ProjectorKind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "llava" => Ok(Self::Llava),
            "qwen2vl" => Ok(Self::Qwen2Vl),
            "idefics3" => Ok(Self::Idefics3),
            "ultravox" => Ok(Self::Ultravox),
            "llava-ultravox" => Ok(Self::LlavaUltravox),
            _ => Err(format!(
                "unknown projector {name:?} (known: llava, qwen2vl, idefics3, ultravox, llava-ultravox)"
            )),
        }
    }
}

/// A projector to write.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Projector {
    /// What it does with an image or a sound.
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
/// Frequencies that a sound is taken apart into.
const MEL_BINS: u32 = 16;
/// Positions that Whisper's encoder has for 30 seconds.
const FRAMES: u32 = 1500;
/// Ultravox makes one row of so many of them.
const STACKED: u32 = 94;
/// Positions that one of Whisper's convolutions sees.
const SEEN: u32 = 3;

impl Projector {
    /// For a model of this embedding length.
    pub fn new(kind: ProjectorKind, width: u32) -> Self {
        Self {
            kind,
            width,
            seed: 1,
        }
    }

    /// What it does with an image, if it takes any.
    fn vision(&self) -> Option<ProjectorKind> {
        match self.kind {
            ProjectorKind::Ultravox => None,
            ProjectorKind::LlavaUltravox => Some(ProjectorKind::Llava),
            kind => Some(kind),
        }
    }

    fn hears(&self) -> bool {
        let hearing = [ProjectorKind::Ultravox, ProjectorKind::LlavaUltravox];
        hearing.contains(&self.kind)
    }

    fn describe(&self, header: &mut Header) {
        header.string("general.architecture", "clip");
        header.string("general.name", "tiny projector");
        header.bool("clip.use_gelu", true);
        if let Some(kind) = self.vision() {
            let name = match kind {
                ProjectorKind::Qwen2Vl => "qwen2vl_merger",
                ProjectorKind::Idefics3 => "idefics3",
                _ => "mlp",
            };
            self.describe_encoder(header, "vision", name);
            header.u32("clip.vision.image_size", IMAGE);
            header.u32("clip.vision.patch_size", PATCH);
            header.f32s("clip.vision.image_mean", [0.5; 3].into_iter());
            header.f32s("clip.vision.image_std", [0.5; 3].into_iter());
            if kind == ProjectorKind::Idefics3 {
                header.u32("clip.vision.projector.scale_factor", SCALE);
                header.u32("clip.vision.preproc_image_size", 2 * IMAGE);
            }
        }
        if self.hears() {
            self.describe_encoder(header, "audio", "ultravox");
            header.u32("clip.audio.num_mel_bins", MEL_BINS);
            header.u32("clip.audio.projector.stack_factor", STACKED);
        }
    }

    fn describe_encoder(&self, header: &mut Header, sense: &str, kind: &str) {
        header.bool(&format!("clip.has_{sense}_encoder"), true);
        // Projectors of both kinds name them by other keys.
        if self.vision().is_some() && self.hears() {
            header.string(&format!("clip.{sense}.projector_type"), kind);
        } else {
            header.string("clip.projector_type", kind);
        }
        for (key, value) in [
            ("embedding_length", WIDTH),
            ("feed_forward_length", FEED_FORWARD),
            ("block_count", LAYERS),
            ("projection_dim", self.width),
            ("attention.head_count", HEADS),
        ] {
            header.u32(&format!("clip.{sense}.{key}"), value);
        }
        let epsilon = format!("clip.{sense}.attention.layer_norm_epsilon");
        header.f32(&epsilon, 1e-5);
    }

    fn tensors(&self) -> Vec<Tensor> {
        let mut tensors = Tensors(Vec::new());
        if let Some(kind) = self.vision() {
            self.add_vision(kind, &mut tensors);
        }
        if self.hears() {
            self.add_hearing(&mut tensors);
        }
        tensors.0
    }

    fn add_vision(&self, kind: ProjectorKind, tensors: &mut Tensors) {
        let [width, out] = [WIDTH, self.width].map(u64::from);
        let patch = u64::from(PATCH);
        let pixels = [patch, patch, 3, width];
        tensors.random("v.patch_embd.weight", &pixels, 3 * patch * patch);
        if kind == ProjectorKind::Qwen2Vl {
            // For the second of two frames, which a still image fills as well.
            tensors.random("v.patch_embd.weight.1", &pixels, 3 * patch * patch);
        } else {
            let patches = u64::from(IMAGE / PATCH).pow(2);
            tensors.random("v.position_embd.weight", &[width, patches], width);
        }
        if kind == ProjectorKind::Idefics3 {
            let inputs = width * u64::from(SCALE).pow(2);
            tensors.random("mm.model.fc.weight", &[inputs, out], inputs);
        } else {
            let (inputs, hidden) = match kind {
                ProjectorKind::Qwen2Vl => [width * u64::from(MERGED); 2].into(),
                _ => (width, out),
            };
            tensors.linear("mm.0", inputs, hidden);
            tensors.linear("mm.2", hidden, out);
        }
        tensors.blocks("v");
        for layer in 0..LAYERS {
            tensors.random_biases(&format!("v.blk.{layer}.attn_k"), width, width);
        }
    }

    /// An encoder like Whisper's, whose keys have no bias.
    fn add_hearing(&self, tensors: &mut Tensors) {
        let [width, hidden, out, seen] = [WIDTH, FEED_FORWARD, self.width, SEEN].map(u64::from);
        for (nth, inputs) in [(1, u64::from(MEL_BINS)), (2, width)] {
            let name = |part| format!("a.conv1d.{nth}.{part}");
            tensors.random(&name("weight"), &[seen, inputs, width], seen * inputs);
            tensors.random(&name("bias"), &[1, width], seen * inputs);
        }
        let places = [width, u64::from(FRAMES)];
        tensors.random("a.position_embd.weight", &places, width);
        tensors.blocks("a");
        let stacked = width * u64::from(STACKED);
        tensors.constant("mm.a.norm_pre.weight", stacked, 1.0);
        // One half is the gate of the other one.
        tensors.random("mm.a.mlp.1.weight", &[stacked, 2 * hidden], stacked);
        tensors.constant("mm.a.norm_mid.weight", hidden, 1.0);
        tensors.random("mm.a.mlp.2.weight", &[hidden, out], hidden);
    }
}

/// Those that were added so far.
struct Tensors(Vec<Tensor>);

impl Tensors {
    fn constant(&mut self, name: &str, length: u64, value: f32) {
        let tensor = Tensor::new(name, &[length], Values::Constant(value));
        self.0.push(tensor);
    }

    /// Random values for so many inputs.
    fn random(&mut self, name: &str, extents: &[u64], inputs: u64) {
        let values = Values::Random(bound(inputs));
        self.0.push(Tensor::new(name, extents, values));
    }

    fn random_biases(&mut self, name: &str, from: u64, to: u64) {
        self.random(&format!("{name}.bias"), &[to], from);
    }

    fn linear(&mut self, name: &str, from: u64, to: u64) {
        self.random(&format!("{name}.weight"), &[from, to], from);
        self.random_biases(name, from, to);
    }

    /// The encoder's layers, without biases of keys.
    fn blocks(&mut self, prefix: &str) {
        let [width, inner] = [WIDTH, FEED_FORWARD].map(u64::from);
        for layer in 0..LAYERS {
            let block = format!("{prefix}.blk.{layer}");
            for name in ["attn_q", "attn_v", "attn_out"] {
                self.linear(&format!("{block}.{name}"), width, width);
            }
            let keys = format!("{block}.attn_k.weight");
            self.random(&keys, &[width, width], width);
            self.linear(&format!("{block}.ffn_up"), width, inner);
            self.linear(&format!("{block}.ffn_down"), inner, width);
            for norm in ["ln1", "ln2"] {
                self.constant(&format!("{block}.{norm}.weight"), width, 1.0);
                self.constant(&format!("{block}.{norm}.bias"), width, 0.0);
            }
        }
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
