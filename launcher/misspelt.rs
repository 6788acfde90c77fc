//! Variables that are no setting, and look like one.

use std::ffi::OsString;
use std::fmt;

use contextpilot_settings::table;

/// What all settings but `LLAMA_SERVER_BIN` begin with.
const PREFIX: &str = "CONTEXTPILOT_";
/// What begins otherwise is not looked at. To compare each variable of an environment of 40 with each setting
/// took 4 ms of each start.
const BEGINNING: &str = "CON";

/// A variable without effect, and the setting that was probably meant.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Misspelt {
    name: String,
    nearest: &'static str,
}

impl fmt::Display for Misspelt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, nearest } = self;
        write!(
            f,
            "{name} is not a setting and has no effect: did you mean {nearest}?"
        )
    }
}

/// Those among `variables` that are not empty.
///
/// Other programs have variables that begin with `CONTEXTPILOT_`, too, so that only those near to a setting
/// of ours are named.
pub(crate) fn find(variables: impl Iterator<Item = (OsString, OsString)>) -> Vec<Misspelt> {
    let set = variables.filter(|(_, value)| !value.is_empty());
    let mut found: Vec<_> = set
        .filter_map(|(name, _)| {
            let name = name.into_string().ok()?;
            let nearest = nearest(&name)?;
            Some(Misspelt { name, nearest })
        })
        .collect();
    // The order of the environment is an accident.
    found.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    found
}

/// `None`: it is a setting, or nothing like one.
fn nearest(name: &str) -> Option<&'static str> {
    let begins = name.get(..BEGINNING.len());
    let names = table::ALL.iter().map(|setting| setting.name);
    if !begins.is_some_and(|begins| begins.eq_ignore_ascii_case(BEGINNING))
        || names.clone().any(|known| known == name)
    {
        return None;
    }
    let upper = name.to_ascii_uppercase();
    // `CONTEXTPILOT_INDEX` for `CONTEXTPILOT_INDEX_URL`.
    let is_shortened = |known: &str| {
        let rest = known.strip_prefix(upper.as_str());
        upper.len() > PREFIX.len() && rest.is_some_and(|rest| rest.starts_with('_'))
    };
    let length = upper.chars().count();
    let near = names.filter_map(|known| {
        let largest = largest_distance(known);
        let distance = if is_shortened(known) {
            1
        } else if length.abs_diff(known.len()) > largest {
            // The distance is not less. To compare one variable, as `CONDA_PREFIX`, with each setting took 0.07 ms.
            return None;
        } else {
            strsim::osa_distance(&upper, known)
        };
        (distance <= largest).then_some((distance, known))
    });
    // The first of several.
    let nearest = near.min_by_key(|(distance, _)| *distance);
    nearest.map(|(_, known)| known)
}

/// One wrong character in three of what stands behind the prefix, and two at most.
fn largest_distance(known: &str) -> usize {
    (known.len().saturating_sub(PREFIX.len()) / 3).min(2)
}

#[cfg(test)]
mod tests {
    use contextpilot_settings::env;

    use super::*;

    #[test]
    fn a_misspelt_name_has_a_nearest_setting() {
        for (name, meant) in [
            ("CONTEXTPILOT_LISTN", env::LISTEN),
            ("CONTEXPILOT_LISTEN", env::LISTEN),
            ("CONTEXT_PILOT_LISTEN", env::LISTEN),
            ("contextpilot_listen", env::LISTEN),
            ("CONTEXTPILOT_LOGFILE", env::LOG_FILE),
            ("CONTEXTPILOT_KVEVENTS", env::KV_EVENTS),
            ("CONTEXTPILOT_TRAFIC_FILE", env::TRAFFIC_FILE),
            ("CONTEXTPILOT_STOER", env::STORE),
            ("CONTEXTPILOT_INDEX", env::INDEX_URL),
            ("CONTEXTPILOT_INDEX_UR", env::INDEX_URL),
            ("CONTEXTPILOT_INDEX_TIMEOUT", env::INDEX_TIMEOUT_MS),
        ] {
            assert_eq!(nearest(name), Some(meant), "{name}");
        }
    }

    #[test]
    fn settings_and_variables_of_others_are_not_named() {
        for setting in table::ALL {
            assert_eq!(nearest(setting.name), None);
        }
        for name in [
            // Those of ContextPilot's Python package, 0.5.0.
            "CONTEXTPILOT_ARTIFACT_DEDUP_MODE",
            "CONTEXTPILOT_CLOUD_API_KEY",
            "CONTEXTPILOT_DEDUP",
            "CONTEXTPILOT_EXTENDED_CACHE",
            "CONTEXTPILOT_INFER_API_URL",
            "CONTEXTPILOT_LLAMACPP_URL",
            "CONTEXTPILOT_MAX_TOKENS",
            "CONTEXTPILOT_MODEL_NAME",
            "CONTEXTPILOT_STATELESS_MODE",
            "CONTEXTPILOT_TRACK_ONLY_PREFIX",
            "CONTEXTPILOT_",
            "CONTEXTPILOT",
            "PATH",
            "LLAMA_SERVER_DIR",
        ] {
            assert_eq!(nearest(name), None, "{name}");
        }
    }

    #[test]
    fn what_is_empty_is_not_set() {
        let variables = |value: &str| [("CONTEXTPILOT_LISTN".into(), value.into())];
        assert!(find(variables("").into_iter()).is_empty());
        let found = find(variables("1").into_iter());
        assert_eq!(
            found[0].to_string(),
            "CONTEXTPILOT_LISTN is not a setting and has no effect: did you mean \
             CONTEXTPILOT_LISTEN?"
        );
    }
}
