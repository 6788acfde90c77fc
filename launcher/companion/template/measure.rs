//! Plays a conversation, and compares each prompt with the next.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::Value;

use super::conversation::{Conversation, Form, first_tool, path, system};
use super::kind::{Difference, Kind, floor};
use super::renderer::{Rendered, Renderer};

/// What a conversation was seen to be.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Outcome {
    /// Prompts that follow another.
    pub(super) requests: usize,
    /// How many of them do not go on from what the slot holds.
    pub(super) differ: usize,
    /// The share of their characters that are evaluated again, though they had been in the slot.
    pub(super) again: f64,
    /// The same in characters a request.
    pub(super) again_characters: f64,
    pub(super) kinds: BTreeSet<Kind>,
    /// With which parameters of the template, if not with the server's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) kwargs: Option<Value>,
    #[serde(skip)]
    lengths: Lengths,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Lengths {
    again: usize,
    all: usize,
}

impl Outcome {
    pub(super) fn add(&mut self, again: Option<usize>, next: usize, kinds: Vec<Kind>) {
        self.requests += 1;
        self.differ += usize::from(again.is_some());
        self.lengths.again += again.unwrap_or_default();
        self.lengths.all += next;
        self.kinds.extend(kinds);
        let share = self.lengths.again as f64 / self.lengths.all.max(1) as f64;
        self.again = (share * 1e5).round() / 1e5;
        let mean = self.lengths.again as f64 / self.requests as f64;
        self.again_characters = (mean * 10.0).round() / 10.0;
    }

    pub(super) fn goes_on(&self) -> bool {
        self.differ == 0
    }
}

/// A conversation as a server renders it.
pub(super) struct Played {
    pub(super) steps: Vec<Step>,
}

/// What one request leaves in the slot, and the prompt after it.
pub(super) struct Step {
    /// The prompt, and what the template makes of what was said, without the end of the turn.
    pub(super) held: String,
    pub(super) prompt: usize,
    tail: usize,
    pub(super) next: String,
    /// What is new in the next prompt begins with this.
    pub(super) new: String,
    /// The index of what was said.
    said: usize,
}

impl Step {
    /// How far the texts agree.
    pub(super) fn common(&self) -> usize {
        common(&self.held, &self.next)
    }

    /// The characters of this prompt, if they differ from there on, that are evaluated again: up to the new message.
    pub(super) fn again(&self, next: &str) -> Option<usize> {
        let at = common(&self.held, next);
        let new = next.rfind(&self.new).unwrap_or(next.len());
        let again = || next[at..new.max(at)].chars().count();
        (at < self.held.len()).then(again)
    }
}

/// How many bytes two texts have in common, in whole characters.
pub(super) fn common(a: &str, b: &str) -> usize {
    let same = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    floor(a, same)
}

/// Plays a conversation. `back`: the client sends reasoning back.
pub(super) fn play(
    renderer: &Renderer,
    conversation: &Conversation,
    back: bool,
) -> Rendered<Played> {
    let tools = conversation.form.calls > 0;
    let said = conversation.said();
    let ends = said.iter().skip(1).copied();
    let ends = ends.chain([conversation.messages.len()]);
    let mut prompt = match said.first() {
        Some(&first) => renderer.prompt(&conversation.sent(first, back), tools)?,
        None => String::new(),
    };
    let mut drafts = Vec::new();
    for (&said, end) in said.iter().zip(ends) {
        let mut messages = conversation.sent(said, back);
        let own = renderer.own_prompt(&messages, tools)?;
        // The model writes its reasoning, whatever the client does with it.
        messages.push(conversation.messages[said].clone());
        let history = renderer.history(&messages, tools)?;
        let own = own.unwrap_or_else(|| prompt.clone());
        let generated = history.strip_prefix(&*own).map(str::to_owned);
        let next = renderer.prompt(&conversation.sent(end, back), tools)?;
        drafts.push((
            said,
            std::mem::replace(&mut prompt, next.clone()),
            generated,
            next,
        ));
    }
    let content = |at: usize| {
        conversation.messages[at]["content"]
            .as_str()
            .unwrap_or_default()
    };
    // What stands behind the content of an answer ends the turn. It is not generated, or is a token of its own.
    let end = drafts.iter().find_map(|(said, _, generated, _)| {
        let (content, generated) = (content(*said), generated.as_deref()?);
        let at = generated.rfind(content).filter(|_| !content.is_empty())?;
        Some(generated[at + content.len()..].to_owned())
    });
    let end = end.unwrap_or_default();
    let steps = drafts.into_iter().map(|(said, prompt, generated, next)| {
        let generated = generated.unwrap_or_default();
        let generated = match (content(said), generated.rfind(content(said))) {
            ("", _) => without_end(&generated, &end),
            (content, Some(at)) => &generated[..at + content.len()],
            (_, None) => "",
        };
        let last = content(said.saturating_sub(1));
        let tail = prompt
            .rfind(last)
            .map_or(prompt.len(), |at| at + last.len());
        Step {
            held: format!("{prompt}{generated}"),
            prompt: prompt.len(),
            tail,
            next,
            new: content(said + 1).to_owned(),
            said,
        }
    });
    Ok(Played {
        steps: steps.collect(),
    })
}

/// A text without what it has in common with the end of a turn, at its end.
fn without_end<'a>(text: &'a str, end: &str) -> &'a str {
    let is_same = |(a, b): &(char, char)| a == b;
    let same = text
        .chars()
        .rev()
        .zip(end.chars().rev())
        .take_while(is_same);
    let bytes: usize = same.map(|(c, _)| c.len_utf8()).sum();
    &text[..text.len() - bytes]
}

impl Played {
    /// What each prompt evaluates again, and why.
    pub(super) fn outcome(&self, conversation: &Conversation) -> Outcome {
        let mut outcome = Outcome::default();
        for step in &self.steps {
            let again = step.again(&step.next);
            let mut kinds = again.map(|_| step.kinds(conversation)).unwrap_or_default();
            kinds.extend(step.left_out(conversation));
            outcome.add(again, step.next.chars().count(), kinds);
        }
        outcome
    }
}

impl Step {
    fn kinds(&self, conversation: &Conversation) -> Vec<Kind> {
        let up_to = &conversation.messages[..=self.said];
        let texts = |name: &str| -> Vec<String> {
            let texts = up_to
                .iter()
                .filter(|message| message["role"] == "assistant");
            let texts = texts.filter_map(|text| text[name].as_str());
            texts
                .filter(|text| !text.is_empty())
                .map(str::to_owned)
                .collect()
        };
        let held = |texts: Vec<String>| -> Vec<String> {
            let held = |text: &String| self.held.contains(text.as_str());
            texts.into_iter().filter(held).collect()
        };
        let said = &conversation.messages[self.said];
        let mut reasoning = held(texts("reasoning_content"));
        // It was generated, whether or not the template shows that.
        reasoning.extend(said["reasoning_content"].as_str().map(str::to_owned));
        let form = conversation.form;
        let difference = Difference {
            held: &self.held,
            prompt: self.prompt,
            tail: self.tail,
            next: &self.next,
            at: self.common(),
            system: &if form.system { system() } else { String::new() },
            tool: &if form.calls > 0 {
                first_tool()
            } else {
                String::new()
            },
            reasoning: &reasoning,
            contents: &held(texts("content")),
            calls: &held(all_paths(form)),
            is_call: said.get("tool_calls").is_some(),
            at_user: conversation.messages[self.said + 1]["role"] == "user",
        };
        difference.kinds()
    }

    /// What the next prompt lacks altogether of what was said, also if it goes on.
    fn left_out(&self, conversation: &Conversation) -> Option<Kind> {
        let said = &conversation.messages[self.said];
        let Some(calls) = said["tool_calls"].as_array() else {
            let content = said["content"].as_str().unwrap_or_default();
            return (!self.next.contains(content)).then_some(Kind::ContentLeftOut);
        };
        let paths = all_paths(conversation.form);
        let lacks = |call: &Value| {
            let arguments = call["function"]["arguments"].as_str().unwrap_or_default();
            let mut paths = paths
                .iter()
                .filter(|path| arguments.contains(path.as_str()));
            paths.any(|path| !self.next.contains(path.as_str()))
        };
        calls.iter().any(lacks).then_some(Kind::CallLeftOut)
    }
}

/// What stands in the calls of a conversation.
fn all_paths(form: Form) -> Vec<String> {
    let calls = (0..form.turns).flat_map(|turn| (0..form.calls).map(move |nth| (turn, nth)));
    calls.map(|(turn, nth)| path(turn, nth)).collect()
}

/// Whether prompts go on over midnight: with a system message, as agents have one, and without.
pub(super) fn at_midnight(today: &Renderer, tomorrow: &Renderer, tools: bool) -> Rendered<Outcome> {
    let mut outcome = Outcome::default();
    let agent = if tools { Form::TOOLS } else { Form::PLAIN };
    let conversations = [agent, Form::NO_SYSTEM].map(Conversation::new);
    let mut dated = [false; 2];
    for (dated, conversation) in dated.iter_mut().zip(&conversations) {
        let tools = conversation.form.calls > 0;
        *dated = today.prompt(&conversation.messages, tools)?
            != tomorrow.prompt(&conversation.messages, tools)?;
    }
    for (conversation, is_dated) in conversations.iter().zip(dated) {
        let tools = conversation.form.calls > 0;
        let whole = &conversation.messages;
        let said = conversation.said();
        for (nth, &at) in said.iter().enumerate() {
            let end = said.get(nth + 1).copied().unwrap_or(whole.len());
            let messages = conversation.sent(end, true);
            let next = if dated.contains(&true) {
                today.prompt(&messages, tools)?
            } else {
                String::new()
            };
            if !is_dated {
                outcome.add(None, next.chars().count(), Vec::new());
                continue;
            }
            let before = today.prompt(&conversation.sent(at, true), tools)?;
            let dated = tomorrow.prompt(&messages, tools)?;
            let from = common(&before, &dated);
            let new = whole[at + 1]["content"].as_str().unwrap_or_default();
            let to = dated.rfind(new).unwrap_or(dated.len()).max(from);
            let differs = from < common(&before, &next);
            let again = differs.then(|| dated[from..to].chars().count());
            let kinds = match (differs, conversation.form.system) {
                (false, _) => vec![],
                (true, true) => vec![Kind::Date],
                (true, false) if outcome.kinds.contains(&Kind::Date) => vec![],
                (true, false) => vec![Kind::DateWithoutSystemMessage],
            };
            outcome.add(again, dated.chars().count(), kinds);
        }
    }
    Ok(outcome)
}
