//! `store export`: chunks in one file, for another machine.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use clap::Args;
use contextpilot_kv_files::{Header, PackWriter};
use contextpilot_kv_store::{Chunk, Fingerprint, Name, Origin, Store};
use serde_json::{Value, json};

use super::contents::{Contents, row_of};
use super::text::with_hidden;
use crate::companion::progress::Progress;
use crate::companion::show::{Visible, bytes, count, counted, print_as};

#[derive(Args)]
pub(super) struct Export {
    /// The file, which must not be there yet
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Of several models, the one with this name or a part of it, or whose fingerprint begins so
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Only the conversations that were used last, so many
    #[arg(long, value_name = "N", conflicts_with = "tokens")]
    last: Option<usize>,
    /// Only the beginning of a prompt with these tokens: a file with a JSON array of their ids, as /tokenize answers; -
    /// reads it from standard input
    #[arg(long, value_name = "FILE")]
    tokens: Option<PathBuf>,
}

pub(super) fn run(export: &Export, contents: &Contents, as_json: bool) -> Result<(), String> {
    let fingerprint = model(export, contents)?;
    let origin = contents.folder.origin(&fingerprint).ok_or(
        "It is not written down what these chunks depend on, because an older version has stored them: ask a server \
         that uses the folder something, and try again",
    )?;
    let all: Vec<&Header> = of_model(contents, &fingerprint);
    // `prompts`: what is asked for, if that is not all.
    let (chosen, prompts) = match (&export.tokens, export.last) {
        (Some(path), _) => {
            let prompts = vec![read_tokens(path)?];
            let chosen = beginnings(&all, &fingerprint, &prompts);
            if chosen.is_empty() {
                return Err("The store has nothing of this prompt with this model".to_owned());
            }
            (chosen, Some(prompts))
        }
        (None, Some(last)) => {
            let chosen = used_last(&all, last);
            let prompts = prompts_of(&chosen);
            (chosen, Some(prompts))
        }
        (None, None) => (whole(&all), None),
    };
    if chosen.is_empty() {
        return Err("There is nothing to export".to_owned());
    }
    let tokens = tokens_of(&chosen);
    let (mut origins, mut chunks) = (vec![origin], chosen);
    // From these a server goes on that drafts: a prompt is of use to it only with both.
    let mut hidden_tokens = 0;
    for origin in hidden_of(contents, &origins[0]) {
        let all = of_model(contents, &origin.fingerprint);
        let rows = match &prompts {
            Some(prompts) => beginnings(&all, &origin.fingerprint, prompts),
            None => whole(&all),
        };
        if !rows.is_empty() {
            hidden_tokens = hidden_tokens.max(tokens_of(&rows));
            origins.push(origin);
            chunks.extend(rows);
        }
    }
    write(&export.file, contents, &origins, &chunks)?;
    let origin = &origins[0];
    let of_one = prompts.filter(|_| export.tokens.is_some());
    let asked = of_one.map(|prompts| prompts[0].len() as u64);
    let size = fs::metadata(&export.file).map_or(0, |file| file.len());
    let value = json!({
        "file": export.file.to_string_lossy(),
        "model": origin.model,
        "chunks": chunks.len(),
        "tokens": tokens,
        "hidden_tokens": hidden_tokens,
        "asked_tokens": asked,
        "bytes": size,
    });
    print_as(as_json, &value, || {
        let of = asked.map_or(String::new(), |asked| {
            format!(" (of {} asked for)", count(asked))
        });
        format!(
            "{} of {}, {}{of}{}, {}: {}\n",
            counted(chunks.len() as u64, "chunk"),
            Visible(&origin.model),
            counted(tokens, "token"),
            with_hidden(hidden_tokens),
            bytes(size),
            Visible(&export.file.to_string_lossy()),
        )
    })
}

fn tokens_of(chunks: &[Chunk]) -> u64 {
    let of_tokens = chunks.iter().filter(|chunk| !chunk.is_tail());
    of_tokens.map(|chunk| chunk.tokens.len() as u64).sum()
}

/// The hidden states in the store of tokens whose KV is of this origin.
fn hidden_of(contents: &Contents, kv: &Origin) -> Vec<Origin> {
    let of_chunks = contents.headers.iter();
    let all: HashSet<Fingerprint> = of_chunks.map(|header| header.chunk.fingerprint).collect();
    let origins = all.iter().filter_map(|of| contents.folder.origin(of));
    let mut hidden: Vec<Origin> = origins.filter(|origin| origin.is_hidden_of(kv)).collect();
    hidden.sort_by_key(|origin| origin.fingerprint.0);
    hidden
}

/// The model that is meant.
fn model(export: &Export, contents: &Contents) -> Result<Fingerprint, String> {
    let mut models: Vec<(Fingerprint, String)> = Vec::new();
    for header in &contents.headers {
        let fingerprint = header.chunk.fingerprint;
        if !models.iter().any(|(known, _)| *known == fingerprint) {
            let name = contents.folder.model_name(&fingerprint);
            models.push((fingerprint, name.unwrap_or_default()));
        }
    }
    // Hidden states come with the KV of their tokens.
    let found = models.iter().map(|(of, _)| contents.folder.origin(of));
    let origins: Vec<Origin> = found.flatten().collect();
    let is_hidden = |of: &Fingerprint| {
        let origin = origins.iter().find(|origin| origin.fingerprint == *of);
        origin.is_some_and(|origin| origin.is_hidden_among(&origins))
    };
    models.retain(|(of, _)| !is_hidden(of));
    if let Some(wanted) = &export.model {
        models.retain(|(fingerprint, name)| {
            name.contains(&**wanted) || fingerprint.to_string().starts_with(&**wanted)
        });
    }
    match &models[..] {
        [(fingerprint, _)] => Ok(*fingerprint),
        [] => Err(match &export.model {
            Some(name) => format!("The store has nothing of a model called {}", Visible(name)),
            None => "The store is empty".to_owned(),
        }),
        _ => {
            let names = models.iter().map(|(fingerprint, name)| {
                format!("{} ({})", Visible(name), &fingerprint.to_string()[..12])
            });
            let names: Vec<String> = names.collect();
            Err(format!(
                "The store has several models, or one with several flags or adapters: choose one with --model, by its \
                 name or fingerprint: {}",
                names.join(", ")
            ))
        }
    }
}

/// Those that can be used: what they continue is there.
fn of_model<'a>(contents: &'a Contents, fingerprint: &Fingerprint) -> Vec<&'a Header> {
    let of_it = |header: &&Header| header.chunk.fingerprint == *fingerprint;
    let all = contents.headers.iter().filter(of_it);
    let tree = tree(all.clone());
    all.filter(|header| tree.has(&header.chunk.name)).collect()
}

fn tree<'a>(headers: impl Iterator<Item = &'a Header>) -> Store {
    let mut tree = Store::with_memory(u64::MAX, usize::MAX);
    for Header { chunk, last_used } in headers {
        tree.load(chunk.clone(), *last_used);
    }
    tree
}

/// All of them, each behind what it continues.
fn whole(all: &[&Header]) -> Vec<Chunk> {
    in_order(all.iter().map(|header| header.chunk.clone()).collect())
}

fn in_order(mut chunks: Vec<Chunk>) -> Vec<Chunk> {
    chunks.sort_by_key(|chunk| (chunk.start, chunk.name));
    chunks
}

/// The chunks of the conversations that were used last: of those that no tokens continue, and what they continue. Each
/// with the states that were taken there.
fn used_last(all: &[&Header], conversations: usize) -> Vec<Chunk> {
    let of_tokens = || all.iter().filter(|header| !header.chunk.is_tail());
    let parents: HashSet<Name> = of_tokens()
        .filter_map(|header| Some(header.chunk.parent?.0))
        .collect();
    let by_name: HashMap<Name, &Header> = all
        .iter()
        .map(|header| (header.chunk.name, *header))
        .collect();
    let mut ends: Vec<&&Header> = of_tokens()
        .filter(|header| !parents.contains(&header.chunk.name))
        .collect();
    // Of two that were used at once, the longer one.
    ends.sort_by_key(|header| std::cmp::Reverse((header.last_used, header.chunk.start)));
    let mut chosen: HashMap<Name, Chunk> = HashMap::new();
    for end in ends.into_iter().take(conversations) {
        let mut next = Some(end.chunk.name);
        while let Some(header) = next.and_then(|name| by_name.get(&name)) {
            chosen.insert(header.chunk.name, header.chunk.clone());
            next = header.chunk.parent.map(|(parent, _)| parent);
        }
    }
    let tails = all.iter().map(|header| &header.chunk).filter(|chunk| {
        let there = |(parent, _)| chosen.contains_key(&parent);
        chunk.is_tail() && chunk.parent.is_some_and(there)
    });
    let tails: Vec<Chunk> = tails.cloned().collect();
    in_order(chosen.into_values().chain(tails).collect())
}

/// The chunks that prompts begin with, and the states that were taken on the way.
fn beginnings(all: &[&Header], fingerprint: &Fingerprint, prompts: &[Vec<i32>]) -> Vec<Chunk> {
    let tree = tree(all.iter().copied());
    let mut names: HashSet<Name> = HashSet::new();
    for tokens in prompts {
        let found = tree.find(fingerprint, tokens);
        let tails = tree.tails(&found).into_iter().map(|tail| tail.piece);
        let pieces = found.pieces().iter().copied().chain(tails);
        names.extend(pieces.map(|piece| piece.name));
    }
    let chosen = all.iter().map(|header| &header.chunk);
    in_order(
        chosen
            .filter(|chunk| names.contains(&chunk.name))
            .cloned()
            .collect(),
    )
}

/// The tokens of each conversation of which all chunks are among these.
fn prompts_of(chunks: &[Chunk]) -> Vec<Vec<i32>> {
    let of_tokens = || chunks.iter().filter(|chunk| !chunk.is_tail());
    let by_name: HashMap<Name, Chunk> = of_tokens()
        .map(|chunk| (chunk.name, chunk.clone()))
        .collect();
    let parents: HashSet<Name> = of_tokens()
        .filter_map(|chunk| Some(chunk.parent?.0))
        .collect();
    let ends = of_tokens().filter(|chunk| !parents.contains(&chunk.name));
    ends.filter_map(|chunk| row_of(chunk, &by_name)).collect()
}

/// Token ids: a JSON array, or an object with one called `tokens`.
fn read_tokens(path: &Path) -> Result<Vec<i32>, String> {
    let shown = Visible(&path.to_string_lossy()).to_string();
    let mut text = String::new();
    let read = if path == Path::new("-") {
        io::stdin().read_to_string(&mut text)
    } else {
        File::open(path).and_then(|mut file| file.read_to_string(&mut text))
    };
    read.map_err(|e| format!("{shown} cannot be read ({e}): check the path"))?;
    let value: Option<Value> = serde_json::from_str(&text).ok();
    let array = value.map(|mut value| match value.get_mut("tokens") {
        Some(tokens) => tokens.take(),
        None => value,
    });
    // With pieces, each is an object.
    let id = |token: &Value| token.as_i64().or_else(|| token["id"].as_i64());
    let ids = array.as_ref().and_then(Value::as_array).and_then(|all| {
        let ids = all.iter().map(|token| i32::try_from(id(token)?).ok());
        ids.collect::<Option<Vec<i32>>>()
    });
    ids.ok_or(format!(
        "{shown} has no tokens: a JSON array of token ids is expected, or what /tokenize answers"
    ))
}

fn write(
    path: &Path,
    contents: &Contents,
    origins: &[Origin],
    chunks: &[Chunk],
) -> Result<(), String> {
    let shown = Visible(&path.to_string_lossy()).to_string();
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path);
    let file = file.map_err(|e| match e.kind() {
        io::ErrorKind::AlreadyExists => {
            format!("{shown} is there already: remove it, or choose another name")
        }
        _ => format!("{shown} cannot be written ({e}): check the folder"),
    })?;
    let written = write_to(file, contents, origins, chunks);
    if written.is_err() {
        let _ = fs::remove_file(path);
    }
    written.map_err(|why| format!("{shown} was not written: {why}"))
}

fn write_to(
    file: File,
    contents: &Contents,
    origins: &[Origin],
    chunks: &[Chunk],
) -> Result<(), String> {
    let text = |e: io::Error| e.to_string();
    let mut pack = PackWriter::begin(BufWriter::with_capacity(1 << 20, file), origins, chunks)
        .map_err(text)?;
    let mut rows = Vec::new();
    let progress = Progress::new("chunks written");
    for (nth, chunk) in (0..).zip(chunks) {
        progress.at(nth, Some(chunks.len() as u64));
        let read = contents.folder.read(&chunk.name, chunk.bytes, &mut rows);
        read.map_err(|e| format!("a chunk is missing ({e}): try again"))?;
        pack.chunk(chunk, &rows).map_err(text)?;
    }
    let buffered = pack.finish().map_err(text)?;
    let file = buffered.into_inner().map_err(|e| text(e.into_error()))?;
    file.sync_all().map_err(text)
}
