//! `/metrics`, read by a strict parser of the text format.

use crate::support::{Hooked, ask, bare};
use std::collections::{BTreeMap, BTreeSet};

/// A page in Prometheus' text format, version 0.0.4.
#[derive(Default)]
struct Page {
    /// The kind of each family.
    families: BTreeMap<String, String>,
    samples: Vec<(String, BTreeMap<String, String>, f64)>,
}

impl Page {
    /// Panics at anything that the format forbids, or that readers of the format warn about.
    fn parse(text: &str) -> Self {
        let mut page = Self::default();
        let mut helped = BTreeSet::new();
        let mut current = String::new();
        assert!(text.ends_with('\n'));
        for line in text.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (name, help) = help.split_once(' ').expect(line);
                assert!(!help.is_empty() && helped.insert(name.to_owned()), "{line}");
            } else if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').expect(line);
                assert!(helped.contains(name), "{line}");
                assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
                let before = page.families.insert(name.to_owned(), kind.to_owned());
                assert_eq!(before, None, "a family is in one piece: {line}");
                current = name.to_owned();
            } else {
                let sample = sample(line);
                let name = match page.families[&current].as_str() {
                    "histogram" => ["_bucket", "_sum", "_count"]
                        .iter()
                        .find_map(|end| sample.0.strip_suffix(end))
                        .expect(line),
                    _ => &sample.0,
                };
                assert_eq!(name, current, "{line}");
                let same = |other: &&(String, BTreeMap<String, String>, f64)| {
                    (&other.0, &other.1) == (&sample.0, &sample.1)
                };
                assert!(
                    !page.samples.iter().any(|other| same(&other)),
                    "twice: {line}"
                );
                page.samples.push(sample);
            }
        }
        page
    }

    fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let name = format!("contextpilot_llama_{name}");
        let fits = |sample: &&(String, BTreeMap<String, String>, f64)| {
            let has = |(label, value): &(&str, &str)| {
                sample.1.get(*label).is_some_and(|given| given == value)
            };
            sample.0 == name && labels.iter().all(has)
        };
        let found: Vec<_> = self.samples.iter().filter(fits).collect();
        assert_eq!(found.len(), 1, "{name} {labels:?}: {found:?}");
        found[0].2
    }
}

fn is_name(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes
        .next()
        .is_some_and(|b| b.is_ascii_lowercase() || b == b'_')
        && bytes.all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

fn sample(line: &str) -> (String, BTreeMap<String, String>, f64) {
    let (name, rest) = line.split_once('{').expect(line);
    assert!(is_name(name), "{line}");
    let mut labels = BTreeMap::new();
    let mut rest = rest;
    loop {
        let (label, after) = rest.split_once("=\"").expect(line);
        assert!(is_name(label), "{line}");
        let mut value = String::new();
        let mut characters = after.char_indices();
        let end = loop {
            match characters.next().expect(line) {
                (at, '"') => break at,
                (_, '\\') => value.push(match characters.next().expect(line).1 {
                    'n' => '\n',
                    other @ ('\\' | '"') => other,
                    other => panic!("\\{other} in {line}"),
                }),
                (_, other) => value.push(other),
            }
        };
        assert_eq!(labels.insert(label.to_owned(), value), None, "{line}");
        rest = &after[end + 1..];
        match rest.strip_prefix(',') {
            Some(more) => rest = more,
            None => break,
        }
    }
    let value = rest.strip_prefix("} ").expect(line);
    (name.to_owned(), labels, value.parse().expect(line))
}

#[test]
fn metrics_equal_the_figures_of_stats_and_are_well_formed() {
    let alias = "a \"tiny\" \\model";
    let hooked = Hooked::observing(&bare(2).args(["--alias", alias]));
    // All in one slot, so that the second prompt finds the first one in the cache.
    hooked.complete(&ask(1, 100).id("req-1").slot(0));
    hooked.complete(&ask(1, 100).id("req-2").slot(0));
    hooked.complete(&ask(1, 300).slot(0));
    hooked.complete(&ask(2, 100).id("req-3").slot(0));
    let stats = hooked.settled(4);
    let response = hooked.get("/metrics");
    assert_eq!(
        response.header("content-type"),
        Some("text/plain; version=0.0.4; charset=utf-8")
    );
    let page = Page::parse(&response.text());
    for (_, labels, _) in &page.samples {
        assert_eq!(labels["engine"], "llama.cpp");
        assert_eq!(labels["model"], alias);
        assert!(labels["engine_version"].contains('.'), "{labels:?}");
    }
    let total = &stats.reuse.total;
    let reused = page.value("prompt_tokens_total", &[("source", "reused")]);
    assert_eq!(reused, total.reused as f64);
    let evaluated = page.value("prompt_tokens_total", &[("source", "evaluated")]);
    assert_eq!(evaluated, total.evaluated as f64);
    let tokens = page.value("slot_tokens", &[("slot", "0")]);
    assert_eq!(tokens, f64::from(stats.slots[0].tokens));
    assert_eq!(page.value("requests_total", &[("id", "with")]), 3.0);
    assert_eq!(page.value("requests_total", &[("id", "without")]), 1.0);
    let evicted = page.value("evictions_total", &[("reason", "overwritten")]);
    assert_eq!(evicted, 2.0);

    // The four prompts reused nothing, all, a third, and nothing.
    for (class, count) in [("none", 2.0), ("partial", 1.0), ("full", 1.0)] {
        let of = |name: &str, le: Option<&'static str>| {
            let name = format!("time_to_first_token_seconds_{name}");
            let labels = [("reuse", class)]
                .into_iter()
                .chain(le.map(|le| ("le", le)));
            page.value(&name, &labels.collect::<Vec<_>>())
        };
        assert_eq!(of("count", None), count, "{class}");
        assert_eq!(of("bucket", Some("+Inf")), count, "{class}");
        assert!(of("sum", None) > 0.0, "{class}");
        assert!(of("bucket", Some("0.001")) <= of("bucket", Some("60")));
    }
}
