//! Hierarchical clustering, equal to `scipy.cluster.hierarchy.linkage` to the last bit.
//!
//! The algorithms are the published ones that scipy uses: nearest-neighbour chains (Murtagh 1983,
//! with the conventions of Müllner's fastcluster) and, for single linkage, Prim's minimum spanning
//! tree. Which of several equal distances is taken decides the shape of the tree, so the order of
//! comparisons is theirs as well. `tests/linkage.rs` compares with vectors made by scipy.

use crate::distance::Condensed;

/// How far two clusters are from each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Linkage {
    /// The mean over all pairs of members.
    #[default]
    Average,
    /// The largest distance between members.
    Complete,
    /// The smallest distance between members.
    Single,
    /// The mean of the distances of the two clusters that were merged last.
    Weighted,
}

impl Linkage {
    /// By scipy's name of the method.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Some(match name {
            "average" => Self::Average,
            "complete" => Self::Complete,
            "single" => Self::Single,
            "weighted" => Self::Weighted,
            _ => return None,
        })
    }
}

/// One row of scipy's matrix `Z`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Merge {
    /// The clusters, the smaller number first. Below the number of items: an item; otherwise that
    /// many merges before.
    pub clusters: [usize; 2],
    /// How far they are from each other.
    pub distance: f64,
    /// How many items the new cluster has.
    pub size: usize,
}

/// Merges all items, the closest first: one row less than there are items.
#[must_use]
pub fn linkage(distances: Condensed, method: Linkage) -> Vec<Merge> {
    let items = distances.items();
    let mut merges = match method {
        Linkage::Single => spanning_tree(&distances),
        _ => neighbour_chain(distances, method),
    };
    // Stable, as numpy's mergesort is.
    merges.sort_by(|a, b| a.distance.total_cmp(&b.distance));
    label(&mut merges, items);
    merges
}

/// Rows in which each cluster is named by one of its members.
fn neighbour_chain(mut distances: Condensed, method: Linkage) -> Vec<Merge> {
    let items = distances.items();
    let mut sizes = vec![1_usize; items];
    // In ascending order.
    let mut alive: Vec<usize> = (0..items).collect();
    let mut chain: Vec<usize> = Vec::with_capacity(items);
    let mut merges = Vec::with_capacity(items.saturating_sub(1));
    while alive.len() > 1 {
        if chain.is_empty() {
            chain.push(alive[0]);
        }
        let (mut x, mut y, distance) = loop {
            let x = chain[chain.len() - 1];
            // The one before is preferred among equals, or the chain could go in circles.
            let before = chain.len().checked_sub(2).map(|place| chain[place]);
            let (nearest, distance) = distances.nearest(x, &alive, before);
            if before == Some(nearest) {
                break (x, nearest, distance);
            }
            chain.push(nearest);
        };
        chain.truncate(chain.len() - 2);
        if x > y {
            std::mem::swap(&mut x, &mut y);
        }
        merges.push(Merge {
            clusters: [x, y],
            distance,
            size: 0,
        });
        // The merged cluster takes the place of y.
        let (of_x, of_y) = (sizes[x], sizes[y]);
        sizes[y] += of_x;
        if let Ok(place) = alive.binary_search(&x) {
            alive.remove(place);
        }
        for &other in alive.iter().filter(|other| **other != y) {
            let (from_x, from_y) = (distances.get(x, other), distances.get(y, other));
            let merged = match method {
                Linkage::Average => {
                    let (of_x, of_y) = (of_x as f64, of_y as f64);
                    (of_x * from_x + of_y * from_y) / (of_x + of_y)
                }
                Linkage::Complete => from_x.max(from_y),
                Linkage::Weighted => 0.5 * (from_x + from_y),
                Linkage::Single => from_x.min(from_y),
            };
            distances.set(y, other, merged);
        }
    }
    merges
}

fn spanning_tree(distances: &Condensed) -> Vec<Merge> {
    let items = distances.items();
    // Of those outside of the tree, in ascending order, how far each is from it.
    let mut outside: Vec<(usize, f64)> = (1..items).map(|item| (item, f64::INFINITY)).collect();
    let mut merges = Vec::with_capacity(outside.len());
    let mut x = 0;
    while !outside.is_empty() {
        let mut nearest = 0;
        for place in 0..outside.len() {
            let (item, known) = outside[place];
            let distance = known.min(distances.get(x, item));
            outside[place].1 = distance;
            if distance < outside[nearest].1 {
                nearest = place;
            }
        }
        let (y, distance) = outside.remove(nearest);
        merges.push(Merge {
            clusters: [x, y],
            distance,
            size: 0,
        });
        x = y;
    }
    merges
}

/// Names the clusters of sorted rows by the rows that made them.
fn label(merges: &mut [Merge], items: usize) {
    let total = items + merges.len();
    let mut parents: Vec<usize> = (0..total).collect();
    let mut sizes = vec![1; total];
    for (row, merge) in merges.iter_mut().enumerate() {
        let [a, b] = merge.clusters.map(|member| root(&mut parents, member));
        merge.clusters = [a.min(b), a.max(b)];
        merge.size = sizes[a] + sizes[b];
        let made = items + row;
        sizes[made] = merge.size;
        parents[a] = made;
        parents[b] = made;
    }
}

fn root(parents: &mut [usize], of: usize) -> usize {
    let mut root = of;
    while parents[root] != root {
        root = parents[root];
    }
    let mut next = of;
    while parents[next] != root {
        next = std::mem::replace(&mut parents[next], root);
    }
    root
}
