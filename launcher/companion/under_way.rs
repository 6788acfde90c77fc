//! Prompts that are being evaluated, in words.

use contextpilot_client::control::{RequestName, Slot, Stats, UnfinishedPrompt};

use super::show::{count, duration, number};
use super::words::{self, request};

/// The slots that evaluate a prompt now, each with it.
pub(super) fn prompts(stats: &Stats) -> impl Iterator<Item = (&Slot, &UnfinishedPrompt)> {
    let slots = stats.slots.iter();
    slots.filter_map(|slot| Some((slot, slot.prompt.as_ref()?)))
}

/// The prompt of this request, by its id or its number, if it is being evaluated now.
pub(super) fn prompt_of<'a>(
    stats: &'a Stats,
    request: &str,
) -> Option<(&'a Slot, &'a UnfinishedPrompt)> {
    let number = number(request).filter(|number| *number > 0);
    let is_its = |one: &UnfinishedPrompt| match &one.id {
        Some(id) => id == request,
        None => number == Some(one.number),
    };
    prompts(stats).find(|(_, prompt)| is_its(prompt))
}

/// Whose prompt it is.
pub(super) fn name(prompt: &UnfinishedPrompt) -> String {
    match (&prompt.id, prompt.number) {
        (Some(id), _) => request(&RequestName::Id(id.clone())),
        (None, 0) => "a prompt".to_owned(),
        (None, number) => request(&RequestName::Number(number)),
    }
}

/// `#1 is being evaluated: 0 reused, 512 evaluated so far in 12 s, 41 tokens/s`. How many are still to come,
/// the server tells nobody.
pub(super) fn line((slot, prompt): (&Slot, &UnfinishedPrompt)) -> String {
    let name = match &slot.last_title {
        Some(title) => format!("{} ({})", name(prompt), words::title(title)),
        None => name(prompt),
    };
    let took = duration(prompt.seconds);
    match prompt.tokens_per_second {
        Some(rate) => format!(
            "{name} is being evaluated: {} reused, {} evaluated so far in {took}, {} tokens/s",
            count(prompt.reused),
            count(prompt.evaluated),
            self::rate(rate)
        ),
        None => format!("{name} is being evaluated: no batch of it has ended yet, after {took}"),
    }
}

/// The same in a few words.
pub(super) fn short(prompt: &UnfinishedPrompt) -> String {
    let name = name(prompt);
    match prompt.tokens_per_second {
        Some(rate) => format!(
            "{name}: {} evaluated so far, {} tokens/s",
            count(prompt.evaluated),
            self::rate(rate)
        ),
        None => format!("{name}: first batch, for {}", duration(prompt.seconds)),
    }
}

fn rate(rate: f64) -> String {
    match rate {
        ..9.95 => format!("{rate:.1}"),
        _ => count(rate.round() as u64),
    }
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
        prompt = UnfinishedPrompt {
            id: Some("tea\n".to_owned()),
            reused: 1000,
            evaluated: 2048,
            seconds: 61.0,
            tokens_per_second: Some(33.6),
            ..prompt
        };
        let later = "tea\\n is being evaluated: 1,000 reused, 2,048 evaluated so far in 1 min 1 s, 34 tokens/s";
        assert_eq!(line((&slot, &prompt)), later);
        slot.last_title = Some(Title {
            words: "A cup of tea".to_owned(),
            agent: "curl/8".to_owned(),
        });
        let named = "tea\\n (“A cup of tea”, from curl/8) is being evaluated: 1,000 reused";
        assert!(line((&slot, &prompt)).starts_with(named));
        prompt = UnfinishedPrompt {
            id: None,
            number: 0,
            tokens_per_second: Some(3.21),
            ..prompt
        };
        assert_eq!(
            short(&prompt),
            "a prompt: 2,048 evaluated so far, 3.2 tokens/s"
        );
    }
}
