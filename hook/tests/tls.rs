//! TLS sessions, with a stand-in for OpenSSL in a library or inside the executable. `tests/forms` tests
//! the real OpenSSL; these are ways of linking that Debian's server does not have.
#![cfg(target_os = "linux")]

mod support;

use support::{Fixture, Generation, Linking, finish, heard, index, stderr};

/// With these, a server speaks TLS.
const TLS: [&str; 4] = ["--ssl-cert-file", "x", "--ssl-key-file", "x"];

/// `flags` decide when the dynamic linker binds imported functions.
fn evicts(flags: &[&str]) {
    is_followed(&Fixture::with_tls(flags), flags);
}

fn is_followed(fixture: &Fixture, flags: &[&str]) {
    let index = index();
    let (output, _) = finish(fixture.told("", &index).args(TLS));
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
        r#"Posted { arrival: Arrival(1), task: 0, id: Some("first") }"#,
        r#"Answered { arrival: Arrival(1), id: Some("first") }"#,
        r#"Posted { arrival: Arrival(2), task: 1, id: Some("second") }"#,
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
fn evictions_are_reported_with_imports_bound_at_the_start_and_a_read_only_got() {
    evicts(&["-Wl,-z,now,-z,relro"]);
}

#[test]
fn evictions_are_reported_with_imports_bound_lazily() {
    evicts(&["-Wl,-z,lazy,-z,norelro"]);
}

#[test]
fn evictions_are_reported_with_imports_called_without_a_plt_entry() {
    evicts(&["-fno-plt", "-Wl,-z,now,-z,relro"]);
}

#[test]
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn evictions_are_reported_with_openssl_inside_the_executable() {
    is_followed(&Fixture::with_tls_inside(&[]), &[]);
}

/// Another OpenSSL library in the process must not be hooked instead.
#[test]
#[cfg(target_arch = "x86_64")]
fn if_openssl_inside_cannot_be_hooked_the_banner_says_so() {
    let fixture = Fixture::with_tls_inside(&["-DSHORT_WRITE", "-fcf-protection=none"]);
    let index = index();
    let (output, _) = finish(fixture.told("", &index).args(TLS));
    assert!(output.status.success(), "{output:?}");
    let banner = stderr(&output);
    let expected = "; without TLS: requests over https are not recognised (";
    assert!(banner.contains(expected), "{banner}");
    assert!(!heard(&index).contains("first"), "{}", heard(&index));
}

#[test]
fn if_the_servers_tls_library_is_unknown_the_banner_says_so() {
    let fixture = Fixture::new(Generation::Extended, Linking::Library);
    let index = index();
    let mut host = fixture.told("evict", &index);
    let (output, _) = finish(
        host.env("LLAMA_ARG_SSL_CERT_FILE", "x")
            .env("LLAMA_ARG_SSL_KEY_FILE", "x"),
    );
    assert!(output.status.success(), "{output:?}");
    let banner = stderr(&output);
    let expected = "; without TLS: requests over https are not recognised (";
    assert!(banner.contains(expected), "{banner}");
    assert!(
        heard(&index).contains(r#""first""#),
        "what is plain is seen"
    );
}
