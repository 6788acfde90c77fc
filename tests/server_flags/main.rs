//! What we read of a server's command line and environment is what the server itself says of it: in its
//! log, in its answers, and in how it uses a slot.
//!
//! A line of a table has variables, then arguments. `''` is an empty value, `·` a space in one.
//! Lines with flags that a server does not know are left out: with `LLAMA_SERVER_BIN` these tests run on
//! any server.

mod account;
mod help;
mod hook;
mod kv;
mod server;

use account::{by_reader, by_server};
use contextpilot_server_flags::{Flag, Generation, ServerFlags};
use contextpilot_testbed::{Arch, Model, skip, skip_case};
use help::Help;
use server::{Line, Said};

/// Asserts that the reader and the server agree on everything that the server says.
fn agree(lines: &[&str]) {
    for line in lines {
        agree_with(line, &Model::tiny(Arch::Llama));
    }
}

fn agree_with(text: &str, model: &Model) {
    let help = Help::of_server();
    let line = Line::new(text).model(model);
    if let Some(unknown) = help.lacks(&line) {
        return skip_case(text, format!("this server does not know {unknown}"));
    }
    let said = Said::by(&line);
    assert_eq!(said.code, None, "{text}:\n{}", said.log);
    let flags = line.read(help.generation());
    assert_eq!(flags.refusal(), None, "{text}");
    let theirs = by_server(&said, help.generation());
    let ours = by_reader(&flags, &said);
    for (what, value) in &theirs {
        let read = ours.get(what).map(String::as_str);
        assert_eq!(read, Some(&**value), "{what} with {text:?}:\n{}", said.log);
    }
    if help.generation() == Generation::Late2026 {
        let silent: Vec<_> = ours
            .keys()
            .filter(|what| !theirs.contains_key(*what))
            .collect();
        assert!(silent.is_empty(), "{silent:?} with {text:?}:\n{}", said.log);
    }
}

/// Asserts that neither the reader nor the server accepts a line, and that both name the same culprit.
fn refuse(lines: &[&str]) {
    let help = Help::of_server();
    for text in lines {
        let line = Line::new(text).model(&Model::tiny(Arch::Llama));
        let flags = line.read(help.generation());
        let refusal = flags
            .refusal()
            .unwrap_or_else(|| panic!("{text} is accepted"));
        let said = Said::by(&line);
        assert_eq!(said.code, Some(1), "{text}:\n{}", said.log);
        let named = said.log.contains(&format!("\"{}\"", refusal.name));
        let lacks = said.log.contains("expected value for argument");
        assert!(
            named || refusal.value.is_none() && lacks,
            "{text}:\n{}",
            said.log
        );
    }
}

#[test]
fn slots_and_the_context() {
    agree(&[
        "",
        "-np 2",
        "--parallel 3 -np 2",
        "-np ·+2x",
        "--no_kv_unified",
        "-np 2 -kvu",
        "-np 2 --kv_unified -no-kvu",
        "-np 2 -no-kvu --kv-unified",
        "-np 2 -b 300 -ub 100",
        "-b 77 -ub 0",
        "-b 77 -ub -5",
        "--batch_size 64 --ubatch-size 128",
    ]);
    if Help::of_server().generation() != Generation::Of2025 {
        agree(&["-np -1", "-np -2 --no-kv-unified"]);
    }
}

#[test]
fn the_host_prompt_cache_and_checkpoints() {
    agree(&[
        "--cache_ram 1",
        "-cram 1 --cache-ram 2.5",
        "-cram 0",
        "-cram -5",
        "--no-cache-idle-slots",
        "--no-cache-idle-slots --cache_idle_slots",
        "-ctxcp 5 -cms 100",
        "--swa-checkpoints 5 --ctx-checkpoints 6 --checkpoint_min_step 0",
        "-ctxcp -1",
    ]);
}

#[test]
fn reuse() {
    agree(&[
        "--cache-reuse 7 -sps 0.3",
        "--cache_reuse 256x --slot_prompt_similarity .5e0z",
        "--cache-reuse -1 -sps 0",
        "-sps 0.30001 -sps ·+3e-1",
        "--swa_full",
        "--spm_infill",
        "-c 256 -np 1 --context-shift",
        "-c 256 -np 1 --context_shift --no_context_shift",
        "-c 256 -np 1",
        "-c 256 -np 1 --no-context-shift",
    ]);
}

#[test]
fn variables() {
    agree(&[
        "LLAMA_ARG_N_PARALLEL=2",
        "LLAMA_ARG_N_PARALLEL=2 -np 3",
        "LLAMA_ARG_N_PARALLEL=2 LLAMA_ARG_KV_UNIFIED=on",
        "LLAMA_ARG_N_PARALLEL=2 LLAMA_ARG_KV_UNIFIED=disabled",
        "LLAMA_ARG_N_PARALLEL=2 LLAMA_ARG_NO_KV_UNIFIED=0 LLAMA_ARG_KV_UNIFIED=1",
        "LLAMA_ARG_N_PARALLEL=2 LLAMA_ARG_KV_UNIFIED=1 --no-kv-unified",
        "LLAMA_ARG_N_PARALLEL=2 LLAMA_ARG_KV_SPLIT=1",
        "LLAMA_ARG_CACHE_RAM=3 LLAMA_ARG_CACHE_IDLE_SLOTS=off LLAMA_ARG_CTX_CHECKPOINTS=4",
        "LLAMA_ARG_CHECKPOINT_MIN_SPACING_NT=9 LLAMA_ARG_BATCH=99 LLAMA_ARG_UBATCH=33",
        "LLAMA_ARG_CACHE_REUSE=5 LLAMA_ARG_SLOT_PROMPT_SIMILARITY=0.7",
        "LLAMA_ARG_SWA_FULL=enabled LLAMA_ARG_SPM_INFILL=1",
        "LLAMA_ARG_SWA_FULL=yes",
        "LLAMA_ARG_SWA_FULL=''",
        "LLAMA_ARG_CONTEXT_SHIFT=true -c 256 -np 1",
        "LLAMA_ARG_NO_CONTEXT_SHIFT=0 -c 256 -np 1",
        "LLAMA_ARG_NO_CONTEXT_SHIFT=1 -c 256 -np 1",
        "LLAMA_ARG_CONTEXT_SHIFT=1 LLAMA_ARG_NO_CONTEXT_SHIFT='' -c 256 -np 1",
    ]);
}

#[test]
fn addresses_and_names() {
    agree(&[
        "--host 127.0.0.1 --port FREE",
        "--port 1 --port ·FREEx",
        "LLAMA_ARG_PORT=FREE",
        "LLAMA_ARG_PORT=1 --port FREE",
        "LLAMA_ARG_HOST=127.0.0.2",
        "--host here.sock",
        "--host LOCALHOST",
        "-a tea",
        "-a tea,·sea",
        "-a tea -a sea",
        "LLAMA_ARG_ALIAS=sea -a tea",
        "-a ,",
        "-a --port --port FREE",
        "-a \"tea\"",
    ]);
    if Help::of_server().generation() >= Generation::Mid2026 {
        agree(&[
            "--host 127.0.0.1,\"127.0.0.2\" --port FREE",
            "--host ·127.0.0.1·,·,here.sock,",
            "--offline -hf org/sea",
            "--offline --hf_repo org/sea -a owl",
        ]);
    }
}

#[test]
fn the_model_of_a_variable() {
    let model = Model::tiny(Arch::Llama);
    let text = format!("LLAMA_ARG_MODEL={}", model.path().display());
    agree(&[&text]);
}

/// The other models say in other words what they do.
#[test]
fn models_with_a_sliding_window() {
    let model = Model::tiny(Arch::Gemma2);
    agree_with("", &model);
    agree_with("--swa-full", &model);
}

/// A server that cannot read its key does not start, but says that it tried.
#[test]
fn tls_takes_a_key_and_a_certificate() {
    let help = Help::of_server();
    for text in [
        "--ssl-key-file absent --ssl_cert_file absent",
        "LLAMA_ARG_SSL_KEY_FILE=absent LLAMA_ARG_SSL_CERT_FILE=absent",
        "--ssl-key-file absent",
        "--ssl-cert-file absent",
        "--ssl-key-file '' --ssl-cert-file ''",
    ] {
        let line = Line::new(text).model(&Model::tiny(Arch::Llama));
        let said = Said::by(&line);
        let tls = said.log.contains("running with SSL");
        if !tls && !said.log.contains("running without SSL") {
            let generation = help.generation();
            assert_ne!(generation, Generation::Late2026, "{}", said.log);
            return skip("this server was built without TLS");
        }
        assert_eq!(line.read(help.generation()).tls(), tls, "{text}");
    }
}

#[test]
fn values_that_the_server_refuses() {
    refuse(&[
        "-np x",
        "-np ''",
        "--port 99999999999",
        "-sps x",
        "-sps 1e99",
        "-sps 1e-40",
        "--cache-reuse --",
        "LLAMA_ARG_PORT= --port 1",
        "LLAMA_ARG_N_PARALLEL=x -np 2",
        "-b",
    ]);
    if Help::of_server().generation() >= Generation::Mid2026 {
        refuse(&[
            "-np 0",
            "-np 0x2",
            "-cms -1",
            "--host ,",
            "LLAMA_ARG_HOST=",
            "LLAMA_ARG_KV_UNIFIED=yes",
            "LLAMA_ARG_KV_UNIFIED=True",
            "LLAMA_ARG_CACHE_IDLE_SLOTS=''",
        ]);
    }
}

/// What is spelled wrong is no flag: the server does not start, and the reader reads nothing.
#[test]
fn spellings_that_the_server_refuses() {
    for text in [
        "--port=1",
        "-np=2",
        "-port 1",
        "---port 1",
        "--PORT 1",
        "-no_kvu",
        "extra",
    ] {
        let line = Line::new(text).model(&Model::tiny(Arch::Llama));
        let said = Said::by(&line);
        assert_eq!(said.code, Some(1), "{text}:\n{}", said.log);
        assert!(
            said.log.contains("invalid argument"),
            "{text}:\n{}",
            said.log
        );
        let given = |flags: &ServerFlags| Flag::ALL.map(|flag| flags.source(flag));
        let generation = Help::of_server().generation();
        let nothing = Line::new("")
            .model(&Model::tiny(Arch::Llama))
            .read(generation);
        assert_eq!(given(&line.read(generation)), given(&nothing), "{text}");
    }
}

/// Names, variables and defaults are those in the server's help.
#[test]
fn the_help_has_each_flag_as_we_spell_it() {
    let help = Help::of_server();
    let mut known = 0;
    for flag in Flag::ALL {
        let Some(spelling) = flag.spelling(help.generation()) else {
            continue;
        };
        known += 1;
        let names = spelling.names.iter().chain(spelling.off);
        for name in names {
            let entry = help.entry(name).unwrap_or_else(|| panic!("{name}"));
            let variable = entry.split_once("(env: ").map(|(_, rest)| rest);
            let variable = variable.and_then(|rest| rest.split(')').next());
            assert_eq!(variable.unwrap_or_default(), spelling.variable, "{name}");
        }
    }
    assert!(known > 15);
    let usual = Line::new("").only_arguments().read(help.generation());
    for (name, value) in [
        ("--port", usual.port().to_string()),
        ("--batch-size", usual.batch_size().to_string()),
        ("--ubatch-size", usual.ubatch_size().to_string()),
        ("--cache-reuse", usual.cache_reuse().to_string()),
        ("--ctx-checkpoints", usual.ctx_checkpoints().to_string()),
        (
            "--checkpoint-min-step",
            usual.checkpoint_min_step().to_string(),
        ),
        (
            "--cache-ram",
            usual.cache_ram().unwrap_or_default().to_string(),
        ),
        ("--swa-checkpoints", usual.ctx_checkpoints().to_string()),
        (
            "--slot-prompt-similarity",
            format!("{:.2}", usual.slot_prompt_similarity()),
        ),
    ] {
        let Some(entry) = help.entry(name) else {
            continue;
        };
        assert!(
            entry.contains(&format!("(default: {value}")),
            "{value}: {entry}"
        );
    }
}
