use super::*;

const CHAT: &str = "/v1/chat/completions";

fn stabiliser(rules: &str) -> Stabiliser {
    Stabiliser::read(rules).unwrap_or_else(|e| panic!("{e}: {rules}"))
}

fn rule(lines: &str) -> Stabiliser {
    stabiliser(&format!("[[rule]]\nname = 'a'\n{lines}"))
}

fn right(stabiliser: &Stabiliser, path: &str, body: &str) -> Option<String> {
    let right = stabiliser.apply(path, body.as_bytes())?;
    Some(String::from_utf8(right).expect("UTF-8"))
}

#[test]
fn a_replacement_changes_the_texts_of_its_place_and_no_other_byte() {
    let digits = |place: &str| rule(&format!("in = '{place}'\nfind = '[0-9]+'\nreplace = '#'"));
    let body = r#"{ "n":1.50, "system":"s1\u00e9" ,"instructions":"i1","prompt":["p1","p2"],
        "input":"u1", "tools": [{"n":1,"t1": "t1"}],
        "messages":[{"role":"system","content":[{"type":"text1","text":"a1"}]},
        {"role":"user","content":"b1"},{"role":"developer","content":"c1"}]}"#;
    for (place, path, changed) in [
        ("system", CHAT, &[("a1", "a#"), ("c1", "c#")][..]),
        (
            "system",
            "/v1/messages",
            &[("s1\\u00e9", "s#é"), ("a1", "a#"), ("c1", "c#")],
        ),
        ("system", "/v1/responses", &[("i1", "i#")]),
        ("messages", CHAT, &[("b1", "b#")]),
        ("messages", "/v1/responses", &[("u1", "u#")]),
        ("prompt", "/v1/completions", &[("p1", "p#"), ("p2", "p#")]),
        ("tools", CHAT, &[(": \"t1", ": \"t#")]),
        ("prompt", CHAT, &[]),
        ("messages", "/v1/completions", &[]),
    ] {
        let expected = changed.iter().fold(body.to_owned(), |body, (old, new)| {
            body.replacen(old, new, 1)
        });
        let found = right(&digits(place), path, body);
        assert_eq!(found.as_deref().unwrap_or(body), expected, "{place} {path}");
        assert_eq!(found.is_some(), !changed.is_empty(), "{place} {path}");
    }
}

#[test]
fn what_moves_stands_behind_the_users_last_text() {
    let moves = rule(concat!(
        "in = 'system'\nmove = 'behind'\n",
        r"find = '(?m)^It is [^\n]*\n'"
    ));
    let body = |system: &str, last: &str| {
        format!(
            r#"{{"messages":[{{"role":"system","content":"{system}"}},{{"role":"user","content":"u"}},{{"role":"assistant","content":"a"}},{{"role":"user","content":[{{"type":"text","text":"{last}"}}]}},{{"role":"tool","content":"t"}}]}}"#
        )
    };
    let found = right(
        &moves,
        CHAT,
        &body(r"You help.\nIt is 9:41.\nBe kind.", "go"),
    );
    let expected = body(r"You help.\nBe kind.", r"go\n\nIt is 9:41.\n");
    assert_eq!(found, Some(expected));
    let alone = r#"{"messages":[{"role":"system","content":"It is 9:41.\n"}]}"#;
    assert_eq!(
        right(&moves, CHAT, alone),
        None,
        "nothing to move it behind"
    );
    assert_eq!(moves.used().collect::<Vec<_>>(), [("a", 1)]);
}

#[test]
fn tools_and_their_members_come_in_one_order() {
    let sorts = rule("in = 'tools'\nsort = true");
    let body = |tools: &str| format!(r#"{{"tools": {tools}, "z":1,"a":2}}"#);
    let ordered = body(
        r#"[{"type":"function","function":{"name":"b","description":"d","parameters":{"type":"object","properties":{"name":{"enum":["y","x"]},"type":1},"required":["z","a"]}}},{"name":"c","x":1}]"#,
    );
    let other = body(
        r#"[ {"x":1, "name":"c"}, {"function":{"parameters":{"required":["z","a"],"properties":{"type":1,"name":{"enum":["y","x"]}},"type":"object"},"description":"d","name":"b"},"type":"function"} ]"#,
    );
    assert_eq!(right(&sorts, CHAT, &other).as_ref(), Some(&ordered));
    assert_eq!(right(&sorts, CHAT, &ordered), None, "it is in order");
    let deep = body(&format!(
        "[{{\"b\":1,\"a\":{}1{}}}]",
        "[".repeat(70),
        "]".repeat(70)
    ));
    assert_eq!(right(&sorts, CHAT, &deep), None, "too deep");
}

#[test]
fn what_no_rule_changes_and_what_is_no_json_is_left_alone() {
    let finds = rule("in = 'system'\nfind = 'x'\nreplace = 'y'");
    for body in [
        r#"{"messages":[{"role":"system","content":"x"}"#,
        r#"{"messages":[{"role":"system","content":"\ud800 x"}]}"#,
        r#"{"messages":[{"role":"system","content":null},7,"x"]}"#,
        r#"{"messages":{"role":"system","content":"x"}}"#,
        r#"[{"role":"system","content":"x"}]"#,
        "x",
        "",
    ] {
        assert_eq!(right(&finds, CHAT, body), None, "{body}");
    }
    // As many brackets as there may be, and a stack that must not grow with them.
    let deep = format!("{}{}", "[".repeat(1 << 20), "]".repeat(1 << 20));
    let body = format!(r#"{{"tools":{deep},"messages":{deep}}}"#);
    assert_eq!(right(&finds, CHAT, &body), None);
    assert_eq!(right(&rule("in = 'tools'\nsort = true"), CHAT, &body), None);
    assert_eq!(finds.used().collect::<Vec<_>>(), [("a", 0)]);
    assert!(
        finds
            .metrics("p")
            .ends_with("\np_stabilised_requests_total{rule=\"a\"} 0\n")
    );
}

#[test]
fn rules_that_cannot_be_followed_say_why() {
    let rule = |lines: &str| format!("[[rule]]\nname = 'a'\n{lines}\n");
    let good = rule("in = 'tools'\nsort = true");
    for (rules, why) in [
        (String::new(), "there is no rule"),
        (format!("{good}{good}"), "another rule has this name"),
        (good.replace("'a'", "'a b'"), "letters, digits"),
        (rule("in = 'tool'\nsort = true"), "unknown variant"),
        (rule("in = 'tools'\nsorts = true"), "unknown field"),
        (
            rule("in = 'system'\nsort = true"),
            "sort is for in = \"tools\"",
        ),
        (
            rule("in = 'system'\nfind = 'x'"),
            "it needs find with replace",
        ),
        (
            rule("in = 'system'\nfind = 'x*'\nreplace = ''"),
            "an empty text",
        ),
        (
            rule("in = 'system'\nfind = '('\nreplace = ''"),
            "unclosed group",
        ),
        (
            rule("in = 'tools'\nfind = 'x'\nmove = 'behind'"),
            "move is for",
        ),
        (
            rule("in = 'system'\nfind = 'x'\nmove = 'before'"),
            "unknown variant",
        ),
    ] {
        let error = Stabiliser::read(&rules).expect_err(&rules).to_string();
        assert!(error.contains(why), "{error}");
    }
}
