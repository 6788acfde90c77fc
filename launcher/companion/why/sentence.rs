//! An evaluation in words.

use contextpilot_client::control::{
    AppliedAdapter, Causes, Diverged, DivergedText, Evaluation, Lost, RequestName, Sources, Through,
};

use super::advice::Advised;
use crate::companion::differs::{Differs, same_text};
use crate::companion::show::{Moment, Visible, count, counted, duration};
use crate::companion::words::{self, cause, lost as how, request};

/// A few lines, the last of which say what to do.
pub(super) fn text(name: &RequestName, evaluation: &Evaluation, advised: &Advised) -> String {
    let Evaluation {
        prompt_tokens,
        reused,
        evaluated,
        seconds,
        causes,
        from,
        adapters,
        given_up,
        attempts,
        kept,
        diverged,
        lost,
        title,
    } = evaluation;
    let mut text = format!(
        "{}  {}: {} reused{}, {} evaluated{}\n",
        request(name),
        of_tokens(*prompt_tokens),
        count(*reused),
        sources(from),
        count(*evaluated),
        seconds.map_or(String::new(), |took| format!(" in {}", duration(took))),
    );
    let mut hidden = false;
    let mut line = |line: String| text += &format!("    {line}\n");
    if let Some(title) = title {
        line(words::title(title));
    }
    if *given_up {
        line("its client left then: there may be more of the prompt".to_owned());
    }
    if *attempts > 0 {
        line(format!(
            "clients gave up {} before it that begin like this",
            counted(*attempts, "request")
        ));
    }
    if *kept > 0 {
        line(as_generated(*kept));
    }
    line(because(causes));
    if let Some(adapters) = adapters.as_ref().filter(|all| !all.is_empty()) {
        line(format!("under the LoRA adapters {}", applied(adapters)));
    }
    if let Some(diverged) = diverged {
        line(left(diverged, *prompt_tokens, *evaluated));
        match &diverged.text {
            Some(text) => line(quoted(text)),
            None if diverged.at < *prompt_tokens && !diverged.media => hidden = true,
            None => {}
        }
    }
    if let Some(lost) = lost {
        line(how_lost(lost, causes.evicted));
    }
    if causes.not_known * 2 > *evaluated {
        line(NOT_KNOWN.to_owned());
    }
    for note in &advised.notes {
        line((*note).to_owned());
    }
    for advice in &advised.all {
        line(format!("→ {}", advice.line()));
    }
    if let Some(none) = &advised.none {
        line(none.clone());
    }
    if hidden && !advised.all.is_empty() {
        line(SHOWS_TEXT.to_owned());
    }
    text
}

/// A prompt has so many tokens of answers, where the tokenizer has others.
fn as_generated(kept: u64) -> String {
    let they = if kept == 1 { "it was" } else { "they were" };
    format!("{} kept as {they} generated", counted(kept, "token"))
}

/// Said if there is advice, and the text at a difference is not shown.
const SHOWS_TEXT: &str =
    "(a server that was started with CONTEXTPILOT_EXPLAIN_TEXT=1 shows the text there)";

/// The text around a difference.
fn quoted(text: &DivergedText) -> String {
    let [before, old, new] = [&text.before, &text.old, &text.new].map(|text| Visible(text));
    if same_text(text) {
        format!("behind “{before}” it is the same text in other tokens: “{new}”")
    } else {
        format!("behind “{before}” it was “{old}” and is “{new}”")
    }
}

/// Said if most causes are not known.
const NOT_KNOWN: &str = "most causes are not known: what was in the slots is forgotten, or events were \
                         lost; CONTEXTPILOT_EXPLAIN_MB is how much is remembered";

/// `0, 1 at 0.5`: each by its id, and how strongly it was applied unless wholly.
fn applied(adapters: &[AppliedAdapter]) -> String {
    let shown = |adapter: &AppliedAdapter| {
        let id = adapter.id.map_or("?".to_owned(), |id| id.to_string());
        if adapter.scale == 1.0 {
            id
        } else {
            format!("{id} at {}", adapter.scale)
        }
    };
    adapters.iter().map(shown).collect::<Vec<_>>().join(", ")
}

/// ` (from the slot)`, or nothing.
fn sources(from: &Sources) -> String {
    let all = [
        (from.slot, "from the slot"),
        (from.host, "from the host cache"),
        (from.checkpoint, "from a checkpoint"),
        (from.moved, "moved up in the slot"),
        (from.store, "from the prefix store"),
    ];
    let used: Vec<_> = all.iter().filter(|(tokens, _)| *tokens > 0).collect();
    match used.as_slice() {
        [] => String::new(),
        [(_, place)] => format!(" {place}"),
        several => {
            let each: Vec<String> = several
                .iter()
                .map(|(n, place)| format!("{} {place}", count(*n)))
                .collect();
            format!(" ({})", each.join(", "))
        }
    }
}

/// The causes, the largest first.
fn because(causes: &Causes) -> String {
    let mut all: Vec<(&str, u64)> = causes.all().into_iter().filter(|(_, n)| *n > 0).collect();
    all.sort_by_key(|&(_, tokens)| std::cmp::Reverse(tokens));
    let each: Vec<String> = all
        .into_iter()
        .map(|(name, tokens)| format!("{} {}", count(tokens), cause(name)))
        .collect();
    each.join(", ")
}

/// The line about a difference begins with this.
pub(super) const LEFT: &str = "it left";

/// Where the prompt diverged from an earlier one.
fn left(diverged: &Diverged, tokens: u64, evaluated: u64) -> String {
    let whose = match &diverged.request {
        Some(name) => format!("{}'s", request(name)),
        None => "an earlier one".to_owned(),
    };
    let at = format!(
        "{LEFT} {whose} at token {} of {}",
        count(diverged.at),
        count(tokens)
    );
    let repeated = of_tokens(diverged.repeated);
    let at = if diverged.answer {
        format!("{at}, in the answer that was generated there")
    } else if diverged.earlier_answer {
        format!("{at}, in an answer that had come back before")
    } else {
        at
    };
    let differs = Differs::from_diverged(diverged);
    let at = match differs {
        Differs::Dated
        | Differs::Retokenized
        | Differs::Spelled
        | Differs::LeftOut
        | Differs::LeftOutLater
        | Differs::Block => format!("{at} ({})", differs.word()),
        _ => at,
    };
    match differs {
        Differs::Text
        | Differs::Dated
        | Differs::Retokenized
        | Differs::Spelled
        | Differs::Answer
        | Differs::LeftOut
        | Differs::LeftOutLater => {}
        Differs::Block => {
            let block = of_tokens(diverged.block);
            return format!(
                "{at}: a block of {block} that stood there stands further back, behind what came behind it"
            );
        }
        Differs::Media => {
            return format!(
                "{at}: the image (or other media) there is not the same file: its bytes differ, also if it \
                 looks the same"
            );
        }
        Differs::Prompt => return format!("{at}: it is another prompt"),
        Differs::Order => {
            return format!("{at}: {repeated} from there on are the same in another order");
        }
        Differs::Both => {
            let own = of_tokens(diverged.unmatched);
            return format!(
                "{at}: {own} differ, and {repeated} behind are the same in another order"
            );
        }
    }
    let Diverged {
        inserted, deleted, ..
    } = *diverged;
    let edit = match (inserted, deleted) {
        (new, 0) => format!("{} inserted", of_tokens(new)),
        (0, old) => format!("{} left out", of_tokens(old)),
        (new, old) if new == old => match new {
            1 => "1 token differs".to_owned(),
            _ => format!("{} differ", of_tokens(new)),
        },
        (new, old) => format!("{} in place of {}", of_tokens(new), count(old)),
    };
    let same = match diverged.same_after {
        0 => "nothing behind is the same".to_owned(),
        1 => "the one behind is the same".to_owned(),
        same => format!("the {} behind are the same", count(same)),
    };
    let rest = inserted.saturating_add(diverged.same_after);
    let all =
        diverged.at.saturating_add(rest) >= tokens && evaluated >= rest && diverged.same_after > 0;
    let rest = if all {
        format!("; all {} had to be evaluated", count(evaluated))
    } else {
        String::new()
    };
    format!("{at}: {edit}, {same}{rest}")
}

fn of_tokens(number: u64) -> String {
    counted(number, "token")
}

/// `evicted`: all tokens that were.
fn how_lost(lost: &Lost, evicted: u64) -> String {
    let by = lost.by.as_ref().map(ToString::to_string);
    let tokens = match lost.tokens {
        tokens if tokens > 0 && tokens < evicted => {
            format!("{} of these {}", count(tokens), count(evicted))
        }
        _ => of_tokens(evicted),
    };
    format!(
        "{tokens} evicted at {}: {}",
        Moment::from(lost.when).of_day(),
        match lost.through {
            Some(Through::Erase) => "a client erased the slot".to_owned(),
            Some(Through::Restore) => "a client restored something else into the slot".to_owned(),
            Some(Through::NoRoom) =>
                "the context of all slots was full, and the server emptied this one".to_owned(),
            Some(Through::Swap) =>
                "the router ended this model's process, to make room for another model".to_owned(),
            Some(Through::Unload) =>
                "the router ended this model's process, as a client unloaded the model".to_owned(),
            Some(Through::Other) | None => how(lost.reason, by.as_deref()),
        }
    )
}

#[cfg(test)]
mod tests {
    use contextpilot_client::control::{
        Elsewhere, FilesRead, PrefixStore, Reason, Timestamp, UnfinishedPrompt,
    };

    use super::*;
    use crate::companion::under_way;

    fn evaluation() -> Evaluation {
        Evaluation {
            prompt_tokens: 9_800,
            reused: 57,
            evaluated: 9_743,
            seconds: Some(2.04),
            causes: Causes {
                last_token: 1,
                new: 9_742,
                ..Causes::default()
            },
            from: Sources {
                slot: 57,
                ..Sources::default()
            },
            diverged: Some(Diverged {
                at: 57,
                request: Some(RequestName::Id("req-812".to_owned())),
                differing: 6,
                same_after: 9_737,
                inserted: 6,
                deleted: 6,
                repeated: 9_737,
                reordered: 0,
                unmatched: 6,
                ..Diverged::default()
            }),
            ..Evaluation::default()
        }
    }

    fn lines(evaluation: &Evaluation) -> Vec<String> {
        let name = RequestName::Number(813);
        let text = text(&name, evaluation, &Advised::default());
        text.lines().map(|line| line.trim().to_owned()).collect()
    }

    #[test]
    fn a_change_at_the_beginning_is_described() {
        let lines = lines(&evaluation());
        assert_eq!(
            lines[..3],
            [
                "#813  9,800 tokens: 57 reused from the slot, 9,743 evaluated in 2.0 s",
                "9,742 new, 1 last token",
                "it left req-812's at token 57 of 9,800: 6 tokens differ, the 9,737 behind are the \
                 same; all 9,743 had to be evaluated",
            ]
        );
    }

    #[test]
    fn a_loss_is_described_with_time_reason_and_request() {
        let lines = lines(&Evaluation {
            causes: Causes {
                last_token: 1,
                evicted: 9_740,
                elsewhere: Elsewhere {
                    busy: 2,
                    ..Elsewhere::default()
                },
                ..Causes::default()
            },
            diverged: None,
            lost: Some(Lost {
                when: Timestamp::from_unix_ms(0),
                reason: Reason::DroppedFromHost,
                by: Some(RequestName::Number(7)),
                through: None,
                tokens: 9_740,
                chosen_by: None,
                similarity: None,
                kept: None,
            }),
            ..evaluation()
        });
        assert_eq!(lines[1], "9,740 evicted, 2 in a busy slot, 1 last token");
        assert!(
            lines[2].starts_with("9,740 tokens evicted at "),
            "{lines:?}"
        );
        assert!(lines[2].ends_with("dropped from host by #7"), "{lines:?}");
    }

    #[test]
    fn another_order_is_described_as_that() {
        let reordered = Diverged {
            at: 57,
            reordered: 800,
            repeated: 9_700,
            same_after: 30,
            ..Diverged::default()
        };
        let lines = lines(&Evaluation {
            diverged: Some(reordered.clone()),
            ..evaluation()
        });
        let left = "it left an earlier one at token 57 of 9,800: 9,700 tokens from there on are the same \
                    in another order";
        assert_eq!(lines[2], left);
        let dated = Diverged {
            unmatched: 8,
            ..reordered
        };
        let lines = self::lines(&Evaluation {
            diverged: Some(dated),
            ..evaluation()
        });
        let left = "8 tokens differ, and 9,700 tokens behind are the same in another order";
        assert!(lines[2].ends_with(left), "{lines:?}");
    }

    const EXAMPLES: &str = "page/test/words.json";

    /// The page says the same by functions of its own (page/src/sentence.ts): it must do so for these examples
    /// (page/test/words.mjs).
    #[test]
    fn the_page_has_examples_of_all_that_is_said() {
        use serde_json::{Value, json};

        let base = Diverged {
            at: 1200,
            request: Some(RequestName::Number(7)),
            differing: 40,
            same_after: 2000,
            inserted: 40,
            deleted: 40,
            repeated: 2000,
            reordered: 0,
            unmatched: 40,
            ..Diverged::default()
        };
        let edits = [
            (1, 1),
            (5, 5),
            (1, 0),
            (0, 1),
            (3000, 0),
            (0, 2),
            (1, 4),
            (4, 1),
        ];
        let mut all: Vec<Diverged> = Vec::new();
        for (inserted, deleted) in edits {
            for same_after in [0, 1, 2000] {
                all.push(Diverged {
                    inserted,
                    deleted,
                    same_after,
                    ..base.clone()
                });
            }
        }
        for at in [0, 31, 32] {
            for (reordered, unmatched) in [(0, 33), (15, 3), (16, 3), (16, 4), (16, 33), (16, 1)] {
                let diverged = Diverged {
                    at,
                    reordered,
                    unmatched,
                    ..base.clone()
                };
                let [answer, media] = [true, false].map(|answer| Diverged {
                    answer,
                    media: !answer,
                    ..diverged.clone()
                });
                all.extend([diverged, answer, media]);
            }
            for (inserted, deleted) in [(0, 300), (3, 300), (40, 40)] {
                let diverged = Diverged {
                    at,
                    inserted,
                    deleted,
                    ..base.clone()
                };
                let [earlier, block] = [true, false].map(|earlier_answer| Diverged {
                    earlier_answer,
                    block: u64::from(!earlier_answer) * 200,
                    ..diverged.clone()
                });
                let answer = Diverged {
                    answer: true,
                    block: 200,
                    ..diverged
                };
                all.extend([earlier, block, answer]);
            }
        }
        for sent in [true, false] {
            all.push(Diverged {
                sent: Some(sent),
                ..base.clone()
            });
        }
        for (old, new) in [
            ("a text and", "a text"),
            ("\"a\":1,\"b", "\"a\": 1"),
            ("a text", "atext"),
            ("<|channel|>commentary to", " to=functions.read<|chan"),
            ("<|channel|>commentary to", "<|channel|>final<|messag"),
        ] {
            all.push(Diverged {
                answer: true,
                text: Some(DivergedText {
                    old: old.to_owned(),
                    new: new.to_owned(),
                    ..DivergedText::default()
                }),
                ..base.clone()
            });
        }
        let mut lefts: Vec<Value> = Vec::new();
        for diverged in all {
            for (tokens, evaluated) in [(3240, 2040), (3201, 2001)] {
                let says = left(&diverged, tokens, evaluated);
                let row = json!({"diverged": diverged, "tokens": tokens, "evaluated": evaluated, "says": says});
                lefts.push(row);
            }
        }
        let when = Timestamp::from_unix_ms(0);
        let mut losses: Vec<Value> = Vec::new();
        let ways = [Through::Erase, Through::Restore, Through::NoRoom]
            .map(|way| (Reason::Cleared, Some(way)));
        let reasons = Reason::ALL.map(|reason| (reason, None));
        for (reason, through) in reasons.into_iter().chain(ways) {
            for (by, tokens, evicted) in [(None, 1, 1), (Some(7), 1000, 1000), (Some(7), 5, 9000)] {
                let lost = Lost {
                    when,
                    reason,
                    by: by.map(RequestName::Number),
                    through,
                    tokens,
                    chosen_by: None,
                    similarity: None,
                    kept: None,
                };
                // The time of day is of another zone elsewhere.
                let says =
                    how_lost(&lost, evicted).replacen(&Moment::from(when).of_day(), "then", 1);
                losses.push(json!({"lost": lost, "evicted": evicted, "says": says}));
            }
        }
        let kept = [1, 41, 1000].map(|kept| json!({"kept": kept, "says": as_generated(kept)}));
        let unfinished = |evaluated, (tokens_per_second, in_batch), tokens, seconds_left| {
            let prompt = UnfinishedPrompt {
                reused: 1000,
                seconds: 61.0,
                evaluated,
                in_batch,
                tokens,
                seconds_left,
                tokens_per_second,
                ..UnfinishedPrompt::default()
            };
            json!({"says": under_way::so_far(&prompt), "prompt": prompt})
        };
        let under_way = [
            unfinished(0, (None, 0), None, None),
            unfinished(0, (None, 1), None, None),
            unfinished(0, (None, 512), Some(3000), Some(75.2)),
            unfinished(1024, (Some(16.6), 512), Some(3000), Some(9.6)),
            unfinished(1024, (Some(3.21), 512), Some(2500), Some(0.3)),
            {
                let prompt = UnfinishedPrompt {
                    in_batch: 512,
                    client_left: true,
                    seconds: 61.0,
                    ..UnfinishedPrompt::default()
                };
                json!({"says": under_way::so_far(&prompt), "prompt": prompt})
            },
        ];
        let reading = [
            None,
            Some(FilesRead {
                bytes_read: 1_300_000_000,
                bytes: 40_000_000_000,
            }),
        ];
        let not_in_use = reading.map(|reading| {
            let store = PrefixStore {
                reading,
                ..PrefixStore::default()
            };
            json!({"reading": reading, "says": under_way::not_in_use(&store)})
        });
        let lines = |all: &[Value]| {
            let lines: Vec<String> = all.iter().map(Value::to_string).collect();
            lines.join(",\n")
        };
        let all = [
            ("left", &lefts[..]),
            ("lost", &losses),
            ("kept", &kept),
            ("under_way", &under_way),
            ("not_in_use", &not_in_use),
        ];
        let all = all.map(|(name, all)| format!("\"{name}\":[\n{}\n]", lines(all)));
        let written = format!("{{{}}}\n", all.join(","));
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(EXAMPLES);
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&path, &written).unwrap();
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == written,
            "{EXAMPLES} is not what is said now: UPDATE=1 cargo test --lib sentence writes it"
        );
    }

    #[test]
    fn insertions_and_deletions_are_described() {
        let of = |inserted, deleted| {
            let diverged = Diverged {
                at: 5,
                inserted,
                deleted,
                same_after: 1,
                ..Diverged::default()
            };
            left(&diverged, 1000, 900)
        };
        let start = "it left an earlier one at token 5 of 1,000: ";
        let end = ", the one behind is the same";
        assert_eq!(of(3, 0), format!("{start}3 tokens inserted{end}"));
        assert_eq!(of(0, 1), format!("{start}1 token left out{end}"));
        assert_eq!(of(1, 1), format!("{start}1 token differs{end}"));
        assert_eq!(of(1, 4), format!("{start}1 token in place of 4{end}"));
    }
}
