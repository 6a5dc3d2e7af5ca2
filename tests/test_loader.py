"""From packed graphs to batches: they hold the graphs of the file, empty places count nothing, draws follow steps."""

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import tiny_runs
import torch
from small_graphs import label_of, random_graph
from torch import Tensor

from gnn_training.coloring import is_proper
from gnn_training.data.families import RECIPES, draws
from gnn_training.data.packed import PackedGraphs
from gnn_training.distributed import Runtime
from gnn_training.graph import Graph, Instance
from gnn_training.model.graphs import concatenated, pad
from gnn_training.model.network import structure
from gnn_training.model.program import Program
from gnn_training.training.loader import DeviceDataset, GraphLoader
from gnn_training.training.loss import WEIGHTS, Batch, ColoringNetwork
from gnn_training.training.sampler import Shape
from gnn_training.training.searcher import search_on_cpu

CPU = torch.device("cpu")
IDS = [3, 17, 8]


@pytest.fixture
def dataset(data: PackedGraphs) -> DeviceDataset:
    return DeviceDataset(data, CPU)


def batch_of(dataset: DeviceDataset, ids: list[int], places: int, seed: tuple[int, ...] = (0,)) -> Batch:
    return dataset.batch(np.array(ids, dtype=np.int64), Shape(places, 48, 15), seed)


def gradient(network: ColoringNetwork, terms: dict[str, Tensor]) -> Tensor:
    """Of the sum of all terms, as a vector; zeros where no weight takes part."""
    slopes = torch.autograd.grad(sum(terms.values()), list(network.parameters()), materialize_grads=True)
    return torch.cat([slope.flatten() for slope in slopes])


@pytest.mark.parametrize("size", [1, 2, 7, 8, 9, 15, 16, 17, 63, 64, 65])
def test_graphs_of_all_sizes_come_as_the_program_pads_them(tmp_path: Path, size: int):
    graphs = [random_graph(5, 0.4), random_graph(size, 0.4), random_graph(3, 0.0)]
    data = tiny_runs.pack(tmp_path, [Instance(graph) for graph in graphs])
    batch = DeviceDataset(data, CPU).batch(np.arange(3), Shape(3, max(5, size), 15))
    expected, _ = pad(*concatenated(graphs))
    for name, mine, other in zip(expected._fields, batch.graphs, expected, strict=True):
        assert mine.dtype == other.dtype, name
        exists = expected.exists if mine.shape == expected.exists.shape else torch.ones_like(mine, dtype=torch.bool)
        assert torch.equal(mine[exists], other[exists]), name
    for lists, graph in zip(batch.lists, graphs, strict=True):
        assert all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(lists, graph.csr(), strict=True))


def test_the_structure_of_a_graph_is_the_same_in_every_batch(data: PackedGraphs, dataset: DeviceDataset):
    ids = list(range(24))
    batch, expected = batch_of(dataset, ids, places=24), structure(pad(*concatenated([data.graph(i) for i in ids]))[0])
    exists, size = expected.exists, expected.exists.shape[1]
    assert torch.equal(batch.structure.exists[:, :size], exists)
    torch.testing.assert_close(batch.structure.node[:, :size][exists], expected.node[exists])
    torch.testing.assert_close(batch.structure.graph, expected.graph)


def test_a_batch_carries_the_labels_of_its_graphs(data: PackedGraphs, dataset: DeviceDataset):
    batch = batch_of(dataset, IDS, places=3)
    for row, i in enumerate(IDS):
        label, graph = label_of(data, i), data.graph(i)
        assert batch.graphs.num_nodes[row] == graph.num_nodes
        assert batch.graphs.degrees[row].sum() == 2 * graph.num_edges
        assert (batch.num_colors[row], batch.lower[row]) == (label.num_colors, label.lower_bound)
        assert batch.graph_type[row] == data.graph_type[i]
        assert batch.difficulty[row].item() == pytest.approx(label.difficulty)
    assert batch.max_colors == 15 and batch.graph_mask.tolist() == [1, 1, 1]


def test_searches_begin_with_proper_colorings_of_as_many_colors_as_those_of_the_program(data, dataset: DeviceDataset):
    batch = batch_of(dataset, list(range(24)), places=24)
    graphs, network = [data.graph(i) for i in range(24)], ColoringNetwork()
    options = (torch.tensor(value) for value in ([0], 0, 0))
    program = Program(network.move_rule, network.graph_head)(*concatenated(graphs), *options)["greedy"]
    for row, graph in enumerate(graphs):
        first = batch.first[row, : graph.num_nodes]
        assert is_proper(graph, first.numpy()) and len(first.unique()) == first.max() + 1 <= data.dsatur_colors[row]
        assert abs(first.max() - program[row].max()) <= 1  # sets are drawn by chance
        assert (batch.first[row, graph.num_nodes :] == 0).all()
    assert (batch.first.max(1).values.numpy() + 1 < data.dsatur_colors).any()


def test_changes_and_seeds_depend_on_step_and_graph_and_not_on_batch_mates(dataset: DeviceDataset):
    one, other = batch_of(dataset, IDS, 3, (7, 5)), batch_of(dataset, [8, 1, 3], 4, (7, 5))
    for name in ("seeds", "change"):
        mine = getattr(one, name)
        assert torch.equal(mine[[2, 0]], getattr(other, name)[[0, 2]])
        assert len({tuple(row) for row in mine.view(3, -1).tolist()}) == 3
        for seed in ((7, 6), (8, 5)):
            assert (mine != getattr(batch_of(dataset, IDS, 3, seed), name)).view(3, -1).any(1).all()
    changes = batch_of(dataset, list(range(24)), 24).change
    assert changes.mean().abs() < 0.05 and changes.std() == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("ids", [IDS, []])
def test_empty_places_are_masked_and_change_neither_loss_nor_gradient(dataset: DeviceDataset, ids: list[int]):
    torch.manual_seed(0)
    network = ColoringNetwork()
    results = []
    for places in (3, 5):
        batch = batch_of(dataset, ids, places)
        assert batch.graph_mask.tolist() == [1.0] * len(ids) + [0.0] * (places - len(ids))
        terms = network(batch, search_on_cpu, rounds=60)
        results.append((terms, gradient(network, terms)))
    (few, slope), (many, other) = results
    for name in WEIGHTS:
        torch.testing.assert_close(many[name], few[name], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(other, slope, rtol=1e-4, atol=1e-6)
    assert (slope.norm() > 0) == bool(ids)


def test_batches_share_no_memory_with_the_dataset(dataset: DeviceDataset):
    first, expected = (batch_of(dataset, IDS, places=3) for _ in range(2))
    for field in fields(first):
        value = getattr(first, field.name)
        for tensor in [value] if isinstance(value, Tensor) else value if field.name in ("graphs", "structure") else []:
            tensor.zero_()
    again = batch_of(dataset, IDS, places=3)
    assert torch.equal(again.first, expected.first) and torch.equal(again.num_colors, expected.num_colors)
    assert torch.equal(again.graphs.neighbours, expected.graphs.neighbours)
    assert all(map(torch.equal, again.structure, expected.structure))


def loader(data: PackedGraphs, rt: Runtime, **changes) -> GraphLoader:
    return GraphLoader(tiny_runs.settings(data.folder, Path("nowhere"), **changes), data, rt)


def test_graphs_that_dsatur_colors_with_the_fewest_colors_are_not_trained_on(data: PackedGraphs, rt: Runtime):
    train = data.indices("train")
    is_easy = data.dsatur_colors[train] == data.lower_bound[train]
    assert 0 < is_easy.sum() < len(train)
    seen = [i for step in loader(data, rt).sampler for ids in step.micro_batches for i in ids]
    assert sorted(seen) == sorted(train[~is_easy])


def test_colorings_to_begin_with_fit_into_the_colors_of_their_step(tmp_path: Path, rt: Runtime):
    one = loader(tiny_runs.pack(tmp_path, [one.load() for one in draws(RECIPES["smoke"], 0, 200)]), rt)
    for planned, batch in zip(one.sampler, one.starting_at(0), strict=False):
        assert all(each.first.max() < each.max_colors == planned.shape.colors for each in batch.micro_batches)


def test_where_all_graphs_are_easy_all_are_trained_on(tmp_path: Path, rt: Runtime):
    rings = [Graph.from_edges(n, [(i, (i + 1) % n) for i in range(n)]) for n in (4, 6, 8)]
    data = tiny_runs.pack(tmp_path, [Instance(graph) for graph in rings])
    assert sorted(loader(data, rt).sampler.indices) == data.indices("train").tolist()


def test_batches_begin_at_any_step_and_are_those_of_an_uninterrupted_run(data: PackedGraphs, rt: Runtime):
    one = loader(data, rt)
    start, epoch = 2, len(one.sampler)
    whole = one.starting_at(0)
    seeds = []
    for _ in range(start):
        next(whole)
    for _, mine, other in zip(range(2 * epoch), whole, loader(data, rt).starting_at(start), strict=False):
        assert mine.num_graphs == other.num_graphs
        for a, b in zip(mine.micro_batches, other.micro_batches, strict=True):
            for name in ("seeds", "change", "first"):
                assert torch.equal(getattr(a, name), getattr(b, name))
            seeds += a.seeds[a.graph_mask > 0].tolist()
    assert len(set(seeds)) == len(seeds)  # every epoch draws others
