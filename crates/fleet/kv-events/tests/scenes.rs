//! Scenes that the random events do not contain: sliding windows, recurrent memory, and the
//! order of events.

use contextpilot_kv_events::{KvEvent, Medium, Tracker, block_hash};
use contextpilot_residency::{
    BufferId, ContextId, Entry, Event, Fact, Ledger, TaskId, Token, media_token,
};

const CONTEXT: ContextId = ContextId(1);
const BLOCK: usize = 4;

struct Scene {
    ledger: Ledger,
    tracker: Tracker,
    facts: Vec<Fact>,
    task: TaskId,
}

impl Scene {
    fn new() -> Self {
        let mut scene = Self {
            ledger: Ledger::observed(),
            tracker: Tracker::new(BLOCK as u32),
            facts: Vec::new(),
            task: 0,
        };
        scene.apply(Event::ContextCreated { context: CONTEXT });
        assert_eq!(scene.said(), [KvEvent::Cleared]);
        scene
    }

    fn bounded(window: u32) -> Self {
        let mut scene = Self::new();
        scene.apply(Event::Bounded {
            context: CONTEXT,
            window,
        });
        scene
    }

    fn apply(&mut self, event: Event) {
        let told = self.facts.len();
        self.ledger.apply(event, &mut self.facts);
        let new = self.facts[told..].iter();
        new.for_each(|fact| self.tracker.note(fact));
    }

    fn said(&mut self) -> Vec<KvEvent> {
        let mut events = Vec::new();
        self.tracker.follow(&mut self.ledger, &mut events);
        events
    }

    /// A batch in which a prompt ends.
    fn submit(&mut self, slot: i32, from: i32, tokens: &[Token]) {
        self.submit_batch(slot, from, tokens, true);
    }

    fn submit_batch(&mut self, slot: i32, from: i32, tokens: &[Token], ends: bool) {
        let entries = tokens.iter().zip(from..).map(|(&token, position)| Entry {
            sequence: slot,
            position,
            token,
            output: ends && position == from + tokens.len() as i32 - 1,
        });
        self.apply(Event::Submitted {
            context: CONTEXT,
            entries: entries.collect(),
        });
    }

    fn evaluated(&mut self) {
        self.apply(Event::Evaluated {
            context: CONTEXT,
            failed: Vec::new(),
            no_room: false,
        });
    }

    fn evaluate(&mut self, slot: i32, from: i32, tokens: &[Token]) {
        self.submit(slot, from, tokens);
        self.evaluated();
    }

    fn launch(&mut self, slot: i32) {
        self.task += 1;
        self.apply(Event::Launched {
            sequence: slot,
            task: self.task,
        });
    }

    fn reaches(&mut self, first: i32) {
        self.apply(Event::Reaches {
            context: CONTEXT,
            sequence: 0,
            first,
        });
    }

    fn checkpoint(&mut self, buffer: usize, first: i32, last: i32) {
        self.apply(Event::Checkpointed {
            context: CONTEXT,
            sequence: 0,
            buffer: BufferId(buffer),
            first,
            last,
        });
    }
}

fn chain(tokens: &[Token]) -> Vec<u64> {
    let mut above = None;
    let blocks = tokens.chunks_exact(BLOCK).map(|block| {
        let block: Vec<u32> = block.iter().map(|&token| token as u32).collect();
        let hash = block_hash(above, &block, None);
        above = Some(hash);
        hash
    });
    blocks.collect()
}

fn stored(all: &[Token], from: usize, medium: Medium) -> KvEvent {
    let hashes = chain(all);
    KvEvent::Stored {
        parent: from.checked_sub(1).map(|above| hashes[above]),
        tokens: all[from * BLOCK..hashes.len() * BLOCK]
            .iter()
            .map(|&token| token as u32)
            .collect(),
        hashes: hashes[from..].to_vec(),
        medium,
        adapter: None,
    }
}

fn removed(all: &[Token], from: usize, medium: Medium) -> KvEvent {
    let mut hashes = chain(all)[from..].to_vec();
    hashes.reverse();
    KvEvent::Removed { hashes, medium }
}

fn numbers(count: i32) -> Vec<Token> {
    (0..count).collect()
}

#[test]
fn a_block_is_stored_after_its_tokens_were_evaluated() {
    let mut scene = Scene::new();
    scene.launch(0);
    scene.submit(0, 0, &numbers(9));
    assert_eq!(scene.said(), []);
    scene.evaluated();
    assert_eq!(scene.said(), [stored(&numbers(9), 0, Medium::Gpu)]);
    // A prompt that is cached completely: only its last token is computed again.
    scene.evaluate(0, 9, &[9, 10, 11]);
    assert_eq!(scene.said(), [stored(&numbers(12), 2, Medium::Gpu)]);
    scene.launch(0);
    scene.apply(Event::Removed {
        context: CONTEXT,
        sequence: 0,
        from: 11,
        to: -1,
    });
    assert_eq!(scene.said(), [removed(&numbers(12), 2, Medium::Gpu)]);
    scene.evaluate(0, 11, &[11]);
    assert_eq!(scene.said(), [stored(&numbers(12), 2, Medium::Gpu)]);
}

#[test]
fn moves_to_host_memory_and_back_are_published() {
    let mut scene = Scene::new();
    let tokens = numbers(8);
    scene.evaluate(0, 0, &tokens);
    scene.said();
    let (buffer, sequence) = (BufferId(7), 0);
    scene.apply(Event::Saved {
        context: CONTEXT,
        sequence,
        buffer,
    });
    scene.apply(Event::Removed {
        context: CONTEXT,
        sequence,
        from: -1,
        to: -1,
    });
    let (gpu, cpu) = (Medium::Gpu, Medium::Cpu);
    assert_eq!(
        scene.said(),
        [stored(&tokens, 0, cpu), removed(&tokens, 0, gpu)]
    );
    scene.apply(Event::Restored {
        context: CONTEXT,
        sequence: 1,
        buffer,
    });
    scene.apply(Event::Freed { buffer });
    assert_eq!(
        scene.said(),
        [stored(&tokens, 0, gpu), removed(&tokens, 0, cpu)]
    );
    // A second copy is not published: a block is stored once on a medium.
    scene.apply(Event::Copied {
        context: CONTEXT,
        source: 1,
        target: 2,
        from: -1,
        to: -1,
    });
    scene.apply(Event::Cleared { context: CONTEXT });
    assert_eq!(scene.said(), [removed(&tokens, 0, gpu)]);
}

#[test]
fn a_chain_that_moves_between_slots_gives_no_events() {
    let mut scene = Scene::new();
    scene.evaluate(0, 0, &numbers(8));
    scene.said();
    scene.apply(Event::Copied {
        context: CONTEXT,
        source: 0,
        target: 1,
        from: -1,
        to: -1,
    });
    scene.apply(Event::Kept {
        context: CONTEXT,
        sequence: 1,
    });
    assert_eq!(scene.said(), []);
}

#[test]
fn after_a_context_shift_the_new_chain_is_published() {
    let mut scene = Scene::new();
    let tokens = numbers(16);
    scene.evaluate(0, 0, &tokens);
    scene.said();
    let (context, sequence) = (CONTEXT, 0);
    scene.apply(Event::Removed {
        context,
        sequence,
        from: 4,
        to: 8,
    });
    scene.apply(Event::Shifted {
        context,
        sequence,
        from: 8,
        to: 16,
        delta: -4,
    });
    let shifted: Vec<Token> = (0..4).chain(8..16).collect();
    assert_eq!(
        scene.said(),
        [
            stored(&shifted, 1, Medium::Gpu),
            removed(&tokens, 1, Medium::Gpu)
        ]
    );
}

#[test]
fn a_chain_ends_before_an_image() {
    let mut scene = Scene::new();
    let mut tokens = numbers(6);
    tokens.extend([media_token(1); 3]);
    scene.evaluate(0, 0, &tokens);
    assert_eq!(scene.said(), [stored(&numbers(4), 0, Medium::Gpu)]);
    scene.evaluate(0, 9, &numbers(20));
    assert_eq!(scene.said(), []);
    scene.apply(Event::Removed {
        context: CONTEXT,
        sequence: 0,
        from: 6,
        to: -1,
    });
    scene.evaluate(0, 6, &[6, 7, 8]);
    assert_eq!(scene.said(), [stored(&numbers(8), 1, Medium::Gpu)]);
}

#[test]
fn of_a_recurrent_memory_blocks_up_to_a_checkpoint_are_published() {
    let mut scene = Scene::bounded(0);
    scene.launch(0);
    scene.submit_batch(0, 0, &numbers(9), false);
    scene.reaches(8);
    scene.evaluated();
    assert_eq!(scene.said(), []);
    scene.checkpoint(5, 8, 8);
    assert_eq!(scene.said(), [stored(&numbers(9), 0, Medium::Gpu)]);
    scene.submit(0, 9, &[9, 10, 11, 12]);
    scene.reaches(12);
    scene.evaluated();
    // The end of the prompt, which is generated on from; nothing leads back to it.
    assert_eq!(scene.said(), []);
    scene.apply(Event::Saved {
        context: CONTEXT,
        sequence: 0,
        buffer: BufferId(6),
    });
    assert_eq!(scene.said(), [stored(&numbers(9), 0, Medium::Cpu)]);
    scene.apply(Event::Freed {
        buffer: BufferId(5),
    });
    assert_eq!(scene.said(), [removed(&numbers(9), 0, Medium::Gpu)]);
}

#[test]
fn of_a_window_that_has_slid_blocks_up_to_a_checkpoint_are_published() {
    let mut scene = Scene::bounded(4);
    scene.launch(0);
    scene.submit_batch(0, 0, &numbers(12), false);
    scene.reaches(0);
    scene.evaluated();
    // All of it is in memory still.
    assert_eq!(scene.said(), [stored(&numbers(12), 0, Medium::Gpu)]);
    scene.checkpoint(5, 2, 7);
    scene.submit(0, 12, &(12..24).collect::<Vec<_>>());
    scene.reaches(13);
    scene.evaluated();
    // Position 7 is the last of the checkpoint: seven tokens come before it.
    assert_eq!(scene.said(), [removed(&numbers(12), 1, Medium::Gpu)]);
}

#[test]
fn after_a_loss_everything_is_published_again() {
    let mut scene = Scene::new();
    scene.evaluate(0, 0, &numbers(8));
    scene.apply(Event::Saved {
        context: CONTEXT,
        sequence: 0,
        buffer: BufferId(3),
    });
    let all = [
        stored(&numbers(8), 0, Medium::Gpu),
        stored(&numbers(8), 0, Medium::Cpu),
    ];
    assert_eq!(scene.said(), all);
    scene.tracker.start_over();
    let again = scene.said();
    assert_eq!(again[0], KvEvent::Cleared);
    assert_eq!(again[1..], all);
    // When events of the engine were lost, nothing is known any more.
    scene.apply(Event::OutOfStep);
    assert_eq!(
        scene.said(),
        [
            removed(&numbers(8), 0, Medium::Gpu),
            removed(&numbers(8), 0, Medium::Cpu)
        ]
    );
}
