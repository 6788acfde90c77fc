//! What `ttft` is asked for, and the files that it writes.

use std::fs;
use std::path::PathBuf;

use clap::Args;

use crate::companion::connect::ControlAt;
use crate::companion::engine::ServerAt;

/// Measure the time to the first token with a cached context and without
///
/// Each trial warms the server with two fresh contexts, [A, B], then asks a
/// question behind [A, B], whose KV is cached (hit), and behind [B] alone,
/// where nothing can be reused, because the prompt no longer begins with A (miss).
/// If a hook listens, it is asked before each hit and after each miss whether the
/// contexts are cached, and the engine shows whether that was right. With a prefix
/// store, the prompt of the hit is asked once more after the miss: what it then takes is
/// shown as "from the store". Writes <OUT>.csv and <OUT>.svg.
///
/// With --python, the same is done through llama-cpp-python, with one sequence in one object, and
/// through a llama-server that this command starts; each with and without a prefix store. "again" is
/// the prompt of the hit, once more after the miss.
#[allow(
    rustdoc::broken_intra_doc_links,
    rustdoc::invalid_html_tags,
    reason = "this is the text of --help"
)]
#[derive(Args)]
#[command(after_help = "Examples:
  contextpilot-llama ttft --trials 20 --context-tokens 800 --out /tmp/ttft
  contextpilot-llama ttft --python model.gguf --python-bin ~/venv/bin/python")]
pub(in crate::companion) struct TtftOptions {
    #[command(flatten)]
    pub(super) server: ServerAt,
    #[command(flatten)]
    pub(super) control: ControlAt,
    /// How many trials
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(super) trials: u32,
    /// About how many tokens a context has
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(8..=10_000_000))]
    pub(super) context_tokens: u32,
    /// Slot to use, if there are several
    #[arg(long, value_name = "ID", default_value_t = 0)]
    pub(super) slot: u32,
    /// Files to write, without .csv and .svg
    #[arg(long, value_name = "PATH", default_value = "ttft")]
    out: PathBuf,
    /// Compare llama-cpp-python and llama-server with this model, in place of a server that runs
    #[arg(long, value_name = "MODEL", conflicts_with = "slot")]
    pub(super) python: Option<PathBuf>,
    /// The Python that has llama-cpp-python
    #[arg(
        long,
        value_name = "PYTHON",
        default_value = "python3",
        requires = "python"
    )]
    pub(super) python_bin: PathBuf,
    /// Print JSON: trials, hit, miss and store {median, p10, p90} in milliseconds (store: null
    /// where no prompt came from a prefix store), ratio, and hook {asked, right} (null without one);
    /// with --python: runs, each with program, version, store, trials, hit, miss and again
    #[arg(long)]
    pub(super) json: bool,
}

impl TtftOptions {
    pub(super) fn write(&self, extension: &str, text: &str) -> Result<(), String> {
        let mut name = self.out.clone().into_os_string();
        name.push(".");
        name.push(extension);
        let path = PathBuf::from(name);
        fs::write(&path, text).map_err(|e| {
            format!(
                "{} cannot be written ({e}): name another place with --out",
                path.display()
            )
        })?;
        Ok(())
    }
}
