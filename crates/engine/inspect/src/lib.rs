//! Examines a server binary without running it: what it is, and how its functions can be hooked.
//!
//! A static GPU server can be gigabytes, so nothing here reads a whole file: headers, the
//! dynamic section, symbol and string tables, by seeking.
//!
//! Two steps, because the launcher stands between a user and their server:
//!
//! 1. [`Program::open`] reads a few headers: what the file is, how it is linked, and
//!    [why a preload would be ignored](Obstacle). Cheap enough for every start.
//! 2. [`Program::locate`] walks the libraries that it needs, as the dynamic linker would, and
//!    says for each function of a table [where it is](FunctionPlace); [`Located::hooking`] sorts them
//!    into what can be interposed, what can be hooked inline, and what is missing.
//!
//! [`elf`] is the reader beneath both. The hook uses it on its own executable.
//!
//! ```no_run
//! use contextpilot_inspect::{Machine, Program, Search};
//!
//! let program = Program::open("/usr/bin/llama-server".as_ref())?;
//! for obstacle in program.obstacles(Machine::OURS) {
//!     println!("{obstacle}");
//! }
//! let located = program.locate(&["llama_decode", "llama_process"], &Search::default())?;
//! println!("{:?} {:?}", located.build, located.hooking().missing);
//! # Ok::<(), contextpilot_inspect::Error>(())
//! ```

#![forbid(unsafe_code)]

pub mod elf;
mod engine;
mod error;
mod locate;
mod mach_o;
mod marks;
mod obstacle;
mod program;
mod script;
mod search;

pub use elf::Machine;
pub use engine::Build;
pub use error::Error;
pub use locate::{Calls, FunctionPlace, Hooking, Inline, Interposed, Library, Located, Missing};
pub use mach_o::{Signature, Slice};
pub use marks::{REMOVED, holds_engine};
pub use obstacle::{Obstacle, Privilege};
pub use program::{Executable, Format, Libc, Linkage, Program};
pub use script::Script;
pub use search::Search;
