//! Clustering equal to scipy's, by vectors that scipy made (fixtures/make_linkage.py).

use contextpilot_order::{Condensed, Linkage, Merge, linkage};
use serde::Deserialize;

#[derive(Deserialize)]
struct Vectors {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    method: String,
    items: usize,
    /// As bits.
    distances: Vec<u64>,
    merges: Vec<(usize, usize, u64, usize)>,
}

#[test]
fn the_clustering_equals_scipys_to_the_last_bit() {
    let text = include_str!("fixtures/linkage.json");
    let vectors: Vectors = serde_json::from_str(text).expect("vectors");
    assert!(vectors.cases.len() > 150);
    for (number, case) in vectors.cases.into_iter().enumerate() {
        let method = Linkage::of_name(&case.method).expect("a method");
        let distances = case.distances.into_iter().map(f64::from_bits).collect();
        let distances = Condensed::from_rows(case.items, distances).expect("all pairs");
        let expected: Vec<Merge> = case
            .merges
            .into_iter()
            .map(|(a, b, distance, size)| Merge {
                clusters: [a, b],
                distance: f64::from_bits(distance),
                size,
            })
            .collect();
        assert_eq!(
            linkage(distances, method),
            expected,
            "case {number}, {method:?}"
        );
    }
}

#[test]
fn one_item_and_none_are_not_merged() {
    for items in [0, 1] {
        let distances = Condensed::from_rows(items, Vec::new()).expect("no pairs");
        assert_eq!(linkage(distances, Linkage::Average), []);
    }
    assert_eq!(Condensed::from_rows(3, vec![1.0]), None);
}
