//! Of a library, a module, a wheel, a program that is no server, or a running process: what of the llama.cpp in it would be followed in a program.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use contextpilot_inspect::{FunctionPlace, Linkage, Program, Search, holds_engine};
use contextpilot_settings::env;

use crate::table::{LAUNCH, MEMORY, NUMBERS, ROWS};
use crate::variables::{Lookup, of_process};

use super::functions::{self, has};
use super::report::{Finding, Grade, Report};
use super::{running, store};

mod wheel;

/// What to type next.
const NEXT: &str = "CONTEXTPILOT_STORE=~/llama-store contextpilot-llama run PROGRAM";

/// The report about this file. `None`: it is neither a library nor a wheel, nor a program with an engine and no server.
pub(super) fn of_file(path: &Path) -> Option<Report> {
    let mut report = Report::default();
    if wheel::is_one(path) {
        match wheel::unpacked(path) {
            Err(why) => report.add(Finding::new("wheel", Grade::Fails, why)),
            Ok(folder) => {
                let text = path.display().to_string();
                report.add(Finding::new("wheel", Grade::Good, text));
                let files = folder.libraries();
                if !examine_all(&files, Some(folder.path()), &mut report) {
                    report.add(none("this wheel"));
                }
            }
        }
    } else if is_program(path) {
        examine_all(&[path.to_owned()], None, &mut report);
    } else if is_library(path) {
        if !examine_all(&[path.to_owned()], None, &mut report) {
            report.add(Finding::new(
                "library",
                Grade::Good,
                path.display().to_string(),
            ));
            report.add(none("this library, or in those that it needs"));
        }
    } else {
        return None;
    }
    report.advise(NEXT.to_owned());
    Some(report)
}

/// The report about a process that runs.
pub(super) fn of_process_with(pid: u32) -> Report {
    let mut report = Report::default();
    let program = fs::read_link(format!("/proc/{pid}/exe"));
    let maps = fs::read(format!("/proc/{pid}/maps"));
    let (program, maps) = match (program, maps) {
        (Ok(program), Ok(maps)) => (program, maps),
        (Err(why), _) | (_, Err(why)) => {
            let text =
                format!("{pid} cannot be looked at ({why}): it has ended, or is another user's");
            report.add(Finding::new("process", Grade::Fails, text));
            return report;
        }
    };
    let text = format!("{pid}, {}", program.display());
    report.add(Finding::new("process", Grade::Good, text));
    let maps = String::from_utf8_lossy(&maps);
    let mapped = maps.lines().filter_map(|line| {
        let at = line.find('/')?;
        Some(PathBuf::from(&line[at..]))
    });
    let files: BTreeSet<PathBuf> = mapped.collect();
    let preloaded = preloaded(pid);
    let is_hook = |file: &PathBuf| {
        file.to_string_lossy().contains("contextpilot_llama_hook") || preloaded.contains(file)
    };
    report.add(match files.iter().find(|file| is_hook(file)) {
        Some(hook) => Finding::new("hook", Grade::Good, format!("in it: {}", hook.display())),
        None => {
            let text =
                "not in it: start it by contextpilot-llama run, or by contextpilot-llama-server";
            Finding::new("hook", Grade::Limited, text)
        }
    });
    let files: Vec<PathBuf> = files.into_iter().filter(|file| !is_hook(file)).collect();
    if !examine_all(&files, None, &mut report) {
        report.add(none("this process now"));
    }
    running::examine_process(pid, &mut report);
    report.advise(NEXT.to_owned());
    report
}

/// What was preloaded into a process that has settings of ours. Empty if that cannot be read.
fn preloaded(pid: u32) -> Vec<PathBuf> {
    let bytes = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let variables = String::from_utf8_lossy(&bytes).into_owned();
    let values = variables
        .split('\0')
        .filter_map(|variable| variable.strip_prefix("LD_PRELOAD="));
    let is_ours = variables.contains("CONTEXTPILOT_");
    let files = values
        .flat_map(|value| value.split([':', ' ']))
        .map(PathBuf::from);
    files.filter(|_| is_ours).collect()
}

fn none(what: &str) -> Finding {
    let text = format!("there is no llama.cpp in {what}");
    Finding::new("KV cache", Grade::Fails, text)
}

fn is_library(path: &Path) -> bool {
    let program = Program::open(path).ok();
    let executable = program.as_ref().and_then(Program::executable);
    executable.is_some_and(|executable| executable.linkage == Linkage::Library)
}

/// Whether the engine is in this executable, or in a library that it needs, and no server.
fn is_program(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if name.contains("server") || is_library(path) {
        return false;
    }
    let all = [MEMORY, NUMBERS, LAUNCH];
    let names: Vec<&str> = all
        .into_iter()
        .flatten()
        .map(|(_, anchor)| *anchor)
        .collect();
    let located = Program::open(path).and_then(|program| program.locate(&names, &search()));
    located.is_ok_and(|located| {
        let [engine, numbers, launch] =
            all.map(|all| all.iter().any(|(_, anchor)| has(&located, anchor)));
        engine && !numbers && !launch
    })
}

/// Reports on the files that have an engine. Returns whether there is any. `shown_in`: a folder that is left out of
/// names.
fn examine_all(files: &[PathBuf], shown_in: Option<&Path>, report: &mut Report) -> bool {
    let mut seen: BTreeSet<PathBuf> = BTreeSet::new();
    for file in files {
        for engine in engines_of(file) {
            if seen.insert(engine.clone()) {
                let shown = shown_in.and_then(|folder| engine.strip_prefix(folder).ok());
                examine(&engine, shown.unwrap_or(&engine), report);
            }
        }
    }
    !seen.is_empty()
}

/// The files with an engine: this one, or libraries that it needs.
fn engines_of(file: &Path) -> Vec<PathBuf> {
    let is_large =
        fs::metadata(file).is_ok_and(|file| file.len() >= crate::obstacle::SMALLEST_ENGINE);
    let anchors: Vec<&str> = MEMORY.iter().map(|(_, anchor)| *anchor).collect();
    let located = Program::open(file).and_then(|program| program.locate(&anchors, &search()));
    let Ok(located) = located else {
        return Vec::new();
    };
    let mut places = located.functions.into_iter().map(|(_, place)| place);
    let engine = places.find_map(|place| match place {
        FunctionPlace::Inside(_) => Some(file.to_owned()),
        FunctionPlace::Dynamic { exporter, .. } => exporter,
        FunctionPlace::Missing { .. } => None,
    });
    let hidden = || (is_large && holds_engine(file).unwrap_or(false)).then(|| file.to_owned());
    engine.or_else(hidden).into_iter().collect()
}

fn search() -> Search {
    Search {
        library_path: std::env::var_os("LD_LIBRARY_PATH"),
        ..Search::default()
    }
}

/// Reports on a file that has an engine.
fn examine(file: &Path, shown: &Path, report: &mut Report) {
    report.add(Finding::new(
        "llama.cpp",
        Grade::Good,
        shown.display().to_string(),
    ));
    let rows = ROWS.iter().map(|row| row.name);
    let names: Vec<&str> = rows.chain(store::functions()).collect();
    let located = Program::open(file).and_then(|program| {
        let located = program.locate(&names, &search())?;
        Ok((program, located))
    });
    let (program, located) = match located {
        Ok(found) => found,
        Err(e) => {
            let text = format!("cannot be examined ({e})");
            report.add(Finding::new("functions", Grade::Limited, text));
            return;
        }
    };
    let build = located.build.as_ref().map(ToString::to_string);
    let version = build.unwrap_or_else(|| "not told by the file".into());
    report.add(Finding::new("version", Grade::Good, version));
    let is_there = |(name, place): &(String, FunctionPlace)| {
        name.starts_with("llama_") && !matches!(place, FunctionPlace::Missing { .. })
    };
    if !located.functions.iter().any(is_there) {
        let text = "not followed: its functions cannot be found (hidden, stripped, or inlined by link-time optimisation); \
                    use a build with shared libraries, or one that keeps its symbols";
        report.add(Finding::new("KV cache", Grade::Fails, text));
        return;
    }
    let follows = functions::examine_engine(&program, &located, report);
    let folder = of_process.non_empty(env::STORE).map(PathBuf::from);
    // Link-time optimisation may have left them unused.
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let unless = if name.starts_with("libllama") {
        ""
    } else {
        ", unless copies of its functions are called instead, which `stats` says then"
    };
    report.add(store::examine(&located, follows, folder.as_deref(), unless));
}
