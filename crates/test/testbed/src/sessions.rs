//! Sessions of agents: conversations that grow, branch and come back, while others run beside them.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::{Completion, Connection, Error, Random, Request, Result, Server};

/// Tokens of a block. In recorded sessions a block has 64: they are played at a sixteenth.
const BLOCK: usize = 4;
/// Longer prompts are left out: the processor of a small machine takes half a minute for one of 40,000 tokens.
const LONGEST: usize = 16_384;
/// The server closes a connection after 100 requests.
const ON_A_CONNECTION: usize = 90;
/// The letters of the tiny models.
const LETTERS: std::ops::Range<u64> = 300..350;

/// One session: the prompts of its requests, in order, as blocks. Equal blocks of a session have equal tokens;
/// sessions have nothing in common.
#[derive(Clone, Debug)]
pub struct Session {
    number: u64,
    prompts: Vec<Vec<u32>>,
}

/// Sessions, and where they come from.
#[derive(Clone, Debug)]
pub struct Sessions {
    /// All of them.
    pub all: Vec<Session>,
    /// From a file; else made up.
    pub are_recorded: bool,
}

/// What sessions ask for, in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// Requests.
    pub requests: usize,
    /// Of all prompts.
    pub prompts: usize,
    /// Of each prompt, what is behind the longest beginning that an earlier one had; at least its last
    /// token, which every server evaluates.
    pub evaluated: usize,
    /// What is different from all others: each beginning once.
    pub distinct: usize,
    /// Of the longest prompt.
    pub longest: usize,
}

impl Session {
    /// The tokens of each prompt.
    pub fn prompts(&self) -> impl Iterator<Item = Vec<u32>> + '_ {
        let tokens =
            |blocks: &Vec<u32>| blocks.iter().flat_map(|&block| self.block(block)).collect();
        self.prompts.iter().map(tokens)
    }

    /// Plays it to a server, and waits so long for each answer. Returns how many tokens the server asked its engine
    /// to evaluate.
    fn play(&self, server: &Server, patience: Duration) -> Result<usize> {
        let mut connection: Option<Connection> = None;
        let mut asked = 0;
        for (nth, prompt) in self.prompts().enumerate() {
            let tokens = prompt.len();
            let request = Request::completion(Value::from(prompt)).predict(1);
            if nth % ON_A_CONNECTION == 0 {
                connection = Some(server.connect()?.with_patience(patience)?);
            }
            let connection = connection
                .as_mut()
                .ok_or_else(|| Error::new("no connection"))?;
            let body = request.wire_body();
            let answer = connection.exchange("POST", request.path(), body.as_bytes())?;
            let answer = Completion::first(&answer)?;
            if answer.cache_n + answer.prompt_n != tokens {
                return Err(Error::new(format!(
                    "{} tokens of {tokens}",
                    answer.prompt_tokens
                )));
            }
            asked += answer.prompt_n;
        }
        Ok(asked)
    }

    fn block(&self, block: u32) -> [u32; BLOCK] {
        let mut random = Random(self.number << 32 | u64::from(block));
        std::array::from_fn(|_| random.within(LETTERS) as u32)
    }

    fn add_to(&self, need: &mut Need) {
        // The node behind a node and a block.
        let mut tree: HashMap<(usize, u32), usize> = HashMap::new();
        for prompt in &self.prompts {
            let (mut node, mut there) = (0, 0);
            for &block in prompt {
                let fresh = tree.len() + 1;
                node = *tree.entry((node, block)).or_insert(fresh);
                there += usize::from(node != fresh);
            }
            let tokens = prompt.len() * BLOCK;
            let new = tokens - there * BLOCK;
            need.requests += 1;
            need.prompts += tokens;
            need.distinct += new;
            need.evaluated += new.max(1);
            need.longest = need.longest.max(tokens);
        }
    }
}

impl Sessions {
    /// Those of a file. See `recorded`.
    ///
    /// # Errors
    /// As there.
    pub fn recorded(path: &Path, requests: usize) -> Result<Self> {
        Ok(Self {
            all: recorded(path, requests)?,
            are_recorded: true,
        })
    }

    /// So many that are made up, with so many requests each.
    pub fn made_up(sessions: u64, requests: usize) -> Self {
        Self {
            all: (1..=sessions)
                .map(|number| made_up(number, requests))
                .collect(),
            are_recorded: false,
        }
    }

    /// Plays all of them to a server, so many at a time. The requests of a session follow each other; one token is
    /// generated for each prompt. Calls `ended` with how many sessions have ended whenever one has. Returns how many
    /// tokens of prompts the server asked its engine to evaluate.
    ///
    /// # Errors
    /// A request is not answered, or not within `patience`.
    pub fn play(
        &self,
        server: &Server,
        at_a_time: usize,
        patience: Duration,
        ended: impl Fn(usize) + Sync,
    ) -> Result<usize> {
        let queue = Mutex::new(self.all.iter());
        let next = || queue.lock().map_or(None, |mut queue| queue.next());
        let count = AtomicUsize::new(0);
        let user = || -> Result<usize> {
            let mut asked = 0;
            while let Some(session) = next() {
                asked += session.play(server, patience)?;
                ended(count.fetch_add(1, Ordering::Relaxed) + 1);
            }
            Ok(asked)
        };
        thread::scope(|scope| {
            let users: Vec<_> = (0..at_a_time).map(|_| scope.spawn(user)).collect();
            let joined = users.into_iter().map(|user| user.join());
            joined
                .map(|user| user.unwrap_or_else(|_| Err(Error::new("a client panicked"))))
                .sum()
        })
    }

    /// What they ask for, if nothing that was evaluated is ever thrown away.
    pub fn need(&self) -> Need {
        let mut need = Need::default();
        for session in &self.all {
            session.add_to(&mut need);
        }
        need
    }
}

/// Recorded sessions, one as JSON on each line: `requests` has arrays of which the second element is the agent,
/// the fifth how many blocks of this agent's last prompt are kept, and the sixth the new ones. At most
/// `requests` of each session are taken, without prompts of more than [`LONGEST`] tokens.
///
/// # Errors
/// Those of reading, and a line that is something else.
fn recorded(path: &Path, requests: usize) -> Result<Vec<Session>> {
    let text = std::fs::read_to_string(path)?;
    let lines = text.lines().zip(1..);
    let sessions = lines.map(|(line, number)| {
        let not_one = || Error::new(format!("{}:{number}: not a session", path.display()));
        let line: Value = serde_json::from_str(line).map_err(|_| not_one())?;
        let requests = line["requests"]
            .as_array()
            .ok_or_else(not_one)?
            .iter()
            .take(requests);
        let mut last: HashMap<&str, Vec<u32>> = HashMap::new();
        let mut prompts = Vec::new();
        for request in requests {
            let prompt = last
                .entry(request[1].as_str().ok_or_else(not_one)?)
                .or_default();
            let kept = request[4].as_u64().ok_or_else(not_one)?;
            prompt.truncate(usize::try_from(kept).unwrap_or(usize::MAX));
            for block in request[5].as_array().ok_or_else(not_one)? {
                let block = block.as_u64().and_then(|block| u32::try_from(block).ok());
                prompt.push(block.ok_or_else(not_one)?);
            }
            if (1..=LONGEST).contains(&(prompt.len() * BLOCK)) {
                prompts.push(prompt.clone());
            }
        }
        Ok(Session { number, prompts })
    });
    sessions.collect()
}

/// A made-up session: a long beginning, then turns that add a little; now and then a subagent begins anew
/// behind a part of the beginning, and now and then the last turns are taken back.
fn made_up(number: u64, requests: usize) -> Session {
    let mut random = Random(number);
    let mut fresh = 0..;
    let mut add = |prompt: &mut Vec<u32>, count: u64| {
        prompt.extend((&mut fresh).take(count as usize));
    };
    let mut prompt = Vec::new();
    add(&mut prompt, random.within(100..400));
    let beginning = prompt.len();
    let mut prompts = vec![prompt.clone()];
    while prompts.len() < requests {
        match random.within(0..10) {
            0 => {
                let mut other = prompt[..beginning / 2].to_vec();
                add(&mut other, random.within(20..100));
                prompts.push(other);
                continue;
            }
            1 => {
                let back = random.within(0..60) as usize;
                prompt.truncate(beginning.max(prompt.len().saturating_sub(back)));
            }
            _ => {}
        }
        add(&mut prompt, random.within(1..40));
        prompts.push(prompt.clone());
    }
    Session { number, prompts }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_earlier_prompt_had_is_not_needed_again() {
        let prompts = vec![vec![1, 2, 3], vec![1, 2, 4, 5], vec![1, 2, 3], vec![2]];
        let need = Sessions {
            all: vec![Session { number: 1, prompts }],
            are_recorded: false,
        }
        .need();
        let evaluated = 3 * BLOCK + 2 * BLOCK + 1 + BLOCK;
        assert_eq!((need.requests, need.prompts), (4, 11 * BLOCK));
        assert_eq!((need.evaluated, need.distinct), (evaluated, evaluated - 1));
        assert_eq!(need.longest, 4 * BLOCK);
    }

    #[test]
    fn recorded_prompts_are_what_is_kept_and_what_is_new() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let line = r#"{"requests":[[0,"main",0,0,0,[7,8,9],1],[0,"sub",0,0,0,[7],1],[0,"main",0,0,2,[4],1]]}"#;
        std::fs::write(file.path(), line).unwrap();
        let all = recorded(file.path(), usize::MAX).unwrap();
        assert_eq!(all[0].prompts, [vec![7, 8, 9], vec![7], vec![7, 8, 4]]);
        assert_eq!(recorded(file.path(), 2).unwrap()[0].prompts.len(), 2);
        let tokens: Vec<Vec<u32>> = all[0].prompts().collect();
        assert_eq!(tokens[2][..2 * BLOCK], tokens[0][..2 * BLOCK]);
        assert_ne!(tokens[2][2 * BLOCK..], tokens[0][2 * BLOCK..]);
        std::fs::write(file.path(), "{}").unwrap();
        assert!(recorded(file.path(), 2).is_err());
    }
}
