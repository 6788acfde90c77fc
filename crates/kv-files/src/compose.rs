//! From files into a state.

use contextpilot_kv_store::{Composer, Piece};

use crate::{Folder, ReadError};

impl Folder {
    /// Reads the first `take` tokens of a piece to where they stand in a state, which must be the state's next
    /// positions. `rows`: memory that is used again.
    ///
    /// The checksum is over all of the file. So the state is only good if all of its pieces were read without an
    /// error.
    ///
    /// # Errors
    /// As [`read`](Self::read), and if the rows do not fit the state.
    pub fn compose(
        &self,
        composer: &mut Composer<'_>,
        piece: &Piece,
        take: usize,
        rows: &mut Vec<u8>,
    ) -> Result<(), ReadError> {
        let tokens = piece.chunk_tokens;
        if take == tokens {
            if let Some(mut places) = composer.places(piece.start, tokens) {
                self.read_to(&piece.name, &mut places)?;
                composer.placed(tokens);
                return Ok(());
            }
        }
        self.read(&piece.name, composer.bytes_of(tokens), rows)?;
        let put = composer.put(piece.start, rows, tokens, 0, take);
        put.map_err(|_| ReadError::Damaged("its rows do not fit the state"))
    }
}
