//! `doctor`: what the hook can do with a server, without starting it.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use contextpilot_settings::{Settings, env, idle};

use super::show::cannot_print;
use crate::hook_lib;
use crate::misspelt;
use crate::obstacle::Library;
use crate::server;
use crate::variables::{Lookup, of_process};

mod embedded;
mod folders;
mod functions;
mod index;
mod next;
pub(super) mod others;
mod program;
mod report;
mod room;
mod running;
mod store;

use report::{Finding, Form, Grade};

/// Check a server, the index and the folders, without starting your model
///
/// Prints the version of llama.cpp, how it is linked, how many functions will be
/// hooked and how, and what does not work. Without any setting: what to set. With
/// CONTEXTPILOT_LISTEN, or if a server runs: how many functions it has called, and whether an
/// agent's prompts go on with its chat template: that is rendered by a server with a tiny model.
/// Servers of other users are named, with the line that looks into them.
///
/// Exit code: 0 all good, 1 works with limits, 2 will not work.
#[derive(Args)]
#[command(after_help = "Example:
  $ CONTEXTPILOT_INDEX_URL=http://127.0.0.1:8765 contextpilot-llama doctor
  ok     server        /usr/bin/llama-server
  ok     version       0.7.0 (b11669-Debian)
  ok     linked        for x86-64, glibc, llama.cpp in libraries
  ok     functions     39 will be hooked: 39 imported, 0 inline; 10 more are not called, 22 are other versions'
  ok     KV cache      followed
  ok     host cache    followed
  ok     request ids   read from HTTP, tied to slots
  ok     prompts       as text, chat or token arrays: exact; infill: exact; images: exact
  ok     TLS           ids are read within it: OpenSSL is a library
  ok     prefix store  possible: set CONTEXTPILOT_STORE to a folder of your own
  ok     hook          /home/me/.cache/contextpilot-llama/libcontextpilot_llama_hook-….so
  ok     state folder  /home/me/.local/state/contextpilot-llama
  ok     index         http://127.0.0.1:8765 answers: ready
  All good

  Next: contextpilot-llama-server -m model.gguf")]
pub(super) struct DoctorOptions {
    /// llama-server to look at; or a library, a Python or Node module, or a wheel with llama.cpp inside [default: the one that contextpilot-llama-server would run]
    server: Option<PathBuf>,
    /// Look at the llama.cpp in a running process instead
    #[arg(long, value_name = "PROCESS", conflicts_with = "server")]
    pid: Option<u32>,
    /// Print the names of the functions, too: what each missing one costs, and which of them
    /// a running server has called
    #[arg(long, short)]
    verbose: bool,
    /// Print JSON: one object with verdict, exit_code, server, version, linked,
    /// findings (subject, grade, text), functions (name, how, consequence, …) and next
    #[arg(long)]
    json: bool,
}

/// Prints the report.
///
/// # Errors
/// It cannot be printed.
pub(super) fn run(options: &DoctorOptions) -> Result<ExitCode, String> {
    let file = options.server.as_deref();
    let of_program = match options.pid {
        Some(pid) => Some(embedded::of_process_with(pid)),
        None => file.and_then(embedded::of_file),
    };
    if let Some(report) = of_program {
        return print(report, options);
    }
    let mut report = report::Report::default();
    let server = find(options);
    let found = server.is_ok();
    let program = server.as_ref().ok().cloned();
    match server {
        Ok(path) => {
            let given = of_process.non_empty(env::HOOK_LIB).map(PathBuf::from);
            program::examine(path, &Library::new(given.as_deref()), &mut report);
        }
        Err(why) => report.add(Finding::new("server", Grade::Fails, why)),
    }
    if let Some(finding) = folders::launcher(of_process) {
        report.add(finding);
    }
    report.add(match hook_lib::look(of_process) {
        Ok(library) => Finding::new("hook", Grade::Good, library.to_string()),
        Err(why) => Finding::new("hook", Grade::Fails, why.to_string()),
    });
    let misspelt = misspelt::find(std::env::vars_os());
    // Without any that asks for the hook, that is said once.
    let idle = idle(of_process)
        .into_iter()
        .filter(|setting| !setting.lacks_hook());
    let misspelt = misspelt.iter().map(ToString::to_string);
    for text in misspelt.chain(idle.map(|setting| setting.to_string())) {
        report.add(Finding::new("settings", Grade::Limited, text));
    }
    let settings = Settings::from(of_process);
    let mut index = Grade::Good;
    let mut running = Vec::new();
    match &settings {
        Ok(settings) => {
            if !settings.is_engaged() {
                report.add(Finding::new("settings", Grade::Good, NOTHING_SET));
            }
            let reports = settings.index.is_some();
            report.add(folders::state(of_process, settings.journal, reports));
            if let Some(finding) = folders::watcher(settings) {
                report.add(finding);
            }
            folders::files(settings)
                .into_iter()
                .for_each(|file| report.add(file));
            let finding = index::check(settings);
            index = finding.grade;
            report.add(finding);
            if let Some(finding) = store::remote() {
                report.add(finding);
            }
            running = running::examine(settings, program.as_deref(), &mut report);
            others::servers()
                .into_iter()
                .for_each(|server| report.add(server));
        }
        Err(why) => report.add(Finding::new("settings", Grade::Fails, why.to_string())),
    }
    let situation = next::Situation {
        given: options.server.as_deref(),
        server: found,
        grade: report.grade(),
        settings: settings.as_ref().ok(),
        index,
        running,
    };
    report.advise(next::next(&situation));
    for finding in inserted() {
        report.add(finding);
    }
    print(report, options)
}

/// The services that have the hook by a drop-in file of ours.
fn inserted() -> impl Iterator<Item = Finding> {
    super::insert::inserted().into_iter().map(|(file, library)| {
        let shown = file.display();
        match library.filter(|library| library.is_file()) {
            Some(_) => Finding::new("inserted", Grade::Good, format!("by {shown}")),
            None => {
                let text = format!("{shown} names a library that is not there: run contextpilot-llama insert again");
                Finding::new("inserted", Grade::Limited, text)
            }
        }
    })
}

fn print(report: report::Report, options: &DoctorOptions) -> Result<ExitCode, String> {
    report
        .print(if options.json {
            Form::Json
        } else {
            Form::Text {
                lists: options.verbose,
            }
        })
        .map_err(|e| cannot_print(&e))?;
    Ok(ExitCode::from(report.grade() as u8))
}

/// For who has just installed this.
const NOTHING_SET: &str = "none asks for the hook, so the server would run without it; to see what is \
                           in its cache, set CONTEXTPILOT_LISTEN=auto";

fn find(options: &DoctorOptions) -> Result<PathBuf, String> {
    match &options.server {
        Some(path) if path.is_file() => Ok(path.clone()),
        Some(path) => Err(format!(
            "{path:?} is no file: give the path of a llama-server"
        )),
        None => server::find(of_process)
            .map(|server| server.path)
            .map_err(|e| e.to_string()),
    }
}
