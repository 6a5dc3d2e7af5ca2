"""From packed graphs to batches: they hold the graphs of the file, empty places count nothing, draws follow steps."""

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import tiny_runs
import torch
from torch import Tensor

from gnn_training.data.packed import PackedGraphs
from gnn_training.distributed import Runtime
from gnn_training.graph import Graph, Instance
from gnn_training.model.graphs import SPARSE_FROM, SparseGraph
from gnn_training.model.loss import WEIGHTS, Batch, ColoringNetwork
from gnn_training.training.loader import DeviceDataset, GraphLoader, no_gradient_rounds_at, rounds_of
from gnn_training.training.sampler import EqualCostSampler, Shape

CPU = torch.device("cpu")


@pytest.fixture
def dataset(data: PackedGraphs) -> DeviceDataset:
    return DeviceDataset(data, CPU)


def random_graph(num_nodes: int, seed: int) -> Graph:
    return Graph.from_adjacency(np.random.default_rng(seed).random((num_nodes, num_nodes)) < 0.4)


def pack(folder: Path, *graphs: Graph) -> PackedGraphs:
    return tiny_runs.pack(folder, [Instance(graph) for graph in graphs])


def batch_of(dataset: DeviceDataset, ids: list[int], places: int) -> Batch:
    """Graph i asks for i % 3 + 2 colors with seed 10 i."""
    numbers = np.array(ids, dtype=np.int64)
    return dataset.batch(numbers, numbers % 3 + 2, 10 * numbers, Shape(places, 24, 6))


def gradient(network: ColoringNetwork, loss: Tensor) -> Tensor:
    """Of the loss, as a vector; zeros where no weight takes part."""
    return torch.cat(
        [slope.flatten() for slope in torch.autograd.grad(loss, list(network.parameters()), materialize_grads=True)]
    )


def assert_adjacency(adjacency: Tensor, data: PackedGraphs, i: int) -> None:
    """That of graph i, and zeros around it."""
    n = data.num_nodes[i]
    assert np.array_equal(adjacency[:n, :n].numpy(), data.adjacency(i).astype(np.float32))
    assert adjacency.sum() == 2 * data.num_edges[i]


def test_every_graph_is_unpacked_as_it_stands_in_the_file(data: PackedGraphs, dataset: DeviceDataset):
    graphs = dataset.batch(np.arange(24), np.full(24, 2), np.arange(24), Shape(24, 24, 2)).graphs
    assert graphs.adjacency.shape == (24, 24, 24) and graphs.adjacency.dtype == torch.float32
    for i in range(24):
        assert_adjacency(graphs.adjacency[i], data, i)
        assert graphs.mask[i].tolist() == [1.0] * data.num_nodes[i] + [0.0] * (24 - data.num_nodes[i])


@pytest.mark.parametrize("size", [1, 2, 7, 8, 9, 15, 16, 17, 63, 64, 65])
@pytest.mark.parametrize("room", [0, 1, 9])
def test_sizes_around_whole_octets_are_unpacked_with_and_without_padding(tmp_path: Path, size: int, room: int):
    data = pack(tmp_path, random_graph(5, 1), random_graph(size, 2), random_graph(3, 3))
    graphs = (
        DeviceDataset(data, CPU).batch(np.array([1]), np.array([2]), np.array([0]), Shape(2, size + room, 2)).graphs
    )
    assert_adjacency(graphs.adjacency[0], data, 1)
    assert graphs.num_nodes.tolist() == [size, 1]


def test_a_batch_carries_the_labels_colors_and_seeds_of_its_graphs(data: PackedGraphs, dataset: DeviceDataset):
    ids = [3, 17, 8]
    batch = batch_of(dataset, ids, places=3)
    for row, i in enumerate(ids):
        label, graph = data.label(i), data.graph(i)
        assert batch.graphs.num_nodes[row] == graph.num_nodes
        assert batch.graphs.degrees[row].sum() == 2 * graph.num_edges
        assert (batch.num_colors[row], batch.lower[row]) == (label.num_colors, label.lower_bound)
        assert (batch.upper[row], batch.graph_type[row]) == (label.dsatur_colors, data.graph_type[i])
        assert batch.difficulty[row].item() == pytest.approx(label.difficulty)
        assert (batch.k[row], batch.seeds[row], batch.graph_mask[row]) == (i % 3 + 2, 10 * i, 1)
    assert batch.max_colors == 6


@pytest.mark.parametrize("ids", [[3, 17], []])
def test_empty_places_are_graphs_of_one_node_that_are_masked(dataset: DeviceDataset, ids: list[int]):
    batch = batch_of(dataset, ids, places=4)
    assert batch.graph_mask.tolist() == [1.0] * len(ids) + [0.0] * (4 - len(ids))
    empty = slice(len(ids), None)
    assert (batch.graphs.num_nodes[empty] == 1).all() and (batch.graphs.adjacency[empty] == 0).all()
    assert (batch.graphs.mask[empty, 0] == 1).all() and (batch.graphs.mask[empty, 1:] == 0).all()
    assert all((getattr(batch, name)[empty] == 1).all() for name in ("k", "num_colors", "lower", "upper"))


@pytest.mark.parametrize("no_gradient_rounds", [0, 3])
def test_empty_places_change_neither_loss_nor_gradient(dataset: DeviceDataset, no_gradient_rounds: int):
    terms, gradients = [], []
    for places in (2, 5):
        torch.manual_seed(0)
        network = ColoringNetwork()
        terms.append(network(batch_of(dataset, [3, 17], places), no_gradient_rounds, rounds=4))
        gradients.append(gradient(network, sum(terms[-1].values())))
    for name in WEIGHTS:
        torch.testing.assert_close(terms[1][name], terms[0][name], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-6)


def test_a_batch_without_any_graph_has_no_loss_and_no_gradient(dataset: DeviceDataset):
    network = ColoringNetwork()
    terms = network(batch_of(dataset, [], places=3), 2, rounds=4)
    assert all(term == 0 for term in terms.values())
    assert (gradient(network, sum(terms.values())) == 0).all()


def test_a_large_sparse_graph_comes_by_its_edges_and_others_in_full(tmp_path: Path):
    ring = Graph.from_edges(SPARSE_FROM + 5, [(i, (i + 1) % (SPARSE_FROM + 5)) for i in range(SPARSE_FROM + 5)])
    dense = Graph.from_adjacency(np.random.default_rng(0).random((SPARSE_FROM, SPARSE_FROM)) < 0.02)
    data = pack(tmp_path, random_graph(9, 0), ring, dense)
    dataset = DeviceDataset(data, CPU)

    def alone(i: int) -> Batch:
        return dataset.batch(np.array([i]), np.array([3]), np.array([5]), Shape(1, SPARSE_FROM + 8, 4))

    large = alone(1)
    assert isinstance(large.graphs, SparseGraph) and np.array_equal(large.graphs.edge_index, ring.edge_index())
    assert large.graphs.mask.shape == (1, ring.num_nodes)
    assert (large.num_colors, large.k, large.graph_mask, large.max_colors) == (data.num_colors[1], 3, 1, 4)
    network, padded = ColoringNetwork(), dataset.dense(torch.tensor([1]), torch.tensor([True]), SPARSE_FROM + 8)
    with torch.no_grad():
        sparse, full = (network(replace(large, graphs=graphs), 0, 1) for graphs in (large.graphs, padded))
    for name in WEIGHTS:
        torch.testing.assert_close(sparse[name], full[name], rtol=1e-4, atol=1e-5)
    assert not isinstance(alone(0).graphs, SparseGraph) and not isinstance(alone(2).graphs, SparseGraph)


def test_a_large_sparse_graph_is_planned_alone_so_that_it_comes_by_its_edges(tmp_path: Path):
    path = Graph.from_edges(SPARSE_FROM, [(i, i + 1) for i in range(SPARSE_FROM - 1)])
    data = pack(tmp_path, *(random_graph(9, seed) for seed in range(5)), path)
    sizes = data.num_nodes, data.num_colors
    for planned in EqualCostSampler(np.arange(6), *sizes, 5000, 1, 0, singleton=np.arange(6) == 5):
        (ids,) = planned.micro_batches
        graphs = DeviceDataset(data, CPU).batch(ids, data.num_colors[ids], ids, planned.shape).graphs
        assert isinstance(graphs, SparseGraph) == (5 in ids)


def test_a_rank_without_a_graph_beside_a_large_one_unpacks_nothing_large(dataset: DeviceDataset):
    batch = dataset.batch(*(np.array([], dtype=np.int64) for _ in range(3)), Shape(1, 4096, 4))
    assert batch.graphs.mask.shape[1] <= 8


def test_batches_share_no_memory_with_the_dataset(dataset: DeviceDataset):
    first = batch_of(dataset, [3, 17], places=2)
    for field in fields(first):
        value = getattr(first, field.name)
        if isinstance(value, Tensor):
            value.zero_()
    first.graphs.adjacency.zero_()
    assert batch_of(dataset, [3, 17], places=2).graphs.adjacency.sum() > 0
    assert (batch_of(dataset, [3, 17], places=2).upper > 0).all()


def test_half_precision_keeps_the_adjacency_exact(dataset: DeviceDataset):
    batch, other = batch_of(dataset, [3, 17], places=2), batch_of(dataset, [3, 17], places=2)
    other.graphs.to(torch.bfloat16)
    assert other.graphs.adjacency.dtype == torch.bfloat16 and other.graphs.degrees.dtype == torch.float32
    assert torch.equal(other.graphs.adjacency.float(), batch.graphs.adjacency)


def loader(data: PackedGraphs, rt: Runtime, **changes) -> GraphLoader:
    return GraphLoader(tiny_runs.settings(data.folder, Path("nowhere"), **changes), data, rt)


def test_every_step_draws_other_colors_and_noise_for_every_graph(data: PackedGraphs, rt: Runtime):
    one, ids = loader(data, rt), np.arange(24)
    colors, seeds = one.draw(ids, 0)
    assert np.array_equal(one.draw(ids[4:6], 0)[1], seeds[4:6])  # whatever its batch mates
    later_colors, later_seeds = one.draw(ids, 5)
    assert not np.array_equal(seeds, later_seeds) and not np.array_equal(colors, later_colors)


def test_a_step_allows_from_one_color_too_few_to_halfway_up_to_dsatur(data: PackedGraphs, rt: Runtime):
    data.num_colors, data.dsatur_colors = np.full(24, 10), np.full(24, 20)
    data.num_colors[:2], data.dsatur_colors[:2] = 1, 1
    one = loader(data, rt)
    seen = np.stack([one.draw(np.arange(24), step)[0] for step in range(60)])
    assert set(seen[:, :2].ravel().tolist()) == {1, 2, 3}
    assert set(seen[:, 2:].ravel().tolist()) == set(range(9, 16))


def test_batches_begin_at_any_step_and_are_those_of_an_uninterrupted_run(data: PackedGraphs, rt: Runtime):
    one = loader(data, rt)
    start, epoch = 3, len(one.sampler)
    whole = one.starting_at(0)
    for _ in range(start):
        next(whole)
    for step, mine, other in zip(range(start, 2 * epoch + 1), whole, loader(data, rt).starting_at(start), strict=False):
        assert (mine.num_graphs, mine.rounds, mine.no_gradient_rounds) == (
            other.num_graphs, other.rounds, other.no_gradient_rounds,
        )  # fmt: skip
        assert mine.no_gradient_rounds == no_gradient_rounds_at(step, 4, 0)
        for a, b in zip(mine.micro_batches, other.micro_batches, strict=True):
            assert torch.equal(a.seeds, b.seeds) and torch.equal(a.graphs.adjacency, b.graphs.adjacency)
            assert a.k.max() <= a.max_colors


def test_rounds_stay_near_their_mean_and_are_fixed_for_a_bucket():
    rounds = [rounds_of(bucket, 16, seed=0) for bucket in range(200)]
    assert set(rounds) == set(range(13, 20)) and rounds[7] == rounds_of(7, 16, seed=0)
    without = [no_gradient_rounds_at(step, 16, seed=0) for step in range(500)]
    assert 0.5 < np.mean(np.array(without) > 0) < 0.7 and max(without) <= 64
