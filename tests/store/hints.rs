//! `cache_control`: a prompt that its client will come back to leaves the store last, within a share of the budget.

use std::path::Path;
use std::process::Command;

use contextpilot_control::{Evaluation, KeptBeginning, KeptPrompts};
use contextpilot_testbed::{Arch, Builder, Connection, Model, Server, until};
use serde_json::{Value, json};

use super::{SIGKILL, Stored, asking, folder, one_slot, started, tokens};

/// Some nine prompts of 600 tokens, which take 310 kB each; two of them are a quarter.
const BUDGET: &str = "0.003";

fn ask(stored: &mut Stored, prompt: &[u32], ttl: &Value) -> Evaluation {
    let control = json!({"type": "ephemeral", "ttl": ttl});
    stored.send(asking(prompt).with("cache_control", control)).1
}

/// Other prompts, more than fit.
fn fill(stored: &mut Stored, seed: u64) {
    for nth in 0..14 {
        stored.ask(&tokens(seed + nth, 600));
    }
}

fn kept_files(folder: &Path) -> usize {
    std::fs::read_dir(folder.join("v1/kept")).map_or(0, Iterator::count)
}

#[test]
fn a_prompt_that_is_kept_stays_while_others_leave_also_in_the_next_life_until_it_is_released() {
    let folder = folder();
    let plain = started(&one_slot());
    let mut stored = Stored::start_within(&one_slot(), folder.path(), BUDGET);
    let (tea, sea) = (tokens(1, 600), tokens(2, 600));
    ask(&mut stored, &tea, &json!("1h"));
    stored.ask(&sea);
    fill(&mut stored, 100);
    let (_, account) = stored.compare(&plain, &sea);
    assert_eq!(account.from.store, 0, "it has left: {account:?}");
    until("it is written down", || {
        (kept_files(folder.path()) == 1).then_some(())
    });
    stored.await_written();
    stored.server.stop(SIGKILL).unwrap();

    let mut second = Stored::start_within(&one_slot(), folder.path(), BUDGET);
    fill(&mut second, 200);
    let (_, account) = second.compare(&plain, &tea);
    assert_eq!(account.from.store, 599, "{account:?}");
    assert_eq!(second.figures().refused, [""; 0]);
    // A client that has come back, and will not again.
    ask(&mut second, &tea, &json!(0));
    fill(&mut second, 300);
    let (_, account) = second.compare(&plain, &tea);
    assert_eq!(account.from.store, 0, "{account:?}");
    until("it is no longer written down", || {
        (kept_files(folder.path()) == 0).then_some(())
    });
}

#[test]
fn at_a_start_with_a_smaller_budget_what_is_kept_stays_and_what_leaves_is_said() {
    let folder = folder();
    let mut stored = Stored::start_within(&one_slot(), folder.path(), BUDGET);
    let (tea, sea) = (tokens(1, 600), tokens(2, 600));
    ask(&mut stored, &tea, &json!("1h"));
    stored.ask(&sea);
    for nth in 0..5 {
        stored.ask(&tokens(200 + nth, 600));
    }
    until("it is written down", || {
        (kept_files(folder.path()) == 1).then_some(())
    });
    stored.end();
    // Four of seven prompts, and a quarter of it is one.
    let mut second = Stored::start_within(&one_slot(), folder.path(), "0.0013");
    let said = second.server.stderr();
    let line = said
        .lines()
        .find(|line| line.contains("so ") && line.contains("1.3 MB"));
    let line = line.unwrap_or_else(|| panic!("{said}"));
    assert!(
        line.contains(" chunks of ") && line.contains("CONTEXTPILOT_STORE_GB"),
        "{line}"
    );
    assert_eq!(second.ask(&sea).1.from.store, 0);
    assert_eq!(second.ask(&tea).1.from.store, 599);
    for nth in 0..2 {
        second.ask(&tokens(300 + nth, 600));
    }
    second.end();
    // By hand, too.
    let prune = Command::new(env!("CARGO_BIN_EXE_contextpilot-llama"))
        .args(["store", "prune", "--to", "650kB", "--folder"])
        .arg(folder.path())
        .output()
        .unwrap();
    assert!(prune.status.success(), "{prune:?}");
    let mut third = Stored::start_within(&one_slot(), folder.path(), "0.0013");
    assert_eq!(third.ask(&tokens(300, 600)).1.from.store, 0);
    assert_eq!(third.ask(&tea).1.from.store, 599);
}

#[test]
fn a_prompt_is_kept_as_long_as_its_client_says() {
    let folder = folder();
    let mut stored = Stored::start_within(&one_slot(), folder.path(), BUDGET);
    let tea = tokens(1, 600);
    ask(&mut stored, &tea, &json!("1s"));
    // It is asked for again and again, so that others leave before it but while it is being kept no more.
    let mut seed = 100;
    until("its second is over, and it has left", || {
        fill(&mut stored, seed);
        seed += 100;
        let (_, account) = stored.ask(&tea);
        (account.from.store == 0).then_some(())
    });
    until("it is no longer written down", || {
        (kept_files(folder.path()) == 0).then_some(())
    });
}

/// The attack: a client that keeps everything. What others use stays as without it.
#[test]
fn who_keeps_everything_takes_a_quarter_and_no_more() {
    let folder = folder();
    let mut stored = Stored::start_within(&one_slot(), folder.path(), BUDGET);
    let mine: Vec<Vec<u32>> = (0..4).map(|nth| tokens(10 + nth, 600)).collect();
    for round in 0..5 {
        for prompt in &mine {
            let (_, account) = stored.ask(prompt);
            assert!(
                round == 0 || account.from.store == 599,
                "{round}: {account:?}"
            );
        }
        for nth in 0..2 {
            ask(
                &mut stored,
                &tokens(100 + round * 2 + nth, 600),
                &json!("1d"),
            );
        }
    }
    let refused = stored.figures().refused;
    assert!(
        refused.len() == 1 && refused[0].contains("a quarter of the budget"),
        "{refused:?}"
    );
    assert!(stored.figures().bytes <= 3_000_000);
    until("what is kept is written down", || {
        (kept_files(folder.path()) == 2).then_some(())
    });
}

/// What another server that uses the folder was asked to keep, this one does not remove.
#[test]
fn servers_with_one_folder_keep_what_either_was_asked_to() {
    let folder = folder();
    let mut one = Stored::start_within(&one_slot(), folder.path(), BUDGET);
    let mut two = Stored::start_within(&one_slot(), folder.path(), BUDGET);
    let tea = tokens(1, 600);
    ask(&mut one, &tea, &json!("1h"));
    one.await_written();
    until("it is written down", || {
        (kept_files(folder.path()) == 1).then_some(())
    });
    // What it stores afterwards the other one sees in a later look than that; and in the look before the second, it has
    // read what is kept.
    for nth in [2, 4] {
        one.ask(&tokens(nth, 600));
        one.ask(&tokens(nth + 1, 600));
        one.await_written();
        let all = one.figures().chunks;
        until("the other one has looked", || {
            (two.figures().chunks == all).then_some(())
        });
    }
    fill(&mut two, 100);
    let (_, account) = two.ask(&tea);
    assert_eq!(account.from.store, 599, "{account:?}");
}

/// Contexts that cannot go back load states, which stand behind their tokens.
#[test]
fn what_is_kept_of_a_context_that_cannot_go_back_has_its_state() {
    for arch in [Arch::Gemma2, Arch::Mamba] {
        let folder = folder();
        let builder: Builder = Server::builder()
            .model(&Model::tiny(arch))
            .bare_slots(1)
            .args(["-c", "4096"]);
        let mut stored = Stored::start(&builder, folder.path());
        let tea = tokens(1, 600);
        ask(&mut stored, &tea, &json!("1h"));
        until("it is written down", || {
            (kept_files(folder.path()) == 1).then_some(())
        });
        stored.end();
        let mut second = Stored::start(&builder, folder.path());
        let longer: Vec<u32> = tea.iter().copied().chain(tokens(2, 50)).collect();
        let (_, account) = second.ask(&longer);
        assert!(account.from.store >= 500, "{arch:?}: {account:?}");
        assert_eq!(kept_files(folder.path()), 1);
    }
}

/// Fields of each API, as clients send them.
#[test]
fn each_api_takes_it_and_a_plain_server_ignores_it() {
    let folder = folder();
    let mut stored = Stored::start(&one_slot(), folder.path());
    let plain = started(&one_slot());
    let text = "Tea is picked in spring, and dried in the sun. ".repeat(8);
    let user = json!([{"role": "user", "content": text}]);
    let control = json!({"type": "ephemeral", "ttl": "1h"});
    for (nth, (path, body)) in [
        (
            "/v1/chat/completions",
            json!({"messages": user, "max_tokens": 1}),
        ),
        (
            "/v1/messages",
            json!({"system": "a", "messages": user, "max_tokens": 1}),
        ),
        (
            "/v1/responses",
            json!({"instructions": "b", "input": text, "max_output_tokens": 1}),
        ),
        (
            "/v1/completions",
            json!({"prompt": format!("c {text}"), "max_tokens": 1}),
        ),
        (
            "/completion",
            json!({"prompt": format!("d {text}"), "n_predict": 1}),
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let mut with = body.clone();
        with["cache_control"] = control.clone();
        with["cache_salt"] = "a".into();
        let send = |server: &Server, body: &Value| {
            let answer = server.post(path, body).unwrap();
            assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        };
        send(&plain, &with);
        send(&stored.server, &with);
        until("it is written down", || {
            (kept_files(folder.path()) == nth + 1).then_some(())
        });
    }
    stored.end();
}

/// Of a prompt, and of one that begins as a kept one does.
#[test]
fn what_is_kept_of_a_prompt_and_until_when_can_be_asked_for() {
    let folder = folder();
    let mut stored = Stored::start(&one_slot(), folder.path());
    let (tea, sea) = (tokens(1, 600), tokens(2, 600));
    let kept = |stored: &Stored, prompt: &[u32]| {
        let prompt: Vec<i32> = prompt.iter().map(|token| *token as i32).collect();
        stored.control.matching(&prompt).unwrap().kept
    };
    let of_request = |stored: &Stored| {
        let id = format!("req-{}", stored.next);
        stored.control.request(&id).unwrap().kept()
    };
    ask(&mut stored, &tea, &json!("1h"));
    let until_when = stored.figures().kept.until.unwrap();
    let all = Some(KeptBeginning {
        tokens: 600,
        until: until_when,
    });
    assert_eq!(of_request(&stored), all);
    assert_eq!(kept(&stored, &tea), all);
    let other = [&tea[..300], &sea].concat();
    let beginning = kept(&stored, &other).unwrap();
    assert_eq!((beginning.tokens, beginning.until), (300, until_when));
    assert_eq!(kept(&stored, &sea), None);
    stored.ask(&sea);
    assert_eq!(of_request(&stored), None);
    // It has left the slot, and is kept nevertheless.
    assert_eq!(kept(&stored, &tea), all);
    ask(&mut stored, &tea, &json!(0));
    assert_eq!((of_request(&stored), kept(&stored, &tea)), (None, None));
    stored.end();
}

/// A client that cannot put anything into the body can set a header. What is kept is in the figures.
#[test]
fn a_header_says_it_too_and_the_figures_say_what_is_kept() {
    let folder = folder();
    let mut stored = Stored::start(&one_slot(), folder.path());
    let nothing = KeptPrompts {
        limit_bytes: 250_000_000,
        ..KeptPrompts::default()
    };
    assert_eq!(stored.figures().kept, nothing);
    let (tea, sea) = (tokens(1, 600), tokens(2, 300));
    let send = |stored: &Stored, prompt: &[u32], ttl: &str| {
        let bytes =
            Connection::request_bytes("POST", "/completion", asking(prompt).wire_body().as_bytes());
        let text = String::from_utf8(bytes).unwrap();
        let text = text.replacen("\r\n", &format!("\r\nX-Cache-Control-TTL: {ttl}\r\n"), 1);
        let mut connection = stored.server.connect().unwrap();
        connection.write(text.as_bytes()).unwrap();
        assert_eq!(connection.response().unwrap().status, 200);
    };
    send(&stored, &tea, "1h");
    let kept = stored.figures().kept;
    assert_eq!((kept.prompts, kept.tokens), (1, 600), "{kept:?}");
    assert!(kept.bytes > 0 && kept.until.is_some(), "{kept:?}");
    send(&stored, &sea, "2h");
    let both = stored.figures().kept;
    assert_eq!((both.prompts, both.tokens), (2, 900), "{both:?}");
    let metrics = stored.control.metrics().unwrap();
    for (name, value) in [
        ("prompts", both.prompts),
        ("bytes", both.bytes),
        ("limit_bytes", both.limit_bytes),
    ] {
        let name = format!("contextpilot_llama_prefix_store_kept_{name}");
        assert_eq!(metrics.value(&name, &[]), Some(value as f64), "{name}");
    }
    assert!(both.until > kept.until, "{both:?}");
    for prompt in [&tea, &sea] {
        send(&stored, prompt, "0");
    }
    assert_eq!(stored.figures().kept, nothing);
    stored.end();
}
