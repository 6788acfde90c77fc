//! A bucket of a server that speaks S3.

mod address;
mod answers;
mod requests;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use contextpilot_kv_store::{Fingerprint, Name};
use contextpilot_settings::shown_remote;

use self::address::Address;
use self::answers::{News, Page as ListPage};
use self::requests::{ObjectAnswer, Requests};
#[cfg(test)]
pub(crate) use self::tests::Bucket;
use super::holder::{Body, Holder, LARGEST, Listed, Page, RemoteError, Round, Sending, random_id};

/// Each look costs a `GET`.
const PAUSE: Duration = Duration::from_secs(5);
/// The attempt may list all, which costs more.
const LONGEST_RETRY: Duration = Duration::from_secs(300);
/// All of a model is listed at most so often. What the news lack is found then.
const LIST_EVERY: Duration = Duration::from_secs(300);
/// A list may be so old if it is to be whole.
const FRESH: Duration = Duration::from_secs(60);
/// A list ends after this time, with what it has.
const LISTING: Duration = Duration::from_secs(300);
/// So many chunks are known, of all models together.
const MOST_LISTED: usize = 1 << 20;
/// How often a chunk is announced.
const TIMES_ANNOUNCED: u8 = 2;
/// So many wait to be announced: the news have no room for more.
const MOST_ANNOUNCED: usize = 4096;

/// It keeps in memory what each model's folder of the bucket has. After an error all is listed again.
pub(super) struct S3 {
    requests: Requests,
    /// What all keys begin with.
    root: String,
    models: HashMap<Fingerprint, Model>,
    news: News,
    /// The version of the news that were read or written last.
    version: Option<String>,
    /// What was sent and may not stand in the news, and how often it will be written there.
    announced: Vec<(Fingerprint, Name, u64, u8)>,
    /// One model is listed in a turn, so that many cost no more at a time than one.
    may_list: bool,
}

/// What is known of a model's folder.
#[derive(Default)]
struct Model {
    /// What is there, and how large it is.
    there: HashMap<Name, u64>,
    /// What was found there, in the order in which it was. A name may come again.
    found: Vec<(Name, u64)>,
    /// What is not there although it was announced. The news may announce it for long, so only a list can bring it back.
    gone: HashSet<Name>,
    /// When all was listed. `None`: it was not.
    listed: Option<Instant>,
    /// The news have had something of it since.
    has_changed: bool,
}

impl S3 {
    /// # Errors
    /// It is no such address, or the environment does not say who asks, and which server.
    pub(super) fn new(
        url: &str,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, RemoteError> {
        let address = Address::new(url, environment)
            .map_err(|why| RemoteError::address(&shown_remote(url), &why))?;
        Ok(Self {
            root: format!("{}contextpilot/kv/1/", address.prefix),
            requests: Requests::new(address),
            models: HashMap::new(),
            news: News::default(),
            version: None,
            announced: Vec::new(),
            may_list: true,
        })
    }

    /// Lists all of a model's folder. Each page costs a `LIST`.
    fn list(&mut self, of: &Fingerprint) -> Result<(), RemoteError> {
        self.may_list = false;
        let folder = self.folder(of);
        let other_models = self.models.iter().filter(|(other, _)| *other != of);
        let others: usize = other_models.map(|(_, model)| model.found.len()).sum();
        let mut chunks: Vec<(u64, Name, u64)> = Vec::new();
        let mut from: Option<String> = None;
        let begin = Instant::now();
        // A page may be empty, and another one follow.
        let mut pages = 2 * MOST_LISTED / 1000;
        while pages > 0 && begin.elapsed() < LISTING && others + chunks.len() < MOST_LISTED {
            pages -= 1;
            let page = self.requests.list(&folder, from.as_deref());
            let ListPage { found, next } = self.note(page)?;
            chunks.extend(found.iter().filter_map(|object| {
                let name: Name = object.key.strip_prefix(&folder)?.parse().ok()?;
                let is_one = (1..=LARGEST).contains(&object.size);
                is_one.then_some((object.written, name, object.size))
            }));
            if next.is_none() || next == from {
                break;
            }
            from = next;
        }
        // By the server's clock, which has seconds.
        chunks.sort_unstable();
        let names: HashSet<Name> = chunks.iter().map(|(_, name, _)| *name).collect();
        let model = self.models.entry(*of).or_default();
        model.there.retain(|name, _| names.contains(name));
        for (_, name, size) in chunks {
            model.add(name, size);
        }
        model.listed = Some(Instant::now());
        model.has_changed = false;
        Ok(())
    }

    /// Reads the news if they have changed, and writes what is missing in them. Another machine that writes at the same
    /// moment may remove that: so it is looked at once more, the next time. Returns whether the bucket is another one.
    fn exchange(&mut self) -> Result<bool, RemoteError> {
        let key = format!("{}news", self.root);
        let got = self
            .requests
            .get(&key, self.version.as_deref(), News::LARGEST);
        let mut is_anew = false;
        match self.note(got)? {
            ObjectAnswer::Same => {}
            ObjectAnswer::Whole { bytes, version } => {
                let news = News::read(&bytes);
                is_anew = self.news.epoch.is_some() && news.epoch != self.news.epoch;
                if is_anew {
                    self.models.clear();
                }
                for (of, name, size) in news.chunks() {
                    // What is not known will be listed.
                    let model = self.models.get_mut(&of);
                    if let Some(model) = model.filter(|model| !model.gone.contains(&name)) {
                        model.has_changed = true;
                        if model.found.len() < MOST_LISTED {
                            model.add(name, size);
                        }
                    }
                }
                self.news = news;
                self.version = Some(version);
            }
            ObjectAnswer::Nothing | ObjectAnswer::TooLarge => {
                is_anew = self.version.take().is_some();
                self.news = News::default();
                if is_anew {
                    self.models.clear();
                }
            }
        }
        let known: HashSet<Name> = self.news.chunks().map(|(_, name, _)| name).collect();
        self.announced
            .retain(|(_, name, _, left)| *left > 0 && !known.contains(name));
        if self.announced.is_empty() {
            return Ok(is_anew);
        }
        for (of, name, size, left) in &mut self.announced {
            self.news.add(*of, *name, *size);
            *left -= 1;
        }
        self.news.epoch.get_or_insert_with(random_id);
        let text = self.news.write();
        let written = self.requests.put(&key, text.as_bytes());
        self.version = Some(self.note(written)?);
        Ok(is_anew)
    }

    fn folder(&self, of: &Fingerprint) -> String {
        format!("{}{of}/", self.root)
    }

    fn key(&self, of: &Fingerprint, name: &Name) -> String {
        format!("{}{name}", self.folder(of))
    }

    /// After an error it may be another bucket, or an empty one.
    fn note<T>(&mut self, done: Result<T, RemoteError>) -> Result<T, RemoteError> {
        if done.is_err() {
            self.may_list = true;
            self.models.clear();
        }
        done
    }

    fn found(&self, of: &Fingerprint) -> &[(Name, u64)] {
        self.models.get(of).map_or(&[], |model| &*model.found)
    }
}

impl Holder for S3 {
    fn shown(&self) -> &str {
        self.requests.shown()
    }

    fn pause(&self) -> Duration {
        PAUSE
    }

    fn longest_retry(&self) -> Duration {
        LONGEST_RETRY
    }

    fn reach(&mut self) -> Result<(), RemoteError> {
        self.requests.list(&self.root, None).map(drop)
    }

    fn round(&mut self, models: &[Fingerprint]) -> Result<Round, RemoteError> {
        self.may_list = true;
        let is_anew = self.exchange()?;
        let is_due = |of: &&Fingerprint| {
            let model = self.models.get(of).filter(|model| model.has_changed);
            let listed = model.and_then(|model| model.listed);
            listed.is_some_and(|listed| listed.elapsed() > LIST_EVERY)
        };
        if let Some(due) = models.iter().find(is_due) {
            self.list(due)?;
        }
        let marks = models.iter().map(|of| self.found(of).len() as u64);
        Ok(Round {
            is_anew,
            marks: marks.collect(),
        })
    }

    fn has(
        &mut self,
        of: &Fingerprint,
        chunks: &[(Name, u64)],
    ) -> Result<Option<Vec<bool>>, RemoteError> {
        let is_listed = |model: &Model| model.listed.is_some();
        if !self.models.get(of).is_some_and(is_listed) {
            if !self.may_list {
                return Ok(None);
            }
            self.list(of)?;
        }
        let there = self.models.get(of).map(|model| &model.there);
        let has = |(name, _): &(Name, u64)| there.is_some_and(|there| there.contains_key(name));
        Ok(Some(chunks.iter().map(has).collect()))
    }

    fn put(&mut self, of: &Fingerprint, chunks: &[Sending]) -> Result<(), RemoteError> {
        for Sending { name, whole, .. } in chunks {
            let sent = self.requests.put(&self.key(of, name), whole);
            self.note(sent)?;
            let size = whole.len() as u64;
            self.models.entry(*of).or_default().add(*name, size);
            if self.announced.len() < MOST_ANNOUNCED {
                self.announced.push((*of, *name, size, TIMES_ANNOUNCED));
            }
        }
        Ok(())
    }

    /// Writes what was sent into the news.
    fn publish(&mut self) -> Result<(), RemoteError> {
        let is_new = |(.., left): &(Fingerprint, Name, u64, u8)| *left == TIMES_ANNOUNCED;
        if self.announced.iter().any(is_new) {
            self.exchange().map(drop)
        } else {
            Ok(())
        }
    }

    fn after(&mut self, of: &Fingerprint, nth: u64, most: usize) -> Result<Page, RemoteError> {
        let found = self.found(of);
        let begin = usize::try_from(nth).unwrap_or(usize::MAX);
        let after = found.get(begin..).unwrap_or_default();
        let listed: Vec<_> = after.iter().zip(nth + 1..).take(most).map(listed).collect();
        Ok(Page {
            is_last: listed.len() == after.len(),
            end: listed.last().map(|last| last.nth),
            listed,
            refused: 0,
        })
    }

    fn before(
        &mut self,
        of: &Fingerprint,
        nth: Option<u64>,
        most: usize,
    ) -> Result<Page, RemoteError> {
        if nth.is_none() {
            let listed = self.models.get(of).and_then(|model| model.listed);
            if listed.is_none_or(|listed| listed.elapsed() > FRESH) {
                self.list(of)?;
            }
        }
        let found = self.found(of);
        let last = nth.map_or(found.len() as u64, |nth| nth.saturating_sub(1));
        let end = usize::try_from(last).unwrap_or(usize::MAX).min(found.len());
        let before = found[..end].iter().rev().zip((1..=end as u64).rev());
        let listed: Vec<_> = before.take(most).map(listed).collect();
        Ok(Page {
            is_last: listed.len() == end,
            end: listed.last().map(|last| last.nth),
            listed,
            refused: 0,
        })
    }

    fn get(&mut self, of: &Fingerprint, name: &Name, most: u64) -> Result<Body, RemoteError> {
        let got = self.requests.get(&self.key(of, name), None, most);
        Ok(match self.note(got)? {
            ObjectAnswer::Whole { bytes, .. } => Body::Whole(bytes),
            ObjectAnswer::TooLarge => Body::TooLarge,
            ObjectAnswer::Same | ObjectAnswer::Nothing => {
                if let Some(model) = self.models.get_mut(of) {
                    model.remove(name);
                }
                Body::Nothing
            }
        })
    }

    fn head(&mut self, of: &Fingerprint, name: &Name, bytes: u64) -> Result<Body, RemoteError> {
        let got = self.requests.head(&self.key(of, name), bytes);
        Ok(match self.note(got)? {
            Some(bytes) => Body::Whole(bytes),
            None => Body::Nothing,
        })
    }

    fn forget(&mut self, of: &Fingerprint, listed: &Listed) -> Result<(), RemoteError> {
        let name = &listed.name;
        let is_gone = |model: &Model| model.gone.contains(name);
        if self.models.get(of).is_some_and(is_gone) {
            return Ok(());
        }
        let removed = self.requests.delete(&self.key(of, name));
        self.note(removed)?;
        self.models.entry(*of).or_default().remove(name);
        Ok(())
    }
}

impl Model {
    fn add(&mut self, name: Name, size: u64) {
        self.gone.remove(&name);
        if self.there.insert(name, size).is_none() {
            self.found.push((name, size));
        }
    }

    fn remove(&mut self, name: &Name) {
        self.there.remove(name);
        if self.gone.len() < MOST_LISTED {
            self.gone.insert(*name);
        }
    }
}

fn listed((&(name, size), nth): (&(Name, u64), u64)) -> Listed {
    Listed { name, size, nth }
}
