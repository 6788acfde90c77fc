//! Flags that an older server does not know.
//!
//! Tests are written for the llama-server that `scripts/llama-server` fetches. With
//! `LLAMA_SERVER_BIN` they run on any other server. Its `--help` decides which flags it gets.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

/// Flags that can be left out if a server does not know them, and whether a value follows. Such a
/// server always does what the flag asks for: it has no host cache, one layout of its KV cache, full
/// windows, context shift, and one use of a draft model.
const BY_NATURE: [(&str, bool); 6] = [
    ("--cache-ram", true),
    ("--no-kv-unified", false),
    ("--kv-unified", false),
    ("--swa-full", false),
    ("--context-shift", false),
    ("--spec-type", true),
];

/// The flags in a server's `--help`. Empty if it prints none: then nothing is known of its flags.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flags(BTreeSet<String>);

impl Flags {
    /// Each server is asked once per process.
    pub(crate) fn of(server: &Path) -> Self {
        static ASKED: Mutex<Option<HashMap<PathBuf, Flags>>> = Mutex::new(None);
        let mut asked = ASKED.lock().unwrap_or_else(PoisonError::into_inner);
        let asked = asked.get_or_insert_default();
        let flags = asked.entry(server.to_owned()).or_insert_with(|| {
            let output = Command::new(server)
                .arg("--help")
                .env_remove("LD_PRELOAD")
                .stdin(Stdio::null())
                .output();
            output.map_or_else(
                |_| Self::default(),
                |output| Self::in_help(&String::from_utf8_lossy(&output.stdout)),
            )
        });
        flags.clone()
    }

    fn in_help(help: &str) -> Self {
        let lines = help.lines().filter(|line| line.starts_with('-'));
        let words = lines.flat_map(|line| line.split([' ', ',']));
        let flags = words.filter(|word| word.starts_with('-'));
        Self(flags.map(str::to_owned).collect())
    }

    pub(crate) fn has(&self, flag: &str) -> bool {
        self.0.is_empty() || self.0.contains(flag)
    }

    /// `args` without the flags that the server does not need.
    pub(crate) fn fitting(&self, args: &[OsString]) -> Vec<OsString> {
        let mut fitting = Vec::new();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut by_nature = BY_NATURE.iter();
            match by_nature.find(|(flag, _)| arg == flag && !self.has(flag)) {
                Some((_, true)) => drop(args.next()),
                Some((_, false)) => {}
                None => fitting.push(arg.clone()),
            }
        }
        fitting
    }

    /// The first of `args` that the server does not know and that cannot be left out.
    pub(crate) fn lacking(&self, args: &[OsString]) -> Option<String> {
        let args = self.fitting(args);
        let flags = args.iter().filter_map(|arg| arg.to_str());
        let mut unknown = flags.filter(|arg| {
            let is_flag = arg.starts_with('-') && arg.parse::<f64>().is_err();
            is_flag && !self.has(arg)
        });
        unknown.next().map(str::to_owned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "----- common params -----\n\n\
        -c,    --ctx-size N    size of the context\n\
        \x20                      (env: LLAMA_ARG_CTX_SIZE, not --another)\n\
        -np,   --parallel N    number of sequences\n";

    fn strings(args: &[&str]) -> Vec<OsString> {
        args.iter().map(Into::into).collect()
    }

    #[test]
    fn a_flag_for_what_an_old_server_always_does_is_left_out() {
        let old = Flags::in_help(OLD);
        let args = strings(&["--no-kv-unified", "--cache-ram", "0", "--parallel", "2"]);
        assert_eq!(old.fitting(&args), strings(&["--parallel", "2"]));
        assert_eq!(Flags::default().fitting(&args), args);
    }

    #[test]
    fn a_flag_that_an_old_server_lacks_and_needs_is_named() {
        let old = Flags::in_help(OLD);
        let args = strings(&["-c", "-1", "--kv-unified", "--jinja", "--another"]);
        assert_eq!(old.lacking(&args).as_deref(), Some("--jinja"));
        assert_eq!(old.lacking(&strings(&["-c", "-1"])), None);
        assert_eq!(Flags::default().lacking(&args), None);
        assert!(!old.has("--another"));
    }
}
