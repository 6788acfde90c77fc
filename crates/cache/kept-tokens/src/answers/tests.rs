use super::*;

/// Token `n` below 200 is two letters, above it one.
struct Letters {
    pieces: Vec<Vec<u8>>,
}

impl Letters {
    fn new() -> Self {
        let double = (0..200u8).map(|n| vec![b'a' + n / 16, b'a' + n % 16]);
        let single = (0..16).map(|n| vec![b'a' + n]);
        Self {
            pieces: double.chain(single).collect(),
        }
    }

    fn text(&self, tokens: &[i32]) -> Vec<u8> {
        tokens
            .iter()
            .flat_map(|token| self.piece(*token).to_vec())
            .collect()
    }
}

impl Vocabulary for Letters {
    fn piece(&self, token: i32) -> &[u8] {
        &self.pieces[token as usize]
    }

    fn token_of(&self, piece: &[u8]) -> Option<i32> {
        let found = self.pieces.iter().position(|known| known == piece);
        found.map(|at| at as i32)
    }

    fn is_special(&self, _: i32) -> bool {
        false
    }
}

fn answer(answers: &mut Answers, before: &[i32], tokens: &[i32]) -> AnswerId {
    let id = answers.begin(before);
    tokens
        .iter()
        .for_each(|token| assert!(answers.push(id, *token)));
    id
}

#[test]
fn a_draft_that_is_cut_leaves_what_was_generated_before_it() {
    let before: Vec<i32> = (0..BEFORE as i32 + 9).collect();
    let mut cut = Answers::new(1000);
    let id = answer(&mut cut, &before, &[70, 71, 72, 73]);
    cut.truncate(id, 3);
    let mut straight = Answers::new(1000);
    let same = answer(&mut straight, &before, &[70, 71, 72]);
    assert_eq!(cut.encode(id), straight.encode(same));
    assert_eq!(cut.tokens, straight.tokens);
}

#[test]
fn of_two_answers_with_one_text_the_newest_is_kept() {
    let vocabulary = Letters::new();
    // "abc" and "d" as "a", "bc", "d" and as "a", "b", "cd".
    let (first, second) = ([200, 0x12, 203], [200, 201, 0x23]);
    let canonical = [40, 0x01, 0x23, 41];
    let text = vocabulary.text(&canonical);
    for newest in [first, second] {
        let mut answers = Answers::new(1000);
        let older = if newest == first { second } else { first };
        answer(&mut answers, &[40], &older);
        answer(&mut answers, &[40], &newest);
        let kept = answers.keep(&text, &canonical, 0, &vocabulary, false);
        let expected = [&[40], &newest[..], &[41]].concat();
        assert_eq!(kept.map(|kept| kept.tokens), Some(expected));
    }
}

/// The answer that reaches farthest may have the tokenizer's own tokens. What follows it stays in the prompt.
#[test]
fn an_answer_in_the_tokenizers_tokens_leaves_what_follows_it() {
    let vocabulary = Letters::new();
    // "a" as the tokenizer has it, and a token of two of them.
    let (single, double) = (200, 0);
    let mut answers = Answers::new(10_000);
    answer(
        &mut answers,
        &[single; BEFORE + 1],
        &[single, single, single, double],
    );
    answer(&mut answers, &[single; BEFORE + 3], &[single; 10]);
    answer(
        &mut answers,
        &[single; BEFORE + 48],
        &[single, double, single],
    );
    let canonical = [single; 100];
    let text = vocabulary.text(&canonical);
    let kept = answers
        .keep(&text, &canonical, 0, &vocabulary, false)
        .unwrap();
    assert_eq!(vocabulary.text(&kept.tokens), text);
    assert_eq!((kept.kept, kept.canonical()), (1, canonical.to_vec()));
}

#[test]
fn what_was_forgotten_between_others_takes_no_memory() {
    let mut answers = Answers::new(usize::MAX);
    // The oldest stays, so nothing behind it leaves by its turn.
    answer(&mut answers, &[1], &[2]);
    for _ in 0..20 * ALIKE {
        answer(&mut answers, &[40; BEFORE + 1], &[50]);
    }
    assert_eq!(answers.all.len(), 1 + ALIKE);
    assert!(answers.order.len() <= 2 * answers.all.len() + 65);
}

/// A special token for each marker of gpt-oss, and one for each byte.
struct Harmony;

const MARKERS: [&str; 6] = [
    "<|start|>",
    "<|channel|>",
    "<|constrain|>",
    "<|message|>",
    "<|call|>",
    "<|end|>",
];
static BYTES: [u8; 256] = {
    let mut bytes = [0; 256];
    let mut nth = 0;
    while nth < 256 {
        bytes[nth] = nth as u8;
        nth += 1;
    }
    bytes
};

impl Vocabulary for Harmony {
    fn piece(&self, token: i32) -> &[u8] {
        match token {
            256.. => MARKERS[token as usize - 256].as_bytes(),
            _ => &BYTES[token as usize..][..1],
        }
    }

    fn token_of(&self, piece: &[u8]) -> Option<i32> {
        piece.first().map(|byte| i32::from(*byte))
    }

    fn is_special(&self, token: i32) -> bool {
        token >= 256
    }
}

/// Markers are special.
fn harmony(text: &str) -> Vec<i32> {
    let (mut at, mut tokens) = (0, Vec::new());
    while at < text.len() {
        let marker = MARKERS
            .iter()
            .position(|marker| text[at..].starts_with(marker));
        tokens.push(marker.map_or(i32::from(text.as_bytes()[at]), |nth| 256 + nth as i32));
        at += marker.map_or(1, |nth| MARKERS[nth].len());
    }
    tokens
}

const TEMPLATES: &str = " to=functions.a<|channel|>commentary json<|message|>";
const MODELS: [&str; 2] = [
    " to=functions.a<|channel|>commentary <|constrain|>json<|message|>",
    "<|channel|>commentary to=functions.a <|constrain|>json<|message|>",
];

/// The tokens of a prompt behind a call, which was generated in one form and comes back in another.
fn sent_back(said: &str, comes: &str, canonical: &[i32], calls: bool) -> Option<Kept> {
    let mut answers = Answers::new(10_000);
    let before = harmony("<|start|>user<|message|>the time<|end|><|start|>assistant");
    answer(&mut answers, &before, &harmony(said));
    let text = format!("<|start|>user<|message|>the time<|end|><|start|>assistant{comes}");
    answers.keep(text.as_bytes(), canonical, 0, &Harmony, calls)
}

#[test]
fn a_call_keeps_the_form_of_its_header() {
    let front = "<|start|>user<|message|>the time<|end|><|start|>assistant";
    for form in MODELS {
        for thought in [
            "",
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant",
        ] {
            let said = format!("{thought}{form}{{\"b\":1}}");
            let comes = format!("{thought}{TEMPLATES}{{\"b\": 1}}<|call|>");
            let canonical = harmony(&format!("{front}{comes}"));
            let kept = sent_back(&said, &comes, &canonical, true).expect("a form is kept");
            assert_eq!(kept.tokens, harmony(&format!("{front}{said}<|call|>")));
            assert_eq!(sent_back(&said, &comes, &canonical, false), None);
        }
    }
}

#[test]
fn another_call_does_not_keep_a_header() {
    let front = "<|start|>user<|message|>the time<|end|><|start|>assistant";
    for form in MODELS {
        let said = format!("{form}{{\"b\":1}}");
        for comes in [
            TEMPLATES.replace("functions.a", "functions.b"),
            TEMPLATES.replace("json", "code"),
            TEMPLATES.replace("<|message|>", " <|message|>"),
            "<|channel|>final<|message|>".to_owned(),
        ] {
            let comes = format!("{comes}{{\"b\":1}}<|call|>");
            let canonical = harmony(&format!("{front}{comes}"));
            assert_eq!(sent_back(&said, &comes, &canonical, true), None, "{comes}");
        }
        // Text that looks like a marker is text.
        let comes = format!("{TEMPLATES}{{\"b\":1}}");
        let as_text: Vec<i32> = comes.bytes().map(i32::from).collect();
        let canonical = [harmony(front), as_text].concat();
        assert_eq!(sent_back(&said, &comes, &canonical, true), None);
    }
}
