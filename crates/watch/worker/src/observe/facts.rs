//! What is known from the server's flags alone, in the terms of the code that needs it.

use contextpilot_control::Model;
use contextpilot_residency::Rules;
use contextpilot_server_flags::{Flag, Generation, ServerFlags, Source};

/// What the model is called: its alias, its repository, or its file's name.
pub(super) fn model(flags: &ServerFlags) -> Option<Model> {
    let model = flags.model()?;
    let name = model.name.to_string_lossy();
    // A path's last part; a repository has one slash, and is not a path.
    let name = if name.ends_with(".gguf") {
        name.rsplit('/').next().unwrap_or(&name)
    } else {
        &name
    };
    Some(Model {
        name: name.to_owned(),
        from: from(model.source).to_owned(),
    })
}

fn from(source: Source) -> &'static str {
    match source {
        Source::CommandLine => "command line",
        Source::Environment => "environment",
        Source::Default => "default of 0.7",
    }
}

/// What decides how much of a prompt is reused. `tied`: requests are tied to slots by their
/// prompts.
pub(super) fn rules(flags: &ServerFlags, tied: bool) -> Rules {
    Rules {
        similarity: flags.slot_prompt_similarity(),
        of_slot: flags.generation() == Generation::Of2025,
        cache_reuse: flags.cache_reuse(),
        tied,
    }
}

/// Bytes that the host prompt cache may take, and where that is from. `seen`: the host prompt cache is
/// followed.
pub(crate) fn host_limit(flags: &ServerFlags, seen: bool) -> (Option<u64>, &'static str) {
    match flags.cache_ram().filter(|_| seen) {
        None => (None, "unknown"),
        Some(0) => (Some(0), "off"),
        Some(mib) => match u64::try_from(mib) {
            Ok(mib) => (Some(mib << 20), from(flags.source(Flag::CacheRam))),
            Err(_) => (None, "unlimited"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(arguments: &str) -> ServerFlags {
        of(arguments, Generation::Late2026)
    }

    fn of(arguments: &str, generation: Generation) -> ServerFlags {
        let arguments = arguments.split(' ').map(Into::into);
        ServerFlags::read(arguments, |_| None, generation)
    }

    #[test]
    fn a_model_is_called_by_its_alias_or_its_file() {
        let name = |arguments| model(&line(arguments)).map(|model| (model.name, model.from));
        let from_line = |name: &str| Some((name.to_owned(), "command line".to_owned()));
        assert_eq!(name("x -m /a/b.gguf"), from_line("b.gguf"));
        assert_eq!(name("x --model b.gguf -a tea"), from_line("tea"));
        assert_eq!(name("x -hf org/model:Q4"), from_line("org/model:Q4"));
        assert_eq!(name("x --model"), None);
        let variable = |name: &str| (name == "LLAMA_ARG_MODEL").then(|| "/m/c.gguf".into());
        let flags = ServerFlags::read(["x".into()], variable, Generation::Late2026);
        let model = model(&flags).map(|model| (model.name, model.from));
        let expected = ("c.gguf".to_owned(), "environment".to_owned());
        assert_eq!(model, Some(expected));
    }

    #[test]
    fn the_rules_are_those_of_the_generation_and_the_command_line() {
        assert_eq!(rules(&line("x"), false), Rules::default());
        let of_2025 = of("x", Generation::Of2025);
        assert_eq!(rules(&of_2025, false), Rules::of_2025());
        let given = rules(&line("x -sps 0 --cache_reuse 256"), true);
        assert_eq!((given.similarity, given.cache_reuse), (0.0, 256));
        assert!(given.tied);
    }

    #[test]
    fn the_limit_says_where_it_is_from() {
        let limit = |arguments| host_limit(&line(arguments), true);
        let known = |mib: u64, from| (Some(mib << 20), from);
        assert_eq!(limit("x"), known(8192, "default of 0.7"));
        assert_eq!(limit("x -cram 5 --cache_ram 7"), known(7, "command line"));
        assert_eq!(limit("x -cram 0"), known(0, "off"));
        assert_eq!(limit("x -cram -1"), (None, "unlimited"));
        assert_eq!(host_limit(&line("x"), false), (None, "unknown"));
        let of_2025 = of("x", Generation::Of2025);
        assert_eq!(host_limit(&of_2025, true), (None, "unknown"));
    }
}
