//! The launcher. The servers of these tests are `cat`. It prints its own files in
//! /proc, and so shows its arguments and its environment byte for byte.
#![cfg(target_os = "linux")]

mod machine;
mod preload;
mod server;
mod settings;
mod untouched;
