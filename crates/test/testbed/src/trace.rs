//! A trace: a sequence of requests that can be replayed.

use serde_json::{Value, json};

use std::time::{Duration, Instant};

use crate::{Completion, Connection, Error, Request, Response, Result, Server};

/// How long a request may take to get into the queue.
const QUEUED: Duration = Duration::from_secs(60);
/// How long a server may take to fall asleep, beside what it is told.
const ASLEEP: Duration = Duration::from_secs(60);

/// One step of a trace.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// A request that is answered completely.
    Ask(Request),
    /// A request whose client goes away: after that many chunks of a streamed answer, or with 0 right
    /// after sending. How far the server gets until then depends on the machine.
    Abandon(Request, usize),
    /// A streamed request that goes on during the next steps. This step ends when its answer has
    /// begun.
    Begin(Request),
    /// A request that names a busy slot and has to wait for it. This step ends when the request waits.
    /// Needs `--metrics`.
    Queue(Request),
    /// The clients of all streamed requests that go on go away, and the waiting requests are answered.
    Release,
    /// A slot is erased.
    Erase(u32),
    /// A slot is saved to a file of that name.
    Save(u32, String),
    /// A slot is restored from a file of that name.
    Restore(u32, String),
    /// The adapters of requests that name none (`POST /lora-adapters`): a list of `{id, scale}`.
    Adapters(Value),
    /// No client asks anything until the server sleeps. Needs `--sleep-idle-seconds`.
    Sleep,
}

impl Step {
    /// The request, if it is one.
    pub fn request(&self) -> Option<&Request> {
        match self {
            Self::Ask(request)
            | Self::Abandon(request, _)
            | Self::Begin(request)
            | Self::Queue(request) => Some(request),
            _ => None,
        }
    }

    /// Runs this step. `open`: the requests that go on.
    fn run(&self, server: &Server, open: &mut Open) -> Result<Response> {
        let slot = |slot: &u32, action: &str, file: Option<&String>| {
            let body = file.map_or(json!({}), |file| json!({"filename": file}));
            server.post(&format!("/slots/{slot}?action={action}"), &body)
        };
        let response = match self {
            Self::Ask(request) => server.send(request)?,
            Self::Abandon(request, chunks) => abandon(server, request, *chunks)?,
            Self::Begin(request) => {
                let mut connection = send(server, request)?;
                connection.head()?;
                open.begun.push(connection);
                nothing()
            }
            Self::Queue(request) => {
                let before = deferred(server)?;
                open.queued.push(send(server, request)?);
                wait_deferred(server, before + 1)?;
                nothing()
            }
            Self::Release => {
                open.begun.clear();
                for mut connection in open.queued.drain(..) {
                    connection.response()?;
                }
                nothing()
            }
            Self::Erase(id) => slot(id, "erase", None)?,
            Self::Save(id, file) => slot(id, "save", Some(file))?,
            Self::Restore(id, file) => slot(id, "restore", Some(file))?,
            Self::Adapters(list) => server.post("/lora-adapters", list)?,
            Self::Sleep => {
                wait_asleep(server)?;
                return Ok(nothing());
            }
        };
        if self.request().is_none() && ![0, 200].contains(&response.status) {
            return Err(Error::new(format!("{self:?}: {}", response.text())));
        }
        // One request at a time, or the engine's choice of slots would depend on timing.
        if open.begun.is_empty() && open.queued.is_empty() {
            server.wait_idle()?;
        }
        Ok(response)
    }
}

/// The connections of requests that go on.
#[derive(Default)]
struct Open {
    begun: Vec<Connection>,
    queued: Vec<Connection>,
}

fn send(server: &Server, request: &Request) -> Result<Connection> {
    let mut connection = server.connect()?;
    let body = request.wire_body();
    connection.write(&Connection::request_bytes(
        "POST",
        request.path(),
        body.as_bytes(),
    ))?;
    Ok(connection)
}

/// The response of a step without an answer.
fn nothing() -> Response {
    Response {
        status: 0,
        headers: Vec::new(),
        body: Vec::new(),
    }
}

/// How many requests wait for a slot.
fn deferred(server: &Server) -> Result<u32> {
    let metrics = server.get("/metrics")?.text();
    let mut lines = metrics.lines();
    let line = lines.find_map(|line| line.strip_prefix("llamacpp:requests_deferred "));
    let count = line.and_then(|count| count.trim().parse().ok());
    count.ok_or_else(|| Error::new(format!("/metrics: {metrics}")))
}

/// Asking for its properties does not wake a server.
fn wait_asleep(server: &Server) -> Result<()> {
    let deadline = Instant::now() + ASLEEP;
    loop {
        let said = server.get("/props")?.json()?;
        if said["is_sleeping"] == true {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(Error::new(format!("the server does not sleep: {said}")));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn wait_deferred(server: &Server, count: u32) -> Result<()> {
    let deadline = Instant::now() + QUEUED;
    while deferred(server)? < count {
        if Instant::now() > deadline {
            return Err(Error::new("the request does not wait for a slot"));
        }
    }
    Ok(())
}

/// The part of the answer that was read before the client went away. Status 0 if nothing was read.
fn abandon(server: &Server, request: &Request, chunks: usize) -> Result<Response> {
    let mut connection = send(server, request)?;
    if chunks == 0 {
        return Ok(nothing());
    }
    let mut response = connection.head()?;
    for _ in 0..chunks {
        match connection.part(&response)? {
            Some(part) => response.body.extend_from_slice(&part),
            None => break,
        }
    }
    Ok(response)
}

/// The outcome of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The id of the request, if it had one.
    pub id: Option<String>,
    /// The answer. For an abandoned request, the part that was read.
    pub response: Response,
    /// The completions. None for refused and abandoned requests, and for steps without a request.
    pub completions: Vec<Completion>,
    /// The completions are several answers to one prompt (`n`). Each has the figures of the first one, and the others
    /// were copied from that.
    pub copied: bool,
}

impl Outcome {
    /// The completions for which a prompt was evaluated.
    pub fn evaluated(&self) -> &[Completion] {
        if self.copied {
            &self.completions[..self.completions.len().min(1)]
        } else {
            &self.completions
        }
    }

    /// The answer without what differs between runs: times, and the random ids of the OpenAI-like
    /// endpoints. All the rest must be equal with and without the hook.
    pub fn timeless(&self) -> String {
        let text = self.response.text();
        let clean = |json: &str| match serde_json::from_str::<Value>(json) {
            Ok(mut value) => {
                forget_times(&mut value);
                value.to_string()
            }
            Err(_) => json.to_owned(),
        };
        if text.starts_with("data: ") {
            let lines = text.lines().map(|line| match line.strip_prefix("data: ") {
                Some(event) => clean(event),
                None => line.to_owned(),
            });
            return lines.collect::<Vec<_>>().join("\n");
        }
        clean(&text)
    }
}

fn forget_times(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, value| {
                let random = |id: &str| {
                    ["cmpl-", "resp_", "msg_"]
                        .iter()
                        .any(|kind| id.contains(kind))
                };
                let random = name == "id" && value.as_str().is_some_and(random);
                let times = ["timings", "created", "created_at", "completed_at"];
                !random && !times.contains(&name.as_str())
            });
            fields.values_mut().for_each(forget_times);
        }
        Value::Array(items) => items.iter_mut().for_each(forget_times),
        _ => {}
    }
}

/// Steps, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// The steps.
    pub steps: Vec<Step>,
}

impl Trace {
    /// A trace without steps.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a request.
    pub fn ask(self, request: Request) -> Self {
        self.then(Step::Ask(request))
    }

    /// Appends a step.
    pub fn then(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }

    /// Whether requests go on after this step, until they are released.
    pub fn leaves_open(&self, step: usize) -> bool {
        let until = self.steps.iter().take(step + 1).rev();
        let mut since = until.take_while(|step| !matches!(step, Step::Release));
        since.any(|step| matches!(step, Step::Begin(_) | Step::Queue(_)))
    }

    /// The first `steps` steps, to ask for the truth at an earlier moment.
    pub fn upto(&self, steps: usize) -> Self {
        Self {
            steps: self.steps[..steps.min(self.steps.len())].to_vec(),
        }
    }

    /// The ids of its requests, in order of first appearance.
    pub fn ids(&self) -> Vec<String> {
        let mut ids: Vec<String> = Vec::new();
        for id in self.requests().filter_map(Request::request_id) {
            if !ids.iter().any(|known| known == id) {
                ids.push(id.to_owned());
            }
        }
        ids
    }

    /// The adapters that the first `steps` steps last set for requests that name none.
    pub(crate) fn adapters_after(&self, steps: usize) -> Option<&Value> {
        let mut said = self.steps.iter().take(steps).rev();
        said.find_map(|step| match step {
            Step::Adapters(list) => Some(list),
            _ => None,
        })
    }

    /// Its requests, in order.
    pub fn requests(&self) -> impl Iterator<Item = &Request> {
        self.steps.iter().filter_map(Step::request)
    }

    /// Runs the steps one after the other. After each step the server is idle, unless a request goes
    /// on.
    ///
    /// # Errors
    /// Those of connections and of slot actions. A refused request is an outcome, not an error.
    pub fn run(&self, server: &Server) -> Result<Vec<Outcome>> {
        self.run_watched(server, |_| Ok(()))
    }

    /// Like [`Trace::run`]. Passes the outcome of each step to `watch` before the next step begins.
    ///
    /// # Errors
    /// As [`Trace::run`], and those of `watch`.
    pub fn run_watched(
        &self,
        server: &Server,
        mut watch: impl FnMut(&Outcome) -> Result<()>,
    ) -> Result<Vec<Outcome>> {
        let mut open = Open::default();
        let run = |(number, step): (usize, &Step)| {
            let response = step
                .run(server, &mut open)
                .map_err(|error| Error::new(format!("step {number}: {error}")))?;
            let completions = match step {
                Step::Ask(_) if response.status == 200 => Completion::all(&response)?,
                _ => Vec::new(),
            };
            let id = step.request().and_then(Request::request_id);
            let answers = step
                .request()
                .and_then(|request| request.body()["n"].as_u64());
            let outcome = Outcome {
                id: id.map(str::to_owned),
                response,
                completions,
                copied: answers > Some(1),
            };
            watch(&outcome)?;
            Ok(outcome)
        };
        self.steps.iter().enumerate().map(run).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(body: &str) -> Outcome {
        Outcome {
            id: None,
            response: Response {
                status: 200,
                headers: Vec::new(),
                body: body.into(),
            },
            completions: Vec::new(),
            copied: false,
        }
    }

    #[test]
    fn a_timeless_answer_lacks_times_and_random_ids_and_nothing_else() {
        let body = |id: &str, n: u32| {
            format!(
                r#"{{"id":"chatcmpl-{id}","created":{n},"timings":{{"prompt_ms":{n}}},"text":"a"}}"#
            )
        };
        let (first, second) = (body("x", 1), body("y", 2));
        assert_eq!(outcome(&first).timeless(), r#"{"text":"a"}"#);
        assert_eq!(outcome(&first).timeless(), outcome(&second).timeless());
        let stream = |body: &str| outcome(&format!("data: {body}\n\ndata: [DONE]\n\n")).timeless();
        assert_eq!(stream(&first), stream(&second));
        assert_ne!(stream(&first), stream(r#"{"text":"b"}"#));
        assert_eq!(outcome(r#"{"id":7}"#).timeless(), r#"{"id":7}"#);
    }

    #[test]
    fn ids_are_listed_once_and_in_order() {
        let trace = Trace::new()
            .ask(Request::completion("x").id("b"))
            .then(Step::Erase(0))
            .ask(Request::completion("y"))
            .ask(Request::completion("z").id("a"))
            .ask(Request::completion("x").id("b"));
        assert_eq!(trace.ids(), ["b", "a"]);
        assert_eq!(trace.upto(2).ids(), ["b"]);
    }
}
