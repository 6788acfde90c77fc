//! What the process was given: its variables and arguments, copied once, in the library's constructor.
//!
//! Other threads of the host may change variables at any time, and the C library then frees what another thread is just
//! reading. While the constructor runs there are no other threads. Afterwards nothing in this library reads the
//! environment (clippy.toml forbids it), and neither does what it links.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::OnceLock;

#[derive(Default)]
struct Given {
    variables: Vec<(OsString, OsString)>,
    arguments: Vec<OsString>,
}

static GIVEN: OnceLock<Given> = OnceLock::new();

/// Copies the variables and the arguments. From the library's constructor only.
#[allow(
    clippy::disallowed_methods,
    reason = "while the constructor runs, nobody changes it"
)]
pub(crate) fn keep() {
    GIVEN.get_or_init(|| Given {
        variables: std::env::vars_os().collect(),
        arguments: std::env::args_os().collect(),
    });
}

static FOLDER: OnceLock<PathBuf> = OnceLock::new();

/// Takes note of the current folder, which the host may change later. From the library's constructor only, and in a server
/// only: every program that inherits the library would make a system call more.
#[allow(
    clippy::disallowed_methods,
    reason = "while the constructor runs, nobody changes it"
)]
pub(crate) fn keep_folder() {
    FOLDER.get_or_init(|| std::env::current_dir().unwrap_or_default());
}

fn given() -> &'static Given {
    static NOTHING: OnceLock<Given> = OnceLock::new();
    let nothing = || NOTHING.get_or_init(Given::default);
    GIVEN.get().unwrap_or_else(nothing)
}

/// A variable, as it was at the start.
pub(crate) fn variable(name: &str) -> Option<OsString> {
    let mut variables = given().variables.iter();
    let (_, value) = variables.find(|(known, _)| known == name)?;
    Some(value.clone())
}

/// The same, if it is text.
pub(crate) fn text(name: &str) -> Option<String> {
    variable(name)?.into_string().ok()
}

/// Whether `contextpilot-llama run` has become this process. What it starts inherits its variables, and is another one.
pub(crate) fn is_run() -> bool {
    text(contextpilot_settings::env::RUN).is_some_and(|run| run == std::process::id().to_string())
}

/// All variables, as they were at the start.
pub(crate) fn variables() -> impl Iterator<Item = (&'static OsStr, &'static OsStr)> {
    let variables = given().variables.iter();
    variables.map(|(name, value)| (name.as_os_str(), value.as_os_str()))
}

/// The arguments of the process, the first of which is its name.
pub(crate) fn arguments() -> impl Iterator<Item = &'static OsStr> {
    given().arguments.iter().map(OsString::as_os_str)
}

/// The folder in which the process was started.
pub(crate) fn folder() -> PathBuf {
    FOLDER.get().cloned().unwrap_or_default()
}

/// The file of the program. The system says it, and no code changes it.
#[allow(
    clippy::disallowed_methods,
    reason = "it reads a link in /proc, no variable"
)]
pub(crate) fn program() -> PathBuf {
    std::env::current_exe().unwrap_or_default()
}

/// A variable as it is now, which an engine reads when it creates a context; the value's first bytes. This is read by
/// system calls, which fail where a thread would die.
///
/// # Errors
/// It cannot be known, also because others keep changing variables.
#[cfg(target_os = "linux")]
pub(crate) fn now(name: &str) -> Result<Option<Vec<u8>>, ()> {
    const TRIES: u32 = 8;
    for _ in 0..TRIES {
        let all = list().ok_or(())?;
        let mut found = None;
        let mut torn = false;
        for address in &all {
            let Some(entry) = read(*address, 64) else {
                torn = true;
                break;
            };
            let value = entry.strip_prefix(name.as_bytes());
            if let Some(value) = value.and_then(|rest| rest.strip_prefix(b"=")) {
                let end = value.iter().position(|byte| *byte == 0);
                found = Some(value[..end.unwrap_or(value.len())].to_vec());
                break;
            }
        }
        if !torn && list().as_ref() == Some(&all) {
            return Ok(found);
        }
    }
    Err(())
}

/// The same. Programs that set variables are followed on Linux only.
///
/// # Errors
/// None.
#[cfg(not(target_os = "linux"))]
pub(crate) fn now(name: &str) -> Result<Option<Vec<u8>>, ()> {
    Ok(variable(name).map(OsString::into_encoded_bytes))
}

/// The addresses of all entries. `None`: they cannot be read.
#[cfg(target_os = "linux")]
fn list() -> Option<Vec<usize>> {
    use std::sync::atomic::{AtomicPtr, Ordering};
    unsafe extern "C" {
        /// The C library's list of variables.
        static environ: AtomicPtr<usize>;
    }
    /// No process has as many.
    const MOST: usize = 1 << 20;
    // SAFETY: a pointer that is always there, and is read as a whole.
    let mut at = unsafe { environ.load(Ordering::Acquire) }.addr();
    let mut all = Vec::new();
    while at != 0 && all.len() < MOST {
        let bytes = read_in_page(at, PAGE)?;
        for word in bytes.chunks_exact(size_of::<usize>()) {
            match usize::from_ne_bytes(word.try_into().unwrap_or_default()) {
                0 => return Some(all),
                address => all.push(address),
            }
        }
        at += bytes.len();
    }
    Some(all)
}

#[cfg(target_os = "linux")]
const PAGE: usize = 4096;

/// Up to `most` bytes of this process, less if they end with a zero before.
#[cfg(target_os = "linux")]
fn read(at: usize, most: usize) -> Option<Vec<u8>> {
    let mut bytes = read_in_page(at, most)?;
    if bytes.len() < most && !bytes.contains(&0) {
        let rest = read_in_page(at + bytes.len(), most - bytes.len())?;
        bytes.extend(rest);
    }
    Some(bytes)
}

/// Bytes of this process, up to `most` and to the end of the page.
#[cfg(target_os = "linux")]
fn read_in_page(at: usize, most: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0_u8; most.min(PAGE - at % PAGE)];
    let into = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    let from = libc::iovec {
        iov_base: std::ptr::with_exposed_provenance_mut(at),
        iov_len: bytes.len(),
    };
    // SAFETY: no preconditions.
    let own = unsafe { libc::getpid() };
    // SAFETY: the system writes to our buffer only, and fails if there is nothing to read.
    let read = unsafe { libc::process_vm_readv(own, &raw const into, 1, &raw const from, 1, 0) };
    (usize::try_from(read).ok()? == bytes.len()).then_some(bytes)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_now_is_what_the_process_was_given_if_nobody_changes_it() {
        keep();
        let (name, value) = variables()
            .find(|(name, value)| !name.is_empty() && (1..30).contains(&value.len()))
            .expect("tests have variables");
        let (name, value) = (name.to_str().unwrap(), value.as_encoded_bytes());
        let room = 60_usize.saturating_sub(name.len());
        let now = now(name).unwrap().unwrap();
        assert_eq!(now[..now.len().min(room)], value[..value.len().min(room)]);
        assert_eq!(super::now("CONTEXTPILOT_NO_SUCH_VARIABLE"), Ok(None));
    }

    #[test]
    fn what_is_not_there_is_not_read() {
        assert_eq!(read(16, 8), None);
        let here = 0x1234_5678_u32;
        let bytes = read(std::ptr::from_ref(&here).expose_provenance(), 4);
        assert_eq!(bytes, Some(here.to_ne_bytes().to_vec()));
    }
}
