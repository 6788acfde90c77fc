//! Which positions a context has of its sequences (`llama_memory_seq_pos_min`, `…_max`).

use std::collections::VecDeque;

use contextpilot_traffic::Memory;

use crate::setting::Setting;

/// Of all slots.
#[derive(Debug)]
pub(crate) enum Positions {
    /// From the first to the last.
    Full { lasts: Vec<i64> },
    /// The last.
    Recurrent { lasts: Vec<i64> },
    /// What has not been written over.
    Window(Windows),
}

impl Positions {
    pub(crate) fn new(setting: &Setting) -> Self {
        let lasts = vec![-1; setting.parallel as usize];
        match setting.memory {
            Memory::Full => Self::Full { lasts },
            Memory::Recurrent => Self::Recurrent { lasts },
            Memory::Window(window) => Self::Window(Windows::new(window, setting)),
        }
    }

    /// The first and the last position of a slot; −1: none.
    pub(crate) fn of(&self, slot: usize) -> (i64, i64) {
        match self {
            Self::Full { lasts } => (lasts[slot].min(0), lasts[slot]),
            Self::Recurrent { lasts } => (lasts[slot], lasts[slot]),
            Self::Window(windows) => windows.slots[slot].ends(),
        }
    }

    /// Positions from this one on are removed.
    pub(crate) fn cut(&mut self, slot: usize, from: u32) {
        match self {
            Self::Full { lasts } | Self::Recurrent { lasts } => {
                lasts[slot] = lasts[slot].min(i64::from(from) - 1);
            }
            Self::Window(windows) => windows.cut(slot, i64::from(from)),
        }
    }

    /// Positions `[from, to)` are evaluated, `step` at a time.
    pub(crate) fn write(&mut self, slot: usize, (from, to): (u32, u32), step: u32) {
        match self {
            Self::Full { lasts } | Self::Recurrent { lasts } => {
                if from < to {
                    lasts[slot] = i64::from(to) - 1;
                }
            }
            Self::Window(windows) => {
                let mut at = from;
                while at < to {
                    let next = to.min(at.saturating_add(step.max(1)));
                    windows.write(slot, i64::from(at)..i64::from(next));
                    at = next;
                }
            }
        }
    }

    /// The slot has these positions instead of what it had, from a saved state.
    pub(crate) fn restore(&mut self, slot: usize, (first, last): (i64, i64)) {
        match self {
            Self::Full { lasts } | Self::Recurrent { lasts } => lasts[slot] = last,
            Self::Window(windows) => {
                windows.cut(slot, 0);
                if last >= 0 {
                    windows.write(slot, first.max(last + 1 - windows.window)..last + 1);
                }
            }
        }
    }
}

/// The cells of sliding-window layers (`llama_kv_cache`), which are written over when they are out
/// of the window.
#[derive(Debug)]
pub(crate) struct Windows {
    window: i64,
    slots: Vec<Sequence>,
    /// One for all, or one for each slot.
    streams: Vec<Stream>,
}

#[derive(Debug, Default)]
struct Sequence {
    first: i64,
    /// The cells of the positions from `first` on.
    cells: VecDeque<usize>,
}

impl Sequence {
    fn ends(&self) -> (i64, i64) {
        match self.cells.len() {
            0 => (-1, -1),
            held => (self.first, self.first + held as i64 - 1),
        }
    }
}

#[derive(Clone, Debug)]
struct Stream {
    /// Slot and position.
    cells: Vec<Option<(usize, i64)>>,
    head: usize,
    used: usize,
}

impl Windows {
    fn new(window: u32, setting: &Setting) -> Self {
        let slots = setting.parallel as usize;
        let (sequences, base) = match setting.kv_unified {
            true => (setting.parallel, setting.context),
            false => (1, setting.slot_context),
        };
        let wanted = window.saturating_mul(sequences);
        let size = wanted.saturating_add(setting.ubatch_size).min(base);
        let stream = Stream {
            cells: vec![None; (size.div_ceil(256) * 256) as usize],
            head: 0,
            used: 0,
        };
        Self {
            window: i64::from(window),
            slots: (0..slots).map(|_| Sequence::default()).collect(),
            streams: vec![stream; if setting.kv_unified { 1 } else { slots }],
        }
    }

    fn stream(&self, slot: usize) -> usize {
        slot.min(self.streams.len() - 1)
    }

    /// `seq_rm`
    fn cut(&mut self, slot: usize, from: i64) {
        let stream = self.stream(slot);
        let stream = &mut self.streams[stream];
        let sequence = &mut self.slots[slot];
        let mut freed = stream.cells.len();
        while sequence.ends().1 >= from.max(0) {
            if let Some(cell) = sequence.cells.pop_back() {
                stream.cells[cell] = None;
                stream.used -= 1;
                freed = freed.min(cell);
            }
        }
        stream.head = stream.head.min(freed);
    }

    /// `find_slot` and `apply_ubatch`
    fn write(&mut self, slot: usize, positions: std::ops::Range<i64>) {
        let wanted = (positions.end - positions.start) as usize;
        let nth = self.stream(slot);
        let stream = &self.streams[nth];
        let mut head = stream.head;
        if head > stream.used + 2 * wanted {
            head = 0;
        }
        let mut found = Vec::with_capacity(wanted);
        for step in 0..stream.cells.len() {
            let cell = (head + step) % stream.cells.len();
            let usable = stream.cells[cell].is_none_or(|(owner, position)| {
                self.slots[owner].ends().1 + 1 - position >= self.window
            });
            if usable {
                found.push(cell);
            }
            if found.len() == wanted {
                break;
            }
        }
        let mut overwritten = vec![-1; self.slots.len()];
        for (&cell, position) in found.iter().zip(positions.clone()) {
            self.put(slot, cell, position, &mut overwritten);
        }
        if let Some(last) = found.last() {
            self.streams[nth].head = last + 1;
        }
        for (owner, upto) in overwritten.into_iter().enumerate() {
            self.purge(owner, upto);
        }
    }

    fn put(&mut self, slot: usize, cell: usize, position: i64, overwritten: &mut [i64]) {
        let nth = self.stream(slot);
        let stream = &mut self.streams[nth];
        match stream.cells[cell].replace((slot, position)) {
            Some((owner, old)) => overwritten[owner] = overwritten[owner].max(old),
            None => stream.used += 1,
        }
        let sequence = &mut self.slots[slot];
        if sequence.cells.is_empty() {
            sequence.first = position;
        }
        sequence.cells.push_back(cell);
    }

    /// Positions up to one that was written over go, so that there is no gap.
    fn purge(&mut self, owner: usize, upto: i64) {
        let nth = self.stream(owner);
        while self.slots[owner].first <= upto {
            let sequence = &mut self.slots[owner];
            let Some(cell) = sequence.cells.pop_front() else {
                return;
            };
            let stream = &mut self.streams[nth];
            if stream.cells[cell] == Some((owner, sequence.first)) {
                stream.cells[cell] = None;
                stream.used -= 1;
            }
            sequence.first += 1;
        }
    }
}
