//! Drop-in replacement for `llama-server`; see `contextpilot-llama --help`.

// With `no_main`, the C library calls `main` itself. Otherwise the start-up code of Rust's
// standard library would open /proc/self/maps, ignore SIGPIPE
// and set up a signal stack, but llama-server should find the process unchanged.
// Only with glibc, which passes the arguments to the standard library anyway.
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
