//! The companion finds the server: `CONTEXTPILOT_LISTEN=auto`, and commands without an address.

mod agent;
mod commands;
mod several;
mod support;
mod up;
