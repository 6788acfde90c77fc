//! Prompts of `/infill` in the other order.

use contextpilot_residency::Token;

use super::slot::Open;

/// The tokens of a request as they would have been with `--spm-infill`. `None`: it is not for `/infill`, or it is not certain
/// where the parts of its prompt are.
pub(super) fn suffix_first(open: &Open, markers: Option<[Token; 3]>) -> Option<Vec<Token>> {
    let markers = markers.filter(|_| open.infill && open.discarded == 0)?;
    let (prompt, answer) = open.tokens.split_at_checked(open.record.prompt as usize)?;
    let mut tokens = exchanged(prompt, markers)?;
    tokens.extend_from_slice(answer);
    Some(tokens)
}

/// The server's `format_prompt_infill` makes `extra [prefix] … [suffix] … [middle]`, or with `--spm-infill`
/// `extra [suffix] … [prefix] … [middle]`.
fn exchanged(prompt: &[Token], [prefix, suffix, middle]: [Token; 3]) -> Option<Vec<Token>> {
    let (last, parts) = prompt.split_last()?;
    let only = |marker: Token| {
        let mut all = (0..parts.len()).filter(|&at| parts[at] == marker);
        all.next().filter(|_| all.next().is_none())
    };
    let (before, after) = (only(prefix)?, only(suffix)?);
    let extra = parts.get(..before).filter(|_| *last == middle)?;
    let (prefix, suffix) = (parts.get(before..after)?, &parts[after..]);
    Some([extra, suffix, prefix, &[*last]].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_prompt_are_exchanged_where_they_are_certain() {
        let of = |prompt: &[Token]| exchanged(prompt, [101, 102, 103]);
        let usual = of(&[7, 8, 101, 1, 2, 102, 3, 4, 5, 103]);
        assert_eq!(usual, Some(vec![7, 8, 102, 3, 4, 5, 101, 1, 2, 103]));
        assert_eq!(of(&[101, 102, 103]), Some(vec![102, 101, 103]));
        // In another order, without an end, with a marker in the text, and cut off.
        assert_eq!(of(&[102, 3, 101, 1, 103]), None);
        assert_eq!(of(&[101, 1, 102, 3]), None);
        assert_eq!(of(&[101, 101, 102, 3, 103]), None);
        assert_eq!(of(&[101, 1, 103]), None);
        assert_eq!(of(&[]), None);
    }
}
