//! Random conversations with a random vocabulary.

use contextpilot_kept_tokens::{Answers, Kept, Vocabulary};
use contextpilot_random::Random;

const LETTERS: &[u8] = b"ab <";

/// Pieces of one to four letters, and a few special tokens. The tokenizer takes the longest piece, and special tokens where
/// their text stands.
struct Words {
    pieces: Vec<Vec<u8>>,
    specials: usize,
}

impl Vocabulary for Words {
    fn piece(&self, token: i32) -> &[u8] {
        usize::try_from(token)
            .ok()
            .and_then(|token| self.pieces.get(token))
            .map_or(&[], |piece| piece)
    }

    fn token_of(&self, piece: &[u8]) -> Option<i32> {
        let found = self
            .pieces
            .iter()
            .skip(self.specials)
            .position(|known| known == piece);
        found.map(|at| (at + self.specials) as i32)
    }

    fn is_special(&self, token: i32) -> bool {
        usize::try_from(token).is_ok_and(|token| token < self.specials)
    }
}

impl Words {
    fn new(random: &mut Random) -> Self {
        let mut pieces = vec![b"<a>".to_vec(), b"<b>".to_vec()];
        let specials = pieces.len();
        pieces.extend(LETTERS.iter().map(|letter| vec![*letter]));
        while pieces.len() < 40 {
            let piece = random.words(2..5);
            if !pieces.contains(&piece) {
                pieces.push(piece);
            }
        }
        Self { pieces, specials }
    }

    fn tokenize(&self, text: &[u8]) -> Vec<i32> {
        let mut tokens = Vec::new();
        let mut at = 0;
        while at < text.len() {
            let fits = |token: &usize| text[at..].starts_with(&self.pieces[*token]);
            let special = (0..self.specials).find(fits);
            // The text before a special token is a text of its own.
            let until = (at + 1..text.len()).find(|end| {
                (0..self.specials).any(|special| text[*end..].starts_with(&self.pieces[special]))
            });
            let room = until.unwrap_or(text.len()) - at;
            let longest = || {
                let fitting = (self.specials..self.pieces.len()).filter(fits);
                let short = fitting.filter(|token| self.pieces[*token].len() <= room);
                short.max_by_key(|token| self.pieces[*token].len())
            };
            let token = special.or_else(longest).expect("each letter is a piece");
            at += self.pieces[token].len();
            tokens.push(token as i32);
        }
        tokens
    }

    fn text(&self, tokens: &[i32]) -> Vec<u8> {
        tokens
            .iter()
            .flat_map(|token| self.piece(*token).to_vec())
            .collect()
    }

    /// Where tokens end in their text.
    fn ends(&self, tokens: &[i32]) -> Vec<usize> {
        let mut end = 0;
        let ends = tokens.iter().map(|token| {
            end += self.piece(*token).len();
            end
        });
        ends.collect()
    }
}

trait Texts {
    fn words(&mut self, lengths: std::ops::Range<u64>) -> Vec<u8>;
}

impl Texts for Random {
    fn words(&mut self, lengths: std::ops::Range<u64>) -> Vec<u8> {
        let length = self.within(lengths);
        (0..length).map(|_| self.choose(LETTERS)).collect()
    }
}

/// Bytes of special tokens in a text.
fn specials(words: &Words, tokens: &[i32]) -> Vec<(usize, i32)> {
    let ends = words.ends(tokens);
    let all = tokens.iter().zip(ends);
    all.filter(|(token, _)| words.is_special(**token))
        .map(|(token, end)| (end, *token))
        .collect()
}

fn common(a: &[i32], b: &[i32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// A conversation of several turns, as a server with one slot has it. Returns how many answers were kept otherwise than the
/// tokenizer has them.
fn converse(words: &Words, answers: &mut Answers, random: &mut Random) -> usize {
    let mut text = random.words(0..60);
    let mut slot: Vec<i32> = Vec::new();
    let mut others = 0;
    for _ in 0..random.within(2..6) {
        let canonical = words.tokenize(&text);
        let kept = answers.keep(&text, &canonical, 0, words, false);
        if let Some(all @ Kept { tokens, kept, .. }) = &kept {
            assert_eq!(all.canonical(), canonical);
            assert_eq!(words.text(tokens), text);
            assert_eq!(specials(words, tokens), specials(words, &canonical));
            assert!(*kept > 0 && *tokens != canonical);
        }
        let tokens = kept.map_or(canonical.clone(), |kept| kept.tokens);
        // Up to the last place where both have a boundary, the slot's tokens are there.
        if text.starts_with(&words.text(&slot))
            && specials(words, &slot)
                .iter()
                .all(|special| specials(words, &canonical).contains(special))
            && specials(words, &canonical).iter().all(|(end, _)| {
                *end > words.text(&slot).len()
                    || specials(words, &slot).iter().any(|(other, _)| other == end)
            })
        {
            let (ours, theirs) = (words.ends(&slot), words.ends(&canonical));
            let last = ours
                .iter()
                .rposition(|end| theirs.contains(end))
                .map_or(0, |at| at + 1);
            assert!(
                common(&tokens, &slot) >= last,
                "{slot:?} {canonical:?} {tokens:?}"
            );
            others += usize::from(common(&canonical, &slot) < last);
        }
        slot = tokens;
        let answer = answers.begin(&slot);
        for _ in 0..random.within(0..30) {
            // A special token is rare.
            let first = if random.below(20) == 0 {
                0
            } else {
                words.specials as u64
            };
            let token = random.within(first..words.pieces.len() as u64) as i32;
            answers.push(answer, token);
            slot.push(token);
        }
        text = words.text(&slot);
        if random.below(4) == 0 {
            text.extend_from_slice(&words.pieces[random.index(words.specials)]);
        }
        text.extend(random.words(0..40));
    }
    others
}

#[test]
fn the_text_stays_and_answers_keep_their_tokens() {
    let mut random = Random(7);
    let mut others = 0;
    for _ in 0..60 {
        let words = Words::new(&mut random);
        let mut answers = Answers::new(100_000);
        for _ in 0..12 {
            others += converse(&words, &mut answers, &mut random);
        }
    }
    assert!(others > 600, "{others}");
}

/// A byte is a token, and some pairs are. The tokenizer takes none of these pairs.
struct Pairs(Vec<Vec<u8>>);

impl Vocabulary for Pairs {
    fn piece(&self, token: i32) -> &[u8] {
        usize::try_from(token).map_or(&[], |token| self.0.get(token).map_or(&[], |piece| piece))
    }

    fn token_of(&self, piece: &[u8]) -> Option<i32> {
        Some(self.0.iter().position(|known| known == piece)? as i32)
    }

    fn is_special(&self, token: i32) -> bool {
        token == 0
    }
}

#[test]
fn a_call_that_comes_back_spelled_otherwise_keeps_its_tokens() {
    let bytes = (1..=127).map(|byte| vec![byte]);
    let pairs = [&b"<end>"[..], b"{\"", b"\":", b"}}", b"}\n"].map(<[u8]>::to_vec);
    let [special, pairs @ ..] = pairs;
    let words = Pairs([special].into_iter().chain(bytes).chain(pairs).collect());
    let single = |text: &[u8]| -> Vec<i32> { text.iter().map(|byte| i32::from(*byte)).collect() };
    let paired = |text: &[u8]| {
        let mut tokens = Vec::new();
        let mut at = 0;
        while at < text.len() {
            let pair = text.get(at..at + 2).and_then(|two| words.token_of(two));
            tokens.push(pair.unwrap_or_else(|| i32::from(text[at])));
            at += if pair.is_some() { 2 } else { 1 };
        }
        tokens
    };
    let said = br#"I call {"name":"f","arguments":{"a":"\u00e9/","b":[1,2]}}
"#;
    let mut answers = Answers::new(10_000);
    let answer = answers.begin(&single(b"go: "));
    for token in paired(said) {
        answers.push(answer, token);
    }
    let all = [single(b"go: "), paired(said), single(b"next")].concat();
    for (back, is_it) in [
        (
            r#"{"name": "f", "arguments": {"a": "\u00E9\/", "b": [1, 2]}}"#,
            true,
        ),
        (
            r#"{"name":"f","arguments":{"a":"\u00e9/","b":[1, 2]}}"#,
            true,
        ),
        (
            r#"{"name": "f", "arguments": {"b": [1, 2], "a": "\u00e9/"}}"#,
            false,
        ),
        (
            r#"{"name": "f", "arguments": {"a": "\u00e9/", "b": [1, 3]}}"#,
            false,
        ),
        (
            r#"{"name": "g", "arguments": {"a": "\u00e9/", "b": [1, 2]}}"#,
            false,
        ),
    ] {
        let text = format!("go: I call {back}\nnext").into_bytes();
        let canonical = single(&text);
        let with = answers.keep(&text, &canonical, 0, &words, true);
        let text_of = |kept: &Kept| -> Vec<u8> {
            let pieces = kept.tokens.iter().flat_map(|token| words.piece(*token));
            pieces.copied().collect()
        };
        if is_it {
            let with = with.unwrap();
            assert_eq!(
                (with.canonical(), with.tokens),
                (canonical.clone(), all.clone()),
                "{back}"
            );
        } else {
            assert!(with.is_none_or(|kept| text_of(&kept) == text), "{back}")
        }
        let without = answers.keep(&text, &canonical, 0, &words, false);
        assert!(without.is_none_or(|kept| text_of(&kept) == text));
        // A user's own text is left alone, and so is what has a special token within.
        let elsewhere = format!("it: I call {back}\nnext").into_bytes();
        assert_eq!(
            answers.keep(&elsewhere, &single(&elsewhere), 0, &words, true),
            None
        );
        let cut = format!("go: I call {}", back.replacen("f\"", "f<end>\"", 1)).into_bytes();
        let kept = answers.keep(&cut, &single(&cut), 0, &words, true);
        assert!(kept.is_none_or(|kept| text_of(&kept) == cut));
    }
}

#[test]
fn no_more_is_remembered_than_may_be() {
    let mut random = Random(1);
    let words = Words::new(&mut random);
    let mut answers = Answers::new(2000);
    let first = answers.begin(&[5; 100]);
    for _ in 0..100 {
        converse(&words, &mut answers, &mut random);
    }
    assert!(!answers.push(first, 1));
    let long = answers.begin(&[]);
    assert!((0..10_000).any(|_| !answers.push(long, 9)));
    assert!(answers.is_empty());
}

#[test]
fn a_space_that_a_tokenizer_puts_before_a_text_is_not_in_it() {
    let words = Words {
        pieces: [&b"<s>"[..], b" a", b" ab", b"b", b"a", b" "]
            .map(<[u8]>::to_vec)
            .into(),
        specials: 1,
    };
    let mut answers = Answers::new(1000);
    let answer = answers.begin(&[0, 1]);
    answers.push(answer, 3);
    // "ab" as the tokenizer has it: the added beginning, and one token with a space in front.
    let kept = answers.keep(b"abb", &[0, 2, 3], 1, &words, false).unwrap();
    assert_eq!((&*kept.tokens, kept.kept), (&[0, 1, 3, 3][..], 2));
    // Text that only looks like a special token stays text.
    assert_eq!(answers.keep(b"<s>", &[0, 0], 1, &words, false), None);
}

#[test]
fn another_process_has_the_answers_too() {
    let mut random = Random(3);
    let words = Words::new(&mut random);
    let mut first = Answers::new(100_000);
    for _ in 0..30 {
        converse(&words, &mut first, &mut random);
    }
    let bytes = first.encode_all();
    let mut second = Answers::new(100_000);
    let newer = second.begin(&[7; 40]);
    assert!(second.push(newer, 8));
    assert_eq!(
        second.encode(newer).map(|bytes| bytes.len()),
        Some(8 + 8 + 8 + 4 * 33 + 8)
    );
    second.load(&bytes);
    // An answer that another one goes on from is left out.
    assert!(second.encode_all().len() > bytes.len() / 2);
    // It goes on.
    assert!(second.push(newer, 9));
    // Twice the same is once, and what is damaged is left out, with all behind it.
    let all = second.encode_all();
    second.load(&all);
    assert!(second.encode_all() == all);
    for _ in 0..200 {
        let mut damaged = all.clone();
        let at = random.index(damaged.len());
        damaged[at] ^= 1 << random.below(8);
        damaged.truncate(random.index(damaged.len()));
        let mut third = Answers::new(100_000);
        third.load(&damaged);
        assert!(all.starts_with(&third.encode_all()));
    }
}
