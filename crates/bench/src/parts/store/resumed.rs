//! The first token after a restart: a conversation goes on with a server that has just started, on the store of the
//! one before. Next to it: a server without a store, which evaluates all of it, the same server's next turn, which
//! has all of it in its slot, and reading the bytes that were loaded.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use contextpilot_testbed::{Arch, Builder, Connection, Model, Request, Result, Server, Spec};
use serde_json::Value;

use super::super::serving::ask_through;
use super::Stored;
use crate::lab::{Lab, failed};
use crate::page::{Aim, Page};
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
}

pub(super) fn run(also: &[PathBuf], lab: &Lab, page: &mut Page) -> Result<()> {
    page.say(
        "A server evaluates a prompt and ends by SIGTERM. Another one starts on the same folder, and the conversation\n\
         goes on: with one more token, because what is new has to be evaluated by any server. *First token*: from\n\
         sending this request to its first token. *Next turn*: the same server is asked with one token more, which\n\
         is what a server takes that did not restart. *Reading*: the bytes that were loaded, at the rate at which\n\
         one thread reads all files of the store into one buffer. Both the load and this reading have the files in\n\
         the page cache. *Plain*: a server without a store starts and evaluates all; in parentheses a server with an\n\
         empty one. *Store ready*: so much later than the server itself, which is when the model's file and the\n\
         folder have been read; what is asked before is evaluated. Times are medians, counts the worst.",
    );
    let mut table = String::from(
        "| model | tokens | loaded | evaluated | bytes loaded | plain | first token | next turn | reading | beyond reading | store ready | restarts |\n\
         |---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    for talk in talks(also, lab) {
        let (plain, stored) = talk.restarts(lab)?;
        let of = |figure: fn(&Restart) -> f64| Sample::new(stored.iter().map(figure).collect());
        let beyond = of(|one| one.first - one.reading);
        let loaded = stored.iter().map(|one| one.loaded).min().unwrap_or(0);
        let evaluated = stored.iter().map(|one| one.evaluated).max().unwrap_or(0);
        let bytes = stored.iter().map(|one| one.bytes).max().unwrap_or(0);
        let row = format!(
            "| {} | {} | {loaded} | {evaluated} | {:.1} MB | {plain} | {:.1} ms | {:.1} ms | {:.1} ms | {} ms | {:.0} ms | {} |\n",
            talk.name,
            talk.tokens,
            bytes as f64 / 1e6,
            of(|one| one.first).median(),
            of(|one| one.next).median(),
            of(|one| one.reading).median(),
            beyond.interval().show(1),
            of(|one| one.ready).median(),
            stored.len(),
        );
        eprint!("{row}");
        table.push_str(&row);
        page.aim(
            &format!(
                "The first token after a restart, {}, {} tokens",
                talk.name, talk.tokens
            ),
            &format!("reading and at most {MORE} ms"),
            &format!("reading and {:.0} ms", beyond.median()),
            Aim::met_if(beyond.median() <= MORE),
        );
    }
    page.say(table);
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
                name: "tiny, dense, 1 KB a token".to_owned(),
                model: Model::of(&Spec {
                    width: 128,
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

    /// The first token of a server that evaluates, and restarts with a store.
    fn restarts(&self, lab: &Lab) -> Result<(String, Vec<Restart>)> {
        let builder = self.server(lab);
        let folder = tempfile::tempdir_in(lab.scratch(""))?;
        let mut first = Stored::start(lab, &builder, folder.path())?;
        let empty = ask(&first.server, &self.prompt(0, 0), "req-0")?;
        first.server.stop(SIGTERM)?;
        let [stored, plain] = self.rounds;
        let stored: Result<_> = (0..stored)
            .map(|round| self.stored(lab, &builder, folder.path(), round))
            .collect();
        let plain: Result<Vec<f64>> = (0..plain)
            .map(|_| ask(&builder.plain().spawn()?, &self.prompt(0, 1), "req-1"))
            .collect();
        let plain = match Sample::new(plain?) {
            all if all.len() == 0 => format!("({empty:.0} ms)"),
            all => format!("{:.0} ms", all.median()),
        };
        Ok((plain, stored?))
    }

    /// The conversation goes on in another way each time.
    fn stored(&self, lab: &Lab, builder: &Builder, folder: &Path, round: usize) -> Result<Restart> {
        let (bytes, reading) = read(folder)?;
        let mut server = Stored::starting(lab, builder, folder)?;
        let start = Instant::now();
        server.await_store()?;
        let ready = start.elapsed().as_secs_f64() * 1e3;
        let before = read_by(&server.server)?;
        let first = ask(&server.server, &self.prompt(round, 1), "req-1")?;
        let loaded_bytes = read_by(&server.server)? - before;
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
        })
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

/// Reads all files of a store. The bytes, and the milliseconds that it takes the second time.
fn read(folder: &Path) -> Result<(u64, f64)> {
    let files = files(folder)?;
    let mut buffer = Vec::new();
    let mut whole = || -> Result<(u64, f64)> {
        let start = Instant::now();
        let mut bytes = 0;
        for path in &files {
            buffer.clear();
            bytes += File::open(path)?.read_to_end(&mut buffer)? as u64;
        }
        Ok((bytes, start.elapsed().as_secs_f64() * 1e3))
    };
    whole()?;
    whole()
}

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            match path.is_dir() {
                true => folders.push(path),
                false if path.extension().is_some_and(|end| end == "kv") => found.push(path),
                false => {}
            }
        }
    }
    Ok(found)
}

/// Bytes that a server has read from files.
fn read_by(server: &Server) -> Result<u64> {
    let said = std::fs::read_to_string(format!("/proc/{}/io", server.pid()))?;
    said.lines()
        .find_map(|line| line.strip_prefix("rchar: ")?.parse().ok())
        .ok_or_else(|| failed("no rchar in /proc"))
}
