use contextpilot_testbed::{Completion, Request};

use crate::support::{Watched, companion, fails, good, json, nowhere, two_slots};

const TEA: &str = "Tea is picked in spring, on slopes that face the morning sun.";

#[test]
fn server_and_ledger_agree_on_every_slot() {
    let watched = Watched::start(two_slots());
    watched.complete(Request::completion(TEA).id("tea").slot(1));
    watched.wait_state("tea", "cached");
    watched.server.wait_idle().unwrap();
    // The ledger is updated shortly after the engine. So the command is repeated.
    let said = crate::support::until("both say the same", || {
        let said = watched.json(&["slots"]);
        let theirs = said["server"]["slots"][1]["tokens"].clone();
        let ours = said["hook"].as_array().unwrap();
        let ours = ours.iter().find(|slot| slot["slot"] == 1)?;
        (ours["tokens"] == theirs).then_some(said)
    });
    assert_eq!(said["server"]["health"]["status"], "ready");
    assert_eq!(said["server"]["props"]["total_slots"], 2);
    assert_eq!(said["hook_error"], serde_json::Value::Null);

    let text = watched.text(&["slots"]);
    let mut lines = text.lines();
    assert!(lines.next().unwrap().contains("  ready, "), "{text}");
    assert!(lines.next().unwrap().contains("llama.cpp"), "{text}");
    let row = text.lines().last().unwrap();
    assert!(row.trim_start().starts_with("1  idle"), "{text}");
    assert!(row.ends_with("  tea"), "{text}");
}

/// The server's own /slots would have it load its model.
#[test]
fn a_server_that_sleeps_is_not_woken() {
    let watched = Watched::start(two_slots().args(["--sleep-idle-seconds", "1"]));
    watched.complete(Request::completion(TEA).predict(1));
    let asleep = || watched.json(&["stats"])["model_state"] == "asleep";
    crate::support::until("it sleeps", || asleep().then_some(()));
    let output = watched.command(&["slots"]).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.contains("The server sleeps"), "{stderr}");
    assert!(good(&output).contains(", asleep\n"));
    assert!(asleep());
}

#[test]
fn without_a_hook_only_the_servers_slots_are_shown() {
    let server = two_slots().spawn().unwrap();
    let url = format!("http://{}", server.address());
    let nobody = nowhere();
    let slots = |more: &[&str]| {
        let mut command = companion(&["slots", "--server", &url, "--control", &nobody]);
        command.args(more);
        command
    };
    let output = slots(&[]).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        stderr.starts_with("[ContextPilot] No hook answers"),
        "{stderr}"
    );
    assert!(good(&output).contains("2 slots of 2,048 tokens"));
    let said = json(&good(&slots(&["--json"]).output().unwrap()));
    assert_eq!(said["hook"], serde_json::Value::Null);
    assert!(
        said["hook_error"]
            .as_str()
            .unwrap()
            .contains("nothing listens")
    );
}

#[test]
fn if_the_hook_refuses_to_answer_slots_fails() {
    let watched = Watched::start(two_slots().env("CONTEXTPILOT_LISTEN_TOKEN", "sesame"));
    let slots = |token: &str, more: &[&str]| {
        let mut command = watched.command(&[&["slots"], more].concat());
        command.env("CONTEXTPILOT_LISTEN_TOKEN", token);
        command
    };
    for more in [&[][..], &["--json"]] {
        let said = fails(slots("wrong", more));
        assert!(said.contains("set CONTEXTPILOT_LISTEN_TOKEN"), "{said}");
    }
    good(&slots("sesame", &[]).output().unwrap());
}

#[test]
fn slots_are_saved_restored_and_erased() {
    let watched = Watched::start(two_slots());
    watched.complete(Request::completion(TEA).id("tea").slot(0));
    let saved = watched.json(&["slots", "save", "0", "tea.bin"]);
    let tokens = saved["n_saved"].as_u64().unwrap();
    assert!(watched.server.folder().join("tea.bin").is_file());
    let erased = watched.text(&["slots", "erase", "0"]);
    assert_eq!(erased, format!("Slot 0: {tokens} tokens erased\n"));
    watched.wait_state("tea", "evicted");
    let restored = watched.text(&["slots", "restore", "1", "tea.bin", "--wait", "60"]);
    let start = format!("Slot 1: {tokens} tokens restored from tea.bin, ");
    assert!(restored.starts_with(&start), "{restored}");
    let again = watched.complete(Request::completion(TEA).slot(1));
    assert_eq!(again.prompt_n, 1);
}

#[test]
fn an_impossible_action_on_a_slot_is_an_error() {
    let watched = Watched::start(two_slots());
    for (arguments, part) in [
        (
            &["slots", "erase", "2"][..],
            "there is no slot 2: they are 0 to 1",
        ),
        (&["slots", "restore", "0", "no.bin"], "is empty now"),
        (&["slots", "save", "0", "../x"], "plain file name"),
    ] {
        let said = fails(watched.command(arguments));
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
    let plain = two_slots().no_saved_slots().spawn().unwrap();
    let url = format!("http://{}", plain.address());
    let said = fails(companion(&["slots", "save", "0", "x", "--server", &url]));
    assert!(
        said.contains("start it with --slot-save-path <folder>"),
        "{said}"
    );
    let nobody = format!("http://{}", nowhere());
    let said = fails(companion(&["slots", "--server", &nobody]));
    assert!(said.contains("No llama-server answers at"), "{said}");
}

/// Repeats other prompts until a command says this of one while it is evaluated: the line, and the prompt's answer.
fn caught(watched: &Watched, seed: &mut u64, command: &str, words: &str) -> (String, Completion) {
    crate::support::until(words, || {
        *seed += 1;
        let text = contextpilot_testbed::Random(*seed).letters(1900);
        let long = Request::completion(text).slot(0).predict(1);
        std::thread::scope(|scope| {
            let working = scope.spawn(|| watched.server.complete(&long).unwrap());
            let mut line = None;
            while line.is_none() && !working.is_finished() {
                let output = watched.command(&[command]).output().unwrap();
                let said = String::from_utf8(output.stdout).unwrap();
                let mut lines = said.lines().map(str::to_owned);
                line = lines.find(|line| line.contains(words));
            }
            Some((line?, working.join().unwrap()))
        })
    })
}

/// The test is repeated until a prompt was seen half evaluated: it may have ended before the command runs.
#[test]
fn while_a_prompt_is_evaluated_each_command_says_whose_it_is_and_how_far() {
    let watched = Watched::start(two_slots().args(["-b", "32", "-ub", "32"]));
    let mut seed = 0;
    for command in ["stats", "slots", "why", "where"] {
        let (line, whole) = caught(&watched, &mut seed, command, "evaluated so far");
        let (name, so_far) = line.split_once(" is being evaluated: ").unwrap();
        assert!(name.ends_with(&format!("#{seed}")), "{line}");
        let reused = format!("{} reused, ", whole.cache_n);
        let evaluated = so_far.strip_prefix(&reused).expect(&line);
        let (evaluated, rest) = evaluated.split_once(" evaluated so far in ").unwrap();
        // Only batches that have ended count, and each has 32.
        let evaluated: usize = evaluated.replace(',', "").parse().unwrap();
        assert!(evaluated > 0 && evaluated % 32 == 0, "{line}");
        assert!(evaluated < whole.prompt_n, "{line}");
        let remain = rest.split_once(" tokens/s; ").expect(&line).1;
        let (left, of) = remain.split_once(" of ").unwrap();
        let (all, about) = of.split_once(" tokens remain, about ").expect(&line);
        let [left, all] = [left, all].map(|text| text.replace(',', "").parse::<usize>().unwrap());
        assert_eq!(
            (all, left),
            (whole.cache_n + whole.prompt_n, whole.prompt_n - evaluated)
        );
        assert!(
            about.starts_with("a second") || about.ends_with(" s"),
            "{line}"
        );
    }
}

/// As long as its first batch is evaluated, no rate is known, but how large the batch is. It is repeated until that was seen.
#[test]
fn while_its_first_batch_is_evaluated_each_command_says_how_many_tokens_that_has() {
    let watched = Watched::start(two_slots().args(["-b", "2048", "-ub", "32"]));
    let mut seed = 0;
    for command in ["stats", "slots", "why", "where"] {
        let (line, whole) = caught(&watched, &mut seed, command, "its first batch");
        let batch = line.split_once("its first batch, of ").expect(&line).1;
        let (tokens, rest) = batch.split_once(" tokens, ").expect(&line);
        assert!(rest.starts_with("has not ended yet, after "), "{line}");
        let tokens: usize = tokens.replace(',', "").parse().unwrap();
        assert_eq!(tokens, whole.prompt_n.min(2048), "{line}");
    }
}

/// The test is repeated until it has seen the slot busy: on a slow machine the request may have
/// ended before the command runs.
#[test]
fn an_action_on_a_busy_slot_is_an_error() {
    let watched = Watched::start(two_slots());
    let long = Request::completion("go on")
        .slot(0)
        .predict(1900)
        .with("ignore_eos", true);
    crate::support::until("the slot is caught at work", || {
        std::thread::scope(|scope| {
            let working = scope.spawn(|| watched.server.complete(&long).unwrap());
            let busy = || {
                let slots = watched.server.get("/slots").unwrap().json().unwrap();
                slots[0]["is_processing"] == true
            };
            while !working.is_finished() && !busy() {}
            let output = watched.command(&["slots", "erase", "0"]).output().unwrap();
            let waited = watched.text(&["slots", "erase", "0", "--wait", "60"]);
            assert!(waited.ends_with(" tokens erased\n"), "{waited}");
            working.join().unwrap();
            if output.status.success() {
                return None;
            }
            let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(stderr.contains("Slot 0 works on a request"), "{stderr}");
            Some(())
        })
    });
}
