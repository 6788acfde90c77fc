//! The entries of a batch, by sequence.

use contextpilot_kv_engine::Part;
use contextpilot_kv_store::Run;
use contextpilot_residency::Entry;

use crate::store::media::Media;

/// Rows of an image or a sound, behind the first `from`, with these tokens.
pub(super) fn part_of_media(media: &Media, from: usize, tokens: &[i32]) -> Part {
    let from = if media.shares() { 0 } else { from };
    let from = i32::try_from(from).unwrap_or(i32::MAX);
    Part {
        run: Run {
            sequence: media.sequence,
            first: media.first.saturating_add(from),
            tokens: tokens.to_vec(),
            leading: tokens.len(),
        },
        indexes: (0..).take(tokens.len()).collect(),
        follows: media.first >= 0,
        ..Part::default()
    }
}

/// Divides a batch. A generated token is a part of one entry.
pub(super) fn parts(entries: &[Entry]) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    let mut last = 0;
    for (index, entry) in entries.iter().enumerate() {
        let is_of = |part: &Part| part.run.sequence == entry.sequence;
        let known = parts.get(last).is_some_and(is_of).then_some(last);
        let known = known.or_else(|| parts.iter().position(is_of));
        last = known.unwrap_or(parts.len());
        if known.is_none() {
            parts.push(Part {
                run: Run {
                    sequence: entry.sequence,
                    first: entry.position,
                    tokens: Vec::new(),
                    leading: 0,
                },
                indexes: Vec::new(),
                follows: entry.position >= 0,
                ..Part::default()
            });
        }
        let part = &mut parts[last];
        let nth = part.run.tokens.len();
        let expected = i64::from(part.run.first) + nth as i64;
        part.follows &= i64::from(entry.position) == expected;
        if !entry.output && part.run.leading == nth {
            part.run.leading += 1;
        }
        part.run.tokens.push(entry.token);
        part.indexes.push(index as u32);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(sequence: i32, position: i32, output: bool) -> Entry {
        Entry {
            sequence,
            position,
            token: 100 + position,
            output,
        }
    }

    #[test]
    fn a_batch_is_divided_by_sequence() {
        let batch = [
            entry(1, 7, true),
            entry(0, 0, false),
            entry(0, 1, false),
            entry(0, 2, true),
            entry(2, 5, false),
            entry(2, 7, false),
        ];
        let parts = parts(&batch);
        let seen: Vec<_> = parts
            .iter()
            .map(|part| (part.run.sequence, part.run.leading, part.follows))
            .collect();
        assert_eq!(seen, [(1, 0, true), (0, 2, true), (2, 2, false)]);
        assert_eq!(parts[1].indexes, [1, 2, 3]);
        assert_eq!(parts[1].run.tokens, [100, 101, 102]);
    }
}
