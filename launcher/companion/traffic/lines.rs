//! Lines of files of any size, plain or packed with gzip.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

/// A longer line is damaged: a session of agents has some ten megabytes.
const LONGEST: u64 = 256 << 20;

/// How files begin that are packed in other ways, and what unpacks them.
const PACKED: [(&[u8], &str); 3] = [
    (b"\xfd7zXZ", "xz -dc"),
    (b"\x28\xb5\x2f\xfd", "zstd -dc"),
    (b"BZh", "bzip2 -dc"),
];

/// The lines of a file.
pub(super) struct Lines {
    from: Box<dyn BufRead>,
    shown: String,
    number: u64,
}

impl Lines {
    /// Opens a file; `-` is standard input.
    pub(super) fn open(path: &Path) -> Result<Self, String> {
        let is_input = path.as_os_str() == "-";
        let shown = if is_input {
            "standard input".to_owned()
        } else {
            path.display().to_string()
        };
        let unreadable = |e: io::Error| format!("{shown} cannot be read ({e}): check the path");
        let raw: Box<dyn Read> = if is_input {
            Box::new(io::stdin())
        } else {
            Box::new(File::open(path).map_err(unreadable)?)
        };
        let mut raw = BufReader::with_capacity(1 << 18, raw);
        let begin = raw.fill_buf().map_err(unreadable)?;
        if let Some((_, by)) = PACKED.iter().find(|(magic, _)| begin.starts_with(magic)) {
            return Err(format!(
                "{shown} is packed: {by} {shown} | contextpilot-llama … -"
            ));
        }
        let is_packed = begin.starts_with(b"\x1f\x8b");
        let mut from: Box<dyn BufRead> = if is_packed {
            Box::new(BufReader::with_capacity(1 << 18, MultiGzDecoder::new(raw)))
        } else {
            Box::new(raw)
        };
        // Not read to its end, which it may not have.
        let begin = from.fill_buf().map_err(unreadable)?;
        if begin.iter().any(|byte| *byte < b'\t') {
            return Err(format!(
                "{shown} is not a recording, and no trace: it is no text. Give the file that \
                 CONTEXTPILOT_TRAFFIC_FILE named, or lines of JSON"
            ));
        }
        Ok(Self {
            from,
            shown,
            number: 0,
        })
    }

    /// The number of the line that was read last, from 1.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// How the file is called.
    pub(super) fn shown(&self) -> &str {
        &self.shown
    }

    /// Reads the next line, without its end. False: there is none.
    pub(super) fn next(&mut self, into: &mut Vec<u8>) -> Result<bool, String> {
        into.clear();
        self.number += 1;
        let mut part = self.from.by_ref().take(LONGEST);
        let read = part.read_until(b'\n', into).map_err(|e| self.broken(&e))?;
        if read as u64 == LONGEST {
            return Err(format!(
                "{}, line {}: it has more than {} bytes, so it is no trace: check the file",
                self.shown, self.number, LONGEST
            ));
        }
        while into.last().is_some_and(u8::is_ascii_whitespace) {
            into.pop();
        }
        Ok(read > 0)
    }

    /// Appends what follows, if that is not more than a line may have.
    pub(super) fn rest(&mut self, into: &mut Vec<u8>) -> Result<(), String> {
        into.push(b'\n');
        let mut part = self.from.by_ref().take(LONGEST);
        let read = part.read_to_end(into).map_err(|e| self.broken(&e))?;
        if read as u64 == LONGEST {
            Err(format!(
                "{} is one value of more than {LONGEST} bytes: give a request or a session a line of its own",
                self.shown
            ))
        } else {
            Ok(())
        }
    }

    fn broken(&self, error: &io::Error) -> String {
        format!(
            "{}, line {}: it cannot be read on ({error}): the file was cut or damaged",
            self.shown, self.number
        )
    }
}
