"""The search on a GPU makes the moves of the compiled loops, and its kernel compiles, both without a GPU."""

import pickle
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from small_graphs import random_graph

from gnn_training.contract import SHIPPED_MODEL
from gnn_training.data.families import FAMILIES, draw
from gnn_training.graph import Graph
from gnn_training.model import rule
from gnn_training.model.search import first_weights
from gnn_training.model.session import Model
from gnn_training.solve import kernels, search_cuda
from gnn_training.solve.search_kernel import noise_table, search_graph

SCRIPT = Path(__file__).with_name("simulated_cuda.py")
SEED, MANY_MOVERS = 2**40, 3.0  # exp(3) as the margin lets nearly every active node move
NO_JITTER = -200.0  # exp(-200) is 0: no noise breaks ties
REGISTERS = 65_536 // (2 * search_cuda.THREADS)  # of a thread, so that an SM has two blocks

SPILLED = 32  # bytes of registers of a thread in local memory, at most


def small_graphs() -> list[Graph]:
    """Twenty graphs of all families, most of them with 20 to 60 nodes."""
    names = [*FAMILIES, "er_dense", "planted", "geometric", "leighton"]
    return [draw(1, name, i, 20 + 13 * i % 41).graph for i, name in enumerate(names)]


def with_control(weights: np.ndarray, name: str, value: float) -> np.ndarray:
    """Weights with another bias of a control, see rule.CONTROLS."""
    changed = weights.copy()
    changed[rule.OUTPUTS * len(rule.GRAPH_FEATURES) + rule.CONTROLS.index(name)] = value
    return changed


def random_rule() -> np.ndarray:
    """Weights far from the first ones."""
    return untrained() + np.random.default_rng(1).normal(0, 0.5, rule.NUM_WEIGHTS).astype(np.float32)


def untrained() -> np.ndarray:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return first_weights().numpy()


def shipped() -> np.ndarray:
    weights = Model(str(SHIPPED_MODEL), 1).rule
    assert weights is not None
    return weights


class Case:
    """Searches with one rule, two in the first graph. options: of search_cuda.search."""

    def __init__(self, graphs: list[Graph], weights: np.ndarray, rounds: int, lower: int = 1, **options: Any):
        self.graphs, self.first = graphs, [kernels.dsatur(*graph.csr()) for graph in graphs]
        self.graph = np.array([*range(len(graphs)), 0])
        count = len(self.graph)
        packed = search_cuda.pack([graph.csr() for graph in graphs], self.first)
        own = 1 + 0.01 * np.arange(count, dtype=np.float32)[:, None]  # every search has weights of its own
        self.task = {
            "graphs": packed, "graph": self.graph, "lower": lower + np.arange(count) % 2,
            "seeds": SEED + np.arange(count), "weights": own * weights, "rounds": rounds, "threads": 4,
            "max_shared": search_cuda.ALWAYS_SHARED, "with_colors": True,
        } | options  # fmt: skip

    def check(self, found: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
        """Assert that the compiled loops find the same."""
        for search, i in enumerate(self.graph):
            lower, weights, seed = (self.task[name][search] for name in ("lower", "weights", "seeds"))
            best, num_colors, conflicts = search_graph(
                *self.graphs[i].csr(), self.first[i], 0, lower, weights, noise_table(256), seed, self.task["rounds"],
                np.zeros(1, np.uint8),
            )  # fmt: skip
            assert (found[0][search], found[1][search]) == (num_colors, conflicts)
            if self.task["with_colors"]:
                assert found[2][search, : len(best)].tolist() == best.tolist()


NAMES = (
    "untrained", "shipped", "many movers", "ties", "two rounds", "down to a lower bound", "more threads than nodes",
    "one thread", "counts in global memory", "without colors", "a large graph",
)  # fmt: skip


@cache
def cases() -> dict[str, Case]:
    """All cases by name."""
    small = small_graphs()
    planted = [draw(2, name, i, 16).graph for i, name in enumerate(["planted", "er_heavy", "queen"])]
    made = [
        Case(small, untrained(), 40),
        Case(small, shipped(), 40),
        Case(small[::3], with_control(random_rule(), "margin", MANY_MOVERS), 40),
        Case(small[::3], with_control(untrained(), "jitter", NO_JITTER), 40),
        Case(small[::4], shipped(), 2),
        Case(small[::4], shipped(), 60, lower=5),
        Case(planted, shipped(), 40, threads=70),
        Case(planted, random_rule(), 40, threads=1),
        Case(small[::5], shipped(), 40, max_shared=16_000),
        Case(planted, untrained(), 40, with_colors=False),
        Case([random_graph(1500, 0.004)], with_control(random_rule(), "margin", 1.0), 6),
    ]
    return dict(zip(NAMES, made, strict=True))


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the simulator finds for every case."""
    tasks, found = (tmp_path_factory.mktemp("simulated") / name for name in ("tasks", "found"))
    tasks.write_bytes(pickle.dumps([case.task for case in cases().values()]))
    subprocess.run([sys.executable, str(SCRIPT), str(tasks), str(found)], check=True, timeout=280)
    return dict(zip(NAMES, pickle.loads(found.read_bytes()), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_thread_block_makes_the_moves_of_the_compiled_loops(name: str, simulated: dict[str, Any]):
    cases()[name].check(simulated[name])


def test_the_cases_find_colorings_with_fewer_colors():
    case, fewer = cases()["shipped"], 0
    for i, graph in enumerate(case.graphs):
        arguments = (case.first[i], 0, 1, shipped(), noise_table(256), SEED + i, 40, np.zeros(1, np.uint8))
        fewer += search_graph(*graph.csr(), *arguments)[1] < case.first[i].max() + 1
    assert fewer >= 4


def test_what_does_not_fit_into_a_block_is_refused():
    task = cases()["shipped"].task
    with pytest.raises(ValueError, match="bytes of shared memory"):
        search_cuda.search(**task | {"max_shared": 1000})
    with pytest.raises(ValueError, match="40000 rounds"):
        search_cuda.search(**task | {"rounds": 40_000})


@pytest.mark.slow
@pytest.mark.parametrize("in_shared", [True, False])
def test_the_kernel_compiles_for_gpus_and_spills_few_registers(in_shared: bool, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("numba_cuda")
    from numba import cuda

    for capability in [(8, 0), (9, 0), (10, 0), (12, 0)]:
        device = SimpleNamespace(compute_capability=capability)
        monkeypatch.setattr("numba.cuda.dispatcher.get_current_device", lambda device=device: device)
        ptx, _ = cuda.compile_ptx(
            search_cuda.kernel(in_shared).py_func, kernel_types(), cc=capability, **search_cuda.OPTIONS
        )
        used = resources(ptx, capability)
        print(capability, in_shared, used)
        assert used["registers"] <= REGISTERS and used["bytes lmem"] == 0 and used["stack"] <= SPILLED
        assert used["bytes smem"] <= 1024  # which newer GPUs keep for themselves


def kernel_types() -> tuple[Any, ...]:
    """Types of the arguments of the kernel."""
    from numba import float32, int16, int32, int64, uint32

    graphs, searches = (int32[::1],) * 5, (int64[::1],) * 3
    tables, work = (float32[:, ::1], float32[:, ::1], float32[::1]), (uint32[:, ::1], int16[:, ::1])
    return (*graphs, *searches, *tables, *work, int32[::1], float32[::1], int16[:, ::1], int64, int64)


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
