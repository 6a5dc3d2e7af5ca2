"""An exported file in ONNX Runtime: batches, options, limits of time and memory, and the shipped file."""

import os
import pickle
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import tiny_onnx
from dimacs import queens, read_solution, write_col
from onnxruntime import InferenceSession
from small_graphs import random_graph
from tiny_runs import ROOT, interrupted

from gnn_training import files
from gnn_training.contract import GRAPH_TYPES, SHIPPED_MODEL
from gnn_training.errors import UserError
from gnn_training.graph import Graph, num_colors
from gnn_training.jobs.color import color
from gnn_training.machine import num_cores
from gnn_training.network import crossover_weights
from gnn_training.onnx_program import golden, session
from gnn_training.onnx_program.session import Model, cached_model, needed_bytes
from gnn_training.settings import ColorSettings, EvaluateSettings, RunSettings

TRIANGLE = Graph.from_edges(3, [(0, 1), (1, 2), (0, 2)])
RING = Graph.from_edges(5, [(0, 1), (1, 2), (2, 3), (3, 4), (0, 4)])  # no clique proves that it needs 3 colors
SINGLETON = Graph.from_edges(1, [])
FOREVER = 10**9
ROWS = "color_logits = OneHot(color, depth, levels)"  # of tiny_onnx


def test_a_batch_gives_every_graph_its_own_rows(model: Model):
    prediction = model.predict([TRIANGLE, SINGLETON, TRIANGLE])
    assert [rows.shape for rows in prediction.logits] == [(3, 256), (1, 256), (3, 256)]
    assert [rows.argmax(1).tolist() for rows in prediction.logits] == [[0, 1, 2], [0], [1, 2, 0]]
    assert prediction.chromatic.shape == prediction.difficulty.shape == (3,)
    assert prediction.graph_type_logits.shape == (3, 8)


def test_options_left_out_take_the_defaults_of_the_file(model: Model):
    assert model.predict([TRIANGLE]).difficulty.tolist() == [2.0] == [model.steps]
    prediction = model.predict([TRIANGLE, TRIANGLE], num_colors=[2, 5], seed=1, steps=7)
    assert prediction.difficulty.tolist() == [7.0, 7.0]
    assert prediction.chromatic.tolist() == [2.0, 5.0]
    assert prediction.logits[1].argmax(1).tolist() == [4, 2, 0]


def test_the_shipped_file_takes_batches_and_every_option():
    real = Model(threads=1)
    assert real.path == SHIPPED_MODEL
    prediction = real.predict([TRIANGLE, SINGLETON], num_colors=[3, 0], seed=5, steps=4)
    assert (prediction.difficulty >= 0).all() and (prediction.difficulty <= 100).all()
    assert 2.9 < prediction.chromatic[0] < 3.1 and {*prediction.graph_types} <= {*GRAPH_TYPES}
    assert [len(set(rows.argmax(1))) for rows in prediction.logits] == [3, 1]
    assert real.predict([SINGLETON]).logits[0].shape == (1, 256)
    alone = [real.predict(graph).chromatic[0] for graph in (TRIANGLE, RING, TRIANGLE)]
    assert real.predict([TRIANGLE, RING, TRIANGLE]).chromatic == pytest.approx(alone, abs=0.01)
    start = time.monotonic()
    with pytest.raises(TimeoutError, match="takes longer than 0 s"):
        real.predict([RING], steps=FOREVER, seconds=0.1)
    assert time.monotonic() - start < 30
    assert len(real.predict([RING], seconds=1e300).logits) == 1  # more than a clock can count is no limit


def test_an_interrupt_stops_a_running_call(model: Model):
    with interrupted(0.1):
        model.predict([TRIANGLE], steps=FOREVER)


def forest(num_nodes: int, parent: Callable[[int], int]) -> Graph:
    """A ring of five nodes, so that no clique proves the coloring, and a tree."""
    ring = [(v, (v + 1) % 5) for v in range(5)]
    return Graph.from_edges(num_nodes, ring + [(v, parent(v)) for v in range(6, num_nodes)])


PATH, STAR, TREE = (lambda v: v - 1), (lambda _: 5), (lambda v: max(5, v // 2))
GRID = Graph.from_edges(2500, [(v, v + step) for v in range(2450) for step in (1, 50) if step > 1 or v % 50 < 49])
CLIQUE = [(u, v) for u in range(270) for v in range(u)]
FAMILIES = {
    "path": [forest(2000, PATH)], "paths": [forest(1500, PATH)] * 4, "long path": [forest(10_000, PATH)],
    "star": [forest(1000, STAR)], "large star": [forest(5000, STAR)], "tree": [forest(2048, TREE)], "grid": [GRID],
    "bipartite": [Graph.from_edges(1000, [(u, v) for u in range(500) for v in range(500, 1000)])],
    "complete": [Graph.from_edges(270, CLIQUE)],
    "clique and path": [Graph.from_edges(1000, CLIQUE + [(v, v + 1) for v in range(269, 999)])],
    "random": [random_graph(700, 0.5)], "small ones": [random_graph(60, 0.5)] * 40,
}  # fmt: skip
CALLS = """
import os, pickle, resource, sys
from gnn_training.graph import Graph, num_colors
from gnn_training.onnx_program.session import Model

peak = lambda: 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for graphs in pickle.load(sys.stdin.buffer):
    if not os.fork():  # a process for every call: a peak never goes down
        model = Model(threads=1)
        model.predict(Graph.from_edges(3, [(0, 1)]), steps=2)
        before = peak()
        model.predict(graphs, steps=3)
        print(peak() - before, flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.mark.slow  # a process for every call, to measure its memory
def test_the_estimate_of_memory_is_an_upper_bound_for_every_family_and_not_far_above():
    graphs = list(FAMILIES.values())
    run = subprocess.run([sys.executable, "-c", CALLS], cwd=ROOT, input=pickle.dumps(graphs), capture_output=True)
    measured = dict(zip(FAMILIES, map(int, run.stdout.split()), strict=True))
    for family, bytes_used in measured.items():
        assert bytes_used < needed_bytes(FAMILIES[family]) < 4 * bytes_used + 20_000_000, family


def test_graphs_too_large_for_the_memory_are_refused_before_the_call_and_large_sparse_ones_are_not(model, monkeypatch):
    monkeypatch.setattr(session, "available_bytes", lambda: 2**30)
    path = Graph.from_edges(50_000, [(v, v + 1) for v in range(49_999)])
    assert model.predict(path).logits[0].shape == (50_000, 256)
    for graphs in (Graph.from_edges(500_000, [(0, 1)]), random_graph(3000, 0.9), [random_graph(300, 0.5)] * 200):
        with pytest.raises(MemoryError, match="GiB"):
            model.predict(graphs)


def test_memory_that_runs_out_within_a_call_is_a_memory_error(tmp_path: Path):
    greedy = Model(tiny_onnx.write(tmp_path / "greedy.onnx", tiny_onnx.MODEL.replace("300, 300", "9000000, 9000000")))
    with pytest.raises(MemoryError, match="ONNX Runtime ran out of memory"):
        greedy.predict([TRIANGLE])


def test_without_a_number_of_threads_all_cores_work_and_a_pickled_model_opens_its_file_again(tiny_model: Path):
    model = pickle.loads(pickle.dumps(Model(tiny_model)))
    assert model.threads == Model(tiny_model, 1000).threads == num_cores() and model.path == tiny_model


def test_a_model_is_opened_again_after_its_file_has_changed(tiny_model: Path, tmp_path: Path):
    path = Path(shutil.copy(tiny_model, tmp_path))
    first = cached_model(path)
    assert cached_model(path) is first
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    assert cached_model(path) is not first


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, r"model.onnx: cannot be read \(no such file or directory\); name a file"),
        (b"\x08\x07", "model.onnx is not a coloring network: its inputs are none instead of node_features, .*export"),
        (b"p edge 3 2", "model.onnx: is damaged .ValueError: it is no ONNX file or ends too early.; .*export"),
        (b"\xff" * 10**6, "model.onnx: is damaged .ValueError: it is no ONNX file or ends too early.; .*export"),
    ],
)
def test_a_file_that_is_not_onnx_is_refused_in_a_sentence(tmp_path: Path, content: bytes | None, sentence: str):
    if content is not None:
        (tmp_path / "model.onnx").write_bytes(content)
    with pytest.raises(UserError, match=sentence):
        Model(tmp_path / "model.onnx")


def test_a_part_of_a_file_is_no_model(tmp_path: Path):
    content, path = SHIPPED_MODEL.read_bytes(), tmp_path / "part.onnx"
    for length in range(0, len(content), 9973):
        path.write_bytes(content[:length])
        with pytest.raises(UserError, match="part.onnx( is not a coloring network|: is damaged)"):
            Model(path)


def test_the_metadata_are_those_that_onnx_reads_and_a_search_does_not_load_the_runtime(tiny_model, tmp_path: Path):
    for path in (tiny_model, SHIPPED_MODEL):
        assert Model(path).metadata == {entry.key: entry.value for entry in onnx.load(path).metadata_props}
    command = ["color", str(ROOT / "examples" / "queen8_8.col"), "--seconds", "0", "-o", "a.sol"]
    code = f"import sys, gnn_training.__main__ as a; sys.exit(a.main({command}) or 'onnxruntime' in sys.modules)"
    assert not subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}).returncode


def test_what_the_runtime_refuses_is_said_at_the_first_call(tmp_path: Path):
    model = onnx.parser.parse_model(tiny_onnx.MODEL)
    model.graph.node[0].op_type = "Unheard"
    onnx.save(model, tmp_path / "other.onnx")
    with pytest.raises(UserError, match="other.onnx: ONNX Runtime .* refuses it .*Unheard.*export"):
        Model(tmp_path / "other.onnx").predict([TRIANGLE])


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        *((name, "foreign", " is not a coloring network: its .*foreign") for name in ("node_features", "seed", "chr")),
        ('"steps": "2", ', "", ": is damaged .KeyError: 'steps'.; name a file written by"),
        *(('"steps": "2"', f'"steps": "{steps}"', ": is damaged .ValueError: ") for steps in ("", "-1", "9" * 5000)),
        *(("[0, ", rule, ": is damaged .[A-Za-z]*Error: ") for rule in ("[", "[NaN, ", "[1e9, ", "[0, [0], ", "0, ")),
        (r"\"out\"", r"\"in\"", ": is damaged .KeyError: 'out'.; name a file written by"),
        (tiny_onnx.CROSSOVER, "[0]", ": is damaged .TypeError: "),
        (r"\"out\": [0.0]", r"\"out\": [0.0, 0.0]",
         r": is damaged .ValueError: first of crossover has shape \(10, 1\)"),
        (r"\"direct\": [0.0, ", r"\"direct\": [", r": is damaged .ValueError: direct of crossover has shape \(9,\)"),
        *((r"\"out\": [0.0]", rf"\"out\": [{x}]", ": is damaged .ValueError: out of") for x in ("NaN", "-1e7")),
    ],
)  # fmt: skip
def test_a_model_with_other_tensors_or_other_steps_is_refused(tmp_path: Path, old: str, new: str, sentence: str):
    path = tiny_onnx.write(tmp_path / "other.onnx", tiny_onnx.MODEL.replace(old, new))
    with pytest.raises(UserError, match=f"other.onnx{sentence}"):
        Model(path)


def test_a_file_of_an_older_version_colors_by_size_and_says_so_once(tmp_path: Path, caplog):
    text = tiny_onnx.MODEL.replace(f', "crossover": "{tiny_onnx.CROSSOVER}"', "")
    path = tiny_onnx.write(tmp_path / "old.onnx", text)
    with caplog.at_level("INFO"):
        old, again = Model(path), Model(path)
    said = "has no weights of crossover, so children take the largest classes; export it again"
    assert caplog.messages == [f"{path}: {said}"]
    for part, expected in zip(old.crossover, crossover_weights.zero_weights(), strict=True):
        assert np.array_equal(part, expected)
    assert again.crossover is old.crossover


def test_predictions_that_are_not_finite_are_refused(tmp_path: Path):
    text = tiny_onnx.MODEL.replace("= Expand(count, B)", "= Expand(low, B)")
    text = text.replace("count = ", "low = Log(nothing)\n count = ")
    with pytest.raises(UserError, match="low.onnx is not a coloring network: its predictions are not finite"):
        Model(tiny_onnx.write(tmp_path / "low.onnx", text)).predict([TRIANGLE])


def test_constants_that_take_minutes_are_computed_in_a_call_which_ends_in_time(tmp_path: Path):
    products = "\n".join(f"p{i + 1} = MatMul(p{i}, p{i})" for i in range(400))  # of 0.1 seconds each
    chain = f"wide = Constant<value_ints = [1500, 1500]>()\n p0 = ConstantOfShape(wide)\n {products}\n"
    sum_of = "rest = ReduceSum<keepdims = 0>"
    text = tiny_onnx.MODEL.replace(f"{sum_of}(worn)", f"{chain} {sum_of}(p400)")
    started = time.monotonic()
    model = Model(tiny_onnx.write(tmp_path / "constants.onnx", text), threads=1)
    with pytest.raises(TimeoutError):
        model.predict([TRIANGLE], seconds=1)
    assert time.monotonic() - started < 30


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (ROWS, f"rows{ROWS[12:]}\n color_logits = ReduceMax<keepdims = 0>(rows)"),
        (ROWS, f"rows{ROWS[12:]}\n color_logits = Cast<to = 11>(rows)"),
        (ROWS, "color_logits = OneHot(k, depth, levels)"),
        ("eight = {8}", "eight = {7}"),
        ("chromatic = Cast<to = 1>(k)", "single = Cast<to = 1>(k)\n chromatic = Unsqueeze(single, one_row)"),
        ("place = Mul(node, factor)", "pair = Constant<value_ints = [1, 2]>()\n place = Mul(node, pair)"),
    ],
    ids=["scalar", "double", "too few rows", "seven types", "a column", "a call that fails"],
)
def test_a_model_with_other_answers_is_refused(tmp_path: Path, old: str, new: str):
    text = re.sub(r"=> \(.*difficulty\)", "=> (UNTYPED)", tiny_onnx.MODEL.replace(old, new))
    kind = "double" if "11" in new else "float"
    outputs = f"{kind} color_logits, float chromatic, float graph_type_logits, float difficulty"
    model = onnx.parser.parse_model(text.replace("UNTYPED", outputs))
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    onnx.save(model, tmp_path / "other.onnx")
    with pytest.raises(UserError, match=r"other.onnx(: a call fails| is not a coloring network: it answers)"):
        Model(tmp_path / "other.onnx").predict([TRIANGLE, RING])


def test_the_report_is_about_the_shipped_file():
    checksum = files.checksums({SHIPPED_MODEL.name: SHIPPED_MODEL.read_bytes()}).split()[0]
    assert checksum in (ROOT / "models" / "REPORT.md").read_text()


def test_color_and_evaluate_take_the_shipped_file_when_no_model_is_named_and_no_job_writes_there(tmp_path: Path):
    assert EvaluateSettings(graphs=tmp_path).model == str(SHIPPED_MODEL)
    assert RunSettings().models.resolve() != SHIPPED_MODEL.parent
    assert num_colors(read_solution(*color(ColorSettings(graphs=(write_col(tmp_path, queens(5, 5)),))))) == 5


@pytest.fixture(scope="module")
def shipped() -> InferenceSession:
    return golden.session(SHIPPED_MODEL)


@pytest.mark.parametrize(
    "wrong",
    [
        {"edge_index": [[0, 1], [1, -1]]}, {"edge_index": [[0, 1], [1, -(2**63)]]}, {"edge_index": [[0, 1], [1, 5]]},
        {"batch": [0, 0, 1, 1, 0]}, {"batch": [-1, 0, 0, 0, 0]}, {"batch": [-1] * 5}, {"batch": [0, 0, 0, 0, 10**6]},
        {"batch": [0, 0, 0, 0, 2**63 - 1]}, {"batch": []}, {"seed": []}, {"seed": [1, 2]}, {"steps": []},
        {"num_colors": []},
    ],
)  # fmt: skip
def test_a_wrong_input_is_an_error_and_not_an_answer(wrong: dict[str, list], shipped: InferenceSession):
    right = {"edge_index": [[0, 1, 2], [1, 2, 0]], "batch": [0, 0, 0, 1, 1], "steps": 10}
    with pytest.raises(Exception, match="ONNXRuntimeError"):
        shipped.run(None, golden.feeds(**right | wrong))


def test_numbers_that_the_batch_leaves_out_cost_nothing_and_have_predictions_of_zero(shipped: InferenceSession):
    edge_index, batch = np.array([[0, 1, 2, 3], [1, 2, 0, 4]]), np.array([0, 0, 0, 1, 1])
    dense = shipped.run(None, golden.feeds(edge_index, batch, num_colors=[2, 1]))
    sparse = shipped.run(None, golden.feeds(edge_index, 5 * batch + 3, num_colors=[2] * 8 + [1]))
    assert np.array_equal(dense[0], sparse[0])
    for alone, among in zip(dense[1:], sparse[1:], strict=True):
        assert np.array_equal(among[[3, 8]], alone)
        assert len(among) == 9 and not among[[0, 1, 2, 4, 5, 6, 7]].any()
    started = time.process_time()
    last = shipped.run(None, golden.feeds(edge_index, 999_999 * batch))
    assert time.process_time() - started < 5
    assert np.array_equal(last[0], dense[0])
