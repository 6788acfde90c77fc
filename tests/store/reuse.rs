//! What an earlier prompt had is loaded.

use contextpilot_testbed::{Arch, Model, Server};

use super::{SIGKILL, Stored, asking, folder, one_slot, started, tokens};

#[test]
fn a_prompt_that_was_overwritten_is_loaded_and_the_server_does_not_notice() {
    let folder = folder();
    let mut stored = Stored::start(&one_slot(), folder.path());
    let plain = started(&one_slot());
    let (tea, sea) = (tokens(1, 600), tokens(2, 600));
    for prompt in [&tea, &sea, &tea, &sea] {
        let account = stored.ask_as(&plain, prompt);
        assert_eq!(account.prompt_tokens, 600);
        assert_eq!(account.causes.sum(), account.evaluated);
        assert_eq!(account.reused + account.evaluated, 600);
    }
    let (_, account) = stored.ask(&tea);
    assert_eq!(
        account.from.store, 599,
        "all but the last token: {account:?}"
    );
    assert_eq!((account.evaluated, account.causes.last_token), (1, 1));
    let figures = stored.figures();
    assert_eq!(figures.loaded_tokens, 3 * 599, "{figures:?}");
    assert_eq!(figures.refused, [""; 0]);
    assert_eq!(figures.problem, None);
}

#[test]
fn the_next_server_has_what_the_last_one_stored_also_after_a_kill() {
    let folder = folder();
    let (tea, sea) = (tokens(3, 500), tokens(4, 500));
    let mut first = Stored::start(&one_slot(), folder.path());
    first.ask(&tea);
    // The slot's prompt is stored when it is overwritten.
    first.ask(&sea);
    first.await_written();
    assert!(first.figures().chunks >= 2);
    first.server.stop(SIGKILL).unwrap();

    let mut second = Stored::start(&one_slot(), folder.path());
    let (_, account) = second.ask(&tea);
    assert_eq!(account.from.store, 499, "{account:?}");
    second.end();

    // At an orderly end, what is in slots is stored as well.
    let mut third = Stored::start(&one_slot(), folder.path());
    let longer: Vec<u32> = tea.iter().copied().chain(tokens(5, 100)).collect();
    third.ask(&longer);
    third.end();
    let mut fourth = Stored::start(&one_slot(), folder.path());
    let (_, account) = fourth.ask(&longer);
    assert_eq!(account.from.store, 599, "{account:?}");
}

#[test]
fn a_branch_shares_its_beginning_to_the_token() {
    let folder = folder();
    let mut stored = Stored::start(&one_slot(), folder.path());
    let head = tokens(6, 333);
    let branch = |seed| -> Vec<u32> { head.iter().copied().chain(tokens(seed, 100)).collect() };
    stored.ask(&branch(7));
    stored.ask(&tokens(8, 400));
    let (_, account) = stored.ask(&branch(9));
    // The first token behind the branch may be the same by chance.
    assert!((333..336).contains(&account.from.store), "{account:?}");
    assert_eq!(account.from.slot, account.reused - account.from.store);
}

#[test]
fn small_batches_load_once_and_leave_out_batch_by_batch() {
    let folder = folder();
    let builder = one_slot().args(["-b", "64", "-ub", "32"]);
    let mut stored = Stored::start(&builder, folder.path());
    let (tea, sea) = (tokens(10, 700), tokens(11, 300));
    stored.ask(&tea);
    stored.ask(&sea);
    let before = stored.figures().loads;
    let (_, account) = stored.ask(&tea);
    assert_eq!(account.from.store, 699, "{account:?}");
    assert_eq!(
        stored.figures().loads - before,
        1,
        "one load for eleven batches"
    );
}

/// What is loaded ahead of the server's batch is no part of the batch's tokens: a recording would say that tokens are
/// large, and `advise` and `simulate` that little room is left.
#[test]
fn the_size_of_a_token_is_measured_without_what_is_loaded_ahead() {
    let folder = folder();
    let builder = one_slot().args(["-b", "64", "-ub", "32"]);
    let tea = tokens(22, 700);
    let of_token = |stored: &Stored| stored.control.stats().unwrap().kv.bytes_per_token;
    let mut first = Stored::start(&builder, folder.path());
    first.ask(&tea);
    let known = of_token(&first).expect("it was measured");
    first.end();

    let mut second = Stored::start(&builder, folder.path());
    let (_, account) = second.ask(&tea);
    assert_eq!(account.from.store, 699, "{account:?}");
    let measured = of_token(&second).expect("it was measured");
    assert!(
        (measured / known - 1.0).abs() < 0.05,
        "{measured}, not {known}"
    );
}

#[test]
fn what_another_slot_holds_is_as_good_as_stored() {
    let folder = folder();
    let builder = Server::builder()
        .model(&Model::tiny(Arch::Llama))
        .bare_slots(2)
        .args(["-c", "8192"]);
    let mut stored = Stored::start(&builder, folder.path());
    let tea = tokens(12, 700);
    stored.ask_slot(0, &tea);
    let longer: Vec<u32> = tea.iter().copied().chain(tokens(13, 40)).collect();
    let (_, account) = stored.ask_slot(1, &longer);
    assert_eq!(account.from.store, 700, "{account:?}");
    // Nothing became of the first slot.
    let (answer, account) = stored.ask_slot(0, &tea);
    assert_eq!(
        (answer.cache_n, account.from.slot),
        (699, 699),
        "{account:?}"
    );
}

#[test]
fn the_end_of_a_long_prompt_is_stored_too() {
    let folder = folder();
    let mut stored = Stored::start(&one_slot(), folder.path());
    let tea = tokens(14, 3000);
    stored.ask(&tea);
    stored.ask(&tokens(15, 300));
    // Some tokens more, which are lost when the other prompt comes again. They are worth a copy of all even
    // if evaluating took no longer than is assumed at least.
    let longer: Vec<u32> = tea.iter().copied().chain(tokens(16, 60)).collect();
    let (_, account) = stored.ask(&longer);
    assert_eq!(account.from.store, 3000, "{account:?}");
    stored.ask(&tokens(15, 300));
    let (_, account) = stored.ask(&longer);
    assert_eq!(account.from.store, 3059, "{account:?}");
}

/// `n` copies a slot to another one. Where each slot has memory of its own, the engine writes the copy's rows
/// when it evaluates something the next time; what the slot has until then must not be stored.
#[test]
fn a_copy_is_not_stored_before_its_rows_are_written() {
    let folder = folder();
    let two = one_slot().args(["-np", "2", "--no-kv-unified"]);
    let mut stored = Stored::start(&two, folder.path());
    let plain = started(&two);
    let tea = tokens(20, 600);
    // Something else is in the memory of both slots.
    for slot in [0, 1] {
        stored.ask_slot(slot, &tokens(21 + u64::from(slot), 700));
    }
    stored.send(asking(&tea).predict(1).with("n", 2));
    for slot in [0, 1] {
        stored.ask_slot(slot, &tokens(23 + u64::from(slot), 700));
    }
    let expected = plain.complete(&asking(&tea)).unwrap();
    for slot in [0, 1] {
        let (answer, account) = stored.ask_slot(slot, &tea);
        assert_eq!(answer.content, expected.content, "slot {slot}: {account:?}");
        assert_eq!(account.from.store, 599, "{account:?}");
    }
}
