//! Requests that are tied to slots by their prompts.

use contextpilot_residency::{Arrival, ContextId, Effect, Event, Ledger, Prompts, UNTIED};
use server::{ENGINE, entries, text};

#[allow(dead_code, reason = "each test program uses a part of it")]
mod server;

/// A ledger that is told of no launch.
struct Tied {
    ledger: Ledger,
    prompts: Prompts,
    launched: Vec<(i32, i32)>,
    effects: Vec<Effect>,
}

impl Tied {
    fn new() -> Self {
        let mut tied = Self {
            ledger: Ledger::new(),
            prompts: Prompts::new(),
            launched: Vec::new(),
            effects: Vec::new(),
        };
        tied.apply(Event::ContextCreated { context: ENGINE });
        tied
    }

    fn apply(&mut self, event: Event) {
        let mut events = Vec::new();
        self.prompts.pass(event, &self.ledger, &mut events);
        for event in events {
            if let Event::Launched { sequence, task } = event {
                self.launched.push((sequence, task));
            }
            self.ledger.apply(event, &mut self.effects);
        }
    }

    /// The request `n` comes with the id that its number is.
    fn ask(&mut self, n: u64, prompt: &str) {
        self.apply(Event::Posted {
            arrival: Arrival(n),
            task: n as i32,
            id: n.to_string().into(),
        });
        assert!(self.prompts.expect(Arrival(n), n as i32, text(prompt)));
    }

    fn answer(&mut self, n: u64) {
        self.apply(Event::Answered {
            arrival: Arrival(n),
            id: n.to_string().into(),
        });
        self.prompts.forget(Arrival(n), &mut Vec::new());
    }

    fn remove(&mut self, slot: i32, from: i32) {
        self.apply(Event::Removed {
            context: ENGINE,
            sequence: slot,
            from,
            to: -1,
        });
    }

    fn submit(&mut self, slot: i32, from: i32, tokens: &str, ends: bool) {
        self.submit_to(ENGINE, slot, from, tokens, ends);
    }

    fn submit_to(&mut self, context: ContextId, slot: i32, from: i32, tokens: &str, ends: bool) {
        self.apply(Event::Submitted {
            context,
            entries: entries(slot, from, &text(tokens), ends).into(),
        });
        self.apply(Event::Evaluated {
            context,
            failed: Vec::new(),
        });
    }

    /// Evaluates a prompt of which the slot has the first tokens.
    fn prompt(&mut self, slot: i32, from: usize, prompt: &str) {
        self.remove(slot, from as i32);
        self.submit(slot, from as i32, &prompt[from..], true);
    }

    fn launched(&mut self) -> Vec<(i32, i32)> {
        std::mem::take(&mut self.launched)
    }

    fn lost(&mut self) -> Vec<String> {
        let effects = std::mem::take(&mut self.effects).into_iter();
        let lost = effects.filter_map(|effect| match effect {
            Effect::Evicted { id, .. } => Some(id.to_string()),
            _ => None,
        });
        lost.collect()
    }
}

#[test]
fn a_prompt_is_known_by_its_tokens() {
    let mut tied = Tied::new();
    tied.ask(1, "a prompt");
    tied.ask(2, "another prompt");
    tied.prompt(0, 0, "another prompt");
    assert_eq!(tied.launched(), [(0, 2)]);
    tied.answer(2);
    tied.prompt(1, 0, "a prompt");
    tied.answer(1);
    assert_eq!(tied.launched(), [(1, 1)]);
    assert!(tied.lost().is_empty() && tied.prompts.is_empty());
    tied.ask(3, "a third");
    tied.prompt(1, 2, "a third");
    assert_eq!(
        (tied.launched(), tied.lost()),
        (vec![(1, 3)], vec!["1".into()])
    );
}

#[test]
fn a_prompt_in_pieces_is_nobodys_until_it_ends() {
    let mut tied = Tied::new();
    tied.ask(1, "a long prompt");
    tied.remove(0, 0);
    tied.submit(0, 0, "a long", false);
    assert_eq!(tied.launched(), [(0, UNTIED)]);
    // What the server does between batches.
    tied.remove(0, 6);
    tied.submit(0, 6, " pro", false);
    tied.submit(0, 10, "mpt", true);
    assert_eq!(tied.launched(), [(0, 1)]);
    tied.answer(1);
    tied.submit(0, 13, "!", true);
    assert!(tied.launched().is_empty() && tied.lost().is_empty());
}

#[test]
fn what_is_no_prompt_of_anybody_ties_nobody() {
    let mut tied = Tied::new();
    tied.ask(1, "of one");
    for other in ["of one!", "of on", "of two"] {
        tied.prompt(0, 0, other);
        assert_eq!(tied.launched(), [(0, UNTIED)], "{other}");
    }
    // The end agrees, what comes before it does not.
    tied.prompt(0, 0, "or one");
    tied.launched();
    tied.prompt(0, 3, "or one");
    assert_eq!(tied.launched(), [(0, UNTIED)]);
    tied.answer(1);
    assert_eq!(tied.lost(), ["1"], "never cached");
    tied.prompt(0, 1, "of one");
    assert_eq!(tied.launched(), [(0, UNTIED)], "it waits no more");
}

#[test]
fn generation_ties_nobody() {
    let mut tied = Tied::new();
    tied.ask(1, "one");
    tied.prompt(0, 0, "one");
    tied.answer(1);
    tied.ask(2, "one, two");
    tied.launched();
    for (at, token) in (3..).zip([",", " ", "t", "w", "o"]) {
        tied.submit(0, at, token, true);
    }
    assert_eq!((tied.launched(), tied.prompts.len()), (vec![], 1));
    // The slot is taken by another before it is the second one's turn.
    tied.ask(3, "three");
    tied.prompt(0, 0, "three");
    assert_eq!(
        (tied.launched(), tied.lost()),
        (vec![(0, 3)], vec!["1".into()])
    );
    tied.prompt(0, 0, "one, two");
    assert_eq!(
        (tied.launched(), tied.lost()),
        (vec![(0, 2)], vec!["3".into()])
    );
}

#[test]
fn equal_prompts_are_tied_one_an_evaluation_and_the_oldest_first() {
    let mut tied = Tied::new();
    for n in 1..=3 {
        tied.ask(n, "the same");
    }
    tied.prompt(0, 0, "the same");
    tied.answer(1);
    tied.prompt(1, 0, "the same");
    tied.prompt(0, 7, "the same");
    assert_eq!(tied.launched(), [(0, 1), (1, 2), (0, 3)]);
    tied.answer(2);
    tied.answer(3);
    for (n, slot) in [(4, 0), (5, 1)] {
        assert_eq!(tied.lost(), [""; 0]);
        tied.ask(n, "different");
        tied.prompt(slot, 0, "different");
    }
    let mut lost = tied.lost();
    lost.sort_unstable();
    assert_eq!(lost, ["1", "2", "3"]);
}

#[test]
fn other_contexts_and_copies_tie_nobody() {
    let mut tied = Tied::new();
    let draft = ContextId(0x2000);
    tied.apply(Event::ContextCreated { context: draft });
    tied.ask(1, "a prompt");
    tied.apply(Event::Removed {
        context: draft,
        sequence: 0,
        from: 0,
        to: -1,
    });
    tied.submit_to(draft, 0, 0, "a prompt", true);
    tied.submit(1, 0, "a prompt", true);
    assert!(tied.launched().is_empty());
    tied.remove(2, -1);
    tied.apply(Event::Copied {
        context: ENGINE,
        source: 1,
        target: 2,
        from: -1,
        to: -1,
    });
    tied.ask(2, "a prompt!");
    tied.submit(2, 8, "!", true);
    assert!(tied.launched().is_empty());
}

/// After a gap it is not known what the slots hold, but the server goes on where they agree.
#[test]
fn what_was_written_unseen_is_trusted_where_there_is_no_doubt() {
    let mut tied = Tied::new();
    tied.ask(1, "begun");
    tied.apply(Event::OutOfStep);
    assert!(tied.prompts.is_empty(), "nothing is waited for any more");
    tied.lost();
    tied.ask(2, "the beginning, and more");
    tied.ask(3, "other length");
    tied.prompt(0, 13, "the beginning, and more");
    assert_eq!(tied.launched(), [(0, 2)]);
    tied.ask(4, "the beginning, and more?");
    tied.prompt(0, 22, "the beginning, and more?");
    assert_eq!(tied.launched(), [(0, 4)], "the unseen part still agrees");
    // Two of which either may be meant.
    tied.ask(5, "xyz, and less");
    tied.ask(6, "abc, and less");
    tied.prompt(1, 3, "xyz, and less");
    assert_eq!(tied.launched(), [(1, UNTIED)]);
}

/// Only a prompt's checkpoints lead back to it: whether there is one is known with its batch.
#[test]
fn checkpoints_are_kept_back_until_it_is_clear_what_they_are_of() {
    use contextpilot_residency::BufferId;
    let mut tied = Tied::new();
    let checkpoint = |buffer| Event::Checkpointed {
        context: ENGINE,
        sequence: 0,
        buffer: BufferId(buffer),
        first: 0,
        last: 0,
    };
    let pass = |tied: &mut Tied, event| {
        let mut events = Vec::new();
        tied.prompts.pass(event, &tied.ledger, &mut events);
        events
    };
    tied.remove(0, 0);
    assert!(pass(&mut tied, checkpoint(1)).is_empty());
    assert!(pass(&mut tied, checkpoint(2)).is_empty());
    let freed = Event::Freed {
        buffer: BufferId(1),
    };
    assert_eq!(pass(&mut tied, freed.clone()), [freed]);
    let submitted = Event::Submitted {
        context: ENGINE,
        entries: entries(0, 0, &text("a prompt"), false).into(),
    };
    let launched = Event::Launched {
        sequence: 0,
        task: UNTIED,
    };
    assert_eq!(
        pass(&mut tied, submitted.clone()),
        [launched, checkpoint(2), submitted]
    );
    assert_eq!(pass(&mut tied, checkpoint(3)), [checkpoint(3)]);
}

#[test]
fn what_waits_is_bounded() {
    let mut prompts = Prompts::new();
    let long = vec![7; 1 << 20];
    for n in 0..4 {
        assert!(prompts.expect(Arrival(n), 1, long.clone()));
    }
    assert!(!prompts.expect(Arrival(4), 1, vec![7]), "too many tokens");
    prompts.forget(Arrival(0), &mut Vec::new());
    assert!(prompts.expect(Arrival(4), 1, vec![7]));
    let mut more = 5;
    while prompts.expect(Arrival(more), 1, vec![7]) {
        more += 1;
        assert!(more < 1 << 16);
    }
    assert!(prompts.len() >= 1024);
    prompts.forget(Arrival(more - 1), &mut Vec::new());
    assert!(prompts.expect(Arrival(more), 1, vec![7]));
}
