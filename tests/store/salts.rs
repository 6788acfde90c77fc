//! `cache_salt`: prompts of another salt share nothing in the store. (Slots and the host prompt cache are the server's, and
//! it shares them.)

use contextpilot_control::Evaluation;
use contextpilot_testbed::{
    Arch, Builder, Model, Random, Request, Server, Unseen, or_return, unseen_server,
};
use serde_json::{Value, json};

use super::{SIGKILL, Stored, asking, folder, one_slot, started, tokens};

fn salted(prompt: &[u32], salt: &Value) -> Request {
    match salt {
        Value::Null => asking(prompt),
        salt => asking(prompt).with("cache_salt", salt.clone()),
    }
}

fn ask(stored: &mut Stored, prompt: &[u32], salt: &Value) -> Evaluation {
    stored.send(salted(prompt, salt)).1
}

#[test]
fn prompts_of_another_salt_share_nothing_in_this_life_or_the_next() {
    let folder = folder();
    let mut stored = Stored::start(&one_slot(), folder.path());
    let (tea, sea) = (tokens(1, 600), tokens(2, 600));
    let [none, one, two] = [Value::Null, json!("one"), json!("two")];
    // The slot's prompt is stored when it is overwritten.
    ask(&mut stored, &tea, &one);
    ask(&mut stored, &sea, &one);
    for other in [&none, &two] {
        let account = ask(&mut stored, &tea, other);
        assert_eq!(account.from.store, 0, "{other}: {account:?}");
        ask(&mut stored, &sea, &one);
    }
    for each in [&none, &one, &two] {
        let account = ask(&mut stored, &tea, each);
        assert_eq!(account.from.store, 599, "{each}: {account:?}");
        ask(&mut stored, &sea, &one);
    }
    stored.await_written();
    stored.server.stop(SIGKILL).unwrap();

    let mut second = Stored::start(&one_slot(), folder.path());
    for (salt, loaded) in [(&none, 0), (&two, 0), (&one, 599)] {
        let account = ask(&mut second, &sea, salt);
        assert_eq!(account.from.store, loaded, "{salt}: {account:?}");
        let account = ask(&mut second, &tea, &two);
        assert_eq!(account.from.store, 599, "{account:?}");
    }
    assert_eq!(second.figures().refused, [""; 0]);
}

#[test]
fn what_a_slot_shares_is_stored_for_both() {
    let folder = folder();
    let mut stored = Stored::start(&one_slot(), folder.path());
    let (one, two) = (json!("one"), json!("two"));
    let head = tokens(3, 200);
    let branch = |seed| -> Vec<u32> { head.iter().copied().chain(tokens(seed, 300)).collect() };
    let (tea, sea) = (branch(4), branch(5));
    ask(&mut stored, &tea, &one);
    // It begins with what the slot has, as prompts with one system message do.
    let account = ask(&mut stored, &sea, &two);
    assert!((200..203).contains(&account.from.slot), "{account:?}");
    ask(&mut stored, &tokens(6, 400), &Value::Null);
    let account = ask(&mut stored, &sea, &two);
    assert_eq!(account.from.store, 499, "{account:?}");
    ask(&mut stored, &tokens(7, 400), &Value::Null);
    let account = ask(&mut stored, &tea, &one);
    assert_eq!(account.from.store, 499, "{account:?}");
    ask(&mut stored, &tokens(8, 400), &Value::Null);
    let account = ask(&mut stored, &tea, &two);
    assert!((200..203).contains(&account.from.store), "{account:?}");
}

#[test]
fn of_a_salt_that_cannot_be_used_nothing_is_stored_or_loaded() {
    let folder = folder();
    let mut stored = Stored::start(&one_slot(), folder.path());
    let (tea, sea, one) = (tokens(9, 600), tokens(10, 600), json!("one"));
    let long = json!("x".repeat(513));
    ask(&mut stored, &tea, &Value::Null);
    ask(&mut stored, &sea, &one);
    for bad in [json!(7), json!(true), json!(["one"]), long] {
        let account = ask(&mut stored, &tea, &bad);
        assert_eq!(account.from.store, 0, "{bad}: {account:?}");
        let before = stored.figures().chunks;
        // A client without one loads what others without one have stored.
        let account = ask(&mut stored, &sea, &one);
        assert_eq!(account.from.store, 599, "{bad}: {account:?}");
        stored.await_written();
        assert_eq!(stored.figures().chunks, before, "{bad}");
    }
    for absent in [Value::Null, json!("")] {
        let account = ask(&mut stored, &tea, &absent);
        assert_eq!(account.from.store, 599, "{absent}: {account:?}");
        ask(&mut stored, &sea, &one);
    }
}

/// It is not known which slot has which client's prompt, so from then on nothing is loaded or stored.
#[test]
fn where_launches_are_not_seen_the_first_salt_ends_the_store() {
    let program = or_return!(unseen_server(Unseen::Nameless).unwrap());
    let builder = one_slot()
        .program(program)
        .env("CONTEXTPILOT_STORE_USAGE", "1");
    let folder = folder();
    let mut stored = Stored::start(&builder, folder.path());
    let (tea, sea) = (tokens(11, 600), tokens(12, 600));
    ask(&mut stored, &tea, &Value::Null);
    ask(&mut stored, &sea, &Value::Null);
    let account = ask(&mut stored, &tea, &Value::Null);
    assert_eq!(account.from.store, 599, "{account:?}");
    let before = stored.figures();
    assert_eq!(before.refused, [""; 0]);
    for salt in [json!("one"), Value::Null, json!("two")] {
        for prompt in [&sea, &tea] {
            let account = ask(&mut stored, prompt, &salt);
            assert_eq!(account.from.store, 0, "{salt}: {account:?}");
        }
    }
    stored.await_written();
    let after = stored.figures();
    assert_eq!((after.loads, after.chunks), (before.loads, before.chunks));
    let why = "a request has a cache_salt, and which slot takes it cannot be seen in this server";
    assert_eq!(after.refused, [why]);
    let said = stored.server.stderr();
    let once = |text: &str| said.matches(text).count() == 1;
    assert!(
        once(why) && once("Answers count what the prefix store loads as evaluated"),
        "{said}"
    );
}

/// Slots and the host prompt cache hand prompts on between requests of several salts.
#[track_caller]
fn random_traffic(builder: &Builder, seed: u64) -> usize {
    let folder = folder();
    let plain = started(builder);
    let mut stored = Stored::start(builder, folder.path());
    let mut random = Random(seed);
    let salts = [Value::Null, json!("one"), json!("two")];
    let mut earlier: Vec<(usize, Vec<u32>)> = Vec::new();
    let mut loaded = 0;
    for nth in 0..48 {
        let salt = random.below(3) as usize;
        // The beginning of any earlier prompt, whosever it was, and something new.
        let mut prompt = if earlier.is_empty() {
            Vec::new()
        } else {
            earlier[random.below(earlier.len() as u64) as usize]
                .1
                .clone()
        };
        prompt.truncate(random.below(prompt.len() as u64 + 1) as usize);
        prompt.extend(tokens(seed * 1000 + nth, 60 + random.below(300) as usize));
        prompt.truncate(1500);
        let (ours, account) = stored.send(salted(&prompt, &salts[salt]));
        let theirs = plain.complete(&asking(&prompt)).unwrap();
        assert_eq!(ours.content, theirs.content, "{account:?}");
        let shared = |(of, other): &(usize, Vec<u32>)| {
            let mut same = other.iter().zip(&prompt);
            // An answer of four tokens is stored behind its prompt.
            let same = same.position(|(a, b)| a != b).unwrap_or(other.len());
            if *of == salt {
                same.min(prompt.len()) + 4
            } else {
                0
            }
        };
        let most = earlier.iter().map(shared).max().unwrap_or(0);
        let from = &account.from;
        assert!(from.store as usize <= most, "{salt}: {most}, {account:?}");
        loaded += from.store as usize;
        earlier.push((salt, prompt));
    }
    loaded
}

fn two_slots(arch: Arch) -> Builder {
    Server::builder()
        .model(&Model::tiny(arch))
        .args(["-c", "4096", "-np", "2", "--cache-ram", "1"])
}

#[test]
fn through_slots_and_the_host_cache_nobody_gets_what_another_salt_stored() {
    let loaded: usize = (1..4)
        .map(|seed| random_traffic(&two_slots(Arch::Llama), seed))
        .sum();
    assert!(loaded > 2000, "{loaded}");
}

#[test]
fn nor_where_a_context_cannot_go_back() {
    for arch in [Arch::Gemma2, Arch::Mamba] {
        let loaded = random_traffic(&two_slots(arch), 5);
        assert!(loaded > 0, "{arch:?}");
    }
}
