"""The evaluation job: rows, tables, report, plot, what it refuses, and the baselines it compares with."""

import json
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from dimacs import queens, write_col

from gnn_training.coloring import is_proper
from gnn_training.contract import SHIPPED_MODEL
from gnn_training.data import packed
from gnn_training.data.dataset import label
from gnn_training.errors import UserError
from gnn_training.graph import Graph, Instance
from gnn_training.jobs.evaluate import evaluate
from gnn_training.model.search import first_weights
from gnn_training.report import scores
from gnn_training.report.scores import Row, comparison, verdict
from gnn_training.settings import EvaluateSettings
from gnn_training.solve import baselines, kernels
from gnn_training.solve.portfolio import tabu_search
from gnn_training.solve.search_kernel import noise_table, search_graph

pytestmark = pytest.mark.usefixtures("compiled")


def from_networkx(graph: nx.Graph, name: str) -> Graph:
    return Graph.from_edges(len(graph), list(graph.edges), name)


GRAPHS = [
    from_networkx(nx.gnp_random_graph(40, 0.5, seed=1), "random"),
    from_networkx(nx.mycielski_graph(4), "mycielski"),
    Graph.from_edges(1, [], "single"),
    Graph.from_edges(6, [], "edgeless"),
    Graph.from_edges(7, [(0, 1), (1, 2), (0, 2), (4, 5)], "parts"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The graphs as .col files."""
    folder = tmp_path / "graphs"
    folder.mkdir()
    for graph in GRAPHS:
        write_col(folder, graph)
    return folder


def run(graphs: Path, model: Path, **settings) -> dict:
    report = graphs.parent / "report.json"
    evaluate(EvaluateSettings(graphs=graphs, model=model, report=report, threads=1, **settings))
    return json.loads(report.read_text())


def test_the_report_holds_a_row_for_every_graph(folder: Path, tiny_model: Path):
    report = run(folder, tiny_model)
    rows = {row["name"]: row for row in report["graphs"]}
    assert rows.keys() == {graph.name for graph in GRAPHS}
    assert rows["single"]["colors"] == {"dsatur": 1, "rlf": 1, "one_call": 1}
    assert (rows["edgeless"]["colors"]["one_call"], rows["edgeless"]["conflicts"]) == (1, 0)
    assert rows["parts"]["colors"] == {"dsatur": 3, "rlf": 3, "one_call": 3} and rows["parts"]["clique"] == 3
    assert rows["random"]["conflicts"] > 0
    assert "search" not in rows["random"]["colors"] and "search" not in report["summary"]["methods"]
    assert report["summary"]["with_best_known"] == 0 and report["summary"]["chromatic_mae"] is None
    assert len(report["model"]["sha256"]) == 64 and report["model"]["metadata"]["steps"] == "2"
    assert report["settings"]["limit"] == 0 and report["versions"]["onnxruntime"]


def test_the_search_uses_no_more_colors_than_one_call_and_stops_at_a_clique(folder: Path, tiny_model: Path):
    rows = {row["name"]: row for row in run(folder, tiny_model, seconds=0.5)["graphs"]}
    assert rows["random"]["clique"] <= rows["random"]["colors"]["search"] <= rows["random"]["colors"]["one_call"]
    assert rows["random"]["seconds"]["search"] < 3 and rows["single"]["seconds"]["search"] < 0.3


def test_tabucol_alone_has_its_own_column_and_the_time_of_the_search(folder: Path, tiny_model: Path, capsys):
    report = run(folder, tiny_model, seconds=0.5, tabucol=True)
    rows = {row["name"]: row for row in report["graphs"]}
    assert rows["random"]["clique"] <= rows["random"]["colors"]["tabucol"] <= rows["random"]["colors"]["dsatur"]
    assert 0.4 < rows["random"]["seconds"]["tabucol"] < 5
    assert [rows[name]["colors"]["tabucol"] for name in ("single", "edgeless", "parts")] == [1, 1, 3]
    assert report["summary"]["methods"]["tabucol"]["graphs"] == len(GRAPHS)
    assert "| TabuCol  |" in capsys.readouterr().out


def test_tabucol_the_rule_and_the_search_have_the_time_of_the_call_unless_seconds_are_given(folder: Path, capsys):
    report = run(folder / "random.col", SHIPPED_MODEL, tabucol=True)
    row = report["graphs"][0]
    for method in ("rule", "search"):
        assert row["seconds"][method] == pytest.approx(row["seconds"]["one_call"], rel=0.3, abs=0.3)
    assert report["verdict"].startswith("In the same seconds on 1 graphs, the trained rule needs")
    assert not {"untrained", "rule"} - set(row["colors"]) and "shipped" not in row["colors"]  # which is the same
    assert [line.split("needs")[0] for line in report["comparison"]] == [
        f"In the same seconds, {name} " for name in ("trained rule", "one call", "search")
    ]
    assert set(report["comparison"]) < set(capsys.readouterr().out.splitlines())
    assert row["seconds"]["tabucol"] == pytest.approx(row["seconds"]["one_call"], rel=0.3, abs=0.2)
    assert row["clique"] < row["colors"]["tabucol"] <= row["colors"]["dsatur"]


def test_a_search_uses_no_more_colors_than_tabucol(tmp_path: Path, tiny_model: Path):
    file = write_col(tmp_path, from_networkx(nx.gnp_random_graph(120, 0.5, seed=1), "large"))
    row = run(file, tiny_model, seconds=1, tabucol=True)["graphs"][0]
    assert row["colors"]["search"] <= row["colors"]["tabucol"] + 1 < row["colors"]["dsatur"]


def test_a_plot_without_time_is_refused():
    with pytest.raises(
        UserError, match="plot needs time and best known numbers: set seconds above 0, such as 10, and best_known"
    ):
        EvaluateSettings(graphs=Path("x"), plot=Path("curves.png"))


def test_the_shipped_file_gives_proper_classes_and_graph_predictions(folder: Path):
    report = run(folder, SHIPPED_MODEL, seconds=0.5)
    for row in report["graphs"]:
        assert row["conflicts"] == 0
        # The file has a DSATUR of its own, which breaks ties in another way.
        assert row["clique"] <= row["colors"]["search"] <= row["colors"]["dsatur"]
        assert row["clique"] <= row["colors"]["one_call"] <= row["colors"]["dsatur"] + 1
        assert row["clique"] - 1 <= row["chromatic"] <= row["colors"]["dsatur"] + 1
    assert report["model"]["metadata"]["model_version"]


def test_progress_goes_down_in_colors_and_on_in_time_to_the_end(tmp_path: Path, tiny_model: Path):
    file = write_col(tmp_path, from_networkx(nx.gnp_random_graph(150, 0.5, seed=1), "large"))
    row = run(file, tiny_model, seconds=1, tabucol=True)["graphs"][0]
    for method in ("search", "tabucol"):
        seconds, colors = zip(*row["progress"][method], strict=True)
        assert list(seconds) == sorted(seconds) and 0 < seconds[0] <= seconds[-1] <= row["seconds"][method]
        assert list(colors) == sorted(set(colors), reverse=True) and colors[-1] == row["colors"][method]
        assert len(colors) > 1


def test_beside_a_training_tensorboard_gets_the_table(folder: Path, tiny_model: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    curves = folder.parent / "tensorboard"
    curves.mkdir()
    run(folder, tiny_model)
    events = EventAccumulator(str(curves)).Reload()
    text = events.Tensors("report/text_summary")[-1].tensor_proto.string_val[0].decode()
    assert "| DSATUR   |      5 |" in text and text.count("\n|--") == 1
    assert sorted(events.Tags()["images"]) == ["DSATUR", "one call"]


def test_without_a_small_graph_none_is_drawn(tmp_path: Path, tiny_model: Path):
    file = write_col(tmp_path, Graph.from_edges(401, [(0, 1)], "large"))
    assert run(file, tiny_model)["example"] is None
    assert "<svg" not in (tmp_path / "report.html").read_text()


def test_a_report_in_place_of_the_page_is_refused():
    with pytest.raises(UserError, match=r"report \(report.html\) is for the numbers: name a .json file"):
        EvaluateSettings(graphs=Path("x"), report=Path("report.html"))


def write_known(path: Path) -> Path:
    path.write_text("name,best_known\nrandom,9\nmycielski,4\nsingle,1\n")
    return path


def test_the_plot_is_a_png(folder: Path, tiny_model: Path, tmp_path: Path):
    plot = tmp_path / "curves.png"
    known = write_known(tmp_path / "known.csv")
    run(folder / "random.col", tiny_model, seconds=0.2, tabucol=True, best_known=known, plot=plot)
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_a_plot_without_best_known_numbers_is_refused_before_any_work(folder: Path, tiny_model: Path, tmp_path: Path):
    with pytest.raises(UserError, match="plot needs best known numbers: set best_known, a CSV"):
        run(folder, tiny_model, seconds=1, plot=tmp_path / "curves.png")
    assert not (tmp_path / "curves.png").exists() and not (tmp_path / "report.json").exists()


def test_best_known_numbers_come_from_the_csv_by_name(folder: Path, tiny_model: Path, tmp_path: Path):
    known = tmp_path / "known.csv"
    known.write_text("name,proven,best_known\nmycielski.col,yes,4\nrandom,no,\nelsewhere,yes,9\n")
    report = run(folder, tiny_model, best_known=known)
    numbers = {row["name"]: row["best_known"] for row in report["graphs"]}
    assert numbers == {"mycielski": 4, "random": None, "single": None, "edgeless": None, "parts": None}
    assert report["summary"]["with_best_known"] == 1
    assert report["summary"]["chromatic_mae"] == 1.0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("graph,colors\nrandom,7\n", "line 1: 'name' is not in list; it needs columns"),
        ("", "line 0: "),
        ("best_known,name\n7\n", "line 2: "),
        ("name,best_known\nrandom,1_0\n", "line 2: '1_0' is not a number"),
        ('name,best_known\n"random,7\n', "line 2: unexpected end of data"),
        ("name,best_known\n" + "r" * 200_000 + ",7\n", "line 2: field larger than field limit"),
        ("name,best_known\nrandom,seven\n", "line 2: .*seven"),
        ("name,best_known\nother,7\n", "names none of the graphs, such as"),
    ],
)
def test_a_csv_that_does_not_fit_is_refused(folder: Path, tiny_model: Path, tmp_path: Path, content: str, message: str):
    known = tmp_path / "known.csv"
    known.write_text(content)
    with pytest.raises(UserError, match=message):
        run(folder, tiny_model, best_known=known)


def test_a_missing_csv_is_refused(folder: Path, tiny_model: Path, tmp_path: Path):
    with pytest.raises(UserError, match="none.csv: cannot be read"):
        run(folder, tiny_model, best_known=tmp_path / "none.csv")


def run_suite(folder: Path, model: Path, **settings) -> dict:
    """The report on a suite that makes its own graphs."""
    report = folder / "report.json"
    evaluate(EvaluateSettings(model=model, report=report, threads=1, rlf=False, **settings))
    return json.loads(report.read_text())


def test_shares_of_q_coloring_stand_beside_those_of_published_solvers(tmp_path: Path, tiny_model: Path, capsys):
    report = run_suite(tmp_path, tiny_model, suite="q-coloring", limit=6, seconds=2.0)
    rows = report["graphs"]
    assert [row["best_known"] for row in rows] == [3, 3, 3, 5, 5, 5]
    solved = [row["colors"]["search"] <= row["best_known"] for row in rows]
    assert sum(solved) >= 4
    for row, done in zip(rows, solved, strict=True):  # a search ends with q colors and does not look for fewer
        assert not done or row["seconds"]["search"] - row["progress"]["search"][-1][0] < 0.5
    assert report["summary"]["methods"]["search"]["solved"] == sum(solved) / 6
    assert report["families"]["q = 3"]["published"]["focused Metropolis"] == 1.0
    shown = capsys.readouterr().out
    assert "| share solved " in shown and "| rPI-GNN |" in shown and "| q = 5, n = 256 |" in shown
    [page] = [file.read_text() for file in tmp_path.rglob("*.html")]
    assert "Share solved by family" in page and "coloring-gnn evaluate --suite q-coloring --model " in page


def test_suite_dimacs_knows_the_best_numbers_of_well_known_files(tmp_path: Path, tiny_model: Path):
    folder = tmp_path / "graphs"
    folder.mkdir()
    for graph in (queens(5, 5), queens(6, 6), GRAPHS[0]):
        write_col(folder, graph)
    report = run(folder, tiny_model, suite="dimacs")
    assert {row["name"]: row["best_known"] for row in report["graphs"]} == {
        "queen5_5": 5, "queen6_6": 7, "random": None,
    }  # fmt: skip
    assert report["summary"]["with_best_known"] == 2


def test_suite_dimacs_refuses_graphs_of_other_names(folder: Path, tiny_model: Path):
    with pytest.raises(UserError, match=r"dimacs.csv names none of the graphs, such as 'edgeless': set best_known"):
        run(folder, tiny_model, suite="dimacs")


def test_suite_graphbench_shows_mean_colors_by_family(tmp_path: Path, tiny_model: Path, capsys):
    report = run_suite(tmp_path, tiny_model, suite="graphbench", limit=2)
    assert list(report["families"]) == ["Barabási-Albert", "RB"] and report["summary"]["with_best_known"] == 0
    assert "| mean colors " in capsys.readouterr().out


def test_a_suite_makes_its_graphs_or_takes_yours():
    with pytest.raises(UserError, match="graphs must be given: a file or a folder"):
        EvaluateSettings()
    with pytest.raises(UserError, match="graphs must be given"):
        EvaluateSettings(suite="dimacs")
    with pytest.raises(UserError, match="suite q-coloring makes its own graphs: leave out mine"):
        EvaluateSettings(suite="q-coloring", graphs=Path("mine"))


def test_one_file_is_enough(folder: Path, tiny_model: Path):
    report = run(folder / "mycielski.col", tiny_model)
    assert [row["name"] for row in report["graphs"]] == ["mycielski"]


@pytest.fixture
def packed_folder(tmp_path: Path) -> Path:
    """Two families, every graph for validation but the last."""
    families = ("er", "small")
    instances = [Instance(graph, family=families[graph.num_nodes < 30]) for graph in GRAPHS]
    tensors = packed.columns([(instance, label(instance, 100, 1.0, 0)) for instance in instances], families)
    tensors["split"] = (np.arange(len(instances)) < 4).astype(np.uint8)
    folder = tmp_path / "packed"
    folder.mkdir()
    packed.write(folder, tensors, families, {})
    return folder


def test_validation_graphs_of_a_packed_folder_are_summed_up_by_family(packed_folder: Path, tiny_model: Path, capsys):
    report = run(packed_folder, tiny_model, rlf=False)
    assert [row["name"] for row in report["graphs"]] == ["random", "mycielski", "single", "edgeless"]
    assert [row["best_known"] is None for row in report["graphs"]] == [False] * 4
    assert {family: summary["graphs"] for family, summary in report["families"].items()} == {"er": 1, "small": 3}
    shown = capsys.readouterr().out
    assert "| mean gap " in shown and "| small    |" in shown and "| one call |" in shown
    assert "RLF" not in shown and "search" not in shown


def test_packed_graphs_with_a_changed_byte_are_refused(packed_folder: Path, tiny_model: Path):
    path = packed_folder / packed.GRAPHS_FILE
    *before, last = path.read_bytes()
    path.write_bytes(bytes([*before, last ^ 1]))
    with pytest.raises(UserError, match="differs from its manifest"):
        run(packed_folder, tiny_model)


def test_packed_graphs_without_validation_are_refused(packed_folder: Path, tiny_model: Path):
    tensors, _ = packed.read_columns(packed_folder / packed.GRAPHS_FILE)
    kept = {name: np.array(tensor) for name, tensor in tensors.items()}
    packed.write(packed_folder, kept | {"split": np.zeros(5, dtype=np.uint8)}, ("er", "small"), {})
    with pytest.raises(UserError, match="packed has no validation graphs"):
        run(packed_folder, tiny_model)


def test_a_limit_takes_graphs_from_everywhere(packed_folder: Path, tiny_model: Path):
    assert [row["name"] for row in run(packed_folder, tiny_model, limit=2)["graphs"]] == ["random", "edgeless"]
    assert len(run(packed_folder, tiny_model, limit=99)["graphs"]) == 4


def test_an_improper_coloring_ends_the_job_and_names_the_graph(folder: Path, tiny_model: Path, monkeypatch):
    monkeypatch.setattr(baselines, "dsatur", lambda graph: [np.zeros(graph.num_nodes, dtype=np.int64)])
    with pytest.raises(RuntimeError, match="mycielski: the coloring of DSATUR is not proper"):
        run(folder, tiny_model)
    assert not (folder.parent / "report.json").exists()


def test_a_graph_too_large_for_the_network_is_a_row_without_its_colors(folder: Path, tiny_model: Path, monkeypatch):
    monkeypatch.setattr("gnn_training.model.session.available_bytes", lambda: 20_030_000)
    report = run(folder, tiny_model)
    rows = {row["name"]: row for row in report["graphs"]}
    assert "one_call" not in rows["random"]["colors"] and rows["random"]["colors"]["dsatur"] > 0
    assert rows["single"]["colors"]["one_call"] == 1
    assert report["summary"]["methods"]["one_call"]["graphs"] < report["summary"]["methods"]["dsatur"]["graphs"]


def test_a_report_without_a_folder_is_refused_before_any_work(folder: Path, tiny_model: Path):
    with pytest.raises(UserError, match="nowhere/report.json: its folder does not exist"):
        evaluate(EvaluateSettings(graphs=folder, model=tiny_model, report=folder / "nowhere" / "report.json"))


def test_a_plot_without_a_folder_is_refused_before_any_work(folder: Path, tiny_model: Path):
    with pytest.raises(UserError, match="nowhere/curves.png: its folder does not exist"):
        run(folder, tiny_model, seconds=1, plot=folder / "nowhere" / "curves.png")
    assert not (folder.parent / "report.json").exists()


def test_a_report_never_replaces_what_is_read_or_another_output(folder: Path, packed_folder: Path, tiny_model: Path):
    known = write_known(folder.parent / "known.csv")
    read = [(folder, folder / "parts.col"), (folder, tiny_model), (folder, known), (folder, folder.parent / "plot")]
    for graphs, out in [*read, (packed_folder, packed_folder / packed.MANIFEST_FILE)]:
        with pytest.raises(UserError, match=f"{out.name}: is the same file as"):
            evaluate(EvaluateSettings(graphs=graphs, model=tiny_model, report=out, best_known=known, seconds=1,
                                      plot=folder.parent / "plot"))  # fmt: skip
    with pytest.raises(UserError, match="report.html: is the same file as"):
        run(folder, tiny_model, seconds=1, plot=folder.parent / "report.html")
    with pytest.raises(UserError, match=r"report \(.\) is for the numbers: name a .json file"):
        EvaluateSettings(graphs=folder, report=Path("."))
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


@pytest.mark.parametrize("method", [baselines.dsatur, baselines.rlf])
def test_baselines_color_properly(method):
    for graph in GRAPHS:
        assert [is_proper(graph, colors) for colors in method(graph)] == [True]


def test_tabucol_begins_with_dsatur_and_goes_on_with_fewer_colors():
    graph = from_networkx(nx.gnp_random_graph(120, 0.5, seed=1), "large")
    found = list(baselines.alone(tabu_search, graph, 0.5, lower=1))
    assert np.array_equal(found[0], kernels.dsatur(*graph.csr()))
    assert [int(colors.max()) for colors in found] == sorted({int(colors.max()) for colors in found}, reverse=True)
    assert len(found) > 2 and all(is_proper(graph, colors) for colors in found)
    assert len(list(baselines.alone(tabu_search, graph, 0.0, 1))) == 1


def test_the_untrained_rule_is_that_before_any_training():
    lists, start, stop = GRAPHS[0].csr(), np.arange(40, dtype=np.int32), np.zeros(1, np.uint8)
    searches = [search_graph(*lists, start, 40, 1, weights, noise_table(40), 0, 500, stop)
                for weights in (first_weights().numpy(), baselines.untrained_rule())]  # fmt: skip
    assert np.array_equal(searches[0][0], searches[1][0])


def test_the_picture_is_of_a_connected_graph_with_few_colors(folder: Path, tiny_model: Path):
    ring = Graph.from_edges(21, [(i, (i + 1) % 21) for i in range(21)], "ring")
    write_col(folder, ring)
    write_col(folder, from_networkx(nx.gnp_random_graph(60, 0.9, seed=1), "dense"))
    assert run(folder, tiny_model)["example"]["name"] in ("ring", "random")


def test_the_verdict_says_what_to_use():
    def said(**more: int) -> str:
        return verdict([Row("g", None, 9, 9, None, 1, {"rule": 7} | {k: 7 + v + i % 2 for k, v in more.items()})
                        for i in range(8)])  # fmt: skip

    assert said() == ""
    better = said(untrained=1, tabucol=2)
    assert (
        "needs, in colors, 1.50 ± 0.19 fewer than the untrained rule, 2.50 ± 0.19 fewer than TabuCol: use it." in better
    )
    assert said(untrained=-2, tabucol=1).endswith("train longer or score more graphs, no clear gain shows here.")
    assert said(untrained=1, shipped=-2).endswith("do not use it for such graphs, the shipped rule found fewer colors.")
    rows = [
        Row("g", None, 9, 9, None, 1, {"rule": 7, "tabucol": 7}),
        Row("g", None, 9, 9, None, 1, {"rule": 8, "tabucol": 8}),
    ]
    assert "as many as TabuCol: use either, these graphs cannot tell it apart from TabuCol." in verdict(rows)


def test_rlf_leaves_out_what_would_take_minutes(monkeypatch):
    monkeypatch.setattr(baselines, "RLF_LIMIT", 100)
    assert [len(list(baselines.rlf(graph))) for graph in (GRAPHS[0], GRAPHS[2])] == [0, 1]


def test_the_comparison_says_who_needs_fewer_colors_and_where():
    rows = [Row(family, family, 9, 9, None, 1, {"dsatur": 9, "tabucol": 7, "rule": 7 + more}) for family, more in
            (("dense", 2), ("geometric", -1), ("queen", 0))]  # fmt: skip
    expected = "needs 0.33 colors more than TabuCol; fewer on geometric (-1.00); more on dense (+2.00)."
    assert comparison(rows, ("rule", "search")) == [f"In the same seconds, trained rule {expected}"]
    assert comparison(rows[2:], ("rule",)) == ["In the same seconds, trained rule needs as many colors as TabuCol."]
