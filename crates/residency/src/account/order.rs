//! What a prompt repeats of an earlier one behind their first difference, in whatever order: a list of
//! tools may be sorted anew, or the keys of JSON objects.

use crate::token::Token;
use std::collections::HashMap;

/// Tokens in a window. Windows are short, as the parts that change their places may be: a key of a JSON
/// object with its value.
const WINDOW: usize = 4;
/// How many tokens of each text are compared.
const FARTHEST: usize = 1 << 16;

/// What two texts have in common, in whatever order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Shared {
    /// Tokens of the first text that the second one has, too. Up to three tokens at each end of a part are
    /// not counted.
    pub(super) repeated: u32,
    /// At least so many of these stand in another order. Only windows that occur once in each text are
    /// counted: text that repeats itself has no order.
    pub(super) reordered: u32,
}

/// Compares the longest beginnings of two texts that have half of their windows in common.
pub(super) fn shared(ours: &[Token], theirs: &[Token]) -> Shared {
    let length = ours.len().min(theirs.len()).min(FARTHEST);
    let (ours, theirs) = (&ours[..length], &theirs[..length]);
    let mut surplus: HashMap<&[Token], i32> = HashMap::new();
    let (mut common, mut best) = (0, (0, 0));
    let windows = ours.windows(WINDOW).zip(theirs.windows(WINDOW));
    for (number, (our, their)) in (1..).zip(windows) {
        // Positive: this text has the window so many times more often.
        for (window, sign) in [(our, 1), (their, -1)] {
            let surplus = surplus.entry(window).or_default();
            common += usize::from(*surplus * sign < 0);
            *surplus += sign;
        }
        if common * 2 >= number {
            best = (number, common);
        }
    }
    let (windows, common) = best;
    if common == 0 {
        return Shared::default();
    }
    let end = windows + WINDOW - 1;
    Shared {
        repeated: (common + WINDOW - 1) as u32,
        reordered: reordered(&ours[..end], &theirs[..end]),
    }
}

/// How many windows would have to move for the others to stand in the same order.
fn reordered(ours: &[Token], theirs: &[Token]) -> u32 {
    let places = once(theirs);
    let mut in_ours: Vec<(usize, &[Token])> = once(ours)
        .into_iter()
        .filter(|(window, _)| places.contains_key(window))
        .map(|(window, place)| (place, window))
        .collect();
    in_ours.sort_unstable_by_key(|&(place, _)| place);
    // The longest ascending row of places: at each length, the row that ends lowest.
    let mut ends: Vec<usize> = Vec::new();
    for (_, window) in &in_ours {
        let place = places[window];
        let length = ends.partition_point(|&end| end < place);
        match ends.get_mut(length) {
            Some(end) => *end = place,
            None => ends.push(place),
        }
    }
    (in_ours.len() - ends.len()) as u32
}

/// The windows that occur once, and where.
fn once(text: &[Token]) -> HashMap<&[Token], usize> {
    let mut places: HashMap<&[Token], Option<usize>> = HashMap::new();
    for (place, window) in text.windows(WINDOW).enumerate() {
        let known = places.entry(window).or_insert(Some(place));
        if *known != Some(place) {
            *known = None;
        }
    }
    let places = places.into_iter();
    places
        .filter_map(|(window, place)| Some((window, place?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tool: a head that all tools have, and a body of its own.
    fn tool(number: Token) -> Vec<Token> {
        let body = (0..30).map(|place| 1000 + number * 100 + place);
        (0..10).chain(body).collect()
    }

    fn of(ours: &[Token], theirs: &[Token]) -> (u32, u32) {
        let Shared {
            repeated,
            reordered,
        } = shared(ours, theirs);
        (repeated, reordered)
    }

    #[test]
    fn tools_in_reversed_order_are_repeated_and_reordered() {
        let theirs: Vec<Token> = (0..12).flat_map(tool).collect();
        let ours: Vec<Token> = (0..12).rev().flat_map(tool).collect();
        let (repeated, reordered) = of(&ours, &theirs);
        // At each of the 11 joints, three windows have tokens of two tools.
        assert!((447..=480).contains(&repeated), "{repeated}");
        assert!(reordered >= 11 * 27, "{reordered}");
        // Other questions follow.
        let long = |tools: &[Token], from: Token| -> Vec<Token> {
            tools.iter().copied().chain(from..from + 2000).collect()
        };
        let (repeated, reordered) = of(&long(&ours, 50_000), &long(&theirs, 60_000));
        assert!((447..=480).contains(&repeated), "{repeated}");
        assert!(reordered >= 11 * 27, "{reordered}");
    }

    #[test]
    fn one_tool_that_moved_is_reordered() {
        let theirs: Vec<Token> = (0..12).flat_map(tool).collect();
        let ours: Vec<Token> = [11].into_iter().chain(0..11).flat_map(tool).collect();
        let (repeated, reordered) = of(&ours, &theirs);
        assert!((470..=480).contains(&repeated), "{repeated}");
        assert!((27..60).contains(&reordered), "{reordered}");
    }

    #[test]
    fn changes_in_place_are_repeated_and_in_order() {
        let theirs: Vec<Token> = (0..12).flat_map(tool).collect();
        let mut ours = theirs.clone();
        for place in (5..480).step_by(40) {
            ours[place] = 9;
        }
        let (repeated, reordered) = of(&ours, &theirs);
        assert!(repeated > 400 && reordered == 0, "{repeated} {reordered}");
    }

    #[test]
    fn other_text_is_neither() {
        let [ours, theirs] = [0, 1000].map(|from| (from..from + 500).collect::<Vec<_>>());
        assert_eq!(of(&ours, &theirs), (0, 0));
        assert_eq!(of(&ours, &[]), (0, 0));
        assert_eq!(of(&[1, 2], &[2, 1]), (0, 0));
        // Text that repeats itself has no order.
        let [ours, theirs] = [[5; 300], [5; 300]];
        assert_eq!(of(&ours, &theirs), (300, 0));
    }
}
