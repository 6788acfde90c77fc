//! `--propose`: rules for `--stabilise`, from the differences that the last prompts had.

use std::collections::{BTreeMap, HashSet};

use contextpilot_client::control::{Diverged, Evaluated, Evaluation};
use contextpilot_proxy::{Proposal, propose, propose_order};
use contextpilot_simulate::Difference;

use super::advisers::Advisers;
use crate::companion::differs::Differs;
use crate::companion::show::{Visible, count, counted, duration};

/// How often something must have been seen.
const SEEN: usize = 2;

/// One rule, and the prompts that it would have helped.
#[derive(Default)]
struct Seen {
    times: usize,
    /// Those of the recent requests that the server keeps.
    prompts: Vec<usize>,
    tokens: u64,
    seconds: f64,
    /// What was found the last time, and what the model would have read. Without both: another order.
    example: Option<Proposal>,
}

/// A file of rules, from the last prompts.
pub(super) fn rules(advisers: &Advisers) -> String {
    let latest = &advisers.latest;
    let mut all = BTreeMap::<String, Seen>::new();
    let mut without_text = 0;
    for (evaluated, place) in latest {
        let evaluation = &evaluated.evaluation;
        let Some(diverged) = &evaluation.diverged else {
            continue;
        };
        let tokens = would_save(evaluation, diverged);
        if tokens == 0 {
            continue;
        }
        let (rule, example) = match Differs::from_diverged(diverged) {
            Differs::Order => (propose_order(), None),
            Differs::Text | Differs::Both => {
                match (&diverged.text, proposal(evaluated, diverged)) {
                    (Some(_), Some(proposal)) => (proposal.rule.clone(), Some(proposal)),
                    (Some(_), None) => continue,
                    (None, _) => {
                        without_text += 1;
                        continue;
                    }
                }
            }
            Differs::Dated
            | Differs::Retokenized
            | Differs::Spelled
            | Differs::Answer
            | Differs::LeftOut
            | Differs::LeftOutLater
            | Differs::Block
            | Differs::Media
            | Differs::Prompt => continue,
        };
        let seen = all.entry(rule).or_default();
        seen.times += 1;
        seen.prompts.extend(place);
        seen.tokens += tokens;
        let rate = evaluation.seconds.unwrap_or_default() / evaluation.evaluated.max(1) as f64;
        seen.seconds += rate * tokens as f64;
        seen.example = seen.example.take().or(example);
    }
    let mut all: Vec<_> = all
        .into_iter()
        .filter(|(_, seen)| seen.times >= SEEN)
        .collect();
    all.sort_by_key(|(_, seen)| std::cmp::Reverse(seen.tokens));
    let mut text = match (all.len(), latest.len()) {
        (0, prompts @ 0..2) => format!(
            "# A rule is proposed for what was seen twice or more. Prompts so far: {prompts}\n"
        ),
        (0, prompts) => format!(
            "# None of the last {} prompts left an earlier one at something that a rule puts right, twice or more\n",
            count(prompts as u64)
        ),
        _ => "# Read it, keep the rules that are right, and start: contextpilot-llama up --stabilise FILE\n".to_owned(),
    };
    if without_text > 0 {
        text += &format!(
            "# The text of {} is not known: start the server with CONTEXTPILOT_EXPLAIN_TEXT=1\n",
            counted(without_text, "difference")
        );
    }
    let mut names = HashSet::new();
    for (number, (mut rule, seen)) in all.into_iter().enumerate() {
        // Two rules of one name are an error.
        if !names.insert(rule.lines().nth(1).map(str::to_owned)) {
            rule = rule.replacen("\"\nin = ", &format!("-{number}\"\nin = "), 1);
        }
        text += &format!("\n{}{}{rule}", comment(&seen), replayed(&seen, advisers));
    }
    text
}

/// Tokens that would not have been evaluated without the difference.
fn would_save(evaluation: &Evaluation, diverged: &Diverged) -> u64 {
    let behind = match Differs::from_diverged(diverged) {
        Differs::Order => diverged.repeated,
        // Up to the next difference, and as far as it was still cached.
        _ => diverged.same_after.min(diverged.repeated),
    };
    let same = diverged.at.saturating_add(behind);
    let most = evaluation
        .evaluated
        .saturating_sub(evaluation.causes.last_token);
    same.saturating_sub(evaluation.reused).min(most)
}

fn proposal(evaluated: &Evaluated, diverged: &Diverged) -> Option<Proposal> {
    let text = diverged.text.as_ref()?;
    // Where in the prompt a section ends is not known: its share of the request says about where.
    let is_system = evaluated.sections.is_some_and(|sections| {
        let first = sections.system + sections.tools;
        let all = first + sections.messages;
        let (at, prompt) = (diverged.at, evaluated.evaluation.prompt_tokens);
        sections.system > 0
            && u128::from(at) * u128::from(all) <= u128::from(first) * u128::from(prompt)
    });
    let texts = [&*text.old, &*text.new];
    propose(&text.before, texts, evaluated.sections.is_some(), is_system)
}

fn comment(seen: &Seen) -> String {
    let Seen { times, tokens, .. } = seen;
    let times = count(*times as u64);
    let tokens = count(*tokens);
    let time = duration(seen.seconds);
    let first =
        format!("# Seen {times} times: {tokens} tokens, {time}, were evaluated again for it\n");
    let second = match &seen.example {
        None => "# The model would read tools, and their members, in one order\n".to_owned(),
        Some(proposal) => {
            let (found, instead) = (Visible(&proposal.found), Visible(&proposal.instead));
            format!(
                "# The last time there was: “{found}”\n# The model would read “{instead}” there\n"
            )
        }
    };
    first + &second
}

/// What the rule would have saved, by replay.
fn replayed(seen: &Seen, advisers: &Advisers) -> String {
    let Ok(adviser) = &advisers.adviser else {
        return String::new();
    };
    let difference = match &seen.example {
        Some(_) => Difference::Text,
        None => Difference::Order,
    };
    let Some(then) = adviser.put_right(&seen.prompts, difference) else {
        return String::new();
    };
    let [then, now] =
        [&then, &adviser.trials().simulated].map(|point| count(point.evaluated_tokens));
    let all = counted(adviser.traffic.requests.len() as u64, "recent request");
    format!("# Replayed: with this rule, {all} would have evaluated {then} tokens, not {now}\n")
}

#[cfg(test)]
mod tests {
    use contextpilot_client::control::{DivergedText, Sections, Timestamp};
    use contextpilot_proxy::Stabiliser;

    use super::*;

    /// A prompt that left an earlier one at a UUID, in its system prompt or behind.
    fn left_at(at: u64) -> Evaluated {
        let diverged = Diverged {
            at,
            same_after: 500,
            repeated: 500,
            text: Some(DivergedText {
                before: "Session 6f9619ff-8b86-d011-b42d-00cf4fc964f".to_owned(),
                old: "f it is".to_owned(),
                new: "e it is".to_owned(),
                old_differs: None,
                new_differs: None,
            }),
            ..Diverged::default()
        };
        Evaluated {
            number: 1,
            id: None,
            at: Timestamp::from_unix_ms(0),
            slot: 0,
            time_to_first_token_seconds: None,
            ended: None,
            sections: Some(Sections {
                system: 500,
                tools: 0,
                messages: 500,
            }),
            evaluation: Evaluation {
                prompt_tokens: 1000,
                reused: at,
                evaluated: 1000 - at,
                diverged: Some(diverged),
                ..Evaluation::default()
            },
        }
    }

    #[test]
    fn rules_of_one_kind_for_two_places_have_two_names() {
        let text = rules(&advisers([100, 200, 450, 600, 700].map(left_at)));
        let rules = Stabiliser::read(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let names: Vec<_> = rules.used().map(|(name, _)| name).collect();
        assert_eq!(names, ["uuid", "uuid-1"], "{text}");
        assert!(text.contains("# Seen 3 times: 1,500 tokens"), "{text}");
        assert!(rules_without_text().contains("The text of 1 difference is"));
    }

    /// Without a recording.
    fn advisers<const N: usize>(latest: [Evaluated; N]) -> Advisers {
        Advisers {
            latest: latest.map(|evaluated| (evaluated, None)).into(),
            adviser: Err(String::new()),
        }
    }

    fn rules_without_text() -> String {
        let mut evaluated = left_at(100);
        if let Some(diverged) = &mut evaluated.evaluation.diverged {
            diverged.text = None;
        }
        rules(&advisers([evaluated]))
    }
}
