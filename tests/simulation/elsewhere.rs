//! The simulator at settings other than the recorded one, compared with servers that have these
//! settings.

use contextpilot_simulate::{Point, Setting, simulate};
use contextpilot_testbed::{Arch, Builder, Error, Model, Result, Server, Trace};
use contextpilot_traffic::{Memory, Traffic};

use crate::page;
use crate::recorded::record_with;
use crate::traffic;

const SIGTERM: i32 = 15;
/// How far the simulated share of reused tokens may be off.
const TOLERANCE: f64 = 0.02;

/// The flags of one point of the grid.
#[derive(Clone, Copy, Debug)]
struct Flags {
    parallel: u32,
    kv_unified: bool,
    cache_ram: i64,
    similarity: u32,
    cache_reuse: u32,
}

impl Flags {
    fn arguments(self) -> Vec<String> {
        let unified = if self.kv_unified {
            "--kv-unified"
        } else {
            "--no-kv-unified"
        };
        let similarity = f64::from(self.similarity) / 1000.0;
        [
            "--parallel",
            &self.parallel.to_string(),
            unified,
            "--cache-ram",
            &self.cache_ram.to_string(),
            "--slot-prompt-similarity",
            &similarity.to_string(),
            "--cache-reuse",
            &self.cache_reuse.to_string(),
        ]
        .map(str::to_owned)
        .to_vec()
    }

    fn of(self, recorded: &Setting) -> Result<Setting> {
        let mut setting = recorded
            .clone()
            .with_slots(self.parallel, self.kv_unified)
            .with_cache_ram(self.cache_ram)
            .map_err(|error| Error::new(error.to_string()))?;
        setting.server.slot_prompt_similarity = self.similarity as f32 / 1000.0;
        setting.server.cache_reuse = self.cache_reuse;
        Ok(setting)
    }
}

/// What the engine did.
#[derive(Clone, Copy, Debug)]
struct Truth {
    share: f64,
    /// For how many prompts the simulator was right to the token.
    exact: usize,
}

/// A model, and the grid of flags for it.
struct Plan {
    name: &'static str,
    arch: Arch,
    grid: Vec<Flags>,
}

fn plans() -> Vec<Plan> {
    let mut dense = Vec::new();
    for parallel in [2, 4] {
        for cache_ram in [0, 1, 4] {
            for similarity in [100, 500] {
                for cache_reuse in [0, 32] {
                    dense.push(Flags {
                        parallel,
                        kv_unified: false,
                        cache_ram,
                        similarity,
                        cache_reuse,
                    });
                }
            }
        }
    }
    for (parallel, cache_ram) in [(4, 0), (4, 2), (8, 8)] {
        dense.push(Flags {
            parallel,
            kv_unified: true,
            cache_ram,
            similarity: 100,
            cache_reuse: 0,
        });
    }
    let others: Vec<Flags> = dense
        .iter()
        .copied()
        .filter(|flags| flags.cache_reuse == 0 && flags.cache_ram != 1)
        .collect();
    let plan = |name, arch, grid| Plan { name, arch, grid };
    vec![
        plan("dense", Arch::Llama, dense),
        plan("sliding window", Arch::Gemma2, others.clone()),
        plan("recurrent", Arch::Mamba, others),
    ]
}

/// Prints a line for each point. Returns the rows for docs/simulate.md, and how many points were off.
/// `step`: 8 checks every eighth point only.
pub(super) fn run(requests: usize, step: usize) -> Result<(String, usize)> {
    let mut rows = String::new();
    let mut missed = 0;
    for plan in plans() {
        let server = Server::builder()
            .model(&Model::tiny(plan.arch))
            .args(["-c", "8192"]);
        let recorded = server.clone().args(["--parallel", "3"]);
        let mut trace = Trace::new();
        let traffic = record_with(&recorded, |server| {
            trace = traffic::play(server, 11, requests)?;
            Ok(())
        })?;
        let recorded = Setting::recorded(&traffic);
        let recorded =
            recorded.ok_or_else(|| Error::new("the recording says nothing of the server"))?;
        assert_eq!(traffic.requests.len(), requests);
        assert_eq!(recorded.server.memory == Memory::Full, plan.name == "dense");
        for flags in plan.grid.into_iter().step_by(step) {
            let point = simulate(&traffic, &flags.of(&recorded)?);
            let truth = play(
                &server.clone().args(flags.arguments()),
                &trace,
                &point,
                &traffic,
            )?;
            let off = point.reused_share() - truth.share;
            let bad = off.abs() > TOLERANCE;
            missed += usize::from(bad);
            let row = format!(
                "| {} | {}{} | {} | {} | {} | {:.1} | {:.1} | {} |",
                plan.name,
                flags.parallel,
                if flags.kv_unified { ", shared" } else { "" },
                flags.cache_ram,
                f64::from(flags.similarity) / 1000.0,
                flags.cache_reuse,
                100.0 * truth.share,
                100.0 * point.reused_share(),
                truth.exact,
            );
            page::add_row(&mut rows, &row, bad, &format!(" {:+.1}", 100.0 * off));
        }
    }
    Ok((rows, missed))
}

fn play(server: &Builder, trace: &Trace, point: &Point, traffic: &Traffic) -> Result<Truth> {
    let mut server: Server = server.spawn()?;
    let outcomes = trace.run(&server)?;
    server.stop(SIGTERM)?;
    let (mut reused, mut tokens, mut exact) = (0, 0, 0);
    for (nth, outcome) in outcomes.iter().enumerate() {
        let completion = outcome.completions.first();
        let completion = completion.ok_or_else(|| Error::new(outcome.response.text()))?;
        reused += completion.cache_n;
        tokens += completion.cache_n + completion.prompt_n;
        let simulated = point.outcomes[nth].map(|outcome| outcome.reused as usize);
        let is_exact = simulated == Some(completion.cache_n);
        exact += usize::from(is_exact);
        if !is_exact && std::env::var_os("SHOW").is_some() {
            println!(
                "  {nth}: engine {} in slot {:?}, simulated {:?}; {} tokens",
                completion.cache_n,
                completion.slot,
                point.outcomes[nth].map(|outcome| (outcome.reused, outcome.slot)),
                traffic.requests[nth].record.prompt,
            );
        }
    }
    Ok(Truth {
        share: reused as f64 / tokens as f64,
        exact,
    })
}
