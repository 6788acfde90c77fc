//! Which positions a context has of its sequences (`llama_memory_seq_pos_min`, `…_max`).

use std::collections::VecDeque;

use contextpilot_traffic::Memory;

use crate::setting::Setting;

/// The positions of all slots. `lasts`: the last position of each slot; −1: none.
#[derive(Debug)]
pub(crate) enum Positions {
    /// A context that has all positions up to the last.
    Full { lasts: Vec<i64> },
    /// Sliding-window layers that keep all positions.
    Whole(WholeWindows),
    /// A recurrent context, which has the last position only.
    Recurrent { lasts: Vec<i64> },
    /// A context with sliding-window layers: the positions that are not overwritten yet.
    Window(Windows),
}

impl Positions {
    pub(crate) fn new(setting: &Setting) -> Self {
        let lasts = vec![-1; setting.server.parallel as usize];
        match setting.server.memory {
            Memory::Full if setting.server.whole_windows && setting.server.whole_window > 0 => {
                Self::Whole(WholeWindows {
                    window: i64::from(setting.server.whole_window),
                    beyond: setting.generation.kept_beyond_window(),
                    slots: vec![(-1, -1); setting.server.parallel as usize],
                })
            }
            Memory::Full => Self::Full { lasts },
            Memory::Recurrent => Self::Recurrent { lasts },
            Memory::Window(window) => Self::Window(Windows::new(window, setting)),
        }
    }

    /// The first and the last position of a slot; −1: none.
    pub(crate) fn range(&self, slot: usize) -> (i64, i64) {
        match self {
            Self::Full { lasts } => (lasts[slot].min(0), lasts[slot]),
            Self::Whole(windows) => windows.slots[slot],
            Self::Recurrent { lasts } => (lasts[slot], lasts[slot]),
            Self::Window(windows) => windows.slots[slot].ends(),
        }
    }

    /// Removes the positions from this one on.
    pub(crate) fn cut(&mut self, slot: usize, from: u32) {
        match self {
            Self::Full { lasts } | Self::Recurrent { lasts } => {
                lasts[slot] = lasts[slot].min(i64::from(from) - 1);
            }
            Self::Whole(windows) => windows.cut(slot, i64::from(from)),
            Self::Window(windows) => windows.cut(slot, i64::from(from)),
        }
    }

    /// Evaluates the positions `[from, to)`, `step` at a time.
    pub(crate) fn write(&mut self, slot: usize, (from, to): (u32, u32), step: u32) {
        match self {
            Self::Full { lasts } | Self::Recurrent { lasts } => {
                if from < to {
                    lasts[slot] = i64::from(to) - 1;
                }
            }
            Self::Whole(windows) => {
                if from < to {
                    let (first, last) = &mut windows.slots[slot];
                    if *last < 0 {
                        *first = i64::from(from);
                    }
                    *last = i64::from(to) - 1;
                }
            }
            Self::Window(windows) => {
                let mut at = from;
                while at < to {
                    let next = to.min(at.saturating_add(step.max(1)));
                    windows.write(slot, (i64::from(at)..i64::from(next)).collect());
                    at = next;
                }
            }
        }
    }

    /// The positions that a saved state of the slot has (`state_write`).
    pub(crate) fn keep(&self, slot: usize) -> Kept {
        match self {
            Self::Full { lasts } | Self::Recurrent { lasts } => Kept {
                last: lasts[slot],
                runs: Vec::new(),
            },
            Self::Whole(windows) => {
                let (first, last) = windows.slots[slot];
                windows.kept(first, last)
            }
            Self::Window(windows) => windows.keep(slot),
        }
    }

    /// Replaces the slot's positions by those of a saved state (`state_read`).
    pub(crate) fn restore(&mut self, slot: usize, kept: &Kept) {
        match self {
            Self::Full { lasts } | Self::Recurrent { lasts } => lasts[slot] = kept.last,
            Self::Whole(windows) => {
                let first = kept.runs.first().map_or(-1, |&(first, _)| first);
                windows.slots[slot] = (first, kept.last);
            }
            Self::Window(windows) => {
                windows.cut(slot, 0);
                let runs = kept.runs.iter();
                let positions = runs.flat_map(|&(first, length)| first..first + i64::from(length));
                windows.write(slot, positions.collect());
            }
        }
    }

    /// The positions of a saved state of which only the number of tokens is known.
    pub(crate) fn guess(&self, tokens: u32) -> Kept {
        let last = i64::from(tokens) - 1;
        let least = match self {
            Self::Whole(windows) => return windows.kept(last.min(0), last),
            Self::Window(windows) => (last + 1 - windows.window).max(0),
            Self::Full { .. } | Self::Recurrent { .. } => last.max(0),
        };
        let length = u32::try_from(last + 1 - least).unwrap_or(0);
        Kept {
            last,
            runs: vec![(least, length)],
        }
    }
}

/// The layers with sliding windows keep all positions (`--swa-full`), but a saved state has only the window at its end.
#[derive(Debug)]
pub(crate) struct WholeWindows {
    /// Tokens that the layers look back.
    window: i64,
    /// How many positions beyond the window a saved state has; `None`: all that the cells have.
    beyond: Option<i64>,
    /// The first and the last position of each slot; −1: none.
    slots: Vec<(i64, i64)>,
}

impl WholeWindows {
    /// `seq_rm`
    fn cut(&mut self, slot: usize, from: i64) {
        let (first, last) = self.slots[slot];
        self.slots[slot] = if from <= first {
            (-1, -1)
        } else {
            (first, last.min(from - 1))
        };
    }

    /// What a saved state of these positions has.
    fn kept(&self, first: i64, last: i64) -> Kept {
        let least = self
            .beyond
            .map_or(0, |beyond| last + 1 - self.window - beyond);
        let first = first.max(least);
        let length = u32::try_from(last + 1 - first).unwrap_or(0);
        Kept {
            last,
            runs: if last < 0 {
                Vec::new()
            } else {
                vec![(first, length)]
            },
        }
    }
}

/// The positions in a saved state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    last: i64,
    /// The positions in sliding-window layers: first positions and lengths of runs, in the order of
    /// their cells.
    runs: Vec<(i64, u32)>,
}

/// The cells of sliding-window layers (`llama_kv_cache`). A cell may be overwritten once its position is
/// out of the window.
#[derive(Debug)]
pub(crate) struct Windows {
    /// Tokens that the layers look back.
    window: i64,
    /// How many positions beyond the window a saved state has; `None`: all that the cells have.
    beyond: Option<i64>,
    slots: Vec<Sequence>,
    /// One for all slots, or one for each slot.
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
    /// The slot and the position in each cell; `None`: free.
    cells: Vec<Option<(usize, i64)>>,
    head: usize,
    used: usize,
}

impl Windows {
    fn new(window: u32, setting: &Setting) -> Self {
        let slots = setting.server.parallel as usize;
        let (sequences, base) = if setting.server.kv_unified {
            (setting.server.parallel, setting.server.context)
        } else {
            (1, setting.server.slot_context)
        };
        let wanted = window.saturating_mul(sequences);
        let size = wanted.saturating_add(setting.server.ubatch_size).min(base);
        let stream = Stream {
            cells: vec![None; (size.div_ceil(256) * 256) as usize],
            head: 0,
            used: 0,
        };
        Self {
            window: i64::from(window),
            beyond: setting.generation.kept_beyond_window(),
            slots: (0..slots).map(|_| Sequence::default()).collect(),
            streams: vec![stream; if setting.server.kv_unified { 1 } else { slots }],
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

    fn keep(&self, slot: usize) -> Kept {
        let sequence = &self.slots[slot];
        let last = sequence.ends().1;
        let least = self
            .beyond
            .map_or(0, |beyond| last + 1 - self.window - beyond);
        let mut runs: Vec<(usize, i64, u32)> = Vec::new();
        for (&cell, position) in sequence.cells.iter().zip(sequence.first..) {
            match runs.last_mut() {
                _ if position < least => {}
                Some((begin, _, length)) if *begin + *length as usize == cell => *length += 1,
                _ => runs.push((cell, position, 1)),
            }
        }
        runs.sort_unstable();
        Kept {
            last,
            runs: runs
                .into_iter()
                .map(|(_, first, length)| (first, length))
                .collect(),
        }
    }

    /// How many cells of a stream are free, or have a position that is out of the window.
    fn usable(&self, nth: usize) -> usize {
        let stream = &self.streams[nth];
        let mut usable = stream.cells.len() - stream.used;
        for slot in (0..self.slots.len()).filter(|slot| self.stream(*slot) == nth) {
            let (first, last) = self.slots[slot].ends();
            let out = (last + 2 - self.window - first).max(0) as usize;
            usable += out.min(self.slots[slot].cells.len());
        }
        usable
    }

    /// `find_slot` and `apply_ubatch`
    fn write(&mut self, slot: usize, positions: Vec<i64>) {
        let wanted = positions.len();
        let nth = self.stream(slot);
        let stream = &self.streams[nth];
        let mut head = stream.head;
        if head > stream.used + 2 * wanted {
            head = 0;
        }
        // A scan for more would go through all cells, each time.
        let there = wanted.min(self.usable(nth));
        let mut found = Vec::with_capacity(there);
        for step in 0..stream.cells.len() {
            if found.len() == there {
                break;
            }
            let cell = (head + step) % stream.cells.len();
            let usable = stream.cells[cell].is_none_or(|(owner, position)| {
                self.slots[owner].ends().1 + 1 - position >= self.window
            });
            if usable {
                found.push(cell);
            }
        }
        if let Some(last) = found.last() {
            self.streams[nth].head = last + 1;
        }
        let mut overwritten = vec![-1; self.slots.len()];
        let mut written: Vec<(i64, usize)> = positions.into_iter().zip(found).collect();
        for &(position, cell) in &written {
            let stream = &mut self.streams[nth];
            match stream.cells[cell].replace((slot, position)) {
                Some((owner, old)) => overwritten[owner] = old.max(overwritten[owner]),
                None => stream.used += 1,
            }
        }
        written.sort_unstable();
        let sequence = &mut self.slots[slot];
        if sequence.cells.is_empty() {
            sequence.first = written.first().map_or(0, |&(position, _)| position);
        }
        sequence
            .cells
            .extend(written.into_iter().map(|(_, cell)| cell));
        for (owner, upto) in overwritten.into_iter().enumerate() {
            self.purge(owner, upto);
        }
    }

    /// Removes the positions up to `upto`, which was overwritten, so that the sequence has no gap.
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

#[cfg(test)]
mod tests {
    use contextpilot_traffic::Setup;

    use super::*;
    use crate::made::{recorded, traffic};
    use crate::setting::Generation;

    fn positions(memory: Memory) -> Positions {
        let setup = Setup {
            memory,
            context: 4096,
            slot_context: 4096,
            ..Setup::default()
        };
        Positions::new(&Setting {
            generation: Generation::Late2026,
            ..recorded(&traffic(setup, Vec::new()))
        })
    }

    #[test]
    fn a_state_of_which_the_length_is_known_has_a_window_at_its_end() {
        let runs = |memory, tokens| positions(memory).guess(tokens).runs;
        assert_eq!(runs(Memory::Window(8), 100), [(92, 8)]);
        assert_eq!(runs(Memory::Window(8), 5), [(0, 5)]);
        assert_eq!(runs(Memory::Full, 100), [(99, 1)]);
    }

    #[test]
    fn whole_windows_go_back_anywhere_but_not_in_a_restored_state() {
        let setup = Setup {
            memory: Memory::Full,
            whole_windows: true,
            whole_window: 8,
            parallel: 1,
            ..Setup::default()
        };
        let mut all = Positions::new(&recorded(&traffic(setup, Vec::new())));
        all.write(0, (0, 100), 100);
        assert_eq!(all.range(0), (0, 99));
        let kept = all.keep(0);
        all.cut(0, 50);
        assert_eq!(all.range(0), (0, 49));
        all.cut(0, 0);
        assert_eq!(all.range(0), (-1, -1));
        all.restore(0, &kept);
        assert_eq!(all.range(0), (92, 99));
        all.write(0, (100, 110), 10);
        assert_eq!(all.range(0), (92, 109), "what follows stays");
        all.cut(0, 0);
        all.write(0, (0, 10), 10);
        assert_eq!(all.range(0), (0, 9), "evaluated again");
    }

    #[test]
    fn a_saved_state_has_nothing_from_before_the_window() {
        let mut all = positions(Memory::Window(8));
        all.write(0, (0, 100), 100);
        let kept = all.keep(0);
        let first = kept.runs.iter().map(|(first, _)| *first).min();
        let last = kept
            .runs
            .iter()
            .map(|(first, length)| first + i64::from(*length))
            .max();
        assert_eq!((kept.last, last), (99, Some(100)));
        assert!(
            first.is_some_and(|first| (80..=92).contains(&first)),
            "{kept:?}"
        );
    }
}
