//! What is going on, in words: prompts that are being evaluated, and what must be read before.

use contextpilot_client::control::{
    ModelState, PrefixStore, RequestName, Slot, Stats, UnfinishedPrompt,
};

use super::show::{Visible, bytes, count, counted, duration, number, seconds_of, span};
use super::words::{self, request};

/// The slots that evaluate a prompt now, each with it.
pub(super) fn prompts(stats: &Stats) -> impl Iterator<Item = (&Slot, &UnfinishedPrompt)> {
    let slots = stats.slots.iter();
    slots.filter_map(|slot| Some((slot, slot.prompt.as_ref()?)))
}

/// The prompt of this request, by its id or its number (`#17`, or `17` if that is no id), if it is being evaluated now.
pub(super) fn prompt_of<'a>(
    stats: &'a Stats,
    request: &str,
) -> Option<(&'a Slot, &'a UnfinishedPrompt)> {
    let number = number(request)
        .or_else(|| request.parse().ok())
        .filter(|number| *number > 0);
    let of_id = prompts(stats).find(|(_, prompt)| prompt.id.as_deref() == Some(request));
    let is_numbered =
        |prompt: &UnfinishedPrompt| prompt.id.is_none() && number == Some(prompt.number);
    of_id.or_else(|| prompts(stats).find(|(_, prompt)| is_numbered(prompt)))
}

/// The request that the prompt belongs to.
pub(super) fn name(prompt: &UnfinishedPrompt) -> String {
    match (&prompt.id, prompt.number) {
        (Some(id), _) => request(&RequestName::Id(id.clone())),
        (None, 0) => "a prompt".to_owned(),
        (None, number) => request(&RequestName::Number(number)),
    }
}

/// What is so while no prompt has been evaluated, or no slot was used: the server may still load its model, and the
/// prefix store may not be in use.
pub(super) fn nothing_yet(stats: &Stats, nothing: &str) -> String {
    if let Some(why) = &stats.engine.not_followed {
        return format!("Nothing is followed: {}", Visible(why));
    }
    let so_far = match stats.model_state {
        ModelState::Loading => {
            let name = stats.model.as_ref().map(|model| Visible(&model.name));
            let name = name.map_or(String::new(), |name| format!(" {name}"));
            let up = span(seconds_of(stats.uptime_seconds));
            format!("{nothing}: llama-server has been loading its model{name} for {up}")
        }
        _ => nothing.to_owned(),
    };
    match stats.store.as_ref().and_then(not_in_use) {
        Some(why) => format!("{so_far}; the prefix store is {why}"),
        None => so_far,
    }
}

/// `#1 is being evaluated: 0 reused, 2,048 evaluated so far in 12 s, 171 tokens/s; 2,089 of 4,137 tokens remain, about 12 s`.
pub(super) fn line((slot, prompt): (&Slot, &UnfinishedPrompt)) -> String {
    let name = match &slot.last_title {
        Some(title) => format!("{} ({})", name(prompt), words::title(title)),
        None => name(prompt),
    };
    format!("{name} is being evaluated: {}", so_far(prompt))
}

/// How far a prompt has come, and how long it still takes.
pub(super) fn so_far(prompt: &UnfinishedPrompt) -> String {
    let took = duration(prompt.seconds);
    if prompt.client_left {
        return format!(
            "its client has left, and llama-server stops behind this batch, of {}; {} reused, {} evaluated before it, in {took}",
            counted(prompt.in_batch, "token"),
            count(prompt.reused),
            count(prompt.evaluated),
        );
    }
    let so_far = match prompt.tokens_per_second {
        Some(rate) => format!(
            "{} reused, {} evaluated so far in {took}, {} tokens/s",
            count(prompt.reused),
            count(prompt.evaluated),
            self::rate(rate)
        ),
        None if prompt.in_batch > 0 => format!(
            "its first batch, of {}, has not ended yet, after {took}",
            counted(prompt.in_batch, "token")
        ),
        None => format!("no batch of it has ended yet, after {took}"),
    };
    let all = prompt.tokens.map(|all| {
        let left = all.saturating_sub(prompt.reused + prompt.evaluated);
        format!("; {} of {} remain", count(left), counted(all, "token"))
    });
    let time = prompt.seconds_left.map(|left| format!(", {}", about(left)));
    let (all, time) = (all.unwrap_or_default(), time.unwrap_or_default());
    format!("{so_far}{all}{time}")
}

/// The same in a few words.
pub(super) fn short(prompt: &UnfinishedPrompt) -> String {
    let name = name(prompt);
    if prompt.client_left {
        return format!("{name}: its client has left, last batch");
    }
    let done = prompt.reused + prompt.evaluated;
    let so_far = match (prompt.tokens, prompt.tokens_per_second) {
        (Some(all), _) => format!("{} of {}", count(done), count(all)),
        (None, Some(rate)) => format!(
            "{} evaluated so far, {} tokens/s",
            count(prompt.evaluated),
            self::rate(rate)
        ),
        (None, None) => format!("first batch, for {}", duration(prompt.seconds)),
    };
    match prompt.seconds_left {
        Some(left) => format!("{name}: {so_far}, {}", about(left)),
        None => format!("{name}: {so_far}"),
    }
}

fn about(left: f64) -> String {
    match left {
        ..0.95 => "about a second".to_owned(),
        _ => format!("about {}", span(seconds_of(left.round()))),
    }
}

fn rate(rate: f64) -> String {
    match rate {
        ..9.95 => format!("{rate:.1}"),
        _ => count(rate.round() as u64),
    }
}

/// Why the prefix store is not in use, if it is not yet. If it never will be, its problem says why.
pub(super) fn not_in_use(store: &PrefixStore) -> Option<String> {
    if store.lost {
        return None;
    }
    let why = match (store.ready, store.reading) {
        (true, _) => return None,
        (false, Some(files)) => {
            let (read, all) = (bytes(files.bytes_read), bytes(files.bytes));
            format!(
                "{read} of {all} of the files of model and engine were read, to know which they are"
            )
        }
        (false, None) => "its folder is still being read".to_owned(),
    };
    Some(format!("not in use yet: {why}"))
}

#[cfg(test)]
mod tests {
    use contextpilot_client::control::Title;

    use super::*;

    #[test]
    fn whose_prompt_it_is_and_how_far_is_said() {
        let mut prompt = UnfinishedPrompt {
            number: 17,
            seconds: 4.0,
            ..UnfinishedPrompt::default()
        };
        let first = "#17 is being evaluated: no batch of it has ended yet, after 4.0 s";
        let mut slot = Slot::default();
        assert_eq!(line((&slot, &prompt)), first);
        assert_eq!(short(&prompt), "#17: first batch, for 4.0 s");
        prompt.tokens = Some(4137);
        let counted = format!("{first}; 4,137 of 4,137 tokens remain");
        assert_eq!(line((&slot, &prompt)), counted);
        assert_eq!(short(&prompt), "#17: 0 of 4,137");
        prompt.in_batch = 2048;
        let batch = "#17 is being evaluated: its first batch, of 2,048 tokens, has not ended yet, after 4.0 s; 4,137 of";
        assert!(line((&slot, &prompt)).starts_with(batch));
        prompt.in_batch = 0;
        prompt.seconds_left = Some(24.4);
        assert_eq!(line((&slot, &prompt)), format!("{counted}, about 24 s"));
        assert_eq!(short(&prompt), "#17: 0 of 4,137, about 24 s");
        prompt = UnfinishedPrompt {
            id: Some("tea\n".to_owned()),
            reused: 1000,
            evaluated: 2048,
            seconds: 61.0,
            tokens_per_second: Some(33.6),
            seconds_left: Some(0.2),
            ..prompt
        };
        let later = "tea\\n is being evaluated: 1,000 reused, 2,048 evaluated so far in 1 min 1 s, 34 tokens/s; 1,089 of \
                     4,137 tokens remain, about a second";
        assert_eq!(line((&slot, &prompt)), later);
        let left = UnfinishedPrompt {
            client_left: true,
            in_batch: 64,
            ..prompt.clone()
        };
        assert_eq!(
            line((&slot, &left)),
            "tea\\n is being evaluated: its client has left, and llama-server stops behind this batch, of 64 tokens; \
             1,000 reused, 2,048 evaluated before it, in 1 min 1 s"
        );
        assert_eq!(short(&left), "tea\\n: its client has left, last batch");
        slot.last_title = Some(Title {
            words: "A cup of tea".to_owned(),
            agent: "curl/8".to_owned(),
        });
        let named = "tea\\n (“A cup of tea”, from curl/8) is being evaluated: 1,000 reused";
        assert!(line((&slot, &prompt)).starts_with(named));
        prompt = UnfinishedPrompt {
            id: None,
            number: 0,
            tokens: None,
            seconds_left: None,
            tokens_per_second: Some(3.21),
            ..prompt
        };
        assert_eq!(
            short(&prompt),
            "a prompt: 2,048 evaluated so far, 3.2 tokens/s"
        );
    }
}
