//! `store`: the prefix store's folder, seen from outside.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use contextpilot_kv_files::Folder;
use contextpilot_settings::env;
use serde_json::json;

mod contents;
mod export;
mod import;
mod size;
mod sync;
mod text;
mod users;

pub(super) use text::remote_text;

use super::agent;
use super::servers::{self, Running};
use super::show::{Visible, bytes, counted, print_as, print_json, print_path};
use crate::say::say;
use crate::variables::{Lookup, of_process};
use contents::Contents;
use size::Size;

/// Show, check or shrink the prefix store
///
/// Reads the folder of CONTEXTPILOT_STORE. Without that variable: the folder of the server of this user
/// that runs with CONTEXTPILOT_LISTEN=auto, else that of `agent`. A server may use the folder meanwhile: if a chunk is gone, it
/// evaluates. Files with a damaged header are removed on the way, as a server does when it starts.
#[derive(Args)]
#[command(after_help = "Examples:
  contextpilot-llama store
  contextpilot-llama store verify
  contextpilot-llama store prune --to 10GB")]
pub(super) struct StoreOptions {
    #[command(subcommand)]
    action: Option<Action>,
    /// The folder [default: CONTEXTPILOT_STORE, else that of the server that runs]
    #[arg(long, value_name = "FOLDER", global = true)]
    folder: Option<PathBuf>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum Action {
    /// Read every chunk and check it; what is damaged is removed
    ///
    /// The exit code is 2 if something was damaged or cannot be read.
    #[command(
        alias = "check",
        after_help = "Example:
  contextpilot-llama store verify --json"
    )]
    Verify,
    /// Remove what was used longest ago, until the rest is this large
    #[command(after_help = "Example:
  contextpilot-llama store prune --to 500MB")]
    Prune(Prune),
    /// The same: a command of its own, so that its messages name it as it was typed.
    #[command(
        hide = true,
        after_help = "Example:
  contextpilot-llama store shrink --to 10GB"
    )]
    Shrink(Prune),
    /// Remove all chunks, or those of a model
    ///
    /// The bytes stay on the disk until they are overwritten, as with any file that is removed.
    #[command(after_help = "Example:
  contextpilot-llama store clear
  contextpilot-llama store clear --model tea.gguf")]
    Clear {
        #[command(flatten)]
        of: OfModel,
    },
    /// Write chunks into one file, for another machine
    ///
    /// The file has all that its chunks depend on, and is as secret as the prompts. Without a choice it gets everything of
    /// the model.
    #[command(after_help = "Examples:
  contextpilot-llama store export tea.pack --last 1
  curl -d '{\"content\": \"Tell me about tea.\"}' http://127.0.0.1:8080/tokenize | contextpilot-llama store export tea.pack --tokens -")]
    Export(export::Export),
    /// Take the chunks of such a file into the folder
    ///
    /// Nothing is taken if the file is damaged, if model, engine, flags or adapters are others than those of the servers that
    /// have used the folder, or if it is larger than the budget (CONTEXTPILOT_STORE_GB). What was used longest ago leaves for
    /// it. Servers that use the folder see it within seconds.
    #[command(after_help = "Example:
  contextpilot-llama store import tea.pack --folder /var/lib/llama/store")]
    Import(import::Import),
    /// Keep the folder and a Redis or a bucket alike, so that several machines have one store
    ///
    /// What servers here write is sent, and what other machines have sent is put into the folder, where servers see it within
    /// seconds. Only chunks of models that a server has used the folder for are fetched. The launcher starts this if
    /// CONTEXTPILOT_STORE_REMOTE is set.
    #[command(after_help = "Examples:
  contextpilot-llama store sync redis://10.0.0.2:6379
  contextpilot-llama store sync redis://10.0.0.2:6379 --once
  contextpilot-llama store sync s3://bucket/llama --once")]
    Sync(sync::Sync),
    /// Print the folder
    #[command(after_help = "Example:
  du -sh \"$(contextpilot-llama store path)\"")]
    Path,
}

/// How much is left.
#[derive(Args)]
struct Prune {
    /// The size: bytes, or with kB, MB, GB, TB (10³, 10⁶, …) or KiB, MiB, GiB, TiB. With --model that of its chunks
    #[arg(long, value_name = "SIZE")]
    to: Size,
    #[command(flatten)]
    of: OfModel,
}

/// The model whose chunks are removed.
#[derive(Args)]
struct OfModel {
    /// Only of this model: its name as the store shows it, or the beginning of its fingerprint
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
}

/// Something was damaged or cannot be read.
const DAMAGED: u8 = 2;

pub(super) fn run(options: &StoreOptions) -> Result<ExitCode, String> {
    let running = servers::running();
    let path = folder(options, &running)?;
    let json = options.json;
    match &options.action {
        Some(Action::Path) if json => {
            return done(print_json(&json!({ "folder": path.to_string_lossy() })));
        }
        Some(Action::Path) => return done(print_path(&path)),
        Some(Action::Import(import)) => return done(import::run(import, &path, &running, json)),
        Some(Action::Sync(sync)) => return done(sync::run(sync, &path, &running, json)),
        _ => {}
    }
    let shown = || Visible(&path.to_string_lossy()).to_string();
    let folder = Folder::existing(&path).map_err(|e| format!("The store cannot be opened: {e}"))?;
    let Some(folder) = folder else {
        return Err(match Folder::look(&path) {
            _ if path.exists() && !path.is_dir() => format!(
                "{} is no folder: name the one that a server has as {}",
                shown(),
                env::STORE
            ),
            Err(why) => format!(
                "There is no prefix store in {}, and none can be made there: {why}; correct {}",
                shown(),
                env::STORE
            ),
            Ok(_) => format!(
                "There is no prefix store in {0}: a server with {1}={0} makes one",
                shown(),
                env::STORE
            ),
        });
    };
    let contents =
        Contents::read(folder).map_err(|e| format!("{} cannot be read: {e}", shown()))?;
    match &options.action {
        Some(Action::Export(export)) => done(export::run(export, &contents, json)),
        None | Some(Action::Path | Action::Import(_) | Action::Sync(_)) => {
            let users = users::users(&running, &path);
            let value = text::json(&path, &contents, &users);
            done(print_as(options.json, &value, || {
                text::text(&path, &contents, &users)
            }))
        }
        Some(Action::Verify) => verify(options, contents),
        Some(Action::Prune(Prune { to, of }) | Action::Shrink(Prune { to, of })) => {
            remove(options, contents, to.bytes(), of)
        }
        Some(Action::Clear { of }) => remove(options, contents, 0, of),
    }
}

fn done(printed: Result<(), String>) -> Result<ExitCode, String> {
    printed.map(|()| ExitCode::SUCCESS)
}

/// The folder that is meant, absolute.
fn folder(options: &StoreOptions, running: &[Running]) -> Result<PathBuf, String> {
    let given = options.folder.clone();
    let given = given.or_else(|| of_process.non_empty(env::STORE).map(PathBuf::from));
    if let Some(given) = given {
        return std::path::absolute(&given)
            .map_err(|e| format!("The folder {} has no path: {e}", given.display()));
    }
    let mut folders: Vec<&str> = running.iter().filter_map(Running::store).collect();
    folders.sort_unstable();
    folders.dedup();
    match folders[..] {
        [folder] => Ok(PathBuf::from(folder)),
        [] => agent::store_there().ok_or_else(|| {
            format!(
                "No store is known: set {}, or name the folder with --folder",
                env::STORE
            )
        }),
        _ => Err(format!(
            "Servers of this user have several stores: choose one with --folder: {}",
            Visible(&folders.join(", "))
        )),
    }
}

fn verify(options: &StoreOptions, mut contents: Contents) -> Result<ExitCode, String> {
    let checked = contents.verify(|name, why| say(format!("The chunk {name} was removed: {why}")));
    let bad = checked.damaged + checked.unreadable;
    print_as(options.json, &checked, || match (checked.good, bad) {
        (0, 0) => "The store is empty: there is nothing to check\n".to_owned(),
        (good, _) => format!(
            "{}, {}: {}\n",
            counted(good as u64, "chunk"),
            bytes(checked.bytes),
            match bad {
                0 => "all are good".to_owned(),
                _ => format!(
                    "these are good; damaged and removed: {}, not readable: {}",
                    checked.damaged, checked.unreadable
                ),
            }
        ),
    })?;
    Ok(match bad {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::from(DAMAGED),
    })
}

/// A chunk's file stays where it is: why, and what to do.
fn not_removed(error: &io::Error) -> String {
    let todo = match error.kind() {
        io::ErrorKind::ReadOnlyFilesystem => {
            "let its disk be written to (mount -o remount,rw), and try again"
        }
        io::ErrorKind::PermissionDenied => "try again as the user whose folder it is",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "make room on its disk, and try again"
        }
        _ => "look at the folder and its disk",
    };
    format!("The store cannot be made smaller ({error}): {todo}")
}

fn remove(
    options: &StoreOptions,
    mut contents: Contents,
    to: u64,
    of: &OfModel,
) -> Result<ExitCode, String> {
    let only = of.model.as_deref().map(|name| contents.named(name));
    let only = only.transpose()?;
    let removed = contents
        .shrink(to, only.as_ref())
        .map_err(|error| not_removed(&error))?;
    done(print_as(options.json, &removed, || {
        format!(
            "{} removed, {}; {} stay, {}\n",
            counted(removed.chunks as u64, "chunk"),
            bytes(removed.bytes),
            counted(removed.left_chunks as u64, "chunk"),
            bytes(removed.left_bytes)
        )
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_nothing_can_be_removed_it_says_what_to_do() {
        for (kind, todo) in [
            (io::ErrorKind::ReadOnlyFilesystem, "remount"),
            (io::ErrorKind::PermissionDenied, "as the user"),
            (io::ErrorKind::StorageFull, "make room"),
        ] {
            let said = not_removed(&kind.into());
            assert!(said.contains(todo), "{said}");
        }
    }
}
