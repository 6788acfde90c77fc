use super::*;

/// Token `n` below 200 is two letters, above it one.
struct Letters {
    pieces: Vec<Vec<u8>>,
}

impl Letters {
    fn new() -> Self {
        let two = (0..200u8).map(|n| vec![b'a' + n / 16, b'a' + n % 16]);
        let one = (0..16).map(|n| vec![b'a' + n]);
        Self {
            pieces: two.chain(one).collect(),
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
        let found = self.pieces.iter().position(|one| one == piece);
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
