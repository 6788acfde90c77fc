//! From files to a caller that takes a state, without a copy of the state in between.
//!
//! Memory for a whole state is dear: a system finds and clears each page of it, which takes several times as long as
//! reading the files does, and a state of a large model is as large as its KV cache. A caller that takes the rows of a
//! state one after the other needs neither. Threads read ahead, a block at a time, into memory that stays in
//! the processor's cache. A thread takes longer for a block than the caller, so the caller reads, too, instead of
//! waiting.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use contextpilot_admission::STACK;
use contextpilot_kv_store::{Composer, Gap, Name, Piece};
use crc32fast::Hasher;
use crossbeam_channel::{Receiver, Sender, unbounded};

use crate::folder::{STEP, cut};
use crate::format::Head;
use crate::{Folder, ReadError};

/// Read at once, bytes. A row is not divided, however large it is.
const BLOCK: usize = STEP;
/// Blocks that each thread may be ahead, also the caller's.
const AHEAD: usize = 4;
/// Files that stay open. Others are opened for each of their parts: a process may have 1,024 open.
const MOST_OPEN: usize = 64;

/// Threads that read for the caller.
#[derive(Clone, Copy, Debug)]
pub struct Readers {
    /// How many, besides the caller's. With none, the caller reads.
    pub threads: usize,
    /// What each does first.
    pub on_start: fn(),
}

impl Readers {
    /// The caller alone.
    pub const ALONE: Self = Self {
        threads: 0,
        on_start: || (),
    };
}

/// What a state lacks, and the files that have it.
#[derive(Debug)]
pub struct LeftOut {
    folder: Folder,
    files: Vec<RowsFile>,
    parts: Vec<Part>,
    /// How many files stay open.
    keeps_open: usize,
}

/// The file of a chunk that was found to be whole, but for its rows.
#[derive(Debug)]
struct RowsFile {
    name: Name,
    open: Option<File>,
    /// Where the rows begin.
    begin: u64,
    /// The checksum that they must have.
    crc: u32,
    /// The checksum of what was read so far.
    sum: Hasher,
}

/// At most a block, and whole rows.
#[derive(Clone, Copy, Debug)]
struct Part {
    file: usize,
    gap: Gap,
}

impl LeftOut {
    /// Nothing yet, of this folder.
    pub fn new(folder: &Folder) -> Self {
        Self {
            folder: folder.clone(),
            files: Vec::new(),
            parts: Vec::new(),
            keeps_open: MOST_OPEN,
        }
    }

    /// Leaves a chunk out of a state, all of which is taken.
    ///
    /// # Errors
    /// Its file is gone or damaged as far as that shows without its rows, it cannot be read, or it does not fit there.
    pub fn add(&mut self, composer: &mut Composer<'_>, piece: &Piece) -> Result<(), ReadError> {
        let rows = composer.bytes_of(piece.chunk_tokens);
        let found = match self.folder.whole_file(&piece.name, rows) {
            Err(why) if why.is_shortage() && self.keeps_open > 0 => {
                // Other code that wants files has none either.
                self.keeps_open = 0;
                self.files.iter_mut().for_each(|file| file.open = None);
                self.folder.whole_file(&piece.name, rows)
            }
            found => found,
        };
        let (file, head) = found?;
        let begin = Head::size(&head.chunk) as u64;
        let mut words = vec![0; composer.words_size(piece.chunk_tokens)];
        file.read_exact_at(&mut words, begin).map_err(cut)?;
        let mut sum = Hasher::new();
        sum.update(&words);
        let gaps = composer
            .leave_out(piece.start, &words, piece.chunk_tokens)
            .map_err(|_| ReadError::DOES_NOT_FIT)?;
        let nth = self.files.len();
        for gap in gaps {
            let step = (BLOCK / gap.unit.max(1)).max(1) * gap.unit.max(1);
            let skips = (0..gap.bytes).step_by(step);
            let parts = skips.map(|skip| gap.part(skip, step.min(gap.bytes - skip)));
            self.parts.extend(parts.map(|gap| Part { file: nth, gap }));
        }
        self.files.push(RowsFile {
            name: piece.name,
            open: (nth < self.keeps_open).then_some(file),
            begin,
            crc: head.rows_crc,
            sum,
        });
        Ok(())
    }

    /// Begins to read. Do it where threads may be started: they inherit the caller's signal mask.
    #[must_use]
    pub fn start(mut self, readers: Readers) -> Flow {
        self.parts.sort_unstable_by_key(|part| part.gap.at);
        let steps = steps(&self.parts);
        let sums = self.files.iter().map(|file| file.sum.clone()).collect();
        let (jobs, job) = unbounded();
        for step in 0..steps.len() {
            let _ = jobs.send(step);
        }
        drop(jobs);
        let source = Arc::new(Source {
            left_out: self,
            steps,
            job,
        });
        let (results, ready) = unbounded();
        let (give_back, blank) = unbounded();
        let start = |_| {
            let (results, blank, source) = (results.clone(), blank.clone(), Arc::clone(&source));
            let work = move || {
                (readers.on_start)();
                source.read_ahead(&blank, &results);
            };
            let thread = thread::Builder::new()
                .name("contextpilot-read".into())
                .stack_size(STACK);
            thread.spawn(work).ok()
        };
        let threads: Vec<_> = (0..readers.threads).map_while(start).collect();
        for _ in 0..threads.len() * AHEAD {
            let _ = give_back.send(Block::default());
        }
        Flow {
            threads: Threads {
                source: Arc::clone(&source),
                all: threads,
                give_back: Some(give_back),
                ready: Some(ready),
            },
            source,
            early: BTreeMap::new(),
            spare: (1..AHEAD).map(|_| Block::own()).collect(),
            block: Block::own(),
            next_step: 0,
            used: 0,
            part: 0,
            of_part: 0,
            at: 0,
            sums,
            lost: None,
        }
    }
}

/// Parts that fill a block together.
fn steps(parts: &[Part]) -> Vec<Range<usize>> {
    let mut steps = Vec::new();
    let (mut begin, mut bytes) = (0, 0);
    for (nth, part) in parts.iter().enumerate() {
        if bytes > 0 && bytes + part.gap.bytes > BLOCK {
            steps.push(begin..nth);
            (begin, bytes) = (nth, 0);
        }
        bytes += part.gap.bytes;
    }
    if begin < parts.len() {
        steps.push(begin..parts.len());
    }
    steps
}

/// What was read for a step.
#[derive(Debug, Default)]
struct Block {
    bytes: Vec<u8>,
    /// The checksum of each part.
    sums: Vec<Hasher>,
    /// The caller's, and no thread's.
    is_own: bool,
}

impl Block {
    fn own() -> Self {
        Self {
            is_own: true,
            ..Self::default()
        }
    }
}

/// `None`: reading panicked.
type Read = Option<Result<Block, (Name, ReadError)>>;

#[derive(Debug)]
struct Source {
    left_out: LeftOut,
    steps: Vec<Range<usize>>,
    /// The steps that no thread has begun.
    job: Receiver<usize>,
}

impl Source {
    /// A thread that has a block takes the next step, so that it never waits for blocks that later steps have.
    fn read_ahead(&self, blank: &Receiver<Block>, results: &Sender<(usize, Read)>) {
        while let Ok(block) = blank.recv() {
            let Ok(step) = self.job.recv() else {
                return;
            };
            // Without the block of this step no thread would take another one.
            let read = catch_unwind(AssertUnwindSafe(|| self.read(step, block)));
            if results.send((step, read.ok())).is_err() {
                return;
            }
        }
    }

    fn read(&self, step: usize, mut block: Block) -> Result<Block, (Name, ReadError)> {
        let parts = &self.left_out.parts[self.steps[step].clone()];
        let size = parts.iter().map(|part| part.gap.bytes).sum();
        block.bytes.resize(size, 0);
        block.sums.clear();
        let mut rest = &mut block.bytes[..];
        for part in parts {
            let (here, behind) = std::mem::take(&mut rest).split_at_mut(part.gap.bytes);
            rest = behind;
            let file = &self.left_out.files[part.file];
            self.left_out
                .read_part(file, part.gap.from, here)
                .map_err(|why| (file.name, why))?;
            let mut sum = Hasher::new();
            sum.update(here);
            block.sums.push(sum);
            if !part.gap.are_finite(here) {
                return Err((file.name, ReadError::NOT_FINITE));
            }
        }
        Ok(block)
    }
}

impl LeftOut {
    fn read_part(&self, file: &RowsFile, from: usize, to: &mut [u8]) -> Result<(), ReadError> {
        let at = file.begin + from as u64;
        let read = match &file.open {
            Some(open) => open.read_exact_at(to, at),
            None => self.folder.file(&file.name)?.read_exact_at(to, at),
        };
        read.map_err(cut)
    }
}

/// What comes next of a state.
#[derive(Debug, PartialEq, Eq)]
pub enum Span<'a> {
    /// So many bytes are in the state itself.
    Own(usize),
    /// These bytes were missing.
    Read(&'a [u8]),
}

/// Why what was taken is worth nothing.
#[derive(Debug)]
#[non_exhaustive]
pub enum Lost {
    /// Not all that is missing was asked for, or not in its order.
    NotTaken,
    /// A chunk, and why its rows cannot be read.
    Unreadable(Name, ReadError),
}

/// The threads. They end, and are waited for, when this is dropped.
#[derive(Debug)]
struct Threads {
    source: Arc<Source>,
    all: Vec<JoinHandle<()>>,
    give_back: Option<Sender<Block>>,
    ready: Option<Receiver<(usize, Read)>>,
}

impl Threads {
    /// What one of them has read, if that is there.
    fn try_receive(&self) -> Option<(usize, Read)> {
        self.ready.as_ref()?.try_recv().ok()
    }

    /// What one of them reads.
    fn receive(&self) -> Option<(usize, Read)> {
        self.ready.as_ref()?.recv().ok()
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        // Steps that were not begun will not be.
        self.source.job.try_iter().for_each(drop);
        (self.give_back, self.ready) = (None, None);
        for thread in self.all.drain(..) {
            let _ = thread.join();
        }
    }
}

/// What is missing in a state, from its first byte to its last.
#[derive(Debug)]
pub struct Flow {
    source: Arc<Source>,
    threads: Threads,
    /// Steps whose turn has not come.
    early: BTreeMap<usize, Read>,
    /// For steps that are read here.
    spare: Vec<Block>,
    block: Block,
    next_step: usize,
    /// Bytes of the block that were given out.
    used: usize,
    /// The part that is given out next, and how much of it was.
    part: usize,
    of_part: usize,
    /// Where what was asked for ends.
    at: usize,
    sums: Vec<Hasher>,
    lost: Option<Lost>,
}

impl Flow {
    /// What the state has from `at` on, at most so many bytes. A caller that takes a state asks for each of its bytes once, from
    /// the first to the last; what is in the state may be left out. `None`: it did not, or a file cannot be read.
    pub fn next(&mut self, at: usize, most: usize) -> Option<Span<'_>> {
        if self.lost.is_some() {
            return None;
        }
        let part = self.source.left_out.parts.get(self.part);
        let missing = part.map(|part| part.gap.at + self.of_part);
        if at < self.at || missing.is_some_and(|missing| missing < at) {
            self.lost = Some(Lost::NotTaken);
            return None;
        }
        let own = missing.map_or(most, |missing| most.min(missing - at));
        if own > 0 || most == 0 {
            self.at = at + own;
            return Some(Span::Own(own));
        }
        if self.used == self.block.bytes.len() {
            self.next_block()?;
        }
        let parts = &self.source.left_out.parts;
        let begin = self.used;
        let end = self.block.bytes.len().min(begin + most);
        while self.used < end {
            let gap = &parts[self.part].gap;
            if gap.at + self.of_part != at + (self.used - begin) {
                break;
            }
            let here = (gap.bytes - self.of_part).min(end - self.used);
            self.used += here;
            self.of_part += here;
            if self.of_part == gap.bytes {
                (self.part, self.of_part) = (self.part + 1, 0);
            }
        }
        self.at = at + (self.used - begin);
        Some(Span::Read(&self.block.bytes[begin..self.used]))
    }

    fn next_block(&mut self) -> Option<()> {
        let step = self.next_step;
        let old = std::mem::take(&mut self.block);
        match &self.threads.give_back {
            Some(give_back) if !old.is_own => drop(give_back.send(old)),
            _ => self.spare.push(old),
        }
        let read = self.receive(step);
        match read {
            Some(Ok(block)) => self.block = block,
            Some(Err((name, why))) => {
                self.lost = Some(Lost::Unreadable(name, why));
                return None;
            }
            None => {
                self.lost = Some(Lost::NotTaken);
                return None;
            }
        }
        self.used = 0;
        self.next_step += 1;
        let parts = &self.source.left_out.parts[self.source.steps[step].clone()];
        for (part, sum) in parts.iter().zip(&self.block.sums) {
            // A chunk's rows stand in a state in the order of the chunk.
            self.sums[part.file].combine(sum);
        }
        Some(())
    }

    /// The block of a step. While it is not there, later ones are read. `None`: the thread that read it has panicked.
    fn receive(&mut self, step: usize) -> Read {
        loop {
            if let Some(read) = self.early.remove(&step) {
                return read;
            }
            let found = self.threads.try_receive().or_else(|| self.read_one());
            let (nth, read) = found.or_else(|| self.threads.receive())?;
            self.early.insert(nth, read);
        }
    }

    /// Reads a step that no thread has begun, if there is one, and memory for it.
    fn read_one(&mut self) -> Option<(usize, Read)> {
        let block = self.spare.pop()?;
        let Ok(step) = self.source.job.try_recv() else {
            self.spare.push(block);
            return None;
        };
        let read = catch_unwind(AssertUnwindSafe(|| self.source.read(step, block)));
        Some((step, read.ok()))
    }

    /// Ends, and says whether all that is missing was given out, and was right.
    ///
    /// # Errors
    /// It was not: what was given out is worth nothing.
    pub fn finish(self) -> Result<(), Lost> {
        let all = self.part == self.source.left_out.parts.len();
        match self.lost {
            Some(lost) => return Err(lost),
            None if !all => return Err(Lost::NotTaken),
            None => {}
        }
        let sums = self.sums.into_iter().map(Hasher::finalize);
        let mut files = self.source.left_out.files.iter().zip(sums);
        match files.find(|(file, sum)| file.crc != *sum) {
            Some((file, _)) => Err(Lost::Unreadable(file.name, ReadError::WRONG_SUM)),
            None => Ok(()),
        }
    }
}
