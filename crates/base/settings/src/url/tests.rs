use proptest::prelude::*;

use super::error::redact;
use super::*;

fn parse(text: &str) -> IndexUrl {
    IndexUrl::parse(text).unwrap_or_else(|e| panic!("{e}"))
}

fn problem(text: &str) -> Problem {
    match IndexUrl::parse(text) {
        Ok(url) => panic!("{text:?} was read as {url}"),
        Err(error) => error.problem().clone(),
    }
}

#[test]
fn every_form_of_host_is_read() {
    for (text, host, port) in [
        ("http://127.0.0.1:8765", "127.0.0.1", 8765),
        ("HTTP://LocalHost", "localhost", 80),
        ("https://index.example.org", "index.example.org", 443),
        ("hTTps://index.example.org.:1", "index.example.org.", 1),
        ("http://[::1]:65535", "[::1]", 65535),
        ("http://[2001:DB8:0:0::1]", "[2001:db8::1]", 80),
        ("http://my_index:080", "my_index", 80),
        ("http://1.example", "1.example", 80),
    ] {
        let url = parse(text);
        assert_eq!((url.host().as_str(), url.port()), (host, port), "{text}");
    }
    assert_eq!(parse("HTTP://h").scheme(), Scheme::Http);
    assert_eq!(parse("HTTPS://h").scheme(), Scheme::Https);
}

#[test]
fn the_path_is_kept_as_a_prefix() {
    for (text, endpoint) in [
        ("http://h", "http://h/evict"),
        ("http://h/", "http://h/evict"),
        ("http://h:80///", "http://h:80/evict"),
        ("http://h/a/b", "http://h/a/b/evict"),
        ("http://h/a%2Fb//", "http://h/a%2Fb/evict"),
        ("https://u:p@[::1]:9/a/", "https://[::1]:9/a/evict"),
    ] {
        assert_eq!(parse(text).endpoint("evict"), endpoint);
        assert_eq!(parse(text).endpoint("/evict"), endpoint);
    }
}

#[test]
fn user_info_is_decoded() {
    let auth = |text: &str| {
        let url = parse(text);
        url.basic_auth().map(|c| {
            let password = c.password().map(|p| p.expose().to_owned());
            (c.user().to_owned(), password)
        })
    };
    let some = |u: &str, p: Option<&str>| Some((u.to_owned(), p.map(str::to_owned)));
    assert_eq!(auth("http://h"), None);
    assert_eq!(auth("http://@h"), None);
    assert_eq!(auth("http://u@h"), some("u", None));
    assert_eq!(auth("http://u:@h"), some("u", Some("")));
    assert_eq!(auth("http://:p@h"), some("", Some("p")));
    assert_eq!(auth("http://u:p:q@h"), some("u", Some("p:q")));
    assert_eq!(auth("http://a%40b:%c3%A9%2f@h"), some("a@b", Some("é/")));
}

#[test]
fn only_addresses_of_this_machine_are_loopback() {
    for text in [
        "http://localhost",
        "http://LOCALHOST.:1",
        "http://a.localhost",
        "http://127.0.0.1",
        "http://127.255.0.3",
        "http://[::1]",
        "http://[::ffff:127.0.0.1]",
    ] {
        assert!(parse(text).is_loopback(), "{text}");
    }
    for text in [
        "http://localhost.example.org",
        "http://notlocalhost",
        "http://128.0.0.1",
        "http://0.0.0.0",
        "http://[::2]",
        "http://[::ffff:10.0.0.1]",
    ] {
        assert!(!parse(text).is_loopback(), "{text}");
    }
}

#[test]
fn for_a_wrong_url_the_error_says_what_is_wrong() {
    let character = |position, c| Problem::Character {
        position,
        character: c,
    };
    for (text, expected) in [
        ("", Problem::Empty),
        ("localhost:8765", Problem::NoScheme),
        ("://h", Problem::NoScheme),
        ("//h", Problem::NoScheme),
        ("http:/h", Problem::NoScheme),
        ("ftp://h", Problem::Scheme("ftp".into())),
        ("http://", Problem::NoHost),
        ("http://:80", Problem::NoHost),
        ("http:///path", Problem::NoHost),
        ("http://u:p@", Problem::NoHost),
        ("http://h:", Problem::Port(String::new())),
        ("http://h:0", Problem::Port("0".into())),
        ("http://h:65536", Problem::Port("65536".into())),
        ("http://h:+80", Problem::Port("+80".into())),
        ("http://h:80x/", Problem::Port("80x".into())),
        ("http://::1", Problem::Host("::1".into())),
        ("http://::1:80", Problem::Host("::1:80".into())),
        ("http://[::1]80", Problem::Host("[::1]80".into())),
        (
            "http://[fe80::1%25lo]",
            Problem::Host("[fe80::1%25lo]".into()),
        ),
        ("http://[h]", Problem::Host("[h]".into())),
        ("http://300.0.0.1", Problem::Host("300.0.0.1".into())),
        ("http://127.1", Problem::Host("127.1".into())),
        ("http://a..b", Problem::Host("a..b".into())),
        ("http://.", Problem::Host(".".into())),
        ("http://a%20b", Problem::Host("a%20b".into())),
        ("http://h/?x=1", Problem::Query),
        ("http://h?x=1", Problem::Query),
        ("http://h/#x", Problem::Fragment),
        ("http://h/%4", Problem::PathEncoding),
        ("http://h/%g0", Problem::PathEncoding),
        ("http://h/[", Problem::Path('[')),
        ("http://h/a@b", Problem::At),
        ("http://u:p/w@h", Problem::At),
        ("http://u:p@w@h", Problem::At),
        (" http://h", character(1, Some(' '))),
        ("http://h\n", character(9, Some('\n'))),
        ("http://h/é", character(10, Some('é'))),
        ("http://u:é@h", character(10, None)),
        ("http://h\\x", character(9, Some('\\'))),
    ] {
        assert_eq!(problem(text), expected, "{text:?}");
    }
    for text in [
        "http://u:%zz@h",
        "http://u:%ff@h",
        "http://u:%0a@h",
        "http://a%3Ab@h",
    ] {
        assert!(matches!(problem(text), Problem::UserInfo(_)), "{text}");
    }
    assert!(matches!(problem(&"h".repeat(5000)), Problem::TooLong(5000)));
    let long_label = format!("http://{}.org", "a".repeat(64));
    assert!(matches!(problem(&long_label), Problem::Host(_)));
}

#[test]
fn every_form_of_unix_socket_is_read() {
    for (text, socket, target, shown) in [
        (
            "unix:/run/x.sock",
            "/run/x.sock",
            "/evict",
            "unix:/run/x.sock",
        ),
        ("UNIX:/x", "/x", "/evict", "unix:/x"),
        ("unix:///run/x", "/run/x", "/evict", "unix:/run/x"),
        ("unix:/run/x:/", "/run/x", "/evict", "unix:/run/x"),
        (
            "unix:/run/x:/a/b/",
            "/run/x",
            "/a/b/evict",
            "unix:/run/x:/a/b",
        ),
        ("unix:///x:/a:/b", "/x", "/a:/b/evict", "unix:/x:/a:/b"),
        (
            "unix:/a b/é@:8%2f?",
            "/a b/é@:8%2f?",
            "/evict",
            "unix:/a b/é@:8%2f?",
        ),
    ] {
        let url = parse(text);
        assert_eq!(url.scheme(), Scheme::Unix);
        assert_eq!(url.socket(), Some(Path::new(socket)), "{text}");
        assert_eq!(url.target("evict"), target, "{text}");
        assert_eq!(url.endpoint("evict"), format!("unix:{socket}:{target}"));
        assert_eq!(url.to_string(), shown);
        assert_eq!(parse(&url.to_string()), url);
        assert_eq!((url.host().as_str(), url.port()), ("localhost", 80));
        assert!(url.is_loopback() && url.basic_auth().is_none());
    }
    // As banners and doctors show it.
    assert_eq!(parse("unix:/x").endpoint(""), "unix:/x");
    // What is shown can be read.
    for text in ["unix:////x", "unix://///x"] {
        assert_eq!(parse(text).endpoint("e"), "unix:/x:/e", "{text}");
    }
    assert_eq!(parse("unix:/x:/a").endpoint(""), "unix:/x:/a/");
    assert_eq!(parse("http://h").socket(), None);
}

#[test]
fn for_a_wrong_socket_the_error_says_what_is_wrong() {
    for text in [
        "unix:",
        "unix:x",
        "unix:./x",
        "unix:/",
        "unix:/run/",
        "unix:/run/:/a",
        "unix:/run/x:",
        "unix://run/x",
        "unix://",
        "unix:@abstract",
        "unix:/a\nb",
        "unix:/a\0b",
    ] {
        assert!(matches!(problem(text), Problem::Socket(_)), "{text:?}");
    }
    let said = IndexUrl::parse("unix:run/x").unwrap_err().to_string();
    assert!(said.contains("unix:/run/index.sock"), "{said}");
    let said = IndexUrl::parse("unix:/a\u{1b}[2J").unwrap_err().to_string();
    assert!(!said.contains('\u{1b}'), "{said:?}");
    let long = format!("unix:/{}", "x".repeat(103));
    assert_eq!(problem(&long), Problem::LongSocket(104));
    parse(&long[..long.len() - 1]);
    assert_eq!(problem("unix:/x:/a?b"), Problem::Query);
    assert_eq!(problem("unix:/x:/a#b"), Problem::Fragment);
    assert_eq!(problem("unix:/x:/a%b"), Problem::PathEncoding);
    assert_eq!(problem("unix:/x:/a@b"), Problem::At);
    assert!(matches!(problem("unix:/x:/a b"), Problem::Character { .. }));
}

#[test]
fn a_url_is_shown_without_its_password() {
    let url = parse("http://user:s3cret@Host:1/a/");
    assert_eq!(url.to_string(), "http://user:***@host:1/a");
    assert_eq!(format!("{url:?}"), "IndexUrl(http://user:***@host:1/a)");
    assert!(!format!("{:?}", url.basic_auth()).contains("s3cret"));
    assert_eq!(parse("http://a%40b@h").to_string(), "http://a%40b@h");

    let error = IndexUrl::parse("http://user:s3cret@host:99999").unwrap_err();
    assert_eq!(
        error.to_string(),
        r#""http://user:***@host:99999": port "99999" is not a number from 1 to 65535"#
    );
    let error = IndexUrl::parse("http://h\u{1b}[2J")
        .unwrap_err()
        .to_string();
    assert!(!error.contains('\u{1b}'), "{error:?}");
}

#[test]
fn a_text_that_is_not_a_url_is_shown_without_a_possible_password() {
    for (text, shown) in [
        ("u:pw@h", "u:***@h"),
        ("http:/u:pw@h", "http:***@h"),
        ("http://u:p/w@h", "http://u:***@h"),
        ("http://u:p@w@h", "http://u:***@h"),
        ("u:p://w@h", "u:***@h"),
        ("http://u@h", "http://u@h"),
        ("http://h:1/x", "http://h:1/x"),
    ] {
        assert_eq!(redact(text), shown);
    }
}

/// URLs that must be read, put together from parts that each are right.
fn valid_url(user_info: &'static str) -> impl Strategy<Value = String> {
    let host = prop_oneof![
        "[a-z][a-z0-9_-]{0,20}(\\.[a-zA-Z][a-z0-9-]{0,5}){0,3}\\.?",
        any::<Ipv4Addr>().prop_map(|a| a.to_string()),
        any::<Ipv6Addr>().prop_map(|a| format!("[{a}]")),
    ];
    let port = prop_oneof![
        Just(String::new()),
        (1..=65535_u16).prop_map(|p| format!(":{p}"))
    ];
    (
        "[hH][tT]{2}[pP][sS]?",
        user_info,
        host,
        port,
        "(/[a-z0-9._~!$&'()*+,;=:%]{0,9}){0,4}",
    )
        .prop_map(|(scheme, user_info, host, port, path)| {
            let path = path.replace('%', "%2f");
            format!("{scheme}://{user_info}{host}{port}{path}")
        })
}

proptest! {
    #[test]
    fn never_panics(text in any::<String>()) {
        let _ = IndexUrl::parse(&text).map_err(|e| e.to_string());
    }

    #[test]
    fn never_panics_near_a_url(
        text in "(http|HTTPS|ftp|unix)?:?/{0,3}([a-z0-9:@%.\\[\\]]{0,12}@?){0,3}:?[0-9]{0,6}[/?#@%a-zé ]{0,8}"
    ) {
        match IndexUrl::parse(&text) {
            Ok(url) => prop_assert_eq!(IndexUrl::parse(&url.endpoint("x")).unwrap().port(), url.port()),
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }

    #[test]
    fn display_reads_back(text in valid_url("(([a-z0-9._~!$&'()*+,;=-]|%40|%C3%A9){1,8}@)?")) {
        let url = IndexUrl::parse(&text).unwrap();
        prop_assert_eq!(IndexUrl::parse(&url.to_string()), Ok(url.clone()));
        let endpoint = IndexUrl::parse(&url.endpoint("evict")).unwrap();
        prop_assert_eq!((endpoint.host(), endpoint.port()), (url.host(), url.port()));
        prop_assert_eq!(endpoint.is_loopback(), url.is_loopback());
    }

    /// Upper case stands for a password here, as nothing else uses it.
    #[test]
    fn no_password_is_ever_shown(
        before in "(http://|https://|http:/|ftp://)?[a-z0-9]{0,4}",
        password in "[X-Z]{3,6}[/?#@:X-Z\"é ]{0,6}",
        after in "@[a-z0-9:/?#\\[\\]@% ]{0,12}",
    ) {
        let text = format!("{before}:{password}{after}");
        let shown = match IndexUrl::parse(&text) {
            Ok(url) => format!("{url} {url:?}"),
            Err(error) => format!("{error} {error:?}"),
        };
        for leaked in ["XX", "XY", "XZ", "YX", "YY", "YZ", "ZX", "ZY", "ZZ"] {
            prop_assert!(!shown.contains(leaked), "{} shows {}", text, shown);
        }
    }
}
