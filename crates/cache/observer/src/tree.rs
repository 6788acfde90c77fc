//! The tree of prefixes, for people to look at.

use contextpilot_control::{Branch, Merged, Timestamp, Tree};
use contextpilot_residency::{self as residency, Ledger};

use crate::evaluations::name;
use crate::note::Now;
use crate::observer::Observer;

/// The tree shows where this many of the last prompts end.
const MOST_PROMPTS: usize = 500;
/// The most tokens that these prompts have together. Each of them is followed through the tree.
const MOST_TOKENS: usize = 2 << 20;

impl Observer {
    /// The tree of what is held, with so many branches at most.
    #[must_use]
    pub fn tree(&self, most: usize, ledger: Option<&Ledger>, now: Now) -> Tree {
        let accounts = self.accounts.as_ref();
        let recent = accounts
            .map(|accounts| accounts.recent(MOST_PROMPTS, MOST_TOKENS))
            .unwrap_or_default();
        let shape = ledger.map(|ledger| ledger.shape(&recent, most));
        Tree {
            at: Timestamp::from_unix_ms(now.unix_ms),
            epoch: self.epoch.clone(),
            resident: ledger.map_or(0, |ledger| ledger.tokens() as u64),
            branches: shape.into_iter().flatten().map(branch).collect(),
        }
    }
}

fn branch(of: residency::Branch) -> Branch {
    let residency::Branch {
        parent,
        from,
        to,
        slots,
        host,
        prompts,
        prompts_total,
        merged,
    } = of;
    Branch {
        parent,
        from,
        to,
        slots,
        host,
        requests: prompts.iter().filter_map(name).collect(),
        requests_total: prompts_total,
        merged: Merged {
            branches: merged.branches,
            tokens: merged.tokens,
            requests: merged.prompts,
        },
    }
}
