//! The priority of threads.

/// How much nicer than its process a thread becomes: beside a busy thread of the server it gets a tenth
/// of a processor.
#[cfg(target_os = "linux")]
const NICER: i32 = 10;

/// Lowers the priority of the calling thread for good, so that it gives way to the server's. Elsewhere
/// than on Linux a thread has no niceness of its own, and nothing happens.
pub fn give_way() {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{getpriority_process, setpriority_process};
        let own = rustix::thread::gettid();
        if let Ok(niceness) = getpriority_process(Some(own)) {
            let _ = setpriority_process(Some(own), niceness.saturating_add(NICER).min(19));
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn only_the_calling_thread_gives_way() {
        let nice = || {
            let own = rustix::thread::gettid();
            rustix::process::getpriority_process(Some(own)).expect("its niceness")
        };
        let before = nice();
        let other = std::thread::spawn(move || {
            give_way();
            nice()
        });
        let other = other.join().expect("it ends");
        assert_eq!((nice(), other), (before, (before + NICER).min(19)));
    }
}
