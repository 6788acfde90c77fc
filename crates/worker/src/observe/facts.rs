//! What the server was told that it does not tell us: its command line and environment.

use std::ffi::OsString;

use contextpilot_control::Model;
use contextpilot_residency::Rules;

/// What llama-server 0.7.0 takes unless it is told otherwise, MiB.
const DEFAULT_CACHE_RAM: i64 = 8192;

/// Options of llama-server, and the variables that stand for them.
pub(crate) struct CommandLine<F> {
    arguments: Vec<String>,
    lookup: F,
}

/// Where a value is from.
enum From {
    Arguments(String),
    Environment(String),
}

impl<F: Fn(&str) -> Option<OsString>> CommandLine<F> {
    pub(crate) fn new(arguments: impl Iterator<Item = OsString>, lookup: F) -> Self {
        Self {
            arguments: arguments
                .map(|argument| argument.to_string_lossy().into_owned())
                .collect(),
            lookup,
        }
    }

    /// The last one counts, and an argument more than a variable: as the server does it.
    fn value(&self, options: &[&str], variable: &str) -> Option<From> {
        let pairs = self.arguments.windows(2).rev();
        let given = pairs
            .filter(|pair| options.contains(&&*pair[0]))
            .map(|pair| From::Arguments(pair[1].clone()))
            .next();
        given.or_else(|| {
            let value = (self.lookup)(variable).filter(|value| !value.is_empty())?;
            Some(From::Environment(value.to_string_lossy().into_owned()))
        })
    }

    /// The text of an option.
    pub(super) fn text(&self, options: &[&str], variable: &str) -> Option<String> {
        self.value(options, variable).map(|value| match value {
            From::Arguments(text) | From::Environment(text) => text,
        })
    }

    /// An option without a value, and the one that turns it off.
    pub(super) fn flag(&self, on: &[&str], off: &[&str], variable: &str) -> Option<bool> {
        let given = self.arguments.iter().rev().find_map(|argument| {
            let is = |options: &[&str]| options.contains(&&**argument);
            match (is(on), is(off)) {
                (true, _) => Some(true),
                (_, true) => Some(false),
                _ => None,
            }
        });
        given.or_else(|| {
            let value = (self.lookup)(variable).filter(|value| !value.is_empty())?;
            Some(["on", "enabled", "true", "1"].contains(&&*value.to_string_lossy()))
        })
    }

    /// What the model is called: its alias, or its file's name.
    pub(crate) fn model(&self) -> Option<Model> {
        let alias = self.value(&["-a", "--alias"], "LLAMA_ARG_ALIAS");
        let model = alias
            .or_else(|| self.value(&["-m", "--model"], "LLAMA_ARG_MODEL"))
            .or_else(|| self.value(&["-hf", "-hfr", "--hf-repo"], "LLAMA_ARG_HF_REPO"))?;
        let (name, from) = match &model {
            From::Arguments(name) => (name, "command line"),
            From::Environment(name) => (name, "environment"),
        };
        // A path's last part; a repository has one slash, and is not a path.
        let name = match name.ends_with(".gguf") {
            true => name.rsplit('/').next().unwrap_or(name),
            false => name,
        };
        Some(Model {
            name: name.to_owned(),
            from: from.to_owned(),
        })
    }

    /// What decides how much of a prompt is reused. `tied`: requests are tied to slots by their
    /// prompts.
    pub(crate) fn rules(&self, tied: bool) -> Rules {
        let text = |options: &[&str], variable: &str| {
            self.value(options, variable).map(|value| match value {
                From::Arguments(text) | From::Environment(text) => text,
            })
        };
        let default = Rules::default();
        let similarity = text(
            &["-sps", "--slot-prompt-similarity"],
            "LLAMA_ARG_SLOT_PROMPT_SIMILARITY",
        );
        let cache_reuse = text(&["--cache-reuse"], "LLAMA_ARG_CACHE_REUSE");
        Rules {
            similarity: similarity
                .and_then(|text| text.parse().ok())
                .unwrap_or(default.similarity),
            cache_reuse: cache_reuse
                .and_then(|text| text.parse().ok())
                .unwrap_or(default.cache_reuse),
            tied,
        }
    }

    /// Bytes that the host prompt cache may take, and where that is from. There is none where
    /// `has_host_cache` is false.
    pub(crate) fn host_limit(&self, has_host_cache: bool) -> (Option<u64>, String) {
        if !has_host_cache {
            return (None, "unknown".to_owned());
        }
        let given = self.value(&["-cram", "--cache-ram"], "LLAMA_ARG_CACHE_RAM");
        let (mib, from) = match given {
            None => (Some(DEFAULT_CACHE_RAM), "default of 0.7"),
            Some(From::Arguments(text)) => (text.parse().ok(), "command line"),
            Some(From::Environment(text)) => (text.parse().ok(), "environment"),
        };
        match mib {
            None => (None, "unknown".to_owned()),
            Some(0) => (Some(0), "off".to_owned()),
            Some(mib) => match u64::try_from(mib) {
                Ok(mib) => (Some(mib << 20), from.to_owned()),
                Err(_) => (None, "unlimited".to_owned()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(
        arguments: &str,
        variable: Option<(&'static str, &'static str)>,
    ) -> CommandLine<impl Fn(&str) -> Option<OsString>> {
        let arguments: Vec<OsString> = arguments.split(' ').map(OsString::from).collect();
        CommandLine::new(arguments.into_iter(), move |name: &str| {
            variable
                .filter(|(known, _)| *known == name)
                .map(|(_, value)| value.into())
        })
    }

    #[test]
    fn a_model_is_called_by_its_alias_or_its_file() {
        let name = |arguments, variable| {
            line(arguments, variable)
                .model()
                .map(|model| (model.name, model.from))
        };
        let from_line = |name: &str| Some((name.to_owned(), "command line".to_owned()));
        assert_eq!(name("x -m /a/b.gguf", None), from_line("b.gguf"));
        assert_eq!(name("x --model b.gguf -a tea", None), from_line("tea"));
        assert_eq!(name("x -hf org/model:Q4", None), from_line("org/model:Q4"));
        assert_eq!(
            name("x", Some(("LLAMA_ARG_MODEL", "/m/c.gguf"))),
            Some(("c.gguf".to_owned(), "environment".to_owned()))
        );
        assert_eq!(name("x --model", None), None);
    }

    #[test]
    fn the_rules_are_those_of_the_command_line() {
        let rules = |arguments, variable| {
            let rules = line(arguments, variable).rules(false);
            (rules.similarity, rules.cache_reuse)
        };
        assert_eq!(rules("x", None), (0.1, 0));
        assert_eq!(rules("x -sps 0 --cache-reuse 256", None), (0.0, 256));
        assert_eq!(rules("x --slot-prompt-similarity 0.5", None), (0.5, 0));
        let variable = Some(("LLAMA_ARG_CACHE_REUSE", "9"));
        assert_eq!(rules("x", variable), (0.1, 9));
        assert_eq!(rules("x --cache-reuse none", None), (0.1, 0));
    }

    #[test]
    fn the_limit_says_where_it_is_from() {
        let limit = |arguments, variable| line(arguments, variable).host_limit(true);
        let known = |mib: u64, from: &str| (Some(mib << 20), from.to_owned());
        assert_eq!(limit("x", None), known(8192, "default of 0.7"));
        assert_eq!(
            limit("x -cram 5 --cache-ram 7", None),
            known(7, "command line")
        );
        let variable = Some(("LLAMA_ARG_CACHE_RAM", "9"));
        assert_eq!(limit("x", variable), known(9, "environment"));
        assert_eq!(limit("x -cram 7", variable), known(7, "command line"));
        assert_eq!(limit("x -cram 0", None), known(0, "off"));
        assert_eq!(limit("x -cram -1", None), (None, "unlimited".to_owned()));
        assert_eq!(limit("x -cram all", None), (None, "unknown".to_owned()));
        assert_eq!(line("x", None).host_limit(false).0, None);
    }
}
