//! Reads traces and recordings.

use std::path::{Path, PathBuf};

use clap::Args;
use contextpilot_trace::read::{Format, LeftOut, Line, Reader, Text, chain};
use contextpilot_trace::{Builder, Clock, NewRequest, Sample, TooLarge, Trace};
use contextpilot_traffic::Traffic;

use super::lines::Lines;
use super::tokenizer::Tokenizer;
use crate::companion::recorded::{self, is_recording, of_router};
use crate::companion::show::{Visible, count, counted, percent};
use crate::say::say;

/// What is read, and how.
#[derive(Args, Clone)]
pub(in crate::companion) struct Input {
    /// The trace or recording; several are read as one, and so is a folder. "-": standard input
    #[arg(value_name = "FILE", required = true)]
    pub(in crate::companion) files: Vec<PathBuf>,
    /// Tokens in a block, where the trace does not say it [default: 512 of Mooncake, 16 of Qwen-Bailian, else 64]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    block_size: Option<u32>,
    /// What makes tokens of text: the URL of a llama-server, a GGUF file, or "bytes" (a guess: four bytes are a token)
    #[arg(long, value_name = "URL|GGUF|bytes")]
    tokenizer: Option<String>,
    /// How many sessions go on at once, where a trace does not say when sessions began
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    users: u32,
    /// Look only at this share of the blocks, for traces that are too large for the memory; figures are then estimates
    #[arg(long, value_name = "SHARE", value_parser = sample)]
    sample: Option<Sample>,
    /// End at the first damaged line
    #[arg(long)]
    strict: bool,
}

fn sample(text: &str) -> Result<Sample, String> {
    let share = text.parse().ok().and_then(Sample::at_rate);
    share.ok_or_else(|| "a share is above 0, and at most 1".to_owned())
}

/// What was read.
pub(in crate::companion) struct Opened {
    pub(in crate::companion) trace: Trace,
    /// Its format, in words.
    pub(in crate::companion) format: String,
    /// The recording that it is.
    pub(in crate::companion) recording: Option<Traffic>,
    /// What was assumed, or cannot be seen.
    pub(in crate::companion) notes: Vec<String>,
    /// Lines and parts that were left out, in words.
    pub(in crate::companion) left_out: Vec<String>,
}

/// More damaged lines are only counted.
const SAID: u64 = 5;

impl Input {
    pub(in crate::companion) fn open(&self) -> Result<Opened, String> {
        let [file] = self.files.as_slice() else {
            return self.of_traces(&self.files);
        };
        match of_router(file).as_slice() {
            [] if is_recording(file) => self.of_recording(file),
            [] => self.of_traces(&self.files),
            [recording] => self.of_recording(&recording.path),
            models => {
                let names = models.iter().map(|model| model.path.display().to_string());
                let names: Vec<String> = names.collect();
                Err(format!(
                    "Models share no tokens, and {} has a recording of each of a router's: name one of {}",
                    file.display(),
                    names.join(", ")
                ))
            }
        }
    }

    fn of_traces(&self, files: &[PathBuf]) -> Result<Opened, String> {
        let mut reading = Reading {
            input: self,
            reader: Reader::new(),
            builder: None,
            tokenizer: None,
            damaged: 0,
            blocks: 0,
            tokens: 0,
            without_id: 0,
            latest: 0,
            late: 0,
        };
        for file in files {
            if files.len() > 1 && is_recording(file) {
                return Err(format!(
                    "{} is a recording, and a recording is read alone: run the command once for each",
                    file.display()
                ));
            }
            for part in parts(file)? {
                reading.file(&part)?;
            }
        }
        reading.end()
    }

    /// A recording, with an id for each block of token identities.
    fn of_recording(&self, file: &Path) -> Result<Opened, String> {
        let (traffic, _) = recorded::open(file)?;
        let block = self.block_size.unwrap_or(64);
        let mut builder = Builder::new(block, Clock::Trace, self.sample);
        let (mut children, mut embeddings) = (0_u64, 0_u64);
        for request in &traffic.requests {
            let record = &request.record;
            children += u64::from(record.child);
            embeddings += u64::from(record.embedding && !record.child);
            if record.child || record.embedding || record.prompt == 0 {
                continue;
            }
            let runs = request.tokens.runs().iter();
            let tokens = runs.flat_map(|run| run.first..run.first + u64::from(run.length));
            let (input, ids) = chain(tokens.take(record.prompt as usize), block);
            let new = NewRequest {
                at: record.arrived,
                input,
                output: request.generated().saturating_add(1),
                ids,
                ..NewRequest::default()
            };
            builder.push(&new).map_err(too_large)?;
        }
        if builder.is_empty() {
            return Err(format!("{} has no prompts", file.display()));
        }
        let counted = [
            (children, "further answer", " to a prompt (n)"),
            (embeddings, "embedding", ""),
        ];
        Ok(Opened {
            trace: builder.finish(),
            format: "a recording".to_owned(),
            recording: Some(traffic),
            notes: Vec::new(),
            left_out: in_words(&counted),
        })
    }
}

impl Opened {
    /// To be written, or played on fleets, nothing may be missing.
    pub(in crate::companion) fn must_be_whole(&self) -> Result<(), String> {
        if self.trace.rate < 1.0 {
            Err("A sample is for the ceiling and the curve only: leave --sample out".to_owned())
        } else {
            Ok(())
        }
    }
}

/// A trace while it is read.
struct Reading<'a> {
    input: &'a Input,
    reader: Reader,
    builder: Option<Builder>,
    tokenizer: Option<Tokenizer>,
    damaged: u64,
    /// Blocks beyond the tokens of their prompts.
    blocks: u64,
    tokens: u64,
    /// Tokens of prompts in blocks that have no id.
    without_id: u64,
    /// The latest time, and requests below it that came earlier.
    latest: u64,
    late: u64,
}

impl Reading<'_> {
    fn file(&mut self, path: &Path) -> Result<(), String> {
        let mut lines = Lines::open(path)?;
        let mut line = Vec::new();
        while lines.next(&mut line)? {
            if line.is_empty() {
                continue;
            }
            let mut read = self.reader.line(&line);
            // A file may be one session, over many lines.
            if lines.number() == 1 && read.as_ref().is_err_and(|damaged| damaged.is_cut) {
                lines.rest(&mut line)?;
                read = self.reader.line(&line);
            }
            match read {
                Ok(Line::Blocks(requests)) => {
                    for request in &requests {
                        self.push(request)?;
                    }
                }
                Ok(Line::Text(text)) => self.text(*text)?,
                Err(damaged) => {
                    let what = format!("{}, line {}: {damaged}", lines.shown(), lines.number());
                    if self.input.strict {
                        return Err(what);
                    }
                    self.damaged += 1;
                    if self.damaged <= SAID {
                        say(format!("{what}: the line is left out"));
                    }
                }
            }
        }
        Ok(())
    }

    fn text(&mut self, text: Text) -> Result<(), String> {
        let tokenizer = match &mut self.tokenizer {
            Some(tokenizer) => tokenizer,
            None => {
                let named = self.input.tokenizer.as_deref().ok_or(
                    "The trace has text, and nothing says what its tokens are: add --tokenizer with the URL of a \
                     llama-server or a GGUF file, or --tokenizer bytes for a guess",
                )?;
                self.tokenizer.insert(Tokenizer::named(named)?)
            }
        };
        let tokens = tokenizer.tokens(&text)?;
        let mut request = text.request;
        (request.input, request.ids) = chain(tokens, self.block());
        self.push(&request)
    }

    fn format(&self) -> Format {
        self.reader.format().unwrap_or(Format::Mooncake)
    }

    fn block(&self) -> u32 {
        let said = self.reader.block().or(self.input.block_size);
        said.unwrap_or(self.format().block())
    }

    fn push(&mut self, request: &NewRequest) -> Result<(), String> {
        let (block, format) = (self.block(), self.format());
        let input = self.input;
        let builder = self
            .builder
            .get_or_insert_with(|| Builder::new(block, format.clock(input.users), input.sample));
        self.blocks += builder.push(request).map_err(too_large)? as u64;
        let known = request.ids.len() as u64 * u64::from(block);
        self.tokens += u64::from(request.input);
        self.without_id += u64::from(request.input).saturating_sub(known);
        self.late += u64::from(request.at < self.latest);
        self.latest = self.latest.max(request.at);
        Ok(())
    }

    fn end(self) -> Result<Opened, String> {
        let format = self.format();
        let block = self.block();
        let Some(builder) = self.builder else {
            return Err(match self.damaged {
                0 => {
                    let names = self.input.files.iter().map(|file| file.to_string_lossy());
                    let files = names.collect::<Vec<_>>().join(", ");
                    format!(
                        "There are no requests in {}: check the file",
                        Visible(&files)
                    )
                }
                lines => format!(
                    "None of {} is of a format that is known (Mooncake, Qwen-Bailian, WEKA, LMCache, OpenAI)",
                    counted(lines, "line")
                ),
            });
        };
        if self.damaged > SAID {
            say(format!(
                "{} more lines are left out",
                count(self.damaged - SAID)
            ));
        }
        let mut notes = Vec::new();
        if self.reader.block().is_none() {
            let by = match self.input.block_size {
                Some(_) => "as --block-size says",
                None => "as that format has them",
            };
            notes.push(format!(
                "blocks of {}, {by}",
                counted(block.into(), "token")
            ));
        }
        if let Clock::Session { users } = format.clock(self.input.users) {
            notes.push(format!(
                "{} at once (--users): when sessions began is not known",
                counted(users.into(), "session")
            ));
        }
        if self.reader.is_by_session() {
            notes.push(
                "ids mean nothing across sessions: what sessions share counts as new".to_owned(),
            );
        }
        if let (Some(tokenizer), Some(named)) = (&self.tokenizer, &self.input.tokenizer) {
            notes.push(tokenizer.shown(named));
        }
        if self.without_id > 0 {
            notes.push(format!(
                "{} of the prompts' tokens ({}) are in blocks without an id, and never reused",
                count(self.without_id),
                percent(Some(self.without_id as f64 / self.tokens as f64))
            ));
        }
        if self.late > 0 && format.clock(1) == Clock::Trace {
            notes.push(format!(
                "{} came before one that stands above: the order is that of the times (other tools have that of the lines)",
                counted(self.late, "request")
            ));
        }
        let LeftOut {
            without_prompt,
            without_parent,
            media,
        } = self.reader.left_out();
        if without_parent > 0 {
            notes.push(format!(
                "the parent of {} is not in the trace: a session begins there",
                counted(without_parent, "request")
            ));
        }
        let counted = [
            (self.damaged, "damaged line", ""),
            (without_prompt, "request", " without a prompt"),
            (media, "part", " of messages without text"),
            (self.blocks, "block", " beyond the tokens of a prompt"),
        ];
        Ok(Opened {
            trace: builder.finish(),
            format: format!("{format}'s format"),
            recording: None,
            notes,
            left_out: in_words(&counted),
        })
    }
}

/// The files of a folder that may be traces, in the order of their names; or the file itself.
fn parts(path: &Path) -> Result<Vec<PathBuf>, String> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let shown = path.display();
    let unreadable = |e| format!("{shown} cannot be read ({e}): check the path");
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).map_err(unreadable)? {
        let file = entry.map_err(unreadable)?.path();
        let ending = file.extension().and_then(|ending| ending.to_str());
        if file.is_file() && matches!(ending, Some("json" | "jsonl" | "gz")) {
            files.push(file);
        }
    }
    files.sort();
    if files.is_empty() {
        Err(format!("{shown} has no .json, .jsonl or .gz"))
    } else {
        Ok(files)
    }
}

/// `parts`: how many of what, and the words behind that.
fn in_words(parts: &[(u64, &str, &str)]) -> Vec<String> {
    let some = parts.iter().filter(|(number, ..)| *number > 0);
    some.map(|(number, what, rest)| counted(*number, what) + rest)
        .collect()
}

fn too_large(_: TooLarge) -> String {
    "The trace has more requests or blocks than can be counted: add --sample 0.01".to_owned()
}
