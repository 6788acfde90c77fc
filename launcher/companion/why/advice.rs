//! What would have saved evaluation, and how much of it: nothing that was not [replayed](Adviser).

use contextpilot_client::control::{Diverged, DivergedText, Evaluation, Reason};
use contextpilot_simulate::{GivenUp, Kind, Point, given_up};
use serde::Serialize;

use crate::companion::adviser::{Adviser, ChangeData, Gain, caveat, words};
use crate::companion::differs::{Differs, is_shortened};
use crate::companion::show::{bytes, count, counted, duration};

/// The least tokens that are worth a piece of advice.
const TOKENS: u64 = 64;
/// The same where an answer comes back otherwise, or a block moves, which they do with each turn.
const OF_ANSWERS: u64 = 16;
/// The least share of the evaluated tokens: a twentieth.
const SHARE: u64 = 20;
/// The least time, seconds, unless `--worth` says otherwise.
pub(super) const SECONDS: f64 = 0.1;
/// Changes that are settings of the hook.
const KEEP_TOKENS: &str = "keep_tokens";
const KEEP_CALLS: &str = "keep_calls";

/// Said where a context was freed of a server that sleeps.
const SLEPT: &str = "the server slept then (--sleep-idle-seconds), which frees all that it holds";
/// Said with `--models-max`: what a model takes is not known here.
const EACH_MODEL: &str = "each model that stays takes its memory";
/// Said where what was reused belongs to other adapters.
const OTHER_ADAPTERS: &str = "what it reused was evaluated under other LoRA adapters or scales: the server compares \
                              them only if a request names some (lora); name them in each request";

/// What would have saved some of the evaluated tokens.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Advice {
    /// Tokens of this request that would not have been evaluated.
    pub(super) tokens: u64,
    /// The time that this would have saved, at the rate of this evaluation. `None`: it was not timed.
    pub(super) seconds: Option<f64>,
    /// What to do.
    pub(super) text: String,
    #[serde(flatten)]
    pub(super) change: ChangeData,
    /// Tokens that all replayed requests would have evaluated less.
    pub(super) all: i64,
    /// Requests that were replayed.
    pub(super) requests: u64,
    /// Those of them whose replay without the change is what the engine did.
    pub(super) exact: u64,
    /// Bytes more.
    pub(super) memory: Memory,
    pub(super) answers_change: bool,
    /// Said behind the text.
    #[serde(skip)]
    cost: String,
}

/// Bytes that a change takes more, or (negative) less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Memory {
    pub(super) host_bytes: i64,
    pub(super) context_bytes: i64,
    pub(super) store_bytes: i64,
}

/// Advice for one evaluation.
#[derive(Debug, Default, Serialize)]
pub(super) struct Advised {
    /// The largest gain first.
    #[serde(rename = "advice")]
    pub(super) all: Vec<Advice>,
    /// Why there is none although tokens were lost.
    #[serde(rename = "no_advice", skip_serializing_if = "Option::is_none")]
    pub(super) none: Option<String>,
    /// What else the recent requests say of it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) notes: Vec<String>,
}

/// An evaluation, and how it can be replayed.
pub(super) struct Case<'a> {
    pub(super) evaluation: &'a Evaluation,
    /// The adviser, and which of its requests it is. `Err`: nothing can be replayed.
    pub(super) replayed: Result<(&'a Adviser, usize), &'a str>,
    /// What the earlier prompt has and this one lacks is [still sent](is_still_sent).
    pub(super) is_still_sent: bool,
}

impl Case<'_> {
    /// What would have saved `worth` seconds or more.
    pub(super) fn advised(&self, worth: f64) -> Advised {
        Advised {
            notes: self.notes(),
            ..self.changes(worth)
        }
    }

    fn notes(&self) -> Vec<String> {
        let Ok((adviser, nth)) = self.replayed else {
            return Vec::new();
        };
        let lost = self.evaluation.lost.as_ref();
        let slept = lost.is_some_and(|lost| lost.reason == Reason::ContextFreed);
        let notes = [
            (slept && adviser.recorded.server.sleep_idle_seconds.is_some()).then_some(SLEPT),
            adviser.is_of_other_adapters(nth).then_some(OTHER_ADAPTERS),
        ];
        let notes = notes.into_iter().flatten().map(str::to_owned);
        notes
            .chain(early(given_up(&adviser.traffic, nth)))
            .collect()
    }

    fn changes(&self, worth: f64) -> Advised {
        if !self.lost_enough() {
            return Advised::default();
        }
        let (adviser, nth) = match self.replayed {
            Ok(replayed) => replayed,
            Err(why) => {
                return Advised::none(format!(
                    "nothing was replayed, so there is no advice: {why}"
                ));
            }
        };
        if !adviser.is_exact(nth) {
            return Advised::none(
                "there is no advice: a replay of this request, with the server as it is, does not do what the engine \
                 did"
                    .to_owned(),
            );
        }
        let mut all: Vec<Advice> = self.of_flags(adviser, nth);
        all.extend(self.of_content(adviser, nth));
        all.retain(|advice| self.is_worth(advice, worth));
        // Of two that help as much, the one first that leaves answers as they are.
        all.sort_by_key(|advice| (std::cmp::Reverse(advice.tokens), advice.answers_change));
        let is_cheap = self
            .evaluation
            .seconds
            .is_some_and(|seconds| seconds < worth);
        let none = (all.is_empty() && !is_cheap && self.lost() >= TOKENS).then(|| {
            format!(
                "none of {} changes that were replayed would have helped it, and all requests together",
                adviser.trials().tried
            )
        });
        Advised {
            all,
            none,
            ..Advised::default()
        }
    }

    /// Tokens that were in the cache as they are here.
    fn lost(&self) -> u64 {
        let causes = &self.evaluation.causes;
        self.evaluation
            .evaluated
            .saturating_sub(causes.new + causes.repeated + causes.last_token)
    }

    fn lost_enough(&self) -> bool {
        let differs = self.evaluation.diverged.as_ref();
        let repeated = differs
            .filter(|diverged| change(diverged, self.is_still_sent).is_some())
            .map_or(0, |diverged| diverged.repeated);
        self.is_enough(self.lost().max(repeated))
    }

    fn is_enough(&self, tokens: u64) -> bool {
        let diverged = self.evaluation.diverged.as_ref();
        let of_answers =
            |diverged: &Diverged| diverged.answer || diverged.earlier_answer || diverged.block > 0;
        let least = if diverged.is_some_and(of_answers) {
            OF_ANSWERS
        } else {
            TOKENS
        };
        tokens >= least && tokens.saturating_mul(SHARE) >= self.evaluation.evaluated
    }

    fn is_worth(&self, advice: &Advice, worth: f64) -> bool {
        self.is_enough(advice.tokens) && advice.seconds.is_none_or(|seconds| seconds >= worth)
    }

    /// Of each kind of change that helps all requests together, the one that helps this one most.
    fn of_flags(&self, adviser: &Adviser, nth: usize) -> Vec<Advice> {
        let helpful = &adviser.trials().helpful;
        let gain = |at: usize| adviser.gain(nth, &helpful[at].point);
        let mut best: Vec<(Kind, usize, Gain)> = Vec::new();
        for (at, change) in helpful.iter().enumerate() {
            let gained = gain(at);
            match best.iter_mut().find(|(kind, ..)| *kind == change.kind) {
                Some(known) if gained.own > known.2.own => (known.1, known.2) = (at, gained),
                Some(_) => {}
                None => best.push((change.kind, at, gained)),
            }
        }
        let advise = |(_, at, gain): (Kind, usize, Gain)| {
            let change = &helpful[at];
            let text = words(change, &adviser.recorded);
            let text = match (change.client, change.kind) {
                (Some(_), _) => text,
                (None, Kind::Models) => format!("start the router with {text}: {EACH_MODEL}"),
                (None, _) => format!("start the server with {text}"),
            };
            let text = match caveat(change) {
                Some((_, caveat)) => format!("{text} ({caveat})"),
                None => text,
            };
            let data = ChangeData::new(change, &adviser.recorded);
            let memory = Memory::new(&change.point, &adviser.trials().recorded);
            Advice {
                answers_change: change.changes_answers(),
                ..self.advice(gain, text, data, memory)
            }
        };
        best.into_iter().map(advise).collect()
    }

    /// What the client can send otherwise.
    fn of_content(&self, adviser: &Adviser, nth: usize) -> Option<Advice> {
        let diverged = self.evaluation.diverged.as_ref()?;
        let (name, text) = change(diverged, self.is_still_sent)?;
        // The server puts the parts of such a prompt together.
        if adviser.is_infill(nth) {
            return None;
        }
        // What an image becomes is no text that could repeat.
        let media = if diverged.media {
            adviser.media_at(nth, diverged.at)
        } else {
            0
        };
        let repeated = match name {
            // This one difference goes, and none that follow it.
            "no_attribution_header" | "same_date" => diverged.same_after.min(diverged.repeated),
            _ => diverged.repeated,
        };
        let point = adviser.continued(nth, media + repeated)?;
        let gain = adviser.gain(nth, &point);
        let setting = match name {
            KEEP_TOKENS => Some("CONTEXTPILOT_KEEP_TOKENS=1"),
            KEEP_CALLS => Some("CONTEXTPILOT_KEEP_TOKENS=calls"),
            _ => None,
        };
        let data = ChangeData {
            client: setting.is_none().then_some(name),
            setting: setting.map(str::to_owned).into_iter().collect(),
            ..ChangeData::default()
        };
        let helps = gain.all > 0;
        helps.then(|| self.advice(gain, text, data, Memory::default()))
    }

    fn advice(&self, gain: Gain, text: String, change: ChangeData, memory: Memory) -> Advice {
        let evaluation = self.evaluation;
        let seconds = evaluation.seconds;
        let share = gain.own as f64 / evaluation.evaluated.max(1) as f64;
        Advice {
            tokens: gain.own,
            seconds: seconds.map(|all| all * share),
            text,
            change,
            all: gain.all,
            requests: gain.requests,
            exact: gain.exact,
            memory,
            answers_change: false,
            cost: cost(&gain, memory),
        }
    }
}

/// What clients evaluated of a prompt that they gave up, where one of them asked again too early.
fn early(given_up: GivenUp) -> Option<String> {
    given_up.is_early.then(|| {
        format!(
            "it came before the server had let go of what was given up: {} had been evaluated for {} until then",
            counted(given_up.evaluated, "token"),
            counted(u64::from(given_up.requests), "request"),
        )
    })
}

impl Advised {
    fn none(why: String) -> Self {
        Self {
            none: Some(why),
            ..Self::default()
        }
    }
}

impl Memory {
    fn new(point: &Point, now: &Point) -> Self {
        let more = |then: u64, now: u64| then as i64 - now as i64;
        Self {
            host_bytes: more(point.host_bytes, now.host_bytes),
            context_bytes: more(point.context_bytes, now.context_bytes),
            store_bytes: more(point.store_bytes, now.store_bytes),
        }
    }
}

impl Advice {
    /// `would have saved 1,010 tokens, 3.1 s: …`
    pub(super) fn line(&self) -> String {
        let time = match self.seconds {
            Some(seconds) => format!(", {}", duration(seconds)),
            None => String::new(),
        };
        format!(
            "would have saved {}{time}: {} [{}]",
            counted(self.tokens, "token"),
            self.text,
            self.cost,
        )
    }
}

/// What the change brings all requests, and what it takes.
fn cost(gain: &Gain, memory: Memory) -> String {
    let all = u64::try_from(gain.all).unwrap_or(0);
    let mut text = match gain.requests {
        1 => "replayed".to_owned(),
        requests => format!(
            "replayed: {} of the {} that {} requests evaluated",
            count(all),
            count(gain.of),
            count(requests)
        ),
    };
    if gain.costs.0 > 0 {
        let (requests, tokens) = gain.costs;
        text += &format!(
            "; {} of them would have evaluated {} more",
            count(requests),
            count(tokens)
        );
    }
    if gain.exact < gain.requests {
        text += &format!(
            "; without the change, {} are replayed exactly",
            count(gain.exact)
        );
    }
    for (more, what) in [
        (memory.host_bytes, "host memory"),
        (memory.context_bytes, "for the context"),
        (memory.store_bytes, "on disk"),
    ] {
        if let Ok(more @ 1..) = u64::try_from(more) {
            text += &format!("; {} more {what}", bytes(more));
        }
    }
    text
}

/// Whether the difference is in the line with which Claude Code begins its system prompt:
/// `x-anthropic-billing-header: cc_version=2.1.197.3f2; …`
fn is_version_of_claude(text: &DivergedText) -> bool {
    let value = text
        .before
        .rsplit_once("cc_version=")
        .map(|(_, value)| value);
    value.is_some_and(|value| {
        value
            .chars()
            .all(|character| character.is_ascii_alphanumeric() || character == '.')
    })
}

/// What chat templates write before a date that they put in a prompt, and what helps: the templates of Llama 3, of gpt-oss, and others
/// that do so only where there is no system message (Granite, Mistral).
const DATES: [(&str, &str); 4] = [
    (
        "Today Date: ",
        "pin it for each request by \"chat_template_kwargs\": {\"date_string\": …}, and say the day in the last message",
    ),
    (
        "Current date: ",
        "gpt-oss's has no kwarg for it, so that a copy of it with a fixed date helps (--chat-template-file); Apertus' and \
         muse-glimmer's (which has the kwarg current_date) write it only where there is no system message",
    ),
    ("Today's Date: ", "send a system message"),
    (
        "The current date is ",
        "send a system message; Solar's has it all the same, and a copy of it with a fixed date (--chat-template-file)",
    ),
];

/// What helps against a date that stands at a difference, as chat templates write it.
fn of_date(text: &DivergedText) -> Option<&'static str> {
    /// Of a date, so many characters may be the same: `2026-11-`.
    const SAME: usize = 16;
    let both = [&text.old, &text.new];
    if !both
        .iter()
        .all(|text| text.starts_with(|character: char| character.is_ascii_alphanumeric()))
    {
        return None;
    }
    let found = DATES.iter().find(|(label, _)| {
        let (_, begun) = text.before.rsplit_once(label).unwrap_or(("", "\n"));
        begun.len() <= SAME && !begun.contains('\n')
    });
    found.map(|(_, helps)| *helps)
}

/// How much a request was in JSON, and its prompt in tokens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Length {
    pub(super) bytes: u64,
    pub(super) tokens: u64,
}

/// Whether a request still has so many tokens that the earlier prompt had and its own lacks: it is no shorter, and by its bytes its
/// prompt would have them. A token of one text has more bytes than one of another, so little of a prompt cannot be told.
pub(super) fn is_still_sent(earlier: Length, now: Length, left_out: u64) -> bool {
    /// So much of the earlier prompt, or more.
    const PART: u64 = 8;
    let [bytes, tokens] = [now.bytes, earlier.tokens].map(u128::from);
    let expected = bytes * tokens / u128::from(earlier.bytes.max(1));
    let missing = expected.saturating_sub(u128::from(now.tokens));
    now.bytes >= earlier.bytes
        && left_out.saturating_mul(PART) >= earlier.tokens
        && missing * 4 >= u128::from(left_out) * 3
}

/// What would have made a prompt go on like the earlier one: its name, and in words.
fn change(diverged: &Diverged, is_still_sent: bool) -> Option<(&'static str, String)> {
    let last = "put what changes (a date, an id) behind what stays the same";
    let as_before = "keep the earlier answer as it came back before: some chat templates leave reasoning out of it from the next \
                      user message on (contextpilot-llama template names what helps: a kwarg, or to leave reasoning out from \
                      the start)";
    let order =
        "in the same order each time (a list of tools or documents, the keys of a JSON object)";
    let date = diverged.text.as_ref().and_then(of_date);
    Some(match Differs::from_diverged(diverged) {
        Differs::Prompt => return None,
        Differs::Media => ("same_media", "send media as the same file each time".to_owned()),
        Differs::Retokenized => (
            KEEP_TOKENS,
            "start the server with CONTEXTPILOT_KEEP_TOKENS=1: the answer comes back in other tokens".to_owned(),
        ),
        Differs::Spelled => (
            KEEP_CALLS,
            "start the server with CONTEXTPILOT_KEEP_TOKENS=calls: a call, or other JSON, comes back spelled otherwise than it was \
             generated"
                .to_owned(),
        ),
        Differs::Dated => (
            "same_date",
            format!(
                "keep what changes there; no client sent it, but the server's chat template wrote it: {}",
                date.unwrap_or(
                    "the time, as a rule, which a copy of the template without it does not have (--chat-template-file); \
                     contextpilot-llama template says what else helps"
                )
            ),
        ),
        Differs::LeftOut => (
            "left_out",
            "send back what was generated there (as a rule reasoning, in reasoning_content): it is left out, and nothing \
             took its place; some chat templates never show it (contextpilot-llama template says)"
                .to_owned(),
        ),
        Differs::LeftOutLater => ("left_out_later", as_before.to_owned()),
        Differs::Block => (
            "same_place",
            format!(
                "leave the {} from token {} on where they stood: some chat templates move tools or system text to the last \
                 message (contextpilot-llama template says; another template helps)",
                counted(diverged.block, "token"),
                count(diverged.at)
            ),
        ),
        Differs::Answer => (
            "same_answers",
            "send answers back as they were generated: with their reasoning, if the chat template keeps it \
             (contextpilot-llama template says); for the same text in other tokens, start the server with \
             CONTEXTPILOT_KEEP_TOKENS=1"
                .to_owned(),
        ),
        Differs::Text if diverged.text.as_ref().is_some_and(is_version_of_claude) => (
            "no_attribution_header",
            "start Claude Code with CLAUDE_CODE_ATTRIBUTION_HEADER=0, so that its system prompt does not begin with a line \
             of its version, which changes"
                .to_owned(),
        ),
        Differs::Text if date.is_some() && diverged.sent == Some(true) => (
            "same_date",
            "keep the date there, which the request has: in a message, or as date_string in its chat_template_kwargs".to_owned(),
        ),
        Differs::Text if date.is_some() => (
            "same_date",
            format!(
                "keep the date there; the chat template writes it, if no client does: {}",
                date.unwrap_or_default()
            ),
        ),
        // What is left of it may be in other tokens, as they are kept by what stands before them.
        Differs::Text if diverged.earlier_answer => ("same_answers", as_before.to_owned()),
        Differs::Text if is_shortened(diverged) && is_still_sent => (
            "left_out_by_template",
            "keep that text in the prompt: the request still has it, by its size, so the chat template left it out (some leave \
             out system text or tools while a tool is called; contextpilot-llama template says; another template helps)"
                .to_owned(),
        ),
        Differs::Text if is_shortened(diverged) => (
            "shortened",
            "leave out earlier text (as a client does that shortens its conversation, or trims results of tools) seldom, and much \
             of it at once: what is behind it is evaluated again each time"
                .to_owned(),
        ),
        Differs::Text => ("changes_last", last.to_owned()),
        Differs::Order => (
            "same_order",
            format!("send what follows token {} {order}", count(diverged.at)),
        ),
        Differs::Both => ("changes_last_same_order", format!("{last}, and send that {order}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn length(bytes: u64, tokens: u64) -> Length {
        Length { bytes, tokens }
    }

    #[test]
    fn a_text_that_a_template_leaves_out_is_still_sent() {
        // A system text of 500 tokens is gone; a call and its result are new, in 1,000 bytes of JSON.
        assert!(is_still_sent(length(5000, 1000), length(6000, 600), 500));
        // The client has trimmed a result of 2,000 bytes.
        assert!(!is_still_sent(length(5000, 1000), length(4000, 700), 500));
        // It has trimmed one, and there are as many tokens of another message.
        assert!(!is_still_sent(length(5000, 1000), length(5100, 1020), 500));
        // Too few to be told from tokens of another length.
        assert!(!is_still_sent(length(5000, 1000), length(6000, 600), 100));
        assert!(!is_still_sent(length(0, 0), length(10, 0), 1));
    }

    #[test]
    fn who_left_a_text_out_is_said() {
        let diverged = Diverged {
            at: 40,
            deleted: 500,
            differing: 500,
            ..Diverged::default()
        };
        let name = |is_still_sent| change(&diverged, is_still_sent).map(|(name, _)| name);
        assert_eq!(name(true), Some("left_out_by_template"));
        assert_eq!(name(false), Some("shortened"));
    }
}
