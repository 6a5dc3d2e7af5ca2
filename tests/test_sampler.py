"""The sampler: every graph once per epoch over all ranks, the same everywhere, equal work for all ranks in a step."""

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler

from gnn_training.training.sampler import ALIGNMENT, Bucket, EqualCostSampler, Shape, cost

SIZES = st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 200)), min_size=1, max_size=80)
BATCH_SIZES, RANKS = st.integers(1, 10**6), st.integers(1, 9)


class Step(NamedTuple):
    """A step of all ranks together: the batches of rank 0, of rank 1, ..."""

    shape: Shape
    batches: list[np.ndarray]


def sampler(sizes, batch_size: int = 5000, ranks: int = 2, rank: int = 0, **options) -> EqualCostSampler:
    """Of graphs 100, 101, ... of so many (nodes, colors)."""
    return EqualCostSampler(100 + np.arange(len(sizes)), *np.array(sizes).T, batch_size, ranks, rank, **options)


def epoch(sizes, batch_size: int = 5000, ranks: int = 2, number: int = 0, **options) -> list[Step]:
    """What all ranks together take in an epoch; every rank says the same about the step."""
    samplers = [sampler(sizes, batch_size, ranks, rank, **options) for rank in range(ranks)]
    for each in samplers:
        each.set_epoch(number)
    steps = []
    for planned in zip(*samplers, strict=True):
        batches = [ids for one in planned for ids in one.micro_batches]
        assert {one.shape for one in planned} == {planned[0].shape}
        assert {one.num_graphs for one in planned} == {sum(map(len, batches))}
        steps.append(Step(planned[0].shape, batches))
    return steps


def buckets(sizes, batch_size: int = 5000, ranks: int = 2) -> list[Bucket]:
    return sampler(sizes, batch_size, ranks).buckets


def mixed(count: int = 300) -> list[tuple[int, int]]:
    rng = np.random.default_rng(0)
    nodes = rng.integers(10, 500, count)
    return list(zip(nodes.tolist(), (1 + nodes * rng.uniform(0.02, 0.4, count)).astype(int).tolist(), strict=True))


def taken(steps: list[Step]) -> np.ndarray:
    """All graphs of these steps, sorted."""
    return np.sort(np.concatenate([graphs for step in steps for graphs in step.batches]))


def sharing_a_step(steps: list[Step]) -> set[tuple[int, ...]]:
    return {tuple(taken([step])) for step in steps}


def assert_same(a: list[Step], b: list[Step]) -> None:
    for mine, other in zip(a, b, strict=True):
        assert mine.shape == other.shape
        assert all(np.array_equal(x, y) for x, y in zip(mine.batches, other.batches, strict=True))


def test_it_is_a_distributed_sampler():
    one = sampler(mixed(), ranks=4, rank=3)
    assert isinstance(one, DistributedSampler) and (one.num_replicas, one.rank) == (4, 3)
    assert len(list(one)) == len(one)


@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 64])
@pytest.mark.parametrize("number", [0, 1, 7])
def test_an_epoch_takes_every_graph_exactly_once_over_all_ranks(ranks: int, number: int):
    steps = epoch(mixed(), ranks=ranks, number=number)
    assert all(len(step.batches) == ranks for step in steps)
    assert np.array_equal(taken(steps), 100 + np.arange(300))


@settings(max_examples=60)
@given(sizes=SIZES, batch_size=BATCH_SIZES, ranks=RANKS, number=st.integers(0, 10**6))
def test_no_sizes_lose_or_repeat_a_graph(sizes, batch_size, ranks, number):
    steps = epoch(sizes, batch_size, ranks, number)
    assert np.array_equal(taken(steps), 100 + np.arange(len(sizes)))
    assert all(len(taken([step])) for step in steps)


@settings(max_examples=60)
@given(sizes=SIZES, batch_size=BATCH_SIZES, ranks=RANKS)
def test_one_shape_holds_every_batch_of_a_step_so_all_ranks_do_the_same_work(sizes, batch_size, ranks):
    nodes, colors = np.array(sizes).T
    for step in epoch(sizes, batch_size, ranks, 3):
        shape, counts = step.shape, [len(batch) for batch in step.batches]
        inside = taken([step]) - 100
        assert nodes[inside].max() <= shape.nodes and colors[inside].max() <= shape.colors
        assert shape.nodes % ALIGNMENT == 0
        assert max(counts) <= shape.graphs and max(counts) - min(counts) <= 1


@settings(max_examples=60)
@given(sizes=SIZES, batch_size=BATCH_SIZES, ranks=RANKS)
def test_no_bucket_has_a_place_more_than_batches_of_equal_size_need(sizes, batch_size, ranks):
    found = buckets(sizes, batch_size, ranks)
    assert sum(len(bucket.indices) for bucket in found) == len(sizes)
    for bucket in found:
        fewer_graphs = bucket.steps * ranks * (bucket.shape.graphs - 1)
        fewer_steps = (bucket.steps - 1) * ranks * bucket.shape.graphs
        assert max(fewer_graphs, fewer_steps) < len(bucket.indices) <= bucket.steps * ranks * bucket.shape.graphs


@settings(max_examples=60)
@given(sizes=SIZES, batch_size=BATCH_SIZES, ranks=RANKS)
def test_a_batch_of_several_graphs_stays_within_the_batch_size(sizes, batch_size, ranks):
    for bucket in buckets(sizes, batch_size, ranks):
        assert bucket.shape.graphs == 1 or bucket.shape.cost <= batch_size


def test_the_order_of_the_indices_does_not_matter():
    sizes = np.array(mixed(60))
    order = np.random.default_rng(1).permutation(60)
    shuffled = EqualCostSampler(100 + order, *sizes[order].T, 5000, 1, 0)
    for mine, other in zip(shuffled, sampler(sizes.tolist(), ranks=1), strict=True):
        assert np.array_equal(mine.micro_batches[0], other.micro_batches[0])


def test_the_same_epoch_and_seed_give_the_same_steps_and_others_mix_the_graphs_of_a_bucket():
    sizes = mixed(3000)
    first = epoch(sizes, 600_000)
    assert_same(first, epoch(sizes, 600_000))
    for other in (epoch(sizes, 600_000, number=1), epoch(sizes, 600_000, seed=1)):
        assert len(sharing_a_step(first) & sharing_a_step(other)) < len(first) / 4
        shapes = [[str(step.shape) for step in steps] for steps in (first, other)]
        assert shapes[0] != shapes[1] and sorted(shapes[0]) == sorted(shapes[1])


@pytest.mark.parametrize(("ranks", "most"), [(1, 1.3), (2, 1.3), (8, 1.4), (64, 1.9)])
def test_padding_and_empty_places_stay_a_small_part_of_the_work(ranks: int, most: float):
    nodes, colors = np.array(mixed(3000)).T
    work = sum(bucket.steps * bucket.shape.cost for bucket in buckets(mixed(3000), 600_000, ranks))
    assert ranks * work < most * cost(nodes, colors).sum()


def test_few_shapes_occur():
    one = sampler(mixed(3000), 600_000, ranks=8)
    assert len({bucket.shape for bucket in one.buckets}) <= len(one.buckets) < 0.6 * len(one)


def test_graphs_of_one_size_share_one_bucket_that_more_ranks_take_in_fewer_steps():
    for ranks in (1, 2, 4):
        (bucket,) = buckets([(64, 10)] * 64, 8 * cost(64, 10), ranks)
        assert (bucket.shape.graphs, bucket.steps) == (8, 8 // ranks)


@pytest.mark.parametrize("halves", [{"ranks": 2}, {"ranks": 1, "micro_batches": 2}])
def test_ranks_and_micro_batches_of_half_the_size_make_the_same_steps_of_graphs_of_one_size(halves: dict):
    full = 8 * cost(64, 10)
    whole, others = epoch([(64, 10)] * 60, full, ranks=1), epoch([(64, 10)] * 60, full // 2, **halves)
    for mine, other in zip(whole, others, strict=True):
        assert np.array_equal(taken([mine]), taken([other]))


def test_graphs_above_the_batch_size_come_alone():
    assert [[len(ids) for ids in step.batches] for step in epoch([(900, 200)] * 3, 10, ranks=1)] == [[1]] * 3


def test_a_graph_above_the_batch_size_does_not_pad_the_small_ones():
    steps = epoch([(20, 4)] * 50 + [(900, 200)], ranks=1)
    assert sorted({step.shape.nodes for step in steps}) == [24, 904]
    assert [taken([step]).tolist() for step in steps if step.shape.nodes == 904] == [[150]]


def test_ranks_stay_empty_where_there_are_too_few_graphs():
    (step,) = epoch([(10, 3), (20, 3)], ranks=5)
    assert sorted(map(len, step.batches)) == [0, 0, 0, 1, 1]
