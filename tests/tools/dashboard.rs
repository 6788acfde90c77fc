//! Each metric in the Grafana dashboard is exported by the hook.

use std::collections::BTreeSet;

use contextpilot_client::{Control, Metrics};
use contextpilot_testbed::{Index, Request};

use crate::support::{Watched, two_slots, until};

const DASHBOARD: &str = include_str!("../../docs/grafana/kv-cache.json");
const PREFIX: &str = "contextpilot_llama_";

/// Every metric name with our prefix in the dashboard.
fn names() -> BTreeSet<String> {
    let starts = DASHBOARD
        .match_indices(PREFIX)
        .map(|(at, _)| &DASHBOARD[at..]);
    starts
        .map(|text| {
            let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
            text[..end.unwrap_or(text.len())].to_owned()
        })
        .collect()
}

#[test]
fn every_metric_of_the_dashboard_is_exported() {
    let index = Index::start().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let watched = {
        // Only a server with a prefix store exports its size, and only one that publishes counts what it does.
        let builder = two_slots()
            .env("CONTEXTPILOT_STORE", folder.path())
            .env("CONTEXTPILOT_KV_EVENTS", "tcp://127.0.0.1:0");
        Watched::start(builder.index_url(index.url()))
    };
    let control = Control::new(&watched.control).unwrap();
    for text in ["Tea is picked in spring.", "The sea is salt."] {
        watched.complete(Request::completion(text).id(text).slot(0));
    }
    // Only a server with a host prompt cache exports the limit of that cache.
    let defaults = contextpilot_testbed::Server::builder().model(
        &contextpilot_testbed::Model::tiny(contextpilot_testbed::Arch::Llama),
    );
    let defaults = Watched::start(defaults);
    defaults.complete(Request::completion("Owls turn their heads.").id("owl"));
    let other = Control::new(&defaults.control).unwrap();
    let names = names();
    assert!(names.len() >= 12, "{names:?}");
    let has = |metrics: &Metrics, name: &str| metrics.named(name).next().is_some();
    until("everything is exported", || {
        let (metrics, others) = (control.metrics().unwrap(), other.metrics().unwrap());
        let missing: Vec<&String> = names
            .iter()
            .filter(|name| !has(&metrics, name) && !has(&others, name))
            .collect();
        if !missing.is_empty() {
            eprintln!("not yet: {missing:?}");
        }
        missing.is_empty().then_some(())
    });
    let metrics = control.metrics().unwrap();
    // The labels that the dashboard uses.
    for (name, label) in [
        ("slot_tokens", "slot"),
        ("prompt_tokens_total", "source"),
        ("evaluated_tokens_total", "cause"),
        ("evictions_total", "reason"),
        ("requests_total", "id"),
        ("time_to_first_token_seconds_bucket", "reuse"),
        ("info", "model"),
        ("prefix_store_tokens_total", "change"),
        ("prefix_store_seconds_total", "change"),
        ("kv_events_blocks", "medium"),
        ("kv_events_blocks_total", "change"),
    ] {
        let name = format!("{PREFIX}{name}");
        let sample = metrics.named(&name).next();
        let sample = sample.unwrap_or_else(|| panic!("{name}"));
        assert!(sample.labels.contains_key(label), "{name}: {sample:?}");
    }
}
