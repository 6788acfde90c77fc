//! The shape of what is cached: prefixes, who holds them, and which prompts end where. Without tokens.

use super::Ledger;
use crate::fact::Asker;
use crate::ids::SequenceId;
use crate::requests::{Label, MarkKind};
use crate::token::Token;
use crate::tree::{Spot, Tree};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The most nodes of the tree that are looked at.
const MOST_VISITED: usize = 20_000;
/// The most prompts that are named at each place. Others are counted.
const MOST_NAMED: usize = 32;

/// A run of tokens: all prompts that go through it have all of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Branch {
    /// The branch before it: an index into the same list, less than its own. `None`: it begins at the
    /// first token.
    pub parent: Option<usize>,
    /// The position of its first token.
    pub from: u32,
    /// The position after its last token.
    pub to: u32,
    /// The slots that hold all of it, ascending.
    pub slots: Vec<SequenceId>,
    /// How many entries of the host prompt cache hold all of it.
    pub host: u32,
    /// The prompts that end here, but for their last token. Some of them.
    pub prompts: Vec<Asker>,
    /// How many prompts end here.
    pub prompts_total: u64,
    /// Branches that followed this one and are left out, because they are small.
    pub merged: Merged,
}

/// Branches that are left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Merged {
    /// How many branches these are.
    pub branches: u64,
    /// The tokens of all of them.
    pub tokens: u64,
    /// How many prompts end in them.
    pub prompts: u64,
}

impl Branch {
    fn tokens(&self) -> u32 {
        self.to - self.from
    }

    fn is_held(&self) -> bool {
        self.host > 0 || !self.slots.is_empty()
    }

    fn name(&mut self, asker: Asker) {
        if asker.id.is_some() && self.prompts.contains(&asker) {
            return;
        }
        self.prompts_total += 1;
        if self.prompts.len() < MOST_NAMED {
            self.prompts.push(asker);
        }
    }
}

impl Ledger {
    /// The branches of the tree, `most` at most: those with the fewest tokens are merged into the ones
    /// before them.
    ///
    /// Also shows where `prompts` end: these may have been lost. What was lost of them are branches that
    /// nothing holds. The latest prompt comes first.
    #[must_use]
    pub fn shape(&self, prompts: &[(Asker, Vec<Token>)], most: usize) -> Vec<Branch> {
        // As marks do, prompts end before their last token, which the server always evaluates again.
        let ends = |prompt: &'_ [Token]| prompt.len().saturating_sub(1);
        let spots: Vec<Spot> = prompts
            .iter()
            .map(|(_, prompt)| self.tree.spot(&prompt[..ends(prompt)]))
            .collect();
        let parts = self.tree.parts(&spots, MOST_VISITED);
        let mut branches: Vec<Branch> = parts
            .all
            .iter()
            .map(|part| Branch {
                parent: part.parent,
                from: part.from,
                to: part.to,
                ..Branch::default()
            })
            .collect();
        let climb = |branches: &mut Vec<Branch>, holder, hold: &dyn Fn(&mut Branch)| {
            let mut at = self.tree.part_at(&parts, self.tree.spot_of(holder));
            while let Some(place) = at {
                hold(&mut branches[place]);
                at = branches[place].parent;
            }
        };
        for (&slot, sequence) in &self.sequences {
            climb(&mut branches, sequence.holder, &|branch| {
                branch.slots.push(slot)
            });
        }
        for &holder in self.buffers.values() {
            climb(&mut branches, holder, &|branch| branch.host += 1);
        }
        for (place, part) in parts.all.iter().enumerate() {
            let ends = |label: &&&Label| label.kind != MarkKind::Enough;
            for label in part.labels.iter().filter(ends) {
                let request = self.requests.get(label.request);
                if let Some(request) = request.filter(|request| request.evaluation.is_none()) {
                    let id = Some(request.id.clone());
                    branches[place].name(Asker { number: 0, id });
                }
            }
        }
        let mut lost = Tree::new();
        for ((asker, tokens), &spot) in prompts.iter().zip(&spots) {
            let place = self.tree.part_at(&parts, spot);
            let tokens = &tokens[..ends(tokens)];
            if spot.depth as usize >= tokens.len() {
                if let Some(place) = place {
                    let asker = known(&branches[place], asker);
                    branches[place].name(asker);
                }
                continue;
            }
            let holder = lost.hold_root();
            lost.extend(holder, tokens);
            let end = LostPrompt {
                asker,
                cached: spot.depth,
                place,
            };
            lost.mark(holder, spot.depth, None);
            lost.mark(holder, u32::MAX, Some(end));
        }
        add_lost(&lost, &mut branches);
        merge(branches, most)
    }
}

/// The id is enough to name a request: a mark in the ledger does not know its number.
fn known(branch: &Branch, asker: &Asker) -> Asker {
    let by_id = |known: &&Asker| known.id.is_some() && known.id == asker.id;
    let named = branch.prompts.iter().find(by_id);
    named.unwrap_or(asker).clone()
}

/// A prompt of which only the beginning is cached, if anything.
#[derive(Clone, Copy)]
struct LostPrompt<'a> {
    asker: &'a Asker,
    /// How many tokens of it are cached.
    cached: u32,
    /// The branch that ends there.
    place: Option<usize>,
}

/// Adds the lost parts of prompts behind what is cached of them. In the tree of these prompts a mark
/// stands where each of them ends, and one where its cached beginning ends.
fn add_lost(lost: &Tree<Option<LostPrompt<'_>>>, branches: &mut Vec<Branch>) {
    let parts = lost.parts(&[], usize::MAX).all;
    // A prompt that goes through each part. All of them agree on how much of the part is cached.
    let mut through: Vec<Option<LostPrompt<'_>>> = vec![None; parts.len()];
    for (place, part) in parts.iter().enumerate().rev() {
        let ends = part.labels.iter().find_map(|label| **label);
        through[place] = through[place].or(ends);
        if let Some(parent) = part.parent {
            through[parent] = through[parent].or(through[place]);
        }
    }
    let mut places: Vec<Option<usize>> = Vec::new();
    for (part, through) in parts.iter().zip(through) {
        let lost = through.filter(|prompt| prompt.cached <= part.from);
        places.push(lost.map(|prompt| {
            let before = part.parent.and_then(|parent| places[parent]);
            let mut branch = Branch {
                parent: before.or(prompt.place),
                from: part.from,
                to: part.to,
                ..Branch::default()
            };
            for ends in part.labels.iter().filter_map(|label| **label) {
                branch.name(ends.asker.clone());
            }
            branches.push(branch);
            branches.len() - 1
        }));
    }
}

/// Merges the smallest branches into the ones before them, until `most` are left. What is lost goes first.
fn merge(mut branches: Vec<Branch>, most: usize) -> Vec<Branch> {
    let mut children = vec![0_usize; branches.len()];
    for branch in &branches {
        if let Some(parent) = branch.parent {
            children[parent] += 1;
        }
    }
    let size = |branch: &Branch| (branch.is_held(), branch.tokens());
    let childless = (0..branches.len()).filter(|&place| children[place] == 0);
    let mut leaves: BinaryHeap<_> = childless
        .map(|place| Reverse((size(&branches[place]), place)))
        .collect();
    let mut gone = vec![false; branches.len()];
    let mut left = branches.len();
    while left > most {
        let Some(Reverse((_, place))) = leaves.pop() else {
            break;
        };
        gone[place] = true;
        left -= 1;
        let leaf = &branches[place];
        let merged = Merged {
            branches: leaf.merged.branches + 1,
            tokens: leaf.merged.tokens + u64::from(leaf.tokens()),
            prompts: leaf.merged.prompts + leaf.prompts_total,
        };
        let Some(parent) = leaf.parent else { continue };
        let into = &mut branches[parent].merged;
        into.branches += merged.branches;
        into.tokens += merged.tokens;
        into.prompts += merged.prompts;
        children[parent] -= 1;
        if children[parent] == 0 {
            leaves.push(Reverse((size(&branches[parent]), parent)));
        }
    }
    // The numbers of those that are left.
    let mut number = vec![0; branches.len()];
    let mut next = 0;
    for (place, gone) in gone.iter().enumerate() {
        number[place] = next;
        next += usize::from(!gone);
    }
    let kept = branches.into_iter().zip(&gone).filter(|(_, gone)| !**gone);
    kept.map(|(branch, _)| Branch {
        parent: branch.parent.map(|parent| number[parent]),
        ..branch
    })
    .collect()
}
