//! Reads llama-server's command line and environment by llama-server's own rules.
//!
//! Everything that wants to know a flag of the server asks [`ServerFlags`]. Nothing here reads the
//! command line, the environment or a file: they are passed in.
//!
//! **The rules** (`common_params_parse_ex` and the handlers of each flag):
//!
//! - A flag and its value are two arguments: there is no `--port=8080`. The value is the next argument,
//!   even if that begins with a dash.
//! - In names with two dashes `_` stands for `-`.
//! - The last of several counts, but aliases add up.
//! - A variable counts less than the command line. If its value is wrong, the server does not start,
//!   even if the command line has the flag, too.
//! - A flag that can be turned off (`--no-…`) has a second variable, `LLAMA_ARG_NO_…`, which turns it
//!   off whatever its value is. The first one is `on`, `enabled`, `true` or `1`, or the opposite of one of
//!   these; everything else, and nothing, is wrong.
//! - For a flag that can only be turned on, all other values of its variable mean nothing.
//! - A number ends where it ends (`std::stoi`): `8x` is 8, and `0x10` is 0.
//!
//! **Not known here:** flags that no caller asks about, and so also what their values are. So a *value* of
//! such a flag that is spelled like a flag of [`Flag`] is taken for the flag. llama.cpp's own `config.ini`
//! (servers of mid 2026 read one) is not read.
//!
//! `tests/server_flags` compares what is read here with what a real server says of itself.

#![forbid(unsafe_code)]

mod effect;
mod flag;
mod generation;
mod kv;
mod number;
mod read;

pub use effect::{Address, Model};
pub use flag::{Flag, Spelling};
pub use generation::{Generation, is_of_0_7};
pub use kv::{is_listed, may_change_kv, relevant_flags};
pub use read::{Refusal, ServerFlags, Source, name_of};
