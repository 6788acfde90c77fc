//! The server's flags.

use std::ffi::OsString;
use std::sync::OnceLock;

use contextpilot_server_flags::{Generation, ServerFlags};

use super::kind::is_embedded;
use super::original::has;
use super::plain;
use super::table::HOST_CACHE;
use super::version::{self, Version, version};
use crate::base::environment;

/// The flags with which the server was started, read once. A program that is no llama-server has none. The engine's version is asked before
/// ([`ask_version`](super::ask_version)), because defaults depend on it.
pub(crate) fn flags() -> &'static ServerFlags {
    static FLAGS: OnceLock<ServerFlags> = OnceLock::new();
    FLAGS.get_or_init(|| {
        if is_embedded() {
            return ServerFlags::read(std::iter::empty::<OsString>(), |_| None, generation());
        }
        debug_assert!(
            version::is_known(),
            "with the defaults of another generation"
        );
        let arguments = environment::arguments().map(OsString::from);
        ServerFlags::read(arguments, environment::variable, generation())
    })
}

fn generation() -> Generation {
    let Version { version, build } = version();
    let (version, build) = (version.unwrap_or_default(), build.unwrap_or_default());
    Generation::detect(plain::has(HOST_CACHE), has("llama_process"), version, build)
}
