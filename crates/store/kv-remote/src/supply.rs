//! What a prompt wants and the folder does not have: it is fetched at once.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use contextpilot_kv_files::{Asker, Done, Door, Folder, Writer, read_whole};
use contextpilot_kv_store::{Chunk, Fingerprint, GRID, HEADER_BYTES, Name, Place, TAIL};

use crate::known::Known;
use crate::mirror::{DISK, QUEUE};
use crate::remote::{Body, LARGEST, Remote};

/// A remote that is of no use is asked again after that.
const PAUSE: Duration = Duration::from_secs(5);

/// Fetches what prompts want, over a connection of its own: what is moved meanwhile makes no prompt wait.
pub struct Supplier {
    folder: Folder,
    remote: Remote,
    writer: Writer,
    known: Known,
    /// How large a chunk may be if its model does not tell, bytes.
    largest: u64,
    /// The remote was of no use.
    not_before: Option<Instant>,
}

/// What became of a chunk that is wanted.
enum Brought {
    /// It is in the folder, behind the one before.
    There,
    /// The remote does not have it any more.
    Gone,
    /// It cannot be had now, or is in the folder behind another one.
    No,
}

/// Closes the door when a thread ends, however it does: an asker then does not wait in vain.
struct Closes(Arc<Door>);

impl Drop for Closes {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Supplier {
    /// Answers each process that comes to this door, on threads of its own, until it is closed. `known`: of the
    /// [`Mirror`](crate::Mirror) of the same folder and remote. `limit`: how large the folder may become, bytes.
    ///
    /// # Errors
    /// The system gives no thread. The door is closed.
    pub fn start(
        door: &Arc<Door>,
        folder: Folder,
        remote: Remote,
        known: Known,
        limit: u64,
    ) -> io::Result<()> {
        let (open, also_open) = (Closes(Arc::clone(door)), Closes(Arc::clone(door)));
        let mut supplier = Self {
            writer: Writer::start(folder.clone(), QUEUE, || {}, || false)?,
            folder,
            remote,
            known: known.clone(),
            largest: LARGEST.min(limit / 4),
            not_before: None,
        };
        let (wishes, wished) = channel();
        let thread = |name: &str| thread::Builder::new().name(name.to_owned());
        thread("contextpilot-get").spawn(move || {
            supplier.work(&wished);
            drop(open);
        })?;
        thread("contextpilot-ask").spawn(move || {
            while let Ok(asker) = also_open.0.wait() {
                let wish = &asker.wish;
                match known.first(wish.place.chunks(&wish.tokens)) {
                    None => {
                        known.want(wish.place.fingerprint);
                        asker.end();
                    }
                    Some(_) if wishes.send(asker).is_err() => break,
                    Some(_) => {}
                }
            }
        })?;
        Ok(())
    }

    fn work(&mut self, wished: &Receiver<Asker>) {
        for asker in wished {
            self.supply(asker);
        }
    }

    /// Puts into the folder what continues the tokens of a wish, and tells of each chunk, until there is no more of it or
    /// the asker waits no more.
    fn supply(&mut self, mut asker: Asker) {
        let (mut place, mut parent) = (asker.wish.place, asker.wish.parent);
        let all = std::mem::take(&mut asker.wish.tokens);
        let mut tokens = &all[..];
        let first = place;
        // Where chunks end that are there, behind the first of these tokens.
        let mut ends = Vec::new();
        while let Some((end, name)) = self.known.first(place.chunks(tokens)) {
            if asker.has_left() {
                return;
            }
            let wanted = &tokens[place.skip..end];
            match self.bring(place, name, parent, wanted) {
                Brought::There => {}
                Brought::Gone => continue,
                Brought::No => break,
            }
            if asker.tell(&name, wanted.len()).is_err() {
                return;
            }
            parent = Some((name, wanted.len() as u32));
            ends.push((all.len() - tokens.len() + end, name, wanted.len()));
            place = place.behind(tokens, end);
            if end == GRID {
                tokens = &tokens[GRID..];
            }
        }
        if asker.wish.tail && !asker.has_left() {
            if let Some(name) = self.bring_tail(first, &all, &ends) {
                // Its one token is none of the prompt's.
                let _ = asker.tell(&name, 1);
            }
        }
        asker.end();
    }

    /// Sees to it that the last tail behind some tokens of chunks that are there is in the folder, if there is one behind the
    /// place.
    fn bring_tail(
        &mut self,
        first: Place,
        all: &[i32],
        ends: &[(usize, Name, usize)],
    ) -> Option<Name> {
        let to = ends.last()?.0;
        let mut tails = Vec::with_capacity(to);
        let mut cell = Place { skip: 0, ..first };
        for tokens in all[..to].chunks(GRID) {
            let at = tails.len();
            let places = (1..=tokens.len()).map(|end| cell.behind(tokens, end));
            tails.extend(
                places
                    .zip(at + 1..)
                    .map(|(place, end)| (end, place, place.tail(&all[end - place.skip..]))),
            );
            cell = cell.behind(tokens, tokens.len());
        }
        let behind = tails[first.skip.min(tails.len())..].iter().rev();
        while let Some((end, name)) = self
            .known
            .first(behind.clone().map(|(end, _, name)| (*end, *name)))
        {
            let place = tails[end - 1].1;
            let (chunk_end, chunk, length) =
                *ends.iter().find(|(chunk_end, ..)| *chunk_end >= end)?;
            let parent = Some((chunk, (length - (chunk_end - end)) as u32));
            match self.bring(place, name, parent, &[TAIL]) {
                Brought::There => return Some(name),
                Brought::Gone => {}
                Brought::No => return None,
            }
        }
        None
    }

    /// Sees to it that a chunk is in the folder, and stands behind its parent there. Its sender may have divided what is
    /// before in another way: then it names another parent, and no store could put it anywhere here.
    fn bring(
        &mut self,
        place: Place,
        name: Name,
        parent: Option<(Name, u32)>,
        tokens: &[i32],
    ) -> Brought {
        if !self.folder.lacks(&name) {
            let header = self.folder.header(&name);
            return if header.is_some_and(|header| header.chunk.parent == parent) {
                Brought::There
            } else {
                Brought::No
            };
        }
        if self.not_before.is_some_and(|time| Instant::now() < time) {
            return Brought::No;
        }
        // A connection that was not used for a while may have been closed. What else is wrong with the remote, or with
        // a chunk there, the mirror finds out, and says it.
        let most = self.most(&place.fingerprint, tokens);
        let mut fetch = || self.remote.0.get(&place.fingerprint, &name, most);
        let Ok(fetched) = fetch().or_else(|_| fetch()) else {
            self.not_before = Some(Instant::now() + PAUSE);
            return Brought::No;
        };
        let is_wanted = |chunk: &Chunk| {
            let skip = chunk.start as usize % GRID;
            let is_it = chunk.name == name && chunk.fingerprint == place.fingerprint;
            is_it && (chunk.link, skip, &*chunk.tokens) == (place.link, place.skip, tokens)
        };
        let found = match fetched {
            Body::Whole(whole) => read_whole(whole).ok(),
            Body::Nothing | Body::TooLarge => None,
        };
        let Some((chunk, rows)) = found.filter(|(chunk, _)| is_wanted(chunk)) else {
            self.known.remove(&name);
            return Brought::Gone;
        };
        let chunk = Chunk { parent, ..chunk };
        let written = self.writer.write(&chunk, Arc::new(rows)).is_ok() && self.writer.flush(DISK);
        let mut done = self.writer.done();
        if written && !done.any(|done| matches!(done, Done::Failed(..))) {
            Brought::There
        } else {
            Brought::No
        }
    }

    /// The most bytes that a chunk of these tokens may have: as many as it needs, if its model tells.
    fn most(&self, of: &Fingerprint, tokens: &[i32]) -> u64 {
        if *tokens == [TAIL] {
            return self.largest;
        }
        let layout = self.folder.origin(of).and_then(|origin| origin.layout);
        let count = tokens.len() as u64;
        let of_token = layout.map(|layout| layout.bytes_per_token() as u64 + 4);
        of_token.map_or(self.largest, |of_token| {
            HEADER_BYTES + of_token.saturating_mul(count)
        })
    }
}
