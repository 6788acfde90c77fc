//! What the prefix store brings, and what it costs where it can bring nothing.

mod latency;
mod nothing;
mod restarts;
mod resumed;
mod stored;
mod traffic;

use contextpilot_testbed::{Result, Sessions};
use std::path::PathBuf;

use crate::lab::Lab;
use crate::page::Page;

pub(crate) use traffic::Rows;

/// Agents' sessions, with and without it.
pub(super) fn sessions(sessions: &Sessions, rows: &Rows, lab: &Lab, page: &mut Page) -> Result<()> {
    page.section("The prefix store");
    traffic::run(sessions, rows, lab, page)
}

/// The same while the server ends and starts again.
pub(super) fn restarts(sessions: &Sessions, lab: &Lab, page: &mut Page) -> Result<()> {
    page.section("The prefix store: restarts");
    restarts::run(sessions, lab, page)
}

/// The first token of a conversation that goes on after a restart. `also`: models to try besides the usual ones.
pub(super) fn resumed(also: &[PathBuf], lab: &Lab, page: &mut Page) -> Result<()> {
    page.section("The prefix store: the first token after a restart");
    resumed::run(also, lab, page)
}

/// Single prompts.
pub(super) fn prompts(lab: &Lab, page: &mut Page) -> Result<()> {
    page.section("The prefix store: single prompts");
    latency::again(lab, page)?;
    nothing::dense(lab, page)
}

/// Single prompts with sliding windows. `also`: models to try besides a random one.
pub(super) fn windows(also: &[PathBuf], lab: &Lab, page: &mut Page) -> Result<()> {
    page.section("The prefix store: sliding windows");
    nothing::windowed(also, lab, page)
}

/// The longest gap of a slot while the other one is saved.
pub(super) fn neighbour(lab: &Lab, page: &mut Page) -> Result<()> {
    page.section("The prefix store: a neighbour");
    latency::neighbour(lab, page)
}
