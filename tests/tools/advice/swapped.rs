//! A llama-server in router mode: what the process of a model had goes with it when another model takes its place.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use serde_json::json as object;
use tempfile::TempDir;

use super::*;

/// What clients of a router do.
#[derive(Clone, Copy)]
enum Turn<'a> {
    Ask(&'a str, &'a [i32]),
    Unload(&'a str),
}

/// A router with the models `one` and `two`.
struct Routed {
    watched: Watched,
    _folders: [TempDir; 2],
}

impl Routed {
    fn start(flags: &[String]) -> Self {
        let models = tempfile::tempdir().unwrap();
        for name in ["one.gguf", "two.gguf"] {
            fs::copy(Model::tiny(Arch::Llama).path(), models.path().join(name)).unwrap();
        }
        let mut runtime = tempfile::Builder::new();
        let runtime = runtime.permissions(Permissions::from_mode(0o700));
        let runtime = runtime.tempdir().unwrap();
        let server = Server::builder()
            .args(["--models-dir"])
            .args([models.path()])
            .args(["-c", "4096"])
            .bare_slots(1)
            .args(flags.iter().cloned())
            .launcher(env!("CARGO_BIN_EXE_contextpilot-llama-server"))
            .env("XDG_RUNTIME_DIR", runtime.path())
            .env("CONTEXTPILOT_LISTEN", "127.0.0.1:0")
            .spawn()
            .unwrap();
        let control = String::new();
        Self {
            watched: Watched { server, control },
            _folders: [models, runtime],
        }
    }

    /// Tokens that were evaluated for each prompt. Afterwards the commands ask the process that was started last for `of`.
    fn play(&mut self, turns: &[Turn], of: &str) -> Vec<usize> {
        let mut evaluated = Vec::new();
        for turn in turns {
            match *turn {
                Turn::Ask(model, prompt) => {
                    let request = Request::completion(prompt.to_vec()).predict(2);
                    let answer = self.watched.complete(request.with("model", model));
                    evaluated.push(answer.prompt_n);
                }
                Turn::Unload(model) => {
                    let body = object!({"model": model});
                    let answer = self.watched.server.post("/models/unload", &body).unwrap();
                    assert_eq!(answer.status, 200, "{}", answer.text());
                    until("it is unloaded", || {
                        let models = self.watched.server.get("/models").unwrap().json().unwrap();
                        let models = models["data"].as_array().unwrap().clone();
                        let is_it = |one: &&Value| one["id"] == model;
                        let status = &models.iter().find(is_it).unwrap()["status"]["value"];
                        (status == "unloaded").then_some(())
                    });
                }
            }
        }
        self.watched.control = until("the process says where it listens", || {
            const SAYS: &str = "[ContextPilot] Control endpoint: http://";
            let said = self.watched.server.stderr() + &self.watched.server.stdout();
            let all = said.lines().filter_map(|line| line.split_once(SAYS));
            let addresses: Vec<String> = all.map(|(_, at)| at.trim().to_owned()).collect();
            let is_it = |at: &&String| {
                let client = contextpilot_client::Control::new(at).unwrap();
                let stats = client.stats();
                stats.is_ok_and(|stats| stats.model.is_some_and(|model| model.name == of))
            };
            addresses.iter().rev().find(is_it).cloned()
        });
        evaluated
    }
}

/// Plays the turns, and again as advised. Returns what `why` said, and the advice.
fn follow_routed(flags: &[&str], turns: &[Turn], expected: &str) -> (String, Value) {
    let mut flags: Vec<String> = flags.iter().map(|&flag| flag.to_owned()).collect();
    let mut routed = Routed::start(&flags);
    let before = routed.play(turns, "one");
    let of_one = |evaluated: &[usize]| -> i64 {
        let asked = turns.iter().filter_map(|turn| match turn {
            Turn::Ask(model, _) => Some(*model),
            Turn::Unload(_) => None,
        });
        let all = asked.zip(evaluated).filter(|(model, _)| *model == "one");
        all.map(|(_, tokens)| *tokens as i64).sum()
    };
    let why = until("the last prompt is explained", || {
        let why = routed
            .watched
            .json(&["why", "--worth", "0", "--last", "1"]);
        let evaluated = why["evaluation"]["evaluated"].as_u64();
        (evaluated == before.last().map(|&tokens| tokens as u64)).then_some(why)
    });
    let said = routed.watched.text(&["why", "--worth", "0"]);
    print!("{said}");
    let advised = routed.watched.json(&["advise"]);
    assert_eq!(
        advised["recorded"]["evaluated_tokens"],
        of_one(&before),
        "{advised}"
    );
    let advice = why["advice"].as_array().expect("a list");
    let is_it = |one: &&Value| one["flags"][0] == expected || one["client"] == expected;
    let advice = advice.iter().find(is_it);
    let advice = advice.unwrap_or_else(|| panic!("{why}")).clone();
    let more = advice["flags"].as_array().expect("a list");
    flags.extend(more.iter().map(|flag| flag.as_str().unwrap().to_owned()));
    let unloads = |turn: &&Turn| matches!(turn, Turn::Unload(_)) && expected == "no_unload";
    let turns: Vec<Turn> = turns.iter().filter(|turn| !unloads(turn)).copied().collect();
    let mut routed = Routed::start(&flags);
    let after = routed.play(&turns, "one");
    let saved = [
        before.last().unwrap().abs_diff(*after.last().unwrap()) as i64,
        of_one(&before) - of_one(&after),
    ];
    let promised = ["tokens", "all"].map(|name| advice[name].as_i64().unwrap());
    println!("  promised {promised:?}, saved {saved:?}: {}", advice["text"]);
    assert_eq!(promised, saved, "{advice}");
    (said, advice)
}

#[test]
fn a_model_whose_place_another_one_took() {
    let (p, q) = (tokens(1, 600), tokens(2, 300));
    let again = behind(&p, tokens(3, 50));
    let turns = [
        Turn::Ask("one", &p),
        Turn::Ask("two", &q),
        Turn::Ask("one", &again),
    ];
    let flags = ["--models-max", "1"];
    let (said, advice) = follow_routed(&flags, &turns, "--models-max");
    assert_eq!(advice["flags"], object!(["--models-max", "2"]));
    assert_eq!(advice["tokens"], 600);
    let named = "600 tokens evicted at ";
    let how = ": the router ended this model's process, to make room for another model";
    assert!(said.contains(named) && said.contains(how), "{said}");
}

#[test]
fn a_model_that_a_client_unloaded() {
    let p = tokens(1, 600);
    let again = [tokens(1, 500), tokens(3, 50)].concat();
    let turns = [
        Turn::Ask("two", &p),
        Turn::Ask("one", &p),
        Turn::Unload("one"),
        Turn::Ask("one", &again),
    ];
    let (said, advice) = follow_routed(&[], &turns, "no_unload");
    assert_eq!(advice["tokens"], 500);
    let how = "500 tokens evicted at ";
    assert!(said.contains(how), "{said}");
    assert!(said.contains("as a client unloaded the model"), "{said}");
}
