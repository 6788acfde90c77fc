//! Tests that cannot run on this machine, or with this server, and the results of test programs without the usual
//! harness.
//!
//! Each test that is skipped is named on stderr in one line, which begins with `skipped`. `scripts/test` counts these lines,
//! and prints them at its end. They are written to the file itself: the test harness hides the output of
//! `eprintln!` if a test passes.

use std::ffi::OsString;
use std::fmt::Display;
use std::io::Write;
use std::panic::Location;
use std::process::ExitCode;
use std::thread;
use std::time::Instant;

use crate::Result;

/// The calling test cannot run here. It has to return after this.
///
/// # Panics
/// Under CI (`CI` is set and not empty), where nothing may be skipped.
#[track_caller]
pub fn skip(why: impl Display) {
    refuse(&test(), &why);
    say("skipped: ", &test(), &why);
}

/// One of the cases that a test, or a program without the usual harness, goes through cannot run here.
///
/// # Panics
/// As [`skip`].
#[track_caller]
pub fn skip_case(case: &str, why: impl Display) {
    refuse(case, &why);
    say("skipped case: ", case, &why);
}

/// Like [`skip`], for a test of something that a CI machine need not have. Never panics.
#[track_caller]
pub fn skip_optional(why: impl Display) {
    say("skipped: ", &test(), &why);
}

/// The value, or the end of the calling test if there is none: what was asked for it has said why.
#[macro_export]
macro_rules! or_return {
    ($value:expr) => {
        match $value {
            Some(value) => value,
            None => return,
        }
    };
}

/// The name of the calling test, as `--exact` takes it.
#[macro_export]
macro_rules! test_name {
    () => {{
        fn here() {}
        let name = std::any::type_name_of_val(&here).trim_end_matches("::here");
        name.split_once("::").map_or(name, |(_program, name)| name)
    }};
}

/// The name of the calling test. The harness gives it to the test's thread.
#[track_caller]
fn test() -> String {
    let place = || Location::caller().file().to_owned();
    let thread = thread::current();
    match thread.name() {
        None | Some("main") => place(),
        Some(name) => name.to_owned(),
    }
}

fn say(start: &str, what: &str, why: &dyn Display) {
    // The harness may have written the first part of a line. One write, so that the line stays whole.
    // Errors of writing do not matter.
    let line = format!("\n{start}{what}: {why}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

#[track_caller]
fn refuse(what: &str, why: &dyn Display) {
    assert!(
        !is_ci(std::env::var_os("CI")),
        "under CI nothing may be skipped: {what}: {why}"
    );
}

fn is_ci(variable: Option<OsString>) -> bool {
    variable.is_some_and(|value| !value.is_empty())
}

/// How many cases of a test program passed, failed or were skipped. It prints a line for each case, and a count.
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
    use std::process::{Command, Output};

    use super::*;
    use crate::Error;
    use crate::engine::repository;

    /// Runs one of the tests below in a process of its own. Returns its output on both streams.
    fn run(test: &str, ci: &str) -> (Output, String) {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &format!("skip::tests::{test}"), "--ignored"])
            .env("CI", ci)
            .output()
            .unwrap();
        let text = [&output.stdout[..], &output.stderr].concat();
        let text = String::from_utf8(text).unwrap();
        (output, text)
    }

    #[test]
    #[ignore = "the other tests start it as a process of its own"]
    fn skipping() {
        skip_optional("no left shoe");
        skip_case("a shoe", "no right shoe");
        skip("no shoes");
    }

    #[test]
    #[ignore = "the other tests start it as a process of its own"]
    fn skipping_the_whole() {
        skip("no shoes");
    }

    #[test]
    fn a_skip_is_named_with_its_reason_and_fails_under_ci() {
        let (output, said) = run("skipping", "");
        assert!(output.status.success(), "{said}");
        for line in [
            "\nskipped: skip::tests::skipping: no left shoe\n",
            "\nskipped case: a shoe: no right shoe\n",
            "\nskipped: skip::tests::skipping: no shoes\n",
        ] {
            assert!(said.contains(line), "{line:?} is not in:\n{said}");
        }
        for (test, what) in [
            ("skipping", "a shoe: no right shoe"),
            (
                "skipping_the_whole",
                "skip::tests::skipping_the_whole: no shoes",
            ),
        ] {
            let (output, said) = run(test, "true");
            assert!(!output.status.success(), "{said}");
            let why = format!("under CI nothing may be skipped: {what}");
            assert!(said.contains(&why), "{said}");
        }
    }

    /// What `scripts/test` would count of these outputs, and list.
    fn count(outputs: &[&str]) -> String {
        let folder = tempfile::tempdir().unwrap();
        let mut script = Command::new("bash");
        let source = ". scripts/lib/tools.sh; . scripts/lib/tests.sh; \
                      for file; do count_tests 0 a/b \"$file\"; done; counted";
        script.args(["-euc", source, "bash"]);
        for (nth, output) in outputs.iter().enumerate() {
            let file = folder.path().join(nth.to_string());
            std::fs::write(&file, output).unwrap();
            script.arg(file);
        }
        let output = script.current_dir(repository()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    #[test]
    fn passed_failed_and_skipped_tests_are_counted() {
        let harness = "running 3 tests\ntest a ... ok\ntest b ... \nskipped: b: no shoes\nok\n\
            skipped case: page.md: no socks\n\n\
            test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0s\n";
        assert_eq!(
            count(&[harness]),
            "\n== 2 passed, 0 failed, 2 skipped\n\
             skipped: a/b: b: no shoes\nskipped: a/b: page.md: no socks\n"
        );
        // Without the usual harness: those that pass are counted without the skipped ones.
        let own = "test x ... ok\nskipped case: y: no z\n\n4 passed, 1 failed, 1 skipped\n";
        let summary = count(&[
            harness,
            own,
            "test result: ok. 2 passed; 0 failed; 0 ignored\n",
        ]);
        assert!(
            summary.starts_with("\n== 8 passed, 1 failed, 3 skipped\n"),
            "{summary}"
        );
    }

    #[test]
    fn what_the_real_harness_prints_is_counted() {
        let (_, said) = run("skipping", "");
        assert!(
            count(&[&said]).starts_with("\n== 0 passed, 0 failed, 3 skipped\n"),
            "{said}"
        );
    }

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
