//! The same over TLS.

use std::process::Output;

use contextpilot_testbed::Certificate;

use super::*;

/// A Redis that also listens with TLS, what it shows there, and the address.
fn redis(certificate: &Certificate, arguments: &[&str]) -> Option<(Redis, String)> {
    let at = free_port();
    let (port, key) = (at.port().to_string(), certificate.key_file());
    let (file, key) = (certificate.file(), key.to_str().unwrap().to_owned());
    let file = file.to_str().unwrap();
    let mut all = vec!["--tls-port", &port, "--tls-cert-file", file];
    all.extend(["--tls-key-file", &key, "--tls-ca-cert-file", file]);
    all.extend(arguments);
    let redis = Redis::start(&all)?;
    until("the Redis answers with TLS", || TcpStream::connect(at).ok());
    Some((redis, format!("rediss://{at}")))
}

/// `store sync URL --once --json` that trusts no other certificate.
fn once_with(trusted: &Certificate, folder: &Path, url: &str) -> Output {
    let mut command = companion_command(folder, &["sync", url, "--once", "--json"]);
    command.env("SSL_CERT_FILE", trusted.file());
    command.output().unwrap()
}

#[test]
fn over_tls_only_a_redis_is_asked_whose_certificate_is_trusted() {
    let certificate = Certificate::new().unwrap();
    let Some((redis, url)) = redis(&certificate, &["--tls-auth-clients", "no"]) else {
        return;
    };
    let (here, there) = (folder(), folder());
    let builder = one_slot()
        .env("CONTEXTPILOT_STORE_REMOTE", &url)
        .env("SSL_CERT_FILE", certificate.file());
    let mut one = Stored::start(&builder, here.path());
    one.ask(&tokens(144, 700));
    one.server.stop(SIGTERM).unwrap();
    let own = chunk_files(here.path()).len();
    until("all is sent", || (redis.chunks() == own).then_some(()));

    let mut other = Stored::start(&one_slot(), there.path());
    other.ask(&tokens(145, 40));
    other.server.stop(SIGTERM).unwrap();
    let stranger = Certificate::new().unwrap();
    let said = refused(&once_with(&stranger, there.path(), &url));
    assert!(said.contains("SSL_CERT_FILE"), "{said}");
    let (plain, with_tls) = (redis.url(), url.replace("rediss:", "redis:"));
    for (wrong, advice) in [
        (plain.replace("redis:", "rediss:"), "does it speak TLS"),
        (with_tls, ""),
    ] {
        let said = refused(&once_with(&certificate, there.path(), &wrong));
        assert!(said.contains(advice), "{said}");
    }
    assert_eq!(redis.chunks(), own);

    let moved = good(&once_with(&certificate, there.path(), &url));
    assert_eq!(moved["fetched"], own, "{moved}");
    let sent = moved["sent"].as_u64().unwrap();
    assert!(sent > 0, "{moved}");
    assert_eq!(redis.chunks() as u64, own as u64 + sent);
}

#[test]
fn what_to_do_is_said_if_a_redis_asks_for_a_clients_certificate() {
    let certificate = Certificate::new().unwrap();
    // Its default.
    let Some((redis, url)) = redis(&certificate, &["--tls-auth-clients", "yes"]) else {
        return;
    };
    let folder = folder();
    let mut stored = Stored::start(&one_slot(), folder.path());
    stored.ask(&tokens(146, 40));
    stored.server.stop(SIGTERM).unwrap();
    let said = refused(&once_with(&certificate, folder.path(), &url));
    assert!(said.contains("set tls-auth-clients no there"), "{said}");
    assert_eq!(redis.chunks(), 0);
}
