"""Graphs for the tests of the search, the network and the exported program."""

from collections.abc import Sequence

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from gnn_training.graph import Graph, NeighbourLists, concatenated
from gnn_training.network.network import ColoringNetwork
from gnn_training.onnx_program import tensor_search
from gnn_training.onnx_program.padded_graphs import Graphs, pad
from gnn_training.onnx_program.program import limits
from gnn_training.search.batches import Searcher
from gnn_training.training.learner import SIGMA, loss_terms
from gnn_training.training.loader import GraphBatch


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


def terms_of(network: ColoringNetwork, batch: GraphBatch, search: Searcher, rounds: int) -> dict[str, Tensor]:
    """Loss terms of a batch: the searches, then the network."""
    found = search(network.rule.detach() + SIGMA * torch.stack([batch.epsilon, -batch.epsilon]), batch, rounds)
    return loss_terms(network(batch.states and batch.states.inputs, batch.pairs), batch, *found)


def graph_of(lists: NeighbourLists) -> Graph:
    return Graph.from_edges(lists.num_nodes, np.stack([lists.sources, lists.neighbours], 1))
