//! The inner loops of the search, as in `gnn_training/search/kernels.py`: DSATUR, TabuCol, independent sets.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use crate::Graph;

/// In place of a color or a position: none.
pub(crate) const NONE: u32 = u32::MAX;
const FORBIDDEN: i32 = 1 << 28; // more than any number of conflicts
const TABU_MOVES: usize = 7; // independent sets: a node that was driven out stays out for so many moves
const PATIENCE: usize = 100; // moves without a larger set before a node is forced in
const ADD_SAMPLE: usize = 4; // nodes looked at to add one,
const SWAP_SAMPLE: usize = 10; // and to exchange one

/// Calls a function compiled for AVX2 and FMA where the processor has them; all it calls must be inlined.
macro_rules! dispatch {
    ($run:ident($($name:ident: $type:ty),*) -> $out:ty) => {{
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            #[target_feature(enable = "avx2,fma")]
            fn wide($($name: $type),*) -> $out {
                $run($($name),*)
            }
            #[expect(unsafe_code, reason = "wider vectors than every processor has")]
            // SAFETY: this one has them.
            return unsafe { wide($($name),*) };
        }
        $run($($name),*)
    }};
}
pub(crate) use dispatch;

/// Neighbors of every node in half the memory of a [`Graph`].
pub(crate) struct Lists {
    offsets: Vec<usize>,
    ends: Vec<u32>,
}

impl Lists {
    pub(crate) fn new(graph: &Graph) -> Self {
        Self::of((0..graph.num_nodes()).map(|v| graph.neighbors(v).iter().map(|&u| u as u32)))
    }

    fn of<I: Iterator<Item = u32>>(rows: impl Iterator<Item = I>) -> Self {
        let (mut offsets, mut ends) = (vec![0], Vec::new());
        for row in rows {
            ends.extend(row);
            offsets.push(ends.len());
        }
        Self { offsets, ends }
    }

    /// The graph among `nodes`, which are sorted.
    pub(crate) fn among(&self, nodes: &[u32]) -> Self {
        let mut place = vec![NONE; self.num_nodes()];
        for (i, &v) in nodes.iter().enumerate() {
            place[v as usize] = i as u32;
        }
        let place = &place;
        Self::of(nodes.iter().map(|&v| self.neighbors(v).iter().map(|&u| place[u as usize]).filter(|&i| i != NONE)))
    }

    pub(crate) fn num_nodes(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Twice the number of edges.
    pub(crate) fn num_ends(&self) -> usize {
        self.ends.len()
    }

    #[inline(always)]
    pub(crate) fn neighbors(&self, v: u32) -> &[u32] {
        &self.ends[self.offsets[v as usize]..self.offsets[v as usize + 1]]
    }
}

/// Says when a loop has to end: the search is over, or a coloring with as few colors as it looks for is known.
#[derive(Clone, Copy)]
pub(crate) struct Stop<'a> {
    pub(crate) is_over: &'a AtomicBool,
    pub(crate) num_colors: &'a AtomicUsize,
    pub(crate) target: usize,
}

impl Stop<'_> {
    #[inline(always)]
    pub(crate) fn is_set(self) -> bool {
        self.is_over.load(Relaxed) || self.num_colors.load(Relaxed) <= self.target
    }
}

/// Random numbers (Marsaglia 2003).
pub(crate) struct Rng(u64);

impl Rng {
    /// Other numbers for every seed and stream (splitmix64).
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        let mut x =
            seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ stream.wrapping_add(1).wrapping_mul(0xd1b5_4a32_d192_ed03);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self((x ^ (x >> 31)).max(1))
    }

    #[inline(always)]
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 33) % limit as u64) as usize
    }
}

/// Colors the node with most colors around it next, ties by degree, then number (Brélaz 1979). After the deadline the
/// nodes that are left take the first free color in their order.
pub(crate) fn dsatur(lists: &Lists, deadline: Option<Instant>) -> Vec<u32> {
    let n = lists.num_nodes();
    let max_degree = (0..n as u32).map(|v| lists.neighbors(v).len()).max().unwrap_or(0);
    // k colors have an edge between every two of them, so k(k - 1) <= 2M: a star needs no row of N bits for every node.
    let width = (max_degree.min(lists.num_ends().isqrt()) >> 3) + 1;
    let mut seen = vec![0_u8; n * width]; // bits: the colors around a node
    let mut colors = vec![NONE; n];
    // The key of a node: n² of the colors around it + n of its degree - its number, so that the highest tells the node.
    let mut keys = Tournament::of((0..n).map(|v| ((lists.neighbors(v as u32).len() + 1) * n - 1 - v) as i64));
    let (mut is_late, mut next) = (false, 0);
    for turn in 0..n {
        is_late |= turn % 1024 == 0 && deadline.is_some_and(|deadline| Instant::now() > deadline);
        let node = if is_late {
            next += colors[next..].iter().take_while(|&&color| color != NONE).count();
            next
        } else {
            n - 1 - keys.highest() as usize % n
        };
        let row = &seen[node * width..][..width];
        let free = row.iter().position(|&byte| byte != 255).expect("a node has a color more than neighbors");
        let color = 8 * free as u32 + row[free].trailing_ones();
        let (byte, bit) = (free, 1 << (color & 7));
        colors[node] = color;
        keys.remove(node);
        for &u in lists.neighbors(node as u32) {
            let u = u as usize;
            if seen[u * width + byte] & bit == 0 {
                seen[u * width + byte] |= bit;
                if colors[u] == NONE && !is_late {
                    keys.raise(u, (n * n) as i64);
                }
            }
        }
    }
    colors
}

/// Keys of nodes, which change, and the highest. Node v plays as leaf N + v; entry i is the higher one of the entries 2i
/// and 2i + 1.
struct Tournament(Vec<i64>);

impl Tournament {
    fn of(keys: impl ExactSizeIterator<Item = i64>) -> Self {
        let n = keys.len();
        let mut entries = vec![-1; n];
        entries.extend(keys);
        for i in (1..n).rev() {
            entries[i] = entries[2 * i].max(entries[2 * i + 1]);
        }
        Self(entries)
    }

    fn highest(&self) -> i64 {
        self.0[1]
    }

    #[inline(always)]
    fn remove(&mut self, v: usize) {
        let mut i = self.0.len() / 2 + v;
        self.0[i] = -1;
        while i > 1 {
            i >>= 1;
            self.0[i] = self.0[2 * i].max(self.0[2 * i + 1]);
        }
    }

    #[inline(always)]
    fn raise(&mut self, v: usize, by: i64) {
        let mut i = self.0.len() / 2 + v;
        let key = self.0[i] + by;
        while i > 0 && self.0[i] < key {
            self.0[i] = key;
            i >>= 1;
        }
    }
}

/// Gives the nodes that have none one of k colors, in a random order: a color that fewest neighbors have, ties at
/// random. The coloring may become improper.
pub(crate) fn complete(lists: &Lists, colors: &mut [u32], k: usize, rng: &mut Rng, stop: Stop) {
    let n = colors.len();
    let (mut order, mut met) = ((0..n as u32).collect::<Vec<_>>(), vec![0_u32; k]);
    for i in 0..n {
        order.swap(i, i + rng.below(n - i));
        let v = order[i];
        if colors[v as usize] != NONE {
            continue;
        }
        let first = rng.below(k);
        let mut color = first;
        if !stop.is_set() {
            met.fill(0);
            for &u in lists.neighbors(v) {
                if let Some(count) = met.get_mut(colors[u as usize] as usize) {
                    *count += 1;
                }
            }
            color = (first..k).chain(0..first).min_by_key(|&x| met[x]).unwrap_or(first);
        }
        colors[v as usize] = color as u32;
    }
}

/// A coloring of a generation.
#[derive(Clone)]
pub(crate) struct Parent {
    pub(crate) conflicts: i32,
    pub(crate) colors: Vec<u32>,
    /// Moves of TabuCol since a node took its color.
    pub(crate) ages: Vec<u32>,
}

/// What TabuCol returns: the best coloring, the moves made, and the work: neighbors and vectors of colors looked at.
pub(crate) struct Tabu {
    pub(crate) best: Parent,
    pub(crate) moves: usize,
    pub(crate) work: usize,
}

/// TabuCol (Hertz and de Werra 1987, tenure of Galinier and Hao 1999) with k colors from any coloring, which it changes.
/// It ends without a conflict, after so many moves, or when it has to stop.
pub(crate) fn tabucol(lists: &Lists, colors: &mut [u32], k: usize, moves: usize, rng: &mut Rng, stop: Stop) -> Tabu {
    dispatch!(run_tabucol(lists: &Lists, colors: &mut [u32], k: usize, moves: usize, rng: &mut Rng, stop: Stop) -> Tabu)
}

#[inline(always)]
fn run_tabucol(lists: &Lists, colors: &mut [u32], k: usize, moves: usize, rng: &mut Rng, stop: Stop) -> Tabu {
    let mut search = TabuCol::begin(lists, colors, k);
    let (mut fewest, mut t, mut work) = (search.conflicts, 0_i32, lists.num_ends());
    let mut best = search.colors.to_vec();
    let (mut moved, mut ages) = (vec![0_i32; best.len()], vec![0_u32; best.len()]); // moves before a node's last, and since
    while search.conflicts > 0 && (t as usize) < moves && !stop.is_set() {
        let aspired = fewest - search.conflicts; // a move that leads below `fewest` is never tabu
        let least = search.least_change(t, aspired);
        t += 1;
        work += search.conflicted.nodes.len() * (search.width >> 3);
        if least == FORBIDDEN {
            continue; // every move is tabu: wait
        }
        let (node, new) = search.draw(t, least, aspired, rng);
        let tenure = (0.6 * search.conflicted.nodes.len() as f64) as i32 + rng.below(10) as i32;
        search.apply(node, new, t + tenure);
        search.conflicts += least;
        moved[node as usize] = t;
        work += lists.neighbors(node).len();
        if search.conflicts < fewest {
            fewest = search.conflicts;
            best.copy_from_slice(search.colors);
            ages.iter_mut().zip(&moved).for_each(|(age, &moved)| *age = (t - moved) as u32);
        }
    }
    Tabu { best: Parent { conflicts: fewest, colors: best, ages }, moves: t as usize, work }
}

/// A coloring of TabuCol and what is counted of it, in rows of whole vectors. N nodes, K colors, W the width of a row.
struct TabuCol<'a> {
    lists: &'a Lists,
    colors: &'a mut [u32],
    k: usize,
    width: usize,
    counts: Vec<i32>, // (N, W) neighbors of a node with each color
    until: Vec<i32>,  // (N, W) last move in which a node may not take a color
    conflicted: Nodes,
    changes: Vec<i32>, // of the conflicts by the best move of each of them
    conflicts: i32,
}

impl<'a> TabuCol<'a> {
    #[inline(always)]
    fn begin(lists: &'a Lists, colors: &'a mut [u32], k: usize) -> Self {
        let (n, width) = (colors.len(), k.next_multiple_of(8));
        let (mut counts, mut conflicted, mut conflicts) = (vec![0_i32; n * width], Nodes::new(n), 0);
        for (v, row) in counts.chunks_exact_mut(width).enumerate() {
            for &u in lists.neighbors(v as u32) {
                row[colors[u as usize] as usize] += 1;
            }
            row[k..].fill(FORBIDDEN);
            let own = row[colors[v] as usize];
            if own > 0 {
                conflicted.add(v as u32);
                conflicts += own;
            }
        }
        let (until, changes) = (vec![0; n * width], vec![0; n]);
        Self { lists, colors, k, width, counts, until, conflicted, changes, conflicts: conflicts / 2 }
    }

    /// The least change that a move makes, and that of every conflicted node; FORBIDDEN if all are tabu.
    #[inline(always)]
    fn least_change(&mut self, t: i32, aspired: i32) -> i32 {
        let (width, mut least) = (self.width, FORBIDDEN);
        for (&v, change) in self.conflicted.nodes.iter().zip(&mut self.changes) {
            let (v, own) = (v as usize, self.colors[v as usize] as usize);
            let (row, until) = (&mut self.counts[v * width..][..width], &self.until[v * width..][..width]);
            let here = std::mem::replace(&mut row[own], FORBIDDEN);
            let (mut lowest, mut lowest_free) = (FORBIDDEN, FORBIDDEN);
            for (&count, &until) in row.iter().zip(until) {
                lowest = lowest.min(count);
                lowest_free = lowest_free.min(if until <= t { count } else { FORBIDDEN });
            }
            row[own] = here;
            *change = lowest - here;
            if *change >= aspired {
                *change = if lowest_free < FORBIDDEN { lowest_free - here } else { FORBIDDEN };
            }
            least = least.min(*change);
        }
        least
    }

    /// A node and its new color: one of the moves that make this change, which are few.
    #[inline(always)]
    fn draw(&self, t: i32, least: i32, aspired: i32, rng: &mut Rng) -> (u32, usize) {
        let (mut node, mut ties) = (0, 0);
        for (&v, &change) in self.conflicted.nodes.iter().zip(&self.changes) {
            if change == least {
                ties += 1;
                node = if rng.below(ties) == 0 { v } else { node };
            }
        }
        let (start, old) = (node as usize * self.width, self.colors[node as usize] as usize);
        let (row, until) = (&self.counts[start..][..self.width], &self.until[start..][..self.width]);
        let target = row[old] + least;
        let (mut new, mut ties) = (0, 0);
        for c in 0..self.k {
            if row[c] == target && c != old && (until[c] < t || least < aspired) {
                ties += 1;
                new = if rng.below(ties) == 0 { c } else { new };
            }
        }
        (node, new)
    }

    /// Gives a node another color; it may not take the old one again until then.
    #[inline(always)]
    fn apply(&mut self, node: u32, new: usize, until: i32) {
        let (v, width) = (node as usize, self.width);
        let old = std::mem::replace(&mut self.colors[v], new as u32) as usize;
        self.until[v * width + old] = until;
        if self.counts[v * width + new] == 0 {
            self.conflicted.remove(node);
        }
        for &u in self.lists.neighbors(node) {
            let row = &mut self.counts[u as usize * width..][..width];
            row[old] -= 1;
            row[new] += 1;
            let color = self.colors[u as usize] as usize;
            if color == old {
                if row[old] == 0 {
                    self.conflicted.remove(u);
                }
            } else if color == new {
                self.conflicted.add(u);
            }
        }
    }
}

/// A set of nodes, listed in any order.
pub(crate) struct Nodes {
    pub(crate) nodes: Vec<u32>,
    place: Vec<u32>, // of every node in `nodes`, or NONE
}

impl Nodes {
    pub(crate) fn new(num_nodes: usize) -> Self {
        Self { nodes: Vec::with_capacity(num_nodes), place: vec![NONE; num_nodes] }
    }

    #[inline(always)]
    pub(crate) fn add(&mut self, v: u32) {
        if self.place[v as usize] == NONE {
            self.place[v as usize] = self.nodes.len() as u32;
            self.nodes.push(v);
        }
    }

    #[inline(always)]
    pub(crate) fn remove(&mut self, v: u32) {
        let place = std::mem::replace(&mut self.place[v as usize], NONE);
        if place != NONE {
            self.nodes.swap_remove(place as usize);
            if let Some(&last) = self.nodes.get(place as usize) {
                self.place[last as usize] = place;
            }
        }
    }
}

/// A coloring that grows class by class.
pub(crate) struct Classes {
    pub(crate) colors: Vec<u32>,
    /// Neighbors without a color.
    degree: Vec<usize>,
}

impl Classes {
    pub(crate) fn new(lists: &Lists) -> Self {
        let nodes = 0..lists.num_nodes() as u32;
        Self {
            colors: nodes.clone().map(|_| NONE).collect(),
            degree: nodes.map(|v| lists.neighbors(v).len()).collect(),
        }
    }

    /// Makes these nodes the class of a color.
    pub(crate) fn add(&mut self, lists: &Lists, members: &[bool], color: u32) {
        for v in (0..members.len() as u32).filter(|&v| members[v as usize]) {
            self.colors[v as usize] = color;
            lists.neighbors(v).iter().for_each(|&u| self.degree[u as usize] -= 1);
        }
    }
}

/// Colors the nodes with large independent sets, one after the other. After the deadline the nodes that are left have
/// no color.
pub(crate) fn set_coloring(lists: &Lists, seed: u64, moves: usize, deadline: Option<Instant>) -> Vec<u32> {
    let n = lists.num_nodes();
    let (mut classes, mut rng) = (Classes::new(lists), Rng::new(seed, n as u64));
    let (is_over, num_colors) = (AtomicBool::new(false), AtomicUsize::new(1));
    let stop = Stop { is_over: &is_over, num_colors: &num_colors, target: 0 };
    let is_late = || deadline.is_some_and(|deadline| Instant::now() > deadline);
    for color in (0..).take_while(|_| !is_late()) {
        if !classes.colors.contains(&NONE) {
            break;
        }
        let (members, _) = independent_set(lists, &classes, moves, &mut rng, stop);
        classes.add(lists, &members, color);
    }
    classes.colors
}

/// Large independent set of the nodes without a color; of equal sizes the one with more edges. A node without neighbors
/// in the set is added at once, preferably one of large degree. When there is none, a move exchanges a node for its
/// only neighbor in the set, or forces one in after PATIENCE moves without a larger set (plateau search, as for cliques
/// in Pullan and Hoos 2006). Returns the set and the work: neighbors visited.
pub(crate) fn independent_set(
    lists: &Lists,
    classes: &Classes,
    moves: usize,
    rng: &mut Rng,
    stop: Stop,
) -> (Vec<bool>, usize) {
    let Classes { colors, degree } = classes;
    let n = colors.len();
    let nodes: Vec<u32> = (0..n as u32).filter(|&v| colors[v as usize] == NONE).collect();
    let mut set = Set { buckets: [Nodes::new(n), Nodes::new(n)], beside: vec![0; n], inside: vec![false; n] };
    nodes.iter().for_each(|&v| set.buckets[0].add(v));
    let (mut best, mut out_until) = (vec![false; n], vec![0; n]);
    let (mut size, mut edges, mut best_size, mut best_edges) = (0, 0, 0, 0);
    let (mut moved, mut stale, mut work) = (0, 0, 0);
    loop {
        let mut node = None;
        let [free, swaps] = set.buckets.each_ref().map(|bucket| &bucket.nodes[..]);
        if !free.is_empty() {
            for _ in 0..ADD_SAMPLE.min(free.len()) {
                let v = free[rng.below(free.len())];
                node = node.filter(|&best: &u32| degree[best as usize] >= degree[v as usize]).or(Some(v));
            }
        } else {
            if (size, edges) > (best_size, best_edges) {
                stale = if size > best_size { 0 } else { stale };
                best.copy_from_slice(&set.inside);
                (best_size, best_edges) = (size, edges);
            }
            if moved == moves || size == nodes.len() || stop.is_set() {
                return (best, work);
            }
            moved += 1;
            stale += 1;
            if stale <= PATIENCE {
                let mut sample = (0..SWAP_SAMPLE.min(swaps.len())).map(|_| swaps[rng.below(swaps.len())]);
                node = sample.find(|&v| out_until[v as usize] <= moved);
            }
            while node.is_none() {
                stale = 0;
                node = Some(nodes[rng.below(nodes.len())]).filter(|&v| !set.inside[v as usize]);
            }
        }
        let node = node.expect("a node enters");
        let mut changing: Vec<u32> = Vec::new(); // its neighbors leave the set, then the node enters
        if set.beside[node as usize] > 0 {
            changing.extend(lists.neighbors(node).iter().filter(|&&v| set.inside[v as usize]));
        }
        changing.push(node);
        for v in changing {
            set.change(lists, colors, v, v == node);
            work += lists.neighbors(v).len();
            if v == node {
                (size, edges) = (size + 1, edges + degree[v as usize]);
            } else {
                (size, edges) = (size - 1, edges - degree[v as usize]);
                out_until[v as usize] = moved + TABU_MOVES;
            }
        }
    }
}

/// An independent set that changes.
struct Set {
    /// Bucket 0 holds the nodes that may enter: no neighbor is inside. Those of bucket 1 have one neighbor inside.
    buckets: [Nodes; 2],
    beside: Vec<usize>, // neighbors inside
    inside: Vec<bool>,
}

impl Set {
    /// Lets a node enter or leave, among those without a color.
    #[inline(always)]
    fn change(&mut self, lists: &Lists, colors: &[u32], v: u32, enters: bool) {
        self.inside[v as usize] = enters;
        for &u in lists.neighbors(v).iter().chain([&v]).filter(|&&u| colors[u as usize] == NONE) {
            let count = &mut self.beside[u as usize];
            if u != v {
                *count = if enters { *count + 1 } else { *count - 1 };
            }
            for (number, bucket) in self.buckets.iter_mut().enumerate() {
                if *count == number && !self.inside[u as usize] { bucket.add(u) } else { bucket.remove(u) }
            }
        }
    }
}
