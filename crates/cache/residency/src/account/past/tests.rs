use super::node::NODE_BYTES;
use super::*;
use proptest::prelude::*;

/// All that was recorded, as lists: the latest last.
#[derive(Default)]
struct Naive {
    contents: Vec<(Nth, Vec<Token>)>,
    /// Each token's loss, by the prefix that ends with it.
    losses: HashMap<Vec<Token>, LossId>,
}

impl Naive {
    fn record(&mut self, tokens: &[Token], nth: Nth) {
        self.contents.push((nth, tokens.to_vec()));
        for end in 1..=tokens.len() {
            self.losses.remove(&tokens[..end]);
        }
    }

    fn lose(&mut self, tokens: &[Token], from: u32, loss: LossId) {
        let known = self.common(tokens);
        for end in from as usize + 1..=known {
            self.losses.insert(tokens[..end].to_vec(), loss);
        }
    }

    fn common(&self, tokens: &[Token]) -> usize {
        let contents = self.contents.iter();
        contents
            .map(|(_, held)| common(held, tokens))
            .max()
            .unwrap_or(0)
    }

    fn nearest(&self, tokens: &[Token]) -> Option<Nearest> {
        let most = self.common(tokens);
        let mut latest = self.contents.iter().rev();
        let (nth, held) = latest.find(|(_, held)| common(held, tokens) == most)?;
        (most > 0).then(|| Nearest {
            common: most as u32,
            nth: *nth,
            rest: held[most..].to_vec(),
            lost: (most..held.len())
                .map(|at| (1, self.losses.get(&held[..=at]).copied()))
                .collect(),
        })
    }
}

#[derive(Clone, Debug)]
enum Step {
    Record(Vec<Token>),
    Lose(Vec<Token>, u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let tokens = prop::collection::vec(0..2_i32, 1..14);
    let step = prop_oneof![
        3 => tokens.clone().prop_map(Step::Record),
        1 => (tokens, 0..14_u32).prop_map(|(tokens, from)| Step::Lose(tokens, from)),
    ];
    prop::collection::vec(step, 1..24)
}

fn apply(past: &mut Past, naive: &mut Naive, steps: &[Step]) {
    let mut ends: Vec<(End, Vec<Token>)> = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        let number = number as u64 + 1;
        match step {
            Step::Record(tokens) => {
                let end = past.record(tokens, number);
                ends.push((end, tokens.clone()));
                naive.record(tokens, number);
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
            assert!(below.latest <= node.latest || key == ROOT);
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
    ) {
        let (mut past, mut naive) = (Past::new(usize::MAX), Naive::default());
        apply(&mut past, &mut naive, &steps);
        for tokens in questions {
            let each = |mut nearest: Nearest| {
                let runs = nearest.lost.iter();
                nearest.lost = runs.flat_map(|&(tokens, loss)| vec![(1, loss); tokens]).collect();
                nearest
            };
            prop_assert_eq!(past.nearest(&tokens).map(each), naive.nearest(&tokens));
            for from in 0..tokens.len() {
                for to in from..=tokens.len() {
                    let known = (from..to).filter_map(|at| naive.losses.get(&tokens[..=at]));
                    let known: Vec<LossId> = known.copied().collect();
                    let losses = past.losses(&tokens, from as u32, to as u32).into_iter();
                    let each = losses.flat_map(|(loss, tokens)| tokens.map(move |_| loss));
                    prop_assert_eq!(each.collect::<Vec<_>>(), known);
                }
            }
            prop_assert!(!past.has_forgotten(&tokens));
        }
    }

    #[test]
    fn the_tree_says_that_it_forgot_tokens_only_if_it_knows_fewer_than_were_recorded(
        steps in steps(),
        tokens in prop::collection::vec(0..2_i32, 1..14),
        nodes in 1..12_usize,
    ) {
        let limit = nodes * (NODE_BYTES + 16);
        let (mut past, mut naive) = (Past::new(limit), Naive::default());
        apply(&mut past, &mut naive, &steps);
        let known = past.nearest(&tokens).map_or(0, |nearest| nearest.common);
        let truth = naive.common(&tokens) as u32;
        prop_assert!(known <= truth);
        prop_assert!(truth > known || !past.has_forgotten(&tokens));
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
    let known = |past: &Past, n: usize| past.nearest(&contents[n]).map(|found| found.nth);
    assert_eq!(known(&past, 0), Some(4));
    assert_eq!(known(&past, 1), None);
    assert_eq!(known(&past, 2), Some(3));
    assert_eq!(known(&past, 3), Some(5));
    assert!(past.has_forgotten(&contents[1]));
    assert!(!past.has_forgotten(&contents[4]));
}
