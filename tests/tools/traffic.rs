//! `traffic`, `plan`, and `simulate --servers`: on traces in each format, and on recordings.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use contextpilot_testbed::{Arch, Model, Server};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};

use crate::support::{companion, good, json as parsed};

/// A recording of a real server, with six clients.
const RECORDING: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/crates/replay/simulate/tests/recordings/six-clients"
);

fn run(arguments: &[&str]) -> Output {
    companion(arguments).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn write(folder: &Path, name: &str, lines: &[Value]) -> PathBuf {
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

/// Conversations in Mooncake's format, each over a beginning that all share: a turn has two more blocks, and the last one of a
/// prompt is half full.
fn conversations(sessions: u64, turns: u64) -> Vec<Value> {
    let request = |turn: u64, session: u64| {
        let own = |nth: u64| 1000 * (session + 1) + nth;
        let mut ids: Vec<u64> = vec![0, 1];
        ids.extend((0..2 * (turn + 1)).map(own));
        ids.push(own(500 + turn));
        json!({"timestamp": 700 * (turn * sessions + session), "input_length": 512 * (ids.len() - 1) + 256,
            "output_length": 20, "hash_ids": ids})
    };
    (0..turns)
        .flat_map(|turn| (0..sessions).map(move |session| request(turn, session)))
        .collect()
}

#[test]
fn a_trace_is_the_same_plain_packed_and_from_standard_input() {
    let folder = tempfile::tempdir().unwrap();
    let lines = conversations(5, 6);
    let path = write(folder.path(), "trace.jsonl", &lines);
    let plain = std::fs::read(&path).unwrap();
    let packed = folder.path().join("trace.jsonl.gz");
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(&plain).unwrap();
    std::fs::write(&packed, gzip.finish().unwrap()).unwrap();

    let import = ["traffic", "import", "--json"];
    let of = |path: &Path| {
        let path = path.to_str().unwrap();
        parsed(&good(&run(&[&import[..], &[path]].concat())))
    };
    let expected = of(&path);
    assert_eq!(expected["requests"], 30);
    assert_eq!(expected["block_size"], 512);
    assert_eq!(expected["sessions"], 5, "{expected}");
    assert_eq!(expected["has_sessions"], false);
    // Of each conversation but the first the shared blocks, and from then on all but the last one.
    let reused: u64 = 4 * 2 + 5 * (1..6).map(|turn| 2 + 2 * turn).sum::<u64>();
    let blocks: u64 = 5 * (0..6).map(|turn| 3 + 2 * (turn + 1)).sum::<u64>();
    let tokens = 512 * blocks - 30 * 256;
    assert_eq!(expected["tokens"], tokens);
    let cold = expected["cold"]["tokens"].as_f64().unwrap();
    assert!(
        (cold - (512 * reused) as f64 / tokens as f64).abs() < 1e-12,
        "{expected}"
    );
    assert_eq!(of(&packed), expected);

    let mut command = companion(&import);
    let mut process = command
        .arg("-")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    process.stdin.take().unwrap().write_all(&plain).unwrap();
    let piped = good(&process.wait_with_output().unwrap());
    assert_eq!(parsed(&piped), expected);

    // What it writes is the same trace.
    let out = folder.path().join("out.jsonl");
    let both = [path.to_str().unwrap(), "--out", out.to_str().unwrap()];
    good(&run(&[&import[..], &both].concat()));
    let again = of(&out);
    for same in ["requests", "tokens", "unique_blocks", "cold", "warm"] {
        assert_eq!(again[same], expected[same], "{same}");
    }
}

#[test]
fn a_damaged_line_is_named_and_left_out_and_a_cut_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let lines = conversations(3, 3);
    let path = write(folder.path(), "trace.jsonl", &lines);
    let mut text = std::fs::read_to_string(&path).unwrap();
    let third = text.match_indices('\n').nth(2).unwrap().0;
    text.insert_str(third + 1, "{\"timestamp\": 5, \"hash_ids\": [1,\n");
    std::fs::write(&path, &text).unwrap();
    let path = path.to_str().unwrap();
    let output = run(&["traffic", "import", path, "--json"]);
    let said = stderr(&output);
    assert!(
        said.contains("trace.jsonl, line 4: EOF while parsing"),
        "{said}"
    );
    let out = parsed(&good(&output));
    assert_eq!(out["requests"], 9);
    assert_eq!(out["left_out"], json!(["1 damaged line"]));
    let strict = run(&["traffic", "import", path, "--strict"]);
    assert!(!strict.status.success());
    assert!(stderr(&strict).contains("line 4"), "{}", stderr(&strict));

    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(text.as_bytes()).unwrap();
    let packed = gzip.finish().unwrap();
    let cut = folder.path().join("cut.gz");
    std::fs::write(&cut, &packed[..packed.len() - 20]).unwrap();
    let output = run(&["traffic", "import", cut.to_str().unwrap()]);
    assert!(!output.status.success());
    assert!(
        stderr(&output).contains("cut or damaged"),
        "{}",
        stderr(&output)
    );

    for (name, bytes, why) in [
        ("a.xz", &b"\xfd7zXZ\0\0"[..], "xz -dc"),
        ("empty", b"", "no requests"),
        ("words", b"tea\nsea\n", "None of 2 lines"),
        ("zeros", &[0; 4096], "not a recording"),
    ] {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let output = run(&["traffic", "import", path.to_str().unwrap()]);
        assert!(!output.status.success(), "{name}");
        assert!(stderr(&output).contains(why), "{name}: {}", stderr(&output));
    }
}

/// A few kilobytes that unpack to a line without an end.
#[test]
fn a_line_without_end_is_not_read_into_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bomb.gz");
    let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
    let part = vec![b' '; 1 << 20];
    (0..300).for_each(|_| gzip.write_all(&part).unwrap());
    std::fs::write(&path, gzip.finish().unwrap()).unwrap();
    let output = run(&["traffic", "import", path.to_str().unwrap()]);
    assert!(!output.status.success());
    assert!(
        stderr(&output).contains("line 1: it has more than"),
        "{}",
        stderr(&output)
    );
}

/// A session as a file of its own, over many lines.
#[test]
fn a_file_may_be_one_session() {
    let folder = tempfile::tempdir().unwrap();
    let session = |name: &str| {
        json!({"id": name, "block_size": 64, "hash_id_scope": "local", "requests": [
            {"t": 0.0, "type": "s", "in": 130, "out": 5, "hash_ids": [1, 2], "api_time": 1.0},
            {"t": 9.0, "type": "s", "in": 200, "out": 5, "hash_ids": [1, 2, 3], "api_time": 1.0, "think_time": 8.0}]})
    };
    let paths = ["a", "b"].map(|name| {
        let path = folder.path().join(format!("{name}.json"));
        std::fs::write(&path, serde_json::to_string_pretty(&session(name)).unwrap()).unwrap();
        path.to_str().unwrap().to_owned()
    });
    let out = parsed(&good(&run(&[
        "traffic", "import", "--json", &paths[0], &paths[1],
    ])));
    assert_eq!(out["format"], "WEKA's format");
    assert_eq!((&out["sessions"], &out["requests"]), (&json!(2), &json!(4)));
    assert_eq!(out["cold"]["blocks"], 0.4);
    // What has no id is never reused.
    assert_eq!(out["tokens"], 660);
    let of_folder = run(&[
        "traffic",
        "import",
        "--json",
        folder.path().to_str().unwrap(),
    ]);
    assert_eq!(parsed(&good(&of_folder)), out);
}

#[test]
fn text_becomes_tokens_by_a_models_file_by_a_server_or_by_a_guess() {
    let folder = tempfile::tempdir().unwrap();
    let model = Model::tiny(Arch::Llama);
    let talk = |turn: usize| {
        let said = "the quick brown fox jumps over the lazy dog. ".repeat(4);
        let one = |nth: usize| json!({"role": if nth % 2 == 0 { "user" } else { "assistant" }, "content": format!("{nth} {said}")});
        json!((0..=2 * turn).map(one).collect::<Vec<_>>())
    };
    let logs: Vec<Value> = (0..4)
        .map(|turn| json!({"messages": talk(turn), "timestamp": turn}))
        .collect();
    let logs = write(folder.path(), "logs.jsonl", &logs);
    let agents: Vec<Value> = (0..4)
        .map(|turn| json!({"session_id": "s", "model": "m", "input": talk(turn), "output_length": 9, "pre_gap": 0.5}))
        .collect();
    let agents = write(folder.path(), "agents.jsonl", &agents);
    let mut server = Server::builder()
        .model(&model)
        .bare_slots(1)
        .start()
        .unwrap();
    server.await_ready().unwrap();
    let url = format!("http://{}", server.address());
    let import = |path: &Path, tokenizer: &str| {
        let path = path.to_str().unwrap();
        let mut command = companion(&["traffic", "import", "--json", "--block-size", "16", path]);
        command.args(["--tokenizer", tokenizer]);
        command.env("LLAMA_SERVER_BIN", contextpilot_testbed::llama_server());
        parsed(&good(&command.output().unwrap()))
    };
    let by_server = import(&logs, &url);
    let by_model = import(&logs, model.path().to_str().unwrap());
    assert_eq!(by_model["tokens"], by_server["tokens"]);
    assert_eq!(by_model["cold"], by_server["cold"]);
    // Each turn begins with the one before: of 16 messages, 9 are new.
    let reused = by_server["cold"]["tokens"].as_f64().unwrap();
    assert!((0.45..0.7).contains(&reused), "{by_server}");
    // What the engine itself counts.
    let counted: u64 = (0..4)
        .map(|turn| {
            let body = json!({"messages": talk(turn), "max_tokens": 1});
            let answer = server.post("/v1/chat/completions", &body).unwrap();
            let answer = answer.json().unwrap();
            answer["usage"]["prompt_tokens"].as_u64().unwrap()
        })
        .sum();
    assert_eq!(by_server["tokens"], counted);

    let by_agents = import(&agents, &url);
    assert_eq!(by_agents["format"], "LMCache's format");
    assert_eq!(by_agents["cold"], by_server["cold"]);
    let guessed = import(&logs, "bytes");
    assert!(
        guessed["notes"].to_string().contains("guesses"),
        "{guessed}"
    );
    let refused = run(&["traffic", "import", logs.to_str().unwrap()]);
    assert!(!refused.status.success());
    assert!(
        stderr(&refused).contains("--tokenizer"),
        "{}",
        stderr(&refused)
    );
}

#[test]
fn a_recording_is_written_in_mooncakes_format_and_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("trace.jsonl");
    let out = out.to_str().unwrap();
    good(&run(&[
        "traffic",
        "export",
        RECORDING,
        "--block-size",
        "16",
        "--out",
        out,
    ]));
    let first = std::fs::read_to_string(out).unwrap();
    let first: Value = serde_json::from_str(first.lines().next().unwrap()).unwrap();
    let keys: Vec<&String> = first.as_object().unwrap().keys().collect();
    assert_eq!(
        keys,
        [
            "block_size",
            "hash_ids",
            "input_length",
            "output_length",
            "timestamp"
        ]
    );
    let import = |path: &str| {
        let size = ["--block-size", "16"];
        parsed(&good(&run(&[
            &["traffic", "import", "--json", path],
            &size[..],
        ]
        .concat())))
    };
    let (recorded, exported) = (import(RECORDING), import(out));
    assert!(recorded["requests"].as_u64().unwrap() > 100, "{recorded}");
    for same in [
        "requests",
        "tokens",
        "unique_blocks",
        "cold",
        "warm",
        "sessions",
    ] {
        assert_eq!(recorded[same], exported[same], "{same}");
    }
}

#[test]
fn a_curve_has_the_best_beside_it_and_its_bounds_end_a_script() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "trace.jsonl", &conversations(8, 6));
    let path = path.to_str().unwrap();
    let html = folder.path().join("curve.html");
    let curve = [
        "traffic",
        "curve",
        path,
        "--rooms",
        "20,40,1000",
        "--policies",
        "lru,lfu,arc,store,best",
    ];
    let out = run(&[&curve[..], &["--json", "--html", html.to_str().unwrap()]].concat());
    let out = parsed(&good(&out));
    let points = out["points"].as_array().unwrap();
    let share = |nth: usize, name: &str| points[nth][name]["tokens"].as_f64().unwrap();
    let ceiling = out["ceiling"]["tokens"].as_f64().unwrap();
    for name in ["lru", "lfu", "arc", "store"] {
        assert!(share(1, name) <= share(1, "best"), "{name}");
        assert_eq!(share(2, name), ceiling, "{name}");
    }
    assert!(
        share(1, "lru") < share(1, "best") && share(0, "best") < ceiling,
        "{out}"
    );
    let page = std::fs::read_to_string(html).unwrap();
    assert!(
        page.contains("<svg") && page.contains("With room for all"),
        "{page}"
    );

    let failing = |bound: &str| run(&[&curve[..], &["--fail-above", bound]].concat());
    assert!(failing("evaluated=99").status.success());
    let output = failing("evaluated=1");
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("evaluated is"),
        "{}",
        stderr(&output)
    );
    assert!(
        failing("distance=0.001").status.success(),
        "there is room for all"
    );
    assert!(stderr(&failing("tea=1")).contains("no figure tea"));

    // As many bytes as blocks of 512 tokens of 1,000 bytes.
    let by_bytes = [
        "traffic",
        "curve",
        path,
        "--rooms-gb",
        "0.02048",
        "--kv-bytes",
        "1000",
        "--json",
    ];
    let by_bytes = parsed(&good(&run(&by_bytes)));
    assert_eq!(by_bytes["points"][0]["blocks"], 40);
    assert_eq!(by_bytes["points"][0]["lru"]["tokens"], share(1, "lru"));
}

#[test]
fn a_report_of_a_trace_has_ceilings_a_plot_and_the_best_and_bounds_end_a_script() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "trace.jsonl", &conversations(8, 6));
    let path = path.to_str().unwrap();
    let page = folder.path().join("report.html");
    let report = |traffic: &str, more: &[&str]| {
        run(&[&["report", traffic, "-o", page.to_str().unwrap()], more].concat())
    };
    let said = good(&report(path, &["--title", "tea <for> two"]));
    assert!(said.contains("open it in a browser"), "{said}");
    let shown = std::fs::read_to_string(&page).unwrap();
    let expected = good(&run(&["traffic", "import", path]));
    for line in expected.lines() {
        assert!(shown.contains(line), "{line:?} is not in {shown}");
    }
    let curve = ["traffic", "curve", path, "--policies", "lru,best"];
    for line in good(&run(&curve)).lines() {
        assert!(shown.contains(line), "{line:?} is not in {shown}");
    }
    assert!(shown.contains("tea &lt;for> two") && shown.contains("<svg"));
    let mode = std::fs::metadata(&page).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    let share = parsed(&good(&run(&["traffic", "import", path, "--json"])));
    let evaluated = 100.0 * (1.0 - share["cold"]["tokens"].as_f64().unwrap());
    let above = |traffic: &str, bound: String| {
        let output = report(traffic, &["--no-simulation", "--fail-above", &bound]);
        (output.status.code(), stderr(&output))
    };
    let just = |by: f64| format!("evaluated={}", evaluated + by);
    assert_eq!(above(path, just(0.01)).0, Some(0));
    let (code, said) = above(path, just(-0.01));
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("evaluated is"), "{said}");
    assert_eq!(above(path, "distance=0.001".to_owned()).0, Some(0));

    // Of a recording it is what the server evaluated.
    let (code, said) = above(RECORDING, "evaluated=1".to_owned());
    assert_eq!(code, Some(1), "{said}");
    let named = said.split("evaluated is ").nth(1).unwrap();
    let named: f64 = named.split(',').next().unwrap().parse().unwrap();
    let just = |by: f64| format!("evaluated={}", named + by);
    assert_eq!(above(RECORDING, just(0.01)).0, Some(0));
    assert_eq!(above(RECORDING, just(-0.01)).0, Some(1));
    let (code, said) = above(RECORDING, "distance=1".to_owned());
    assert!(
        code != Some(0) && said.contains("no figure distance"),
        "{said}"
    );
}

#[test]
fn fleets_are_simulated_and_planned_and_what_was_assumed_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "trace.jsonl", &conversations(40, 5));
    let path = path.to_str().unwrap();
    let model = Model::tiny(Arch::Llama);
    let fleet = [
        "simulate",
        path,
        "--servers",
        "1,3",
        "--route",
        "round-robin,session,prefix,load+prefix",
    ];
    let shared = [
        "--store",
        "none,own,shared",
        "--host-cache",
        "0",
        "--model",
        model.path().to_str().unwrap(),
    ];
    let text = good(&run(&[&fleet[..], &shared].concat()));
    assert_eq!(
        text.lines().filter(|line| line.contains('%')).count(),
        24,
        "{text}"
    );
    assert!(text.contains("(of the model's file)"), "{text}");
    assert!(text.contains("2000 prompt tokens/s (assumed)"), "{text}");
    let rows = parsed(&good(&run(&[&fleet[..], &shared, &["--json"]].concat())));
    let rows = rows.as_array().unwrap();
    let of = |store: &str, route: &str| {
        let mut rows = rows.iter().filter(|row| row["servers"] == 3);
        rows.find(|row| row["store"] == store && row["route"] == route)
            .unwrap()
    };
    let reused = |row: &Value| row["reused_share"].as_f64().unwrap();
    let (none, shared) = (of("none", "round-robin"), of("shared", "round-robin"));
    assert!(reused(shared) > reused(none) + 0.3, "{none} {shared}");
    assert!(reused(shared) <= shared["best_share"].as_f64().unwrap() + 1e-9);
    assert!(shared["fetched_bytes"].as_u64().unwrap() > 0);
    let bound = ["--fail-above", "p95=0.000001"];
    assert_eq!(run(&[&fleet[..], &bound].concat()).status.code(), Some(1));
    let wrong = run(&[&fleet[..], &["--parallel", "2"]].concat());
    assert!(stderr(&wrong).contains("--slots"), "{}", stderr(&wrong));

    let plan = |most: &str| {
        let bound = ["plan", path, "--p95", "4", "--most-servers", most, "--json"];
        run(&[&bound[..], &["--prompt-rate", "2000", "--host-cache", "0"]].concat())
    };
    let planned = parsed(&good(&plan("1000")));
    assert!(planned[0]["servers"].as_u64().unwrap() > 1, "{planned}");
    assert!(
        planned[0]["p95_seconds"].as_f64().unwrap() <= 4.0,
        "{planned}"
    );
    let refused = plan("1");
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        stderr(&refused).contains("takes more than 1 server:"),
        "{}",
        stderr(&refused)
    );

    // A recording says what its server is.
    let recorded = good(&run(&[
        "simulate",
        RECORDING,
        "--servers",
        "2",
        "--store",
        "own",
    ]));
    assert!(
        recorded.contains("prompt tokens/s (as recorded)"),
        "{recorded}"
    );
    let like = good(&run(&[
        "simulate",
        path,
        "--servers",
        "2",
        "--like",
        RECORDING,
    ]));
    assert!(like.contains("slots (as recorded)"), "{like}");
}

/// What a made-up trace may have that a recorded one has not is said, and so is which order counts.
#[test]
fn what_a_trace_lacks_is_said_and_recordings_are_read_alone() {
    let folder = tempfile::tempdir().unwrap();
    let lines = conversations(5, 4);
    let import = |lines: &[Value]| {
        let path = write(folder.path(), "trace.jsonl", lines);
        parsed(&good(&run(&[
            "traffic",
            "import",
            "--json",
            path.to_str().unwrap(),
        ])))
    };
    let notes = |out: &Value| out["notes"].to_string();
    let whole = import(&lines);
    assert!(!notes(&whole).contains("above") && !notes(&whole).contains("without an id"));

    let mut turned = lines.clone();
    turned.rotate_left(3);
    let turned = import(&turned);
    let said = "3 requests came before one that stands above";
    assert!(notes(&turned).contains(said), "{turned}");
    assert_eq!(
        (&turned["cold"], &turned["warm"]),
        (&whole["cold"], &whole["warm"])
    );

    let mut short = lines.clone();
    for line in &mut short {
        line["input_length"] = json!(512 * line["hash_ids"].as_array().unwrap().len() + 512);
    }
    let blocks = whole["blocks"].as_u64().unwrap();
    let short = import(&short);
    assert_eq!(short["tokens"], 512 * (blocks + 20));
    let said = "10,240 of the prompts' tokens";
    assert!(notes(&short).contains(said), "{short}");

    let mut long = lines;
    for line in &mut long {
        line["hash_ids"].as_array_mut().unwrap().push(json!(77));
    }
    let long = import(&long);
    assert_eq!(
        long["left_out"],
        json!(["20 blocks beyond the tokens of a prompt"])
    );
    assert_eq!(long["cold"], whole["cold"]);

    let two = run(&["traffic", "import", RECORDING, RECORDING]);
    assert!(!two.status.success());
    assert!(
        stderr(&two).contains("a recording is read alone"),
        "{}",
        stderr(&two)
    );
}

#[test]
fn options_of_stores_are_refused_where_there_are_none() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "trace.jsonl", &conversations(2, 2));
    let simulate = ["simulate", path.to_str().unwrap(), "--servers", "2"];
    for (option, stores) in [("--store-gb", "none"), ("--remote-gb", "none,own")] {
        let without = [&simulate[..], &["--store", stores, option, "1"]].concat();
        let refused = run(&without);
        assert!(!refused.status.success(), "{option}");
        let why = stderr(&refused);
        assert!(
            why.contains(option) && why.contains("--store shared"),
            "{why}"
        );
        good(&run(
            &[&simulate[..], &["--store", "shared", option, "1"]].concat()
        ));
    }
}

#[test]
fn options_of_a_fleet_are_refused_for_one_recorded_server() {
    let recording = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("crates/replay/simulate/tests/recordings/two-clients");
    let recording = recording.to_str().unwrap();
    for option in [["--slots", "2"], ["--route", "session"], ["--store", "own"]] {
        let of_one = run(&[&["simulate", recording][..], &option].concat());
        assert!(!of_one.status.success(), "{option:?}");
        let why = stderr(&of_one);
        assert!(
            why.contains(option[0]) && why.contains("--servers"),
            "{why}"
        );
        good(&run(&[
            &["simulate", recording, "--servers", "1"][..],
            &option,
        ]
        .concat()));
    }
}
