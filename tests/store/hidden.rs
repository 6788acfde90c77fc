//! Heads of a model that draft (MTP), and drafts by another model that follows its layers (EAGLE-3, DFlash, DSpark), start from the
//! hidden state of every token, also of those that were loaded.

use std::fs;
use std::path::{Path, PathBuf};

use contextpilot_testbed::{Arch, Builder, Model, Request, Server, Spec};
use serde_json::{Value, json};

use super::moved::{companion, good};
use super::{SIGKILL, Stored, chunk_files, folder, started, tokens};

/// A dense model, and a hybrid one.
const ARCHS: [Arch; 2] = [Arch::Mtp, Arch::Qwen35];

/// So many tokens are evaluated of a prompt of which all is stored.
fn evaluated_of_all(arch: Arch) -> u64 {
    match arch {
        // It cannot go back: that many tokens before a prompt's end the server takes a checkpoint.
        Arch::Qwen35 => 4,
        _ => 1,
    }
}

/// With so many heads that draft, and slots of 4,096 tokens.
fn drafting(arch: Arch, heads: u32, slots: u32) -> Builder {
    plain(arch, heads, slots).args(["--spec-type", "draft-mtp"])
}

/// The same model, whose heads do nothing.
fn plain(arch: Arch, heads: u32, slots: u32) -> Builder {
    let spec = Spec {
        heads,
        ..Spec::new(arch)
    };
    Server::builder()
        .model(&Model::of(&spec))
        .bare_slots(slots)
        .args(["-c".to_owned(), (4096 * slots).to_string()])
}

/// A draft that starts from what goes into three layers. How much it drafts depends on how sure it is.
fn eagle() -> Builder {
    following(Arch::Eagle3, 1)
}

/// The same, where some tokens are drafted at once, in place of masks.
fn flash(arch: Arch) -> Builder {
    following(arch, 2)
}

fn following(arch: Arch, seed: u64) -> Builder {
    Server::builder()
        .followed_by(arch, seed)
        .bare_slots(1)
        .args(["-c", "4096", "--spec-draft-p-min", "0.3"])
}

fn asking(prompt: &[u32]) -> Request {
    Request::completion(Value::from(prompt)).predict(40)
}

/// How many tokens were drafted for an answer, and how many of these were right.
fn drafts(value: &Value) -> [u64; 2] {
    ["draft_n", "draft_n_accepted"].map(|name| value["timings"][name].as_u64().unwrap_or(0))
}

/// A server with a store, and one without, that are asked the same.
struct Pair {
    stored: Stored,
    plain: Server,
    drafts: [u64; 2],
}

impl Pair {
    fn start(builder: &Builder, folder: &Path) -> Self {
        Self {
            stored: Stored::start(builder, folder),
            plain: started(builder),
            drafts: [0; 2],
        }
    }

    /// Both answer the same, and draft nearly the same: a state that is loaded was evaluated in another batch, so it is rounded
    /// otherwise, and some processors draft otherwise where two tokens are equally good. From zeros in place of the states a
    /// quarter fewer are drafted. Returns how many tokens were loaded, and how many evaluated.
    #[track_caller]
    fn ask(&mut self, prompt: &[u32]) -> (u64, u64) {
        let (ours, account) = self.stored.send(asking(prompt));
        let theirs = self.plain.complete(&asking(prompt)).unwrap();
        assert_eq!(ours.content, theirs.content, "{account:?}");
        let both = [drafts(&ours.raw), drafts(&theirs.raw)];
        for (ours, theirs) in both[0].into_iter().zip(both[1]) {
            assert!(
                ours.abs_diff(theirs) <= 1 + theirs / 8,
                "{both:?}: {account:?}"
            );
        }
        for (sum, of) in self.drafts.iter_mut().zip(both[0]) {
            *sum += of;
        }
        (account.from.store, account.evaluated)
    }

    /// Returns how many drafts were right.
    #[track_caller]
    fn end(mut self) -> u64 {
        let [made, right] = self.drafts;
        assert!(right < made, "{right} of {made}");
        let figures = self.stored.figures();
        assert_eq!(figures.refused, [""; 0]);
        assert_eq!((figures.problem, figures.failed_loads), (None, 0));
        self.stored.end();
        right
    }
}

#[test]
fn what_was_loaded_is_drafted_from_as_if_it_had_been_evaluated() {
    let (tea, sea) = (tokens(1, 600), tokens(2, 600));
    let branch: Vec<u32> = tea[..333].iter().copied().chain(tokens(3, 60)).collect();
    // Batch by batch, the last of which ends within a chunk.
    let small = ["-b", "100", "-ub", "50"];
    // A hybrid is loaded up to where the server has taken a checkpoint: 4 tokens and a part of a batch before the end.
    let mtp = |heads| drafting(Arch::Mtp, heads, 1);
    let hybrid = || drafting(Arch::Qwen35, 1, 1);
    let of_hybrid = evaluated_of_all(Arch::Qwen35);
    for (nth, (builder, rest, branch_loaded)) in [
        (mtp(1), 1, 333..336),
        (mtp(1).args(small), 1, 333..336),
        (mtp(2), 1, 333..336),
        (hybrid(), of_hybrid, 84..85),
        (hybrid().args(small), of_hybrid, 0..1),
        (eagle(), 1, 333..336),
        (eagle().args(small), 1, 333..336),
        (flash(Arch::Dflash), 1, 333..336),
        (flash(Arch::Dflash).args(small), 1, 333..336),
        (flash(Arch::Dspark), 1, 333..336),
    ]
    .into_iter()
    .enumerate()
    {
        let what = format!("the server of row {nth}");
        let folder = folder();
        let mut pair = Pair::start(&builder, folder.path());
        for prompt in [&tea, &sea] {
            assert_eq!(pair.ask(prompt), (0, 600), "{what}");
        }
        for prompt in [&tea, &sea] {
            assert_eq!(pair.ask(prompt), (600 - rest, rest), "{what}");
        }
        let (loaded, _) = pair.ask(&branch);
        assert!(branch_loaded.contains(&loaded), "{loaded}: {what}");
        assert!(pair.end() > 0, "{what}: no draft was right");

        let mut pair = Pair::start(&builder, folder.path());
        assert_eq!(pair.ask(&tea), (600 - rest, rest), "{what}");
        pair.end();
    }
}

#[test]
fn a_conversation_is_loaded_up_to_the_end_of_its_last_answer_also_after_a_kill() {
    for arch in ARCHS {
        converse(arch);
    }
}

fn converse(arch: Arch) {
    let folder = folder();
    let mut pair = Pair::start(&drafting(arch, 1, 1), folder.path());
    let mut chat = tokens(4, 500);
    let mut turns = Vec::new();
    for turn in 0..4 {
        let answer = pair
            .plain
            .complete(&asking(&chat).with("return_tokens", true));
        pair.plain
            .post("/slots/0?action=erase", &Value::Null)
            .unwrap();
        let answer = answer.unwrap().raw;
        let said = answer["tokens"].as_array().unwrap().iter();
        let said = said.map(|token| token.as_u64().unwrap() as u32);
        turns.push(chat.clone());
        chat.extend(said);
        chat.extend(tokens(10 + turn, 30));
    }
    for turn in &turns {
        pair.ask(turn);
        // Something else has the slot meanwhile.
        pair.ask(&tokens(20, 300));
    }
    pair.stored.await_written();
    pair.stored.server.stop(SIGKILL).unwrap();
    let mut pair = Pair::start(&drafting(arch, 1, 1), folder.path());
    let last = turns.last().unwrap();
    let (loaded, evaluated) = pair.ask(last);
    let rest = evaluated_of_all(arch);
    assert_eq!((loaded, evaluated), (last.len() as u64 - rest, rest));
    assert!(pair.end() > 0);
}

#[test]
fn what_has_no_hidden_states_is_evaluated_once_more_and_then_loaded() {
    let (tea, sea) = (tokens(5, 500), tokens(6, 500));
    for arch in ARCHS {
        let folder = folder();
        let rest = evaluated_of_all(arch);
        let mut without = Stored::start(&plain(arch, 1, 1), folder.path());
        without.ask(&tea);
        without.end();

        let mut pair = Pair::start(&drafting(arch, 1, 1), folder.path());
        assert_eq!(pair.ask(&tea), (0, 500), "{arch}");
        assert_eq!(pair.ask(&sea), (0, 500), "{arch}");
        assert_eq!(pair.ask(&tea), (500 - rest, rest), "{arch}");
        assert!(pair.end() > 0, "{arch}");

        // What drafts has stored is loaded by what does not.
        let mut without = Stored::start(&plain(arch, 1, 1), folder.path());
        let (_, account) = without.ask(&sea);
        assert_eq!(account.from.store, 500 - rest, "{arch}: {account:?}");
    }
}

/// Two servers in turns, prompt by prompt.
#[test]
#[ignore = "prints figures, for docs/store.md"]
fn how_long_drafted_answers_take_with_a_load_and_without() {
    const WIDTH: u32 = 128;
    const LAYERS: u32 = 4;
    let of = |arch, layers| {
        Model::of(&Spec {
            layers,
            width: WIDTH,
            ..Spec::new(arch)
        })
    };
    let serving = |model: &Model| {
        let builder = Server::builder().model(model).bare_slots(1);
        builder.args(["-c", "4096"])
    };
    let mtp = serving(&of(Arch::Mtp, LAYERS)).args(["--spec-type", "draft-mtp"]);
    let draft = of(Arch::Eagle3, 1);
    let eagle = serving(&of(Arch::Llama, LAYERS))
        .args(["--spec-type", "draft-eagle3", "--spec-draft-p-min", "0.3"])
        .args(["-md".into(), draft.path().as_os_str().to_owned()]);
    for (what, builder) in [("MTP", mtp), ("EAGLE-3", eagle)] {
        let folder = folder();
        let mut stored = Stored::start(&builder, folder.path());
        let plain = started(&builder);
        for is_loaded in [false, true] {
            let (mut ours, mut theirs) = (Times::default(), Times::default());
            let mut loaded = 0;
            for seed in 0..6 {
                let asking = asking(&tokens(100 + seed, 800)).predict(64);
                let (answer, account) = stored.send(asking.clone());
                loaded += account.from.store;
                ours.add(&answer.raw);
                theirs.add(&plain.complete(&asking).unwrap().raw);
            }
            assert_eq!(loaded > 0, is_loaded);
            let times = |times: &Times| {
                let accepted = times.drafts[1] as f64 / times.drafts[0].max(1) as f64;
                let [first, all] = times.seconds;
                format!(
                    "{first:.2} s to 6 first tokens, {all:.2} s to 64, {accepted:.4} of {} accepted",
                    times.drafts[0]
                )
            };
            let [first, all] = [0, 1].map(|at| ours.seconds[at] / theirs.seconds[at]);
            println!(
                "{what}, {loaded} tokens loaded: {}; without a store {}; {first:.3} and {all:.3} times as long",
                times(&ours),
                times(&theirs)
            );
        }
    }
}

/// By the server's own account.
#[derive(Default)]
struct Times {
    /// Up to the first token, and to the last.
    seconds: [f64; 2],
    drafts: [u64; 2],
}

impl Times {
    fn add(&mut self, answer: &Value) {
        let took = |name: &str| answer["timings"][name].as_f64().unwrap() / 1e3;
        let first = took("prompt_ms");
        self.seconds[0] += first;
        self.seconds[1] += first + took("predicted_ms");
        for (sum, of) in self.drafts.iter_mut().zip(drafts(answer)) {
            *sum += of;
        }
    }
}

/// In how many slots prompts are evaluated together, and in which order, is not the same in two runs. What is accepted then
/// is, nearly.
#[test]
fn four_clients_are_drafted_for_as_well_as_without_a_store() {
    let builder = drafting(Arch::Mtp, 1, 4);
    let folder = folder();
    let play = |server: &Server| {
        let clients = std::thread::scope(|scope| {
            let client = |nth: u64| {
                move || {
                    let mut all = Vec::new();
                    for round in 0..12 {
                        // Each prompt comes again, and loads what another client's server slot has evaluated.
                        let seed = 30 + (nth + round) % 4 + 4 * (round % 3);
                        let prompt = tokens(seed, 150 + 20 * seed as usize);
                        let answer = server.complete(&asking(&prompt)).unwrap();
                        all.push((seed, answer));
                    }
                    all
                }
            };
            let clients: Vec<_> = (0..4).map(|nth| scope.spawn(client(nth))).collect();
            let joined = clients.into_iter().flat_map(|one| one.join().unwrap());
            joined.collect::<Vec<_>>()
        });
        let mut sum = [0; 2];
        for (_, answer) in &clients {
            let [made, right] = drafts(&answer.raw);
            sum = [sum[0] + made, sum[1] + right];
        }
        (clients, sum)
    };
    let stored = Stored::start(&builder, folder.path());
    let without = started(&builder);
    let (_, [made, right]) = play(&without);
    let (answers, [our_made, our_right]) = play(&stored.server);
    let (share, our_share) = (
        right as f64 / made as f64,
        our_right as f64 / our_made as f64,
    );
    eprintln!(
        "accepted: {share:.4} of {made} without a store, {our_share:.4} of {our_made} with one"
    );
    assert!((share - our_share).abs() <= 0.02, "{share} {our_share}");
    assert_eq!(answers.len(), 48);
    let figures = stored.figures();
    assert!(figures.loaded_tokens > 5000, "{figures:?}");
    assert_eq!(figures.refused, [""; 0]);
}

/// What is not proved to be right has no store, and answers as ever.
#[test]
fn what_is_not_stored_is_refused_by_name() {
    let folder = folder();
    let mut pair = Pair::start(&drafting(Arch::Qwen35, 1, 2), folder.path());
    let tea = tokens(7, 300);
    for _ in 0..2 {
        assert_eq!(pair.ask(&tea).0, 0);
    }
    let figures = pair.stored.figures();
    assert_eq!((figures.chunks, figures.loaded_tokens), (0, 0));
    assert!(figures.refused[0].contains("several slots"), "{figures:?}");
}

/// What a request asks to keep is the prompt: its KV and its hidden states.
#[test]
fn a_prompt_that_is_kept_is_loaded_and_drafted_from_when_others_have_left() {
    let folder = folder();
    // Of some nine prompts.
    let mut stored = Stored::start_within(&drafting(Arch::Mtp, 1, 1), folder.path(), "0.004");
    let (tea, sea) = (tokens(40, 600), tokens(41, 600));
    let hint = json!({"type": "ephemeral", "ttl": "1h"});
    let (first, _) = stored.send(asking(&tea).with("cache_control", hint));
    stored.ask(&sea);
    for seed in 42..56 {
        stored.ask(&tokens(seed, 600));
    }
    assert_eq!(stored.ask(&sea).1.from.store, 0, "it has left");
    let (again, account) = stored.send(asking(&tea));
    assert_eq!(account.from.store, 599, "{account:?}");
    assert_eq!(drafts(&again.raw), drafts(&first.raw));
    // A client that will not come back.
    let over = json!({"type": "ephemeral", "ttl": 0});
    stored.send(asking(&tea).with("cache_control", over));
    for seed in 60..74 {
        stored.ask(&tokens(seed, 600));
    }
    assert_eq!(stored.ask(&tea).1.from.store, 0);
    assert_eq!(stored.figures().refused, [""; 0]);
}

/// A person exports a prompt: all that a server needs to go on with it.
#[test]
fn a_prompt_is_exported_with_its_hidden_states() {
    let (here, tea, sea) = (folder(), tokens(80, 600), tokens(81, 500));
    for arch in ARCHS {
        let builder = drafting(arch, 1, 1);
        let mut stored = Stored::start(&builder, here.path());
        for prompt in [&sea, &tea] {
            stored.ask(prompt);
        }
        stored.end();
        let desk = folder();
        let file = |name: &str| desk.path().join(name).to_string_lossy().into_owned();
        fs::write(file("tea.json"), json!(tea).to_string()).unwrap();
        let (tea_json, name) = (file("tea.json"), arch.name());
        let ways: [&[&str]; 3] = [&["--tokens", &tea_json], &["--last", "1"], &[]];
        for (nth, way) in ways.into_iter().enumerate() {
            let pack = file(&format!("{nth}.pack"));
            let of_model = ["export", &pack, "--model", name, "--json"];
            let said = good(&companion(here.path(), &[&of_model, way].concat()));
            let least = if way.is_empty() { 1100 } else { 600 };
            let moved = ["tokens", "hidden_tokens"].map(|name| said[name].as_u64().unwrap());
            assert!(moved.iter().all(|count| *count >= least), "{arch}: {said}");
            assert!(way.is_empty() || moved[0] < 700, "{arch}: {said}");

            let there = folder();
            let said = good(&companion(there.path(), &["import", &pack, "--json"]));
            assert_eq!(said["hidden_tokens"], moved[1], "{arch}: {said}");
            let mut pair = Pair::start(&builder, there.path());
            let rest = evaluated_of_all(arch);
            assert_eq!(pair.ask(&tea), (600 - rest, rest), "{arch} {way:?}");
            pair.end();
            // Twice is once.
            let said = good(&companion(there.path(), &["import", &pack, "--json"]));
            let new = ["chunks", "hidden_tokens"].map(|name| said[name].as_u64().unwrap());
            assert_eq!(new, [0, 0], "{arch}: {said}");
        }
    }
}

/// A row that cannot be read costs drafts, and no answer. Afterwards it is made anew.
#[test]
fn a_damaged_hidden_state_costs_drafts_and_no_answer() {
    let folder = folder();
    let builder = drafting(Arch::Mtp, 1, 1);
    let (tea, sea) = (tokens(8, 600), tokens(9, 50));
    let mut stored = Stored::start(&builder, folder.path());
    let (expected, _) = stored.send(asking(&tea));
    stored.ask(&sea);
    stored.end();
    // Whole chunks of hidden states: 256 rows of 64 numbers, behind a header and the tokens.
    let of_rows = 256 * 64 * 4 + 128 + 256 * 4;
    let is_of_rows = |path: &&PathBuf| fs::metadata(path).unwrap().len() == of_rows;
    let files = chunk_files(folder.path());
    let files: Vec<_> = files.iter().filter(is_of_rows).collect();
    assert_eq!(files.len(), 2, "of 600 tokens");
    for path in files {
        let mut bytes = fs::read(path).unwrap();
        let end = bytes.len();
        bytes[end - 1000] ^= 1;
        fs::write(path, bytes).unwrap();
    }

    let mut stored = Stored::start(&builder, folder.path());
    let loaded = [(); 3].map(|()| {
        let (answer, account) = stored.send(asking(&tea));
        assert_eq!(answer.content, expected.content, "{account:?}");
        assert_eq!(account.from.store + account.evaluated, 600);
        stored.ask(&sea);
        account.from.store
    });
    assert_eq!(loaded, [599, 0, 599]);
    let problem = stored.figures().problem;
    assert!(problem.is_some_and(|problem| problem.contains("read")));
}
