"""JavaScript: the golden vectors, the example of the docs, and the page in Chromium."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any
from xml.etree import ElementTree

import fuzzing as fuzz
import networkx as nx
import numpy as np
import pytest
from dimacs import read_solution, write_col
from playwright.sync_api import Browser, Page
from tiny_runs import ROOT

from gnn_training.contract import GOLDEN_FILE, OUTPUTS, SHIPPED_MODEL, WEB_FILE
from gnn_training.data.sources import parse, read
from gnn_training.errors import UserError
from gnn_training.graph import Graph, is_proper, num_colors
from gnn_training.graph_objects import as_graph
from gnn_training.onnx_program.session import Model, from_logits
from gnn_training.search.first_colorings import clique_size
from gnn_training.search.kernels import dsatur

WEB = ROOT / "clients" / "web"
QUEENS = ROOT / "examples" / "queen8_8.col"
pytestmark = pytest.mark.slow
MAY_BE = "may be a header or an edge; remove it, or move it to the end"
GOLDEN = """
import { readFileSync } from "node:fs";
import * as ort from "onnxruntime-web";
ort.env.wasm.numThreads = 1;
const [file, golden] = process.argv.slice(2);
const session = await ort.InferenceSession.create(readFileSync(file), { logSeverityLevel: 3 });
const integers = (values, shape) => new ort.Tensor("int64", BigInt64Array.from(values.flat(), BigInt), shape);
const answers = [];
for (const { inputs } of JSON.parse(readFileSync(golden)).cases) {
  const size = inputs.batch.length;
  const outputs = await session.run({
    node_features: new ort.Tensor("float32", new Float32Array(size * 16), [size, 16]),
    edge_index: integers(inputs.edge_index, [2, inputs.edge_index[0].length]),
    batch: integers(inputs.batch, [size]),
    num_colors: integers(inputs.num_colors, [inputs.num_colors.length]),
    seed: integers([inputs.seed], []),
    steps: integers([inputs.steps], []),
  });
  answers.push(Object.fromEntries(Object.entries(outputs).map(([name, { data }]) => [name, [...data]])));
}
console.log(JSON.stringify(answers));
"""
MODULE = """
import { color, predict } from "%s";
const queens = JSON.parse(process.argv[2]);
const timed = async (...options) => {
  const start = performance.now();
  return [await color(...options), (performance.now() - start) / 1000];
};
const refused = (...options) => color(...options).then(() => "taken", ({ name }) => name);
console.log(JSON.stringify({
  once: await color(queens, { seconds: 0, steps: 200 }),
  again: await color(queens, { seconds: 0, steps: 200 }),
  other: await color(queens, { seconds: 0, steps: 200, seed: 1 }),
  predicted: await predict(queens, { steps: 200 }),
  enough: await timed(queens, { seconds: 100, k: 9 }),
  late: await timed(queens, { seconds: 2 }),
  clique: await timed([[0, 1], [1, 2], [2, 0], [2, 2], [1, 0]], { seconds: 100 }),
  edgeless: await color([], { size: 3 }),
  empty: await color([]),
  refused: [await refused([[0]]), await refused([[0, -1]]), await refused([[0, 3]], { size: 3 }),
            await refused([[0, 1]], { seconds: -1 }), await refused([[0, 1]], { model: "none.onnx" })],
}));
"""
GREEDY = """
import { readFileSync } from "node:fs";
import { cliqueSize, dsatur } from "%s";
const graphs = JSON.parse(readFileSync(0));
console.log(JSON.stringify(graphs.map((graph) => [cliqueSize(graph), dsatur(graph)])));
"""
FRAMES = """() => {  // the longest time between two frames from now on
  window.longest = 0;
  let before = performance.now();
  const tick = (now) => {
    window.longest = Math.max(window.longest, now - before);
    before = now;
    requestAnimationFrame(tick);
  };
  requestAnimationFrame(tick);
}"""
TRANSFER = """() => {
  const transfer = new DataTransfer();
  transfer.items.add(new File(["8 9\\n9 10\\n10 8"], "triangle.txt"));
  return transfer;
}"""
READ = """
import { readFileSync } from "node:fs";
import { readGraph } from "%s";
const answers = JSON.parse(readFileSync(0)).map(([name, text]) => {
  try {
    const { size, edges } = readGraph(name, text);
    return [size, edges.sort(([a, b], [c, d]) => a - c || b - d)];
  } catch (error) {
    return error.message;
  }
});
console.log(JSON.stringify(answers));
"""


@pytest.fixture(scope="module")
def address(modules: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "gnn_training", "serve", "--port", "0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        yield re.search(r"http://\S+", process.stdout.readline())[0]
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0


@pytest.fixture(scope="module")
def page(address: str, chromium: Browser) -> Iterator[Page]:
    page, requests, errors = chromium.new_page(), [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("requestfailed", lambda request: errors.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
    page.goto(address)
    finish(page)
    yield page
    page.close()
    assert len(requests) > 8 and all(re.match(rf"({address}/|blob:{address}/)", url) for url in requests)
    assert not errors


@pytest.fixture
def node(modules: Path, tmp_path: Path) -> Callable[..., Any]:
    """Runs a module of JavaScript in Node.js, from the top folder; returns what it prints."""

    def node(program: str, *arguments: str | Path, given: Any = None) -> Any:
        (tmp_path / "node_modules").symlink_to(modules)
        (tmp_path / "program.mjs").write_text(program)
        command = ["node", tmp_path / "program.mjs", *arguments]
        text = json.dumps(given)
        done = subprocess.run(command, cwd=ROOT, input=text, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout)

    return node


def finish(page: Page, state: str = "done") -> str:
    """Wait for the page and return the number of colors that it shows, or its sentence."""
    page.wait_for_selector(f"body[data-state={state}]", timeout=60_000)
    return page.inner_text("#error" if state == "error" else "#result")


def slide(page: Page, name: str, value: int) -> None:
    """Move a slider. The steps count in places of the slider."""
    change = "(slider, value) => { slider.value = value; slider.oninput(); slider.onchange(); }"
    page.eval_on_selector(f"#{name}", change, value)


def downloaded(page: Page, folder: Path) -> np.ndarray:
    """The colors (N,) in the file that the page gives."""
    with page.expect_download() as download:
        page.click("#download")
    path = folder / download.value.suggested_filename
    download.value.save_as(path)
    return read_solution(path)


def colors_of(page: Page, path: Path, folder: Path) -> np.ndarray:
    """Open a file in the page; the proper colors (N,) that it gives, as many as it shows."""
    page.set_input_files("#file", path)
    shown = finish(page)
    colors = downloaded(page, folder)
    assert is_proper(read(path).graph, colors)
    assert shown == f"{num_colors(colors)} colors"
    return colors


def test_the_page_reads_the_same_graphs_as_python(node: Callable[..., Any]):
    files = []
    for seed in range(2000):
        rng = Random(seed)
        name, write = rng.choice([("a.col", fuzz.col), ("a.edges", fuzz.edge_list)])
        with suppress(UnicodeDecodeError):
            files.append((name, fuzz.damage(write(fuzz.random_pairs(rng)), rng).decode()))
    accepted = 0
    for (name, text), answer in zip(files, node(READ % (WEB / "graph.js"), given=files), strict=True):
        try:
            graph = parse(name, text.encode()).graph
        except UserError as error:
            # What Python takes for one of two kinds of graphs is an edge list for the page.
            is_refused = isinstance(answer, str) and "\n" not in answer
            assert is_refused or re.search(" may be | lines follow", str(error)), (text, error, answer)
        else:
            is_same = answer == [graph.num_nodes, graph.edges.tolist()]
            assert is_same or re.search(
                "this page colors graphs of 1 to|more than the names of two nodes|may be a header|is alone", answer
            ), text
            accepted += 1
    assert accepted > 200


def test_the_module_colors_edges_in_time(node: Callable[..., Any]):
    graph = read(QUEENS).graph
    found = node(MODULE % (WEB / "color.js"), json.dumps(graph.edges.tolist()))
    colorings = [found["once"], found["other"], found["enough"][0], found["late"][0]]
    assert all(is_proper(graph, np.array(colors)) for colors in colorings)
    assert found["once"] == found["again"] != found["other"]
    for seed, name in enumerate(["once", "other"]):
        assert found[name] == from_logits(graph, Model().predict(graph, steps=200, seed=seed).logits[0]).tolist()
    chromatic = float(Model().predict(graph, steps=200).chromatic[0])
    assert found["predicted"] == {"colors": found["once"], "chromatic": round(chromatic)}
    assert num_colors(np.array(found["enough"][0])) == 9 <= num_colors(np.array(found["once"]))
    assert found["enough"][1] < 60 and 1 < found["late"][1] < 10 and found["clique"][1] < 10
    assert sorted(found["clique"][0]) == [0, 1, 2]
    assert (found["edgeless"], found["empty"]) == ([0, 0, 0], [])
    assert found["refused"] == ["TypeError", "TypeError", "RangeError", "RangeError", "Error"]


def test_the_types_have_the_options_of_the_module():
    options = re.search(r"color\(edges, \{(.*?)\} = \{\}\)", (WEB / "color.js").read_text())[1]
    types = re.findall(r"^  (\w+)\?:", (WEB / "color.d.ts").read_text(), re.MULTILINE)
    assert sorted(types) == sorted(re.findall(r"\w+", re.sub(r"= \d+", "", options)))


def test_dsatur_and_cliques_in_javascript_are_those_of_python(node: Callable[..., Any]):
    graphs = [as_graph(nx.fast_gnp_random_graph(80, p, seed=1)) for p in (0, 0.1, 0.5, 0.9, 1)]
    graphs += [read(QUEENS).graph, as_graph(nx.mycielski_graph(5))]
    given = [{"size": graph.num_nodes, "edges": graph.edges.tolist()} for graph in graphs]
    for graph, (clique, colors) in zip(graphs, node(GREEDY % (WEB / "graph.js"), given=given), strict=True):
        assert clique == clique_size(graph.csr())
        assert colors == dsatur(*graph.csr()).tolist()


def test_golden_vectors_hold_in_javascript(node: Callable[..., Any]):
    model, golden = (SHIPPED_MODEL.with_name(name) for name in (WEB_FILE, GOLDEN_FILE))
    vectors = json.loads(golden.read_text())
    for case, answer in zip(vectors["cases"], node(GOLDEN, model, golden), strict=True):
        for name in OUTPUTS:
            assert np.abs(np.array(answer[name]) - np.ravel(case["outputs"][name])).max() <= vectors["tolerance"]


def test_the_page_colors_files_properly(page: Page, tmp_path: Path):
    random, tree = nx.fast_gnp_random_graph(120, 0.1, seed=1), nx.random_labeled_tree(200, seed=2)
    named = tmp_path / "cities.edgelist"
    named.write_text("# roads\n" + "".join(f"city{u}, city{v}\n" for u, v in random.edges))
    files = {
        QUEENS: 9,
        write_col(tmp_path, nx.mycielski_graph(6), "myciel5"): 6,
        write_col(tmp_path, tree, "tree"): 2,
        write_col(tmp_path, nx.fast_gnp_random_graph(50, 0.5, seed=3), "dense"): None,
        named: None,
    }
    for path, expected in files.items():
        found = num_colors(colors_of(page, path, tmp_path))
        assert expected in (None, found)


def test_the_page_says_what_is_optimal_and_saves_pictures(page: Page, tmp_path: Path):
    colors_of(page, write_col(tmp_path, nx.cycle_graph(5), "ring"), tmp_path)
    assert "\nAt least 2 colors needed. The greedy method DSATUR finds 3.\n" in page.inner_text("#facts")
    assert "\nWith a hundred times the steps, 3 are predicted.\n" in page.inner_text("#facts")
    colors = colors_of(page, QUEENS, tmp_path)
    assert "\nAt least 8 colors needed. The greedy method DSATUR finds 12.\n" in page.inner_text("#facts")
    for name in ("png", "svg"):
        with page.expect_download() as download:
            page.click(f"#{name}")
        assert download.value.suggested_filename == f"queen8_8.{name}"
        download.value.save_as(tmp_path / f"picture.{name}")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    drawing = ElementTree.parse(tmp_path / "picture.svg")
    assert [int(text.text) - 1 for text in drawing.iter("{http://www.w3.org/2000/svg}text")] == colors.tolist()
    path = next(drawing.iter("{http://www.w3.org/2000/svg}path")).get("d")
    assert path.count("M") == path.count("L") == 728
    colors_of(page, write_col(tmp_path, nx.path_graph(4), "path"), tmp_path)
    facts = page.inner_text("#facts")
    assert "\nNo coloring has fewer colors. " in facts and "predicted" not in facts


def test_a_file_can_be_dropped_and_drawn_on(page: Page, tmp_path: Path):
    page.dispatch_event("main", "drop", {"dataTransfer": page.evaluate_handle(TRANSFER)})
    assert finish(page) == "3 colors" and "triangle: 3 nodes, 3 edges" in page.inner_text("#facts")
    page.click("#draw")
    page.click("#clear")
    page.wait_for_selector("body[data-state=empty]")
    box = page.locator("#canvas").bounding_box()
    places = [(box["x"] + x, box["y"] + y) for x, y in [(100, 100), (300, 100), (200, 250), (200, 400)]]
    for place in places:
        page.mouse.click(*place)
    for u, v in [(0, 1), (1, 2), (2, 0), (2, 3)]:
        page.mouse.move(*places[u])
        page.mouse.down()
        page.mouse.move(*places[v], steps=3)
        page.mouse.up()
    page.wait_for_selector("#result:text-is('3 colors')")
    assert "drawing: 4 nodes, 4 edges" in page.inner_text("#facts")
    colors = downloaded(page, tmp_path)
    assert is_proper(Graph.from_edges(4, [(0, 1), (1, 2), (0, 2), (2, 3)]), colors)
    page.mouse.click(200 + box["x"], 100 + box["y"])  # on the edge between the first two
    page.wait_for_selector("#result:text-is('2 colors')")
    page.mouse.click(*places[2])  # the node with all other edges
    page.wait_for_selector("#result:text-is('1 color')")
    assert "drawing: 3 nodes, 0 edges" in page.inner_text("#facts")


def test_the_page_stays_alive_and_can_stop(page: Page, tmp_path: Path):
    colors_of(page, QUEENS, tmp_path)
    page.evaluate(FRAMES)
    slide(page, "steps", 8)
    finish(page, "busy")
    finish(page)
    seconds = float(re.search(r"([\d.]+) s$", page.inner_text("#facts"))[1])
    longest = page.evaluate("() => new Promise((told) => requestAnimationFrame(() => told(window.longest)))") / 1000
    assert seconds > 0.5 and longest < seconds / 2
    slide(page, "steps", 11)
    page.click("#stop")
    assert finish(page, "stopped") == "Stopped" and page.is_disabled("#download")
    slide(page, "steps", 4)
    assert finish(page).endswith("colors")


def test_the_sliders_set_steps_and_seed(page: Page, tmp_path: Path):
    slide(page, "steps", 0)
    assert num_colors(colors_of(page, QUEENS, tmp_path)) == 12  # DSATUR's
    assert page.inner_text("#steps-value") == "0"
    slide(page, "steps", 6)
    finish(page)
    first = downloaded(page, tmp_path)
    assert num_colors(first) < 12 and page.inner_text("#steps-value") == "500"
    slide(page, "seed", 1)
    finish(page)
    second = downloaded(page, tmp_path)
    assert is_proper(read(QUEENS).graph, second) and (second != first).any()
    assert page.inner_text("#seed-value") == "1"


def test_the_picture_is_on_the_first_screen_of_a_phone(page: Page, tmp_path: Path):
    colors_of(page, QUEENS, tmp_path)
    size = page.viewport_size
    page.set_viewport_size({"width": 390, "height": 844})
    picture, buttons = (page.locator(name).bounding_box() for name in ("#canvas", "#actions"))
    wide = page.evaluate("document.documentElement.scrollWidth")
    page.set_viewport_size(size)
    assert picture["y"] + picture["height"] <= 844 and picture["width"] == wide == 390
    assert picture["y"] + picture["height"] <= buttons["y"]


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("a.col", "p edge 3 1\ne 1 2\ne 1 4\n", "line 3: edge 1-4 is outside the nodes 1..3 of the header; correct it"),
        ("a.txt", "1 2\n\n# no\n3\n", 'line 4: "3" is alone; an edge list has two nodes per line'),
        ("a.txt", "0 1 1\n1 0 1\n1 1 0\n", 'line 1: "0 1 1" has more than the names of two nodes; keep these'),
        ("a.txt", "4 2\n0 1\n1 2\n", f'the first line, "4 2", {MAY_BE}'),
        ("a.txt", "from,to\na,b\n", f'the first line, "from to", {MAY_BE}'),
        ("a.png", "1 2", "name a file that ends in .col, .edgelist, .edges, .txt"),
    ],
)
def test_a_bad_file_gets_one_sentence(page: Page, tmp_path: Path, name: str, text: str, sentence: str):
    (tmp_path / name).write_text(text)
    page.set_input_files("#file", tmp_path / name)
    assert finish(page, "error") == f"{name}: {sentence}."
    assert page.inner_text("#result") == "" and page.is_disabled("#download")
