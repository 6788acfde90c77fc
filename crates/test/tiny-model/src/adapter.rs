//! LoRA adapters: small matrices that are added to some of a model's, as strongly as the server
//! is told (`--lora`, the field `lora` of a request, `POST /lora-adapters`).
//!
//! Keys and tensor names are those that llama.cpp's `src/llama-adapter.cpp` asks for.

use std::{
    io::{self, Write},
    path::Path,
};

use crate::{
    Spec,
    gguf::{self, Header, Tensor, Values},
    spec::Arch,
    tensors::bound,
    whole_file,
};

/// An adapter to write.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Adapter {
    /// The model that it is for: architecture, layers and width must be the model's.
    pub model: Spec,
    /// Equal seeds, equal weights.
    pub seed: u64,
    /// Rank of the matrices.
    pub rank: u32,
    /// Tokens that activate the adapter ("aLoRA", servers since September 2025): what comes before
    /// their last occurrence in a prompt is evaluated without it. Empty: an ordinary adapter.
    pub invocation: Vec<u32>,
}

impl Adapter {
    /// An ordinary one for a model.
    pub fn new(model: &Spec) -> Self {
        Self {
            model: model.clone(),
            seed: 1,
            rank: 4,
            invocation: Vec::new(),
        }
    }

    fn describe(&self, header: &mut Header) {
        header.string("general.type", "adapter");
        header.string("general.architecture", self.model.arch.in_file());
        header.string("general.name", "tiny adapter");
        header.string("adapter.type", "lora");
        header.f32("adapter.lora.alpha", self.rank as f32);
        if !self.invocation.is_empty() {
            let tokens = self.invocation.iter().copied();
            header.u32s("adapter.alora.invocation_tokens", tokens);
        }
    }

    /// For queries and values of each layer, so that both the keys and values of the layers above
    /// and the answers differ from those without it.
    fn tensors(&self) -> Vec<Tensor> {
        let (width, rank) = (u64::from(self.model.width), u64::from(self.rank));
        let mut tensors = Vec::new();
        let attending = |layer: &u32| !self.model.is_recurrent(*layer);
        for layer in (0..self.model.layers).filter(attending) {
            for name in ["attn_q", "attn_v"] {
                let mut add = |part: &str, extents: [u64; 2]| {
                    let name = format!("blk.{layer}.{name}.weight.{part}");
                    let values = Values::Random(bound(extents[0]));
                    tensors.push(Tensor::new(name, &extents, values));
                };
                add("lora_a", [width, rank]);
                add("lora_b", [rank, width]);
            }
        }
        tensors
    }
}

/// Writes an adapter to `path`; everything else is as with [`crate::write`].
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] for a model or a rank that there cannot be, otherwise whatever
/// writing the file answers.
pub fn write_adapter(path: &Path, adapter: &Adapter) -> io::Result<()> {
    let wrong = match adapter.model.check() {
        Err(wrong) => Some(wrong),
        Ok(()) if adapter.model.arch == Arch::Mamba => Some("mamba has no attention".to_owned()),
        Ok(()) if !(1..=adapter.model.width).contains(&adapter.rank) => {
            Some("rank must be between 1 and the width".to_owned())
        }
        Ok(()) => None,
    };
    if let Some(wrong) = wrong {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, wrong));
    }
    whole_file(path, |out| write_to(out, adapter))
}

pub(crate) fn write_to(out: &mut impl Write, adapter: &Adapter) -> io::Result<()> {
    let mut header = Header::default();
    adapter.describe(&mut header);
    gguf::write(out, &header, &adapter.tensors(), adapter.seed)
}
