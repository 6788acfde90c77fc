//! Child processes that end with their test.

use std::ops::{Deref, DerefMut};
use std::process::Child;

/// Kills the process when it is dropped, also if the test fails.
#[derive(Debug)]
pub struct KillOnDrop(pub Child);

impl Deref for KillOnDrop {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for KillOnDrop {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        // Both fail only if the process was waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
