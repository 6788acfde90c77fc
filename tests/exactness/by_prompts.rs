//! The same traces on a server whose own functions cannot be hooked.
//!
//! There the hook ties requests to slots by their prompts. The reports must be as exact.

use crate::cases::Case;
use crate::{LAUNCHER, PATIENCE};
use contextpilot_testbed::{Index, Outcome, Result, SILENCE, Score, Server};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Instant;

/// A case that was run on such a server.
pub(crate) struct Run {
    /// Dropped before the index, because it reports to the index when it ends.
    server: Server,
    index: Index,
    answers: Vec<Outcome>,
    /// When the last step of the trace had been run.
    ended: Instant,
}

/// Runs a case.
pub(crate) fn run(case: &Case, server: &Path) -> Result<Run> {
    let index = Index::start()?;
    let hooked = case.server.clone().program(server);
    let server = hooked.launcher(LAUNCHER).index_url(index.url()).spawn()?;
    let answers = case.trace.run(&server)?;
    Ok(Run {
        index,
        server,
        answers,
        ended: Instant::now(),
    })
}

/// The score of a run, and what is wrong with it.
pub(crate) fn judge(
    case: &Case,
    run: &Run,
    gone: &BTreeSet<String>,
    expected: &[Outcome],
) -> (Score, Option<String>) {
    let Run {
        index,
        server,
        answers,
        ended,
    } = run;
    index.wait_until(|evicted| evicted.is_superset(gone), PATIENCE);
    // A false report may come late. There is no control endpoint to ask: here it is as for most users.
    std::thread::sleep(SILENCE.saturating_sub(ended.elapsed()));
    let ids: BTreeSet<String> = case.trace.ids().into_iter().collect();
    let score = Score::of(&ids, gone, &index.evicted());
    let mut pairs = answers.iter().zip(expected).enumerate();
    let problem = if !server.stderr().contains("requests tied by their prompts") {
        Some("the banner does not say how requests are tied".into())
    } else if !score.is_perfect() {
        Some(score.to_string())
    } else {
        pairs
            .find(|(number, (ours, theirs))| {
                ours.timeless() != theirs.timeless() && !case.is_abandoned(*number)
            })
            .map(|(number, (ours, _))| format!("step {number} was answered {}", ours.timeless()))
    };
    (score, problem)
}

/// The section of docs/exactness.md.
pub(crate) fn page(total: &Score) -> String {
    let mut text = String::from(
        "\n## Requests tied by their prompts\n\n\
         The same traces against the same server with its own functions hidden. In executables that were\n\
         stripped, and on macOS, these functions cannot be hooked. Two cases depend on timing, so no trace\n\
         has them: see [equal prompts](../crates/cache/residency/README.md#tied-by-prompts).\n\n",
    );
    text += Score::HEAD;
    text += "\n";
    text += &total.row("**all**");
    text += "\n";
    text
}
