//! Draws `docs/top.svg`: what `contextpilot-llama top` shows of a llama-server under the launcher, while
//! two clients ask about nine documents, so that slots and host prompt cache overflow all the time.
//!
//! Run it by `scripts/top-picture`.

use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use contextpilot_testbed::{Random, Request, Server};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const NAMES: [&str; 9] = [
    "tea",
    "owls",
    "salt",
    "ash-trees",
    "rivers",
    "bells",
    "maps",
    "bread",
    "tides",
];

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // A program for people, and its one error message.
            eprintln!("[ContextPilot] The picture was not drawn: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [launcher, companion, out, seconds] = &arguments[..] else {
        return Err("run scripts/top-picture".into());
    };
    let server = Server::tiny()
        .args(["--alias", "tiny", "--parallel", "3", "--ctx-size", "6144"])
        .args(["--no-kv-unified", "--cache-ram", "2"])
        .launcher(launcher)
        .env("CONTEXTPILOT_LISTEN", "127.0.0.1:0")
        .spawn()?;
    let control = server.await_control()?.to_string();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (server, ended) = (&server, &ended);
        let clients = [1, 2].map(|number| scope.spawn(move || client(server, number, ended)));
        let drawn = Command::new(companion)
            .args(["top", "--control", &control, "--picture", out])
            .args(["--watch", seconds])
            .status();
        ended.store(true, Ordering::Relaxed);
        for client in clients {
            match client.join() {
                Ok(result) => result?,
                Err(_) => return Err("a client panicked".into()),
            }
        }
        if drawn?.success() {
            Ok(())
        } else {
            Err("contextpilot-llama top failed".into())
        }
    })
}

/// Asks about documents: some more often than others, and now and then with another date in front.
fn client(
    server: &Server,
    number: u64,
    ended: &AtomicBool,
) -> std::result::Result<(), contextpilot_testbed::Error> {
    let mut source = Random(number);
    let mut asked = 0;
    while !ended.load(Ordering::Relaxed) {
        let random = source.draw();
        let place = ((random >> 32) % 9 * ((random >> 20) % 9) / 8) as usize;
        let name = NAMES[place];
        asked += 1;
        let day = if asked % 12 == 0 { "Sunday" } else { "Monday" };
        let text = format!("It is {day}. A document about {name}. ");
        let text = text + &format!("This is said of {name}. ").repeat(24 + 2 * place);
        let request = Request::completion(format!("{text} Question {asked} of {number}?"));
        let request = match asked % 6 {
            0 => request,
            _ => request.id(format!("req-{name}-{number}-{asked}")),
        };
        server.complete(&request)?;
        std::thread::sleep(Duration::from_millis(random >> 32 & 255));
    }
    Ok(())
}
