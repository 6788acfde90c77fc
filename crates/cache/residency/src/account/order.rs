//! What a prompt repeats of an earlier one behind their first difference, in whatever order: a list of
//! tools may be sorted anew, or the keys of JSON objects.

use super::past::common;
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
    /// Tokens of the first text in windows that the second one has, too.
    pub(super) repeated: u32,
    /// At least so many of these stand in another order. Only windows that occur once in each text are
    /// counted: text that repeats itself has no order.
    pub(super) reordered: u32,
    /// Tokens at the beginning of the first text, before the first that is repeated.
    pub(super) unmatched: u32,
}

/// Compares the longest beginnings of two texts that have half of their windows in common.
pub(super) fn shared(ours: &[Token], theirs: &[Token]) -> Shared {
    let length = ours.len().min(theirs.len()).min(FARTHEST);
    let end = alike(&ours[..length], &theirs[..length]);
    let (ours, theirs) = (&ours[..end], &theirs[..end]);
    let mut left: HashMap<&[Token], u32> = HashMap::new();
    for window in theirs.windows(WINDOW) {
        *left.entry(window).or_default() += 1;
    }
    let mut shared = Shared {
        repeated: 0,
        reordered: reordered(ours, theirs),
        unmatched: end as u32,
    };
    // The end of the last window that is repeated: windows overlap.
    let mut covered = 0;
    for (place, window) in ours.windows(WINDOW).enumerate() {
        let Some(left) = left.get_mut(window).filter(|left| **left > 0) else {
            continue;
        };
        *left -= 1;
        shared.unmatched = shared.unmatched.min(place as u32);
        shared.repeated += (place + WINDOW - covered.max(place)) as u32;
        covered = place + WINDOW;
    }
    shared
}

/// The length of a block with which `theirs` begins, and that stands further back in `ours`: behind all that stood behind it in the
/// earlier prompt (`asked` tokens of `theirs`), and before something new. So it looks if a chat template has the tools before the
/// last message. 0: there is none.
pub(super) fn block(ours: &[Token], theirs: &[Token], asked: usize) -> u32 {
    /// A shorter block may be a coincidence, and so may what it stands behind.
    const SURE: usize = 16;
    /// Where blocks join, so many tokens may be others: a marker that is no token of its own, as `[INST]` often is, has up to six.
    const JOINT: usize = 8;
    let [ours, theirs] = [ours, theirs].map(|text| &text[..text.len().min(FARTHEST)]);
    let found = (0..JOINT).find_map(|skip| {
        let window = theirs.get(skip..skip + WINDOW)?;
        let place = ours.windows(WINDOW).position(|own| own == window)?;
        let length = common(&ours[place..], &theirs[skip..]);
        (length >= SURE).then_some((place, skip, length))
    });
    let Some((place, skip, length)) = found else {
        return 0;
    };
    let end = skip + length;
    let (front, behind) = (&ours[..place], &theirs[end..]);
    let joints = (0..JOINT).flat_map(|our| (0..JOINT).map(move |their| (our, their)));
    let is_behind = joints.into_iter().any(|(our, their)| {
        let rests = front.get(our..).zip(behind.get(their..));
        let run = rests.map_or(0, |(front, behind)| common(front, behind));
        run >= SURE && end + their + run + JOINT >= asked
    });
    if is_behind && place + length + JOINT < ours.len() {
        end as u32
    } else {
        0
    }
}

/// The longest beginnings of two texts of equal length that have half of their windows in common: their
/// length.
fn alike(ours: &[Token], theirs: &[Token]) -> usize {
    let mut surplus: HashMap<&[Token], i32> = HashMap::new();
    let (mut common, mut end) = (0, 0);
    let windows = ours.windows(WINDOW).zip(theirs.windows(WINDOW));
    for (place, (our, their)) in windows.enumerate() {
        // Positive: our text has the window so many times more often.
        for (window, sign) in [(our, 1), (their, -1)] {
            let surplus = surplus.entry(window).or_default();
            common += usize::from(*surplus * sign < 0);
            *surplus += sign;
        }
        if common * 2 > place {
            end = place + WINDOW;
        }
    }
    end
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

    fn counts(ours: &[Token], theirs: &[Token]) -> (u32, u32) {
        let shared = shared(ours, theirs);
        (shared.repeated, shared.reordered)
    }

    #[test]
    fn tools_in_reversed_order_are_repeated_and_reordered() {
        let theirs: Vec<Token> = (0..12).flat_map(tool).collect();
        let ours: Vec<Token> = (0..12).rev().flat_map(tool).collect();
        let (repeated, reordered) = counts(&ours, &theirs);
        assert_eq!(repeated, 480);
        assert!(reordered >= 11 * 27, "{reordered}");
        assert_eq!(shared(&ours, &theirs).unmatched, 0);
        // Other questions follow.
        let long = |tools: &[Token], from: Token| -> Vec<Token> {
            tools.iter().copied().chain(from..from + 2000).collect()
        };
        let (repeated, reordered) = counts(&long(&ours, 50_000), &long(&theirs, 60_000));
        assert_eq!(repeated, 480);
        assert!(reordered >= 11 * 27, "{reordered}");
        // A date came in front of them.
        let dated = [&[7, 7, 8, 8, 8, 9][..], &ours].concat();
        let shared = shared(&dated, &theirs);
        assert_eq!((shared.repeated, shared.unmatched), (474, 6));
    }

    #[test]
    fn the_keys_of_objects_in_another_order_are_repeated() {
        let object = |number: Token| -> [Vec<Token>; 3] {
            [0, 10, 20].map(|from| (1000 * number + from..1000 * number + from + 7).collect())
        };
        let theirs: Vec<Token> = (0..20).flat_map(|n| object(n).concat()).collect();
        let sorted = |number| {
            let [name, text, kind] = object(number);
            [text, name, kind].concat()
        };
        let ours: Vec<Token> = (0..20).flat_map(sorted).collect();
        let (repeated, reordered) = counts(&ours, &theirs);
        assert_eq!(repeated, 20 * 21);
        assert!(reordered >= 20 * 4, "{reordered}");
    }

    #[test]
    fn a_block_that_stands_further_back_is_told_from_another_order() {
        let run = |from: Token, length: Token| -> Vec<Token> { (from..from + length).collect() };
        let [tools, message, question] = [run(100, 300), run(1000, 60), run(2000, 40)];
        let answered = [&tools[..], &message, &run(3000, 20)].concat();
        let of = |ours: &[&[Token]]| block(&ours.concat(), &answered, 360);
        assert_eq!(of(&[&message, &tools, &question]), 300);
        assert_eq!(of(&[&message, &run(3000, 20), &tools, &question]), 300);
        // Where they join, tokens may be others.
        assert_eq!(of(&[&[7], &message[1..], &tools, &question]), 300);
        assert_eq!(of(&[&message, &[7, 8], &tools[2..], &question]), 300);
        // What is in front of it is not what stood behind it, or only a little is.
        assert_eq!(of(&[&question, &tools, &message]), 0);
        assert_eq!(of(&[&message[..20], &question, &tools, &question]), 0);
        // Nothing new is behind it: the two have changed their places.
        assert_eq!(of(&[&message, &tools]), 0);
        let short = [&tools[..15], &message].concat();
        let swapped = [&message[..], &tools[..15], &question].concat();
        assert_eq!(block(&swapped, &short, 75), 0);
        // Tools in another order, and the first one as the second.
        let theirs: Vec<Token> = (0..12).flat_map(tool).chain(message).collect();
        let of = |tools: &[Token]| {
            let ours: Vec<Token> = tools.iter().copied().flat_map(tool).collect();
            block(&[ours, question.clone()].concat(), &theirs, theirs.len())
        };
        assert_eq!(of(&[11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0]), 0);
        assert_eq!(of(&[1, 0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]), 0);
    }

    #[test]
    fn one_tool_that_moved_is_reordered() {
        let theirs: Vec<Token> = (0..12).flat_map(tool).collect();
        let ours: Vec<Token> = [11].into_iter().chain(0..11).flat_map(tool).collect();
        let (repeated, reordered) = counts(&ours, &theirs);
        assert_eq!(repeated, 480);
        assert!((27..60).contains(&reordered), "{reordered}");
    }

    #[test]
    fn changes_in_place_are_repeated_and_in_order() {
        let theirs: Vec<Token> = (0..12).flat_map(tool).collect();
        let mut ours = theirs.clone();
        for place in (5..480).step_by(40) {
            ours[place] = 9;
        }
        let (repeated, reordered) = counts(&ours, &theirs);
        assert!(repeated > 400 && reordered == 0, "{repeated} {reordered}");
    }

    #[test]
    fn other_text_is_neither() {
        let [ours, theirs] = [0, 1000].map(|from| (from..from + 500).collect::<Vec<_>>());
        assert_eq!(counts(&ours, &theirs), (0, 0));
        assert_eq!(counts(&ours, &[]), (0, 0));
        assert_eq!(counts(&[1, 2], &[2, 1]), (0, 0));
        // Text that repeats itself has no order.
        let [ours, theirs] = [[5; 300], [5; 300]];
        assert_eq!(counts(&ours, &theirs), (300, 0));
    }
}
