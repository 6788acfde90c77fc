//! Finds the real server, writes or fetches the models, adapters and projectors that it serves, and runs the
//! scripts of the repository that fetch what else a test needs.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};

use contextpilot_tiny_model::{Adapter, Projector};
pub use contextpilot_tiny_model::{Arch, ProjectorKind, Spec};

use crate::{Error, Result, skip_case};

/// The exit code of a script that cannot do its work on this machine.
const NOT_HERE: i32 = 77;

pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// The path of a real llama-server: what `scripts/llama-server` prints, run once per process. On a
/// machine without a server the script fetches one, which may take a while, and says so on stderr.
///
/// # Panics
/// If there is no server and none can be fetched. The script has printed the reason.
pub fn llama_server() -> PathBuf {
    static FOUND: OnceLock<Result<PathBuf>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        let script = repository().join("scripts/llama-server");
        let output = Command::new(&script)
            .stderr(Stdio::inherit())
            .output()
            .map_err(|error| Error::new(format!("{}: {error}", script.display())))?;
        let path = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if output.status.success() && !path.is_empty() {
            Ok(PathBuf::from(path))
        } else {
            Err(Error::new("no real llama-server (see above)"))
        }
    });
    match found {
        Ok(path) => path.clone(),
        Err(error) => panic!("{error}"),
    }
}

/// A model file.
#[derive(Clone, Debug)]
pub struct Model {
    path: PathBuf,
    arch: Arch,
}

impl Model {
    /// The tiny model of an architecture.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn tiny(arch: Arch) -> Self {
        Self::of(&Spec::new(arch))
    }

    /// Any model that `contextpilot-tiny-model` can write. It is written anew once per process, so that
    /// a change of the generator takes effect.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn of(spec: &Spec) -> Self {
        static WRITTEN: Mutex<Option<HashSet<PathBuf>>> = Mutex::new(None);
        let folder = repository().join("target/testbed");
        let path = folder.join(format!(
            "{}-{}x{}-ctx{}-window{}-heads{}-seed{}{}{}.gguf",
            spec.arch,
            spec.layers,
            spec.width,
            spec.context_length,
            spec.window,
            spec.heads,
            spec.seed,
            if spec.letter_pairs { "-pairs" } else { "" },
            if spec.harmony { "-harmony" } else { "" }
        ));
        // A test that panicked while it held the lock wrote nothing we rely on:
        // the file has its name only when it is complete.
        let mut written = WRITTEN.lock().unwrap_or_else(PoisonError::into_inner);
        let written = written.get_or_insert_default();
        if !written.contains(&path) {
            let result = std::fs::create_dir_all(&folder)
                .and_then(|()| contextpilot_tiny_model::write(&path, spec));
            if let Err(error) = result {
                panic!("cannot write {}: {error}", path.display());
            }
            written.insert(path.clone());
        }
        Self {
            path,
            arch: spec.arch,
        }
    }

    /// The model in a file.
    pub fn file(path: PathBuf, arch: Arch) -> Self {
        Self { path, arch }
    }

    /// The GGUF file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its architecture.
    pub fn arch(&self) -> Arch {
        self.arch
    }

    /// Whether any prefix of a cached sequence can be reused, so that all of a cached prompt but its
    /// last token is. If not (sliding window, recurrent), checkpoints decide, and a prompt counts as
    /// cached if nine tenths of it are reused.
    pub(crate) fn keeps_any_prefix(&self) -> bool {
        matches!(
            self.arch,
            Arch::Llama | Arch::Draft | Arch::Qwen2Vl | Arch::Decision | Arch::LongRope | Arch::Mtp
        )
    }
}

/// A LoRA adapter for a tiny model, as a file below `target/`. With invocation tokens it is activated
/// by these (aLoRA).
///
/// # Panics
/// When it cannot be written.
pub fn adapter(arch: Arch, seed: u64, invocation: &[u32]) -> PathBuf {
    let adapter = Adapter {
        seed,
        invocation: invocation.to_vec(),
        ..Adapter::new(&Spec::new(arch))
    };
    let folder = repository().join("target/testbed");
    let tokens: Vec<String> = invocation.iter().map(u32::to_string).collect();
    let path = folder.join(format!(
        "adapter-{arch}-seed{seed}-{}.gguf",
        tokens.join("-")
    ));
    let result = std::fs::create_dir_all(&folder)
        .and_then(|()| contextpilot_tiny_model::write_adapter(&path, &adapter));
    if let Err(error) = result {
        panic!("cannot write {}: {error}", path.display());
    }
    path
}

/// A multimodal projector for a tiny model, as a file below `target/`.
///
/// # Panics
/// When it cannot be written.
pub fn projector(kind: ProjectorKind) -> PathBuf {
    let projector = Projector::new(kind, Spec::new(Arch::Llama).width);
    let folder = repository().join("target/testbed");
    let path = folder.join(format!("projector-{kind:?}.gguf"));
    let result = std::fs::create_dir_all(&folder)
        .and_then(|()| contextpilot_tiny_model::write_projector(&path, &projector));
    if let Err(error) = result {
        panic!("cannot write {}: {error}", path.display());
    }
    path
}

/// SmolLM2-135M-Instruct, by `scripts/model`. `None`, after a line that says why, if the case `what` has to
/// be skipped: there is no Python to fetch the model with.
///
/// # Errors
/// If the script fails.
///
/// # Panics
/// As [`skip_case`], under CI.
pub fn real_model(what: &str) -> Result<Option<Model>> {
    match script("model", &[]) {
        Ok(path) => Ok(Some(Model::file(PathBuf::from(path), Arch::Llama))),
        Err(NoScript::NotHere(why)) => {
            skip_case(what, why);
            Ok(None)
        }
        Err(NoScript::Failed(why)) => Err(Error::new(why)),
    }
}

/// Why a script has printed nothing, in its own words.
#[derive(Clone, Debug)]
pub enum NoScript {
    /// It cannot do its work on this machine. What needs it is skipped.
    NotHere(String),
    /// It has failed.
    Failed(String),
}

impl NoScript {
    /// Why what needs the script is skipped.
    ///
    /// # Panics
    /// If it is not: the script has failed.
    #[track_caller]
    pub fn why_skipped(&self) -> &str {
        match self {
            Self::NotHere(why) => why,
            Self::Failed(why) => panic!("{why}"),
        }
    }
}

/// What `scripts/NAME` prints, without blanks at its ends.
///
/// # Errors
/// It has not done its work.
pub fn script(name: &str, arguments: &[&str]) -> Result<String, NoScript> {
    let failed = |why: &str| NoScript::Failed(format!("scripts/{name}: {why}"));
    let output = Command::new(repository().join("scripts").join(name))
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| failed(&error.to_string()))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    match output.status.code() {
        Some(0) => Ok(text(&output.stdout)),
        Some(NOT_HERE) => Err(NoScript::NotHere(text(&output.stderr))),
        _ => Err(failed(&text(&output.stderr))),
    }
}
