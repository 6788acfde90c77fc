//! Made-up traffic of several kinds: agents with tools, retrieval, chats, subagents.
//!
//! The requests are sequential, and random from a seed. A turn continues the answer that the server
//! gave when the traffic was recorded. From then on the prompts are fixed.

use contextpilot_testbed::{Completion, Random, Request, Result, Server, Step, Trace};

use crate::prompts::text;

/// A client that sends prompts, one after the other.
struct Talker {
    prompt: String,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    /// Each prompt is the last one with its answer and a tool's result.
    Agent,
    /// Each prompt is the last one with its answer and a new question.
    Chat,
    /// Fixed instructions, documents in changing order, and a question.
    Retrieval,
}

/// The longest prompt, in tokens.
const LONGEST: usize = 900;

/// Sends this many requests to the server, and returns them as a trace.
pub(super) fn play(server: &Server, seed: u64, requests: usize) -> Result<Trace> {
    let mut dice = Random(seed);
    let mut talkers: Vec<Talker> = Vec::new();
    let mut trace = Trace::new();
    for nth in 0..requests as u64 {
        if talkers.len() < 7 || dice.below(12) == 0 {
            talkers.push(arrive(&mut dice, nth));
        }
        // Newer talkers send more requests than older ones.
        let behind = dice.below(7).min(dice.below(7)) as usize;
        let at = talkers.len() - 1 - behind.min(talkers.len() - 1);
        let prompt = talkers[at].next(&mut dice, nth);
        let request = Request::completion(prompt).predict(12);
        let completion = Completion::first(&server.send(&request)?)?;
        trace = trace.then(Step::Ask(request));
        let talker = &mut talkers[at];
        match talker.kind {
            Kind::Retrieval => {}
            _ => talker.prompt += &completion.content,
        }
        if talker.prompt.len() > LONGEST {
            talkers.remove(at);
        }
    }
    Ok(trace)
}

fn arrive(dice: &mut Random, nth: u64) -> Talker {
    let tools = text(1, 300);
    let own = text(1000 + nth, 40);
    match dice.below(5) {
        0 | 1 => Talker {
            prompt: tools + &own,
            kind: Kind::Agent,
        },
        // A subagent: some of an agent's tools, and another task.
        2 => Talker {
            prompt: tools[..180].to_owned() + &text(2, 60) + &own,
            kind: Kind::Agent,
        },
        3 => Talker {
            prompt: text(3, 80),
            kind: Kind::Retrieval,
        },
        _ => Talker {
            prompt: own,
            kind: Kind::Chat,
        },
    }
}

impl Talker {
    fn next(&mut self, dice: &mut Random, nth: u64) -> String {
        match self.kind {
            Kind::Agent => self.prompt += &text(2000 + nth, 20 + dice.below(120) as usize),
            Kind::Chat => self.prompt += &text(2000 + nth, 10 + dice.below(40) as usize),
            Kind::Retrieval => {
                let mut prompt = self.prompt.clone();
                for _ in 0..3 {
                    prompt += &text(500 + dice.below(6), 110);
                }
                return prompt + &text(3000 + nth, 15);
            }
        }
        self.prompt.clone()
    }
}
