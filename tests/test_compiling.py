"""Compiled rounds give the numbers of uncompiled ones in one form for all sizes; without a compiler training works."""

import logging
import sysconfig
from pathlib import Path

import numpy as np
import pytest
import tiny_runs
from torch._dynamo.utils import counters

from gnn_training.data.packed import PackedGraphs
from gnn_training.distributed import Runtime
from gnn_training.jobs.train import train
from gnn_training.training.learner import Learner
from gnn_training.training.loader import GraphLoader, StepBatch
from gnn_training.training.sampler import Shape

SEVERAL = [Shape(4, 24, 8), Shape(4, 24, 3), Shape(2, 8, 5), Shape(7, 40, 8)]
SINGLETONS = [Shape(1, 24, 8), Shape(1, 40, 6)]


def start(folder: Path, rt: Runtime) -> tuple[Learner, GraphLoader]:
    settings = tiny_runs.settings(folder, Path("nowhere"))
    return Learner(settings, rt), GraphLoader(settings, PackedGraphs.open(folder), rt)


@pytest.mark.slow  # compiles for a minute
def test_compiled_rounds_take_the_same_steps_in_one_form_for_all_sizes(tiny_data: Path):
    (results,) = tiny_runs.in_group(1, _compared, tiny_data)
    for plain, compiled in results["reports"]:
        assert compiled == pytest.approx(plain, rel=1e-3, abs=1e-6)
    # One form with a gradient and one without; a singleton runs uncompiled.
    assert results["forms"] == {"warm-up": 2, "several": 2, "singletons": 2}
    assert results["seconds"] > 0 and results["changed"] == []


def _compared(rt: Runtime, folder: Path) -> dict:
    (plain, loader), (one, _) = start(folder, rt), start(folder, rt)
    before, reports = one.state(), []
    counters.clear()
    seconds, missing = one.compile(loader)
    assert missing is None
    changed, forms = tiny_runs.differences(before, one.state()), {"warm-up": counters["stats"]["unique_graphs"]}
    for kind, shapes in (("several", SEVERAL), ("singletons", SINGLETONS)):
        for shape in shapes:
            ids = np.flatnonzero(loader.dataset.data.num_nodes <= shape.nodes)[: shape.graphs]
            for no_gradient_rounds in (0, 3):
                both = []
                for each in (plain, one):
                    batch = loader.dataset.batch(ids, *loader.draw(ids, 0), shape)
                    each.update(StepBatch([batch], len(ids), 4, no_gradient_rounds))
                    both.append(each.reduce()[0])
                reports.append(both)
        forms[kind] = counters["stats"]["unique_graphs"]
    return {"seconds": seconds, "forms": forms, "reports": reports, "changed": changed}


@pytest.mark.parametrize("lacking", ["compiler", "headers"])
def test_without_a_compiler_training_continues_and_says_what_to_install(
    tiny_data: Path, tmp_path: Path, monkeypatch, caplog, lacking: str
):
    if lacking == "compiler":
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.delenv("CXX", raising=False)
        missing = "there is no C++ compiler (Debian: apt install g++)"
    else:
        monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
        missing = f"{tmp_path}/Python.h is missing (Debian: apt install python3-dev)"
    with caplog.at_level(logging.INFO):
        train(tiny_runs.settings(tiny_data, tmp_path / "run", compile=True, steps=3))
    lines = [record.getMessage() for record in caplog.records if "compiled" in record.getMessage()]
    assert lines == [f"training uncompiled, about half as fast: {missing}"]
    assert (tmp_path / "run" / "best.pt").exists()


def test_no_compile_compiles_nothing(tiny_data: Path, rt: Runtime):
    learner, loader = start(tiny_data, rt)
    counters.clear()
    learner.update(next(loader.starting_at(0)))
    assert counters["stats"]["unique_graphs"] == 0
