"""The page of a run: its numbers, its commands, nothing from elsewhere, and how Chromium shows it."""

import html
import json
import re
import shlex
from pathlib import Path

import browser
import numpy as np
import pytest
from dimacs import queens, write_col
from matplotlib.image import imread

from gnn_training.__main__ import COMMANDS, parse
from gnn_training.jobs.evaluate import evaluate
from gnn_training.report.page import page
from gnn_training.report.scores import METHODS
from gnn_training.settings import EvaluateSettings


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path, compiled: None) -> dict:
    """What an evaluation of three graphs has written, with the search and TabuCol."""
    folder = tmp_path_factory.mktemp("graphs & more")
    for size in (3, 4, 6):
        write_col(folder, queens(size, size))
    file = folder / "report.json"
    evaluate(EvaluateSettings(graphs=folder, model=tiny_model, report=file, threads=1, seconds=0.1, tabucol=True))
    assert file.with_suffix(".html").read_text() == page(json.loads(file.read_text()))
    return json.loads(file.read_text())


@pytest.fixture
def training(trained: Path) -> tuple[dict, dict, list[dict]]:
    """Manifest, settings and records of a training."""
    status, config = (json.loads((trained / name).read_text()) for name in ("status.json", "config.json"))
    manifest = {
        "training": status, "seconds": {"data": 12.0, "train": 300.0}, "hours": 0.0867, "price_per_hour": 30.0,
        "cost": 2.6, "version": "1.2.3", "git_revision": "c0ffee",
    }  # fmt: skip
    return manifest, config, [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]


def rows(text: str) -> dict[str, list[str]]:
    """Cells of the rows of all tables by the title of the row."""
    found = re.findall(r"<tr><th>(.*?)</th>(.*?)</tr>", text.replace("<wbr>", ""), re.DOTALL)
    return {title: re.findall(r"<td>(.*?)</td>", cells, re.DOTALL) for title, cells in found}


def test_an_evaluation_shows_every_method_every_graph_and_a_picture(report: dict):
    text, methods = page(report), report["summary"]["methods"]
    assert list(methods) == ["dsatur", "rlf", "tabucol", "one_call", "search"]
    for method, score in methods.items():
        assert rows(text)[METHODS[method]][:2] == ["3", f"{score['mean_colors']:.2f}"]
    assert "<th>mean gap</th>" not in text and "best known</th>" not in text  # nobody knows the best numbers
    example, first = report["example"], report["graphs"][0]
    cells = [first["num_nodes"], first["num_edges"], *(first["colors"][method] for method in methods)]
    assert rows(text)[first["name"]][: len(cells)] == list(map(str, cells))
    assert "DSATUR there" not in text and "gap is the number" not in text  # which are not there
    assert f"{example['name']} has {example['num_nodes']} nodes and {len(example['edges'])} edges" in text
    for method, title in (("dsatur", "DSATUR"), ("one_call", "one call")):
        assert f">{title}: {len(set(example['colorings'][method]))} colors</text>" in text
    assert "What was trained" not in text


def test_a_training_shows_what_it_was_and_what_it_has_gained(report: dict, training: tuple):
    manifest, config, records = training
    text = page(report | {"verdict": "Use it."}, *training)
    assert re.search(r'</h1>\s*<p class="verdict">Trained for .* \(40\s+steps\) on .*\. Use it\.</p>', text)
    assert "<h2>Graphs</h2>" not in text
    said = {title: " ".join(cells) for title, cells in rows(text).items()}
    assert f"40 steps, preset {config['preset']}" in said["trained"]
    assert "data 12 s, train 5 min 0 s" in said["time"] and "2.60" in said["cost"] and "30.00 an hour" in said["cost"]
    assert f"1 &times; cpu; {report['machine']['cpus']} cores" in said["machine"]
    assert text.count("<svg role=") == 5


def test_no_cost_is_invented(report: dict, training: tuple):
    manifest, *rest = training
    unpriced = {name: value for name, value in manifest.items() if name not in ("cost", "price_per_hour")}
    assert rows(page(report, unpriced, *rest))["cost"] == ["unknown: price_per_hour was not given"]


def test_the_commands_on_the_page_are_those_of_the_program(report: dict, training: tuple):
    commands = [shlex.split(html.unescape(text)) for text in re.findall(r"<pre>(.*?)</pre>", page(report, *training))]
    ours = [words for program, *words in commands if program == "coloring-gnn"]
    assert len(ours) == 3
    for command, *flags in ours:
        assert command in COMMANDS and parse(command, flags)


def test_the_page_needs_no_script_and_nothing_from_elsewhere(report: dict, training: tuple):
    text = page(report, *training)
    assert "<script" not in text and not re.findall(r"\b(?:src|href)=\"(?!#)|url\((?!#)|@import", text)
    assert set(re.findall(r"https?://[^\"]+", text)) == {"http://www.w3.org/1999/xlink", "http://www.w3.org/2000/svg"}


def test_the_same_numbers_give_the_same_page(report: dict, training: tuple):
    assert page(report, *training) == page(report, *training)


def test_names_of_files_and_graphs_are_no_markup(report: dict):
    text = page(report | {"example": report["example"] | {"name": "<b>&"}, "families": {"<i>_x": report["summary"]}})
    assert "&lt;b&gt;&amp; has" in text and "<b>" not in text and "<i>" not in text
    assert "graphs &amp; more" in text


# Chromium makes no window as narrow as a phone, so the page is in a frame. It follows the colors of the frame's page.
FRAME = """<!doctype html><meta name="color-scheme" content="light dark">
<style>* {{ margin: 0; border: 0; display: block }}</style>
<iframe width="{width}" height="900" srcdoc="{page}"></iframe>
<script>onload = () => {{
  const {{ body, documentElement }} = frames[0].document, ink = body.querySelector("svg text")
  const [paper, text] = [[body, "background-color"], [ink, "fill"]].map(
    ([element, name]) => frames[0].getComputedStyle(element).getPropertyValue(name).match(/\\d+/)[0])
  console.log(["measured", documentElement.scrollWidth, paper, text, ""].join(";"))
}}</script>"""


@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_chromium_shows_the_page_narrow_and_wide_dark_and_light(
    report: dict, training: tuple, tmp_path: Path, width: int, scheme: str
):
    frame, picture = tmp_path / "frame.html", tmp_path / "screenshot.png"
    frame.write_text(FRAME.format(width=width, page=html.escape(page(report, *training))))
    prefers = f"--blink-settings=preferredColorScheme={['dark', 'light'].index(scheme)}"
    messages = browser.console(frame, prefers, f"--window-size={width},900", f"--screenshot={picture}")
    assert len(messages) == 1, messages  # an error would be another one
    assert (found := re.search(r"measured;(\d+);(\d+);(\d+);", messages[0])), messages
    scroll_width, paper, ink = map(int, found.groups())
    assert scroll_width <= width  # wide tables scroll on their own
    assert paper < 50 < 200 < ink if scheme == "dark" else ink < 50 < 200 < paper
    shown = imread(picture)
    assert shown.shape[:2] == (900, width)
    assert np.median(shown[..., :3]) == pytest.approx(paper / 255, abs=0.02) and shown[..., :3].std() > 0.05
