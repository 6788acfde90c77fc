//! GOT patching: writes the addresses of our replacements into the words through which loaded objects
//! call functions of other objects. These are entries of the global offset table, and of tables of
//! functions in data.
//!
//! The library exports nothing for this, so it has no effect in other processes. Within a llama-server
//! it changes only words that hold the definition that the server itself calls. A
//! process may have several definitions of a name: a C++ runtime in each file, two OpenSSLs. Callers of
//! other definitions are left alone.
//!
//! [`Survey::take`] finds the words and changes nothing. [`Survey::patch`] writes them and reads
//! them back. [`patch_late`] does the same for objects that were loaded by `dlopen` since.

mod linked;
mod patch;
mod survey;

pub(super) use self::linked::{redirect_calls_of, redirect_calls_of_server};
pub(crate) use self::patch::patch_late;
pub(super) use self::patch::write;
pub(super) use self::survey::Survey;
