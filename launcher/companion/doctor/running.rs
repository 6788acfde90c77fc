//! Which functions the hook of a running server has seen called.

use std::path::Path;

use contextpilot_client::control::{HookedFunction, Stats, nearest};
use contextpilot_client::{Control, Error};
use contextpilot_settings::{Listen, ListenAddress, Settings};
use serde_json::json;

use crate::companion::connect::{OUR_VERSION, hook_says};
use crate::companion::servers::running;
use crate::companion::show::{Visible, counted};
use crate::companion::template;

use super::report::{Finding, Grade, Report};

const SUBJECT: &str = "running";

/// Asks the server at the address in the settings, or the one that runs, if one answers. It is no
/// defect if none does: the server may not be started yet. `program`: a llama-server that can be started. Returns the process ids of those that answer.
pub(super) fn examine(
    settings: &Settings,
    program: Option<&Path>,
    report: &mut Report,
) -> Vec<u32> {
    match &settings.listen {
        None => examine_found(program, false, report),
        Some(Listen::Auto) => examine_found(program, true, report),
        Some(Listen::At(address)) => examine_at(settings, address, program, report),
    }
}

/// `wanted`: a setting asks for such servers.
fn examine_found(program: Option<&Path>, wanted: bool, report: &mut Report) -> Vec<u32> {
    let running: Vec<_> = running()
        .into_iter()
        .filter_map(|server| server.stats.ok())
        .collect();
    match &*running {
        [stats] => add(stats, program, report),
        [] if !wanted => {}
        [] => {
            let text = "no server of this user runs with CONTEXTPILOT_LISTEN=auto now";
            report.add(Finding::new(SUBJECT, Grade::Good, text));
        }
        several => {
            for stats in several {
                let model = stats.model.as_ref().map_or("?", |model| &*model.name);
                let text = format!(
                    "process {}, {}, {}: contextpilot-llama top --pid {}",
                    stats.process,
                    Visible(model),
                    stats.listening.join(", "),
                    stats.process
                );
                report.add(Finding::new(SUBJECT, Grade::Good, text));
            }
        }
    }
    running.iter().map(|stats| stats.process).collect()
}

/// What the hook in this process says, if it listens where it is found.
pub(super) fn examine_process(process: u32, report: &mut Report) {
    let found = running().into_iter().filter_map(|server| server.stats.ok());
    for stats in found.filter(|stats| stats.process == process) {
        add(&stats, None, report);
    }
}

fn examine_at(
    settings: &Settings,
    address: &ListenAddress,
    program: Option<&Path>,
    report: &mut Report,
) -> Vec<u32> {
    let control = match client(settings, address) {
        Ok(control) => control,
        Err(why) => {
            report.add(Finding::new(SUBJECT, Grade::Limited, why.to_string()));
            return Vec::new();
        }
    };
    match control.stats() {
        Ok(stats) => {
            add(&stats, program, report);
            vec![stats.process]
        }
        Err(Error::Unreachable { .. }) => {
            let text = format!("no server answers at {address} now");
            report.add(Finding::new(SUBJECT, Grade::Good, text));
            Vec::new()
        }
        Err(why) => {
            let text = hook_says(&control, &why);
            report.add(Finding::new(SUBJECT, Grade::Limited, text));
            Vec::new()
        }
    }
}

fn client(settings: &Settings, address: &ListenAddress) -> contextpilot_client::Result<Control> {
    let control = Control::new(&address.to_string())?;
    match &settings.listen_token {
        Some(token) => control.with_token(token.expose()),
        None => Ok(control),
    }
}

fn add(stats: &Stats, program: Option<&Path>, report: &mut Report) {
    let functions = &stats.engine.functions;
    let patched = || functions.iter().filter(|function| function.patched > 0);
    let places: u32 = patched().map(|function| function.patched).sum();
    let called = patched().filter(|function| function.called).count();
    let text = format!(
        "process {}: {} patched in {}, {called} of them called so far",
        stats.process,
        counted(patched().count() as u64, "function"),
        counted(places.into(), "place")
    );
    // Of an engine that is not followed nothing may be patched.
    if stats.engine.not_followed.is_none() || places > 0 {
        report.add(Finding::new(SUBJECT, Grade::Good, text));
    }
    if let Some(why) = &stats.engine.not_followed {
        let text = format!("process {} is not followed: {why}", stats.process);
        report.add(Finding::new(SUBJECT, Grade::Limited, text));
    } else if stats.engine.seen.is_some_and(|seen| !seen.evaluated) {
        let text =
            "attached, nothing evaluated yet: whether it is followed, its first prompt tells";
        report.add(Finding::new(SUBJECT, Grade::Good, text));
    }
    if stats.hook_version != OUR_VERSION {
        let text = format!(
            "its hook is version {}, this command {OUR_VERSION}: what only one of them knows is \
             not shown; start the server again to have the same",
            stats.hook_version
        );
        report.add(Finding::new(SUBJECT, Grade::Good, text));
    }
    let about = program.zip(nearest(&stats.listening));
    if let Some(text) = about.and_then(|(program, url)| template::in_a_line(program, &url)) {
        report.add(Finding::new("chat template", Grade::Good, text));
    }
    if stats.engine.not_followed.is_none() && !stats.engine.missing.is_empty() {
        let text = format!("without {}", stats.engine.missing.join("; "));
        report.add(Finding::new(SUBJECT, Grade::Limited, text));
    }
    let list = |wanted: fn(&HookedFunction) -> bool| {
        let functions = functions.iter().filter(|function| wanted(function));
        functions.map(|function| function.name.clone()).collect()
    };
    report.list("Called", list(|function| function.called));
    report.list(
        "Patched, not called yet",
        list(|function| function.patched > 0 && !function.called),
    );
    report.list(
        "Found, not patched",
        list(|function| function.found > function.patched),
    );
    report.detail("running", json!(stats.engine));
}
