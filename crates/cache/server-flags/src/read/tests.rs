use super::*;
use Generation::{Early2026, Late2026, Of2025};

/// The flags of a line: variables, then arguments.
fn read_by(line: &str, generation: Generation) -> ServerFlags {
    let (variables, arguments): (Vec<&str>, Vec<&str>) = line
        .split(' ')
        .filter(|word| !word.is_empty())
        .partition(|word| word.starts_with("LLAMA_"));
    let argv = std::iter::once("llama-server").chain(arguments);
    let lookup = |name: &str| {
        let mut pairs = variables.iter().filter_map(|word| word.split_once('='));
        let found = pairs.find(|(known, _)| *known == name);
        found.map(|(_, value)| value.into())
    };
    ServerFlags::read(argv.map(Into::into), lookup, generation)
}

fn read(line: &str) -> ServerFlags {
    read_by(line, Late2026)
}

#[test]
fn a_value_is_the_next_argument_whatever_it_is() {
    assert_eq!(read("--port 1").integer(Flag::Port), Some(1));
    assert_eq!(read("--alias --port --port 1").port(), 1);
    assert_eq!(read("--alias --port").alias(), Some("--port".into()));
    assert_eq!(read("-a -np -m x").text(Flag::Model), Some("x".as_ref()));
    assert_eq!(read("--port=1").integer(Flag::Port), None);
}

#[test]
fn underscores_stand_for_dashes_after_two_dashes() {
    assert_eq!(read("--cache_ram 1").cache_ram(), Some(1));
    assert_eq!(read("--no_kv_unified").is_on(Flag::KvUnified), Some(false));
    assert_eq!(read("-no_kvu").is_on(Flag::KvUnified), None);
    assert_eq!(read("-hf a_b").text(Flag::HfRepo), Some("a_b".as_ref()));
}

#[test]
fn the_last_one_counts_and_a_variable_less() {
    assert_eq!(read("-cram 1 --cache-ram 2").cache_ram(), Some(2));
    assert_eq!(read("LLAMA_ARG_CACHE_RAM=3").cache_ram(), Some(3));
    let both = read("LLAMA_ARG_CACHE_RAM=3 -cram 1");
    assert_eq!(both.cache_ram(), Some(1));
    assert_eq!(both.source(Flag::CacheRam), Source::CommandLine);
    let unified = |line: &str| read(line).is_on(Flag::KvUnified);
    assert_eq!(unified("-kvu --no-kv-unified"), Some(false));
    assert_eq!(unified("-no-kvu --kv-unified"), Some(true));
}

#[test]
fn aliases_add_up_and_the_first_by_name_counts() {
    assert_eq!(read("-a b,a").alias(), Some("a".into()));
    assert_eq!(read("-a b -a a").alias(), Some("a".into()));
    assert_eq!(read("LLAMA_ARG_ALIAS=a -a b").alias(), Some("a".into()));
    assert_eq!(read("-a ,").alias(), None);
    assert_eq!(read_by("-a b,a", Of2025).alias(), Some("b,a".into()));
}

#[test]
fn a_variable_turns_a_flag_on_or_off() {
    for (line, expected) in [
        ("LLAMA_ARG_KV_UNIFIED=on", Some(true)),
        ("LLAMA_ARG_KV_UNIFIED=disabled", Some(false)),
        ("LLAMA_ARG_KV_UNIFIED=True", None),
        ("LLAMA_ARG_NO_KV_UNIFIED=0", Some(false)),
        (
            "LLAMA_ARG_NO_KV_UNIFIED= LLAMA_ARG_KV_UNIFIED=1",
            Some(false),
        ),
        ("LLAMA_ARG_KV_UNIFIED=1 --no-kv-unified", Some(false)),
    ] {
        assert_eq!(read(line).is_on(Flag::KvUnified), expected, "{line}");
    }
    assert!(read("LLAMA_ARG_SWA_FULL=enabled").swa_full());
    assert!(!read("LLAMA_ARG_SWA_FULL=yes").swa_full());
    assert!(!read("LLAMA_ARG_NO_SWA_FULL=1").swa_full());
    assert!(
        !read("LLAMA_ARG_SPM_INFILL=1").spm_infill(),
        "no such variable"
    );
    let similarity = read("LLAMA_ARG_SLOT_PROMPT_SIMILARITY=0.7").slot_prompt_similarity();
    assert_eq!(similarity, 0.1, "no such variable");
}

#[test]
fn servers_of_2025_have_other_names_and_variables() {
    let unified = |line: &str| read_by(line, Of2025).kv_unified();
    assert!(unified("LLAMA_ARG_KV_SPLIT=1"));
    assert!(!unified("LLAMA_ARG_KV_SPLIT=on"));
    assert!(!unified("LLAMA_ARG_KV_UNIFIED=1"));
    assert!(read_by("", Of2025).context_shift());
    assert!(!read_by("--no-context-shift", Of2025).context_shift());
    let shift = |value: &str| {
        let line = format!("LLAMA_ARG_NO_CONTEXT_SHIFT={value}");
        read_by(&line, Of2025).context_shift()
    };
    assert_eq!((shift("1"), shift("0")), (false, true));
    assert_eq!(read_by("--swa-checkpoints 7", Of2025).ctx_checkpoints(), 7);
    assert_eq!(read_by("-cram 7", Of2025).cache_ram(), None);
    let step = "LLAMA_ARG_CHECKPOINT_EVERY_NT=7";
    assert_eq!(read_by(step, Early2026).checkpoint_min_step(), 7);
    assert_eq!(read(step).checkpoint_min_step(), 8192);
}

#[test]
fn what_the_server_refuses_is_named_and_does_not_count() {
    for (line, name, value) in [
        ("-np x", "-np", Some("x")),
        ("-np 0", "-np", Some("0")),
        ("--port", "--port", None),
        ("--port 99999999999", "--port", Some("99999999999")),
        ("-cms -1", "-cms", Some("-1")),
        (
            "--sleep-idle-seconds -2",
            "--sleep-idle-seconds",
            Some("-2"),
        ),
        ("-sps 1e99", "-sps", Some("1e99")),
        ("--host ,", "--host", Some(",")),
        ("LLAMA_ARG_PORT= --port 1", "LLAMA_ARG_PORT", Some("")),
        (
            "LLAMA_ARG_N_PARALLEL=x -np 2",
            "LLAMA_ARG_N_PARALLEL",
            Some("x"),
        ),
        (
            "LLAMA_ARG_KV_UNIFIED=yes",
            "LLAMA_ARG_KV_UNIFIED",
            Some("yes"),
        ),
    ] {
        let flags = read(line);
        let refusal = flags.refusal().unwrap_or_else(|| panic!("{line}"));
        assert_eq!(refusal.name, name, "{line}");
        let refused = refusal.value.as_deref();
        assert_eq!(refused, value.map(OsStr::new), "{line}");
    }
    assert_eq!(read("-np x").slots(), 4);
    assert_eq!(read("-np 2x -cram 1.5 -sps 0.5x").refusal(), None);
    assert_eq!(read("--sleep-idle-seconds -1").refusal(), None);
    assert_eq!(read("LLAMA_ARG_SWA_FULL=no").refusal(), None);
    let no_value = read("--port").refusal().map(ToString::to_string);
    assert_eq!(no_value.as_deref(), Some("--port has no value"));
}

#[test]
fn addresses_are_a_list_in_which_quotes_may_stand() {
    for (text, expected) in [
        ("a, ,b,", &["a", "b"][..]),
        (" a\t", &["a"]),
        ("a,\"b,c\"", &["a", "b,c"]),
        ("\"a\"\"b\"", &["a\"b"]),
        ("a\"b", &["a\"b"]),
        (",", &[]),
        ("", &[]),
    ] {
        assert_eq!(addresses(text.as_bytes()), expected, "{text:?}");
    }
}

#[test]
fn arguments_that_are_not_utf_8_are_read() {
    let socket = OsString::from_vec(b"/\xfe.sock".to_vec());
    let argv = [
        "llama-server".into(),
        "\u{fffd}".into(),
        "--host".into(),
        socket.clone(),
    ];
    let flags = ServerFlags::read(argv, |_| None, Late2026);
    assert_eq!(flags.text(Flag::Host), Some(&*socket));
}

#[test]
fn no_two_flags_share_a_name_or_a_variable() {
    for generation in [Of2025, Early2026, Generation::Mid2026, Late2026] {
        let spellings = Flag::ALL.map(|flag| flag.spelling(generation));
        let mut seen = BTreeSet::new();
        for (at, spelling) in spellings.into_iter().enumerate() {
            assert_eq!(Flag::ALL[at] as usize, at);
            let Some(spelling) = spelling else { continue };
            let variable = Some(spelling.variable).filter(|name| !name.is_empty());
            for name in spelling.names.iter().chain(spelling.off).chain(&variable) {
                assert!(seen.insert(*name), "{name}");
            }
        }
    }
}
