//! Every command of the pages is run as it stands there, and what it prints is compared with the page.
//!
//! Each page has a clean home folder and a network namespace of its own, in which all default ports are
//! free and nothing else can be reached. Files of two names are there: `model.gguf` is a real model
//! (`scripts/model`), `tiny.gguf` a tiny one. What cannot be run says so in a comment above it. See
//! `page.rs` for the rules.
//!
//! ```text
//! cargo test --test pages                       all pages
//! PAGES=docs/tools.md cargo test --test pages   one
//! ```
#![cfg(target_os = "linux")]

mod markdown;
mod page;
mod shape;
mod terminal;

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Instant;

use contextpilot_testbed::{Arch, Model, llama_server, skip, skip_case};
use terminal::Machine;

/// Set within the namespace: the page.
const INSIDE: &str = "CONTEXTPILOT_TEST_PAGE";
/// Of util-linux and iproute2: runs a program in a network namespace of its own.
const NAMESPACE: [&str; 6] = [
    "unshare",
    "-rn",
    "sh",
    "-c",
    "ip link set lo up && exec \"$@\"",
    "sh",
];

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All pages of this repository, committed or not.
fn pages() -> Vec<PathBuf> {
    let listed = Command::new("git")
        .args([
            "ls-files",
            "--cached",
            "--others",
            "--exclude-standard",
            "*.md",
        ])
        .current_dir(repository())
        .output()
        .expect("git lists the pages");
    let listed = String::from_utf8(listed.stdout).expect("their names are UTF-8");
    let wanted = std::env::var("PAGES").unwrap_or_default();
    let pages = listed.lines().filter(|page| page.contains(&wanted));
    let pages: Vec<_> = pages.map(PathBuf::from).collect();
    assert!(!pages.is_empty(), "no page is called {wanted:?}");
    pages
}

/// The path that a script prints. `None`: it cannot do its work here (exit code 77), and has said why.
fn script(name: &str) -> Option<PathBuf> {
    let output = Command::new(repository().join("scripts").join(name))
        .stderr(Stdio::inherit())
        .output()
        .expect("the script starts");
    if output.status.code() == Some(77) {
        return None;
    }
    assert!(output.status.success(), "scripts/{name} failed");
    let path = String::from_utf8(output.stdout).expect("a path");
    Some(PathBuf::from(path.trim()))
}

#[test]
fn every_command_of_the_pages_runs_as_it_stands() {
    let probe = Command::new(NAMESPACE[0])
        .args(&NAMESPACE[1..])
        .arg("true")
        .output();
    if !probe.is_ok_and(|probe| probe.status.success()) {
        skip("no network namespace can be made here (unshare -rn, and ip)");
        return;
    }
    // Fetched before the namespaces, from which nothing can be fetched.
    llama_server();
    let next = Mutex::new(pages().into_iter());
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let Some(page) = next.lock().expect("not poisoned").next() else {
                        break;
                    };
                    if let Some(why) = in_namespace(&page) {
                        failed.lock().expect("not poisoned").push(why);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().expect("not poisoned");
    assert!(failed.is_empty(), "\n{}", failed.concat());
}

/// Runs a page in a namespace of its own. Returns what is wrong with it.
fn in_namespace(page: &Path) -> Option<String> {
    let text = std::fs::read_to_string(repository().join(page)).expect("a page");
    let mut command = Command::new(NAMESPACE[0]);
    command
        .args(&NAMESPACE[1..])
        .arg(std::env::current_exe().expect("this program has a path"))
        .args(["--exact", "one_page", "--ignored", "--nocapture"])
        .env("RUST_BACKTRACE", "0")
        .env(INSIDE, page);
    if text.contains("model.gguf") && text.contains("```sh") {
        let Some(model) = script("model") else {
            skip_case(&page.display().to_string(), "no real model");
            return None;
        };
        command.env("LLAMA_TEST_MODEL", model);
    }
    if text.contains("```python") {
        let Some(python) = script("python-clients") else {
            skip_case(&page.display().to_string(), "no Python");
            return None;
        };
        command.env("CONTEXTPILOT_TEST_PYTHON", python);
    }
    let begun = Instant::now();
    let output = command.output().expect("the page is run");
    let seconds = begun.elapsed().as_secs_f32();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let result = said.lines().find(|line| line.contains(" blocks run"));
    println!("{} ({seconds:.1} s)", result.unwrap_or("FAILED"));
    let why = String::from_utf8_lossy(&output.stderr);
    (!output.status.success()).then(|| why.into_owned())
}

#[test]
#[ignore = "runs in a namespace, started by the other test"]
fn one_page() {
    let page = PathBuf::from(std::env::var_os(INSIDE).expect("the page"));
    let text = std::fs::read_to_string(repository().join(&page)).expect("a page");
    let folder = tempfile::tempdir().expect("a folder");
    let [home, runtime, commands] = ["home", "run", "bin"].map(|name| {
        let folder = folder.path().join(name);
        std::fs::create_dir(&folder).expect("a folder");
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        std::fs::set_permissions(&folder, private).expect("a private folder");
        folder
    });
    let link = |from: &Path, to: PathBuf| symlink(from, to).expect("a link");
    for (name, program) in [
        (
            "contextpilot-llama",
            Path::new(env!("CARGO_BIN_EXE_contextpilot-llama")),
        ),
        (
            "contextpilot-llama-server",
            Path::new(env!("CARGO_BIN_EXE_contextpilot-llama-server")),
        ),
        ("llama-server", &llama_server()),
    ] {
        link(program, commands.join(name));
    }
    link(Model::tiny(Arch::Llama).path(), home.join("tiny.gguf"));
    if let Some(model) = std::env::var_os("LLAMA_TEST_MODEL") {
        link(Path::new(&model), home.join("model.gguf"));
    }
    if let Some(python) = std::env::var_os("CONTEXTPILOT_TEST_PYTHON") {
        // By a script: an environment finds its packages by the path of its Python.
        let script = format!("#!/bin/sh\nexec {} \"$@\"\n", Path::new(&python).display());
        let path = commands.join("python");
        std::fs::write(&path, script).expect("a script");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(path, mode).expect("a script");
    }
    // HTTP errors are errors.
    std::fs::write(home.join(".curlrc"), "fail-with-body\nsilent\nshow-error\n").expect("a file");
    let machine = Machine {
        home,
        runtime,
        path: format!(
            "{}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            commands.display()
        ),
    };
    match page::run(&page, &text, &machine) {
        Ok(done) => println!(
            "{}: {} blocks run, {} compared, {} not run",
            page.display(),
            done.run,
            done.compared,
            done.not_run
        ),
        Err(why) => {
            eprintln!("{why}");
            drop(folder);
            std::process::exit(1);
        }
    }
}

/// It can be read in two minutes, and links lead to the rest.
#[test]
fn readme_is_short() {
    let text = std::fs::read_to_string(repository().join("README.md")).expect("README");
    let words = text.split_whitespace().count();
    assert!(words < 1500, "README has {words} words");
}

/// The exactness test writes the table. README has its sums.
#[test]
fn readme_has_the_sums_of_the_exactness_test() {
    let read = |page| std::fs::read_to_string(repository().join(page)).expect("a page");
    let table = read("docs/exactness.md");
    let sums = table.lines().find(|line| line.starts_with("| **all** |"));
    let sums: Vec<_> = sums.expect("sums").split('|').map(str::trim).collect();
    // Ids, gone, reported.
    let [_, _, _, gone, reported, ..] = sums[..] else {
        panic!("{sums:?}")
    };
    let said = format!("{reported} of {gone} evictions reported");
    assert!(read("README.md").contains(&said), "{said}");
}

#[test]
fn every_link_between_pages_leads_to_a_file_and_a_heading() {
    let read = |page: &Path| std::fs::read_to_string(page).unwrap_or_default();
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for page in pages() {
        let path = repository().join(&page);
        let folder = path.parent().expect("a page is in a folder");
        for target in links(&read(&path)) {
            seen += 1;
            let (file, heading) = target.split_once('#').unwrap_or((&target, ""));
            let file = match file {
                "" => path.clone(),
                file => folder.join(file),
            };
            let has_heading = || headings(&read(&file)).any(|one| one == heading);
            if !file.exists() || !heading.is_empty() && !has_heading() {
                wrong.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // A single page may have none.
    let single = std::env::var_os("PAGES").is_some();
    assert!(seen > 0 || single, "pages have links");
}

/// The last column of the first table of docs/advice.md: a file of tests, or how the name of a test or of a case of one begins.
#[test]
fn each_test_that_the_page_of_advice_names_is_there() {
    let page = repository().join("docs/advice.md");
    let page = std::fs::read_to_string(page).expect("docs/advice.md");
    let (table, _) = page.split_once("\n## ").expect("a second table");
    let mut sources = Vec::new();
    sources_in(&repository().join("tests"), &mut sources);
    let sources: Vec<(PathBuf, String)> = sources
        .into_iter()
        .map(|path| {
            (
                path.clone(),
                std::fs::read_to_string(path).expect("a source"),
            )
        })
        .collect();
    let is_there = |name: &str| {
        let begins = name.trim_end_matches('…');
        let (test, case) = (format!("fn {begins}"), format!("\"{begins}"));
        sources.iter().any(|(path, text)| {
            path.ends_with(name) || text.contains(&test) || text.contains(&case)
        })
    };
    let rows = table.lines().filter(|line| line.starts_with("| "));
    let mut named = 0;
    for row in rows.skip(1) {
        let column = row.rsplit('|').nth(1).expect("a last column");
        let names: Vec<&str> = column.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "no test: {row}");
        for name in names {
            assert!(is_there(name), "there is no {name}: {row}");
            named += 1;
        }
    }
    assert!(named > 30, "{named} tests are named");
}

fn sources_in(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder of tests") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources_in(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            found.push(path);
        }
    }
}

/// The targets of links to other pages, outside of code.
fn links(text: &str) -> Vec<String> {
    let mut in_code = false;
    let prose = text.lines().filter(|line| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        !in_code && !fence
    });
    let prose: Vec<&str> = prose.collect();
    let joined = prose.join("\n");
    let targets = joined.split("](").skip(1).filter_map(|rest| {
        let target = rest.split(')').next()?;
        let is_page = !target.contains("://") && !target.contains(char::is_whitespace);
        is_page.then(|| target.to_owned())
    });
    targets.collect()
}

/// The anchors of the headings, as GitHub makes them.
fn headings(text: &str) -> impl Iterator<Item = String> {
    let lines = text.lines().filter(|line| line.starts_with('#'));
    lines.map(|line| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title
            .chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    })
}
