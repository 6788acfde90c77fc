//! What it takes to say why prompts were evaluated: the processor time of accounts, beside that of a ledger without them.

use contextpilot_residency::{Accounts, Asker, Entry, Event, Rules, Token, Wishes};

use crate::Plan;
use crate::bench::{BATCH, Bench, ENGINE};

/// Prompts of so many tokens.
const TOKENS: usize = 8_000;
/// How much of what was in slots is remembered: the default of `CONTEXTPILOT_EXPLAIN_MB`.
const REMEMBERED: usize = 32 << 20;

/// A prompt by its number.
type Make = fn(usize) -> Vec<Token>;

/// A row of tokens that is the same for the same seed.
fn row(seed: usize, tokens: usize) -> impl Iterator<Item = Token> {
    (0..tokens).map(move |at| {
        let mixed = ((seed as u64) << 32 | at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 47) as Token
    })
}

/// A conversation that goes on: another last message each time.
fn goes_on(nth: usize) -> Vec<Token> {
    row(0, TOKENS - 100).chain(row(nth + 1, 100)).collect()
}

fn half_new(nth: usize) -> Vec<Token> {
    let half = TOKENS / 2;
    row(0, half).chain(row(nth + 1, half)).collect()
}

/// A date or a nonce stands in front of a text that is the same.
fn behind_a_nonce(nth: usize) -> Vec<Token> {
    row(nth + 1, 20).chain(row(0, TOKENS - 20)).collect()
}

pub(crate) fn explained(plan: &mut Plan) {
    let prompts = plan.size(200).max(4) as usize;
    println!("\nwhy prompts of {TOKENS} tokens were evaluated, µs of processor time a prompt:");
    let kinds: [(&str, Make); 3] = [
        ("100 new", goes_on),
        ("half new", half_new),
        ("sent before, behind a nonce", behind_a_nonce),
    ];
    for (name, make) in kinds {
        let without = play(prompts, make, false);
        let with = play(prompts, make, true);
        println!("  {name:28} {without:8.0} without, {with:8.0} with accounts");
    }
}

/// Microseconds a prompt.
fn play(prompts: usize, make: Make, is_explained: bool) -> f64 {
    let mut bench = Bench::new();
    let mut accounts = is_explained.then(|| Accounts::new(Rules::default(), REMEMBERED));
    let mut held: Vec<Token> = Vec::new();
    let mut taken = 0;
    for nth in 0..prompts {
        let prompt = make(nth);
        let common = held.iter().zip(&prompt).take_while(|(a, b)| a == b).count();
        let begun = processor_time();
        let task = nth as i32 + 1;
        apply(
            &mut bench,
            &mut accounts,
            Event::Launched { sequence: 0, task },
        );
        if let Some(accounts) = &mut accounts {
            accounts.launch(0, task, Asker::default(), Wishes::default());
        }
        let (from, to) = (common as i32, -1);
        let (context, sequence) = (ENGINE, 0);
        let removed = Event::Removed {
            context,
            sequence,
            from,
            to,
        };
        apply(&mut bench, &mut accounts, removed);
        let mut at = common;
        while at < prompt.len() {
            let end = prompt.len().min(at + BATCH as usize);
            let entries = (at..end).map(|place| Entry {
                sequence: 0,
                position: place as i32,
                token: prompt[place],
                output: place + 1 == prompt.len(),
            });
            let entries = entries.collect::<Vec<Entry>>().into();
            apply(
                &mut bench,
                &mut accounts,
                Event::Submitted { context, entries },
            );
            let failed = Vec::new();
            let evaluated = Event::Evaluated {
                context,
                failed,
                no_room: false,
            };
            apply(&mut bench, &mut accounts, evaluated);
            at = end;
        }
        if let Some(accounts) = &mut accounts {
            let evaluated = (prompt.len() - common) as u64;
            accounts
                .close(0, common as u64, evaluated, &bench.ledger)
                .expect("an account");
        }
        taken += processor_time() - begun;
        held = prompt;
    }
    taken as f64 / 1000.0 / prompts as f64
}

fn apply(bench: &mut Bench, accounts: &mut Option<Accounts>, event: Event) {
    let Some(accounts) = accounts else {
        bench.apply(event);
        return;
    };
    let ledger = &bench.ledger;
    ledger.upcoming(&event, &mut |upcoming| accounts.upcoming(upcoming, ledger));
    bench.apply(event);
    for fact in &bench.facts {
        accounts.fact(fact);
    }
    accounts.after(&bench.ledger, 0);
}

/// The processor time of this thread, nanoseconds.
fn processor_time() -> u64 {
    let all = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let first = all.split_whitespace().next();
    first.and_then(|time| time.parse().ok()).unwrap_or(0)
}
