//! `--fail-above`: bounds of figures, for scripts and CI; and sizes that are given.

use std::process::ExitCode;
use std::str::FromStr;

use contextpilot_settings::read_gigabytes;

use crate::say::say;

/// A figure must not be above a value.
#[derive(Clone)]
pub(super) struct Limit {
    pub(super) name: String,
    most: f64,
}

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let split = text.split_once('=');
        let parsed =
            split.and_then(|(name, value)| Some((name, value.trim().parse::<f64>().ok()?)));
        let parsed = parsed.filter(|(_, value)| value.is_finite());
        let (name, most) = parsed.ok_or("a bound is FIGURE=VALUE, as in evaluated=70")?;
        Ok(Self {
            name: name.trim().to_owned(),
            most,
        })
    }
}

impl Limit {
    /// Says which figures are above their bounds. `figure`: its value, by name.
    pub(super) fn check(
        limits: &[Self],
        figure: impl Fn(&str) -> Option<f64>,
    ) -> Result<ExitCode, String> {
        let mut code = ExitCode::SUCCESS;
        for limit in limits {
            let name = &limit.name;
            let value = figure(name).ok_or_else(|| {
                format!(
                    "--fail-above knows no figure {name} here: see --help for those that it knows"
                )
            })?;
            if value > limit.most {
                say(format!("{name} is {value:.3}, above {}", limit.most));
                code = ExitCode::FAILURE;
            }
        }
        Ok(code)
    }
}

pub(super) fn gigabytes(text: &str) -> Result<u64, String> {
    read_gigabytes(text).ok_or_else(|| "a size is a number of 10⁹ bytes".to_owned())
}
