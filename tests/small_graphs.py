"""Graphs and weights for the tests of the search, the network and the exported program, and pairs of games."""

from collections.abc import Sequence

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from gnn_training.graph import Graph, NeighbourLists, concatenated, conflicts
from gnn_training.network import rule
from gnn_training.network.network import ColoringNetwork, initial_rule
from gnn_training.network.rule import NUM_WEIGHTS
from gnn_training.onnx_program import tensor_search
from gnn_training.onnx_program.padded_graphs import Graphs, pad
from gnn_training.onnx_program.program import limits
from gnn_training.search.batches import Searcher
from gnn_training.training.games import CHILDREN, Pair
from gnn_training.training.learner import SIGMA, loss_terms
from gnn_training.training.loader import GraphBatch, StateBatch

MANY_MOVERS = 3.0  # control bias of the margin: exp(3) lets nearly every active node move


def random_graph(num_nodes: int, density: float, seed: int = 0) -> Graph:
    """A graph in which every pair of nodes is an edge with probability `density`."""
    rng = np.random.default_rng(seed)
    return Graph.from_adjacency(rng.random((num_nodes, num_nodes)) < density)


GRAPH = st.builds(random_graph, st.integers(1, 16), st.floats(0, 1), st.integers(0, 10**6))


def planted(num_nodes: int, num_colors: int, density: float, seed: int = 0) -> tuple[Graph, np.ndarray]:
    """A random graph that has a coloring with so many colors, and this coloring."""
    rng, colors = np.random.default_rng(seed), np.arange(num_nodes) % num_colors
    edges = (rng.random((num_nodes, num_nodes)) < density) & (colors[:, None] != colors)
    return Graph.from_adjacency(edges), colors


def padded(graphs: Sequence[Graph]) -> Graphs:
    return pad(*map(torch.from_numpy, concatenated(graphs)))[0]


def search_in_tensors(weights: Tensor, batch: GraphBatch, rounds: int) -> tuple[Tensor, Tensor]:
    """What `search.batches.Searcher` finds, by the definition that is exported."""
    graphs = [graph_of(batch.lists(row)) for row in range(len(batch.ids))]
    colors = torch.zeros(len(graphs), max(graph.num_nodes for graph in graphs), dtype=torch.int64)
    for row, first in enumerate(batch.first):
        colors[row, : len(first)] = torch.from_numpy(first.astype(int))
    sizes = limits(torch.tensor(colors.shape[1]), colors.max() + 1)
    every = torch.arange(len(graphs))
    task = tensor_search.Task(colors, batch.lower, 0 * batch.lower, every, batch.seeds)
    with torch.no_grad():
        found = [
            tensor_search.search(tensor_search.split(each), padded(graphs), task, sizes, torch.tensor(rounds))
            for each in weights
        ]
    fewest = torch.stack([each.num_colors for each in found]).float()
    return fewest, torch.where(fewest > batch.lower, torch.stack([each.conflicts for each in found]), 0)


def terms_of(
    network: ColoringNetwork, graphs: GraphBatch, search: Searcher, rounds: int, states: StateBatch | None = None
) -> dict[str, Tensor]:
    """Loss terms of a step: the searches, then the network."""
    found = search(network.rule.detach() + SIGMA * torch.stack([graphs.epsilon, -graphs.epsilon]), graphs, rounds)
    return loss_terms(network, graphs, states, None, *found)


def random_weights(seed: int, scale: float = 0.5) -> Tensor:
    """Weights (NUM_WEIGHTS,) of a network that is far from the first one, or not, with scale 0."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return initial_rule() + scale * torch.randn(NUM_WEIGHTS)


def with_control(weights: Tensor, name: str, value: float) -> Tensor:
    """Weights with another bias of the tenure, tenure per conflicted node, spread, margin or jitter."""
    changed = weights.clone()
    changed[rule.OUTPUTS * len(rule.GRAPH_FEATURES) + rule.CONTROLS.index(name)] = value
    return changed


def check_pairs(pairs: list[Pair], graph: Graph, place: int) -> None:
    """Assert what holds for the pairs of a game."""
    for pair in pairs:
        assert pair.graph == place and pair.colors.shape == pair.ages.shape == (2, graph.num_nodes)
        assert pair.colors.min() == 0 and pair.colors.max() < pair.k <= 20
        assert all(conflicts(graph, colors.astype(int)) > 0 for colors in pair.colors)  # parents are not proper
        assert pair.origin.shape == (CHILDREN, graph.num_nodes) and set(np.unique(pair.origin)) <= {-1, 0, 1}
        assert len(set(map(bytes, pair.origin))) > 2 and pair.conflicts.min() < pair.conflicts.max()
        for origin in pair.origin:  # a child takes half of its classes from each, and few nodes are left
            taken = [len(np.unique(pair.colors[p][origin == p])) for p in range(2)]
            assert max(taken) <= (pair.k + 1) // 2 and (origin < 0).mean() < 0.7


def graph_of(lists: NeighbourLists) -> Graph:
    return Graph.from_edges(lists.num_nodes, np.stack([lists.sources, lists.neighbours], 1))
