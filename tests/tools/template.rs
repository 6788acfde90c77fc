//! `contextpilot-llama template`: what it says of templates whose flaws are known, on the real server.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use contextpilot_testbed::{Arch, Model, Server, Spec, llama_server, private_folder, until};
use contextpilot_tiny_model::{Chat, write_with};
use serde_json::{Value, json};

use super::support::{companion, good};

/// A template that renders everything, and never anything otherwise. The others are made of it.
const FAITHFUL: &str = r#"{{- '<begin>' -}}
{%- if messages[0].role == 'system' -%}{{- '<system>' + messages[0].content + '<end>' -}}{%- endif -%}
{%- if tools -%}{{- '<tools>' + (tools | tojson) + '<end>' -}}{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'user' -%}{{- '<user>' + message.content + '<end>' -}}
{%- elif message.role == 'tool' -%}{{- '<result>' + message.content + '<end>' -}}
{%- elif message.role == 'assistant' -%}{{- '<assistant>' -}}
{%- if message.reasoning_content -%}{{- '<think>' + message.reasoning_content + '</think>' -}}{%- endif -%}
{{- message.content -}}
{%- for call in message.tool_calls or [] -%}
{{- '<call>{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + '}</call>' -}}
{%- endfor -%}{{- '<end>' -}}
{%- endif -%}{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<assistant>' -}}{%- endif -%}"#;

/// Name, what is replaced in the template, and by what.
const FLAWS: [(&str, &str, &str); 12] = [
    ("faithful", "", ""),
    (
        "drops-reasoning",
        "{%- if message.reasoning_content -%}",
        "{%- set later = namespace(user=false) -%}{%- for one in messages[loop.index0:] -%}\
         {%- if one.role == 'user' -%}{%- set later.user = true -%}{%- endif -%}{%- endfor -%}\
         {%- if message.reasoning_content and not later.user -%}",
    ),
    (
        "system-last",
        "{%- if message.role == 'user' -%}{{- '<user>'",
        "{%- if message.role == 'user' -%}{{- '<user>' + (messages[0].content if loop.last else '')",
    ),
    (
        "tools-last",
        "{%- if message.role == 'user' -%}{{- '<user>'",
        "{%- if message.role == 'user' -%}{{- '<user>' + ((tools | tojson) if tools and loop.last else '')",
    ),
    ("dated", "'<begin>'", "'<begin>' + strftime_now('%d %B %Y')"),
    (
        "dated-without-system",
        "'<begin>'",
        "'<begin>' + ('' if messages[0].role == 'system' else strftime_now('%d %B %Y'))",
    ),
    (
        "trims",
        "{{- message.content -}}",
        "{{- message.content | trim -}}",
    ),
    (
        "thinks",
        "{%- if add_generation_prompt -%}{{- '<assistant>' -}}",
        "{%- if add_generation_prompt -%}{{- '<assistant><think>' -}}",
    ),
    (
        "instructs",
        "{%- if add_generation_prompt -%}{{- '<assistant>' -}}",
        "{%- if add_generation_prompt -%}{{- '<note>Answer now.<assistant>' -}}",
    ),
    (
        "loses-content",
        "{%- if message.reasoning_content -%}{{- '<think>' + message.reasoning_content + '</think>' -}}\
         {%- endif -%}\n{{- message.content -}}",
        "{{- '' if message.reasoning_content else message.content -}}",
    ),
    ("loses-calls", "message.tool_calls or []", "[]"),
    ("mute", "{{- message.content -}}", ""),
];

fn flawed(from: &str, to: &str) -> String {
    assert!(FAITHFUL.contains(from), "{from}");
    FAITHFUL.replace(from, to)
}

/// What is said of each of these, by its name.
#[track_caller]
fn said_of(given: &[impl AsRef<Path>]) -> BTreeMap<String, Value> {
    let mut command = companion(&["template", "--json"]);
    let given = given.iter().map(AsRef::as_ref);
    let said = command.env("LLAMA_SERVER_BIN", llama_server()).args(given);
    let lines = good(&said.output().unwrap());
    let rows = lines.lines().map(|line| {
        let row: Value = serde_json::from_str(line).unwrap();
        (row["template"].as_str().unwrap().to_owned(), row)
    });
    rows.collect()
}

fn written(folder: &Path, name: &str, template: &str) -> PathBuf {
    let path = folder.join(format!("{name}.jinja"));
    fs::write(&path, template).unwrap();
    path
}

#[test]
fn each_kind_of_difference_is_recognised_and_a_faithful_template_has_none() {
    let folder = private_folder();
    let files = FLAWS.map(|(name, from, to)| written(folder.path(), name, &flawed(from, to)));
    let said = said_of(&files);
    // How many requests differ of how many, and why.
    let expected = |name: &str, conversation: &str, differ: [u64; 2], kinds: &[&str]| {
        let row = &said[name][conversation];
        let shown = format!("{name} {conversation}: {row}");
        let found = [&row["differ"], &row["requests"]].map(|value| value.as_u64().unwrap());
        assert_eq!((found, &row["kinds"]), (differ, &json!(kinds)), "{shown}");
        let again = row["again"].as_f64().unwrap();
        assert_eq!(again > 0.0, differ[0] > 0, "{shown}");
        assert!(again < 1.0, "{shown}");
    };
    for (name, plain) in [
        ("plain", 8),
        ("tools", 16),
        ("reasoning_back", 16),
        ("parallel_calls", 16),
        ("another_day", 24),
    ] {
        expected("faithful", name, [0, plain], &[]);
    }
    let [user, result] = [
        "reasoning_left_out_at_user_message",
        "reasoning_left_out_at_tool_result",
    ];
    expected("faithful", "reasoning_out", [16, 16], &[user, result]);
    // Its arguments come back with white space that a model does not write.
    expected("faithful", "spelling", [1, 2], &["call_spelled_otherwise"]);

    expected("drops-reasoning", "tools", [0, 16], &[]);
    expected("drops-reasoning", "reasoning_back", [8, 16], &[user]);
    expected(
        "drops-reasoning",
        "reasoning_out",
        [16, 16],
        &[user, result],
    );
    expected("system-last", "plain", [8, 8], &["system_text_moved"]);
    expected("tools-last", "plain", [0, 8], &[]);
    expected("tools-last", "tools", [8, 16], &["tools_moved"]);
    expected("dated", "tools", [0, 16], &[]);
    expected("dated", "another_day", [24, 24], &["date"]);
    expected(
        "dated-without-system",
        "another_day",
        [8, 24],
        &["date_without_system_message"],
    );
    expected("trims", "plain", [0, 8], &[]);
    expected(
        "trims",
        "spelling",
        [2, 2],
        &["white_space_trimmed", "call_spelled_otherwise"],
    );
    expected("thinks", "plain", [8, 8], &["think_block_not_in_history"]);
    expected(
        "instructs",
        "tools",
        [16, 16],
        &["generation_prompt_not_in_history"],
    );
    expected("loses-content", "tools", [0, 16], &[]);
    expected(
        "loses-content",
        "reasoning_back",
        [8, 16],
        &["content_left_out"],
    );
    expected("loses-calls", "tools", [0, 16], &["call_left_out"]);
    expected("loses-calls", "parallel_calls", [0, 16], &["call_left_out"]);

    expected("mute", "plain", [0, 8], &["content_left_out"]);

    let helps = |name: &str| -> Vec<&str> {
        let helps = said[name]["helps"].as_array().unwrap();
        helps
            .iter()
            .map(|help| help["what"].as_str().unwrap())
            .collect()
    };
    // Its own spelling of a call is kept by the hook.
    let calls = "CONTEXTPILOT_KEEP_TOKENS=calls";
    assert_eq!(helps("faithful"), ["send reasoning back", calls]);
    assert_eq!(helps("drops-reasoning"), ["leave reasoning out", calls]);
    let kept = |name: &str| -> Option<f64> {
        let helps = said[name]["helps"].as_array().unwrap();
        helps.iter().find(|help| help["what"] == calls)?["to"].as_f64()
    };
    assert_eq!(kept("faithful"), Some(0.0));
    // The white space of an answer is none of a call's.
    assert!(kept("trims") > Some(0.0), "{}", said["trims"]);
    assert_eq!(kept("loses-calls"), None);
    assert_eq!(
        helps("dated-without-system")[1..],
        [calls, "a system message of your own"]
    );
    assert_eq!(
        helps("loses-content"),
        [
            "never send reasoning_content: the content is lost with it",
            calls
        ]
    );
}

#[test]
fn what_was_tried_is_tried_with_the_server() {
    let folder = private_folder();
    let dates = flawed(
        "'<begin>'",
        "'<begin>' + (date_string if date_string is defined else strftime_now('%d'))",
    );
    let switch = flawed(
        "{%- if message.reasoning_content -%}",
        "{%- if message.reasoning_content and (loop.last or keep_reasoning is defined and keep_reasoning) -%}",
    );
    let preserves = flawed(
        "{%- if message.reasoning_content -%}",
        "{%- if message.reasoning_content and (loop.last or not clear_thinking) -%}",
    );
    let refuses = flawed("'<tools>'", "raise_exception('No tools here')");
    let files = [
        ("dates", dates),
        ("switch", switch),
        ("preserves", preserves),
        ("refuses", refuses),
    ];
    let said = said_of(&files.map(|(name, template)| written(folder.path(), name, &template)));
    let help = |name: &str, what: &str| {
        let helps = said[name]["helps"].as_array().unwrap();
        let found = helps
            .iter()
            .find(|help| help["what"].as_str().unwrap().contains(what));
        let help = found.unwrap_or_else(|| panic!("{what}: {}", said[name]));
        assert!(help["saves"].as_f64().unwrap() > 0.0, "{help}");
        help["to"].as_f64().unwrap()
    };
    assert_eq!(
        help(
            "dates",
            "a pinned date (chat_template_kwargs {\"date_string\""
        ),
        0.0
    );
    assert_eq!(
        help("switch", "chat_template_kwargs {\"keep_reasoning\":true}"),
        0.0
    );
    assert_eq!(help("preserves", "--reasoning-preserve (the default)"), 0.0);
    assert_eq!(said["preserves"]["reasoning_back"]["differ"], 0);
    assert_eq!(said["refuses"]["tools"], Value::Null);
    let why = said["refuses"]["refused"]["tools"].as_str().unwrap();
    assert!(why.contains("No tools here"), "{why}");
}

#[test]
fn a_file_a_model_and_a_server_with_the_same_template_are_said_to_be_the_same() {
    let folder = private_folder();
    let template = flawed(FLAWS[1].1, FLAWS[1].2);
    let file = written(folder.path(), "same", &template);
    let model = folder.path().join("model.gguf");
    write_with(&model, &Spec::new(Arch::Llama), &Chat::new(template)).unwrap();
    let server = Server::builder().model(&Model::file(model.clone(), Arch::Llama));
    let server = server.args(["--alias", "served"]).spawn().unwrap();
    let url = format!("http://{}", server.address());
    let mut said = said_of(&[file.to_str().unwrap(), model.to_str().unwrap(), &url]);
    let rows = ["same", "model", "served"].map(|name| {
        let mut row = said.remove(name).unwrap();
        row["template"] = Value::Null;
        row
    });
    assert_eq!(rows[0]["reasoning_back"]["differ"], 8, "{}", rows[0]);
    assert_eq!(rows[0], rows[1]);
    assert_eq!(rows[0], rows[2]);
}

/// The flags of the server that runs decide, and not those of the one that renders what was generated.
#[test]
fn the_flags_of_a_server_that_runs_count() {
    let folder = private_folder();
    let template = flawed(
        "{%- if message.reasoning_content -%}",
        "{%- if message.reasoning_content and (loop.last or not forget) -%}",
    );
    let model = folder.path().join("model.gguf");
    write_with(&model, &Spec::new(Arch::Llama), &Chat::new(template)).unwrap();
    let back = |flags: &[&str]| {
        let server = Server::builder().model(&Model::file(model.clone(), Arch::Llama));
        let server = server
            .args(["--alias", "served"])
            .args(flags.iter().copied());
        let server = server.spawn().unwrap();
        let said = said_of(&[format!("http://{}", server.address())]);
        said["served"]["reasoning_back"]["differ"].as_u64().unwrap()
    };
    assert_eq!(back(&[]), 0);
    assert_eq!(back(&["--chat-template-kwargs", "{\"forget\":true}"]), 16);
}

#[test]
fn what_cannot_be_looked_at_gets_one_line_and_the_others_are_shown() {
    let folder = private_folder();
    let broken = written(folder.path(), "broken", "{% if %}");
    let faithful = written(folder.path(), "faithful", FAITHFUL);
    let missing = folder.path().join("missing.gguf");
    let letter = written(folder.path(), "letter", "Dear reader, this is no template.");
    // Without a template nothing is left out, so it would be a faithful one.
    let empty = written(folder.path(), "empty", "\n");
    let mut command = companion(&["template", "--compare"]);
    command.env("LLAMA_SERVER_BIN", llama_server());
    let output = command
        .args([&broken, &missing, &letter, &empty, &faithful])
        .output()
        .unwrap();
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert_eq!(output.status.code(), Some(1), "{out}{err}");
    let lines: Vec<&str> = err.lines().collect();
    assert_eq!(lines.len(), 4, "{err}");
    for (line, file) in lines.iter().zip([&broken, &missing, &letter, &empty]) {
        assert!(line.starts_with("[ContextPilot] "), "{line}");
        let path = file.to_str().unwrap();
        assert_eq!(line.matches(path).count(), 1, "{line}");
    }
    let rows: Vec<&str> = out.lines().collect();
    assert!(rows.len() == 2 && rows[1].starts_with("faithful"), "{out}");
}

#[test]
fn a_signal_ends_its_server_and_leaves_no_files() {
    let folder = private_folder();
    let temporary = folder.path().join("temporary");
    fs::create_dir(&temporary).unwrap();
    let file = written(folder.path(), "faithful", FAITHFUL);
    let mut command = companion(&["template", "--json"]);
    command
        .env("LLAMA_SERVER_BIN", llama_server())
        .env("TMPDIR", &temporary);
    let mut child = command.arg(&file).stdout(Stdio::null()).spawn().unwrap();
    let entries = || fs::read_dir(&temporary).unwrap().count();
    // The processes that were started with a file in there.
    let servers = || {
        let all = fs::read_dir("/proc").unwrap().flatten();
        let lines = all.filter_map(|one| fs::read(one.path().join("cmdline")).ok());
        let inside = temporary.to_str().unwrap().to_owned();
        lines
            .filter(|line| String::from_utf8_lossy(line).contains(&inside))
            .count()
    };
    until("its server runs", || {
        (entries() > 0 && servers() > 0).then_some(())
    });
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
    assert_eq!((entries(), servers()), (0, 0));
}
