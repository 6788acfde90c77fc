//! With one server, no command needs an address.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::process::Stdio;

use contextpilot_testbed::{
    Connection, KillOnDrop, Request, llama_server as server_file, or_return, test_name, until,
};

use crate::support::{COMPANION, Home, two_slots};

#[test]
fn each_command_finds_the_one_server() {
    let home = or_return!(Home::of(test_name!()));
    let traffic = home.path().join("traffic");
    let server = home.serve(&two_slots().env("CONTEXTPILOT_TRAFFIC_FILE", &traffic));
    let address = format!("http://{}", server.address());
    // It is recorded when its slot is used again, and counts before that.
    let request = Request::completion("Tea is picked in spring.").id("tea");
    server.complete(&request).unwrap();
    until("the hook knows it", || {
        home.run(&["where", "tea"]).status.success().then_some(())
    });
    let stats = home.stats(&[]);
    assert_eq!(stats.process, server.pid());
    assert_eq!(stats.listening, std::slice::from_ref(&address));
    assert!(home.text(&["stats"]).contains(&address));
    assert!(home.text(&["top"]).contains(&address));
    assert!(home.text(&["why", "--last"]).contains("tea"));
    assert!(home.text(&["advise"]).contains("prompt tokens"));
    let process = server.pid().to_string();
    for of in [&["--pid", &process][..], &[]] {
        let simulated = home.text(&[&["simulate", "--parallel", "1,2"], of].concat());
        assert!(simulated.contains("parallel"), "{simulated}");
    }
    let report = home.text(&["report"]);
    assert!(report.starts_with("report.html, "), "{report}");
    // The file may be another program's.
    let again = home.run(&["report"]);
    assert!(!again.status.success());
    let said = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(said.contains("name a file with -o"), "{said}");
    // Nothing says that such servers are looked for.
    let doctor = home.run(&["doctor", server_file().to_str().unwrap()]);
    let doctor = String::from_utf8(doctor.stdout).unwrap();
    let process = format!("process {}: ", server.pid());
    assert!(doctor.contains(&process), "{doctor}");
    let slots = home.text(&["slots"]);
    assert!(slots.contains(&address), "{slots}");
    assert!(slots.contains("unix:"), "the hook's view is there: {slots}");
    home.text(&["slots", "erase", "0", "--wait", "10"]);
    let small = ["ttft", "--trials", "1", "--context-tokens", "16", "--json"];
    let measured = home.text(&small);
    assert!(
        measured.contains(r#""asked":"#),
        "the hook was asked: {measured}"
    );

    // What runs until it is ended says in front of whom it is.
    for (command, says) in [("gateway", "Gateway to"), ("index", "in front of")] {
        let mut command = home.command(COMPANION, &[command, "--port", "0"]);
        let mut child = KillOnDrop(command.stderr(Stdio::piped()).spawn().unwrap());
        let mut line = String::new();
        let stderr = child.stderr.as_mut().unwrap();
        BufReader::new(stderr).read_line(&mut line).unwrap();
        assert!(line.contains(says) && line.contains(&address), "{line}");
    }
    let mut events = home.command(COMPANION, &["events", "--json", "--count", "1"]);
    let events = events.stdout(Stdio::piped()).spawn().unwrap();
    let events = std::thread::spawn(|| events.wait_with_output().unwrap());
    let mut number = 0;
    until("an event arrives", || {
        number += 1;
        let other = Request::completion("Owls").id(format!("owl-{number}"));
        server.complete(&other).unwrap();
        events.is_finished().then_some(())
    });
    assert!(events.join().unwrap().status.success());
}

#[test]
fn the_socket_is_this_users_alone_and_leaves_with_the_server() {
    let home = or_return!(Home::of(test_name!()));
    let mut server = home.serve(&two_slots());
    let said = server.control().unwrap();
    let socket = Path::new(said.strip_prefix("unix:").unwrap());
    let file = socket.metadata().unwrap();
    assert!(file.file_type().is_socket());
    assert_eq!(file.mode() & 0o777, 0o600);
    let folder = socket.parent().unwrap().metadata().unwrap();
    assert_eq!((folder.mode() & 0o777, folder.uid()), (0o700, file.uid()));
    let name = socket.file_name().unwrap().to_str().unwrap();
    assert!(name.contains(&format!("-{}-", server.pid())), "{name}");
    server.stop(15).unwrap();
    assert!(!socket.exists());

    // A server that is killed leaves its socket, and the next command removes it.
    let mut server = home.serve(&two_slots());
    let said = server.control().unwrap();
    let socket = Path::new(said.strip_prefix("unix:").unwrap());
    server.stop(9).unwrap();
    assert!(socket.exists());
    let none = home.fails(&["stats"]);
    assert!(none.contains("No server of this user"), "{none}");
    assert!(!socket.exists());
}

#[test]
fn if_none_runs_the_line_to_type_is_named() {
    let home = or_return!(Home::of(test_name!()));
    const START: &str = "CONTEXTPILOT_LISTEN=auto contextpilot-llama-server -m model.gguf";
    for command in [
        &["top"][..],
        &["stats"],
        &["why", "--last"],
        &["where", "req-1"],
        &["events"],
        &["advise"],
        &["reset"],
    ] {
        let said = home.fails(command);
        assert!(said.contains(START), "{command:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    if !home.alone {
        // Another server may listen at a default port.
        return;
    }
    for command in ["slots", "ttft", "gateway", "index"] {
        let said = home.fails(&[command]);
        assert!(said.contains(START), "{command}: {said}");
        let tried = "http://127.0.0.1:9931 and http://127.0.0.1:8080";
        assert!(said.contains(tried), "{command}: {said}");
    }
}

/// In an environment of Python's package contextpilot the line to type would start that package's command.
#[test]
fn if_path_gives_another_packages_launcher_it_is_said_beside_the_line_to_type() {
    let home = or_return!(Home::of(test_name!()));
    let other = home.path().join("contextpilot-llama-server");
    fs::write(&other, "#!/usr/bin/python3\n").unwrap();
    let said = |path: &str| {
        let mut command = home.command(COMPANION, &["stats"]);
        let output = command.env("PATH", path).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let line = format!(
        "contextpilot-llama-server is {}, a command of the Python package contextpilot",
        other.display()
    );
    let shadowed = said(&format!("{}:/usr/bin:/bin", home.path().display()));
    assert!(shadowed.contains(&line), "{shadowed}");
    assert_eq!(shadowed.lines().count(), 1, "{shadowed}");
    assert!(!said("/usr/bin:/bin").contains("Python package"));
}

/// A server without the hook. Nothing says where it listens, so both defaults are tried, and that is said.
#[test]
fn a_server_without_the_hook_is_looked_for_at_the_default_ports() {
    let home = or_return!(Home::of(test_name!()).filter(|home| home.alone));
    let server = two_slots().args(["--port", "8080"]).spawn().unwrap();
    assert_eq!(server.address().port(), 8080);
    let output = home.run(&["slots"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains("one answers at http://127.0.0.1:8080"),
        "{said}"
    );
    assert!(
        said.contains("No hook of the server at http://127.0.0.1:8080"),
        "{said}"
    );
}

#[test]
fn a_server_without_flags_listens_at_the_default_port_which_stats_name() {
    let home = or_return!(Home::of(test_name!()).filter(|home| home.alone));
    let server = home.serve(&two_slots().default_address());
    assert_eq!(home.stats(&[]).listening, ["http://127.0.0.1:9931"]);
    let mut connection = Connection::open("127.0.0.1:9931".parse().unwrap()).unwrap();
    assert_eq!(
        connection.exchange("GET", "/health", b"").unwrap().status,
        200
    );
    drop(server);
    // Two addresses with one port.
    let _server = home.serve(
        &two_slots()
            .default_address()
            .args(["--host", "127.0.0.1,127.0.0.2"]),
    );
    let both = ["http://127.0.0.1:9931", "http://127.0.0.2:9931"];
    assert_eq!(home.stats(&[]).listening, both);
}
