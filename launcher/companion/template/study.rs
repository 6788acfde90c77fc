//! Everything that is tried with one template.

use contextpilot_tiny_model::Chat;
use serde_json::{Value, json};

use super::conversation::{Conversation, Form, text};
use super::helps;
use super::kind::Kind;
use super::measure::{Outcome, Played, at_midnight, common, play};
use super::renderer::{Call, Program, Rendered, Renderer, Trouble, unless_refused};
use super::seen::{Reasoning, Study};
use contextpilot_client::LlamaServer;

/// A template, and where it is from.
pub(super) struct Subject {
    pub(super) name: String,
    pub(super) chat: Chat,
    /// The server that has it.
    pub(super) server: Option<LlamaServer>,
}

impl Subject {
    fn renderer<'a>(&'a self, program: &'a Program, own: &'a LlamaServer) -> Renderer<'a> {
        Renderer {
            own,
            given: self.server.as_ref(),
            signal: &program.signal,
            kwargs: json!({}),
            fields: json!({}),
        }
    }

    fn study(&self) -> Study {
        Study {
            template: self.name.clone(),
            ..Study::default()
        }
    }
}

/// Tries only an agent's conversation, as it is.
///
/// # Errors
/// As [`study`].
pub(super) fn agent(program: &Program, subject: &Subject) -> Result<Study, String> {
    let today = program.start(&subject.chat, 0)?;
    let renderer = subject.renderer(program, today.client());
    let mut study = subject.study();
    let tools = default_or_without_thinking(&renderer, Form::TOOLS);
    let tried = study.taken("tools", tools).and_then(|tools| {
        study.tools = tools;
        match study.tools {
            Some(_) => study.reasons(&renderer),
            None => Ok(()),
        }
    });
    tried?;
    Ok(study)
}

/// Tries everything.
///
/// # Errors
/// The server does not start with this template, or ends.
pub(super) fn study(program: &Program, subject: &Subject) -> Result<Study, String> {
    let today = program.start(&subject.chat, 0)?;
    let renderer = subject.renderer(program, today.client());
    let mut study = subject.study();
    let tried = study
        .conversations(&renderer, &subject.chat)
        .and_then(|()| {
            helps::kept_tokens(&mut study, program, &subject.chat);
            let tomorrow = program.start(&subject.chat, 1).map_err(Trouble::Broken)?;
            let tomorrow = Renderer {
                own: tomorrow.client(),
                ..renderer.clone()
            };
            study.another_day(&renderer, &tomorrow, &subject.chat)
        });
    tried?;
    Ok(study)
}

impl Study {
    /// An outcome, if the server does not refuse the conversation.
    fn taken<T>(&mut self, name: &'static str, outcome: Rendered<T>) -> Rendered<Option<T>> {
        match outcome {
            Ok(outcome) => Ok(Some(outcome)),
            Err(Trouble::Refused(why)) => {
                self.refused.insert(name, why);
                Ok(None)
            }
            Err(broken) => Err(broken),
        }
    }

    fn conversations(&mut self, renderer: &Renderer, chat: &Chat) -> Rendered<()> {
        let chat_of_one = Conversation::new(Form {
            turns: 0,
            ..Form::PLAIN
        });
        let said = chat_of_one
            .messages
            .last()
            .and_then(|message| message["content"].as_str());
        match renderer.prompt(&chat_of_one.messages, false) {
            Ok(prompt) if !prompt.contains(said.unwrap_or_default()) => {
                let why = "It does not show what the user says, so it is no chat template";
                return Err(Trouble::Broken(why.to_owned()));
            }
            Err(broken @ Trouble::Broken(_)) => return Err(broken),
            _ => {}
        }
        let plain = default_or_without_thinking(renderer, Form::PLAIN);
        self.plain = self.taken("plain", plain)?;
        let tools = default_or_without_thinking(renderer, Form::TOOLS);
        self.tools = self.taken("tools", tools)?;
        let spelling = spelling(renderer, self.tools.is_some());
        if let Some((outcome, call)) = self.taken("spelling", spelling)? {
            self.spelling = Some(outcome);
            self.call = call;
        }
        let Some(tools) = self.tools.clone() else {
            return Ok(());
        };
        let parallel = Conversation::new(Form::PARALLEL);
        let played = play(renderer, &parallel, true).map(|played| played.outcome(&parallel));
        self.parallel_calls = self.taken("parallel_calls", played)?;

        self.reasons(renderer)?;
        match helps::conversations(self, renderer, chat, &tools) {
            // What cannot be rendered does not help.
            Err(Trouble::Refused(_)) => Ok(()),
            tried => tried,
        }
    }

    /// The conversations with reasoning, if the template knows of it.
    fn reasons(&mut self, renderer: &Renderer) -> Rendered<()> {
        let reasoning = self.taken("reasoning", reasoning(renderer))?;
        self.reasoning = reasoning.unwrap_or_default();
        let conversation = Conversation::new(Form::REASONING);
        if self.reasoning == Reasoning::Rendered {
            let played = |back| play(renderer, &conversation, back);
            let outcome = |played: Rendered<Played>| Ok(played?.outcome(&conversation));
            self.reasoning_back = self.taken("reasoning_back", outcome(played(true)))?;
            self.reasoning_out = self.taken("reasoning_out", outcome(played(false)))?;
        } else {
            let lost = content_lost(renderer, &conversation);
            self.reasoning_back = self.taken("reasoning_back", lost)?.flatten();
        }
        Ok(())
    }

    /// The same conversations, with midnight before each next prompt.
    fn another_day(&mut self, today: &Renderer, tomorrow: &Renderer, chat: &Chat) -> Rendered<()> {
        if self.plain.is_none() && self.tools.is_none() {
            return Ok(());
        }
        // Our own servers only: the date of the other cannot be set.
        let [today, tomorrow] = [today, tomorrow].map(|renderer| Renderer {
            given: None,
            ..renderer.clone()
        });
        let with_tools = self.tools.is_some();
        let outcome = at_midnight(&today, &tomorrow, with_tools);
        self.another_day = self.taken("another_day", outcome)?;
        match self.another_day.clone() {
            Some(outcome) if !outcome.goes_on() => {
                helps::another_day(self, &today, &tomorrow, chat, &outcome, with_tools)
            }
            _ => Ok(()),
        }
    }
}

/// The conversation without reasoning, as the server renders it. If that does not go on, but does with thinking turned
/// off, then so: a model that does not reason is used like that.
fn default_or_without_thinking(renderer: &Renderer, form: Form) -> Rendered<Outcome> {
    let conversation = Conversation::new(form);
    let outcome = play(renderer, &conversation, true)?.outcome(&conversation);
    if outcome.goes_on() {
        return Ok(outcome);
    }
    let kwargs = helps::thinking_off();
    let off = play(&renderer.with_kwargs(kwargs.clone()), &conversation, true);
    let off = unless_refused(off)?.map(|played| played.outcome(&conversation));
    Ok(match off.filter(Outcome::goes_on) {
        Some(mut off) => {
            off.kwargs = Some(kwargs);
            off
        }
        None => outcome,
    })
}

fn reasoning(renderer: &Renderer) -> Rendered<Reasoning> {
    let conversation = Conversation::new(Form {
        turns: 1,
        ..Form::REASONING
    });
    let mut prompts = Vec::new();
    for said in conversation.said() {
        let mut messages = conversation.sent(said, true);
        messages.push(conversation.messages[said].clone());
        prompts.push(renderer.history(&messages, true)?);
    }
    let reasoned = |message: &Value| message["reasoning_content"].as_str().map(str::to_owned);
    let texts: Vec<String> = conversation.messages.iter().filter_map(reasoned).collect();
    let shown = |prompt: &String| texts.iter().any(|text| prompt.contains(text.as_str()));
    if prompts.iter().any(shown) {
        return Ok(Reasoning::Rendered);
    }
    // A model that reasons is told so by its generation prompt, or its history is without what it thought.
    let first = conversation.sent(conversation.said()[0], true);
    let last = first
        .last()
        .and_then(|message| message["content"].as_str())
        .unwrap_or_default();
    for kwargs in [json!({}), helps::thinking_off()] {
        let prompt = renderer.with_kwargs(kwargs).prompt(&first, true);
        let tail = match &prompt {
            Ok(prompt) => prompt.rsplit(last).next().unwrap_or_default(),
            Err(_) => "",
        };
        if tail.to_ascii_lowercase().contains("think") {
            return Ok(Reasoning::NeverRendered);
        }
    }
    let thought = text("thought", 0, 40);
    let messages = [
        json!({"role": "user", "content": text("user", 0, 40)}),
        json!({"role": "assistant", "content": format!("<think>\n{thought}\n</think>\n\nso")}),
        json!({"role": "user", "content": text("user", 1, 40)}),
    ];
    let prompt = unless_refused(renderer.prompt(&messages, false))?;
    Ok(match prompt {
        Some(prompt) if !prompt.contains(&thought) => Reasoning::NeverRendered,
        _ => Reasoning::None,
    })
}

/// If an answer's content is lost as soon as reasoning is sent with it: what that costs.
fn content_lost(renderer: &Renderer, conversation: &Conversation) -> Rendered<Option<Outcome>> {
    let without = Conversation::new(Form::TOOLS);
    let [back, out] = [conversation, &without].map(|chat| play(renderer, chat, true));
    let (back, out) = (back?, out?);
    let mut lost = Outcome::default();
    for (back, out) in back.steps.iter().zip(&out.steps) {
        // What was generated is there only where the template shows it, without the reasoning.
        let content = out.held.get(out.prompt..).unwrap_or_default();
        let held = format!("{}{content}", &back.held[..back.prompt]);
        let at = common(&held, &back.next);
        let differs = at < held.len() && out.common() == out.held.len();
        let new = back.next.rfind(&back.new).unwrap_or(back.next.len());
        let again = differs.then(|| back.next[at..new.max(at)].chars().count());
        let kinds = if differs {
            vec![Kind::ContentLeftOut]
        } else {
            Vec::new()
        };
        lost.add(again, back.next.chars().count(), kinds);
    }
    Ok((!lost.goes_on()).then_some(lost))
}

/// Answers and calls that a model writes otherwise than a template does. A call of these, and what the others cost.
fn spelling(renderer: &Renderer, tools: bool) -> Rendered<(Outcome, Option<(Call, Outcome)>)> {
    let [mut outcome, mut others] = [Outcome::default(), Outcome::default()];
    let mut call = None;
    let conversation = Conversation::new(Form {
        turns: 1,
        ..if tools { Form::TOOLS } else { Form::PLAIN }
    });
    for at in conversation.said() {
        let mut written = conversation.clone();
        let message = &mut written.messages[at];
        let (usual, other, kind) = match message.get("tool_calls") {
            Some(_) => {
                let arguments = &mut message["tool_calls"][0]["function"]["arguments"];
                let usual = arguments.as_str().unwrap_or_default().to_owned();
                let other = usual.replace(": ", ":").replace(", ", ",");
                *arguments = other.clone().into();
                (usual, other, Kind::CallSpelledOtherwise)
            }
            None => {
                let usual = message["content"].as_str().unwrap_or_default().to_owned();
                let other = format!("\n\n{usual} \n");
                message["content"] = other.clone().into();
                (usual, other, Kind::WhiteSpaceTrimmed)
            }
        };
        let [as_usual, as_written] =
            [&conversation, &written].map(|chat| play(renderer, chat, true));
        let (as_usual, as_written) = (as_usual?, as_written?);
        let nth = conversation.said().iter().position(|&said| said == at);
        let nth = nth.unwrap_or_default();
        let (as_usual, as_written) = (&as_usual.steps[nth], &as_written.steps[nth]);
        // Only where the usual one is found as it is, it can be known that the other is not.
        let Some(from) = as_usual.next.rfind(&usual) else {
            continue;
        };
        let held = format!("{}{other}", &as_usual.next[..from]);
        let same = as_written.next.rfind(&as_written.new).unwrap_or_default();
        let at = common(&held, &as_written.next);
        let count = || as_written.next[at..same.max(at)].chars().count();
        let again = (at < held.len()).then(count);
        let kinds = again.map(|_| vec![kind]).unwrap_or_default();
        let all = as_written.next.chars().count();
        if kind == Kind::CallSpelledOtherwise && again.is_some() {
            call = Some(Call {
                begins: as_usual.next[..from].to_owned(),
                written: other,
                next: as_written.next.clone(),
            });
            others.add(None, all, Vec::new());
        } else {
            others.add(again, all, kinds.clone());
        }
        outcome.add(again, all, kinds);
    }
    Ok((outcome, call.map(|call| (call, others))))
}
