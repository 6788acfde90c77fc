//! A Python program that loads llama.cpp's library, and what it prints.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use contextpilot_testbed::{Arch, Model, llama_server, skip};
use serde::Deserialize;

/// The library that the launcher preloads.
pub(crate) const HOOK: &str = env!("CONTEXTPILOT_EMBEDDED_HOOK");

/// One step of the program.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Step {
    pub(crate) name: String,
    /// Tokens that the engine evaluated, by its own count.
    #[serde(default)]
    pub(crate) evaluated: u32,
    /// The answer of each sequence.
    #[serde(default)]
    pub(crate) tokens: Vec<Vec<u32>>,
    /// The likeliest tokens after each prompt.
    #[serde(default)]
    pub(crate) top: Vec<Vec<(u32, f64)>>,
    /// Anything else.
    #[serde(flatten)]
    pub(crate) rest: BTreeMap<String, i64>,
}

/// What a run has printed.
pub(crate) struct Run {
    pub(crate) steps: Vec<Step>,
    pub(crate) stderr: String,
}

/// Without the answers, which are long.
impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in &self.steps {
            writeln!(f, "{}: {} {:?}", step.name, step.evaluated, step.rest)?;
        }
        f.write_str(&self.stderr)
    }
}

impl Run {
    /// # Panics
    /// If the program has failed.
    pub(crate) fn of(output: &Output) -> Self {
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{stdout}{stderr}");
        let lines = stdout.lines();
        let steps = lines.map(|line| serde_json::from_str(line).expect("a step"));
        Self {
            steps: steps.collect(),
            stderr,
        }
    }

    pub(crate) fn step(&self, name: &str) -> &Step {
        let mut steps = self.steps.iter();
        let found = steps.find(|step| step.name == name);
        found.unwrap_or_else(|| panic!("no step {name}: {self:?}"))
    }

    /// Where the last token of a prompt is evaluated by itself in both runs, even the numbers are the same. In
    /// steps that begin with `each` it is not, and rounding differs.
    ///
    /// # Panics
    /// If the answers differ from those of another run of the same program.
    #[track_caller]
    pub(crate) fn must_answer_as(&self, plain: &Self) {
        self.must_answer_within(plain, 0.001);
    }

    /// As [`Self::must_answer_as`], with this much room for rounding.
    ///
    /// # Panics
    /// As there.
    #[track_caller]
    pub(crate) fn must_answer_within(&self, plain: &Self, rounding: f64) {
        assert_eq!(self.steps.len(), plain.steps.len(), "{self:?}");
        for (ours, theirs) in self.steps.iter().zip(&plain.steps) {
            assert_eq!(ours.name, theirs.name);
            assert_eq!(ours.tokens, theirs.tokens, "{}", ours.name);
            let pairs = ours.top.iter().flatten().zip(theirs.top.iter().flatten());
            let rounding = if ours.name.starts_with("each") {
                0.5
            } else {
                rounding
            };
            for ((_, first), (_, second)) in pairs {
                assert!((first - second).abs() < rounding, "{ours:?}\n{theirs:?}");
            }
        }
    }
}

/// The variables of a program with the hook and a store.
pub(crate) fn hooked(store: &Path) -> [(&str, &str); 4] {
    [
        ("LD_PRELOAD", HOOK),
        ("CONTEXTPILOT_ENGINE", "1"),
        ("CONTEXTPILOT_STORE", store.to_str().expect("a plain path")),
        ("CONTEXTPILOT_STORE_GB", "1"),
    ]
}

/// Removes what the test itself was started with.
pub(crate) fn without_ours(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CONTEXTPILOT_") || text.starts_with("LD_") {
            command.env_remove(&name);
        }
    }
}

/// A Python program with the library of the real server.
pub(crate) struct Program {
    line: Vec<PathBuf>,
    model: Model,
    folder: tempfile::TempDir,
}

impl Program {
    /// `None`, after a line on stderr, if the server is linked statically with llama.cpp, or there is no Python.
    pub(crate) fn find() -> Option<Self> {
        Self::with(Arch::Llama)
    }

    /// The same with another model.
    pub(crate) fn with(arch: Arch) -> Option<Self> {
        let server = llama_server();
        let (Some(folder), Ok(python)) = (server.parent(), which::which("python3")) else {
            skip("no python3 here");
            return None;
        };
        let library = folder.join("libllama.so.0");
        if !library.exists() {
            skip(format!("{} has no libllama beside it", server.display()));
            return None;
        }
        let output = Command::new(python)
            .args(["-c", "import sys; print(sys.executable)"])
            .output()
            .expect("Python starts");
        let python = String::from_utf8(output.stdout).expect("a path");
        let script =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/embedded/fixtures/engine.py");
        let mut line = vec![python.trim_end().into(), script, library];
        // The machine's own loader may be too old for this library.
        let loaders = ["ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"];
        let mut loaders = loaders.iter().map(|name| folder.join(name));
        if let Some(loader) = loaders.find(|loader| loader.exists()) {
            line.splice(..0, [loader, "--library-path".into(), folder.into()]);
        }
        Some(Self {
            line,
            model: Model::tiny(arch),
            folder: tempfile::tempdir().expect("a temporary folder"),
        })
    }

    pub(crate) fn library(&self) -> &Path {
        self.line.last().expect("the library comes last")
    }

    /// The model's file.
    pub(crate) fn model(&self) -> &Path {
        self.model.path()
    }

    /// The command line.
    pub(crate) fn line(&self, what: &str) -> Vec<PathBuf> {
        let model = self.model.path().canonicalize().expect("it was written");
        let line = self.line.iter().cloned();
        line.chain([model, what.into()]).collect()
    }

    /// The command line of another program, which gets the library and the model.
    pub(crate) fn line_of(&self, program: &Path) -> Vec<PathBuf> {
        let mut line = self.line("");
        line.pop();
        // The library and the model come last, behind Python and its script.
        let python = line.len() - 4;
        line.splice(python..python + 2, [program.to_owned()]);
        line
    }

    /// A folder for whatever the test needs.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Runs it without the hook.
    pub(crate) fn run(&self, what: &str) -> Run {
        self.run_with(what, &[])
    }

    /// Runs it with the hook, and a store.
    pub(crate) fn run_stored(&self, what: &str, store: &Path) -> Run {
        self.run_with(what, &hooked(store))
    }

    /// Runs it with these variables.
    pub(crate) fn run_with(&self, what: &str, variables: &[(&str, &str)]) -> Run {
        let output = self.command(what, variables).output();
        Run::of(&output.expect("it starts"))
    }

    /// As [`Self::command`], of another script with another library.
    pub(crate) fn command_of(
        &self,
        script: &Path,
        library: &Path,
        variables: &[(&str, &str)],
    ) -> Command {
        let line = self.line("");
        let own = &self.line[self.line.len() - 2..];
        let replaced = |word: &PathBuf| match word {
            word if *word == own[0] => script.to_owned(),
            word if *word == own[1] => library.to_owned(),
            word => word.clone(),
        };
        let line: Vec<PathBuf> = line.iter().map(replaced).collect();
        let mut command = Command::new(&line[0]);
        without_ours(&mut command);
        command
            .args(&line[1..])
            .envs(variables.iter().copied())
            .current_dir(self.folder());
        command
    }

    /// Its command, with these variables.
    pub(crate) fn command(&self, what: &str, variables: &[(&str, &str)]) -> Command {
        let line = self.line(what);
        let mut command = Command::new(&line[0]);
        without_ours(&mut command);
        command
            .args(&line[1..])
            .envs(variables.iter().copied())
            .env("SECOND_ENGINE", self.folder().join("libllama.so.0"))
            .current_dir(self.folder());
        command
    }
}
