"""The search on a GPU makes the moves of the compiled loops, and its kernel compiles, both without a GPU."""

import re
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from simulated_cuda import Generation, Task, simulate
from small_graphs import MANY_MOVERS, random_graph, random_weights, with_control
from torch import Tensor

from gnn_training.contract import SHIPPED_MODEL
from gnn_training.data.families import FAMILIES, draw
from gnn_training.graph import Graph, conflicts
from gnn_training.onnx_program.session import Model
from gnn_training.search import kernels, search_cuda
from gnn_training.search.search_kernel import SearchTask, search_child, search_graph

SEED, UNTRAINED = 2**40 + 1, random_weights(0, 0)
NO_JITTER = -200.0  # exp(-200) is 0: no noise breaks ties
REGISTERS = 65_536 // (search_cuda.BLOCKS * search_cuda.THREADS)  # of a thread
SPILLED = 32  # bytes of registers of a thread in local memory, at most


@cache
def small(step: int = 1) -> list[Graph]:
    """Every such of twenty graphs of all families, most of them with 16 to 46 nodes."""
    names = [*FAMILIES, "er_dense", "planted", "geometric", "leighton"]
    return [draw(1, name, i, 16 + 13 * i % 31).graph for i, name in enumerate(names)][::step]


def tiny() -> list[Graph]:
    return [draw(2, name, i, 16).graph for i, name in enumerate(["planted", "er_heavy", "queen"])]


@cache
def shipped() -> Tensor:
    return torch.from_numpy(Model(SHIPPED_MODEL, 1).rule)


def case(graphs: list[Graph], weights: Tensor, rounds: int, lower: int = 1, **options: Any) -> Task:
    """Two searches of every graph, each with weights of its own."""
    count = len(graphs)
    each = weights.numpy() * (1 + 0.01 * np.arange(2 * count, dtype=np.float32).reshape(2, count, 1))
    first = [kernels.dsatur(*graph.csr()).astype(np.int16) for graph in graphs]
    return Task(graphs, first, lower + np.arange(count) % 2, SEED + np.arange(count), each, rounds, **options)


def children(graphs: list[Graph], weights: Tensor, rounds: int, left: float, **options: Any) -> Generation:
    """Two children of every graph, with about three quarters of DSATUR's colors, and one more. left: share of the nodes
    without a color.
    """
    rng, count, n = np.random.default_rng(5), 2 * len(graphs), max(graph.num_nodes for graph in graphs)
    graph = np.arange(count) % len(graphs)
    colors = [int(kernels.dsatur(*each.csr()).max()) + 1 for each in graphs]
    k = np.array([max(1, colors[g] * 3 // 4 + i // len(graphs)) for i, g in enumerate(graph)])
    starts = np.where(rng.random((count, n)) < left, -1, rng.integers(0, k[:, None], (count, n)))
    each = weights.numpy() * (1 + 0.01 * np.arange(count, dtype=np.float32)[:, None])
    return Generation(graphs, graph, k, starts, SEED + np.arange(count), each, rounds, **options)


def with_margin(value: float) -> Tensor:
    return with_control(random_weights(1), "margin", value)


def noisy() -> Tensor:
    """Weights with which more nodes come into conflict than a round looks at."""
    return with_control(with_margin(MANY_MOVERS), "jitter", 3.0)


TWO, WIDE = (random_graph(40, 0.9), random_graph(80, 0.1)), random_graph(700, 0.004)
CASES = {
    "untrained": lambda: case(small()[::4], UNTRAINED, 20),
    "shipped": lambda: case(small()[1::4], shipped(), 30),
    "many movers": lambda: case(small()[2::4], with_margin(MANY_MOVERS), 15),
    "ties": lambda: case(small()[3::4], with_control(UNTRAINED, "jitter", NO_JITTER), 15),
    "down to a lower bound": lambda: case(small(6), shipped(), 40, lower=5),
    "more threads than nodes": lambda: case(tiny()[:2], shipped(), 6, threads=70),
    "one thread": lambda: case(tiny(), random_weights(1), 20, threads=1),
    "in each memory and on the cores": lambda: case([*small(4), *TWO, WIDE], shipped(), 20, max_shared=15_000),
    "a second call": lambda: case(small(6), shipped(), 20, calls=2),
    "the first thread is late": lambda: case([*tiny(), random_graph(60, 0.5)], noisy(), 15, late=0),
    "the last thread is late": lambda: case([*tiny(), random_graph(60, 0.5)], noisy(), 15, late=3),
    "a large graph": lambda: case([random_graph(1500, 0.004)], with_margin(1.0), 5),
}
GENERATIONS = {
    "untrained children": lambda: children(small(6), UNTRAINED, 12, 1.0),
    "shipped children": lambda: children(small(6), shipped(), 20, 0.3),
    "children without rounds": lambda: children(small(4), shipped(), 0, 0.7),
    "children with all colors": lambda: children(small(6), shipped(), 15, 0.0),
    "children of one thread": lambda: children(tiny(), shipped(), 20, 0.5, threads=1),
    "children in each memory": lambda: children([*small(7), *TWO], shipped(), 10, 0.5, max_shared=15_000),
    "children whose first thread is late": lambda: children([*tiny(), TWO[0]], noisy(), 10, 0.5, late=0),
    "children whose last thread is late": lambda: children([*tiny(), TWO[0]], noisy(), 10, 0.5, late=3),
}


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    tasks = {name: make() for name, make in (CASES | GENERATIONS).items()}
    return simulate(tmp_path_factory.mktemp("simulated"), tasks)


@pytest.mark.slow
@pytest.mark.timeout(600)  # of the simulator: a minute of a core, several where tests share them
@pytest.mark.parametrize("name", CASES)
def test_a_thread_block_makes_the_moves_of_the_compiled_loops(name: str, simulated: dict[str, Any]):
    task, found = CASES[name](), simulated[name]
    for s, g in np.ndindex(2, len(task)):
        alone = SearchTask(task.first[g], task.rounds, task.seeds[g], task.lower[g])
        _, num_colors, conflicts, *_ = search_graph(task.graphs[g].csr(), alone, task.weights[s, g])
        assert (found[0][s, g], found[1][s, g]) == (num_colors, conflicts if num_colors > task.lower[g] else 0)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", GENERATIONS)
def test_a_thread_block_makes_the_children_of_the_compiled_loops(name: str, simulated: dict[str, Any]):
    task, found = GENERATIONS[name](), simulated[name]
    for i, g in enumerate(task.graph):
        graph = task.graphs[g]
        start = task.starts[i, : graph.num_nodes]
        best, ages, left = search_child(graph.csr(), start, task.k[i], task.weights[i], task.rounds, task.seeds[i])
        assert conflicts(graph, best) == left and best.max() < task.k[i]
        expected = (left, best.tolist(), ages.tolist())
        assert (found[0][i], *(each[i, : graph.num_nodes].tolist() for each in found[1:])) == expected


def test_launches_hold_every_search_once_and_none_gets_more_memory_than_there_is():
    rng = np.random.default_rng(0)
    nodes, colors = rng.integers(1, 6000, 300).tolist(), rng.integers(1, 250, 300).tolist()
    launches, too_large = search_cuda.plan_launches(nodes, colors, 232_448)
    assert sorted(np.concatenate([*(launch.searches for launch in launches), too_large])) == list(range(300))
    assert [launch.in_shared for launch in launches] == [True, False] and 0 < len(too_large) < 300
    assert launches[0].shared <= 57_344 < launches[1].shared <= 232_448
    assert all((np.diff(np.array(nodes)[launch.searches]) <= 0).all() for launch in launches)  # the largest first
    assert search_cuda.plan_launches([40_000], [3], 10**9)[1].tolist() == [0]  # integers of 16 bits


def test_some_cases_have_searches_in_each_memory_and_on_the_cores():
    task, generation = CASES["in each memory and on the cores"](), GENERATIONS["children in each memory"]()
    colors, nodes = [first.max() + 1 for first in task.first], [graph.num_nodes for graph in generation.graphs]
    launches, too_large = search_cuda.plan_launches(task.num_nodes, colors, task.max_shared)
    assert [launch.in_shared for launch in launches] == [True, False] and task.num_nodes[too_large].tolist() == [700]
    launches, too_large = search_cuda.plan_launches(np.array(nodes)[generation.graph], generation.k, 15_000)
    assert [launch.in_shared for launch in launches] == [True, False] and not len(too_large)


@pytest.mark.slow
@pytest.mark.parametrize("in_shared", [True, False])
@pytest.mark.parametrize("of_children", [False, True])
@pytest.mark.parametrize(
    "capability", [(8, 0), *(pytest.param((number, 0), marks=pytest.mark.nightly) for number in (9, 10, 12))]
)
def test_the_kernels_compile_for_gpus_and_spill_few_registers(
    capability: tuple[int, int], in_shared: bool, of_children: bool, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("numba_cuda")
    from numba import cuda

    device = SimpleNamespace(compute_capability=capability)
    monkeypatch.setattr("numba.cuda.dispatcher.get_current_device", lambda: device)
    function, signature = search_cuda.to_compile(in_shared, of_children)
    ptx, _ = cuda.compile_ptx(function, signature, cc=capability, **search_cuda.OPTIONS)
    used = resources(ptx, capability)
    assert used["registers"] <= REGISTERS and used["bytes lmem"] == 0 and used["stack"] <= SPILLED, used
    assert used["bytes smem"] <= 1024  # which newer GPUs keep for themselves


def resources(ptx: str, capability: tuple[int, int]) -> dict[str, int]:
    """What a kernel uses, as the linker says that numba-cuda asks."""
    from cuda.bindings import nvjitlink

    options = ["-arch=sm_{}{}".format(*capability), "-verbose"]
    linker, code = nvjitlink.create(len(options), options), ptx.encode()
    nvjitlink.add_data(linker, nvjitlink.InputType.PTX, code, len(code), "search")
    nvjitlink.complete(linker)
    text = bytearray(nvjitlink.get_info_log_size(linker))
    nvjitlink.get_info_log(linker, text)
    numbers = re.findall(r"(\d+) (registers|stack|bytes smem|bytes lmem)", text.decode())
    return {name: max(int(number) for number, other in numbers if other == name) for _, name in numbers}
