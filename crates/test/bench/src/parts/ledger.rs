//! The residency model by itself: what its own benchmark (`cargo bench -p contextpilot-residency`)
//! has written down.

use std::path::Path;

use contextpilot_testbed::Result;

use crate::lab::failed;
use crate::page::{Aim, Page};
use crate::plot::Plot;

/// Targets.
const TOKENS: f64 = 20.0;
const EVENT: f64 = 5.0;
const BYTES: f64 = 12.0;

/// A size, and what a token costs there.
struct Growth {
    tokens: f64,
    time: f64,
    bytes: f64,
    generated: f64,
}

pub(super) fn run(figures: Option<&Path>, page: &mut Page) -> Result<()> {
    page.section("The ledger");
    let Some(figures) = figures else {
        page.say("Skipped: its own benchmark was not run.");
        return Ok(());
    };
    let text = std::fs::read_to_string(figures)?;
    let mut table = String::from("| | |\n|---|--:|\n");
    let mut growth = Vec::new();
    for line in text.lines() {
        match line.split('\t').collect::<Vec<_>>()[..] {
            ["growth", tokens, time, bytes, generated] => growth.push(Growth {
                tokens: number(tokens)?,
                time: number(time)?,
                bytes: number(bytes)?,
                generated: number(generated)?,
            }),
            [name, value] => table.push_str(&format!("| {name} | {value} |\n")),
            _ => return Err(failed(format!("{line:?} is no figure"))),
        }
    }
    let value = |name: &str| {
        let found = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix('\t'));
        number(found.ok_or_else(|| failed(format!("no figure {name:?}")))?)
    };
    let rate = value("prompts, million tokens a second")?;
    page.aim(
        "Ledger, appended tokens",
        "20 million a second",
        &format!("{rate:.1} million"),
        Aim::met_if(rate >= TOKENS),
    );
    let event = value("an event, p99, µs")?;
    page.aim(
        "Ledger, an event, p99",
        "within 5 µs",
        &format!("{event:.2} µs"),
        Aim::met_if(event <= EVENT),
    );
    let bytes = value("bytes a distinct token")?;
    page.aim(
        "Ledger, memory of a token",
        "12 bytes",
        &format!("{bytes:.2} bytes"),
        Aim::met_if(bytes <= BYTES),
    );
    page.say(
        "The model of what is cached, without a server: 256 sequences of 131,072 tokens, 100,000 live\n\
         ids, on one core (`cargo bench -p contextpilot-residency`).",
    );
    page.say(table);
    let line = |name: &str, of: fn(&Growth) -> f64| {
        (
            name.to_owned(),
            growth.iter().map(|size| (size.tokens, of(size))).collect(),
        )
    };
    page.say("What a token costs, from a thousand of them to a hundred million:");
    page.figure(
        "ledger",
        &Plot {
            title: "The ledger, as it grows",
            x: "tokens in the ledger",
            y: "ns, bytes",
            logarithmic: true,
            from_zero: true,
            lines: vec![
                line("ns a token of a prompt", |size| size.time),
                line("bytes a token", |size| size.bytes),
            ],
        },
    )?;
    let mut table = String::from(
        "| tokens | ns a token of a prompt | ns a token generated alone | bytes a token |\n\
         |--:|--:|--:|--:|\n",
    );
    for size in &growth {
        table.push_str(&format!(
            "| {:.0} | {:.1} | {:.0} | {:.2} |\n",
            size.tokens, size.time, size.generated, size.bytes
        ));
    }
    page.say(table);
    Ok(())
}

fn number(text: &str) -> Result<f64> {
    text.parse()
        .map_err(|_| failed(format!("{text:?} is no number")))
}
