//! How the library hooks the host's functions, and what is known of each.
//!
//! The library exports nothing. After it has recognised that this process is a llama-server
//! ([`process`]), it hooks the functions of its [`table`] in one of three ways:
//!
//! | way | for | module |
//! |---|---|---|
//! | import | calls between ELF files: patches the GOT entries | [`got`], with [`elf`] as the reader |
//! | inline | functions inside the executable: writes a jump at their beginning | [`inline`] |
//! | interpose pair | calls between files on macOS: dyld binds them | `dyld` |
//!
//! The rest of the hook does not depend on the way. It calls the originals
//! through [`original`] and [`plain`], and provides the functions to call instead ([`Replacement`]).
//!
//! *Found*, *patched* and *called* are three different things ([`evidence`]). The banner states the
//! first two. A claim is withdrawn if the calls that it depends on do not come ([`claims`]).
//!
//! **Objects that are loaded later.** Plugins of the engine (`libggml-cpu-*.so` and the like) are loaded
//! while the server starts. Their calls are patched when the first model is about to be used
//! ([`patch_late`]). `dlopen` itself is not hooked: it searches libraries by its caller,
//! which would be us. A program that loads its whole engine with `dlopen` is not recognised as a
//! llama-server; none is known.
//!
//! **Other programs.** With `CONTEXTPILOT_ENGINE=1`, a process that is no llama-server is attached to as well, as
//! soon as it has an engine ([`embedded`], [`loading`]).
//!
//! The files, in floors. A file uses only those above it in this table:
//!
//! | floor | files |
//! |---|---|
//! | what is given | [`kind`] of the process; [`engines`]: in which engine a thread is; [`table`]: every function to hook; [`replacement`]: our hooks; [`elf`]: the loaded objects |
//! | a function | [`linker`] (on macOS `dyld`) finds it by name; [`slot`]: its address; [`evidence`]: its places and calls |
//! | all functions | [`plain`]: those that we only call; [`row`]: one that we hook; [`original`]: all that we hook |
//! | the ways | [`got`] and [`inline`]; on macOS, their stand-ins `got_elsewhere` and `inline_elsewhere` |
//! | what follows | [`process`]: whether this is a llama-server; [`layout`]: whether its structures are the known ones; [`claims`]: what may be said; [`version`] of the engine; [`flags`] of the server; [`served`]: whether a library has a whole one; [`hidden`]: why an engine's functions are not found |
//! | the result | [`attached`]: what was attached to, as text |
//! | the whole | [`host`]: finds the server and attaches to it; [`embedded`] does so in another program, when [`loading`] has [`found`] its engine |

#[macro_use]
pub(crate) mod table;

mod attached;
pub(crate) mod claims;
#[cfg(target_os = "linux")]
mod elf;
#[cfg_attr(not(target_os = "linux"), path = "attach/embedded_elsewhere.rs")]
mod embedded;
pub(crate) mod engines;
pub(crate) mod evidence;
mod flags;
#[cfg(target_os = "linux")]
mod found;
#[cfg_attr(not(target_os = "linux"), path = "attach/got_elsewhere.rs")]
mod got;
#[cfg(target_os = "linux")]
mod hidden;
mod host;
#[cfg_attr(not(target_os = "linux"), path = "attach/inline_elsewhere.rs")]
mod inline;
mod kind;
mod layout;
#[cfg_attr(target_os = "macos", path = "dyld.rs")]
mod linker;
#[cfg(target_os = "linux")]
mod loading;
pub(crate) mod original;
pub(crate) mod plain;
mod process;
mod replacement;
mod row;
#[cfg(target_os = "linux")]
mod served;
mod slot;
mod version;

pub(crate) use self::attached::{Attached, say_evaluated};
pub(crate) use self::embedded::{
    Embedded, OwnFunction, is_program, serves_inside, unstorable, watch,
};
pub(crate) use self::flags::flags;
pub(crate) use self::got::patch_late;
pub(crate) use self::host::Host;
pub(crate) use self::kind::is_embedded;
pub(crate) use self::replacement::Replacement;
pub(crate) use self::row::{want_store, want_tokens};
pub(crate) use self::version::{ask_version, file_of_engine, version};
