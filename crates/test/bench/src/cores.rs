//! On which cores processes run.

use contextpilot_testbed::Result;

/// Keeps every thread that a process has on these cores. Those that it starts later inherit that.
///
/// # Errors
/// When there is no such process, or the system has no such call.
#[cfg(target_os = "linux")]
pub(crate) fn keep(process: u32, cores: &[usize]) -> Result<()> {
    use rustix::thread::{CpuSet, Pid, sched_setaffinity};

    let mut set = CpuSet::new();
    cores.iter().for_each(|&core| set.set(core));
    for thread in std::fs::read_dir(format!("/proc/{process}/task"))? {
        let thread = thread?.file_name();
        let thread = thread.to_str().and_then(|number| number.parse().ok());
        let Some(thread) = thread.and_then(Pid::from_raw) else {
            continue;
        };
        match sched_setaffinity(Some(thread), &set) {
            // It has ended meanwhile.
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => return Err(std::io::Error::from(error).into()),
        }
    }
    Ok(())
}

/// See above.
#[cfg(not(target_os = "linux"))]
pub(crate) fn keep(_process: u32, _cores: &[usize]) -> Result<()> {
    Err(crate::lab::failed("threads cannot be kept on a core here"))
}

/// The cores that this process may use, in order.
pub(crate) fn usable() -> Vec<usize> {
    #[cfg(target_os = "linux")]
    if let Ok(set) = rustix::thread::sched_getaffinity(None) {
        return (0..rustix::thread::CpuSet::MAX_CPU)
            .filter(|&core| set.is_set(core))
            .collect();
    }
    (0..std::thread::available_parallelism().map_or(1, std::num::NonZero::get)).collect()
}

/// A server has the last core to itself for as long as this lives; the measurement, with its
/// clients and its index, keeps to the others. (With one core, they share it.)
pub(crate) struct Reserved {
    all: Vec<usize>,
}

impl Reserved {
    /// # Errors
    /// When the system has no such call.
    pub(crate) fn new() -> Result<Self> {
        let reserved = Self { all: usable() };
        if let [others @ .., _] = &reserved.all[..] {
            if !others.is_empty() {
                keep(std::process::id(), others)?;
            }
        }
        Ok(reserved)
    }

    /// Moves a process to that core.
    ///
    /// # Errors
    /// When there is no such process.
    pub(crate) fn give_to(&self, process: u32) -> Result<()> {
        keep(process, &self.all[self.all.len() - 1..])
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        // What was possible is possible again.
        let _ = keep(std::process::id(), &self.all);
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_kept_on_a_core_and_we_off_it() {
        let all = usable();
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .expect("there is such a command");
        let allowed = |process: u32| {
            let path = format!("/proc/{process}/status");
            let status = std::fs::read_to_string(path).expect("it lives");
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
            line.expect("the system says so").trim().to_owned()
        };
        let before = allowed(std::process::id());
        let reserved = Reserved::new().expect("the system has such a call");
        reserved.give_to(child.id()).expect("it lives");
        let last = all[all.len() - 1].to_string();
        assert_eq!(allowed(child.id()), last);
        if all.len() > 1 {
            assert_ne!(allowed(std::process::id()), before);
        }
        drop(reserved);
        assert_eq!(allowed(std::process::id()), before);
        child.kill().expect("it can be ended");
        child.wait().expect("it ends");
        assert!(keep(u32::MAX, &all).is_err(), "no such process");
    }
}
