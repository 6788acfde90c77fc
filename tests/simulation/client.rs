//! A client that chats with a server, and sends a model its own answers again.

use contextpilot_testbed::{Completion, Error, Request, Result, Server, Step, Trace};

use crate::prompts::text;

/// A client that chats with a server.
pub(super) struct Client<'a> {
    server: &'a Server,
    messages: Vec<(&'static str, String)>,
    /// What the users say, one after the other.
    sayings: Box<dyn Iterator<Item = String>>,
    sampling: Sampling,
    /// All requests up to now.
    pub(super) trace: Trace,
    /// How many tokens of each prompt the engine reused and evaluated.
    pub(super) figures: Vec<(u32, u32)>,
}

/// How answers are sampled, how long they may be, and what they are made of.
pub(super) struct Sampling {
    pub(super) temperature: f64,
    pub(super) tokens: u32,
    pub(super) grammar: Option<String>,
}

impl<'a> Client<'a> {
    pub(super) fn new(
        server: &'a Server,
        system: &str,
        sayings: impl Iterator<Item = String> + 'static,
        sampling: Sampling,
    ) -> Self {
        Self {
            server,
            messages: vec![("system", system.to_owned())],
            sayings: Box::new(sayings),
            sampling,
            trace: Trace::new(),
            figures: Vec::new(),
        }
    }

    /// Twelve requests, of each kind some.
    pub(super) fn chat(&mut self) -> Result<()> {
        for _ in 0..6 {
            self.say()?;
        }
        for _ in 0..2 {
            self.forget_oldest_turn();
            self.say()?;
        }
        // A user's message in the middle is changed, and all that follows stays as it was.
        self.messages[3].1 += " Be brief.";
        self.say()?;
        let main = self.messages.clone();
        self.messages.truncate(5);
        self.say()?;
        self.messages = main;
        self.say()?;
        self.messages.pop();
        self.answer()
    }

    pub(super) fn forget_oldest_turn(&mut self) {
        self.messages.drain(1..3);
    }

    /// Says the next thing, and gets an answer.
    pub(super) fn say(&mut self) -> Result<()> {
        let saying = self.sayings.next();
        let saying = saying.ok_or_else(|| Error::new("nothing is left to say"))?;
        self.messages.push(("user", saying));
        self.answer()
    }

    fn answer(&mut self) -> Result<()> {
        let messages: Vec<(&str, &str)> = self
            .messages
            .iter()
            .map(|(role, text)| (*role, &**text))
            .collect();
        let request = Request::chat(&messages)
            .predict(self.sampling.tokens)
            .with("temperature", self.sampling.temperature)
            .with("seed", 7 + self.figures.len() as u64);
        let request = match &self.sampling.grammar {
            Some(grammar) => request.with("grammar", &**grammar),
            None => request,
        };
        let completion = Completion::first(&self.server.send(&request)?)?;
        self.trace.steps.push(Step::Ask(request));
        let figures = (completion.cache_n as u32, completion.prompt_n as u32);
        self.figures.push(figures);
        self.messages.push(("assistant", completion.content));
        Ok(())
    }
}

/// Lets a tiny model repeat itself as real ones do: its answers are made of a few phrases.
pub(super) fn phrases() -> String {
    let phrases = (0..5).map(|nth| format!("\"{}\"", text(700 + nth, 15 + 4 * nth as usize)));
    let phrases: Vec<String> = phrases.collect();
    format!("root ::= phrase+\nphrase ::= {}", phrases.join(" | "))
}
