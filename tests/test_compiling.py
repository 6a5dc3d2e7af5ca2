"""Compiled rounds: the numbers of the uncompiled ones in one form for all sizes, and training without a compiler."""

import logging
import sysconfig
from pathlib import Path

import numpy as np
import pytest
import tiny_runs
import torch
import torch._dynamo
from torch._dynamo.utils import counters

from gnn_training.data.packed import PackedGraphs
from gnn_training.distributed import Runtime, join
from gnn_training.graph import Graph
from gnn_training.jobs.train import train
from gnn_training.model.graphs import SPARSE_FROM, SparseGraph, batch_of
from gnn_training.training.learner import Learner, as_written, obstacle
from gnn_training.training.sampler import Shape

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
TRIANGLE = Graph.from_edges(3, [(0, 1), (1, 2), (0, 2)])
SEVERAL = [Shape(4, 24, 8), Shape(4, 24, 3), Shape(2, 8, 5), Shape(7, 40, 8)]
ALONE = [Shape(1, 24, 8), Shape(1, 40, 6)]


def start(folder: Path, rt: Runtime) -> Learner:
    data = PackedGraphs.open(folder)
    return Learner(tiny_runs.settings(folder, Path("nowhere")), data, rt)


def gradient_of(
    one: Learner, ids: list[int], shape: Shape, no_gradient_rounds: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradient and terms of a batch of these graphs."""
    one.shared.zero_()
    one._differentiate(one._collate(np.array(ids), shape), no_gradient_rounds, 4, len(ids))
    return one.gradient.clone(), one.terms.clone()


@pytest.mark.slow
def test_compiled_rounds_give_the_same_numbers_in_one_form_for_all_sizes(tiny_data: Path):
    (results,) = tiny_runs.in_group(1, _compared, tiny_data)
    for plain, compiled in results["numbers"]:
        for a, b in zip(plain, compiled, strict=True):
            assert np.linalg.norm(b - a) <= 1e-4 * np.linalg.norm(a)
    # One with a gradient and one without; a graph that stands alone runs as it is written.
    assert results["forms"] == {"rehearsed": 2, "several": 2, "alone": 2}
    assert results["seconds"] > 0 and results["changed"] == []


def _compared(rt: Runtime, folder: Path) -> dict:
    plain, one = start(folder, rt), start(folder, rt)
    before, numbers = one.state(), []
    counters.clear()
    seconds, missing = one.compile()
    assert missing is None
    changed, forms = tiny_runs.differences(before, one.state()), {"rehearsed": counters["stats"]["unique_graphs"]}
    for kind, shapes in (("several", SEVERAL), ("alone", ALONE)):
        for shape in shapes:
            ids = np.flatnonzero(plain.data.num_nodes <= shape.nodes)[: shape.graphs].tolist()
            for no_gradient_rounds in (0, 3):
                both = (gradient_of(each, ids, shape, no_gradient_rounds) for each in (plain, one))
                numbers.append([[x.numpy() for x in results] for results in both])
        forms[kind] = counters["stats"]["unique_graphs"]
    return {"seconds": seconds, "forms": forms, "numbers": numbers, "changed": changed}


def test_without_a_compiler_training_goes_on_and_says_what_to_install(
    tiny_data: Path, tmp_path: Path, monkeypatch, caplog
):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert "no C++ compiler (Debian: apt install g++)" in obstacle(CPU)
    with caplog.at_level(logging.INFO):
        train(tiny_runs.settings(tiny_data, tmp_path / "run", compile=True, steps=3))
    said = [record.getMessage() for record in caplog.records if "compile" in record.getMessage()]
    assert len(said) == 1 and said[0].startswith("trains uncompiled, about half as fast: there is no C++ compiler")
    assert (tmp_path / "run" / "best.pt").exists()


def test_without_the_headers_of_python_nothing_is_compiled(tmp_path: Path, monkeypatch):
    assert obstacle(CPU) is None
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    assert obstacle(CPU) == f"{tmp_path}/Python.h is missing (Debian: apt install python3-dev)"
    (tmp_path / "Python.h").touch()
    assert obstacle(CPU) is None


@pytest.mark.parametrize(
    ("device", "compiler", "enough"),
    [(CPU, "g++", True), (CPU, "gcc", False), (CUDA, "gcc", True), (CUDA, "g++", False)],
)
def test_a_cpu_needs_a_compiler_of_cpp_and_a_gpu_one_of_c(tmp_path: Path, monkeypatch, device, compiler, enough: bool):
    (tmp_path / compiler).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    for variable in ("CC", "CXX"):
        monkeypatch.delenv(variable, raising=False)
    assert (obstacle(device) is None) == enough


def test_a_graph_that_stands_alone_runs_as_it_is_written_and_others_compiled():
    compiled = torch.compile(lambda x: torch.compiler.is_compiling(), backend="eager")
    ring = torch.arange(SPARSE_FROM)
    alone, others = SparseGraph(torch.stack([ring, ring.roll(1)]), SPARSE_FROM), batch_of([TRIANGLE, TRIANGLE])
    for graphs, expected in ((others, True), (alone, False), (batch_of([TRIANGLE]), False), (others, True)):
        with as_written(graphs):
            assert compiled(torch.ones(1)) == expected


def test_no_compile_compiles_nothing(tiny_data: Path, monkeypatch):
    with join("cpu") as rt:
        one = start(tiny_data, rt)
        counters.clear()
        one.update()
    assert counters["stats"]["unique_graphs"] == 0
