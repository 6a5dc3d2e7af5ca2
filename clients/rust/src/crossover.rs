//! Crossover of two colorings, in which a message passing network says what every node is worth, as
//! `gnn_training/search/crossover.py`. Letters in shapes: N nodes, K colors, F features, D width.

use serde_json::Value;

use crate::kernels::{Lists, NONE, Parent, dispatch};

const FEATURES: usize = 10;
const MESSAGES: usize = 4; // of the node, of its class, of the node in the other coloring, of its class there
const MAX_WEIGHT: f64 = 1e6;
pub(crate) const GENERATION: usize = 5_000; // moves of TabuCol on a child

/// The numbers of the network with L layers, row by row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Weights {
    first: Vec<f32>,        // (F, D)
    first_bias: Vec<f32>,   // (D,)
    layers: Vec<f32>,       // (L, MESSAGES, D, D)
    layer_biases: Vec<f32>, // (L, D)
    out: Vec<f32>,          // (D,)
    direct: Vec<f32>,       // (F,)
}

impl Weights {
    /// From JSON, names to nested lists, of any width and number of layers. None if an array is missing or has another
    /// shape, or a weight is no number up to `MAX_WEIGHT`.
    pub(crate) fn from_text(text: &str) -> Option<Self> {
        let numbers: Value = serde_json::from_str(text).ok()?;
        let size = |name: &str| numbers[name].as_array().map(Vec::len);
        let (d, layers) = (size("out").filter(|&width| width > 0)?, size("layers")?);
        let array = |name: &str, shape: &[usize]| {
            let mut flat = Vec::new();
            flatten(&numbers[name], shape, &mut flat).map(|()| flat)
        };
        Some(Self {
            first: array("first", &[FEATURES, d])?,
            first_bias: array("first_bias", &[d])?,
            layers: array("layers", &[layers, MESSAGES, d, d])?,
            layer_biases: array("layer_biases", &[layers, d])?,
            out: array("out", &[d])?,
            direct: array("direct", &[FEATURES])?,
        })
    }
}

/// Appends the numbers of nested lists of this shape; None if they are others.
fn flatten(value: &Value, shape: &[usize], numbers: &mut Vec<f32>) -> Option<()> {
    let Some((&size, inner)) = shape.split_first() else {
        numbers.push(value.as_f64().filter(|number| number.abs() <= MAX_WEIGHT)? as f32);
        return Some(());
    };
    let list = value.as_array().filter(|list| list.len() == size)?;
    list.iter().try_for_each(|each| flatten(each, inner, numbers))
}

/// The two children of two parents with k colors, in which some nodes have no color. by_network: whether the network
/// says what nodes are worth; else, and without weights, every node is worth 1, so that the largest class is taken.
pub(crate) fn children(
    lists: &Lists,
    parents: &[Parent; 2],
    k: usize,
    weights: Option<&Weights>,
    by_network: [bool; 2],
) -> [Vec<u32>; 2] {
    let ones = [0, 1].map(|_| vec![1.0; lists.num_nodes()]);
    let network = weights.filter(|_| by_network.contains(&true));
    let network = network.map(|weights| node_values(&features(lists, parents, k), parents, k, weights));
    [0, 1].map(|p: usize| {
        let values = network.as_ref().filter(|_| by_network[p]).unwrap_or(&ones);
        let order = [p, 1 - p];
        crossover(order.map(|q| &parents[q].colors[..]), order.map(|q| &values[q][..]), k)
    })
}

/// Greedy partition crossover (Galinier and Hao 1999): the class of the first parent, then of the second, and so on,
/// whose nodes left have the largest sum of values becomes a class.
fn crossover(parents: [&[u32]; 2], values: [&[f32]; 2], k: usize) -> Vec<u32> {
    let n = parents[0].len();
    let (mut child, mut left, mut worth) = (vec![NONE; n], [vec![0; k], vec![0; k]], [vec![0.0; k], vec![0.0; k]]);
    for p in 0..2 {
        for v in 0..n {
            left[p][parents[p][v] as usize] += 1;
            worth[p][parents[p][v] as usize] += f64::from(values[p][v]);
        }
    }
    for c in 0..k {
        let p = c % 2;
        let mut best = None;
        for x in (0..k).filter(|&x| left[p][x] > 0) {
            if best.is_none_or(|best: usize| worth[p][x] > worth[p][best]) {
                best = Some(x);
            }
        }
        let Some(best) = best else { continue };
        for v in 0..n {
            if child[v] == NONE && parents[p][v] as usize == best {
                child[v] = c as u32;
                for q in 0..2 {
                    left[q][parents[q][v] as usize] -= 1;
                    worth[q][parents[q][v] as usize] -= f64::from(values[q][v]);
                }
            }
        }
    }
    child
}

/// Features of every node in both colorings, in the order of the trained weights.
fn features(lists: &Lists, parents: &[Parent; 2], k: usize) -> Vec<[[f32; FEATURES]; 2]> {
    let (n, mean) = (lists.num_nodes(), lists.num_ends() as f64 / lists.num_nodes() as f64);
    let from_mean: Vec<f64> = (0..n as u32).map(|v| lists.neighbors(v).len() as f64 - mean).collect();
    let variance = from_mean.iter().map(|off| off.powi(2)).sum::<f64>() / n as f64;
    let deviation = variance.max(1e-6).sqrt();
    let pair = |v: usize| parents[0].colors[v] as usize * k + parents[1].colors[v] as usize;
    let mut both = vec![0_usize; k * k]; // nodes with a color in the first parent and one in the second
    (0..n).for_each(|v| both[pair(v)] += 1);
    let mut x = vec![[[0.0; FEATURES]; 2]; n];
    for (p, Parent { colors, ages, .. }) in parents.iter().enumerate() {
        let shared = |c: usize| (0..k).map(move |other| if p == 0 { c * k + other } else { other * k + c });
        let sizes: Vec<usize> = (0..k).map(|c| shared(c).map(|pair| both[pair]).sum()).collect();
        let largest: Vec<usize> = (0..k).map(|c| shared(c).map(|pair| both[pair]).max().unwrap_or(0)).collect();
        let Choices { conflicts, free, takes } = Choices::of(lists, colors, k);
        for v in 0..n {
            let c = colors[v] as usize;
            let size = sizes[c] as f64;
            let features: [f64; FEATURES] = [
                f64::from(conflicts[v]),
                largest[c] as f64 / size,
                both[pair(v)] as f64 / size,
                from_mean[v] / deviation,
                f64::from(takes[c]).ln_1p(),
                f64::from(ages[v]).ln_1p() / (GENERATION as f64).ln_1p(),
                f64::from(free[v]).ln_1p(),
                (size * k as f64 / n as f64 + 0.1).ln(),
                mean / n as f64 - 0.5,
                (n as f64 / k as f64).ln() - 1.5,
            ];
            x[v][p] = features.map(|feature| feature as f32);
        }
    }
    x
}

/// What the neighbors leave to choose from in a coloring.
struct Choices {
    conflicts: Vec<u32>, // (N,) neighbors of the same color
    free: Vec<u32>,      // (N,) other colors that no neighbor has
    takes: Vec<u32>,     // (K,) nodes of other colors to which a color is free
}

impl Choices {
    fn of(lists: &Lists, colors: &[u32], k: usize) -> Self {
        let (mut conflicts, mut free, mut takes) = (vec![0; colors.len()], vec![0; colors.len()], vec![0; k]);
        let mut counts = vec![0; k];
        for (v, &own) in colors.iter().enumerate() {
            counts.fill(0);
            for &u in lists.neighbors(v as u32) {
                counts[colors[u as usize] as usize] += 1;
            }
            conflicts[v] = counts[own as usize];
            for c in (0..k).filter(|&c| counts[c] == 0 && c != own as usize) {
                takes[c] += 1;
                free[v] += 1;
            }
        }
        Self { conflicts, free, takes }
    }
}

/// What the network says that every node is worth in both colorings.
fn node_values(x: &[[[f32; FEATURES]; 2]], parents: &[Parent; 2], k: usize, weights: &Weights) -> [Vec<f32>; 2] {
    dispatch!(run(x: &[[[f32; FEATURES]; 2]], parents: &[Parent; 2], k: usize, weights: &Weights) -> [Vec<f32>; 2])
}

#[inline(always)]
fn run(x: &[[[f32; FEATURES]; 2]], parents: &[Parent; 2], k: usize, weights: &Weights) -> [Vec<f32>; 2] {
    let (n, d) = (x.len(), weights.out.len());
    let class = |q: usize, v: usize| parents[q].colors[v] as usize;
    let node = |v: usize, p: usize| (2 * v + p) * d..(2 * v + p + 1) * d;
    let row = |i: usize, c: usize| (i * k + c) * d..(i * k + c + 1) * d;
    let (mut h, mut e) = (vec![0.0_f32; 2 * n * d], vec![0.0_f32; 2 * n * d]);
    let mut sizes = [vec![0.0_f32; k], vec![0.0_f32; k]];
    for v in 0..n {
        for p in 0..2 {
            sizes[p][class(p, v)] += 1.0;
            h[node(v, p)].copy_from_slice(&weights.first_bias);
            add_product(&x[v][p], &weights.first, &mut h[node(v, p)]);
        }
    }
    for (layer, bias) in weights.layers.chunks_exact(MESSAGES * d * d).zip(weights.layer_biases.chunks_exact(d)) {
        let of = |message: usize| &layer[message * d * d..][..d * d];
        e.iter_mut().zip(&h).for_each(|(e, h)| *e = h.max(0.0));
        // Sums of the nodes in coloring p by their classes in coloring q, at 2 p + q.
        let mut sums = vec![0.0_f32; 4 * k * d];
        for v in 0..n {
            for i in 0..4 {
                add(&e[node(v, i / 2)], &mut sums[row(i, class(i % 2, v))]);
            }
        }
        let mut said = vec![0.0_f32; 4 * k * d];
        for i in 0..4 {
            let (p, q) = (i / 2, i % 2);
            for c in 0..k {
                let mean = &mut sums[row(i, c)];
                mean.iter_mut().for_each(|sum| *sum /= sizes[q][c].max(1.0));
                add_product(mean, of(if p == q { 1 } else { 3 }), &mut said[row(i, c)]);
            }
        }
        for v in 0..n {
            for p in 0..2 {
                let (a, b) = (&said[row(2 * p, class(0, v))], &said[row(2 * p + 1, class(1, v))]);
                let h = &mut h[node(v, p)];
                for (((h, bias), a), b) in h.iter_mut().zip(bias).zip(a).zip(b) {
                    *h += bias + a + b;
                }
                add_product(&e[node(v, p)], of(0), h);
                add_product(&e[node(v, 1 - p)], of(2), h);
            }
        }
    }
    [0, 1].map(|p: usize| {
        let direct = |v: usize| x[v][p].iter().zip(&weights.direct).map(|(x, direct)| x * direct).sum::<f32>();
        let hidden = |v: usize| h[node(v, p)].iter().zip(&weights.out).map(|(h, out)| h.max(0.0) * out).sum::<f32>();
        (0..n).map(|v| 1.0 + hidden(v) + direct(v)).collect()
    })
}

/// Adds the product of a vector (I,) and a matrix (I, D).
#[inline(always)]
fn add_product(x: &[f32], matrix: &[f32], total: &mut [f32]) {
    for (value, row) in x.iter().zip(matrix.chunks_exact(total.len())) {
        for (sum, weight) in total.iter_mut().zip(row) {
            *sum += value * weight;
        }
    }
}

#[inline(always)]
fn add(x: &[f32], total: &mut [f32]) {
    total.iter_mut().zip(x).for_each(|(sum, value)| *sum += value);
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::Rule;
    use crate::rule_search::tests::{checksum, graph_of, integers, random_numbers};

    /// tests/test_rust_search.py makes them.
    #[test]
    fn children_are_those_of_the_python_loops() {
        let golden: Value = serde_json::from_str(include_str!("../tests/rule_search.json")).unwrap();
        for case in golden["children"].as_array().unwrap() {
            let (graph, k) = (graph_of(integers(&case["graph"])), case["k"].as_u64().unwrap());
            let mut random = random_numbers(k);
            let mut below = |limit: u64| (random() % limit) as u32;
            let parents = [0, 1].map(|_| {
                let colors = (0..graph.num_nodes()).map(|_| below(k)).collect();
                Parent { conflicts: 1, colors, ages: (0..graph.num_nodes()).map(|_| below(5000)).collect() }
            });
            let weights = Rule::default().crossover;
            for (by_network, name) in [([true; 2], "found"), ([false; 2], "by_size")] {
                let found = children(&Lists::new(&graph), &parents, k as usize, weights.as_ref(), by_network);
                let found = found.map(|child| checksum(&child.iter().map(|&c| c.min(k as u32)).collect::<Vec<_>>()));
                assert_eq!(json!(found), case[name], "{}", case["graph"]);
            }
        }
    }
}
