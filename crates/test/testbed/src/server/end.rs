//! Ends a server, or waits for its end.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::thread;
use std::time::{Duration, Instant};

use super::{LOOK, Server};
use crate::{Error, Result};

/// How long a server may take to end after a signal before it is killed.
const GRACE: Duration = Duration::from_secs(30);

impl Server {
    /// Sends a signal.
    pub fn signal(&self, signal: i32) {
        if self.exited.is_none() {
            let pid = self.child.id() as libc::pid_t;
            // SAFETY: the child has not been waited for, so its id is still its own.
            unsafe { libc::kill(pid, signal) };
        }
    }

    /// Sends a signal (`libc::SIGTERM`, …) and waits for the end.
    ///
    /// # Errors
    /// If the server does not end within 30 seconds. Then it is killed.
    pub fn stop(&mut self, signal: i32) -> Result<ExitStatus> {
        self.signal(signal);
        self.wait(GRACE)
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// If the server does not end in time. Then it is killed.
    pub fn wait(&mut self, patience: Duration) -> Result<ExitStatus> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(status) = self.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                self.child.kill()?;
                self.exited = Some(self.child.wait()?);
                return Err(Error::new(format!(
                    "the server did not end within {patience:?}, so it was killed; its last words:\n{}",
                    self.last_words()
                )));
            }
            thread::sleep(LOOK);
        }
    }

    /// The exit status, if the server has ended.
    ///
    /// # Errors
    /// Those of the system call.
    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>> {
        if self.exited.is_none() {
            self.exited = self.child.try_wait()?;
        }
        Ok(self.exited)
    }

    pub(super) fn until<T>(
        &mut self,
        deadline: Instant,
        what: &str,
        mut look: impl FnMut(&Self) -> Option<T>,
    ) -> Result<T> {
        loop {
            if let Some(seen) = look(self) {
                return Ok(seen);
            }
            let ended = self.try_wait()?;
            let how = match ended {
                Some(status) => match (status.code(), status.signal()) {
                    (Some(code), _) => format!("exited with {code}"),
                    (_, Some(signal)) => format!("was killed by signal {signal}"),
                    _ => status.to_string(),
                },
                None if Instant::now() > deadline => "ran out of time".to_owned(),
                None => {
                    thread::sleep(LOOK);
                    continue;
                }
            };
            return Err(Error::new(format!(
                "the server {how} before {what}; its last words:\n{}",
                self.last_words()
            )));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The exit status does not matter here: for that there is `stop`.
        let _ = self.stop(libc::SIGTERM);
    }
}
