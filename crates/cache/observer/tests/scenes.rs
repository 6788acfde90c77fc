//! The observer together with the ledger, on events as the hook sends them.

use contextpilot_control::{
    Change, ChosenBy, HookedFunction, Like, Match, MatchRequest, Outcome, Place, Reason,
    RequestState, Stats, UnfinishedPrompt,
};
use contextpilot_observer::{
    Asked, MOST_MOVED, MOST_NAMED, Note, Now, Observer, Output, Stamp, Stored,
};
use contextpilot_residency::program::{PROGRAM, slot_of};
use contextpilot_residency::{
    Accounts, Adapter, Arrival, BufferId, Compared, ContextId, Entry, EvaluationId, Event, Fact,
    Ledger, RequestId, Rules, Scale,
};

const CONTEXT: ContextId = ContextId(1);

struct Scene {
    ledger: Ledger,
    observer: Observer,
    clock: u64,
    arrivals: u64,
}

impl Scene {
    fn new() -> Self {
        let mut scene = Self {
            ledger: Ledger::observed(),
            observer: Observer::new(
                "e".to_owned(),
                Some(Accounts::new(Rules::default(), 1 << 20)),
            ),
            clock: 0,
            arrivals: 0,
        };
        scene.apply(Event::ContextCreated { context: CONTEXT });
        scene
    }

    /// The time: each call is a millisecond after the one before.
    fn now(&mut self) -> Now {
        self.clock += 1;
        Now {
            stamp: Stamp(self.clock * 1_000_000),
            unix_ms: self.clock,
        }
    }

    fn apply(&mut self, event: Event) {
        let now = self.now();
        let Self {
            observer, ledger, ..
        } = self;
        ledger.upcoming(&event, &mut |upcoming| observer.upcoming(upcoming, ledger));
        let mut facts: Vec<Fact> = Vec::new();
        self.ledger.apply(event, &mut facts);
        for fact in &facts {
            self.observer.fact(fact, now.stamp, now, &self.ledger);
        }
        self.observer.after(now, &self.ledger);
    }

    fn note(&mut self, note: Note) {
        let now = self.now();
        self.observer.note(note, now.stamp);
    }

    /// A request arrives, and its prompt of `tokens` equal tokens is evaluated in a slot, from `reused`
    /// on.
    fn begin(
        &mut self,
        id: Option<&str>,
        slot: i32,
        token: i32,
        reused: i32,
        tokens: i32,
    ) -> Arrival {
        self.arrivals += 1;
        let arrival = Arrival(self.arrivals);
        let task = self.arrivals as i32;
        self.note(Note::Received { arrival });
        self.apply(Event::Posted {
            arrival,
            task,
            id: id.map(RequestId::from),
        });
        self.launch(slot, task);
        self.evaluate(slot, token, reused, tokens);
        arrival
    }

    /// A prompt of `tokens` equal tokens is evaluated in a slot, from `reused` on.
    fn evaluate(&mut self, slot: i32, token: i32, reused: i32, tokens: i32) {
        self.remove(slot, reused);
        self.batch(slot, token, reused..tokens, true);
    }

    /// The server gives a task to a slot.
    fn launch(&mut self, sequence: i32, task: i32) {
        self.apply(Event::Launched { sequence, task });
    }

    /// The server removes what a slot holds from this position on.
    fn remove(&mut self, sequence: i32, from: i32) {
        self.apply(Event::Removed {
            context: CONTEXT,
            sequence,
            from,
            to: -1,
        });
    }

    /// A batch of entries of a slot, of equal tokens, is submitted.
    fn submit(&mut self, slot: i32, token: i32, positions: std::ops::Range<i32>, ends: bool) {
        let last = positions.end - 1;
        let entry = |position| Entry {
            sequence: slot,
            position,
            token,
            output: ends && position == last,
        };
        self.apply(Event::Submitted {
            context: CONTEXT,
            entries: positions.map(entry).collect(),
        });
    }

    /// The last batch has been evaluated.
    fn evaluated(&mut self) {
        self.apply(Event::Evaluated {
            context: CONTEXT,
            failed: Vec::new(),
            no_room: false,
        });
    }

    /// The engine does nothing for a second.
    fn quiet(&mut self) {
        self.apply(Event::Quiet {
            elapsed: std::time::Duration::from_secs(1),
        });
    }

    /// A request arrives, and is not launched yet.
    fn receive(&mut self, id: &str) -> (Arrival, i32) {
        self.arrivals += 1;
        let (arrival, task) = (Arrival(self.arrivals), self.arrivals as i32);
        self.note(Note::Received { arrival });
        let id = Some(RequestId::from(id));
        self.apply(Event::Posted { arrival, task, id });
        (arrival, task)
    }

    fn end(&mut self, arrival: Arrival, id: Option<&str>) {
        let id = id.map(RequestId::from);
        self.apply(Event::Answered { arrival, id });
    }

    fn ask(&mut self, id: Option<&str>, slot: i32, token: i32, reused: i32, tokens: i32) {
        let arrival = self.begin(id, slot, token, reused, tokens);
        self.end(arrival, id);
    }

    fn take_output(&mut self) -> Output {
        self.observer.take_output()
    }

    fn stats(&mut self) -> Stats {
        let now = self.now();
        self.observer.stats(Some(&self.ledger), outside(), now)
    }

    fn request(&self, id: &str) -> RequestState {
        let asked = Asked {
            ledger: Some(&self.ledger),
            store: None,
        };
        self.observer.request(id, asked)
    }
}

impl Scene {
    /// Evaluates entries of a slot, of equal tokens.
    fn batch(&mut self, slot: i32, token: i32, positions: std::ops::Range<i32>, ends: bool) {
        self.submit(slot, token, positions, ends);
        self.evaluated();
    }

    /// A request has a prompt that begins like what slot 0 holds, and has other tokens at these positions.
    fn branch(&mut self, id: &str, positions: std::ops::Range<i32>) {
        let (arrival, task) = self.receive(id);
        self.launch(0, task);
        self.remove(0, positions.start);
        self.batch(0, 8, positions, true);
        self.end(arrival, Some(id));
    }

    /// The prompt that slot 0 evaluates.
    fn unfinished(&mut self) -> Option<UnfinishedPrompt> {
        self.stats().slots[0].prompt.clone()
    }
}

#[test]
fn of_a_prompt_that_is_being_evaluated_it_is_known_whose_it_is_and_how_far() {
    let mut scene = Scene::new();
    scene.ask(None, 0, 7, 0, 20);
    assert_eq!(scene.unfinished(), None);
    let (arrival, task) = scene.receive("tea");
    let launched = scene.clock + 1;
    scene.launch(0, task);
    // The times of the prompt before say nothing of this one.
    let first = scene.unfinished().unwrap();
    assert_eq!((first.number, first.id.as_deref()), (2, Some("tea")));
    assert_eq!((first.reused, first.evaluated), (0, 0));
    assert_eq!(first.tokens_per_second, None);
    assert_eq!((first.tokens, first.seconds_left), (None, None));
    scene.batch(0, 7, 20..84, false);
    let batch = scene.clock;
    let so_far = scene.unfinished().unwrap();
    assert_eq!((so_far.reused, so_far.evaluated), (20, 64));
    assert_eq!(so_far.seconds, (scene.clock - launched) as f64 / 1e3);
    let took = (batch - launched) as f64 / 1e3;
    assert_eq!(so_far.tokens_per_second, Some(64.0 / took));
    scene.batch(0, 7, 84..90, true);
    assert_eq!(scene.unfinished(), None);
    scene.end(arrival, Some("tea"));
    // The client of this one leaves.
    let (arrival, task) = scene.receive("sea");
    scene.launch(0, task);
    scene.batch(0, 7, 90..100, false);
    scene.submit(0, 7, 100..120, false);
    assert!(!scene.unfinished().unwrap().client_left);
    scene.end(arrival, Some("sea"));
    let left = scene.unfinished().unwrap();
    assert_eq!((left.id.as_deref(), left.evaluated), (Some("sea"), 10));
    assert_eq!((left.in_batch, left.client_left), (20, true));
    scene.evaluated();
    assert_eq!(scene.unfinished(), None);
}

#[test]
fn of_a_prompt_whose_tokens_were_counted_it_is_known_how_many_remain_and_how_long() {
    let mut scene = Scene::new();
    let begin = |scene: &mut Scene, slot: i32, id: &str, tokens: u32| {
        let (arrival, task) = scene.receive(id);
        scene.note(Note::Counted { arrival, tokens });
        scene.launch(slot, task);
        (arrival, scene.clock)
    };
    let prompt = |scene: &mut Scene, slot: usize| scene.stats().slots[slot].prompt.clone().unwrap();
    let is_near = |told: Option<f64>, milliseconds: f64| {
        assert!(
            (told.unwrap() * 1e3 - milliseconds).abs() < 1e-6,
            "{told:?}"
        );
    };
    let (arrival, launched) = begin(&mut scene, 0, "tea", 164);
    let first = prompt(&mut scene, 0);
    // No prompt was timed yet.
    assert_eq!((first.tokens, first.seconds_left), (Some(164), None));
    scene.batch(0, 7, 0..64, false);
    let batch = scene.clock;
    let later = prompt(&mut scene, 0);
    assert_eq!(later.tokens, Some(164));
    let took = (batch - launched) as f64;
    is_near(
        later.seconds_left,
        100.0 * took / 64.0 - (scene.clock - batch) as f64,
    );
    scene.batch(0, 7, 64..164, true);
    let took = (scene.clock - launched) as f64;
    scene.end(arrival, Some("tea"));
    // Until a batch of it has ended, the last prompt says how long.
    let (_, launched) = begin(&mut scene, 1, "sea", 3000);
    let second = prompt(&mut scene, 1);
    is_near(
        second.seconds_left,
        3000.0 * took / 164.0 - (scene.clock - launched) as f64,
    );
    // More came than were counted: the server evaluates something else.
    scene.batch(1, 8, 0..3001, false);
    let more = prompt(&mut scene, 1);
    assert_eq!((more.tokens, more.seconds_left), (None, None));
}

/// What the prefix store would load counts, too.
#[test]
fn a_request_without_an_id_could_be_loaded_from_the_store() {
    let mut scene = Scene::new();
    scene.ask(None, 0, 7, 0, 20);
    scene.ask(None, 0, 8, 0, 30);
    let store = |tokens: &[i32]| {
        Some(Stored {
            tokens: if tokens[0] == 7 { 16 } else { 0 },
            least: 8,
            whole: false,
            kept: None,
        })
    };
    let cached = |name| {
        let asked = Asked {
            ledger: Some(&scene.ledger),
            store: Some(&store),
        };
        match scene.observer.request(name, asked) {
            RequestState::Numbered {
                prompts,
                tokens,
                cached_tokens,
                ..
            } => (prompts, tokens, cached_tokens),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(cached("#1"), (1, Some(20), Some(16)));
    assert_eq!(cached("#2"), (1, Some(30), Some(29)));
}

#[test]
fn of_a_request_with_several_prompts_the_last_is_looked_at() {
    let mut scene = Scene::new();
    let arrival = scene.begin(None, 0, 7, 0, 20);
    scene.apply(Event::Posted {
        arrival,
        task: 50,
        id: None,
    });
    scene.launch(1, 50);
    scene.evaluate(1, 8, 0, 30);
    scene.end(arrival, None);
    let RequestState::Numbered {
        prompts,
        tokens,
        cached_tokens,
        evaluation,
        ..
    } = scene.request("#1")
    else {
        panic!("{:?}", scene.request("#1"));
    };
    assert_eq!((prompts, tokens, cached_tokens), (2, Some(30), Some(29)));
    assert_eq!(evaluation.prompt_tokens, 50);
}

#[test]
fn a_request_without_an_id_is_found_by_its_number() {
    let mut scene = Scene::new();
    scene.ask(None, 0, 7, 0, 20);
    scene.ask(Some("a"), 1, 8, 0, 30);
    let RequestState::Numbered {
        id,
        slot,
        cached_tokens,
        evaluation,
        ..
    } = scene.request("#1")
    else {
        panic!("{:?}", scene.request("#1"));
    };
    assert_eq!((&*id, slot, cached_tokens), ("#1", 0, Some(19)));
    assert_eq!(evaluation.prompt_tokens, 20);
    assert!(matches!(scene.request("#2"), RequestState::Cached { id, .. } if id == "a"));
    for unknown in ["#3", "#0", "#", "1"] {
        assert!(matches!(
            scene.request(unknown),
            RequestState::Unknown { .. }
        ));
    }
    scene.ask(None, 0, 9, 0, 20);
    let RequestState::Numbered { cached_tokens, .. } = scene.request("#1") else {
        panic!("{:?}", scene.request("#1"));
    };
    assert_eq!(cached_tokens, Some(0));
    // An id that looks like a number is an id.
    scene.ask(Some("#1"), 0, 9, 0, 20);
    assert!(matches!(scene.request("#1"), RequestState::Cached { .. }));
}

#[test]
fn a_log_line_has_the_tokens_times_and_evictions_of_its_request() {
    let mut scene = Scene::new();
    scene.ask(Some("a"), 0, 7, 0, 20);
    // This one evicts nothing: its prompt continues that of the first.
    scene.ask(Some("b"), 0, 7, 20, 30);
    scene.ask(None, 0, 8, 0, 10);
    let output = scene.take_output();
    let figures: Vec<_> = output
        .lines
        .iter()
        .map(|line| (line.prompt_tokens, line.reused, line.evaluated))
        .collect();
    assert_eq!(figures, [(20, 0, 20), (30, 20, 10), (10, 0, 10)]);
    assert!(
        output
            .lines
            .iter()
            .all(|line| line.outcome == Outcome::Answered)
    );
    // Each call takes a millisecond: five from the receipt to the end of the prompt, and one more to the
    // answer.
    let times: Vec<_> = output
        .lines
        .iter()
        .map(|line| (line.time_to_first_token_seconds, line.total_seconds))
        .collect();
    assert_eq!(times, [(Some(0.005), 0.006); 3]);
    let gone: Vec<_> = output.lines[2].evicted.iter().map(|e| &*e.id).collect();
    assert_eq!(gone.len(), 2, "{gone:?}");
    let numbers: Vec<_> = output.events.iter().map(|event| event.sequence).collect();
    assert_eq!(numbers, [1, 2, 3, 4]);
    assert!(matches!(
        scene.request("a"),
        RequestState::Evicted {
            reason: Reason::Overwritten,
            from: Place::Slot { slot: 0 },
            by: None,
            tokens: Some(20),
            ..
        }
    ));
}

/// Two requests wait with equal prompts, and the later one is evaluated first.
#[test]
fn an_evaluation_counts_for_the_request_that_claims_it() {
    let mut scene = Scene::new();
    let (first, first_task) = scene.receive("first");
    let (second, second_task) = scene.receive("second");
    let evaluation = EvaluationId(1);
    scene.apply(Event::LaunchedUnclaimed {
        sequence: 0,
        evaluation,
        likely: first_task,
    });
    scene.evaluate(0, 7, 0, 20);
    assert!(scene.observer.latest(9).is_empty(), "not claimed yet");
    scene.apply(Event::Claimed {
        evaluation,
        task: second_task,
    });
    scene.apply(Event::ClaimsClosed { evaluation });
    scene.end(second, Some("second"));
    scene.launch(1, first_task);
    scene.evaluate(1, 7, 5, 20);
    scene.end(first, Some("first"));
    let lines = scene.take_output().lines;
    let figures: Vec<_> = lines
        .iter()
        .map(|line| (line.id.as_deref(), line.slot, line.reused, line.evaluated))
        .collect();
    assert_eq!(
        figures,
        [
            (Some("second"), Some(0), 0, 20),
            (Some("first"), Some(1), 5, 15)
        ]
    );
    assert!(lines.iter().all(|line| line.outcome == Outcome::Answered));
    let latest = scene.observer.latest(9);
    let named: Vec<_> = latest
        .iter()
        .map(|(line, _)| (line.number, line.id.as_deref(), line.evaluation.evaluated))
        .collect();
    assert_eq!(named, [(1, Some("first"), 15), (2, Some("second"), 20)]);
    assert_eq!(scene.request("second").evaluation().unwrap().evaluated, 20);
}

/// One evaluation is claimed while it goes on and then by another request, one by none.
#[test]
fn an_evaluation_counts_for_its_last_claim_or_else_for_the_most_likely_request() {
    let mut scene = Scene::new();
    let (_, first) = scene.receive("one");
    let (_, second) = scene.receive("two");
    let early = EvaluationId(1);
    scene.apply(Event::LaunchedUnclaimed {
        sequence: 0,
        evaluation: early,
        likely: first,
    });
    scene.apply(Event::Claimed {
        evaluation: early,
        task: second,
    });
    scene.evaluate(0, 7, 0, 20);
    let name = |scene: &Scene| {
        let latest = scene.observer.latest(9);
        latest
            .iter()
            .map(|(line, _)| line.id.clone().unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(name(&scene), ["two"]);
    scene.apply(Event::Claimed {
        evaluation: early,
        task: first,
    });
    scene.apply(Event::ClaimsClosed { evaluation: early });
    assert_eq!(name(&scene), ["one"]);
    assert_eq!(scene.request("two").evaluation(), None);

    let (_, three) = scene.receive("three");
    let late = EvaluationId(2);
    scene.apply(Event::LaunchedUnclaimed {
        sequence: 1,
        evaluation: late,
        likely: three,
    });
    scene.evaluate(1, 8, 0, 10);
    scene.apply(Event::ClaimsClosed { evaluation: late });
    assert_eq!(name(&scene), ["three", "one"]);
}

/// Where requests are found by their prompts, only the first launch of several answers is seen.
/// Some engines return from an evaluation before their device has done it. The time of a prompt ends when
/// the server goes on with a token of it.
#[test]
fn an_evaluation_is_timed_from_its_launch_to_its_first_token() {
    let mut scene = Scene::new();
    let seconds = |scene: &Scene, id: &str| {
        let state = scene.request(id);
        state.evaluation().expect("an evaluation").seconds
    };
    // A launch, a removal, the batch, its end: 1 ms each.
    let first = scene.begin(Some("first"), 0, 1, 0, 50);
    assert_eq!(seconds(&scene, "first"), None);
    scene.clock += 96;
    scene.evaluate(0, 1, 50, 51);
    assert_eq!(seconds(&scene, "first"), Some(0.101));
    // Later tokens change nothing.
    scene.evaluate(0, 1, 51, 52);
    scene.end(first, Some("first"));
    assert_eq!(seconds(&scene, "first"), Some(0.101));
    // If one token is asked for, nothing is seen before the answer's end.
    let second = scene.begin(Some("second"), 0, 2, 0, 50);
    scene.clock += 6;
    scene.end(second, Some("second"));
    assert_eq!(seconds(&scene, "second"), Some(0.01));
    let line = scene.take_output().lines.pop().expect("a line");
    assert_eq!(line.evaluation.expect("an evaluation").seconds, Some(0.01));
    let stats = scene.stats();
    assert!((stats.reuse.seconds - 0.111).abs() < 1e-9, "{stats:?}");
}

/// Two prompts of one request, in two slots: each would have the whole time of the batches that they share.
#[test]
fn what_the_prompts_of_a_request_take_side_by_side_counts_once() {
    let mut scene = Scene::new();
    scene.arrivals += 1;
    let (arrival, id) = (Arrival(1), RequestId::from("list"));
    scene.note(Note::Received { arrival });
    for task in 1..3 {
        scene.apply(Event::Posted {
            arrival,
            task,
            id: Some(id.clone()),
        });
    }
    scene.launch(0, 1);
    let launched = scene.clock;
    scene.launch(1, 2);
    scene.evaluate(0, 1, 0, 50);
    scene.evaluate(1, 2, 0, 50);
    scene.clock += 500;
    scene.evaluate(0, 1, 50, 51);
    scene.evaluate(1, 2, 50, 51);
    let seconds = scene.request("list").evaluation().and_then(|it| it.seconds);
    let passed = (scene.clock - launched) as f64 / 1000.0;
    assert!(
        seconds.is_some_and(|it| 0.5 < it && it <= passed),
        "{seconds:?} {passed}"
    );
}

/// The answer is longer than the slot: a part of its prompt is moved out.
#[test]
fn what_a_context_shift_took_is_said_to_be_shifted_as_the_eviction_is() {
    let mut scene = Scene::new();
    let first = scene.begin(Some("long"), 0, 1, 0, 50);
    scene.apply(Event::Removed {
        context: CONTEXT,
        sequence: 0,
        from: 10,
        to: 30,
    });
    scene.apply(Event::Shifted {
        context: CONTEXT,
        sequence: 0,
        from: 30,
        to: 50,
        delta: -20,
    });
    scene.batch(0, 7, 30..31, true);
    scene.end(first, Some("long"));
    scene.begin(Some("again"), 0, 1, 10, 50);
    let RequestState::Evicted { reason, .. } = scene.request("long") else {
        panic!("{:?}", scene.request("long"));
    };
    let lost = scene
        .request("again")
        .evaluation()
        .and_then(|it| it.lost.clone());
    let lost = lost.expect("it was lost");
    assert_eq!([reason, lost.reason], [Reason::Shifted; 2]);
    assert_eq!(lost.by.map(|by| by.to_string()).as_deref(), Some("long"));
}

#[test]
fn a_further_answer_is_copied_and_nothing_is_evaluated_for_it() {
    let mut scene = Scene::new();
    let parent = scene.begin(Some("two answers"), 0, 7, 0, 20);
    scene.apply(Event::Copied {
        context: CONTEXT,
        source: 0,
        target: 1,
        from: -1,
        to: -1,
    });
    scene.end(parent, Some("two answers"));
    let line = scene.take_output().lines.pop().unwrap();
    assert_eq!((line.prompts, line.evaluated), (2, 20));
    assert_eq!(line.evaluation.unwrap().causes.sum(), 20);
    assert_eq!(scene.observer.latest(9).len(), 1);
}

/// A shared context without room: the engine refuses the next batch, the server empties the slot, and the client leaves.
#[test]
fn a_prompt_whose_slot_was_emptied_before_its_client_left_is_no_longer_known() {
    let mut scene = Scene::new();
    scene.ask(Some("before"), 1, 7, 0, 30);
    let (arrival, task) = scene.receive("gone");
    scene.launch(0, task);
    scene.batch(0, 7, 0..20, false);
    scene.remove(0, -1);
    scene.batch(0, 7, 0..5, false);
    scene.take_output();
    scene.end(arrival, Some("gone"));
    scene.quiet();
    let line = scene.take_output().lines.pop().expect("a line");
    let evaluation = line.evaluation.expect("an evaluation");
    assert!(evaluation.given_up);
    assert_eq!(evaluation.causes.sum(), evaluation.evaluated);
    assert_eq!(evaluation.diverged, None);
}

/// The client of a request with 30 tokens leaves while the first 20 of them are evaluated.
fn leave(scene: &mut Scene, id: &str, slot: i32, reused: i32) {
    let (arrival, task) = scene.receive(id);
    scene.launch(slot, task);
    scene.submit(slot, 7, reused..reused + 10, false);
    scene.end(arrival, Some(id));
    // The engine is still computing: more may come.
    scene.quiet();
    assert!(scene.take_output().lines.is_empty());
    scene.evaluated();
    scene.quiet();
}

#[test]
fn a_prompt_that_its_client_gave_up_is_a_prompt_and_the_next_says_how_often() {
    let mut scene = Scene::new();
    leave(&mut scene, "a", 0, 0);
    let line = scene.take_output().lines.pop().expect("a line");
    assert_eq!(line.outcome, Outcome::Unfinished);
    assert_eq!(
        (line.prompt_tokens, line.reused, line.evaluated),
        (10, 0, 10)
    );
    let evaluation = line.evaluation.expect("an evaluation");
    assert!(evaluation.given_up && evaluation.attempts == 0);
    assert_eq!(
        (evaluation.causes.new, evaluation.causes.last_token),
        (10, 0)
    );
    leave(&mut scene, "b", 0, 10);
    let line = scene.take_output().lines.pop().expect("a line");
    assert_eq!(line.evaluation.expect("an evaluation").attempts, 1);
    scene.ask(Some("c"), 0, 7, 20, 30);
    let line = scene.take_output().lines.pop().expect("a line");
    let evaluation = line.evaluation.expect("an evaluation");
    assert_eq!((evaluation.given_up, evaluation.attempts), (false, 2));
    assert_eq!((evaluation.reused, evaluation.evaluated), (20, 10));
    // Another beginning is another prompt.
    scene.ask(Some("d"), 0, 8, 0, 30);
    let line = scene.take_output().lines.pop().expect("a line");
    assert_eq!(line.evaluation.expect("an evaluation").attempts, 0);
    let stats = scene.stats();
    assert_eq!(stats.reuse.total.evaluated, 10 + 10 + 10 + 30);
}

#[test]
fn an_eviction_by_a_restored_file_names_no_request() {
    let mut scene = Scene::new();
    scene.ask(Some("a"), 0, 7, 0, 20);
    scene.apply(Event::Replaced {
        context: CONTEXT,
        sequence: 0,
        tokens: vec![8; 20],
    });
    let RequestState::Evicted {
        by, from, reason, ..
    } = scene.request("a")
    else {
        panic!("{:?}", scene.request("a"));
    };
    assert_eq!((reason, by), (Reason::Overwritten, None));
    assert_eq!(from, Place::Slot { slot: 0 });
}

#[test]
fn an_eviction_by_a_reset_names_the_slot_that_held_the_prompt() {
    let mut scene = Scene::new();
    scene.ask(Some("a"), 1, 7, 0, 20);
    scene.apply(Event::Reset);
    let RequestState::Evicted { from, reason, .. } = scene.request("a") else {
        panic!("{:?}", scene.request("a"));
    };
    assert_eq!((reason, from), (Reason::Reset, Place::Slot { slot: 1 }));
}

#[test]
fn a_slot_is_busy_until_its_request_is_answered() {
    let mut scene = Scene::new();
    let arrival = scene.begin(Some("a"), 3, 7, 0, 20);
    let busy = |scene: &mut Scene| {
        let stats = scene.stats();
        (stats.slots[0].slot, stats.slots[0].busy)
    };
    assert_eq!(busy(&mut scene), (3, true));
    scene.end(arrival, Some("a"));
    assert_eq!(busy(&mut scene), (3, false));
}

#[test]
fn a_request_under_way_when_events_are_lost_gets_no_log_line() {
    let mut scene = Scene::new();
    let arrival = scene.begin(Some("a"), 0, 7, 0, 20);
    scene.apply(Event::OutOfStep);
    assert!(matches!(
        scene.request("a"),
        RequestState::Evicted {
            reason: Reason::OutOfStep,
            ..
        }
    ));
    // The answer is counted, but how many tokens it took is not known.
    scene.end(arrival, Some("a"));
    let output = scene.take_output();
    assert_eq!(output.lines.len(), 0);
    scene.ask(Some("a"), 0, 7, 0, 20);
    assert_eq!(scene.take_output().lines.len(), 1);
}

#[test]
fn host_buffers_are_counted_until_they_or_their_context_are_freed() {
    let mut scene = Scene::new();
    scene.ask(Some("a"), 0, 7, 0, 20);
    for buffer in [BufferId(100), BufferId(200)] {
        scene.note(Note::Size {
            buffer,
            bytes: 1000,
        });
        scene.apply(Event::Saved {
            context: CONTEXT,
            sequence: 0,
            buffer,
        });
    }
    let host = |scene: &mut Scene| {
        let stats = scene.stats();
        (
            stats.host.entries,
            stats.host.bytes,
            stats.kv.bytes_per_token,
        )
    };
    assert_eq!(host(&mut scene), (2, 2000, Some(50.0)));
    scene.apply(Event::Freed {
        buffer: BufferId(100),
    });
    assert_eq!(host(&mut scene), (1, 1000, Some(50.0)));
    let moves = |output: Output| {
        let changes = output.events.into_iter().map(|event| event.change);
        changes
            .filter(|change| matches!(change, Change::MovedToHost { ids, .. } if ids == &["a"]))
            .count()
    };
    assert_eq!(moves(scene.take_output()), 2);
    scene.apply(Event::ContextFreed { context: CONTEXT });
    assert_eq!(host(&mut scene).0, 0);
    assert_eq!(host(&mut scene).1, 0);
}

/// A client that asks the same again and again, say a health check, adds an id to the same prompt each time.
#[test]
fn an_event_names_the_last_of_many_requests_with_one_prompt() {
    let mut scene = Scene::new();
    scene.ask(Some("id-0"), 0, 7, 0, 20);
    for n in 1..300 {
        scene.ask(Some(&format!("id-{n}")), 0, 7, 19, 20);
    }
    scene.take_output();
    scene.apply(Event::Saved {
        context: CONTEXT,
        sequence: 0,
        buffer: BufferId(1),
    });
    let moved = scene.take_output().events.remove(0).change;
    let Change::MovedToHost { ids, .. } = moved else {
        panic!("{moved:?}");
    };
    let last: Vec<String> = (300 - MOST_MOVED..300).map(|n| format!("id-{n}")).collect();
    assert_eq!(ids, last);

    let slot = &scene.stats().slots[0];
    assert_eq!((slot.requests.len(), slot.requests_total), (300, 300));
}

/// The adapters of the last request: of each, its index and its scale.
fn last_adapters(scene: &Scene) -> Option<Vec<(Option<u32>, f32)>> {
    let (last, _) = scene.observer.latest(1).remove(0);
    let all = last.evaluation.adapters?;
    Some(
        all.iter()
            .map(|adapter| (adapter.id, adapter.scale))
            .collect(),
    )
}

#[test]
fn an_evaluation_names_the_adapters_that_are_known_to_be_applied() {
    let applied = |scales: &[f32], compared| Event::Adapters {
        context: CONTEXT,
        adapters: (100..)
            .zip(scales)
            .map(|(address, &scale)| Adapter {
                address,
                scale: Scale::new(scale),
                invocation: [].into(),
            })
            .collect(),
        compared,
    };
    let mut scene = Scene::new();
    scene.ask(None, 0, 7, 0, 20);
    assert_eq!(last_adapters(&scene), Some(vec![]));
    scene.apply(applied(&[0.0, 0.5], Compared::WhenNamed));
    scene.ask(None, 0, 8, 0, 20);
    assert_eq!(last_adapters(&scene), Some(vec![(Some(1), 0.5)]));
    // What a server of 2025 does not apply it does not tell the engine of.
    scene.apply(applied(&[0.5], Compared::Always));
    scene.ask(None, 0, 9, 0, 20);
    assert_eq!(last_adapters(&scene), Some(vec![(None, 0.5)]));
    scene.apply(Event::OutOfStep);
    scene.ask(None, 0, 10, 0, 20);
    assert_eq!(last_adapters(&scene), None);
    scene.apply(applied(&[0.0, 0.0], Compared::WhenNamed));
    scene.ask(None, 0, 11, 0, 20);
    assert_eq!(last_adapters(&scene), Some(vec![]));
}

/// A client that knows no tokens says which request its prompt is like, and how much of it.
#[test]
fn a_prompt_that_is_like_another_one_has_its_first_tokens() {
    let mut scene = Scene::new();
    scene.ask(Some("tea"), 0, 7, 0, 20);
    scene.ask(Some("sea"), 1, 8, 0, 30);
    let like = |scene: &Scene, id: &str, common, tokens, stored: Option<u64>| -> Match {
        let asked = MatchRequest {
            like: Some(Like {
                id: id.to_owned(),
                common,
                tokens,
            }),
            ..MatchRequest::default()
        };
        let store = stored.map(|stored| {
            move |prompt: &[i32]| {
                // What differs is in no store.
                assert!(
                    prompt[common as usize..]
                        .iter()
                        .all(|&token| token == i32::MAX)
                );
                let first = prompt.first().copied();
                let tokens = if first == Some(7) { stored } else { 0 };
                Some(Stored {
                    tokens,
                    least: 1,
                    whole: true,
                    kept: None,
                })
            }
        });
        let found = scene.observer.matching(&asked, &scene.ledger, store);
        found.expect("there are accounts")
    };
    let tea = like(&scene, "tea", 15, 40, None);
    assert_eq!(
        (tea.tokens, tea.slot, tea.reused, tea.best),
        (40, Some(0), 15, 15)
    );
    assert_eq!(tea.chosen_by, Some(ChosenBy::Similarity));
    let common: Vec<_> = tea
        .slots
        .iter()
        .map(|slot| (slot.slot, slot.common))
        .collect();
    assert_eq!(common, [(0, 15), (1, 0)]);
    assert_eq!(like(&scene, "sea", 25, 26, None).slot, Some(1));
    assert_eq!(
        like(&scene, "sea", 25, 20, None).tokens,
        20,
        "no more than all"
    );
    assert_eq!(
        like(&scene, "cup", 15, 40, Some(9)),
        Match::default(),
        "never seen"
    );
    // Evicted. What it left in the store is found by the tokens that are remembered.
    scene.ask(None, 0, 9, 0, 20);
    assert_eq!(like(&scene, "tea", 15, 40, None), Match::default());
    let left = like(&scene, "tea", 15, 40, Some(12));
    assert_eq!((left.tokens, left.reused), (40, 0));
    assert_eq!((left.stored, left.loaded), (Some(12), Some(12)));
    let other = like(&scene, "sea", 25, 26, Some(12));
    assert_eq!((other.reused, other.stored), (25, Some(0)));
}

#[test]
fn each_part_of_the_metrics_has_its_series() {
    let mut scene = Scene::new();
    scene.ask(Some("tea"), 0, 7, 0, 20);
    let mut outside = outside();
    outside.engine.functions = vec![HookedFunction {
        name: "llama_decode".to_owned(),
        way: "import".to_owned(),
        found: 3,
        patched: 2,
        called: true,
    }];
    outside.delivery = Some(contextpilot_control::Delivery::default());
    outside.control = Some(contextpilot_control::ControlEndpoint::default());
    outside.kv_events = Some(contextpilot_control::KvEvents::default());
    outside.store = Some(contextpilot_control::PrefixStore::default());
    outside.kept = Some(contextpilot_control::KeptTokens::default());
    let now = scene.now();
    let stats = scene.observer.stats(Some(&scene.ledger), outside, now);
    let page = scene.observer.metrics(&stats);
    let of = |series: &str| -> Vec<&str> {
        let lines = page.lines().filter(|line| !line.starts_with('#'));
        lines.filter(|line| line.contains(series)).collect()
    };
    let figures: Vec<&str> = of("hooked_function{")
        .into_iter()
        .map(|line| line.split_once(",function=").expect("a label").1)
        .collect();
    assert_eq!(
        figures,
        [
            r#""llama_decode",way="import",known="found"} 3"#,
            r#""llama_decode",way="import",known="patched"} 2"#,
            r#""llama_decode",way="import",known="called"} 1"#,
        ]
    );
    for part in [
        "uptime_seconds",
        "slot_tokens",
        "host_cache_entries",
        "prompt_tokens_total",
        "requests_total",
        "evictions_total",
        "delivery_waiting_ids",
        "control_refused_total",
        "kv_events_batches_total",
        "prefix_store_bytes",
        "prefix_store_kept_prompts",
        "kept_prompts_total",
        "losses_total",
        "time_to_first_token_seconds_bucket",
    ] {
        assert!(!of(&format!("_{part}{{")).is_empty(), "{part}: {page}");
    }
    let families = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let names = families.filter_map(|family| family.split(' ').next());
    let empty: Vec<_> = names.filter(|name| of(name).is_empty()).collect();
    // Nothing has told the size of the context yet.
    let unknown =
        ["slot_capacity_tokens", "slot_bytes"].map(|name| format!("contextpilot_llama_{name}"));
    assert!(
        empty
            .iter()
            .all(|name| unknown.iter().any(|known| known == name)),
        "{empty:?}"
    );
}

/// For people who asked for text: `CONTEXTPILOT_EXPLAIN_TEXT=1`.
#[test]
fn the_tokens_around_a_difference_are_kept_if_somebody_wants_them() {
    let scene = |accounts: Accounts| {
        let mut scene = Scene::new();
        scene.observer = Observer::new("e".to_owned(), Some(accounts));
        scene.ask(Some("tea"), 0, 7, 0, 20);
        scene.branch("sea", 18..25);
        scene
    };
    let accounts = || Accounts::new(Rules::default(), 1 << 20);
    let quoting = scene(accounts().quoting());
    let around = |scene: &Scene, id: &str| Some(scene.observer.difference(id)?.around().clone());
    let sea = around(&quoting, "sea").expect("it differs");
    assert_eq!(sea.before, [7; 16]);
    assert_eq!((sea.old, sea.new), (vec![7; 2], vec![8; 7]));
    assert_eq!(around(&quoting, "tea"), None, "the first of all");
    assert_eq!(around(&quoting, "cup"), None, "never seen");
    let silent = scene(accounts());
    assert_eq!(around(&silent, "sea"), None, "nobody wants them");
}

/// The longest sequence counts: what a state has besides its tokens weighs least there. One without tokens has nothing
/// else.
#[test]
fn the_size_of_a_token_is_that_in_the_longest_sequence_that_was_measured() {
    let mut scene = Scene::new();
    let mut measured = |tokens, bytes| {
        scene.note(Note::Measured {
            context: CONTEXT,
            tokens,
            bytes,
        });
        let stats = scene.stats();
        let kv = stats.kv;
        (kv.measured_tokens, kv.measured_bytes, kv.bytes_per_token)
    };
    assert_eq!(measured(0, 16), (0, 0, None));
    assert_eq!(measured(20, 1000), (20, 1000, Some(50.0)));
    assert_eq!(measured(10, 600), (20, 1000, Some(50.0)));
    assert_eq!(measured(40, 1600), (40, 1600, Some(40.0)));
}

/// Half of the prompt that took the slot stood there already, which was a third of what the slot held.
#[test]
fn a_loss_says_how_much_alike_the_prompts_were() {
    let mut scene = Scene::new();
    scene.ask(Some("tea"), 0, 7, 0, 30);
    scene.branch("sea", 10..20);
    scene.ask(Some("tea again"), 0, 7, 10, 30);
    let line = scene.take_output().lines.pop().expect("a line");
    let lost = line
        .evaluation
        .and_then(|evaluation| evaluation.lost)
        .expect("a loss");
    assert_eq!(lost.chosen_by, Some(ChosenBy::Similarity));
    assert_eq!((lost.similarity, lost.kept), (Some(0.5), Some(0.333)));
}

#[test]
fn the_figures_have_the_causes_of_all_prompts() {
    let mut scene = Scene::new();
    scene.ask(Some("tea"), 0, 7, 0, 20);
    scene.ask(Some("tea again"), 0, 7, 19, 20);
    let stats = scene.stats();
    let causes = stats.reuse.causes;
    assert_eq!((causes.new, causes.last_token, causes.sum()), (19, 2, 21));
}

#[test]
fn a_slot_says_how_many_bytes_its_tokens_take() {
    let mut scene = Scene::new();
    scene.ask(Some("tea"), 0, 7, 0, 20);
    scene.note(Note::Measured {
        context: CONTEXT,
        tokens: 10,
        bytes: 500,
    });
    let stats = scene.stats();
    assert_eq!(
        (stats.slots[0].tokens, stats.slots[0].bytes),
        (20, Some(1000))
    );
}

#[test]
fn a_log_line_names_so_many_evicted_requests_and_no_more() {
    let mut scene = Scene::new();
    scene.ask(Some("id-0"), 0, 7, 0, 20);
    for n in 1..MOST_NAMED + 9 {
        scene.ask(Some(&format!("id-{n}")), 0, 7, 19, 20);
    }
    scene.take_output();
    scene.ask(Some("other"), 0, 8, 0, 20);
    let line = scene.take_output().lines.pop().expect("a line");
    assert_eq!(line.evicted.len(), MOST_NAMED);
}

/// In a program that is no llama-server, all contexts are one ledger's.
#[test]
fn the_contexts_of_a_program_are_described_one_by_one() {
    let mut scene = Scene::new();
    let contexts = |scene: &mut Scene| {
        let stats = scene.stats();
        stats.contexts
    };
    assert_eq!(contexts(&mut scene), [], "a server has slots");
    scene.apply(Event::ContextFreed { context: CONTEXT });
    scene.apply(Event::ContextCreated { context: PROGRAM });
    for (place, tokens) in [(0, 20), (1, 30)] {
        let context = ContextId(place);
        scene.note(Note::Context {
            context,
            window: None,
            capacity: Some(512),
            limit: None,
            slots: Some(2),
            can_shift: Some(true),
            model: Some("tiny".into()),
        });
        let entry = |position| Entry {
            sequence: slot_of(context, 0),
            position,
            token: 7,
            output: position + 1 == tokens,
        };
        scene.apply(Event::Submitted {
            context: PROGRAM,
            entries: (0..tokens).map(entry).collect(),
        });
        scene.apply(Event::Evaluated {
            context: PROGRAM,
            failed: Vec::new(),
            no_room: false,
        });
    }
    let all = contexts(&mut scene);
    let tokens: Vec<_> = all
        .iter()
        .map(|context| (context.context, context.tokens))
        .collect();
    assert_eq!(tokens, [(0, 20), (1, 30)]);
    assert_eq!((all[1].sequences, all[1].capacity), (Some(2), Some(512)));
    scene.note(Note::ContextFreed {
        context: ContextId(0),
    });
    let left = contexts(&mut scene);
    assert_eq!(
        left.iter()
            .map(|context| context.context)
            .collect::<Vec<_>>(),
        [1]
    );
}

fn outside() -> contextpilot_observer::Outside {
    contextpilot_observer::Outside {
        process: 1,
        uptime_seconds: 1.0,
        hook_version: String::new(),
        listening: Vec::new(),
        routed: false,
        index_in_front: None,
        control: None,
        mode: contextpilot_control::Mode::Observing,
        engine: contextpilot_control::Engine::default(),
        model: None,
        model_state: contextpilot_control::ModelState::Loaded,
        flags: contextpilot_control::Flags::default(),
        host_limit: None,
        host_limit_from: String::new(),
        requests: contextpilot_control::Requests::default(),
        at_work: None,
        delivery: None,
        kv_events: None,
        recording: None,
        store: None,
        kept: None,
        losses: contextpilot_control::Losses::default(),
    }
}
