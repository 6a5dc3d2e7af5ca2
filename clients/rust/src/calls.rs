use std::time::Instant;

use crate::{Budget, Coloring, ColoringGnn, Graph, Request, Result};

/// Length of the calls after the first, in steps of the first call.
const CALL_LENGTH: usize = 4;

/// Rounds of a call that names no steps: so many, and nodes³ / PER_ROUND more; at most the steps of the file.
const FEWEST_ROUNDS: usize = 20;
const PER_ROUND: usize = 1000;

impl ColoringGnn {
    /// The best coloring found within the budget, proper and looked over on the graph's own edges.
    ///
    /// The calls after the first have four times the steps of the file, each with a seed of its own. One that would end
    /// late is shortened, or left out below a quarter of the file's steps. A clique of as many nodes as the best
    /// coloring has colors ends the search: it cannot get better.
    pub fn color(&mut self, graph: &Graph, budget: &Budget) -> Result<Coloring> {
        let deadline = Instant::now().checked_add(budget.time);
        let target = budget.target.max(graph.clique_size());
        let call = Instant::now();
        let mut best = Coloring::greedy(graph, &self.predict(graph)?.ordering());
        let rounds = self.steps().min(FEWEST_ROUNDS + graph.num_nodes().pow(3) / PER_ROUND);
        let mut per_step = call.elapsed().as_secs_f64() / rounds as f64;
        for seed in (budget.seed + 1..).take(budget.calls.saturating_sub(1)) {
            let begin = Instant::now();
            let fitting = deadline.map_or(usize::MAX, |deadline| {
                (deadline.saturating_duration_since(begin).as_secs_f64() / per_step) as usize
            });
            let steps = fitting.min(CALL_LENGTH * self.steps());
            if best.num_colors() <= target || 4 * steps < self.steps() {
                break;
            }
            let request = Request { num_colors: None, seed: Some(seed), steps: Some(steps) };
            let Some(found) = self.run(&[graph], &request, deadline)? else { break };
            per_step = begin.elapsed().as_secs_f64() / steps as f64;
            let coloring = Coloring::greedy(graph, &found[0].ordering());
            if coloring.num_colors() < best.num_colors() {
                best = coloring;
            }
        }
        graph.check(best.colors())?;
        Ok(best)
    }
}
