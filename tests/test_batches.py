"""The plan of batches: every graph once per epoch over all ranks, the same everywhere, equal work for all in a step."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnn_training.training.learner import learning_rate, peak_rate
from gnn_training.training.sampler import ALIGNMENT, FEWEST, BatchPlan, Planned, cost

SIZES = st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 200)), min_size=1, max_size=80)


def plan(sizes: list[tuple[int, int]], cells: int = 5000, parts: int = 2, seed: int = 0) -> BatchPlan:
    """Graphs 100, 101, ... of so many (nodes, colors)."""
    nodes, colors = np.array(sizes).T
    return BatchPlan(100 + np.arange(len(sizes)), nodes, colors, cells, parts, seed)


def mixed(count: int = 300) -> list[tuple[int, int]]:
    rng = np.random.default_rng(0)
    nodes = rng.integers(10, 500, count)
    return list(zip(nodes.tolist(), (1 + nodes * rng.uniform(0.02, 0.4, count)).astype(int).tolist(), strict=True))


def taken(steps: list[Planned]) -> np.ndarray:
    """All graphs of these steps, sorted."""
    return np.sort(np.concatenate([graphs for step in steps for graphs in step.parts]))


def together(steps: list[Planned]) -> set[tuple[int, ...]]:
    """Which graphs share a step."""
    return {tuple(taken([step])) for step in steps}


def assert_same(a: Planned, b: Planned) -> None:
    assert a.shape == b.shape
    for mine, other in zip(a.parts, b.parts, strict=True):
        assert np.array_equal(mine, other)


@pytest.mark.parametrize("parts", [1, 2, 3, 8, 64])
@pytest.mark.parametrize("epoch", [0, 1, 7])
def test_an_epoch_takes_every_graph_exactly_once_over_all_ranks(parts: int, epoch: int):
    batches = plan(mixed(), parts=parts)
    steps = batches.epoch(epoch)
    assert len(steps) == batches.steps_per_epoch and all(len(step.parts) == parts for step in steps)
    assert np.array_equal(taken(steps), 100 + np.arange(300))


@settings(max_examples=60, deadline=None)
@given(sizes=SIZES, cells=st.integers(1, 10**6), parts=st.integers(1, 9), epoch=st.integers(0, 10**6))
def test_no_sizes_lose_or_repeat_a_graph(sizes, cells, parts, epoch):
    batches = plan(sizes, cells, parts)
    first = batches.steps_per_epoch * epoch
    steps = [batches.at(step) for step in range(first, first + batches.steps_per_epoch)]
    assert np.array_equal(taken(steps), 100 + np.arange(len(sizes)))
    assert all(len(taken([step])) for step in steps)


@settings(max_examples=60, deadline=None)
@given(sizes=SIZES, cells=st.integers(1, 10**6), parts=st.integers(1, 9))
def test_one_shape_holds_every_part_of_a_step_so_all_ranks_do_the_same_work(sizes, cells, parts):
    nodes, colors = np.array(sizes).T
    for step in plan(sizes, cells, parts).epoch(3):
        shape, counts = step.shape, [len(part) for part in step.parts]
        inside = taken([step]) - 100
        assert nodes[inside].max() <= shape.nodes and colors[inside].max() <= shape.colors
        assert shape.nodes % ALIGNMENT == 0
        assert max(counts) <= shape.graphs and max(counts) - min(counts) <= 1


@settings(max_examples=60, deadline=None)
@given(sizes=SIZES, cells=st.integers(1, 10**6), parts=st.integers(1, 9))
def test_no_bucket_has_a_place_more_than_its_parts_of_equal_size_need(sizes, cells, parts):
    batches = plan(sizes, cells, parts)
    assert sum(len(bucket.indices) for bucket in batches.buckets) == len(sizes)
    for bucket in batches.buckets:
        fewer_graphs = bucket.steps * parts * (bucket.shape.graphs - 1) if bucket.shape.graphs > FEWEST else 0
        fewer_steps = (bucket.steps - 1) * parts * bucket.shape.graphs
        assert max(fewer_graphs, fewer_steps) < len(bucket.indices) <= bucket.steps * parts * bucket.shape.graphs


@settings(max_examples=60, deadline=None)
@given(sizes=SIZES, cells=st.integers(1, 10**6), parts=st.integers(1, 9))
def test_a_part_of_more_than_two_graphs_stays_within_the_cells(sizes, cells, parts):
    for bucket in plan(sizes, cells, parts).buckets:
        assert bucket.shape.graphs >= FEWEST
        assert bucket.shape.cost <= max(cells, FEWEST * bucket.shape.cost / bucket.shape.graphs)


def test_every_rank_makes_the_same_plan_and_a_resume_the_same_again():
    one, other = plan(mixed()), plan(mixed())
    there = [3, 0, one.steps_per_epoch * 2 + 1, 1]
    one.at(17)  # what was asked before does not matter
    for step in there:
        assert_same(one.at(step), other.at(step))


def test_the_order_of_the_indices_does_not_matter():
    sizes = np.array(mixed(60))
    order = np.random.default_rng(1).permutation(60)
    shuffled = BatchPlan(100 + order, *sizes[order].T, 5000, 2, seed=0)
    for step in range(shuffled.steps_per_epoch):
        assert_same(shuffled.at(step), plan(sizes.tolist()).at(step))


def test_epochs_and_seeds_mix_the_graphs_of_a_bucket_anew():
    batches = plan(mixed(3000), cells=600_000)
    first = together(batches.epoch(0))
    assert first == together(plan(mixed(3000), cells=600_000).epoch(0))
    for other in (batches.epoch(1), plan(mixed(3000), cells=600_000, seed=1).epoch(0)):
        assert len(first & together(other)) < len(first) / 4
    shapes = [[step.shape for step in batches.epoch(epoch)] for epoch in (0, 1)]
    assert shapes[0] != shapes[1] and sorted(map(str, shapes[0])) == sorted(map(str, shapes[1]))


@pytest.mark.parametrize(("parts", "most"), [(1, 1.3), (2, 1.3), (8, 1.4), (64, 1.9)])
def test_padding_and_empty_places_stay_a_small_part_of_the_work(parts: int, most: float):
    nodes, colors = np.array(mixed(3000)).T
    steps = plan(mixed(3000), cells=600_000, parts=parts).epoch(0)
    assert parts * sum(step.shape.cost for step in steps) < most * cost(nodes, colors).sum()


def test_few_shapes_occur():
    batches = plan(mixed(3000), cells=600_000, parts=8)
    assert len({bucket.shape for bucket in batches.buckets}) <= len(batches.buckets) < 0.6 * batches.steps_per_epoch


def test_graphs_of_one_size_share_one_bucket_that_more_ranks_take_in_fewer_steps():
    for parts in (1, 2, 4):
        (bucket,) = plan([(64, 10)] * 64, cells=8 * cost(64, 10), parts=parts).buckets
        assert (bucket.shape.graphs, bucket.steps) == (8, 8 // parts)


def test_ranks_and_micro_batches_with_part_of_the_cells_make_the_same_steps_of_graphs_of_one_size():
    whole, halves = (plan([(64, 10)] * 60, cells=8 * cost(64, 10) // parts, parts=parts) for parts in (1, 2))
    for step in range(2 * whole.steps_per_epoch):
        assert np.array_equal(taken([whole.at(step)]), taken([halves.at(step)]))


def test_graphs_above_the_cells_come_in_pairs_and_those_without_padding_alone():
    sizes = np.full((3, 2), (900, 200))
    steps = plan(sizes.tolist(), cells=10, parts=1).epoch(0)
    assert sorted(len(step.parts[0]) for step in steps) == [1, 2]
    alone = BatchPlan(np.arange(3), *sizes.T, 10, 1, 0, np.array([False, True, False])).epoch(0)
    assert sorted(step.parts[0].tolist() for step in alone if step.shape.graphs == 1) == [[1]]
    assert sorted(i for step in alone if step.shape.graphs == FEWEST for i in step.parts[0]) == [0, 2]


def test_a_graph_above_the_cells_does_not_pad_the_small_ones():
    steps = plan([(20, 4)] * 50 + [(900, 200)], cells=5000, parts=1).epoch(0)
    assert sorted({step.shape.nodes for step in steps}) == [24, 904]
    assert [taken([step]).tolist() for step in steps if step.shape.nodes == 904] == [[150]]


def test_ranks_stay_empty_where_there_are_too_few_graphs():
    (step,) = plan([(10, 3), (20, 3)], parts=5).epoch(0)
    assert sorted(map(len, step.parts)) == [0, 0, 0, 1, 1]


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
