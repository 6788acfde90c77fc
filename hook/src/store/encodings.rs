//! What the encoder of a projector (`--mmproj`) has made of images and sounds: rows of numbers, which the model takes in
//! place of tokens.
//!
//! The server encodes each image that its slot does not have, also if the KV behind it is loaded; on a processor that takes
//! longer than anything else. So the rows are stored, and the server gets them in place of encoding, for whatever prompt. They
//! stand in chunks of their own, under a fingerprint of the projector's file, as rows of a run of tokens that are a digest of the
//! image.
//!
//! *Which image is it?* With the encoder, an image has just the name that the server has given it: a hash of its file, of
//! 64 bits, which is easy to make alike for two files. So its pixels (a sound's samples) are digested when its prompt is tokenized, on the
//! thread of the request, and remembered with the address of what the server has of the image then, its *chunk*, and of all copies of
//! that, until they are freed. Of a large image some projectors make several chunks (tiles), which are told by their number.
//! Chunks of which it is not certain from which image they come (frames of a video) are encoded as ever.
//!
//! *In place of encoding.* The server puts images into a batch, has that encoded, and asks for the rows of each. A batch whose first
//! image is stored stays empty for the engine, and takes no other; the server makes another one for the next image.
//!
//! Only in a server, whose flags say how images are prepared.

use std::collections::BTreeMap;
use std::slice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use contextpilot_kv_store::{Facts, Fingerprint, Origin, What, media};

use super::content::{Content, Standing};
use super::figures::{self, FIGURES};
use super::hidden_rows::numbers_of;
use super::index::StoreIndex;
use super::index::held::IndexHeld;
use super::records::LONGEST;
use super::surroundings;
use super::working::works;
use crate::attach::is_embedded;
use crate::attach::original::{original, sees_encoding};
use crate::attach::plain;
use crate::base::abi::Pointer;
use crate::base::guard;
use crate::capture::salts::Salt;
use crate::capture::{connections, llama_batch};

/// So many chunks are remembered. Others are encoded as ever.
const MOST: usize = 1 << 16;

/// Why an image is encoded that may be stored.
const UNCERTAIN: &str = "what the encoder makes of an image that is not known for certain (a frame of a video, a cache_salt that cannot be used)";
const UNSEEN: &str = "what the encoder makes of images and sounds: this server encodes them without mtmd_batch_encode";

/// What the server returns to itself if a batch is too large for another image.
const TOO_LARGE: i32 = 2;

/// By the addresses of chunks that are alive: a digest of the image, of which of its chunks it is, and of the salt that came with
/// it.
static CHUNKS: Mutex<BTreeMap<usize, [u8; 32]>> = Mutex::new(BTreeMap::new());
static PROJECTORS: Mutex<Vec<Projector>> = Mutex::new(Vec::new());
static BATCHES: Mutex<Vec<Batch>> = Mutex::new(Vec::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A projector that was loaded.
#[derive(Clone)]
struct Projector {
    address: usize,
    content: Arc<Content>,
    /// Numbers in a row.
    width: usize,
}

/// A batch of the server's.
struct Batch {
    address: usize,
    projector: usize,
    /// What the engine encodes: the addresses of the chunks, and what is known of them.
    encoded: Vec<(usize, Option<Known>)>,
    /// What it need not encode. Then nothing else is in the batch.
    given: Option<Given>,
}

/// The rows of an image, which the server reads from here as long as it has the batch.
struct Given {
    chunk: usize,
    rows: Vec<f32>,
}

/// An image that can be looked up, and where.
struct Known {
    fingerprint: Fingerprint,
    tokens: Vec<i32>,
    projector: Projector,
}

/// The server has loaded a projector for this model from a file.
pub(super) fn note_projector(address: Pointer, model: Pointer, content: Arc<Content>) {
    // SAFETY: the server has just passed the model on.
    let width = unsafe { llama_batch::row_size_of_model(model) };
    let (Some(width), false) = (width, address.is_null()) else {
        return;
    };
    guard::compute(|| {
        let mut all = lock(&PROJECTORS);
        all.retain(|projector| projector.address != address.addr());
        if width > 0 && content.is_still_there() {
            all.push(Projector {
                address: address.addr(),
                content,
                width,
            });
        }
    });
}

/// Whether the process is a server, and what it has encoded is seen.
pub(super) fn can_be_seen() -> bool {
    !is_embedded() && sees_encoding()
}

/// Whether there is a projector whose rows are stored.
fn are_any() -> bool {
    works() && !lock(&PROJECTORS).is_empty()
}

/// An image or a sound as the server passes it on.
struct Bitmap {
    name: Box<[u8]>,
    digest: [u8; 32],
}

/// A prompt with these images and sounds was tokenized. `chunks`: those of its chunks that are no text, and their names.
///
/// # Safety
/// There are so many at `bitmaps`, and all of them are alive.
pub(crate) unsafe fn note_tokenized(
    bitmaps: *const Pointer,
    count: usize,
    chunks: impl FnOnce() -> Option<Vec<(Pointer, Box<[u8]>)>>,
) {
    if count == 0 || bitmaps.is_null() || guard::compute(are_any) != Some(true) {
        return;
    }
    // SAFETY: the caller's promise.
    let bitmaps = unsafe { slice::from_raw_parts(bitmaps, count) };
    // SAFETY: see above.
    let read = bitmaps.iter().map(|bitmap| unsafe { read(*bitmap) });
    // Those without pixels are counted only, or read later.
    let Some((images, chunks)) = read.collect::<Option<Vec<Bitmap>>>().zip(chunks()) else {
        return;
    };
    guard::compute(|| {
        // Nothing is known of what had these addresses before.
        chunks.iter().for_each(|(chunk, _)| forget_chunk(*chunk));
        let salt = connections::salt();
        let names: Vec<_> = chunks.iter().map(|(_, name)| &**name).collect();
        let digests = assign(&images, &names);
        if let (Some(digests), false) = (digests, salt == Salt::Unknown) {
            let mut known = lock(&CHUNKS);
            for ((chunk, _), digest) in chunks.iter().zip(digests) {
                remember(&mut known, chunk.addr(), salted(digest, salt));
            }
        }
    });
}

fn remember(known: &mut BTreeMap<usize, [u8; 32]>, chunk: usize, digest: [u8; 32]) {
    if known.len() < MOST {
        known.insert(chunk, digest);
    }
}

/// Prompts of different salts share nothing.
fn salted(digest: [u8; 32], salt: Salt) -> [u8; 32] {
    match salt {
        Salt::Of(salt) => digest_of(&[&digest, &salt]),
        Salt::None | Salt::Unknown => digest,
    }
}

fn digest_of(parts: &[&[u8]]) -> [u8; 32] {
    let mut hash = blake3::Hasher::new();
    for part in parts {
        hash.update(part);
    }
    *hash.finalize().as_bytes()
}

/// Digests of the chunks with these names, which the server has made of these images, in their order. `None`: it is not certain
/// which comes from which.
fn assign(images: &[Bitmap], chunks: &[&[u8]]) -> Option<Vec<[u8; 32]>> {
    let mut digests = Vec::new();
    for alike in images.chunk_by(|a, b| a.name == b.name) {
        let own = chunks[digests.len()..].iter();
        let count = own.take_while(|name| ***name == *alike[0].name).count();
        let of_one = count / alike.len();
        let are_equal = alike.iter().all(|image| image.digest == alike[0].digest);
        // Images of one name may be of several sizes, and so have several numbers of chunks.
        if of_one == 0 || of_one * alike.len() != count || !are_equal && of_one > 1 {
            return None;
        }
        let parts = alike
            .iter()
            .flat_map(|image| (0..of_one).map(move |nth| (image, nth)));
        digests.extend(parts.map(|(image, nth)| {
            digest_of(&[
                &image.digest,
                &(nth as u64).to_le_bytes(),
                &(of_one as u64).to_le_bytes(),
            ])
        }));
    }
    (digests.len() == chunks.len()).then_some(digests)
}

/// The server has copied a chunk.
pub(crate) fn copied(chunk: Pointer, copy: Pointer) {
    guard::compute(|| {
        let mut known = lock(&CHUNKS);
        match known.get(&chunk.addr()) {
            Some(&digest) => remember(&mut known, copy.addr(), digest),
            None => {
                known.remove(&copy.addr());
            }
        }
    });
}

/// A chunk is about to be freed: another one may get its address.
pub(crate) fn freed(chunk: Pointer) {
    guard::compute(|| forget_chunk(chunk));
}

fn forget_chunk(chunk: Pointer) {
    lock(&CHUNKS).remove(&chunk.addr());
}

/// Whether any chunk is known.
pub(crate) fn are_any_known() -> bool {
    guard::compute(|| !lock(&CHUNKS).is_empty()) == Some(true)
}

/// `None`: it has no pixels, or the server cannot say.
///
/// # Safety
/// The bitmap is alive.
unsafe fn read(bitmap: Pointer) -> Option<Bitmap> {
    if bitmap.is_null() {
        return None;
    }
    // SAFETY: the caller's promise, here and below.
    let data = unsafe { plain::bitmap_data(bitmap) }.filter(|data| !data.is_null())?;
    // SAFETY: see above.
    let bytes = unsafe { plain::bitmap_bytes(bitmap) }?;
    // SAFETY: see above.
    let [wide, high] = [unsafe { plain::bitmap_width(bitmap) }, unsafe {
        plain::bitmap_height(bitmap)
    }];
    // SAFETY: see above.
    let is_sound = unsafe { plain::is_sound(bitmap) }?;
    // SAFETY: see above.
    let name = unsafe { plain::name_of_bitmap(bitmap) }?;
    // SAFETY: the bitmap has so many bytes.
    let data = unsafe { slice::from_raw_parts(data.cast::<u8>().cast_const(), bytes) };
    let mut hash = blake3::Hasher::new();
    for number in [wide?, high?, u32::from(is_sound)] {
        hash.update(&number.to_le_bytes());
    }
    hash.update(data);
    Some(Bitmap {
        name: name.into(),
        digest: *hash.finalize().as_bytes(),
    })
}

/// The server makes a batch for this projector.
pub(crate) fn begin(batch: Pointer, projector: Pointer) {
    if batch.is_null() {
        return;
    }
    guard::compute(|| {
        let mut all = lock(&BATCHES);
        all.retain(|known| known.address != batch.addr());
        if are_any() {
            all.push(Batch {
                address: batch.addr(),
                projector: projector.addr(),
                encoded: Vec::new(),
                given: None,
            });
        }
    });
}

/// The server puts a chunk into a batch. `Some`: what it is told, without the engine: the rows are here, or the batch takes no
/// more. Before the engine gets it.
///
/// # Safety
/// The chunk is alive.
pub(crate) unsafe fn add(batch: Pointer, chunk: Pointer) -> Option<i32> {
    // SAFETY: the caller's promise.
    let known = unsafe { known(batch, chunk) };
    guard::compute(|| {
        let (is_given, is_first) = with(batch, |batch| {
            (batch.given.is_some(), batch.encoded.is_empty())
        })?;
        let is_stored = !is_given && known.as_ref().is_some_and(is_stored);
        if is_given || is_stored && !is_first {
            return Some(TOO_LARGE);
        }
        let rows = known.as_ref().filter(|_| is_stored).and_then(load);
        with(batch, |batch| {
            let Some(rows) = rows else {
                batch.encoded.push((chunk.addr(), known));
                return None;
            };
            batch.given = Some(Given {
                chunk: chunk.addr(),
                rows,
            });
            Some(0)
        })?
    })?
}

/// The engine has not taken the chunk that was added last.
pub(crate) fn refused(batch: Pointer) {
    guard::compute(|| with(batch, |batch| batch.encoded.pop()));
}

fn with<R>(batch: Pointer, work: impl FnOnce(&mut Batch) -> R) -> Option<R> {
    let mut all = lock(&BATCHES);
    let found = all.iter_mut().find(|known| known.address == batch.addr());
    found.map(work)
}

/// The server is about to evaluate rows that it has encoded.
pub(super) fn note_unseen() {
    if works() && !is_embedded() && !sees_encoding() {
        guard::compute(|| figures::note_refusal(UNSEEN));
    }
}

/// Whether the engine has nothing to encode in a batch.
pub(crate) fn is_given(batch: Pointer) -> bool {
    let given = || with(batch, |batch| batch.given.is_some());
    guard::compute(given).flatten() == Some(true)
}

/// The rows of a chunk; null, if the batch has others. `None`: the engine has them.
pub(crate) fn rows(batch: Pointer, chunk: Pointer) -> Option<Pointer> {
    let rows = || {
        with(batch, |batch| {
            let given = batch.given.as_mut()?;
            Some(if given.chunk == chunk.addr() {
                given.rows.as_mut_ptr().cast()
            } else {
                std::ptr::null_mut()
            })
        })
    };
    guard::compute(rows)??
}

/// The batch is about to be freed.
pub(crate) fn forget(batch: Pointer) {
    guard::compute(|| lock(&BATCHES).retain(|known| known.address != batch.addr()));
}

/// The engine has encoded a batch, in this time.
///
/// # Safety
/// The batch and its chunks are alive.
pub(crate) unsafe fn encoded(batch: Pointer, time: Duration) {
    let encoded = guard::compute(|| with(batch, |batch| std::mem::take(&mut batch.encoded)));
    let encoded = encoded.flatten().unwrap_or_default();
    guard::compute(|| {
        figures::add(&FIGURES.encoded, encoded.len());
        figures::add_time(&FIGURES.encode_nanos, time);
    });
    for (chunk, known) in encoded {
        let Some(known) = known else { continue };
        let chunk = std::ptr::with_exposed_provenance_mut(chunk);
        let rows: Pointer = original!(mtmd_batch_get_output_embd(batch, chunk));
        let numbers = known.tokens.len().checked_mul(known.projector.width);
        let (Some(numbers), false) = (numbers, rows.is_null()) else {
            continue;
        };
        // SAFETY: the engine has so many rows of so many numbers for the chunk, until the batch is freed.
        let rows = unsafe { slice::from_raw_parts(rows.cast::<f32>().cast_const(), numbers) };
        guard::compute(|| insert(&known, rows));
    }
}

/// What is known of a chunk that the server puts into a batch.
///
/// # Safety
/// The chunk is alive.
unsafe fn known(batch: Pointer, chunk: Pointer) -> Option<Known> {
    // SAFETY: the caller's promise, here and below.
    let rows = unsafe { plain::chunk_rows(chunk) }?;
    // SAFETY: see above.
    let positions = unsafe { plain::chunk_positions(chunk) }?;
    let find = || {
        let image = lock(&CHUNKS).get(&chunk.addr()).copied();
        let Some(image) = image else {
            if are_any() {
                figures::note_refusal(UNCERTAIN);
            }
            return None;
        };
        let projector = with(batch, |batch| batch.projector)?;
        let all = lock(&PROJECTORS);
        let projector = all.iter().find(|known| known.address == projector)?;
        let digest = digest_of(&[
            &image,
            &(rows as u64).to_le_bytes(),
            &positions.to_le_bytes(),
        ]);
        Some(Known {
            fingerprint: projector.facts()?.fingerprint(),
            tokens: media::encoding(&digest, rows)?,
            projector: projector.clone(),
        })
    };
    guard::compute(find)?
}

impl Projector {
    /// What its rows depend on besides the image. `None`: not known, or not yet.
    fn facts(&self) -> Option<Facts> {
        if self.content.standing() != Standing::Same {
            return None;
        }
        let mut facts = Facts::default();
        facts.push(What::Program, surroundings::all()?);
        facts.push(What::Model, self.content.digest()?.to_vec());
        let rows = format!("encoder's output, {}", self.width);
        facts.push(What::Rows, rows.into_bytes());
        Some(facts)
    }

    /// The same for people, and other processes that read the store.
    fn origin(&self) -> Option<Origin> {
        let name = format!("{}, encoded", self.content.name);
        Some(Origin::new(name, &self.facts()?, None))
    }
}

impl Known {
    /// Bytes of a row.
    fn size(&self) -> usize {
        self.projector.width * size_of::<f32>()
    }

    fn is_in(&self, index: &StoreIndex) -> bool {
        index.length_of(&self.fingerprint, &self.tokens) == self.tokens.len()
    }

    fn read(&self, index: &mut StoreIndex) -> Option<Vec<f32>> {
        let count = self.tokens.len() * self.projector.width;
        let mut all = Vec::new();
        all.try_reserve_exact(count).ok()?;
        index.read_rows(&self.fingerprint, &self.tokens, 0, self.size(), |_, row| {
            all.extend(numbers_of(row));
        });
        (all.len() == count && all.iter().all(|number| number.is_finite())).then_some(all)
    }
}

/// Whether the store has all rows of an image.
fn is_stored(known: &Known) -> bool {
    let mut held = IndexHeld::within(&mut LONGEST.clone());
    let index = held.as_mut().and_then(|held| held.index.as_mut());
    index.is_some_and(|index| {
        index.look_up(&known.fingerprint, &known.tokens);
        known.is_in(index)
    })
}

/// The rows of an image. `None`: something of it is gone or damaged.
fn load(known: &Known) -> Option<Vec<f32>> {
    let start = Instant::now();
    let mut held = IndexHeld::within(&mut LONGEST.clone())?;
    let rows = known.read(held.index.as_mut()?)?;
    figures::add(&FIGURES.encodings_loaded, 1);
    figures::add_time(&FIGURES.encodings_load_nanos, start.elapsed());
    Some(rows)
}

/// Stores the rows of an image.
fn insert(known: &Known, rows: &[f32]) {
    if !rows.iter().all(|number| number.is_finite()) {
        return;
    }
    let mut held = IndexHeld::within(&mut LONGEST.clone());
    let Some(index) = held.as_mut().and_then(|held| held.index.as_mut()) else {
        return;
    };
    let (fingerprint, tokens) = (&known.fingerprint, &known.tokens);
    let width = known.projector.width;
    index.insert_rows(fingerprint, (tokens, &[]), known.size(), |range| {
        let rows = rows.get(range.start * width..range.end * width)?;
        Some(
            rows.iter()
                .flat_map(|number| number.to_ne_bytes())
                .collect(),
        )
    });
    if known.is_in(index) {
        figures::used(*fingerprint);
        index.note_origin(*fingerprint, || known.projector.origin());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(name: &str, digest: u8) -> Bitmap {
        Bitmap {
            name: name.as_bytes().into(),
            digest: [digest; 32],
        }
    }

    fn assigned(images: &[Bitmap], chunks: &[&str]) -> Option<Vec<[u8; 32]>> {
        let chunks: Vec<_> = chunks.iter().map(|name| name.as_bytes()).collect();
        assign(images, &chunks)
    }

    #[test]
    fn chunks_come_from_images_in_their_order_and_each_has_a_digest_of_its_own() {
        let (tea, sea) = (image("tea", 1), image("sea", 2));
        let both = [tea, sea];
        let digests = assigned(&both, &["tea", "sea"]).unwrap();
        assert_ne!(digests[0], digests[1]);
        // Another name of the same image.
        assert_eq!(
            assigned(&[image("cup", 1)], &["cup"]),
            Some(vec![digests[0]])
        );
        let tiles = assigned(&both, &["tea", "tea", "tea", "sea"]).unwrap();
        assert_eq!(tiles[3], digests[1]);
        let mut all = tiles.clone();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 4);
        assert!(
            !tiles.contains(&digests[0]),
            "the whole image is no tile of it"
        );
        let twice = [image("tea", 1), image("tea", 1)];
        let expected = Some([&tiles[..3], &tiles[..3]].concat());
        assert_eq!(assigned(&twice, &["tea"; 6]), expected);
    }

    #[test]
    fn what_is_not_certain_has_no_digest() {
        let (tea, sea) = (|| image("tea", 1), || image("sea", 2));
        assert_eq!(assigned(&[tea(), sea()], &["tea"]), None);
        assert_eq!(assigned(&[tea()], &["tea", "sea"]), None);
        assert_eq!(assigned(&[tea(), sea()], &["sea", "tea"]), None);
        // Two frames of one chunk, or three chunks of two.
        assert_eq!(assigned(&[tea(), tea()], &["tea"]), None);
        assert_eq!(assigned(&[tea(), tea()], &["tea"; 3]), None);
        // Two images that the server names alike.
        let alike = [tea(), image("tea", 3)];
        assert_eq!(assigned(&alike, &["tea"; 6]), None);
        assert_eq!(assigned(&alike, &["tea"; 2]).unwrap().len(), 2);
    }
}
