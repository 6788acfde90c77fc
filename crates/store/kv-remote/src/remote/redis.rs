//! A Redis.

mod address;
mod wire;

use std::fmt;
use std::time::{Duration, Instant};

use contextpilot_kv_store::{Fingerprint, Name};
use contextpilot_settings::shown_remote;
use rustls::AlertDescription;

use self::address::Address;
use self::wire::{Fault, Wire};
use super::holder::{
    Body, Holder, LARGEST, Listed, NO_TLS, Page, RemoteError, Round, Sending, Trouble, random_id,
    tls_advice,
};

const PREFIX: &str = "contextpilot:kv:1";
const PAUSE: Duration = Duration::from_millis(500);
const LONGEST_RETRY: Duration = Duration::from_secs(5);
/// The longest member of a list: a name and a size.
const LONGEST_MEMBER: u64 = 64;
/// Microseconds. The sender asks for the time, and then lists what it sent: so what is listed now may be as old as that.
const OVERLAP: u64 = 10_000_000;
/// Microseconds. What is listed as later than that lies.
const AHEAD: u64 = 5_000_000;
/// A double has every number up to here.
const EXACT: u64 = 1 << 53;

/// It is connected to when something is asked, and again after an error.
pub(super) struct Redis {
    address: Address,
    wire: Option<Wire>,
    shown: String,
    /// The number of the time in which the Redis has not lost its keys.
    epoch: Option<Vec<u8>>,
    /// By its own clock, microseconds since 1970; and by ours.
    time: Option<(u64, Instant)>,
}

impl Redis {
    /// Opens nothing.
    ///
    /// # Errors
    /// It is no address of a Redis.
    pub(super) fn new(url: &str) -> Result<Self, RemoteError> {
        let shown = shown_remote(url);
        let no_url = |why: &dyn fmt::Display| RemoteError::address(&shown, why);
        let address = Address::new(url).map_err(|why| no_url(&why))?;
        Ok(Self {
            address,
            wire: None,
            shown,
            epoch: None,
            time: None,
        })
    }

    fn ask<T>(
        &mut self,
        question: impl FnOnce(&mut Wire) -> Result<T, Fault>,
    ) -> Result<T, RemoteError> {
        self.try_ask(question).map_err(|fault| self.trouble(&fault))
    }

    fn try_ask<T>(
        &mut self,
        question: impl FnOnce(&mut Wire) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let mut wire = match self.wire.take() {
            Some(wire) => wire,
            None => Wire::connect(&self.address)?,
        };
        let answer = question(&mut wire)?;
        self.wire = Some(wire);
        Ok(answer)
    }

    /// A page of a model's list.
    fn page(&mut self, words: &[&[u8]], most: usize) -> Result<Page, RemoteError> {
        let latest = self.time().saturating_add(AHEAD);
        let values = self.ask(|wire| {
            wire.ask(&[words])?;
            wire.values(2 * most, LONGEST_MEMBER)
        })?;
        let pairs = values.chunks_exact(2);
        let mut page = Page {
            is_last: pairs.len() < most,
            ..Page::default()
        };
        for pair in pairs {
            let nth = score(&pair[1]).filter(|nth| *nth <= latest);
            // Bad ones are passed over, too.
            page.end = nth.or(page.end);
            match nth.and_then(|nth| listed(&pair[0], nth)) {
                Some(chunk) => page.listed.push(chunk),
                None => page.refused += 1,
            }
        }
        // Of so many with one score the rest cannot be asked for.
        page.is_last |= page.end.is_none();
        Ok(page)
    }

    /// Its time now, as far as that is known.
    fn time(&self) -> u64 {
        self.time.map_or(EXACT, |(time, at)| {
            let since = at.elapsed().as_micros();
            time.saturating_add(u64::try_from(since).unwrap_or(EXACT))
        })
    }

    fn note_time(&mut self, time: Vec<Vec<u8>>) -> Result<u64, RemoteError> {
        let number = |text: &[u8]| std::str::from_utf8(text).ok()?.parse::<u64>().ok();
        let [seconds, micros] = &time[..] else {
            return Err(self.trouble(&Fault::Nonsense));
        };
        let time = number(seconds)
            .and_then(|seconds| seconds.checked_mul(1_000_000)?.checked_add(number(micros)?))
            .filter(|time| *time < EXACT)
            .ok_or_else(|| self.trouble(&Fault::Nonsense))?;
        self.time = Some((time, Instant::now()));
        Ok(time)
    }

    /// Asks for the epoch, and says one if there is none.
    fn epoch(&mut self) -> Result<Vec<u8>, RemoteError> {
        let (key, id) = (format!("{PREFIX}:epoch"), random_id());
        let epoch = self.ask(|wire| {
            let set: &[&[u8]] = &[b"SET", key.as_bytes(), id.as_bytes(), b"NX"];
            wire.ask(&[set, &[b"GET", key.as_bytes()]])?;
            wire.ok()?;
            wire.value(LONGEST_MEMBER)
        })?;
        epoch.ok_or_else(|| self.trouble(&Fault::Nonsense))
    }

    fn trouble(&self, fault: &Fault) -> RemoteError {
        let tls = fault.tls();
        let trouble = match fault {
            Fault::Said(text) if text.starts_with("OOM") => Trouble::Full,
            Fault::Said(text) if text.starts_with("LOADING") => Trouble::Away,
            _ if tls.is_some() => Trouble::Refused,
            Fault::Io(_) => Trouble::Away,
            Fault::Said(_) | Fault::TooLarge | Fault::Nonsense => Trouble::Refused,
        };
        let advice = match tls {
            _ if trouble == Trouble::Full => {
                "; set maxmemory-policy allkeys-lru there, or give it more memory"
            }
            Some(rustls::Error::AlertReceived(AlertDescription::CertificateRequired)) => {
                "; it asks for a certificate of the client, and there is none: set tls-auth-clients no there"
            }
            Some(tls) => tls_advice(tls),
            // A Redis waits for the end of what it takes for a command.
            None if fault.is_late() && self.shown.starts_with("rediss:") => NO_TLS,
            None => "",
        };
        let what: String = fault
            .to_string()
            .chars()
            .filter(|c| !c.is_control())
            .collect();
        RemoteError::new(trouble, format!("{}: {what}{advice}", self.shown))
    }
}

impl Holder for Redis {
    fn shown(&self) -> &str {
        &self.shown
    }

    fn pause(&self) -> Duration {
        PAUSE
    }

    fn longest_retry(&self) -> Duration {
        LONGEST_RETRY
    }

    fn overlap(&self) -> u64 {
        OVERLAP
    }

    fn reach(&mut self) -> Result<(), RemoteError> {
        // A user that may only connect may not ask this.
        self.ask(|wire| {
            wire.ask(&[&[b"EXISTS", PREFIX.as_bytes()]])?;
            wire.number().map(drop)
        })
    }

    fn round(&mut self, models: &[Fingerprint]) -> Result<Round, RemoteError> {
        let (key, list) = (format!("{PREFIX}:epoch"), format!("{PREFIX}:models"));
        let names: Vec<String> = models.iter().map(Fingerprint::to_string).collect();
        let (epoch, time, marks) = self.ask(|wire| {
            let mut marks: Vec<&[u8]> = vec![b"ZMSCORE", list.as_bytes()];
            marks.extend(names.iter().map(String::as_bytes));
            let epoch: &[&[u8]] = &[b"GET", key.as_bytes()];
            let mut questions: Vec<&[&[u8]]> = vec![epoch, &[b"TIME"]];
            if !names.is_empty() {
                questions.push(&marks);
            }
            wire.ask(&questions)?;
            let epoch = wire.value(LONGEST_MEMBER)?;
            let time = wire.values(2, LONGEST_MEMBER)?;
            let marks = if names.is_empty() {
                Vec::new()
            } else {
                wire.values(names.len(), LONGEST_MEMBER)?
            };
            Ok((epoch, time, marks))
        })?;
        let before = self.time.map(|_| self.time());
        let time = self.note_time(time)?;
        if marks.len() != models.len() {
            return Err(self.trouble(&Fault::Nonsense));
        }
        let epoch = match epoch {
            Some(epoch) => epoch,
            None => self.epoch()?,
        };
        // Its clock was set back: what comes now may seem to be known.
        let is_back = before.is_some_and(|before| time + OVERLAP / 2 < before);
        let is_anew = self
            .epoch
            .replace(epoch.clone())
            .is_some_and(|old| old != epoch);
        Ok(Round {
            is_anew: is_anew || is_back,
            marks: marks.iter().map(|mark| score(mark).unwrap_or(0)).collect(),
        })
    }

    fn has(
        &mut self,
        of: &Fingerprint,
        chunks: &[(Name, u64)],
    ) -> Result<Option<Vec<bool>>, RemoteError> {
        let keys: Vec<String> = chunks.iter().map(|(name, _)| chunk_key(name)).collect();
        let members: Vec<String> = chunks
            .iter()
            .map(|(name, size)| member(name, *size))
            .collect();
        let list = model_key(of);
        let (there, scores) = self.ask(|wire| {
            let mut exist: Vec<&[u8]> = vec![b"EXISTS"];
            exist.extend(keys.iter().map(String::as_bytes));
            let mut scores: Vec<&[u8]> = vec![b"ZMSCORE", list.as_bytes()];
            scores.extend(members.iter().map(String::as_bytes));
            wire.ask(&[&exist, &scores])?;
            Ok((wire.number()?, wire.values(members.len(), LONGEST_MEMBER)?))
        })?;
        if scores.len() != chunks.len() {
            return Err(self.trouble(&Fault::Nonsense));
        }
        let is_listed = |nth: usize| score(&scores[nth]).is_some();
        let all = chunks.len() as u64;
        if there == 0 || there == all {
            let has = (0..chunks.len()).map(|nth| there == all && is_listed(nth));
            return Ok(Some(has.collect()));
        }
        // Which of them: one answer for each.
        let there: Vec<bool> = self.ask(|wire| {
            let each: Vec<[&[u8]; 2]> = keys
                .iter()
                .map(|key| [&b"EXISTS"[..], key.as_bytes()])
                .collect();
            let each: Vec<&[&[u8]]> = each.iter().map(|words| &words[..]).collect();
            wire.ask(&each)?;
            each.iter().map(|_| Ok(wire.number()? > 0)).collect()
        })?;
        let has = there.iter().enumerate();
        Ok(Some(
            has.map(|(nth, there)| *there && is_listed(nth)).collect(),
        ))
    }

    fn put(&mut self, of: &Fingerprint, chunks: &[Sending]) -> Result<(), RemoteError> {
        let keys: Vec<String> = chunks.iter().map(|chunk| chunk_key(&chunk.name)).collect();
        let time = self.ask(|wire| {
            let sets: Vec<[&[u8]; 3]> = keys
                .iter()
                .zip(chunks)
                .map(|(key, chunk)| [&b"SET"[..], key.as_bytes(), &chunk.whole])
                .collect();
            let mut questions: Vec<&[&[u8]]> = sets.iter().map(|words| &words[..]).collect();
            questions.push(&[b"TIME"]);
            wire.ask(&questions)?;
            sets.iter().try_for_each(|_| wire.ok())?;
            wire.values(2, LONGEST_MEMBER)
        })?;
        let time = self.note_time(time)?;
        let (list, models, of) = (model_key(of), format!("{PREFIX}:models"), of.to_string());
        let nth = (time..).zip(chunks);
        let members: Vec<_> = nth
            .map(|(nth, chunk)| (nth.to_string(), member(&chunk.name, chunk.size)))
            .collect();
        let last = (time + chunks.len() as u64).to_string();
        self.ask(|wire| {
            let mut add: Vec<&[u8]> = vec![b"ZADD", list.as_bytes()];
            add.extend(
                members
                    .iter()
                    .flat_map(|(nth, member)| [nth.as_bytes(), member.as_bytes()]),
            );
            let tell: &[&[u8]] = &[b"ZADD", models.as_bytes(), last.as_bytes(), of.as_bytes()];
            wire.ask(&[&add, tell])?;
            wire.number()?;
            wire.number().map(drop)
        })
    }

    fn after(&mut self, of: &Fingerprint, nth: u64, most: usize) -> Result<Page, RemoteError> {
        let (list, most_text) = (model_key(of), most.to_string());
        let (begin, end) = (
            format!("({nth}"),
            (self.time().saturating_add(AHEAD)).to_string(),
        );
        let words: [&[u8]; 9] = [
            b"ZRANGE",
            list.as_bytes(),
            begin.as_bytes(),
            end.as_bytes(),
            b"BYSCORE",
            b"LIMIT",
            b"0",
            most_text.as_bytes(),
            b"WITHSCORES",
        ];
        self.page(&words, most)
    }

    fn before(
        &mut self,
        of: &Fingerprint,
        nth: Option<u64>,
        most: usize,
    ) -> Result<Page, RemoteError> {
        let (list, most_text) = (model_key(of), most.to_string());
        let begin = match nth {
            Some(nth) => format!("({nth}"),
            None => (self.time().saturating_add(AHEAD)).to_string(),
        };
        let words: [&[u8]; 10] = [
            b"ZRANGE",
            list.as_bytes(),
            begin.as_bytes(),
            b"0",
            b"BYSCORE",
            b"REV",
            b"LIMIT",
            b"0",
            most_text.as_bytes(),
            b"WITHSCORES",
        ];
        self.page(&words, most)
    }

    fn get(&mut self, _: &Fingerprint, name: &Name, most: u64) -> Result<Body, RemoteError> {
        self.body(&[b"GET", chunk_key(name).as_bytes()], most)
    }

    fn head(&mut self, _: &Fingerprint, name: &Name, bytes: u64) -> Result<Body, RemoteError> {
        let end = bytes.saturating_sub(1).to_string();
        let key = chunk_key(name);
        self.body(&[b"GETRANGE", key.as_bytes(), b"0", end.as_bytes()], bytes)
    }

    fn forget(&mut self, of: &Fingerprint, listed: &Listed) -> Result<(), RemoteError> {
        let member = member(&listed.name, listed.size);
        let (list, key) = (model_key(of), chunk_key(&listed.name));
        self.ask(|wire| {
            let off: &[&[u8]] = &[b"ZREM", list.as_bytes(), member.as_bytes()];
            wire.ask(&[off, &[b"UNLINK", key.as_bytes()]])?;
            wire.number()?;
            wire.number().map(drop)
        })
    }
}

impl Redis {
    fn body(&mut self, question: &[&[u8]], most: u64) -> Result<Body, RemoteError> {
        let got = self.try_ask(|wire| {
            wire.ask(&[question])?;
            wire.value(most)
        });
        match got {
            Ok(Some(bytes)) if !bytes.is_empty() => Ok(Body::Whole(bytes)),
            Ok(_) => Ok(Body::Nothing),
            // It says so before it comes. The connection is made anew.
            Err(Fault::TooLarge) => Ok(Body::TooLarge),
            Err(fault) => Err(self.trouble(&fault)),
        }
    }
}

/// A member of a list, with its score.
fn listed(member: &[u8], nth: u64) -> Option<Listed> {
    let (name, size) = std::str::from_utf8(member).ok()?.split_once(':')?;
    Some(Listed {
        name: name.parse().ok()?,
        size: size
            .parse()
            .ok()
            .filter(|size| (1..=LARGEST).contains(size))?,
        nth,
    })
}

/// A score that is a number of ours.
fn score(text: &[u8]) -> Option<u64> {
    let score: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    // Also not one that is no number.
    (0.0..EXACT as f64).contains(&score).then_some(score as u64)
}

fn chunk_key(name: &Name) -> String {
    format!("{PREFIX}:chunk:{name}")
}

fn model_key(of: &Fingerprint) -> String {
    format!("{PREFIX}:model:{of}")
}

fn member(name: &Name, size: u64) -> String {
    format!("{name}:{size}")
}
