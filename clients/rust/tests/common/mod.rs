//! What the tests of the search and of the network share.
#![allow(dead_code)] // not all need all

use coloring_gnn::{Coloring, Graph};

pub fn from_pairs(n: usize, related: impl Fn(usize, usize) -> bool) -> Graph {
    let pairs = (0..n).flat_map(|u| (0..u).map(move |v| (u, v)));
    Graph::from_edges(n, pairs.filter(|&(u, v)| related(u, v))).unwrap()
}

pub fn queens(side: usize) -> Graph {
    from_pairs(side * side, |u, v| {
        let (rows, columns) = ((u / side).abs_diff(v / side), (u % side).abs_diff(v % side));
        rows == 0 || columns == 0 || rows == columns
    })
}

/// Colors of a coloring that is proper, and whose order needs no more.
pub fn checked(graph: &Graph, coloring: &Coloring) -> usize {
    assert_eq!(graph.check(coloring.colors()).unwrap(), coloring.num_colors());
    assert_eq!(Coloring::greedy(graph, &coloring.ordering()).num_colors(), coloring.num_colors());
    coloring.num_colors()
}
