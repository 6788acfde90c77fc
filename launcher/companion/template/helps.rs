//! What is tried against prompts that do not go on, and what each was seen to save.

use std::collections::BTreeSet;

use contextpilot_tiny_model::Chat;
use serde_json::{Value, json};

use super::conversation::{Conversation, Form};
use super::kind::Kind;
use super::measure::{Outcome, Played, at_midnight, common, play};
use super::renderer::{Program, Rendered, Renderer, unless_refused};
use super::seen::{Help, Reasoning, Study};

/// Of every template that knows of thinking, this is the parameter that turns it off: llama-server sees to that.
pub(super) fn thinking_off() -> Value {
    json!({"enable_thinking": false})
}

/// An outcome, if the server takes the conversation so.
fn tried(renderer: &Renderer, form: Form, back: bool) -> Rendered<Option<Outcome>> {
    let conversation = Conversation::new(form);
    let played = unless_refused(play(renderer, &conversation, back))?;
    Ok(played.map(|played| played.outcome(&conversation)))
}

/// Two prompts of a short conversation with reasoning: at a user message, and at a tool result.
fn samples(renderer: &Renderer) -> Rendered<[String; 2]> {
    let conversation = Conversation::new(Form {
        turns: 2,
        ..Form::REASONING
    });
    let prompt = |end| renderer.prompt(&conversation.sent(end, true), true);
    let result = conversation.said()[3];
    Ok([prompt(conversation.messages.len())?, prompt(result)?])
}

/// Whether these parameters change what is rendered. `usual`: the samples without them.
fn matters(renderer: &Renderer, usual: &[String; 2], kwargs: &Value) -> Rendered<bool> {
    let samples = unless_refused(samples(&renderer.with_kwargs(kwargs.clone())))?;
    Ok(samples.is_some_and(|samples| samples != *usual))
}

pub(super) fn conversations(
    study: &mut Study,
    renderer: &Renderer,
    chat: &Chat,
    tools: &Outcome,
) -> Rendered<()> {
    let mut helps = Vec::new();
    match (study.reasoning, &study.reasoning_back, &study.reasoning_out) {
        (Reasoning::Rendered, Some(back), Some(out)) => {
            with_reasoning(&mut helps, renderer, chat, [back, out])?;
        }
        (_, Some(lost), _) => {
            helps.extend(Help::seen(
                "never send reasoning_content: the content is lost with it",
                "reasoning_back",
                lost,
                tools,
            ));
        }
        _ => {}
    }
    if study.reasoning == Reasoning::NeverRendered && reasoning_in_content(renderer)? {
        // How much it saves depends on where the reasoning stood: all of what was said is evaluated again without it.
        let lost = dropped(renderer)?;
        helps.extend(Help::seen(
            "--reasoning-format none, and the content sent back as it came",
            "tools",
            &lost,
            &Outcome::default(),
        ));
    }
    let known: BTreeSet<Kind> = tools.kinds.clone();
    if study.reasoning != Reasoning::Rendered && !tools.goes_on() {
        let usual = samples(renderer)?;
        for kwargs in named(chat) {
            if matters(renderer, &usual, &kwargs)? {
                let with = tried(&renderer.with_kwargs(kwargs.clone()), Form::TOOLS, true)?;
                helps.extend(
                    with.and_then(|with| Help::seen(kwarg(&kwargs), "tools", tools, &with)),
                );
            }
        }
    }
    let plain_moves = study
        .plain
        .as_ref()
        .is_some_and(|plain| plain.kinds.contains(&Kind::SystemTextMoved));
    if known.contains(&Kind::SystemTextMoved) || plain_moves {
        helps.extend(system_in_user_message(renderer, tools)?);
    }
    helps.sort_by(|a, b| b.saves.total_cmp(&a.saves));
    study.helps.extend(helps);
    Ok(())
}

fn with_reasoning(
    helps: &mut Vec<Help>,
    renderer: &Renderer,
    chat: &Chat,
    [back, out]: [&Outcome; 2],
) -> Rendered<()> {
    helps.extend(Help::seen(
        "send reasoning back",
        "reasoning_out",
        out,
        back,
    ));
    helps.extend(Help::seen(
        "leave reasoning out",
        "reasoning_back",
        back,
        out,
    ));
    let usual = samples(renderer)?;
    // The switch of the server itself: is it why reasoning stays?
    for preserve in [true, false] {
        let kwargs = json!({"preserve_reasoning": preserve});
        if !matters(renderer, &usual, &kwargs)? {
            continue;
        }
        let other = tried(&renderer.with_kwargs(kwargs), Form::REASONING, true)?;
        let Some(other) = other else { continue };
        helps.extend(if preserve {
            Help::seen(
                "--reasoning-preserve, and reasoning sent back",
                "reasoning_back",
                back,
                &other,
            )
        } else {
            Help::seen(
                "--reasoning-preserve (the default), and reasoning sent back",
                "reasoning_back",
                &other,
                back,
            )
        });
    }
    // The better of both is what others must beat. If it is the server's own way already, the other one.
    let (best, name) = if back.again <= out.again && !back.goes_on() {
        (back, "reasoning_back")
    } else {
        (out, "reasoning_out")
    };
    if matters(renderer, &usual, &thinking_off())? {
        let off = tried(&renderer.with_kwargs(thinking_off()), Form::TOOLS, true)?;
        let what = format!("thinking off ({})", kwarg(&thinking_off()));
        helps.extend(off.and_then(|off| Help::seen(what, name, best, &off)));
    }
    for kwargs in named(chat) {
        if kwargs == thinking_off() || !matters(renderer, &usual, &kwargs)? {
            continue;
        }
        let with = renderer.with_kwargs(kwargs.clone());
        for (sent_back, before, name) in [
            (true, back, "reasoning_back"),
            (false, out, "reasoning_out"),
        ] {
            if before.goes_on() {
                continue;
            }
            let outcome = tried(&with, Form::REASONING, sent_back)?;
            helps.extend(
                outcome.and_then(|outcome| Help::seen(kwarg(&kwargs), name, before, &outcome)),
            );
        }
    }
    Ok(())
}

fn kwarg(kwargs: &Value) -> String {
    format!("chat_template_kwargs {kwargs}")
}

/// Parameters that the template asks for, on and off. Whether they do anything is tried.
fn named(chat: &Chat) -> Vec<Value> {
    /// What llama-server gives to each template, or takes from the request.
    const GIVEN: [&str; 8] = [
        "messages",
        "tools",
        "add_generation_prompt",
        "bos_token",
        "eos_token",
        "loop",
        "strftime_now",
        "raise_exception",
    ];
    /// More than any template has that was seen.
    const MOST: usize = 12;
    let names = asked_for(&chat.template)
        .into_iter()
        .filter(|name| !GIVEN.contains(&&**name))
        .filter(|name| !name.contains("date"));
    let both = |name: String| [true, false].map(|value| json!({ name.clone(): value }));
    names.take(MOST).flat_map(both).collect()
}

/// Names of which the template asks whether they are defined.
fn asked_for(template: &str) -> BTreeSet<String> {
    let words: Vec<&str> = template
        .split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '.'))
        .filter(|word| !word.is_empty())
        .collect();
    let asked = |at: usize| match words[at..] {
        [name, "is", "defined" | "undefined" | "true" | "false", ..] => Some(name),
        [name, "is", "not", "defined" | "true" | "false", ..] => Some(name),
        _ => None,
    };
    let names = (0..words.len()).filter_map(asked);
    let names = names.filter(|name| !name.contains('.') && *name != "not");
    names.map(str::to_owned).collect()
}

/// Whether prompts go on if the reasoning stays in the content, as it was generated.
fn reasoning_in_content(renderer: &Renderer) -> Rendered<bool> {
    for open in ["<think>\n", ""] {
        let (conversation, generated) = in_content(open);
        let renderer = Renderer {
            fields: json!({"reasoning_format": "none"}),
            ..renderer.clone()
        };
        let mut all = true;
        for (nth, &said) in conversation.said().iter().enumerate() {
            let prompt = renderer.prompt(&conversation.sent(said, true), true);
            let Some(prompt) = unless_refused(prompt)? else {
                return Ok(false);
            };
            let opened = prompt.trim_end().ends_with("<think>");
            // The tag is generated where the prompt does not have it.
            let thought = if opened {
                generated[nth].clone()
            } else {
                format!("<think>\n{}", generated[nth])
            };
            let next = renderer.prompt(&conversation.sent(said + 2, true), true);
            all &= matches!(next, Ok(next) if next.starts_with(&format!("{prompt}{thought}")));
        }
        if all {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A conversation whose reasoning stands in the content, and what was generated before each message's own text.
fn in_content(open: &str) -> (Conversation, Vec<String>) {
    let mut conversation = Conversation::new(Form::REASONING);
    let mut generated = Vec::new();
    for message in &mut conversation.messages {
        let Some(reasoning) = message
            .as_object_mut()
            .and_then(|message| message.remove("reasoning_content"))
        else {
            continue;
        };
        let content = message["content"].as_str().unwrap_or_default();
        let thought = format!(
            "{}\n</think>\n\n{content}",
            reasoning.as_str().unwrap_or_default()
        );
        message["content"] = format!("{open}{thought}").into();
        generated.push(thought.trim_end().to_owned());
    }
    (conversation, generated)
}

/// What is evaluated again where reasoning is generated and never rendered: all from there on that was said.
fn dropped(renderer: &Renderer) -> Rendered<Outcome> {
    let conversation = Conversation::new(Form::TOOLS);
    let played = play(renderer, &conversation, true)?;
    let mut outcome = Outcome::default();
    for step in &played.steps {
        let at = common(&step.held[..step.prompt], &step.next);
        let new = step.next.rfind(&step.new).unwrap_or(step.next.len());
        let again = step.next[at..new.max(at)].chars().count();
        outcome.add(Some(again), step.next.chars().count(), Vec::new());
    }
    Ok(outcome)
}

/// For templates that move the system text: it stands in the first message of the user.
fn system_in_user_message(renderer: &Renderer, tools: &Outcome) -> Rendered<Option<Help>> {
    let mut conversation = Conversation::new(Form::TOOLS);
    let system = conversation.messages.remove(0);
    let text = |message: &Value| message["content"].as_str().unwrap_or_default().to_owned();
    let first = format!("{}\n\n{}", text(&system), text(&conversation.messages[0]));
    conversation.messages[0]["content"] = first.into();
    let played = unless_refused(play(renderer, &conversation, true))?;
    let what = "the system text in the first user message";
    let help = |played: Played| Help::seen(what, "tools", tools, &played.outcome(&conversation));
    Ok(played.and_then(help))
}

/// Tokens of a call that are kept. A server that cannot be started with them is no help.
pub(super) fn kept_tokens(study: &mut Study, program: &Program, chat: &Chat) {
    let (Some((call, kept)), Some(lost)) = (&study.call, &study.spelling) else {
        return;
    };
    if program.keeps_tokens(chat, call) == Ok(true) {
        let what = "CONTEXTPILOT_KEEP_TOKENS=calls";
        study.helps.extend(Help::seen(what, "spelling", lost, kept));
    }
}

/// A date that is pinned.
pub(super) fn another_day(
    study: &mut Study,
    today: &Renderer,
    tomorrow: &Renderer,
    chat: &Chat,
    before: &Outcome,
    tools: bool,
) -> Rendered<()> {
    if before.kinds.contains(&Kind::DateWithoutSystemMessage) {
        let what = "a system message of your own";
        let none = Outcome::default();
        study
            .helps
            .extend(Help::seen(what, "another_day", before, &none));
    }
    let words = asked_for(&chat.template);
    for name in words.iter().filter(|name| name.contains("date")) {
        let kwargs = json!({ name.as_str(): "26 Jul 2024" });
        let [today, tomorrow] =
            [today, tomorrow].map(|renderer| renderer.with_kwargs(kwargs.clone()));
        if let Some(pinned) = unless_refused(at_midnight(&today, &tomorrow, tools))? {
            let what = format!("a pinned date ({})", kwarg(&kwargs));
            let help = Help::seen(what, "another_day", before, &pinned);
            study.helps.extend(help);
        }
    }
    Ok(())
}
