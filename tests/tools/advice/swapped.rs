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
    _folders: [TempDir; 3],
}

impl Routed {
    fn start(flags: &[String], settings: &[String]) -> Self {
        let models = tempfile::tempdir().unwrap();
        for name in ["one.gguf", "two.gguf"] {
            fs::copy(Model::tiny(Arch::Llama).path(), models.path().join(name)).unwrap();
        }
        let mut runtime = tempfile::Builder::new();
        let runtime = runtime.permissions(Permissions::from_mode(0o700));
        let runtime = runtime.tempdir().unwrap();
        let store = tempfile::tempdir().unwrap();
        let mut server = Server::builder()
            .args(["--models-dir"])
            .args([models.path()])
            .args(["-c", "4096"])
            .bare_slots(1)
            .args(flags.iter().cloned())
            .launcher(env!("CARGO_BIN_EXE_contextpilot-llama-server"))
            .env("XDG_RUNTIME_DIR", runtime.path())
            .env("CONTEXTPILOT_LISTEN", "127.0.0.1:0");
        for setting in settings {
            let (name, value) = setting.split_once('=').expect("a setting");
            server = match value {
                "a folder" => server.env(name, store.path()),
                value => server.env(name, value),
            };
        }
        let server = server.spawn().unwrap();
        let control = String::new();
        Self {
            watched: Watched { server, control },
            _folders: [models, runtime, store],
        }
    }

    /// Tokens that the server evaluated for each prompt, or had loaded. Afterwards the commands ask the process that was
    /// started last for `of`.
    fn play(&mut self, turns: &[Turn], of: &str) -> Vec<usize> {
        let mut evaluated = Vec::new();
        for (nth, turn) in turns.iter().enumerate() {
            match *turn {
                Turn::Ask(model, prompt) => {
                    let request = Request::completion(prompt.to_vec()).predict(2);
                    let request = request.id(format!("turn-{nth}"));
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

/// Plays the turns, and again as each advice says. Returns what `why` said, and the advice that begins like this.
fn follow_routed(flags: &[&str], turns: &[Turn], expected: &str) -> (String, Value) {
    let flags: Vec<String> = flags.iter().map(|&flag| flag.to_owned()).collect();
    let mut routed = Routed::start(&flags, &[]);
    let before = routed.play(turns, "one");
    let of_one = |evaluated: &[usize]| -> i64 {
        let asked = turns.iter().filter_map(|turn| match turn {
            Turn::Ask(model, _) => Some(*model),
            Turn::Unload(_) => None,
        });
        let all = asked.zip(evaluated).filter(|(model, _)| *model == "one");
        all.map(|(_, tokens)| *tokens as i64).sum()
    };
    let explained = |routed: &Routed, evaluated: &[usize]| {
        until("the last prompt is explained", || {
            let why = ["why", "--worth", "0", "--last", "1"];
            let why = routed.watched.json(&why);
            let evaluation = &why["evaluation"];
            let all = evaluation["evaluated"].as_u64()? + evaluation["from"]["store"].as_u64()?;
            (Some(all) == evaluated.last().map(|&tokens| tokens as u64)).then_some(why)
        })
    };
    let why = explained(&routed, &before);
    let said = routed.watched.text(&["why", "--worth", "0"]);
    print!("{said}");
    let advised = routed.watched.json(&["advise"]);
    let simulated = &advised["recorded"]["evaluated_tokens"];
    assert_eq!(*simulated, of_one(&before), "{advised}");
    let mut found = None;
    for advice in why["advice"].as_array().expect("a list") {
        let words = |name: &str| {
            let list = advice[name].as_array().expect("a list").iter();
            let words = list.map(|one| one.as_str().expect("a word").to_owned());
            words.collect::<Vec<_>>()
        };
        let flags = [flags.clone(), words("flags")].concat();
        let is_unload = advice["client"] == "no_unload";
        let unloads = |turn: &&Turn| matches!(turn, Turn::Unload(_)) && is_unload;
        let turns: Vec<Turn> = turns
            .iter()
            .filter(|turn| !unloads(turn))
            .copied()
            .collect();
        let mut routed = Routed::start(&flags, &words("setting"));
        let after = routed.play(&turns, "one");
        let why = explained(&routed, &after);
        let loaded = why["evaluation"]["from"]["store"].as_i64().unwrap();
        let last = |evaluated: &[usize]| *evaluated.last().unwrap() as i64;
        // In these turns only the last prompt can be loaded.
        let saved = [
            last(&before) - last(&after) + loaded,
            of_one(&before) - of_one(&after) + loaded,
        ];
        let promised = ["tokens", "all"].map(|name| advice[name].as_i64().unwrap());
        println!(
            "  promised {promised:?}, saved {saved:?}: {}",
            advice["text"]
        );
        assert_eq!(promised, saved, "{advice}");
        if advice["flags"][0] == expected || advice["client"] == expected {
            found = Some(advice.clone());
        }
    }
    (said, found.unwrap_or_else(|| panic!("{why}")))
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

/// A router's children have one setting: each model has a recording of its own beside the named file, in which its next
/// process goes on.
#[test]
fn each_model_is_recorded_also_when_it_comes_again() {
    let folder = tempfile::tempdir().unwrap();
    let named = folder.path().join("traffic");
    let setting = format!("CONTEXTPILOT_TRAFFIC_FILE={}", named.display());
    let flags = ["--models-max", "1"].map(str::to_owned);
    let mut routed = Routed::start(&flags, &[setting]);
    let (p, q) = (tokens(1, 600), tokens(2, 300));
    let turns = [
        Turn::Ask("one", &p),
        Turn::Ask("two", &q),
        Turn::Ask("one", &behind(&p, tokens(3, 50))),
        Turn::Ask("two", &behind(&q, tokens(4, 50))),
        Turn::Ask("one", &behind(&p, tokens(5, 50))),
    ];
    let evaluated = routed.play(&turns, "one");
    let running = routed.watched.json(&["advise"]);
    // Of the process before, ids are not known, and why not is said.
    routed.watched.wait_state("turn-4", "cached");
    let gone = routed
        .watched
        .command(&["where", "turn-2"])
        .output()
        .unwrap();
    let said = String::from_utf8(gone.stdout).unwrap();
    print!("{said}");
    assert_eq!(gone.status.code(), Some(1), "{said}");
    let why = " ago, and what the model's processes before it had cached went with them";
    assert!(
        said.contains("turn-2  unknown  ") && said.contains(why),
        "{said}"
    );
    routed.watched.server.stop(15).unwrap();

    let files = fs::read_dir(folder.path()).unwrap().map(Result::unwrap);
    let mut names: Vec<String> = files
        .map(|file| {
            let mode = file.metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{file:?}");
            file.file_name().into_string().unwrap()
        })
        .collect();
    names.sort();
    assert_eq!(names, ["traffic.one", "traffic.two"]);

    let file = named.to_str().unwrap();
    let all = json(&good(
        &companion(&["advise", file, "--json"]).output().unwrap(),
    ));
    let [one, two] = [&all[0], &all[1]];
    assert_eq!([&one["model"], &two["model"]], ["one", "two"]);
    let engine = |which: &[usize]| which.iter().map(|&nth| evaluated[nth]).sum::<usize>();
    for (advised, engine) in [(one, engine(&[0, 2, 4])), (two, engine(&[1, 3]))] {
        assert_eq!(advised["recorded"]["evaluated_tokens"], engine);
        let changes = advised["alone"].as_array().unwrap();
        let keeps = |change: &Value| change["flags"] == object!(["--models-max", "2"]);
        assert!(changes.iter().any(keeps), "{advised}");
    }
    // What the file and the process say is the same.
    for name in ["recorded", "changes", "alone", "tokens"] {
        let without_time = |advised: &Value| {
            let text = advised[name].to_string();
            let parts = text.split(',').filter(|part| !part.contains("seconds"));
            parts.collect::<Vec<_>>().join(",")
        };
        assert_eq!(without_time(one), without_time(&running), "{name}");
    }

    let simulated = json(&good(
        &companion(&["simulate", file, "--json"]).output().unwrap(),
    ));
    for (point, (model, engine)) in simulated
        .as_array()
        .unwrap()
        .iter()
        .zip([("one", engine(&[0, 2, 4])), ("two", engine(&[1, 3]))])
    {
        assert_eq!(point["model"], model);
        assert_eq!(point["evaluated_tokens"], engine, "{point}");
    }
    let said = good(&companion(&["simulate", file]).output().unwrap());
    print!("{said}");
    print!("{}", good(&companion(&["advise", file]).output().unwrap()));
    let heads = said.lines().filter(|line| line.starts_with("Model "));
    assert_eq!(heads.count(), 2, "{said}");

    let report = folder.path().join("report.html");
    let report = report.to_str().unwrap();
    let said = good(&companion(&["report", file, "-o", report]).output().unwrap());
    for model in ["one", "two"] {
        let name = format!("report.{model}.html");
        assert!(said.contains(&name), "{said}");
        assert!(folder.path().join(name).is_file());
    }
    let import = fails(companion(&["traffic", "import", file]));
    assert!(
        import.contains("traffic.one") && import.contains("traffic.two"),
        "{import}"
    );
}
