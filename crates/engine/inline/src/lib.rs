//! Hooks functions that are not called through the dynamic linker: in a static or single-executable
//! build, calls go straight to the function, so its first instructions are replaced by a jump.
//!
//! ```text
//!   caller ──► function: jmp ──► (relay: jmp, where it is far) ──► replacement
//!              function+n: … ◄── trampoline: the displaced instructions, jmp ◄── replacement
//! ```
//!
//! [`detour`] writes the jump and the trampoline (but for functions that begin with a call: `calling`). This crate finds the functions ([`Image`]),
//! refuses those where a jump would break something ([`preflight`]), and patches in the only way
//! that is safe in another program's process ([`Batch`]):
//!
//! - in the constructor of a preloaded library, which runs before the executable's own constructors, or
//!   right after a library was loaded, so that no thread is in one of the functions;
//! - all functions of an image at once or none;
//! - without unhooking;
//! - without leaving memory that is both writable and executable.
//!
//! Linux only: elsewhere the crate is empty.
//!
//! Order of use: [`Image::of_self`] or [`Image::of_library`], [`Image::find`], [`Batch::add`] for each (store the
//! [`Trampoline`] where the replacement finds it), then [`Batch::install`].

#![cfg(target_os = "linux")]

mod batch;
mod calling;
mod image;
mod maps;
pub mod preflight;
mod refusal;

pub use contextpilot_inspect::{REMOVED, holds_engine};

pub use batch::{Batch, Trampoline};
pub use image::{Function, Image, ImageError, functions_in, visit_loaded};
pub use maps::Writable;
pub use refusal::Refusal;
