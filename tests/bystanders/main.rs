//! Programs that inherit the preload and are no llama-server: they must not notice.
//!
//! `LD_PRELOAD` reaches every program that a llama-server starts, and whatever else is started
//! where somebody exports it. Each program here runs by itself, with the library preloaded, and
//! with the library preloaded and everything set that a llama-server is told. Its output, exit
//! code, files and connections have to be the same (see [`runs`]).
//!
//! A program that this machine lacks is named on stderr. With `CI=true` the common ones must be
//! there.
#![cfg(target_os = "linux")]

mod children;
mod engine;
mod programs;
mod runs;
mod tools;
