//! From files into a state.

use std::panic::resume_unwind;
use std::thread;

use contextpilot_kv_store::{Composer, Name, Piece};
use crossbeam_channel::unbounded;

use crate::{Folder, ReadError};

/// Who reads the files of a state: the caller's thread, and further ones if there is enough to be read.
///
/// Most of the time goes into the state's memory, if that is fresh: the system has to find and clear each page. Two
/// threads take half of it.
#[derive(Clone, Copy, Debug)]
pub struct Readers {
    /// Threads, with the caller's.
    pub most: usize,
    /// What each further one does first.
    pub on_start: fn(),
}

impl Readers {
    /// The caller alone.
    pub const ALONE: Self = Self {
        most: 1,
        on_start: || (),
    };

    /// How many are of use for so many bytes.
    fn for_bytes(self, bytes: usize) -> usize {
        // To start a thread takes as long as reading a hundredth of this.
        const LEAST_EACH: usize = 4 << 20;
        self.most.min(bytes / LEAST_EACH).max(1)
    }
}

impl Folder {
    /// Reads the tokens that these pieces take to where they stand in a state, which must be the state's next positions.
    /// `rows`: memory that is used again.
    ///
    /// The checksum is over all of a file. So the state is only good if all of its pieces were read without an
    /// error.
    ///
    /// # Errors
    /// A piece that cannot be read, and why: as [`read`](Self::read), or its rows do not fit the state.
    pub fn compose(
        &self,
        composer: &mut Composer<'_>,
        pieces: &[Piece],
        rows: &mut Vec<u8>,
        readers: Readers,
    ) -> Result<(), (Name, ReadError)> {
        let goes_on = |a: &Piece, b: &Piece| a.start + a.take == b.start;
        for alike in pieces.chunk_by(|a, b| is_whole(a) == is_whole(b) && goes_on(a, b)) {
            if !self.read_whole(composer, alike, readers)? {
                for piece in alike {
                    let read = self.put(composer, piece, rows);
                    read.map_err(|why| (piece.name, why))?;
                }
            }
        }
        Ok(())
    }

    /// Reads whole chunks to their places. False if they have none.
    fn read_whole(
        &self,
        composer: &mut Composer<'_>,
        pieces: &[Piece],
        readers: Readers,
    ) -> Result<bool, (Name, ReadError)> {
        let Some(first) = pieces.first().filter(|first| is_whole(first)) else {
            return Ok(false);
        };
        let tokens: Vec<usize> = pieces.iter().map(|piece| piece.chunk_tokens).collect();
        let Some(places) = composer.places(first.start, &tokens) else {
            return Ok(false);
        };
        let read = self.read_all(pieces, places, readers);
        read.map_err(|(nth, why)| (pieces[nth].name, why))?;
        composer.placed(tokens.iter().sum());
        Ok(true)
    }

    /// Each thread takes the next chunk when it has read one: whoever gets the processor reads. Of the chunks that cannot
    /// be read, the error has the first one's number: the others may only continue it.
    fn read_all(
        &self,
        pieces: &[Piece],
        places: Vec<Vec<&mut [u8]>>,
        readers: Readers,
    ) -> Result<(), (usize, ReadError)> {
        let bytes = places.iter().flatten().map(|place| place.len()).sum();
        let (give, take) = unbounded();
        for job in pieces.iter().zip(places).enumerate() {
            let _ = give.send(job);
        }
        let read = || {
            for (nth, (piece, mut places)) in take.try_iter() {
                if let Err(why) = self.read_to(&piece.name, &mut places) {
                    // The others stop, too. All before this one were taken.
                    take.try_iter().for_each(drop);
                    return Err((nth, why));
                }
            }
            Ok(())
        };
        thread::scope(|scope| {
            let start = |_| {
                let thread = thread::Builder::new().name("contextpilot-read".into());
                let work = || {
                    (readers.on_start)();
                    read()
                };
                // If the system gives none, those that there are read all.
                thread.spawn_scoped(scope, work).ok()
            };
            let further = (1..readers.for_bytes(bytes)).map_while(start);
            let further: Vec<_> = further.collect();
            let own = read();
            let results = further.into_iter().map(|thread| thread.join());
            let results = results.map(|one| one.unwrap_or_else(|panic| resume_unwind(panic)));
            let errors = [own].into_iter().chain(results).filter_map(Result::err);
            let first = errors.min_by_key(|(nth, _)| *nth);
            first.map_or(Ok(()), Err)
        })
    }

    fn put(
        &self,
        composer: &mut Composer<'_>,
        piece: &Piece,
        rows: &mut Vec<u8>,
    ) -> Result<(), ReadError> {
        let tokens = piece.chunk_tokens;
        self.read(&piece.name, composer.bytes_of(tokens), rows)?;
        let put = composer.put(piece.start, rows, tokens, 0, piece.take);
        put.map_err(|_| ReadError::DOES_NOT_FIT)
    }
}

fn is_whole(piece: &Piece) -> bool {
    piece.take == piece.chunk_tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn further_threads_are_for_states_that_are_large_enough() {
        let readers = Readers {
            most: 3,
            ..Readers::ALONE
        };
        let counts = [0, 1 << 20, 8 << 20, 1 << 30].map(|bytes| readers.for_bytes(bytes));
        assert_eq!(counts, [1, 1, 2, 3]);
        assert_eq!(Readers::ALONE.for_bytes(1 << 30), 1);
    }
}
