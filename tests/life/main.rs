//! What is reported to the index when a server ends, and after a server was killed.
//!
//! `CONTEXTPILOT_TEST_KILLS=200` runs 200 rounds of [`kills`] instead of 10,
//! `CONTEXTPILOT_TEST_LIVES=1200` as many lives of [`everything`] instead of 5.

mod crashes;
mod ends;
mod everything;
// Only a debug build of the library can make errors on demand (`CONTEXTPILOT_FAULT`).
#[cfg(debug_assertions)]
mod faults;
mod full;
mod kills;
mod secrets;
mod support;
mod unix;
mod watched;
mod writes;
