//! The server's file.

use std::path::PathBuf;

use contextpilot_inspect::{Executable, Format, Libc, Linkage, Program, Script, Search};
use contextpilot_settings::env;
use serde_json::json;

use crate::obstacle::{Library, obstacle};
use crate::table::{HOST_CACHE, MEMORY, OPENSSL, ROWS, SESSIONS_SOCKET};
use crate::variables::{Lookup, of_process};

use super::functions::{self, has};
use super::report::{Finding, Grade, Report};
use super::store;

pub(super) fn examine(path: PathBuf, library: &Library, report: &mut Report) {
    let shown = path.display().to_string();
    report.detail("server", json!(shown));
    let program = match Program::open(&path) {
        Ok(program) => program,
        Err(e) => {
            let text =
                format!("{shown} cannot be examined ({e}); it will be started with the hook");
            report.add(Finding::new("server", Grade::Limited, text));
            return;
        }
    };
    match &program.format {
        Format::Script(script) => return through(&shown, script, library, report),
        Format::Other => {
            let text = format!("{shown} is neither a program nor a script that is known");
            report.add(Finding::new("server", Grade::Limited, text));
            return;
        }
        Format::MachO(_) => {
            report.add(Finding::new("server", Grade::Good, shown));
            return inserted(&program, library, report);
        }
        Format::Elf(_) | Format::Elf32(_) => {}
    }
    let rows = ROWS.iter().map(|row| row.name);
    let openssl = OPENSSL.iter().map(|row| row.name);
    let marks = [HOST_CACHE, SESSIONS_SOCKET];
    let all = rows.chain(openssl).chain(marks).chain(store::functions());
    let names: Vec<&str> = all.collect();
    let search = Search {
        library_path: std::env::var_os("LD_LIBRARY_PATH"),
        ..Search::default()
    };
    let located = match program.locate(&names, &search) {
        Ok(located) => located,
        Err(e) => {
            report.add(Finding::new("server", Grade::Good, shown));
            let text = format!("cannot be examined ({e})");
            report.add(Finding::new("functions", Grade::Limited, text));
            return;
        }
    };
    // Of a program in which nothing can be hooked it is not known.
    let obstacle = obstacle(&program, library);
    let mut anchors = MEMORY.iter().map(|(_, anchor)| *anchor);
    let is_server = obstacle.is_some() || anchors.any(|name| has(&located, name));
    report.add(if is_server {
        Finding::new("server", Grade::Good, shown)
    } else {
        let text = format!("{shown} is no llama-server: there is no llama.cpp in it that is known");
        Finding::new("server", Grade::Fails, text)
    });
    let build = located.build.as_ref().map(ToString::to_string);
    report.detail("version", json!(build));
    let version = build.unwrap_or_else(|| "not told by the file".into());
    report.add(Finding::new("version", Grade::Good, version));

    if let Some(executable) = program.executable() {
        let linked = linked(executable);
        report.detail("linked", json!(linked));
        report.add(Finding::new("linked", Grade::Good, linked));
    }
    if let Some(why) = obstacle {
        let file = program.path.file_name().unwrap_or_default();
        // Such as Python, of which the question is what it loads.
        let instead = if file.to_string_lossy().contains("llama") {
            ""
        } else {
            "; if it loads llama.cpp when it runs, name that library or module to doctor"
        };
        let text = format!("it {why}{instead}");
        report.add(Finding::new("preload", Grade::Fails, text));
        return;
    }
    let lost: Vec<&str> = located.unresolved().collect();
    if !lost.is_empty() {
        let text = format!(
            "not found: {}; install them, or set LD_LIBRARY_PATH",
            lost.join(", ")
        );
        report.add(Finding::new("libraries", Grade::Limited, text));
    }
    let follows = functions::examine(&program, &located, report);
    let folder = of_process.non_empty(env::STORE).map(PathBuf::from);
    report.add(store::examine(&located, follows, folder.as_deref(), ""));
}

/// A Mach-O file, of which only the obstacles are known.
fn inserted(program: &Program, library: &Library, report: &mut Report) {
    if let Some(why) = obstacle(program, library) {
        report.add(Finding::new("preload", Grade::Fails, format!("it {why}")));
        return;
    }
    let text = "not looked up in Mach-O files: the server's first line under the launcher says \
                what is attached";
    report.add(Finding::new("functions", Grade::Limited, text));
}

/// A script: what it contains, and the server that it seems to start.
fn through(shown: &str, script: &Script, library: &Library, report: &mut Report) {
    let text = format!("{shown} is a script for {}", script.interpreter.display());
    report.add(Finding::new("server", Grade::Good, text));
    if let Some(command) = &script.resets_environment {
        let text = format!(
            "{command:?} may keep the hook from the server: let {} and CONTEXTPILOT_* through",
            crate::variables::PRELOAD
        );
        report.add(Finding::new("script", Grade::Limited, text));
    }
    // Follow one step only, because scripts may name each other.
    let named = script.mentions.iter().find(|path| {
        let program = Program::open(path);
        program.is_ok_and(|program| !matches!(program.format, Format::Script(_)))
    });
    match named {
        Some(server) => examine(server.clone(), library, report),
        None => {
            let text = "which server it starts is not plain: give that one's path to doctor";
            report.add(Finding::new("script", Grade::Limited, text));
        }
    }
}

fn linked(executable: &Executable) -> String {
    let libc = match &executable.linkage {
        Linkage::Static => "fully static".to_owned(),
        Linkage::StaticPie => "fully static (pie)".to_owned(),
        Linkage::Library => "a library".to_owned(),
        Linkage::Dynamic { interpreter, libc } => match libc {
            Libc::Glibc => "glibc".to_owned(),
            Libc::Musl => "musl".to_owned(),
            Libc::Other => interpreter.clone(),
        },
    };
    let engine = match (executable.needs_engine(), executable.has_symbols) {
        (true, _) => "llama.cpp in libraries",
        (false, true) => "no llama.cpp among its libraries, with symbols",
        (false, false) => "no llama.cpp among its libraries, stripped",
    };
    format!("for {}, {libc}, {engine}", executable.machine)
}
