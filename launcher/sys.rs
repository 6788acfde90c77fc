//! The launcher's system calls that have no safe counterpart in the standard
//! library. The only unsafe code that is not in the hook library.
#![allow(unsafe_code)]

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::ptr;

/// Executes `path`, which holds a slash, in place of this process. Returns only
/// if that failed.
///
/// Not `std::os::unix::process::CommandExt::exec`: that resets the signal mask
/// and SIGPIPE, and drops environment entries that have no `=`. Here the
/// environment is the process's own, byte for byte. A script without `#!` goes
/// to the shell, as from a command line.
pub(crate) fn exec(path: &Path, argv0: OsString, arguments: Vec<OsString>) -> io::Error {
    let c_string = |s: OsString| CString::new(s.into_vec());
    let path = c_string(path.as_os_str().to_owned());
    let argv: Result<Vec<CString>, _> = std::iter::once(argv0)
        .chain(arguments)
        .map(c_string)
        .collect();
    let (Ok(path), Ok(argv)) = (path, argv) else {
        return io::Error::from(io::ErrorKind::InvalidInput);
    };
    let mut pointers: Vec<*const libc::c_char> = argv.iter().map(|s| s.as_ptr()).collect();
    pointers.push(ptr::null());
    // SAFETY: `path` and the elements of `argv` are NUL-terminated and outlive
    // the call, and the list of pointers to them ends with a null pointer.
    unsafe { libc::execvp(path.as_ptr(), pointers.as_ptr()) };
    io::Error::last_os_error()
}

/// Opens `/dev/null` for each of the three standard streams that is closed. Otherwise a file that the hook opens would be
/// one of them, and the server would write its log there.
pub(crate) fn open_standard_streams() {
    for stream in 0..3 {
        // SAFETY: asks about a descriptor, open or not.
        if unsafe { libc::fcntl(stream, libc::F_GETFD) } == -1 {
            // The least descriptor that is free is this one.
            // SAFETY: the path ends with NUL. If this fails, the stream stays closed.
            unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) };
        }
    }
}

/// Closes every descriptor but the standard streams: those that the process which started this one left open in it.
/// Before anything is opened.
pub(crate) fn close_inherited() {
    let list = if cfg!(target_os = "linux") {
        "/proc/self/fd"
    } else {
        "/dev/fd"
    };
    let names = std::fs::read_dir(list).into_iter().flatten().flatten();
    let open = names.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    for descriptor in open
        .filter(|descriptor| *descriptor > 2)
        .collect::<Vec<libc::c_int>>()
    {
        // SAFETY: nothing in this process owns it. The descriptor by which the list was read is closed already; closing
        // its number again does nothing.
        unsafe { libc::close(descriptor) };
    }
}

/// Does this while `SIGPIPE` is ignored, and leaves the signal as it was.
pub(crate) fn without_sigpipe(work: impl FnOnce()) {
    let mut before = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: zeroed memory is a valid `sigaction`: no handler, no flags, an empty mask.
    let mut ignore: libc::sigaction = unsafe { std::mem::zeroed() };
    ignore.sa_sigaction = libc::SIG_IGN;
    // SAFETY: both pointers are valid for the call, and no handler is installed.
    let done = unsafe { libc::sigaction(libc::SIGPIPE, &raw const ignore, before.as_mut_ptr()) };
    work();
    if done == 0 {
        // SAFETY: filled in by the call above.
        unsafe { libc::sigaction(libc::SIGPIPE, before.as_ptr(), ptr::null_mut()) };
    }
}

/// Sets a variable in this process's environment, for [`exec`] to pass on.
pub(crate) fn set_env(name: &str, value: &OsStr) {
    // SAFETY: The launcher never starts a thread, so no other one reads or writes the
    // environment at the same time.
    unsafe { std::env::set_var(name, value) };
}

/// Makes the C library give blocks of 128 KiB or more back to the system as soon as they are freed, in a process that
/// receives large bodies on many threads. By itself glibc raises that size to up to 32 MiB, with the first such block
/// that is freed; from then on these blocks lie between small ones in the arenas of all threads, and stay.
pub(crate) fn return_large_blocks() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: sets a number of the allocator, under the allocator's own lock.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 128 << 10);
    }
}

/// A moment as the local clock shows it.
#[derive(Default)]
pub(crate) struct LocalTime {
    pub(crate) year: i32,
    pub(crate) month: i32,
    pub(crate) day: i32,
    pub(crate) hour: i32,
    pub(crate) minute: i32,
    pub(crate) second: i32,
    /// Seconds east of UTC.
    pub(crate) offset: libc::c_long,
}

/// The local time at `seconds` after 1970-01-01 00:00 UTC; all zero for a year
/// that the C library cannot express.
pub(crate) fn local_time(seconds: libc::time_t) -> LocalTime {
    let mut tm = std::mem::MaybeUninit::<libc::tm>::zeroed();
    // SAFETY: Both pointers are valid for the call; the reentrant function is
    // used, so no other thread's result is overwritten.
    let done = unsafe { libc::localtime_r(&seconds, tm.as_mut_ptr()) };
    if done.is_null() {
        return LocalTime::default();
    }
    // SAFETY: Zeroed memory is a valid `tm` (integers and a nullable pointer),
    // and the call above has filled it.
    let tm = unsafe { tm.assume_init() };
    LocalTime {
        year: tm.tm_year + 1900,
        month: tm.tm_mon + 1,
        day: tm.tm_mday,
        hour: tm.tm_hour,
        minute: tm.tm_min,
        second: tm.tm_sec,
        offset: tm.tm_gmtoff,
    }
}
