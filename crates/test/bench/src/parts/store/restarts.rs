//! Agents' sessions while the server ends and starts again at random moments: half of the times by `kill -9`, else by
//! SIGTERM once its clients have their answers (llama-server 0.7.0 does not end by SIGTERM while one waits).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use contextpilot_testbed::{
    Builder, Completion, Random, Request, Result, Session, Sessions, until,
};
use serde_json::Value;

use super::stored::Stored;
use super::traffic;
use crate::lab::{Lab, failed};
use crate::page::{Aim, Page};

/// Sessions at a time, slots, and the host prompt cache.
const USERS: usize = 3;
const SLOTS: u32 = 2;
const HOST: [&str; 3] = ["--no-kv-unified", "--cache-ram", "3"];
/// Target: evaluated tokens of what was answered, as a multiple of those that are needed.
const EVALUATED: f64 = 1.10;
/// A server is ended up to so many milliseconds behind an answer.
const DELAY: u64 = 40;
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

pub(super) fn run(sessions: &Sessions, lab: &Lab, page: &mut Page) -> Result<()> {
    let need = sessions.need();
    let ends = lab.rounds(100, 2);
    let plain = traffic::plain(SLOTS, &need).args(HOST);
    let folder = tempfile::tempdir_in(lab.scratch(""))?;
    let play = Play {
        lab,
        plain,
        folder: folder.path(),
        life: Mutex::new(None),
        changed: Condvar::new(),
        answers: AtomicUsize::new(0),
        ids: AtomicUsize::new(0),
        sessions: Mutex::new(sessions.all.iter()),
    };
    let all = play.with_ends(ends, need.requests)?;
    let times = |tokens| tokens as f64 / need.evaluated as f64;
    page.say(format!(
        "The same sessions, {USERS} at a time on {SLOTS} slots (host cache: 3 MiB), while the server was ended {} times at\n\
         random moments and started again, {} times of these by `kill -9`: {} requests were answered, and {} tries\n\
         before that were cut off. The answered ones evaluated {} tokens, {:.3} times what is needed without\n\
         restarts; if each that was cut off had been evaluated whole before its end, it were {:.3} times.",
        all.ends,
        all.kills,
        all.answers,
        all.cut_off,
        all.evaluated,
        times(all.evaluated),
        times(all.evaluated + all.twice),
    ));
    page.aim(
        "Tokens evaluated for answers on agents' sessions while the server restarts, as a multiple of what is needed",
        &format!("at most {EVALUATED}"),
        &format!("{:.3}", times(all.evaluated)),
        Aim::met_if(times(all.evaluated) <= EVALUATED),
    );
    Ok(())
}

/// What a replay came to.
#[derive(Clone, Copy, Debug, Default)]
struct Played {
    ends: usize,
    kills: usize,
    answers: usize,
    /// Tries that got no answer.
    cut_off: usize,
    /// Tokens evaluated for requests that were answered.
    evaluated: usize,
    /// Tokens that tries without an answer may have evaluated: as many as the one that was answered.
    twice: usize,
}

struct Play<'a> {
    lab: &'a Lab,
    plain: Builder,
    folder: &'a std::path::Path,
    /// The server that runs, and how many there were before it.
    life: Mutex<Option<(usize, Arc<Stored>)>>,
    changed: Condvar,
    answers: AtomicUsize,
    ids: AtomicUsize,
    sessions: Mutex<std::slice::Iter<'a, Session>>,
}

impl Play<'_> {
    fn with_ends(&self, ends: usize, requests: usize) -> Result<Played> {
        self.begin(0)?;
        thread::scope(|scope| {
            let users: Vec<_> = (0..USERS).map(|_| scope.spawn(|| self.user())).collect();
            let mut random = Random(1);
            let mut all = Played::default();
            let mut next = 0;
            while all.ends < ends && users.iter().any(|user| !user.is_finished()) {
                next += 1 + random.index(2 * requests / (ends + 1));
                while self.answers.load(Ordering::Relaxed) < next
                    && users.iter().any(|user| !user.is_finished())
                {
                    thread::sleep(Duration::from_millis(1));
                }
                thread::sleep(Duration::from_millis(random.below(DELAY)));
                let signal = random.choose(&[SIGTERM, SIGKILL]);
                self.end(signal)?;
                all.ends += 1;
                all.kills += usize::from(signal == SIGKILL);
                self.begin(all.ends)?;
            }
            for user in users {
                let one = user.join().map_err(|_| failed("a client panicked"))??;
                all.answers += one.answers;
                all.cut_off += one.cut_off;
                all.evaluated += one.evaluated;
                all.twice += one.twice;
            }
            Ok(all)
        })
    }

    fn begin(&self, number: usize) -> Result<()> {
        let stored = Stored::start(self.lab, &self.plain, self.folder)?;
        *self.life.lock().map_err(poisoned)? = Some((number, Arc::new(stored)));
        self.changed.notify_all();
        Ok(())
    }

    /// Ends the server: at once, or when it has answered.
    fn end(&self, signal: i32) -> Result<()> {
        let life = self.life.lock().map_err(poisoned)?.take();
        let Some((_, stored)) = life else {
            return Ok(());
        };
        if signal == SIGKILL {
            stored.server.signal(signal);
        }
        let mut held = Some(stored);
        let mut stored = until("the clients have let it go", || {
            match Arc::try_unwrap(held.take()?) {
                Ok(stored) => Some(stored),
                Err(shared) => {
                    held = Some(shared);
                    None
                }
            }
        });
        stored.server.stop(signal)?;
        Ok(())
    }

    /// The server that runs, other than that which was the last one.
    fn living(&self, last: Option<usize>) -> Result<(usize, Arc<Stored>)> {
        let life = self.life.lock().map_err(poisoned)?;
        let patience = Duration::from_secs(60);
        let (life, _) = self
            .changed
            .wait_timeout_while(life, patience, |life| {
                life.as_ref()
                    .is_none_or(|(number, _)| last == Some(*number))
            })
            .map_err(poisoned)?;
        life.clone().ok_or_else(|| failed("no server comes back"))
    }

    fn user(&self) -> Result<Played> {
        let mut all = Played::default();
        let next = || self.sessions.lock().map_or(None, |mut all| all.next());
        while let Some(session) = next() {
            for prompt in session.prompts() {
                let (evaluated, tries) = self.ask(&prompt)?;
                self.answers.fetch_add(1, Ordering::Relaxed);
                all.answers += 1;
                all.cut_off += tries;
                all.evaluated += evaluated;
                all.twice += tries * evaluated;
            }
        }
        Ok(all)
    }

    /// Asks until there is an answer: the tokens that were evaluated for it, and the tries before it.
    fn ask(&self, prompt: &[u32]) -> Result<(usize, usize)> {
        let (mut tries, mut last) = (0, None);
        loop {
            let id = self.ids.fetch_add(1, Ordering::Relaxed);
            let (number, stored) = self.living(last)?;
            match evaluated(&stored, prompt, &format!("req-{id}")) {
                Some(evaluated) => return Ok((evaluated, tries)),
                None => (tries, last) = (tries + 1, Some(number)),
            }
        }
    }
}

/// Asks once. The tokens that were evaluated; `None`: the server is no more.
fn evaluated(stored: &Stored, prompt: &[u32], id: &str) -> Option<usize> {
    // A second token is generated, as by every client that wants an answer.
    let request = Request::completion(Value::from(prompt)).predict(2).id(id);
    let body = request.wire_body();
    let mut connection = stored.server.connect().ok()?;
    let answer = connection
        .exchange("POST", request.path(), body.as_bytes())
        .ok()?;
    let answer = Completion::first(&answer).ok()?;
    // What the engine says, without what the store loaded.
    let account = stored.account(id).ok()?;
    answer.prompt_n.checked_sub(account.from.store as usize)
}

fn poisoned<T>(_: std::sync::PoisonError<T>) -> contextpilot_testbed::Error {
    failed("a client panicked")
}
