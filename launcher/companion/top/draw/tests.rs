use contextpilot_client::Update;
use contextpilot_client::control::{
    FilesRead, Missed, ModelState, PrefixStore, Reason, ResidencyEvent, Stats,
};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::style::Color;
use serde_json::{Value, json};

use super::super::feed::GONE;
use super::super::state::{Key, ScreenState};
use super::screen;
use crate::companion::differs::Differs;

fn stats(at: &str, slots: Value, reused: u64, evaluated: u64) -> Stats {
    let stats = json!({
        "at": at, "epoch": "e", "process": 1, "uptime_seconds": 192.0, "hook_version": "0.1.0",
        "mode": "observing",
        "engine": {"name": "llama.cpp", "version": "0.7.0", "build": "b11669"},
        "model": {"name": "tiny.gguf", "from": "command line"},
        "slots": slots,
        "host": {"entries": 3, "tokens": 900, "bytes": 471_040, "limit_bytes": 1_048_576,
                 "limit_from": "command line"},
        "tokens": {"resident": 2000, "shared": 100, "live_requests": 4},
        "kv": {}, "requests": {},
        "reuse": {"total": {"prompts": 2, "reused": reused, "evaluated": evaluated},
                  "last_minute": {"prompts": 2, "reused": 5, "evaluated": 3, "hit_ratio": 0.625}},
        "evictions": {"overwritten": 5, "cleared": 2},
        "delivery": null, "losses": {},
    });
    serde_json::from_value(stats).expect("statistics")
}

fn slot(slot: i32, tokens: u32, launch: u32, ids: &[&str]) -> Value {
    json!({
        "slot": slot, "tokens": tokens, "capacity": 2048, "bytes": tokens * 512,
        "busy": slot == 1, "requests": ids, "requests_total": ids.len(),
        "last_launch": format!("2026-01-02T03:04:{launch:02}.000Z"),
    })
}

fn eviction(sequence: u64, id: &str) -> Update {
    let event = json!({
        "epoch": "e", "sequence": sequence, "at": "2026-01-02T03:04:05.006Z",
        "change": "evicted", "id": id, "reason": "overwritten",
        "from": {"place": "slot", "slot": 0}, "by": "req-owl",
    });
    let event: ResidencyEvent = serde_json::from_value(event).expect("an event");
    Update::Event(event)
}

fn state(colours: bool) -> ScreenState {
    let slots = json!([
        slot(0, 1204, 5, &["req-tea", "req-sea"]),
        slot(1, 2040, 9, &["req-\u{1b}owl"]),
        slot(2, 0, 7, &[]),
    ]);
    let mut state = ScreenState::new(colours);
    state.stats(stats("2026-01-02T03:04:05.000Z", slots.clone(), 0, 0));
    state.stats(stats("2026-01-02T03:04:07.000Z", slots, 200, 3000));
    state.update(eviction(1, "req-ash"));
    state.update(Update::Missed(Missed {
        epoch: "e".to_owned(),
        missed: Some(3),
    }));
    state.update(eviction(5, "req-elm"));
    state
}

fn drawn(state: &ScreenState, width: u16, height: u16) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
    let drawn = terminal.draw(|frame| screen(state, frame));
    drawn.expect("a screen").buffer.clone()
}

fn lines(buffer: &Buffer) -> Vec<String> {
    let area = buffer.area();
    let symbol = |x, y| buffer.cell((x, y)).map_or("", |cell| cell.symbol());
    (0..area.height)
        .map(|y| (0..area.width).map(|x| symbol(x, y)).collect::<String>())
        .map(|line| line.trim_end().to_owned())
        .collect()
}

#[track_caller]
fn assert_line(lines: &[String], number: usize, parts: &[&str]) {
    for part in parts {
        let line = &lines[number];
        assert!(line.contains(part), "{part:?} is not in {line:?}");
    }
}

#[test]
fn a_prompt_counts_while_it_is_being_evaluated() {
    let at = |at: &str, evaluated: u64| {
        let mut slot = slot(1, 2040, 9, &["req-a"]);
        slot["prompt"] = json!({
            "number": 7, "reused": 100, "evaluated": evaluated, "seconds": 4.0,
            "tokens_per_second": 41.2,
        });
        slot["last_title"] = json!({ "words": "Tea", "agent": "a/1" });
        stats(at, json!([slot]), 0, 0)
    };
    let mut state = ScreenState::new(false);
    state.stats(at("2026-01-02T03:04:05.000Z", 64));
    state.stats(at("2026-01-02T03:04:07.000Z", 164));
    let screen = lines(&drawn(&state, 140, 24)).join("\n");
    for part in [
        "Evaluated: 50 tokens/s",
        "#7: 164 evaluated so far, 41 tokens/s  “Tea”, from a/1  req-a",
    ] {
        assert!(screen.contains(part), "{part:?} is not in\n{screen}");
    }
    // What it had reused and evaluated is in the sums when it is complete.
    let whole = stats(
        "2026-01-02T03:04:08.000Z",
        json!([slot(1, 2040, 9, &[])]),
        100,
        170,
    );
    state.stats(whole);
    let screen = lines(&drawn(&state, 120, 24)).join("\n");
    for part in ["Evaluated: 6 tokens/s", "Reused: 0 tokens/s"] {
        assert!(screen.contains(part), "{part:?} is not in\n{screen}");
    }
}

#[test]
fn a_title_has_the_width_that_is_there() {
    let words = "A question of many words ".repeat(8);
    let mut slot = slot(1, 2040, 9, &["req-a"]);
    slot["last_title"] = json!({ "words": words, "agent": "a/1" });
    let mut state = ScreenState::new(false);
    state.stats(stats("2026-01-02T03:04:05.000Z", json!([slot]), 0, 0));
    let of_slot = |width| lines(&drawn(&state, width, 24)).swap_remove(2);
    let whole = of_slot(300);
    assert!(
        whole.ends_with(&format!("“{words}”, from a/1  req-a")),
        "{whole}"
    );
    // All but slot and figures.
    let narrower = of_slot(160);
    assert_eq!(narrower, whole[..narrower.len()]);
    assert!(narrower.contains(&words[..98]), "{narrower}");
}

#[test]
fn a_usual_terminal_shows_everything() {
    let lines = lines(&drawn(&state(true), 80, 24));
    let heading = "llama.cpp 0.7.0 (b11669), tiny.gguf, up 3 min 12 s, hook 0.1.0 observing";
    assert_eq!(lines[0], heading);
    assert_line(&lines, 1, &["Slots by id"]);
    let half = "████████████·······";
    assert_line(
        &lines,
        2,
        &[
            "   0 ",
            "███████████▊",
            "1,204/2,048  59 %  602 KiB  req-sea, req-tea",
        ],
    );
    assert!(!lines[2].contains(half));
    // Busy, and an id that would control the terminal.
    assert_line(
        &lines,
        3,
        &[
            "   1*███████████████████",
            "2,040/2,048 100 %",
            "req-\\u{1b}owl",
        ],
    );
    assert_line(&lines, 4, &["   2 ····················", "0/2,048   0 %"]);
    assert_line(
        &lines,
        5,
        &["host ████████", "3 entries, 900 tokens, 460 KiB of 1.0 MiB"],
    );
    let rates = [
        "Reused, 1 min: 62 %",
        "Reused: 100 tokens/s",
        "Evaluated: 1,500 tokens",
    ];
    assert_line(&lines, 6, &rates);
    assert!(
        lines[7..10].iter().any(|line| line.contains('█')),
        "{lines:#?}"
    );
    assert_line(&lines, 10, &["Ids evicted: 7: overwritten 5, cleared 2"]);
    // The latest first.
    assert_line(
        &lines,
        11,
        &["req-elm", "overwritten by req-owl; it was in slot 0"],
    );
    assert_line(&lines, 12, &["– 3 events did not arrive"]);
    assert_line(&lines, 13, &["req-ash"]);
    assert_eq!(lines[23], "q quit  p pause  s sort  ↑↓ scroll");
}

#[test]
fn colours_are_used_or_not() {
    let coloured = |buffer: &Buffer| {
        let cells = buffer.content().iter();
        cells
            .filter(|cell| cell.fg != ratatui::style::Color::Reset)
            .count()
    };
    assert!(coloured(&drawn(&state(true), 80, 24)) > 50);
    let mut plain = state(false);
    plain.trouble("no answer".to_owned());
    plain.key(Key::Pause);
    assert_eq!(coloured(&drawn(&plain, 80, 24)), 0);
}

#[test]
fn no_size_is_too_small_or_too_large() {
    let many: Vec<Value> = (0..64).map(|id| slot(id, 7, 1, &["a"])).collect();
    let mut busy = state(true);
    busy.stats(stats("2026-01-02T03:04:09.000Z", many.into(), 1, 1));
    for state in [&ScreenState::new(true), &state(true), &busy] {
        for width in [0, 1, 2, 5, 20, 79, 300] {
            for height in [0, 1, 2, 3, 5, 8, 12, 100] {
                drawn(state, width, height);
            }
        }
    }
    let lines = lines(&drawn(&busy, 80, 24));
    assert!(
        lines
            .iter()
            .any(|line| line.starts_with("… and ") && line.ends_with(" more slots"))
    );
    assert!(
        lines.iter().any(|line| line.contains("req-elm")),
        "{lines:#?}"
    );
    assert!(
        lines.iter().any(|line| line.starts_with("host")),
        "{lines:#?}"
    );
}

#[test]
fn slots_are_sorted_as_asked() {
    let mut state = state(true);
    let order = |state: &ScreenState| {
        state
            .slots()
            .iter()
            .map(|slot| slot.slot)
            .collect::<Vec<_>>()
    };
    assert_eq!(order(&state), [0, 1, 2]);
    state.key(Key::Sort);
    assert_eq!(order(&state), [1, 0, 2]);
    assert_line(&lines(&drawn(&state, 80, 24)), 1, &["Slots by fill"]);
    state.key(Key::Sort);
    assert_eq!(order(&state), [1, 2, 0]);
    state.key(Key::Sort);
    assert_eq!(order(&state), [0, 1, 2]);
}

#[test]
fn a_pause_holds_everything_and_loses_nothing() {
    let mut state = state(true);
    let before = lines(&drawn(&state, 80, 24));
    state.key(Key::Pause);
    state.update(eviction(6, "req-new"));
    state.stats(stats("2026-01-02T03:04:10.000Z", json!([]), 9, 9));
    let during = lines(&drawn(&state, 80, 24));
    assert_eq!(before[..23], during[..23]);
    assert!(during[23].starts_with("PAUSED"), "{}", during[23]);
    state.key(Key::Pause);
    let after = lines(&drawn(&state, 80, 24));
    assert!(after.iter().any(|line| line.contains("req-new")));
    assert!(
        after
            .iter()
            .any(|line| line.contains("No slot has been used yet"))
    );
}

#[test]
fn scrolling_stays_with_what_is_read() {
    let mut state = state(true);
    for number in 10..60 {
        state.update(eviction(number, &format!("req-{number}")));
    }
    let first = |state: &ScreenState| lines(&drawn(state, 80, 24))[11].clone();
    assert!(first(&state).contains("req-59"));
    state.key(Key::Down(2));
    assert!(first(&state).contains("req-57"));
    state.update(eviction(60, "req-60"));
    assert!(first(&state).contains("req-57"));
    state.key(Key::Down(usize::MAX));
    assert!(first(&state).contains("req-ash"));
    state.key(Key::Up(usize::MAX));
    assert!(first(&state).contains("req-60"));
}

#[test]
fn trouble_is_told_above_what_was_known() {
    let mut state = state(true);
    state.trouble("No hook answers".to_owned());
    let lines = lines(&drawn(&state, 80, 24));
    assert_eq!(lines[0], "No hook answers");
    assert_line(&lines, 2, &["req-tea"]);
}

#[test]
fn a_server_that_has_ended_is_told_within_80_columns() {
    let mut state = state(true);
    state.trouble(GONE.to_owned());
    let lines = lines(&drawn(&state, 80, 24));
    assert_eq!(lines[0], GONE);
}

#[test]
fn a_server_that_sleeps_is_not_said_to_have_used_no_slot() {
    let mut now = stats("2026-01-02T03:04:05.000Z", json!([]), 0, 0);
    now.model_state = ModelState::Asleep;
    let mut state = ScreenState::new(false);
    state.stats(now);
    let shown = lines(&drawn(&state, 80, 24)).join("\n");
    assert!(shown.contains("llama-server sleeps"), "{shown}");
    assert!(!shown.contains("No slot"), "{shown}");
}

#[test]
fn evictions_before_its_start_are_counted_above_a_list_that_says_it_has_none() {
    let none = "none since top was started";
    let shown = |state: &ScreenState| lines(&drawn(state, 80, 24)).join("\n");
    let mut now = stats("2026-01-02T03:04:05.000Z", json!([]), 0, 0);
    now.evictions.clear();
    let mut state = ScreenState::new(false);
    state.stats(now.clone());
    assert!(!shown(&state).contains(none));
    now.evictions.insert(Reason::Overwritten, 2);
    state.stats(now);
    assert!(shown(&state).contains(none));
    state.update(eviction(6, "req-new"));
    assert!(!shown(&state).contains(none));
}

#[test]
fn a_bar_says_why_tokens_were_evaluated() {
    let mut now = stats("2026-01-02T03:04:05.000Z", json!([]), 0, 0);
    now.reuse.causes.new = 400;
    now.reuse.causes.repeated = 200;
    now.reuse.causes.evicted = 300;
    now.reuse.causes.elsewhere.busy = 100;
    let mut state = ScreenState::new(false);
    state.stats(now);
    let lines = lines(&drawn(&state, 80, 24));
    let bar = format!(
        " Why {}{}{}{} new",
        "n".repeat(8),
        "r".repeat(4),
        "e".repeat(6),
        "s".repeat(2)
    );
    let line = lines.iter().find(|line| line.contains("Why"));
    let line = line.unwrap_or_else(|| panic!("{lines:?}"));
    assert!(line.starts_with(&bar), "{line}");
    assert!(
        line.ends_with("new 40 %, evicted 30 %, repeated 20 %, elsewhere 10 %"),
        "{line}"
    );
}

/// It is not new, and not evaluated again: its colour is neither's.
#[test]
fn what_was_sent_before_behind_something_else_has_a_colour_of_its_own() {
    let mut now = stats("2026-01-02T03:04:05.000Z", json!([]), 0, 0);
    now.reuse.causes.new = 400;
    now.reuse.causes.repeated = 300;
    now.reuse.causes.evicted = 300;
    let mut state = ScreenState::new(true);
    state.stats(now);
    let buffer = drawn(&state, 80, 24);
    let line = lines(&buffer)
        .iter()
        .position(|line| line.starts_with(" Why "));
    let line = line.expect("the bar") as u16;
    let mut colours: Vec<Color> = (5..25).map(|column| buffer[(column, line)].fg).collect();
    colours.dedup();
    assert_eq!(colours, [Color::Green, Color::LightYellow, Color::Red]);
}

#[test]
fn a_bar_says_how_prompts_left_earlier_ones() {
    let mut state = state(false);
    let shown = |state: &ScreenState| {
        let lines = lines(&drawn(state, 80, 24));
        lines.into_iter().find(|line| line.starts_with(" Left "))
    };
    assert_eq!(shown(&state), None);
    state.differences = vec![
        Differs::Dated,
        Differs::LeftOut,
        Differs::Retokenized,
        Differs::LeftOut,
    ];
    let bar = format!(
        " Left {}{}{} ",
        "o".repeat(10),
        "t".repeat(5),
        "d".repeat(5)
    );
    let line = format!("{bar}left out 50 %, tokenized otherwise 25 %, dated by the");
    assert_eq!(
        shown(&state).map(|shown| shown[..line.len()].to_owned()),
        Some(line)
    );
    // The colour is that of `why`.
    state.colours = true;
    let screen = drawn(&state, 80, 24);
    let y = (0..24).find(|y| {
        screen
            .cell((1, *y))
            .is_some_and(|cell| cell.symbol() == "L")
    });
    let cell = screen
        .cell((6, y.expect("the bar")))
        .expect("its first cell");
    assert_eq!((cell.symbol(), cell.fg), ("█", Color::Indexed(1)));
    assert_eq!(Differs::LeftOut.colour(), 31);
}

#[test]
fn what_is_loaded_or_read_before_the_first_prompt_is_said() {
    let shown = |now: &Stats| {
        let mut state = ScreenState::new(false);
        state.stats(now.clone());
        lines(&drawn(&state, 220, 24)).join("\n")
    };
    let nothing = "No slot has been used yet";
    let loading = ": llama-server has been loading its model tiny.gguf for 3 min 12 s";
    let reads = "; the prefix store is not in use yet: 1.5 GiB of 30 GiB of the files of model and engine were \
                 read, to know which they are";
    let mut now = stats("2026-01-02T03:04:05.000Z", json!([]), 0, 0);
    assert!(shown(&now).contains(nothing));
    assert!(!shown(&now).contains(": llama-server"));
    now.model_state = ModelState::Loading;
    assert!(shown(&now).contains(&format!("{nothing}{loading}")));
    now.store = Some(PrefixStore {
        reading: Some(FilesRead {
            bytes_read: 3 << 29,
            bytes: 30 << 30,
        }),
        ..PrefixStore::default()
    });
    assert!(shown(&now).contains(&format!("{nothing}{loading}{reads}")));
    now.model_state = ModelState::Loaded;
    assert!(shown(&now).contains(&format!("{nothing}{reads}")));
}

#[test]
fn a_prefix_store_has_a_line() {
    let mut now = stats("2026-01-02T03:04:05.000Z", json!([]), 0, 0);
    now.store = Some(PrefixStore {
        folder: "/var/lib/llama/store".to_owned(),
        ready: true,
        bytes: 5 << 20,
        limit_bytes: 1 << 30,
        loaded_tokens: 1234,
        saved_tokens: 700,
        ..PrefixStore::default()
    });
    let mut state = ScreenState::new(false);
    state.stats(now.clone());
    let shown = lines(&drawn(&state, 100, 24)).join("\n");
    let line = "store 5.0 MiB of 1.0 GiB, 1,234 tokens loaded, 700 stored; /var/lib/llama/store";
    assert!(shown.contains(line), "{shown}");
    now.store = None;
    state.stats(now);
    let shown = lines(&drawn(&state, 100, 24)).join("\n");
    assert!(!shown.contains("disk"), "{shown}");
}

#[test]
fn what_would_have_helped_has_a_line_of_its_own() {
    let mut state = state(false);
    assert!(
        !lines(&drawn(&state, 80, 24))
            .iter()
            .any(|line| line.contains("Try"))
    );
    state.advice = Some("--parallel 2: 61 % reused, not 20 %".to_owned());
    let shown = lines(&drawn(&state, 80, 24));
    let line = " Try --parallel 2: 61 % reused, not 20 %".to_owned();
    assert!(shown.contains(&line), "{shown:#?}");
}
