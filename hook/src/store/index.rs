//! The store itself: the tree of what is there, the folder with the rows, and the thread that writes them.

pub(super) mod bounded;
pub(super) mod elsewhere;
pub(super) mod held;
mod insert;
pub(super) mod kept;
pub(super) mod noted;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use contextpilot_admission::{STACK, give_way};
use contextpilot_kv_files::{
    Child, Done, Folder, FolderError, Header, Index, LeftOut, Listing, Problem, ReadError, Watch,
    Writer, clock,
};
use contextpilot_kv_store::{
    Changes, Chunk, Composer, Fingerprint, Found, Layout, Name, Numbers, Origin, Piece, Store,
    media,
};
use contextpilot_settings::StoreAt;

use self::elsewhere::Elsewhere;
use self::noted::Noted;
use super::figures::{self, FIGURES, Kind};
use super::flow::{self, Outline};
use super::{content, working};
use crate::base::region::Region;
use crate::base::{guard, log};

/// Bytes of rows that may wait for the disk, or those of one sequence.
const QUEUE: u64 = 512 << 20;

/// Why something is not kept.
const NOT_FINITE: &str = "rows have values that are no numbers (NaN or infinite)";

/// What this process was asked, and has not written down yet: until when, or no longer.
type News = BTreeMap<Name, Option<u64>>;

/// The store itself.
pub(super) struct StoreIndex {
    pub(super) tree: Store,
    folder: Folder,
    writer: Writer,
    /// For rows that are read.
    rows: Vec<u8>,
    noted: Noted,
    /// Prompts that are to be kept or released, which is not written down yet.
    kept_news: News,
    /// Tokens of chunks that wait to be written. They count as stored when they are.
    unwritten: HashMap<Name, usize>,
    /// What is in the folder, by which prompts are looked up until all of it has been read.
    folder_index: Option<Index>,
    /// How often something has changed, and what that was when the folder's index was read or written.
    changed: u64,
    indexed: u64,
    /// `None`: there is no remote.
    pub(super) elsewhere: Option<Elsewhere>,
}

/// What the store has of a prompt.
pub(super) struct Offer {
    /// The tokens, from the first on.
    pub(super) tokens: Vec<i32>,
    /// How many of them were asked for. The others continue them.
    pub(super) wanted: usize,
    pieces: Vec<Piece>,
}

impl Offer {
    /// How many of its tokens are loaded, and how many are tried next if the engine refuses a state of those: all of them, those
    /// that the server has asked for, and those that the sequence held before.
    pub(super) fn lengths(&self, held: usize) -> Vec<usize> {
        let mut lengths = vec![self.tokens.len(), self.wanted, held];
        lengths.dedup();
        lengths
    }

    /// Only the first tokens are of use. Images and sounds stay whole.
    pub(super) fn cut(&mut self, length: usize) {
        let length = length.min(self.tokens.len());
        let whole = media::whole(&self.tokens[..length]);
        self.tokens.truncate(whole);
        self.wanted = self.wanted.min(whole);
        self.pieces = cut_to(&self.pieces, whole);
    }

    /// The pieces of its first tokens.
    fn up_to(&self, length: usize) -> Vec<Piece> {
        cut_to(&self.pieces, length)
    }
}

/// The pieces of the first tokens of these.
fn cut_to(pieces: &[Piece], length: usize) -> Vec<Piece> {
    let within = pieces.iter().take_while(|piece| piece.start < length);
    let cut = within.map(|&piece| Piece {
        take: piece.take.min(length - piece.start),
        ..piece
    });
    cut.collect()
}

/// A folder that was opened.
pub(super) struct Opened {
    /// All of it has been read. Else prompts are looked up by the folder's index.
    pub(super) is_read: bool,
    /// The budget, if the settings give one.
    pub(super) limit: Option<u64>,
    /// A process keeps the folder and a remote alike.
    pub(super) has_remote: bool,
}

impl StoreIndex {
    /// Opens the folder. What is in it is read on a thread of its own, which then passes the index to
    /// `ready`; before, if the folder has an index of its own, by which prompts can be looked up meanwhile. `must_write`: a folder that can be read
    /// only is none. Then that thread follows what others write into the folder.
    ///
    /// # Errors
    /// Why the folder cannot be used, as the rest of a message.
    pub(super) fn open(
        at: &StoreAt,
        must_write: bool,
        ready: impl FnOnce(Self) + Send + 'static,
        follow: impl FnOnce(Watch, Opened) + Send + 'static,
    ) -> Result<(), String> {
        let folder = Folder::open(&at.folder).map_err(no_folder)?;
        if must_write {
            folder.try_writing().map_err(no_folder)?;
        }
        content::keep_in(&folder);
        let limit = at.limit;
        let has_remote = at.remote.is_some();
        let read = move || {
            guard::enter_for_life();
            let mut watch = Watch::new(folder.clone());
            let folder_index = folder.index();
            let is_indexed = folder_index.is_some();
            figures::READING.store(is_indexed, Ordering::Release);
            let opened = if is_indexed {
                Self::new(folder, limit, folder_index)
            } else {
                Self::load(folder, limit, &mut watch)
            };
            match opened {
                Ok(mut index) => {
                    index.elsewhere = has_remote.then(Elsewhere::new);
                    ready(index);
                    give_way();
                    follow(
                        watch,
                        Opened {
                            is_read: !is_indexed,
                            limit,
                            has_remote,
                        },
                    );
                }
                Err(error) => {
                    figures::FOLDER_LOST.store(true, Ordering::Release);
                    say_problem(Kind::Start, &format!("it cannot be read ({error})"));
                }
            }
        };
        let thread = thread::Builder::new()
            .name("contextpilot-open".to_owned())
            .stack_size(STACK);
        thread
            .spawn(read)
            .map(drop)
            .map_err(|e| format!("no thread can be started ({e})"))
    }

    /// Nothing has been read yet. `limit`: the budget, if the settings give one.
    fn new(folder: Folder, limit: Option<u64>, folder_index: Option<Index>) -> io::Result<Self> {
        let writer = Writer::start(
            folder.clone(),
            QUEUE,
            guard::enter_for_life,
            working::is_busy,
        )?;
        let index = Self {
            tree: Store::new(limit.unwrap_or(u64::MAX)),
            folder,
            writer,
            rows: Vec::new(),
            noted: Noted::default(),
            kept_news: News::new(),
            unwritten: HashMap::new(),
            changed: 1,
            indexed: 0,
            folder_index,
            elsewhere: None,
        };
        index.count();
        Ok(index)
    }

    /// All of the folder is read.
    fn load(folder: Folder, limit: Option<u64>, watch: &mut Watch) -> io::Result<Self> {
        let mut index = Self::new(folder, limit, None)?;
        let mut future = Vec::new();
        watch.look(|header| {
            if header.last_used > clock::time() {
                future.push(header)
            } else {
                index.tree.load(header.chunk, header.last_used)
            }
        })?;
        index.end_reading(future, limit);
        Ok(index)
    }

    /// These chunks were in the folder a moment ago.
    pub(super) fn load_some(&mut self, some: impl Iterator<Item = Header>) {
        some.for_each(|header| {
            if self.is_still_there(&header) {
                self.tree.load(header.chunk, header.last_used);
            }
        });
        self.count();
    }

    /// Chunks that a prompt wants now, and that are in the folder: used now, they are not the first to leave again. Those that this
    /// process was about to remove stay. Returns how many there are.
    pub(super) fn share_wanted(&mut self, names: &[Name]) -> usize {
        let now = clock::time();
        let wanted = names.iter().filter_map(|name| {
            self.writer.keep(name);
            let header = self.folder.header(name)?;
            Some(Header {
                last_used: now,
                ..header
            })
        });
        let there: Vec<_> = wanted.collect();
        self.share(&there);
        there.len()
    }

    /// Whether the file of a chunk was not removed since its header was read, and this process is not about to remove it.
    fn is_still_there(&self, header: &Header) -> bool {
        let name = &header.chunk.name;
        !self.writer.is_leaving(name) && !self.folder.lacks(name)
    }

    /// All that is in the folder was loaded but for these chunks, which were used in the future.
    pub(super) fn end_reading(&mut self, mut future: Vec<Header>, limit: Option<u64>) {
        self.folder.bring_back(&mut future, clock::time());
        self.load_some(future.into_iter());
        let read = self.folder_index.take().map(|known| known.len());
        if read == Some(self.tree.chunks()) {
            self.indexed = self.changed;
        }
        let mut leaving = self.tree.orphans(clock::may_be_unfinished());
        let limit = limit.unwrap_or_else(|| usual_limit(&self.folder, self.tree.bytes()));
        let (chunks, bytes) = (self.tree.chunks(), self.tree.bytes());
        let kept = self.folder.kept();
        leaving.extend(self.tree.set_limit(limit, kept, clock::time()));
        say_removed(
            chunks - self.tree.chunks(),
            bytes - self.tree.bytes(),
            limit,
        );
        for name in leaving {
            self.writer.remove(name);
        }
        self.count();
    }

    /// Until the folder has been read: reads what it has of these tokens.
    pub(super) fn look_up(&mut self, fingerprint: &Fingerprint, tokens: &[i32]) {
        if let Some(known) = &self.folder_index {
            let now = clock::time();
            known.look_up(&self.folder, &mut self.tree, fingerprint, tokens, now);
        }
    }

    /// Whether the folder's index should be written while the process goes on: how often something has changed.
    pub(super) fn must_write_index(&self) -> Option<u64> {
        (self.folder_index.is_none() && self.changed != self.indexed).then_some(self.changed)
    }

    /// It was written when something had changed so often.
    pub(super) fn has_written_index(&mut self, changed: u64) {
        self.indexed = changed;
    }

    /// Some chunks in the order of their names, behind this one, as the folder's index has them, and the last name.
    pub(super) fn children_after(
        &self,
        name: Option<Name>,
        most: usize,
    ) -> (Vec<Child>, Option<Name>) {
        let names: Vec<&Name> = self.tree.names_after(name).take(most).collect();
        let last = names.last().map(|name| **name);
        let chunks = names.into_iter().filter_map(|name| self.tree.chunk(name));
        (
            chunks.map(|(chunk, _)| Child::from_chunk(chunk)).collect(),
            last,
        )
    }

    /// The process ends: the next one looks its prompts up by this.
    pub(super) fn write_index(&mut self) {
        if self.changed == self.indexed {
            return;
        }
        self.indexed = self.changed;
        let (mut children, _) = self.children_after(None, usize::MAX);
        // What has not been read since is there, or is found to be gone.
        children.extend(self.folder_index.iter().flat_map(Index::children));
        let _ = self.folder.keep_index(children);
    }

    /// How much of these tokens is there.
    pub(super) fn length_of(&self, fingerprint: &Fingerprint, tokens: &[i32]) -> usize {
        self.tree.find(fingerprint, tokens).tokens()
    }

    /// The folder, for code that reads other things there.
    pub(super) fn folder(&self) -> Folder {
        self.folder.clone()
    }

    /// The fingerprints of which there are chunks.
    pub(super) fn fingerprints(&self) -> HashSet<Fingerprint> {
        self.tree.models().map(|(of, _)| of).collect()
    }

    /// What has changed since the last call.
    pub(super) fn changes(&mut self) -> Changes {
        self.tree.changes()
    }

    /// A chunk that is there.
    pub(super) fn chunk(&self, name: &Name) -> Option<&Chunk> {
        self.tree.chunk(name).map(|(chunk, _)| chunk)
    }

    /// Whether a chunk is kept on request.
    pub(super) fn is_kept(&self, name: &Name) -> bool {
        self.tree.is_kept(name)
    }

    /// Some chunks in the order of their names, behind this one, whether they are kept, and when they were used last.
    pub(super) fn chunks_after(
        &self,
        name: Option<Name>,
        most: usize,
    ) -> Vec<((bool, u64), Chunk)> {
        let names = self.tree.names_after(name).take(most);
        let chunks = names.filter_map(|name| self.tree.chunk(name));
        let all = chunks.map(|(chunk, used)| ((self.is_kept(&chunk.name), used), chunk.clone()));
        all.collect()
    }

    /// Whether the budget has room for more of these tokens than is there.
    pub(super) fn has_room(
        &self,
        fingerprint: &Fingerprint,
        tokens: &[i32],
        bytes_per_token: usize,
    ) -> bool {
        self.tree.has_room(fingerprint, tokens, bytes_per_token)
    }

    /// What the store has of these tokens, and at most `more` tokens that continued them the last time. Images and sounds are
    /// whole.
    pub(super) fn offer(
        &mut self,
        fingerprint: &Fingerprint,
        tokens: &[i32],
        more: usize,
    ) -> Offer {
        let mut found: Found = self.tree.find(fingerprint, tokens);
        let wanted = media::whole(&tokens[..found.tokens()]);
        found.cut(wanted);
        let mut offer = Offer {
            tokens: tokens[..wanted].to_vec(),
            wanted,
            pieces: found.pieces().to_vec(),
        };
        if wanted == tokens.len() && more > 0 {
            let (further, found) = self.tree.continuation(&found, more);
            offer.tokens.extend(further);
            offer.pieces = found.pieces().to_vec();
            offer.cut(offer.tokens.len());
        }
        offer
    }

    /// Puts the state of a sequence together: the first `length` tokens of the offer. False if something
    /// of it is gone or damaged; then that has left the store, and another offer may be asked for.
    pub(super) fn compose(
        &mut self,
        offer: &Offer,
        length: usize,
        layout: &Layout,
        sequence: i32,
        state: &mut Vec<u8>,
    ) -> bool {
        let Ok(mut composer) = Composer::new(layout, sequence, 0..length, state) else {
            return false;
        };
        composer.place_tokens(&offer.tokens[..length]);
        let used = offer.up_to(length);
        if !self.put_all(composer, &used, None) {
            return false;
        }
        self.note_used(&used);
        true
    }

    /// As [`compose`](Self::compose), without what can be brought from the files while the engine takes the state. `state`
    /// has its size. `None`: false.
    pub(super) fn outline(
        &mut self,
        offer: &Offer,
        layout: &Layout,
        sequence: i32,
        mut state: Region,
    ) -> Option<Outline> {
        let length = offer.tokens.len();
        let mut composer = Composer::within(layout, sequence, 0..length, &mut state).ok()?;
        composer.place_tokens(&offer.tokens);
        let mut left_out = LeftOut::new(&self.folder);
        let used = offer.up_to(length);
        if !self.put_all(composer, &used, Some(&mut left_out)) {
            return None;
        }
        self.note_used(&used);
        Some(Outline { state, left_out })
    }

    /// How many bytes of these pieces' rows can be brought while the engine takes the state: of whole chunks that are in files.
    fn can_be_brought(&self, pieces: &[Piece], bytes_per_token: usize) -> usize {
        let whole = pieces.iter().filter(|piece| self.is_in_file(piece));
        let tokens: usize = whole.map(|piece| piece.chunk_tokens).sum();
        tokens.saturating_mul(bytes_per_token)
    }

    fn is_in_file(&self, piece: &Piece) -> bool {
        piece.take == piece.chunk_tokens && !self.writer.is_pending(&piece.name)
    }

    /// Memory for the outline of a state of so many bytes, which is made of these pieces. `None`: it is to be put together.
    fn region(
        &self,
        flows: bool,
        layout: &Layout,
        pieces: impl FnOnce() -> Vec<Piece>,
        bytes: usize,
    ) -> Option<Region> {
        if !flow::can(flows, layout, bytes) {
            return None;
        }
        let brought = self.can_be_brought(&pieces(), layout.bytes_per_token());
        // What is not brought is put into memory that is fresh.
        let is_most = brought >= bytes / 2;
        is_most.then(|| Region::new(bytes)).flatten()
    }

    /// As [`region`](Self::region), of all of an offer.
    pub(super) fn region_for(&self, flows: bool, layout: &Layout, offer: &Offer) -> Option<Region> {
        let bytes = layout.state_size(offer.tokens.len());
        self.region(flows, layout, || offer.up_to(offer.tokens.len()), bytes)
    }

    /// These pieces were of use now.
    fn note_used(&mut self, pieces: &[Piece]) {
        self.tree.now(clock::time());
        self.tree.used(pieces);
        self.writer.touch(pieces.iter().map(|piece| piece.name));
    }

    /// Puts pieces into a state, all that it is made of. Those that can be brought later are added to `left_out` instead,
    /// if it is given. False if one of them is gone or damaged; then it has left the store.
    fn put_all(
        &mut self,
        mut composer: Composer<'_>,
        pieces: &[Piece],
        mut left_out: Option<&mut LeftOut>,
    ) -> bool {
        let numbers = composer.numbers();
        for piece in pieces {
            let put = match &mut left_out {
                Some(left_out)
                    if piece.take == piece.chunk_tokens && !self.writer.is_pending(&piece.name) =>
                {
                    left_out.add(&mut composer, piece)
                }
                _ => self.put(&mut composer, &numbers, piece),
            };
            if let Err(why) = put {
                self.cannot_read(piece.name, &why);
                return false;
            }
        }
        composer.finish().is_ok()
    }

    fn put(
        &mut self,
        composer: &mut Composer<'_>,
        numbers: &Numbers,
        piece: &Piece,
    ) -> Result<(), ReadError> {
        let tokens = piece.chunk_tokens;
        let pending = self.writer.pending(&piece.name);
        let rows = match &pending {
            Some(rows) => {
                let mut check = numbers.check(tokens);
                check.update(rows);
                if !check.is_finite() {
                    return Err(ReadError::NOT_FINITE);
                }
                rows
            }
            None => {
                let bytes = composer.bytes_of(tokens);
                let read = |rows| self.folder.read_finite(&piece.name, bytes, numbers, rows);
                read(&mut self.rows)?;
                &self.rows
            }
        };
        let put = composer.put(piece.start, rows, tokens, 0, piece.take);
        put.map_err(|_| ReadError::DOES_NOT_FIT)
    }

    /// Reads rows of `size` bytes that are not KV: of these tokens from position `from` on, as far as they are there. They are
    /// passed one after the other, each with its number.
    pub(super) fn read_rows(
        &mut self,
        fingerprint: &Fingerprint,
        tokens: &[i32],
        from: usize,
        size: usize,
        mut take: impl FnMut(usize, &[u8]),
    ) {
        let found = self.tree.find(fingerprint, tokens);
        let pieces = found.pieces().iter();
        let pieces: Vec<Piece> = pieces
            .filter(|piece| piece.start + piece.take > from)
            .copied()
            .collect();
        for piece in &pieces {
            let pending = self.writer.pending(&piece.name);
            let rows = match &pending {
                Some(rows) => &**rows,
                None => {
                    let bytes = piece.chunk_tokens as u64 * size as u64;
                    if let Err(why) = self.folder.read(&piece.name, bytes, &mut self.rows) {
                        return self.cannot_read(piece.name, &why);
                    }
                    &self.rows
                }
            };
            let skip = from.saturating_sub(piece.start);
            let first = piece.start + skip - from;
            let rows = rows.chunks_exact(size).take(piece.take).skip(skip);
            rows.zip(first..).for_each(|(row, nth)| take(nth, row));
        }
        self.note_used(&pieces);
    }

    /// Whether it is known that a state of this size may soon be copied, or nothing of it may be kept.
    pub(super) fn expects(&self, bytes: usize) -> bool {
        self.writer.expects(bytes) || bytes as u64 > self.tree.limit()
    }

    /// A state of this size may soon be copied.
    pub(super) fn expect(&self, bytes: usize) {
        self.writer.expect(bytes);
    }

    /// Memory for a state of this size: `own`, if it is large enough, else what is ready, if that is larger.
    pub(super) fn buffer(&self, own: &mut Vec<u8>, bytes: usize) -> Vec<u8> {
        let mut buffer = std::mem::take(own);
        if buffer.capacity() < bytes {
            let mut ready = self.writer.buffer(bytes);
            if ready.capacity() > buffer.capacity() {
                std::mem::swap(&mut ready, &mut buffer);
            }
            self.writer.give_back(ready);
        }
        buffer
    }

    /// Writes down what this fingerprint is made of, now and then. There is something of it: a client can make as many
    /// fingerprints as it likes.
    pub(super) fn note_origin(
        &mut self,
        fingerprint: Fingerprint,
        origin: impl FnOnce() -> Option<Origin>,
    ) {
        if self.noted.is_due(fingerprint, Instant::now()) {
            if let Some(origin) = origin() {
                self.writer.name_model(fingerprint, origin.model.clone());
                self.writer.note_origin(origin);
            }
        }
    }

    /// The folder is another one: what was written down is not there.
    pub(super) fn begin_notes(&mut self) {
        self.noted.forget();
    }

    /// Writes down what a fingerprint is made of, before there is anything of it.
    pub(super) fn tell_origin(&self, origin: Origin) {
        self.writer.note_origin(origin);
    }

    /// Takes note of what the writer has done: of everything, on the host's thread, so that nothing waits without a bound.
    pub(super) fn settle(&mut self) {
        self.settle_some(usize::MAX);
    }

    /// The same, of so much of it. Whether there may be more.
    pub(super) fn settle_some(&mut self, most: usize) -> bool {
        let done: Vec<Done> = self.writer.done().take(most).collect();
        let count = done.len();
        for work in done {
            let waited = work.name().and_then(|name| self.unwritten.remove(&name));
            match work {
                Done::Written(_) => figures::add(&FIGURES.saved_tokens, waited.unwrap_or(0)),
                Done::NotFinite(name) => {
                    figures::note_refusal(NOT_FINITE);
                    self.drop_chunk(name);
                }
                Done::Failed(name, why) => {
                    figures::add(&FIGURES.lost_chunks, 1);
                    say_problem(Kind::Writing, &not_written(&why));
                    self.drop_chunk(name);
                }
                Done::Paused(why) => say_problem(Kind::Writing, &not_written(&why)),
                Done::Resumed => {
                    if figures::clear_problem(Kind::Writing, Duration::ZERO) {
                        log::line(format_args!("Prefix store: chunks are written again"));
                    }
                }
            }
        }
        count == most
    }

    /// Takes note of what other processes have written. (The first time, it is all that is in the folder.)
    pub(super) fn share(&mut self, written: &[Header]) {
        self.changed += 1;
        let there = written.iter().filter(|header| self.is_still_there(header));
        let there: Vec<_> = there
            .map(|header| (header.chunk.clone(), header.last_used))
            .collect();
        self.tree.now(clock::time());
        self.forget(|tree| tree.share(there, &[]));
    }

    /// Takes note of what is left in one of the inner folders, but for what is still to be written. Returns what is there
    /// and not known here: it left, and another process has written it since, or this one is about to remove it.
    pub(super) fn lose(&mut self, there: &Listing) -> Vec<Name> {
        let is_gone = |name: &&Name| there.names.binary_search(name).is_err();
        let all = self.tree.known(there.first).filter(is_gone);
        // What this process wrote after the folder was read is there, and no longer to be written.
        let gone: Vec<Name> = all
            .filter(|name| !self.writer.is_pending(name) && self.folder.lacks(name))
            .copied()
            .collect();
        self.forget(|tree| tree.share([], &gone));
        let names = there.names.iter();
        names
            .filter(|name| !self.tree.knows(name))
            .copied()
            .collect()
    }

    /// What leaves the tree by this leaves the folder.
    fn forget(&mut self, change: impl FnOnce(&mut Store) -> Vec<Name>) {
        let before = self.tree.chunks();
        for name in change(&mut self.tree) {
            self.writer.remove(name);
        }
        self.changed += u64::from(before != self.tree.chunks());
        self.count();
    }

    /// Waits until everything is written, at most so long.
    pub(super) fn flush(&mut self, longest: Duration) {
        self.writer.flush(longest);
        self.settle();
    }

    /// The file of a chunk is gone or damaged, or the system refuses. The chunk leaves. That it is gone is no fault:
    /// another process removed it a moment ago. If there are no more open files, it stays.
    fn cannot_read(&mut self, name: Name, why: &ReadError) {
        if why.is_shortage() || why.is_open_to_others() {
            // Later it can be. The next look at the folder says what others may do there.
            return;
        }
        if !matches!(why, ReadError::Gone) {
            say_problem(Kind::Reading, &format!("a chunk cannot be read ({why})"));
        }
        self.drop_chunk(name);
    }

    /// A chunk leaves, with all that continues it.
    fn drop_chunk(&mut self, name: Name) {
        self.changed += 1;
        for name in self.tree.remove(&name) {
            self.writer.remove(name);
        }
        self.count();
    }

    fn count(&self) {
        // Not known before the folder has been read, if the settings give none.
        let limit = match self.tree.limit() {
            u64::MAX => 0,
            limit => limit,
        };
        let set = |counter: &std::sync::atomic::AtomicU64, value: u64| {
            counter.store(value, std::sync::atomic::Ordering::Relaxed);
        };
        set(&FIGURES.bytes, self.tree.bytes());
        set(&FIGURES.encoding_bytes, self.tree.encoding_bytes());
        set(&FIGURES.chunks, self.tree.chunks() as u64);
        set(&FIGURES.limit, limit);
    }
}

/// The budget if the settings give none, of a folder whose files have `own` bytes.
fn usual_limit(folder: &Folder, own: u64) -> u64 {
    let limit = folder.usual_limit(own);
    if let Some(problem) = limit.problem {
        figures::set_problem(Kind::Budget, &problem);
        log::line(format_args!("Prefix store: {problem}"));
    }
    limit.bytes
}

/// At the start the budget was smaller than what the folder has.
fn say_removed(chunks: usize, bytes: u64, limit: u64) {
    const MB: f64 = 1e6;
    if chunks > 0 {
        log::line(format_args!(
            "Prefix store: the budget is {:.1} MB (CONTEXTPILOT_STORE_GB), so what was used longest ago was removed: {chunks} chunk{} of {:.1} MB",
            limit as f64 / MB,
            if chunks == 1 { "" } else { "s" },
            bytes as f64 / MB,
        ));
    }
}

/// Why there is no store, and what to do: as `doctor` says it.
fn no_folder(why: FolderError) -> String {
    format!("{why}; correct CONTEXTPILOT_STORE")
}

fn not_written(why: &Problem) -> String {
    format!("a chunk cannot be written ({why})")
}

/// Says a problem of the disk once.
pub(super) fn say_problem(kind: Kind, problem: &str) {
    if figures::set_problem(kind, problem) {
        log::line(format_args!(
            "Prefix store: {problem}; these tokens are evaluated, as without a store"
        ));
    }
}

#[cfg(test)]
mod tests;
