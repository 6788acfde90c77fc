//! What the workspace depends on: licences that are allowed, a core that is pure.

use serde_json::Value;
use std::process::Command;

/// Also of crates for other systems, which a build here does not need: they are
/// fetched if they are not there.
fn metadata() -> Value {
    let ask = |offline: &[&str]| {
        let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        Command::new(env!("CARGO"))
            .args(["metadata", "--locked", "--format-version", "1"])
            .args(["--manifest-path", manifest])
            .args(offline)
            .output()
            .expect("cargo runs")
    };
    let mut output = ask(&["--offline"]);
    if !output.status.success() {
        output = ask(&[]);
    }
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).expect("cargo metadata is JSON")
}

/// The licences of the one list there is, deny.toml's.
fn allowed() -> Vec<String> {
    let text = include_str!("../deny.toml");
    let list = text
        .split_once("allow = [")
        .and_then(|(_, rest)| rest.split_once(']'))
        .expect("deny.toml lists licences")
        .0;
    list.split('"')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

/// Whether a licence expression can be met. `AND` binds tighter than `OR`; that
/// and parentheses around an `OR` are all that crates use.
fn is_met(expression: &str, allowed: &[String]) -> bool {
    let expression = expression.replace('/', " OR ");
    if let Some((before, rest)) = expression.split_once('(') {
        let (inside, after) = rest.split_once(')').expect("parentheses are balanced");
        let verdict = if is_met(inside, allowed) {
            "MIT"
        } else {
            "none"
        };
        return is_met(&format!("{before}{verdict}{after}"), allowed);
    }
    expression.split(" OR ").any(|choice| {
        choice
            .split(" AND ")
            .all(|licence| allowed.iter().any(|known| known == licence.trim()))
    })
}

#[test]
fn licences_are_allowed() {
    let allowed = allowed();
    assert!(allowed.len() > 3, "deny.toml was understood: {allowed:?}");
    let metadata = metadata();
    let refused: Vec<String> = metadata["packages"]
        .as_array()
        .expect("packages")
        .iter()
        .filter(|package| !is_met(package["license"].as_str().unwrap_or("none"), &allowed))
        .map(|package| format!("{}: {}", package["name"], package["license"]))
        .collect();
    assert_eq!(refused, Vec::<String>::new());
}

#[test]
fn licence_expressions_are_understood() {
    let allowed = ["MIT".to_owned(), "ISC".to_owned()];
    assert!(is_met("GPL-3.0 OR MIT", &allowed));
    assert!(is_met("GPL-3.0/MIT", &allowed));
    assert!(is_met("(GPL-3.0 OR MIT) AND ISC", &allowed));
    assert!(!is_met("GPL-3.0 AND MIT", &allowed));
    assert!(!is_met("(GPL-3.0 OR LGPL-3.0) AND ISC", &allowed));
}

/// The residency model, the orders, the request reader and the settings depend on nothing
/// that could do I/O: on nothing at all.
#[test]
fn pure_crates_depend_on_nothing() {
    let metadata = metadata();
    for name in [
        "contextpilot-order",
        "contextpilot-residency",
        "contextpilot-request",
        "contextpilot-settings",
        "contextpilot-traffic",
    ] {
        let package = metadata["packages"]
            .as_array()
            .expect("packages")
            .iter()
            .find(|package| package["name"] == name)
            .unwrap_or_else(|| panic!("{name} is in the workspace"));
        let dependencies: Vec<&Value> = package["dependencies"]
            .as_array()
            .expect("dependencies")
            .iter()
            .filter(|dependency| dependency["kind"].is_null())
            .collect();
        assert!(dependencies.is_empty(), "{name}: {dependencies:?}");
    }
}

/// What only the companion needs is not in the library that is preloaded into servers.
#[test]
fn the_hook_links_no_executor() {
    let metadata = metadata();
    let nodes = metadata["resolve"]["nodes"].as_array().expect("nodes");
    let of = |id: &str| nodes.iter().find(|node| node["id"] == id).expect("a node");
    let root = metadata["packages"]
        .as_array()
        .expect("packages")
        .iter()
        .find(|package| package["name"] == "contextpilot-hook")
        .expect("the hook is in the workspace");
    let mut waiting = vec![root["id"].as_str().expect("an id")];
    let mut seen = std::collections::HashSet::new();
    while let Some(id) = waiting.pop() {
        if !seen.insert(id) {
            continue;
        }
        for dependency in of(id)["deps"].as_array().expect("dependencies") {
            let kinds = dependency["dep_kinds"].as_array().expect("kinds");
            if kinds.iter().any(|kind| kind["kind"].is_null()) {
                let name = dependency["name"].as_str().expect("a name");
                assert!(!["hyper", "tokio"].contains(&name), "{name}, through {id}");
                waiting.push(dependency["pkg"].as_str().expect("an id"));
            }
        }
    }
    assert!(seen.len() > 10, "{seen:?}");
}

/// The same crates, and some more, contain no unsafe code, and nothing of `std` that could do
/// I/O.
#[test]
fn pure_crates_are_pure() {
    for name in [
        "kv-events",
        "index",
        "order",
        "residency",
        "request",
        "settings",
        "traffic",
        "simulate",
        "observer",
    ] {
        let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("crates")
            .join(name)
            .join("src");
        let mut files = vec![source.clone()];
        let mut read = 0;
        while let Some(path) = files.pop() {
            if path.is_dir() {
                let entries = std::fs::read_dir(&path).expect("a folder can be read");
                files.extend(entries.map(|entry| entry.expect("an entry can be read").path()));
                continue;
            }
            read += 1;
            let text = std::fs::read_to_string(&path).expect("a source file can be read");
            for banned in [
                "std::fs",
                "TcpStream",
                "TcpListener",
                "UdpSocket",
                "std::io",
                "std::thread",
                "std::process",
                "Instant",
                "SystemTime",
                "static mut",
                "unsafe {",
                "thread_local",
            ] {
                assert!(!text.contains(banned), "{banned} in {}", path.display());
            }
        }
        assert!(read > 1, "{name} has source files");
        let root = std::fs::read_to_string(source.join("lib.rs")).expect("lib.rs");
        assert!(root.contains("#![forbid(unsafe_code)]"), "{name}");
    }
}
