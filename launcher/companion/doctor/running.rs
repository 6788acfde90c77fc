//! What the hook in a running server has seen of its functions.

use contextpilot_client::Control;
use contextpilot_client::control::{HookedFunction, Stats};
use contextpilot_settings::{ListenAddress, Settings};
use serde_json::json;

use super::report::Report;
use super::{Finding, Grade};

const SUBJECT: &str = "running";

/// Asks the server that listens where the settings say, if one does. That none does is no defect:
/// the server may be about to be started.
pub(super) fn examine(settings: &Settings, report: &mut Report) {
    let Some(address) = &settings.listen else {
        return;
    };
    match ask(settings, address) {
        Ok(stats) => add(&stats, report),
        Err(_) => report.add(Finding::new(
            SUBJECT,
            Grade::Good,
            format!("no server answers at {address} now"),
        )),
    }
}

fn ask(settings: &Settings, address: &ListenAddress) -> contextpilot_client::Result<Stats> {
    let client = Control::new(&address.to_string())?;
    let client = match &settings.listen_token {
        Some(token) => client.with_token(token.expose())?,
        None => client,
    };
    client.stats()
}

fn add(stats: &Stats, report: &mut Report) {
    let functions = &stats.engine.functions;
    let patched = || functions.iter().filter(|one| one.patched > 0);
    let places: u32 = patched().map(|one| one.patched).sum();
    let called = patched().filter(|one| one.called).count();
    let text = format!(
        "process {}: {} functions patched in {places} places, {called} of them called so far",
        stats.process,
        patched().count()
    );
    report.add(Finding::new(SUBJECT, Grade::Good, text));
    if !stats.engine.missing.is_empty() {
        let text = format!("without {}", stats.engine.missing.join("; "));
        report.add(Finding::new(SUBJECT, Grade::Limited, text));
    }
    let list = |wanted: fn(&HookedFunction) -> bool| {
        let functions = functions.iter().filter(|one| wanted(one));
        functions.map(|one| one.name.clone()).collect()
    };
    report.list("Called", list(|one| one.called));
    report.list(
        "Patched, not called yet",
        list(|one| one.patched > 0 && !one.called),
    );
    report.list("Found, not patched", list(|one| one.found > one.patched));
    report.detail("running", json!(stats.engine));
}
