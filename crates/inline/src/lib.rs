//! Hooks functions that the dynamic linker does not see: in a static or single-executable build,
//! calls go straight to the function, and the only way in is its first instructions.
//!
//! ```text
//!   caller ──► function: jmp ──► (relay: jmp, where it is far) ──► replacement
//!              function+n: … ◄── trampoline: the displaced instructions, jmp ◄── replacement
//! ```
//!
//! [`detour`] writes the jump and the trampoline. This crate finds the functions ([`Image`]),
//! refuses those where a jump would break something ([`preflight`]), and keeps to the one way of
//! patching that is safe in somebody else's process ([`Batch`]):
//!
//! - in the constructor of a preloaded library: before the executable's own constructors, so
//!   that none of its functions is being run by anybody;
//! - all functions at once or none, and once only;
//! - for ever: there is no unhooking;
//! - memory is not left both writable and executable.
//!
//! Linux only: elsewhere the crate is empty.
//!
//! Order of use: [`Image::of_self`], [`Image::find`], [`Batch::add`] for each (store the
//! [`Trampoline`] where the replacement finds it), then [`Batch::install`].

#![cfg(target_os = "linux")]

mod batch;
mod image;
mod loaded;
mod maps;
pub mod preflight;
mod refusal;

pub use batch::{Batch, Trampoline};
pub use image::{Function, Image, ImageError};
pub use loaded::visit_loaded;
pub use refusal::Refusal;
