//! What servers and clients do beyond asking: each case at its recorded setting, to the token.

use contextpilot_client::Control;
use contextpilot_simulate::{Setting, advise, simulate};
use contextpilot_testbed::{Arch, Builder, Error, Model, Request, Result, Server, Step, Trace};
use contextpilot_traffic::Traffic;
use serde_json::json;

use crate::cases::Case;
use crate::cases::drafts;
use crate::prompts::text;
use crate::recorded::record_with;
use crate::sessions;
use crate::store::await_store;

fn of(arch: Arch) -> Builder {
    Server::builder().model(&Model::tiny(arch))
}

fn ask(trace: Trace, prompt: impl Into<serde_json::Value>) -> Trace {
    trace.ask(Request::completion(prompt))
}

pub(super) fn cases() -> Vec<Case> {
    let groups = [asleep(), of_requests(), rooms(), infills(), recurrent()];
    groups.into_iter().flatten().collect()
}

/// Two conversations, twice interrupted by sleep.
fn interrupted() -> Trace {
    let (p, q) = (text(1, 90), text(2, 90));
    let longer = |text_: &str, seed| format!("{text_}{}", text(seed, 30));
    let trace = ask(ask(Trace::new(), &*p), &*q).then(Step::Sleep);
    let trace = ask(ask(trace, longer(&p, 3)), longer(&q, 4));
    let trace = ask(trace, longer(&p, 5)).then(Step::Sleep);
    ask(ask(ask(trace, p), q), text(6, 40))
}

fn asleep() -> Vec<Case> {
    let sleepy = |arch| of(arch).args(["--sleep-idle-seconds", "1"]);
    let unified = |arch| sleepy(arch).args(["--parallel", "4", "--kv-unified"]);
    vec![
        Case::new(
            "asleep: slots",
            sleepy(Arch::Llama).bare_slots(2),
            interrupted(),
        ),
        Case::new(
            "asleep: shared context",
            unified(Arch::Llama),
            interrupted(),
        ),
        Case::new(
            "asleep: sliding window",
            unified(Arch::Gemma2),
            interrupted(),
        ),
        Case::new("asleep: recurrent", unified(Arch::Mamba), interrupted()),
    ]
}

/// Recorded with sleep, simulated without it, and the same asked of a server that never sleeps.
pub(super) fn awake() -> Result<String> {
    let server = of(Arch::Llama).bare_slots(2);
    let sleepy = server.clone().args(["--sleep-idle-seconds", "1"]);
    let traffic = record_with(&sleepy, |server| interrupted().run(server).map(|_| ()))?;
    let mut awake = interrupted();
    awake.steps.retain(|step| *step != Step::Sleep);
    elsewhere(&traffic, &server, &awake, |setting| {
        setting.server.sleep_idle_seconds = None;
    })
}

/// Answers that are shifted in a smaller context than the recorded one: what is kept is what each request said.
pub(super) fn shifted() -> Result<String> {
    let of_size = |tokens| of(Arch::Llama).args(["-np", "1", "--context-shift", "-c", tokens]);
    let said = [50, -1].map(|keep| {
        let trace = full("n_keep", keep);
        let traffic = record_with(&of_size("512"), |server| trace.run(server).map(|_| ()))?;
        elsewhere(&traffic, &of_size("256"), &trace, |setting| {
            (setting.server.context, setting.server.slot_context) = (256, 256);
        })
    });
    let said: Vec<String> = said.into_iter().collect::<Result<_>>()?;
    Ok(said.join("; "))
}

/// An answer of which little is discarded at a time: the next prompt goes on with a part that half of it would not have left.
pub(super) fn discarded() -> Result<String> {
    let server = of(Arch::Llama).args(["-np", "1", "--context-shift", "-c", "256"]);
    let mut engine = 0;
    let traffic = record_with(&server, |server| {
        let long = Request::completion(text(1, 100)).predict(200);
        let long = long.with("ignore_eos", true).with("n_keep", -1);
        let answer = server.complete(&long.with("n_discard", 20))?.content;
        // The prompt and one more token are kept, and three times twenty behind them are discarded.
        let left = [0..1, 61..100].map(|part| answer.get(part).unwrap_or_default());
        let next = Request::completion(text(1, 100) + &left.concat() + &text(2, 20));
        engine = server.complete(&next)?.cache_n;
        Ok(())
    })?;
    let point = simulate(&traffic, &recorded_setting(&traffic)?);
    let simulated = point
        .outcomes
        .last()
        .and_then(|one| Some(one.as_ref()?.reused as usize));
    let said = format!("engine {engine} reused, simulated {simulated:?}");
    if engine > 102 && simulated == Some(engine) {
        Ok(said)
    } else {
        Err(Error::new(said))
    }
}

/// Checkpoints of a recurrent model lie four tokens before the end of a prompt, and a batch before that: with smaller batches
/// (`-ub`) elsewhere.
pub(super) fn other_batches() -> Result<String> {
    let mamba = |size| of(Arch::Mamba).args(["-np", "1", "-ub", size]);
    let traffic = record_with(&mamba("512"), |server| differ().run(server).map(|_| ()))?;
    let said = [("64", 64), ("256", 256)].map(|(text, size)| {
        elsewhere(&traffic, &mamba(text), &differ(), |setting| {
            setting.server.ubatch_size = size
        })
    });
    let said: Vec<String> = said.into_iter().collect::<Result<_>>()?;
    let advice = advise(&traffic, &recorded_setting(&traffic)?);
    match advice.changes.first() {
        Some(change) if change.flags == ["--ubatch-size", "64"] => Ok(said.join("; ")),
        other => Err(Error::new(format!("advised: {other:?}"))),
    }
}

/// Compares a simulation of other flags with a server that has them.
fn elsewhere(
    traffic: &Traffic,
    server: &Builder,
    trace: &Trace,
    change: impl FnOnce(&mut Setting),
) -> Result<String> {
    let outcomes = trace.run(&server.spawn()?)?;
    let engine = outcomes.iter().flat_map(|outcome| &outcome.completions);
    let engine: Vec<usize> = engine.map(|completion| completion.prompt_n).collect();
    let mut setting = recorded_setting(traffic)?;
    change(&mut setting);
    let simulated = simulate(traffic, &setting).outcomes.into_iter().flatten();
    let simulated: Vec<usize> = simulated.map(|one| one.evaluated as usize).collect();
    let said = format!("evaluated: engine {engine:?}, simulated {simulated:?}");
    if engine == simulated {
        Ok(said)
    } else {
        Err(Error::new(said))
    }
}

fn recorded_setting(traffic: &Traffic) -> Result<Setting> {
    let setting = Setting::recorded(traffic);
    setting.ok_or_else(|| Error::new("the recording says nothing of the server"))
}

/// With a prefix store, what was asked for before comes back after a sleep, and counts once: also for models that cannot go back to any
/// position.
pub(super) fn with_store() -> Result<String> {
    let said = [Arch::Llama, Arch::Mamba].map(|arch| {
        let folder = tempfile::tempdir()?;
        let sleepy = of(arch).args(["--sleep-idle-seconds", "1"]).bare_slots(2);
        let server = sessions::with_store(sleepy, &folder.path().join("store"), 1 << 30);
        let traffic = record_with(
            &server.env("CONTEXTPILOT_LISTEN", "127.0.0.1:0"),
            |server| {
                let control = server.await_control()?.to_string();
                await_store(
                    &Control::new(&control).map_err(|error| Error::new(error.to_string()))?,
                );
                interrupted().run(server).map(|_| ())
            },
        )?;
        let setting = recorded_setting(&traffic)?;
        let records = || traffic.requests.iter().map(|request| &request.record);
        let loaded: u64 = records().map(|record| u64::from(record.loaded)).sum();
        let computed: u64 = records().map(|record| u64::from(record.computed())).sum();
        let point = advise(&traffic, &setting).replayed;
        let said = format!(
            "{arch:?}: engine {computed} evaluated, {loaded} loaded, simulated {}, {}",
            point.evaluated_tokens, point.loaded_tokens
        );
        if loaded > 0 && (point.evaluated_tokens, point.loaded_tokens) == (computed, loaded) {
            Ok(said)
        } else {
            Err(Error::new(said))
        }
    });
    let said: Vec<String> = said.into_iter().collect::<Result<_>>()?;
    Ok(said.join("; "))
}

/// Three agents in a pool that is too small, above a prefix store: prompt by prompt.
pub(super) fn small_pool_with_store() -> Result<String> {
    let folder = tempfile::tempdir()?;
    let server = sessions::with_store(small_pool(), &folder.path().join("store"), 1 << 30);
    let traffic = record_with(
        &server.env("CONTEXTPILOT_LISTEN", "127.0.0.1:0"),
        |server| {
            let control = server.await_control()?.to_string();
            await_store(&Control::new(&control).map_err(|error| Error::new(error.to_string()))?);
            agents().run(server).map(|_| ())
        },
    )?;
    let point = simulate(&traffic, &recorded_setting(&traffic)?);
    let engine = traffic
        .requests
        .iter()
        .map(|request| (request.record.reused, request.record.loaded));
    let engine: Vec<(u32, u32)> = engine.collect();
    let simulated = point.outcomes.into_iter().flatten();
    let simulated: Vec<(u32, u32)> = simulated.map(|one| (one.reused, one.loaded)).collect();
    let said = format!(
        "(reused, loaded): engine {engine:?}, simulated {simulated:?}, changes {:?}",
        traffic.changes
    );
    if engine == simulated {
        Ok(said)
    } else {
        Err(Error::new(said))
    }
}

/// Servers that draft, with a prefix store: prompts that come again, conversations that go on behind drafted answers, and branches.
pub(super) fn drafting_with_store() -> Result<String> {
    let drafting = |kind, arch| {
        let server = of(arch).args(["-np", "1", "-c", "2048", "--cache-ram", "0"]);
        drafts::drafting(kind, server)
    };
    let kinds = [
        ("draft-simple", Arch::Llama),
        ("draft-mtp", Arch::Llama),
        ("draft-eagle3", Arch::Llama),
        // A hybrid.
        ("draft-mtp", Arch::Mamba),
    ];
    let said = kinds.map(|(kind, arch)| {
        let folder = tempfile::tempdir()?;
        let store = folder.path().join("store");
        let server = sessions::with_store(drafting(kind, arch), &store, 1 << 30);
        let server = server.env("CONTEXTPILOT_LISTEN", "127.0.0.1:0");
        let mut drafted = 0;
        let traffic = record_with(&server, |server| {
            let control = server.await_control()?.to_string();
            await_store(&Control::new(&control).map_err(|error| Error::new(error.to_string()))?);
            let mut said = [String::new(), String::new()];
            for turn in 0..3 {
                for talker in 0..2 {
                    let prompt = format!("{}{}", text(talker, 300), said[talker as usize]);
                    let request = Request::completion(prompt).predict(40);
                    let answer = server.send(&request)?.json()?;
                    drafted += answer["timings"]["draft_n"].as_u64().unwrap_or(0);
                    said[talker as usize] +=
                        &format!("{}{}", answer["content"].as_str().unwrap_or_default(), text(turn, 50));
                }
            }
            let trunk = text(0, 200);
            for branch in 10..13 {
                server.send(&Request::completion(format!("{trunk}{}", text(branch, 80))))?;
                server.send(&Request::completion(text(1, 300)))?;
            }
            Ok(())
        })?;
        let point = simulate(&traffic, &recorded_setting(&traffic)?);
        let records = traffic.requests.iter().map(|request| &request.record);
        let engine: Vec<_> = records.map(|one| (one.reused, one.loaded, one.computed())).collect();
        let simulated = point.outcomes.into_iter().flatten();
        let simulated: Vec<_> = simulated
            .map(|one| (one.reused, one.loaded, one.evaluated))
            .collect();
        let said = format!(
            "{kind} {arch:?}, {drafted} drafted: (reused, loaded, evaluated): engine {engine:?}, simulated {simulated:?}"
        );
        let is_loaded = engine.iter().any(|(_, loaded, _)| *loaded > 0);
        if engine == simulated && is_loaded && drafted > 0 {
            Ok(said)
        } else {
            Err(Error::new(said))
        }
    });
    let said: Vec<String> = said.into_iter().collect::<Result<_>>()?;
    Ok(said.join("; "))
}

/// Documents of which the first is left out each time.
fn documents(with: impl Fn(usize, Request) -> Request) -> Trace {
    (0..6).fold(Trace::new(), |trace, nth| {
        let rest: String = (nth..nth + 4)
            .map(|nth| text(200 + nth as u64, 60))
            .collect();
        trace.ask(with(
            nth,
            Request::completion(format!("{}{rest}", text(1, 40))),
        ))
    })
}

/// Long answers to prompts that grow, with a number in each request.
fn full(name: &str, value: i32) -> Trace {
    (0..4).fold(Trace::new(), |trace, nth| {
        let prompt = format!("{}{}", text(1, 120), text(2, 20 * nth));
        let request = Request::completion(prompt).predict(200);
        trace.ask(request.with("ignore_eos", true).with(name, value))
    })
}

fn of_requests() -> Vec<Case> {
    let one = || of(Arch::Llama).args(["-np", "1", "-c", "2048"]);
    let moves = |least: i32| {
        move |nth, request: Request| match nth % 2 {
            0 => request,
            _ => request.with("n_cache_reuse", least),
        }
    };
    let shifting = || of(Arch::Llama).args(["-np", "1", "-c", "256", "--context-shift"]);
    vec![
        Case::new("requests: n_cache_reuse", one(), documents(moves(16))),
        Case::new(
            "requests: n_cache_reuse of 0",
            one().args(["--cache-reuse", "16"]),
            documents(moves(0)),
        ),
        Case::new("requests: n_keep", shifting(), full("n_keep", 50)),
        Case::new("requests: n_keep of all", shifting(), full("n_keep", -1)),
    ]
}

/// Three agents, whose prompts grow.
fn agents() -> Trace {
    (1..6).fold(Trace::new(), |trace, turn| {
        (0..3).fold(trace, |trace, agent| {
            ask(trace, text(1, 200) + &text(10 + agent, 120 * turn))
        })
    })
}

/// Four slots that share what three agents fill.
fn small_pool() -> Builder {
    of(Arch::Llama).args([
        "-c",
        "2048",
        "--parallel",
        "4",
        "--kv-unified",
        "--cache-ram",
        "0",
    ])
}

fn rooms() -> Vec<Case> {
    let limited = |arch| {
        of(arch).args([
            "--parallel",
            "3",
            "--kv-unified",
            "--kv-unified-per-slot",
            "512",
        ])
    };
    vec![
        Case::new("room: a small pool", small_pool(), agents()),
        Case::new(
            "room: a limit for each slot",
            limited(Arch::Llama),
            agents(),
        ),
        Case::new(
            "room: a limit for each slot, shifted",
            of(Arch::Llama)
                .args(["--parallel", "3", "--kv-unified", "--context-shift"])
                .args(["--kv-unified-per-slot", "256"]),
            full("n_keep", 30),
        ),
        Case::new(
            "room: a limit for each slot that divides the context",
            of(Arch::Llama)
                .args(["--parallel", "3", "-c", "4096", "--context-shift"])
                .args(["--kv-unified-per-slot", "256"]),
            full("n_keep", 30),
        ),
        Case::new(
            "room: a limit for each slot, sliding window",
            limited(Arch::Gemma2),
            agents(),
        ),
        Case::new(
            "room: a limit for each slot, no host cache",
            limited(Arch::Llama).args(["--cache-ram", "0", "--context-shift"]),
            agents(),
        ),
    ]
}

fn infills() -> Vec<Case> {
    let keys = || {
        (0..6).fold(Trace::new(), |trace, nth| {
        let body = json!({"input_prefix": text(1, 200 + 2 * nth), "input_suffix": text(2, 150), "n_predict": 4});
        trace.ask(Request::new("/infill", body))
    })
    };
    let one = || of(Arch::Llama).args(["-np", "1", "-c", "2048"]);
    vec![
        Case::new("infill: prefix first", one(), keys()),
        Case::new("infill: suffix first", one().args(["--spm-infill"]), keys()),
    ]
}

/// Prompts that differ at the end, behind a long beginning.
fn differ() -> Trace {
    let ends = |seed| 20 + 30 * seed as usize;
    (1..6).fold(Trace::new(), |trace, seed| {
        ask(trace, text(1, 900) + &text(seed, ends(seed)))
    })
}

fn recurrent() -> Vec<Case> {
    let mamba = |size: &'static str| of(Arch::Mamba).args(["-np", "1", "-ub", size, "-b", size]);
    vec![
        Case::new("recurrent: batches of 512", mamba("512"), differ()),
        Case::new("recurrent: batches of 64", mamba("64"), differ()),
    ]
}
