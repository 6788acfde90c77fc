//! What is reported to the index when a server ends, and after a server was killed.
//!
//! `CONTEXTPILOT_TEST_KILLS=200` runs 200 rounds of [`kills`] instead of 10.

mod crashes;
mod ends;
// Only a debug build of the library can make errors on demand (`CONTEXTPILOT_FAULT`).
#[cfg(debug_assertions)]
mod faults;
mod full;
mod kills;
mod secrets;
mod support;
mod unix;
mod writes;
