//! The first token after a restart: a conversation goes on with a server that has just started, on the store of the
//! one before. Next to it: a server without a store, which evaluates all of it, one whose client restores its slot
//! from a state file, the same server's next turn, which has all of it in its slot, and reading the bytes that were
//! loaded, from the page cache and from the disk.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use contextpilot_testbed::{Arch, Builder, Connection, Model, Request, Result, Server, Spec};
use serde_json::{Value, json};

use super::super::serving::ask_through;
use super::stored::Stored;
use crate::lab::{Lab, failed};
use crate::page::{Aim, Page};
use crate::page_cache;
use crate::sample::Sample;

/// Target: the first token after a restart comes so many milliseconds after what reading the bytes takes, at most.
const MORE: f64 = 50.0;
/// A server whose slot has all of a conversation may still go back to its last checkpoint, a few tokens before the end.
const MOST_OF_NEXT: u64 = 16;
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(3_600);
const SIGTERM: i32 = 15;

/// A conversation with a model.
struct Talk {
    name: String,
    model: Model,
    tokens: usize,
    /// Restarts with a store, and without.
    rounds: [usize; 2],
}

/// What one restart came to.
#[derive(Clone, Copy, Debug)]
struct Restart {
    /// From the server's being ready to the store's, ms.
    ready: f64,
    /// Of the first prompt after the restart, ms.
    first: f64,
    /// Of the next turn, ms.
    next: f64,
    /// Reading as many bytes of the store's files, ms.
    reading: f64,
    loaded: u64,
    evaluated: u64,
    bytes: u64,
    /// Of these, so many came from the disk.
    from_disk: u64,
}

/// What the restarts of one model came to.
struct Restarts {
    /// A server without a store.
    plain: String,
    /// One without a store, whose client restores the slot and then asks, ms.
    by_hand: Vec<f64>,
    warm: Vec<Restart>,
    /// The store's files were not in the page cache.
    cold: Vec<Restart>,
}

pub(super) fn run(also: &[PathBuf], lab: &Lab, page: &mut Page) -> Result<()> {
    page.say(
        "A server evaluates a prompt and ends by SIGTERM. Another one starts on the same folder, and the conversation\n\
         goes on: with one more token, because what is new has to be evaluated by any server. *First token*: from\n\
         sending this request to its first token. *Next turn*: the same server is asked with one token more, which\n\
         is what a server takes that did not restart. *Reading*: the bytes that were loaded, at the rate at which\n\
         one thread reads all files of the store into one buffer. Both the load and this reading have the files in\n\
         the page cache. *Plain*: a server without a store starts and evaluates all; in parentheses a server with an\n\
         empty one. *By hand*: a server without a store starts, a client restores the slot from the state file that\n\
         was saved before the restart (`POST /slots/0?action=restore`), and then asks the same. *Store ready*: so much\n\
         later than the server itself, which is when the model's file and the folder have been read; what is asked\n\
         before is evaluated. Times are medians, counts the worst.",
    );
    let mut warm = String::from(
        "| model | tokens | loaded | evaluated | bytes loaded | plain | by hand | first token | next turn | reading | beyond reading | store ready | restarts |\n\
         |---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    let mut cold = String::from(
        "| model | tokens | bytes from the disk | first token | reading | beyond reading | restarts |\n\
         |---|--:|--:|--:|--:|--:|--:|\n",
    );
    for talk in talks(also, lab) {
        let restarts = talk.restarts(lab)?;
        let beyond = talk.add_warm(&restarts, &mut warm);
        talk.aim("", &beyond, page);
        if let Some(beyond) = talk.add_cold(&restarts, &mut cold) {
            talk.aim(", from the disk", &beyond, page);
        }
    }
    page.say(warm);
    page.say(
        "The same while the store's files are not in the page cache. *Reading* is from the disk, too. (No row: the\n\
         system kept the files in memory.)",
    );
    page.say(cold);
    Ok(())
}

fn talks(also: &[PathBuf], lab: &Lab) -> Vec<Talk> {
    let file = |path: &Path, tokens, rounds| Talk {
        name: path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned(),
        // Only the name of a model that a test writes follows from this.
        model: Model::file(path.to_owned(), Arch::Llama),
        tokens: lab.rounds(tokens, tokens / 10),
        rounds,
    };
    let rounds =
        |stored: usize, plain: usize| [lab.rounds(stored, 2), plain.min(lab.rounds(plain, 1))];
    let tiny = |name: &str, arch, tokens, plain| Talk {
        name: name.to_owned(),
        model: Model::tiny(arch),
        tokens: lab.rounds(tokens, tokens / 20),
        rounds: rounds(9, plain),
    };
    let real = lab.model.iter().map(|path| file(path, 8_000, rounds(7, 2)));
    let also = also.iter().map(|path| file(path, 4_000, rounds(7, 2)));
    real.chain(also)
        .chain([
            Talk {
                name: "tiny, dense, 2 KB a token".to_owned(),
                model: Model::of(&Spec {
                    layers: 1,
                    width: 512,
                    ..Spec::new(Arch::Llama)
                }),
                tokens: lab.rounds(100_000, 5_000),
                // To evaluate this once takes minutes.
                rounds: rounds(9, 0),
            },
            tiny("tiny, sliding windows", Arch::Gemma2, 20_000, 3),
            tiny("tiny, recurrent", Arch::Mamba, 20_000, 3),
            tiny("tiny, hybrid", Arch::Jamba, 20_000, 3),
        ])
        .collect()
}

impl Talk {
    fn server(&self, lab: &Lab) -> Builder {
        let context = (self.tokens + 64).next_multiple_of(256);
        // Threads that wait for each other spin: on a busy machine, which --quick is for, one is faster.
        let threads = lab.rounds(crate::cores::usable().len(), 1);
        Server::builder()
            .model(&self.model)
            .bare_slots(1)
            .args(["-c".to_owned(), context.to_string()])
            .args(["-t".to_owned(), threads.to_string()])
    }

    /// The conversation, and so many tokens more, which are others in each round.
    fn prompt(&self, round: usize, more: usize) -> Vec<usize> {
        // Letters of the tiny models, which are tokens of real ones, too.
        let begun = (0..self.tokens).map(|n| 300 + (n * 31 + n / 47) % 47);
        begun
            .chain((0..more).map(|n| 300 + (round + n) % 47))
            .collect()
    }

    /// A row for the table of files in the page cache. Returns what the first token took beyond reading, ms.
    fn add_warm(&self, restarts: &Restarts, table: &mut String) -> Sample {
        let all = &restarts.warm;
        let of = |figure: fn(&Restart) -> f64| Sample::new(all.iter().map(figure).collect());
        let beyond = of(|one| one.first - one.reading);
        let loaded = all.iter().map(|one| one.loaded).min().unwrap_or(0);
        let evaluated = all.iter().map(|one| one.evaluated).max().unwrap_or(0);
        let row = format!(
            "| {} | {} | {loaded} | {evaluated} | {:.1} MB | {} | {:.1} ms | {:.1} ms | {:.1} ms | {:.1} ms | {} ms | {:.0} ms | {} |\n",
            self.name,
            self.tokens,
            most(all.iter().map(|one| one.bytes)),
            restarts.plain,
            Sample::new(restarts.by_hand.clone()).median(),
            of(|one| one.first).median(),
            of(|one| one.next).median(),
            of(|one| one.reading).median(),
            beyond.interval().show(1),
            of(|one| one.ready).median(),
            all.len(),
        );
        eprint!("{row}");
        table.push_str(&row);
        beyond
    }

    /// The same for files on the disk. `None`: the system kept them in memory.
    fn add_cold(&self, restarts: &Restarts, table: &mut String) -> Option<Sample> {
        // Heads of files are read when a store starts, and pages around what is asked for.
        let all = restarts.cold.iter();
        let all: Vec<_> = all.filter(|one| one.from_disk >= one.bytes / 2).collect();
        if all.is_empty() {
            return None;
        }
        let of =
            |figure: fn(&Restart) -> f64| Sample::new(all.iter().map(|one| figure(one)).collect());
        let beyond = of(|one| one.first - one.reading);
        let row = format!(
            "| {} | {} | {:.1} MB | {:.1} ms | {:.1} ms | {} ms | {} |\n",
            self.name,
            self.tokens,
            most(all.iter().map(|one| one.from_disk)),
            of(|one| one.first).median(),
            of(|one| one.reading).median(),
            beyond.interval().show(1),
            all.len(),
        );
        eprint!("{row}");
        table.push_str(&row);
        Some(beyond)
    }

    fn aim(&self, how: &str, beyond: &Sample, page: &mut Page) {
        page.aim(
            &format!(
                "The first token after a restart{how}, {}, {} tokens",
                self.name, self.tokens
            ),
            &format!("reading and at most {MORE} ms"),
            &format!("reading and {:.0} ms", beyond.median()),
            Aim::met_if(beyond.median() <= MORE),
        );
    }

    /// The first token of a server that evaluates, and restarts with a store.
    fn restarts(&self, lab: &Lab) -> Result<Restarts> {
        let slots = tempfile::tempdir_in(lab.scratch(""))?;
        let builder = self
            .server(lab)
            .args(["--slot-save-path".as_ref(), slots.path().as_os_str()]);
        let folder = tempfile::tempdir_in(lab.scratch(""))?;
        let mut first = Stored::start(lab, &builder, folder.path())?;
        let empty = ask(&first.server, &self.prompt(0, 0), "req-0")?;
        slot(&first.server, "save")?;
        first.server.stop(SIGTERM)?;
        let [stored, plain] = self.rounds;
        let mut all = Restarts {
            plain: String::new(),
            by_hand: Vec::new(),
            warm: Vec::new(),
            cold: Vec::new(),
        };
        for round in 0..stored {
            let restart = |is_cold| self.stored(lab, &builder, folder.path(), round, is_cold);
            all.warm.push(restart(false)?);
            all.by_hand.push(self.by_hand(&builder, round)?);
            all.cold.push(restart(true)?);
        }
        let plain: Result<Vec<f64>> = (0..plain)
            .map(|_| ask(&builder.plain().spawn()?, &self.prompt(0, 1), "req-1"))
            .collect();
        all.plain = match Sample::new(plain?) {
            all if all.len() == 0 => format!("({empty:.0} ms)"),
            all => format!("{:.0} ms", all.median()),
        };
        Ok(all)
    }

    /// The slot is restored from the server's own state file.
    fn by_hand(&self, builder: &Builder, round: usize) -> Result<f64> {
        let server = builder.plain().spawn()?;
        Ok(slot(&server, "restore")? + ask(&server, &self.prompt(round, 1), "req-1")?)
    }

    /// The conversation goes on in another way each time.
    fn stored(
        &self,
        lab: &Lab,
        builder: &Builder,
        folder: &Path,
        round: usize,
        is_cold: bool,
    ) -> Result<Restart> {
        let files = files(folder)?;
        let (bytes, reading) = read(&files, is_cold)?;
        let mut server = Stored::starting(lab, builder, folder)?;
        let start = Instant::now();
        server.await_store()?;
        let ready = start.elapsed().as_secs_f64() * 1e3;
        if is_cold {
            page_cache::forget(&files)?;
        }
        let before = [
            read_by(&server.server, "rchar: ")?,
            read_by(&server.server, "read_bytes: ")?,
        ];
        let first = ask(&server.server, &self.prompt(round, 1), "req-1")?;
        let loaded_bytes = read_by(&server.server, "rchar: ")? - before[0];
        let from_disk = read_by(&server.server, "read_bytes: ")? - before[1];
        let account = server.account("req-1")?;
        let next = ask(&server.server, &self.prompt(round, 2), "req-2")?;
        let from_slot = server.account("req-2")?;
        if from_slot.from.store > 0 || from_slot.evaluated > MOST_OF_NEXT {
            return Err(failed(format!(
                "the next turn was not in the slot: {from_slot:?}"
            )));
        }
        server.server.stop(SIGTERM)?;
        Ok(Restart {
            ready,
            first,
            next,
            reading: reading * loaded_bytes as f64 / bytes as f64,
            loaded: account.from.store,
            evaluated: account.evaluated,
            bytes: loaded_bytes,
            from_disk,
        })
    }
}

/// The most of some numbers of bytes, MB.
fn most(bytes: impl Iterator<Item = u64>) -> f64 {
    bytes.max().unwrap_or(0) as f64 / 1e6
}

/// Saves the slot, or restores it. Milliseconds.
fn slot(server: &Server, action: &str) -> Result<f64> {
    let start = Instant::now();
    let path = format!("/slots/0?action={action}");
    let response = server.post(&path, &json!({"filename": "slot"}))?;
    match response.status {
        200 => Ok(start.elapsed().as_secs_f64() * 1e3),
        status => Err(failed(format!("{path}: status {status}"))),
    }
}

/// Milliseconds to the first token.
fn ask(server: &Server, prompt: &[usize], id: &str) -> Result<f64> {
    let request = Request::completion(Value::from(prompt))
        .predict(1)
        .id(id)
        .streamed();
    let mut connection: Connection = server.connect()?.with_patience(PATIENCE)?;
    Ok(ask_through(&mut connection, &request)?[0])
}

/// Reads all files of a store. The bytes, and the milliseconds that it takes from the disk, or else from the page cache.
fn read(files: &[PathBuf], is_cold: bool) -> Result<(u64, f64)> {
    let mut buffer = Vec::new();
    let mut whole = || -> Result<(u64, f64)> {
        let start = Instant::now();
        let mut bytes = 0;
        for path in files {
            buffer.clear();
            bytes += File::open(path)?.read_to_end(&mut buffer)? as u64;
        }
        Ok((bytes, start.elapsed().as_secs_f64() * 1e3))
    };
    whole()?;
    if is_cold {
        page_cache::forget(files)?;
    }
    whole()
}

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "kv") {
                found.push(path);
            }
        }
    }
    Ok(found)
}

/// Bytes that a server has read: from files (`rchar: `), or from a disk (`read_bytes: `).
fn read_by(server: &Server, what: &str) -> Result<u64> {
    let said = std::fs::read_to_string(format!("/proc/{}/io", server.pid()))?;
    said.lines()
        .find_map(|line| line.strip_prefix(what)?.parse().ok())
        .ok_or_else(|| failed(format!("no {what}in /proc")))
}
