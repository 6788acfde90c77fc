//! `traffic export`: a recording in Mooncake's format.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use contextpilot_trace::Trace;
use serde::Serialize;

use super::open::Input;
use crate::companion::show::cannot_print;
use crate::say::say;

/// Write a recording or a trace in Mooncake's format
///
/// A line for each request: timestamp (ms), input_length, output_length, and hash_ids, one for each block of tokens. Ids are
/// numbers from 0 on: equal for equal beginnings, and for nothing else. block_size and session_id stand beside them.
#[derive(Args)]
#[command(after_help = "Example:
  contextpilot-llama traffic export traffic --block-size 512 --out trace.jsonl")]
pub(super) struct ExportOptions {
    #[command(flatten)]
    input: Input,
    /// Where to write it [default: standard output]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

pub(super) fn run(options: &ExportOptions) -> Result<(), String> {
    let opened = options.input.open()?;
    opened.must_be_whole()?;
    if !opened.left_out.is_empty() {
        say(format!("Left out: {}", opened.left_out.join(", ")));
    }
    match &options.out {
        Some(path) => write_file(&opened.trace, path),
        None => {
            let mut into = BufWriter::new(io::stdout().lock());
            match write(&opened.trace, &mut into).and_then(|()| into.flush()) {
                Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
                done => done.map_err(|e| cannot_print(&e)),
            }
        }
    }
}

#[derive(Serialize)]
struct Line<'a> {
    timestamp: u64,
    input_length: u32,
    output_length: u32,
    hash_ids: &'a [u64],
    block_size: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    session_id: Option<u32>,
}

/// Writes a trace in Mooncake's format to a file.
pub(super) fn write_file(trace: &Trace, path: &Path) -> Result<(), String> {
    let failed = |e| {
        let shown = path.display();
        format!("{shown} cannot be written ({e}): check the folder")
    };
    let mut into = BufWriter::new(File::create(path).map_err(failed)?);
    write(trace, &mut into)
        .and_then(|()| into.flush())
        .map_err(failed)
}

/// The same.
fn write(trace: &Trace, into: &mut impl Write) -> io::Result<()> {
    let tree = &trace.tree;
    // The number of the first block of each node, in the order in which they come.
    let mut numbers = vec![u64::MAX; tree.len()];
    let mut next = 0;
    let (mut path, mut ids) = (Vec::new(), Vec::new());
    for request in &trace.requests {
        tree.path(request.end, &mut path);
        ids.clear();
        for node in &path {
            let length = u64::from(tree.length(*node));
            let number = &mut numbers[*node as usize];
            if *number == u64::MAX {
                *number = next;
                next += length;
            }
            ids.extend(*number..*number + length);
        }
        let line = Line {
            timestamp: request.at / 1000,
            input_length: request.input,
            output_length: request.output,
            hash_ids: &ids,
            block_size: trace.block,
            session_id: trace.has_sessions.then_some(request.session),
        };
        serde_json::to_writer(&mut *into, &line)?;
        into.write_all(b"\n")?;
    }
    Ok(())
}
