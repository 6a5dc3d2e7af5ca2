"""The evaluation job: rows, tables, report, page, what it refuses, and the methods it compares with."""

import io
import json
import sys
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Lock

import networkx as nx
import numpy as np
import pytest
from checkout import flip_last_byte
from dimacs import queens, write_col
from fake_cuda import FakeCuda
from small_graphs import random_graph

from gnn_training.contract import SHIPPED_MODEL
from gnn_training.data import packed
from gnn_training.data.label import label
from gnn_training.errors import UserError
from gnn_training.graph import Graph, Instance
from gnn_training.graph_objects import as_graph
from gnn_training.jobs import evaluate as job
from gnn_training.jobs.evaluate import COMPARED_SECONDS, evaluate
from gnn_training.onnx_program.session import Model
from gnn_training.report import scores
from gnn_training.settings import EvaluateSettings

pytestmark = pytest.mark.usefixtures("compiled")
LARGE = replace(as_graph(nx.gnp_random_graph(120, 0.5, seed=1)), name="large")
GRAPHS = [
    replace(as_graph(nx.gnp_random_graph(40, 0.5, seed=1)), name="random"),
    replace(as_graph(nx.mycielski_graph(4)), name="mycielski"),
    Graph.from_edges(1, [], "single"),
    Graph.from_edges(6, [], "edgeless"),
    Graph.from_edges(7, [(0, 1), (1, 2), (0, 2), (4, 5)], "parts"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return [write_col(tmp_path / "graphs", graph).parent for graph in GRAPHS][0]


def run(path: Path, model: Path, **settings) -> dict:
    """The report of an evaluation, which stands beside the graphs."""
    report = path.parent / "report.json"
    evaluate(EvaluateSettings(**{"graphs": path, "model": model, "report": report, "threads": 1} | settings))
    return json.loads(report.read_text())


def by_name(report: dict) -> dict[str, dict]:
    return {row["name"]: row for row in report["graphs"]}


def test_the_report_holds_a_row_for_every_graph_and_a_picture_and_tensorboard_gets_both(folder: Path, tiny_model: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    curves = folder.parent / "tensorboard"  # as beside a training
    curves.mkdir()
    report = run(folder, tiny_model)
    rows = by_name(report)
    assert rows.keys() == {graph.name for graph in GRAPHS}
    assert rows["single"]["colors"] == {"dsatur": 1, "one_call": 1}
    assert (rows["edgeless"]["colors"]["one_call"], rows["edgeless"]["conflicts"]) == (1, 0)
    assert rows["parts"]["colors"] == {"dsatur": 3, "one_call": 3} and rows["parts"]["clique"] == 3
    assert rows["random"]["conflicts"] > 0
    assert "search" not in rows["random"]["colors"] and "search" not in report["summary"]["methods"]
    assert report["summary"]["with_best_known"] == 0 and report["summary"]["chromatic_mae"] is None
    assert len(report["model"]["sha256"]) == 64 and report["model"]["metadata"]["steps"] == "2"
    assert report["settings"]["limit"] == 0 and report["versions"]["onnxruntime"]
    assert report["picture"]["graph"] == "mycielski"  # the smallest connected one where colors are saved
    assert report["picture"]["colorings"].keys() == {"dsatur", "one_call"}
    events = EventAccumulator(str(curves)).Reload()
    text = events.Tensors("report/text_summary")[-1].tensor_proto.string_val[0].decode()
    assert "| DSATUR   |      5 |" in text and text.count("\n|--") == 1
    (image,) = events.Images("report")
    assert image.width > 1.9 * image.height  # two colorings side by side


def test_the_shipped_file_and_the_search_color_properly_and_stop_at_a_clique(folder: Path):
    report = run(folder, SHIPPED_MODEL, seconds=0.5)
    for row in report["graphs"]:
        assert row["conflicts"] == 0
        assert row["clique"] <= row["colors"]["search"] <= row["colors"]["dsatur"]
        assert row["clique"] <= row["colors"]["one_call"] <= row["colors"]["dsatur"]
        assert row["clique"] - 1 <= row["chromatic"] <= row["colors"]["dsatur"] + 1
    assert report["model"]["metadata"]["model_version"]
    rows = by_name(report)
    assert rows["random"]["seconds"]["search"] < 3 and rows["single"]["seconds"]["search"] < 0.3


def test_tabucol_and_the_search_have_the_seconds_and_their_progress_is_noted(tmp_path: Path, tiny_model: Path, capsys):
    report = run(write_col(tmp_path, LARGE), tiny_model, seconds=1, tabucol=True)
    row = report["graphs"][0]
    for method in ("search", "tabucol"):
        seconds, colors = zip(*row["progress"][method], strict=True)
        assert list(seconds) == sorted(seconds) and 0 < seconds[0] <= seconds[-1] <= row["seconds"][method]
        assert list(colors) == sorted(set(colors), reverse=True) and colors[-1] == row["colors"][method]
        assert len(colors) > 1
    assert 0.9 < row["seconds"]["tabucol"] < 5
    assert row["clique"] < row["colors"]["search"] <= row["colors"]["tabucol"] + 1 < row["colors"]["dsatur"]
    assert report["summary"]["methods"]["tabucol"]["graphs"] == 1 and "| TabuCol " in capsys.readouterr().out


def test_tabucol_has_the_seconds_of_the_rules_and_again_those_of_a_call(folder: Path, monkeypatch):
    predict = Model.predict
    monkeypatch.setattr(Model, "predict", lambda *args, **options: time.sleep(0.5) or predict(*args, **options))
    report = run(folder / "random.col", SHIPPED_MODEL, tabucol=True)
    [row] = report["graphs"]
    for method in ("rule", "untrained", "tabucol"):
        assert COMPARED_SECONDS <= row["seconds"][method] < COMPARED_SECONDS + 1
    assert row["seconds"]["tabucol_call"] > row["seconds"]["one_call"] - 0.1 > 0.4
    assert report["verdict"].startswith("On 1 graphs with 0.2 s each, this file ") and "search" not in row["colors"]
    assert "shipped" not in row["colors"]  # which is the same
    assert row["clique"] < row["colors"]["tabucol"] <= row["colors"]["dsatur"]


def test_a_page_replaces_only_a_page(folder: Path, tiny_model: Path):
    page = folder / "report.html"
    page.write_text("<!doctype html><p>my notes")
    with pytest.raises(UserError, match=r"report.html: is not a page of `evaluate`, .*; name another --report"):
        run(folder / "single.col", tiny_model)
    assert "my notes" in page.read_text() and not (folder / "report.json").exists()
    page.unlink()
    for name in ("single", "parts"):
        run(folder / f"{name}.col", tiny_model)
        assert f"graphs/{name}.col --model" in page.read_text()


def test_best_known_numbers_come_from_the_csv_by_name(folder: Path, tiny_model: Path, tmp_path: Path):
    known = tmp_path / "known.csv"
    known.write_text("name,proven,best_known\nmycielski.col,yes,4\nrandom,no,\nelsewhere,yes,9\n")
    report = run(folder, tiny_model, best_known=known)
    numbers = {name: row["best_known"] for name, row in by_name(report).items()}
    assert numbers == {"mycielski": 4, "random": None, "single": None, "edgeless": None, "parts": None}
    assert report["summary"]["with_best_known"] == 1
    assert report["summary"]["chromatic_mae"] == 1.0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "known.csv: cannot be read"),
        ("", "line 0: .*; it needs columns"),
        ("best_known,name\n7\n", "line 2: "),
        ("name,best_known\nrandom,1_0\n", "line 2: '1_0' is not a number"),
        ('name,best_known\n"random,7\n', "line 2: unexpected end of data"),
        ("name,best_known\nother,7\n", "names none of the graphs, such as"),
    ],
)
def test_a_csv_that_does_not_fit_is_refused(folder: Path, tiny_model: Path, tmp_path: Path, content, message: str):
    known = tmp_path / "known.csv"
    if content is not None:
        known.write_text(content)
    with pytest.raises(UserError, match=message):
        run(folder, tiny_model, best_known=known)


def test_shares_of_q_coloring_stand_beside_those_of_published_solvers(tmp_path: Path, tiny_model: Path, capsys):
    report = run(tmp_path / "none", tiny_model, graphs=None, suite="q-coloring", limit=8, seconds=1)
    rows = report["graphs"]
    assert [row["best_known"] for row in rows] == [3, 3, 3, 3, 5, 5, 5, 5]
    solved = [row["colors"]["search"] <= row["best_known"] for row in rows]
    assert sum(solved) >= 6
    for row, done in zip(rows, solved, strict=True):  # a search ends with q colors and does not look for fewer
        assert not done or row["seconds"]["search"] - row["progress"]["search"][-1][0] < 0.5
    assert report["summary"]["methods"]["search"]["solved"] == sum(solved) / 8
    assert report["families"]["q = 3"]["published"]["focused Metropolis"] == 1.0
    shown = capsys.readouterr().out
    assert "| share solved " in shown and "| rPI-GNN |" in shown and "| q = 5, n = 256 |" in shown
    [page] = [file.read_text() for file in tmp_path.rglob("*.html")]
    assert "Share solved by family" in page and "coloring-gnn evaluate --suite q-coloring --model " in page


def test_suite_dimacs_knows_the_best_numbers_of_well_known_files_and_needs_one(folder: Path, tiny_model: Path):
    with pytest.raises(UserError, match=r"dimacs.csv names none of the graphs, such as 'edgeless': set best_known"):
        run(folder, tiny_model, suite="dimacs")
    for graph in (queens(5, 5), queens(6, 6)):
        write_col(folder, graph)
    rows = by_name(run(folder, tiny_model, suite="dimacs"))
    assert [rows[name]["best_known"] for name in ("queen5_5", "queen6_6", "random")] == [5, 7, None]


@pytest.fixture
def packed_folder(tmp_path: Path) -> Path:
    """Two families, every graph for validation but the last."""
    families = ("er", "small")
    instances = [Instance(graph, family=families[graph.num_nodes < 30]) for graph in GRAPHS]
    tensors = packed.join([packed.row(each, label(each, 100, 1.0, 0), families) for each in instances])
    tensors["split"] = (np.arange(len(instances)) < 4).astype(np.uint8)
    folder = tmp_path / "packed"
    folder.mkdir()
    packed.write(folder, tensors, families, {})
    return folder


def test_validation_graphs_of_a_packed_folder_are_summed_up_by_family(
    packed_folder: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    report = run(packed_folder, tiny_model)
    assert [row["name"] for row in report["graphs"]] == ["random", "mycielski", "single", "edgeless"]
    assert [row["best_known"] is None for row in report["graphs"]] == [False] * 4
    assert {family: summary["graphs"] for family, summary in report["families"].items()} == {
        "er": 1, "small": 3, "1 to 99 nodes": 4
    }  # fmt: skip
    shown = capsys.readouterr().out
    assert "| mean gap " in shown and "| small         |" in shown and "| one call |" in shown
    assert "search" not in shown
    # A limit takes graphs from everywhere.
    assert [row["name"] for row in run(packed_folder, tiny_model, limit=2)["graphs"]] == ["random", "edgeless"]
    assert len(run(packed_folder, tiny_model, limit=99)["graphs"]) == 4
    # Those that have chosen the weights are left out where others remain; the calls are spread over the rest.
    few = run(packed_folder, tiny_model, exclude_selection=2)
    assert len(few["graphs"]) == 4 and "so its scores are too good" in few["note"] and not report["note"]
    monkeypatch.setattr(job, "MIN_OTHERS", 2)
    rows = run(packed_folder, tiny_model, exclude_selection=2, calls=1)["graphs"]
    assert [(row["name"], "one_call" in row["colors"]) for row in rows] == [("mycielski", True), ("single", False)]
    assert len(run(packed_folder, tiny_model, exclude_selection=0)["graphs"]) == 4  # all have


def test_labels_of_packed_graphs_are_lowered_to_what_a_method_finds(packed_folder: Path, tiny_model: Path):
    tensors, _ = packed.read_columns(packed_folder / packed.GRAPHS_FILE)
    worse = {name: np.array(tensor) for name, tensor in tensors.items()} | {"num_colors": np.full(5, 30, np.int16)}
    packed.write(packed_folder, worse, ("planted", "small"), {})
    report = run(packed_folder, tiny_model, tabucol=True)
    for row in report["graphs"]:
        assert row["best_known"] == min(row["colors"].values()) < 30
    # The planted coloring is in no sum, but the verdict has it.
    assert report["summary"]["graphs"] == 3 and report["families"]["planted coloring"]["graphs"] == 1
    assert report["verdict"].startswith("On 4 graphs ")
    known = packed_folder.parent / "known.csv"
    known.write_text("name,best_known\nmycielski,9\n")
    rows = by_name(run(packed_folder, tiny_model, best_known=known))
    assert rows["mycielski"]["best_known"] == 9  # as it is published: fewer colors are news


def test_the_picture_has_the_colorings_of_a_connected_graph_where_colors_are_saved(folder: Path, tiny_model: Path):
    write_col(folder, LARGE)
    report = run(folder, SHIPPED_MODEL, tabucol=True, calls=1)
    drawn = by_name(report)[report["picture"]["graph"]]
    assert drawn["colors"]["rule"] < drawn["colors"]["dsatur"]
    for method, colors in report["picture"]["colorings"].items():
        assert len(set(colors)) == drawn["colors"][method]
    assert run(folder / "single.col", tiny_model)["picture"] is None
    assert run(folder / "parts.col", tiny_model)["picture"] is None


def test_damaged_packed_graphs_are_refused_and_without_validation_all_are_scored(packed_folder, tiny_model, caplog):
    path = packed_folder / packed.GRAPHS_FILE
    tensors, _ = packed.read_columns(path)
    kept = {name: np.array(tensor) for name, tensor in tensors.items()}
    flip_last_byte(path)
    with pytest.raises(UserError, match="differs from its manifest"):
        run(packed_folder, tiny_model)
    packed.write(packed_folder, kept | {"split": np.zeros(5, dtype=np.uint8)}, ("er", "small"), {})
    assert len(run(packed_folder, tiny_model)["graphs"]) == 5
    assert f"{packed_folder}: no validation graphs: the scores are those of all graphs" in caplog.text


def test_an_improper_coloring_ends_the_job_and_names_the_graph(folder: Path, tiny_model: Path, monkeypatch):
    monkeypatch.setattr(job.kernels, "dsatur", lambda offsets, _: np.zeros(len(offsets) - 1, np.int64))
    with pytest.raises(RuntimeError, match="mycielski: the coloring of DSATUR is not proper"):
        run(folder, tiny_model)
    assert not (folder.parent / "report.json").exists()


def test_a_graph_too_large_for_the_network_is_a_row_without_its_colors(folder, tiny_model, monkeypatch):
    monkeypatch.setattr("gnn_training.onnx_program.session.available_bytes", lambda: 20_030_000)
    report = run(folder, tiny_model)
    rows, methods = by_name(report), report["summary"]["methods"]
    assert list(rows["random"]["colors"]) == ["dsatur"] and rows["random"]["colors"]["dsatur"] > 0
    assert rows["single"]["colors"] == {"dsatur": 1, "one_call": 1}
    assert methods["one_call"]["graphs"] < methods["dsatur"]["graphs"]


def test_the_report_is_written_although_nobody_reads_the_tables(folder: Path, tiny_model: Path, monkeypatch):
    class Closed(io.StringIO):
        def write(self, _text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Closed())
    with pytest.raises(BrokenPipeError):
        run(folder / "single.col", tiny_model)
    assert (folder / "report.json").exists()


def test_a_report_has_a_folder_and_never_replaces_what_is_read(folder: Path, packed_folder: Path, tiny_model: Path):
    with pytest.raises(UserError, match="nowhere/x: its folder does not exist"):
        run(folder, folder / "never_opened.onnx", report=folder / "nowhere" / "x")
    known = folder.parent / "known.csv"
    known.write_text("name,best_known\nrandom,9\n")
    read = [(folder, folder / "parts.col"), (folder, tiny_model), (folder, known)]
    for graphs, out in [*read, (packed_folder, packed_folder / packed.MANIFEST_FILE)]:
        with pytest.raises(UserError, match=f"{out.name}: is the same file as"):
            run(graphs, tiny_model, report=out, best_known=known)
    assert not (folder.parent / "report.json").exists()


def test_an_archive_among_the_graphs_is_refused(folder: Path, tiny_model: Path):
    (folder / "more.tar.gz").write_bytes(b"")
    with pytest.raises(UserError, match="more.tar.gz is an archive: unpack it"):
        run(folder, tiny_model)


def test_many_graphs_are_summed_up_on_the_screen(folder: Path, tiny_model: Path, monkeypatch, capsys):
    monkeypatch.setattr(scores, "SHOWN_GRAPHS", 2)
    run(folder, tiny_model)
    shown = capsys.readouterr().out
    assert "mycielski" not in shown and "DSATUR" in shown


def test_a_graph_shares_its_gpu_with_no_other_and_the_report_names_it(tmp_path: Path, tiny_model, monkeypatch, capsys):
    """GPUs that find nothing, and count the graphs that they have at the same time."""
    lock, has, most = Lock(), Counter[int](), Counter[int | str]()

    def keep(worker, gpu: int) -> None:
        with lock:
            has[gpu] += 1
            most[gpu], most["all"] = max(most[gpu], has[gpu]), max(most["all"], has.total())
        while not worker.search.is_over:
            time.sleep(0.01)
        with lock:
            has[gpu] -= 1

    monkeypatch.setattr(job.portfolio, "on_gpus", lambda gpus: [partial(keep, gpu=gpu) for gpu in gpus])
    monkeypatch.setattr(job, "chosen_gpus", lambda which: {"1,3": (1, 3), "none": ()}[which])
    monkeypatch.setattr(job, "describe_gpu", lambda gpu: f"H{gpu}00")
    for name in "abcde":
        write_col(tmp_path / "graphs", queens(3, 3) if name == "b" else LARGE, name)  # b gives its GPU back at once
    report = run(tmp_path / "graphs", tiny_model, gpus="1,3", seconds=0.6)
    assert most == {1: 1, 3: 1, "all": 2}
    rows, note = by_name(report), report["note"]
    assert {row["gpu"] for row in rows.values()} == {1, 3} and report["machine"]["gpus"] == {"1": "H100", "3": "H300"}
    assert all(row["clique"] <= row["colors"]["search"] <= row["colors"]["dsatur"] for row in rows.values())
    assert note.startswith(
        "Search had 1 thread and 0.6 s for a graph, and one of these beside: GPU 1 (H100), GPU 3 (H300); its"
    )
    shown, page = capsys.readouterr().out, (tmp_path / "report.html").read_text()
    assert note in shown and note in page and "| gpu |" in shown and "<th>gpu</th>" in page
    note = run(tmp_path / "graphs" / "b.col", tiny_model, seconds=0.1)["note"]
    assert note == "Search had 1 thread and 0.1 s for a graph." and "gpu" not in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_gpus_that_fail_are_told_once_for_each_graph_which_the_cores_color(gpus: FakeCuda):
    """The pretended GPUs return zeros: one color for all nodes, and no conflict. One graph has two parts to search."""
    hard, folder, report = random_graph(120, 0.5, 3), gpus.folder / "graphs", gpus.folder / "report.json"
    twice = Graph.from_edges(240, np.concatenate([hard.edges, hard.edges + 120]), "twice")
    for name, graph in (("a", hard), ("b", hard), ("twice", twice)):
        write_col(folder, graph, name)
    flags = ("--gpus", "all", "--seconds", 2, "--report", report)
    said = gpus.run("-m", "gnn_training", "evaluate", folder, *flags, gpus=2)
    made = json.loads(report.read_text())
    rows = by_name(made)
    assert all(row["clique"] < row["colors"]["search"] < row["colors"]["dsatur"] for row in rows.values())
    for gpu in (0, 1):
        there = [row for row in rows.values() if row["gpu"] == gpu]
        assert there and said.count(f"GPU {gpu} colors no more, the cores go on: it returns a coloring") == len(there)
        assert f"GPU {gpu} (NVIDIA B200, 178 GiB" in made["note"]
    [log] = gpus.logs()
    assert all(f"device {gpu} launches " in log for gpu in (0, 1)) and "problem" not in log
