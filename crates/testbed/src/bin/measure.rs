//! Measures what the hook and the launcher cost: a plain server and a hooked one are asked in turn, and
//! compared within one run.
//!
//! `measure LAUNCHER [ROUNDS]`. No script runs it: `scripts/bench` runs the program of `crates/bench`, which
//! measures more. Both write `docs/benchmarks.md`, so this one overwrites the page of the other.

use contextpilot_testbed::{Arch, Builder, Index, Model, Request, Result, Server, llama_server};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// How long to wait for an eviction.
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    match run() {
        Ok(page) => {
            println!("{page}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("[ContextPilot] The measurement stopped: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Figures of one kind, sorted.
struct Sample(Vec<f64>);

impl Sample {
    fn new(mut figures: Vec<f64>) -> Self {
        figures.sort_by(f64::total_cmp);
        Self(figures)
    }

    fn at(&self, share: f64) -> f64 {
        let last = self.0.len().saturating_sub(1);
        self.0
            .get((last as f64 * share).round() as usize)
            .copied()
            .unwrap_or(f64::NAN)
    }

    fn row(&self) -> String {
        format!(
            "{:.3} | {:.3} | {:.3} | {:.3}",
            self.at(0.5),
            self.at(0.1),
            self.at(0.9),
            self.at(0.99)
        )
    }
}

fn run() -> Result<String> {
    let mut arguments = std::env::args_os().skip(1);
    let launcher = arguments
        .next()
        .ok_or_else(|| std::io::Error::other("run scripts/bench"))?;
    let rounds: usize = arguments
        .next()
        .and_then(|rounds| rounds.to_str()?.parse().ok())
        .unwrap_or(300);

    let mut page = String::from(
        "# Benchmarks\n\n\
         Written by `scripts/bench`. Both sides of a comparison run in turn on the same machine in\n\
         the same run; milliseconds. A ratio counts as a difference if it lies outside the spread of\n\
         its own rounds (p10 to p90).\n",
    );
    launching(&mut page, &launcher, rounds.min(100))?;
    let index = Index::start()?;
    let plain = Server::builder()
        .model(&Model::tiny(Arch::Llama))
        .bare_slots(2);
    let hooked = plain.clone().launcher(&launcher).index_url(index.url());
    serving(&mut page, (&plain, &hooked), rounds)?;
    signalling(&mut page, &hooked, &index, rounds)?;
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/benchmarks.md");
    std::fs::write(path, &page)?;
    Ok(page)
}

/// The wall time of `--version`: of the server, and of the launcher without and with an index.
fn launching(page: &mut String, launcher: &OsString, rounds: usize) -> Result<()> {
    let server = llama_server();
    let time = |program: &Path, index: Option<&str>| -> Result<f64> {
        let mut command = Command::new(program);
        command
            .arg("--version")
            .env("LLAMA_SERVER_BIN", &server)
            .env_remove("CONTEXTPILOT_INDEX_URL")
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        if let Some(index) = index {
            command.env("CONTEXTPILOT_INDEX_URL", index);
        }
        let start = Instant::now();
        command.status()?;
        Ok(start.elapsed().as_secs_f64() * 1e3)
    };
    let launcher = Path::new(launcher);
    let mut samples = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..rounds {
        samples[0].push(time(&server, None)?);
        samples[1].push(time(launcher, None)?);
        samples[2].push(time(launcher, Some("http://127.0.0.1:9"))?);
    }
    table(
        page,
        "Launching `--version`",
        &["llama-server", "launcher, disabled", "launcher, enabled"],
        samples,
    );
    Ok(())
}

/// The time until an answer is complete, and memory.
fn serving(page: &mut String, (plain, hooked): (&Builder, &Builder), rounds: usize) -> Result<()> {
    let servers = [plain.spawn()?, hooked.spawn()?];
    for (title, predict) in [
        ("A prompt of 200 tokens and one token of answer", 1),
        ("A prompt of 200 tokens and 64 tokens of answer", 64),
    ] {
        let mut samples = [Vec::new(), Vec::new()];
        for round in 0..rounds {
            // The first of the two may find cold processor caches, so the order alternates.
            for side in [round % 2, 1 - round % 2] {
                let prompt: String = format!("{round:06}")
                    .chars()
                    .rev()
                    .chain("x".repeat(193).chars())
                    .collect();
                let request = Request::completion(prompt)
                    .id(format!("req-{predict}-{round}"))
                    .predict(predict);
                let start = Instant::now();
                servers[side].complete(&request)?;
                samples[side].push(start.elapsed().as_secs_f64() * 1e3);
            }
        }
        table(page, title, &["plain", "hooked"], samples);
    }
    let memory = servers.each_ref().map(|server| {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok())
            .map_or(f64::NAN, |kib| kib / 1024.0)
    });
    let _ = writeln!(
        page,
        "\nResident memory afterwards: {:.1} MiB plain, {:.1} MiB hooked.",
        memory[0], memory[1]
    );
    Ok(())
}

/// The time from sending the request that overwrites a prompt to the first byte of the POST at the
/// index: what the client, the server and the hook take together.
fn signalling(page: &mut String, hooked: &Builder, index: &Index, rounds: usize) -> Result<()> {
    let server = hooked.spawn()?;
    let mut sample = Vec::new();
    for round in 0..rounds {
        let letter = char::from(b'a' + (round % 26) as u8);
        let id = format!("req-signal-{round}");
        let request = |letter: char| {
            Request::completion(letter.to_string().repeat(50))
                .slot(0)
                .predict(1)
        };
        server.complete(&request(letter).id(&id))?;
        let before = index.posts().len();
        let start = Instant::now();
        server.complete(&request(char::from(b'A' + (round % 26) as u8)))?;
        if !index.wait_posts(|posts| posts.len() > before, PATIENCE) {
            return Err(std::io::Error::other(format!("{id} was not reported")).into());
        }
        sample.push((index.posts()[before].at - start).as_secs_f64() * 1e3);
    }
    table(
        page,
        "From sending the overwriting request to the POST at the index",
        &["hooked"],
        [sample],
    );
    Ok(())
}

/// Adds a table to the page. Each row after the first has its ratio to the first, computed round by round.
fn table<const N: usize>(
    page: &mut String,
    title: &str,
    names: &[&str; N],
    samples: [Vec<f64>; N],
) {
    let _ = writeln!(
        page,
        "\n## {title}\n\n| | median | p10 | p90 | p99 | ratio, median (p10 to p90) |\n|---|--:|--:|--:|--:|--:|"
    );
    let first = samples[0].clone();
    for (nth, (name, sample)) in names.iter().zip(samples).enumerate() {
        let ratios = Sample::new(sample.iter().zip(&first).map(|(a, b)| a / b).collect());
        let ratio = match nth {
            0 => String::from("1"),
            _ => format!(
                "{:.3} ({:.3} to {:.3})",
                ratios.at(0.5),
                ratios.at(0.1),
                ratios.at(0.9)
            ),
        };
        let _ = writeln!(page, "| {name} | {} | {ratio} |", Sample::new(sample).row());
    }
}
