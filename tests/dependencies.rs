//! What the workspace depends on: licences that are allowed, a core that is pure. And what cargo
//! runs of its documentation.

use serde_json::Value;
use std::path::{Path, PathBuf};
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

/// Whether rustdoc would run something of this: a block without a word for another language, or an
/// indented one.
fn has_example(markdown: &str) -> bool {
    let (mut inside, mut blank_before) = (false, true);
    for line in markdown.lines() {
        let text = line.trim();
        if let Some(words) = text.strip_prefix("```") {
            inside = !inside;
            let mut words = words.split([',', ' ']);
            let rust = |word: &str| {
                let words = [
                    "",
                    "rust",
                    "no_run",
                    "should_panic",
                    "ignore",
                    "compile_fail",
                ];
                words.contains(&word) || word.starts_with("edition")
            };
            if inside && words.all(rust) {
                return true;
            }
        } else if !inside && blank_before && !text.is_empty() && line.starts_with("    ") {
            return true;
        }
        blank_before = text.is_empty();
    }
    false
}

/// What the comments of a source file say to rustdoc, as Markdown: other lines are empty.
fn documentation(file: &Path) -> String {
    let source = std::fs::read_to_string(file).expect("a source file can be read");
    let mut markdown = String::new();
    for line in source.lines() {
        let line = line.trim_start();
        let comment = line.strip_prefix("///").or(line.strip_prefix("//!"));
        let comment = comment.unwrap_or_default();
        markdown += comment.strip_prefix(' ').unwrap_or(comment);
        markdown.push('\n');
        if let Some((_, included)) = line.split_once("doc = include_str!(\"") {
            let name = included.split('"').next().expect("a name");
            let page = file.parent().expect("a folder").join(name);
            markdown += &std::fs::read_to_string(page).expect("an included page");
        }
        assert!(!line.starts_with("/**"), "{file:?}: not understood here");
    }
    markdown
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder can be read");
    let paths = entries.map(|entry| entry.expect("an entry can be read").path());
    paths
        .flat_map(|path| match path.is_dir() {
            true => sources(&path),
            false => vec![path],
        })
        .filter(|path| path.extension().is_some_and(|name| name == "rs"))
        .collect()
}

/// `doctest = false` in a crate's manifest spares a start of rustdoc, which takes as long as a test
/// program. It is there if, and only if, nothing would run.
#[test]
fn examples_in_the_documentation_are_run_where_there_are_some() {
    let metadata = metadata();
    let mut seen = 0;
    for package in metadata["packages"].as_array().expect("packages") {
        let name = package["name"].as_str().expect("a name");
        let ours = package["source"].is_null();
        let targets = package["targets"].as_array().expect("targets").iter();
        for target in targets.filter(|one| ours && one["kind"][0] == "lib") {
            let file = Path::new(target["src_path"].as_str().expect("a path"));
            let files = sources(file.parent().expect("a folder"));
            let example = files.iter().find(|file| has_example(&documentation(file)));
            assert_eq!(
                target["doctest"],
                example.is_some(),
                "{name}: set or remove `doctest = false` of its [lib]; example: {example:?}"
            );
            seen += 1;
        }
    }
    assert!(seen > 20, "{seen} libraries");
}
