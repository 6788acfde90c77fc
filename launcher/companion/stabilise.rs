//! `--stabilise`: rules by which a proxy puts prompts right.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use contextpilot_proxy::Stabiliser;

use crate::say::say;

/// Bytes of a file of rules.
const LONGEST: u64 = 1 << 20;

/// What is changed in requests and answers as they pass.
#[derive(Args, Clone, Default)]
pub(super) struct Edits {
    /// Leave the usage in answers as the engine counts it: without what the prefix
    /// store has loaded
    #[arg(long)]
    pub(super) engine_usage: bool,
    #[command(flatten)]
    pub(super) stabilise: Stabilise,
}

/// Where the rules are.
#[derive(Args, Clone, Default)]
pub(super) struct Stabilise {
    /// Put right what changes at the beginning of prompts and need not, by the rules
    /// in this file, before the server sees them. `why --propose` writes rules
    #[arg(long = "stabilise", value_name = "RULES")]
    pub(super) file: Option<PathBuf>,
}

impl Stabilise {
    /// The rules, if there is a file; says which there are.
    pub(super) fn rules(&self) -> Result<Option<Arc<Stabiliser>>, String> {
        let Some(file) = &self.file else {
            return Ok(None);
        };
        let rules = self.read(file)?;
        let names: Vec<&str> = rules.used().map(|(name, _)| name).collect();
        say(format_args!(
            "Prompts are changed before the server sees them, by the rules of {}: {}",
            file.display(),
            names.join(", ")
        ));
        Ok(Some(Arc::new(rules)))
    }

    /// The same for a process that only looks whether they can be followed.
    pub(super) fn check(&self) -> Result<(), String> {
        let file = self.file.as_deref();
        file.map_or(Ok(()), |file| self.read(file).map(drop))
    }

    fn read(&self, file: &Path) -> Result<Stabiliser, String> {
        let fail = |why: &dyn std::fmt::Display| {
            let why = why.to_string();
            format!("--stabilise {}: {}", file.display(), why.trim_end())
        };
        let mut text = String::new();
        let opened = File::open(file).map_err(|e| fail(&e))?;
        let read = opened.take(LONGEST + 1).read_to_string(&mut text);
        read.map_err(|e| fail(&e))?;
        if text.len() as u64 > LONGEST {
            return Err(fail(&"has more than 1 MiB: is it a file of rules?"));
        }
        Stabiliser::read(&text).map_err(|e| fail(&e))
    }
}
