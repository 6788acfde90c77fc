use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::*;

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
fn nothing_set_is_the_defaults() {
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
    assert_eq!(unset.explain_limit, Some(32 << 20));
    assert!(!unset.is_engaged());

    let empty = settings(&[
        (env::INDEX_URL, ""),
        (env::INDEX_TOKEN, ""),
        (env::INDEX_CA, ""),
        (env::INDEX_CONNECT_TIMEOUT_MS, ""),
        (env::INDEX_TIMEOUT_MS, ""),
        (env::EXIT_DRAIN_MS, ""),
        (env::JOURNAL, ""),
        (env::LISTEN, ""),
        (env::LISTEN_TOKEN, ""),
        (env::LOG_FILE, ""),
        (env::LOG_FILE_MB, ""),
        (env::EXPLAIN_MB, ""),
    ]);
    assert_eq!(empty, Ok(unset));
}

#[test]
fn reads_every_variable() {
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
        (env::LOG_FILE, "queries.jsonl"),
        (env::LOG_FILE_MB, "2"),
        (env::EXPLAIN_MB, "0"),
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
    assert_eq!(settings.log_file, Some(PathBuf::from("queries.jsonl")));
    assert_eq!(settings.log_file_limit, 2 << 20);
    assert_eq!(settings.explain_limit, None);
    let shown = format!("{settings:?}");
    assert!(!shown.contains("t0ken") && !shown.contains("s3same"));
}

#[test]
fn errors_name_the_variable_and_the_remedy() {
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
        (env::LISTEN, "8890", "is \"8890\": no port; give one, as in"),
        (
            env::LISTEN,
            "0.0.0.0:8890",
            "set CONTEXTPILOT_LISTEN_TOKEN to a",
        ),
        (env::LOG_FILE_MB, "0", "whole MiB, from 1 to"),
        (env::LOG_FILE_MB, "64M", "whole MiB, from 1 to"),
        (env::EXPLAIN_MB, "all", "whole MiB, from 0 to"),
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
fn a_token_and_a_user_do_not_go_together() {
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
fn what_is_not_utf8_is_refused() {
    let bytes = OsStr::from_bytes(b"http://\xff").to_owned();
    let error = Settings::from(|name| (name == env::INDEX_URL).then(|| bytes.clone())).unwrap_err();
    assert!(error.to_string().contains("not valid UTF-8"));
}

#[test]
fn flags_are_one_or_zero() {
    let strict = |value| flag(lookup(&[(env::STRICT, value)]), env::STRICT);
    assert_eq!(strict("1"), Ok(true));
    assert_eq!(strict("0"), Ok(false));
    assert_eq!(strict(""), Ok(false));
    assert_eq!(flag(lookup(&[]), env::STRICT), Ok(false));
    for wrong in ["yes", "true", " 1", "01"] {
        let shown = strict(wrong).unwrap_err().to_string();
        assert!(
            shown.contains(env::STRICT) && shown.contains(wrong),
            "{shown}"
        );
    }
}

#[test]
fn any_of_four_variables_wants_the_hook() {
    for (name, value) in [
        (env::INDEX_URL, "http://127.0.0.1:1"),
        (env::LISTEN, "unix:/run/x"),
        (env::LOG_FILE, "x"),
        (env::TRAFFIC_FILE, "x"),
    ] {
        assert!(is_wanted(lookup(&[(name, value)])));
        assert!(!is_wanted(lookup(&[(name, "")])));
        let settings = settings(&[(name, value)]).unwrap();
        assert!(settings.is_engaged());
        assert_eq!(settings.observes(), name != env::INDEX_URL);
    }
    for name in [
        env::LISTEN_TOKEN,
        env::LOG_FILE_MB,
        env::JOURNAL,
        env::TRAFFIC_FILE_MB,
        env::TRAFFIC_KEEP_KEY,
    ] {
        assert!(!is_wanted(lookup(&[(name, "1")])));
    }
}

#[test]
fn a_recording_has_a_limit_and_keeps_its_key_if_told_so() {
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
