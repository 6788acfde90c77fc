//! Shows the main job on a real llama-server: which request sits in which slot,
//! which falls out of the KV cache, and when the index hears of it.
//!
//! Run it by `scripts/demo`, which builds the launcher and hands over its path.

use contextpilot_testbed::{Arch, Error, Index, Model, Request, Result, Server};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How long to look out for an eviction after an answer. It is posted while the
/// new prompt is still being evaluated, so it has long arrived, if there is one.
const PATIENCE: Duration = Duration::from_millis(50);

const QUESTIONS: [(&str, &str); 6] = [
    (
        "req-tea",
        "Tea is picked in spring, on slopes that face the morning sun. When is it picked?",
    ),
    (
        "req-sea",
        "The sea is salt because rivers carry minerals and only water leaves. Why is it salt?",
    ),
    (
        "req-owl",
        "Owls turn their heads and not their eyes, which cannot move. What do owls turn?",
    ),
    (
        "req-sea2",
        "The sea is salt because rivers carry minerals and only water leaves. Why is it blue?",
    ),
    (
        "req-ash",
        "Ash trees leaf out late, and some of them not before the end of May. When do they?",
    ),
    (
        "req-elm",
        "Elms were common along roads until a beetle brought a fungus. What brought it?",
    ),
];

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The demo is a program for people, and this is its one error message.
            eprintln!("[ContextPilot] The demo stopped: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let launcher = std::env::args_os()
        .nth(1)
        .ok_or_else(|| Error::from(std::io::Error::other("run scripts/demo")))?;
    let index = Index::start()?;
    println!(
        "An index listens at {}. Two slots, no host prompt cache, a tiny model:",
        index.url()
    );
    println!("two prompts fit, the third must push one out.\n");
    let server = Server::builder()
        .model(&Model::tiny(Arch::Llama))
        .bare_slots(2)
        .launcher(launcher)
        .index_url(index.url())
        .spawn()?;
    for line in server
        .stderr()
        .lines()
        .filter(|line| line.starts_with("[ContextPilot]"))
    {
        println!("{line}");
    }
    println!();

    let mut told = 0;
    for (id, prompt) in QUESTIONS {
        let sent = Instant::now();
        let answer = server.complete(&Request::completion(prompt).id(id))?;
        let took = sent.elapsed();
        println!(
            "{id:<9} slot {}   {:>3} of {:>3} prompt tokens from the cache   {:>5.1} ms",
            answer.slot.map_or("?".to_owned(), |slot| slot.to_string()),
            answer.cache_n,
            answer.prompt_tokens,
            took.as_secs_f64() * 1e3
        );
        index.wait_posts(|posts| posts.len() > told, PATIENCE);
        for post in &index.posts()[told..] {
            for gone in &post.ids {
                println!(
                    "          ⤷ {gone} fell out: POST /evict arrived {:.1} ms after {id} was sent",
                    post.at.saturating_duration_since(sent).as_secs_f64() * 1e3
                );
            }
        }
        told = index.posts().len();
    }

    println!("\nIs that true? Ask the engine itself, by sending the prompts again to its slots:");
    let evicted = index.evicted();
    let mut wrong = 0;
    // The last in each slot are still there; asking them changes nothing else.
    for (id, prompt) in QUESTIONS.iter().rev() {
        let question = Request::completion(*prompt).predict(1);
        if evicted.contains(*id) {
            continue;
        }
        let answer = server.complete(&question)?;
        let resident = answer.cache_n + 1 >= answer.prompt_tokens;
        wrong += usize::from(!resident);
        println!(
            "{id:<9} not reported    {:>3} of {:>3} prompt tokens from the cache   {}",
            answer.cache_n,
            answer.prompt_tokens,
            if resident {
                "true, it is cached"
            } else {
                "NOT TRUE"
            }
        );
    }
    for (id, prompt) in QUESTIONS {
        if !evicted.contains(id) {
            continue;
        }
        let answer = server.complete(&Request::completion(prompt).predict(1))?;
        let gone = answer.cache_n + 1 < answer.prompt_tokens;
        wrong += usize::from(!gone);
        println!(
            "{id:<9} reported gone   {:>3} of {:>3} prompt tokens from the cache   {}",
            answer.cache_n,
            answer.prompt_tokens,
            if gone {
                "true, it was gone"
            } else {
                "NOT TRUE"
            }
        );
    }
    let known = QUESTIONS.len();
    println!(
        "\n{} of {known} requests fell out, {wrong} reports were wrong.",
        evicted.len()
    );
    if evicted.is_empty() || wrong > 0 {
        return Err(Error::from(std::io::Error::other(
            "the hook did not tell the truth; please report this with the lines above",
        )));
    }
    Ok(())
}
