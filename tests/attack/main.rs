//! Attacks everything that listens, on a real server with everything on, and says what each part held.
//!
//! Each attack runs for a while beside neighbours that do what they always do: a client that generates, health checks,
//! and evictions. It fails if a neighbour is not answered, or not in time, if a process takes more memory than its
//! bounds say, or if the hook's threads take more of the processors.
//!
//! ```text
//! scripts/attack [SECONDS] [SEED]
//! ```

mod attacks;
mod dice;
mod peers;
mod target;
mod watch;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use attacks::{ATTACKS, Attack};
use dice::Dice;
use target::{Front, Target};
use watch::{Held, memory_of_plain, watch};

/// Seconds for all attacks, if none are given.
const SHORT: u64 = 24;
/// From here on times are compared as the page says. In a test run other programs have the processors, too.
const LONG: u64 = 120;

/// What must hold.
struct Limits {
    /// The 99th percentile of answers to neighbours.
    latency: Duration,
    /// Seconds of a processor for the hook's threads, more than without an attack: at once, and for each second.
    work: (f64, f64),
    /// MiB of the index, and of the gateway.
    memory: [u64; 2],
    /// MiB of the server more than at its start, and than half as much again as a plain server has taken by then: some
    /// attacks send large requests to the server itself. What those leave behind in the C library stays in both.
    server: u64,
}

impl Limits {
    fn new(seconds: u64) -> Self {
        Self {
            latency: Duration::from_millis(if seconds < LONG { 2000 } else { 50 }),
            work: (3.0, 0.3),
            memory: [1200, 800],
            server: 160,
        }
    }

    /// A machine on which neighbours wait without any attack says nothing of shorter times.
    fn beside(mut self, nobody: &Held) -> Self {
        self.latency = self.latency.max(10 * nobody.latency(0.99));
        self.work.1 += nobody.share;
        self
    }
}

fn number(name: &str, default: u64) -> u64 {
    let given = std::env::var(name).ok();
    given.map_or(default, |text| text.parse().expect("a number"))
}

fn main() -> ExitCode {
    let seconds = number("CONTEXTPILOT_TEST_ATTACK_SECONDS", SHORT);
    let seed = number("CONTEXTPILOT_TEST_ATTACK_SEED", 1);
    let only = std::env::var("CONTEXTPILOT_TEST_ATTACK_ONLY").unwrap_or_default();
    let is_chosen = |attack: &&Attack| attack.name == "nobody" || attack.name.contains(&only);
    let attacks: Vec<&Attack> = ATTACKS.iter().filter(is_chosen).collect();
    let mut limits = Limits::new(seconds);
    peers::allow_many_files();
    let (target, plain) = (Target::start(), Front::plain());
    let compared = attacks.iter().filter(|attack| attack.fills).count();
    let each = Duration::from_secs(seconds).div_f64((attacks.len() + compared) as f64);
    println!("Seed {seed}, {:.1} s for each attack\n", each.as_secs_f64());
    println!("{}", Held::HEAD);
    let mut failed = Vec::new();
    let mut of_plain = 0;
    let mut dice = Dice::new(seed);
    for attack in attacks {
        let held = attacked(&target, attack, each, &mut dice);
        println!("{}", held.line(attack.name));
        if attack.name == "nobody" {
            limits = limits.beside(&held);
        }
        if attack.fills {
            of_plain = beside_plain(&plain, attack, each, seed).max(of_plain);
        }
        for why in broken(&held, of_plain, &limits) {
            failed.push(format!("{}: {why}", attack.name));
        }
    }
    failed.extend(target.afterwards());
    println!();
    for why in &failed {
        println!("FAILED {why}");
    }
    if failed.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn attacked(target: &Target, attack: &Attack, each: Duration, dice: &mut Dice) -> Held {
    let until = Instant::now() + each;
    let mut own = dice.another();
    watch(target, until, || {
        peers::give_way();
        attack.run(target, &mut own, until)
    })
}

/// The same at a plain server: what it takes is not ours.
fn beside_plain(plain: &Front, attack: &Attack, each: Duration, seed: u64) -> u64 {
    let until = Instant::now() + each;
    let mut dice = Dice::new(seed);
    let taken = memory_of_plain(plain, until, || {
        peers::give_way();
        attack.run_at_plain(plain, &mut dice, until)
    });
    println!("| … a plain server | | | | | | {taken} | | |");
    taken
}

/// `plain`: MiB that a plain server has taken.
fn broken(held: &Held, plain: u64, limits: &Limits) -> Vec<String> {
    let mut broken = Vec::new();
    let mut check = |good: bool, why: String| {
        if !good {
            broken.push(why);
        }
    };
    let late = held.latency(0.99);
    check(
        late <= limits.latency,
        format!("neighbours waited {late:?} for an answer (p99)"),
    );
    check(
        held.unanswered.is_empty(),
        format!("not answered: {}", held.unanswered.join("; ")),
    );
    let share = held.share;
    let (burst, each_second) = limits.work;
    check(
        share <= each_second + burst / held.took.as_secs_f64(),
        format!("the hook's threads took {share:.2} of a processor"),
    );
    check(held.tokens > 0, "nothing was generated".to_owned());
    let of_server = limits.server + plain * 3 / 2;
    let [index, gateway] = limits.memory;
    let names = ["server", "index", "gateway"];
    for ((name, took), most) in names
        .iter()
        .zip(held.memory)
        .zip([of_server, index, gateway])
    {
        check(took <= most, format!("{name}: {took} MiB"));
    }
    broken
}
