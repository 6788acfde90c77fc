//! `warm`: has a prompt evaluated, or loaded from the prefix store, before it is needed. `keep` and `release`: the same, and says
//! how long the store keeps it.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use contextpilot_client::Control;
use contextpilot_client::control::Evaluation;
use contextpilot_settings::env;
use serde_json::{Map, Value, json};

use self::kept::{Asked, Verdict};
use super::connect::ControlAt;
use super::engine::{ServerAt, server_says};
use super::index::ids;
use super::show::{count, counted, print_as};

mod kept;

/// Have a prompt evaluated, or loaded from the prefix store, before it is needed
///
/// Sends the prompt in a file to the server, which generates nothing but the one
/// token that it always does. What another prompt has in common with it, and that
/// comes while it is in a slot, in the host cache or in the prefix store, is then not
/// evaluated.
#[derive(Args)]
#[command(after_help = "Examples:
  contextpilot-llama warm prompt.txt
  contextpilot-llama warm body.json --api messages
  curl -s http://wiki/agent.json | contextpilot-llama warm -")]
pub(super) struct WarmOptions {
    #[command(flatten)]
    sent: Sent,
}

/// Have the prefix store keep a prompt for a while
///
/// As `warm`; and then other prompts leave the store before this one, as long as
/// all that is kept takes no more than a quarter of its budget. The exit code is 1 if
/// it is not kept. `store` shows what is kept. A client says the same in its request, with
/// "cache_control": {"type": "ephemeral", "ttl": "1h"}.
#[derive(Args)]
#[command(after_help = "Examples:
  contextpilot-llama keep agent.json
  contextpilot-llama keep agent.json --for 8h")]
pub(super) struct Keep {
    #[command(flatten)]
    sent: Sent,
    /// How long: a number of seconds, or with s, m, h or d
    #[arg(long = "for", value_name = "TIME", default_value = "1h", value_parser = lifetime)]
    lifetime: String,
}

/// Have the prefix store keep a prompt no longer
///
/// As `warm`; and then the prompt, and what was kept of its beginnings, leaves the
/// store in its turn again. A client says the same in its request, with
/// "cache_control": {"type": "ephemeral", "ttl": 0}.
#[derive(Args)]
#[command(after_help = "Example:
  contextpilot-llama release agent.json")]
pub(super) struct Release {
    #[command(flatten)]
    sent: Sent,
}

#[derive(Args)]
struct Sent {
    /// The body of a request as JSON, as a client would send it, or a text; - for
    /// standard input
    file: PathBuf,
    /// For what the body is. Otherwise \"input\" says that it is for responses,
    /// \"messages\" with \"system\" beside it for messages, \"messages\" for chat,
    /// \"prompt\" or a text for completion
    #[arg(long)]
    api: Option<Api>,
    #[command(flatten)]
    server: ServerAt,
    #[command(flatten)]
    control: ControlAt,
    /// Print JSON: prompt_tokens, reused, loaded (null without a hook), evaluated,
    /// seconds; of keep: kept (null if that is not known)
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Api {
    /// OpenAI's /v1/chat/completions
    Chat,
    /// OpenAI's /v1/responses
    Responses,
    /// Anthropic's /v1/messages
    Messages,
    /// llama-server's own /completion
    Completion,
}

impl Api {
    fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Responses => "/v1/responses",
            Self::Messages => "/v1/messages",
            Self::Completion => "/completion",
        }
    }

    /// The members that say how much is generated.
    fn limits(self) -> &'static [&'static str] {
        match self {
            // The server takes both, and has a rule for which counts.
            Self::Chat => &["max_tokens", "max_completion_tokens", "n_predict"],
            Self::Responses => &["max_output_tokens"],
            Self::Messages => &["max_tokens"],
            Self::Completion => &["n_predict"],
        }
    }

    /// For what a body is.
    fn from_body(body: &Map<String, Value>) -> Option<Self> {
        let has = |name: &str| body.contains_key(name);
        match () {
            () if has("input") => Some(Self::Responses),
            () if has("messages") && has("system") => Some(Self::Messages),
            () if has("messages") => Some(Self::Chat),
            () if has("prompt") => Some(Self::Completion),
            () => None,
        }
    }
}

/// A time in seconds, as the server understands it: at most 31 days.
fn seconds(lifetime: &str) -> u64 {
    let (number, unit) = match lifetime.strip_suffix(['s', 'm', 'h', 'd']) {
        Some(number) => (number, &lifetime[number.len()..]),
        None => (lifetime, "s"),
    };
    let unit = match unit {
        "m" => 60,
        "h" => 3600,
        "d" => 24 * 3600,
        _ => 1,
    };
    let number: u64 = number.parse().unwrap_or(0);
    number.saturating_mul(unit).min(31 * 24 * 3600)
}

/// A time as the server reads it.
fn lifetime(text: &str) -> Result<String, String> {
    let number = text.strip_suffix(['s', 'm', 'h', 'd']).unwrap_or(text);
    match number.parse::<u32>() {
        Ok(1..) => Ok(text.to_owned()),
        _ => Err("a time is a number with s, m, h or d behind it, such as 8h".to_owned()),
    }
}

pub(super) fn run(options: &WarmOptions) -> Result<(), String> {
    send(&options.sent, None)
}

pub(super) fn keep(options: &Keep) -> Result<(), String> {
    send(&options.sent, Some(&options.lifetime))
}

pub(super) fn release(options: &Release) -> Result<(), String> {
    send(&options.sent, Some("0"))
}

/// `lifetime`: how long the store is to keep it. `None`: nothing is said of that.
fn send(options: &Sent, lifetime: Option<&str>) -> Result<(), String> {
    let (api, mut body) = request(read(&options.file)?, options.api)
        .map_err(|why| format!("{} {why}", options.file.display()))?;
    if let Some(lifetime) = lifetime {
        let control = json!({"type": "ephemeral", "ttl": lifetime});
        body.insert("cache_control".to_owned(), control);
    }
    let id = match body.get("rid").or_else(|| body.get("request_id")) {
        Some(Value::String(id)) => id.clone(),
        _ => {
            let id = ids::new();
            body.insert("rid".to_owned(), id.clone().into());
            id
        }
    };
    let (server, control) = options.server.clients(&options.control)?;
    let keeps = lifetime.filter(|lifetime| *lifetime != "0");
    let before = control.as_ref().and_then(|control| control.stats().ok());
    let has_salt = body.contains_key("cache_salt") || body.contains_key("lora");
    let start = Instant::now();
    let answer = server
        .generate(api.path(), &body.into())
        .map_err(|error| server_says(&server, &error))?;
    let seconds = start.elapsed().as_secs_f64();
    let account = control.as_ref().and_then(|control| account(control, &id));
    let figures = match &account {
        Some(account) => Figures {
            reused: account.reused,
            loaded: Some(account.from.store),
            evaluated: account.evaluated,
        },
        None => Figures::said(&answer).ok_or_else(|| {
            format!("What the server at {} answers has no usage: is it a llama-server of 2025 or later?", server.address())
        })?,
    };
    let mut value = json!({
        "prompt_tokens": figures.reused + figures.evaluated,
        "reused": figures.reused,
        "loaded": figures.loaded,
        "evaluated": figures.evaluated,
        "seconds": seconds,
    });
    let has_store = before.as_ref().map(|stats| stats.store.is_some());
    let before = before.map(|stats| (stats.at, stats.store));
    let verdict = match (keeps, control, before) {
        (Some(lifetime), Some(control), Some((at, Some(before)))) => {
            let adapters = account
                .as_ref()
                .and_then(|account| account.adapters.as_ref());
            let asked = Asked {
                id: &id,
                seconds: self::seconds(lifetime),
                at,
                before,
                is_plain: !has_salt && adapters.is_none_or(Vec::is_empty),
            };
            asked.look(&control)
        }
        (Some(_), _, Some((_, None))) => Verdict::NotKept(NO_STORE.to_owned()),
        _ => Verdict::NotKnown,
    };
    if keeps.is_some() {
        value["kept"] = match verdict {
            Verdict::Kept => true.into(),
            Verdict::NotKept(_) => false.into(),
            Verdict::NotKnown => Value::Null,
        };
    }
    let said = lifetime.map(|lifetime| asked(lifetime, has_store, &verdict));
    print_as(options.json, &value, || {
        figures.text(seconds) + &said.unwrap_or_default()
    })?;
    match verdict {
        Verdict::NotKept(why) => Err(format!("It is not kept: {why}")),
        Verdict::Kept | Verdict::NotKnown => Ok(()),
    }
}

const NO_STORE: &str = "this server has no prefix store: start it with CONTEXTPILOT_STORE";

/// What became of what the store was asked, if that is no error. `has_store`: whether the server has one. `None`: that is not
/// known.
fn asked(lifetime: &str, has_store: Option<bool>, verdict: &Verdict) -> String {
    let is_number = lifetime.bytes().all(|byte| byte.is_ascii_digit());
    let unit = if is_number { " s" } else { "" };
    match (has_store, lifetime, verdict) {
        (None, ..) => "No hook says whether it is kept\n".to_owned(),
        (Some(false), "0", _) => format!(
            "This server has no prefix store, so nothing is kept there: start it with {}\n",
            env::STORE
        ),
        (Some(true), "0", _) => "The prefix store was asked to keep it no longer\n".to_owned(),
        (_, _, Verdict::Kept) => format!(
            "The prefix store keeps it for {lifetime}{unit}: contextpilot-llama store shows it within seconds\n"
        ),
        (_, _, Verdict::NotKnown) => format!(
            "The prefix store was asked to keep it for {lifetime}{unit}; whether it does is not known of a prompt with a salt or \
             adapters: contextpilot-llama store lists what is kept\n"
        ),
        (_, _, Verdict::NotKept(_)) => String::new(),
    }
}

fn read(file: &Path) -> Result<String, String> {
    let mut text = String::new();
    let read = if file.as_os_str() == "-" {
        io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        fs::read_to_string(file)
    };
    read.map_err(|e| {
        format!(
            "{} cannot be read ({e}): name a file of text or JSON",
            file.display()
        )
    })
}

/// The request that evaluates a prompt and no more.
fn request(text: String, api: Option<Api>) -> Result<(Api, Map<String, Value>), String> {
    let (api, mut body) = match serde_json::from_str(&text) {
        Ok(Value::Object(body)) => match api.or_else(|| Api::from_body(&body)) {
            Some(api) => (api, body),
            None => {
                return Err(
                    "has no prompt, messages or input: say with --api what it is for".to_owned(),
                );
            }
        },
        _ if api.is_some_and(|api| api != Api::Completion) => {
            return Err("is no JSON object: leave --api out for a text".to_owned());
        }
        _ => (
            Api::Completion,
            Map::from_iter([("prompt".to_owned(), text.into())]),
        ),
    };
    for limit in api.limits() {
        body.insert((*limit).to_owned(), 0.into());
    }
    body.insert("stream".to_owned(), false.into());
    body.remove("stream_options");
    // Others would evaluate it again, in other slots.
    body.remove("n");
    Ok((api, body))
}

/// The hook's account, which may come a moment after the answer.
fn account(control: &Control, id: &str) -> Option<Evaluation> {
    const WAITS: [u64; 6] = [0, 5, 20, 100, 500, 2_000];
    WAITS.into_iter().find_map(|wait| {
        sleep(Duration::from_millis(wait));
        control.request(id).ok()?.evaluation().cloned()
    })
}

/// Tokens of the prompt.
#[derive(Debug, PartialEq, Eq)]
struct Figures {
    reused: u64,
    /// `None`: not known.
    loaded: Option<u64>,
    evaluated: u64,
}

impl Figures {
    /// What the answer says. What a prefix store has loaded is in it as evaluated, unless a proxy of ours was asked.
    fn said(answer: &Value) -> Option<Self> {
        let of = |reused: &Value, evaluated: &Value| {
            Some(Self {
                reused: reused.as_u64()?,
                loaded: None,
                evaluated: evaluated.as_u64()?,
            })
        };
        let (timings, usage) = (&answer["timings"], &answer["usage"]);
        let whole = || {
            let cached = usage["input_tokens_details"]["cached_tokens"].as_u64()?;
            let evaluated = usage["input_tokens"].as_u64()?.checked_sub(cached)?;
            of(&cached.into(), &evaluated.into())
        };
        of(&timings["cache_n"], &timings["prompt_n"])
            .or_else(|| of(&usage["cache_read_input_tokens"], &usage["input_tokens"]))
            .or_else(whole)
    }

    fn text(&self, seconds: f64) -> String {
        let all = self.reused + self.evaluated;
        let are = if all == 1 { "is" } else { "are" };
        let all = counted(all, "token");
        let there = count(self.reused - self.loaded.unwrap_or(0).min(self.reused));
        let evaluated = count(self.evaluated);
        match self.loaded {
            Some(loaded) => format!(
                "{all} {are} cached now: {there} before, {} from the prefix store, {evaluated} evaluated, \
                 in {seconds:.2} s\n",
                count(loaded)
            ),
            None => format!(
                "{all} {are} cached now: {there} before, {evaluated} evaluated, in {seconds:.2} s (no hook \
                 says what of it a prefix store has loaded)\n"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_for_what_its_members_say() {
        let of = |text: &str| request(text.to_owned(), None).map(|(api, _)| api);
        assert_eq!(of(r#"{"messages":[]}"#), Ok(Api::Chat));
        assert_eq!(of(r#"{"messages":[],"system":""}"#), Ok(Api::Messages));
        assert_eq!(of(r#"{"input":""}"#), Ok(Api::Responses));
        assert_eq!(of(r#"{"prompt":[1]}"#), Ok(Api::Completion));
        assert_eq!(of("Tea"), Ok(Api::Completion));
        assert_eq!(of("[1]"), Ok(Api::Completion));
        assert!(of("{}").is_err());
        assert!(request("Tea".to_owned(), Some(Api::Chat)).is_err());
    }

    #[test]
    fn keeping_says_what_is_kept_for_how_long_and_what_is_not_known() {
        let of = |lifetime| asked(lifetime, Some(true), &Verdict::Kept);
        assert!(of("8h").contains("keeps it for 8h:"), "{}", of("8h"));
        assert!(of("90").contains("keeps it for 90 s:"), "{}", of("90"));
        assert!(of("0").contains("no longer"), "{}", of("0"));
        let refused = Verdict::NotKept("full".to_owned());
        assert_eq!(asked("8h", Some(true), &refused), "");
        let unknown = asked("8h", Some(true), &Verdict::NotKnown);
        assert!(unknown.contains("not known"), "{unknown}");
        let none = asked("0", Some(false), &Verdict::NotKnown);
        assert!(none.contains(env::STORE), "{none}");
        assert_eq!(
            ["90", "2m", "8h", "99d"].map(seconds),
            [90, 120, 28_800, 2_678_400]
        );
    }

    #[test]
    fn nothing_is_generated_and_the_rest_stays() {
        let text = r#"{"messages":[1],"max_tokens":99,"stream":true,"stream_options":{},"n":3,"tools":[]}"#;
        let (_, body) = request(text.to_owned(), None).expect("a request");
        let right = json!({"messages": [1], "max_tokens": 0, "max_completion_tokens": 0, "n_predict": 0,
            "stream": false, "tools": []});
        assert_eq!(Value::from(body), right);
    }

    #[test]
    fn figures_are_read_in_each_api() {
        let figures = |reused, evaluated| {
            Some(Figures {
                reused,
                loaded: None,
                evaluated,
            })
        };
        let read = |answer| Figures::said(&answer);
        assert_eq!(
            read(json!({"timings": {"cache_n": 4, "prompt_n": 9}})),
            figures(4, 9)
        );
        let messages = json!({"usage": {"cache_read_input_tokens": 4, "input_tokens": 9}});
        assert_eq!(read(messages), figures(4, 9));
        let responses =
            json!({"usage": {"input_tokens": 13, "input_tokens_details": {"cached_tokens": 4}}});
        assert_eq!(read(responses), figures(4, 9));
        assert_eq!(read(json!({})), None);
    }
}
