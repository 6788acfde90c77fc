//! Sends traffic through kvprof 0.2 to a server with our hook, and compares what both say about why
//! prompts were evaluated with the truth. Writes `docs/kvprof.md`.
//!
//! Run it by `scripts/kvprof`, which builds the commands and fetches kvprof.

use std::fmt::Write as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;

use contextpilot_testbed::{
    Arch, Completion, Connection, Error, Model, Random, Request, Result, Server, try_until,
};
use serde_json::Value;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // A command for people. It has no other error message.
            eprintln!("[ContextPilot] The comparison stopped: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let mut arguments = std::env::args().skip(1).map(PathBuf::from);
    let mut next = || {
        let next = arguments.next();
        next.ok_or_else(|| Error::new("run scripts/kvprof"))
    };
    let (launcher, python, page) = (next()?, next()?, next()?);
    let whole = conversation(&launcher, &python)?;
    let window = window(&launcher, &python)?;
    let head = "| request | engine: reused + evaluated | true | kvprof 0.2 | contextpilot-llama why |\n\
                |---|--:|---|---|---|\n";
    let mut table = head.to_owned();
    for row in whole.rows.iter().chain(&window.rows) {
        table += row;
    }
    let text = TEXT
        .replace("{table}", table.trim_end())
        .replace("{prompts}", &whole.prompt_bytes.to_string())
        .replace("{traces}", &whole.trace_bytes.to_string())
        .replace("{doctor}", whole.doctor.trim_end());
    std::fs::write(page, text)?;
    Ok(())
}

const TEXT: &str = include_str!("kvprof.md");

/// kvprof's recording proxy.
struct Tap {
    process: Child,
    address: SocketAddr,
    folder: tempfile::TempDir,
}

impl Drop for Tap {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Tap {
    fn start(python: &Path, server: &Server) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        // The listener is closed at once, so the port is free.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let mut command = Command::new(python);
        command.args(["-m", "kvprof", "tap", "--quiet", "--listen"]);
        command.arg(address.to_string());
        let process = with_upstream(&mut command, server, folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let tap = Self {
            process,
            address,
            folder,
        };
        try_until("kvprof listens", || {
            Ok(TcpStream::connect(address).is_ok().then_some(()))
        })?;
        Ok(tap)
    }

    fn send(&self, request: &Request) -> Result<Completion> {
        let mut connection = Connection::open(self.address)?;
        let body = request.wire_body();
        let answer = connection.exchange("POST", request.path(), body.as_bytes())?;
        Completion::first(&answer)
    }

    /// What `kvprof analyze` says about each recorded request, and what `kvprof doctor` says.
    fn said(&self, python: &Path, server: &Server, log: &Path) -> Result<(Vec<Value>, String)> {
        let run = |arguments: &[&str], traces: bool| -> Result<String> {
            let mut command = Command::new(python);
            command.args(["-m", "kvprof"]).args(arguments);
            command.arg("--server-log").arg(log);
            let url = format!("http://{}", server.address());
            command.args(["--upstream", &url]);
            if traces {
                command.arg("--trace-dir").arg(self.folder.path());
            }
            let output = command.stdin(Stdio::null()).output()?;
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        };
        let said = run(&["analyze", "--json"], true)?;
        let all: Value = serde_json::from_str(&said)
            .map_err(|error| Error::new(format!("kvprof analyze: {error}: {said}")))?;
        let all = all.as_array().cloned().unwrap_or_default();
        let doctor = run(&["doctor"], false)?;
        let url = server.address().to_string();
        Ok((all, doctor.replace(&url, "127.0.0.1:8080")))
    }
}

fn with_upstream<'a>(command: &'a mut Command, server: &Server, traces: &Path) -> &'a mut Command {
    let url = format!("http://{}", server.address());
    command
        .args(["--upstream", &url])
        .arg("--trace-dir")
        .arg(traces)
}

/// One request, and the truth about it.
struct Asked {
    id: &'static str,
    what: &'static str,
    /// Why its tokens were evaluated, known from how the request was made.
    truth: &'static str,
    reused: usize,
    evaluated: usize,
    /// Its number among kvprof's traces; `None`: it is no chat, so kvprof does not record it.
    trace: Option<usize>,
}

/// The table rows of one server, and figures about its traffic.
struct Compared {
    rows: Vec<String>,
    prompt_bytes: usize,
    trace_bytes: u64,
    doctor: String,
}

/// A server, kvprof in front of it, and the requests that were sent.
struct Traffic {
    server: Server,
    control: SocketAddr,
    log: PathBuf,
    tap: Tap,
    python: PathBuf,
    asked: Vec<Asked>,
    traces: usize,
    prompt_bytes: usize,
}

impl Traffic {
    fn start(launcher: &Path, python: &Path, arch: Arch, arguments: &[&str]) -> Result<Self> {
        let logs = tempfile::tempdir()?.keep();
        let log = logs.join("server.log");
        let server = Server::builder()
            .model(&Model::tiny(arch))
            .bare_slots(2)
            .args(["--alias", "tiny"])
            .args(arguments.iter().copied())
            .args(["--log-file".as_ref(), log.as_os_str()])
            .launcher(launcher)
            .env("CONTEXTPILOT_LISTEN", "127.0.0.1:0")
            .spawn()?;
        let control = server.await_control()?;
        let tap = Tap::start(python, &server)?;
        Ok(Self {
            server,
            control,
            log,
            tap,
            python: python.to_owned(),
            asked: Vec::new(),
            traces: 0,
            prompt_bytes: 0,
        })
    }

    fn ask(
        &mut self,
        id: &'static str,
        what: &'static str,
        truth: &'static str,
        request: Request,
    ) -> Result<String> {
        let request = request.id(id);
        let answer = self.tap.send(&request)?;
        self.server.wait_idle()?;
        self.note(id, what, truth, &request, &answer);
        Ok(answer.content)
    }

    fn note(
        &mut self,
        id: &'static str,
        what: &'static str,
        truth: &'static str,
        request: &Request,
        answer: &Completion,
    ) {
        let recorded = request.path() == "/v1/chat/completions";
        self.asked.push(Asked {
            id,
            what,
            truth,
            reused: answer.cache_n,
            evaluated: answer.prompt_n,
            trace: recorded.then_some(self.traces),
        });
        if recorded {
            self.traces += 1;
            self.prompt_bytes += request.body()["messages"].to_string().len();
        }
    }

    fn compare(&self) -> Result<Compared> {
        let (said, doctor) = self.tap.said(&self.python, &self.server, &self.log)?;
        let mut rows = Vec::new();
        for asked in &self.asked {
            let theirs = match asked.trace {
                None => {
                    "not recorded: it records `/v1/messages` and `/v1/chat/completions`".to_owned()
                }
                Some(trace) => of_kvprof(said.get(trace).unwrap_or(&Value::Null)),
            };
            let ours = self.ours(asked)?;
            rows.push(format!(
                "| `{}`: {} | {} + {} | {} | {theirs} | {ours} |\n",
                asked.id, asked.what, asked.reused, asked.evaluated, asked.truth
            ));
        }
        if let Some(folder) = self.log.parent() {
            let _ = std::fs::remove_dir_all(folder);
        }
        Ok(Compared {
            rows,
            prompt_bytes: self.prompt_bytes,
            trace_bytes: size(self.tap.folder.path())?,
            doctor,
        })
    }

    /// What our hook says about a request, in the words of `contextpilot-llama why`.
    fn ours(&self, asked: &Asked) -> Result<String> {
        let target = format!("/requests/{}", asked.id);
        let evaluation = try_until("the request is evaluated", || {
            let mut connection = Connection::open(self.control)?;
            let state = connection.exchange("GET", &target, b"")?.json()?;
            Ok(Some(state["evaluation"].clone()).filter(|known| !known.is_null()))
        })?;
        let sum = (
            evaluation["reused"].as_u64(),
            evaluation["evaluated"].as_u64(),
        );
        if sum != (Some(asked.reused as u64), Some(asked.evaluated as u64)) {
            return Err(Error::new(format!("{}: {evaluation}", asked.id)));
        }
        Ok(of_ours(&evaluation))
    }
}

/// kvprof's line, without times, which differ from run to run.
fn of_kvprof(said: &Value) -> String {
    let line = said["summary"].as_str().unwrap_or("nothing");
    let line = line.split_once(' ').map_or(line, |(_, rest)| rest);
    let prompt = line.split(" -> ").next().unwrap_or_default();
    let words: Vec<&str> = prompt.split_whitespace().collect();
    let slot = match (said["slot"].as_i64(), said["select"].as_str()) {
        (Some(slot), Some(by)) => format!(", slot {slot} by {by}"),
        (Some(slot), None) => format!(", slot {slot}"),
        _ => ", no line of the log found for it".to_owned(),
    };
    let others = said["concurrent_with"].as_array().map_or(0, Vec::len);
    let slot = match others {
        0 => slot,
        _ => format!("{slot}, concurrent with {others}"),
    };
    let prefilled = said["prefilled"].as_u64();
    let prefilled = prefilled.map_or("?".to_owned(), |tokens| tokens.to_string());
    format!(
        "{}; {prefilled} prefilled{slot}",
        words.join(" ").replace('|', "\\|")
    )
}

fn of_ours(evaluation: &Value) -> String {
    let mut text = String::new();
    let mut causes = Vec::new();
    let mut gather = |name: &str, tokens: &Value| {
        if let Some(tokens @ 1..) = tokens.as_u64() {
            causes.push((tokens, name.to_owned()));
        }
    };
    for (cause, tokens) in evaluation["causes"].as_object().into_iter().flatten() {
        match tokens.as_object() {
            Some(kinds) => kinds
                .iter()
                .for_each(|(kind, tokens)| gather(&format!("elsewhere: {kind}"), tokens)),
            None => gather(cause, tokens),
        }
    }
    causes.sort_by_key(|(tokens, _)| std::cmp::Reverse(*tokens));
    let causes: Vec<String> = causes
        .into_iter()
        .map(|(tokens, name)| format!("{tokens} {name}"))
        .collect();
    text += &causes.join(", ");
    let diverged = &evaluation["diverged"];
    if !diverged.is_null() {
        let _ = write!(
            text,
            "; left {} at {}: {} for {}, {} behind the same",
            diverged["request"],
            diverged["at"],
            diverged["inserted"],
            diverged["deleted"],
            diverged["same_after"]
        );
    }
    let lost = &evaluation["lost"];
    if !lost.is_null() {
        let _ = write!(text, "; lost: {}, by {}", lost["reason"], lost["by"]);
    }
    text.replace('"', "`")
}

fn size(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        bytes += match entry.file_type()?.is_dir() {
            true => size(&entry.path())?,
            false => entry.metadata()?.len(),
        };
    }
    Ok(bytes)
}

const RULES: &str = "Today is Monday. You answer questions about tea in one sentence, and you say so if \
    you do not know. Green tea is not fermented; black tea is. White tea is dried only. Oolong is in \
    between. Water for green tea has 70 to 80 degrees, for black tea 95. The leaves stand for two minutes \
    and may be used again. Tea was drunk in China before it was drunk in Japan.";

type Messages = Vec<(&'static str, String)>;

fn chat(messages: &Messages) -> Request {
    let messages: Vec<(&str, &str)> = messages
        .iter()
        .map(|(role, text)| (*role, &**text))
        .collect();
    Request::chat(&messages)
}

/// A conversation about tea, with other prompts in between, on a server with two slots.
fn conversation(launcher: &Path, python: &Path) -> Result<Compared> {
    let mut traffic = Traffic::start(launcher, python, Arch::Llama, &[])?;
    let mut tea: Messages = vec![
        ("system", RULES.to_owned()),
        ("user", "Which is strongest?".to_owned()),
    ];
    let answer = traffic.ask("tea-1", "the first of all", "new", chat(&tea))?;
    tea.push(("assistant", answer));
    tea.push(("user", "And which is oldest?".to_owned()));
    traffic.ask(
        "tea-2",
        "its next turn",
        "only the new turn was evaluated",
        chat(&tea),
    )?;
    let mut sunday = tea.clone();
    sunday[0].1 = RULES.replace("Monday", "Sunday");
    let truth = "2 tokens of the system prompt differ, all behind them had to be evaluated";
    traffic.ask(
        "sunday",
        "another day in the system prompt",
        truth,
        chat(&sunday),
    )?;
    let mut longer = tea.clone();
    longer[0].1 = RULES.replace("Oolong", "Yellow tea is rare. Oolong");
    let truth = "20 tokens were inserted in the middle";
    traffic.ask(
        "inserted",
        "a sentence more in the system prompt",
        truth,
        chat(&longer),
    )?;
    for (id, seed) in [
        "oil", "ore", "oak", "oat", "owl", "orb", "oar", "odd", "old",
    ]
    .into_iter()
    .zip(1..)
    {
        let what = if seed == 1 {
            "another prompt"
        } else {
            "another"
        };
        let text = format!("{id}: {}", Random(seed).letters(280));
        traffic.ask(id, what, "new", chat(&vec![("user", text)]))?;
    }
    let truth = "was cached, and lost to another prompt since";
    traffic.ask(
        "tea-3",
        "the conversation of tea-2 again, nine prompts later",
        truth,
        chat(&tea),
    )?;
    let slot = slot_of(&traffic)?;
    let truth = "cached in the other slot, which the request did not name";
    traffic.ask(
        "pinned",
        "the same, with the other slot in `id_slot`",
        truth,
        chat(&tea).slot(1 - slot),
    )?;
    let truth = "the request did not want the cache";
    let uncached = chat(&tea).with("cache_prompt", false);
    traffic.ask(
        "uncached",
        "the same, with `\"cache_prompt\": false`",
        truth,
        uncached,
    )?;
    traffic.busy()?;
    let plain = Request::completion("A plain completion, which is no chat.");
    traffic.ask("plain-1", "`/completion`", "new", plain.clone())?;
    traffic.ask("plain-2", "the same", "reused to the last token", plain)?;
    traffic.compare()
}

/// The slot of the last prompt.
fn slot_of(traffic: &Traffic) -> Result<u32> {
    let mut connection = Connection::open(traffic.control)?;
    let last = connection
        .exchange("GET", "/requests/last?n=1", b"")?
        .json()?;
    let slot = last["requests"][0]["slot"].as_u64();
    slot.and_then(|slot| u32::try_from(slot).ok())
        .ok_or_else(|| Error::new("no slot is known"))
}

impl Traffic {
    /// Sends a prompt while the slot that holds its beginning is busy.
    fn busy(&mut self) -> Result<()> {
        let one: Messages = vec![
            ("system", RULES.replace("Monday", "Friday")),
            ("user", "Tell me all.".to_owned()),
        ];
        let mut two = one.clone();
        two[1].1 = "Tell me less.".to_owned();
        let (first, second) = (chat(&one).predict(600).id("long"), chat(&two).id("busy"));
        let at = self.tap.address;
        let control = self.control;
        let (long, busy) = thread::scope(|scope| -> Result<_> {
            let long = scope.spawn(|| self.tap.send(&first));
            try_until("the server generates", || {
                let mut connection = Connection::open(control)?;
                let state = connection.exchange("GET", "/requests/long", b"")?.json()?;
                Ok((state["state"] == "cached").then_some(()))
            })?;
            let mut connection = Connection::open(at)?;
            let body = second.wire_body();
            let answer = connection.exchange("POST", second.path(), body.as_bytes())?;
            let busy = Completion::first(&answer)?;
            let long = long.join().map_err(|_| Error::new("a client panicked"))??;
            Ok((long, busy))
        })?;
        self.server.wait_idle()?;
        self.note("long", "a long answer", "new", &first, &long);
        let truth = "its beginning was cached, in a slot that was at work";
        self.note(
            "busy",
            "another question to the same system prompt meanwhile",
            truth,
            &second,
            &busy,
        );
        Ok(())
    }
}

/// A model with a sliding window that makes no checkpoints.
fn window(launcher: &Path, python: &Path) -> Result<Compared> {
    let arguments = ["--ctx-checkpoints", "0"];
    let mut traffic = Traffic::start(launcher, python, Arch::Gemma2, &arguments)?;
    let question = "Which is strongest?".to_owned();
    let one: Messages = vec![("system", RULES.repeat(3)), ("user", question)];
    let what = "a model with a sliding window";
    traffic.ask("window-1", what, "new", chat(&one))?;
    let mut two = one.clone();
    two[0].1 = RULES
        .repeat(3)
        .replacen("Oolong", "Yellow tea is rare. Oolong", 1);
    let slot = slot_of(&traffic)?;
    let what = "a sentence more in the system prompt, in the same slot";
    let truth = "its beginning was in the slot, which cannot go back to it";
    traffic.ask("window-2", what, truth, chat(&two).slot(slot))?;
    traffic.compare()
}
