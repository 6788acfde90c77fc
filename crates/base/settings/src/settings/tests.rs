use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::*;
use crate::KvEvents;

fn settings(vars: &[(&str, &str)]) -> Result<Settings, Error> {
    Settings::from(lookup(vars))
}

fn lookup(vars: &[(&str, &str)]) -> impl Fn(&str) -> Option<OsString> {
    let vars: HashMap<String, OsString> = vars
        .iter()
        .map(|(name, value)| ((*name).to_owned(), value.into()))
        .collect();
    move |name| vars.get(name).cloned()
}

#[test]
fn without_any_variable_the_settings_are_the_defaults() {
    let unset = settings(&[]).unwrap();
    assert_eq!(unset.index, None);
    assert_eq!(unset.token, None);
    assert_eq!(unset.ca, None);
    assert_eq!(unset.connect_timeout, Duration::from_secs(1));
    assert_eq!(unset.timeout, Duration::from_secs(5));
    assert_eq!(unset.exit_drain, Some(Duration::from_secs(2)));
    assert!(unset.journal);
    assert_eq!((&unset.listen, &unset.log_file), (&None, &None));
    assert_eq!(unset.log_file_limit, 64 << 20);
    assert_eq!(unset.kv_events, None);
    assert_eq!(unset.explain_limit, Some(32 << 20));
    assert_eq!(unset.recent_limit, Some(8 << 20));
    assert_eq!(unset.listen_connections, 16);
    assert_eq!(unset.listen_timeout, Duration::from_secs(20));
    assert!(!unset.explain_text && !unset.keep_tokens);
    assert!(!unset.is_engaged());

    let names = table::ALL.iter().map(|setting| (setting.name, ""));
    let empty = settings(&names.collect::<Vec<_>>());
    assert_eq!(empty, Ok(unset));
}

#[test]
fn every_variable_sets_its_field() {
    let settings = settings(&[
        (env::INDEX_URL, "https://index:1/p"),
        (env::INDEX_TOKEN, "t0ken"),
        (env::INDEX_CA, "/etc/ca.pem"),
        (env::INDEX_CONNECT_TIMEOUT_MS, "20"),
        (env::INDEX_TIMEOUT_MS, "300"),
        (env::EXIT_DRAIN_MS, "0"),
        (env::JOURNAL, "0"),
        (env::LISTEN, "0.0.0.0:8890"),
        (env::LISTEN_TOKEN, "s3same"),
        (env::LISTEN_CONNECTIONS, "3"),
        (env::LISTEN_TIMEOUT_MS, "70"),
        (env::LOG_FILE, "queries.jsonl"),
        (env::LOG_FILE_MB, "2"),
        (env::EXPLAIN_MB, "0"),
        (env::RECENT_MB, "0"),
        (env::EXPLAIN_TEXT, "1"),
        (env::KEEP_TOKENS, "1"),
        (env::TRACE_FILE, "trace"),
        (env::STRICT, "1"),
    ])
    .unwrap();
    let index = settings.index.as_ref().map(ToString::to_string);
    assert_eq!(index.as_deref(), Some("https://index:1/p"));
    assert_eq!(settings.token.as_ref().map(Secret::expose), Some("t0ken"));
    assert_eq!(settings.ca, Some(PathBuf::from("/etc/ca.pem")));
    assert_eq!(settings.connect_timeout, Duration::from_millis(20));
    assert_eq!(settings.timeout, Duration::from_millis(300));
    assert_eq!(settings.exit_drain, None);
    assert!(!settings.journal);
    assert_eq!(settings.listen, "0.0.0.0:8890".parse().ok());
    let token = settings.listen_token.as_ref().map(Secret::expose);
    assert_eq!(token, Some("s3same"));
    assert_eq!(settings.listen_connections, 3);
    assert_eq!(settings.listen_timeout, Duration::from_millis(70));
    assert_eq!(settings.log_file, Some(PathBuf::from("queries.jsonl")));
    assert_eq!(settings.log_file_limit, 2 << 20);
    assert_eq!(
        (settings.explain_limit, settings.recent_limit),
        (None, None)
    );
    assert!(settings.explain_text && settings.strict && settings.keep_tokens);
    assert!(!settings.keep_calls);
    let calls = |name: &str| (name == env::KEEP_TOKENS).then(|| "calls".into());
    let calls = Settings::from(calls).unwrap();
    assert!(calls.keep_tokens && calls.keep_calls);
    assert_eq!(settings.trace_file, Some(PathBuf::from("trace")));
    let shown = format!("{settings:?}");
    assert!(!shown.contains("t0ken") && !shown.contains("s3same"));
    assert!(shown.contains("token: Some(***)"), "{shown}");
}

#[test]
fn an_error_names_the_variable_and_the_remedy() {
    for (name, value, message) in [
        (
            env::INDEX_URL,
            "localhost:1",
            "no scheme; a URL begins with http://",
        ),
        (
            env::INDEX_TIMEOUT_MS,
            "5s",
            "is \"5s\": give whole milliseconds, from 1 to",
        ),
        (env::INDEX_TIMEOUT_MS, "0", "from 1 to"),
        (env::INDEX_TIMEOUT_MS, "+5", "from 1 to"),
        (env::INDEX_CONNECT_TIMEOUT_MS, "3600001", "to 3600000"),
        (env::EXIT_DRAIN_MS, "-1", "from 0 to"),
        (env::EXIT_DRAIN_MS, "99999999999999999999", "from 0 to"),
        (env::INDEX_TOKEN, "ab\ncd", "character at position 3"),
        (env::LISTEN_TOKEN, "ab cd", "character at position 3"),
        (
            env::LISTEN,
            "9000",
            "is \"9000\": a port without an address; give 127.0.0.1:9000",
        ),
        (
            env::KV_EVENTS,
            "tcp://5557",
            "a port without an address; give tcp://127.0.0.1:5557",
        ),
        (
            env::LISTEN,
            "0.0.0.0:8890",
            "set CONTEXTPILOT_LISTEN_TOKEN to a",
        ),
        (
            env::LISTEN_CONNECTIONS,
            "0",
            "is \"0\": give how many connections, from 1 to 64",
        ),
        (env::LISTEN_CONNECTIONS, "65", "from 1 to 64"),
        (env::LISTEN_TIMEOUT_MS, "0", "from 1 to"),
        (env::KV_EVENTS_CONNECTIONS, "many", "from 1 to 1024"),
        (env::LOG_FILE_MB, "0", "whole MiB, from 1 to"),
        (env::LOG_FILE_MB, "64M", "whole MiB, from 1 to"),
        (env::EXPLAIN_MB, "all", "whole MiB, from 0 to"),
        (env::RECENT_MB, "all", "whole MiB, from 0 to"),
        (env::EXPLAIN_TEXT, "yes", "1 turns it on, 0 turns it off"),
        (
            env::KEEP_TOKENS,
            "on",
            "1 turns it on, 0 turns it off, and calls",
        ),
        (
            env::STORE_REMOTE,
            "nonsense",
            "is \"nonsense\": write redis://",
        ),
        (
            env::STORE_REMOTE,
            "u:pw@h:1",
            "is \"u:***@h:1\": write redis://",
        ),
        (env::STORE_BOUNDED, "yes", "1 turns it on, 0 turns it off"),
        (env::STORE_USAGE, "all", "1 turns it on, 0 turns it off"),
    ] {
        let error = settings(&[(name, value)]).unwrap_err();
        assert_eq!(error.variable(), name);
        let shown = error.to_string();
        assert!(shown.starts_with(name), "{shown}");
        assert!(shown.contains(message), "{shown}");
        assert!(!shown.contains('\n'), "{shown:?}");
    }
}

#[test]
fn a_remote_without_a_store_is_an_error_only_if_settings_are_strict() {
    let remote = (env::STORE_REMOTE, "redis://h");
    let read = |more: &[_]| settings(&[&[remote], more].concat());
    assert_eq!(read(&[]).unwrap().store, None);
    let error = read(&[(env::STRICT, "1")]).unwrap_err().to_string();
    assert_eq!(
        error,
        "CONTEXTPILOT_STORE_REMOTE does nothing without CONTEXTPILOT_STORE: set it, too"
    );
    let store = read(&[(env::STRICT, "1"), (env::STORE, "/s")])
        .unwrap()
        .store;
    assert!(store.is_some_and(|store| store.remote.is_some()));
}

#[test]
fn a_setting_that_does_nothing_without_another_is_named() {
    let said = |vars: &[(&str, &str)]| -> Vec<String> {
        idle(lookup(vars)).iter().map(ToString::to_string).collect()
    };
    let text = (env::EXPLAIN_TEXT, "1");
    let lacking = "CONTEXTPILOT_EXPLAIN_TEXT does nothing without CONTEXTPILOT_LISTEN: set it, too";
    assert_eq!(said(&[text]), [lacking]);
    assert_eq!(said(&[text, (env::LOG_FILE, "x")]), [lacking]);
    assert!(said(&[text, (env::LISTEN, "auto")]).is_empty());
    assert_eq!(
        said(&[(env::EXPLAIN_MB, "8")]),
        [
            "CONTEXTPILOT_EXPLAIN_MB does nothing without CONTEXTPILOT_LISTEN or CONTEXTPILOT_LOG_FILE: set one of them, too"
        ]
    );
    // Values that are the default anyway.
    assert!(
        said(&[
            (env::EXPLAIN_TEXT, "0"),
            (env::EXPLAIN_MB, "32"),
            (env::STORE_GB, "")
        ])
        .is_empty()
    );
    let trace = (env::TRACE_FILE, "x");
    let hook = said(&[trace]);
    assert!(
        hook.len() == 1 && hook[0].contains("as no setting asks for the hook"),
        "{hook:?}"
    );
    assert!(said(&[trace, (env::STORE, "/s")]).is_empty());
    // Each of all.
    for setting in table::ALL {
        let alone = setting.engages() || setting.needs().is_none();
        assert_eq!(
            said(&[(setting.name, "2")]).is_empty(),
            alone,
            "{}",
            setting.name
        );
    }
}

#[test]
fn a_token_together_with_a_user_in_the_url_is_refused() {
    let vars = [
        (env::INDEX_URL, "http://u:pw@h"),
        (env::INDEX_TOKEN, "t0ken"),
    ];
    let error = settings(&vars).unwrap_err();
    let shown = format!("{error} {error:?}");
    assert!(shown.contains(env::INDEX_URL) && shown.contains(env::INDEX_TOKEN));
    assert!(!shown.contains("pw") && !shown.contains("t0ken"), "{shown}");
}

#[test]
fn a_value_that_is_not_utf8_is_refused() {
    let bytes = OsStr::from_bytes(b"http://\xff").to_owned();
    let error = Settings::from(|name| (name == env::INDEX_URL).then(|| bytes.clone())).unwrap_err();
    assert!(error.to_string().contains("not valid UTF-8"));
}

#[test]
fn a_flag_accepts_only_one_and_zero() {
    let strict = |value| flag(lookup(&[(env::STRICT, value)]), &table::STRICT);
    assert_eq!(strict("1"), Ok(true));
    assert_eq!(strict("0"), Ok(false));
    assert_eq!(strict(""), Ok(false));
    assert_eq!(flag(lookup(&[]), &table::STRICT), Ok(false));
    for wrong in ["yes", "true", " 1", "01"] {
        let shown = strict(wrong).unwrap_err().to_string();
        assert!(
            shown.contains(env::STRICT) && shown.contains(wrong),
            "{shown}"
        );
    }
}

#[test]
fn any_of_the_first_seven_variables_wants_the_hook() {
    for (name, value) in [
        (env::INDEX_URL, "http://127.0.0.1:1"),
        (env::LISTEN, "unix:/run/x"),
        (env::LOG_FILE, "x"),
        (env::KV_EVENTS, "tcp://127.0.0.1:1"),
        (env::TRAFFIC_FILE, "x"),
        (env::KEEP_TOKENS, "1"),
        (env::STORE, "/x"),
    ] {
        assert!(is_wanted(lookup(&[(name, value)])));
        assert!(!is_wanted(lookup(&[(name, "")])));
        let settings = settings(&[(name, value)]).unwrap();
        assert!(settings.is_engaged());
        let observes = [env::LISTEN, env::LOG_FILE, env::TRAFFIC_FILE].contains(&name);
        assert_eq!(settings.observes(), observes);
    }
    for setting in &table::ALL[7..] {
        assert!(!is_wanted(lookup(&[(setting.name, "1")])));
    }
}

fn kv_events(vars: &[(&str, &str)]) -> KvEvents {
    let settings = settings(vars).unwrap();
    let events = settings.kv_events.expect("events are asked for");
    events.only().expect("one server's").clone()
}

#[test]
fn in_router_mode_each_model_can_have_an_address() {
    let read = |vars: &[(&str, &str)]| settings(vars).unwrap().kv_events.unwrap();
    let shared = read(&[(env::KV_EVENTS, "tcp://127.0.0.1:5557")]);
    assert!(shared.server("a", false).is_ok());
    let refused = shared.server("a", true).unwrap_err().to_string();
    assert!(
        refused.contains("CONTEXTPILOT_KV_EVENTS=a=tcp://"),
        "{refused}"
    );
    let events = read(&[
        (env::KV_EVENTS, "a=tcp://127.0.0.1:5557,b/c:Q4=tcp://*:5567"),
        (env::KV_EVENTS_TOPIC, "kv@10.0.0.1:8080@{model}"),
    ]);
    let a = events.server("a", true).unwrap();
    assert_eq!((a.publish.port(), &*a.topic), (5557, "kv@10.0.0.1:8080@a"));
    assert_eq!(a.replay.map(|at| at.port()), Some(5558));
    let b = events.server("b/c:Q4", true).unwrap();
    assert_eq!(
        (b.publish.port(), &*b.topic),
        (5567, "kv@10.0.0.1:8080@b/c:Q4")
    );
    let missing = events.server("d", false).unwrap_err().to_string();
    assert!(missing.contains("not published for d"), "{missing}");
    let off = read(&[
        (
            env::KV_EVENTS,
            "a=tcp://127.0.0.1:5557,b=tcp://127.0.0.1:5558",
        ),
        (env::KV_EVENTS_REPLAY, "off"),
    ]);
    assert_eq!(off.server("b", true).unwrap().replay, None);
    assert_eq!(off.block_size(), 16);
}

#[test]
fn with_only_an_address_kv_events_have_defaults() {
    let address = |text: &str| text.parse::<std::net::SocketAddr>().unwrap();
    let plain = kv_events(&[(env::KV_EVENTS, "tcp://127.0.0.1:5557")]);
    assert_eq!(plain.publish, address("127.0.0.1:5557"));
    assert_eq!(plain.replay, Some(address("127.0.0.1:5558")));
    assert_eq!((&*plain.topic, plain.block_size), ("", 16));
    assert!(plain.adapters.is_empty());
    assert!(!plain.is_open());

    let all = kv_events(&[
        (env::KV_EVENTS, "tcp://*:6000"),
        (env::KV_EVENTS_REPLAY, "tcp://[::1]:7000"),
        (env::KV_EVENTS_TOPIC, "kv@10.0.0.1:8080@llama"),
        (env::KV_BLOCK_SIZE, "64"),
        (env::KV_LORA_NAMES, "sql, a/chat"),
    ]);
    assert_eq!(all.publish, address("0.0.0.0:6000"));
    assert_eq!(all.replay, Some(address("[::1]:7000")));
    assert_eq!(all.topic, "kv@10.0.0.1:8080@llama");
    assert_eq!(all.block_size, 64);
    assert_eq!(all.adapters, ["sql", "a/chat"]);
    assert!(all.is_open());

    let off = kv_events(&[
        (env::KV_EVENTS, "tcp://localhost:65535"),
        (env::KV_EVENTS_REPLAY, "off"),
    ]);
    assert_eq!(off.replay, None);
    let any = kv_events(&[(env::KV_EVENTS, "tcp://127.0.0.1:0")]);
    assert_eq!(any.replay, Some(any.publish));
}

#[test]
fn an_error_about_kv_events_names_the_variable_and_the_remedy() {
    const GOOD: &str = "tcp://127.0.0.1:5557";
    let long = "x".repeat(256);
    for (name, value, message) in [
        (
            env::KV_EVENTS,
            "127.0.0.1:5557",
            "is \"127.0.0.1:5557\": give tcp://",
        ),
        (env::KV_EVENTS, "ipc:///tmp/x", "give tcp://"),
        (
            env::KV_EVENTS,
            "tcp://127.0.0.1",
            "no port; give one, as in tcp://",
        ),
        (env::KV_EVENTS, "tcp://*:x", "its port is not a number"),
        (env::KV_EVENTS, "tcp://eth0:5557", "a name, where a number"),
        (env::KV_EVENTS, "tcp://unix:/x", "give tcp://"),
        (
            env::KV_EVENTS,
            "tcp://127.0.0.1:65535",
            "set CONTEXTPILOT_KV_EVENTS_REPLAY",
        ),
        (env::KV_EVENTS_REPLAY, "5558", "is \"5558\": give tcp://"),
        (env::KV_EVENTS_REPLAY, GOOD, "give another port, or off"),
        (env::KV_EVENTS_TOPIC, "a\tb", "has a control character"),
        (env::KV_EVENTS_TOPIC, &long, "255 bytes at most"),
        (
            env::KV_BLOCK_SIZE,
            "0",
            "is \"0\": give whole tokens, from 1 to 4096",
        ),
        (env::KV_BLOCK_SIZE, "+16", "from 1 to 4096"),
        (env::KV_BLOCK_SIZE, "5000", "from 1 to 4096"),
        (env::KV_LORA_NAMES, "a,,b", "is no list of names"),
        (env::KV_LORA_NAMES, "a,b,a", "up to 64 different ones"),
        (
            env::KV_EVENTS,
            "a=tcp://127.0.0.1:5557,b=tcp://127.0.0.1:5558",
            "two models at 127.0.0.1:5558",
        ),
        (
            env::KV_EVENTS,
            "a=tcp://127.0.0.1:1,a=tcp://127.0.0.1:5",
            "has \"a=tcp://127.0.0.1:5\": give each model once",
        ),
        (
            env::KV_EVENTS,
            "a=tcp://127.0.0.1:1,tcp://127.0.0.1:5",
            "give each model once",
        ),
    ] {
        let publish = if name == env::KV_EVENTS { value } else { GOOD };
        let error = settings(&[(env::KV_EVENTS, publish), (name, value)]).unwrap_err();
        assert_eq!(error.variable(), name, "{value}");
        let shown = error.to_string();
        assert!(
            shown.starts_with(name) && shown.contains(message),
            "{shown}"
        );
        // Without an address, the other variables are ignored.
        if name != env::KV_EVENTS {
            assert!(settings(&[(name, value)]).is_ok());
        }
    }
}

#[test]
fn the_settings_of_a_recording_have_a_limit_and_may_keep_the_key() {
    let unset = settings(&[(env::TRAFFIC_FILE_MB, "3")]).unwrap();
    assert_eq!(unset.traffic_file, None);
    let usual = settings(&[(env::TRAFFIC_FILE, "t.cpt")]).unwrap();
    let usual = usual.traffic_file.unwrap();
    assert_eq!(usual.path, PathBuf::from("t.cpt"));
    assert_eq!((usual.limit, usual.keep_key), (64 << 20, false));
    let kept = settings(&[
        (env::TRAFFIC_FILE, "t.cpt"),
        (env::TRAFFIC_FILE_MB, "2"),
        (env::TRAFFIC_KEEP_KEY, "1"),
    ]);
    let kept = kept.unwrap().traffic_file.unwrap();
    assert_eq!((kept.limit, kept.keep_key), (2 << 20, true));
}
