//! `store import`: the chunks of such a file, in the folder.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use contextpilot_kv_files::{Done, Folder, Pack, Refusal, Writer, clock};
use contextpilot_kv_store::{Chunk, Name, Origin, Store};
use contextpilot_settings::env;
use serde::Serialize;

use super::contents::{Contents, row_of};
use super::text::with_hidden;
use super::users::limit;
use crate::companion::progress::Progress;
use crate::companion::servers::Running;
use crate::companion::show::{Visible, bytes, counted, print_as};

#[derive(Args)]
pub(super) struct Import {
    /// The file that store export has written
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Also if no server with this model, engine, flags and adapters has used the folder yet
    #[arg(long)]
    unchecked: bool,
}

/// Rows that may wait for the disk, bytes.
const QUEUE: u64 = 256 << 20;
/// A disk that takes longer for that is broken.
const LONGEST: Duration = Duration::from_secs(600);

/// What became of the chunks.
#[derive(Default, Serialize)]
struct Imported {
    model: String,
    /// Chunks that were written, and their tokens and bytes.
    chunks: usize,
    tokens: u64,
    bytes: u64,
    /// Tokens whose hidden states were written.
    hidden_tokens: u64,
    /// Tokens that were there before.
    there_tokens: u64,
    /// Chunks that left for the budget.
    removed: usize,
    limit_bytes: u64,
}

pub(super) fn run(
    import: &Import,
    path: &Path,
    running: &[Running],
    as_json: bool,
) -> Result<(), String> {
    let shown = Visible(&import.file.to_string_lossy()).to_string();
    let file = File::open(&import.file)
        .map_err(|e| format!("{shown} cannot be read ({e}): check the path"))?;
    let mut pack = Pack::open(file).map_err(|e| format!("{shown}: {e}"))?;
    let folder = Folder::open(path).map_err(|e| format!("The store cannot be opened: {e}"))?;
    let known = folder.origins();
    if !import.unchecked {
        for origin in &pack.origins {
            // Hidden states are of use where the KV of their tokens is.
            if !origin.is_hidden_among(&pack.origins) {
                check(origin, &known)
                    .map_err(|why| format!("{shown} is not for this store: {why}"))?;
            }
        }
    }
    let limit = limit(&folder, path, running)?;
    let size: u64 = pack.chunks.iter().map(Chunk::cost).sum();
    if size > limit {
        return Err(format!(
            "{shown} has {}, and the store's budget is {}: raise {}, or export less of it (--last, --tokens)",
            bytes(size),
            bytes(limit),
            env::STORE_GB
        ));
    }
    let contents = Contents::read(folder.clone())
        .map_err(|e| format!("{} cannot be read: {e}", path.display()))?;
    let imported = copy_chunks(&mut pack, &folder, &contents, limit)
        .map_err(|why| format!("{shown}: {why}"))?;
    print_as(as_json, &imported, || summary(&imported, known.is_empty()))
}

fn summary(imported: &Imported, is_first: bool) -> String {
    let mut text = format!(
        "{} of {}, {}{}, {}; {} were there\n",
        counted(imported.chunks as u64, "chunk"),
        Visible(&imported.model),
        counted(imported.tokens, "token"),
        with_hidden(imported.hidden_tokens),
        bytes(imported.bytes),
        counted(imported.there_tokens, "token"),
    );
    if imported.removed > 0 {
        text += &format!(
            "{} used longest ago left for the budget of {}\n",
            counted(imported.removed as u64, "chunk"),
            bytes(imported.limit_bytes)
        );
    }
    if is_first {
        text += "No server has used this folder yet: one with another model, engine, flags or adapters will evaluate\n";
    }
    text
}

/// Whether a server that has used the folder is like the one that wrote the pack.
fn check(origin: &Origin, known: &[Origin]) -> Result<(), String> {
    let differences: Vec<(&Origin, String)> = known
        .iter()
        .filter_map(|other| Some((other, origin.difference(other)?)))
        .collect();
    if known.len() > differences.len() || known.is_empty() {
        return Ok(());
    }
    // The one that is most like it: that has the same model.
    let nearest = differences
        .iter()
        .find(|(other, _)| other.model == origin.model)
        .or(differences.first());
    let (other, why) = nearest.ok_or("")?;
    Err(format!(
        "it is of {}, and of what servers have used this folder for, {} is nearest: {why}. Nothing was imported \
         (--unchecked imports it nevertheless)",
        Visible(&origin.model),
        Visible(&other.model),
    ))
}

/// Copies the chunks, cut as this store needs them.
fn copy_chunks(
    pack: &mut Pack<File>,
    folder: &Folder,
    contents: &Contents,
    limit: u64,
) -> Result<Imported, String> {
    let mut tree = Store::with_memory(limit, usize::MAX);
    for header in &contents.headers {
        tree.load(header.chunk.clone(), header.last_used);
    }
    let writer = Writer::start(folder.clone(), QUEUE, || (), || false)
        .map_err(|e| format!("no thread can be started ({e})"))?;
    let mut imported = Imported {
        model: pack.origins[0].model.clone(),
        limit_bytes: limit,
        ..Imported::default()
    };
    let mut leaving = tree.orphans(0);
    leaving.extend(tree.set_limit(limit, folder.kept(), clock::time()));
    for name in leaving {
        writer.remove(name);
        imported.removed += 1;
    }
    let origins = pack.origins.clone();
    for origin in &origins {
        writer.name_model(origin.fingerprint, origin.model.clone());
        writer.note_origin(origin.clone());
    }
    let by_name: HashMap<Name, Chunk> = pack
        .chunks
        .iter()
        .map(|chunk| (chunk.name, chunk.clone()))
        .collect();
    let mut trouble = None;
    let progress = Progress::new("chunks read");
    let (count, mut nth) = (by_name.len() as u64, 0);
    let read = pack.each(|chunk, rows| {
        progress.at(nth, Some(count));
        nth += 1;
        let Some(row) = row_of(chunk, &by_name) else {
            return true;
        };
        let mut of = origins.iter();
        let Some(origin) = of.find(|origin| origin.fingerprint == chunk.fingerprint) else {
            return true;
        };
        let is_hidden = origin.is_hidden_among(&origins);
        let parts = parts(&tree, &row, chunk, rows, |range, cut| {
            match &origin.layout {
                Some(layout) => layout.slice(rows, chunk.tokens.len(), range, cut),
                None => is_hidden && slice_rows(rows, chunk.tokens.len(), range, cut),
            }
        });
        if !chunk.is_tail() && !is_hidden {
            let new: usize = parts.iter().map(|(part, _)| part.tokens.len()).sum();
            imported.there_tokens += (chunk.tokens.len() - new.min(chunk.tokens.len())) as u64;
        }
        for (part, rows) in parts {
            let Ok(leaving) = tree.insert(part.clone()) else {
                break;
            };
            imported.removed += leaving.len();
            for name in leaving {
                writer.remove(name);
            }
            imported.chunks += 1;
            if is_hidden {
                imported.hidden_tokens += part.tokens.len() as u64;
            } else if !part.is_tail() {
                imported.tokens += part.tokens.len() as u64;
            }
            imported.bytes += part.cost();
            if let Err(why) = write(&writer, &part, rows) {
                trouble = Some(why);
                return false;
            }
        }
        let found = tree.find(&chunk.fingerprint, &row);
        tree.used(found.pieces());
        writer.touch(found.pieces().iter().map(|piece| piece.name));
        true
    });
    let flushed = writer.flush(LONGEST);
    if let Some(why) = trouble.or_else(|| failure(&writer)) {
        return Err(why);
    }
    read.map_err(|e| e.to_string())?;
    if flushed {
        Ok(imported)
    } else {
        Err("the disk is too slow".to_owned())
    }
}

/// What of a chunk is not in the store, as chunks of the store with their rows. Where the store has other chunks, or
/// lacks what comes before, a chunk of the pack is divided, or left out. `slice`: appends the rows of some of its tokens (from which
/// one, and how many). False: they cannot be divided.
fn parts(
    tree: &Store,
    row: &[i32],
    chunk: &Chunk,
    rows: &[u8],
    slice: impl Fn((usize, usize), &mut Vec<u8>) -> bool,
) -> Vec<(Chunk, Vec<u8>)> {
    let of_token = chunk.bytes as usize / chunk.tokens.len();
    let missing = tree.missing(&chunk.fingerprint, row, of_token);
    if missing
        .first()
        .is_some_and(|first| first.start < chunk.start)
    {
        return Vec::new();
    }
    // Also where rows are one whole, as those of a tail are.
    if let [only] = &missing[..] {
        if only.tokens == chunk.tokens {
            let part = Chunk {
                bytes: chunk.bytes,
                ..only.clone()
            };
            return vec![(part, rows.to_vec())];
        }
    }
    let cut = missing.into_iter().map_while(|part| {
        let skip = (part.start - chunk.start) as usize;
        let mut cut = Vec::new();
        // A recurrent model has nothing for each token.
        let taken = rows.is_empty() || slice((skip, part.tokens.len()), &mut cut);
        taken.then_some((part, cut))
    });
    cut.collect()
}

/// As [`Layout::slice`](contextpilot_kv_store::Layout::slice), of rows that are side by side, one for each token.
fn slice_rows(
    rows: &[u8],
    tokens: usize,
    (from, count): (usize, usize),
    cut: &mut Vec<u8>,
) -> bool {
    let size = rows.len() / tokens;
    let slice = rows.get(from * size..(from + count) * size);
    let slice = slice.filter(|_| size * tokens == rows.len());
    cut.extend_from_slice(slice.unwrap_or_default());
    slice.is_some()
}

fn write(writer: &Writer, chunk: &Chunk, rows: Vec<u8>) -> Result<(), String> {
    let rows = Arc::new(rows);
    loop {
        match writer.write(chunk, Arc::clone(&rows)) {
            Ok(()) => return Ok(()),
            Err(Refusal::Full) if writer.flush(LONGEST) => {}
            Err(_) => {
                return Err(
                    failure(writer).unwrap_or_else(|| "the disk does not take it".to_owned())
                );
            }
        }
        if let Some(why) = failure(writer) {
            return Err(why);
        }
    }
}

/// What the disk refused.
fn failure(writer: &Writer) -> Option<String> {
    writer.done().find_map(|done| match done {
        Done::Failed(_, problem) => Some(problem.to_string()),
        Done::Written(_) | Done::NotFinite(_) | Done::Paused(_) | Done::Resumed => None,
    })
}
