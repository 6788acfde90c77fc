//! What requests are about, from the bodies that clients send.

use contextpilot_request::{ConnectionReader, MOST_WORDS, Step, Title};
use serde_json::{Value, json};

fn title_of(body: &str, agent: &str) -> Option<Box<Title>> {
    let length = body.len();
    let head =
        format!("POST /v1/x HTTP/1.1\r\nUser-Agent: {agent}\r\nContent-Length: {length}\r\n\r\n");
    let bytes = head + body;
    let read = |cut: usize| {
        let mut reader = ConnectionReader::new().with_titles();
        let (first, rest) = bytes.as_bytes().split_at(cut);
        let first = reader.received(first);
        match (first, rest.is_empty()) {
            (Step::Complete(request), true) => request.title,
            (Step::More, false) => match reader.received(rest) {
                Step::Complete(request) => request.title,
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    };
    let whole = read(bytes.len());
    // Each place of a short one, some of a long one.
    for cut in (1..bytes.len()).step_by(bytes.len().div_ceil(1000)) {
        assert_eq!(read(cut), whole, "cut at {cut}");
    }
    whole
}

fn words(body: &Value) -> String {
    let title = title_of(&body.to_string(), "");
    title.map_or(String::new(), |title| title.words.into())
}

#[test]
fn the_last_message_of_a_user_is_what_a_chat_is_about() {
    let user = |content: Value| json!({"role": "user", "content": content});
    let other = |role: &str| json!({"role": role, "content": "not this"});
    let messages = json!([
        other("system"),
        user("before".into()),
        other("assistant"),
        user("Fix the\n\t login test".into()),
        other("tool"),
        {"role": "assistant", "tool_calls": [{"function": {"name": "x", "arguments": "{}"}, "content": [{"text": "no"}]}]},
    ]);
    for member in ["messages", "input"] {
        assert_eq!(words(&json!({ member: messages })), "Fix the login test");
    }
    // The role may stand behind the content, and the content may have parts.
    let text = r#"{"messages": [{"content": [{"type": "image_url", "image_url": {"url": "data:x"}},
        {"text": "What is \u00e9\uD83D\ude00 \"this\"?", "type": "text"}], "role": "user"}]}"#;
    let title = title_of(text, "opencode/1.18.33 ai-sdk/5").unwrap();
    assert_eq!(&*title.words, "What is é😀 \"this\"?");
    assert_eq!(&*title.agent, "opencode/1.18.33");
}

#[test]
fn what_agents_put_between_tags_is_not_what_a_user_wrote() {
    let reminder = json!({"type": "text", "text": "<system-reminder>today</system-reminder>"});
    let asked = json!({"type": "text", "text": "Name a colour"});
    let result = json!({"type": "tool_result", "content": [{"type": "text", "text": "42"}]});
    let of = |parts: &[&[Value]]| {
        let messages: Vec<Value> = parts
            .iter()
            .map(|parts| json!({"role": "user", "content": parts}))
            .collect();
        words(&json!({ "messages": messages }))
    };
    let all = [reminder.clone(), asked.clone()];
    assert_eq!(of(&[&all]), "Name a colour");
    assert_eq!(
        of(&[&[asked, reminder.clone()], &[result, reminder.clone()]]),
        "Name a colour"
    );
    assert_eq!(
        of(&[&[reminder]]),
        "<system-reminder>today</system-reminder>"
    );
}

#[test]
fn the_first_words_of_a_prompt_are_what_a_completion_is_about() {
    assert_eq!(
        words(&json!({"prompt": "Tell me about tea."})),
        "Tell me about tea."
    );
    assert_eq!(words(&json!({"prompt": [7, "one", "two"]})), "one");
    assert_eq!(words(&json!({"input": "a document"})), "a document");
    assert_eq!(
        words(&json!({"other": {"prompt": "no"}, "prompt": [1, 2]})),
        ""
    );
    assert_eq!(title_of("{}", ""), None);
    let only_agent = title_of("{}", "curl/8").unwrap();
    assert_eq!((&*only_agent.words, &*only_agent.agent), ("", "curl/8"));
}

#[test]
fn words_are_few_and_have_no_character_that_a_terminal_obeys() {
    let hostile = "a\u{1b}[2J\u{0}b\u{202e}c\u{200b}\u{7f}d\u{85}e";
    assert_eq!(words(&json!({ "prompt": hostile })), "a[2Jbcd e");
    for letter in ["x", "é", "😀", "x "] {
        let long = words(&json!({"prompt": letter.repeat(10_000)}));
        assert!(
            long.len() <= MOST_WORDS && long.len() > MOST_WORDS - 8,
            "{long}"
        );
        assert!(long.ends_with('…') && !long.contains('\u{fffd}'), "{long}");
    }
    let agent = title_of("{}", &"é".repeat(300)).unwrap().agent;
    assert!(agent.len() <= 40 && agent.ends_with('…'), "{agent}");
    let agent = title_of("{}", "a\u{9b}b").unwrap().agent;
    assert_eq!(&*agent, "ab");
}

#[test]
fn without_being_asked_the_reader_takes_no_text() {
    let body = r#"{"prompt": "a secret"}"#;
    let head = format!(
        "POST /completion HTTP/1.1\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    for reader in [ConnectionReader::new(), ConnectionReader::with_prompts()] {
        let mut reader = reader;
        let Step::Complete(request) = reader.received((head.clone() + body).as_bytes()) else {
            panic!("it is complete");
        };
        assert_eq!(request.title, None);
    }
}

#[test]
fn which_numbers_a_request_for_a_chat_has_is_known() {
    let sent = |path: &str, head: &str| {
        let body = r#"{"prompt": "on 30 Nov", "messages": [{"role": "user", "content": "It is\n30 Nov 2026."}]}"#;
        let bytes = format!(
            "POST {path} HTTP/1.1\r\nContent-Length: {}\r\n{head}\r\n{body}",
            body.len()
        );
        let mut reader = ConnectionReader::new().with_titles();
        match reader.received(bytes.as_bytes()) {
            Step::Complete(request) => request.sent,
            other => panic!("{other:?}"),
        }
    };
    for path in ["/v1/chat/completions", "/v1/messages"] {
        let sent = sent(path, "").expect("a chat");
        assert_eq!(sent.may_have("30 Nov 2026"), Some(true));
        assert_eq!(sent.may_have("29 Nov 2026"), Some(false));
        assert_eq!(sent.may_have("Nov"), None);
    }
    // A prompt may come as tokens, and a compressed body is not read.
    assert_eq!(sent("/completion", ""), None);
    let compressed = sent("/v1/chat/completions", "Content-Encoding: gzip\r\n");
    assert_eq!(compressed, None);
}
