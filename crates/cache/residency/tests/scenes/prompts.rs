//! Requests that are tied to slots by their prompts.

use crate::server::{ENGINE, entries, text};
use contextpilot_residency::{
    Adapter, Arrival, Compared, ContextId, Event, Fact, Ledger, Prompt, Prompts, Scale, UNTIED,
};

/// A ledger and [`Prompts`] for a server whose launches cannot be seen.
struct Tied {
    ledger: Ledger,
    prompts: Prompts,
    launched: Vec<(i32, i32)>,
    /// Likely so.
    unclaimed: Vec<(i32, i32)>,
    facts: Vec<Fact>,
}

impl Tied {
    fn new() -> Self {
        let mut tied = Self {
            ledger: Ledger::new(),
            prompts: Prompts::new(),
            launched: Vec::new(),
            unclaimed: Vec::new(),
            facts: Vec::new(),
        };
        tied.apply(Event::ContextCreated { context: ENGINE });
        tied
    }

    fn apply(&mut self, event: Event) {
        let mut events = Vec::new();
        self.prompts.pass(event, &self.ledger, &mut events);
        self.apply_all(events);
    }

    fn apply_all(&mut self, events: Vec<Event>) {
        for event in events {
            match event {
                Event::Launched { sequence, task } => self.launched.push((sequence, task)),
                Event::LaunchedUnclaimed {
                    sequence, likely, ..
                } => self.unclaimed.push((sequence, likely)),
                _ => {}
            }
            self.ledger.apply(event, &mut self.facts);
        }
    }

    /// Request `n` comes. Its id is its number.
    fn ask(&mut self, n: u64, prompt: &str) {
        self.ask_with(n, text(prompt).into());
    }

    fn ask_with(&mut self, n: u64, prompt: Prompt) {
        self.apply(Event::Posted {
            arrival: Arrival(n),
            task: n as i32,
            id: Some(n.to_string().into()),
        });
        assert!(self.prompts.expect(Arrival(n), n as i32, prompt));
    }

    fn answer(&mut self, n: u64) {
        self.end(n, true);
    }

    /// Its client goes away.
    fn leave(&mut self, n: u64) {
        self.end(n, false);
    }

    fn end(&mut self, n: u64, served: bool) {
        let mut events = Vec::new();
        let arrival = Arrival(n);
        self.prompts
            .over(arrival, served, &self.ledger, &mut events);
        self.apply_all(events);
        self.apply(Event::Answered {
            arrival,
            id: Some(n.to_string().into()),
        });
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
            no_room: false,
        });
    }

    /// Evaluates a prompt whose first tokens the slot holds already.
    fn prompt(&mut self, slot: i32, from: usize, prompt: &str) {
        self.remove(slot, from as i32);
        self.submit(slot, from as i32, &prompt[from..], true);
    }

    fn launched(&mut self) -> Vec<(i32, i32)> {
        std::mem::take(&mut self.launched)
    }

    fn unclaimed(&mut self) -> Vec<(i32, i32)> {
        std::mem::take(&mut self.unclaimed)
    }

    /// The ids cached since the last call.
    fn cached(&mut self) -> Vec<String> {
        let mut cached = Vec::new();
        self.facts.retain(|fact| match fact {
            Fact::Cached { id, .. } => {
                cached.push(id.to_string());
                false
            }
            _ => true,
        });
        cached
    }

    /// Another prompt is evaluated on a slot.
    fn overwrite(&mut self, slot: i32, n: u64) {
        let prompt = format!("{n} is different");
        self.ask(n, &prompt);
        self.prompt(slot, 0, &prompt);
        self.answer(n);
    }

    /// The ids evicted since the last call, sorted.
    fn lost(&mut self) -> Vec<String> {
        let mut lost = Vec::new();
        self.facts.retain(|fact| match fact {
            Fact::Evicted { id, .. } => {
                lost.push(id.to_string());
                false
            }
            _ => true,
        });
        lost.sort_unstable();
        lost
    }
}

#[test]
fn a_slot_that_gets_the_tokens_of_a_waiting_prompt_is_tied_to_its_request() {
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
fn a_prompt_in_several_batches_is_tied_when_its_end_is_submitted() {
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
fn tokens_that_are_no_waiting_prompt_are_tied_to_no_request() {
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
fn generating_the_tokens_of_a_waiting_prompt_ties_no_request() {
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
fn equal_prompts_are_claimed_when_all_were_evaluated() {
    let mut tied = Tied::new();
    for n in 1..=3 {
        tied.ask(n, "the same");
    }
    tied.prompt(0, 0, "the same");
    tied.prompt(1, 0, "the same");
    assert!(tied.cached().is_empty(), "two of three");
    tied.prompt(2, 0, "the same");
    assert_eq!(tied.cached(), ["1", "2", "3"]);
    assert_eq!(tied.unclaimed(), [(0, 1), (1, 2), (2, 3)]);
    assert!(tied.launched().is_empty() && tied.prompts.is_empty());
    for n in 1..=3 {
        tied.answer(n);
    }
    for (slot, n) in [(0, 4), (1, 5), (2, 6)] {
        assert_eq!(tied.lost(), [""; 0]);
        tied.overwrite(slot, n);
    }
    assert_eq!(tied.lost(), ["1", "2", "3"]);
}

#[test]
fn of_equal_prompts_the_request_that_is_answered_claims_an_evaluation() {
    let mut tied = Tied::new();
    tied.ask(1, "the same");
    tied.ask(2, "the same");
    tied.prompt(0, 0, "the same");
    tied.answer(2);
    assert_eq!((tied.cached(), tied.lost()), (vec!["2".into()], vec![]));
    // It is lost before the other one's turn has come.
    tied.overwrite(0, 3);
    assert_eq!(tied.lost(), ["2"]);
    tied.cached();
    tied.prompt(1, 0, "the same");
    assert_eq!(tied.launched(), [(0, 3), (1, 1)], "it is the only one left");
    tied.answer(1);
    assert_eq!((tied.cached(), tied.lost()), (vec!["1".into()], vec![]));
    tied.overwrite(1, 4);
    assert_eq!(tied.lost(), ["1"]);
}

#[test]
fn an_evaluation_lost_before_it_is_claimed_is_evicted_at_the_answer() {
    let mut tied = Tied::new();
    tied.ask(1, "the same");
    tied.ask(2, "the same");
    tied.prompt(0, 0, "the same");
    // The answer is on its way, and the slot at its next task.
    tied.overwrite(0, 3);
    assert_eq!(tied.lost(), [""; 0], "whose it was is not known");
    tied.prompt(1, 0, "the same");
    assert_eq!(tied.lost(), [""; 0], "both were evaluated, one is gone");
    tied.answer(2);
    assert_eq!(tied.lost(), ["2"]);
    tied.answer(1);
    tied.overwrite(1, 4);
    assert_eq!(tied.lost(), ["1"]);
}

#[test]
fn requests_that_claimed_equal_prompts_are_evicted_together() {
    let mut tied = Tied::new();
    tied.ask(1, "the same");
    tied.ask(2, "the same");
    tied.prompt(0, 0, "the same");
    tied.prompt(0, 7, "the same");
    tied.overwrite(0, 3);
    assert_eq!(tied.lost(), ["1", "2"]);
    tied.answer(1);
    tied.answer(2);
    assert!(tied.lost().is_empty() && tied.prompts.is_empty());
}

#[test]
fn a_request_that_leaves_is_cached_if_its_prompt_is() {
    let mut tied = Tied::new();
    tied.ask(1, "the same");
    tied.ask(2, "the same");
    tied.prompt(0, 0, "the same");
    // In the queue or at work: the prompt is there.
    tied.leave(2);
    assert_eq!((tied.cached(), tied.lost()), (vec!["2".into()], vec![]));
    tied.answer(1);
    assert_eq!((tied.cached(), tied.lost()), (vec!["1".into()], vec![]));
    tied.overwrite(0, 3);
    assert_eq!(tied.lost(), ["1", "2"]);
}

#[test]
fn after_a_client_has_left_counting_evaluations_proves_nothing() {
    let mut tied = Tied::new();
    tied.ask(1, "the same");
    tied.ask(2, "the same");
    tied.leave(1);
    assert_eq!(tied.lost(), ["1"], "never cached");
    // The engine had begun for the one that left.
    tied.prompt(0, 0, "the same");
    tied.overwrite(0, 3);
    assert_eq!(tied.lost(), [""; 0]);
    tied.prompt(1, 0, "the same");
    tied.answer(2);
    tied.cached();
    assert_eq!(tied.lost(), [""; 0]);
    tied.overwrite(1, 4);
    assert_eq!(tied.lost(), ["2"]);
}

#[test]
fn an_evaluation_that_failed_is_claimed_by_no_request() {
    let mut tied = Tied::new();
    tied.ask(1, "the same");
    tied.ask(2, "the same");
    tied.remove(0, 0);
    tied.apply(Event::Submitted {
        context: ENGINE,
        entries: entries(0, 0, &text("the same"), true).into(),
    });
    tied.apply(Event::Evaluated {
        context: ENGINE,
        failed: vec![(0, -1)],
        no_room: false,
    });
    // The server gives up, and the slot goes to another.
    tied.overwrite(0, 3);
    tied.leave(1);
    assert_eq!(
        (tied.lost(), tied.cached()),
        (vec!["1".into()], vec!["3".into()])
    );
    tied.prompt(1, 0, "the same");
    tied.answer(2);
    assert_eq!((tied.lost(), tied.cached()), (vec![], vec!["2".into()]));
}

#[test]
fn an_equal_prompt_without_an_id_counts_as_a_waiting_one() {
    let mut tied = Tied::new();
    let nameless = Arrival(100);
    assert!(tied.prompts.expect(nameless, 100, text("the same").into()));
    tied.ask(1, "the same");
    tied.prompt(0, 0, "the same");
    let mut events = Vec::new();
    tied.prompts.over(nameless, true, &tied.ledger, &mut events);
    tied.apply_all(events);
    tied.overwrite(0, 2);
    assert_eq!(tied.lost(), [""; 0], "it was the other one's");
    tied.prompt(1, 0, "the same");
    tied.answer(1);
    tied.overwrite(1, 3);
    assert_eq!(tied.lost(), ["1"]);
}

#[test]
fn several_prompts_of_one_request_may_be_equal() {
    let mut tied = Tied::new();
    tied.ask(1, "the same");
    tied.apply(Event::Posted {
        arrival: Arrival(1),
        task: 2,
        id: Some("1".into()),
    });
    assert!(tied.prompts.expect(Arrival(1), 2, text("the same").into()));
    tied.prompt(0, 0, "the same");
    assert!(tied.cached().is_empty(), "one of two");
    tied.prompt(1, 0, "the same");
    tied.answer(1);
    assert_eq!((tied.cached(), tied.lost()), (vec!["1".into()], vec![]));
}

/// One of the server's two adapters is applied, or none.
const FIRST: [f32; 2] = [1.0, 0.0];
const SECOND: [f32; 2] = [0.0, 1.0];

impl Tied {
    fn force(&mut self, scales: [f32; 2]) {
        let adapter = |(address, scale)| Adapter {
            address,
            scale: Scale::new(scale),
            invocation: [].into(),
        };
        self.apply(Event::Adapters {
            context: ENGINE,
            adapters: (100..).zip(scales).map(adapter).collect(),
            compared: Compared::WhenNamed,
        });
    }

    fn ask_under(&mut self, n: u64, prompt: &str, scales: [f32; 2]) {
        let scales = (0..).zip(scales.map(Scale::new)).collect();
        let task = n as i32;
        self.apply(Event::NamedAdapters { task, scales });
        self.ask(n, prompt);
    }
}

#[test]
fn equal_prompts_for_different_adapters_are_told_apart_by_what_is_applied() {
    let mut tied = Tied::new();
    tied.force(FIRST);
    tied.ask_under(1, "equal", FIRST);
    tied.ask_under(2, "equal", SECOND);
    tied.force(SECOND);
    tied.remove(0, 0);
    tied.submit(0, 0, "equal", true);
    assert_eq!(
        (&tied.launched[..], tied.unclaimed.len()),
        (&[(0, 2)][..], 0)
    );
    tied.force(FIRST);
    tied.remove(1, 0);
    tied.submit(1, 0, "equal", true);
    assert_eq!(
        (&tied.launched[1..], tied.unclaimed.len()),
        (&[(1, 1)][..], 0)
    );
    tied.answer(1);
    tied.answer(2);
    assert_eq!(tied.lost(), [""; 0]);
}

#[test]
fn who_claims_an_evaluation_is_for_the_adapters_that_it_names() {
    let mut tied = Tied::new();
    tied.force(FIRST);
    tied.ask_under(1, "equal", FIRST);
    tied.ask_under(2, "equal", FIRST);
    tied.remove(0, 0);
    tied.submit(0, 0, "equal", true);
    assert_eq!(tied.unclaimed, [(0, 1)]);
    tied.answer(2);
    assert_eq!(tied.cached(), ["2"]);
    // The slot goes on under others: the server would empty it for a request like the second one.
    tied.force(SECOND);
    tied.ask_under(3, "equally", SECOND);
    tied.remove(0, 0);
    tied.submit(0, 0, "equally", true);
    assert_eq!(tied.launched, [(0, 3)]);
    assert_eq!(tied.lost(), ["2"]);
}

#[test]
fn equal_prompts_for_adapters_that_cannot_be_told_apart_tie_no_request() {
    let mut tied = Tied::new();
    tied.force(FIRST);
    tied.ask_under(1, "equal", FIRST);
    tied.ask(2, "equal");
    for slot in [0, 1] {
        tied.remove(slot, 0);
        tied.submit(slot, 0, "equal", true);
    }
    tied.answer(1);
    tied.answer(2);
    assert_eq!(tied.lost(), ["1", "2"]);
}

#[test]
fn a_prompt_that_the_server_cuts_is_still_tied() {
    let mut tied = Tied::new();
    let long = Prompt {
        tokens: text("0123456789abcdefghij"),
        slot: Some(10),
        ..Prompt::default()
    };
    tied.ask_with(1, long.clone());
    // Blocks of five, three of them gone.
    tied.prompt(0, 0, "fghij");
    assert_eq!(tied.launched(), [(0, 1)]);
    tied.answer(1);
    tied.ask_with(2, long.clone());
    // Two tokens kept, then blocks of four: as the request may ask for.
    tied.prompt(1, 0, "01efghij");
    assert_eq!(tied.launched(), [(1, 2)]);
    tied.answer(2);
    tied.ask_with(3, long);
    tied.prompt(1, 0, "012hij");
    assert_eq!(tied.launched(), [(1, UNTIED)], "no server cuts so");
    tied.answer(3);
    assert_eq!(tied.lost(), ["2", "3"]);
}

#[test]
fn extra_context_is_taken_as_far_as_there_is_room() {
    let mut tied = Tied::new();
    let infill = |tokens: &str, extra| Prompt {
        tokens: text(tokens),
        extra,
        slot: None,
    };
    tied.ask_with(1, infill("file 1 rest", 6));
    tied.ask_with(2, infill("my file 1 rest", 9));
    tied.prompt(0, 0, "file 1 rest");
    assert_eq!(tied.launched(), [(0, 1)], "the other would be shortened");
    tied.answer(1);
    tied.prompt(1, 0, "1 rest");
    assert_eq!(tied.launched(), [(1, 2)], "as it is");
    tied.answer(2);
    // From now on it is known that one is taken.
    tied.ask_with(3, infill("a b rest", 3));
    tied.ask_with(4, infill("c b rest", 3));
    tied.ask_with(5, infill("rest", 0));
    tied.prompt(2, 0, "b rest");
    tied.answer(4);
    tied.prompt(3, 0, "b rest");
    tied.answer(3);
    tied.prompt(4, 0, "rest");
    tied.answer(5);
    assert!(tied.lost().is_empty());
    assert_eq!(tied.cached(), ["1", "2", "4", "3", "5"]);
}

/// Servers from before libmtmd forget such a prompt, also if it took several batches.
#[test]
fn an_uncached_prompt_is_forgotten_whole() {
    let mut tied = Tied::new();
    tied.ask(1, "a prompt");
    tied.prompt(0, 0, "a prompt");
    tied.answer(1);
    tied.apply(Event::Uncached { task: 2 });
    tied.ask(2, "a prompt and more");
    tied.remove(0, 0);
    tied.submit(0, 0, "a prompt", false);
    assert_eq!(tied.lost(), [""; 0]);
    tied.submit(0, 8, " and more", true);
    assert_eq!(tied.lost(), ["1", "2"]);
    tied.answer(2);
    tied.submit(0, 17, "!", true);
    tied.ask(3, "a prompt");
    tied.prompt(0, 0, "a prompt");
    tied.answer(3);
    assert!(tied.lost().is_empty());
    assert_eq!(tied.ledger.held(0), 8);
}

#[test]
fn batches_of_other_contexts_and_copies_tie_no_request() {
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

/// After events were lost it is not known what the slots hold. But the server continues a prompt only
/// behind the tokens that its slot holds.
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

/// Only checkpoints that are made while a prompt is evaluated count. Whether a slot evaluates a prompt
/// is known with its next batch.
#[test]
fn checkpoints_are_held_back_until_the_next_batch_tells_if_they_are_of_a_prompt() {
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
    // A draft model's context ends. What the slots of the other wait for has not changed.
    let draft_freed = Event::ContextFreed {
        context: ContextId(0x2000),
    };
    assert_eq!(pass(&mut tied, draft_freed.clone()), [draft_freed]);
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
fn prompts_and_tokens_beyond_the_bounds_do_not_wait() {
    let mut prompts = Prompts::new();
    let long = vec![7; 1 << 20];
    for n in 0..4 {
        assert!(prompts.expect(Arrival(n), 1, long.clone().into()));
    }
    assert!(
        !prompts.expect(Arrival(4), 1, vec![7].into()),
        "too many tokens"
    );
    let ledger = Ledger::new();
    let forget = |prompts: &mut Prompts, n| {
        prompts.over(Arrival(n), true, &ledger, &mut Vec::new());
    };
    forget(&mut prompts, 0);
    assert!(prompts.expect(Arrival(4), 1, vec![7].into()));
    let mut more = 5;
    while prompts.expect(Arrival(more), 1, vec![7].into()) {
        more += 1;
        assert!(more < 1 << 16);
    }
    assert!(prompts.len() >= 1024);
    forget(&mut prompts, more - 1);
    assert!(prompts.expect(Arrival(more), 1, vec![7].into()));
}
