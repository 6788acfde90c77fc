//! Distances of contexts.

use crate::Block;

/// The distances of all pairs, each once: `8 × n × (n − 1) / 2` bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Condensed {
    items: usize,
    /// Rows of the upper triangle, one after the other.
    values: Vec<f64>,
}

impl Condensed {
    /// From the rows of the upper triangle, as scipy's `pdist` has them; `None` if their number is
    /// not that of the pairs of `items`.
    #[must_use]
    pub fn from_rows(items: usize, values: Vec<f64>) -> Option<Self> {
        (values.len() == pairs(items)).then_some(Self { items, values })
    }

    /// The number of items.
    #[must_use]
    pub fn items(&self) -> usize {
        self.items
    }

    /// The rows of the upper triangle, one after the other.
    #[must_use]
    pub fn rows(&self) -> &[f64] {
        &self.values
    }

    pub(crate) fn get(&self, a: usize, b: usize) -> f64 {
        self.values[self.place(a, b)]
    }

    pub(crate) fn set(&mut self, a: usize, b: usize, distance: f64) {
        let place = self.place(a, b);
        self.values[place] = distance;
    }

    /// The first of the nearest of `others` (in ascending order; may contain `of`), or
    /// `preferred` if none is nearer.
    pub(crate) fn nearest(
        &self,
        of: usize,
        others: &[usize],
        preferred: Option<usize>,
    ) -> (usize, f64) {
        let known = |other| (other, self.get(of, other));
        let mut best = preferred.map_or((of, f64::INFINITY), known);
        let (before, after) = others.split_at(others.partition_point(|other| *other < of));
        for &other in before {
            let distance = self.values[start(self.items, other) + of - other - 1];
            if distance < best.1 {
                best = (other, distance);
            }
        }
        let base = start(self.items, of);
        for &other in after.iter().filter(|other| **other != of) {
            let distance = self.values[base + other - of - 1];
            if distance < best.1 {
                best = (other, distance);
            }
        }
        best
    }

    fn place(&self, a: usize, b: usize) -> usize {
        let (a, b) = (a.min(b), a.max(b));
        start(self.items, a) + b - a - 1
    }
}

fn pairs(items: usize) -> usize {
    items * items.saturating_sub(1) / 2
}

/// Where the row of `a` begins: with its distance to `a + 1`.
fn start(items: usize, a: usize) -> usize {
    a * (2 * items - a - 1) / 2
}

/// `1 − |A∩B| / max(|A|, |B|) + alpha × (mean difference of the positions of shared blocks)`,
/// rounded to `f32` as the Python index has it, 1 where nothing is shared. A block that stands
/// several times in both is shared as often.
///
/// Uses inverted lists: the cost is that of the intersections, and one step for each pair.
#[must_use]
pub fn distances(contexts: &[Vec<Block>], alpha: f64) -> Condensed {
    let items = contexts.len();
    let mut values = vec![1.0; pairs(items)];
    let mut holders = Holders::default();
    // What each earlier context shares with this one: how many blocks, and how far apart.
    let mut shared: Vec<(u32, u64)> = vec![(0, 0); items];
    let mut touched: Vec<usize> = Vec::new();
    for (at, context) in contexts.iter().enumerate() {
        holders.visit(context, at, |other, apart| {
            let entry = &mut shared[other];
            if entry.0 == 0 {
                touched.push(other);
            }
            entry.0 += 1;
            entry.1 += apart as u64;
        });
        for other in touched.drain(..) {
            let (count, apart) = std::mem::take(&mut shared[other]);
            let count = f64::from(count);
            let longer = context.len().max(contexts[other].len()) as f64;
            let distance = 1.0 - count / longer + alpha * (apart as f64 / count);
            // A client may ask for an endless `alpha`, and then none would be the nearest.
            let distance = (distance as f32).clamp(f32::MIN, f32::MAX);
            values[start(items, other) + at - other - 1] = f64::from(distance);
        }
    }
    Condensed { items, values }
}

/// For the n-th occurrence of each block: which contexts have it, and where.
#[derive(Default)]
struct Holders {
    first: std::collections::HashMap<Block, Vec<(u32, u32)>>,
    further: std::collections::HashMap<(Block, u32), Vec<(u32, u32)>>,
}

impl Holders {
    /// Calls for each occurrence that an earlier context shares: which one, how far apart. Then
    /// adds this context.
    fn visit(&mut self, context: &[Block], at: usize, mut call: impl FnMut(usize, u32)) {
        let mut seen = std::collections::HashMap::with_capacity(context.len());
        for (position, &block) in context.iter().enumerate() {
            let position = position as u32;
            let nth = seen.entry(block).or_insert(0);
            let list = match *nth {
                0 => self.first.entry(block).or_default(),
                nth => self.further.entry((block, nth)).or_default(),
            };
            *nth += 1;
            for &(other, there) in &*list {
                call(other as usize, there.abs_diff(position));
            }
            list.push((at as u32, position));
        }
    }
}
