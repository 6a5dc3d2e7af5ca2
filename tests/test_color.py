"""The coloring job: any graph, a time budget, Ctrl-C, and places that will not do."""

import signal
import time
from pathlib import Path

import numpy as np
import pytest
import tiny_onnx
from boards import read_solution, write_col

from gnn_training import machine
from gnn_training.coloring import count_conflicts_and_colors, num_colors, read_dimacs_pairs
from gnn_training.contract import MODEL_FILE
from gnn_training.errors import UserError
from gnn_training.graph import Graph
from gnn_training.jobs import color as job
from gnn_training.jobs.color import color
from gnn_training.settings import ColorSettings

pytestmark = pytest.mark.usefixtures("compiled")


@pytest.fixture
def hard(tmp_path: Path) -> Path:
    """A random graph on which no clique proves a coloring best, so that a search never stops early."""
    edges = np.argwhere(np.triu(np.random.default_rng(3).random((60, 60)) < 0.5, 1)).tolist()
    return write_col(tmp_path, Graph.from_edges(60, edges, "hard"))


def run(graph: Path, model: Path, seconds: float = 0.2, **settings) -> np.ndarray:
    """Color, check with independent code, and return the colors."""
    out = color(ColorSettings(graph=graph, model=model, seconds=seconds, threads=1, **settings))
    colors = read_solution(out)
    assert count_conflicts_and_colors(read_dimacs_pairs(graph), colors.tolist()) == (0, num_colors(colors))
    return colors


@pytest.mark.parametrize(
    ("num_nodes", "edges", "expected"),
    [
        (1, [], 1),
        (5, [], 1),
        (7, [(0, 1), (1, 2), (2, 0), (4, 5)], 3),
        (6, [(u, v) for u in range(6) for v in range(u)], 6),
    ],
    ids=["one node", "edgeless", "disconnected", "complete"],
)
def test_small_and_odd_graphs_get_their_fewest_colors(tmp_path: Path, tiny_model: Path, num_nodes, edges, expected):
    start = time.monotonic()
    graph = write_col(tmp_path, Graph.from_edges(num_nodes, edges, "graph"))
    assert num_colors(run(graph, tiny_model, seconds=60)) == expected
    assert time.monotonic() - start < 30  # a clique of that size proves it: no need to use the time up


def test_a_file_of_the_real_exporter_colors(hard: Path, exported: Path, caplog):
    caplog.set_level("INFO")
    assert num_colors(run(hard, exported / MODEL_FILE, seconds=1)) <= 14
    assert "hard: one call colors it with" in caplog.text


def test_the_time_budget_is_kept(hard: Path, tiny_model: Path):
    start = time.monotonic()
    run(hard, tiny_model, seconds=1.0)
    assert 0.9 < time.monotonic() - start < 5


def test_no_seconds_still_give_a_proper_coloring(hard: Path, tiny_model: Path):
    assert len(run(hard, tiny_model, seconds=0)) == 60


def test_the_solution_stands_beside_the_graph_and_replaces_nothing(hard: Path, tiny_model: Path):
    run(hard, tiny_model)
    written = hard.with_suffix(".sol").read_text()
    assert written.startswith("s col ")
    with pytest.raises(UserError, match="hard.sol: is there already; name it with -o"):
        run(hard, tiny_model)
    run(hard, tiny_model, out=hard.with_suffix(".sol"))


def test_ctrl_c_writes_the_best_so_far(hard: Path, tiny_model: Path, caplog):
    previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 1.5)
    start = time.monotonic()
    try:
        run(hard, tiny_model, seconds=300)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert time.monotonic() - start < 60
    assert "interrupted, taking the best coloring so far" in caplog.text


def test_a_graph_too_large_for_the_network_is_colored_without_it_and_said_so(tmp_path: Path, tiny_model: Path, caplog):
    ring = [(i, (i + 1) % 100_000) for i in range(100_000)]
    graph = write_col(tmp_path, Graph.from_edges(100_000, ring, "ring"))
    assert num_colors(run(graph, tiny_model, seconds=10)) == 2
    assert "too large for the network and colored without it" in caplog.text


def test_a_graph_that_takes_the_network_too_long_is_colored_without_it_and_said_so(
    hard: Path, tmp_path: Path, monkeypatch, caplog
):
    slow = tiny_onnx.write(tmp_path / "slow.onnx", tiny_onnx.MODEL.replace("steps = {2}", "steps = {1000000000}"))
    monkeypatch.setattr(job, "GRACE", 0.1)
    run(hard, slow, seconds=0)
    assert "too large for the network and colored without it" in caplog.text
    assert "takes longer than 0 s" in caplog.text


def test_dsatur_is_left_out_where_it_would_take_longer_than_asked(tmp_path: Path, tiny_model: Path, caplog):
    caplog.set_level("INFO")
    ring = [(i, (i + 1) % 100_000) for i in range(100_000)]
    graph = write_col(tmp_path, Graph.from_edges(100_000, ring, "ring"))
    assert num_colors(run(graph, tiny_model, seconds=0.5)) <= 3
    assert "DSATUR would take 2 s and is left out" in caplog.text


def test_without_a_search_the_same_graph_gets_the_same_coloring(hard: Path, tiny_model: Path, tmp_path: Path):
    first, second = (run(hard, tiny_model, seconds=0, out=tmp_path / f"{name}.sol") for name in "ab")
    assert (first == second).all()


def test_a_place_in_no_folder_is_refused_before_any_work(hard: Path, tmp_path: Path):
    with pytest.raises(UserError, match="no place for a file"):
        run(hard, tmp_path / "never_opened.onnx", out=tmp_path / "nowhere" / "hard.sol")


@pytest.mark.parametrize("graph", [".", "none.col"])
def test_what_is_no_file_is_refused(graph: str, tiny_model: Path):
    with pytest.raises(UserError, match="is no file; name the file of one graph"):
        run(Path(graph), tiny_model)


def test_the_graph_itself_is_never_overwritten(hard: Path, tiny_model: Path):
    with pytest.raises(UserError, match="is the graph itself"):
        run(hard, tiny_model, out=hard)


def test_a_wrong_header_is_mentioned(tmp_path: Path, tiny_model: Path, caplog):
    graph = tmp_path / "lies.col"
    graph.write_text("p edge 3 99\ne 1 2\n")
    run(graph, tiny_model)
    assert "99" in caplog.text


def test_memory_left_is_the_less_of_machine_and_container(tmp_path: Path, monkeypatch):
    limit, used = tmp_path / "memory.max", tmp_path / "memory.current"
    used.write_text("1000\n")
    monkeypatch.setattr(memory, "CGROUPS", ((str(limit), str(used)),))
    limit.write_text("max\n")
    assert machine.available_bytes() > 1_000_000
    limit.write_text("4000\n")
    assert machine.available_bytes() == 3000
