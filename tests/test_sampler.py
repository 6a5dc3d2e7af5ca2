"""The sampler: every graph once per epoch over all ranks, the same everywhere, equal work for all ranks in a step."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler

from gnn_training.training.loader import EqualCostSampler

COSTS = st.lists(st.integers(1, 1000), min_size=1, max_size=80)
RANKS = st.integers(1, 9)


def sampler(costs, batch_size: int = 5, ranks: int = 2, rank: int = 0, **options) -> EqualCostSampler:
    """Of graphs 100, 101, ... of such costs."""
    return EqualCostSampler(100 + np.arange(len(costs)), np.array(costs), batch_size, ranks, rank, **options)


def epoch(costs, batch_size: int = 5, ranks: int = 2, number: int = 0, **options) -> list[list[np.ndarray]]:
    """Graphs of every step on every rank; every rank says the same about a step."""
    samplers = [sampler(costs, batch_size, ranks, rank, **options) for rank in range(ranks)]
    for each in samplers:
        each.set_epoch(number)
    steps = []
    for planned in zip(*samplers, strict=True):
        steps.append([one.ids for one in planned])
        assert {one.num_graphs for one in planned} == {sum(map(len, steps[-1]))}
    return steps


def mixed(count: int = 300) -> list[int]:
    return np.random.default_rng(0).integers(10, 500, count).tolist()


def taken(steps: list[list[np.ndarray]]) -> list[int]:
    """All graphs of these steps, sorted."""
    return sorted(np.concatenate([ids for step in steps for ids in step]).tolist())


def test_it_is_a_distributed_sampler():
    one = sampler(mixed(), ranks=4, rank=3)
    assert isinstance(one, DistributedSampler) and (one.num_replicas, one.rank) == (4, 3)
    assert len(list(one)) == len(one) == 15 and one.graphs_per_step == 20


@settings(max_examples=60)
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
