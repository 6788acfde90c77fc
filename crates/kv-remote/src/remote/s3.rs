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
use self::answers::{News, Object, Page};
use self::requests::{Answer, Requests};
#[cfg(test)]
pub(crate) use self::tests::Bucket;
use super::{Holder, Listed, RemoteError};

/// Each look costs a `GET` for each model.
const PAUSE: Duration = Duration::from_secs(5);
/// The attempt may list all, which costs more.
const LONGEST_RETRY: Duration = Duration::from_secs(300);
/// All is listed at most so often. What the news lack is found then.
const LIST_EVERY: Duration = Duration::from_secs(300);
/// A list may be so old if it is to be whole.
const FRESH: Duration = Duration::from_secs(60);
/// Pages of a list, of 1,000 objects each.
const PAGES: usize = 1100;
/// How often a chunk is told.
const TIMES_TOLD: u8 = 2;
/// The largest object that is read, if its size is not known.
const LARGEST: u64 = 1 << 30;

/// It keeps in memory what each model's folder of the bucket has. After an error all is listed again.
pub(super) struct S3 {
    requests: Requests,
    /// What all keys begin with.
    root: String,
    models: HashMap<Fingerprint, Model>,
}

/// What is known of a model's folder.
struct Model {
    /// What is there, and how large it is.
    there: HashMap<Name, u64>,
    /// What was found there, in the order in which it was. A name may come again.
    found: Vec<(Name, u64)>,
    /// What is not there although it was told. The news may tell it for long, so only a list can bring it back.
    gone: HashSet<Name>,
    /// When all was listed.
    listed: Instant,
    /// The news have changed since.
    has_changed: bool,
    news: News,
    /// The version of the news that were read or written last.
    version: Option<String>,
    /// What was sent and may not stand in the news, and how often it will be written there.
    told: Vec<(Name, u64, u8)>,
}

impl S3 {
    /// # Errors
    /// It is no such address, or the environment does not say who asks, and whom.
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
        })
    }

    /// What is known of a model's folder, which is listed if nothing is.
    fn model(&mut self, of: &Fingerprint) -> Result<&mut Model, RemoteError> {
        if !self.models.contains_key(of) {
            self.list(of)?;
        }
        Ok(self.models.entry(*of).or_insert_with(Model::new))
    }

    /// Lists all of a model's folder. Each page costs a `LIST`.
    fn list(&mut self, of: &Fingerprint) -> Result<(), RemoteError> {
        let folder = self.folder(of);
        let mut objects: Vec<Object> = Vec::new();
        let mut from = None;
        for _ in 0..PAGES {
            let page = self.requests.list(&folder, from.as_deref());
            let Page { found, next } = self.note(page)?;
            objects.extend(found);
            from = next;
            if from.is_none() {
                break;
            }
        }
        // By the server's clock, which has seconds.
        objects.sort_by(|a, b| (&a.written, &a.key).cmp(&(&b.written, &b.key)));
        let chunks: Vec<_> = objects
            .iter()
            .filter_map(|object| {
                let name: Name = object.key.strip_prefix(&folder)?.parse().ok()?;
                Some((name, object.size))
            })
            .collect();
        let names: HashSet<Name> = chunks.iter().map(|(name, _)| *name).collect();
        let model = self.models.entry(*of).or_insert_with(Model::new);
        model.there.retain(|name, _| names.contains(name));
        for (name, size) in chunks {
            model.add(name, size);
        }
        model.listed = Instant::now();
        model.has_changed = false;
        Ok(())
    }

    /// Reads the news if they have changed, and writes what is missing in them. Who writes at the same moment may remove
    /// that: so it is looked at once more, the next time.
    fn exchange(&mut self, of: &Fingerprint) -> Result<(), RemoteError> {
        let key = format!("{}news", self.folder(of));
        let version = self.model(of)?.version.clone();
        let got = self.requests.get(&key, version.as_deref(), News::LARGEST);
        let got = self.note(got)?;
        let model = self.model(of)?;
        match got {
            Answer::Same => {}
            Answer::Whole { bytes, version } => {
                let news = News::read(&bytes);
                for (name, size) in news.chunks() {
                    if !model.gone.contains(&name) {
                        model.add(name, size);
                    }
                }
                model.news = news;
                model.version = Some(version);
                model.has_changed = true;
            }
            Answer::Nothing | Answer::TooLarge => {
                model.news = News::default();
                model.version = None;
            }
        }
        let known: HashSet<Name> = model.news.chunks().map(|(name, _)| name).collect();
        model
            .told
            .retain(|(name, _, left)| *left > 0 && !known.contains(name));
        if model.told.is_empty() {
            return Ok(());
        }
        for (name, size, left) in &mut model.told {
            model.news.add(*name, *size);
            *left -= 1;
        }
        let text = model.news.write();
        let written = self.requests.put(&key, text.as_bytes());
        let version = self.note(written)?;
        self.model(of)?.version = Some(version);
        Ok(())
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
            self.models.clear();
        }
        done
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

    fn has(&mut self, of: &Fingerprint, chunks: &[(Name, u64)]) -> Result<Vec<bool>, RemoteError> {
        let model = self.model(of)?;
        let has = chunks
            .iter()
            .map(|(name, _)| model.there.contains_key(name));
        Ok(has.collect())
    }

    fn put(
        &mut self,
        of: &Fingerprint,
        name: &Name,
        _: u64,
        whole: &[u8],
    ) -> Result<(), RemoteError> {
        let sent = self.requests.put(&self.key(of, name), whole);
        self.note(sent)?;
        let size = whole.len() as u64;
        let model = self.model(of)?;
        model.add(*name, size);
        model.told.push((*name, size, TIMES_TOLD));
        Ok(())
    }

    /// Writes what was sent into the news.
    fn publish(&mut self) -> Result<(), RemoteError> {
        let with_new = |(of, model): (&Fingerprint, &Model)| {
            let is_new = model.told.iter().any(|(.., left)| *left == TIMES_TOLD);
            is_new.then_some(*of)
        };
        let models: Vec<_> = self.models.iter().filter_map(with_new).collect();
        for of in models {
            self.exchange(&of)?;
        }
        Ok(())
    }

    fn after(
        &mut self,
        of: &Fingerprint,
        nth: u64,
        most: usize,
    ) -> Result<Vec<Listed>, RemoteError> {
        if self.models.get(of).is_none_or(|model| nth >= model.nth()) {
            self.exchange(of)?;
            let model = self.model(of)?;
            if model.has_changed && model.listed.elapsed() > LIST_EVERY {
                self.list(of)?;
            }
        }
        let model = self.model(of)?;
        let begin = usize::try_from(nth).unwrap_or(usize::MAX);
        let after = model.found.get(begin..).unwrap_or_default();
        let after = after.iter().zip(nth + 1..).take(most);
        Ok(after.map(listed).collect())
    }

    fn last(&mut self, of: &Fingerprint, most: usize) -> Result<Vec<Listed>, RemoteError> {
        if self.model(of)?.listed.elapsed() > FRESH {
            self.list(of)?;
        }
        let model = self.model(of)?;
        let found = model.found.iter().rev().zip((1..=model.nth()).rev());
        Ok(found.take(most).map(listed).collect())
    }

    fn get(&mut self, of: &Fingerprint, name: &Name) -> Result<Option<Vec<u8>>, RemoteError> {
        let known = self.models.get(of).and_then(|model| model.there.get(name));
        let largest = known.copied().unwrap_or(LARGEST);
        let got = self.requests.get(&self.key(of, name), None, largest);
        Ok(match self.note(got)? {
            Answer::Whole { bytes, .. } => Some(bytes),
            // Not what was sent: it is taken for damaged.
            Answer::TooLarge => Some(Vec::new()),
            Answer::Same | Answer::Nothing => {
                if let Some(model) = self.models.get_mut(of) {
                    model.remove(name);
                }
                None
            }
        })
    }

    fn forget(&mut self, of: &Fingerprint, listed: &Listed) -> Result<(), RemoteError> {
        let name = &listed.name;
        if self.model(of)?.gone.contains(name) {
            return Ok(());
        }
        let removed = self.requests.delete(&self.key(of, name));
        self.note(removed)?;
        self.model(of)?.remove(name);
        Ok(())
    }
}

impl Model {
    fn new() -> Self {
        Self {
            there: HashMap::new(),
            found: Vec::new(),
            gone: HashSet::new(),
            listed: Instant::now(),
            has_changed: false,
            news: News::default(),
            version: None,
            told: Vec::new(),
        }
    }

    fn add(&mut self, name: Name, size: u64) {
        self.gone.remove(&name);
        if self.there.insert(name, size).is_none() {
            self.found.push((name, size));
        }
    }

    fn remove(&mut self, name: &Name) {
        self.there.remove(name);
        self.gone.insert(*name);
    }

    /// The number of what was found last.
    fn nth(&self) -> u64 {
        self.found.len() as u64
    }
}

fn listed((&(name, size), nth): (&(Name, u64), u64)) -> Listed {
    Listed { name, size, nth }
}
