//! Whose cells a part of a state has.

use crate::Layout;
use crate::state::{sequence_of, word};

impl Layout {
    /// Makes of a part of a state, without magic number and sequence, what the engine writes of another sequence that has
    /// the same cells: they are in the stream of that sequence, and name it. An engine that loads the part overlooks
    /// both; a comparison of files of slots does not. False if the part is not understood; then it may be anything.
    #[must_use]
    pub fn readdress(&self, part: &mut [u8], sequence: i32) -> bool {
        // The engines of early 2025 do not write down whose cells they are.
        !self.owners || self.put_address(part, sequence).is_some()
    }

    fn put_address(&self, part: &mut [u8], sequence: i32) -> Option<()> {
        if self.streams == 0 {
            return self.put_owner(part, sequence);
        }
        let to = self.stream(sequence)?;
        let (streams, counts) = part.split_at_mut_checked(4)?;
        if usize::try_from(word(streams, 0)) != Ok(self.streams) {
            return None;
        }
        let from = counts
            .chunks_exact(4)
            .position(|count| word(count, 0) != 0)?;
        // Where the counts of the streams behind one begin, which are at the end.
        let size = counts.len();
        let end_of = |stream| size.checked_sub(4 * self.streams.checked_sub(stream + 1)?);
        if counts[end_of(from)?..].iter().any(|byte| *byte != 0) {
            return None;
        }
        // Each stream without cells is one zero, before or behind those that are.
        if from > to {
            counts.rotate_left(4 * (from - to))
        } else {
            counts.rotate_right(4 * (to - from))
        }
        self.put_owner(counts.get_mut(4 * to..end_of(to)?)?, sequence)
    }

    /// Of a stream.
    fn put_owner(&self, part: &mut [u8], sequence: i32) -> Option<()> {
        let (count, cells) = part.split_at_mut_checked(4)?;
        let size = self.cell_size();
        let count = usize::try_from(word(count, 0)).ok()?;
        let cells = cells.get_mut(..count.checked_mul(size)?)?;
        if cells.is_empty() || sequence < 0 {
            return None;
        }
        sequence_of(cells, self.extra).ok()?;
        for cell in cells.chunks_exact_mut(size) {
            cell[size - 4..].copy_from_slice(&sequence.to_le_bytes());
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Rows;

    fn layout(streams: usize) -> Layout {
        Layout {
            magic: false,
            streams,
            owners: streams > 0,
            extra: 1,
            transposed: false,
            words: Vec::new(),
            k: vec![Rows {
                kind: 1,
                unit: 4,
                repeats: 1,
            }],
            v: Vec::new(),
        }
    }

    /// Two cells of a sequence in a stream, and something behind them.
    fn part(streams: u32, stream: u32, sequence: u32) -> Vec<u8> {
        let mut words = vec![streams];
        words.extend((0..stream).map(|_| 0));
        words.push(2);
        for position in [7, 9] {
            words.extend([position, 1, 100 + position, sequence]);
        }
        words.extend([11, 12, 13]);
        words.extend((stream + 1..streams).map(|_| 0));
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn cells_get_the_name_and_the_stream_of_another_sequence() {
        for (streams, of) in [(1, vec![0, 5, 200]), (2, vec![0, 1]), (5, vec![0, 2, 4])] {
            let layout = layout(streams as usize);
            let stream = |sequence: u32| if streams == 1 { 0 } else { sequence };
            for from in &of {
                for to in &of {
                    let mut bytes = part(streams, stream(*from), *from);
                    assert!(layout.readdress(&mut bytes, *to as i32));
                    assert_eq!(bytes, part(streams, stream(*to), *to), "{from} to {to}");
                }
            }
        }
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        let two = layout(2);
        let refused = |mut bytes: Vec<u8>, sequence| !two.readdress(&mut bytes, sequence);
        let good = part(2, 1, 1);
        assert!(!refused(good.clone(), 0));
        assert!(refused(good.clone(), 2), "no such stream");
        assert!(refused(good.clone(), -1));
        assert!(refused(part(3, 1, 1), 0), "another number of streams");
        for end in [0, 3, 4, 8, 12, 40] {
            assert!(refused(good[..end].to_vec(), 0), "{end} bytes");
        }
        let mut two_sequences = good.clone();
        two_sequences[16] = 2;
        assert!(refused(two_sequences, 0));
        let mut cells_in_both = part(2, 0, 0);
        let last = cells_in_both.len() - 1;
        cells_in_both[last] = 1;
        assert!(refused(cells_in_both, 1));
        let mut many = good;
        many[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(refused(many, 0));
    }

    #[test]
    fn older_engines_name_no_sequence() {
        let mut anything = vec![1, 2, 3];
        assert!(layout(0).readdress(&mut anything, 3));
        assert_eq!(anything, [1, 2, 3]);
        // Those of mid-2025 do, and have no streams.
        let newer = Layout {
            owners: true,
            ..layout(0)
        };
        let without_streams = |sequence| part(1, 0, sequence)[4..].to_vec();
        let mut cells = without_streams(0);
        assert!(newer.readdress(&mut cells, 3));
        assert_eq!(cells, without_streams(3));
        assert!(!newer.readdress(&mut cells, -1));
        assert!(!newer.readdress(&mut [0; 8], 3), "no cells");
    }
}
