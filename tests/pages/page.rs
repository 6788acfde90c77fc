//! Runs the blocks of one page, in order.
//!
//! - `sh` blocks are typed into a terminal. If a program stays in it, such as a server, the next block
//!   is typed into another one. A line with the comment "in another terminal" goes into another
//!   one, too.
//! - `python` blocks are run by a Python that has the packages that the page uses.
//! - `text` blocks that begin with `$ ` show commands and what they print: the commands are run.
//! - Other `text` and `json` blocks are the output of a command that a comment above them names. It is
//!   the screen of that command, if it was run on this page, else it is run now.
//! - What is above the first `##` stays until the end of the page. Terminals that are opened below a `##` are
//!   closed at the next one.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::markdown::{Block, Note, blocks};
use crate::shape;
use crate::terminal::{Machine, Step, Terminal};

/// How long to wait until the screen of a program that stays has what the page shows.
const PATIENCE: Duration = Duration::from_secs(20);

/// What was done on a page.
#[derive(Debug, Default)]
pub(crate) struct Done {
    pub(crate) run: usize,
    pub(crate) compared: usize,
    pub(crate) not_run: usize,
}

/// Runs a page. `at` is its path, for messages.
///
/// # Errors
/// What is wrong, block by block.
pub(crate) fn run(at: &Path, text: &str, machine: &Machine) -> Result<Done, String> {
    let mut session = Session {
        machine,
        section: 0,
        terminals: Vec::new(),
        steps: Vec::new(),
        done: Done::default(),
    };
    let mut wrong = String::new();
    for block in blocks(text) {
        if let Err(why) = session.take(&block) {
            wrong += &format!("{}:{}: {why}\n", at.display(), block.line);
        }
    }
    if wrong.is_empty() {
        Ok(session.done)
    } else {
        Err(wrong)
    }
}

struct Session<'a> {
    machine: &'a Machine,
    section: usize,
    /// Each with the section in which it was opened.
    terminals: Vec<(usize, Terminal)>,
    /// What was typed so far.
    steps: Vec<Step>,
    done: Done,
}

impl Session<'_> {
    fn take(&mut self, block: &Block) -> Result<(), String> {
        if self.section != block.section {
            self.terminals.retain(|(section, _)| *section == 0);
            self.section = block.section;
        }
        let mut exit = 0;
        let mut shows = None;
        for note in &block.notes {
            match note {
                Note::NotRun(_) => {
                    self.done.not_run += 1;
                    return are_there(&block.text);
                }
                Note::Before(commands) => {
                    self.type_in(commands, 0)?;
                }
                Note::Fresh => self.terminals.clear(),
                Note::OutputOf(command) => shows = Some(command),
                Note::Exit(code) => exit = *code,
            }
        }
        match (&*block.language, shows) {
            ("sh", _) => {
                self.done.run += 1;
                self.type_all(&block.text, exit)
            }
            ("python", _) => {
                self.done.run += 1;
                fs::write(self.machine.home.join("page.py"), &block.text)
                    .map_err(|e| e.to_string())?;
                self.type_in("python page.py", exit).map(drop)
            }
            ("text" | "json", Some(command)) => {
                self.done.compared += 1;
                self.compare(block, command)
            }
            ("text", None) if block.text.starts_with("$ ") => {
                self.done.compared += 1;
                self.transcript(&block.text, exit)
            }
            // What is neither typed nor printed: a configuration, code.
            (language, None)
                if !["text", "json", "console", "bash", "shell", ""].contains(&language) =>
            {
                Ok(())
            }
            (language, _) => Err(format!(
                "nothing says what this block of {language:?} is: put a comment above it, \
                 `<!-- output of: COMMAND -->` or `<!-- not run: WHY -->`"
            )),
        }
    }

    /// Types a block, each part of it in its own terminal.
    fn type_all(&mut self, text: &str, exit: i32) -> Result<(), String> {
        let mut part = String::new();
        for line in text.lines() {
            if line.contains("# in another terminal") {
                self.type_in(&part, 0)?;
                part.clear();
                // A second terminal, even if nothing stays in the first one.
                self.open()?;
            }
            part += line;
            part += "\n";
        }
        self.type_in(&part, exit).map(drop)
    }

    fn type_in(&mut self, text: &str, exit: i32) -> Result<Step, String> {
        if self
            .terminals
            .last()
            .is_none_or(|(_, last)| last.busy.is_some())
        {
            self.open()?;
        }
        let (_, terminal) = self.terminals.last_mut().ok_or("no terminal")?;
        let step = terminal.run(text, exit)?;
        self.steps.push(step.clone());
        Ok(step)
    }

    fn open(&mut self) -> Result<(), String> {
        let terminal = Terminal::open(self.machine)?;
        self.terminals.push((self.section, terminal));
        Ok(())
    }

    /// Compares a block with the output of a command.
    fn compare(&mut self, block: &Block, command: &str) -> Result<(), String> {
        let typed = self.steps.iter().rev();
        let step = typed
            .clone()
            .find(|step| step.text.lines().any(|line| line.trim() == command))
            .cloned();
        let step = match step {
            Some(step) => step,
            None => self.type_in(command, 0)?,
        };
        let end = Instant::now() + PATIENCE;
        loop {
            let screen = step.screen();
            let compared = match &*block.language {
                "json" => shape::compare_json(&block.text, &screen),
                _ => shape::compare(&block.text, &screen),
            };
            let is_over = !self.is_running(&step) || Instant::now() >= end;
            match compared {
                Ok(()) => return Ok(()),
                Err(why) if is_over => {
                    return Err(format!("`{command}` prints something else:\n  {why}"));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    fn is_running(&self, step: &Step) -> bool {
        let mut busy = self
            .terminals
            .iter()
            .filter_map(|(_, one)| one.busy.as_ref());
        busy.any(|one| one.text == step.text)
    }

    /// Runs the commands of a block that begin with `$ `, and compares what they print with the lines
    /// below each.
    fn transcript(&mut self, text: &str, exit: i32) -> Result<(), String> {
        for part in text.split_inclusive('\n').fold(Vec::new(), by_command) {
            let (command, output) = part;
            let step = self.type_in(&command, exit)?;
            let end = Instant::now() + PATIENCE;
            while let Err(why) = shape::compare(&output, &step.screen()) {
                // What runs in the background may print later.
                if !command.trim_end().ends_with('&') && !self.is_running(&step)
                    || Instant::now() >= end
                {
                    return Err(format!(
                        "`{}` prints something else:\n  {why}",
                        command.trim()
                    ));
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        Ok(())
    }
}

/// Puts each line to the command above it.
fn by_command(mut parts: Vec<(String, String)>, line: &str) -> Vec<(String, String)> {
    match (line.strip_prefix("$ "), parts.last_mut()) {
        (Some(command), _) => parts.push((command.to_owned(), String::new())),
        (None, Some((_, output))) => output.push_str(line),
        (None, None) => {}
    }
    parts
}

/// Even what is not run must be there: the scripts of this repository.
fn are_there(text: &str) -> Result<(), String> {
    let words = text
        .split_whitespace()
        .map(|word| word.trim_start_matches("./"));
    let mut scripts = words.filter(|word| word.starts_with("scripts/"));
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    match scripts.find(|script| !root.join(script).is_file()) {
        Some(script) => Err(format!("there is no {script}")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_here(text: &str) -> Result<Done, String> {
        let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
        let machine = Machine {
            home: folder.path().to_owned(),
            runtime: folder.path().to_owned(),
            path: "/usr/bin:/bin".to_owned(),
        };
        run(Path::new("page.md"), text, &machine)
    }

    #[test]
    fn a_page_that_shows_what_is_so_passes() {
        let page = "```sh\nexport A=5\nmkdir -p x && cd x\n```\n\
                    <!-- before: echo \"$A ids\" > here -->\n\
                    ```text\n$ cat here\n7 ids\n```\n\
                    <!-- output of: cat here -->\n```text\n3 …\n```\n\
                    <!-- exit: 3 -->\n```sh\n(exit 3)\n```\n\
                    <!-- not run: needs a Mac -->\n```sh\nbrew\n```\n";
        let done = run_here(page).unwrap_or_else(|why| panic!("{why}"));
        assert_eq!((done.run, done.compared, done.not_run), (2, 2, 1));
    }

    #[test]
    fn a_page_that_shows_what_is_not_so_fails() {
        for (page, why) in [
            ("```sh\nfalse\ntrue\n```\n", "exit codes 1 0"),
            ("```text\n$ echo a\nb\n```\n", "only on the page"),
            ("```text\n$ echo a\n```\n", "only in the output"),
            ("```text\nb\n```\n", "nothing says what this block"),
            ("```console\n$ b\n```\n", "nothing says what this block"),
            ("<!-- not run: -->\n```sh\nfalse\n```\n", "exit codes"),
            (
                "<!-- not run: long -->\n```sh\nscripts/gone\n```\n",
                "no scripts/gone",
            ),
            (
                "<!-- output of: echo 1 -->\n```json\n[]\n```\n",
                "on the page and 1 in the output",
            ),
            (
                "```sh\ncontextpilot-llama listen\necho\n```\n",
                "nothing can be typed after",
            ),
        ] {
            let result = run_here(page).expect_err(page);
            assert!(result.contains(why), "{page}\n{result}");
        }
    }
}
