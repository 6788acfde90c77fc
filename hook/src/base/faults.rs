//! Injected errors, for tests: `CONTEXTPILOT_FAULT` in a debug build. A release build has none
//! of this code, and ignores the variable.
//!
//! Faults are separated by commas:
//! - `ledger:N`: the ledger panics at the Nth event (`Event::Quiet` is not counted);
//! - `hook:N`: a hook panics at the Nth request that is posted;
//! - `load:N`: from the Nth state on that the prefix store loads, the engine gets them without their ends;
//! - `straight:N`: states of N bytes or more are not put together in memory, but brought to the engine past it;
//! - `astray`: the engine hands on the rows of such states in a way that is not seen;
//! - `record:N`: the prefix store panics before its Nth look at what it knows of a context;
//! - `recorded:N`: the same, behind it;
//! - `broken:FILE`: the same before each look, while this file exists;
//! - `index:FILE`: while this file exists, a thread of ours that gets the prefix store's index keeps it, and says so in the file;
//! - `reading:FILE`: while this file exists, the prefix store's folder is not read, if it has an index;
//! - `digest:FILE`: while this file exists, no digest of a model's file is made or found;
//! - `room:N`: the channel has room for N events;
//! - `stall:FILE`: the worker does nothing while this file exists.

#[cfg(debug_assertions)]
pub(crate) use on_demand::{
    at_event, at_load, at_record, at_request, behind_record, go_astray, hold_digest, hold_index,
    hold_reading, least_straight, room, stall,
};

#[cfg(debug_assertions)]
mod on_demand {
    use std::fs::OpenOptions;
    use std::io::Write;
    use std::path::PathBuf;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use crate::base::environment;

    #[derive(Default)]
    struct Faults {
        ledger: Option<u64>,
        hook: Option<u64>,
        load: Option<u64>,
        straight: Option<usize>,
        astray: bool,
        record: Option<u64>,
        recorded: Option<u64>,
        broken: Option<PathBuf>,
        index: Option<PathBuf>,
        reading: Option<PathBuf>,
        digest: Option<PathBuf>,
        room: Option<usize>,
        stall: Option<PathBuf>,
    }

    fn faults() -> &'static Faults {
        static FAULTS: OnceLock<Faults> = OnceLock::new();
        FAULTS.get_or_init(|| {
            let mut faults = Faults::default();
            let text = environment::text("CONTEXTPILOT_FAULT").unwrap_or_default();
            faults.astray = text.split(',').any(|fault| fault == "astray");
            for (name, value) in text.split(',').filter_map(|fault| fault.split_once(':')) {
                match name {
                    "ledger" => faults.ledger = value.parse().ok(),
                    "hook" => faults.hook = value.parse().ok(),
                    "load" => faults.load = value.parse().ok(),
                    "straight" => faults.straight = value.parse().ok(),
                    "record" => faults.record = value.parse().ok(),
                    "recorded" => faults.recorded = value.parse().ok(),
                    "broken" => faults.broken = Some(value.into()),
                    "index" => faults.index = Some(value.into()),
                    "reading" => faults.reading = Some(value.into()),
                    "digest" => faults.digest = Some(value.into()),
                    "room" => faults.room = value.parse().ok(),
                    "stall" => faults.stall = Some(value.into()),
                    _ => {}
                }
            }
            faults
        })
    }

    fn count(counter: &AtomicU64, fault: Option<u64>) {
        let number = counter.fetch_add(1, Ordering::Relaxed) + 1;
        if fault == Some(number) {
            panic!("an error on demand");
        }
    }

    pub(crate) fn at_event() {
        static EVENTS: AtomicU64 = AtomicU64::new(0);
        count(&EVENTS, faults().ledger);
    }

    pub(crate) fn at_request() {
        static REQUESTS: AtomicU64 = AtomicU64::new(0);
        count(&REQUESTS, faults().hook);
    }

    /// How much of a state of this size the engine gets.
    pub(crate) fn at_load(size: usize) -> usize {
        static LOADS: AtomicU64 = AtomicU64::new(0);
        let number = LOADS.fetch_add(1, Ordering::Relaxed) + 1;
        match faults().load {
            Some(first) if number >= first => size / 2,
            _ => size,
        }
    }

    /// The size of the smallest state that is brought to the engine past memory.
    pub(crate) fn least_straight(usual: usize) -> usize {
        faults().straight.unwrap_or(usual)
    }

    pub(crate) fn go_astray() -> bool {
        faults().astray
    }

    pub(crate) fn at_record() {
        static RECORDS: AtomicU64 = AtomicU64::new(0);
        count(&RECORDS, faults().record);
        if faults().broken.as_ref().is_some_and(|file| file.exists()) {
            panic!("an error on demand");
        }
    }

    pub(crate) fn behind_record() {
        static RECORDS: AtomicU64 = AtomicU64::new(0);
        count(&RECORDS, faults().recorded);
    }

    pub(crate) fn hold_index() {
        let file = faults().index.as_ref();
        if let Some(mut file) = file.and_then(|file| OpenOptions::new().write(true).open(file).ok())
        {
            let _ = file.write_all(b"held");
        }
        wait_while(file);
    }

    pub(crate) fn hold_reading() {
        wait_while(faults().reading.as_ref());
    }

    pub(crate) fn hold_digest() {
        wait_while(faults().digest.as_ref());
    }

    pub(crate) fn room(usual: usize) -> usize {
        faults().room.unwrap_or(usual)
    }

    pub(crate) fn stall() {
        wait_while(faults().stall.as_ref());
    }

    fn wait_while(file: Option<&PathBuf>) {
        if let Some(file) = file {
            while file.exists() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

#[cfg(not(debug_assertions))]
mod never {
    pub(crate) const fn at_event() {}
    pub(crate) const fn at_request() {}
    pub(crate) const fn at_record() {}
    pub(crate) const fn behind_record() {}
    pub(crate) const fn hold_index() {}
    pub(crate) const fn hold_reading() {}
    pub(crate) const fn hold_digest() {}
    pub(crate) const fn at_load(size: usize) -> usize {
        size
    }
    pub(crate) const fn least_straight(usual: usize) -> usize {
        usual
    }
    pub(crate) const fn go_astray() -> bool {
        false
    }
    pub(crate) const fn room(usual: usize) -> usize {
        usual
    }
    pub(crate) const fn stall() {}
}

#[cfg(not(debug_assertions))]
pub(crate) use never::{
    at_event, at_load, at_record, at_request, behind_record, go_astray, hold_digest, hold_index,
    hold_reading, least_straight, room, stall,
};
