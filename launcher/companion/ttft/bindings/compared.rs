//! The programs that are compared: what each is given, and what was measured.

use std::path::Path;

use serde::Serialize;

use super::super::figures::Spread;
use super::super::trial::Measured;

/// What is the same for all.
pub(super) struct Plan<'a> {
    pub(super) model: &'a Path,
    pub(super) python: &'a Path,
    /// Room for the longest prompt, in tokens.
    pub(super) n_ctx: u32,
    pub(super) threads: usize,
}

/// One of the programs that are compared.
#[derive(Serialize)]
pub(super) struct Run {
    /// `llama-cpp-python` or `llama-server`.
    pub(super) program: &'static str,
    /// Of llama-cpp-python.
    pub(super) version: Option<String>,
    /// With the hook, and a prefix store that was empty.
    pub(super) store: bool,
    pub(super) trials: Vec<Trial>,
    #[serde(flatten)]
    pub(super) summary: Summary,
}

#[derive(Serialize)]
pub(super) struct Trial {
    pub(super) number: u32,
    /// [A, B] and a question, after [A, B].
    pub(super) hit: Measured,
    /// [B] and the question.
    pub(super) miss: Measured,
    /// The prompt of the hit once more.
    pub(super) again: Measured,
}

#[derive(Serialize)]
pub(super) struct Summary {
    pub(super) hit: Spread,
    pub(super) miss: Spread,
    pub(super) again: Spread,
}

impl Run {
    pub(super) fn new(
        program: &'static str,
        version: Option<String>,
        store: bool,
        trials: Vec<Trial>,
    ) -> Self {
        let of = |which: fn(&Trial) -> &Measured| {
            Spread::from_numbers(trials.iter().map(|trial| which(trial).first_token_ms))
        };
        Self {
            program,
            version,
            store,
            summary: Summary {
                hit: of(|trial| &trial.hit),
                miss: of(|trial| &trial.miss),
                again: of(|trial| &trial.again),
            },
            trials,
        }
    }

    pub(super) fn name(&self) -> String {
        let mut name = self.program.to_owned();
        if let Some(version) = &self.version {
            name = format!("{name} {version}");
        }
        if self.store {
            name += ", prefix store";
        }
        name
    }
}
