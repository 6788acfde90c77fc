//! Writes docs/simulate.md. It has two parts, and each is written by itself.

/// What the second part begins with.
const CHATS: &str = "## Chats of a real model\n";

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
    let first = page();
    let first = first.find(CHATS).map_or(&*first, |at| &first[..at]);
    let first = first.trim_end();
    write(&format!(
        "{first}\n\n{CHATS}\n\
         Written by `scripts/simulate chats`. A client talks with SmolLM2-135M-Instruct and sends it its own answers\n\
         again: six turns; two more, each without the oldest turn; one after a change in an earlier message; a\n\
         branch from the second turn, and back; and the last answer once more. All of it is recorded and simulated with\n\
         the same flags. *Evaluated* are tokens of prompts, as the engine counts them and as simulated. The last\n\
         column is what `advise` says of the recording, and the share of tokens that would be reused then.\n\n\
         Missed by more than 0.2 points, or without advice that would have helped: {missed} of {chats}.\n\n\
         | answers | `--parallel` | `--cache-ram` | `--cache-reuse` | evaluated | simulated | engine | simulated | off | exact | `advise` |\n\
         |---|---|---|---|---|---|---|---|---|---|---|\n{rows}"
    ));
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
