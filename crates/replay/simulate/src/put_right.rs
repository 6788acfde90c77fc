//! Prompts without a difference that a proxy would put right.

use std::collections::HashMap;
use std::sync::Arc;

use contextpilot_traffic::{Tokens, Traffic, TrafficRequest};

/// How far behind a difference prompts are looked at for where they go on alike.
const FAR: u32 = 4096;
/// The same of those that have another order.
const FARTHEST: u32 = 1 << 16;
/// Where parts join in another order, so many tokens more or fewer may stand.
const JOINTS: u32 = 8;

/// What a prompt becomes: its first tokens, and what it goes on with.
struct Change {
    /// As it was, up to where it goes on like the earlier one.
    before: Tokens,
    /// In their place.
    instead: Tokens,
}

/// What prompts differ in from earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    /// A text, behind which they go on alike.
    Text,
    /// The order of what follows, as that of tools.
    Order,
}

/// The traffic, had these prompts not left the earlier ones that they share the most tokens with: each has what the earlier one
/// has there, and goes on as it does; and so do the prompts that begin with it. `None`: none of them goes on alike.
#[must_use]
pub fn put_right(traffic: &Traffic, prompts: &[usize], difference: Difference) -> Option<Traffic> {
    let mut right = traffic.clone();
    let mut is_any = false;
    for (nth, request) in traffic.requests.iter().enumerate() {
        // What was changed for an earlier prompt counts: another session may differ in the same text.
        if !prompts.contains(&nth) {
            continue;
        }
        let Some(change) = change(&right, nth, request, difference) else {
            continue;
        };
        is_any = true;
        for later in &mut right.requests[nth..] {
            if later.tokens.common_prefix(&change.before) == change.before.len() {
                change.apply(later);
            }
        }
    }
    is_any.then_some(right)
}

fn change(
    traffic: &Traffic,
    nth: usize,
    request: &TrafficRequest,
    difference: Difference,
) -> Option<Change> {
    let ours = &traffic.requests[nth].tokens;
    let earlier = traffic.requests[..nth]
        .iter()
        .map(|earlier| &earlier.tokens);
    let theirs = earlier.max_by_key(|tokens| ours.common_prefix(tokens))?;
    let at = ours.common_prefix(theirs);
    let ends = match difference {
        Difference::Text => behind_text(ours, theirs, at, request.record.prompt),
        Difference::Order => behind_order(ours, theirs, at, request.record.prompt),
    };
    let (our_place, their_place) = ends?;
    let first = |tokens: &Tokens, length| {
        let mut first = Tokens::new();
        first.extend(tokens, 0, length);
        first
    };
    Some(Change {
        before: first(ours, our_place),
        instead: first(theirs, their_place),
    })
}

/// The first places from which both go on alike.
fn behind_text(ours: &Tokens, theirs: &Tokens, at: u32, prompt: u32) -> Option<(u32, u32)> {
    // A token's identity is of those before it, too: a few tokens behind the difference they are equal again.
    let places: HashMap<u64, u32> = (at..theirs.len().min(at.saturating_add(FAR)))
        .rev()
        .filter_map(|place| Some((theirs.at(place)?, place)))
        .collect();
    let prompt = prompt.min(at.saturating_add(FAR));
    let mut alike = (at..prompt).filter_map(|place| Some((place, *places.get(&ours.at(place)?)?)));
    alike.next()
}

/// The places behind the longest stretches that have the same tokens, in whatever order: of those where both go on alike, the ones
/// in front of which most is in common and least is not.
fn behind_order(ours: &Tokens, theirs: &Tokens, at: u32, prompt: u32) -> Option<(u32, u32)> {
    let length = prompt.saturating_sub(at).min(FARTHEST);
    let shifts = (0..=JOINTS).flat_map(|shift| [(shift, 0), (0, shift)]);
    let ends = shifts.filter_map(|(more_of_ours, more_of_theirs)| {
        // How many more of ours than of theirs there are of each token.
        let mut surplus: HashMap<u64, i32> = HashMap::new();
        let count = |surplus: &mut HashMap<u64, i32>, token: Option<u64>, sign: i32| {
            let surplus = surplus.entry(token?).or_default();
            let is_common = *surplus * sign < 0;
            *surplus += sign;
            Some(i64::from(is_common))
        };
        for place in at..at + more_of_ours {
            count(&mut surplus, ours.at(place), 1);
        }
        for place in at..at + more_of_theirs {
            count(&mut surplus, theirs.at(place), -1);
        }
        let (mut common, mut best) = (0, None);
        for nth in 0..length {
            let (our_place, their_place) = (at + nth + more_of_ours, at + nth + more_of_theirs);
            let (our, their) = (ours.at(our_place), theirs.at(their_place));
            let (Some(_), Some(_)) = (our, their) else {
                break;
            };
            let score = 2 * common - i64::from(nth);
            if our == their && best.is_none_or(|(most, _)| score > most) {
                best = Some((score, (our_place, their_place)));
            }
            common += count(&mut surplus, our, 1)?;
            common += count(&mut surplus, their, -1)?;
        }
        best
    });
    let (score, places) = ends.max_by_key(|(score, _)| *score)?;
    (score > 0).then_some(places)
}

impl Change {
    fn apply(&self, request: &mut TrafficRequest) {
        let generated = request.generated();
        let mut tokens = self.instead.clone();
        tokens.extend(&request.tokens, self.before.len(), request.tokens.len());
        request.record.prompt = tokens.len().saturating_sub(generated);
        request.tokens = Arc::new(tokens);
    }
}

#[cfg(test)]
mod tests {
    use contextpilot_traffic::Setup;

    use super::*;
    use crate::made::{self, request, row};

    /// Two sessions of two turns. The second one differs in five tokens, and is two tokens longer there.
    fn sessions() -> Traffic {
        let (one, other) = (
            [(0, 20), (100, 5), (200, 75)],
            [(0, 20), (300, 7), (200, 75)],
        );
        let then = |first: [(u64, u32); 3], more| row(&[first.as_slice(), &[more]].concat());
        let requests = vec![
            request(0, row(&one)),
            request(1, then(one, (400, 10))),
            request(2, row(&other)),
            request(3, then(other, (500, 10))),
        ];
        made::traffic(Setup::default(), requests)
    }

    #[test]
    fn a_session_that_is_put_right_goes_on_like_the_one_before_in_all_of_its_turns() {
        let traffic = sessions();
        let right = put_right(&traffic, &[2], Difference::Text).expect("it goes on alike");
        for (nth, like) in [(0, 0), (1, 1), (2, 0)] {
            assert_eq!(
                right.requests[nth].tokens, traffic.requests[like].tokens,
                "{nth}"
            );
        }
        let last = &right.requests[3];
        assert_eq!(
            *last.tokens,
            row(&[(0, 20), (100, 5), (200, 75), (500, 10)])
        );
        assert_eq!(last.record.prompt, 110);
        let evaluated = |traffic: &Traffic| {
            let recorded = made::recorded(traffic);
            crate::simulate(traffic, &recorded).evaluated_tokens
        };
        // 100, 10, 82 and 10; the last token is always evaluated.
        assert_eq!(evaluated(&traffic), 100 + 10 + 82 + 10);
        assert_eq!(evaluated(&right), 100 + 10 + 1 + 10);
    }

    /// Four tools, and a message. Where tools join, a token is another one.
    fn tools(order: [u64; 4], message: u64) -> Tokens {
        let tools = order.map(|tool| [(10_000 + 100 * tool + order[0], 1), (1_000 * tool, 40)]);
        let mut runs = vec![(1, 20)];
        runs.extend(tools.concat());
        runs.extend([(20_000, 10), (message, 30)]);
        row(&runs)
    }

    #[test]
    fn tools_in_another_order_become_those_of_the_earlier_prompt_and_messages_stay() {
        let orders = [[1, 2, 3, 4], [3, 4, 1, 2], [4, 1, 3, 2]];
        let requests = orders.iter().zip([30_000, 31_000, 32_000]).zip(0..);
        let requests = requests.map(|((order, message), nth)| request(nth, tools(*order, message)));
        let traffic = made::traffic(Setup::default(), requests.collect());
        let right = put_right(&traffic, &[1, 2], Difference::Order).expect("they are the same");
        for (nth, message) in [30_000, 31_000, 32_000].into_iter().enumerate() {
            assert_eq!(
                *right.requests[nth].tokens,
                tools(orders[0], message),
                "{nth}"
            );
        }
        // The first place that is alike is in the middle of a tool.
        let text = put_right(&traffic, &[1], Difference::Text).expect("a place is alike");
        assert_ne!(text.requests[1].tokens, right.requests[1].tokens);
        // Other tools are not the same in another order.
        let mut other = traffic;
        other.requests[1] = request(1, tools([5, 6, 7, 8], 31_000));
        assert!(put_right(&other, &[1], Difference::Order).is_none());
    }

    #[test]
    fn what_goes_on_otherwise_stays() {
        let traffic = sessions();
        assert!(put_right(&traffic, &[], Difference::Text).is_none());
        assert!(
            put_right(&traffic, &[0], Difference::Text).is_none(),
            "there is no earlier one"
        );
        let mut other = sessions();
        other.requests[2] = request(2, row(&[(0, 20), (600, 80)]));
        assert!(put_right(&other, &[2], Difference::Text).is_none());
    }
}
