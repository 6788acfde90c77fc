//! Tokens, prompts and ids must not appear in logs, nor where other users can read them.

use contextpilot_testbed::{Index, Request};

use crate::support::{Home, PATIENCE, lines};

const TOKEN: &str = "s3cret-t0ken";
const PROMPT: &str = "the private words of a prompt";

#[test]
fn neither_secrets_nor_prompts_nor_ids_are_shown() {
    let (home, index) = (Home::new(), Index::start().unwrap());
    let builder = home.server(&index, 1);
    let mut server = builder
        .env("CONTEXTPILOT_INDEX_TOKEN", TOKEN)
        .spawn()
        .unwrap();
    let ask = |id: &str, prompt: &str| {
        let request = Request::completion(prompt).id(id).predict(2);
        server.complete(&request).unwrap();
    };
    ask("req-private", PROMPT);
    ask("req-other", "what overwrites it");
    assert!(index.wait_until(|evicted| evicted.contains("req-private"), PATIENCE));
    // The index gets the token and the id, nothing else of the request.
    let post = &index.posts()[0];
    let expected = format!("authorization: bearer {TOKEN}");
    assert!(
        post.head.to_ascii_lowercase().contains(&expected),
        "{}",
        post.head
    );
    assert_eq!(post.body, br#"{"request_ids":["req-private"]}"#);

    let cmdline = std::fs::read(format!("/proc/{}/cmdline", server.pid())).unwrap();
    let cmdline = String::from_utf8_lossy(&cmdline).into_owned();
    assert!(
        cmdline.contains("llama-server") && !cmdline.contains(TOKEN),
        "{cmdline}"
    );

    // The hook prints most if the index refuses.
    index.behave(contextpilot_testbed::Behaviour::Status(401, TOKEN.into()));
    server.stop(libc::SIGTERM).unwrap();
    let said = lines(&server).join("\n");
    assert!(said.contains("401"), "{said}");
    let everything = server.stderr() + &server.stdout();
    assert!(!everything.contains(TOKEN), "{everything}");
    for ours in [said.as_str(), &cmdline] {
        assert!(!ours.contains(PROMPT) && !ours.contains("req-"), "{ours}");
    }
}
