//! Advice, followed: each scene is played on a real server, each advice of `why` and `advise` is followed on another
//! one, and what was promised is compared with what was saved. `cargo test --test tools -- advice --nocapture` prints the
//! table.

use contextpilot_testbed::{Arch, Builder, Model, Random, Request, Server, Step as Done, Trace};
use serde_json::{Value, json as object};

use crate::support::{Watched, companion, fails, good, json, until};

mod answers;
mod asked;
mod edges;
mod ordinary;
mod retries;
mod swapped;

/// So many tokens, the same for the same seed, and others for others.
fn tokens(seed: u64, count: usize) -> Vec<i32> {
    let mut random = Random(seed);
    // From 259 on, after the tokens for single bytes.
    (0..count).map(|_| 259 + random.below(98) as i32).collect()
}

/// What a client does.
#[derive(Clone)]
enum Step {
    Ask(Request),
    Erase(u32),
    Save(u32),
    Restore(u32),
    /// Several answers, or several prompts.
    Several(Request),
    /// What else clients do.
    Then(Done),
}

fn ask(prompt: Vec<i32>) -> Step {
    Step::Ask(Request::completion(prompt).predict(2))
}

fn in_slot(slot: u32, prompt: Vec<i32>) -> Step {
    Step::Ask(Request::completion(prompt).predict(2).slot(slot))
}

/// A server, and what clients do with it. The last step is a prompt.
#[derive(Clone)]
struct Scene {
    name: &'static str,
    arch: Arch,
    flags: Vec<String>,
    settings: Vec<String>,
    steps: Vec<Step>,
    /// The last prompt, as a client sends it who follows advice on what is sent.
    better: Option<Step>,
    /// The server, beyond its flags.
    with: fn(Builder) -> Builder,
}

fn scene(name: &'static str, flags: &str, steps: Vec<Step>) -> Scene {
    Scene {
        name,
        arch: Arch::Llama,
        flags: flags.split_whitespace().map(str::to_owned).collect(),
        settings: Vec::new(),
        steps,
        better: None,
        with: |builder| builder,
    }
}

impl Scene {
    fn of(self, arch: Arch) -> Self {
        Self { arch, ..self }
    }

    fn better(self, prompt: Vec<i32>) -> Self {
        let better = Some(ask(prompt));
        Self { better, ..self }
    }

    /// The scene, had the advice been followed.
    fn followed(&self, advice: &Value) -> Self {
        let words = |name: &str| {
            let list = advice[name].as_array().expect("a list");
            let words = list
                .iter()
                .map(|one| one.as_str().expect("a word").to_owned());
            words.collect::<Vec<_>>()
        };
        let mut scene = self.clone();
        scene.flags.extend(words("flags"));
        scene.settings.extend(words("setting"));
        if scene.flags.last().is_some_and(|flag| flag == "-1") {
            scene
                .steps
                .retain(|step| !matches!(step, Step::Then(Done::Sleep)));
        }
        match advice["client"].as_str() {
            None => {}
            Some("no_id_slot") => scene.without("id_slot"),
            Some("cache_prompt") => {
                scene.without("cache_prompt");
                scene.flags.retain(|flag| flag != "--no-cache-prompt");
            }
            Some("no_n_cache_reuse") => scene.without("n_cache_reuse"),
            Some("no_erase") => scene.steps.retain(|step| !matches!(step, Step::Erase(_))),
            Some("no_restore") => scene.steps.retain(|step| !matches!(step, Step::Restore(_))),
            Some(_) => {
                scene.steps.pop();
                scene.steps.extend(self.better.clone());
            }
        }
        scene
    }

    fn without(&mut self, field: &str) {
        for step in &mut self.steps {
            if let Step::Ask(request) = step {
                let mut body = request.body().clone();
                body.as_object_mut().expect("an object").remove(field);
                *request = Request::new(request.path(), body);
            }
        }
    }

    fn play(&self) -> Played {
        let folder = tempfile::tempdir().unwrap();
        let mut builder = Server::builder()
            .model(&Model::tiny(self.arch))
            .args(["-c", "8192"])
            .args(self.flags.iter().cloned());
        builder = (self.with)(builder);
        for setting in &self.settings {
            let (name, value) = setting.split_once('=').expect("a setting");
            match value {
                "a folder" => builder = builder.env(name, folder.path()),
                value => builder = builder.env(name, value),
            }
        }
        let watched = Watched::start(builder);
        let mut evaluated = Vec::new();
        for step in &self.steps {
            let slots = |action: &str, slot: u32| {
                let target = format!("/slots/{slot}?action={action}");
                let answer = watched
                    .server
                    .post(&target, &object!({ "filename": "kept" }));
                assert_eq!(answer.unwrap().status, 200, "{}: {action}", self.name);
            };
            match step {
                Step::Ask(request) => evaluated.push(watched.complete(request.clone()).prompt_n),
                Step::Erase(slot) => slots("erase", *slot),
                Step::Save(slot) => slots("save", *slot),
                Step::Restore(slot) => slots("restore", *slot),
                Step::Several(request) => evaluated.push(counted(&watched, || {
                    let response = watched.server.send(request).unwrap();
                    assert_eq!(response.status, 200, "{}", response.text());
                })),
                Step::Then(done) => {
                    let trace = Trace::new().then(done.clone());
                    let run = || _ = trace.run(&watched.server).unwrap();
                    match done.request() {
                        Some(_) => evaluated.push(counted(&watched, run)),
                        None => run(),
                    }
                }
            }
        }
        // For the server, what the store loaded was evaluated.
        let computed = |one: &Value| {
            let number = |value: &Value| value.as_u64().expect("a number") as usize;
            let evaluation = &one["evaluation"];
            let (evaluated, loaded) = (&evaluation["evaluated"], &evaluation["from"]["store"]);
            (number(evaluated), number(loaded))
        };
        let explained = until("all are explained, as the engine counts them", || {
            let text = watched.text(&["why", "--last", "100", "--worth", "0", "--json"]);
            let all: Vec<Value> = text.lines().map(json).collect();
            let timed = |one: &Value| one["evaluation"]["seconds"].as_f64() > Some(0.0);
            let counted = all.iter().map(computed);
            let counted: usize = counted.map(|(evaluated, loaded)| evaluated + loaded).sum();
            let is_all = counted == evaluated.iter().sum::<usize>();
            (is_all && all.last().is_some_and(timed)).then_some(all)
        });
        let computed: Vec<usize> = explained.iter().map(|one| computed(one).0).collect();
        let said = watched.text(&["why", "--worth", "0"]);
        let advise = watched.json(&["advise"]);
        Played {
            why: explained.last().expect("a request").clone(),
            said,
            advise,
            evaluated: computed,
        }
    }
}

/// Tokens of prompts that the server counts meanwhile.
fn counted(watched: &Watched, run: impl FnOnce()) -> usize {
    let sum = || -> usize {
        let metrics = watched.server.get("/metrics").unwrap().text();
        let mut lines = metrics.lines();
        let sum = lines.find_map(|line| line.strip_prefix("llamacpp:prompt_tokens_total "));
        sum.expect("--metrics").trim().parse().unwrap()
    };
    let before = sum();
    run();
    sum() - before
}

/// What came of a scene.
struct Played {
    /// Tokens that the engine says it evaluated for each prompt.
    evaluated: Vec<usize>,
    /// Of the last prompt.
    why: Value,
    said: String,
    advise: Value,
}

impl Played {
    fn all(&self) -> i64 {
        self.evaluated.iter().sum::<usize>() as i64
    }

    fn last(&self) -> i64 {
        *self.evaluated.last().expect("a prompt") as i64
    }

    /// At the flags that the server has, the simulator evaluates what the engine did, to the token.
    /// (An embedding is recorded when its slot is used again, which it may not be.)
    #[track_caller]
    fn is_replayed(&self, scene: &Scene) {
        let embeds =
            |step: &Step| matches!(step, Step::Several(one) if one.path() == "/v1/embeddings");
        if scene.steps.iter().any(embeds) {
            return;
        }
        let simulated = &self.advise["recorded"]["evaluated_tokens"];
        assert_eq!(*simulated, self.all(), "{}: {}", scene.name, self.advise);
    }

    fn advice(&self) -> &[Value] {
        self.why["advice"].as_array().expect("a list")
    }
}

/// Plays a scene, and follows all that is advised. Returns what was advised, as data.
#[track_caller]
fn follow(scene: &Scene) -> Vec<Value> {
    let before = scene.play();
    before.is_replayed(scene);
    println!(
        "{}: {} evaluated, {} of them for the last",
        scene.name,
        before.all(),
        before.last()
    );
    print!("{}", before.said);
    let mut changes = Vec::new();
    for advice in before.advice() {
        let after = scene.followed(advice).play();
        after.is_replayed(scene);
        let saved = (before.last() - after.last(), before.all() - after.all());
        let promised = (
            advice["tokens"].as_i64().expect("a number"),
            advice["all"].as_i64().expect("a number"),
        );
        println!(
            "  promised {} and {} of all, saved {} and {}: {}",
            promised.0,
            promised.1,
            saved.0,
            saved.1,
            advice["text"].as_str().expect("a text"),
        );
        // Parts are found by windows of four tokens, and texts have some of them in common by chance.
        let near = |promised: i64, saved: i64| promised.abs_diff(saved) < 8;
        assert!(
            near(promised.0, saved.0) && near(promised.1, saved.1),
            "{}: {advice}",
            scene.name
        );
        assert!(saved.1 > 0, "{}: {advice}", scene.name);
        let data = ["flags", "setting", "client"].map(|name| advice[name].clone());
        changes.push(object!(data));
    }
    agree(&before);
    changes
}

/// What `advise` finds best is among what `why` found helpful, and `why` has no flag where `advise` has none.
#[track_caller]
fn agree(played: &Played) {
    let advised = &played.advise;
    let list = |name: &str| advised[name].as_array().expect("a list").clone();
    // A recording has no text, so only `why` sees that it is the same in other tokens, or spelled otherwise.
    let keeps = ["1", "calls"].map(|how| object!([format!("CONTEXTPILOT_KEEP_TOKENS={how}")]));
    let of_server = |one: &Value| one["client"].is_null() && !keeps.contains(&one["setting"]);
    let has_flags = played.advice().iter().any(of_server);
    assert!(
        !has_flags || !list("changes").is_empty(),
        "{advised}\n{}",
        played.why
    );
    let of_client = |one: &Value| {
        let named = [
            "no_id_slot",
            "no_erase",
            "no_restore",
            "cache_prompt",
            "no_n_cache_reuse",
            "no_unload",
            "late_retry",
        ];
        one["client"]
            .as_str()
            .is_some_and(|name| named.contains(&name))
    };
    let clients = list("alone").iter().any(of_client);
    assert!(
        clients || !played.advice().iter().any(of_client),
        "{advised}\n{}",
        played.why
    );
}

/// As [`follow`]: among the changes is one that begins with this flag, or is what clients do.
#[track_caller]
fn follows_to(scene: &Scene, expected: &str) {
    let changes = follow(scene);
    let named: Vec<String> = changes
        .iter()
        .map(|change| {
            let [flags, settings, client] = [0, 1, 2].map(|nth| &change[nth]);
            let first = [&flags[0], &settings[0], client];
            let first = first.into_iter().find_map(Value::as_str);
            first.expect("a change").to_owned()
        })
        .collect();
    let is_named = named.iter().any(|one| one == expected);
    assert!(is_named, "{}: {named:?}", scene.name);
}

fn talk(seed: u64, turns: u64, length: usize) -> Vec<i32> {
    (0..turns)
        .flat_map(|turn| tokens(seed + turn, length))
        .collect()
}

fn behind(front: &[i32], rest: Vec<i32>) -> Vec<i32> {
    [front.to_vec(), rest].concat()
}

/// An agent and its subagents share a system prompt: with a higher similarity, these take an empty slot, and evaluate it
/// again.
#[test]
fn agents_with_subagents_are_not_told_to_raise_the_similarity() {
    let system = tokens(1, 600);
    let turn = |seed, turns| ask(behind(&system, talk(seed, turns, 120)));
    let steps = vec![
        turn(30, 1),
        turn(40, 1),
        turn(30, 2),
        turn(50, 1),
        turn(30, 3),
    ];
    let changes = follow(&scene("an agent with subagents", "--parallel 4", steps));
    for change in &changes {
        let raised = &change[0];
        assert!(
            !raised.to_string().contains("similarity\",\"0.9"),
            "{change}"
        );
    }
}

#[test]
fn a_conversation_whose_slot_another_one_took() {
    let (p, x, y) = (tokens(1, 400), tokens(2, 900), tokens(3, 200));
    let steps = vec![
        ask(behind(&p, x.clone())),
        ask(behind(&p, y)),
        ask(behind(&p, x)),
    ];
    follow(&scene("P+X, P+Y, P+X", "", steps));
}

#[test]
fn slots_that_clients_name_are_advised_against() {
    let a = tokens(1, 1000);
    let steps = vec![
        in_slot(2, behind(&a, tokens(2, 900))),
        in_slot(3, behind(&a, tokens(3, 700))),
        in_slot(2, [a, tokens(2, 900), tokens(4, 100)].concat()),
    ];
    follows_to(&scene("slots that clients name", "", steps), "no_id_slot");
}

#[test]
fn an_empty_slot_that_a_client_names_is_advised_against() {
    let steps = vec![
        ask(tokens(1, 1400)),
        ask(tokens(2, 300)),
        in_slot(0, tokens(1, 1400)),
    ];
    let scene = scene("an empty slot that a client names", "", steps);
    follows_to(&scene, "no_id_slot");
}

#[test]
fn an_erased_slot_is_advised_against() {
    let steps = vec![
        ask(tokens(1, 600)),
        Step::Erase(0),
        in_slot(1, tokens(2, 100)),
        in_slot(0, tokens(1, 600)),
    ];
    let flags = "--parallel 2 --cache-ram 0";
    follows_to(&scene("an erased slot", flags, steps), "no_erase");
}

#[test]
fn a_restored_slot_is_advised_against() {
    let steps = vec![
        in_slot(0, tokens(1, 300)),
        Step::Save(0),
        in_slot(0, tokens(2, 900)),
        Step::Restore(0),
        in_slot(0, tokens(2, 900)),
    ];
    let flags = "--parallel 1 --cache-ram 0";
    follows_to(&scene("a slot restored over", flags, steps), "no_restore");
}

#[test]
fn a_server_that_uses_no_cache_is_advised_against() {
    let body = object!({ "prompt": tokens(1, 500), "n_predict": 2 });
    let steps = vec![Step::Ask(Request::new("/completion", body)); 2];
    let flags = "--parallel 1 --no-cache-prompt";
    follows_to(&scene("no cache by a flag", flags, steps), "cache_prompt");
}

#[test]
fn one_slot_for_three() {
    let round = |turns| [50, 60, 70].map(|seed| ask(talk(seed, turns, 500)));
    let steps = [round(1), round(2)].concat();
    let flags = "--parallel 1 --cache-ram 0";
    let changes = follow(&scene("one slot for three", flags, steps));
    assert!(!changes.is_empty());
}

#[test]
fn a_host_cache_that_is_too_small() {
    let round = |turns| [50, 60, 70, 80].map(|seed| ask(talk(seed, turns, 500)));
    let steps = [round(1), round(2)].concat();
    let flags = "--parallel 1 --cache-ram 1";
    let changes = follow(&scene("a small host cache", flags, steps));
    assert!(!changes.is_empty());
}

/// More than it may hold comes back.
#[test]
fn a_store_that_is_too_small() {
    let round = |turns| [50, 60, 70, 80].map(|seed| ask(talk(seed, turns, 1000)));
    let steps = [round(1), round(2)].concat();
    let flags = "--parallel 1 --cache-ram 0";
    let without = scene("no store", flags, steps.clone());
    follows_to(&without, "CONTEXTPILOT_STORE=a folder");
    let mut small = scene("a small store", flags, steps);
    small.settings = vec![
        "CONTEXTPILOT_STORE=a folder".into(),
        "CONTEXTPILOT_STORE_GB=0.001".into(),
    ];
    follows_to(&small, "CONTEXTPILOT_STORE_GB=1");
}

/// That is why `--batch-size` is never advised.
#[test]
fn the_size_of_batches_decides_over_no_token() {
    let (front, other) = (tokens(1, 900), tokens(2, 700));
    let steps = vec![
        ask(behind(&front, other.clone())),
        ask(behind(&front, tokens(3, 700))),
        ask(behind(&front, other)),
    ];
    for arch in [Arch::Llama, Arch::Gemma2, Arch::Mamba] {
        let evaluated = |size: &str| {
            let flags = format!("--parallel 1 --cache-ram 0 -ub 256 -b {size}");
            let played = scene("batches", &flags, steps.clone()).of(arch).play();
            played.evaluated
        };
        let usual = evaluated("2048");
        assert_eq!(evaluated("300"), usual, "{arch:?}");
        assert_eq!(evaluated("512"), usual, "{arch:?}");
    }
}

#[test]
fn a_pool_without_room() {
    let round = || [1, 2, 3].map(|seed| ask(tokens(seed, 450)));
    let steps = [round(), round()].concat();
    let flags = "-c 1024 --parallel 4 --kv-unified --cache-ram 0";
    let changes = follow(&scene("a pool without room", flags, steps));
    assert!(!changes.is_empty());
}

#[test]
fn tools_in_another_order() {
    let tools: Vec<Vec<i32>> = (10..18).map(|seed| tokens(seed, 90)).collect();
    let reversed: Vec<Vec<i32>> = tools.iter().rev().cloned().collect();
    let prompt = |tools: &[Vec<i32>], question| {
        [tokens(1, 60), tools.concat(), tokens(question, 40)].concat()
    };
    let steps = vec![ask(prompt(&tools, 2)), ask(prompt(&reversed, 3))];
    let scene = scene("tools in another order", "--parallel 1", steps).better(prompt(&tools, 3));
    let changes = follow(&scene);
    let client = |change: &Value| change[2] == "same_order";
    assert!(changes.iter().any(client), "{changes:?}");
}

/// Those of a tool call's arguments, long ones and short ones, in a conversation that goes on.
#[test]
fn keys_in_another_order() {
    for words in [100, 30] {
        let keys: Vec<Vec<i32>> = (10..13).map(|seed| tokens(seed, words)).collect();
        let prompt = |order: [usize; 3], question| {
            let keys: Vec<i32> = order.iter().flat_map(|&nth| keys[nth].clone()).collect();
            [tokens(1, 200), keys, tokens(2, 60), tokens(question, 20)].concat()
        };
        let steps = vec![ask(prompt([0, 1, 2], 3)), ask(prompt([2, 0, 1], 4))];
        let flags = "--parallel 1 --cache-ram 0";
        let played = scene("keys in another order", flags, steps);
        follows_to(&played.better(prompt([0, 1, 2], 4)), "same_order");
    }
}

#[test]
fn a_date_in_front() {
    let rest = tokens(1, 500);
    let prompt = |date: u64| [tokens(90, 40), tokens(date, 8), rest.clone()].concat();
    let better = [tokens(90, 40), tokens(2, 8), rest.clone(), tokens(3, 8)].concat();
    let steps = vec![ask(prompt(2)), ask(prompt(3))];
    let flags = "--parallel 1 --cache-ram 0";
    let changes = follow(&scene("a date in front", flags, steps).better(better));
    let client = |change: &Value| change[2] == "changes_last";
    assert!(changes.iter().any(client), "{changes:?}");
}

/// The oldest turn is left out.
#[test]
fn chunks_that_could_move() {
    let turns: Vec<Vec<i32>> = (20..24).map(|seed| tokens(seed, 150)).collect();
    let system = tokens(1, 100);
    let all = behind(&system, turns.concat());
    let fewer = [system, turns[1..].concat(), tokens(3, 30)].concat();
    let better = [&all[..550], &tokens(3, 30)].concat();
    let flags = "--parallel 1 --cache-ram 0";
    let steps = vec![ask(all), ask(fewer)];
    let played = scene("an old turn left out", flags, steps).better(better);
    let changes = follow(&played);
    let moves = |change: &Value| change[0][0] == "--cache-reuse";
    assert!(changes.iter().any(moves), "{changes:?}");
    // It is never advised where the model's state cannot be moved.
    let changes = follow(&played.of(Arch::Mamba));
    assert!(!changes.iter().any(moves), "{changes:?}");
}

#[test]
fn another_last_message_for_a_recurrent_model() {
    let (front, other) = (tokens(1, 1800), tokens(2, 300));
    let steps = vec![
        ask(behind(&front, other)),
        ask(behind(&front, tokens(3, 300))),
    ];
    follow(&scene("another last message, recurrent", "--parallel 1", steps).of(Arch::Mamba));
}

#[test]
fn a_sliding_window_that_must_go_back() {
    let front = tokens(1, 700);
    let steps = vec![
        ask(behind(&front, tokens(2, 300))),
        ask(behind(&front, tokens(3, 300))),
        ask(behind(&front, tokens(2, 300))),
    ];
    follow(&scene("a sliding window", "--parallel 1", steps).of(Arch::Gemma2));
}

/// It leaves its prompt farther from its end than a checkpoint is.
#[test]
fn a_sliding_window_that_cannot_go_back() {
    let front = tokens(1, 500);
    let steps = vec![
        ask(behind(&front, tokens(2, 900))),
        ask(behind(&front, tokens(3, 200))),
    ];
    let flags = "--parallel 1 --cache-ram 0 -ub 64";
    let played = scene("a window that cannot go back", flags, steps).of(Arch::Gemma2);
    follows_to(&played, "--swa-full");
    // What it costs is said.
    let before = played.play();
    let all = before.advice();
    let whole = all.iter().find(|one| one["flags"][0] == "--swa-full");
    let whole = whole.expect("it is among the changes");
    assert!(
        whole["memory"]["context_bytes"].as_i64() > Some(0),
        "{whole}"
    );
    let text = whole["text"].as_str().expect("a text");
    assert!(text.contains("the prefix store keeps nothing"), "{text}");
}

/// A prefix store keeps nothing of whole windows, so it is not advised there.
#[test]
fn whole_windows_are_told_of_no_store() {
    let steps = vec![
        ask(tokens(1, 700)),
        ask(tokens(2, 700)),
        ask(tokens(1, 700)),
    ];
    let flags = "--parallel 1 --cache-ram 0 --swa-full";
    let scene = scene("whole windows", flags, steps);
    let changes = follow(&scene.clone().of(Arch::Gemma2));
    assert!(!changes.is_empty());
    let is_store = |change: &Value| change[1][0] == "CONTEXTPILOT_STORE=a folder";
    assert!(!changes.iter().any(is_store), "{changes:?}");
}

/// As in the second of two short conversations with the same system prompt: 49 tokens were evicted.
#[test]
fn a_handful_of_tokens_gets_no_advice() {
    let talk = |seed| ask(behind(&tokens(1, 80), tokens(seed, 50)));
    let played = scene(
        "a handful",
        "--parallel 1",
        vec![talk(90), talk(91), talk(90)],
    )
    .play();
    assert_eq!(played.last(), 50);
    assert!(played.advice().is_empty(), "{:?}", played.advice());
    assert_eq!(played.why["no_advice"], Value::Null);
}

/// A server that keeps no recent requests gets causes, and no advice.
#[test]
fn without_recent_requests_nothing_is_advised() {
    let builder = Server::builder().model(&Model::tiny(Arch::Llama)).args([
        "--parallel",
        "1",
        "--cache-ram",
        "0",
    ]);
    let watched = Watched::start(builder.env("CONTEXTPILOT_RECENT_MB", "0"));
    for seed in [1, 2, 1] {
        watched.complete(Request::completion(tokens(seed, 300)).predict(2));
    }
    let text = until("it is explained", || {
        let text = watched.text(&["why", "--worth", "0"]);
        text.contains("299 evicted").then_some(text)
    });
    assert!(text.contains("nothing was replayed"), "{text}");
    assert!(text.contains("CONTEXTPILOT_RECENT_MB is 0"), "{text}");
    assert!(!text.contains('→'), "{text}");
}
