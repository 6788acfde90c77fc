//! Programs that inherit the preload and are not llama-server must behave as without it.
//!
//! `LD_PRELOAD` reaches every program that a llama-server starts, and every program in an environment
//! that exports it. Each program here runs three times: without the library, with the library
//! preloaded, and with the library and all settings of the hook. Its output, exit code, files and
//! connections must be the same (see [`runs`]).
//!
//! A program that this machine lacks is named on stderr. Under CI the common programs must
//! exist.
#![cfg(target_os = "linux")]

mod children;
mod engine;
mod programs;
mod runs;
mod tools;
