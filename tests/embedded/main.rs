//! Programs with llama.cpp inside that are no llama-server (`CONTEXTPILOT_ENGINE=1`): the hook attaches to the
//! engine that they load, and answers are the same, with fewer tokens evaluated.
#![cfg(target_os = "linux")]

mod account;
mod doctor;
mod engine;
mod errors;
mod insert;
mod loading;
mod program;
mod python;
mod random;
mod run;
mod served;
mod signal;
mod ttft;
mod unfollowed;
mod windows;
