//! What is known from the server's flags alone, in the terms of the code that needs it: the observer, the control endpoint,
//! and a recording.

use contextpilot_control::{Engine, Flags, Memory, Model};
use contextpilot_residency::Rules;
use contextpilot_server_flags::{Flag, Generation, ServerFlags, Source};
use contextpilot_traffic::{Calls, Setup};

use crate::library::Library;

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
pub(super) fn host_limit(flags: &ServerFlags, seen: bool) -> (Option<u64>, &'static str) {
    match flags.cache_ram().filter(|_| seen) {
        None => (None, "unknown"),
        Some(0) => (Some(0), "off"),
        Some(mib) => match u64::try_from(mib) {
            Ok(mib) => (Some(mib << 20), from(flags.source(Flag::CacheRam))),
            Err(_) => (None, "unlimited"),
        },
    }
}

/// How large the prefix store may become, which is known once it is open.
#[derive(Debug, Default)]
pub(super) struct StoreLimit {
    is_taken: bool,
}

impl StoreLimit {
    /// The limit in bytes, returned once. `None`: there is no store, it is not open yet, or this was taken before.
    pub(super) fn take(&mut self, library: &dyn Library) -> Option<u64> {
        if self.is_taken {
            return None;
        }
        let store = library.store().filter(|store| store.limit_bytes > 0)?;
        self.is_taken = true;
        Some(store.limit_bytes)
    }
}

/// The server as it was started. Properties of the context are filled in when there is one.
pub(super) fn setup(flags: &ServerFlags, engine: &Engine) -> Setup {
    Setup {
        engine: engine.build.clone().unwrap_or_default(),
        calls: calls(engine),
        version: engine.version.clone().unwrap_or_default(),
        parallel: flags.slots(),
        auto_parallel: flags.chooses_slots() && !flags.asks_for_unified(),
        kv_unified: flags.kv_unified(),
        cache_ram: flags.cache_ram().map(i64::from),
        cache_idle_slots: flags.cache_idle_slots(),
        slot_prompt_similarity: flags.slot_prompt_similarity(),
        cache_reuse: flags.cache_reuse(),
        context_shift: flags.context_shift(),
        ctx_checkpoints: flags.ctx_checkpoints(),
        checkpoint_min_step: flags.checkpoint_min_step(),
        batch_size: flags.batch_size(),
        ubatch_size: flags.ubatch_size(),
        projector: flags.names_projector(),
        sleep_idle_seconds: flags.sleep_idle_seconds(),
        whole_windows: flags.swa_full(),
        ..Setup::default()
    }
}

/// The flags as the control endpoint shows them.
pub(super) fn flags(setup: &Setup, given: &ServerFlags) -> Flags {
    Flags {
        no_cache_prompt: !given.cache_prompt(),
        kv_unified: setup.kv_unified,
        slot_prompt_similarity: as_written(setup.slot_prompt_similarity),
        cache_reuse: setup.cache_reuse,
        context_shift: setup.context_shift,
        cache_idle_slots: setup.cache_idle_slots,
        ctx_checkpoints: setup.ctx_checkpoints,
        checkpoint_min_step: setup.checkpoint_min_step,
        // The context says it.
        parallel: None,
        can_shift: None,
        memory: Memory::default(),
    }
}

/// 0.1 as 0.1, and not as the 0.10000000149 that is next to it.
fn as_written(share: f32) -> f64 {
    share.to_string().parse().unwrap_or(share.into())
}

fn calls(engine: &Engine) -> Calls {
    let has = |name: &str| {
        engine
            .functions
            .iter()
            .any(|function| function.name == name)
    };
    match (
        has("llama_process"),
        has("llama_memory_seq_rm"),
        has("llama_decode"),
    ) {
        (true, ..) => Calls::Process,
        (false, true, _) => Calls::Decode,
        (false, false, true) => Calls::KvCache,
        (false, false, false) => Calls::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use contextpilot_control::HookedFunction;
    use contextpilot_server_flags::Generation;

    use super::*;

    fn line(arguments: &str) -> ServerFlags {
        of_generation(arguments, Generation::Late2026)
    }

    fn of_generation(arguments: &str, generation: Generation) -> ServerFlags {
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
        let of_2025 = of_generation("x", Generation::Of2025);
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
        let of_2025 = of_generation("x", Generation::Of2025);
        assert_eq!(host_limit(&of_2025, true), (None, "unknown"));
    }

    fn having(functions: &[&str]) -> Engine {
        let functions = functions.iter().map(|&name| HookedFunction {
            name: name.to_owned(),
            ..HookedFunction::default()
        });
        Engine {
            functions: functions.collect(),
            ..Engine::default()
        }
    }

    #[test]
    fn what_is_called_tells_the_age() {
        let old = calls(&having(&["llama_decode", "llama_kv_self_seq_rm"]));
        let early = calls(&having(&["llama_decode", "llama_memory_seq_rm"]));
        let late = calls(&having(&["llama_process", "llama_memory_seq_rm"]));
        assert_eq!(
            [old, early, late],
            [Calls::KvCache, Calls::Decode, Calls::Process]
        );
        assert_eq!(calls(&having(&[])), Calls::Unknown);
    }

    fn setup_of(arguments: &str, generation: Generation) -> Setup {
        let arguments = arguments.split(' ').map(Into::into);
        let flags = ServerFlags::read(arguments, |_| None, generation);
        setup(&flags, &having(&["llama_process"]))
    }

    fn late(arguments: &str) -> Setup {
        setup_of(arguments, Generation::Late2026)
    }

    #[test]
    fn without_flags_a_server_is_the_usual_one() {
        let calls = Calls::Process;
        let usual = Setup {
            calls,
            ..Setup::default()
        };
        assert_eq!(late("x"), usual);
    }

    #[test]
    fn parallel_ends_the_sharing_that_is_the_default() {
        assert!(late("x").auto_parallel);
        assert!(!late("x -np 2").auto_parallel);
        let unified = late("x --kv-unified");
        assert_eq!((unified.parallel, unified.kv_unified), (4, true));
        assert!(!unified.auto_parallel, "--parallel would leave them shared");
    }

    #[test]
    fn a_server_without_a_host_cache_defaults_to_one_slot_and_half_similarity() {
        let setup = setup_of("x", Generation::Of2025);
        assert_eq!((setup.parallel, setup.kv_unified), (1, false));
        assert_eq!(setup.slot_prompt_similarity, 0.5);
        assert_eq!(setup.cache_ram, None);
        assert!(setup.context_shift && !setup.auto_parallel);
    }

    #[test]
    fn flags_give_the_values_that_the_server_uses() {
        let setup = late("x --cache_ram -1 -sps 0.25 --no-cache-idle-slots --context-shift -b 64");
        assert_eq!(setup.cache_ram, Some(-1));
        assert_eq!(setup.slot_prompt_similarity, 0.25);
        let arguments = "x -sps 0.1 --no-cache-prompt".split(' ').map(Into::into);
        let given = ServerFlags::read(arguments, |_| None, Generation::Late2026);
        let shown = flags(&setup, &given);
        assert!(shown.no_cache_prompt);
        assert_eq!(shown.slot_prompt_similarity, 0.25);
        assert_eq!(as_written(0.1), 0.1);
        assert_eq!(late("x -sps 0.0003").slot_prompt_similarity, 0.0003);
        assert!(!setup.cache_idle_slots && setup.context_shift);
        assert_eq!((setup.batch_size, setup.ubatch_size), (64, 64));
        assert_eq!(late("x --cache-reuse 16").cache_reuse, 16);
        assert!(late("x --swa-full").whole_windows && !setup.whole_windows);
    }
}
