//! What the index is told when a server ends, and after it ended without a word.
//!
//! `CONTEXTPILOT_TEST_KILLS=200` makes [`kills`] take longer than its usual 10 rounds.

mod crashes;
mod ends;
// The library makes no errors on demand in a release build.
#[cfg(debug_assertions)]
mod faults;
mod kills;
mod secrets;
mod support;
mod unix;
mod writes;
