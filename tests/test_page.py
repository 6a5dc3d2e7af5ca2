"""What an evaluation has found: sums per method, sentences, and the page of a run."""

import html
import io
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from dimacs import queens, write_col
from matplotlib.image import imread
from tiny_runs import metrics, status

from gnn_training.__main__ import COMMANDS, parse
from gnn_training.jobs.evaluate import evaluate
from gnn_training.report import scores
from gnn_training.report.page import render
from gnn_training.report.scores import METHODS, GraphScores
from gnn_training.settings import EvaluateSettings


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path, compiled: None) -> dict:
    """What an evaluation of three graphs has written, with the search and TabuCol."""
    folder = tmp_path_factory.mktemp("graphs & more")
    for size in (3, 4, 6):
        write_col(folder, queens(size, size))
    file = folder / "report.json"
    evaluate(EvaluateSettings(graphs=folder, model=tiny_model, report=file, threads=1, seconds=0.1, tabucol=True))
    assert file.with_suffix(".html").read_text() == render(json.loads(file.read_text()))
    return json.loads(file.read_text())


@pytest.fixture
def training(trained: Path) -> tuple[dict, dict, list[dict]]:
    """Manifest, settings and records of a training."""
    manifest = {
        "training": status(trained), "seconds": {"data": 12.0, "train": 300.0}, "hours": 0.0867, "price_per_hour": 30.0,
        "cost": 2.6, "version": "1.2.3", "git_revision": "c0ffee",
    }  # fmt: skip
    return manifest, json.loads((trained / "config.json").read_text()), metrics(trained)


def rows(text: str) -> dict[str, list[str]]:
    """Cells of the rows of all tables by the title of the row."""
    found = re.findall(r"<tr><th>(.*?)</th>(.*?)</tr>", text.replace("<wbr>", ""), re.DOTALL)
    return {title: re.findall(r"<td>(.*?)</td>", cells, re.DOTALL) for title, cells in found}


def test_an_evaluation_shows_every_method_and_every_graph(report: dict):
    text, methods = render(report), report["summary"]["methods"]
    assert list(methods) == [*METHODS]
    for method, score in methods.items():
        assert rows(text)[METHODS[method]][:2] == ["3", f"{score['mean_colors']:.2f}"]
    assert "<th>mean gap</th>" not in text and "best known</th>" not in text  # nobody knows the best numbers
    first = report["graphs"][0]
    cells = [first["num_nodes"], first["num_edges"], *(first["colors"][method] for method in methods)]
    assert rows(text)[first["name"]][: len(cells)] == list(map(str, cells))
    assert "DSATUR there" not in text and "gap is the number" not in text  # which are not there
    assert "What was trained" not in text


def test_a_training_shows_what_it_was_and_has_gained_and_no_cost_is_invented(report: dict, training: tuple):
    manifest, config, records = training
    text = render(report | {"verdict": "Use it."}, *training)
    assert re.search(r'</h1>\s*<p class="verdict">Trained for .* \(40\s+steps\) on .*\. Use it\.</p>', text)
    assert "<h2>Graphs</h2>" not in text
    said = {title: " ".join(cells) for title, cells in rows(text).items()}
    assert f"40 steps, preset {config['preset']}" in said["trained"]
    assert "data 12 s, train 5 min 0 s" in said["time"] and "2.60" in said["cost"] and "30.00 an hour" in said["cost"]
    assert f"1 &times; cpu; {report['machine']['cpus']} cores" in said["machine"]
    assert text.count("<svg role=") == 3 + 2  # curves, and a graph in two colorings
    del manifest["cost"], manifest["price_per_hour"]
    assert rows(render(report, *training))["cost"] == ["unknown: price_per_hour was not given"]


def test_the_page_shows_a_graph_in_the_colors_of_dsatur_and_of_the_rule(report: dict):
    chosen, text = report["picture"], render(report)
    assert chosen["graph"] == "queen3_3" and chosen["colorings"].keys() == {"dsatur", "rule"}
    for method, colors in chosen["colorings"].items():
        assert f'aria-label="{METHODS[method]}: {len(set(colors))} colors"' in text
        assert all(colors[u] != colors[v] for u, v in chosen["edges"])
    assert f"<h2>Graph {chosen['graph']}</h2>" in text
    without = render(report | {"picture": None})
    assert "<svg" not in without and "<h2>Graph " not in without


def test_the_commands_on_the_page_are_those_of_the_program(report: dict, training: tuple):
    commands = [shlex.split(html.unescape(text)) for text in re.findall(r"<pre>(.*?)</pre>", render(report, *training))]
    ours = [words for program, *words in commands if program == "coloring-gnn"]
    assert len(ours) == 3
    for command, *flags in ours:
        assert command in COMMANDS and parse(command, flags)


def test_the_page_needs_no_script_and_nothing_from_elsewhere(report: dict, training: tuple):
    text = render(report, *training)
    assert "<script" not in text and not re.findall(r"\b(?:src|href)=\"(?!#)|url\((?!#)|@import", text)
    assert set(re.findall(r"https?://[^\"]+", text)) == {"http://www.w3.org/1999/xlink", "http://www.w3.org/2000/svg"}


def test_names_of_files_and_graphs_are_no_markup(report: dict):
    text = render(report | {"families": {"<i>_x": report["summary"]}})
    assert "<i>" not in text
    assert "graphs &amp; more" in text


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1280, "light")])
def test_chromium_shows_the_page_narrow_and_wide_dark_and_light(report, training, tmp_path, chromium, width, scheme):
    file, errors = tmp_path / "report.html", []
    file.write_text(render(report, *training))
    with chromium.new_page(color_scheme=scheme, viewport={"width": width, "height": 900}) as shown:
        for event in ("console", "pageerror"):
            shown.on(event, lambda said: errors.append(said))
        shown.goto(file.as_uri())
        assert shown.evaluate("document.documentElement.scrollWidth") <= width  # wide tables scroll on their own
        red = "(element, name) => parseInt(getComputedStyle(element).getPropertyValue(name).match(/\\d+/)[0])"
        paper = shown.eval_on_selector("body", red, "background-color")
        ink = shown.eval_on_selector("svg text", red, "fill")
        picture = imread(io.BytesIO(shown.screenshot()))
    assert paper < 50 < 200 < ink if scheme == "dark" else ink < 50 < 200 < paper
    assert not errors and picture.shape[:2] == (900, width)
    assert np.median(picture[..., :3]) == pytest.approx(paper / 255, abs=0.02) and picture[..., :3].std() > 0.05


def colored(family: str | None = None, best_known: int | None = None, **colors: int) -> GraphScores:
    return GraphScores(queens(3, 3), "g", family, 9, 9, best_known, 1, 1, colors, dict.fromkeys(colors, 0.5))


def test_a_method_is_compared_with_dsatur_on_the_graphs_it_colored():
    found = [(5, 6, 5), (4, 4, 5), (None, 9, 7)]
    rows = [colored(best_known=best, dsatur=dsatur, one_call=call) for best, dsatur, call in found]
    rows.append(colored(best_known=10, dsatur=20))
    rows[0].chromatic, rows[1].chromatic, rows[0].seconds["one_call"] = 5.5, 6.0, 9.0
    summary = scores.summarize(rows)
    assert summary["chromatic_mae"] == 1.25
    one_call = summary["methods"]["one_call"]
    assert (one_call["graphs"], one_call["mean_gap"], one_call["dsatur_gap_there"]) == (3, 0.5, 0.5)
    assert (one_call["wins"], one_call["ties"], one_call["losses"]) == (2, 0, 1)
    assert (one_call["at_best_known"], one_call["median_seconds"]) == (1, 0.5)
    assert summary["methods"]["dsatur"]["mean_gap"] == (1 + 0 + 10) / 3
    assert "tabucol" not in summary["methods"]


def test_a_family_with_two_parts_counts_in_the_first_part_too():
    found = [("q = 5, n = 128", 5, 6, 5), ("q = 5, n = 16", 5, 6, 6), ("b", 4, 4, 5)]
    rows = [colored(family, best, dsatur=dsatur, one_call=call) for family, best, dsatur, call in found]
    for number, row in enumerate(rows):
        row.published = {"other": number == 0}
    families = scores.by_family(rows)
    assert [(name, summary["graphs"]) for name, summary in families.items()] == [
        ("b", 1), ("q = 5", 2), ("q = 5, n = 16", 1), ("q = 5, n = 128", 1),
    ]  # fmt: skip
    assert families["q = 5"]["methods"]["one_call"]["solved"] == families["q = 5"]["published"]["other"] == 0.5


def test_planted_colorings_count_in_a_row_of_their_own(report: dict):
    found = [("er", 4, 5), ("geometric", 6, 4), ("planted", 4, 20), ("leighton", 4, 10)]
    rows = [colored(family, best, dsatur=dsatur) for family, best, dsatur in found]
    summary, families = scores.summarize(scores.without_planted(rows)), scores.by_family(rows)
    gaps = {name: group["methods"]["dsatur"]["mean_gap"] for name, group in families.items()}
    assert gaps == {
        "er": 1, "geometric": -2, "leighton": 6, "planted": 16, "1 to 99 nodes": -0.5, "planted coloring": 11,
    }  # fmt: skip
    text = render(report | {"summary": summary, "families": families})
    assert summary["methods"]["dsatur"]["mean_gap"] == -0.5 and "below 0, a method has found fewer" in text
    assert "Graphs with a planted coloring" in text and "Graphs with a planted coloring" not in render(report)
    assert scores.without_planted(rows[2:]) == rows[2:] and "planted coloring" not in scores.by_family(rows[2:])


def test_the_verdict_says_what_to_use():
    def verdict(**more: int) -> str:
        changes = [{method: 7 + change + i % 2 for method, change in more.items()} for i in range(8)]
        return scores.verdict([colored(rule=7, **change) for change in changes], 0.2)

    assert verdict() == verdict(untrained=1) == ""
    better = "saves 2.50 ± 0.19 colors against TabuCol and 1.50 ± 0.19 against the untrained rule: use it."
    assert verdict(tabucol=2, untrained=1) == f"On 8 graphs with 0.2 s each, this file {better}"
    worse = "saves -1.50 ± 0.19 colors against TabuCol: no clear gain over TabuCol shows here."
    assert verdict(tabucol=-2).endswith(worse)
    shipped = "; the shipped file saves 4.00 ± 0.00 against TabuCol: use the shipped file for such graphs."
    assert verdict(tabucol=2, shipped=-2).endswith(shipped)
    same = [colored(rule=7 + i % 2, tabucol=9, shipped=8 - i % 2) for i in range(8)]
    assert scores.verdict(same, 1).endswith(": use it or the shipped one, these graphs cannot tell them apart.")
