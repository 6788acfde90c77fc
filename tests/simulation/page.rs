//! Writes docs/simulate.md. It has five parts, and each is written by itself.

use contextpilot_testbed::Need;

/// What the second part begins with.
const CHATS: &str = "## Chats of a real model\n";
/// And the third.
const SESSIONS: &str = "## Sessions of agents\n";
const RECORDED: &str = "## Sessions of agents that others recorded\n";
/// And the last.
const BOUNDED: &str = "## Prefix stores below models that cannot go back\n";

/// Writes the first part: made-up traffic at other settings than the recorded one.
pub(super) fn write_grid(rows: &str, missed: usize, requests: usize) {
    let points = rows.lines().count();
    let text = format!(
        "# How right the simulator is\n\n\
         Written by `scripts/simulate`.\n\n\
         ## Other settings\n\n\
         {requests} requests of made-up traffic (agents with tools,\n\
         subagents, retrieval, chats) were recorded once for each model, by a server with 3 slots and\n\
         `-c 8192`, its other flags at their defaults, and simulated at the settings below. The same requests were\n\
         then sent to llama-server itself, started with these flags. *Engine* is what it says it has\n\
         reused, of all prompt tokens; *exact* counts prompts of which the simulator said the same, to\n\
         the token. The models are tiny; so is the host cache that is filled.\n\n\
         Missed by more than two points: {missed} of {points}.\n\n\
         | model | `--parallel` | `--cache-ram` | `--slot-prompt-similarity` | `--cache-reuse` | engine | simulated | off | exact |\n\
         |---|---|---|---|---|---|---|---|---|\n{rows}\n"
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
         Written by `scripts/simulate chats`. A client talks with SmolLM2-135M-Instruct and sends it its own answers\n\
         again: six turns; two more, each without the oldest turn; one after a change in an earlier message; a\n\
         branch from the second turn, and back; and the last answer once more. All of it is recorded and simulated with\n\
         the same flags. *Evaluated* are tokens of prompts, as the engine counts them and as simulated. The last\n\
         column is what `advise` says of the recording, and the share of tokens that would be reused then.\n\n\
         Missed by more than 0.2 points, or without advice that would have helped: {missed} of {chats}.\n\n\
         | answers | `--parallel` | `--cache-ram` | `--cache-reuse` | evaluated | simulated | engine | simulated | off | exact | `advise` |\n\
         |---|---|---|---|---|---|---|---|---|---|---|\n{rows}\n{rest}"
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
             Written by `scripts/simulate sessions FILE`. Sessions of Claude Code that were recorded at WEKA\n\
             (callanjfox/kv-cache-tester, Apache-2.0), a block of 64 tokens played as 4: {of}.\n\
             The columns are those above, at the recorded settings.\n\n\
             Missed by more than two points: {missed} of {points}.\n\n{TABLE}{rows}{gap}{rest}"
        ));
    }
    let first = before(&page, SESSIONS);
    let rest = page.find(RECORDED).map_or("", |at| &page[at..]);
    let gap = if rest.is_empty() { "" } else { "\n" };
    write(&format!(
        "{first}\n\n{SESSIONS}\n\
         Written by `scripts/simulate sessions`. Made-up sessions of agents:\n\
         {of}; so many sessions at a time that some requests wait. Each is recorded at one\n\
         setting, and simulated at that and at the others. *Engine* is the share of prompt tokens that llama-server with\n\
         these flags did not evaluate: reused, or loaded from a prefix store of that budget. The model is tiny: 3 MiB and\n\
         4 MB are to it what some gigabytes are to a large one. Who asks first after answers that end together may decide the\n\
         course of all that follows: the last column has what is simulated in other orders.\n\n\
         Missed by more than two points, in all orders: {missed} of {points}.\n\n{TABLE}{rows}{gap}{rest}"
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
         Written by `scripts/simulate bounded`. Of models with sliding windows (Gemma 2), with a recurrent state (Mamba) and with both\n\
         kinds of layers (Jamba), each course was recorded once by a server without a store: {requests} requests of made-up traffic on two\n\
         slots (as in the first table; in the second course with `--cache-ram 1`), and {long} prompts of 3,000 to 7,000 tokens about\n\
         three texts, in one slot with `-b 512 -ub 128`. From these, stores were simulated, and the same requests were sent to\n\
         llama-server with a store of that budget. *Evaluated* are tokens of prompts that were neither reused nor loaded; *exact*\n\
         counts prompts of which the simulator said the same, to the token.\n\n\
         Missed by more than two points: {missed} of {points}.\n\n\
         | model | course | store | evaluated | simulated | engine | simulated | off | exact |\n\
         |---|---|---|---|---|---|---|---|---|\n{rows}"
    ));
}

const TABLE: &str = "| sessions at a time | `--parallel` | `--cache-ram` | store | engine | simulated | in other orders |\n\
     |---|---|---|---|---|---|---|\n";

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
