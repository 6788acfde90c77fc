//! Writes tiny random-weight GGUF models, so that tests can run a real
//! llama-server without downloading anything.
//!
//! What they say is gibberish, but it is *deterministic* gibberish that depends
//! on the whole prompt, and it is always made of ASCII letters: whatever the
//! sampler does, an answer is valid UTF-8 and `</s>` does not end it early.
//!
//! One printable ASCII character is one token (see [`Spec::tokens_in`]), which
//! lets a test count tokens by counting characters.
//!
//! ```
//! use contextpilot_tiny_model::{Arch, Spec, write};
//!
//! let path = std::env::temp_dir().join("contextpilot-tiny-model-doc.gguf");
//! write(&path, &Spec::new(Arch::Llama))?;
//! # std::fs::remove_file(&path)?;
//! # Ok::<(), std::io::Error>(())
//! ```
#![forbid(unsafe_code)]

mod adapter;
mod gguf;
mod projector;
mod rng;
mod script;
mod spec;
mod tensors;
mod vocab;

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
};

pub use adapter::{Adapter, write_adapter};
pub use projector::{Projector, ProjectorKind, write_projector};
pub use script::{Said, write_script};
pub use spec::{Arch, Spec};
pub use vocab::Chat;

/// Writes the model that `spec` describes to `path`.
///
/// The same spec yields the same bytes, on every machine. The file appears
/// under its name only when it is complete, so that several processes may write
/// the same path at the same time.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] for a spec that no model can have (the text
/// says which value is wrong), otherwise whatever writing the file answers.
pub fn write(path: &Path, spec: &Spec) -> io::Result<()> {
    write_with(path, spec, &Chat::default())
}

/// Writes the model that `spec` describes with the chat template of another one.
///
/// # Errors
/// As [`write()`].
pub fn write_with(path: &Path, spec: &Spec, chat: &Chat) -> io::Result<()> {
    spec.check()
        .map_err(|wrong| io::Error::new(io::ErrorKind::InvalidInput, wrong))?;
    whole_file(path, |out| write_to(out, spec, chat))
}

/// A file that appears under its name only when it is complete.
fn whole_file(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> io::Result<()> {
    // Threads of one process may write the same file at once, too.
    static NTH: AtomicU64 = AtomicU64::new(0);
    let nth = NTH.fetch_add(1, Ordering::Relaxed);
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}-{nth}.tmp", std::process::id()));
    let unfinished = Path::new(&name);

    let result = File::create(unfinished).and_then(|file| {
        let mut out = BufWriter::with_capacity(1 << 20, file);
        fill(&mut out)?;
        out.flush()
    });
    // A file that is there already stays: a server may have loaded it, and looks whether it has changed.
    let is_there = result.is_ok() && is_same(unfinished, path).unwrap_or(false);
    let result = if is_there {
        Ok(())
    } else {
        result.and_then(|()| std::fs::rename(unfinished, path))
    };
    if is_there || result.is_err() {
        // If already failing: that error is the one worth telling.
        let _ = std::fs::remove_file(unfinished);
    }
    result
}

fn is_same(one: &Path, other: &Path) -> io::Result<bool> {
    let size = |path| Ok::<_, io::Error>(std::fs::metadata(path)?.len());
    Ok(size(one)? == size(other)? && std::fs::read(one)? == std::fs::read(other)?)
}

fn write_to(out: &mut impl Write, spec: &Spec, chat: &Chat) -> io::Result<()> {
    let mut header = gguf::Header::default();
    spec.describe(&mut header);
    vocab::describe(&mut header, chat, spec);
    gguf::write(out, &header, &tensors::of(spec, chat), spec.seed)
}

#[cfg(test)]
mod tests;
