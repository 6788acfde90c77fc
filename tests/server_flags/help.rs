//! What `llama-server --help` says.

use std::process::Command;
use std::sync::OnceLock;

use contextpilot_server_flags::Generation;
use contextpilot_testbed::llama_server;

use crate::server::Line;

/// The server's help, by flags.
pub(crate) struct Help {
    /// Names, and the text of each.
    entries: Vec<(Vec<String>, String)>,
    generation: Generation,
}

impl Help {
    /// Asks the server once.
    pub(crate) fn of_server() -> &'static Self {
        static HELP: OnceLock<Help> = OnceLock::new();
        HELP.get_or_init(|| {
            let output = Command::new(llama_server()).arg("--help").output().unwrap();
            Self::read(&String::from_utf8(output.stdout).unwrap())
        })
    }

    fn read(text: &str) -> Self {
        let mut entries: Vec<(Vec<String>, String)> = Vec::new();
        for line in text.lines() {
            let is_new = line.starts_with('-') && !line.starts_with("-----");
            match entries.last_mut() {
                Some((_, entry)) if !is_new => {
                    entry.push(' ');
                    entry.push_str(line.trim());
                }
                _ if is_new => {
                    let words = line.split_whitespace();
                    let names = words.take_while(|word| word.starts_with('-'));
                    let names = names.map(|name| name.trim_end_matches(',').to_owned());
                    entries.push((names.collect(), line.to_owned()));
                }
                _ => {}
            }
        }
        let mut help = Self {
            entries,
            generation: Generation::Of2025,
        };
        let has = |name| help.entry(name).is_some();
        let port = help.entry("--port").expect("there is a port");
        help.generation = match (has("--cache-ram"), has("--checkpoint-min-step")) {
            (false, _) => Generation::Of2025,
            (true, false) => Generation::Early2026,
            (true, true) if port.contains("9931") => Generation::Late2026,
            (true, true) => Generation::Mid2026,
        };
        help
    }

    pub(crate) fn generation(&self) -> Generation {
        self.generation
    }

    /// All that is said of a flag.
    pub(crate) fn entry(&self, name: &str) -> Option<&str> {
        let mut entries = self.entries.iter();
        let found = entries.find(|(names, _)| names.iter().any(|known| known == name));
        found.map(|(_, entry)| &**entry)
    }

    /// The names of all flags, and what is said of each.
    pub(crate) fn entries(&self) -> &[(Vec<String>, String)] {
        &self.entries
    }

    /// The first flag of a line that the server does not know.
    pub(crate) fn lacks(&self, line: &Line) -> Option<String> {
        let names = line.given().iter().map(|word| {
            if word.starts_with("--") {
                word.replace('_', "-")
            } else {
                word.clone()
            }
        });
        let mut flags = names.filter(|word| word.starts_with('-') && word.parse::<f64>().is_err());
        flags.find(|flag| self.entry(flag).is_none())
    }
}
