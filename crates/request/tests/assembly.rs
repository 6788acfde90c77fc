//! Prompts, put together from bodies and from what the server tokenizes.

use contextpilot_request::{Assembly, Request, RequestReader, Step};
use serde_json::{Value, json};

fn request(path: &str, body: &Value) -> Request {
    let body = body.to_string();
    let head = format!(
        "POST {path} HTTP/1.1\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    match RequestReader::with_prompts().feed_recv((head + &body).as_bytes()) {
        Step::Complete(request) => request,
        other => panic!("{other:?}"),
    }
}

/// What becomes whole, at once and after each of `texts`.
fn assemble(path: &str, body: &Value, texts: &[(bool, &[i32])]) -> Vec<Vec<Vec<i32>>> {
    let mut assembly = Assembly::of(&request(path, body));
    let mut all = vec![std::iter::from_fn(|| assembly.next()).collect()];
    for (special, tokens) in texts {
        assembly.text(*special, tokens);
        all.push(std::iter::from_fn(|| assembly.next()).collect());
    }
    all
}

#[test]
fn a_text_is_what_the_server_makes_of_it() {
    let body = json!({"prompt": "ab"});
    for path in ["/completion", "/v1/completions"] {
        // Triggers before it, parameters after it.
        let texts: [(bool, &[i32]); 3] = [(false, &[9]), (true, &[1, 2]), (false, &[8])];
        let whole = assemble(path, &body, &texts);
        assert_eq!(whole, [vec![], vec![], vec![vec![1, 2]], vec![]], "{path}");
    }
}

#[test]
fn tokens_are_taken_from_the_body() {
    let whole = |prompt| assemble("/completion", &json!({"prompt": prompt}), &[]);
    assert_eq!(whole(json!([5, 6])), [[[5, 6]]]);
    assert_eq!(whole(json!([[5, 6], [7]])), [[vec![5, 6], vec![7]]]);
}

#[test]
fn several_prompts_and_mixed_ones_come_in_their_order() {
    let body = json!({"prompt": [[5], "ab", [6, "cd", 7, "ef"], ["gh", 8]]});
    let texts: [(bool, &[i32]); 4] = [
        (true, &[1, 10]),
        (false, &[20, 21]),
        (false, &[30]),
        (true, &[1, 40]),
    ];
    let whole = assemble("/completion", &body, &texts);
    let expected = [
        vec![vec![5]],
        vec![vec![1, 10]],
        vec![],
        vec![vec![6, 20, 21, 7, 30]],
        vec![vec![1, 40, 8]],
    ];
    assert_eq!(whole, expected);
}

/// What the server does not do tells nothing, rather than something wrong.
#[test]
fn an_unknown_order_ends_it() {
    let body = json!({"prompt": [["ab", 5, "cd"], [6]]});
    let whole = assemble(
        "/completion",
        &body,
        &[(true, &[1]), (true, &[2]), (false, &[3])],
    );
    assert_eq!(whole.concat(), [[0; 0]; 0]);
}

#[test]
fn of_a_chat_each_text_with_special_tokens_is_a_prompt() {
    let body = json!({"messages": []});
    for path in [
        "/v1/chat/completions",
        "/v1/messages",
        "/v1/responses",
        "/embedding",
    ] {
        let texts: [(bool, &[i32]); 3] = [(false, &[9]), (true, &[1, 2]), (false, &[8])];
        assert_eq!(assemble(path, &body, &texts).concat(), [[1, 2]], "{path}");
    }
}

#[test]
fn what_only_the_server_can_put_together_is_not_told() {
    for (path, body) in [
        ("/infill", json!({"input_prefix": "a", "prompt": "b"})),
        ("/rerank", json!({"query": "a", "documents": ["b"]})),
        ("/completion", json!({"prompt": true})),
        ("/completion", json!({})),
        ("/tokenize", json!({"content": "a", "prompt": [5]})),
    ] {
        let whole = assemble(path, &body, &[(true, &[1]), (false, &[2])]);
        assert_eq!(whole.concat(), [[0; 0]; 0], "{path}");
    }
}
