//! Wrong settings are refused before the server starts.

use std::process::Command;

use crate::machine::{Machine, assert_refused, preloaded, stderr};

#[test]
fn a_wrong_setting_is_named_and_the_exit_code_is_2() {
    let machine = Machine::new();
    let with_url = |url: &str| {
        machine
            .launcher()
            .env("CONTEXTPILOT_INDEX_URL", url)
            .output()
    };
    for (url, what) in [
        ("localhost:8765", "no scheme"),
        ("ftp://h", "\"ftp\""),
        ("http://h:99999", "\"99999\""),
        ("http://", "no host"),
        ("http://h/?q", "query"),
        ("http://h /", "' '"),
    ] {
        assert_refused(
            &with_url(url).unwrap(),
            2,
            &["CONTEXTPILOT_INDEX_URL", what],
        );
    }
    let output = with_url("http://user:s3cret@h:0").unwrap();
    assert_refused(&output, 2, &["http://user:***@h:0"]);
    assert!(!stderr(&output).contains("s3cret"));

    for (variable, value) in [
        ("CONTEXTPILOT_STRICT", "yes"),
        ("CONTEXTPILOT_INDEX_TIMEOUT_MS", "5s"),
        ("CONTEXTPILOT_EXIT_DRAIN_MS", "-1"),
    ] {
        let output = machine.hooked().env(variable, value).output().unwrap();
        assert_refused(&output, 2, &[variable, value]);
    }
}

#[test]
fn kv_events_that_cannot_be_published_are_refused_before_the_server_starts() {
    let machine = Machine::new();
    let good = ("CONTEXTPILOT_KV_EVENTS", "tcp://127.0.0.1:5557");
    for (name, value, why) in [
        ("CONTEXTPILOT_KV_EVENTS", "127.0.0.1:5557", "give tcp://"),
        ("CONTEXTPILOT_KV_EVENTS_REPLAY", good.1, "or off"),
        ("CONTEXTPILOT_KV_EVENTS_TOPIC", "a\nb", "control character"),
        ("CONTEXTPILOT_KV_BLOCK_SIZE", "16k", "from 1 to 4096"),
    ] {
        let set = |mut command: Command| {
            let output = command.env(good.0, good.1).env(name, value).output();
            output.unwrap()
        };
        assert_refused(&set(machine.launcher()), 2, &[name, why]);
        assert_refused(&set(machine.hooked()), 2, &[name, why]);
    }
}

#[test]
fn an_address_that_cannot_be_listened_at_is_refused_before_the_server_starts() {
    let machine = Machine::new();
    for (address, why) in [
        ("9000", "a port without an address; give 127.0.0.1:9000"),
        (
            "localhost",
            "no port; give one, as in 127.0.0.1:8890, or auto",
        ),
        ("http://127.0.0.1:8890", "a URL"),
        ("::1:8890", "brackets"),
        ("127.0.0.1:88900", "its port is not a number"),
        ("unix:relative", "absolute path"),
        ("0.0.0.0:8890", "CONTEXTPILOT_LISTEN_TOKEN"),
        ("[::]:8890", "CONTEXTPILOT_LISTEN_TOKEN"),
    ] {
        let set = |mut command: Command| {
            let output = command.env("CONTEXTPILOT_LISTEN", address).output();
            output.unwrap()
        };
        assert_refused(&set(machine.launcher()), 2, &["CONTEXTPILOT_LISTEN", why]);
        assert_refused(&set(machine.hooked()), 2, &["CONTEXTPILOT_LISTEN", why]);
    }
    let with_token = machine
        .launcher()
        .arg("/dev/null")
        .env("CONTEXTPILOT_LISTEN", "0.0.0.0:8890")
        .env("CONTEXTPILOT_LISTEN_TOKEN", "s3same")
        .output()
        .unwrap();
    assert!(with_token.status.success(), "{}", stderr(&with_token));
    assert!(!stderr(&with_token).contains("s3same"));
    let bad_token = machine
        .launcher()
        .env("CONTEXTPILOT_LISTEN", "127.0.0.1:0")
        .env("CONTEXTPILOT_LISTEN_TOKEN", "s3 same")
        .output()
        .unwrap();
    assert_refused(&bad_token, 2, &["CONTEXTPILOT_LISTEN_TOKEN", "position 3"]);
    assert!(!stderr(&bad_token).contains("s3 same"));
}

#[test]
fn a_remote_that_cannot_be_one_or_has_no_store_is_named() {
    let machine = Machine::new();
    let name = "CONTEXTPILOT_STORE_REMOTE";
    let with = |mut command: Command, remote: &str, more: &[(&str, &str)]| {
        command.arg("/dev/null").env(name, remote);
        command.envs(more.iter().copied()).output().unwrap()
    };
    let (store, strict) = (("CONTEXTPILOT_STORE", "/s"), ("CONTEXTPILOT_STRICT", "1"));
    for more in [&[store][..], &[store, strict], &[strict]] {
        let output = with(machine.launcher(), "me:s3cret@h:6379", more);
        assert_refused(&output, 2, &[name, "\"me:***@h:6379\": write redis://"]);
    }
    let alone = "does nothing without CONTEXTPILOT_STORE: set it, too";
    for command in [|machine: &Machine| machine.launcher(), Machine::hooked] {
        let output = with(command(&machine), "redis://h", &[strict]);
        assert_refused(&output, 2, &[name, alone]);
        let output = with(command(&machine), "redis://h", &[]);
        assert!(output.status.success(), "{}", stderr(&output));
        assert_eq!(stderr(&output).matches(alone).count(), 1);
    }
}

#[test]
fn a_setting_that_does_nothing_without_another_is_named() {
    let machine = Machine::new();
    let said = |settings: &[(&str, &str)]| {
        let mut command = machine.launcher();
        command.arg("/dev/null").envs(settings.iter().copied());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        stderr(&output)
    };
    let alone = [
        ("CONTEXTPILOT_STORE_GB", "1", "CONTEXTPILOT_STORE", "/s"),
        (
            "CONTEXTPILOT_EXPLAIN_TEXT",
            "1",
            "CONTEXTPILOT_LISTEN",
            "auto",
        ),
        (
            "CONTEXTPILOT_TRAFFIC_FILE_MB",
            "8",
            "CONTEXTPILOT_TRAFFIC_FILE",
            "x",
        ),
    ];
    for (name, value, needed, and) in alone {
        let line = format!("[ContextPilot] {name} does nothing without {needed}: set it, too\n");
        assert_eq!(said(&[(name, value)]), line);
        let both = said(&[(name, value), (needed, and)]);
        assert!(!both.contains("does nothing"), "{both}");
    }
    let trace = said(&[("CONTEXTPILOT_TRACE_FILE", "x")]);
    assert!(
        trace.contains("does nothing, as no setting asks for the hook"),
        "{trace}"
    );
    assert_eq!(said(&[("CONTEXTPILOT_STRICT", "1")]), "");
}

#[test]
fn a_misspelt_setting_gets_a_line_that_names_the_nearest() {
    let machine = Machine::new();
    let line = "[ContextPilot] CONTEXTPILOT_LISTN is not a setting and has no effect: \
                did you mean CONTEXTPILOT_LISTEN?\n";
    let run = |mut command: Command| {
        command.arg("/proc/self/environ");
        let output = command.env("CONTEXTPILOT_LISTN", "auto").output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        output
    };
    // Nothing else asks for the hook.
    let alone = run(machine.launcher());
    assert_eq!(stderr(&alone), line);
    assert_eq!(preloaded(&alone), None);
    let hooked = run(machine.hooked());
    assert!(stderr(&hooked).starts_with(line), "{}", stderr(&hooked));
    assert!(preloaded(&hooked).is_some());
    // A variable of ContextPilot's Python package.
    let mut others = machine.launcher();
    others.arg("/dev/null").env("CONTEXTPILOT_MODEL_NAME", "m");
    assert_eq!(stderr(&others.output().unwrap()), "");
}

#[test]
fn strict_refuses_a_server_whose_only_setting_is_misspelt() {
    let machine = Machine::new();
    let output = machine
        .launcher()
        .env("CONTEXTPILOT_LISTN", "auto")
        .env("CONTEXTPILOT_STRICT", "1")
        .output()
        .unwrap();
    let what = ["CONTEXTPILOT_STRICT", "did you mean CONTEXTPILOT_LISTEN?"];
    assert_refused(&output, 3, &what);
}
