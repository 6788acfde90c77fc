use super::node::NODE_BYTES;
use super::*;
use proptest::prelude::*;

/// All that was recorded, as lists: the latest last.
#[derive(Default)]
struct Naive {
    contents: Vec<(Nth, Moment, Vec<Token>)>,
    /// Each token's loss, by the prefix that ends with it, and when it was recorded again.
    losses: HashMap<Vec<Token>, (LossId, Option<Moment>)>,
    now: Moment,
}

impl Naive {
    fn record(&mut self, tokens: &[Token], nth: Nth) {
        self.contents.push((nth, self.now, tokens.to_vec()));
        for end in 1..=tokens.len() {
            if let Some((_, until)) = self.losses.get_mut(&tokens[..end]) {
                until.get_or_insert(self.now);
            }
        }
    }

    fn lose(&mut self, tokens: &[Token], from: u32, loss: LossId) {
        let known = self.common(tokens, |_, _| true);
        for end in from as usize + 1..=known {
            self.losses.insert(tokens[..end].to_vec(), (loss, None));
        }
    }

    fn lost(&self, tokens: &[Token], begun: Moment) -> Option<LossId> {
        let &(loss, until) = self.losses.get(tokens)?;
        until.is_none_or(|until| until > begun).then_some(loss)
    }

    /// The most tokens in common with any content of which this is true.
    fn common(&self, tokens: &[Token], counts: impl Fn(Nth, Moment) -> bool) -> usize {
        let contents = self.contents.iter();
        let counting = contents.filter(|(nth, since, _)| counts(*nth, *since));
        let each = counting.map(|(.., held)| common(held, tokens));
        each.max().unwrap_or(0)
    }

    fn nearest(&self, tokens: &[Token], nth: Nth, begun: Moment) -> Option<Nearest> {
        let most = self.common(tokens, |_, _| true);
        let before = self.common(tokens, |_, since| since <= begun);
        let earlier = self.common(tokens, |other, since| since <= begun || other < nth);
        let mut latest = self.contents.iter().rev();
        let (nearest, _, held) = latest.find(|(.., held)| common(held, tokens) == most)?;
        let then = self.common(held, |_, since| since <= begun);
        (earlier > 0).then(|| Nearest {
            common: most as u32,
            before: before as u32,
            earlier: earlier as u32,
            nth: *nearest,
            rest: held[most..].to_vec(),
            lost: (most..then)
                .map(|at| (1, self.lost(&held[..=at], begun)))
                .collect(),
        })
    }
}

#[derive(Clone, Debug)]
enum Step {
    Record(Vec<Token>, Nth),
    Begin,
    Lose(Vec<Token>, u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let tokens = prop::collection::vec(0..2_i32, 1..14);
    let step = prop_oneof![
        3 => (tokens.clone(), 1..9_u64).prop_map(|(tokens, nth)| Step::Record(tokens, nth)),
        1 => Just(Step::Begin),
        1 => (tokens, 0..14_u32).prop_map(|(tokens, from)| Step::Lose(tokens, from)),
    ];
    prop::collection::vec(step, 1..24)
}

fn apply(past: &mut Past, naive: &mut Naive, steps: &[Step]) {
    let mut ends: Vec<(End, Vec<Token>)> = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        let number = number as u64 + 1;
        match step {
            Step::Record(tokens, nth) => {
                let end = past.record(tokens, *nth);
                ends.push((end, tokens.clone()));
                naive.record(tokens, *nth);
            }
            Step::Begin => {
                assert_eq!(past.begin(), naive.now);
                naive.now += 1;
            }
            Step::Lose(tokens, from) => {
                past.lose(tokens, *from, number);
                naive.lose(tokens, *from, number);
            }
        }
        check(past);
        for (end, tokens) in &ends {
            let read = past.read(*end);
            let forgotten = past.limit < usize::MAX && read.is_none();
            assert!(forgotten || read.as_ref() == Some(tokens));
        }
    }
}

/// Checks the links, the order and the sums of all nodes.
fn check(past: &Past) {
    let mut bytes = 0;
    let mut keys = vec![ROOT];
    let mut seen = 0;
    while let Some(key) = keys.pop() {
        let node = &past.nodes[key];
        seen += 1;
        let children: Vec<Key> = past
            .edges
            .iter()
            .filter(|((parent, _), _)| *parent == key)
            .map(|(_, &child)| child)
            .collect();
        assert_eq!(children.len(), node.children as usize);
        for &child in &children {
            let below = &past.nodes[child];
            assert_eq!(below.parent, key);
            assert_eq!(below.start, node.end());
            assert!(node.since <= below.since && node.first <= below.first);
            assert_eq!(below.before, node.before.after(&node.tokens));
        }
        assert!(node.next == NONE || children.contains(&node.next));
        if key != ROOT {
            bytes += node.bytes();
            let is_leaf = past.leaves.contains(&(node.latest, key));
            assert_eq!(is_leaf, children.is_empty());
        }
        keys.extend(children);
    }
    assert_eq!(seen, past.nodes.len());
    assert_eq!(bytes, past.bytes);
    assert!(past.bytes <= past.limit);
}

proptest! {
    #[test]
    fn nearest_prompts_and_losses_are_those_of_plain_lists(
        steps in steps(),
        questions in prop::collection::vec(prop::collection::vec(0..2_i32, 0..14), 1..8),
        nth in 1..9_u64,
        begun in 0..6_u64,
    ) {
        let (mut past, mut naive) = (Past::new(usize::MAX), Naive::default());
        apply(&mut past, &mut naive, &steps);
        for tokens in questions {
            let each = |mut nearest: Nearest| {
                let runs = nearest.lost.iter();
                nearest.lost = runs.flat_map(|&(tokens, loss)| vec![(1, loss); tokens]).collect();
                nearest
            };
            let nearest = past.nearest(&tokens, nth, begun).map(each);
            prop_assert_eq!(nearest, naive.nearest(&tokens, nth, begun));
            for from in 0..tokens.len() {
                for to in from..=tokens.len() {
                    let lost = (from..to).filter_map(|at| naive.lost(&tokens[..=at], begun));
                    let known: Vec<LossId> = lost.collect();
                    let range = (from as u32, to as u32);
                    let losses = past.losses(&tokens, range, begun).into_iter();
                    let each = losses.flat_map(|(loss, tokens)| tokens.map(move |_| loss));
                    prop_assert_eq!(each.collect::<Vec<_>>(), known);
                }
            }
            prop_assert!(!past.has_forgotten(&tokens, begun));
        }
    }

    #[test]
    fn the_tree_says_that_it_forgot_tokens_only_if_it_knows_fewer_than_were_recorded(
        steps in steps(),
        tokens in prop::collection::vec(0..2_i32, 1..14),
        nodes in 1..12_usize,
        begun in 0..6_u64,
    ) {
        let limit = nodes * (NODE_BYTES + 16);
        let (mut past, mut naive) = (Past::new(limit), Naive::default());
        apply(&mut past, &mut naive, &steps);
        let known = past.nearest(&tokens, 9, begun).map_or((0, 0), |it| (it.before, it.common));
        let all = naive.common(&tokens, |_, _| true) as u32;
        let then = naive.common(&tokens, |_, since| since <= begun) as u32;
        prop_assert!(known.0 <= then && known.1 <= all);
        // What was forgotten may have been recorded again.
        prop_assert!(known.0 < known.1 || known.1 < all || !past.has_forgotten(&tokens, begun));
    }
}

#[test]
fn beyond_the_limit_the_least_recently_used_tokens_are_forgotten() {
    let mut past = Past::new(3 * (NODE_BYTES + 16));
    let contents: Vec<Vec<Token>> = (0..5).map(|n| vec![n * 10 + 1; 4]).collect();
    past.record(&contents[0], 1);
    past.record(&contents[1], 2);
    past.record(&contents[2], 3);
    past.record(&contents[0], 4);
    past.record(&contents[3], 5);
    let known = |past: &Past, n: usize| past.nearest(&contents[n], 9, 9).map(|found| found.nth);
    assert_eq!(known(&past, 0), Some(4));
    assert_eq!(known(&past, 1), None);
    assert_eq!(known(&past, 2), Some(3));
    assert_eq!(known(&past, 3), Some(5));
    assert!(past.has_forgotten(&contents[1], 9));
    assert!(!past.has_forgotten(&contents[4], 9));
}
