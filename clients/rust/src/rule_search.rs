//! The search by the trained rule: the phases, and the same moves, as `gnn_training/search/search_kernel.py`.
//!
//! A sum of products is fused (`mul_add`) exactly where the compiler of the Python loops fuses it. `exp`, `ln` and
//! `ln_1p` are those of the system's C library in both. So the moves are equal on processors with fused
//! multiplication; where the last bit of a number differs, another move may be chosen, as good as the first.

use crate::kernels::{Lists, Nodes, Stop, dispatch};
use crate::rule::*;

const OLDEST: i64 = 1_000_000; // rounds since the last move of a node, and moves, that make a difference

/// What a search has found.
#[derive(Debug, PartialEq)]
pub(crate) struct Found {
    pub(crate) colors: Vec<u32>,
    pub(crate) num_colors: usize,
    /// Fewest since, with one color less.
    pub(crate) conflicts: f64,
}

/// How to search. num_colors: to start with, fewer than the first coloring has; 0 for one fewer.
#[derive(Clone, Copy)]
pub(crate) struct Task<'a> {
    pub(crate) first: &'a [u32],
    pub(crate) num_colors: usize,
    pub(crate) lower: usize,
    pub(crate) seed: i64,
    pub(crate) rounds: usize,
}

/// Searches from a proper coloring without gaps.
pub(crate) fn search_graph(lists: &Lists, rule: &Rule, noise: &Noise, task: Task, stop: Stop) -> Found {
    dispatch!(run(lists: &Lists, rule: &Rule, noise: &Noise, task: Task, stop: Stop) -> Found)
}

#[inline(always)]
fn run(lists: &Lists, rule: &Rule, noise: &Noise, task: Task, stop: Stop) -> Found {
    let mut search = Search::begin(lists, rule, noise, task);
    let mut found = Found { colors: task.first.to_vec(), num_colors: search.sizes.len(), conflicts: 1e6 };
    for t in 0..task.rounds as i64 {
        if stop.is_set() {
            break;
        }
        if t % PERIOD == 0 {
            search.ask();
            search.weigh(t);
        }
        if search.conflicted.nodes.is_empty() {
            found = Found { colors: search.colors.clone(), num_colors: search.num_open, conflicts: 1e6 };
            if search.num_open <= task.lower {
                break;
            }
            search.close();
            continue;
        }
        found.conflicts = found.conflicts.min(search.num_conflicts as f64 / 2.0);
        search.draw(t);
        search.choose(t);
        search.settle();
        search.apply(t);
    }
    found
}

/// Letters in shapes: N nodes, K colors, A active nodes, F features.
struct Search<'a> {
    lists: &'a Lists,
    rule: &'a Rule,
    noise: &'a Noise,
    seed: i64,
    logs: Vec<f32>, // ln_1p of 0, 1, 2, ...
    // The coloring, and what is counted of it.
    colors: Vec<u32>,
    counts: Vec<i32>,    // (K, N) neighbors of a node with a color
    is_open: Vec<bool>,  // (K) colors that may be used
    sizes: Vec<u32>,     // (K)
    conflicts: Vec<i32>, // (N) neighbors in a node's color, one more if it is closed
    without: Vec<i32>,   // (N) open colors without a conflict
    one: Vec<i32>,       // (N) open colors with one conflict
    conflicted: Nodes,
    num_conflicts: i64, // sum of `conflicts`
    num_open: usize,
    // What the nodes have done.
    until: Vec<i32>, // (N, K) last round in which a node may not take a color
    moved: Vec<i32>, // (N) round of the last move
    moves: Vec<i32>, // (N)
    num_moves: i64,
    // What the network says once in PERIOD rounds.
    outputs: [f32; OUTPUTS],             // controls, shifts of the hidden units, level
    features: [Vec<f32>; NODE_FEATURES], // (F, N)
    weights: Vec<i32>,                   // (N) of a conflict with every node
    // The best moves of active nodes, and room to find them.
    active: Vec<u32>,      // (A)
    first_turns: Vec<i32>, // (N) of round 0 with seed 0
    turns: Vec<i32>,       // (A) of the active nodes if they are drawn
    targets: Vec<u32>,     // (A) best other colors
    gains: Vec<f32>,       // (A)
    num_movers: usize,
    movers: Vec<usize>, // places in `active` of the best moves
    kept: Vec<usize>,   // and of those that are made
    costs: Vec<i32>,    // (N, K) sums of the weights of a node's conflicts in every color
    summed: Vec<i64>,   // (N) the round in which they were summed; they count until the network is asked again
    crowding: Vec<f32>, // (K)
    closed: Vec<f32>,   // (K) 0 for open colors, minus infinity for others
    score: Vec<f32>,    // (K)
}

impl<'a> Search<'a> {
    /// As many of the largest classes are open as asked for.
    fn begin(lists: &'a Lists, rule: &'a Rule, noise: &'a Noise, task: Task) -> Self {
        let (n, first) = (task.first.len(), task.first);
        let num_colors = first.iter().max().map_or(0, |&color| color as usize + 1);
        let (mut counts, mut sizes) = (vec![0; num_colors * n], vec![0; num_colors]);
        for (v, &color) in first.iter().enumerate() {
            sizes[color as usize] += 1;
            for &u in lists.neighbors(v as u32) {
                counts[first[u as usize] as usize * n + v] += 1;
            }
        }
        let (mut without, mut one) = (vec![0; n], vec![0; n]);
        for row in counts.chunks_exact(n) {
            for v in 0..n {
                without[v] += i32::from(row[v] == 0);
                one[v] += i32::from(row[v] == 1);
            }
        }
        let longest = task.rounds.min(OLDEST as usize).max(n) + NOT_MOVED + 2;
        let num_active = ACTIVE.max(n / NODES_PER_ACTIVE).min(n);
        let num_movers = MOVERS.max(n / NODES_PER_MOVER).min(num_active);
        let mut search = Self {
            lists,
            rule,
            noise,
            seed: task.seed,
            logs: (0..longest).map(|x| (x as f64).ln_1p() as f32).collect(),
            colors: first.to_vec(),
            counts,
            is_open: vec![true; num_colors],
            sizes,
            conflicts: vec![0; n],
            without,
            one,
            conflicted: Nodes::new(n),
            num_conflicts: 0,
            num_open: num_colors,
            until: vec![-1; n * num_colors],
            moved: vec![-(NOT_MOVED as i32); n],
            moves: vec![0; n],
            num_moves: 0,
            outputs: [0.0; OUTPUTS],
            features: std::array::from_fn(|_| vec![0.0; n]),
            weights: vec![0; n],
            active: Vec::with_capacity(num_active),
            first_turns: (0..n as u32).map(|v| turn(v, 0, 0) as i32).collect(),
            turns: Vec::with_capacity(num_active),
            targets: vec![0; num_active],
            gains: vec![0.0; num_active],
            num_movers,
            movers: Vec::new(),
            kept: Vec::new(),
            costs: vec![0; n * num_colors],
            summed: vec![-1; n],
            crowding: vec![0.0; num_colors],
            closed: vec![0.0; num_colors],
            score: vec![0.0; num_colors],
        };
        while 0 < task.num_colors && task.num_colors < search.num_open {
            search.close();
        }
        search
    }

    /// Closes the smallest class: its nodes have to move to another color.
    #[inline(always)]
    fn close(&mut self) {
        let open = (0..self.sizes.len()).filter(|&x| self.is_open[x]);
        let color = open.min_by_key(|&x| self.sizes[x]).expect("a color is open");
        self.is_open[color] = false;
        self.num_open -= 1;
        let n = self.colors.len();
        for v in 0..n {
            let count = self.counts[color * n + v];
            self.without[v] -= i32::from(count == 0);
            self.one[v] -= i32::from(count == 1);
            if self.colors[v] as usize == color {
                self.add_conflicts(v, 1);
            }
        }
    }

    /// Changes the number of conflicts of a node, and the list of the nodes in conflict with it.
    #[inline(always)]
    fn add_conflicts(&mut self, v: usize, change: i32) {
        let before = self.conflicts[v];
        self.conflicts[v] = before + change;
        self.num_conflicts += i64::from(change);
        if before == 0 && change > 0 {
            self.conflicted.add(v as u32);
        } else if before > 0 && before + change == 0 {
            self.conflicted.remove(v as u32);
        }
    }

    /// Asks the network what depends on the search as a whole.
    #[inline(always)]
    fn ask(&mut self) {
        let n = self.colors.len();
        let density = self.lists.num_ends() as f32 / (n * (n - 1)).max(1) as f32;
        let conflicted = self.logs[self.conflicted.nodes.len()];
        let features = graph_features((n as f64).ln(), (self.num_open as f64).ln(), density, conflicted);
        for (j, output) in self.outputs.iter_mut().enumerate() {
            let mut y = self.rule.by_graph_bias[j];
            for (feature, weight) in features.iter().zip(&self.rule.by_graph[j]) {
                y = feature.mul_add(*weight, y);
            }
            *output = if j < CONTROLS { y.exp() } else { y };
        }
    }

    /// Takes the nodes in conflict whose turn it is, all if they are few.
    #[inline(always)]
    fn draw(&mut self, t: i64) {
        let room = self.targets.len();
        self.active.clear();
        if self.conflicted.nodes.len() <= room {
            self.active.extend(&self.conflicted.nodes);
            return;
        }
        self.turns.clear();
        let shift = turn(0, self.seed, t) as i32;
        for &v in &self.conflicted.nodes {
            let turn = later(self.first_turns[v as usize], shift);
            if self.turns.len() == room {
                if turn < self.turns[room - 1] {
                    continue;
                }
                self.turns.pop();
                self.active.pop();
            }
            let place = self.turns.iter().rposition(|&other| other >= turn).map_or(0, |last| last + 1);
            self.turns.insert(place, turn);
            self.active.insert(place, v);
        }
    }

    /// What a conflict with every node costs.
    #[inline(always)]
    fn weigh(&mut self, t: i64) {
        let (n, logs) = (self.colors.len(), &self.logs[..]);
        let mean_moves = (self.num_moves as f64 / n as f64).ln_1p() as f32;
        for v in 0..n {
            let free = self.without[v] - i32::from(self.conflicts[v] == 0); // other than its own color
            let (age, moves) = ((t as i32 - self.moved[v]).min(OLDEST as i32), self.moves[v].min(OLDEST as i32));
            self.features[0][v] = f32::from(free > 0);
            self.features[1][v] = logs[free as usize];
            self.features[2][v] = logs[self.one[v] as usize];
            self.features[3][v] = logs[self.conflicts[v] as usize];
            self.features[4][v] = logs[age as usize] / 4.0;
            self.features[5][v] = logs[moves as usize] - mean_moves;
        }
        self.rule.weigh(&self.features, &self.outputs, &mut self.weights);
    }

    /// Finds the best move of every active node.
    #[inline(always)]
    fn choose(&mut self, t: i64) {
        let (num_colors, asked) = (self.sizes.len(), t - t % PERIOD);
        let [plain, by_crowding, by_age] = self.rule.moves;
        let jitter = self.outputs[4];
        let colors_per_node = self.num_open as f32 / self.colors.len() as f32;
        for (crowding, &size) in self.crowding.iter_mut().zip(&self.sizes) {
            *crowding = (size as f32).mul_add(colors_per_node, -1.0);
        }
        for (closed, &is_open) in self.closed.iter_mut().zip(&self.is_open) {
            *closed = if is_open { 0.0 } else { f32::NEG_INFINITY };
        }
        let (crowding, closed) = (&self.crowding[..num_colors], &self.closed[..num_colors]);
        let (shift, now) = (turn(0, self.seed, t) as i32, t as i32);
        let score = &mut self.score[..num_colors];
        for (a, &v) in self.active.iter().enumerate() {
            let until = &self.until[v as usize * num_colors..][..num_colors];
            let random = &self.noise.row(i64::from(later(self.first_turns[v as usize], shift)))[..num_colors];
            let costs = &mut self.costs[v as usize * num_colors..][..num_colors];
            if self.summed[v as usize] < asked {
                self.summed[v as usize] = t;
                costs.fill(0);
                for &u in self.lists.neighbors(v) {
                    costs[self.colors[u as usize] as usize] += self.weights[u as usize];
                }
            }
            let here = self.colors[v as usize] as usize;
            let extra = if self.is_open[here] { 0.0 } else { 1.0 + plain };
            let cost_here = costs[here] as f32 / f32::from(UNIT) + extra;
            for x in 0..num_colors {
                let cost = costs[x] as f32 / f32::from(UNIT);
                let value = by_crowding.mul_add(crowding[x], jitter * random[x]) - cost;
                score[x] = if until[x] < now { value + closed[x] } else { f32::NEG_INFINITY };
            }
            score[here] = f32::NEG_INFINITY;
            let top = score.iter().fold(f32::NEG_INFINITY, |top, &value| if value > top { value } else { top });
            self.targets[a] = score.iter().position(|&value| value == top).unwrap_or(0) as u32;
            let age = self.logs[(t as i32 - self.moved[v as usize]).min(OLDEST as i32) as usize];
            self.gains[a] = by_age.mul_add(age, cost_here + top);
        }
    }

    /// Keeps the best move and those about as good, without those of neighbors of a better one.
    #[inline(always)]
    fn settle(&mut self) {
        let gains = &mut self.gains[..self.active.len()];
        let mut limit = f32::NEG_INFINITY;
        self.movers.clear();
        for m in 0..self.num_movers.min(gains.len()) {
            let best = (1..gains.len()).fold(0, |best, a| if gains[a] > gains[best] { a } else { best });
            if gains[best].partial_cmp(&limit) != Some(std::cmp::Ordering::Greater) {
                break;
            }
            if m == 0 {
                limit = gains[best] - self.outputs[3];
            }
            self.movers.push(best);
            gains[best] = f32::NEG_INFINITY;
        }
        self.kept.clear();
        for (m, &a) in self.movers.iter().enumerate() {
            let neighbors = self.lists.neighbors(self.active[a]);
            if self.movers[..m].iter().all(|&better| neighbors.binary_search(&self.active[better]).is_err()) {
                self.kept.push(a);
            }
        }
    }

    /// Lets the nodes move.
    #[inline(always)]
    fn apply(&mut self, t: i64) {
        let (n, num_colors, num_conflicted) = (self.colors.len(), self.sizes.len(), self.conflicted.nodes.len() as f32);
        let asked = t - t % PERIOD;
        for m in 0..self.kept.len() {
            let (v, new) = (self.active[self.kept[m]] as usize, self.targets[self.kept[m]]);
            let old = self.colors[v];
            let random = self.noise.row(turn(v as u32, self.seed, t))[0];
            let [fixed, per_conflicted, spread, ..] = self.outputs;
            let tenure = spread.mul_add(random, per_conflicted.mul_add(num_conflicted, fixed));
            self.until[v * num_colors + old as usize] = (t as f64 + f64::from(tenure.floor()).min(1e9)) as i32;
            self.moved[v] = t as i32;
            self.moves[v] += 1;
            self.num_moves += 1;
            self.sizes[old as usize] -= 1;
            self.sizes[new as usize] += 1;
            self.colors[v] = new;
            self.add_conflicts(v, self.counts[new as usize * n + v] - self.conflicts[v]);
            let (is_open, weight) = (self.is_open[old as usize], self.weights[v]);
            for &u in self.lists.neighbors(v as u32) {
                let u = u as usize;
                let (leave, enter) = (old as usize * n + u, new as usize * n + u);
                let (left, entered) = (self.counts[leave] - 1, self.counts[enter]);
                self.counts[leave] = left;
                self.counts[enter] = entered + 1;
                if self.summed[u] >= asked {
                    self.costs[u * num_colors + old as usize] -= weight;
                    self.costs[u * num_colors + new as usize] += weight;
                }
                let color = self.colors[u];
                if left < 2 || entered < 2 || color == old || color == new {
                    if is_open {
                        self.without[u] += i32::from(left == 0);
                        self.one[u] += i32::from(left == 1) - i32::from(left == 0);
                    }
                    self.without[u] -= i32::from(entered == 0);
                    self.one[u] += i32::from(entered == 0) - i32::from(entered == 1);
                    if color == old {
                        self.add_conflicts(u, -1);
                    } else if color == new {
                        self.add_conflicts(u, 1);
                    }
                }
            }
        }
    }
}

impl Rule {
    /// What conflicts with the nodes of these features cost, from the outputs for the graph.
    #[inline(always)]
    fn weigh(&self, features: &[Vec<f32>; NODE_FEATURES], outputs: &[f32; OUTPUTS], weights: &mut [i32]) {
        let count = weights.len();
        let f: [&[f32]; NODE_FEATURES] = std::array::from_fn(|j| &features[j][..count]);
        let (by_node, out, direct, plain) = (self.by_node, self.out, self.direct, self.moves[0]);
        let outputs = *outputs;
        for i in 0..count {
            let x = [f[0][i], f[1][i], f[2][i], f[3][i], f[4][i], f[5][i]];
            let mut z = dot(x, direct) + outputs[OUTPUTS - 1];
            for j in 0..HIDDEN {
                let y = dot(x, by_node[j]) + outputs[CONTROLS + j];
                z = if y > 0.0 { y } else { 0.0 }.mul_add(out[j], z);
            }
            weights[i] = conflict_weight(z, plain);
        }
    }
}

/// The turn of a node in a later round, where node 0 has `shift`.
#[inline(always)]
fn later(first_turn: i32, shift: i32) -> i32 {
    let turn = first_turn + shift;
    if turn < TURNS as i32 { turn } else { turn - TURNS as i32 }
}

#[inline(always)]
fn dot(x: [f32; NODE_FEATURES], w: [f32; NODE_FEATURES]) -> f32 {
    let first = x[0].mul_add(w[0], x[1] * w[1]);
    (2..NODE_FEATURES).fold(first, |sum, i| x[i].mul_add(w[i], sum))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize};

    use serde_json::Value;

    use super::*;
    use crate::{Coloring, Graph};

    pub(crate) fn integers<const N: usize>(value: &Value) -> [usize; N] {
        std::array::from_fn(|i| value[i].as_u64().unwrap() as usize)
    }

    /// Knuth's linear congruential generator.
    pub(crate) fn random_numbers(mut state: u64) -> impl FnMut() -> u64 {
        move || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            state >> 33
        }
    }

    pub(crate) fn graph_of([nodes, groups, percent]: [usize; 3]) -> Graph {
        let mut random = random_numbers(nodes as u64);
        let pairs = (0..nodes).flat_map(|u| (0..u).map(move |v| (u, v)));
        let edges = pairs.filter(|(u, v)| {
            let number = random();
            u % groups != v % groups && number % 100 < percent as u64
        });
        Graph::from_edges(nodes, edges).unwrap()
    }

    pub(crate) fn checksum(colors: &[u32]) -> u32 {
        colors.iter().fold(2166136261, |total: u32, color| (total ^ color).wrapping_mul(16777619))
    }

    /// tests/test_rust_search.py makes them, and sees that they are those of the Python loops.
    #[test]
    fn the_rule_makes_the_moves_of_the_python_loops() {
        let golden: Value = serde_json::from_str(include_str!("../tests/rule_search.json")).unwrap();
        let rule = Rule::from_text(&golden["rule"].to_string()).unwrap();
        let stop = Stop { is_over: &AtomicBool::new(false), num_colors: &AtomicUsize::new(1), target: 0 };
        for case in golden["cases"].as_array().unwrap() {
            let graph = graph_of(integers(&case["graph"]));
            let [num_colors, lower, seed] = integers(&case["task"]);
            let first = Coloring::greedy(&graph, &(0..graph.num_nodes()).collect::<Vec<_>>());
            let noise = Noise::new(first.num_colors());
            for expected in case["found"].as_array().unwrap() {
                let rounds = expected[0].as_u64().unwrap() as usize;
                let task = Task { first: &first.classes(), num_colors, lower, seed: seed as i64, rounds };
                let found = search_graph(&Lists::new(&graph), &rule, &noise, task, stop);
                let found = serde_json::json!([rounds, checksum(&found.colors), found.num_colors, found.conflicts]);
                assert_eq!(found, *expected, "{}", case["graph"]);
            }
        }
    }
}
