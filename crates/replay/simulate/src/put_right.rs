//! Prompts without a difference that a proxy would put right.

use std::collections::HashMap;
use std::sync::Arc;

use contextpilot_traffic::{Tokens, Traffic, TrafficRequest};

/// How far behind a difference prompts are looked at for where they go on alike.
const FAR: u32 = 4096;

/// What a prompt becomes: its first tokens, and what it goes on with.
struct Change {
    /// As it was, up to where it goes on like the earlier one.
    before: Tokens,
    /// In their place.
    instead: Tokens,
}

/// The traffic, had these prompts not left the earlier ones that they share the most tokens with: each has what the earlier one
/// has there, and goes on as it does; and so do the prompts that begin with it. `None`: none of them goes on alike.
#[must_use]
pub fn put_right(traffic: &Traffic, prompts: &[usize]) -> Option<Traffic> {
    let mut right = traffic.clone();
    let mut is_any = false;
    for (nth, one) in traffic.requests.iter().enumerate() {
        // What was changed for an earlier prompt counts: another session may differ in the same text.
        let change = prompts.contains(&nth).then(|| change(&right, nth, one));
        let Some(change) = change.flatten() else {
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

fn change(traffic: &Traffic, nth: usize, one: &TrafficRequest) -> Option<Change> {
    let ours = &traffic.requests[nth].tokens;
    let earlier = traffic.requests[..nth]
        .iter()
        .map(|earlier| &earlier.tokens);
    let theirs = earlier.max_by_key(|tokens| ours.common_prefix(tokens))?;
    let at = ours.common_prefix(theirs);
    // A token's identity is of those before it, too: a few tokens behind the difference they are equal again.
    let places: HashMap<u64, u32> = (at..theirs.len().min(at.saturating_add(FAR)))
        .rev()
        .filter_map(|place| Some((theirs.at(place)?, place)))
        .collect();
    let prompt = one.record.prompt.min(at.saturating_add(FAR));
    let mut alike = (at..prompt).filter_map(|place| Some((place, *places.get(&ours.at(place)?)?)));
    let (our_place, their_place) = alike.next()?;
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
        let right = put_right(&traffic, &[2]).expect("it goes on alike");
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

    #[test]
    fn what_goes_on_otherwise_stays() {
        let traffic = sessions();
        assert!(put_right(&traffic, &[]).is_none());
        assert!(
            put_right(&traffic, &[0]).is_none(),
            "there is no earlier one"
        );
        let mut other = sessions();
        other.requests[2] = request(2, row(&[(0, 20), (600, 80)]));
        assert!(put_right(&other, &[2]).is_none());
    }
}
