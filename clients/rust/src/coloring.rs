use std::fmt::Write;

use crate::{Error, Graph, Result};

/// A proper coloring: one color per node, no edge with two equal ends, colors `0..num_colors()` without gaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coloring {
    colors: Vec<usize>,
    num_colors: usize,
}

impl Coloring {
    /// First fit: each node of `order` takes the smallest color that no neighbor has yet.
    ///
    /// # Panics
    /// If `order` does not name every node.
    pub fn greedy(graph: &Graph, order: &[usize]) -> Self {
        const NONE: usize = usize::MAX;
        let mut colors = vec![NONE; graph.num_nodes()];
        let mut taken = Vec::new(); // by color: the node that met it last
        let mut num_colors = 0;
        for &node in order {
            taken.resize(num_colors + 1, NONE);
            for &neighbor in graph.neighbors(node) {
                if colors[neighbor] != NONE {
                    taken[colors[neighbor]] = node;
                }
            }
            colors[node] = taken.iter().position(|&last| last != node).unwrap_or(num_colors);
            num_colors = num_colors.max(colors[node] + 1);
        }
        assert!(!colors.contains(&NONE), "the order leaves a node out");
        Self { colors, num_colors }
    }

    /// From the text of a DIMACS solution of the graph, such as [`Coloring::to_dimacs`] gives; with first fit along its
    /// classes, which may save colors.
    ///
    /// # Errors
    /// [`Error::Dimacs`] for a line of another kind, [`Error::Improper`] if a node has no color or an edge has one color.
    pub fn from_dimacs(graph: &Graph, text: &str) -> Result<Self> {
        let mut colors = vec![None; graph.num_nodes()];
        for (number, line) in text.lines().enumerate() {
            let begin: String = line.chars().take(40).collect();
            let fail = |what: &str| Error::Dimacs { line: number + 1, reason: format!("{begin:?} {what}") };
            let place = |word: &str| word.parse::<usize>().ok().and_then(|counted| counted.checked_sub(1));
            match line.split_whitespace().collect::<Vec<_>>()[..] {
                [] | ["c" | "s", ..] => {}
                ["l", node, color] => {
                    let node = place(node).and_then(|node| colors.get_mut(node));
                    *node.ok_or_else(|| fail("names a node that the graph does not have"))? =
                        Some(place(color).ok_or_else(|| fail("has no color from 1 on"))?);
                }
                _ => return Err(fail("is neither `c`, one `s col K` nor `l v c`")),
            }
        }
        let missing = |node| Error::Improper(format!("node {} has no color", node + 1));
        let colors = (0..colors.len()).map(|node| colors[node].ok_or_else(|| missing(node)));
        let colors = colors.collect::<Result<Vec<_>>>()?;
        graph.check(&colors)?;
        Ok(Self::greedy(graph, &by_class(&colors)))
    }

    /// Color of every node.
    pub fn colors(&self) -> &[usize] {
        &self.colors
    }

    /// Color of every node, as the search takes them.
    pub(crate) fn classes(&self) -> Vec<u32> {
        self.colors.iter().map(|&color| color as u32).collect()
    }

    /// Number of colors: an upper bound of the chromatic number that a solver may prune with.
    pub fn num_colors(&self) -> usize {
        self.num_colors
    }

    /// All nodes, class after class: first fit along this order needs no more colors.
    pub fn ordering(&self) -> Vec<usize> {
        by_class(&self.colors)
    }

    /// The text of a DIMACS solution: `s col K`, then `l v c` per node, both counted from 1.
    pub fn to_dimacs(&self) -> String {
        let mut text = format!("s col {}\n", self.num_colors);
        for (node, color) in self.colors.iter().enumerate() {
            writeln!(text, "l {} {}", node + 1, color + 1).expect("strings take all that is written");
        }
        text
    }
}

/// Nodes sorted by class; nodes of a class keep their order, as callers in other languages do it.
pub(crate) fn by_class(classes: &[usize]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..classes.len()).collect();
    order.sort_by_key(|&node| classes[node]);
    order
}
