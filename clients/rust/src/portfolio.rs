//! The search that colors a graph: a portfolio of methods that share the best coloring known, as in
//! `gnn_training/search/portfolio.py`.
//!
//! A step of a method takes some 30 ms and returns its work in visits of a neighbor. Every thread has a share of the
//! methods. It continues the one that has just found a better coloring, else the one that has done least.

use std::cmp::Ordering;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use crate::coloring::by_class;
use crate::crossover::{self, GENERATION, Weights};
use crate::kernels::{self, Classes, Lists, NONE, Parent, Rng, Stop, Tabu};
use crate::rule::{Noise, Rule};
use crate::rule_search::{Task, search_graph};
use crate::{Coloring, Graph};

const SLICE: usize = 20_000; // moves of TabuCol
const ELITE: usize = 10; // generations after which the best child of an earlier such period returns
const ALIKE: f64 = 0.99; // share of the nodes with the same color in two parents, from which on one begins again
const EVEN: usize = 16; // odds to EVEN that the network chooses the classes of a child:
const FIRST_ODDS: usize = 64; // at first,
const MOST_ODDS: usize = 256; // and at most; at least 1
const RATIOS: [f64; 5] = [0.5, 0.6, 0.7, 0.8, 0.9]; // of the present number of colors that `Fewer` asks for
const FIRST_MOVES: usize = 20_000; // of TabuCol on each of them; doubled after all of them
const SET_MOVES: usize = 600; // of the search for an independent set, at first,
const LAST_SET_MOVES: usize = 19_200; // and at last
const PART_WORK: usize = 2; // of crossover search, for that of the sets before it
const PART_NODES: f64 = 500.0; // nodes that independent sets leave: so many,
const PART_SHARE: f64 = 0.25; // or a larger share
const SPARSEST: f64 = 0.02; // density from which independent sets color first
const FEWEST_MOVES: usize = 4; // of the search for each of them, or they are not worth their time
const MOST_MOVES: usize = 1024;
const SET_SHARE: f64 = 0.5; // of the time: these sets are given moves for so much,
const SET_STOP: f64 = 0.75; // and stop there
const VISIT_SECONDS: f64 = 1e-8; // of a core, in this search
const CLIQUE_SHARE: f64 = 0.2; // of the time, for cliques
const SETS_FROM: f64 = 0.15; // density from which independent sets are a method of the portfolio,
const SETS_NODES: usize = 700; // with so many nodes
const RANDOM_RATIO: usize = 2; // of DSATUR's colors and a clique: below it, as in geometric graphs, they do not
const FIRST_ROUNDS: usize = 2_000; // of the trained rule in its shortest runs
const EMPTY_SLICE: usize = 10_000; // the work of a step besides its visits

/// What a coloring may cost.
#[derive(Clone, Debug)]
pub struct Budget {
    /// Time for the search; a first coloring always ends.
    pub time: Duration,
    /// Enough once so few colors are found.
    pub target: usize,
    /// Threads of [`color`]; 0: every core that this process may use.
    pub threads: usize,
    /// Another seed, another search.
    pub seed: i64,
    /// Calls of the network, the first included; only `ColoringGnn::color` makes any.
    pub calls: usize,
}

impl Budget {
    /// As much as fits into so many seconds.
    ///
    /// # Panics
    /// If `seconds` is negative or no number.
    pub fn seconds(seconds: f64) -> Self {
        Self { time: Duration::from_secs_f64(seconds), target: 1, threads: 0, seed: 0, calls: usize::MAX }
    }

    /// For `ColoringGnn::color`: one three-input call.
    pub fn one_call() -> Self {
        Self { calls: 1, ..Self::seconds(0.0) }
    }
}

/// The best coloring found within the budget by the search with the rule that comes with the crate.
///
/// It ends early when a clique proves that there is none with fewer colors.
///
/// ```
/// use coloring_gnn::{Budget, Graph, color};
///
/// let ring = Graph::from_edges(5, [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0)])?;
/// assert_eq!(color(&ring, &Budget::seconds(0.1)).num_colors(), 3);
/// # Ok::<(), coloring_gnn::Error>(())
/// ```
pub fn color(graph: &Graph, budget: &Budget) -> Coloring {
    Rule::default().color(graph, budget, |_, _| {})
}

impl Rule {
    /// As [`color`], with this rule. `better` gets every coloring that is better than those before, and the name of the
    /// method that found it.
    pub fn color(&self, graph: &Graph, budget: &Budget, better: impl FnMut(&Coloring, &'static str)) -> Coloring {
        self.color_from(graph, budget, None, better)
    }

    /// As [`Rule::color`]. The search begins with `start`, unless DSATUR needs fewer colors.
    ///
    /// # Panics
    /// If `start` is not a proper coloring of the graph.
    pub fn color_from(
        &self,
        graph: &Graph,
        budget: &Budget,
        start: Option<&Coloring>,
        mut better: impl FnMut(&Coloring, &'static str),
    ) -> Coloring {
        let begin = Instant::now();
        let deadline = begin.checked_add(budget.time);
        let clique = graph.clique_until(begin.checked_add(budget.time.mul_f64(CLIQUE_SHARE)));
        let lower = budget.target.max(clique).max(1);
        let lists = Lists::new(graph);
        let mut first = kernels::dsatur(&lists, deadline);
        let mut best = checked(graph, &first);
        let start = start.filter(|start| start.num_colors() <= best.num_colors());
        if let Some(start) = start {
            graph.check(start.colors()).expect("start is a proper coloring");
            (first, best) = (start.classes(), start.clone());
        }
        better(&best, start.map_or("DSATUR", |_| "start"));
        if best.num_colors() <= lower || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return best;
        }
        let methods = methods_for(graph, best.num_colors(), clique);
        let sets = by_sets(graph, &lists, best.num_colors(), budget.seed as u64, deadline);
        if let Some(sets) = sets.filter(|sets| sets.num_colors() < best.num_colors()) {
            (first, best) = (sets.classes(), sets);
            better(&best, "independent sets");
        }
        let whole = Problem::new(lists, first);
        let search = Search { whole, rule: self, lower, is_over: AtomicBool::new(false) };
        thread::scope(|scope| {
            let improvements = search.start(scope, &methods, threads_of(budget.threads), budget.seed as u64);
            // Err: the time is over, or all threads have ended.
            let next = || match deadline {
                Some(deadline) => improvements.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok(),
                None => improvements.recv().ok(),
            };
            while let Some((colors, method)) = next() {
                let coloring = checked(graph, &colors); // first fit may have saved a color before the search did
                if coloring.num_colors() < best.num_colors() {
                    best = coloring;
                    better(&best, method);
                }
            }
            search.is_over.store(true, Relaxed);
        });
        best
    }
}

/// A number of threads; 0: every core that this process may use.
pub(crate) fn threads_of(asked: usize) -> usize {
    if asked > 0 { asked } else { thread::available_parallelism().map_or(1, |cores| cores.get()) }
}

/// The portfolio for a graph with a first coloring: methods and their shares of the work. The first one begins.
fn methods_for(graph: &Graph, num_colors: usize, clique: usize) -> Vec<(Make, f64)> {
    let crossover: Make = || Box::<CrossoverSearch>::default();
    let trained_rule: Make = || Box::<TrainedRule>::default();
    let fewer: Make = || Box::<Fewer>::default();
    let sets: Make = || Box::<IndependentSets>::default();
    if num_colors >= RANDOM_RATIO * clique && density(graph) >= SETS_FROM && graph.num_nodes() >= SETS_NODES {
        vec![(crossover, 2.0), (sets, 4.0), (fewer, 0.5), (trained_rule, 0.5)]
    } else {
        vec![(crossover, 2.0), (trained_rule, 2.0), (fewer, 0.5)]
    }
}

/// The colors of a search as the crate returns them.
fn plain(colors: &[u32]) -> Vec<usize> {
    colors.iter().map(|&color| color as usize).collect()
}

/// First fit, class by class; nodes without a color come last.
fn first_fit(graph: &Graph, colors: &[u32]) -> Coloring {
    Coloring::greedy(graph, &by_class(&plain(colors)))
}

/// First fit, after a look at every edge.
fn checked(graph: &Graph, colors: &[u32]) -> Coloring {
    graph.check(&plain(colors)).expect("the search makes proper colorings");
    first_fit(graph, colors)
}

/// The coloring by independent sets, if they are worth their time. num_colors: of a coloring.
fn by_sets(graph: &Graph, lists: &Lists, num_colors: usize, seed: u64, deadline: Option<Instant>) -> Option<Coloring> {
    let now = Instant::now();
    let left = deadline.map(|deadline| deadline.saturating_duration_since(now));
    let moves = left.map_or(MOST_MOVES, |left| set_moves(graph, num_colors, SET_SHARE * left.as_secs_f64()));
    let end = left.map(|left| now + left.mul_f64(SET_STOP));
    let is_worth = density(graph) >= SPARSEST && moves >= FEWEST_MOVES;
    is_worth.then(|| first_fit(graph, &kernels::set_coloring(lists, seed, moves, end)))
}

/// Moves for each independent set, so that all sets take about so many seconds. num_colors: of a coloring. For a set, all
/// nodes are looked at three times, and the neighbors of one in every move. A power of two or 0.
fn set_moves(graph: &Graph, num_colors: usize, seconds: f64) -> usize {
    let (n, visits) = (graph.num_nodes() as f64, seconds / (VISIT_SECONDS * num_colors as f64)); // for every set
    let degree = 2.0 * graph.num_edges() as f64 / n;
    let moves = ((visits - 3.0 * n) / degree.max(1.0)) as usize;
    moves.checked_ilog2().map_or(0, |power| 1 << power).min(MOST_MOVES)
}

/// Share of the pairs of nodes that are edges.
fn density(graph: &Graph) -> f64 {
    let n = graph.num_nodes();
    2.0 * graph.num_edges() as f64 / (n * n.saturating_sub(1)).max(1) as f64
}

/// Makes a method.
type Make = fn() -> Box<dyn Method>;

trait Method {
    fn name(&self) -> &'static str;

    /// Does a slice of work and returns its amount.
    fn step(&mut self, worker: &mut Worker) -> usize;
}

/// A graph, or a part of one, and the best coloring known of it.
struct Problem {
    lists: Lists,
    best: Mutex<Arc<[u32]>>,
    num_colors: AtomicUsize,
    /// Of a part: its nodes in the whole graph, and the colors of all other nodes.
    part: Option<(Vec<u32>, Vec<u32>)>,
}

impl Problem {
    fn new(lists: Lists, first: Vec<u32>) -> Self {
        let num_colors = AtomicUsize::new(num_colors(&first));
        Self { lists, best: Mutex::new(first.into()), num_colors, part: None }
    }

    fn best(&self) -> Arc<[u32]> {
        self.best.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn num_colors(&self) -> usize {
        self.num_colors.load(Relaxed)
    }
}

struct Search<'a> {
    whole: Problem,
    rule: &'a Rule,
    lower: usize,
    is_over: AtomicBool,
}

impl Search<'_> {
    /// Starts threads that share the methods and send what they find.
    fn start<'a>(
        &'a self,
        scope: &'a Scope<'a, '_>,
        methods: &[(Make, f64)],
        threads: usize,
        seed: u64,
    ) -> mpsc::Receiver<Improvement> {
        let (found, improvements) = mpsc::channel();
        for number in 0..threads {
            let own: Vec<_> = methods.iter().skip(number).step_by(threads).copied().collect();
            let own = if own.is_empty() { vec![methods[number % methods.len()]] } else { own };
            let (rng, found) = (Rng::new(seed, number as u64), found.clone());
            scope.spawn(move || Worker { search: self, rng, found, method: "" }.run(&own));
        }
        improvements
    }

    /// What ends a loop that looks for a coloring of a problem with so many colors.
    fn stop<'a>(&'a self, problem: &'a Problem, target: usize) -> Stop<'a> {
        Stop { is_over: &self.is_over, num_colors: &problem.num_colors, target }
    }
}

/// A coloring and the method that found it.
type Improvement = (Vec<u32>, &'static str);

/// A thread of a search.
struct Worker<'a> {
    search: &'a Search<'a>,
    rng: Rng,
    found: mpsc::Sender<Improvement>,
    method: &'static str,
}

impl<'a> Worker<'a> {
    /// Continues the method that has just found a better coloring, which makes the first descent fast; else the one
    /// that has done least for its share.
    fn run(&mut self, methods: &[(Make, f64)]) {
        let whole = &self.search.whole;
        let mut turns: Vec<_> = methods.iter().map(|(make, share)| (make(), *share, 0.0)).collect();
        let (mut number, mut fewest) = (0, whole.num_colors());
        while !self.search.is_over.load(Relaxed) && whole.num_colors() > self.search.lower {
            let (method, share, done) = &mut turns[number];
            self.method = method.name();
            *done += method.step(self) as f64 / *share;
            if whole.num_colors() < fewest {
                fewest = whole.num_colors();
            } else {
                number = (0..turns.len()).min_by(|&a, &b| turns[a].2.total_cmp(&turns[b].2)).unwrap_or(0);
            }
        }
    }

    /// Takes a proper coloring if it has fewer colors than the best; that of a part becomes one of the whole graph.
    fn offer(&self, problem: &Problem, mut colors: Vec<u32>) {
        let used = close_gaps(&mut colors);
        let mut best = problem.best.lock().unwrap_or_else(PoisonError::into_inner);
        if used >= problem.num_colors() {
            return;
        }
        problem.num_colors.store(used, Relaxed);
        *best = colors.as_slice().into();
        if let Some((nodes, others)) = &problem.part {
            self.offer(&self.search.whole, joined(nodes, &colors, others));
        } else {
            let _ = self.found.send((colors, self.method)); // nobody listens after the end
        }
    }

    /// TabuCol; nodes without a color get one first.
    fn tabucol(&mut self, problem: &Problem, colors: &mut [u32], k: usize, moves: usize) -> Tabu {
        let stop = self.search.stop(problem, k);
        kernels::complete(&problem.lists, colors, k, &mut self.rng, stop);
        let mut found = kernels::tabucol(&problem.lists, colors, k, moves, &mut self.rng, stop);
        if found.best.conflicts == 0 {
            self.offer(problem, found.best.colors.clone());
        }
        found.work += EMPTY_SLICE;
        found
    }
}

/// HEAD (Moalic and Gondran 2018): crossover of two colorings both ways, and TabuCol on the two children. After a
/// better coloring is known, it and the second parent lose classes and are the next parents.
///
/// A child is the network's or HEAD's by chance, with the probability that this choice is the better one
/// (Thompson 1933), if the better one leaves fewer conflicts in two of three generations whose children differ in choice
/// and conflicts.
#[derive(Default)]
struct CrossoverSearch {
    num_colors: usize, // of the best coloring when the parents began; 0 before the first
    starts: [Vec<u32>; 2],
    second: Vec<u32>,           // the second parent of the last generation
    parents: Vec<Parent>,       // children that TabuCol has improved
    elite: Option<[Parent; 2]>, // the best child of the last ELITE generations, and of those before
    generation: usize,
    by_network: [bool; 2], // the children; alike also if they are none
    odds: Odds,
}

/// That the network chooses, to EVEN.
#[derive(Clone, Copy)]
struct Odds(usize);

impl Default for Odds {
    fn default() -> Self {
        Self(FIRST_ODDS)
    }
}

impl CrossoverSearch {
    fn step_in(&mut self, problem: &Problem, worker: &mut Worker) -> usize {
        let best = problem.best();
        let num_colors = num_colors(&best);
        let k = num_colors - 1;
        if num_colors != self.num_colors {
            let second = match std::mem::take(&mut self.second) {
                second if second.is_empty() => vec![NONE; best.len()],
                second => largest_classes(&second, k),
            };
            let starts = [largest_classes(&best, k), second.clone()];
            *self = Self { num_colors, starts, second, odds: self.odds, ..Self::default() };
        }
        let start = &mut self.starts[self.parents.len()];
        let found = worker.tabucol(problem, start, k, GENERATION);
        self.parents.push(found.best);
        if self.parents.len() == 2 && problem.num_colors() == num_colors {
            self.breed(&problem.lists, k, worker.search.rule.crossover.as_ref(), &mut worker.rng);
        }
        found.work
    }

    /// The next generation.
    fn breed(&mut self, lists: &Lists, k: usize, weights: Option<&Weights>, rng: &mut Rng) {
        let Ok(mut parents) = <[Parent; 2]>::try_from(std::mem::take(&mut self.parents)) else { return };
        self.generation += 1;
        if self.by_network[0] != self.by_network[1] {
            let network = usize::from(self.by_network[1]);
            match parents[network].conflicts.cmp(&parents[1 - network].conflicts) {
                Ordering::Less => self.odds.0 = MOST_ODDS.min(2 * self.odds.0),
                Ordering::Greater => self.odds.0 = 1.max(self.odds.0 / 2),
                Ordering::Equal => (),
            }
        }
        let top = parents[usize::from(parents[1].conflicts < parents[0].conflicts)].clone();
        let elite = self.elite.get_or_insert_with(|| [top.clone(), top.clone()]);
        if top.conflicts < elite[0].conflicts {
            elite[0] = top.clone();
        }
        if self.generation.is_multiple_of(ELITE) {
            parents[0] = elite[1].clone();
            *elite = [top, elite[0].clone()];
        }
        let (first, second) = (&parents[0].colors, &parents[1].colors);
        let mut both = vec![0; k * k];
        for (&a, &b) in first.iter().zip(second) {
            both[a as usize * k + b as usize] += 1;
        }
        let same: usize = both.chunks_exact(k).map(|row| row.iter().max().unwrap_or(&0)).sum();
        let is_alike = same as f64 > ALIKE * first.len() as f64;
        self.by_network = [0, 1].map(|_| !is_alike && rng.below(EVEN + self.odds.0) >= EVEN);
        self.starts = if is_alike {
            [first.clone(), vec![NONE; first.len()]]
        } else {
            crossover::children(lists, &parents, k, weights, self.by_network)
        };
        let [_, second] = parents;
        self.second = second.colors;
    }
}

impl Method for CrossoverSearch {
    fn name(&self) -> &'static str {
        "crossover search"
    }

    fn step(&mut self, worker: &mut Worker) -> usize {
        self.step_in(&worker.search.whole, worker)
    }
}

/// The trained rule on the best coloring known: runs of 1, 2, 1, 4, 1, 2, 1, 8 .. times FIRST_ROUNDS.
#[derive(Default)]
struct TrainedRule {
    noise: Option<Noise>,
    runs: usize,
}

impl Method for TrainedRule {
    fn name(&self) -> &'static str {
        "trained rule"
    }

    fn step(&mut self, worker: &mut Worker) -> usize {
        let whole = &worker.search.whole;
        let best = whole.best();
        self.runs += 1;
        let rounds = FIRST_ROUNDS * (self.runs & self.runs.wrapping_neg());
        let noise = self.noise.get_or_insert_with(|| Noise::new(num_colors(&best)));
        let seed = (worker.rng.below(4093) + self.runs) as i64;
        let task = Task { first: &best, num_colors: 0, lower: worker.search.lower, seed, rounds };
        let stop = worker.search.stop(whole, num_colors(&best) - 1);
        let found = search_graph(&whole.lists, worker.search.rule, noise, task, stop);
        worker.offer(whole, found.colors);
        (12 * whole.lists.num_ends() / best.len() + 400) * rounds
    }
}

/// TabuCol from scratch with far fewer colors than known, for ever more moves. That finds the classes of planted
/// graphs, from which saving one color at a time leads away.
#[derive(Default)]
struct Fewer {
    doublings: u32, // of FIRST_MOVES
    ratio: usize,
    left: usize,
    k: usize,
    colors: Vec<u32>,
}

impl Method for Fewer {
    fn name(&self) -> &'static str {
        "fewer colors"
    }

    fn step(&mut self, worker: &mut Worker) -> usize {
        let whole = &worker.search.whole;
        let num_colors = whole.num_colors();
        let is_useful = |k: usize| (worker.search.lower - 1).max(1) < k && k < num_colors;
        if self.left == 0 || !is_useful(self.k) {
            self.k = (RATIOS[self.ratio] * num_colors as f64) as usize;
            self.left = FIRST_MOVES.saturating_mul(2_usize.saturating_pow(self.doublings));
            self.colors = vec![NONE; whole.lists.num_nodes()];
            self.ratio = (self.ratio + 1) % RATIOS.len();
            self.doublings += u32::from(self.ratio == 0);
            if !is_useful(self.k) {
                return EMPTY_SLICE;
            }
        }
        let found = worker.tabucol(whole, &mut self.colors, self.k, self.left.min(SLICE));
        self.left = if found.best.conflicts == 0 { 0 } else { self.left - found.moves };
        found.work
    }
}

/// EXTRACOL (Wu and Hao 2012): large independent sets become classes, and crossover colors the rest. Each time with
/// three times the moves for a set.
#[derive(Default)]
struct IndependentSets {
    attempt: u32,
    classes: Option<Classes>,
    spent: usize,
    part: Option<(Problem, CrossoverSearch, usize)>,
}

impl IndependentSets {
    fn begin_again(&mut self) {
        *self = Self { attempt: self.attempt + 1, ..Self::default() };
    }
}

impl Method for IndependentSets {
    fn name(&self) -> &'static str {
        "independent sets"
    }

    fn step(&mut self, worker: &mut Worker) -> usize {
        let whole = &worker.search.whole;
        if let Some((part, search, left)) = &mut self.part {
            let work = search.step_in(part, worker);
            *left = left.saturating_sub(work);
            if *left == 0 || part.num_colors() == 1 {
                self.begin_again();
            }
            return work;
        }
        let classes = self.classes.get_or_insert_with(|| Classes::new(&whole.lists));
        let stop = worker.search.stop(whole, 0);
        let moves = LAST_SET_MOVES.min(SET_MOVES.saturating_mul(3_usize.saturating_pow(self.attempt)));
        let (members, work) = kernels::independent_set(&whole.lists, classes, moves, &mut worker.rng, stop);
        self.spent += work;
        classes.add(&whole.lists, &members, num_colors(&classes.colors) as u32);
        let colors = &classes.colors;
        let nodes: Vec<u32> = (0..colors.len() as u32).filter(|&v| colors[v as usize] == NONE).collect();
        let n = colors.len() as f64;
        if nodes.len() as f64 <= (PART_SHARE * n).max(PART_NODES.min(0.75 * n)) {
            let lists = whole.lists.among(&nodes);
            let first = kernels::dsatur(&lists, None);
            worker.offer(whole, joined(&nodes, &first, colors));
            let part = Problem { part: Some((nodes, colors.clone())), ..Problem::new(lists, first) };
            if part.num_colors() > 1 {
                self.part = Some((part, CrossoverSearch::default(), PART_WORK * self.spent));
            } else {
                self.begin_again();
            }
        }
        work
    }
}

/// Colors of the whole graph from those of a part and those of all other nodes.
fn joined(nodes: &[u32], colors: &[u32], others: &[u32]) -> Vec<u32> {
    let (mut whole, first) = (others.to_vec(), num_colors(others) as u32);
    for (&v, color) in nodes.iter().zip(colors) {
        whole[v as usize] = first + color;
    }
    whole
}

/// Number of colors, if there are no gaps; nodes may have none.
fn num_colors(colors: &[u32]) -> usize {
    colors.iter().filter(|&&color| color != NONE).max().map_or(0, |&color| color as usize + 1)
}

/// Renames the colors to 0..k, by their order, and returns k.
fn close_gaps(colors: &mut [u32]) -> usize {
    let mut ids = vec![NONE; num_colors(colors)];
    colors.iter().for_each(|&color| ids[color as usize] = 0);
    let mut used = 0;
    for id in ids.iter_mut().filter(|id| **id == 0) {
        *id = used;
        used += 1;
    }
    colors.iter_mut().for_each(|color| *color = ids[*color as usize]);
    used as usize
}

/// The k largest classes as 0..k; all other nodes have no color.
fn largest_classes(colors: &[u32], k: usize) -> Vec<u32> {
    let mut sizes = vec![0_usize; num_colors(colors)];
    colors.iter().filter(|&&color| color != NONE).for_each(|&color| sizes[color as usize] += 1);
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_by_key(|&color| std::cmp::Reverse(sizes[color]));
    let mut rank = vec![NONE; sizes.len()];
    for (place, &color) in order.iter().take(k).enumerate() {
        rank[color] = place as u32;
    }
    colors.iter().map(|&color| rank.get(color as usize).copied().unwrap_or(NONE)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A graph whose groups have no inner edges.
    fn graph(nodes: usize, groups: usize) -> Graph {
        let mut rng = Rng::new(1, 0);
        let pairs = (0..nodes).flat_map(|u| (0..u).map(move |v| (u, v)));
        let edges = pairs.filter(|(u, v)| u % groups != v % groups && rng.below(2) == 0);
        Graph::from_edges(nodes, edges).unwrap()
    }

    /// Colors after so many steps of a method alone with the shipped rule, see `found_by`.
    fn colors_after(steps: usize, graph: &Graph, method: &mut dyn Method) -> Vec<usize> {
        found_by(&Rule::default(), steps, graph, method).0
    }

    /// Numbers of colors in so many steps of a method alone, each coloring proper, and the last coloring.
    fn found_by(rule: &Rule, steps: usize, graph: &Graph, method: &mut dyn Method) -> (Vec<usize>, Arc<[u32]>) {
        let lists = Lists::new(graph);
        let first = kernels::dsatur(&lists, None);
        let whole = Problem::new(lists, first);
        let search = Search { whole, rule, lower: 1, is_over: AtomicBool::new(false) };
        let (found, improvements) = mpsc::channel();
        let mut worker = Worker { search: &search, rng: Rng::new(3, 0), found, method: "" };
        let mut numbers = vec![search.whole.num_colors()];
        for _ in 0..steps {
            assert!(method.step(&mut worker) > 0);
            for (colors, _) in improvements.try_iter() {
                numbers.push(graph.check(&plain(&colors)).unwrap());
            }
        }
        assert_eq!(*numbers.last().unwrap(), search.whole.num_colors());
        (numbers, search.whole.best())
    }

    #[test]
    fn a_search_takes_the_weights_of_crossover_from_its_rule() {
        let graph = graph(150, 150);
        let by_size = Rule { crossover: None, ..Rule::default() };
        let found = |rule| found_by(rule, 150, &graph, &mut CrossoverSearch::default()).1;
        assert_ne!(found(&Rule::default()), found(&by_size));
    }

    #[test]
    fn independent_sets_may_leave_one_class_or_nothing() {
        for (nodes, edges) in [(20, (0..100).map(|i| (i / 10, 10 + i % 10)).collect()), (8, vec![(0, 1)])] {
            let graph = Graph::from_edges(nodes, edges).unwrap();
            assert_eq!(colors_after(10, &graph, &mut IndependentSets::default()), [2]);
        }
    }

    #[test]
    fn independent_sets_color_every_node_also_when_the_time_is_over() {
        let graph = graph(300, 300);
        let lists = Lists::new(&graph);
        let fewest = |colors: Vec<u32>| graph.check(&plain(&colors));
        let dsatur = fewest(kernels::dsatur(&lists, None)).unwrap();
        assert!(fewest(kernels::set_coloring(&lists, 0, MOST_MOVES, None)).unwrap() <= dsatur - 5);
        let cut = kernels::set_coloring(&lists, 0, MOST_MOVES, Some(Instant::now()));
        graph.check(first_fit(&graph, &cut).colors()).unwrap();
    }

    #[test]
    fn every_method_alone_finds_fewer_colors_and_repeats_itself() {
        let (random, planted) = (graph(250, 250), graph(250, 15));
        let methods: [(Make, &Graph, usize, usize); 4] = [
            (|| Box::<CrossoverSearch>::default(), &random, 200, 30),
            (|| Box::<TrainedRule>::default(), &random, 8, 31),
            (|| Box::<IndependentSets>::default(), &random, 60, 31),
            (|| Box::<Fewer>::default(), &planted, 20, 15),
        ];
        for (make, graph, steps, enough) in methods {
            let numbers = colors_after(steps, graph, &mut *make());
            assert!(numbers.is_sorted_by(|a, b| a > b) && numbers[0] > 32, "{numbers:?}");
            assert!(*numbers.last().unwrap() <= enough, "{}: {numbers:?}", make().name());
            assert_eq!(numbers, colors_after(steps, graph, &mut *make()));
        }
    }
}
