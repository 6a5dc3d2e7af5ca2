"""The coloring job: any graph, a time budget, Ctrl-C, and places that cannot be used."""

import csv
import json
import logging
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from dimacs import assert_proper, read_solution, write_col
from hypothesis import given
from hypothesis import strategies as st
from small_graphs import random_graph
from tiny_runs import ROOT, start_command, wait_for

import gnn_training
from gnn_training.__main__ import main
from gnn_training.data.sources import read
from gnn_training.errors import StorageError, UserError
from gnn_training.graph import Graph, is_proper, num_colors
from gnn_training.jobs import color as job
from gnn_training.jobs.color import color, write_solution
from gnn_training.onnx_program.session import Model
from gnn_training.report.page import draw
from gnn_training.settings import ColorSettings

pytestmark = pytest.mark.usefixtures("compiled")
PROPER = "Algebra,0\nBiology,1\nChemistry,2\nDrama,0\n"


@pytest.fixture
def hard(tmp_path: Path) -> Path:
    """A random graph on which nothing proves a coloring optimal, so that a search never stops early."""
    return write_col(tmp_path, random_graph(120, 0.5, 3), "hard")


def run(graph: Path, model: Path, seconds: float = 0.2, **settings) -> np.ndarray:
    """Color, check with independent code, and return the colors."""
    [out] = color(ColorSettings(graphs=(graph,), model=model, seconds=seconds, threads=1, **settings))
    colors = read_solution(out)
    assert_proper(graph, colors)
    return colors


def test_the_solution_is_written_beside_the_graph_and_replaces_nothing(hard: Path, tiny_model: Path):
    run(hard, tiny_model)
    written = hard.with_suffix(".sol").read_text()
    assert written.startswith("s col ")
    with pytest.raises(UserError, match="hard.sol exists already: name it with -o"):
        run(hard, tiny_model)
    run(hard, tiny_model, out=hard.with_suffix(".sol"))


def test_the_gpus_that_are_named_color_too(hard: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch):
    given = list[tuple[int, ...]]()
    monkeypatch.setattr(job, "chosen_gpus", lambda which: {"1,3": (1, 3)}[which])
    monkeypatch.setattr("gnn_training.search.portfolio.on_gpus", lambda gpus: given.append(gpus) or [])
    run(hard, tiny_model, gpus="1,3")
    assert given == [(1, 3)]


def test_a_signal_before_a_coloring_is_on_its_way_to_the_file_writes_it_too(
    hard: Path, tiny_model: Path, monkeypatch, capsys
):
    def stop(record: logging.LogRecord) -> bool:
        if "colors (crossover search)" in record.getMessage():
            os.kill(os.getpid(), signal.SIGTERM)
        return True

    monkeypatch.setattr(job.log, "filter", stop)
    assert main(["color", str(hard), "-m", str(tiny_model), "--seconds", "300", "--threads", "1"]) == 0
    colors, said = read_solution(hard.with_suffix(".sol")), capsys.readouterr().out
    assert "interrupted, taking the best coloring so far" in said
    assert f" hard: {num_colors(colors)} colors by crossover search" in said
    assert_proper(hard, colors)


def test_a_signal_of_which_numba_makes_an_error_of_its_own_ends_the_search_as_others_do(
    hard: Path, tiny_model: Path, monkeypatch, capsys
):
    def interrupted(*_: object) -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(1)
        except KeyboardInterrupt as error:
            raise SystemError("CPUDispatcher returned a result with an exception set") from error

    monkeypatch.setattr("gnn_training.search.portfolio.proofs.removal_order", interrupted)
    assert main(["color", str(hard), "-m", str(tiny_model), "--seconds", "300"]) == 0
    assert "interrupted, taking the best coloring so far" in capsys.readouterr().out
    assert_proper(hard, read_solution(hard.with_suffix(".sol")))
    monkeypatch.setattr("gnn_training.jobs.color.compile_all", interrupted)
    assert main(["color", str(hard), "-m", str(tiny_model), "-o", str(hard.with_suffix(".csv"))]) == 143


def read_colors(path: Path) -> np.ndarray:
    """The colors of a whole .json or .csv file that `color` writes for a .col file."""
    if path.suffix == ".json":
        by_node = json.loads(path.read_text())
    else:
        title, *rows = csv.reader(path.read_text().splitlines())
        assert title == ["node", "color"]
        by_node = dict(rows)
    assert list(by_node) == [str(node) for node in range(1, len(by_node) + 1)]
    return np.array(list(map(int, by_node.values())))


@pytest.mark.parametrize(("number", "name"), [(signal.SIGHUP, "a.json"), (signal.SIGKILL, "a.csv")])
def test_a_search_of_hours_that_is_stopped_or_killed_leaves_its_best_coloring_and_goes_on_from_it(
    number: signal.Signals, name: str, hard: Path, tiny_model: Path, tmp_path: Path
):
    out, log = tmp_path / name, tmp_path / "log"
    values = {"graphs": (hard,), "model": tiny_model, "out": out, "threads": 1}
    with open(log, "w") as file:
        process = start_command("color", ColorSettings(seconds=36_000, **values), stdout=file)

    def is_better() -> bool:
        if not out.exists():
            return False
        assert_proper(hard, read_colors(out))  # whole at any time
        return num_colors(read_colors(out)) < 20  # which no first coloring has

    wait_for(is_better, process, seconds=60)
    process.send_signal(number)
    started = time.monotonic()
    assert process.wait() == (-number if number == signal.SIGKILL else 0) and time.monotonic() - started < 10
    colors, said = read_colors(out), log.read_text()
    assert_proper(hard, colors)
    if number != signal.SIGKILL:
        assert "hard: interrupted, taking the best coloring so far\n" in said
        assert f" hard: {num_colors(colors)} colors by " in said and said.endswith(f"written to {out}\n")
        assert not list(tmp_path.glob(".*"))
    color(ColorSettings(seconds=0, start=out, **values))
    assert num_colors(read_colors(out)) == num_colors(colors)


OTHER = "give a proper coloring of this"
TWICE = "node 'Drama' stands there twice or without one color"
FORBIDDEN = "start has color 0 for node 'Drama', which precolored or allowed forbids"


@pytest.mark.parametrize(
    ("flags", "content", "code", "sentence"),
    [
        ("--start", "Algebra,0\nBiology,1\nChemistry,2\nDrama,2\n", 2,
         "colors.csv: start has color 2 for nodes 'Chemistry' and 'Drama', which"),
        ("--start", "Algebra,0\nBiology,1\nChemistry,2\n", 2, f"start has no color for node 'Drama': {OTHER}"),
        ("--start", "s col 1\nl 9 1\n", 2, f"colors.csv: start names node 9, which is not in the graph: {OTHER}"),
        ("--start", "", 2, f"colors.csv: start has no color for node 'Algebra': {OTHER}"),
        ("--start", "s col 3\nl 1 1\nl 2 2\nl 3 3\nl 4", 2,
         "colors.csv: 'l 4' is no line of a DIMACS solution; a line has a node, then"),
        ("--start", "Drama,1,2\n", 2, f"colors.csv: {TWICE}"),
        ("--precolored lists.csv --start", PROPER, 2, f"colors.csv: {FORBIDDEN}"),
        ("--allowed lists.csv --k 3 --start", PROPER, 2, f"colors.csv: {FORBIDDEN}"),
        ("--start", None, 2, "colors.csv: cannot be read (no such file or directory); name a file that you may read"),
        ("other.col --start", PROPER, 2,
         "several graphs need a folder for solutions, with -o, no picture and no start: name one"),
        ("--precolored", "Geology,1\n", 2, "exams.edgelist: precolored names node 'Geology', which is not in"),
        ("--precolored", "Drama,red\n", 2, "colors.csv: 'red' is not a number; a line has a node, then its colors"),
        ("--precolored", '{"Drama": [1, 2]}', 2, f"colors.csv: {TWICE}"),
        ("--precolored", "s col 1\nl 1 0\n", 2,
         "colors.csv: 'l 1 0' has color 0; in a DIMACS solution, nodes and colors count from 1"),
        ("--precolored", "s col 1\nl 9 1\n", 2, "exams.edgelist: precolored names node 9, which is not in the graph"),
        ("--precolored", "Drama,1\nChemistry,1\n", 6,
         "exams.edgelist: nodes 'Chemistry' and 'Drama' are adjacent and both can only"),
    ],
)  # fmt: skip
def test_colors_that_cannot_be_are_refused_in_one_sentence_and_nothing_is_written(
    flags: str, content: str | None, code: int, sentence: str, exams: Path, tiny_model: Path, tmp_path: Path, capsys,
    monkeypatch,
):  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("lists.csv").write_text("Drama,1\n")
    shutil.copy(exams, "other.col")
    if content is not None:
        Path("colors.csv").write_text(content)
    words = ["-m", str(tiny_model), "-o", "out.csv", "--seconds", "60"]
    assert main(["color", exams.name, *flags.split(), "colors.csv", *words]) == code
    said = capsys.readouterr().err
    assert sentence in said and said.count("\n") == 1
    assert not Path("out.csv").exists()


def test_a_disk_that_refuses_a_coloring_is_told_at_once_and_the_search_goes_on(hard: Path, tiny_model, monkeypatch):
    said, write = [], job.write_solution
    monkeypatch.setattr(job.log, "warning", lambda text, *values: said.append(text % values))

    def full(path: Path, colors: np.ndarray, names: object = ()) -> None:
        if not said:
            raise StorageError(f"{path}: cannot be written")
        write(path, colors, names)

    monkeypatch.setattr(job, "write_solution", full)
    run(hard, tiny_model, seconds=0)
    assert said == [f"{hard.with_suffix('.sol')}: cannot be written; the search goes on"]


def test_a_signal_ends_the_searches_of_several_graphs_which_write_their_best(hard: Path, tiny_model: Path):
    folder = hard.parent
    shutil.copy(hard, folder / "other.col")
    start, timer = time.monotonic(), threading.Timer(1, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    words = ["-m", str(tiny_model), "-o", str(folder), "--seconds", "300", "--threads", "1"]
    assert main(["color", str(hard), str(folder / "other.col"), *words]) == 143
    assert time.monotonic() - start < 60
    assert_proper(hard, read_solution(hard.with_suffix(".sol")))
    assert not (folder / "other.sol").exists()


@pytest.mark.parametrize("names", [["./-x.col"], ["--", "-x.col"]])
def test_a_name_may_begin_with_a_dash(names: list[str], hard: Path, tiny_model: Path, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hard.rename("-x.col")
    shutil.copy(tiny_model, "-m")
    assert main(["color", "--model=-m", "--seconds", "0", "--picture=-x.svg", *names]) == 0
    assert Path("-x.sol").exists() and Path("-x.svg").exists()


@pytest.mark.parametrize("name", ["hard.col", "link.col", "model.onnx", "d/../picture.png", "colors.csv", "other.sol"])
def test_a_solution_never_replaces_another_file_of_the_command(name: str, hard: Path, tiny_model: Path, tmp_path: Path):
    (tmp_path / "d").mkdir()
    (tmp_path / "link.col").symlink_to(hard)
    shutil.copy(tiny_model, tmp_path / "model.onnx")
    paths = {"graphs": (hard,), "out": tmp_path / name, "picture": tmp_path / "picture.png"}
    if name == "other.sol":  # one of the solutions of several graphs
        paths = {"graphs": (hard, shutil.copy(hard, tmp_path / "other.col")), "out": tmp_path}
    colors = tmp_path / ("other.sol" if name == "other.sol" else "colors.csv")
    colors.write_text("1,0\n")
    before = {path: path.read_bytes() for path in tmp_path.glob("*.*")}
    message = f"{Path(name).name}: is the same file as .*, which is read or also written; name another"
    with pytest.raises(UserError, match=message):
        color(ColorSettings(model=tmp_path / "model.onnx", seconds=100, precolored=colors, **paths))
    assert {path: path.read_bytes() for path in tmp_path.glob("*.*")} == before


def test_a_wrong_header_is_mentioned(tmp_path: Path, tiny_model: Path, caplog):
    graph = tmp_path / "lies.col"
    graph.write_text("p edge 3 99\ne 1 2\n")
    run(graph, tiny_model)
    assert "the header says 99 edges, the file has 1" in caplog.text


def test_nodes_in_a_picture_have_the_number_and_the_shade_of_their_color():
    colors = np.array([4, 0, 4, 7])
    figure = draw(Graph.from_edges(4, [(0, 1), (1, 2), (2, 3)]), colors, "search")
    axes = figure.axes[0]
    assert axes.get_title() == "search: 3 colors"
    assert [text.get_text() for text in axes.texts] == ["2", "1", "2", "3"]
    named = draw(Graph.from_edges(2, [(0, 1)]), colors[:2], "search", ["a$x_{$", "b\x1b"])
    named.canvas.draw()  # a name is no formula
    assert [text.get_text() for text in named.axes[0].texts] == [r"a\$x_{\$", r"b\x1b"]
    shades = [tuple(shade) for shade in axes.collections[0].get_facecolors()]
    assert shades[0] == shades[2] and len(set(shades)) == 3


@pytest.mark.parametrize(("num_nodes", "edges"), [(401, []), (150, [(u, v) for u in range(150) for v in range(u)])])
def test_a_graph_too_large_for_a_picture_is_refused_before_any_time_is_spent(tmp_path, tiny_model, num_nodes, edges):
    graph = write_col(tmp_path, Graph.from_edges(num_nodes, edges, "large"))
    with pytest.raises(UserError, match="edges are too many for a picture .*; leave picture out"):
        run(graph, tiny_model, seconds=100, picture=tmp_path / "large.png")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["large.col"]


def test_without_matplotlib_a_picture_is_refused_in_one_sentence(hard: Path, tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(job, "compile_all", lambda: pytest.fail("it is said after the work"))
    assert main(["color", str(hard), "--picture", str(tmp_path / "hard.png"), "--seconds", "100"]) == 2
    said = "coloring-gnn: --picture needs matplotlib: pip install '.[picture]' in a clone\n"
    assert capsys.readouterr().err == said
    assert not hard.with_suffix(".sol").exists()


def test_the_command_and_python_find_the_same_with_one_thread_and_the_same_seed(tmp_path: Path):
    path, out = ROOT / "examples" / "queen8_8.col", tmp_path / "queen8_8.sol"
    found = []
    for seed in (3, 4):
        color(ColorSettings(graphs=(path,), out=out, seconds=60, seed=seed, threads=1, k=9))
        colors = gnn_training.color(read(path).graph.edges, seconds=60, seed=seed, threads=1, k=9)
        assert read_solution(out).tolist() == colors.tolist()
        found.append(colors.tolist())
    assert found[0] != found[1]


@pytest.mark.parametrize("seconds", [0.05, 1])
def test_a_large_graph_is_colored_in_time(model: Model, seconds: float):
    edges = np.random.default_rng(0).integers(0, 50_000, (200_000, 2))
    start = time.monotonic()
    colors = gnn_training.color(edges, seconds, model=model, num_nodes=50_000)
    assert time.monotonic() - start < seconds + 1
    assert is_proper(Graph.from_edges(50_000, edges), colors)


@pytest.fixture
def exams(tmp_path: Path) -> Path:
    path = tmp_path / "exams.edgelist"
    path.write_text("# exams\nAlgebra Biology\nBiology Chemistry\nChemistry Algebra\nChemistry Drama\n")
    return path


def test_solutions_have_the_names_of_the_nodes_in_three_formats(exams: Path, tiny_model: Path, tmp_path: Path):
    for out in ("a.sol", "a.csv", "a.json", "a.svg"):
        picture = {"picture": tmp_path / out, "out": None} if out == "a.svg" else {"out": tmp_path / out}
        color(ColorSettings(graphs=(exams,), model=tiny_model, seconds=1, **picture))
    colors = json.loads((tmp_path / "a.json").read_text())
    assert list(colors) == ["Algebra", "Biology", "Chemistry", "Drama"] and len(set(colors.values())) == 3
    rows = (tmp_path / "a.csv").read_text().splitlines()
    assert rows == ["node,color", *(f"{node},{color}" for node, color in colors.items())]
    assert (read_solution(tmp_path / "a.sol") == list(colors.values())).all()
    assert "c 2 Biology" in (tmp_path / "a.sol").read_text() and "Biology" in (tmp_path / "a.svg").read_text()


def test_files_of_precolored_and_allowed_colors_hold(exams: Path, tiny_model: Path, tmp_path: Path, capsys):
    fixed, lists, out = (tmp_path / name for name in ("fixed.csv", "lists.csv", "out.json"))
    fixed.write_text("node,color\nDrama,2\n")
    lists.write_text('"Algebra",3,4\r\nBiology,0,3\r\n')
    constraints = ["--precolored", str(fixed), "--allowed", str(lists), "--equitable"]
    command = ["color", str(exams), "-m", str(tiny_model), *constraints, "-o", str(out)]
    assert main(command) == 0
    colors = json.loads(out.read_text())
    assert colors["Drama"] == 2 and colors["Algebra"] in (3, 4) and colors["Biology"] in (0, 3)
    assert colors["Algebra"] != colors["Biology"] and "classes differ by" in capsys.readouterr().out
    assert main([*command, "--k", "4"]) == 0
    assert json.loads(out.read_text())["Algebra"] == 3


@pytest.mark.parametrize("name", ["exams.edgelist", "exams.col", "exams.json"])
@pytest.mark.parametrize("solution", ["a.sol", "a.csv", "a.json", "a.tsv"])
def test_what_color_writes_can_be_precolored(name: str, solution: str, exams: Path, tiny_model, tmp_path, capsys):
    graph = exams.with_name(name)
    if name == "exams.col":
        graph.write_text("p edge 4 4\ne 1 2\ne 1 3\ne 2 3\ne 3 4\n")
    if name == "exams.json":
        graph.write_text('{"adjacency": {"data": [0, 1, 1, 0, 1, 0, 1, 0, 1, 1, 0, 1, 0, 0, 1, 0]}}')
    fixed, out = tmp_path / solution, tmp_path / "out.json"
    write_solution(fixed, np.array([2, 0, 7, 0]), read(graph).names)
    if solution == "a.tsv":
        write_solution(tmp_path / "a.csv", np.array([2, 0, 7, 0]), read(graph).names)
        fixed.write_text((tmp_path / "a.csv").read_text().replace(",", "\t"))
    assert solution != "a.sol" or read_solution(fixed).tolist() == [2, 0, 7, 0]
    assert main(["color", str(graph), "-m", str(tiny_model), "--precolored", str(fixed), "-o", str(out)]) == 0
    assert list(json.loads(out.read_text()).values()) == [2, 0, 7, 0]
    assert f"{solution}: colors of 4 nodes, read as " in capsys.readouterr().out


def test_more_colors_than_k_are_exit_code_6_and_no_file(hard: Path, tiny_model: Path, capsys):
    assert main(["color", str(hard), "-m", str(tiny_model), "--seconds", "0.3", "--k", "12"]) == 6
    assert "hard.col: a coloring with at most 12 colors was not found in " in capsys.readouterr().err
    assert not hard.with_suffix(".sol").exists()
    assert main(["color", str(hard), "-m", str(tiny_model), "--seconds", "60", "--k", "30"]) == 0


def test_a_folder_of_graphs_is_colored_and_one_bad_file_does_not_stop_the_others(
    exams: Path, hard: Path, tiny_model: Path, tmp_path: Path, capsys
):
    flags = ["-m", str(tiny_model), "--seconds", "0.1", "-o", str(tmp_path / "out")]
    assert main(["color", str(exams), str(hard), *flags]) == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["exams.sol", "hard.sol"]
    assert_proper(hard, read_solution(tmp_path / "out" / "hard.sol"))
    assert main(["color", str(exams), str(hard), *flags, "--gpus", "all"]) == 2
    assert "GPUs search for one graph: name one, or leave out --gpus" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "out")
    (tmp_path / "bad.col").write_text("p edge")
    assert main(["color", str(tmp_path), *flags]) == 2
    assert "1 of 3 graphs were not colored; the first: " in capsys.readouterr().err
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["exams.sol", "hard.sol"]


@pytest.mark.parametrize("names", [["a.tar.gz"], ["a.tar.gz", "hard.col"], ["in"]])
def test_archives_are_refused_where_they_are_named_or_all_there_is(
    names: list[str], hard: Path, tiny_model: Path, tmp_path: Path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()
    for folder in (".", "in"):
        Path(folder, "a.tar.gz").write_bytes(b"")
    assert main(["color", *names, "-m", str(tiny_model), "-o", "out"]) == 2
    assert capsys.readouterr().err.endswith("a.tar.gz is an archive: unpack it and name the folder\n")
    assert not Path("out").exists()
    hard.rename("in/hard.col")
    assert main(["color", "in", "-m", str(tiny_model), "-o", "out", "--seconds", "0"]) == 0
    assert [path.name for path in Path("out").iterdir()] == ["hard.sol"]


@given(colors=st.lists(st.integers(0, 300), min_size=1, max_size=30))
def test_a_solution_reads_back_as_written(tmp_path_factory, colors: list[int]):
    path = tmp_path_factory.mktemp("solution") / "graph.sol"
    write_solution(path, np.array(colors))
    assert read_solution(path).tolist() == colors
    assert list(path.parent.iterdir()) == [path]
