//! `agent`: a server for coding agents in one command.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use contextpilot_testbed::{
    Arch, Connection, KillOnDrop, Model, llama_server, or_return, script, skip, test_name, until,
};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};

use crate::support::{COMPANION, Home};

/// `agent`, in a process group of its own. Ends when it is dropped.
struct Agent {
    process: KillOnDrop,
    log: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

impl Agent {
    /// Starts it with these arguments and variables.
    fn start(home: &Home, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut command = home.command(COMPANION, &["agent"]);
        command.args(arguments).envs(variables.iter().copied());
        command.env("LLAMA_SERVER_BIN", llama_server());
        command.process_group(0).stderr(Stdio::piped());
        let mut process = KillOnDrop(command.spawn().unwrap());
        let stderr = BufReader::new(process.stderr.take().unwrap());
        let log = Arc::new(Mutex::new(String::new()));
        let shared = log.clone();
        let reader = std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                *shared.lock().unwrap() += &(line + "\n");
            }
        });
        let reader = Some(reader);
        Self {
            process,
            log,
            reader,
        }
    }

    /// Waits until it has said how to point an agent at it. Returns the address of the server.
    fn ready(&self) -> SocketAddr {
        until("it says how to point agents at it", || {
            let log = self.log.lock().unwrap();
            let after = log.split_once("[ContextPilot] Ready at http://")?.1;
            after.contains("In another terminal").then_some(())?;
            after.split_once(". To point")?.0.parse().ok()
        })
    }

    /// Waits for the end. Returns the code, and what all of it said.
    fn end(mut self) -> (ExitStatus, String) {
        let status = self.process.wait().unwrap();
        self.reader.take().unwrap().join().unwrap();
        let log = self.log.lock().unwrap().clone();
        (status, log)
    }
}

fn tiny() -> String {
    Model::tiny(Arch::Llama).path().display().to_string()
}

fn complete(address: SocketAddr, prompt: &str) -> Value {
    let body = json!({"prompt": prompt, "max_tokens": 4, "id_slot": 0}).to_string();
    let mut connection = Connection::open(address).unwrap();
    let answer = connection.exchange("POST", "/v1/completions", body.as_bytes());
    let answer = answer.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json().unwrap()
}

#[test]
fn agent_turns_on_what_helps_and_says_how_to_point_agents_at_it() {
    let home = or_return!(Home::of(test_name!()));
    let model = tiny();
    let arguments = ["-m", &model, "-t", "1", "--parallel", "1", "--port", "0"];
    let agent = Agent::start(&home, &arguments, &[]);
    let address = agent.ready();
    let stats = home.stats(&[]);
    assert_eq!(
        stats.process,
        agent.process.id(),
        "this process is the server"
    );
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", stats.process));
    assert_eq!(children.unwrap(), "", "no zombie of ours stays");
    let store = home.path().join(".cache/contextpilot-llama/store");
    let folder = stats.store.as_ref().map(|store| store.folder.clone());
    assert_eq!(folder.as_deref(), store.to_str());
    let recording = stats.recording.unwrap().file;
    assert!(
        recording.ends_with("contextpilot-llama/agent-0.traffic"),
        "{recording}"
    );

    let words = "Tea is picked in spring and dried in the shade. ".repeat(20);
    complete(address, &format!("{words} One."));
    complete(address, &format!("{words} Two."));
    let why = until("why knows both", || {
        let output = home.run(&["why", "--last", "2"]);
        let text = String::from_utf8(output.stdout).unwrap();
        text.contains("Two").then_some(text)
    });
    assert!(why.contains("One"), "text around the difference: {why}");
    assert!(home.text(&["advise"]).contains("prompt tokens are reused"));

    kill_process_group(Pid::from_child(&agent.process), Signal::INT).unwrap();
    let (status, log) = agent.end();
    assert_eq!(status.code(), Some(0), "{log}");
    for line in [
        format!("CLAUDE_CODE_ATTRIBUTION_HEADER=0 ANTHROPIC_BASE_URL=http://{address} "),
        format!(r#""baseURL":"http://{address}/v1""#),
        format!(r#"base_url="http://{address}/v1""#),
        format!("cline auth -p openai -k none -m local -b http://{address}/v1"),
        format!("apiBase: http://{address}/v1"),
        format!("aider --model openai/local --openai-api-base http://{address}/v1"),
    ] {
        assert!(log.contains(&line), "{line}: {log}");
    }
    // The folder is found when nothing runs, too.
    assert!(
        home.text(&["store", "path"])
            .contains("contextpilot-llama/store")
    );
}

#[test]
fn what_the_user_has_set_wins() {
    let home = or_return!(Home::of(test_name!()));
    let own = home.path().join("own");
    let model = tiny();
    let agent = Agent::start(
        &home,
        &[
            "--no-recording",
            "-m",
            &model,
            "--port",
            "0",
            "--api-key",
            "k",
        ],
        &[
            ("CONTEXTPILOT_STORE", own.to_str().unwrap()),
            ("CONTEXTPILOT_STORE_GB", "0.5"),
        ],
    );
    agent.ready();
    assert!(agent.log.lock().unwrap().contains("-k KEY -m local"));
    let stats = home.stats(&[]);
    let store = stats.store.unwrap();
    assert_eq!(store.folder, own.to_str().unwrap());
    assert_eq!(store.limit_bytes, 500_000_000);
    assert!(stats.recording.is_none());
    assert!(!home.path().join(".cache/contextpilot-llama/store").exists());
}

/// Without a model the server is a router, which knows no model `local`.
#[test]
fn agent_without_a_model_says_that_the_lines_need_one() {
    let home = or_return!(Home::of(test_name!()));
    let said = |arguments: &[&str]| {
        let agent = Agent::start(&home, arguments, &[]);
        agent.ready();
        let log = agent.log.lock().unwrap();
        log.contains("No model is named, so this is a router: end it and name one with -m")
    };
    assert!(said(&["--port", "0"]));
    assert!(!said(&["-m", &tiny(), "--port", "0"]));
}

#[test]
fn agent_ends_as_the_server_does() {
    let home = or_return!(Home::of(test_name!()));
    let (status, log) = Agent::start(&home, &["-m", "/none.gguf", "--port", "0"], &[]).end();
    let plain = home
        .command(
            llama_server().to_str().unwrap(),
            &["-m", "/none.gguf", "--port", "0"],
        )
        .output()
        .unwrap();
    assert_eq!(status.code(), plain.status.code());
    assert!(!log.contains("Ready at"), "{log}");
    // Its end is also that of the process that waits: it holds the same stderr.
    let (status, log) = Agent::start(&home, &["--version"], &[]).end();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(!log.contains("Ready at"), "{log}");
    let wrong = [("CONTEXTPILOT_KEEP_TOKENS", "yes")];
    let (status, log) = Agent::start(&home, &["-m", &tiny()], &wrong).end();
    assert_eq!(status.code(), Some(2), "{log}");
}

/// A server without a store, whose random model ends each answer at once: every token that is evaluated is a prompt's.
fn for_agents(home: &Home) -> Agent {
    let model = tiny();
    let mut arguments = vec!["--no-store", "-m", &model, "-c", "65536", "--port", "0"];
    arguments.extend(["--metrics", "--logit-bias", "2+100"]);
    Agent::start(home, &arguments, &[])
}

/// Runs the line that `agent` printed below this name, with these words behind it.
fn runs(home: &Home, agent: &Agent, name: &str, programs: &str, words: &str) {
    let log = agent.log.lock().unwrap().clone();
    let (_, line) = log.split_once(&format!("\n  {name}\n    ")).unwrap();
    runs_line(
        home,
        programs,
        &format!("{} {words}", line.lines().next().unwrap()),
    );
}

/// Runs a line of a shell, which finds programs in this folder.
fn runs_line(home: &Home, programs: &str, line: &str) {
    let mut command = home.command("sh", &["-c", line]);
    let path = std::env::var("PATH").unwrap();
    command.env("PATH", format!("{programs}:{path}"));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{line}: {output:?}");
}

/// `llamacpp:prompt_tokens_total`: what the server says that it has evaluated.
fn evaluated(address: SocketAddr) -> u64 {
    let mut connection = Connection::open(address).unwrap();
    let answer = connection.exchange("GET", "/metrics", b"").unwrap();
    let text = answer.text();
    let of = |line: &str| {
        let number = line.strip_prefix("llamacpp:prompt_tokens_total ")?;
        Some(number.parse().unwrap())
    };
    text.lines().find_map(of).expect("a counter")
}

/// All that `why` says, once the server's own counter is the sum of it.
fn explained(home: &Home, address: SocketAddr) -> Vec<Value> {
    until("why adds up to what the server has evaluated", || {
        let text = home.text(&["why", "--last", "100", "--json"]);
        let prompts: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let sum = |prompt: &Value| prompt["evaluation"]["evaluated"].as_u64().unwrap();
        (prompts.iter().map(sum).sum::<u64>() == evaluated(address)).then_some(prompts)
    })
}

/// How the user's message of a prompt begins, and who sent it.
fn title(prompt: &Value) -> [&str; 2] {
    ["words", "agent"].map(|what| {
        let title = &prompt["evaluation"]["title"];
        title[what].as_str().unwrap_or_default()
    })
}

/// Runs an agent of npm once for each of these words, and explains all prompts that it sent. `None`: it is not there.
fn played(home: &Home, agent: &str, turns: &[&str]) -> Option<Vec<Value>> {
    let programs = match script("node-agents", &[]) {
        Ok(programs) => programs,
        Err(why) => {
            skip(why.why_skipped());
            return None;
        }
    };
    let server = for_agents(home);
    let address = server.ready();
    for words in turns {
        runs(home, &server, agent, &programs, words);
    }
    Some(explained(home, address))
}

/// Two turns of a session of opencode: the second goes on where the first has ended.
#[test]
fn opencode_runs_by_its_line_and_its_second_turn_reuses_the_first() {
    let home = or_return!(Home::of(test_name!()));
    let turns = ["run 'What is tea?'", "run --continue 'What is salt?'"];
    let prompts = or_return!(played(&home, "opencode", &turns));
    let asked = |question: &str| {
        let is_it = |prompt: &&Value| title(prompt)[0].contains(question);
        prompts.iter().filter(is_it).collect::<Vec<_>>()
    };
    let count = |prompt: &Value, what: &str| prompt["evaluation"][what].as_u64().unwrap();
    // A title for the session, and the prompt.
    assert_eq!(asked("What is tea?").len(), 2, "{prompts:?}");
    let [second] = asked("What is salt?")[..] else {
        panic!("{prompts:?}");
    };
    assert!(count(second, "evaluated") < 200, "{prompts:?}");
    assert!(count(second, "reused") > 5000, "{prompts:?}");
    assert!(title(second)[1].starts_with("opencode/"), "{second}");
}

/// Two sessions of Claude Code: with the variable of the printed line, the second begins as the first did.
#[test]
fn claude_code_runs_by_its_line_and_its_second_session_reuses_the_first() {
    let home = or_return!(Home::of(test_name!()));
    // Without tools, as these are most of its prompt, and this must not take long.
    let turns = [
        "--tools '' -p 'What is tea?'",
        "--tools '' -p 'What is salt?'",
    ];
    let prompts = or_return!(played(&home, "Claude Code", &turns));
    let asks = |question: &str| {
        let is_it = |prompt: &&Value| title(prompt)[0].starts_with(question);
        let found = prompts.iter().find(is_it);
        found.unwrap_or_else(|| panic!("{question}: {prompts:?}"))
    };
    let count = |question: &str, what: &str| asks(question)["evaluation"][what].as_u64().unwrap();
    assert!(count("What is tea?", "evaluated") > 1000, "{prompts:?}");
    assert!(count("What is salt?", "evaluated") < 200, "{prompts:?}");
    assert!(count("What is salt?", "reused") > 1000, "{prompts:?}");
    let [_, agent] = title(asks("What is salt?"));
    assert!(agent.starts_with("claude-cli/"), "{agent}");
}

/// Two turns of a session, in two processes, of agents that node runs: the second goes on where the first has ended.
#[test]
fn continue_and_pi_run_and_their_second_turns_reuse_the_first() {
    let home = or_return!(Home::of(test_name!()));
    let programs = match script("node-agents", &["js"]) {
        Ok(programs) => programs,
        Err(why) => return skip(why.why_skipped()),
    };
    let server = for_agents(&home);
    let address = server.ready();
    let turns = [
        "-p 'What is tea?' </dev/null",
        "--resume -p 'What is salt?' </dev/null",
    ];
    for words in turns {
        runs(&home, &server, "Continue", &programs, words);
    }
    // No line is printed for pi: it has no setting for that but a file in the user's home.
    let pi = models_of_pi(address);
    let settings = home.path().join(".pi/agent");
    fs::create_dir_all(&settings).unwrap();
    fs::write(settings.join("models.json"), pi.to_string()).unwrap();
    for words in ["-p 'What is tea?'", "-c -p 'What is salt?'"] {
        let line = format!("pi --provider local --model local {words} </dev/null");
        runs_line(&home, &programs, &line);
    }
    let prompts = explained(&home, address);
    let [first, second, third, fourth] = &prompts[..] else {
        panic!("{prompts:?}");
    };
    let count = |prompt: &Value, what: &str| prompt["evaluation"][what].as_u64().unwrap();
    for (one, next) in [(first, second), (third, fourth)] {
        assert_eq!(title(one)[0], "What is tea?", "{prompts:?}");
        assert_eq!(title(next)[0], "What is salt?", "{prompts:?}");
        assert!(count(one, "prompt_tokens") > 1000, "{prompts:?}");
        assert!(count(next, "evaluated") < 100, "{prompts:?}");
    }
}

/// What pi is told of the server.
fn models_of_pi(address: SocketAddr) -> Value {
    json!({"providers": {"local": {
        "baseUrl": format!("http://{address}/v1"), "api": "openai-completions", "apiKey": "none",
        "models": [{"id": "local"}],
    }}})
}

/// Two turns of a session of Codex, in two processes: the second goes on where the first has ended.
#[test]
fn codex_runs_by_its_line_and_its_second_turn_reuses_the_first() {
    let home = or_return!(Home::of(test_name!()));
    let turns = [
        "exec --skip-git-repo-check 'What is tea?' </dev/null",
        "exec resume --skip-git-repo-check --last 'What is salt?' </dev/null",
    ];
    let prompts = or_return!(played(&home, "Codex", &turns));
    let [first, second] = &prompts[..] else {
        panic!("{prompts:?}");
    };
    let count = |prompt: &Value, what: &str| prompt["evaluation"][what].as_u64().unwrap();
    assert!(title(first)[0].starts_with("What is tea?"), "{prompts:?}");
    assert!(count(first, "evaluated") > 5000, "{prompts:?}");
    assert!(title(second)[0].starts_with("What is salt?"), "{prompts:?}");
    assert!(count(second, "evaluated") < 200, "{prompts:?}");
    assert!(count(second, "reused") > 5000, "{prompts:?}");
    assert!(title(second)[1].starts_with("codex_exec/"), "{second}");
}
