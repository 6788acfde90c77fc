//! Runs a trace, and compares the indexer with the engine after each step.

use contextpilot_testbed::{Error, Request, Result, Server, Step};
use serde_json::json;

use crate::adapters;
use crate::bounded;
use crate::cases::Case;
use crate::indexer::{BLOCK, Belief, Indexer, next_port};
use crate::publisher::Publisher;
use crate::slots::{common_blocks, contents};
use contextpilot_testbed::try_until;

/// Runs a trace. Returns a text that says how much was compared.
pub(crate) fn run(case: &Case, indexer: &Indexer) -> Result<String> {
    let publisher = Publisher::start(&case.server, next_port(), None)?;
    let instance = publisher.events;
    indexer.register(instance, publisher.events)?;
    publisher.await_subscribers(1)?;
    let mut seen = Seen::default();
    let mut step = 0..;
    case.trace.run_watched(&publisher.server, |_| {
        let step = step.next().unwrap_or_default();
        if case.trace.leaves_open(step) {
            return Ok(());
        }
        seen.compare(
            &publisher,
            instance,
            indexer,
            case.server.keeps_any_prefix(),
        )
        .map_err(|error| Error::new(format!("after step {step}: {error}")))
    })?;
    let Seen { asked, exact, .. } = seen;
    if !exact {
        return Ok("not compared: the server does not save these slots".to_owned());
    }
    let server = &case.server;
    let comes_back_whole = server.saves_any_prefix() || !server.has_host_cache();
    if !server.keeps_any_prefix() || !comes_back_whole {
        let [right, less, more] = bounded::compare(case, &publisher, indexer, &seen)?;
        return Ok(format!(
            "{asked} beliefs; of {} prompts {right} right, {less} less, {more} more",
            right + less + more
        ));
    }
    if case.server.has_adapters() {
        let [compared, believed] = adapters::compare(case, &publisher, indexer)?;
        return Ok(format!(
            "{asked} beliefs; {compared} for adapters, {believed} of them in something"
        ));
    }
    Ok(if case.server.has_host_cache() {
        let hosts = compare_with_replays(case, &publisher, indexer)?;
        format!("{asked} beliefs, {hosts} of host memory")
    } else {
        format!("{asked} beliefs")
    })
}

/// Everything that any slot has ever held.
#[derive(Default)]
pub(crate) struct Seen {
    contents: Vec<Vec<i32>>,
    pub(crate) asked: usize,
    /// The server could always save its slots.
    pub(crate) exact: bool,
}

impl Seen {
    /// Everything that any slot has ever held.
    pub(crate) fn contents(&self) -> &[Vec<i32>] {
        &self.contents
    }

    /// Asks the indexer about everything that the slots have ever held, and waits until its answers match
    /// what they hold now. `all`: the engine can go back to any position.
    pub(crate) fn compare(
        &mut self,
        publisher: &Publisher,
        instance: u16,
        indexer: &Indexer,
        all: bool,
    ) -> Result<()> {
        let Some(now) = contents(&publisher.server)? else {
            self.exact = false;
            return Ok(());
        };
        self.exact |= self.asked == 0;
        for content in &now {
            if !content.is_empty() && !self.contents.contains(content) {
                self.contents.push(content.clone());
            }
        }
        let mut last = String::new();
        let agree = try_until("the indexer believes it", || {
            for content in &self.contents {
                let held = now.iter().map(|held| common_blocks(held, content, BLOCK));
                let truth = held.max().unwrap_or(0);
                let Belief { device, any } = indexer.believes(instance, content)?;
                // If the engine can go back to checkpoints only, fewer blocks are published.
                let right = if all {
                    device == truth
                } else {
                    device <= truth
                };
                if !right || any < device {
                    last = format!(
                        "of {} tokens it believes in {device} blocks (and {any} with host memory), \
                         the slots have {truth}",
                        content.len()
                    );
                    return Ok(None);
                }
            }
            Ok(Some(()))
        });
        agree.map_err(|error| {
            if last.is_empty() {
                error
            } else {
                let stats = publisher.stats().unwrap_or_default();
                let (events, losses) = (&stats["kv_events"], &stats["losses"]);
                Error::new(format!("{last}; {events}, {losses}"))
            }
        })?;
        self.asked += self.contents.len();
        Ok(())
    }
}

/// For each prompt that the indexer believes to be in host memory: compares that with what the engine
/// reuses after a replay of the trace. Returns the number of such prompts.
fn compare_with_replays(case: &Case, publisher: &Publisher, indexer: &Indexer) -> Result<usize> {
    let mut compared = 0;
    for request in plain_prompts(case) {
        let tokens = tokenize(&publisher.server, &request.body()["prompt"])?;
        let belief = indexer.believes(publisher.events, &tokens)?;
        if belief.any == belief.device {
            continue;
        }
        let replayed = case.server.plain().spawn()?;
        case.trace.run(&replayed)?;
        for slot in 0..replayed.slots()? {
            // With empty slots, the engine looks in host memory.
            let path = format!("/slots/{slot}?action=erase");
            replayed.post(&path, &json!({}))?;
        }
        let found = replayed.complete(request)?;
        // The last token of a prompt is always evaluated.
        let most = (tokens.len() - 1) / BLOCK;
        if found.cache_n / BLOCK != belief.any.min(most) {
            return Err(Error::new(format!(
                "it believes in {} blocks in host memory, the engine takes {} tokens from there",
                belief.any, found.cache_n
            )));
        }
        compared += 1;
    }
    Ok(compared)
}

/// The distinct requests of a trace to `/completion` whose prompt is a text.
pub(crate) fn plain_prompts(case: &Case) -> Vec<&Request> {
    let mut requests: Vec<&Request> = Vec::new();
    for step in &case.trace.steps {
        if let Step::Ask(request) = step {
            let plain = request.path() == "/completion" && request.body()["prompt"].is_string();
            if plain && !requests.contains(&request) {
                requests.push(request);
            }
        }
    }
    requests
}

pub(crate) fn tokenize(server: &Server, content: &serde_json::Value) -> Result<Vec<i32>> {
    let body = json!({"content": content, "add_special": true});
    let answer = server.post("/tokenize", &body)?.json()?;
    serde_json::from_value(answer["tokens"].clone())
        .map_err(|error| Error::new(format!("/tokenize: {error}")))
}
