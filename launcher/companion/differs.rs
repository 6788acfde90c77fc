//! What kind of thing differs between a prompt and an earlier one: one word and one colour for it in `why`, in `top` and on the
//! page (page/src/differs.ts, which a test compares).

use contextpilot_client::control::{Diverged, DivergedText};

/// From so many on, tokens in another order are no coincidence.
const REORDERED: u64 = 16;
/// Prompts that share fewer tokens are two prompts, if more differ: what they share is the template's.
const SHARED: u64 = 32;
/// From so many on, tokens at a difference are text of their own, and not the joint of two parts that
/// were exchanged.
const UNMATCHED: u64 = 4;

/// What differs between a prompt and an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Differs {
    Text,
    /// A date, or another text with digits, that no client has sent: the chat template wrote it.
    Dated,
    /// The answer to the earlier prompt comes back as the same text, in other tokens.
    Retokenized,
    /// It comes back as the same JSON, with other white space, or as a call with another form of gpt-oss's header.
    Spelled,
    /// It comes back otherwise than it was generated.
    Answer,
    /// It is left out, or a part of it, and nothing took its place.
    LeftOut,
    /// The same of an answer that the earlier prompt had sent back.
    LeftOutLater,
    /// A block stands further back.
    Block,
    /// What follows was sent before, in another order.
    Order,
    Both,
    /// There is other media.
    Media,
    /// It is another prompt altogether.
    Prompt,
}

impl Differs {
    pub(super) const ALL: [Self; 12] = [
        Self::LeftOut,
        Self::LeftOutLater,
        Self::Retokenized,
        Self::Spelled,
        Self::Answer,
        Self::Block,
        Self::Dated,
        Self::Text,
        Self::Order,
        Self::Both,
        Self::Media,
        Self::Prompt,
    ];

    pub(super) fn from_diverged(diverged: &Diverged) -> Self {
        if diverged.media {
            return Self::Media;
        }
        let is_left_out = is_left_out(diverged);
        let text = diverged.text.as_ref();
        match (diverged.answer, diverged.earlier_answer) {
            (true, _) if text.is_some_and(is_header) => return Self::Spelled,
            (true, _) if is_left_out => return Self::LeftOut,
            (_, true) if is_left_out => return Self::LeftOutLater,
            (true, _) if text.is_some_and(same_text) => return Self::Retokenized,
            (true, _) if text.is_some_and(same_json) => return Self::Spelled,
            (true, _) => return Self::Answer,
            _ => {}
        }
        if diverged.block > 0 {
            return Self::Block;
        }
        if diverged.at < SHARED && diverged.differing > SHARED && diverged.unmatched > SHARED {
            return Self::Prompt;
        }
        if diverged.reordered < REORDERED {
            match diverged.sent {
                Some(false) => Self::Dated,
                _ => Self::Text,
            }
        } else if diverged.unmatched < UNMATCHED {
            Self::Order
        } else {
            Self::Both
        }
    }

    /// In a word or two.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Text => "other text",
            Self::Dated => "dated by the template",
            Self::Retokenized => "tokenized otherwise",
            Self::Spelled => "spelled otherwise",
            Self::Answer => "another answer",
            Self::LeftOut => "left out",
            Self::LeftOutLater => "left out later",
            Self::Block => "moved",
            Self::Order => "in another order",
            Self::Both => "other text and order",
            Self::Media => "other media",
            Self::Prompt => "another prompt",
        }
    }

    /// Its colour, as terminals count them.
    pub(super) fn colour(self) -> u8 {
        match self {
            Self::Text => 33,
            Self::Dated => 93,
            Self::Retokenized => 95,
            Self::Spelled => 96,
            Self::Answer => 35,
            Self::LeftOut => 31,
            Self::LeftOutLater => 91,
            Self::Block => 36,
            Self::Order => 34,
            Self::Both => 94,
            Self::Media => 32,
            Self::Prompt => 90,
        }
    }
}

/// Whether something is left out, and nothing took its place (but for a token where the rest joins).
pub(super) fn is_left_out(diverged: &Diverged) -> bool {
    diverged.inserted < UNMATCHED && diverged.deleted > 4 * diverged.inserted
}

/// Whether the client has shortened what it sent before: it left text out, or put a few words in the place of much.
pub(super) fn is_shortened(diverged: &Diverged) -> bool {
    /// A longer text is another text, and not a note that something was here.
    const NOTE: u64 = 32;
    let is_note = diverged.inserted <= NOTE && diverged.deleted > 8 * diverged.inserted;
    is_left_out(diverged) || is_note
}

/// Whether the text at a difference is the same, as far as it is known.
pub(super) fn same_text(text: &DivergedText) -> bool {
    are_same(&text.old, &text.new)
}

/// Whether the text at a difference is the same but for white space, and is JSON by its look.
fn same_json(text: &DivergedText) -> bool {
    let [old, new] = [&text.old, &text.new].map(|text| {
        let shown = text.chars().filter(|character| !character.is_whitespace());
        shown.collect::<String>()
    });
    let looks_like_json = |text: &String| text.contains(['"', ':', ',', '{']);
    [&old, &new].into_iter().all(looks_like_json) && are_same(&old, &new)
}

/// Whether a call's header begins in both, in the forms that gpt-oss and its chat template have.
fn is_header(text: &DivergedText) -> bool {
    let begins =
        |text: &str| text.starts_with(" to=") || text.starts_with("<|channel|>commentary to");
    let [old, new] = [&text.old, &text.new].map(|text| text.as_str());
    let is_constrained = |text: &str| text.trim_start().starts_with("<|constrain|>");
    let behind = text.before.trim_end().ends_with("<|channel|>commentary");
    (begins(old) && begins(new)) || (behind && is_constrained(old) && !is_constrained(new))
}

/// Both are cut off somewhere.
fn are_same(old: &str, new: &str) -> bool {
    !old.is_empty() && !new.is_empty() && (old.starts_with(new) || new.starts_with(old))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_in_other_tokens_is_told_from_json_that_is_spelled_otherwise() {
        let of = |old: &str, new: &str| {
            Differs::from_diverged(&Diverged {
                answer: true,
                inserted: 5,
                deleted: 5,
                text: Some(DivergedText {
                    old: old.to_owned(),
                    new: new.to_owned(),
                    ..DivergedText::default()
                }),
                ..Diverged::default()
            })
        };
        assert_eq!(of("a text and", "a text"), Differs::Retokenized);
        assert_eq!(of("\"a\":1,\"b", "\"a\": 1, \""), Differs::Spelled);
        assert_eq!(of(":{\"a\":1}}", ": {\"a\": 1}"), Differs::Spelled);
        for (old, new) in [
            ("\"a\":1", "\"a\": 2"),
            ("two words", "twowords"),
            ("", "a"),
        ] {
            assert_eq!(of(old, new), Differs::Answer, "{old} {new}");
        }
    }

    #[test]
    fn a_date_counts_as_the_templates_only_if_no_client_sent_it() {
        let of = |sent| {
            Differs::from_diverged(&Diverged {
                at: 100,
                sent,
                ..Diverged::default()
            })
        };
        assert_eq!(of(Some(false)), Differs::Dated);
        assert_eq!(of(Some(true)), Differs::Text);
        assert_eq!(of(None), Differs::Text);
    }

    #[test]
    fn the_words_are_in_the_documentation() {
        let page = include_str!("../../docs/tools.md");
        for kind in Differs::ALL {
            let colour = kind.colour();
            let name =
                ["", "red", "green", "yellow", "blue", "magenta", "cyan"][usize::from(colour % 10)];
            let row = match colour {
                90 => format!("| {} | grey |", kind.word()),
                91.. => format!("| {} | bright {name} |", kind.word()),
                _ => format!("| {} | {name} |", kind.word()),
            };
            assert!(page.contains(&row), "{row}");
        }
    }

    /// Of one line in `KINDS`: `    left_out: { word: "left out", ansi: 31 },`
    fn line(of: Differs) -> String {
        let name = format!("{of:?}");
        let mut key = String::new();
        for (at, letter) in name.char_indices() {
            if letter.is_uppercase() && at > 0 {
                key.push('_');
            }
            key.extend(letter.to_lowercase());
        }
        format!(
            "    {key}: {{ word: {:?}, ansi: {} }},\n",
            of.word(),
            of.colour()
        )
    }

    #[test]
    fn the_page_has_the_same_words_and_colours() {
        let source = include_str!("../../page/src/differs.ts");
        let kinds: String = Differs::ALL.map(line).concat();
        assert!(
            source.contains(&format!("KINDS = {{\n{kinds}}}")),
            "{kinds}"
        );
        let style = include_str!("../../page/src/style.css");
        for kind in Differs::ALL {
            let class = format!(".ansi-{} {{", kind.colour());
            assert!(style.contains(&class), "{class}");
        }
        let all: std::collections::HashSet<u8> = Differs::ALL.map(Differs::colour).into();
        assert_eq!(
            all.len(),
            Differs::ALL.len(),
            "each has a colour of its own"
        );
    }
}
