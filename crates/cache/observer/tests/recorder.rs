//! The recorder together with the ledger: which changes of slots are recorded, and which are left out
//! because the server makes them by itself.

use std::ops::Range;
use std::time::Duration;

use contextpilot_observer::{Note, Recorder, Stamp};
use contextpilot_residency::{Arrival, BufferId, ContextId, Entry, Event, Ledger};
use contextpilot_traffic::{ChangeKind, Key, Refusal, Setup, Traffic, read};

const CONTEXT: ContextId = ContextId(1);

struct Scene {
    ledger: Ledger,
    recorder: Recorder,
    file: Vec<u8>,
    clock: u64,
    task: i32,
}

impl Scene {
    /// If `shared`, four slots that share the context, else two that divide it.
    fn new(shared: bool) -> Self {
        let setup = Setup {
            kv_unified: shared,
            parallel: if shared { 4 } else { 2 },
            ..Setup::default()
        };
        let mut scene = Self {
            ledger: Ledger::observed(),
            recorder: Recorder::new(Key::new([1; 16]), false, 1 << 20, setup),
            file: Vec::new(),
            clock: 0,
            task: 0,
        };
        scene.apply(Event::ContextCreated { context: CONTEXT });
        scene
    }

    fn now(&mut self) -> Stamp {
        self.clock += 1;
        Stamp(self.clock * 1_000_000)
    }

    fn apply(&mut self, event: Event) {
        let now = self.now();
        let Self {
            recorder, ledger, ..
        } = self;
        ledger.upcoming(&event, &mut |upcoming| {
            recorder.upcoming(upcoming, now, ledger)
        });
        let mut facts = Vec::new();
        self.ledger.apply(event, &mut facts);
        for fact in &facts {
            self.recorder.fact(fact, now, &self.ledger);
        }
        self.file.extend(self.recorder.take());
    }

    fn note(&mut self, note: &Note) {
        self.recorder.note(note);
    }

    fn launch(&mut self, slot: i32) -> Arrival {
        self.task += 1;
        let (arrival, task) = (Arrival(self.task as u64), self.task);
        self.apply(Event::Posted {
            arrival,
            task,
            id: None,
        });
        let sequence = slot;
        self.apply(Event::Launched { sequence, task });
        arrival
    }

    /// A batch of this slot, of equal tokens. `failed`: as in [`Event::Evaluated`].
    fn batch(&mut self, slot: i32, positions: Range<i32>, output: bool, failed: Vec<(i32, i32)>) {
        let entry = |position| Entry {
            sequence: slot,
            position,
            token: 7,
            output,
        };
        self.entries(positions.map(entry), failed);
    }

    fn entries(&mut self, entries: impl Iterator<Item = Entry>, failed: Vec<(i32, i32)>) {
        let (context, entries) = (CONTEXT, entries.collect());
        self.apply(Event::Submitted { context, entries });
        self.apply(Event::Evaluated {
            context,
            failed,
            no_room: false,
        });
    }

    fn evaluate(&mut self, slot: i32, token: i32, failed: bool) {
        let entry = |position| Entry {
            sequence: slot,
            position,
            token,
            output: position == 19,
        };
        let failed = if failed { vec![(slot, -1)] } else { Vec::new() };
        self.entries((0..20).map(entry), failed);
    }

    /// A request has a prompt of 20 tokens, all equal to `token`, evaluated in a slot, and is answered.
    fn ask(&mut self, slot: i32, token: i32) {
        let arrival = self.launch(slot);
        self.remove(slot, 0);
        self.evaluate(slot, token, false);
        self.apply(Event::Answered { arrival, id: None });
    }

    fn remove(&mut self, sequence: i32, from: i32) {
        self.apply(Event::Removed {
            context: CONTEXT,
            sequence,
            from,
            to: -1,
        });
    }

    fn read(mut self) -> Traffic {
        self.recorder.finish(&self.ledger);
        self.file.extend(self.recorder.take());
        read(&self.file)
    }

    fn kinds(self) -> Vec<(u64, u32, ChangeKind)> {
        let changes = self.read().changes.into_iter();
        let records = changes.map(|change| change.record);
        records
            .map(|change| (change.order, change.slot, change.kind))
            .collect()
    }
}

/// A user who asks for advice a moment after the last request wants it to count.
#[test]
fn an_answered_request_is_written_when_the_engine_has_been_silent() {
    let mut scene = Scene::new(false);
    scene.ask(0, 7);
    let quiet = |ms| Event::Quiet {
        elapsed: Duration::from_millis(ms),
    };
    scene.apply(quiet(100));
    assert_eq!(read(&scene.file).requests.len(), 0);
    // Another one is at work, however long it takes.
    scene.launch(1);
    scene.apply(quiet(1000));
    assert_eq!(read(&scene.file).requests.len(), 1);
    scene.ask(0, 7);
    let traffic = scene.read();
    let prompts = traffic.requests.iter().map(|request| request.record.prompt);
    assert_eq!(prompts.collect::<Vec<_>>(), [20, 20]);
    assert_eq!(traffic.changes.len(), 1, "the refused one");
}

#[test]
fn erased_and_restored_slots_are_recorded_in_order_with_the_requests() {
    let mut scene = Scene::new(false);
    scene.ask(0, 7);
    scene.remove(0, -1);
    // The slot is empty already, so this is not recorded.
    scene.remove(0, -1);
    scene.apply(Event::Replaced {
        context: CONTEXT,
        sequence: 1,
        tokens: vec![7; 12],
    });
    scene.ask(0, 8);
    scene.remove(1, -1);
    let traffic = scene.read();
    assert_eq!(traffic.requests.len(), 2);
    let restored = &traffic.changes[1];
    assert_eq!(restored.record.kind, ChangeKind::Restored);
    let first = &traffic.requests[0].tokens;
    assert_eq!(restored.tokens.common_prefix(first), 12);
    let changes = traffic.changes.iter().map(|change| &change.record);
    let found: Vec<_> = changes
        .map(|change| (change.order, change.slot, change.at > 0))
        .collect();
    assert_eq!(found, [(1, 0, true), (1, 1, true), (2, 1, true)]);
    assert_eq!(traffic.changes[2].record.kind, ChangeKind::Erased);
}

#[test]
fn slots_that_the_server_empties_by_itself_are_not_recorded() {
    // With `--cache-idle-slots` the server empties idle slots when it launches a task.
    let mut scene = Scene::new(true);
    scene.ask(0, 7);
    let arrival = scene.launch(2);
    scene.remove(0, -1);
    scene.evaluate(2, 9, false);
    scene.apply(Event::Answered { arrival, id: None });
    assert_eq!(scene.kinds(), []);
    // When a batch fails for want of room, the server empties an idle slot.
    let mut scene = Scene::new(true);
    scene.ask(0, 7);
    let arrival = scene.launch(2);
    scene.evaluate(2, 9, true);
    scene.remove(0, -1);
    scene.evaluate(2, 9, false);
    scene.apply(Event::Answered { arrival, id: None });
    assert_eq!(scene.kinds(), []);
}

/// The end of an answer is sent by another thread than that which launches the next task.
#[test]
fn the_end_of_an_earlier_answer_does_not_make_an_emptied_slot_an_erased_one() {
    let mut scene = Scene::new(true);
    let first = scene.launch(0);
    scene.evaluate(0, 7, false);
    let second = scene.launch(1);
    scene.apply(Event::Answered {
        arrival: first,
        id: None,
    });
    // The server empties idle slots.
    scene.remove(0, -1);
    scene.apply(Event::Answered {
        arrival: second,
        id: None,
    });
    // A client erases one.
    scene.evaluate(2, 9, false);
    scene.remove(2, -1);
    let kinds = scene.kinds();
    let erased = kinds
        .iter()
        .filter(|(_, _, kind)| *kind == ChangeKind::Erased);
    let erased: Vec<u32> = erased.map(|(_, slot, _)| *slot).collect();
    assert_eq!(erased, [2], "{kinds:?}");
}

/// A server empties the slot of an embedding before it says that the embedding has ended.
#[test]
fn a_prompt_is_recorded_with_what_its_slot_held_when_the_server_emptied_it() {
    let mut scene = Scene::new(false);
    let arrival = scene.launch(0);
    scene.remove(0, 0);
    scene.batch(0, 0..12, true, Vec::new());
    scene.remove(0, -1);
    scene.apply(Event::Answered { arrival, id: None });
    scene.ask(1, 7);
    let traffic = scene.read();
    let [embedding, other] = &traffic.requests[..] else {
        panic!("{:?}", traffic.requests);
    };
    let record = &embedding.record;
    assert_eq!((record.prompt, record.evaluated), (12, 12), "{record:?}");
    assert_eq!(embedding.tokens.common_prefix(&other.tokens), 12);
    assert_eq!(traffic.changes.len(), 0, "{:?}", traffic.changes);
}

#[test]
fn a_slot_that_is_emptied_because_its_prompt_failed_is_recorded_as_erased() {
    let mut scene = Scene::new(false);
    let arrival = scene.launch(0);
    scene.remove(0, 0);
    for (from, failed) in [(0, Vec::new()), (12, vec![(0, 11)])] {
        scene.batch(0, from..from + 12, false, failed);
    }
    scene.apply(Event::Answered { arrival, id: None });
    scene.remove(0, -1);
    scene.ask(1, 7);
    let traffic = scene.read();
    let record = &traffic.requests[0].record;
    let counted = (record.prompt, record.evaluated, record.abandoned);
    assert_eq!(counted, (12, 12, true), "{record:?}");
    let kinds: Vec<_> = traffic
        .changes
        .iter()
        .map(|change| change.record.kind)
        .collect();
    assert_eq!(kinds, [ChangeKind::Erased]);
}

#[test]
fn an_erase_of_a_slot_that_shares_the_context_is_recorded() {
    let mut scene = Scene::new(true);
    scene.ask(0, 7);
    scene.remove(0, -1);
    assert_eq!(scene.kinds(), [(1, 0, ChangeKind::Erased)]);
}

#[test]
fn refused_requests_are_recorded_with_what_was_saved_and_loaded_for_them() {
    let (saved, loaded) = (BufferId(1), BufferId(2));
    let (context, sequence) = (CONTEXT, 0);
    let mut scene = Scene::new(false);
    scene.ask(0, 7);
    scene.apply(Event::Saved {
        context,
        sequence,
        buffer: loaded,
    });
    scene.ask(0, 8);
    scene.apply(Event::Saved {
        context,
        sequence,
        buffer: saved,
    });
    scene.apply(Event::Restored {
        context,
        sequence,
        buffer: loaded,
    });
    // The first is refused after its launch, for example because it is too long. The launch of the second
    // fails, for example because its adapters cannot be applied together.
    let arrival = scene.launch(0);
    scene.apply(Event::Answered { arrival, id: None });
    scene.launch(1);
    scene.note(&Note::Declined { sequence: 1 });
    scene.ask(0, 9);
    let traffic = scene.read();
    let kinds: Vec<_> = traffic
        .changes
        .iter()
        .map(|change| change.record.kind)
        .collect();
    let exchanged = Refusal {
        saved: true,
        loaded: true,
        ..Refusal::default()
    };
    let declined = Refusal {
        declined: true,
        ..Refusal::default()
    };
    assert_eq!(
        kinds,
        [
            ChangeKind::Refused(exchanged),
            ChangeKind::Refused(declined)
        ]
    );
    assert_eq!(traffic.changes[0].tokens, traffic.requests[0].tokens);
    let orders: Vec<u64> = traffic
        .requests
        .iter()
        .map(|request| request.record.order)
        .collect();
    assert_eq!(orders, [0, 1, 4], "refused requests are launches too");
}

#[test]
fn what_the_prefix_store_had_of_a_prompt_is_recorded() {
    let context = CONTEXT;
    let mut scene = Scene::new(false);
    scene.recorder.store(1000);
    let arrival = scene.launch(0);
    scene.remove(0, 0);
    let entry = |position, output| Entry {
        sequence: 0,
        position,
        token: 7,
        output,
    };
    let loaded = |from, to| Event::Loaded {
        context,
        sequence: 0,
        from,
        to,
        entries: u32::try_from(to - from).unwrap_or(0),
    };
    let evaluated = || Event::Evaluated {
        context,
        failed: Vec::new(),
        no_room: false,
    };
    // The prompt comes in two batches, and then there is a token of the answer.
    let parts = [(0..20, false), (20..30, true), (30..31, true)];
    for (positions, ends) in parts {
        let (from, end) = (positions.start, positions.end);
        let entries = positions
            .map(|at| entry(at, ends && at + 1 == end))
            .collect();
        scene.apply(Event::Submitted { context, entries });
        scene.apply(loaded(from, (end - 1).min(25)));
        scene.apply(evaluated());
    }
    scene.apply(Event::Answered { arrival, id: None });
    let traffic = scene.read();
    let record = &traffic.requests[0].record;
    assert_eq!(record.reused, 0);
    assert_eq!((record.evaluated, record.loaded), (30, 19 + 5));
    assert_eq!(traffic.setup.and_then(|setup| setup.store), Some(1000));
}

/// The length of the only request of a recording, and its record.
fn only_request(scene: Scene) -> (u32, contextpilot_traffic::RequestRecord) {
    let traffic = scene.read();
    let [request] = &traffic.requests[..] else {
        panic!("one request: {:?}", traffic.requests);
    };
    (request.tokens.len(), request.record.clone())
}

#[test]
fn the_answer_is_recorded_behind_its_prompt() {
    let mut scene = Scene::new(false);
    let arrival = scene.launch(0);
    scene.evaluate(0, 7, false);
    scene.batch(0, 20..21, true, Vec::new());
    // A draft of three tokens, of which two are rejected.
    scene.batch(0, 21..25, true, Vec::new());
    scene.remove(0, 23);
    scene.batch(0, 23..24, true, Vec::new());
    scene.apply(Event::Answered { arrival, id: None });
    let (tokens, record) = only_request(scene);
    assert_eq!((record.prompt, tokens), (20, 24));
    assert_eq!((record.keep, record.gone), (0, 0));
}

#[test]
fn an_answer_goes_on_behind_a_context_shift() {
    let mut scene = Scene::new(false);
    let arrival = scene.launch(0);
    scene.evaluate(0, 7, false);
    scene.batch(0, 20..30, true, Vec::new());
    // Six tokens behind the first four make room, once and again.
    for _ in 0..2 {
        scene.apply(Event::Removed {
            context: CONTEXT,
            sequence: 0,
            from: 4,
            to: 10,
        });
        scene.apply(Event::Shifted {
            context: CONTEXT,
            sequence: 0,
            from: 10,
            to: -1,
            delta: -6,
        });
        scene.batch(0, 24..30, true, Vec::new());
    }
    scene.apply(Event::Answered { arrival, id: None });
    let (tokens, record) = only_request(scene);
    assert_eq!((record.prompt, tokens), (20, 20 + 10 + 6 + 6));
    assert_eq!((record.keep, record.gone), (4, 12));
}

/// The rows of an image stand at one position, so the answer begins at a position that is less than the prompt is long.
#[test]
fn an_answer_is_recorded_behind_a_prompt_with_an_image() {
    const IMAGE: i32 = -9;
    let mut scene = Scene::new(false);
    let arrival = scene.launch(0);
    let before = (0..5).map(|position| (position, 7));
    let image = std::iter::repeat_n((5, IMAGE), 4);
    let behind = (6..9).map(|position| (position, 7));
    let entry = |(position, token)| Entry {
        sequence: 0,
        position,
        token,
        output: position == 8,
    };
    let entries = before.chain(image).chain(behind).map(entry);
    scene.entries(entries, Vec::new());
    scene.batch(0, 9..11, true, Vec::new());
    scene.apply(Event::Answered { arrival, id: None });
    let (tokens, record) = only_request(scene);
    assert_eq!(record.prompt, 12);
    assert_eq!(record.media, [(5, 9)]);
    assert_eq!(tokens, 14);
}

/// A server's own task, say, or one that was posted before events were lost.
#[test]
fn a_request_whose_arrival_was_not_seen_arrived_when_it_was_launched() {
    let mut scene = Scene::new(false);
    scene.launch(0);
    scene.evaluate(0, 7, false);
    scene.apply(Event::Launched {
        sequence: 1,
        task: 900,
    });
    scene.evaluate(1, 8, false);
    let traffic = scene.read();
    let times = traffic.requests.iter().map(|request| {
        let record = &request.record;
        (
            record.slot,
            record.launched - record.arrived,
            record.arrived > 0,
        )
    });
    assert_eq!(times.collect::<Vec<_>>(), [(0, 1000, true), (1, 0, true)]);
}

/// A slot that is copied to while it waits for its prompt has a further answer to another one's (`n`). Once it has begun its own
/// prompt, it has not.
#[test]
fn a_further_answer_has_its_parent_s_prompt() {
    for has_begun in [false, true] {
        let mut scene = Scene::new(false);
        let parent = scene.launch(0);
        let child = scene.launch(1);
        if has_begun {
            scene.batch(1, 0..5, false, Vec::new());
        }
        scene.evaluate(0, 7, false);
        scene.apply(Event::Copied {
            context: CONTEXT,
            source: 0,
            target: 1,
            from: -1,
            to: -1,
        });
        for arrival in [parent, child] {
            scene.apply(Event::Answered { arrival, id: None });
        }
        let requests = scene.read().requests;
        let told: Vec<_> = requests
            .iter()
            .map(|request| (request.record.slot, request.record.child))
            .collect();
        let expected: &[_] = if has_begun {
            &[(0, false)]
        } else {
            &[(0, false), (1, true)]
        };
        assert_eq!(told, expected);
    }
}
