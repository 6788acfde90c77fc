//! Random conversations of four clients, while the server is ended, killed and started again on one store: the tokens that
//! the server holds say the text of each prompt, and a turn evaluates what is new.

use std::sync::RwLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use contextpilot_testbed::{
    Arch, Connection, Model, Random, Request, Server, or_return, private_folder,
};
use serde_json::{Value, json};

use super::{SEAM, keeping, model};

/// How many conversations: some in each run, a thousand by `scripts/soak tokens`.
const CONVERSATIONS: usize = 24;
const CLIENTS: u64 = 4;
/// A life of the server has so many conversations.
const OF_A_LIFE: usize = 12;
/// What a model is asked for: hotter ones say more that is tokenized otherwise, in fewer tokens.
const TEMPERATURES: [f64; 3] = [1.0, 1.5, 2.0];

const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

/// What has an unusual place between tokens.
const ODD: [&str; 12] = [
    "  ",
    "\n\n",
    "\t",
    " 3.14",
    "é",
    "ß",
    "日本語",
    "\u{1F600}",
    "{\"a\": 1}",
    "fn main() {}",
    "...",
    "don't",
];

fn setting<T: std::str::FromStr>(name: &str, otherwise: T) -> T {
    let given = std::env::var(name).ok();
    given.map_or(otherwise, |given| {
        given
            .parse()
            .ok()
            .unwrap_or_else(|| panic!("{name} is {given:?}"))
    })
}

/// What happened to all turns behind a conversation's first.
#[derive(Default, Debug)]
struct Tally {
    prompts: AtomicU64,
    /// Turns that go on from the turn before, in one life of the server.
    later: AtomicU64,
    evaluated: AtomicU64,
    new: AtomicU64,
    /// Turns that evaluated some of what was there before, and how many tokens of it.
    short: AtomicU64,
    again: AtomicU64,
    restarted: AtomicU64,
    refused: AtomicU64,
}

/// A server that is ended and started again while clients ask it.
struct Lives<'a> {
    server: RwLock<Server>,
    life: AtomicUsize,
    /// The text of the token that the server puts before a prompt.
    begins: String,
    /// What a later turn may evaluate beside what is new.
    seam: u64,
    /// Sliding windows keep every position.
    is_full: bool,
    start: &'a (dyn Fn() -> Server + Sync),
}

impl Lives<'_> {
    /// `None`: the server has ended in between.
    fn ask(&self, request: &Request) -> Option<(usize, Value)> {
        let server = self.server.read().unwrap();
        let life = self.life.load(Ordering::SeqCst);
        let answer = server.send(request).ok()?;
        assert!(answer.status < 500, "{}", answer.text());
        Some((life, answer.json().ok()?))
    }

    /// What the hook says of a request; it hears of it a moment later.
    fn account(&self, id: &str, life: usize) -> Option<Value> {
        let server = self.server.read().unwrap();
        if self.life.load(Ordering::SeqCst) != life {
            return None;
        }
        let control = server.await_control().ok()?;
        let path = format!("/requests/{id}");
        for _ in 0..100 {
            let mut connection = Connection::open(control).ok()?;
            let account = connection.exchange("GET", &path, b"").ok()?.json().ok()?;
            if account["evaluation"].is_object() {
                return Some(account);
            }
            thread::sleep(Duration::from_millis(20));
        }
        assert!(server.get("/health").is_err(), "nothing is known of {id}");
        None
    }

    /// Whether the store keeps nothing of this model. `None`: the server has ended in between.
    fn is_refused(&self) -> Option<bool> {
        let control = self.server.read().unwrap().await_control().ok()?;
        let mut connection = Connection::open(control).ok()?;
        let stats = connection
            .exchange("GET", "/stats", b"")
            .ok()?
            .json()
            .ok()?;
        Some(!stats["store"]["refused"].as_array()?.is_empty())
    }

    /// Killed while it answers, or ended when it has answered: a SIGTERM in between finds llama-server 0.7.0 within a lock
    /// that its handler takes, and then it hangs, also without a hook.
    fn next(&self, kill: bool) {
        if kill {
            self.server.read().unwrap().signal(SIGKILL);
        }
        let mut server = self.server.write().unwrap();
        if !kill {
            server.signal(SIGTERM);
        }
        let _ended = server.wait(Duration::from_secs(60));
        *server = (self.start)();
        self.life.fetch_add(1, Ordering::SeqCst);
    }
}

fn words(random: &mut Random, most: u64) -> String {
    let count = random.within(1..most);
    let mut text = String::new();
    for _ in 0..count {
        let odd = random.below(12) == 0;
        text += &if odd {
            random.choose(&ODD).to_owned()
        } else {
            random.letters(3)
        };
        text += " ";
    }
    text
}

/// A conversation of up to five turns, most of them short; the client changes its mind now and then.
fn converse(lives: &Lives, seed: u64, tally: &Tally) {
    let mut random = Random(seed);
    let system = format!(
        "You are one of {} helpers. {}",
        seed % 3,
        "Be brief. ".repeat(8)
    );
    let mut messages = vec![json!({"role": "system", "content": system})];
    let mut before: Option<(usize, String, u64)> = None;
    let temperature = random.choose(&TEMPERATURES);
    // Short ones have as many seams for a third of the tokens.
    let (asked, answered) = if random.below(5) == 0 {
        (30, 70)
    } else {
        (8, 22)
    };
    for turn in 0..random.within(2..6) {
        messages.push(json!({"role": "user", "content": words(&mut random, asked)}));
        let body = json!({"messages": messages});
        let (prompt, life, answer) = loop {
            let Some((_, rendered)) = lives.ask(&Request::new("/apply-template", body.clone()))
            else {
                thread::sleep(Duration::from_millis(100));
                continue;
            };
            let prompt = rendered["prompt"].as_str().expect("a prompt").to_owned();
            let request = Request::completion(prompt.as_str())
                .predict(random.within(3..answered) as u32)
                .with("seed", seed + turn)
                .with("temperature", temperature)
                .with("min_p", 0)
                .id(format!("{seed}-{turn}"));
            match lives.ask(&request) {
                Some((life, answer)) => break (prompt, life, answer),
                None => thread::sleep(Duration::from_millis(100)),
            }
        };
        let Some(content) = answer["content"].as_str() else {
            // The context is full.
            tally.refused.fetch_add(1, Ordering::Relaxed);
            return;
        };
        // The server makes this of the tokens that the slot holds.
        let held = answer["prompt"].as_str().expect("the prompt's text");
        assert!(
            held == prompt || held.strip_prefix(lives.begins.as_str()) == Some(&prompt),
            "seed {seed}, turn {turn}: {held:?} is held for {prompt:?}"
        );
        tally.prompts.fetch_add(1, Ordering::Relaxed);
        if let Some((of, text, said)) = &before
            && let Some(new) = prompt.strip_prefix(text.as_str())
        {
            if *of == life {
                check_turn(lives, life, &format!("{seed}-{turn}"), (*said, new), tally);
            } else {
                tally.restarted.fetch_add(1, Ordering::Relaxed);
            }
        }
        // Bytes that are no text come as U+FFFD: the client cannot send back what was generated.
        let is_text = !content.contains('\u{fffd}');
        let predicted = answer["tokens_predicted"].as_u64().expect("a number");
        before = is_text.then(|| (life, format!("{prompt}{content}"), predicted));
        // Some answers come back otherwise, and are evaluated.
        let said = if random.below(8) == 0 {
            "Something else."
        } else {
            content
        };
        messages.push(json!({"role": "assistant", "content": said}));
    }
}

/// What a turn may evaluate of what was there before, by the causes in its account. `said`: tokens of the answer before it.
///
/// Where another conversation took the slot, the store may be a few tokens short: it copies nothing out for fewer than 8, or than a
/// 64th of the sequence (more are not worth it on any machine), and loads nothing for so few more than the slot has. If it has
/// nothing of the model, what the server lost is evaluated, or has where it does not take it from: in a busy slot.
///
/// A cache with sliding windows goes back to the checkpoint 4 tokens before the end of the last prompt.
fn again(lives: &Lives, evaluation: &Value, said: u64) -> Option<u64> {
    let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{evaluation}"));
    let few = (number(&evaluation["prompt_tokens"]).div_ceil(64)).max(8) - 1;
    let is_loaded = number(&evaluation["from"]["store"]) > 0;
    let short = if is_loaded { few } else { 2 * few };
    let back = if lives.is_full { 0 } else { said + 4 };
    let causes = &evaluation["causes"];
    let (evicted, no_way_back) = (number(&causes["evicted"]), number(&causes["no_way_back"]));
    let elsewhere = causes["elsewhere"].as_object().expect("causes");
    let lost = evicted + elsewhere.values().map(number).sum::<u64>();
    let short = match lost {
        0 => 0,
        _ if lives.is_refused()? => lost,
        _ => evicted.min(short),
    };
    Some(short + no_way_back.min(back))
}

/// By the hook's account: the server counts what the store has loaded as evaluated, where another conversation took the slot.
fn check_turn(lives: &Lives, life: usize, id: &str, (said, new): (u64, &str), tally: &Tally) {
    let body = json!({"content": new, "parse_special": true, "add_special": false});
    let Some((_, tokens)) = lives.ask(&Request::new("/tokenize", body)) else {
        return;
    };
    let new = tokens["tokens"].as_array().expect("tokens").len() as u64;
    let account = or_return!(lives.account(id, life));
    let evaluated = account["evaluation"]["evaluated"].as_u64();
    let evaluated = evaluated.unwrap_or_else(|| panic!("{id}: {account}"));
    let again = or_return!(again(lives, &account["evaluation"], said));
    if again > 0 {
        println!("{id}: {evaluated} for {new}: {}", account["evaluation"]);
    }
    assert!(
        evaluated <= new + lives.seam + again,
        "{id}: {evaluated} evaluated for {new}: {account}"
    );
    tally
        .short
        .fetch_add(u64::from(again > 0), Ordering::Relaxed);
    tally.again.fetch_add(again, Ordering::Relaxed);
    tally.later.fetch_add(1, Ordering::Relaxed);
    tally.new.fetch_add(new, Ordering::Relaxed);
    tally.evaluated.fetch_add(evaluated, Ordering::Relaxed);
}

#[test]
fn what_a_slot_holds_says_what_was_sent() {
    // Real templates have a special token behind an answer. In that of the tiny model a word goes on, and the last place where
    // both ways to divide it have a boundary may be at its beginning.
    let (model, seam) = match std::env::var_os("CONTEXTPILOT_TEST_MODEL") {
        Some(path) => (Model::file(path.into(), Arch::Llama), SEAM),
        None => (model(Arch::Llama), 4 * SEAM),
    };
    let folder = private_folder();
    // Other models than those with sliding windows do not care.
    let is_full = setting("CONTEXTPILOT_TEST_SWA_FULL", 1) == 1;
    let start = || {
        let builder = Server::builder()
            .model(&model)
            .args(["-c", "8192", "-t", "1"]);
        let builder = if is_full {
            builder.args(["--swa-full"])
        } else {
            builder
        };
        keeping(
            builder
                // A real model's vocabulary takes a while to load on a busy machine.
                .ready_within(Duration::from_secs(300))
                .env("CONTEXTPILOT_STORE", folder.path())
                .env("CONTEXTPILOT_LISTEN", "127.0.0.1:0"),
        )
    };
    let first: u64 = setting("CONTEXTPILOT_TEST_SEED", 1);
    let conversations = setting("CONTEXTPILOT_TEST_CONVERSATIONS", CONVERSATIONS);
    let server = start();
    let properties = server.get("/props").unwrap().json().unwrap();
    let lives = Lives {
        server: RwLock::new(server),
        begins: properties["bos_token"]
            .as_str()
            .expect("a token")
            .to_owned(),
        life: AtomicUsize::new(0),
        seam,
        is_full,
        start: &start,
    };
    let (tally, done) = (Tally::default(), AtomicUsize::new(0));
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (lives, tally, done) = (&lives, &tally, &done);
            scope.spawn(move || {
                for seed in (client..conversations as u64).step_by(CLIENTS as usize) {
                    converse(lives, 1000 * (first + seed), tally);
                    let done = done.fetch_add(1, Ordering::SeqCst) + 1;
                    if done % OF_A_LIFE == 0 && done < conversations {
                        let killed = done / OF_A_LIFE % 2 == 0;
                        lives.next(killed);
                        println!("{done} conversations: {tally:?}");
                    }
                }
            });
        }
    });
    println!("{tally:?}");
    assert!(tally.later.into_inner() > tally.prompts.into_inner() / 4);
}
