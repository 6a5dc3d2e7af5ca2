"""Compiled rounds find what plain ones find, in one form for all sizes; ranks whose compiler fails tell why."""

import logging
import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import tiny_runs
import torch
from torch._dynamo.utils import counters
from torch._inductor.exc import InductorError
from torch.utils._pytree import tree_leaves

from gnn_training.data.packed import PackedGraphs
from gnn_training.distributed import Runtime
from gnn_training.model import search
from gnn_training.model.search import first_weights
from gnn_training.training import self_check
from gnn_training.training.learner import Learner
from gnn_training.training.loader import DeviceDataset, GraphLoader
from gnn_training.training.sampler import Shape
from gnn_training.training.searcher import GpuSearcher, begin

SHAPES = [Shape(4, 48, 15), Shape(4, 48, 14), Shape(2, 16, 7), Shape(7, 56, 15)]


@pytest.mark.slow  # compiles
def test_compiled_rounds_find_what_plain_ones_find_in_one_form(tiny_data: Path):
    assert tiny_runs.in_group(1, _compared, tiny_data) == [([], 1)]


def _compared(rt: Runtime, folder: Path) -> tuple[list, int]:
    """What is different after compiled rounds, and how many forms of a round were compiled."""
    # A CPU's own compiler would take minutes, and its code is not that of a GPU.
    torch.compile = partial(torch.compile, backend="aot_eager")
    torch.set_num_threads(1)
    data, different, searcher = PackedGraphs.open(folder), [], GpuSearcher()
    dataset = DeviceDataset(data, rt.device)
    counters.clear()
    for shape in SHAPES:
        fits = (data.num_nodes <= shape.nodes) & (data.dsatur_colors <= shape.colors)
        batch = dataset.batch(np.flatnonzero(fits)[: shape.graphs], shape)
        weights = first_weights() + 0.2 * torch.stack([batch.change, -batch.change])
        ends = []
        for one_round in (search.one_round, searcher._compiled):
            state, fixed = begin(weights, batch)
            for _ in range(40):
                state = one_round(state, fixed)
            ends.append(state)
        leaves = zip(*map(tree_leaves, ends), strict=True)
        different += [(shape, i) for i, pair in enumerate(leaves) if not torch.equal(*pair)]
    return different, counters["stats"]["unique_graphs"]


def broken(*_: object) -> None:
    raise InductorError(RuntimeError("ptxas failed\nat length"), None)


def wrong(module: torch.fx.GraphModule, _: list) -> object:
    return lambda *inputs: [0 * x for x in module(*inputs)]


SLOW = "searching uncompiled, about half as fast, on all ranks alike"
CANNOT = "rank 1: searches cannot be compiled: "


@pytest.mark.slow  # compiles
@pytest.mark.parametrize(
    ("backend", "mode", "said"),
    [
        ("eager", "compiled", ([], [])),
        (broken, "eager", ([SLOW], [CANNOT + "InductorError: RuntimeError: ptxas failed"])),
        (wrong, "eager", ([SLOW], [CANNOT + "only 0% of 4 searches find what uncompiled ones find"])),
    ],
)
def test_ranks_compile_where_all_can_and_else_tell_why(tiny_data: Path, backend: object, mode: str, said: tuple):
    """backend: of rank 1; said: on rank 0 and on rank 1."""
    results = tiny_runs.in_group(2, _checked, tiny_data, backend)
    assert [result["said"] for result in results] == list(said)
    for result in results:
        assert [rank["searches"] for rank in result["checks"]] == [mode] * 2 and math.isfinite(result["gap"])
        assert {[*rank["milliseconds_per_round"]][-1] for rank in result["checks"]} == {mode}


NO_GPU = {"synchronize": None, "reset_peak_memory_stats": None, "max_memory_reserved": 0, "mem_get_info": (0, 0)}


def _checked(rt: Runtime, folder: Path, backend: object) -> dict:
    """What the self-check chooses and says, and the gap in the step that follows."""
    torch.set_num_threads(1)
    for name, value in NO_GPU.items():
        setattr(torch.cuda, name, lambda value=value: value)
    torch.compile = partial(torch.compile, backend=backend if rt.rank == 1 else "eager")
    said, handler = [], logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger(self_check.__name__).addHandler(handler)
    settings = tiny_runs.settings(folder, Path("nowhere"), batch_size=8000)
    loader, learner = GraphLoader(settings, PackedGraphs.open(folder), rt), Learner(settings, rt)
    learner.search = GpuSearcher()
    checks = self_check.self_check(learner, loader, rt)
    learner.update(next(loader.starting_at(0)))
    return {"checks": checks, "said": said, "gap": learner.reduce()["gap"]}
