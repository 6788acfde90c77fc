use super::*;

#[test]
fn the_address_is_found_in_the_log() {
    let new = "0.00.432.436 I srv  llama_server: listening on http://127.0.0.1:37185\n\
               0.00.432.440 I srv  llama_server: listening on unix://x.sock\n";
    let old = "main: server is listening on http://127.0.0.1:8080 - starting the main loop";
    let folder = Path::new("/folder");
    let tcp = |port: u16| Endpoint::Tcp(SocketAddr::from(([127, 0, 0, 1], port)));
    assert_eq!(
        listening(new, folder),
        [tcp(37185), Endpoint::Unix("/folder/x.sock".into())]
    );
    assert_eq!(listening(old, folder), [tcp(8080)]);
    for other in [
        "HTTP server is listening, port: 0",
        "see http://127.0.0.1:1 for help",
        "[4711] 0.00.1 I srv  llama_server: listening on http://127.0.0.1:4711",
    ] {
        assert_eq!(listening(other, folder), [], "{other}");
    }
}

#[test]
fn options_are_recognised() {
    let default = Server::builder();
    assert!(default.has_host_cache() && !default.has_separate_slots());
    let bare = Server::builder().bare_slots(2);
    assert!(!bare.has_host_cache() && bare.has_separate_slots());
    let small = Server::builder().args(["-cram", "1"]);
    assert!(small.has_host_cache());
}

#[test]
fn a_plain_server_has_nothing_of_ours() {
    let hooked = Server::builder()
        .launcher("/launcher")
        .preload("/hook.so")
        .index_url("http://localhost:1")
        .env("CONTEXTPILOT_STRICT", "1")
        .env("OTHER", "kept");
    let plain = hooked.plain();
    assert!(plain.launcher.is_none() && plain.preload.is_none());
    assert!(plain.index_url.is_none());
    assert_eq!(plain.env, [("OTHER".into(), Some("kept".into()))]);
}

#[test]
fn a_server_that_cannot_start_shows_its_last_words() {
    let wrong = Server::builder()
        .program("/bin/sh")
        .args(["--nonsense"])
        .spawn();
    let text = wrong.expect_err("sh serves nothing").to_string();
    assert!(text.contains("exited with 2"), "{text}");
    let missing = Server::builder().program("/nonexistent").spawn();
    let text = missing.expect_err("no such program").to_string();
    assert!(text.contains("/nonexistent"), "{text}");
}
