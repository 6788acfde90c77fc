use std::io::{self, Write};

use serde_json::{Map, Value, json};

use crate::say::plain;

/// The grade of a finding. The numbers are exit codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Grade {
    /// All good.
    Good = 0,
    /// Works, with limits.
    Limited = 1,
    /// Nothing will be reported to the index.
    Fails = 2,
}

impl Grade {
    fn word(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Limited => "limit",
            Self::Fails => "fails",
        }
    }

    fn verdict(self) -> &'static str {
        match self {
            Self::Good => "All good",
            Self::Limited => "Works with limits",
            Self::Fails => "Will not work",
        }
    }
}

/// One line.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Finding {
    pub(super) subject: &'static str,
    pub(super) grade: Grade,
    pub(super) text: String,
}

impl Finding {
    pub(super) fn new(subject: &'static str, grade: Grade, text: impl Into<String>) -> Self {
        Self {
            subject,
            grade,
            text: text.into(),
        }
    }
}

/// How a report is printed.
#[derive(Debug, Clone, Copy)]
pub(super) enum Form {
    /// `lists`: with the names of functions.
    Text {
        lists: bool,
    },
    Json,
}

/// All findings, and details for `--json`.
#[derive(Debug, Default)]
pub(super) struct Report {
    findings: Vec<Finding>,
    lists: Vec<(&'static str, Vec<String>)>,
    details: Map<String, Value>,
    next: Option<String>,
}

impl Report {
    pub(super) fn add(&mut self, finding: Finding) {
        self.findings.push(finding);
    }

    /// Names that only `--verbose` shows, if there are any.
    pub(super) fn list(&mut self, title: &'static str, names: Vec<String>) {
        if !names.is_empty() {
            self.lists.push((title, names));
        }
    }

    /// Something that only `--json` shows.
    pub(super) fn detail(&mut self, name: &str, value: Value) {
        self.details.insert(name.to_owned(), value);
    }

    /// What to do after reading all this.
    pub(super) fn advise(&mut self, next: String) {
        self.next = Some(next);
    }

    pub(super) fn grade(&self) -> Grade {
        let grades = self.findings.iter().map(|finding| finding.grade);
        grades.max().unwrap_or(Grade::Good)
    }

    pub(super) fn print(&self, form: Form) -> io::Result<()> {
        let text = match form {
            Form::Json => self.json().to_string() + "\n",
            Form::Text { lists } => plain(&self.text(lists)).into_owned(),
        };
        match io::stdout().write_all(text.as_bytes()) {
            Err(e) if e.kind() != io::ErrorKind::BrokenPipe => Err(e),
            _ => Ok(()),
        }
    }

    /// The verdict and the advice come last, where they are seen.
    fn text(&self, lists: bool) -> String {
        let mut text = String::new();
        for finding in &self.findings {
            let Finding {
                subject,
                grade,
                text: what,
            } = finding;
            text += &format!("{:<6} {subject:<13} {what}\n", grade.word());
        }
        for (title, names) in self.lists.iter().filter(|_| lists) {
            text += &format!("\n{title}\n");
            for name in names {
                text += &format!("  {name}\n");
            }
        }
        text += if lists { "\n" } else { "" };
        text += self.grade().verdict();
        text += "\n";
        if let Some(next) = &self.next {
            text += &format!("\nNext: {next}\n");
        }
        text
    }

    fn json(&self) -> Value {
        let findings: Vec<Value> = self
            .findings
            .iter()
            .map(|finding| {
                json!({
                    "subject": finding.subject,
                    "grade": finding.grade.word(),
                    "text": finding.text,
                })
            })
            .collect();
        let mut object = self.details.clone();
        object.insert("verdict".into(), self.grade().verdict().into());
        object.insert("exit_code".into(), (self.grade() as u8).into());
        object.insert("findings".into(), findings.into());
        object.insert("next".into(), self.next.clone().into());
        Value::Object(object)
    }
}
