"""The plan of batches: every graph once per epoch over all ranks, the same plan everywhere, balanced."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnn_training.training.batches import BatchPlan, cost, deal
from gnn_training.training.schedule import learning_rate, peak_rate

SIZES = st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 200)), min_size=1, max_size=80)


def plan(sizes: list[tuple[int, int]], cells: int = 5000, parts: int = 2, seed: int = 0) -> BatchPlan:
    """Graphs 100, 101, ... of so many (nodes, colors)."""
    nodes, colors = np.array(sizes).T
    return BatchPlan(100 + np.arange(len(sizes)), nodes, colors, cells, parts, seed)


def mixed(count: int = 300) -> list[tuple[int, int]]:
    rng = np.random.default_rng(0)
    nodes = rng.integers(10, 500, count)
    return list(zip(nodes.tolist(), (1 + nodes * rng.uniform(0.02, 0.4, count)).astype(int).tolist(), strict=True))


@pytest.mark.parametrize("parts", [1, 2, 3, 8])
@pytest.mark.parametrize("epoch", [0, 1, 7])
def test_an_epoch_takes_every_graph_exactly_once_over_all_ranks(parts: int, epoch: int):
    batches = plan(mixed(), parts=parts)
    steps = batches.epoch(epoch)
    assert len(steps) == batches.steps_per_epoch and all(len(step) == parts for step in steps)
    taken = np.concatenate([graphs for step in steps for graphs in step])
    assert np.array_equal(np.sort(taken), 100 + np.arange(300))


@settings(max_examples=60, deadline=None)
@given(sizes=SIZES, cells=st.integers(1, 10**6), parts=st.integers(1, 9), epoch=st.integers(0, 10**6))
def test_no_sizes_lose_or_repeat_a_graph(sizes, cells, parts, epoch):
    batches = plan(sizes, cells, parts)
    first = batches.steps_per_epoch * epoch
    steps = [batches.at(step) for step in range(first, first + batches.steps_per_epoch)]
    taken = np.concatenate([graphs for step in steps for graphs in step])
    assert np.array_equal(np.sort(taken), 100 + np.arange(len(sizes)))
    assert all(sum(map(len, step)) > 0 for step in steps)


def test_every_rank_makes_the_same_plan_and_a_resume_the_same_again():
    one, other = plan(mixed()), plan(mixed())
    there = [3, 0, one.steps_per_epoch * 2 + 1, 1]
    one.at(17)  # what was asked before does not matter
    for step in there:
        for a, b in zip(one.at(step), other.at(step), strict=True):
            assert np.array_equal(a, b)


def test_the_order_of_the_indices_does_not_matter():
    sizes = np.array(mixed(60))
    order = np.random.default_rng(1).permutation(60)
    shuffled = BatchPlan(100 + order, *sizes[order].T, 5000, 2, seed=0)
    for a, b in zip(shuffled.at(5), plan(sizes.tolist()).at(5), strict=True):
        assert np.array_equal(a, b)


def test_epochs_and_seeds_mix_the_graphs_anew():
    def together(batches: BatchPlan, epoch: int) -> set[tuple[int, ...]]:
        return {tuple(sorted(np.concatenate(step).tolist())) for step in batches.epoch(epoch)}

    batches = plan(mixed())
    first = together(batches, 0)
    assert first == together(plan(mixed()), 0)
    assert len(first & together(batches, 1)) < len(first) / 2
    assert len(first & together(plan(mixed(), seed=1), 0)) < len(first) / 2
    assert not np.array_equal(np.concatenate(batches.at(0)), np.concatenate(batches.at(batches.steps_per_epoch)))


def test_a_batch_holds_graphs_of_similar_size_within_its_cells():
    nodes, colors = np.array(mixed(3000)).T
    batches = plan(mixed(3000), cells=600_000, parts=2)
    parts = [graphs - 100 for step in batches.epoch(3) for graphs in step if len(graphs)]
    spread = [nodes[graphs].max() / nodes[graphs].min() for graphs in parts]
    padded = [len(graphs) * cost(float(nodes[graphs].max()), colors[graphs].max() + 2.0) for graphs in parts]
    assert np.median(spread) < 1.3
    # Graphs stray from epoch to epoch, so the limit is not a hard one.
    assert np.mean(padded) < 1.5 * 600_000 and np.quantile(padded, 0.9) < 3 * 600_000


def test_as_many_ranks_with_part_of_the_cells_make_the_same_global_batches():
    whole, halves = plan(mixed(), cells=10**6, parts=1), plan(mixed(), cells=10**6 // 2, parts=2)
    assert whole.steps_per_epoch == halves.steps_per_epoch
    for step in range(2 * whole.steps_per_epoch):
        assert np.array_equal(np.sort(np.concatenate(whole.at(step))), np.sort(np.concatenate(halves.at(step))))


def test_a_graph_above_the_cells_stands_alone():
    steps = plan([(900, 200)] * 3, cells=10, parts=1).epoch(0)
    assert [len(step[0]) for step in steps] == [1, 1, 1]


def test_ranks_stay_empty_where_there_are_too_few_graphs():
    (step,) = plan([(10, 3), (20, 3)], parts=5).epoch(0)
    assert sorted(map(len, step)) == [0, 0, 0, 1, 1]


@settings(max_examples=100, deadline=None)
@given(costs=st.lists(st.floats(0.1, 1e6), min_size=0, max_size=60), parts=st.integers(1, 9))
def test_the_deal_is_balanced_and_complete(costs, parts):
    costs = np.array(costs)
    dealt = deal(costs, parts)
    assert len(dealt) == parts
    assert np.array_equal(np.sort(np.concatenate(dealt)), np.arange(len(costs)))
    loads = [costs[part].sum() for part in dealt]
    # Whoever got a graph last was the least loaded until then.
    assert max(loads) - min(loads) <= costs.max(initial=0) * (1 + 1e-9)


def test_the_learning_rate_warms_up_and_falls_to_zero():
    rates = [learning_rate(step, peak=2e-3, warmup_steps=10, steps=100) for step in range(101)]
    assert rates[0] == pytest.approx(2e-4) and rates[9] == rates[10] == 2e-3
    assert all(a < b for a, b in zip(rates[:9], rates[1:10], strict=True))
    assert all(a > b for a, b in zip(rates[10:], rates[11:], strict=False))
    assert rates[55] == pytest.approx(1e-3) and rates[100] == pytest.approx(0, abs=1e-12)
    assert learning_rate(0, 2e-3, 0, 100) == 2e-3


@pytest.mark.parametrize(("scaling", "factor"), [("none", 1), ("sqrt", 2), ("linear", 4)])
def test_the_peak_grows_with_the_ranks_as_asked(scaling: str, factor: float):
    assert peak_rate(1e-3, scaling, ranks=4) == pytest.approx(factor * 1e-3)
    assert peak_rate(1e-3, scaling, ranks=1) == 1e-3


@settings(max_examples=60, deadline=None)
@given(costs=st.lists(st.integers(1, 50), min_size=1, max_size=7), parts=st.integers(1, 3))
def test_the_slowest_rank_takes_at_most_a_third_longer_than_in_the_best_deal(costs, parts):
    slowest = max(np.array(costs)[part].sum() for part in deal(np.array(costs), parts) if len(part))
    best = min(
        max(sum(c for c, owner in zip(costs, owners, strict=True) if owner == part) for part in range(parts))
        for owners in itertools.product(range(parts), repeat=len(costs))
    )
    assert slowest <= (4 / 3 - 1 / (3 * parts)) * best + 1e-9  # Graham 1969
