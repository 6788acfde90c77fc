//! The installed command, run against servers that are `cat`: it prints what it
//! was started with, byte for byte, when it is told to read its own /proc files.
#![cfg(target_os = "linux")]

mod machine;
mod preload;
mod server;
mod settings;
mod untouched;
