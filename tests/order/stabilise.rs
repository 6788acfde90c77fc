//! `--stabilise`: what changes at the beginning of prompts is put right, and the server finds in its cache what follows.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;

use contextpilot_testbed::{Builder, Server};
use serde_json::json;

use crate::support::{Index, companion, exchange, watched};
use crate::usage::Gateway;
use crate::{ELM, ICE, OWL, SEA, TEA};

/// Shows tools before messages, as they came.
const TEMPLATE: &str = "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}\
    {% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}";

/// One slot, which each prompt takes from the one before. With the tiny model, each character is a token.
fn one_slot(folder: &Path) -> Builder {
    let template = folder.join("template.jinja");
    std::fs::write(&template, TEMPLATE).unwrap();
    let builder = Server::tiny();
    let builder = builder
        .bare_slots(1)
        .args(["-c", "16384", "--jinja", "--chat-template-file"]);
    builder
        .args([template.display().to_string()])
        .env("CONTEXTPILOT_EXPLAIN_TEXT", "1")
}

/// Stands behind what changes.
fn long() -> String {
    [TEA, SEA, OWL, ELM, ICE].join(" ")
}

const CHAT: &str = "/v1/chat/completions";

fn chat(system: &str) -> String {
    let system = format!("{system} {}", long());
    let messages = [("system", &*system), ("user", TEA)];
    let messages = messages.map(|(role, content)| json!({"role": role, "content": content}));
    json!({"temperature": 0, "max_tokens": 1, "messages": messages}).to_string()
}

fn messages(version: &str) -> String {
    let header = format!("x-anthropic-billing-header: cc_version={version}; cc_entrypoint=cli;");
    let system = [header, long()].map(|text| json!({"type": "text", "text": text}));
    let user = json!({"role": "user", "content": TEA});
    json!({"temperature": 0, "max_tokens": 1, "system": system, "messages": [user]}).to_string()
}

fn responses(session: &str) -> String {
    let instructions = format!("Session 6f9619ff-8b86-d011-b42d-{session}. {}", long());
    json!({"temperature": 0, "max_output_tokens": 1, "instructions": instructions, "input": TEA})
        .to_string()
}

fn prompt(request: &str) -> String {
    let prompt = format!("Request {request}: {}", long());
    json!({"temperature": 0, "n_predict": 1, "prompt": prompt}).to_string()
}

/// Written by hand: a value would have its members in order.
fn tools(names: [&str; 2], members: [&str; 2]) -> String {
    let tools = names.map(|name| {
        let members = members.map(|member| format!(r#""{member}":"{}""#, long()));
        let function = format!(r#"{{"name":"{name}",{}}}"#, members.join(","));
        format!(r#"{{"type":"function","function":{function}}}"#)
    });
    let messages = r#"[{"role":"user","content":"a"}]"#;
    let tools = tools.join(",");
    format!(r#"{{"temperature":0,"max_tokens":1,"tools":[{tools}],"messages":{messages}}}"#)
}

/// A kind of rule, and two requests that differ in what it puts right.
struct Case {
    rule: &'static str,
    path: &'static str,
    bodies: [String; 2],
    /// The second evaluates so many tokens at most: the last one, and what was moved behind.
    most: u64,
}

fn cases() -> Vec<Case> {
    vec![
        Case {
            rule: r"name = 'attribution'
                in = 'system'
                find = 'x-anthropic-billing-header: [^\n]*'
                replace = ''",
            path: "/v1/messages",
            bodies: ["2.1.197.a3f", "2.1.197.b7e"].map(messages),
            most: 1,
        },
        Case {
            rule: r"name = 'rounded'
                in = 'system'
                find = '([0-9]{4}-[0-9]{2}-[0-9]{2})T[0-9:]+Z'
                replace = '$1'",
            path: CHAT,
            bodies: ["2026-11-28T12:49:05Z", "2026-11-28T12:51:40Z"].map(chat),
            most: 1,
        },
        Case {
            rule: r"name = 'moved'
                in = 'system'
                find = 'It is [0-9:]+\. '
                move = 'behind'",
            path: CHAT,
            bodies: ["It is 12:49.", "It is 12:51."].map(chat),
            most: 12,
        },
        Case {
            rule: r"name = 'session'
                in = 'system'
                find = 'Session [0-9a-f-]+'
                replace = 'Session 0'",
            path: "/v1/responses",
            bodies: ["00cf4fc964ff", "70cf4fc964f1"].map(responses),
            most: 1,
        },
        Case {
            rule: r"name = 'nonce'
                in = 'prompt'
                find = 'Request [0-9]+'
                replace = 'Request'",
            path: "/completion",
            bodies: ["17", "9"].map(prompt),
            most: 1,
        },
        Case {
            rule: "name = 'order'\nin = 'tools'\nsort = true",
            path: CHAT,
            bodies: [
                tools(["a", "b"], ["description", "x"]),
                tools(["b", "a"], ["x", "description"]),
            ],
            most: 1,
        },
    ]
}

/// Sends a request. Returns how many tokens of its prompt the server evaluated.
fn evaluated(proxy: SocketAddr, path: &str, body: &str) -> u64 {
    let answer = exchange(proxy, "POST", path, body.as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
    let answer = answer.json().unwrap();
    let (usage, timings) = (&answer["usage"], &answer["timings"]);
    let of_responses = || {
        let cached = usage["input_tokens_details"]["cached_tokens"].as_u64()?;
        Some(usage["input_tokens"].as_u64()? - cached)
    };
    let count = timings["prompt_n"].as_u64().or_else(of_responses);
    let count = count.or_else(|| usage["input_tokens"].as_u64());
    count.unwrap_or_else(|| panic!("{answer}"))
}

#[test]
fn each_kind_of_rule_saves_what_stands_behind() {
    let folder = tempfile::tempdir().unwrap();
    let server = watched(
        &one_slot(folder.path()),
        &folder.path().join("control.sock"),
    );
    let file = folder.path().join("rules.toml");
    let rules: Vec<_> = cases()
        .iter()
        .map(|case| format!("[[rule]]\n{}\n", case.rule))
        .collect();
    std::fs::write(&file, rules.concat()).unwrap();
    let file = file.display().to_string();
    let index = Index::start(server.address(), &["--stabilise", &file]);
    let gateway = Gateway::start(server.address(), &["--stabilise", &file]);
    let behind = long().len() as u64;
    for Case {
        rule,
        path,
        bodies: [first, second],
        most,
    } in cases()
    {
        evaluated(server.address(), path, &first);
        let plain = evaluated(server.address(), path, &second);
        assert!(plain >= behind, "{plain} without {rule}");
        for proxy in [index.address, gateway.address] {
            // Something else takes the slot.
            evaluated(server.address(), "/completion", &prompt("of another"));
            let all = evaluated(proxy, path, &first);
            assert!(all >= behind, "{all} of {rule}");
            let rest = evaluated(proxy, path, &second);
            assert!(rest <= most, "{rest} with {rule}");
        }
    }
    // Each was used as often as it changed something: the first request of the tools is in order already.
    let used =
        json!({"attribution": 2, "rounded": 2, "moved": 2, "session": 2, "nonce": 2, "order": 1});
    let stats = exchange(index.address, "GET", "/stats", b"");
    assert_eq!(stats.json().unwrap()["stabilised"], used);
    let metrics = exchange(gateway.address, "GET", "/gateway/metrics", b"").text();
    for (prefix, metrics) in [("index", index.text("/metrics")), ("gateway", metrics)] {
        let name = format!("contextpilot_{prefix}_stabilised_requests_total");
        for (rule, count) in used.as_object().unwrap() {
            let line = format!("\n{name}{{rule=\"{rule}\"}} {count}\n");
            assert!(metrics.contains(&line), "{line}{metrics}");
        }
    }
}

fn proposed(at: &str) -> String {
    let mut command = companion(&["why", "--propose", "--control", at]);
    let output = command.stdout(Stdio::piped()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// What the only rule of these says: so many tokens would three requests have evaluated with it, and so many have they.
fn replayed(rules: &str) -> [u64; 2] {
    let replayed =
        rules.split_once("# Replayed: with this rule, 3 recent requests would have evaluated ");
    let (then, now) = replayed
        .unwrap_or_else(|| panic!("{rules}"))
        .1
        .split_once(" tokens, not ")
        .unwrap();
    [then, now].map(|text| {
        let number = text.split('\n').next().unwrap();
        number.replace(',', "").parse().unwrap()
    })
}

/// Tools that come in another order each time, and so do their members: what the rule saves is what it says, to the token.
#[test]
fn an_order_of_tools_that_changes_is_proposed_and_saves_what_it_says() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("control.sock");
    let server = watched(&one_slot(folder.path()), &socket);
    let body = |order: [usize; 3], question: &str| {
        let all = [
            ("brew", TEA, SEA),
            ("hoot", OWL, ELM),
            ("melt", ICE, "Frost."),
        ];
        let tools = order.map(|nth| {
            let (name, what, about) = all[nth];
            let members = [("description", what), ("x_about", about)];
            let members = members.map(|(member, text)| format!(r#""{member}":"{text}""#));
            let members = match order[0] {
                0 => members.join(","),
                _ => format!("{},{}", members[1], members[0]),
            };
            format!(r#"{{"type":"function","function":{{"name":"{name}",{members}}}}}"#)
        });
        let messages = json!([{"role": "user", "content": question}]);
        let tools = tools.join(",");
        format!(r#"{{"temperature":0,"max_tokens":1,"tools":[{tools}],"messages":{messages}}}"#)
    };
    let orders = [[0, 1, 2], [2, 0, 1], [1, 2, 0]];
    let questions = ["What is tea?", "And what is that?", "Why?"];
    let bodies = [0, 1, 2].map(|nth| body(orders[nth], questions[nth]));
    let plain = bodies
        .each_ref()
        .map(|body| evaluated(server.address(), CHAT, body));
    let rules = proposed(&format!("unix:{}", socket.display()));
    assert!(rules.contains("# Seen 2 times: "), "{rules}");
    assert!(
        rules.contains("name = \"order-of-tools\"\nin = \"tools\"\nsort = true\n"),
        "{rules}"
    );
    let [then, now] = replayed(&rules);
    assert_eq!(now, plain.iter().sum::<u64>(), "{rules}");
    let file = folder.path().join("rules.toml");
    std::fs::write(&file, &rules).unwrap();
    let index = Index::start(
        server.address(),
        &["--stabilise", &file.display().to_string()],
    );
    evaluated(server.address(), "/completion", &prompt("of another"));
    let sorted = bodies
        .each_ref()
        .map(|body| evaluated(index.address, CHAT, body));
    // The first one evaluates all but what it shares with the prompt before it.
    assert_eq!(
        then - plain[0],
        sorted[1] + sorted[2],
        "{plain:?} {sorted:?} {rules}"
    );
    assert!(then + 500 < now, "{plain:?} {sorted:?}");
}

#[test]
fn what_was_seen_twice_is_proposed_and_saves_what_it_says() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("control.sock");
    let server = watched(&one_slot(folder.path()), &socket);
    let at = format!("unix:{}", socket.display());
    let proposed = || proposed(&at);
    let system = |session: &str| chat(&format!("Session: {session}."));
    let [first, second] =
        ["q7", "k91"].map(|session| evaluated(server.address(), CHAT, &system(session)));
    let once = proposed();
    assert!(once.contains("None of the last 2 prompts"), "{once}");
    assert!(!once.contains("[[rule]]"), "{once}");
    let third = evaluated(server.address(), CHAT, &system("w305"));
    let rules = proposed();
    for line in [
        "# Seen 2 times: ",
        "# The last time there was: “Session: w305”\n",
        "# The model would read “Session: 0” there\n",
        "name = \"behind-session\"\n",
        "in = \"system\"\n",
    ] {
        assert!(rules.contains(line), "{line:?} is not in:\n{rules}");
    }
    // The first one evaluates all, and each of the other two its session and what stands before the user's text.
    assert_eq!(
        replayed(&rules),
        [first + 1 + 1, first + second + third],
        "{rules}"
    );
    let file = folder.path().join("rules.toml");
    std::fs::write(&file, &rules).unwrap();
    let index = Index::start(
        server.address(),
        &["--stabilise", &file.display().to_string()],
    );
    evaluated(index.address, CHAT, &system("r4"));
    let rest = evaluated(index.address, CHAT, &system("t55"));
    assert_eq!(rest, 1, "{rules}");
    let said = rules.split_once("# Seen 2 times: ").unwrap().1;
    let said: u64 = said
        .split(' ')
        .next()
        .unwrap()
        .replace(',', "")
        .parse()
        .unwrap();
    // Each of the two would have evaluated one token, but for the session itself.
    let saved = 2 * (third - rest);
    assert!((saved - 2 * 5..=saved).contains(&said), "{said} of {saved}");
}

#[test]
fn rules_that_cannot_be_followed_are_an_error_before_anything_starts() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules.toml");
    std::fs::write(&file, "[[rule]]\nname = 'a'\nin = 'system'\nfind = 'x'").unwrap();
    let file = file.display().to_string();
    for command in [
        &[
            "up",
            "--index-port",
            "0",
            "--stabilise",
            &file,
            "-m",
            "none",
        ][..],
        &[
            "gateway",
            "--port",
            "0",
            "--server",
            "http://127.0.0.1:1",
            "--stabilise",
            &file,
        ],
        &[
            "index",
            "--port",
            "0",
            "--engine",
            "http://127.0.0.1:1",
            "--stabilise",
            &file,
        ],
    ] {
        let output = companion(command).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let why = format!("--stabilise {file}: rule \"a\": it needs find with replace");
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(&why), "{said}");
    }
}
