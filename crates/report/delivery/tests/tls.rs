//! https, with an authority of the test's own.

mod support;

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use contextpilot_delivery::{Config, Sender};
use contextpilot_testbed::Index;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use support::*;

struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

fn authority() -> Authority {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let pem = params.self_signed(&key).expect("a certificate").pem();
    Authority {
        pem,
        issuer: Issuer::new(params, key),
    }
}

/// An index with a certificate for 127.0.0.1 and localhost.
fn start(authority: &Authority) -> Index {
    let names = ["127.0.0.1".to_owned(), "localhost".to_owned()];
    let params = CertificateParams::new(names).expect("valid names");
    let key = KeyPair::generate().expect("a key");
    let certificate = params.signed_by(&key, &authority.issuer);
    let certificate = certificate.expect("a certificate");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("TLS 1.2 and 1.3")
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            PrivateKeyDer::try_from(key.serialize_der()).expect("PKCS #8"),
        )
        .expect("a certificate and its key");
    Index::start_tls(Arc::new(config)).expect("a port on loopback")
}

fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("ca.pem");
    std::fs::write(&path, text).expect("a file");
    (folder, path)
}

#[test]
fn an_authority_of_ones_own_is_trusted() {
    let authority = authority();
    let index = start(&authority);
    // Bundles hold more than one, and comments.
    let bundle = format!(
        "# ours\n{}\n# another\n{}",
        authority.pem,
        self::authority().pem
    );
    let (_folder, ca) = file(&bundle);
    for host in ["127.0.0.1", "localhost"] {
        let url = format!("https://{host}:{}/evict", index.address().port());
        let (sender, log) = sender_with(&url, |c| c.ca = Some(ca.clone()));
        let posts = index.posts().len();
        let connections = index.connections();
        for n in 1..=3 {
            sender.evict("req-1".into());
            wait_for(&sender, "confirmation", |s| s.sent == n);
        }
        assert_eq!(index.posts().len(), posts + 3);
        assert_eq!(index.connections(), connections + 1, "kept alive");
        assert!(log.lines().is_empty());
    }
}

#[test]
fn an_authority_of_the_system_is_trusted() {
    let authority = authority();
    let index = start(&authority);
    let (_folder, store) = file(&authority.pem);
    // The environment tells where the system's certificates are, so this takes a process of its own.
    let status = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "--ignored", "a_sender_in_a_process_of_its_own"])
        .env("SSL_CERT_FILE", store)
        .env(
            "INDEX_OF_THE_TEST",
            format!("https://{}/evict", index.address()),
        )
        .status()
        .expect("a process");
    assert!(status.success(), "{status}");
    assert_eq!(index.posts().len(), 1);
}

#[test]
#[ignore = "another test starts this in a process of its own"]
fn a_sender_in_a_process_of_its_own() {
    let url = std::env::var("INDEX_OF_THE_TEST").expect("another test starts this");
    let (sender, log) = sender_with(&url, |_| ());
    sender.evict("req-1".into());
    wait_for(&sender, "confirmation", |s| s.sent == 1);
    assert!(log.lines().is_empty());
}

#[test]
fn no_other_authority_is() {
    let index = start(&authority());
    let (_folder, other) = file(&authority().pem);
    for ca in [Some(other), None] {
        let url = format!("https://{}/evict", index.address());
        let (sender, log) = sender_with(&url, |c| c.ca = ca);
        sender.evict("req-1".into());
        let stats = wait_for(&sender, "a failure", |s| s.failed_posts > 0);
        assert_eq!((stats.sent, stats.waiting + stats.in_flight), (0, 1));
        let error = stats.last_error.expect("what went wrong");
        assert!(
            error.contains("TLS") && error.contains("CONTEXTPILOT_INDEX_CA"),
            "{error}"
        );
        drop(log);
    }
    assert!(index.posts().is_empty());
}

#[test]
fn a_ca_file_that_cannot_be_used_is_named_at_the_start() {
    let empty = file("");
    let torn = file("-----BEGIN CERTIFICATE-----\nMIIB\n");
    let key = file(&KeyPair::generate().expect("a key").serialize_pem());
    let missing = PathBuf::from("/nonexistent/ca.pem");
    for ca in [&empty.1, &torn.1, &key.1, &missing] {
        let mut config = Config::new("https://127.0.0.1:1/evict", Log::default().sink());
        config.ca = Some(ca.clone());
        let error = Sender::start(config, || {})
            .expect_err("nothing to trust")
            .to_string();
        assert!(error.contains("CONTEXTPILOT_INDEX_CA"), "{error}");
        assert!(error.contains(&ca.display().to_string()), "{error}");
    }
}
