//! The page that shows the results.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use contextpilot_testbed::Result;

use crate::plot::Plot;

/// Whether a figure is what it is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Aim {
    Met,
    Missed,
    /// Beyond the target, but not certainly so.
    Noise,
}

impl Aim {
    pub(crate) fn met_if(met: bool) -> Self {
        if met { Self::Met } else { Self::Missed }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::Missed => "**missed**",
            Self::Noise => "inside the noise",
        }
    }
}

/// The page under construction.
pub(crate) struct Page {
    path: PathBuf,
    short: String,
    aims: String,
    text: String,
}

impl Page {
    /// A page at `path`; its figures go into the folder of the same name.
    ///
    /// # Errors
    /// Those of making that folder.
    pub(crate) fn new(path: &Path) -> Result<Self> {
        let page = Self {
            path: path.to_owned(),
            short: String::new(),
            aims: String::new(),
            text: String::new(),
        };
        std::fs::create_dir_all(page.figures())?;
        Ok(page)
    }

    fn figures(&self) -> PathBuf {
        self.path.with_extension("")
    }

    /// One of the few things to know, for the top of the page and the README.
    pub(crate) fn in_short(&mut self, name: &str, text: &str) {
        let _ = writeln!(self.short, "* **{name}** {text}");
    }

    /// A row of the table of targets.
    pub(crate) fn aim(&mut self, what: &str, target: &str, found: &str, aim: Aim) {
        let _ = writeln!(
            self.aims,
            "| {what} | {target} | {found} | {} |",
            aim.text()
        );
    }

    /// Begins a section.
    pub(crate) fn section(&mut self, title: &str) {
        let _ = write!(self.text, "\n## {title}\n");
    }

    /// A paragraph, a table, or whatever stands between empty lines.
    pub(crate) fn say(&mut self, text: impl AsRef<str>) {
        let _ = write!(self.text, "\n{}\n", text.as_ref().trim_end());
    }

    /// A plot, as a file next to the page.
    ///
    /// # Errors
    /// Those of drawing it.
    pub(crate) fn figure(&mut self, name: &str, plot: &Plot<'_>) -> Result<()> {
        let folder = self.figures();
        plot.draw(&folder.join(format!("{name}.svg")))?;
        let folder = folder
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        self.say(format!("![{}]({folder}/{name}.svg)", plot.title));
        Ok(())
    }

    /// Writes it, and says what was written.
    ///
    /// # Errors
    /// Those of writing.
    pub(crate) fn write(&self, machine: &str) -> Result<String> {
        let Self {
            short, aims, text, ..
        } = self;
        let page = format!(
            "# Benchmarks\n\n\
             Written by `scripts/bench`, from one run of it. {machine}\n\n\
             All sides of a comparison run in turn on the same machine, so both figures of a ratio\n\
             were taken within the same seconds. The parentheses after a median are its 95 % confidence\n\
             interval. Most comparisons measure the plain server twice (*again*): the difference of two\n\
             equal servers is the noise. A difference that is no larger than that, or not certain, is called\n\
             *inside the noise*. Plots leave out the last hundredth.\n\n\
             ## In short\n\n{short}\n\
             ## Targets\n\n| | target | measured | |\n|---|--:|--:|---|\n{aims}{text}"
        );
        std::fs::write(&self.path, &page)?;
        Ok(page)
    }
}
