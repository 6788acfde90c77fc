//! The shape of what is cached, as it is shown to people.

use crate::server::{SceneServer, text};
use contextpilot_residency::{Asker, Branch, Token};

fn asked(id: &'static str, prompt: &str) -> (Asker, Vec<Token>) {
    let id = Some(id.into());
    (Asker { number: 0, id }, text(prompt))
}

fn names(branch: &Branch) -> Vec<&str> {
    let ids = branch
        .prompts
        .iter()
        .filter_map(|asker| asker.id.as_deref());
    ids.collect()
}

/// `from-to slots+host ends`.
fn drawn(branches: &[Branch]) -> Vec<String> {
    let line = |branch: &Branch| {
        let names = names(branch).join(",");
        let (from, to, slots, host) = (branch.from, branch.to, &branch.slots, branch.host);
        format!("{from}-{to} {slots:?}+{host} [{names}]")
    };
    let mut lines: Vec<String> = branches.iter().map(line).collect();
    lines.sort();
    lines
}

#[test]
fn prompts_with_a_common_beginning_share_a_branch() {
    let mut server = SceneServer::start();
    server.prompt(0, "a", "system: tea");
    server.prompt(1, "b", "system: sea and more");
    let shape = server.ledger.shape(&[], 100);
    assert_eq!(
        shape
            .iter()
            .filter(|branch| branch.parent.is_none())
            .count(),
        1
    );
    // The last token of a prompt comes behind its end: the server always evaluates it again.
    assert_eq!(
        drawn(&shape),
        [
            "0-8 [0, 1]+0 []",
            "10-11 [0]+0 []",
            "19-20 [1]+0 []",
            "8-10 [0]+0 [a]",
            "8-19 [1]+0 [b]",
        ]
    );
}

#[test]
fn what_only_the_host_cache_holds_is_told_apart_from_what_is_lost() {
    let mut server = SceneServer::start();
    server.prompt(0, "a", "one two");
    server.put_by(0, 1);
    server.prompt(0, "b", "one three");
    let prompts = [asked("b", "one three"), asked("a", "one two")];
    let own = ["5-8 [0]+0 [b]", "8-9 [0]+0 []"];
    let saved = [
        "0-5 [0]+1 []",
        "5-6 []+1 [a]",
        own[0],
        "6-7 []+1 []",
        own[1],
    ];
    assert_eq!(drawn(&server.ledger.shape(&prompts, 100)), saved);
    server.free(1);
    let lost = ["0-5 [0]+0 []", "5-6 []+0 [a]", own[0], own[1]];
    assert_eq!(drawn(&server.ledger.shape(&prompts, 100)), lost);
    // Lost prompts are shown only if they are asked for.
    let left = ["0-8 [0]+0 [b]", own[1]];
    assert_eq!(drawn(&server.ledger.shape(&[], 100)), left);
}

#[test]
fn the_smallest_branches_are_merged_the_lost_ones_first() {
    let mut server = SceneServer::start();
    server.prompt(0, "a", "the same: short");
    server.prompt(1, "b", "the same: quite a long one");
    let lost = [asked("x", "the same: lost, and longer than any other")];
    let whole = server.ledger.shape(&lost, 100);
    assert_eq!(whole.len(), 6);
    let five = server.ledger.shape(&lost, 5);
    assert!(five.iter().all(|branch| !names(branch).contains(&"x")));
    let two = server.ledger.shape(&lost, 2);
    assert_eq!(two.len(), 2);
    let merged = two[0].merged;
    // The last token of `a` was merged into `a` before.
    assert_eq!((merged.branches, merged.prompts), (3, 2));
    assert_eq!(names(&two[1]), ["b"]);
    assert_eq!(two[1].merged.tokens, 1);
}

/// Numbers that look random, the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most
    }
}

/// Long runs, so that they span several nodes of the tree.
fn prompt(numbers: &mut Numbers) -> String {
    let words = numbers.below(6) + 1;
    let word = |n: u64| "ab".chars().nth(n as usize % 2).unwrap_or('c').to_string();
    (0..words)
        .map(|_| word(numbers.below(2)).repeat(700))
        .collect()
}

#[test]
fn of_any_prompts_the_branches_add_up_to_what_is_held() {
    let mut numbers = Numbers(7);
    for _ in 0..20 {
        let mut server = SceneServer::start();
        let mut prompts = Vec::new();
        for nth in 0..30 {
            let slot = numbers.below(3) as i32;
            if numbers.below(4) == 0 && server.ledger.held(slot) > 0 {
                server.put_by(slot, nth + 1);
            }
            if numbers.below(8) == 0 {
                server.free(numbers.below(nth as u64 + 1) as usize + 1);
            }
            let prompt = prompt(&mut numbers);
            let id: &'static str = Box::leak(format!("r{nth}").into_boxed_str());
            server.prompt(slot, id, &prompt);
            prompts.insert(0, asked(id, &prompt));
            check(&server, &prompts);
        }
    }
}

fn check(server: &SceneServer, prompts: &[(Asker, Vec<Token>)]) {
    let shape = server.ledger.shape(prompts, usize::MAX);
    let held = |branch: &&Branch| branch.host > 0 || !branch.slots.is_empty();
    let tokens = |branch: &Branch| (branch.to - branch.from) as usize;
    let sum: usize = shape.iter().filter(held).map(tokens).sum();
    assert_eq!(sum, server.ledger.tokens());
    for slot in server.ledger.slots() {
        let of_slot = shape.iter().filter(|branch| branch.slots.contains(&slot));
        let deepest = of_slot.map(|branch| branch.to).max().unwrap_or(0);
        assert_eq!(deepest, server.ledger.held(slot));
    }
    for (place, branch) in shape.iter().enumerate() {
        let before = branch.parent.map_or(0, |parent| shape[parent].to);
        assert!(branch.parent.is_none_or(|parent| parent < place));
        assert!(
            branch.from == before && branch.from < branch.to,
            "{branch:?}"
        );
    }
    for (asker, prompt) in prompts {
        let found = shape.iter().find(|branch| branch.prompts.contains(asker));
        let ends = found.unwrap_or_else(|| panic!("{asker:?} ends nowhere"));
        assert_eq!(ends.to as usize, prompt.len() - 1, "{asker:?}");
        // A live request is cached. One that was evicted may be held again, by a later prompt.
        let live = server.ledger.whereabouts(asker.id.as_deref().unwrap_or(""));
        assert!(held(&ends) || live.is_none(), "{asker:?}");
    }
}
