//! Prompts that requests asked to keep. Files say so, for other processes and the next one; a thread of ours writes and
//! reads them.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use contextpilot_kv_files::{Folder, clock};
use contextpilot_kv_store::{Fingerprint, Name};

use super::StoreIndex;
use crate::capture::hints::Lifetime;
use crate::store::figures::FIGURES;

impl StoreIndex {
    /// These tokens are kept for so many seconds from now on; for none: they, and what is kept of their beginnings, are not
    /// any more. False if what is kept would be more than its share of the budget.
    pub(in crate::store) fn keep_for(
        &mut self,
        fingerprint: &Fingerprint,
        tokens: &[i32],
        seconds: Lifetime,
    ) -> bool {
        if seconds == 0 {
            let released = self.tree.release(fingerprint, tokens);
            self.kept_news
                .extend(released.into_iter().map(|end| (end, None)));
            self.count_kept();
            return true;
        }
        let until = clock::time().saturating_add(u64::from(seconds) * 1_000_000_000);
        let is_there = self.length_of(fingerprint, tokens) > 0;
        match self.tree.keep(fingerprint, tokens, until) {
            Some((end, instead)) => {
                self.count_kept();
                self.kept_news.insert(end, Some(until));
                self.kept_news
                    .extend(instead.into_iter().map(|end| (end, None)));
                true
            }
            None => !is_there,
        }
    }

    /// How many tokens at the beginning of these are kept, and until when. `None`: none are.
    pub(in crate::store) fn kept_of(
        &self,
        fingerprint: &Fingerprint,
        tokens: &[i32],
    ) -> Option<(usize, u64)> {
        if self.tree.kept_bytes() == 0 {
            return None;
        }
        let kept = self.tree.kept_of(&self.tree.find(fingerprint, tokens));
        kept.filter(|(_, until)| *until > clock::time())
    }

    /// What is to be written down.
    pub(in crate::store) fn take_kept_news(&mut self) -> (Folder, Vec<(Name, Option<u64>)>) {
        for end in self.tree.expire(clock::time()) {
            self.kept_news.entry(end).or_insert(None);
        }
        let news = std::mem::take(&mut self.kept_news);
        (self.folder.clone(), news.into_iter().collect())
    }

    /// What is written down.
    pub(in crate::store) fn share_kept(&mut self, there: &[(Name, u64)]) {
        let now = clock::time();
        let there: BTreeMap<Name, u64> = there.iter().copied().collect();
        let known: Vec<Name> = self.tree.kept().map(|(end, _)| *end).collect();
        for end in known {
            if !there.contains_key(&end) && !self.kept_news.contains_key(&end) {
                self.tree.release_to(&end);
            }
        }
        for (end, until) in there {
            if until > now && !self.kept_news.contains_key(&end) {
                self.tree.keep_to(&end, until);
            }
        }
        self.count_kept();
    }

    fn count_kept(&self) {
        let (prompts, until) = (
            self.tree.kept().count() as u64,
            self.tree.kept().map(|(_, until)| until).max(),
        );
        for (counter, value) in [
            (&FIGURES.kept_prompts, prompts),
            (&FIGURES.kept_tokens, self.tree.kept_tokens() as u64),
            (&FIGURES.kept_bytes, self.tree.kept_bytes()),
            (&FIGURES.kept_until, until.unwrap_or(0)),
        ] {
            counter.store(value, Ordering::Relaxed);
        }
    }
}

/// Writes down what is new, and returns all that is written down.
pub(in crate::store) fn write_down(
    folder: &Folder,
    news: &[(Name, Option<u64>)],
) -> Vec<(Name, u64)> {
    for (end, until) in news {
        match until {
            // Where nothing can be written, chunks cannot either, which is said.
            Some(until) => drop(folder.keep(end, *until)),
            None => folder.release(end),
        }
    }
    let now = clock::time();
    let (there, over): (Vec<_>, Vec<_>) = folder
        .kept()
        .into_iter()
        .partition(|(_, until)| *until > now);
    over.iter().for_each(|(end, _)| folder.release(end));
    there
}
