//! A Redis that lies.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::*;

/// What it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attack {
    /// Nothing.
    Honest,
    /// A byte every tenth of a second.
    Drip,
    /// It takes questions, and says nothing.
    Silence,
    /// All that it says is right, and comes half a second late.
    Slow,
    /// A value without an end.
    EndlessValue,
    /// A list without an end, of small parts.
    EndlessList,
    /// A line without an end.
    EndlessLine,
    /// Bytes that mean nothing, behind what is asked for or in its place.
    Nonsense,
    /// Members with impossible scores, names and sizes, and then good ones.
    BadMembers,
    /// A list that goes on for ever, of chunks that are not there.
    EndlessMembers,
    /// Chunks that are larger than the list says.
    LargeBodies,
    /// Chunks whose headers say that their rows are larger.
    LargeHeaders,
    /// What a chunk continues continues another one, for ever.
    Chain,
    /// Chunks whose names are those of other tokens.
    OddNames,
    /// Good chunks without an end, of no use.
    Rubbish,
    /// It says each time that it began anew.
    Anew,
}

struct State {
    attack: Attack,
    random: Mutex<Random>,
    /// Good chunks: what is listed, and what is there.
    listed: Vec<(String, String)>,
    there: HashMap<String, Vec<u8>>,
    requests: AtomicUsize,
}

struct Hostile {
    at: SocketAddr,
    state: Arc<State>,
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_micros() as u64
}

/// A value.
fn value(bytes: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

fn list(values: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", values.len()).into_bytes();
    values
        .iter()
        .for_each(|one| bytes.extend(value(one.as_ref())));
    bytes
}

impl Hostile {
    /// `extra`: chunks that are good, and to be fetched nevertheless.
    fn start(attack: Attack, extra: &[Chunk]) -> Self {
        let mut there: HashMap<String, Vec<u8>> = HashMap::new();
        let mut listed = Vec::new();
        let mut add = |chunk: &Chunk, size: u64, body: Vec<u8>| {
            listed.push((format!("{}:{size}", chunk.name), (now() - 1000).to_string()));
            there.insert(format!("contextpilot:kv:1:chunk:{}", chunk.name), body);
        };
        let bad: Vec<Chunk> = (500..520).flat_map(|one| chunks(one, TOKENS)).collect();
        match attack {
            Attack::LargeBodies => {
                for chunk in &bad {
                    let mut body = whole(chunk);
                    body.resize(64 << 20, 0);
                    add(chunk, chunk.cost(), body);
                }
            }
            Attack::LargeHeaders => {
                for chunk in &bad {
                    let mut body = whole(chunk);
                    // All of it with the right sums, but its rows.
                    body.truncate(body.len() / 2);
                    add(chunk, chunk.cost(), body);
                }
            }
            Attack::OddNames => {
                for chunk in &bad {
                    let mut other = chunk.clone();
                    other.tokens = chunk.tokens.iter().map(|token| token + 1).collect();
                    add(chunk, chunk.cost(), whole(&other));
                }
            }
            _ => {}
        }
        for chunk in extra {
            add(chunk, chunk.cost(), whole(chunk));
        }
        if attack == Attack::BadMembers {
            let name = "00".repeat(16);
            for nth in 0..300 {
                listed.insert(
                    0,
                    (format!("{name}:{nth}x"), (now() - 5000 + nth).to_string()),
                );
            }
            for score in ["1e300", "inf", "nan", "-1", "9007199254740993"] {
                listed.push((format!("{name}:4096"), score.to_owned()));
            }
            let huge = u64::MAX;
            listed.insert(0, (format!("{name}:{huge}"), (now() - 6000).to_string()));
        }
        let state = Arc::new(State {
            attack,
            random: Mutex::new(Random(seed())),
            listed,
            there,
            requests: AtomicUsize::new(0),
        });
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let ours = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&ours);
                // A client that has gone.
                thread::spawn(move || drop(state.serve(&stream)));
            }
        });
        Self { at, state }
    }

    fn url(&self) -> String {
        format!("redis://{}", self.at)
    }

    fn await_requests(&self, count: usize) {
        until("it was asked", || {
            (self.state.requests.load(Ordering::Relaxed) >= count).then_some(())
        });
    }
}

impl State {
    fn serve(&self, stream: &TcpStream) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream);
        loop {
            let words = words(&mut reader)?;
            self.requests.fetch_add(1, Ordering::Relaxed);
            let answer = self.answer(&words);
            self.send(stream, &answer)?;
        }
    }

    fn send(&self, mut stream: &TcpStream, answer: &[u8]) -> std::io::Result<()> {
        match self.attack {
            Attack::Silence => Ok(()),
            Attack::Slow => {
                thread::sleep(Duration::from_millis(500));
                stream.write_all(answer)
            }
            Attack::Drip => answer.iter().try_for_each(|byte| {
                thread::sleep(Duration::from_millis(100));
                stream.write_all(&[*byte])
            }),
            Attack::EndlessValue | Attack::EndlessList | Attack::EndlessLine => {
                let (first, part): (&[u8], &[u8]) = match self.attack {
                    Attack::EndlessValue => (b"$99999999999\r\n", &[b'a'; 1 << 16]),
                    Attack::EndlessList => (b"*2147483647\r\n", b"$1\r\na\r\n"),
                    _ => (b"+", &[b'a'; 1 << 16]),
                };
                stream.write_all(first)?;
                let part = part.repeat((1 << 16) / part.len());
                loop {
                    stream.write_all(&part)?;
                }
            }
            Attack::Nonsense => {
                let mut random = self.random.lock().unwrap();
                let count = random.index(300);
                let mut bytes = match random.below(3) {
                    0 => answer.to_vec(),
                    1 => answer[..random.index(answer.len())].to_vec(),
                    _ => b"*3\r\n$-7\r\n:x\r\n".to_vec(),
                };
                bytes.extend(nonsense(&mut random, count));
                drop(random);
                stream.write_all(&bytes)
            }
            _ => stream.write_all(answer),
        }
    }

    fn answer(&self, words: &[String]) -> Vec<u8> {
        let time = now();
        let word = |nth: usize| words.get(nth).map_or("", String::as_str);
        match word(0) {
            "EXISTS" if self.attack == Attack::Slow => b":0\r\n".to_vec(),
            "ZMSCORE" if self.attack == Attack::Slow => {
                let none = "$-1\r\n".repeat(words.len() - 2);
                format!("*{}\r\n{none}", words.len() - 2).into_bytes()
            }
            "EXISTS" if words.len() == 2 => b":1\r\n".to_vec(),
            // It has all that is sent, and wants none of it.
            "EXISTS" => format!(":{}\r\n", words.len() - 1).into_bytes(),
            "ZMSCORE" => list(&vec![time.to_string(); words.len() - 2]),
            "TIME" => list(&[
                (time / 1_000_000).to_string(),
                (time % 1_000_000).to_string(),
            ]),
            "GET" if word(1).ends_with(":epoch") => match self.attack {
                Attack::Anew => value(format!("{time}").as_bytes()),
                _ => value(b"one"),
            },
            "GET" | "GETRANGE" => {
                let found = self.there.get(word(1)).cloned();
                let bytes = found.or_else(|| self.made(word(1)));
                let Some(mut bytes) = bytes else {
                    return b"$-1\r\n".to_vec();
                };
                if word(0) == "GETRANGE" {
                    bytes.truncate(word(3).parse::<usize>().unwrap() + 1);
                }
                value(&bytes)
            }
            "ZRANGE" => self.range(words),
            "SET" => b"+OK\r\n".to_vec(),
            _ => b":1\r\n".to_vec(),
        }
    }

    /// A chunk that is made when it is asked for.
    fn made(&self, key: &str) -> Option<Vec<u8>> {
        let name = key.rsplit(':').next()?.parse().ok()?;
        match self.attack {
            Attack::Chain => {
                let mut random = self.random.lock().unwrap();
                let mut before = [0; 16];
                before.copy_from_slice(&nonsense(&mut random, 16));
                let start = 1 << 30;
                let nth = self.requests.load(Ordering::Relaxed) as u32 * 48;
                let mut chunk = chunks(1, TOKENS).remove(0);
                chunk.name = name;
                chunk.start = start - nth % (1 << 29);
                chunk.parent = Some((contextpilot_kv_store::Name(before), 48));
                Some(whole(&chunk))
            }
            _ => None,
        }
    }

    fn range(&self, words: &[String]) -> Vec<u8> {
        let most: usize = words[words.len() - 2].parse().unwrap();
        let bound = |text: &str| text.trim_start_matches('(').parse::<f64>().unwrap_or(0.0);
        let (mut low, mut high) = (bound(&words[2]), bound(&words[3]));
        if low > high {
            std::mem::swap(&mut low, &mut high);
        }
        let mut random = self.random.lock().unwrap();
        let mut all: Vec<String> = Vec::new();
        let mut some = |member: String, score: String| {
            if all.len() < 2 * most {
                all.extend([member, score]);
            }
        };
        match self.attack {
            Attack::EndlessMembers => {
                for nth in 0..most as u64 {
                    let name = format!("{:016x}{:016x}", random.draw(), random.draw());
                    some(
                        format!("{name}:4096"),
                        (now() - 9_000_000 + nth * 1000).to_string(),
                    );
                }
            }
            Attack::Chain => {
                for nth in 0..most.min(50) as u64 {
                    let name = format!("{:016x}{:016x}", random.draw(), random.draw());
                    let size = chunks(1, TOKENS)[0].cost();
                    some(format!("{name}:{size}"), (now() - 1000 + nth).to_string());
                }
            }
            _ => {
                let mut listed: Vec<_> = self.listed.iter().collect();
                listed.sort_by(|(_, one), (_, other)| {
                    let score = |text: &str| text.parse::<f64>().unwrap_or(0.0);
                    score(one).total_cmp(&score(other))
                });
                if words.iter().any(|word| word == "REV") {
                    listed.reverse();
                }
                for (member, score) in listed {
                    let nth: f64 = score.parse().unwrap_or(0.0);
                    if low <= nth && nth <= high {
                        some(member.clone(), score.clone());
                    }
                }
            }
        }
        list(&all)
    }
}

fn words(reader: &mut impl BufRead) -> std::io::Result<Vec<String>> {
    let mut number = |first: u8| -> std::io::Result<usize> {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let rest = line.trim().strip_prefix(first as char);
        rest.and_then(|rest| rest.parse().ok())
            .ok_or(std::io::ErrorKind::InvalidData.into())
    };
    let count = number(b'*')?;
    let mut words = Vec::new();
    for _ in 0..count {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let size: usize = line.trim().trim_start_matches('$').parse().unwrap_or(0);
        let mut word = vec![0; size + 2];
        reader.read_exact(&mut word)?;
        word.truncate(size);
        words.push(String::from_utf8_lossy(&word).into_owned());
    }
    Ok(words)
}

/// Some of these last as long as an answer may take.
fn tried(attack: Attack, requests: usize) -> (Vec<String>, serde_json::Value) {
    let hostile = Hostile::start(attack, &[]);
    let beside = Beside::start(&hostile.url(), &[]);
    hostile.await_requests(requests);
    beside.owe();
    let said = beside.said();
    let what = format!("Redis, {attack:?}");
    (beside.end(&what, &hostile.state.requests), said)
}

#[test]
fn answers_without_an_end_take_no_memory_and_no_process() {
    for attack in [
        Attack::EndlessValue,
        Attack::EndlessList,
        Attack::EndlessLine,
        Attack::Nonsense,
    ] {
        let (said, _) = tried(attack, 3);
        assert!(
            said.iter().any(|line| line.contains("is not kept alike")),
            "{said:?}"
        );
    }
}

#[test]
fn answers_that_do_not_come_keep_nobody() {
    for attack in [Attack::Drip, Attack::Silence] {
        tried(attack, 1);
    }
}

/// Nothing that it says is wrong: at half a second each, sending 300 chunks would take minutes.
#[test]
fn a_redis_that_is_slow_keeps_nobody() {
    let hostile = Hostile::start(Attack::Slow, &[]);
    let beside = Beside::start(&hostile.url(), &[]);
    hostile.await_requests(3);
    let many: Vec<Chunk> = (100..400).flat_map(|one| chunks(one, 1)).collect();
    write(&Folder::open(beside.home.path()).unwrap(), &many);
    beside.end("Redis, half a second late", &hostile.state.requests);
}

#[test]
fn lists_that_lie_take_no_disk_and_what_is_good_stays() {
    for attack in [
        Attack::EndlessMembers,
        Attack::LargeBodies,
        Attack::LargeHeaders,
        Attack::Chain,
        Attack::OddNames,
        Attack::Anew,
    ] {
        tried(attack, REQUESTS / 4);
    }
}

#[test]
fn what_is_bad_does_not_stop_what_is_good() {
    let good: Vec<Chunk> = (700..703).flat_map(|one| chunks(one, TOKENS)).collect();
    for attack in [
        Attack::Honest,
        Attack::BadMembers,
        Attack::LargeBodies,
        Attack::LargeHeaders,
        Attack::OddNames,
    ] {
        let hostile = Hostile::start(attack, &good);
        let beside = Beside::start(&hostile.url(), &[]);
        until("what is good is fetched", || {
            good.iter().all(|chunk| beside.has(chunk)).then_some(())
        });
        if attack != Attack::Honest {
            until("what is refused is counted", || {
                let refused = beside.said()["refused"].as_u64()?;
                (refused > 0).then_some(())
            });
        }
        let lines = beside.end(
            &format!("Redis, {attack:?} and good ones"),
            &hostile.state.requests,
        );
        let refused = lines.iter().filter(|line| line.contains("was refused"));
        assert!(refused.count() <= 1, "{lines:?}");
    }
}

/// A remote with much that is good and of no use takes no more than half of what was used here.
#[test]
fn rubbish_takes_no_more_than_its_share() {
    let rubbish: Vec<Chunk> = (800..840).flat_map(|one| chunks(one, TOKENS)).collect();
    let hostile = Hostile::start(Attack::Rubbish, &rubbish);
    let beside = Beside::start(&hostile.url(), &[]);
    until("some of it is fetched", || {
        rubbish.iter().any(|chunk| beside.has(chunk)).then_some(())
    });
    hostile.await_requests(REQUESTS);
    beside.end("Redis, Rubbish", &hostile.state.requests);
}
