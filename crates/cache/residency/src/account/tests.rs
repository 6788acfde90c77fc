//! Compares accounts with those of a simple model of the server, which knows each token's cause.

use super::*;
use crate::adapters::{Adapter, Compared, Scale};
use crate::entries::Entry;
use crate::event::Event;
use crate::ids::ContextId;
use crate::token::{Position, media_token};
use proptest::prelude::*;
use server::{Ask, Flags, SimulatedServer};

mod server;

#[derive(Clone, Debug)]
enum Step {
    /// A prompt that is like what a slot holds, or like an earlier prompt.
    Ask {
        /// The slot or, if there is none with this number, the earlier prompt.
        like: usize,
        /// How many of its first tokens are kept.
        keep: usize,
        /// How many are left out after these. The rest is kept.
        skip: usize,
        /// New tokens at the end.
        more: Vec<Token>,
        slot: Option<usize>,
        uncached: bool,
        /// Tokens of a batch.
        batch: usize,
        /// The client leaves after so many batches.
        leaves: Option<usize>,
        /// How many tokens the prefix store has behind those in the slot.
        stored: usize,
        /// It is launched, and others may be before its first batch.
        waits: bool,
    },
    /// A batch of all that is launched.
    Batch,
    Generate(usize, Token),
    Finish(usize),
    Erase(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let slot = 0..3_usize;
    let ask = (
        (0..8_usize, 0..20_usize, 0..6_usize),
        prop::collection::vec(0..3_i32, 1..10),
        prop_oneof![4 => Just(None), 1 => slot.clone().prop_map(Some)],
        prop_oneof![6 => Just(false), 1 => Just(true)],
        1..12_usize,
        prop_oneof![8 => Just(None), 1 => (0..3_usize).prop_map(Some)],
        prop_oneof![3 => Just(0), 1 => 1..30_usize],
        prop_oneof![1 => Just(false), 1 => any::<bool>()],
    );
    let ask = ask.prop_map(
        |((like, keep, skip), more, slot, uncached, batch, leaves, stored, waits)| Step::Ask {
            like,
            keep,
            skip,
            more,
            slot,
            uncached,
            batch,
            leaves,
            stored,
            waits,
        },
    );
    let step = prop_oneof![
        6 => ask,
        3 => (slot.clone(), 0..3_i32).prop_map(|(slot, token)| Step::Generate(slot, token)),
        3 => slot.clone().prop_map(Step::Finish),
        2 => Just(Step::Batch),
        1 => slot.prop_map(Step::Erase),
    ];
    prop::collection::vec(step, 1..40)
}

fn flags() -> impl Strategy<Value = Flags> {
    let similarity = prop_oneof![4 => Just(0.1), 1 => Just(0.0), 1 => Just(0.6)];
    (1..4_usize, 0..4_usize, any::<bool>(), similarity).prop_map(
        |(slots, host, unified, similarity)| Flags {
            slots,
            host,
            unified,
            rules: Rules {
                similarity,
                ..Rules::default()
            },
        },
    )
}

/// Runs the steps on the simple server, and calls `check` with each prompt's account. `bytes`: the
/// memory for past prompts.
fn run(
    flags: Flags,
    steps: &[Step],
    bytes: usize,
    mut check: impl FnMut(&server::CheckedAccount, &SimulatedServer),
) {
    let mut server = SimulatedServer::new(flags, bytes);
    let mut prompts: Vec<Vec<Token>> = vec![vec![9]];
    let mut tell = |answers: Vec<server::CheckedAccount>, server: &SimulatedServer| {
        answers.iter().for_each(|answer| check(answer, server));
    };
    for step in steps {
        match *step {
            Step::Ask {
                like,
                keep,
                skip,
                ref more,
                slot,
                uncached,
                batch,
                leaves,
                stored,
                waits,
            } => {
                let held = server.slots.get(like).map(|slot| &slot.tokens);
                let like = held.unwrap_or_else(|| &prompts[like % prompts.len()]);
                let mut prompt: Vec<Token> = like.iter().take(keep).copied().collect();
                prompt.extend(like.iter().skip(keep + skip));
                prompt.extend(more);
                prompt.truncate(40);
                prompts.push(prompt.clone());
                let slot = slot.filter(|&slot| slot < flags.slots);
                server.launch(&Ask {
                    prompt,
                    wishes: Wishes {
                        slot: slot.map(|slot| slot as SequenceId),
                        uncached,
                        ..Wishes::default()
                    },
                    batch,
                    leaves,
                    stored,
                });
                if !waits {
                    tell(server.batches(), &server);
                }
            }
            Step::Batch => tell(server.batch(), &server),
            Step::Generate(slot, token) if slot < flags.slots => server.generate(slot, token),
            Step::Finish(slot) if slot < flags.slots => server.finish(slot),
            Step::Erase(slot) if slot < flags.slots => server.erase(slot),
            _ => {}
        }
    }
    tell(server.batches(), &server);
}

fn with_slots(slots: usize) -> SimulatedServer {
    let flags = Flags {
        slots,
        host: 0,
        unified: false,
        rules: Rules::default(),
    };
    SimulatedServer::new(flags, usize::MAX)
}

/// What took a slot's tokens: a prompt is asked in it, then this happens, it is emptied, and the prompt is asked again.
fn taken_through(then: impl FnOnce(&mut SimulatedServer)) -> Option<Through> {
    let mut server = with_slots(2);
    let ask = Ask {
        prompt: (0..10).collect(),
        wishes: Wishes {
            slot: Some(0),
            uncached: false,
            ..Wishes::default()
        },
        batch: 10,
        leaves: None,
        stored: 0,
    };
    server.ask(&ask).expect("a slot is free");
    server.finish(0);
    then(&mut server);
    server.empty(0);
    let again = server.ask(&ask).expect("a slot is free");
    again.account.lost.expect("the slot was emptied").through
}

#[test]
fn a_client_that_erases_a_slot_is_named_though_there_was_no_room() {
    let through = taken_through(|server| {
        server.fail(1, true);
        server.accounts.erasing(0);
    });
    assert_eq!(through, Some(Through::Erase));
}

#[test]
fn only_a_batch_without_room_makes_the_server_empty_slots_for_room() {
    let through = |no_room| taken_through(|server| server.fail(1, no_room));
    assert_eq!(through(true), Some(Through::NoRoom));
    assert_eq!(through(false), None);
}

#[test]
fn erasures_of_slots_that_are_not_there_hide_no_other() {
    let through = taken_through(|server| {
        for _ in 0..100 {
            server.accounts.erasing(9999);
        }
        server.accounts.erasing(0);
    });
    assert_eq!(through, Some(Through::Erase));
}

#[test]
fn an_erasure_is_over_when_the_empty_slot_was_erased() {
    let through = taken_through(|server| {
        server.empty(0);
        server.accounts.erasing(0);
        server.empty(0);
        // Something else fills it, without a task.
        server.submit(0, &(0..10).collect::<Vec<_>>(), true, 0);
    });
    assert_eq!(through, None);
}

#[test]
fn a_batch_that_the_engine_refused_counts_once() {
    for refused in [false, true] {
        let account = with_slots(1).ask_anew(0, &[1, 2, 3, 4, 5], refused);
        let causes = Causes {
            new: 4,
            last_token: 1,
            ..Causes::default()
        };
        assert_eq!(account.causes, causes);
    }
}

/// Where adapters are applied, a slot that is emptied held KV of others.
#[test]
fn what_a_slot_held_and_was_not_used_is_of_another_adapter() {
    for adapted in [false, true] {
        let mut server = with_slots(1);
        if adapted {
            server.adapt();
        }
        server.ask_anew(0, &[1, 2, 3, 4, 5], false);
        server.ask_anew(0, &[1, 2, 3, 4, 5], false);
        let causes = server.ask_anew(0, &[1, 2, 3, 4, 5], false).causes;
        let (adapter, unknown) = if adapted { (4, 0) } else { (0, 4) };
        assert_eq!((causes.adapter, causes.not_known), (adapter, unknown));
    }
}

#[test]
fn what_stands_behind_a_difference_is_repeated_or_in_another_order() {
    let [same, x, y] = [0..10, 100..140, 200..240].map(|all| all.collect::<Vec<Token>>());
    let diverged = |first: &[&[Token]], second: &[&[Token]]| {
        let mut server = with_slots(1);
        server.ask_anew(0, &first.concat(), false);
        let account = server.ask_anew(0, &second.concat(), false);
        let diverged = account.diverged.expect("they differ");
        assert_eq!(diverged.at, 10);
        (diverged.repeated, diverged.reordered)
    };
    assert_eq!(diverged(&[&same, &[50], &x], &[&same, &[51], &x]), (40, 0));
    let (repeated, reordered) = diverged(&[&same, &x, &y], &[&same, &y, &x]);
    assert_eq!(repeated, 80);
    assert!(
        reordered > 30,
        "one of the two is in another place: {reordered}"
    );
    assert_eq!(diverged(&[&same, &x], &[&same, &y]), (0, 0));
}

#[test]
fn a_difference_in_an_answer_is_told_from_one_in_what_was_sent() {
    let [p, old, result, new] =
        [0..30, 100..140, 200..240, 300..320].map(|all| all.collect::<Vec<Token>>());
    let ask = |server: &mut SimulatedServer, parts: &[&[Token]]| {
        let answer = server.ask(&Ask {
            prompt: parts.concat(),
            wishes: Wishes::default(),
            batch: 1000,
            leaves: None,
            stored: 0,
        });
        let diverged = answer.expect("a slot is free").account.diverged;
        diverged.map(|diverged| (diverged.at, diverged.answer, diverged.earlier_answer))
    };
    let answered = || {
        let mut server = with_slots(1);
        ask(&mut server, &[&p]);
        for &token in &old {
            server.generate(0, token);
        }
        server.finish(0);
        server
    };
    let mut server = answered();
    let told = ask(&mut server, &[&p, &old[10..], &new]);
    assert_eq!(told, Some((30, true, false)));
    // It comes back, and again, before a part of it is left out.
    for turns in 1..4 {
        let mut server = answered();
        let mut sent = [&p[..], &old].concat();
        for _ in 0..turns {
            sent.extend(&result);
            assert_eq!(ask(&mut server, &[&sent]), None);
            server.generate(0, 7);
            server.finish(0);
            sent.push(7);
        }
        let later = [&p[..], &old[10..], &sent[70..]].concat();
        let told = ask(&mut server, &[&later, &new]);
        assert_eq!(told, Some((30, false, true)), "{turns}");
    }
    // With the last tokens of the prompt that asked for it, which the history lacks.
    let mut server = answered();
    let told = ask(&mut server, &[&p[..28], &old[10..], &new]);
    assert_eq!(told, Some((28, true, false)));
    let mut server = answered();
    ask(&mut server, &[&p, &old, &result]);
    server.finish(0);
    let told = ask(&mut server, &[&p[..28], &old[10..], &result, &new]);
    assert_eq!(told, Some((28, false, true)));
    // The last tokens of what the client sent, and none of the answer.
    let mut server = answered();
    let told = ask(&mut server, &[&p[..28], &old, &new]);
    assert_eq!(told, Some((28, false, false)));
    // What the client sent is left out.
    let mut server = answered();
    ask(&mut server, &[&p, &old, &result]);
    server.finish(0);
    let told = ask(&mut server, &[&p[..20], &old, &result, &new]);
    assert_eq!(told, Some((20, false, false)));
    let mut server = answered();
    ask(&mut server, &[&p, &old, &result]);
    server.finish(0);
    let told = ask(&mut server, &[&p, &old, &result[10..], &new]);
    assert_eq!(told, Some((70, false, false)));
}

#[test]
fn where_two_images_differ_the_difference_is_one_of_media() {
    let same: Vec<Token> = (0..10).collect();
    let of_media = |first: Token, second: Token| {
        let mut server = with_slots(1);
        server.ask_anew(0, &[&same[..], &[first, 50]].concat(), false);
        let account = server.ask_anew(0, &[&same[..], &[second, 50]].concat(), false);
        account.diverged.expect("they differ").media
    };
    let [row, other] = [7, 8].map(media_token);
    assert!(of_media(row, other));
    assert!(!of_media(row, 60) && !of_media(60, row) && !of_media(60, 61));
}

#[test]
fn an_embedding_does_not_find_itself_in_the_past() {
    let [x, y] = [100..140, 200..240].map(|all| all.collect::<Vec<Token>>());
    let mut server = with_slots(1);
    let mut causes = |prompt: &[&[Token]]| server.embed(0, &prompt.concat()).causes;
    let new = |new, repeated, evicted| Causes {
        new,
        repeated,
        evicted,
        last_token: 1,
        ..Causes::default()
    };
    assert_eq!(causes(&[&[1], &x, &[2]]), new(41, 0, 0));
    assert_eq!(causes(&[&[1], &y, &[2]]), new(40, 0, 1));
    assert_eq!(causes(&[&[3], &x, &[4]]), new(1, 40, 0));
    assert_eq!(causes(&[&[1], &y, &[2]]), new(0, 0, 41));
}

#[test]
fn what_stood_behind_something_else_is_repeated_and_not_new() {
    let [same, x, y, z] =
        [0..10, 100..140, 200..240, 300..310].map(|all| all.collect::<Vec<Token>>());
    let causes = |first: &[&[Token]], second: &[&[Token]]| {
        let mut server = with_slots(1);
        server.ask_anew(0, &first.concat(), false);
        // Emptied: nothing is further on in the slot.
        server.empty(0);
        let Causes { new, repeated, .. } = server.ask_anew(0, &second.concat(), false).causes;
        (new, repeated)
    };
    // The last token has a cause of its own.
    assert_eq!(
        causes(&[&same, &[50], &x], &[&same, &[51], &x, &z]),
        (10, 40)
    );
    assert_eq!(causes(&[&same, &x, &y], &[&y, &x, &z]), (9, 80));
    assert_eq!(causes(&[&same, &x], &[&same, &y]), (39, 0));
    // Two tokens in a row may be equal by chance.
    assert_eq!(
        causes(&[&x, &y], &[&z, &x[4..6], &z, &x[4..7], &z]),
        (31, 3)
    );
}

/// Compares each account with what the simple server knows.
fn compare(flags: Flags, steps: &[Step]) {
    // Later prompts are compared with a prompt that was given up half way only once its slot is used
    // again.
    let any_leaves = steps.iter().any(|step| {
        matches!(
            step,
            Step::Ask {
                leaves: Some(_),
                ..
            }
        )
    });
    let any_generates = steps.iter().any(|step| matches!(step, Step::Generate(..)));
    run(flags, steps, usize::MAX, |answer, server| {
        let account = &answer.account;
        let any_is_open = any_leaves || answer.overlaps;
        // What a slot generates, and half-written prompts, are compared with once the slot is used again.
        let Causes { repeated, new, .. } = account.causes;
        let truth = answer.causes.repeated;
        assert!(
            repeated == truth || (any_is_open || any_generates) && repeated < truth,
            "{account:?}"
        );
        let causes = Causes {
            repeated: truth,
            new: new + repeated - truth.min(new + repeated),
            ..account.causes
        };
        assert_eq!(causes, answer.causes, "{account:?}");
        assert_eq!(account.causes.sum(), account.evaluated);
        assert_eq!(account.from, answer.from);
        // How a half-written prompt was lost is not always known, nor what two prompts that begin in one batch take from each other.
        let lost = account.lost.is_some();
        assert!(
            lost == (account.causes.evicted > 0) || any_is_open && !lost,
            "{account:?}"
        );
        if let Some(diverged) = &account.diverged {
            let at = diverged.at as usize;
            assert!(
                at == answer.common || any_is_open && at < answer.common,
                "{account:?}"
            );
            let repeated = diverged.repeated as usize;
            assert!(repeated <= answer.behind || any_is_open, "{account:?}");
        }
        if let Some(lost) = &account.lost {
            assert!(lost.tokens > 0 && u64::from(lost.tokens) <= account.causes.evicted);
            let by = lost
                .by
                .as_ref()
                .map(|by| server.taken[by.number as usize - 1]);
            if let (Some((choice, loaded)), Some(taking)) = (by, lost.taking) {
                assert_eq!((taking.choice, loaded), (choice, false), "{account:?}");
            }
            assert!(
                lost.taking.is_some()
                    || by.is_none_or(|(_, loaded)| loaded)
                    || lost.reason != Reason::Overwritten
                    || any_is_open
            );
        }
    });
}

#[test]
fn what_a_slot_generates_while_a_prompt_is_evaluated_is_beside_it() {
    let ask = |slot, more: &[Token]| Step::Ask {
        like: 0,
        keep: 0,
        skip: usize::MAX,
        more: more.to_vec(),
        slot: Some(slot),
        uncached: false,
        batch: 1,
        leaves: None,
        stored: 0,
        waits: true,
    };
    let flags = Flags {
        slots: 2,
        host: 0,
        unified: false,
        rules: Rules::default(),
    };
    let steps = [
        ask(0, &[5]),
        Step::Batch,
        ask(1, &[5, 2]),
        Step::Batch,
        Step::Batch,
        Step::Finish(1),
        // Slot 0 generates the second token of this prompt, of which the first is evaluated.
        ask(1, &[5, 7, 8]),
        Step::Batch,
        Step::Generate(0, 7),
    ];
    compare(flags, &steps);
}

proptest! {
    #[test]
    fn each_evaluated_token_gets_the_cause_that_the_simple_server_finds(flags in flags(), steps in steps()) {
        compare(flags, &steps);
    }

    #[test]
    fn with_little_memory_causes_add_up_and_never_too_many_tokens_count_as_evicted(
        flags in flags(),
        steps in steps(),
        nodes in 0..8_usize,
    ) {
        let any_generates = steps.iter().any(|step| matches!(step, Step::Generate(..)));
        run(flags, &steps, nodes * 256, |answer, _| {
            let (told, truth) = (answer.account.causes, answer.causes);
            assert_eq!(told.sum(), answer.account.evaluated);
            // What was evicted and is forgotten, others may evaluate at the same time.
            let most = truth.elsewhere.sum() + truth.evicted;
            let is_beside_others = answer.overlaps || any_generates;
            assert!(told.elsewhere == truth.elsewhere || is_beside_others && told.elsewhere.sum() <= most);
            assert_eq!(told.moved, truth.moved);
            // What is forgotten is not known to have been there.
            assert!(answer.held_uncached <= told.uncached && told.uncached <= truth.uncached);
            assert!(told.evicted <= truth.evicted);
        });
    }
}
