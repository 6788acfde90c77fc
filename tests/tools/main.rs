//! The commands of contextpilot-llama on a real llama-server under the launcher.
#![cfg(target_os = "linux")]

mod advice;
mod bridge;
mod cache;
mod client;
mod dashboard;
mod extremes;
mod gateway;
mod generated;
mod hostile;
#[path = "../support/media.rs"]
mod media;
mod recordings;
mod screen;
mod slots;
mod store;
mod support;
mod template;
mod text;
mod told;
mod traffic;
mod ttft;
mod why;
