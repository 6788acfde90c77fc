//! Scenes that were once told wrongly, and others of their kind.

use contextpilot_testbed::{ProjectorKind, Step as Done};
use serde_json::json as object;

use super::*;
use crate::media::{base64, picture};

/// A server with a projector moves no chunks, whatever `--cache-reuse` says.
#[test]
fn with_a_projector_no_chunks_are_moved() {
    let turns: Vec<Vec<i32>> = (20..24).map(|seed| tokens(seed, 150)).collect();
    let system = tokens(1, 100);
    let all = behind(&system, turns.concat());
    let fewer = [system, turns[1..].concat(), tokens(3, 30)].concat();
    let better = [&all[..550], &tokens(3, 30)].concat();
    let steps = || vec![ask(all.clone()), ask(fewer.clone())];
    for flags in [
        "--parallel 1 --cache-ram 0",
        "--parallel 1 --cache-ram 0 --cache-reuse 32",
    ] {
        let scene = scene("a projector", flags, steps()).better(better.clone());
        let scene = Scene {
            with: |builder| builder.projector(ProjectorKind::Llava),
            ..scene
        };
        let changes = follow(&scene);
        let moves = |change: &Value| change[0][0] == "--cache-reuse";
        assert!(!changes.iter().any(moves), "{changes:?}");
    }
}

#[test]
fn keystrokes_in_the_middle_of_a_file() {
    let letters = |seed, count: usize| -> String {
        tokens(seed, count)
            .iter()
            .map(|token| char::from(b'a' + (token % 26) as u8))
            .collect()
    };
    let key = |nth: usize| {
        let prefix = letters(1, 300 + 2 * nth);
        let body =
            object!({"input_prefix": prefix, "input_suffix": letters(2, 400), "n_predict": 2});
        Step::Ask(Request::new("/infill", body))
    };
    let steps: Vec<Step> = (0..5).map(key).collect();
    for flags in ["--parallel 1", "--parallel 2 --cache-ram 0"] {
        follows_to(&scene("keystrokes", flags, steps.clone()), "--spm-infill");
    }
    // In a file that grows at its end, the prefix is what stays: `--spm-infill` does not help.
    let key = |nth: usize| {
        let prefix = letters(1, 300 + 50 * nth);
        let body = object!({"input_prefix": prefix, "input_suffix": "", "n_predict": 2});
        Step::Ask(Request::new("/infill", body))
    };
    let steps: Vec<Step> = (0..5).map(key).collect();
    let changes = follow(&scene("a file that grows", "--parallel 1", steps));
    assert_eq!(changes, Vec::<Value>::new());
}

#[test]
fn a_server_that_slept() {
    let p = tokens(1, 500);
    let steps = vec![
        ask(p.clone()),
        Step::Then(Done::Sleep),
        ask(behind(&p, tokens(2, 50))),
    ];
    let scene = scene("a server that slept", "--sleep-idle-seconds 1", steps);
    follows_to(&scene, "--sleep-idle-seconds");
    let played = scene.play();
    let note = played.why["notes"][0].as_str().expect("a note");
    assert!(note.starts_with("the server slept then"), "{note}");
    assert!(played.said.contains(note), "{}", played.said);
}

#[test]
fn several_answers() {
    let (p, q) = (tokens(1, 400), tokens(3, 400));
    let several = |prompt| Step::Several(Request::completion(prompt).predict(2).with("n", 3));
    let steps = vec![
        ask(q.clone()),
        several(p.clone()),
        ask(behind(&q, tokens(4, 50))),
        several(behind(&p, tokens(2, 50))),
        ask(behind(&q, tokens(5, 50))),
    ];
    let flags = "--parallel 3 --cache-ram 0 --metrics";
    let changes = follow(&scene("n: 3", flags, steps));
    assert!(!changes.is_empty());
}

#[test]
fn a_list_of_prompts() {
    let p = tokens(1, 400);
    let list = |seeds: [u64; 3]| {
        let all = seeds.map(|seed| behind(&p, tokens(seed, 60)));
        let body = object!({"prompt": all, "max_tokens": 2});
        Step::Several(Request::new("/v1/completions", body))
    };
    let other = tokens(8, 500);
    let steps = vec![ask(other.clone()), list([2, 3, 4]), ask(other)];
    let flags = "--parallel 2 --cache-ram 0 --metrics";
    let changes = follow(&scene("a list", flags, steps));
    assert!(!changes.is_empty());
}

#[test]
fn a_scale_of_an_earlier_request() {
    let p = tokens(1, 500);
    let scaled = |scale: f32, prompt: Vec<i32>| {
        let lora = object!([{"id": 0, "scale": scale}]);
        Step::Ask(Request::completion(prompt).predict(2).with("lora", lora))
    };
    // The third names none: for it, the adapter is applied wholly. The fourth does so, too.
    let steps = vec![
        scaled(1.0, p.clone()),
        scaled(0.5, p.clone()),
        ask(p.clone()),
        ask(p.clone()),
    ];
    let mut scene = scene("scales", "--parallel 1", steps);
    scene.with = |builder| builder.adapter(7, &[]);
    let other = "evaluated under other LoRA adapters or scales";
    for last in [4, 3, 2] {
        scene.steps.truncate(last);
        let played = scene.play();
        played.is_replayed(&scene);
        print!("{}", played.said);
        assert_eq!(played.said.contains(other), last > 2, "{}", played.said);
        assert_eq!(played.last() == 1, last > 2, "{}", played.said);
    }
}

#[test]
fn a_pool_without_room_above_a_store() {
    let round = || [1, 2, 3].map(|seed| ask(tokens(seed, 450)));
    let steps = [round(), round()].concat();
    let flags = "-c 1024 --parallel 4 --kv-unified --cache-ram 0";
    let mut scene = scene("a pool above a store", flags, steps);
    scene.settings = vec![
        "CONTEXTPILOT_STORE=a folder".into(),
        "CONTEXTPILOT_STORE_GB=1".into(),
    ];
    follow(&scene);
}

#[test]
fn a_restored_slot_that_hides_a_host_entry() {
    let long = tokens(1, 900);
    let steps = vec![
        in_slot(0, long[..300].to_vec()),
        Step::Save(0),
        in_slot(0, long.clone()),
        ask(tokens(2, 400)),
        Step::Restore(0),
        ask(behind(&long, tokens(3, 40))),
    ];
    follow(&scene(
        "a restored slot hides the host's",
        "--parallel 1",
        steps,
    ));
}

#[test]
fn a_request_that_says_which_chunks_move() {
    let turns: Vec<Vec<i32>> = (20..24).map(|seed| tokens(seed, 150)).collect();
    let system = tokens(1, 100);
    let all = behind(&system, turns.concat());
    let fewer = [system, turns[1..].concat(), tokens(3, 30)].concat();
    let better = [&all[..550], &tokens(3, 30)].concat();
    let moving = Request::completion(fewer.clone())
        .predict(2)
        .with("n_cache_reuse", 32);
    let steps = vec![ask(all.clone()), Step::Ask(moving)];
    let flags = "--parallel 1 --cache-ram 0";
    let changes = follow(&scene("n_cache_reuse", flags, steps).better(better.clone()));
    assert_eq!(changes, Vec::<Value>::new());
    let not = Request::completion(fewer)
        .predict(2)
        .with("n_cache_reuse", 0);
    let steps = vec![ask(all), Step::Ask(not)];
    let flags = "--parallel 1 --cache-ram 0 --cache-reuse 32";
    let scene = scene("n_cache_reuse of 0", flags, steps).better(better);
    follows_to(&scene, "no_n_cache_reuse");
}

#[test]
fn a_limit_for_each_slot() {
    let round = |turns| [50, 60, 70].map(|seed| ask(talk(seed, turns, 300)));
    let steps = [round(1), round(2)].concat();
    let flags = "--parallel 2 --kv-unified --kv-unified-per-slot 1024 --cache-ram 0";
    follow(&scene("a limit for each slot", flags, steps));
}

#[test]
fn prompts_that_clients_leave() {
    let p = tokens(1, 600);
    let leave = |nth| {
        let request = Request::completion(behind(&p, tokens(nth, 40))).predict(400);
        Step::Then(Done::Abandon(request.streamed(), 1))
    };
    let steps = vec![
        leave(2),
        ask(tokens(3, 400)),
        ask(behind(&p, tokens(4, 40))),
    ];
    follow(&scene(
        "left",
        "--parallel 1 --cache-ram 0 --metrics",
        steps,
    ));
}

#[test]
fn an_image_with_other_bytes() {
    // Equal pixels behind another comment.
    let file = |comment: &str| {
        let mut file = format!("P6 #{comment}\n").into_bytes();
        file.extend_from_slice(&picture(1, 56)[3..]);
        base64(&file)
    };
    let letters: String = tokens(1, 300)
        .iter()
        .map(|token| char::from(b'a' + (token % 26) as u8))
        .collect();
    let look = |comment: &str| {
        let prompt = object!({"prompt_string": format!("<image>{letters}"), "multimodal_data": [file(comment)]});
        Step::Ask(Request::completion(prompt).predict(2))
    };
    let mut scene = scene(
        "an image",
        "--parallel 1 --cache-ram 0",
        vec![look("a"), look("b")],
    );
    scene.with = |builder| {
        builder
            .projector(ProjectorKind::Llava)
            .env("LLAMA_MEDIA_MARKER", "<image>")
    };
    scene.better = Some(look("a"));
    follow(&scene);
}

#[test]
fn embeddings_between_two_turns() {
    let p = tokens(1, 500);
    let batch = object!({"input": [tokens(2, 80), tokens(3, 80)]});
    let steps = vec![
        ask(p.clone()),
        Step::Several(Request::new("/v1/embeddings", batch)),
        ask(behind(&p, tokens(4, 50))),
    ];
    let flags = "--embeddings --pooling mean --parallel 1 --cache-ram 0 --metrics";
    follow(&scene("embeddings", flags, steps));
}

/// Claude Code begins its system prompt with a line of its version. The text is shown, so the culprit has a name. Behind the user's
/// question stands more of the system's text, which the line does not cost.
#[test]
fn the_version_of_a_client_in_front() {
    let letters = |seed, count| -> String {
        let letters = tokens(seed, count);
        let letters = letters
            .iter()
            .map(|token| char::from(b'a' + (token % 26) as u8));
        letters.collect()
    };
    let prompts = |header: fn(char) -> String| {
        ['a', 'b'].map(|version| {
            let [system, more] = [letters(1, 500), letters(2, 200)];
            let prompt = format!("{}{system}[{version}]{more}", header(version));
            Step::Ask(Request::completion(prompt).predict(2))
        })
    };
    let with =
        |version| format!("x-anthropic-billing-header: cc_version=1.{version}; cc_entrypoint=cli;");
    let flags = "--parallel 1 --cache-ram 0";
    let mut scene = scene("a version in front", flags, prompts(with).to_vec());
    scene.settings = vec!["CONTEXTPILOT_EXPLAIN_TEXT=1".into()];
    let before = scene.play();
    before.is_replayed(&scene);
    print!("{}", before.said);
    let named = |one: &&Value| one["client"] == "no_attribution_header";
    let advice = before.advice().iter().find(named);
    let advice = advice.unwrap_or_else(|| panic!("{}", before.why));
    // The whole line is left out, also of the first prompt.
    scene.steps = prompts(|_| String::new()).to_vec();
    let after = scene.play();
    assert_eq!(after.last(), 202, "the question, and what is behind it");
    let saved = before.last() - after.last();
    let promised = advice["tokens"].as_i64().expect("a number");
    println!("  promised {promised}, saved {saved}");
    assert!(
        promised > 490 && saved >= promised && saved < promised + 8,
        "{advice}"
    );
}

/// A request for a title is another prompt: what the server's template begins with is no misplaced date.
#[test]
fn titles_between_the_turns_of_two_conversations() {
    let template = tokens(1, 5);
    let turn = |seed, turns| ask(behind(&template, talk(seed, turns, 200)));
    let title = |seed| ask(behind(&template, tokens(seed, 260)));
    let mut steps = vec![
        turn(30, 2),
        title(71),
        turn(50, 2),
        title(72),
        turn(30, 3),
        title(73),
    ];
    let flags = "--parallel 1 --cache-ram 0";
    let changes = follow(&scene("a title", flags, steps.clone()));
    let of_client = |change: &Value| !change[2].is_null();
    assert!(!changes.iter().any(of_client), "{changes:?}");
    steps.push(turn(50, 3));
    let changes = follow(&scene("a turn after titles", flags, steps));
    assert!(!changes.is_empty());
    assert!(!changes.iter().any(of_client), "{changes:?}");
}

/// Of a long prompt that a short one displaced, the host cache has a copy that the server's choice of slot may skip.
#[test]
fn a_short_prompt_in_the_place_of_a_long_one() {
    let p = tokens(1, 500);
    let steps = vec![
        ask(behind(&p, tokens(2, 900))),
        ask(behind(&p, tokens(3, 60))),
        ask(behind(&p, tokens(2, 900))),
        ask(behind(&p, tokens(3, 90))),
    ];
    for flags in ["", "--parallel 2", "--parallel 1"] {
        follow(&scene(
            "a short prompt, then the long one",
            flags,
            steps.clone(),
        ));
    }
}

/// What a process that sleeps forgets, a store gives back, and it counts once.
#[test]
fn a_server_that_slept_above_a_store() {
    let p = tokens(1, 700);
    let steps = vec![
        ask(p.clone()),
        Step::Then(Done::Sleep),
        ask(behind(&p, tokens(2, 60))),
        ask(behind(&p, tokens(3, 60))),
    ];
    for arch in [Arch::Llama, Arch::Mamba] {
        let mut scene = scene(
            "slept above a store",
            "--sleep-idle-seconds 1",
            steps.clone(),
        )
        .of(arch);
        scene.settings = vec![
            "CONTEXTPILOT_STORE=a folder".into(),
            "CONTEXTPILOT_STORE_GB=1".into(),
        ];
        follow(&scene);
    }
}

/// The store has what a client erases, so not erasing saves little or nothing.
#[test]
fn an_erased_slot_above_a_store() {
    let p = tokens(1, 700);
    let steps = vec![
        in_slot(0, p.clone()),
        in_slot(1, tokens(2, 300)),
        Step::Erase(0),
        in_slot(0, behind(&p, tokens(3, 50))),
    ];
    let flags = "--parallel 2 --cache-ram 0";
    let without = scene("an erased slot", flags, steps);
    follows_to(&without, "no_erase");
    let mut above = without;
    above.settings = vec![
        "CONTEXTPILOT_STORE=a folder".into(),
        "CONTEXTPILOT_STORE_GB=1".into(),
    ];
    follow(&above);
}

/// An editor's file in a chat, changed in two places with long pieces that are the same between them.
#[test]
fn a_file_that_was_edited_in_two_places() {
    let [system, one, two, three] = [1, 2, 3, 4].map(|seed| tokens(seed, 250));
    let prompt = |first: u64, second: u64, question: u64| {
        let parts = [
            system.clone(),
            one.clone(),
            tokens(first, 9),
            two.clone(),
            tokens(second, 9),
            three.clone(),
            tokens(question, 40),
        ];
        parts.concat()
    };
    let steps = vec![ask(prompt(60, 61, 70)), ask(prompt(62, 63, 71))];
    let better = [
        &prompt(60, 61, 70)[..1018],
        &[tokens(62, 9), tokens(63, 9), tokens(71, 40)].concat()[..],
    ]
    .concat();
    let flags = "--parallel 1 --cache-ram 0";
    let scene = scene("a file edited twice", flags, steps).better(better);
    let before = scene.play();
    before.is_replayed(&scene);
    print!("{}", before.said);
    // Each piece that is repeated counts, and what was changed does not.
    for advice in before.advice() {
        let promised = advice["tokens"].as_i64().expect("a number");
        let saved = before.last() - scene.followed(advice).play().last();
        println!("  promised {promised}, saved {saved}: {}", advice["text"]);
        assert!((promised - saved).abs() < 8 && saved > 0, "{advice}");
    }
    agree(&before);
}

/// The flag is on where it moves nothing, or moves a state that it should not: what is said must be what the engine did.
#[test]
fn models_that_cannot_go_back_with_cache_reuse() {
    let turns: Vec<Vec<i32>> = (20..24).map(|seed| tokens(seed, 150)).collect();
    let system = tokens(1, 100);
    let all = behind(&system, turns.concat());
    let fewer = [system, turns[1..].concat(), tokens(3, 30)].concat();
    let steps = vec![
        ask(all.clone()),
        ask(fewer),
        ask(behind(&all, tokens(4, 40))),
    ];
    for arch in [Arch::Jamba, Arch::Mamba, Arch::Gemma2] {
        let flags = "--parallel 1 --cache-ram 0 --cache-reuse 32";
        let scene = scene("cache reuse that cannot go back", flags, steps.clone()).of(arch);
        let changes = follow(&scene);
        let moves = |change: &Value| change[0][0] == "--cache-reuse";
        assert!(!changes.iter().any(moves), "{arch:?}: {changes:?}");
        // Chunks are moved, and the state given up, before anything of the second prompt is evaluated.
        let played = scene.play();
        // Those of a model with windows are not moved.
        let how = match arch {
            Arch::Gemma2 => "overwritten",
            _ => "shifted",
        };
        assert!(
            played.said.contains(&format!("{how} by #2")),
            "{arch:?}: {}",
            played.said
        );
    }
}

/// Subagents in slots that the client names, and a conversation that goes on in another: the pool has room for all.
#[test]
fn named_slots_in_a_pool() {
    let system = tokens(1, 400);
    let turn = |seed, turns| behind(&system, talk(seed, turns, 100));
    let steps = vec![
        in_slot(0, turn(30, 2)),
        in_slot(1, turn(40, 1)),
        in_slot(2, turn(50, 1)),
        in_slot(1, turn(30, 3)),
        in_slot(0, turn(40, 2)),
    ];
    let flags = "--parallel 3 --kv-unified";
    follows_to(&scene("named slots in a pool", flags, steps), "no_id_slot");
}

/// An answer that overfills its slot shifts it, so the prompt's beginning is not where it was.
#[test]
fn an_answer_that_shifts_its_slot() {
    let p = tokens(1, 400);
    let long = Request::completion(p.clone())
        .predict(200)
        .with("n_keep", 50);
    let steps = vec![
        Step::Ask(long),
        ask(behind(&p, tokens(2, 20))),
        ask(behind(&p, tokens(3, 20))),
    ];
    let flags = "-c 512 --parallel 1 --cache-ram 0 --context-shift";
    follow(&scene("a slot that shifted", flags, steps));
}
