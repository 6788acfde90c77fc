//! Prompts, composed from bodies and from the texts that the server tokenizes.

use contextpilot_request::{
    Assembled, Assembly, ConnectionReader, Infill, InfillTexts, Request, Step,
};
use serde_json::{Value, json};

fn request(path: &str, body: &Value) -> Request {
    let body = body.to_string();
    let head = format!(
        "POST {path} HTTP/1.1\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    match ConnectionReader::with_prompts().received((head + &body).as_bytes()) {
        Step::Complete(request) => request,
        other => panic!("{other:?}"),
    }
}

/// The prompts that are complete, at once and after each of `texts`.
fn assemble(path: &str, body: &Value, texts: &[(bool, &[i32])]) -> Vec<Vec<Vec<i32>>> {
    let mut assembly = Assembly::from_request(&request(path, body));
    let whole = |assembly: &mut Assembly| {
        std::iter::from_fn(|| assembly.next())
            .map(|whole| whole.tokens)
            .collect()
    };
    let mut all = vec![whole(&mut assembly)];
    for (special, tokens) in texts {
        assembly.text(*special, b"", tokens, None);
        all.push(whole(&mut assembly));
    }
    all
}

#[test]
fn a_prompt_as_text_has_the_tokens_that_the_server_makes_of_it() {
    let body = json!({"prompt": "ab"});
    for path in ["/completion", "/v1/completions"] {
        // A trigger's text before it, a parameter's text after it.
        let texts: [(bool, &[i32]); 3] = [(false, &[9]), (true, &[1, 2]), (false, &[8])];
        let whole = assemble(path, &body, &texts);
        assert_eq!(whole, [vec![], vec![], vec![vec![1, 2]], vec![]], "{path}");
    }
}

#[test]
fn a_prompt_as_tokens_is_taken_from_the_body() {
    let whole = |prompt| assemble("/completion", &json!({"prompt": prompt}), &[]);
    assert_eq!(whole(json!([5, 6])), [[[5, 6]]]);
    assert_eq!(whole(json!([[5, 6], [7]])), [[vec![5, 6], vec![7]]]);
}

#[test]
fn several_prompts_and_mixed_ones_are_composed_in_order() {
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

/// If texts come in an order in which the server never tokenizes, there is no prompt, rather than a wrong one.
#[test]
fn an_impossible_order_of_texts_gives_no_prompt() {
    let body = json!({"prompt": [["ab", 5, "cd"], [6]]});
    let whole = assemble(
        "/completion",
        &body,
        &[(true, &[1]), (true, &[2]), (false, &[3])],
    );
    assert_eq!(whole.concat(), [[0; 0]; 0]);
}

#[test]
fn in_a_chat_each_text_with_special_tokens_is_a_prompt() {
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
fn for_a_prompt_that_only_the_server_can_compose_there_is_none() {
    for (path, body) in [
        ("/infill", json!({"input_prefix": "a", "input_suffix": "b"})),
        ("/rerank", json!({"query": "a", "documents": ["b"]})),
        ("/completion", json!({"prompt": true})),
        ("/completion", json!({})),
        ("/tokenize", json!({"content": "a", "prompt": [5]})),
    ] {
        let whole = assemble(path, &body, &[(true, &[1]), (false, &[2])]);
        assert_eq!(whole.concat(), [[0; 0]; 0], "{path}");
    }
}

/// One token a byte.
fn tokens(text: &str) -> Vec<i32> {
    text.bytes().map(i32::from).collect()
}

const PRE: i32 = 1001;
const SUF: i32 = 1002;
const MID: i32 = 1003;
const REP: i32 = 1004;
const SEP: i32 = 1005;
const BOS: i32 = 1006;

fn rule(repository: Option<i32>, separator: Option<i32>) -> Infill {
    Infill {
        prefix: PRE,
        suffix: SUF,
        middle: MID,
        repository,
        separator,
        bos: None,
        batch: 2048,
        suffix_first: false,
        texts: InfillTexts::new(|text| std::str::from_utf8(text).ok().map(tokens))
            .expect("all have tokens"),
    }
}

/// `format_infill` of llama.cpp, translated, and the texts that it tokenizes. `made`: those of
/// its own texts that it has tokenized already.
fn server(body: &Value, rule: &Infill, made: &mut Vec<String>) -> (Assembled, Vec<String>) {
    let mut calls: Vec<String> = Vec::new();
    let mixed = |value: &Value, calls: &mut Vec<String>| -> Vec<i32> {
        let pieces = match value {
            Value::Array(pieces) => pieces.clone(),
            text => vec![text.clone()],
        };
        let each = pieces.iter().map(|piece| match piece {
            Value::String(text) => {
                calls.push(text.clone());
                tokens(text)
            }
            number => vec![number.as_i64().expect("a token") as i32],
        });
        each.collect::<Vec<_>>().concat()
    };
    let mut own = |text: &str, calls: &mut Vec<String>| {
        if !made.iter().any(|known| known == text) {
            made.push(text.to_owned());
            calls.push(text.to_owned());
        }
        tokens(text)
    };
    let prompt = body["prompt"].as_str().unwrap_or_default();
    calls.push(prompt.to_owned());
    let prompt = tokens(prompt);
    let mut prefix = mixed(&body["input_prefix"], &mut calls);
    let mut suffix = mixed(&body["input_suffix"], &mut calls);
    let mut extra = Vec::new();
    if let Some(repository) = rule.repository {
        extra.push(repository);
        extra.extend(own("myproject\n", &mut calls));
    }
    for chunk in body["input_extra"].as_array().unwrap_or(&Vec::new()) {
        match rule.separator {
            Some(separator) => {
                let name = chunk["filename"].as_str().unwrap_or("tmp");
                let line = format!("{name}\n");
                extra.push(separator);
                extra.extend(tokens(&line));
                calls.push(line);
            }
            None => extra.extend(own("\n\n--- snippet ---\n\n", &mut calls)),
        }
        let text = chunk["text"].as_str().expect("a text");
        extra.extend(tokens(text));
        calls.push(text.to_owned());
    }
    if let Some(separator) = rule.separator {
        extra.push(separator);
        extra.extend(own("filename\n", &mut calls));
    }
    let quarter = rule.batch as i64 / 4;
    let prefix_take = (prefix.len() as i64).min(3 * quarter);
    let suffix_take = (suffix.len() as i64).min(0.max(quarter - (2 + prompt.len() as i64)));
    prefix.drain(..prefix.len() - prefix_take as usize);
    suffix.truncate(suffix_take as usize);
    prefix.insert(0, rule.prefix);
    prefix.extend(prompt);
    suffix.insert(0, rule.suffix);
    let (mut inp, end) = if rule.suffix_first {
        (suffix, prefix)
    } else {
        (prefix, suffix)
    };
    if let Some(bos) = rule.bos {
        inp.insert(0, bos);
    }
    let assembled = Assembled {
        extra: extra.len(),
        tokens: [extra, inp, end, vec![rule.middle]].concat(),
    };
    (assembled, calls)
}

/// The prompt that is complete at the last call.
fn infill(body: &Value, rule: &Infill, calls: &[String]) -> Option<Assembled> {
    let mut assembly = Assembly::from_request(&request("/infill", body));
    assert!(assembly.is_infill());
    let mut whole = None;
    for text in calls {
        assembly.text(false, text.as_bytes(), &tokens(text), Some(rule));
        let next = assembly.next();
        assert!(whole.is_none() || next.is_none(), "one prompt");
        whole = whole.or(next);
    }
    whole
}

#[test]
fn an_infill_prompt_is_composed_as_the_server_does() {
    let files = json!([
        {"text": "fn a() {}", "filename": "a.rs"},
        {"text": "", "filename": "myproject"},
        {"text": "no name"},
        {"text": "myproject\n", "filename": "filename"},
    ]);
    let snippets = json!([{"text": "\n\n--- snippet ---\n\n"}, {"text": "more"}]);
    let bodies = [
        json!({"input_prefix": "ab", "input_suffix": "cd"}),
        json!({"input_prefix": "", "input_suffix": "", "prompt": ""}),
        json!({"input_prefix": "ab", "input_suffix": "cd", "prompt": "ef", "input_extra": []}),
        json!({"input_prefix": "ab", "input_suffix": "cd", "input_extra": files}),
        json!({"input_prefix": "ab", "input_suffix": "cd", "input_extra": snippets}),
        json!({"input_prefix": ["ab", 5, "c"], "input_suffix": [6, 7], "prompt": "x"}),
        json!({"input_prefix": [5, 6], "input_suffix": ["ab", "cd"], "input_extra": files}),
        json!({"input_prefix": [], "input_suffix": ["cd"], "input_extra": [{"text": ""}]}),
        json!({"input_prefix": "p".repeat(900), "input_suffix": "s".repeat(600), "prompt": "mid"}),
    ];
    for repository in [None, Some(REP)] {
        for separator in [None, Some(SEP)] {
            // Begin with each body: the server has tokenized different texts of its own by then.
            for first in 0..bodies.len() {
                let mut rule = rule(repository, separator);
                let mut made = Vec::new();
                for nth in 0..bodies.len() {
                    rule.bos = (nth % 2 == 0).then_some(BOS);
                    rule.suffix_first = nth % 3 == 0;
                    rule.batch = [2048, 64, 4][nth % 3];
                    let body = &bodies[(first + nth) % bodies.len()];
                    let (expected, calls) = server(body, &rule, &mut made);
                    assert_eq!(infill(body, &rule, &calls), Some(expected), "{body}");
                }
            }
        }
    }
}

#[test]
fn for_infill_without_its_parts_or_the_rule_there_is_no_prompt() {
    let body = json!({"input_prefix": "ab", "input_suffix": "cd"});
    let mut assembly = Assembly::from_request(&request("/infill", &body));
    for text in ["", "ab", "cd"] {
        assembly.text(false, text.as_bytes(), &tokens(text), None);
        assert_eq!(assembly.next(), None);
    }
    for body in [
        json!({"input_prefix": "ab"}),
        json!({"input_suffix": "ab"}),
        json!({"input_prefix": 5, "input_suffix": "cd"}),
    ] {
        assert!(
            !Assembly::from_request(&request("/infill", &body)).is_infill(),
            "{body}"
        );
    }
}
