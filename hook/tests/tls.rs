//! Sessions of an OpenSSL that is a library of its own, or inside the executable. The real one is
//! in `tests/forms`; here is what that build of a server does not show.
#![cfg(target_os = "linux")]

mod support;

use support::{Fixture, Generation, Linking, finish, heard, index, stderr};

/// `flags` say when the dynamic linker looks for what is imported.
fn evicts(flags: &[&str]) {
    is_followed(&Fixture::with_tls(flags), flags);
}

fn is_followed(fixture: &Fixture, flags: &[&str]) {
    let index = index();
    let (output, _) = finish(fixture.told("", &index).args(["--ssl-cert-file", "x"]));
    assert!(output.status.success(), "{flags:?}: {output:?}");
    let banner = stderr(&output);
    assert!(
        banner.contains("slot assignment, TLS ("),
        "{flags:?}: {banner}"
    );
    assert_eq!(banner.lines().count(), 1, "{banner}");
    let heard = heard(&index);
    assert!(
        heard.contains(r#""first""#) && heard.contains(r#""second""#),
        "{flags:?}: {heard}"
    );
    assert!(!heard.contains("not-ours"), "{flags:?}: {heard}");
    let trace = fixture.trace();
    for expected in [
        r#"Posted { arrival: Arrival(1), task: 0, id: "first" }"#,
        r#"Answered { arrival: Arrival(1), id: "first" }"#,
        r#"Posted { arrival: Arrival(2), task: 1, id: "second" }"#,
        r#"Evicted { id: "first", reason: Overwritten"#,
    ] {
        assert_eq!(
            trace.matches(expected).count(),
            1,
            "{flags:?}: {expected} in\n{trace}"
        );
    }
}

#[test]
fn imports_that_were_found_at_the_start_and_sealed() {
    evicts(&["-Wl,-z,now,-z,relro"]);
}

#[test]
fn imports_that_are_found_when_they_are_needed() {
    evicts(&["-Wl,-z,lazy,-z,norelro"]);
}

#[test]
fn imports_that_are_called_without_a_stub() {
    evicts(&["-fno-plt", "-Wl,-z,now,-z,relro"]);
}

#[test]
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn what_is_linked_into_the_executable() {
    is_followed(&Fixture::with_tls_inside(&[]), &[]);
}

/// It is not taken for another that somebody may have loaded.
#[test]
#[cfg(target_arch = "x86_64")]
fn what_is_inside_and_cannot_be_hooked_is_said() {
    let fixture = Fixture::with_tls_inside(&["-DSHORT_WRITE", "-fcf-protection=none"]);
    let index = index();
    let (output, _) = finish(fixture.told("", &index).args(["--ssl-cert-file", "x"]));
    assert!(output.status.success(), "{output:?}");
    let banner = stderr(&output);
    let expected = "; without TLS: requests over https are not recognised (";
    assert!(banner.contains(expected), "{banner}");
    assert!(!heard(&index).contains("first"), "{}", heard(&index));
}

#[test]
fn a_server_with_tls_that_is_not_seen_says_so() {
    let fixture = Fixture::new(Generation::Extended, Linking::Library);
    let index = index();
    let mut host = fixture.told("evict", &index);
    let (output, _) = finish(host.env("LLAMA_ARG_SSL_CERT_FILE", "x"));
    assert!(output.status.success(), "{output:?}");
    let banner = stderr(&output);
    let expected = "; without TLS: requests over https are not recognised (";
    assert!(banner.contains(expected), "{banner}");
    assert!(
        heard(&index).contains(r#""first""#),
        "what is plain is seen"
    );
}
