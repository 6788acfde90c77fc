//! What a session knows of sequences, compared with lists of tokens that are kept by hand.

use std::collections::BTreeMap;

use contextpilot_kv_store::{Advice, Conditions, Held, Run, Session, Why, media};

const NOW: Conditions = Conditions(0);
/// Fewer leading tokens are not searched for.
const LEAST: usize = 3;

fn run(sequence: i32, first: usize, tokens: &[i32], leading: usize) -> Run {
    Run {
        sequence,
        first: first as i32,
        tokens: tokens.to_vec(),
        leading,
    }
}

/// Evaluates tokens without any help of a store.
fn evaluate(session: &mut Session, sequence: i32, first: usize, tokens: &[i32]) {
    let run = run(sequence, first, tokens, tokens.len() - 1);
    let advice = session.advise(&run, NOW, LEAST);
    assert_eq!(advice.cut, None);
    session.evaluated(&run);
}

#[test]
fn a_prompt_that_was_loaded_is_left_out_batch_by_batch_and_cut_where_it_differs() {
    let mut session = Session::default();
    let first = run(0, 0, &[1, 2, 3, 4], 4);
    let advice = session.advise(&first, NOW, LEAST);
    assert_eq!((advice.cut, advice.search), (None, Some(0)));
    assert_eq!(session.wanted(&first), [1, 2, 3, 4]);
    session.loaded(0, vec![1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(session.there(&first), 4);
    session.evaluated(&first);
    assert_eq!(session.believed(0), Some(&[1, 2, 3, 4][..]));
    assert_eq!(session.ahead_of(0), Some(4));
    assert_eq!(session.ahead().collect::<Vec<_>>(), [(0, 4)]);

    // The prompt goes on as loaded for two tokens, then differs. The last token asks for an output.
    let second = run(0, 4, &[5, 6, 9, 9], 3);
    let advice = session.advise(&second, NOW, LEAST);
    assert_eq!(
        (advice.cut, advice.search),
        (Some(6), None),
        "one token is too few to search"
    );
    session.cut(0, 6);
    assert_eq!(session.there(&second), 2);
    session.evaluated(&second);
    assert_eq!(session.believed(0), Some(&[1, 2, 3, 4, 5, 6, 9, 9][..]));
    assert_eq!(session.ahead_of(0), None);
    assert_eq!(session.ahead().count(), 0);
}

#[test]
fn what_was_evaluated_before_a_doubt_stays_known_up_to_where_it_was_vouched_for() {
    const THEN: Conditions = Conditions(1);
    let again = |under: Conditions| (under == NOW).then_some(THEN);
    let mut session = Session::default();
    for sequence in [0, 1, 2] {
        evaluate(&mut session, sequence, 0, &[1, 2, 3, 4]);
    }
    session.vouch();
    evaluate(&mut session, 1, 4, &[5, 6]);
    // What stands where it was vouched for something else.
    session.removed(2, 2, -1);
    evaluate(&mut session, 2, 2, &[7, 8]);
    session.doubt(again);
    assert_eq!(session.believed(0), Some(&[1, 2, 3, 4][..]));
    assert_eq!(session.conditions(0), Some(THEN));
    for (sequence, known) in [(1, 4), (2, 2)] {
        assert_eq!(session.believed(sequence), None);
        assert_eq!(session.why_unknown(sequence), Some(Why::Doubt));
        session.removed(sequence, known, -1);
        let all = [1, 2, 3, 4];
        assert_eq!(
            session.believed(sequence),
            Some(&all[..known as usize]),
            "sequence {sequence}"
        );
        assert_eq!(session.conditions(sequence), Some(THEN));
    }
    // What was evaluated under other adapters, and what the engine holds of a state that was loaded, is as it was.
    evaluate(&mut session, 3, 0, &[1, 2, 3, 4]);
    session.loaded(3, vec![1, 2, 3, 4, 5, 6]);
    session.vouch();
    session.doubt(|_| None);
    session.loaded(3, vec![1, 2, 3, 4, 5, 6, 7]);
    session.doubt(again);
    assert_eq!(session.ahead_of(3), Some(4));
    assert_eq!(session.conditions(3), Some(NOW));
    // Of a context that cannot go back, all is known or nothing.
    let mut session = Session::default();
    session.bind();
    for sequence in [0, 1] {
        evaluate(&mut session, sequence, 0, &[1, 2, 3, 4]);
    }
    session.vouch();
    evaluate(&mut session, 1, 4, &[5]);
    session.doubt(again);
    assert_eq!(session.conditions(0), Some(THEN));
    assert_eq!(session.conditions(1), Some(NOW));
}

#[test]
fn a_run_continues_what_stands_before_it_under_the_same_conditions() {
    let mut session = Session::default();
    evaluate(&mut session, 0, 0, &[1, 2, 3]);
    let other = Conditions(1);
    assert!(session.continues(&run(0, 3, &[4, 5], 2), NOW));
    assert!(!session.continues(&run(0, 3, &[4, 5], 2), other));
    assert!(!session.continues(&run(0, 2, &[4, 5], 2), NOW));
    // Of an empty sequence the conditions are those of its first run.
    assert!(session.continues(&run(1, 0, &[4, 5], 2), other));
    assert_eq!(session.under(1), other);
}

#[test]
fn a_prompt_ends_with_the_first_token_of_its_answer() {
    let mut session = Session::default();
    assert!(!session.is_in_prompt(0));
    evaluate(&mut session, 0, 0, &[1, 2, 3]);
    assert!(session.is_in_prompt(0));
    // A draft of two tokens: each wants an output.
    session.evaluated(&run(0, 3, &[4, 5], 0));
    assert!(!session.is_in_prompt(0));
}

#[test]
fn an_output_is_never_left_out() {
    let mut session = Session::default();
    let prompt = run(0, 0, &[1, 2, 3, 4], 3);
    session.advise(&prompt, NOW, LEAST);
    session.loaded(0, vec![1, 2, 3, 4, 5]);
    // The caller asks again after loading more than it was told to.
    let advice = session.advise(&prompt, NOW, LEAST);
    assert_eq!(advice.cut, Some(3));
    session.cut(0, 3);
    assert_eq!(session.there(&prompt), 3);
}

#[test]
fn what_is_not_seen_from_its_first_token_is_not_known() {
    let mut session = Session::default();
    evaluate(&mut session, 0, 0, &[1, 2]);
    // A gap.
    let late = run(0, 5, &[7, 8, 9, 10], 4);
    assert_eq!(session.advise(&late, NOW, LEAST).search, None);
    assert_eq!(session.believed(0), None);
    assert_eq!(session.why_unknown(0), Some(Why::Unseen));
    session.evaluated(&late);
    session.removed(0, 3, -1);
    assert_eq!(session.believed(0), None, "a part of the gap is left");
    session.removed(0, 1, -1);
    assert_eq!(session.believed(0), Some(&[1][..]));
    session.removed(0, 0, -1);
    assert_eq!(session.believed(0), Some(&[][..]));
    evaluate(&mut session, 0, 0, &[3]);
    assert_eq!(session.believed(0), Some(&[3][..]));
}

/// As a server with `--cache-reuse` does, which finds a part of a prompt again further behind; and one that shifts its
/// context.
#[test]
fn what_is_before_the_first_token_that_was_moved_is_known() {
    let mut session = Session::default();
    evaluate(&mut session, 0, 0, &[1, 2, 3, 4, 5, 6, 7, 8]);
    // 3 and 4 go, and 5 to 7 take their places.
    session.removed(0, 2, 4);
    session.moved(0, 4, 7, -2);
    session.removed(0, 5, -1);
    assert_eq!((session.believed(0), session.conditions(0)), (None, None));
    assert_eq!(session.why_unknown(0), Some(Why::Moved));
    let next = run(
        0,
        5,
        &[20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32],
        12,
    );
    assert_eq!(session.advise(&next, NOW, LEAST), Advice::default());
    session.evaluated(&next);
    // The next prompt leaves it where all is as it was evaluated.
    let mut left = Session::default();
    std::mem::swap(&mut left, &mut session);
    left.removed(0, 2, -1);
    assert_eq!(
        (left.believed(0), left.conditions(0)),
        (Some(&[1, 2][..]), Some(NOW))
    );
    assert_eq!(left.why_unknown(0), None);
    let again = run(0, 2, &[9, 9, 9, 9], 4);
    assert_eq!(left.advise(&again, NOW, LEAST).search, Some(2));
}

#[test]
fn few_tokens_behind_the_known_beginning_are_worth_evaluating_again() {
    let moved = |behind: usize| {
        let mut session = Session::default();
        evaluate(&mut session, 0, 0, &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
        session.removed(0, 2, 4);
        session.moved(0, 4, -1, -2);
        session.removed(0, 2 + behind as i32, -1);
        session
    };
    let long = |first: usize| run(0, first, &[7; 16], 15);
    for behind in 1..4 {
        let mut session = moved(behind);
        let prompt = long(2 + behind);
        let expected = [5, 6, 7][..behind].to_vec();
        assert_eq!(
            session.to_see_again(&prompt, NOW),
            Some((2, expected.clone()))
        );
        assert_eq!(session.to_see_again(&prompt, Conditions(1)), None);
        assert_eq!(
            session.to_see_again(&run(0, 2 + behind, &[7; 4], 3), NOW),
            None
        );
        assert_eq!(session.to_see_again(&long(3 + behind), NOW), None);
        session.seen_again(0, NOW);
        assert_eq!(
            session.believed(0),
            Some(&[&[1, 2][..], &expected].concat()[..])
        );
        assert_eq!(session.advise(&prompt, NOW, LEAST).search, Some(2 + behind));
    }
    assert_eq!(moved(4).to_see_again(&long(6), NOW), None, "many of few");
    // Of a file the ids are known, and not their rows.
    let mut session = Session::default();
    evaluate(&mut session, 0, 0, &[8, 8]);
    session.restored(0, &[1, 2, 3]);
    assert_eq!(session.why_unknown(0), Some(Why::Restored));
    session.removed(0, 1, -1);
    assert_eq!(session.to_see_again(&long(1), NOW), Some((0, vec![1])));
    session.restored(0, &[]);
    session.removed(0, 1, -1);
    assert_eq!(
        session.to_see_again(&long(1), NOW),
        None,
        "nobody knows which"
    );
    // A context that cannot go back is not known at all.
    let mut bound = Session::default();
    bound.bind();
    evaluate(&mut bound, 0, 0, &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
    bound.moved(0, 4, -1, -2);
    bound.removed(0, 1, -1);
    assert_eq!(bound.believed(0), None);
    assert_eq!(bound.to_see_again(&long(1), NOW), None);
}

#[test]
fn what_the_server_saves_of_a_sequence_comes_back_as_it_was() {
    let mut session = Session::default();
    assert_eq!(session.copy_out(0), None);
    evaluate(&mut session, 0, 0, &[1, 2, 3, 4]);
    let whole = session.copy_out(0).expect("it is known");
    assert_eq!(whole, Held::whole(vec![1, 2, 3, 4], NOW));
    session.moved(0, 3, -1, -1);
    let part = session.copy_out(0).expect("a part is");
    assert_eq!((&part.tokens[..], part.is_whole()), (&[1, 2][..], false));
    session.removed(0, -1, -1);
    evaluate(&mut session, 0, 0, &[9, 9]);
    session.replaced(0, part);
    assert_eq!(session.believed(0), None);
    assert_eq!(
        session.to_see_again(&run(0, 3, &[7; 9], 8), NOW),
        Some((2, vec![4]))
    );
    session.removed(0, 1, -1);
    assert_eq!(session.believed(0), Some(&[1][..]));
    session.replaced(0, whole);
    assert_eq!(session.believed(0), Some(&[1, 2, 3, 4][..]));
}

#[test]
fn tokens_under_other_conditions_are_not_mixed() {
    let mut session = Session::default();
    evaluate(&mut session, 0, 0, &[1, 2, 3]);
    assert_eq!(session.conditions(0), Some(NOW));
    let other = run(0, 3, &[4, 5, 6, 7], 4);
    assert_eq!(session.advise(&other, Conditions(1), LEAST).search, None);
    assert_eq!(session.conditions(0), None);
    session.removed(0, -1, -1);
    let other = run(0, 0, &[4, 5, 6, 7], 4);
    assert_eq!(session.advise(&other, Conditions(1), LEAST).search, Some(0));
    session.evaluated(&other);
    assert_eq!(session.conditions(0), Some(Conditions(1)));
}

#[test]
fn until_the_rows_of_a_copy_are_written_nothing_is_saved_or_loaded_there() {
    let mut session = Session::default();
    evaluate(&mut session, 0, 0, &[1, 2, 3, 4]);
    session.copied(0, 1, -1, -1);
    assert_eq!(session.conditions(0), Some(NOW));
    assert_eq!(session.conditions(1), None, "its rows are not there");
    let wanted = [1, 2, 3, 4, 5, 6, 7, 8];
    let other = run(2, 0, &wanted, 8);
    assert_eq!(session.sharing(&other, &wanted, NOW), Some((0, 4)));
    // What was to be copied would be overwritten, or overwrite what was loaded.
    for sequence in [0, 1] {
        session.removed(sequence, -1, -1);
        let run = run(sequence, 0, &wanted, 8);
        assert_eq!(session.advise(&run, NOW, LEAST).search, None, "{sequence}");
        session.replaced(sequence, Held::whole(vec![7, 8], NOW));
        assert_eq!(session.believed(sequence), None, "{sequence}");
        session.removed(sequence, -1, -1);
    }
    assert_eq!(session.advise(&other, NOW, LEAST).search, Some(0));
    session.evaluated(&other);
    session.updated();
    for sequence in [0, 1] {
        let run = run(sequence, 0, &wanted, 8);
        assert_eq!(session.advise(&run, NOW, LEAST).search, Some(0));
    }
}

#[test]
fn copies_moves_and_replacements() {
    let mut session = Session::default();
    evaluate(&mut session, 0, 0, &[1, 2, 3, 4]);
    session.copied(0, 1, -1, -1);
    assert_eq!(session.believed(1), Some(&[1, 2, 3, 4][..]));
    session.copied(0, 2, 0, 3);
    assert_eq!(session.believed(2), Some(&[1, 2, 3][..]));
    session.copied(0, 3, 1, -1);
    assert_eq!(session.believed(3), None, "its positions do not begin at 0");
    session.copied(0, 2, -1, -1);
    assert_eq!(session.believed(2), None, "it was not empty");
    session.removed(0, 1, 2);
    assert_eq!(session.believed(0), None, "a hole");
    session.obscure(1);
    assert_eq!(session.believed(1), None);
    session.updated();
    session.replaced(1, Held::whole(vec![7, 8], NOW));
    assert_eq!(session.believed(1), Some(&[7, 8][..]));
    session.kept(1);
    assert_eq!(session.sequences().collect::<Vec<_>>(), [1]);
    assert_eq!(session.held(), 2);
    session.cleared();
    assert_eq!(session.believed(1), Some(&[][..]));
}

/// Random operations on three sequences, and loads of more than was asked for.
#[test]
fn a_session_knows_what_lists_know() {
    let mut seed = 7_u64;
    let mut random = move |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as usize % below
    };
    let mut session = Session::default();
    // What the server believes in, and what the engine holds.
    let mut server: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    let mut engine: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    let mut left_out = 0;
    for _ in 0..20_000 {
        let sequence = random(3) as i32;
        let believes = server.entry(sequence).or_default();
        let holds = engine.entry(sequence).or_default();
        match random(8) {
            0 => {
                let from = random(believes.len() + 1);
                if let Some(length) = session.ahead_of(sequence) {
                    holds.truncate(length);
                    session.cut(sequence, length);
                }
                holds.truncate(from);
                believes.truncate(from);
                session.removed(sequence, from as i32, -1);
            }
            1 => {
                *holds = Vec::new();
                *believes = Vec::new();
                session.removed(sequence, -1, -1);
            }
            _ => {
                let tokens: Vec<i32> = (0..1 + random(6)).map(|_| random(2) as i32).collect();
                let leading = random(tokens.len() + 1);
                let run = run(sequence, believes.len(), &tokens, leading);
                let advice = session.advise(&run, NOW, LEAST);
                if let Some(length) = advice.cut {
                    assert!(length >= believes.len() && length < holds.len());
                    holds.truncate(length);
                    session.cut(sequence, length);
                }
                if let Some(held) = advice.search {
                    assert_eq!(
                        held,
                        holds.len(),
                        "nothing is ahead of what is searched for"
                    );
                    let mut wanted = session.wanted(&run);
                    if random(2) == 0 {
                        let found = held + random(wanted.len() - held + 1);
                        wanted.truncate(found);
                        if leading == tokens.len() && found == held.max(believes.len() + leading) {
                            wanted.extend((0..random(9)).map(|_| random(2) as i32));
                        }
                        holds.clone_from(&wanted);
                        session.loaded(sequence, wanted);
                    }
                }
                let there = session.there(&run);
                assert!(there <= leading);
                left_out += there;
                // The engine takes tokens only where its own end.
                if there < tokens.len() {
                    assert_eq!(holds.len(), believes.len() + there);
                    holds.extend(&tokens[there..]);
                }
                believes.extend(&tokens);
                session.evaluated(&run);
            }
        }
        assert_eq!(session.believed(sequence), Some(&believes[..]));
        assert!(holds.starts_with(believes));
        let ahead = holds.len() > believes.len();
        assert_eq!(session.ahead_of(sequence), ahead.then_some(believes.len()));
    }
    assert!(left_out > 1000, "{left_out}");
}

#[test]
fn tokens_that_all_want_an_output_may_be_a_draft() {
    let mut session = Session::default();
    evaluate(&mut session, 0, 0, &[1, 2, 3]);
    assert!(
        !session.is_draft(0, 2),
        "the prompt's last token is of the prompt"
    );
    // A generated token with three guesses behind it, of which two are wrong.
    session.evaluated(&run(0, 3, &[4, 5, 6, 7], 0));
    assert!(session.is_draft(0, 5) && session.is_draft(0, 3));
    assert!(!session.is_draft(0, 2), "a token of the prompt goes, too");
    session.removed(0, 5, -1);
    session.evaluated(&run(0, 5, &[8, 9], 1));
    assert!(!session.is_draft(0, 5));
    assert!(!session.is_draft(1, 0), "nothing is known of it");
}

#[test]
fn an_answer_that_begins_or_has_grown_is_a_milestone() {
    let mut session = Session::default();
    let prompt = run(0, 0, &[1, 2, 3], 2);
    session.evaluated(&prompt);
    assert!(!session.is_milestone(&prompt, 4), "no token went out yet");
    let milestones = (3..13).filter(|&first| {
        let step = run(0, first, &[7], 0);
        session.evaluated(&step);
        session.is_milestone(&step, 4)
    });
    assert_eq!(milestones.collect::<Vec<_>>(), [3, 6, 10]);
    // The next prompt, whose answer begins with a guess.
    session.evaluated(&run(0, 13, &[1, 2], 1));
    let guess = run(0, 15, &[8, 9], 0);
    session.evaluated(&guess);
    assert!(!session.is_milestone(&guess, 4));
    session.obscure(0);
    assert!(!session.is_milestone(&run(0, 17, &[1], 0), 1));
}

#[test]
fn another_sequence_may_have_what_is_wanted() {
    let mut session = Session::default();
    evaluate(&mut session, 0, 0, &[1, 2, 3, 4]);
    evaluate(&mut session, 1, 0, &[1, 2, 9]);
    let wanted = [1, 2, 3, 5];
    let third = run(2, 0, &wanted, 4);
    assert_eq!(session.sharing(&third, &wanted, NOW), Some((0, 3)));
    let own = run(0, 0, &wanted, 4);
    assert_eq!(
        session.sharing(&own, &wanted, NOW),
        Some((1, 2)),
        "not itself"
    );
    assert_eq!(session.sharing(&third, &wanted, Conditions(1)), None);
    session.loaded(0, vec![1, 2, 3, 4, 5, 6]);
    assert_eq!(
        session.sharing(&third, &wanted, NOW),
        Some((1, 2)),
        "not what is ahead"
    );
    session.obscure(1);
    assert_eq!(session.sharing(&third, &wanted, NOW), None);
}

#[test]
fn a_lost_sequence_is_not_shared() {
    let mut session = Session::default();
    evaluate(&mut session, 0, 0, &[1, 2, 3, 4]);
    let third = run(2, 0, &[1, 2, 3, 5], 4);
    assert_eq!(session.sharing(&third, &[1, 2, 3, 5], NOW), Some((0, 3)));
    assert!(!session.is_lost(0) && !session.is_any_lost());
    session.lose(0);
    assert!(session.is_lost(0) && session.is_any_lost());
    assert!(!session.is_lost(1) && !session.is_lost(7), "others are not");
    assert_eq!(session.sharing(&third, &[1, 2, 3, 5], NOW), None);
}

/// A copy of another sequence is not concerned.
#[test]
fn only_copies_of_what_was_overwritten_are_not_known() {
    let mut session = Session::default();
    for (sequence, tokens) in [(0, [1, 2]), (1, [3, 4])] {
        evaluate(&mut session, sequence, 0, &tokens);
        session.copied(sequence, sequence + 2, -1, -1);
    }
    session.overwritten(0);
    assert_eq!(session.believed(2), None);
    assert_eq!(session.believed(3), Some(&[3, 4][..]));
}

/// The engine copies rows when it evaluates the next time. What is put into the source until then is copied.
#[test]
fn what_is_to_be_copied_from_a_sequence_that_was_overwritten_is_not_known() {
    let overwrite: [fn(&mut Session); 3] = [
        |session| session.replaced(0, Held::whole(vec![7, 8, 9], NOW)),
        |session| session.rewound(0, &[1, 2], NOW, 0),
        |session| session.overwritten(0),
    ];
    for overwrite in overwrite {
        let mut session = Session::default();
        evaluate(&mut session, 0, 0, &[1, 2, 3, 4]);
        evaluate(&mut session, 3, 0, &[5, 6]);
        session.copied(0, 1, -1, -1);
        session.copied(1, 2, -1, -1);
        assert_eq!(session.believed(2), Some(&[1, 2, 3, 4][..]));
        overwrite(&mut session);
        assert_eq!((session.believed(1), session.believed(2)), (None, None));
        assert_eq!(session.believed(3), Some(&[5, 6][..]));
    }
}

#[test]
fn of_what_was_loaded_it_is_known_where_its_rows_begin() {
    let mut session = Session::default();
    session.bind();
    evaluate(&mut session, 0, 0, &[1, 2, 3, 4]);
    evaluate(&mut session, 1, 0, &[1, 2, 3, 4]);
    assert_eq!(
        session.lacking(-1, 0, |of| of == NOW),
        [0; 0],
        "nothing was loaded"
    );
    session.loaded(0, vec![1, 2, 3, 4, 5, 6]);
    session.settle(0);
    session.begin_at(0, 4);
    assert_eq!(session.lacking(-1, 3, |of| of == NOW), [0]);
    assert_eq!(session.lacking(0, 4, |of| of == NOW), [0; 0]);
    assert_eq!(session.lacking(1, 0, |of| of == NOW), [0; 0]);
    // It can only be evaluated again under what it was evaluated.
    assert_eq!(session.lacking(0, 3, |of| of == Conditions(1)), [0; 0]);
    // A copy begins there, too.
    session.removed(1, -1, -1);
    session.copied(0, 1, -1, -1);
    session.updated();
    assert_eq!(session.lacking(-1, 0, |of| of == NOW), [0, 1]);
    // Also if something comes behind it that is not known.
    session.obscure(1);
    assert_eq!(session.lacking(1, 0, |of| of == NOW), [1]);
    session.removed(1, 5, -1);

    for (sequence, kept) in [(0, 3), (1, 5)] {
        session.leave_all_pending(sequence, kept);
        assert_eq!(session.reused(sequence), kept);
        session.removed(sequence, kept as i32, -1);
        assert_eq!(session.believed(sequence), Some(&[1, 2, 3, 4, 5][..kept]));
        assert_eq!(session.believed_if_pending(sequence), Some(kept));
        assert_eq!(
            (session.in_engine(sequence), session.under(sequence)),
            (0, NOW)
        );
        assert_eq!(session.lacking(sequence, 0, |of| of == NOW), [0; 0]);
    }
}

/// What the server saves while a load has left something out lacks it, too, whenever it comes back; what it saved before lacks nothing. Of
/// a checkpoint that matters only where an image cannot be evaluated again: a text may as well be given to the engine once more.
#[test]
fn what_was_saved_begins_where_it_did_then() {
    let mut session = Session::default();
    session.bind();
    evaluate(&mut session, 0, 0, &[1, 2, 3]);
    let before = session.copy_out(0).expect("it is known");
    session.loaded(0, vec![1, 2, 3, 4, 5, 6]);
    session.settle(0);
    session.begin_at(0, 4);
    let behind = session.copy_out(0).expect("it is known");
    let lacks = |session: &Session| !session.lacking(0, 3, |of| of == NOW).is_empty();

    session.rewound(0, &before.tokens, NOW, before.first);
    assert_eq!(session.believed(0), Some(&[1, 2, 3][..]));
    assert!(lacks(&session));
    session.replaced(0, before);
    assert!(!lacks(&session));
    session.replaced(0, behind.clone());
    assert!(lacks(&session));
    session.rewound(0, &behind.tokens, NOW, behind.first);
    assert!(lacks(&session));

    let mut tokens = vec![1];
    tokens.extend(media::run(&[7; 32], 4).unwrap());
    session.replaced(0, Held::whole(tokens.clone(), NOW));
    session.begin_at(0, 4);
    session.rewound(0, &tokens, NOW, 0);
    assert!(!lacks(&session));
}

#[test]
fn what_is_replaced_or_evaluated_again_lacks_nothing() {
    let short = || {
        let mut session = Session::default();
        session.bind();
        evaluate(&mut session, 0, 0, &[1, 2, 3]);
        session.begin_at(0, 2);
        session
    };
    let left = |change: fn(&mut Session)| {
        let mut session = short();
        change(&mut session);
        session.lacking(-1, 0, |of| of == NOW)
    };
    assert_eq!(left(|_| ()), [0]);
    assert_eq!(left(|all| all.obscure(0)), [0]);
    assert_eq!(left(|all| all.removed(0, 2, -1)), [0]);
    let changes: [fn(&mut Session); 8] = [
        |all| all.removed(0, -1, -1),
        |all| all.removed(-1, -1, -1),
        |all| all.overwritten(0),
        |all| all.overwritten(-1),
        |all| all.replaced(0, Held::whole(vec![1], NOW)),
        |all| all.set_in_engine(0, 0),
        |all| all.cleared(),
        |all| all.kept(7),
    ];
    for change in changes {
        assert_eq!(left(change), [0; 0]);
    }
}

/// What stands at a position of a sequence: the token, and whether its row is what it would be if all before it and
/// itself had been evaluated where they stand.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Cell {
    token: i32,
    is_right: bool,
}

/// Random removals, moves, restores, copies and prompts on three sequences, compared with a list of cells. Whatever a session
/// claims is so; and it claims all that a server leaves in order.
#[test]
fn whatever_is_moved_what_is_known_stands_where_it_was_evaluated() {
    let mut seed = 11_u64;
    let mut random = move |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as usize % below
    };
    let mut session = Session::default();
    let mut cells: BTreeMap<i32, Vec<Cell>> = BTreeMap::new();
    let (mut known, mut again, mut moved) = (0, 0, 0);
    for _ in 0..40_000 {
        let sequence = random(3) as i32;
        let mine = cells.entry(sequence).or_default();
        let end = mine.len();
        match random(9) {
            0 => {
                let from = random(end + 1);
                mine.truncate(from);
                session.removed(sequence, from as i32, -1);
            }
            1 if end > 4 => {
                // Servers close the hole.
                let from = random(end - 2);
                let to = from + 1 + random(end - from - 1);
                let until = if random(2) == 0 {
                    end
                } else {
                    to + random(end - to + 1)
                };
                mine.drain(from..to);
                mine.truncate(until - (to - from));
                for cell in &mut mine[from..] {
                    cell.is_right = false;
                }
                session.removed(sequence, from as i32, to as i32);
                let last = if until == end { -1 } else { until as i32 };
                session.moved(sequence, to as i32, last, from as i32 - to as i32);
                session.removed(sequence, mine.len() as i32, -1);
                moved += 1;
            }
            2 if random(8) == 0 => {
                let tokens: Vec<i32> = (0..1 + random(5)).map(|_| random(2) as i32).collect();
                let cell = |&token: &i32| Cell {
                    token,
                    is_right: false,
                };
                *mine = tokens.iter().map(cell).collect();
                session.restored(sequence, &tokens);
            }
            3 if random(4) == 0 => {
                let target = (sequence + 1) % 3;
                let copy = mine.clone();
                cells.insert(target, copy);
                session.removed(target, -1, -1);
                session.copied(sequence, target, -1, -1);
                session.updated();
            }
            _ => {
                let count = 1 + random(24);
                let tokens: Vec<i32> = (0..count).map(|_| random(2) as i32).collect();
                let run = run(sequence, end, &tokens, count - 1);
                if let Some((from, ids)) = session.to_see_again(&run, NOW) {
                    let there: Vec<_> = mine[from..].iter().map(|cell| cell.token).collect();
                    assert_eq!((there, from + ids.len()), (ids, end));
                    for cell in &mut mine[from..] {
                        cell.is_right = true;
                    }
                    session.seen_again(sequence, NOW);
                    again += 1;
                }
                session.advise(&run, NOW, usize::MAX);
                let is_right = mine.iter().all(|cell| cell.is_right);
                mine.extend(tokens.iter().map(|&token| Cell { token, is_right }));
                session.evaluated(&run);
                session.updated();
            }
        }
        let mine = &cells[&sequence];
        let right = |cell: &Cell| cell.is_right.then_some(cell.token);
        let all: Option<Vec<i32>> = mine.iter().map(right).collect();
        assert_eq!(session.believed(sequence), all.as_deref(), "{mine:?}");
        known += usize::from(all.is_some_and(|all| !all.is_empty()));
    }
    assert!(
        known > 5000 && again > 300 && moved > 1000,
        "{known} {again} {moved}"
    );
}

#[test]
fn what_stands_before_an_image_that_is_not_known_is_known() {
    let mut session = Session::default();
    evaluate(&mut session, 0, 0, &[1, 2, 3, 4]);
    for _ in 0..2 {
        session.evaluated_media(0, 4);
        assert_eq!(session.why_unknown(0), Some(Why::Media));
    }
    evaluate(&mut session, 0, 9, &[5, 6]);
    let next = run(0, 11, &[7; 40], 40);
    assert_eq!(session.to_see_again(&next, NOW), None);
    session.removed(0, 3, -1);
    assert_eq!(session.believed(0), Some(&[1, 2, 3][..]));
    // Of a context that cannot go back, nothing is.
    let mut session = Session::default();
    session.bind();
    evaluate(&mut session, 0, 0, &[1, 2, 3, 4]);
    session.evaluated_media(0, 4);
    session.removed(0, 3, -1);
    assert_eq!(session.believed(0), None);
}

#[test]
fn a_part_of_an_image_makes_what_follows_unknown() {
    let image = media::run(&[1; 32], 8).unwrap();
    let mut session = Session::default();
    evaluate(&mut session, 0, 0, &[1, 2]);
    let rows = run(0, 2, &image, 8);
    session.advise(&rows, NOW, LEAST);
    session.evaluated(&rows);
    session.copied(0, 1, -1, 7);
    session.removed(0, 7, -1);
    for sequence in [0, 1] {
        assert_eq!(session.why_unknown(sequence), Some(Why::Media));
    }
    evaluate(&mut session, 0, 7, &[3, 4]);
    assert_eq!(session.believed(0), None);
    // Its rows cannot be evaluated again.
    let next = run(0, 9, &[7; 400], 400);
    assert_eq!(session.to_see_again(&next, NOW), None);
    session.removed(0, 2, -1);
    assert_eq!(session.believed(0), Some(&[1, 2][..]));
}

/// The rows of an image may share a position: then a sequence is shorter in positions than in tokens.
#[test]
fn behind_an_image_whose_rows_share_a_position_positions_are_fewer_than_tokens() {
    let mut session = Session::default();
    let image = media::shared_run(&[7; 32], 6, 3).unwrap();
    let all = [&[1, 2][..], &image, &[3, 4, 5]].concat();
    session.loaded(0, all.clone());
    let text = run(0, 0, &[1, 2], 2);
    assert_eq!(session.advise(&text, NOW, LEAST), Advice::default());
    session.evaluated(&text);
    assert_eq!(session.ahead_of(0), Some(2));
    assert_eq!(session.last_position_if_ahead(0), Some(Some(1)));
    // The engine cannot be cut within the image, and all of its rows stand at position 2.
    session.evaluated(&run(0, 2, &image[..4], 4));
    assert_eq!(session.ahead_of(0), Some(8));
    assert_eq!(session.position(0, 8), 5);
    assert_eq!(session.last_position_if_ahead(0), Some(Some(2)));
    session.evaluated(&run(0, 2, &image[4..], 2));
    assert_eq!(session.last_position_if_ahead(0), Some(Some(2)));
    // What is behind follows at 5, and not at 8.
    let mut other = Session::default();
    assert!(!session.continues(&run(0, 8, &[3], 0), NOW));
    let behind = run(0, 5, &[3, 4, 9], 3);
    let advice = session.advise(&behind, NOW, LEAST);
    assert_eq!((advice.cut, advice.search), (Some(10), None));
    session.cut(0, 10);
    assert_eq!(session.there(&behind), 2);
    session.evaluated(&behind);
    let believed = [&all[..10], &[9]].concat();
    assert_eq!(session.believed(0), Some(&believed[..]));
    // The server removes by positions.
    assert_eq!(session.index(0, 6), 9);
    for (target, to, kept) in [(1, 6, 9), (2, 5, 8), (3, 3, 8), (4, 2, 2)] {
        session.copied(0, target, -1, to);
        session.updated();
        assert_eq!(session.believed(target), Some(&believed[..kept]), "{to}");
    }
    session.removed(0, 6, -1);
    assert_eq!(session.believed(0), Some(&all[..9]));
    assert!(session.continues(&run(0, 6, &[7], 0), NOW));
    session.removed(0, 2, -1);
    assert_eq!(session.believed(0), Some(&all[..2]));
    assert!(session.continues(&run(0, 2, &[7], 0), NOW));
    // What is not seen is not taken for what stood there before.
    other.evaluated(&run(0, 0, &all, 0));
    other.removed(0, 1, 2);
    assert_eq!(other.believed(0), None);
    let next = run(0, 8, &[5; 100], 100);
    assert_eq!(other.to_see_again(&next, NOW), None);
    other.removed(0, 1, -1);
    assert_eq!(other.believed(0), Some(&[1][..]));
}
