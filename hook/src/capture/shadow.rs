//! A shadow copy of each `llama_batch_ext`.
//!
//! `llama_batch_ext` is opaque, so its content is known only by watching the calls that fill it.
//! Filling and evaluating may happen on different threads, but the engine's API requires that they never
//! happen at the same time. So the copies need no lock.
//!
//! A batch is found by its address in a small hash table, nearly always at the first place. Copies are
//! reused, never freed.

use std::cell::{Cell, UnsafeCell};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use contextpilot_residency::{Entries, Entry, media_token};

use crate::base::abi::{Embeddings, Pointer};
use crate::base::bounds::{BATCH_KEEPS as KEPT, BATCHES as MOST};

/// `LLAMA_TOKEN_NULL`.
const NO_TOKEN: i32 = -1;

/// What a free place has. No batch has this address, and neither is it null, so a null batch is found at no place.
const NO_BATCH: usize = 1;

struct ShadowCell {
    /// The batch's address, or [`NO_BATCH`].
    batch: AtomicUsize,
    shadow: UnsafeCell<Shadow>,
}

// SAFETY: a shadow is only reached through `with`, by the thread that uses the batch. That is one thread
// at a time, and the caller synchronises one use with the next.
unsafe impl Sync for ShadowCell {}

#[allow(clippy::declare_interior_mutable_const)]
const FREE: ShadowCell = ShadowCell {
    batch: AtomicUsize::new(NO_BATCH),
    shadow: UnsafeCell::new(Shadow::new()),
};
static PLACES: [ShadowCell; MOST] = [FREE; MOST];

/// The content of a batch.
#[derive(Debug, Default)]
pub(crate) struct Shadow {
    entries: Vec<Entry>,
    /// Further sequences of an entry: the entry's index, and the sequence. In order, each once.
    further: Vec<(u32, i32)>,
    /// The engine's batch has something that the copy does not have.
    incomplete: bool,
    /// Something was added or asked for that is more than tokens and their logits.
    special: bool,
}

/// Starts the copy of a new, empty batch.
///
/// # Safety
/// The calling thread is in a call that got the batch, so no other thread uses it.
pub(crate) unsafe fn begin(batch: Pointer) {
    let address = batch.addr();
    // SAFETY: the caller's promise.
    if address == 0 || unsafe { with(batch, Shadow::clear) }.is_some() {
        return;
    }
    for place in probe(address) {
        if place
            .batch
            .compare_exchange(NO_BATCH, address, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
        {
            // SAFETY: this thread has just taken the place, and others reach it only through the batch.
            let shadow = unsafe { &mut *place.shadow.get() };
            shadow.clear();
            return;
        }
    }
    // The table is full: the batch stays unknown.
}

/// Ends the copy of a batch that is about to be freed.
///
/// # Safety
/// As for [`begin`].
pub(crate) unsafe fn end(batch: Pointer) {
    // SAFETY: the caller's promise.
    unsafe {
        with(batch, |shadow| {
            shadow.clear();
            shadow.entries.shrink_to(KEPT);
            shadow.further.shrink_to(KEPT);
        })
    };
    if let Some(place) = find(batch.addr()) {
        place.batch.store(NO_BATCH, Ordering::Release);
    }
}

/// Works on the copy of a batch; `None` if there is none.
///
/// # Safety
/// As for [`begin`], and `work` does not call this function.
#[inline]
pub(crate) unsafe fn with<R>(batch: Pointer, work: impl FnOnce(&mut Shadow) -> R) -> Option<R> {
    let place = find(batch.addr())?;
    // SAFETY: see `ShadowCell`: the caller is the only one that uses the batch now.
    let shadow = unsafe { &mut *place.shadow.get() };
    Some(work(shadow))
}

/// As [`with`], of the batch that was found last: false if this is another one. It calls nothing, so what runs for every token
/// has nothing to keep for later.
///
/// # Safety
/// As for [`with`].
#[inline]
pub(crate) unsafe fn with_last(batch: Pointer, work: impl FnOnce(&mut Shadow) -> bool) -> bool {
    // SAFETY: see `find`.
    let last = unsafe { &*LAST.load(Ordering::Relaxed) };
    if last.batch.load(Ordering::Acquire) != batch.addr() {
        return false;
    }
    // SAFETY: see `with`.
    work(unsafe { &mut *last.shadow.get() })
}

/// The place of the batch that was found last. A server fills one batch at a time, entry by entry.
static LAST: AtomicPtr<ShadowCell> = AtomicPtr::new((&raw const PLACES).cast_mut().cast());

#[inline]
fn find(address: usize) -> Option<&'static ShadowCell> {
    // SAFETY: it always leads to one of the places.
    let last = unsafe { &*LAST.load(Ordering::Relaxed) };
    // A hint only: the address at the place is compared.
    if last.batch.load(Ordering::Acquire) == address {
        return Some(last);
    }
    look_for(address)
}

#[cold]
fn look_for(address: usize) -> Option<&'static ShadowCell> {
    let found = probe(address).find(|place| place.batch.load(Ordering::Acquire) == address)?;
    LAST.store(std::ptr::from_ref(found).cast_mut(), Ordering::Relaxed);
    Some(found)
}

/// All places, beginning with the one that the address hashes to. A free place does not end the
/// search, because places become free in any order.
fn probe(address: usize) -> impl Iterator<Item = &'static ShadowCell> {
    let start = start(address);
    (0..MOST).map(move |step| &PLACES[(start + step) % MOST])
}

/// The place that an address hashes to. Addresses of allocations are multiples of 16.
fn start(address: usize) -> usize {
    (address >> 4).wrapping_mul(0x9E37_79B9_7F4A_7C15_u64 as usize) >> (usize::BITS - 6)
}

impl Shadow {
    const fn new() -> Self {
        Self {
            entries: Vec::new(),
            further: Vec::new(),
            incomplete: false,
            special: false,
        }
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.further.clear();
        self.incomplete = false;
        self.special = false;
    }

    /// Something else than tokens and their logits is in the batch.
    pub(crate) fn set_special(&mut self) {
        self.special = true;
    }

    /// The entries, if they are tokens of one sequence each, and nothing but logits is asked for.
    pub(crate) fn plain(&self) -> Option<&[Entry]> {
        let plain = !self.incomplete && !self.special && self.further.is_empty();
        plain.then_some(&self.entries[..])
    }

    /// The engine was asked to add an entry, and returned `index`.
    #[inline]
    pub(crate) fn add(&mut self, index: i32, sequence: i32, token: i32) {
        // If the engine refuses a token or embedding (-2), it leaves an entry without either.
        if index == -2 || (index >= 0 && index as usize != self.entries.len()) {
            self.incomplete = true;
        }
        if index >= 0 {
            self.entries.push(Entry {
                sequence,
                position: -1,
                token,
                output: false,
            });
        }
    }

    /// As [`Shadow::add`], but does nothing and returns `false` unless this is the next entry and there is room for it.
    #[inline]
    pub(crate) fn add_if_it_fits(&mut self, index: i32, sequence: i32, token: i32) -> bool {
        // A negative index becomes larger than any length.
        let fits =
            index as usize == self.entries.len() && self.entries.len() < self.entries.capacity();
        if fits {
            self.entries.push(Entry {
                sequence,
                position: -1,
                token,
                output: false,
            });
        }
        fits
    }

    pub(crate) fn add_without_token(&mut self, index: i32, sequence: i32) {
        self.special = true;
        self.add(index, sequence, NO_TOKEN);
    }

    /// # Safety
    /// The row is readable if the engine accepted it (`index` is not negative).
    pub(crate) unsafe fn add_row(&mut self, index: i32, sequence: i32, row: Embeddings) {
        self.special = true;
        let token = match index {
            // SAFETY: the caller's promise.
            0.. => unsafe { token_of(row) },
            _ => NO_TOKEN,
        };
        self.add(index, sequence, token);
    }

    /// # Safety
    /// The row is readable.
    pub(crate) unsafe fn set_row(&mut self, index: i32, row: Embeddings) {
        self.special = true;
        if let Some(entry) = self.entry(index) {
            // If the entry has a token, its embedding does not matter.
            if entry.token == NO_TOKEN {
                // SAFETY: the caller's promise.
                entry.token = unsafe { token_of(row) };
            }
        }
    }

    pub(crate) fn add_sequence(&mut self, index: i32, sequence: i32) {
        let Some(entry) = self.entry(index) else {
            return;
        };
        if entry.sequence == sequence {
            return;
        }
        let further = (index as u32, sequence);
        if let Err(at) = self.further.binary_search(&further) {
            self.further.insert(at, further);
        }
    }

    pub(crate) fn set_position(&mut self, index: i32, position: i32) {
        self.incomplete |= !self.set_position_if_there(index, position);
    }

    /// As [`Shadow::set_position`], but does nothing and returns `false` if there is no such entry.
    #[inline]
    pub(crate) fn set_position_if_there(&mut self, index: i32, position: i32) -> bool {
        // A negative index becomes larger than any length.
        match self.entries.get_mut(index as usize) {
            Some(entry) => {
                entry.position = position;
                true
            }
            None => false,
        }
    }

    #[inline]
    pub(crate) fn set_output(&mut self, index: i32, output: bool) {
        if let Some(entry) = self.entry(index) {
            entry.output = output;
        }
    }

    /// The entries of the batch. An entry of several sequences is listed once for each. `None` if the
    /// content is not known for certain.
    #[inline]
    pub(crate) fn entries(&self) -> Option<Entries> {
        match &self.entries[..] {
            _ if self.incomplete => None,
            [only] if self.further.is_empty() => Some(Entries::from(*only)),
            _ => Some(self.several()),
        }
    }

    /// As [`Shadow::entries`], of a batch that is not just one token: a slot that generates submits that for each token.
    #[inline(never)]
    fn several(&self) -> Entries {
        if self.further.is_empty() {
            return self.entries[..].into();
        }
        let mut all = Vec::with_capacity(self.entries.len() + self.further.len());
        let mut further = self.further.iter().peekable();
        for (index, entry) in self.entries.iter().enumerate() {
            all.push(*entry);
            while let Some(&(_, sequence)) = further.next_if(|(at, _)| *at as usize == index) {
                all.push(Entry { sequence, ..*entry });
            }
        }
        all.into()
    }

    #[inline]
    fn entry(&mut self, index: i32) -> Option<&mut Entry> {
        // A negative index becomes larger than any length.
        let entry = self.entries.get_mut(index as usize);
        if entry.is_none() {
            self.incomplete = true;
        }
        entry
    }
}

/// # Safety
/// The row is readable.
unsafe fn token_of(row: Embeddings) -> i32 {
    let Some(bytes) = row
        .rows
        .checked_mul(row.columns)
        .and_then(|n| n.checked_mul(size_of::<f32>()))
        .filter(|_| !row.data.is_null())
    else {
        return NO_TOKEN;
    };
    // SAFETY: the engine has just read so many bytes from there.
    media(unsafe { std::slice::from_raw_parts(row.data.cast(), bytes) })
}

thread_local! {
    // The token for the media whose rows this thread evaluates. Without a destructor, as
    // `guard::FLAGS`.
    static NAMED: Cell<Option<i32>> = const { Cell::new(None) };
}

/// Lives while rows of media with a name are evaluated. C++ exceptions drop it too.
///
/// The server compares media by name. Rows of the same name may differ (images that are encoded
/// together are rounded differently), and the same rows may come from different files. What the
/// server would not find again must not count as cached, so the name decides here as well.
pub(crate) struct Named {
    before: Option<i32>,
}

impl Named {
    pub(crate) fn begin(name: &[u8]) -> Self {
        Self {
            before: NAMED.replace(Some(token_of_name(name))),
        }
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        NAMED.set(self.before);
    }
}

/// The token that stands for a row of embeddings: made of the media's [name](Named) if there is one,
/// else of the row's content. It is never [`NO_TOKEN`].
pub(crate) fn media(row: &[u8]) -> i32 {
    NAMED.get().unwrap_or_else(|| opaque(hash(row)))
}

/// The token of media of this name.
pub(crate) fn token_of_name(name: &[u8]) -> i32 {
    opaque(hash(name))
}

fn opaque(hash: u32) -> i32 {
    match media_token(hash) {
        NO_TOKEN => media_token(0),
        token => token,
    }
}

const SEED: [u64; 4] = [
    0xA076_1D64_78BD_642F,
    0xE703_7ED1_A0B4_28DB,
    0x8EBC_6AF0_9C88_C6E3,
    0x5899_65CC_7537_4CC3,
];

fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ ((product >> 64) as u64)
}

/// A fast hash (about 8 bytes a cycle), because rows have thousands of numbers. Multiplies 16 bytes
/// at a time into 128 bits and folds them, in two independent lanes.
fn hash(bytes: &[u8]) -> u32 {
    let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
    let mut lanes = [bytes.len() as u64 ^ SEED[0], SEED[1]];
    let mut blocks = bytes.chunks_exact(32);
    for block in &mut blocks {
        lanes[0] = fold(word(&block[..8]) ^ SEED[2], word(&block[8..16]) ^ lanes[0]);
        lanes[1] = fold(
            word(&block[16..24]) ^ SEED[3],
            word(&block[24..]) ^ lanes[1],
        );
    }
    let mut rest = [0; 32];
    rest[..blocks.remainder().len()].copy_from_slice(blocks.remainder());
    for (lane, half) in lanes.iter_mut().zip(rest.chunks_exact(16)) {
        *lane = fold(word(&half[..8]) ^ SEED[2], word(&half[8..]) ^ *lane);
    }
    let folded = fold(lanes[0] ^ SEED[3], lanes[1] ^ SEED[0]);
    (folded ^ (folded >> 32)) as u32
}

#[cfg(test)]
mod tests;
