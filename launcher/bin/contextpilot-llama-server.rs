//! Drop-in replacement for `llama-server`; see `contextpilot-llama --help`.

// With `no_main`, the C library calls `main` itself. The start-up code of Rust's
// standard library, which runs otherwise, opens /proc/self/maps, ignores SIGPIPE
// and sets up a signal stack: llama-server is to find the process as it was.
// Only with glibc, which hands the arguments to the standard library anyway.
#![cfg_attr(all(target_os = "linux", target_env = "gnu"), no_main)]

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[unsafe(no_mangle)]
extern "C" fn main() -> i32 {
    contextpilot_launcher::launch().into()
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn main() -> std::process::ExitCode {
    contextpilot_launcher::launch().into()
}
