//! Rules for the workspace: its dependencies have allowed licences, the pure crates are pure, cargo
//! runs the examples of the documentation, comments say who is meant, and no modules are in a ring.

use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The output of `cargo metadata`. It includes crates for other systems, which a
/// build here does not need. They are downloaded if they are missing.
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

/// The folders of the crates in `crates/`, by their short names.
fn crates() -> BTreeMap<String, PathBuf> {
    let metadata = metadata();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates");
    let folder = |package: &Value| {
        let manifest = Path::new(package["manifest_path"].as_str().expect("a path"));
        let folder = manifest.parent().expect("a folder").to_owned();
        let name = package["name"].as_str().expect("a name");
        let name = name.trim_start_matches("contextpilot-").to_owned();
        folder.starts_with(&root).then_some((name, folder))
    };
    let packages = metadata["packages"].as_array().expect("packages").iter();
    packages.filter_map(folder).collect()
}

/// The licences that deny.toml allows.
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

/// Whether the allowed licences satisfy a licence expression. `AND` binds tighter
/// than `OR`. Crates use nothing else but parentheses around an `OR`.
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
fn every_dependency_has_an_allowed_licence() {
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
fn licence_expressions_are_evaluated() {
    let allowed = ["MIT".to_owned(), "ISC".to_owned()];
    assert!(is_met("GPL-3.0 OR MIT", &allowed));
    assert!(is_met("GPL-3.0/MIT", &allowed));
    assert!(is_met("(GPL-3.0 OR MIT) AND ISC", &allowed));
    assert!(!is_met("GPL-3.0 AND MIT", &allowed));
    assert!(!is_met("(GPL-3.0 OR LGPL-3.0) AND ISC", &allowed));
}

/// These crates depend on nothing, except for tests, but on crates that only compute. So no dependency of
/// theirs can do I/O.
#[test]
fn pure_crates_depend_only_on_what_computes() {
    let computes = [
        "crc32fast",
        "foldhash",
        "percent-encoding",
        "serde",
        "siphasher",
    ];
    let metadata = metadata();
    for name in [
        "contextpilot-order",
        "contextpilot-residency",
        "contextpilot-request",
        "contextpilot-server-flags",
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
            .filter(|dependency| !computes.iter().any(|name| dependency["name"] == *name))
            .collect();
        assert!(dependencies.is_empty(), "{name}: {dependencies:?}");
    }
}

/// A source file without what is there for tests alone. As rustfmt writes it, an item ends with the first line that is
/// indented as it begins and closes it.
fn without_tests(text: &str) -> String {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut product = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let is_for_tests = ["#[cfg(test)]", "#[cfg(all(test,"];
        if is_for_tests
            .iter()
            .any(|one| line.trim_start().starts_with(one))
        {
            lines.find(|end| indent(end) == indent(line) && end.ends_with(['}', ';', ',']));
        } else {
            product += line;
            product.push('\n');
        }
    }
    product
}

/// The ids of the packages that the hook library is linked from, itself included.
fn linked_by_the_hook(metadata: &Value) -> Vec<&str> {
    let nodes = metadata["resolve"]["nodes"].as_array().expect("nodes");
    let of = |id: &str| nodes.iter().find(|node| node["id"] == id).expect("a node");
    let root = metadata["packages"]
        .as_array()
        .expect("packages")
        .iter()
        .find(|package| package["name"] == "contextpilot-hook")
        .expect("the hook is in the workspace");
    let mut waiting = vec![root["id"].as_str().expect("an id")];
    let mut seen = Vec::new();
    while let Some(id) = waiting.pop() {
        if seen.contains(&id) {
            continue;
        }
        seen.push(id);
        for dependency in of(id)["deps"].as_array().expect("dependencies") {
            let kinds = dependency["dep_kinds"].as_array().expect("kinds");
            if kinds.iter().any(|kind| kind["kind"].is_null()) {
                waiting.push(dependency["pkg"].as_str().expect("an id"));
            }
        }
    }
    assert!(seen.len() > 10, "{seen:?}");
    seen
}

/// The library that is preloaded into servers contains neither hyper nor tokio. Only the companion
/// command uses these.
#[test]
fn the_hook_links_neither_hyper_nor_tokio() {
    let metadata = metadata();
    let linked = linked_by_the_hook(&metadata);
    let packages = metadata["packages"].as_array().expect("packages");
    for package in packages
        .iter()
        .filter(|package| linked.contains(&package["id"].as_str().unwrap_or_default()))
    {
        let name = package["name"].as_str().expect("a name");
        assert!(!["hyper", "tokio"].contains(&name), "{name}");
    }
}

/// The host's threads change variables, so nothing in its process reads them but the constructor: the hook has copied
/// them (`hook/src/base/environment.rs`, where clippy.toml has the same rule for its own code). A thread without a size of
/// its stack reads one, too.
#[test]
fn what_the_hook_links_does_not_read_the_environment() {
    let metadata = metadata();
    let linked = linked_by_the_hook(&metadata);
    let packages = metadata["packages"].as_array().expect("packages");
    let ours = packages.iter().filter(|package| {
        package["source"].is_null() && linked.contains(&package["id"].as_str().unwrap_or_default())
    });
    let (mut read, mut threads) = (0, 0);
    for package in ours {
        let manifest = Path::new(package["manifest_path"].as_str().expect("a path"));
        let folder = manifest.parent().expect("a folder").join("src");
        for file in sources(&folder) {
            let is_test = file
                .iter()
                .any(|part| part == "tests" || part == "tests.rs");
            if is_test || file.ends_with("base/environment.rs") {
                continue;
            }
            read += 1;
            let text = std::fs::read_to_string(&file).expect("a source file can be read");
            let code = without_tests(&text);
            let lines = code
                .lines()
                .filter(|line| !line.trim_start().starts_with("//"));
            let code: String = lines.flat_map(|line| [line.trim(), " "]).collect();
            for banned in [
                "env::var",
                "env::args",
                "env::current_",
                "env::temp_dir",
                "env::home_dir",
                "thread::spawn(",
            ] {
                assert!(!code.contains(banned), "{banned} in {}", file.display());
            }
            for builder in code.split("thread::Builder::new()").skip(1) {
                threads += 1;
                let builder = builder.split(".spawn(").next().unwrap_or_default();
                assert!(
                    builder.contains(".stack_size("),
                    "{builder} in {}",
                    file.display()
                );
            }
        }
    }
    assert!(read > 100 && threads > 8, "{read} {threads}");
}

/// These crates contain no unsafe code, and nothing of `std` that does I/O, starts threads or reads
/// the clock.
#[test]
fn pure_crates_contain_no_unsafe_code_and_no_io() {
    let crates = crates();
    for name in [
        "kv-engine",
        "kv-events",
        "kv-store",
        "index",
        "order",
        "residency",
        "request",
        "server-flags",
        "settings",
        "traffic",
        "simulate",
        "observer",
    ] {
        let source = crates.get(name).expect("a crate of this name").join("src");
        let files = sources(&source);
        for path in &files {
            let text = std::fs::read_to_string(path).expect("a source file can be read");
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
        assert!(files.len() > 1, "{name} has source files");
        let root = std::fs::read_to_string(source.join("lib.rs")).expect("lib.rs");
        assert!(root.contains("#![forbid(unsafe_code)]"), "{name}");
    }
}

/// Whether rustdoc would run an example in this text: a code block that names no other language, or
/// an indented block.
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

/// The doc comments of a source file, as Markdown. All other lines are empty.
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

/// The Rust files in a folder and those within it, without what cargo builds.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder can be read");
    let paths = entries.map(|entry| entry.expect("an entry can be read").path());
    paths
        .flat_map(|path| {
            if path.ends_with("target") {
                Vec::new()
            } else if path.is_dir() {
                sources(&path)
            } else {
                vec![path]
            }
        })
        .filter(|path| path.extension().is_some_and(|name| name == "rs"))
        .collect()
}

/// A crate's manifest has `doctest = false` if, and only if, the crate's documentation has no
/// example to run. The setting saves a start of rustdoc, which takes as long as a test program.
#[test]
fn doctests_are_on_exactly_where_there_are_examples() {
    let metadata = metadata();
    let mut seen = 0;
    for package in metadata["packages"].as_array().expect("packages") {
        let name = package["name"].as_str().expect("a name");
        let ours = package["source"].is_null();
        let targets = package["targets"].as_array().expect("targets").iter();
        for target in targets.filter(|target| ours && target["kind"][0] == "lib") {
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

/// A module is `x.rs`, with its parts in `x/` (CONTRIBUTING.md).
#[test]
fn no_module_of_a_source_folder_is_a_mod_rs() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders: Vec<PathBuf> = ["launcher", "hook/src"].map(|name| root.join(name)).into();
    folders.extend(crates().values().map(|folder| folder.join("src")));
    let files: Vec<PathBuf> = folders.iter().flat_map(|folder| sources(folder)).collect();
    for path in &files {
        assert!(!path.ends_with("mod.rs"), "{}", path.display());
    }
    assert!(files.len() > 300, "{}", files.len());
}

/// A comment names who is meant: a client, a server, another process, a user of the machine.
#[test]
fn comments_name_who_is_meant() {
    let vague = [
        "whoever",
        "whomever",
        "somebody",
        "someone",
        "nobody",
        "anybody",
        "everybody",
    ];
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = ["crates", "hook", "launcher", "tests", "fuzz", "examples"];
    let files = folders.map(|folder| sources(&root.join(folder))).concat();
    for path in &files {
        let text = std::fs::read_to_string(path).expect("a source file can be read");
        for (number, line) in (1..).zip(text.lines()) {
            let Some(comment) = line.trim_start().strip_prefix("//") else {
                continue;
            };
            let comment = comment.to_lowercase();
            let mut words = comment.split(|c: char| !c.is_alphabetic());
            let found = words.find(|word| vague.contains(word));
            assert_eq!(found, None, "{}:{number}", path.display());
        }
    }
    assert!(files.len() > 1000, "{}", files.len());
}

/// The paths that a `use` names, each as its words: `a::{b, c::d}` is `a::b` and `a::c::d`.
fn paths_of(tree: &str) -> Vec<Vec<&str>> {
    let Some((before, list)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or_default().trim();
        return vec![path.split("::").collect()];
    };
    let before: Vec<&str> = before.split("::").map(str::trim).collect();
    let (_, before) = before.split_last().expect("`{` stands behind `::`");
    let list = list.rsplit_once('}').map_or(list, |(list, _)| list);
    let mut depth = 0;
    let parts = list.split(|c| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == ',' && depth == 0
    });
    let parts = parts.filter(|part| !part.trim().is_empty());
    let paths = parts.flat_map(|part| paths_of(part.trim()));
    paths.map(|path| [before, &path].concat()).collect()
}

/// The paths that the `use`s of a module name.
fn used(code: &str) -> Vec<Vec<&str>> {
    let uses = code.split("use ").skip(1);
    let trees = uses.filter_map(|rest| rest.split_once(';'));
    trees.flat_map(|(tree, _)| paths_of(tree)).collect()
}

/// Which modules a module takes something from, also by what the crate's root takes from them.
fn taken(at: &[String], code: &str, modules: &BTreeMap<Vec<String>, String>) -> Vec<Vec<String>> {
    let mut paths = used(code);
    // Without a `use`: `child::function()`.
    let children = modules
        .keys()
        .filter(|of| of.split_last().is_some_and(|(_, of)| of == at));
    paths.extend(children.filter_map(|of| {
        let child = of.last()?;
        let call = format!("{child}::");
        let is_path = |(nth, _): (usize, &str)| {
            !code[..nth].ends_with(|c: char| c == ':' || c == '_' || c.is_alphanumeric())
        };
        code.match_indices(&call)
            .any(is_path)
            .then(|| vec!["self", child])
    }));
    let root = modules.get(&["lib".to_owned()][..]).map(|code| used(code));
    let root = root.unwrap_or_default();
    let module_of = |path: &Vec<&str>| {
        let supers = path.iter().take_while(|word| **word == "super").count();
        let (from, words) = match path[0] {
            "crate" => (&[][..], &path[1..]),
            "self" => (at, &path[1..]),
            _ => (&at[..at.len() - supers.min(at.len())], &path[supers..]),
        };
        let exported = root.iter().find(|path| path.last() == words.first());
        let words = exported
            .filter(|_| from.is_empty())
            .map_or(words, |path| path);
        let mut from = from.to_vec();
        for word in words {
            from.push((*word).to_owned());
            if !modules.contains_key(&from) {
                from.pop();
                break;
            }
        }
        (!from.is_empty() && from != at).then_some(from)
    };
    paths.iter().filter_map(module_of).collect()
}

/// The modules below a folder of sources, without their tests and comments, on one line each.
fn modules_in(folder: &Path) -> BTreeMap<Vec<String>, String> {
    let files = sources(folder).into_iter();
    let modules = files.map(|file| {
        let name = file.strip_prefix(folder).expect("it is in there");
        let name = name.with_extension("");
        let words = name.iter().map(|word| word.to_string_lossy().into_owned());
        let text = std::fs::read_to_string(&file).expect("a source file can be read");
        let code = without_tests(&text);
        let lines = code.lines();
        let lines = lines.map(|line| line.split("//").next().unwrap_or_default());
        (words.collect(), lines.collect::<Vec<_>>().join(" "))
    });
    let is_product = |name: &Vec<String>| name.last().is_some_and(|last| last != "tests");
    modules.filter(|(name, _)| is_product(name)).collect()
}

/// A module takes nothing, by whatever way, from one that takes something from it.
#[test]
fn no_modules_are_in_a_ring() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders = vec![root.join("hook/src"), root.join("launcher")];
    folders.extend(crates().values().map(|folder| folder.join("src")));
    let mut arrows = 0;
    for folder in &folders {
        let modules = modules_in(folder);
        let mut left: BTreeMap<&Vec<String>, Vec<Vec<String>>> = modules
            .iter()
            .map(|(at, code)| (at, taken(at, code, &modules)))
            .collect();
        arrows += left.values().map(Vec::len).sum::<usize>();
        // What takes nothing from those that are left is in no ring.
        loop {
            let before = left.len();
            let names: Vec<Vec<String>> = left.keys().map(|name| (*name).clone()).collect();
            left.retain(|_, taken| taken.iter().any(|of| names.contains(of)));
            if left.len() == before {
                break;
            }
        }
        assert!(left.is_empty(), "{}: {left:#?}", folder.display());
    }
    assert!(folders.len() > 30 && arrows > 2000, "{arrows}");
}
