"""Compiled rounds find what plain ones find, in few forms for all sizes; without a compiler training tells why."""

import sysconfig
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import tiny_runs
import torch
from torch._dynamo.utils import counters

from gnn_training.data.packed import PackedGraphs
from gnn_training.distributed import Runtime
from gnn_training.model import search
from gnn_training.model.program import limits
from gnn_training.model.search import first_weights
from gnn_training.training.learner import Learner
from gnn_training.training.loader import DeviceDataset
from gnn_training.training.sampler import Shape

SHAPES = [Shape(4, 48, 15), Shape(4, 48, 14), Shape(2, 16, 7), Shape(7, 56, 15)]


@pytest.mark.slow  # compiles
def test_compiled_rounds_find_what_plain_ones_find_in_few_forms(tiny_data: Path):
    (results,) = tiny_runs.in_group(1, _compared, tiny_data)
    assert results["missing"] is None and results["different"] == [] and results["is_compiled"]
    assert 0 < results["forms"] <= 2  # the first round has views


def _compared(rt: Runtime, folder: Path) -> dict:
    # A CPU's own compiler would take minutes, and its code is not that of a GPU.
    torch.compile = partial(torch.compile, backend="aot_eager")
    data, different = PackedGraphs.open(folder), []
    plain, dataset = search.one_round, DeviceDataset(data, rt.device)
    learner = Learner(tiny_runs.settings(folder, Path("nowhere")), rt)
    missing, compiled = learner.compile(), search.one_round
    counters.clear()
    for shape in SHAPES:
        fits = (data.num_nodes <= shape.nodes) & (data.dsatur_colors <= shape.colors)
        batch = dataset.batch(np.flatnonzero(fits)[: shape.graphs], shape)
        task = search.Task(batch.first, batch.lower, 0 * batch.lower, torch.arange(len(batch.seeds)), batch.seeds)
        weights = search.split(search.first_weights() + 0.2 * batch.change)
        sizes = limits(torch.tensor(shape.nodes), torch.tensor(shape.colors))
        found = []
        for search.one_round in (plain, compiled):
            found.append(search.search(weights, batch.graphs, task, sizes, torch.tensor(40)))
        names = zip(search.Found._fields, *found, strict=True)
        different += [(shape, name) for name, mine, other in names if not torch.equal(mine, other)]
    forms = counters["stats"]["unique_graphs"]
    return {"missing": missing, "forms": forms, "different": different, "is_compiled": learner.is_compiled}


@pytest.mark.slow  # a process of its own
def test_a_compiler_that_fails_is_not_taken_for_one_that_works(tiny_data: Path):
    assert tiny_runs.in_group(1, _broken_compiler, tiny_data) == [(None, False, True)]


def _broken_compiler(rt: Runtime, folder: Path) -> tuple[str | None, bool, bool]:
    """What the machine lacks, whether rounds are compiled, and whether a step was taken all the same."""

    def broken(*_: object) -> None:
        raise RuntimeError("ptxas failed")

    torch.compile = partial(torch.compile, backend=broken)
    learner, data = Learner(tiny_runs.settings(folder, Path("nowhere")), rt), PackedGraphs.open(folder)
    missing = learner.compile()
    batch = DeviceDataset(data, rt.device).batch(np.arange(2), Shape(2, 64, 16))
    task = search.Task(batch.first, batch.lower, 0 * batch.lower, torch.arange(2), batch.seeds)
    sizes = limits(torch.tensor(64), torch.tensor(16))
    found = search.search(search.split(first_weights()[None]), batch.graphs, task, sizes, torch.tensor(3))
    return missing, learner.is_compiled, bool((found.fewest > 0).all())


@pytest.mark.parametrize("lacking", ["compiler", "headers"])
def test_without_a_compiler_rounds_stay_as_they_are_and_it_says_what_to_install(
    tiny_data: Path, rt: Runtime, tmp_path: Path, monkeypatch, lacking: str
):
    if lacking == "compiler":
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.delenv("CC", raising=False)
        missing = "there is no C compiler (Debian: apt install gcc)"
    else:
        monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
        missing = f"{tmp_path}/Python.h is missing (Debian: apt install python3-dev)"
    plain = search.one_round
    assert Learner(tiny_runs.settings(tiny_data, Path("nowhere")), rt).compile() == missing
    assert search.one_round is plain
