//! The control endpoint and the log file of a real llama-server under the launcher.

mod access;
mod events;
mod figures;
mod functions;
mod listening;
mod loading;
mod log;
mod metrics;
mod requests;
mod routers;
mod states;
mod support;
