//! What points each coding agent at the server: printed when the model is loaded, so that it is the last thing on
//! the screen. A process of its own waits for that, as the command itself is the server by then.

use std::ffi::OsString;
use std::io;
use std::process::{Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::Duration;

use clap::Args;
use contextpilot_client::{Health, LlamaServer};
use contextpilot_server_flags::ServerFlags;
use rustix::process::{Pid, test_kill_process};

use crate::companion::up::sockets;
use crate::say::say;
use crate::variables::of_process;

/// The command that runs in this process. Users have no use for it.
pub(in crate::companion) const COMMAND: &str = "lines-of-agent";

/// How often to look for the server.
const LOOK: Duration = Duration::from_millis(200);

/// Say how to point agents at the server of agent
///
/// `contextpilot-llama agent` starts this. Users have no use for it.
#[derive(Args)]
#[command(after_help = "Example:
  contextpilot-llama agent -m model.gguf")]
pub(in crate::companion) struct AgentLinesOptions {
    /// The process that becomes the server
    server: i32,
    /// The server was asked to speak TLS
    #[arg(long)]
    tls: bool,
    /// The server asks for a key
    #[arg(long)]
    key: bool,
    /// Wait here, not in another process
    #[arg(long)]
    wait: bool,
}

/// Starts the process, as no child of this one: llama-server never waits for a child, which would stay as a zombie.
pub(super) fn start(flags: &ServerFlags, arguments: &[OsString]) -> io::Result<()> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(COMMAND).arg(std::process::id().to_string());
    if flags.tls() {
        command.arg("--tls");
    }
    let is_key = |argument: &OsString| argument == "--api-key" || argument == "--api-key-file";
    if arguments.iter().any(is_key) || of_process("LLAMA_API_KEY").is_some() {
        command.arg("--key");
    }
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.status().map(drop)
}

pub(in crate::companion) fn run(options: &AgentLinesOptions) -> Result<ExitCode, String> {
    if options.wait {
        wait(options);
        return Ok(ExitCode::SUCCESS);
    }
    let this = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut command = Command::new(this);
    command.args(std::env::args_os().skip(1)).arg("--wait");
    command.spawn().map_err(|e| e.to_string())?;
    Ok(ExitCode::SUCCESS)
}

/// Waits until the server is ready, or has ended.
fn wait(options: &AgentLinesOptions) {
    let Some(process) = Pid::from_raw(options.server) else {
        return;
    };
    while test_kill_process(process).is_ok() {
        let listening = sockets::listening(process, options.tls);
        if let Some(url) = sockets::of_server(&listening).filter(|url| is_ready(url)) {
            return say(text(&url, options.key, is_router(&url)));
        }
        sleep(LOOK);
    }
}

fn server(url: &str) -> contextpilot_client::Result<LlamaServer> {
    LlamaServer::new(url).map(|server| server.with_timeouts(LOOK * 10, LOOK * 10))
}

fn is_ready(url: &str) -> bool {
    let health = server(url).and_then(|server| server.health());
    matches!(health, Ok(Health::Ready))
}

/// Whether it has no model of its own, as none was named. If it says that only to who has its key, it is taken for
/// one with a model.
fn is_router(url: &str) -> bool {
    let props = server(url).and_then(|server| server.props());
    props.is_ok_and(|props| props.total_slots == 0)
}

/// A line for each agent. What it was seen to do with it is in docs/agents.md.
fn text(url: &str, needs_key: bool, is_router: bool) -> String {
    let key = if needs_key { "KEY" } else { "none" };
    let claude = format!(
        "CLAUDE_CODE_ATTRIBUTION_HEADER=0 ANTHROPIC_BASE_URL={url} ANTHROPIC_AUTH_TOKEN={key} \
         ANTHROPIC_MODEL=local claude"
    );
    let opencode = format!(
        r#"OPENCODE_CONFIG_CONTENT='{{"model":"local/local","provider":{{"local":{{"npm":"@ai-sdk/openai-compatible","options":{{"baseURL":"{url}/v1","apiKey":"{key}"}},"models":{{"local":{{}}}}}}}}}}' opencode"#
    );
    let codex = format!(
        "LOCAL_KEY={key} codex -m local -c model_provider=local -c 'model_providers.local={{name=\"local\", \
         base_url=\"{url}/v1\", wire_api=\"responses\", env_key=\"LOCAL_KEY\"}}'"
    );
    let cline = format!("cline auth -p openai -k {key} -m local -b {url}/v1 && cline");
    let cn = format!(
        "printf 'name: local\\nversion: 1.0.0\\nmodels: [{{name: local, provider: openai, model: local, \
         apiBase: {url}/v1, apiKey: {key}}}]\\n' > local.yaml && cn --config local.yaml"
    );
    let aider = format!(
        "aider --model openai/local --openai-api-base {url}/v1 --openai-api-key {key}   \
         (files only to look at: --read FILE)"
    );
    let mut text = format!("Ready at {url}. To point a coding agent at it:\n");
    for (name, line) in [
        ("Claude Code", claude),
        ("opencode", opencode),
        ("Codex", codex),
        ("Cline", cline),
        ("Continue", cn),
        ("aider", aider),
    ] {
        text += &format!("  {name}\n    {line}\n");
    }
    if is_router {
        // A server with one model takes any name. A router knows its models' names only.
        text += "  No model is named, so this is a router: end it and name one with -m, or say one of its names \
                 (/v1/models) in place of local.\n";
    }
    if needs_key {
        text += "  KEY is the one that the server was given (--api-key).\n";
    }
    text + "In another terminal: contextpilot-llama top, why --last, advise"
}
