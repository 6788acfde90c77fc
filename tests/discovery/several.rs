//! With several servers, commands list them, and one is chosen.

use std::fs;

use contextpilot_testbed::{Arch, Model, Server, or_return, test_name, until};

use crate::support::{Home, two_slots};

#[test]
fn several_servers_are_listed_and_one_is_chosen() {
    let home = or_return!(Home::of(test_name!()));
    let named = |alias: &str| two_slots().args(["--alias", alias]);
    let (tea, sea) = (home.serve(&named("tea")), home.serve(&named("sea-tea")));
    for command in [
        &["stats"][..],
        &["slots"],
        &["why", "--last"],
        &["index", "--port", "0"],
        // Its `--model` is something else.
        &["simulate"],
    ] {
        let said = home.fails(command);
        let lines: Vec<&str> = said.lines().collect();
        assert!(lines[0].contains("2 servers of this user run"), "{said}");
        assert!(
            lines[0].ends_with("choose one with --pid or --control"),
            "{said}"
        );
        for (server, name) in [(&tea, "tea"), (&sea, "sea-tea")] {
            let parts = [
                server.pid().to_string(),
                format!(" {name} "),
                server.address().to_string(),
            ];
            let has_all = |line: &&&str| parts.iter().all(|part| line.contains(part));
            assert_eq!(lines.iter().filter(has_all).count(), 1, "{parts:?}: {said}");
        }
    }
    let pid = tea.pid().to_string();
    assert_eq!(home.stats(&["--pid", &pid]).process, tea.pid());
    // A whole name counts more than a part.
    assert_eq!(home.stats(&["--model", "tea"]).process, tea.pid());
    assert_eq!(home.stats(&["--model", "sea"]).process, sea.pid());
    let slots = home.text(&["slots", "--pid", &pid]);
    assert!(slots.contains(&tea.address().to_string()), "{slots}");
    // By the server's address, its hook is found, too.
    let url = format!("http://localhost:{}", sea.address().port());
    let slots = home.text(&["slots", "--server", &url]);
    assert!(slots.contains("sea-tea"), "{slots}");
    assert!(slots.contains("unix:"), "{slots}");

    let said = home.fails(&["stats", "--pid", "1"]);
    assert!(said.contains("process id 1 "), "{said}");
    let said = home.fails(&["stats", "--model", "owl"]);
    assert!(said.contains("called owl "), "{said}");
    drop(tea);
    assert_eq!(home.stats(&[]).process, sea.pid());
}

#[test]
fn each_child_of_a_router_is_found() {
    let home = or_return!(Home::of(test_name!()));
    let models = tempfile::tempdir().unwrap();
    for name in ["one.gguf", "two.gguf"] {
        fs::copy(Model::tiny(Arch::Llama).path(), models.path().join(name)).unwrap();
    }
    let router = Server::builder()
        .args(["--models-dir"])
        .args([models.path()])
        .bare_slots(2);
    let router = home.route(&router);
    let none = home.fails(&["stats"]);
    assert!(none.contains("No server of this user"), "{none}");
    for model in ["one", "two"] {
        let body = serde_json::json!({"model": model, "prompt": "Tea", "max_tokens": 1});
        let answer = router.post("/v1/completions", &body).unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    until("both are found", || {
        home.fails(&["stats"]).contains("2 servers").then_some(())
    });
    let [one, two] = ["one", "two"].map(|model| home.stats(&["--model", model]));
    assert_ne!(one.process, two.process);
    assert_ne!(one.listening, two.listening);
    for child in [one, two] {
        assert_eq!(child.listening.len(), 1);
        let slots = home.text(&["slots", "--pid", &child.process.to_string()]);
        assert!(slots.contains(&child.listening[0]), "{slots}");
    }
}
