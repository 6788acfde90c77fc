//! What is in the store, as text and as JSON.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use contextpilot_client::control::{StoreRemote, Timestamp};
use serde_json::{Value, json};

use super::contents::{Contents, OfModel};
use super::users::User;
use crate::companion::show::{Visible, bytes, count, counted, span};
use crate::companion::table::Table;
use crate::companion::under_way::not_in_use;

pub(super) fn text(folder: &Path, contents: &Contents, users: &[User<'_>]) -> String {
    let mut text = format!("{}\n", Visible(&folder.to_string_lossy()));
    text += &format!(
        "{}, {}, {}{}\n",
        counted(contents.headers.len() as u64, "chunk"),
        counted(contents.tokens(), "token"),
        bytes(contents.bytes()),
        used(contents)
    );
    for (number, what) in [
        (contents.damaged, "files were damaged, and are removed"),
        (
            contents.foreign,
            "files are not the store's, or another version's; they stay",
        ),
        (contents.unreadable, "files cannot be read"),
    ] {
        if number > 0 {
            text += &format!("{} {what}\n", count(number as u64));
        }
    }
    let models = contents.models();
    if !models.is_empty() {
        text += "\n";
        text += &table(&models, users);
    }
    for prompt in contents.kept() {
        let name = prompt.model.as_deref().unwrap_or_default();
        text += &format!(
            "kept: {} of {} ({}){}, for {} more\n",
            counted(prompt.tokens, "token"),
            Visible(name),
            prompt.fingerprint.get(..12).unwrap_or_default(),
            if prompt.is_salted {
                ", for requests with its cache_salt"
            } else {
                ""
            },
            span(left(prompt.until)),
        );
    }
    let remote = remote(contents);
    if !users.is_empty() || remote.is_some() {
        text += "\n";
    }
    if let Some(remote) = &remote {
        text += &format!("remote {}\n", remote_text(remote));
    }
    for User { process, store } in users {
        let loads = counted(store.loads, "load");
        // Not known while the folder is read.
        let most = match store.limit_bytes {
            0 => String::new(),
            limit => format!(", at most {}", bytes(limit)),
        };
        text += &format!(
            "server {process}: {} loaded in {loads}{most}\n",
            counted(store.loaded_tokens, "token"),
        );
        let is_in_order = store.ready && store.refused.is_empty() && store.problem.is_none();
        if contents.headers.is_empty() && is_in_order {
            text += "  nothing is stored yet: what a slot holds is stored before something else takes its place, and when the server ends\n";
        }
        if let Some(why) = not_in_use(store) {
            text += &format!("  {why}\n");
        }
        for why in &store.refused {
            text += &format!("  REFUSED: {}\n", Visible(why));
        }
        if let Some(problem) = &store.problem {
            text += &format!("  PROBLEM: {}\n", Visible(problem));
        }
    }
    text
}

/// What the process says that keeps the folder and a remote alike.
fn remote(contents: &Contents) -> Option<StoreRemote> {
    let note = contents.folder.remote_note()?;
    StoreRemote::read(&note, Timestamp::from(SystemTime::now()))
}

/// What is said of a remote, on one line.
pub(in crate::companion) fn remote_text(remote: &StoreRemote) -> String {
    let moment = remote.since.map_or(0, Timestamp::unix_ms);
    let since = ago(moment.saturating_mul(1_000_000));
    let mut text = match (&remote.problem, remote.reachable) {
        (None, true) => format!("{}: reachable for {since}", Visible(&remote.address)),
        (problem, _) => format!(
            "{}: NOT REACHABLE for {since} ({})",
            Visible(&remote.address),
            Visible(problem.as_deref().unwrap_or("nothing was asked yet"))
        ),
    };
    text += &format!(
        "; {} sent, {} fetched, {} waiting, {} refused",
        counted(remote.sent, "chunk"),
        count(remote.fetched),
        count(remote.waiting),
        count(remote.refused)
    );
    if let Some(why) = &remote.last_refused {
        text += &format!(" ({})", Visible(why));
    }
    text
}

/// When the chunks were last used.
fn used(contents: &Contents) -> String {
    let times = match (contents.headers.last(), contents.headers.first()) {
        (Some(last), Some(first)) => [last, first].map(|header| ago(header.last_used)),
        _ => return String::new(),
    };
    match &times {
        [last, first] if last == first => format!("; last used {last} ago"),
        [last, first] => format!("; last used {last} to {first} ago"),
    }
}

fn table(models: &[OfModel], users: &[User<'_>]) -> String {
    let mut table = Table::new(
        &[
            "model",
            "chunks",
            "tokens",
            "bytes",
            "last used",
            "now used by",
        ],
        &[0, 5],
    );
    for model in models {
        let short = short(model);
        let shares = |other: &&OfModel| other.model == model.model;
        table.row(vec![
            match &model.model {
                Some(name) if models.iter().filter(shares).count() > 1 => {
                    format!("{} ({short})", Visible(name))
                }
                Some(name) => Visible(name).to_string(),
                None => short.to_owned(),
            },
            count(model.chunks as u64),
            count(model.tokens),
            bytes(model.bytes),
            format!("{} ago", ago(model.last_used)),
            used_by(model, users),
        ]);
    }
    let mut text = table.text();
    for model in models {
        if let Some(differs) = &model.differs {
            text += &format!("{}: {}\n", short(model), Visible(differs));
        }
    }
    text
}

/// `server 1234`: which servers look this model's prompts up; or nothing.
fn used_by(model: &OfModel, users: &[User<'_>]) -> String {
    let uses = |user: &&User<'_>| user.store.fingerprints.contains(&model.fingerprint);
    let servers: Vec<String> = users
        .iter()
        .filter(uses)
        .map(|user| user.process.to_string())
        .collect();
    if servers.is_empty() {
        String::new()
    } else {
        format!("server {}", servers.join(", "))
    }
}

/// Enough of a fingerprint to tell models apart.
fn short(model: &OfModel) -> &str {
    model.fingerprint.get(..12).unwrap_or_default()
}

pub(super) fn json(folder: &Path, contents: &Contents, users: &[User<'_>]) -> Value {
    let age = |nanoseconds: u64| since(nanoseconds).as_secs_f64();
    let models = contents.models().into_iter().map(|model| {
        let age = age(model.last_used);
        let mut value = json!(model);
        value["last_used_seconds_ago"] = json!(age);
        value
    });
    let kept = contents.kept().into_iter().map(|prompt| {
        let seconds = left(prompt.until).as_secs_f64();
        let mut value = json!(prompt);
        value["seconds_left"] = json!(seconds);
        value
    });
    json!({
        "folder": folder.to_string_lossy(),
        "chunks": contents.headers.len(),
        "tokens": contents.tokens(),
        "bytes": contents.bytes(),
        "damaged": contents.damaged,
        "foreign": contents.foreign,
        "unreadable": contents.unreadable,
        "last_used_seconds_ago": contents.headers.last().map(|header| age(header.last_used)),
        "first_used_seconds_ago": contents.headers.first().map(|header| age(header.last_used)),
        "models": models.collect::<Vec<_>>(),
        "kept": kept.collect::<Vec<_>>(),
        "remote": remote(contents),
        "servers": users.iter().map(|user| json!({
            "pid": user.process,
            "loads": user.store.loads,
            "loaded_tokens": user.store.loaded_tokens,
            "limit_bytes": user.store.limit_bytes,
            "fingerprints": user.store.fingerprints,
            "refused": user.store.refused,
            "refused_times": user.store.refused_times,
            "problem": user.store.problem,
        })).collect::<Vec<_>>(),
    })
}

fn ago(nanoseconds: u64) -> String {
    span(since(nanoseconds))
}

/// How long it is until a time, in nanoseconds since 1970.
fn left(nanoseconds: u64) -> Duration {
    let then = UNIX_EPOCH + Duration::from_nanos(nanoseconds);
    then.duration_since(SystemTime::now()).unwrap_or_default()
}

/// That hidden states are among what is moved, if they are.
pub(super) fn with_hidden(tokens: u64) -> String {
    match tokens {
        0 => String::new(),
        _ => format!(", hidden states of {}", count(tokens)),
    }
}

/// How long ago a time is, in nanoseconds since 1970. Nothing, if the clock was set back since.
fn since(nanoseconds: u64) -> Duration {
    let then = UNIX_EPOCH + Duration::from_nanos(nanoseconds);
    SystemTime::now().duration_since(then).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use contextpilot_client::control::PrefixStore;
    use contextpilot_kv_files::Folder;

    use super::*;

    #[test]
    fn of_an_empty_folder_it_says_when_something_is_stored() {
        let folder = tempfile::tempdir().unwrap();
        let contents = Contents::read(Folder::open(folder.path()).unwrap()).unwrap();
        let said = |store: &PrefixStore| {
            let users = [User { process: 7, store }];
            text(folder.path(), &contents, &users).contains("nothing is stored yet: ")
        };
        let ready = PrefixStore {
            ready: true,
            ..PrefixStore::default()
        };
        assert!(said(&ready));
        let refused = PrefixStore {
            refused: vec!["a slot with an image".to_owned()],
            ..ready
        };
        assert!(!said(&refused) && !said(&PrefixStore::default()));
    }
}
