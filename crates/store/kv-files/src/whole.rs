//! A chunk in one piece, as its file has it: for stores elsewhere.

use contextpilot_kv_store::Chunk;

use crate::format::Head;
use crate::{Folder, ReadError};

impl Folder {
    /// Header, tokens and rows of a chunk, verified.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn whole(&self, chunk: &Chunk) -> Result<Vec<u8>, ReadError> {
        let mut rows = Vec::new();
        self.read(&chunk.name, chunk.bytes, &mut rows)?;
        let mut whole = Head::write(chunk, rows.len() as u64, crc32fast::hash(&rows));
        whole.append(&mut rows);
        Ok(whole)
    }
}

/// What the first bytes of a chunk say that it is. Its rows may be others than it says.
///
/// # Errors
/// It is damaged, or another version's.
pub fn read_header(bytes: &[u8]) -> Result<Chunk, ReadError> {
    Ok(Head::read(bytes)?.chunk)
}

/// Takes apart what [`Folder::whole`] has put together: the chunk, and its rows.
///
/// # Errors
/// It is damaged, or another version's.
pub fn read_whole(mut bytes: Vec<u8>) -> Result<(Chunk, Vec<u8>), ReadError> {
    let head = Head::read(&bytes)?;
    let rows = bytes.split_off(Head::size(&head.chunk));
    if rows.len() as u64 != head.chunk.bytes {
        return Err(ReadError::Damaged("it has another size than it says"));
    }
    if crc32fast::hash(&rows) != head.rows_crc {
        return Err(ReadError::Damaged("the checksum of its rows is wrong"));
    }
    Ok((head.chunk, rows))
}
