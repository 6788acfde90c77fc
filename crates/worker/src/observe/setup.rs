//! Reads the flags of the server that decide what it reuses.

use std::ffi::OsString;

use contextpilot_control::Engine;
use contextpilot_traffic::{Calls, Setup};

use super::facts::CommandLine;

/// Reads command line and environment as llama-server 0.7.0 does, or, if the server has no host prompt
/// cache, as a server of 2025. Missing flags have the server's defaults. Properties of the context are
/// filled in when there is one.
pub(super) fn setup<F: Fn(&str) -> Option<OsString>>(
    command: &CommandLine<F>,
    engine: &Engine,
    has_host_cache: bool,
) -> Setup {
    let usual = Setup::default();
    let calls = calls(engine);
    let number = |options: &[&str], variable, usual: i64| -> i64 {
        let given = command.text(options, variable);
        given.and_then(|text| text.parse().ok()).unwrap_or(usual)
    };
    let size = |options: &[&str], variable, usual: u32| -> u32 {
        u32::try_from(number(options, variable, i64::from(usual))).unwrap_or(usual)
    };
    // Without this flag the server has four slots that share the context.
    let slots = number(&["-np", "--parallel"], "LLAMA_ARG_N_PARALLEL", -1);
    let given = u32::try_from(slots).ok().filter(|&slots| slots > 0);
    let parallel = given.or((!has_host_cache).then_some(1));
    let unified = command.flag(
        &["-kvu", "--kv-unified"],
        &["-no-kvu", "--no-kv-unified"],
        "LLAMA_ARG_KV_UNIFIED",
    );
    let shift = command.flag(
        &["--context-shift"],
        &["--no-context-shift"],
        "LLAMA_ARG_CONTEXT_SHIFT",
    );
    let idle = command.flag(
        &["--cache-idle-slots"],
        &["--no-cache-idle-slots"],
        "LLAMA_ARG_CACHE_IDLE_SLOTS",
    );
    let similarity = command
        .text(&["-sps", "--slot-prompt-similarity"], "")
        .and_then(|text| text.parse::<f64>().ok());
    let ram = number(&["-cram", "--cache-ram"], "LLAMA_ARG_CACHE_RAM", 8192);
    let batch_size = size(&["-b", "--batch-size"], "LLAMA_ARG_BATCH", usual.batch_size);
    Setup {
        engine: engine.build.clone().unwrap_or_default(),
        calls,
        version: engine.version.clone().unwrap_or_default(),
        parallel: parallel.unwrap_or(usual.parallel),
        auto_parallel: parallel.is_none() && unified != Some(true),
        kv_unified: parallel.is_none() || unified.unwrap_or(false),
        cache_ram: has_host_cache.then_some(ram),
        // Somewhat older than `llama_process`.
        cache_idle_slots: idle.unwrap_or(calls != Calls::Decode),
        slot_prompt_similarity: match similarity {
            Some(share) => (share * 1000.0).round() as u32,
            None if has_host_cache => usual.slot_prompt_similarity,
            None => 500,
        },
        cache_reuse: size(&["--cache-reuse"], "LLAMA_ARG_CACHE_REUSE", 0),
        context_shift: shift.unwrap_or(false),
        ctx_checkpoints: size(
            &["-ctxcp", "--ctx-checkpoints", "--swa-checkpoints"],
            "LLAMA_ARG_CTX_CHECKPOINTS",
            usual.ctx_checkpoints,
        ),
        checkpoint_min_step: size(
            // Before mid 2026 there was another one, to much the same end.
            &[
                "-cms",
                "--checkpoint-min-step",
                "-cpent",
                "--checkpoint-every-n-tokens",
            ],
            "LLAMA_ARG_CHECKPOINT_MIN_SPACING_NT",
            usual.checkpoint_min_step,
        ),
        batch_size,
        ubatch_size: size(
            &["-ub", "--ubatch-size"],
            "LLAMA_ARG_UBATCH",
            usual.ubatch_size,
        )
        .min(batch_size),
        ..usual
    }
}

fn calls(engine: &Engine) -> Calls {
    let has = |name: &str| engine.functions.iter().any(|one| one.name == name);
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

    use super::*;

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
        let early = having(&["llama_decode", "llama_memory_seq_rm"]);
        let late = calls(&having(&["llama_process", "llama_memory_seq_rm"]));
        assert_eq!((old, late), (Calls::KvCache, Calls::Process));
        assert_eq!(calls(&having(&[])), Calls::Unknown);
        let command = CommandLine::new(std::iter::once("x".into()), |_: &str| None);
        let setup = setup(&command, &early, true);
        assert_eq!(setup.calls, Calls::Decode);
        assert!(!setup.cache_idle_slots, "the flag is younger");
    }

    fn of(arguments: &str) -> Setup {
        let arguments: Vec<OsString> = arguments.split(' ').map(OsString::from).collect();
        let command = CommandLine::new(arguments.into_iter(), |name: &str| {
            (name == "LLAMA_ARG_CACHE_REUSE").then(|| "32".into())
        });
        setup(&command, &having(&["llama_process"]), true)
    }

    #[test]
    fn if_the_number_of_slots_is_not_given_they_share_the_context() {
        let usual = of("x");
        assert_eq!((usual.parallel, usual.kv_unified), (4, true));
        assert!(usual.auto_parallel);
        let two = of("x -np 2");
        assert_eq!((two.parallel, two.kv_unified), (2, false));
        assert!(!two.auto_parallel);
        assert!(of("x -np 2 --kv-unified").kv_unified);
        let unified = of("x --kv-unified");
        assert_eq!((unified.parallel, unified.kv_unified), (4, true));
        assert!(!unified.auto_parallel, "--parallel would leave them shared");
        assert!(!of("x --parallel 2 -kvu --no-kv-unified").kv_unified);
    }

    #[test]
    fn a_server_without_a_host_cache_defaults_to_one_slot_and_half_similarity() {
        let command = CommandLine::new(std::iter::once("x".into()), |_: &str| None);
        let setup = setup(&command, &having(&[]), false);
        assert_eq!((setup.parallel, setup.kv_unified), (1, false));
        assert_eq!(setup.slot_prompt_similarity, 500);
        assert_eq!(setup.cache_ram, None);
    }

    #[test]
    fn flags_give_the_values_that_the_server_uses() {
        let setup = of("x -cram -1 -sps 0.25 --no-cache-idle-slots --context-shift -b 64 -ub 512");
        assert_eq!(setup.cache_ram, Some(-1));
        assert_eq!(setup.slot_prompt_similarity, 250);
        assert!(!setup.cache_idle_slots && setup.context_shift);
        assert_eq!((setup.batch_size, setup.ubatch_size), (64, 64));
        assert_eq!(setup.cache_reuse, 32);
        assert_eq!(of("x --cache-reuse 16").cache_reuse, 16);
    }
}
