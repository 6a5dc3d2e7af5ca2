"""From packed graphs to batches: they hold the graphs of the file, draws follow steps, and ranks do equal work."""

import math
from pathlib import Path

import numpy as np
import pytest
import tiny_runs
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_graphs import padded

from gnn_training.contract import HORIZON
from gnn_training.data.packed import PackedGraphs
from gnn_training.distributed import Runtime
from gnn_training.graph import Graph, Instance, concatenated, is_proper
from gnn_training.network.network import ColoringNetwork
from gnn_training.network.rule import NUM_WEIGHTS
from gnn_training.network.states import SearchState, features
from gnn_training.onnx_program.program import Program
from gnn_training.search.first_colorings import first_coloring
from gnn_training.search.search_kernel import SearchTask, search_graph
from gnn_training.training.loader import DeviceDataset, EqualCostSampler, GraphBatch, GraphLoader, perturbations

CPU = torch.device("cpu")
IDS = [3, 17, 8]


@pytest.fixture
def dataset(data: PackedGraphs) -> DeviceDataset:
    return DeviceDataset(data, CPU)


def batch_of(dataset: DeviceDataset, ids: list[int], seed: int = 0, step: int = 0) -> GraphBatch:
    return dataset.graphs(np.array(ids, dtype=np.int64), len(ids), seed, step)


def test_a_state_carries_what_its_search_has_seen_and_found_later(data: PackedGraphs, dataset: DeviceDataset):
    ids = dataset.state_ids("train")
    assert len(ids) > 20 and set(data.split[dataset.state_graph[ids]]) == {0}
    torch.manual_seed(0)
    rule = ColoringNetwork().rule.detach().numpy()
    batch = dataset.states(ids[:9], 9)
    for row, i in enumerate(dataset.state_graph[ids[:9]].tolist()):
        lists, rounds = data.graph(i).csr(), int(data.state_rounds[ids[row]])
        horizon = round((1 + rounds) * math.exp(2 * batch.inputs[row, -2].item()) - 1)
        first, clique = first_coloring(lists), int(data.clique[i])
        tasks = (SearchTask(first, r, lower=clique, times=[r]) for r in (rounds, horizon))
        now, then = (search_graph(lists, task, rule) for task in tasks)
        k, reached = now.num_colors, now.reached[now.num_colors]
        of_graph = (torch.tensor([float(x)]) for x in (k, clique, rounds, reached, now.conflicts))
        colors, *counts = torch.from_numpy(now.states[:1]).unbind(1)
        seen = SearchState(colors.long(), *(x.float() for x in counts), *of_graph)
        graph = padded([data.graph(i)])
        expected = features(graph.exists, graph.degrees, seen, torch.arange(first.max() + 1))
        torch.testing.assert_close(batch.inputs[row, :-2], expected[0])
        assert horizon in (HORIZON * rounds, data.search_rounds[i])
        assert (batch.inputs[row, -1], batch.num_colors[row], batch.lower[row]) == (0, k, clique)
        assert batch.saved[row] == k - then.num_colors
        assert 10 ** batch.log_rounds[row].item() - 1 == pytest.approx(then.reached[then.num_colors], rel=1e-4)
        assert batch.graph_type[row] == data.graph_type[i]
    assert batch.saved.max() > 0


def test_horizons_depend_on_step_and_state_and_not_on_batch_mates(dataset: DeviceDataset):
    ids = dataset.state_ids("train")
    one, other = dataset.states(ids[:6], 6, 3, 8), dataset.states(ids[2:9], 7, 3, 8)
    assert torch.equal(one.inputs[2:], other.inputs[:4])
    assert not torch.equal(one.inputs, dataset.states(ids[:6], 6, 3, 9).inputs)
    many = torch.cat([dataset.states(ids[:6], 6, 3, step).inputs[:, -1] for step in range(30)])
    assert 0.1 < many.mean() < 0.3
    batch = dataset.states(ids[:6], 6, 3, int(many.view(30, 6).sum(1).argmax()))
    best = torch.from_numpy(dataset.data.num_colors[dataset.state_graph[ids[:6]]].astype(float))
    unlimited = batch.inputs[:, -1] == 1
    assert unlimited.any() and (batch.num_colors - batch.saved <= best)[unlimited].all()


def test_a_batch_carries_the_labels_of_its_graphs(data: PackedGraphs, dataset: DeviceDataset):
    batch = batch_of(dataset, IDS)
    for row, i in enumerate(IDS):
        assert len(batch.first[row]) == data.num_nodes[i]
        assert len(batch.lists(row).neighbours) == 2 * data.num_edges[i]
        assert (batch.num_colors[row], batch.lower[row]) == (data.num_colors[i], data.lower_bound[i])
    assert batch.ids.tolist() == IDS and batch.num_graphs == 3


def test_searches_begin_with_proper_colorings_of_as_many_colors_as_those_of_the_program(data, dataset: DeviceDataset):
    batch = batch_of(dataset, list(range(24)))
    graphs, network = [data.graph(i) for i in range(24)], ColoringNetwork()
    options = (torch.tensor(value) for value in ([0], 0, 0))
    program = Program(network)(*map(torch.from_numpy, concatenated(graphs)), *options)["greedy"]
    for row, graph in enumerate(graphs):
        first = batch.first[row]
        assert is_proper(graph, first) and len(np.unique(first)) == first.max() + 1 <= data.dsatur_colors[row]
        assert abs(first.max() - program[row].max()) <= 1  # sets are drawn by chance
    assert (np.array([first.max() + 1 for first in batch.first]) < data.dsatur_colors).any()


def test_changes_and_seeds_depend_on_step_and_graph_and_not_on_batch_mates(dataset: DeviceDataset):
    one, other = batch_of(dataset, IDS, 7, 5), batch_of(dataset, [8, 1, 3], 7, 5)
    for name in ("seeds", "epsilon"):
        mine = getattr(one, name)
        assert torch.equal(mine[[2, 0]], getattr(other, name)[[0, 2]])
        assert len({tuple(row) for row in mine.view(3, -1).tolist()}) == 3
        for seed in ((7, 6), (8, 5)):
            assert (mine != getattr(batch_of(dataset, IDS, *seed), name)).view(3, -1).any(1).all()


def test_changes_are_standard_normal_and_independent():
    changes, seeds = perturbations(1, 5, np.arange(2000))
    values = np.sort(changes.ravel()).astype(float)
    assert values.mean() == pytest.approx(0, abs=0.01) and values.std() == pytest.approx(1, abs=0.01)
    expected = 0.5 * (1 + np.vectorize(math.erf)(values[:: len(values) // 1000] / math.sqrt(2)))
    assert np.abs(expected - np.linspace(0, 1, len(expected))).max() < 0.01
    between = np.corrcoef(changes.T) - np.eye(NUM_WEIGHTS)
    assert np.abs(between).max() < 0.12 and np.abs(np.corrcoef(changes[:100]) - np.eye(100)).max() < 0.4
    assert len(np.unique(seeds)) == 2000 and seeds.min() >= 0 and seeds.max() < 2**31
    for other, _ in (perturbations(1, 6, np.arange(2000)), perturbations(2, 5, np.arange(2000))):
        assert abs(np.corrcoef(changes.ravel(), other.ravel())[0, 1]) < 0.01


def test_batches_share_no_memory_with_the_dataset(dataset: DeviceDataset):
    first, expected = (batch_of(dataset, IDS) for _ in range(2))
    states, others = (dataset.states(np.arange(3), 3) for _ in range(2))
    for tensor in (states.inputs, states.num_colors, states.lower, states.saved, first.num_colors, first.lower):
        tensor.zero_()
    again = batch_of(dataset, IDS)
    assert torch.equal(again.num_colors, expected.num_colors) and torch.equal(again.lower, expected.lower)
    kept = dataset.states(np.arange(3), 3)
    assert torch.equal(kept.inputs, others.inputs) and torch.equal(kept.saved, others.saved)


def test_neighbour_lists_are_made_once_also_where_gpus_search(data: PackedGraphs):
    lists = DeviceDataset(data, torch.device("meta")).lists
    assert lists(0) is lists(0)


def loader(data: PackedGraphs, rt: Runtime, **changes) -> GraphLoader:
    return GraphLoader(tiny_runs.settings(data.folder, Path("nowhere"), **changes), data, rt)


def test_graphs_that_dsatur_colors_with_the_fewest_colors_are_not_trained_on(data: PackedGraphs, rt: Runtime):
    train = data.indices("train")
    is_easy = data.dsatur_colors[train] == data.lower_bound[train]
    assert 0 < is_easy.sum() < len(train)
    seen = [i for step in loader(data, rt).sampler.epoch(0) for i in step.ids]
    assert sorted(seen) == sorted(train[~is_easy])


def test_where_all_graphs_are_easy_all_are_trained_on(tmp_path: Path, rt: Runtime):
    rings = [Graph.from_edges(n, [(i, (i + 1) % n) for i in range(n)]) for n in (4, 6, 8)]
    data = tiny_runs.pack(tmp_path, [Instance(graph) for graph in rings])
    assert sorted(loader(data, rt).sampler.indices) == data.indices("train").tolist()


COSTS = st.lists(st.integers(1, 1000), min_size=1, max_size=80)
RANKS = st.integers(1, 9)


def sampler(costs, batch_size: int = 5, ranks: int = 2, rank: int = 0, **options) -> EqualCostSampler:
    """Of graphs 100, 101, ... of such costs."""
    return EqualCostSampler(100 + np.arange(len(costs)), np.array(costs), batch_size, ranks, rank, **options)


def epoch(costs, batch_size: int = 5, ranks: int = 2, number: int = 0, **options) -> list[list[np.ndarray]]:
    """Graphs of every step on every rank; every rank says the same about a step."""
    samplers = [sampler(costs, batch_size, ranks, rank, **options) for rank in range(ranks)]
    steps = []
    for planned in zip(*(each.epoch(number) for each in samplers), strict=True):
        steps.append([one.ids for one in planned])
        assert {one.num_graphs for one in planned} == {sum(map(len, steps[-1]))}
    return steps


def mixed(count: int = 300) -> list[int]:
    return np.random.default_rng(0).integers(10, 500, count).tolist()


def taken(steps: list[list[np.ndarray]]) -> list[int]:
    return sorted(np.concatenate([ids for step in steps for ids in step]).tolist())


def test_the_plan_of_any_step_is_found_at_once():
    one = sampler(mixed(), ranks=4, rank=3)
    assert len(list(one.epoch(0))) == len(one) == 15 and one.graphs_per_step == 20
    every = [each.ids for number in range(3) for each in one.epoch(number)]
    plan = one.starting_at(17)
    assert all(np.array_equal(next(plan).ids, ids) for ids in every[17:])


@given(costs=COSTS, batch_size=st.integers(1, 100), ranks=RANKS, number=st.integers(0, 10**6))
def test_an_epoch_takes_every_graph_exactly_once_over_all_ranks(costs, batch_size, ranks, number):
    steps = epoch(costs, batch_size, ranks, number)
    assert taken(steps) == [100 + i for i in range(len(costs))]
    counts = [sum(map(len, step)) for step in steps]
    assert min(counts) >= 1 and max(counts) - min(counts) <= 1 and max(counts) <= batch_size * ranks


def test_ranks_do_about_the_same_work_in_every_step():
    costs = np.array(mixed())
    for step in epoch(costs, 12, 8):
        work = [costs[ids - 100].sum() for ids in step]
        assert max(work) < 1.1 * min(work)


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_as_many_ranks_with_smaller_batches_take_the_same_steps(ranks: int):
    whole, parts = epoch(mixed(), 16, 1), epoch(mixed(), 16 // ranks, ranks)
    assert [taken([step]) for step in whole] == [taken([step]) for step in parts]


def test_the_same_epoch_and_seed_give_the_same_steps_and_others_mix_the_graphs():
    first = epoch(mixed())
    for other, is_same in ((epoch(mixed()), True), (epoch(mixed(), number=1), False), (epoch(mixed(), seed=1), False)):
        for mine, theirs in zip(first, other, strict=True):
            assert (taken([mine]) == taken([theirs])) == is_same
