//! What it costs that answers keep their tokens: the time that the server takes to divide a long text.

use contextpilot_client::Control;
use contextpilot_testbed::{Arch, Builder, Model, Random, Request, Result, Server, Spec};
use serde_json::{Value, json};

use crate::lab::{Lab, failed, thread_times};
use crate::page::{Aim, Page};
use crate::sample::{Comparison, order};

const SIDES: [&str; 3] = ["plain", "hook", "hook, answers keep their tokens"];
const HOOK: usize = 1;
const KEPT: usize = 2;
/// Requests of each server that are measured, of one start.
const EACH: usize = 3;
/// Tokens of the text, at least.
const TOKENS: usize = 100_000;
/// The context: the server divides a prompt that is longer, and refuses it before anything is evaluated.
const CONTEXT: u32 = 2048;
const AIM: f64 = 1.02;
const WORDS: [&str; 16] = [
    "the",
    "river",
    "carries",
    "small",
    "stones",
    "down",
    "to",
    "a",
    "mill,",
    "where",
    "nobody",
    "counts",
    "them.",
    "In",
    "1887",
    "(perhaps)",
];

pub(super) fn run(lab: &Lab, page: &mut Page) -> Result<()> {
    page.section("Answers keep their tokens");
    let starts = lab.rounds(8, 1);
    let model = match &lab.model {
        Some(file) => Model::file(file.clone(), Arch::Llama),
        // Its tokenizer has pairs of letters.
        None => Model::of(&Spec {
            letter_pairs: true,
            ..Spec::new(Arch::Llama)
        }),
    };
    let plain =
        Server::builder()
            .model(&model)
            .args(["--parallel", "1", "-c", &CONTEXT.to_string()]);
    let said = Said::find(&plain.clone().spawn()?)?;
    let mut times = Comparison::new(&SIDES);
    for start in 0..starts {
        let servers = [
            plain.clone().spawn()?,
            lab.launched(&plain).observed().spawn()?,
            with_kept_tokens(lab, &plain)?,
        ];
        for server in &servers {
            said.again(server)?;
        }
        for round in 0..=EACH {
            for side in order(start * EACH + round, servers.len()) {
                let took = refused(&servers[side], &said.long)?;
                // The first asks for the vocabulary.
                if round > 0 {
                    times.add(side, took);
                }
            }
        }
        let control = servers[KEPT].await_control()?.to_string();
        let stats = Control::new(&control).and_then(|control| control.stats());
        let kept = stats.map_err(|error| failed(error.to_string()))?.kept;
        if kept.unwrap_or_default().prompts == 0 {
            return Err(failed("no prompt has got the tokens of an answer"));
        }
    }
    page.say(format!(
        "The processor time of a request whose prompt goes on from an answer of its slot and then has {TOKENS} tokens more. The context has\n\
         {CONTEXT}: the server divides the text and refuses it, and evaluates nothing. One request at a time, {EACH} of each in turns, and that of\n\
         {starts} starts of each server.\n\n{}",
        times.table("ms")
    ));
    let ratio = times.ratio(KEPT);
    page.aim(
        "Dividing 100,000 tokens, answers keep their tokens",
        &format!("{AIM} times plain"),
        &ratio.show(3),
        Aim::met_if(ratio.low <= AIM),
    );
    page.in_short(
        "Answers keep their tokens",
        &format!(
            "at {} times the processor time that a plain server takes to divide {TOKENS} tokens; with the hook alone {} times.",
            ratio.show(3),
            times.ratio(HOOK).show(3)
        ),
    );
    Ok(())
}

fn with_kept_tokens(lab: &Lab, plain: &Builder) -> Result<Server> {
    lab.launched(plain)
        .observed()
        .env("CONTEXTPILOT_KEEP_TOKENS", "1")
        .spawn()
}

/// A prompt, an answer to it whose text the tokenizer divides otherwise than it was generated, and a text that goes on from
/// there.
struct Said {
    prompt: String,
    seed: u64,
    content: String,
    long: String,
}

impl Said {
    fn find(server: &Server) -> Result<Self> {
        const MOST: u64 = 100;
        let mut random = Random(1);
        let mut text = |words: usize| {
            let words = (0..words).map(|_| WORDS[random.below(WORDS.len() as u64) as usize]);
            words.collect::<Vec<_>>().join(" ")
        };
        let prompt = text(40);
        let before = divide(server, &prompt)?;
        let said = (1..=MOST).find_map(|seed| {
            let answer = answer(server, &prompt, seed);
            let found = answer.and_then(|(content, tokens)| {
                let divided = divide(server, &format!("{prompt}{content}"))?;
                let differs = divided != [&before[..], &tokens].concat();
                // Bytes that are no text come as U+FFFD: another text.
                let differs = differs && !content.contains('\u{fffd}');
                Ok(differs.then_some((seed, content)))
            });
            found.transpose()
        });
        let (seed, content) =
            said.ok_or_else(|| failed("every answer is divided as it was generated"))??;
        let mut long = format!("{prompt}{content}\n");
        while divide(server, &long)?.len() < TOKENS {
            long.push_str(&text(20_000));
        }
        Ok(Self {
            prompt,
            seed,
            content,
            long,
        })
    }

    /// Has another server generate the same.
    fn again(&self, server: &Server) -> Result<()> {
        let (content, _) = answer(server, &self.prompt, self.seed)?;
        if content != self.content {
            return Err(failed("two servers do not answer the same"));
        }
        Ok(())
    }
}

/// The text and the tokens of an answer.
fn answer(server: &Server, prompt: &str, seed: u64) -> Result<(String, Vec<Value>)> {
    let request = Request::completion(prompt)
        .predict(60)
        .with("temperature", 1.5)
        .with("top_k", 100)
        .with("top_p", 1)
        .with("min_p", 0)
        .with("seed", seed)
        .with("ignore_eos", true)
        // What is reused was evaluated in another batch, and another answer may follow from that.
        .with("cache_prompt", false)
        .with("return_tokens", true);
    let answer = server.complete(&request)?;
    let tokens = answer.raw["tokens"].as_array().cloned();
    Ok((answer.content, tokens.unwrap_or_default()))
}

fn divide(server: &Server, text: &str) -> Result<Vec<Value>> {
    let body = json!({ "content": text, "add_special": true });
    let answer = server.post("/tokenize", &body)?.json()?;
    Ok(answer["tokens"].as_array().cloned().unwrap_or_default())
}

/// The processor time that it takes, ms: what else the machine does counts little.
fn refused(server: &Server, text: &str) -> Result<f64> {
    let body = json!({ "prompt": text, "n_predict": 1 });
    let time = || -> Result<f64> {
        let threads = thread_times(server)?;
        Ok(threads.into_iter().map(|(_, time)| time).sum())
    };
    let before = time()?;
    let answer = server.post("/completion", &body)?;
    let took = time()? - before;
    match answer.status {
        400 => Ok(took),
        status => Err(failed(format!("the server answered {status}, not 400"))),
    }
}
