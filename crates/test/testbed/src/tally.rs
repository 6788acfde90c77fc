//! The results of a test program without the usual harness: a line for each case, and a count.

use std::process::ExitCode;
use std::time::Instant;

use crate::{Result, skip_case};

/// How many cases passed, failed or were skipped.
#[derive(Debug, Default)]
pub struct Tally {
    passed: usize,
    failed: usize,
    skipped: usize,
}

impl Tally {
    /// Prints the result of a case: what it says of itself, or what is wrong.
    pub fn note(&mut self, case: &str, result: Result<String>) {
        match result {
            Ok(said) => {
                self.passed += 1;
                println!("test {case} ... ok ({said})");
            }
            Err(error) => {
                self.failed += 1;
                println!("test {case} ... FAILED\n  {error}");
            }
        }
    }

    /// Runs a case, and prints its result and how long it took.
    pub fn run(&mut self, case: &str, test: impl FnOnce() -> Result<String>) {
        let begun = Instant::now();
        let result = test();
        let seconds = begun.elapsed().as_secs_f32();
        self.note(case, result.map(|said| format!("{said}, {seconds:.1} s")));
    }

    /// A case cannot run here.
    ///
    /// # Panics
    /// Under CI, as [`skip_case`].
    pub fn skip(&mut self, case: &str, why: &str) {
        self.skipped += 1;
        skip_case(case, why);
    }

    /// Whether every case passed.
    pub fn is_complete(&self) -> bool {
        self.passed > 0 && self.failed == 0 && self.skipped == 0
    }

    /// Prints the count. Success: no case failed, and at least one passed.
    pub fn end(&self) -> ExitCode {
        let Self {
            passed,
            failed,
            skipped,
        } = self;
        println!("\n{passed} passed, {failed} failed, {skipped} skipped");
        if *passed == 0 && *failed == 0 {
            println!("no case passed, so this proves nothing");
        }
        if self.is_good() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }

    fn is_good(&self) -> bool {
        self.failed == 0 && self.passed > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    #[test]
    fn it_is_good_only_if_something_passed_and_nothing_failed() {
        let mut tally = Tally::default();
        assert!(!tally.is_good(), "nothing ran");
        tally.skipped += 1;
        assert!(!tally.is_good(), "everything was skipped");
        tally.note("a case", Ok("well".into()));
        assert!(tally.is_good() && !tally.is_complete());
        tally.note("another", Err(Error::new("badly")));
        assert!(!tally.is_good());
    }
}
