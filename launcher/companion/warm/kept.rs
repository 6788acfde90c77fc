//! Whether the prefix store keeps a prompt that it was asked to keep.

use std::thread::sleep;
use std::time::Duration;

use contextpilot_client::Control;
use contextpilot_client::control::{KEEPS_NO_MORE, KeptBeginning, PrefixStore, Timestamp};

use crate::companion::show::Visible;
use crate::companion::under_way::not_in_use;

/// What is seen of a prompt that was to be kept.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Kept,
    /// Why it is not, and what to do.
    NotKept(String),
    /// The hook says nothing of such a prompt.
    NotKnown,
}

/// A prompt that the store was asked to keep.
pub(super) struct Asked<'a> {
    pub(super) id: &'a str,
    /// For how long.
    pub(super) seconds: u64,
    /// When it was sent, by the clock of the hook.
    pub(super) at: Timestamp,
    /// What the hook said of the store then.
    pub(super) before: PrefixStore,
    /// It has neither a salt nor adapters, so the hook says what is kept of it.
    pub(super) is_plain: bool,
}

impl Asked<'_> {
    /// Looks until it is seen whether it is kept, some seconds at most.
    pub(super) fn look(&self, control: &Control) -> Verdict {
        const WAITS: [u64; 6] = [0, 20, 100, 500, 1_000, 1_500];
        let mut last = None;
        for wait in WAITS {
            sleep(Duration::from_millis(wait));
            let kept = control.request(self.id).ok();
            let kept = kept.and_then(|state| state.kept());
            let store = control.stats().ok().and_then(|stats| stats.store);
            let Some(store) = store else { continue };
            if let Some(verdict) = self.verdict(&store, kept) {
                return verdict;
            }
            last = Some(store);
        }
        match last {
            Some(store) if self.is_plain => Verdict::NotKept(why_nothing_is(&store)),
            _ => Verdict::NotKnown,
        }
    }

    /// `kept`: what is kept of its prompt, if the hook says that. `None`: it is not seen yet.
    fn verdict(&self, store: &PrefixStore, kept: Option<KeptBeginning>) -> Option<Verdict> {
        let before = &self.before;
        if refusals(store) > refusals(before) {
            return Some(Verdict::NotKept(KEEPS_NO_MORE.to_owned()));
        }
        // Times are cut to milliseconds.
        let due = (self.at.unix_ms() + self.seconds * 1000).saturating_sub(1000);
        let is_long = |until: u64| until >= due;
        let of_all = store.kept.until.map_or(0, |until| until.unix_ms());
        let before_of_all = before.kept.until.map_or(0, |until| until.unix_ms());
        let is_kept = kept.is_some_and(|kept| is_long(kept.until.unix_ms()))
            || store.kept.prompts > before.kept.prompts
            || (of_all > before_of_all && is_long(of_all));
        is_kept.then_some(Verdict::Kept)
    }
}

/// How often something was not kept because that would have been too much.
fn refusals(store: &PrefixStore) -> u64 {
    let mut all = store.refusals();
    let of_kept = all.find(|(why, _)| *why == KEEPS_NO_MORE);
    of_kept.map_or(0, |(_, times)| times)
}

/// Why a prompt is not kept that was not refused for its size.
fn why_nothing_is(store: &PrefixStore) -> String {
    if let Some(problem) = &store.problem {
        return Visible(problem).to_string();
    }
    if let Some(why) = not_in_use(store) {
        return format!("it is {why}; try again later");
    }
    let refused = store.refused.iter().filter(|why| *why != KEEPS_NO_MORE);
    let refused: Vec<String> = refused.map(|why| Visible(why).to_string()).collect();
    if refused.is_empty() {
        "nothing of it is stored; has CONTEXTPILOT_STORE_GB room for it?".to_owned()
    } else {
        refused.join("; ")
    }
}

#[cfg(test)]
mod tests {
    use contextpilot_client::control::KeptPrompts;

    use super::*;

    fn store(refused: u64, prompts: u64, until: u64) -> PrefixStore {
        PrefixStore {
            ready: true,
            refused: vec![KEEPS_NO_MORE.to_owned()],
            refused_times: vec![refused],
            kept: KeptPrompts {
                prompts,
                until: Some(Timestamp::from_unix_ms(until)),
                ..KeptPrompts::default()
            },
            ..PrefixStore::default()
        }
    }

    #[test]
    fn what_was_refused_is_told_from_what_is_kept_and_from_what_is_not_known() {
        let asked = Asked {
            id: "tea",
            seconds: 60,
            at: Timestamp::from_unix_ms(10_000),
            before: store(3, 2, 65_000),
            is_plain: true,
        };
        let kept = |until| {
            Some(KeptBeginning {
                tokens: 9,
                until: Timestamp::from_unix_ms(until),
            })
        };
        let same = store(3, 2, 65_000);
        assert_eq!(asked.verdict(&same, None), None);
        // Of a shorter prompt, whose time ends before.
        assert_eq!(asked.verdict(&same, kept(30_000)), None);
        assert_eq!(asked.verdict(&same, kept(70_100)), Some(Verdict::Kept));
        let more = store(3, 3, 65_000);
        assert_eq!(asked.verdict(&more, None), Some(Verdict::Kept));
        let longer = store(3, 2, 70_100);
        assert_eq!(asked.verdict(&longer, None), Some(Verdict::Kept));
        let refused = Some(Verdict::NotKept(KEEPS_NO_MORE.to_owned()));
        assert_eq!(asked.verdict(&store(4, 2, 65_000), kept(30_000)), refused);
    }
}
