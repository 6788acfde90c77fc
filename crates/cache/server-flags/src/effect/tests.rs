use super::*;
use Generation::Mid2026;

fn read(line: &str, generation: Generation) -> ServerFlags {
    let argv = std::iter::once("llama-server").chain(line.split_whitespace());
    ServerFlags::read(argv.map(Into::into), |_| None, generation)
}

fn late(line: &str) -> ServerFlags {
    read(line, Late2026)
}

#[test]
fn the_usual_port_is_that_of_the_generation() {
    let port = |generation| read("", generation).port();
    assert_eq!(port(Late2026), 9931);
    assert_eq!([Of2025, Early2026, Mid2026].map(port), [8080; 3]);
}

#[test]
fn each_address_has_the_port_unless_it_is_a_socket() {
    let tcp = |host: &str, port| Address::Tcp(host.into(), port);
    assert_eq!(late("").addresses(), [tcp("127.0.0.1", 9931)]);
    let socket = Address::Unix("/run/a.sock".into());
    let several = late("--host ::1,/run/a.sock --port 1").addresses();
    assert_eq!(several, [tcp("::1", 1), socket]);
    let listed = read("--host a,b", Of2025).addresses();
    assert_eq!(listed, [tcp("a,b", 8080)]);
}

#[test]
fn tls_takes_a_key_and_a_certificate() {
    assert!(late("--ssl-key-file a --ssl_cert_file b").tls());
    assert!(!late("--ssl-key-file a").tls());
    assert!(!late("--ssl-cert-file b").tls());
}

#[test]
fn a_model_is_named_by_its_alias_its_repository_or_its_file() {
    let model = |line: &str| late(line).model().map(|model| model.name);
    assert_eq!(model("-m /a/b.gguf"), Some("/a/b.gguf".into()));
    assert_eq!(model("--model b.gguf -a tea"), Some("tea".into()));
    assert_eq!(
        model("-m b.gguf -hf org/model:Q4"),
        Some("org/model:Q4".into())
    );
    let older = read("-m b.gguf -hf org/model:Q4", Generation::Of2025).model();
    assert_eq!(older.map(|model| model.name), Some("b.gguf".into()));
    assert_eq!(model("-dr gemma3"), Some("gemma3".into()));
    assert_eq!(model("--model"), None);
    assert_eq!(model(""), None);
}

#[test]
fn if_the_number_of_slots_is_not_given_they_share_the_context() {
    let slots = |line: &str, generation| {
        let flags = read(line, generation);
        (flags.slots(), flags.kv_unified(), flags.chooses_slots())
    };
    assert_eq!(slots("", Late2026), (4, true, true));
    assert_eq!(slots("--no-kv-unified", Late2026), (4, true, true));
    assert_eq!(slots("-np -2", Late2026), (4, true, true));
    assert_eq!(slots("-np 2", Late2026), (2, false, false));
    assert_eq!(slots("-np 2 -kvu", Late2026), (2, true, false));
    assert_eq!(slots("-np 2 -kvu -no-kvu", Late2026), (2, false, false));
    assert_eq!(slots("", Of2025), (1, false, false));
}

#[test]
fn the_host_prompt_cache_came_in_autumn_2025() {
    assert_eq!(late("").cache_ram(), Some(8192));
    assert_eq!(late("-cram -5").cache_ram(), Some(-5));
    assert_eq!(read("", Of2025).cache_ram(), None);
    let idle = |generation| read("", generation).cache_idle_slots();
    assert_eq!(
        [Early2026, Mid2026, Late2026].map(idle),
        [false, true, true]
    );
    assert!(!late("--no-cache-idle-slots").cache_idle_slots());
}

#[test]
fn sizes_are_those_that_the_engine_uses() {
    let sizes = |line: &str| (late(line).batch_size(), late(line).ubatch_size());
    assert_eq!(sizes(""), (2048, 512));
    assert_eq!(sizes("-b 64"), (64, 64));
    assert_eq!(sizes("-b 64 -ub 0"), (64, 64));
    assert_eq!(sizes("-b 64 -ub -5"), (64, 64));
    assert_eq!(sizes("-b 64 -ub 16"), (64, 16));
    assert_eq!(late("-ctxcp -1").ctx_checkpoints(), 0);
    assert_eq!(late("--cache-reuse -1").cache_reuse(), 0);
    assert_eq!(late("--cache-reuse 32").cache_reuse(), 32);
    for projector in [
        "--mmproj p.gguf",
        "-mm p.gguf",
        "--mmproj-url http://h/p.gguf",
    ] {
        let flags = late(&format!("--cache-reuse 32 {projector}"));
        assert_eq!(flags.cache_reuse(), 0, "{projector}");
    }
}
