//! Writes docs/simulate.md. It has five parts, and each is written by itself.

use contextpilot_testbed::Need;

/// What the second part begins with.
const CHATS: &str = "## Chats of a real model\n";
/// And the third.
const SESSIONS: &str = "## Sessions of agents\n";
const RECORDED: &str = "## Sessions of agents that others recorded\n";
/// And the last.
const BOUNDED: &str = "## Prefix stores below models that cannot go back\n";

/// Adds a row for the page, and prints it with what the page does not have: whether it is missed, and `more`.
pub(super) fn add_row(rows: &mut String, row: &str, is_missed: bool, more: &str) {
    let missed = if is_missed { "MISSED " } else { "" };
    println!("{missed}{row}{more}");
    rows.push_str(row);
    rows.push('\n');
}

/// Writes the first part: made-up traffic at other settings than the recorded one.
pub(super) fn write_grid(rows: &str, missed: usize, requests: usize) {
    let points = rows.lines().count();
    let text = format!(
        "# How right the simulator is\n\n\
         What `contextpilot-llama simulate` says of a recording, beside what llama-server does with the same requests.\n\
         *Engine* and *simulated* are percent of the prompt tokens that were reused, or loaded from a prefix store. *Exact*\n\
         are the prompts of which both say the same, to the token. The models are tiny, but for that of the chats, and so are\n\
         the caches and stores that are filled. [The limits](tools.md#where-the-simulator-is-wrong).\n\n\
         ## Other settings\n\n\
         Missed by more than two points: {missed} of {points} (`scripts/simulate grid`).\n\n\
         Made-up traffic (agents with tools, subagents, retrieval, chats) was recorded once for each model, by a server with\n\
         3 slots and `-c 8192`, its other flags at their defaults.\n\n\
         | model | `--parallel` | `--cache-ram` | `--slot-prompt-similarity` | `--cache-reuse` | engine | simulated | exact of {requests} |\n\
         |---|--:|--:|--:|--:|--:|--:|--:|\n{rows}\n"
    );
    let rest = page();
    let rest = rest.find(CHATS).map_or("", |at| &rest[at..]);
    write(&format!("{text}{rest}"));
}

/// Writes the second part: chats with a real model at the recorded setting.
pub(super) fn write_chats(rows: &str, missed: usize) {
    let chats = rows.lines().count();
    let page = page();
    let first = before(&page, CHATS);
    let rest = page.find(SESSIONS).map_or("", |at| &page[at..]);
    write(&format!(
        "{first}\n\n{CHATS}\n\
         Missed by more than 0.2 points, or without advice that would have helped: {missed} of {chats} (`scripts/simulate chats`).\n\n\
         A client talks with SmolLM2-135M-Instruct and sends it its own answers again: six turns; two more, each without the\n\
         oldest turn; one after a change in an earlier message; a branch from the second turn, and back; and the last answer\n\
         once more. Recorded and simulated with the same flags. *Evaluated* are tokens of prompts, by the engine and as\n\
         simulated; `advise` is what it says of the recording, and the share that would be reused then.\n\n\
         | answers | `--parallel` | `--cache-ram` | `--cache-reuse` | evaluated | simulated | engine | exact | `advise` |\n\
         |---|--:|--:|--:|--:|--:|--:|--:|---|\n{rows}\n{rest}"
    ));
}

/// Writes the third part: sessions of agents, at the recorded setting and at others. Those of a file, at the recorded setting
/// alone, are the fourth.
pub(super) fn write_sessions(rows: &str, missed: usize, need: &Need, are_recorded: bool) {
    let points = rows.lines().count();
    let page = page();
    let of = format!("{} requests, {} prompt tokens", need.requests, need.prompts);
    if are_recorded {
        let first = before(&page, RECORDED);
        let rest = page.find(BOUNDED).map_or("", |at| &page[at..]);
        let gap = if rest.is_empty() { "" } else { "\n" };
        return write(&format!(
            "{first}\n\n{RECORDED}\n\
             Missed by more than two points: {missed} of {points} (`scripts/simulate sessions FILE`).\n\n\
             Sessions of Claude Code that were recorded at WEKA (callanjfox/kv-cache-tester, Apache-2.0), a block of 64 tokens\n\
             played as 4: {of}. At the recorded settings.\n\n{TABLE}{rows}{gap}{rest}"
        ));
    }
    let first = before(&page, SESSIONS);
    let rest = page.find(RECORDED).map_or("", |at| &page[at..]);
    let gap = if rest.is_empty() { "" } else { "\n" };
    write(&format!(
        "{first}\n\n{SESSIONS}\n\
         Missed by more than two points, in all orders: {missed} of {points} (`scripts/simulate sessions`).\n\n\
         Made-up sessions of agents: {of}; so many sessions at a time that some\n\
         requests wait. Each is recorded at one setting, and simulated at that and at the others. To this model 3 MiB and 4 MB\n\
         are what some gigabytes are to a large one. Who asks first after answers that end together may decide the course of\n\
         all that follows: the last column has the range in other orders.\n\n{TABLE}{rows}{gap}{rest}"
    ));
}

/// Writes the last part: the prefix store below models whose cache cannot go back to any position.
pub(super) fn write_bounded(rows: &str, missed: usize, requests: usize) {
    let points = rows.lines().count();
    let page = page();
    let first = before(&page, BOUNDED);
    let long = requests / 4;
    write(&format!(
        "{first}\n\n{BOUNDED}\n\
         Missed by more than two points: {missed} of {points} (`scripts/simulate bounded`).\n\n\
         Models with sliding windows (Gemma 2), with a recurrent state (Mamba) and with both kinds of layers (Jamba). Each course\n\
         was recorded once by a server without a store: {requests} requests of made-up traffic on two slots (as in the first table; in the\n\
         second course with `--cache-ram 1`), and {long} prompts of 3,000 to 7,000 tokens about three texts, in one slot with\n\
         `-b 512 -ub 128`. From these, stores were simulated. *Evaluated* are tokens of prompts that were neither reused nor\n\
         loaded, in truth and as simulated.\n\n\
         | model | course | store | evaluated | simulated | engine | exact |\n\
         |---|---|--:|--:|--:|--:|--:|\n{rows}"
    ));
}

const TABLE: &str = "| sessions at a time | `--parallel` | `--cache-ram` | store | engine | simulated | in other orders |\n\
     |---|--:|--:|--:|--:|--:|--:|\n";

/// What stands before a part.
fn before<'a>(page: &'a str, part: &str) -> &'a str {
    page.find(part).map_or(page, |at| &page[..at]).trim_end()
}

fn page() -> String {
    std::fs::read_to_string(PATH).unwrap_or_default()
}

fn write(text: &str) {
    if let Err(error) = std::fs::write(PATH, text) {
        println!("cannot write {PATH}: {error}");
    }
}

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/simulate.md");
