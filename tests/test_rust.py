"""The Rust crate: style, its own tests, its search, calls of the file that give the same colors as in Python, and its
reader, which agrees with that of Python.
"""

import os
import re
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import networkx as nx
import pytest
from checkout import CRATE, runtime_library, why_no_crate
from dimacs import queens, read_solution, write_col
from fuzzing import col, damaged, explore, one_sentence, random_pairs
from tiny_runs import ROOT

from gnn_training.contract import SHIPPED_MODEL
from gnn_training.data import suites
from gnn_training.data.formats import parse_dimacs
from gnn_training.errors import UserError
from gnn_training.graph import is_proper, num_colors
from gnn_training.graph_objects import as_graph
from gnn_training.onnx_program.session import Model, from_logits
from gnn_training.search.first_colorings import clique_size

# The crates are fetched and compiled once per checkout.
UNABLE = why_no_crate()
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.skipif(bool(UNABLE), reason=UNABLE)]


def cargo(*arguments: str | Path, crate: Path = CRATE, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run cargo in the folder of a crate; all build in the same place."""
    env = os.environ | {"CARGO_TARGET_DIR": str(CRATE / "target")} | variables
    return subprocess.run(["cargo", *arguments], cwd=crate, env=env, capture_output=True, text=True)


def color(*arguments: str, crate: Path = CRATE) -> subprocess.CompletedProcess[str]:
    """Run the example that calls the network."""
    command = ("run", "--quiet", "--locked", "--example", "calls", "--", *arguments)
    return cargo(*command, crate=crate, ORT_DYLIB_PATH=runtime_library())


def search(*arguments: str, crate: Path = CRATE) -> subprocess.CompletedProcess:
    """Run the program that searches, in an environment that has nothing but Rust, from another folder."""
    env = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "CARGO_HOME", "RUSTUP_HOME")}
    env |= {"CARGO_TARGET_DIR": str(CRATE / "target")}
    command = ["cargo", "run", "--quiet", "--locked", "--no-default-features", "--manifest-path", crate / "Cargo.toml"]
    return subprocess.run([*command, "--", *arguments], cwd=ROOT, env=env, capture_output=True, text=True)


GRAPHS = [queens(*board) for board in ((5, 5), (6, 6), (7, 7), (8, 8), (8, 12))]
GRAPHS += [replace(as_graph(nx.mycielski_graph(order)), name=f"myciel{order - 1}") for order in (4, 5, 6, 7, 8)]


def test_style_holds_for_all_features():
    formatted = cargo("fmt", "--check")
    assert formatted.returncode == 0, formatted.stdout + formatted.stderr
    for features in ("--all-features", "--no-default-features"):
        linted = cargo("clippy", "--locked", "--all-targets", features, "--", "-D", "warnings")
        assert linted.returncode == 0, linted.stderr


def test_the_crate_passes_its_own_tests_with_nothing_else():
    tests = cargo("test", "--locked", ORT_DYLIB_PATH="")
    assert tests.returncode == 0, tests.stdout + tests.stderr
    passed = [int(count) for count in re.findall(r"(\d+) passed; 0 failed", tests.stdout)]
    assert sum(passed) > 15 and "ignored, needs ORT_DYLIB_PATH" in tests.stdout


def test_the_search_needs_no_onnx_runtime():
    packages = cargo("tree", "--locked", "--no-default-features", "--edges", "normal", "--prefix", "none")
    assert packages.returncode == 0 and "thiserror" in packages.stdout
    assert not re.search(r"^(ort|libloading)", packages.stdout, re.MULTILINE)


def test_the_search_colors_a_file_with_the_rule_of_a_model(tmp_path: Path):
    model, path = Model(), write_col(tmp_path, queens(8, 8))
    run = search("color", str(path), "--seconds", "60", "--target", "9", "--seed", "1", "--model", str(model.path))
    assert run.returncode == 0 and "9 colors, at least 8 needed" in run.stderr, run.stderr
    path.with_suffix(".sol").write_text(run.stdout)
    colors = read_solution(path.with_suffix(".sol"))
    assert is_proper(queens(8, 8), colors) and num_colors(colors) == 9
    again = search("color", str(path), "--seconds", "0", "--start", str(path.with_suffix(".sol")))
    assert again.returncode == 0 and " 9 colors (start)" in again.stderr and again.stdout.startswith("s col 9"), again


def test_help_is_no_error():
    run = search("--help")
    assert run.returncode == 0 and run.stdout.startswith("usage: coloring-gnn-rs color GRAPH.col")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("color",), "coloring-gnn-rs color GRAPH.col"),
        (("color", "none.col"), "none.col: No such file"),
        (("color", "README.md"), "README.md: line 1: "),
        (("color", "examples/queen8_8.col", "--seconds", "soon"), '--seconds is a number, not "soon"'),
        (("color", "examples/queen8_8.col", "--seconds", "-1"), "--seconds is 0 to 1e9"),
        (("color", "examples/queen8_8.col", "--model", "LICENSE"), "LICENSE: the file has no trained rule"),
        (("color", "examples/queen8_8.col", "--start", "LICENSE"), "LICENSE: line 1: "),
    ],
)
def test_the_program_says_what_is_wrong_in_one_line(arguments: tuple[str, ...], complaint: str):
    run = search(*arguments)
    assert run.returncode == 1 and not run.stdout
    assert complaint in run.stderr
    assert len(run.stderr.splitlines()) == 1


def test_onnx_runtime_writes_no_device_id(tmp_path: Path):
    """A few variables only: those of a CI service would switch telemetry off, too."""
    built = cargo("build", "--locked", "--example", "calls")
    assert built.returncode == 0, built.stderr
    command = [CRATE / "target/debug/examples/calls", SHIPPED_MODEL, CRATE / "examples/queen8_8.col"]
    for allowed in ({}, {"ORT_DISABLE_TELEMETRY": "0"}):
        env = {"ORT_DYLIB_PATH": runtime_library(), "HOME": str(tmp_path)} | allowed
        subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)
        assert bool(list(tmp_path.iterdir())) == bool(allowed)


def test_a_call_in_rust_and_in_python_gives_ten_benchmark_graphs_the_same_colors(tmp_path: Path):
    model = Model()
    for graph in GRAPHS:
        path = write_col(tmp_path, graph)
        run = color(str(SHIPPED_MODEL), str(path))
        assert run.returncode == 0, run.stderr
        assert f"at least {clique_size(graph.csr())} needed" in run.stderr
        path.with_suffix(".sol").write_text(run.stdout)
        colors = read_solution(path.with_suffix(".sol"))
        assert is_proper(graph, colors)
        assert colors.tolist() == from_logits(graph, model.predict(graph).logits[0]).tolist()


def test_rust_solves_by_later_calls_what_one_call_leaves(tmp_path: Path):
    model, hard = Model(), (case.graph for case in suites.q_coloring() if "q5_n64_m368" in case.graph.name)
    calls = ((graph, model.predict(graph, seconds=60).logits[0]) for graph in hard)
    graph = next(graph for graph, logits in calls if num_colors(from_logits(graph, logits)) > 5)
    run = color(str(SHIPPED_MODEL), str(write_col(tmp_path, graph)), "10")  # the second call finds them after 3
    assert run.stdout.startswith("s col 5\n"), run.stdout + run.stderr


def test_the_packed_crate_colors_its_own_example(tmp_path: Path):
    packed = cargo("package", "--locked", "--allow-dirty", "--no-verify")
    assert packed.returncode == 0, packed.stderr
    archive = max((CRATE / "target" / "package").glob("*.crate"), key=os.path.getmtime)
    with tarfile.open(archive) as crate:
        crate.extractall(tmp_path, filter="data")
    unpacked = tmp_path / archive.stem
    assert (unpacked / "coloring_gnn.onnx").read_bytes() == SHIPPED_MODEL.read_bytes()
    for run in (
        color(str(SHIPPED_MODEL), "examples/queen8_8.col", crate=unpacked),
        search("color", str(unpacked / "examples/queen8_8.col"), "--seconds", "60", "--target", "9", crate=unpacked),
    ):
        assert run.returncode == 0 and run.stdout.startswith("s col 9"), run.stdout + run.stderr
    assert (unpacked / "README.md").read_text() == (CRATE / "../../docs/RUST.md").read_text()


@pytest.fixture(scope="module")
def crate() -> Iterator[subprocess.Popen[str]]:
    """The program that reads a file per line."""
    assert cargo("build", "--locked", "--example", "edges").returncode == 0
    edges = CRATE / "target/debug/examples/edges"
    with subprocess.Popen(edges, stdin=-1, stdout=-1, text=True, bufsize=1) as process:
        yield process
        process.stdin.close()


@pytest.mark.fuzz
def test_python_and_rust_read_the_same_graph_or_refuse_it(crate: subprocess.Popen[str]):
    def check(content: bytes) -> str:
        print(content.hex(), file=crate.stdin)
        by_rust = crate.stdout.readline()
        try:
            graph = parse_dimacs(content).graph
        except UserError as error:
            assert by_rust.startswith("line "), by_rust
            return one_sentence(error)
        assert by_rust == " ".join([str(graph.num_nodes), *(f"{u}-{v}" for u, v in graph.edges.tolist())]) + "\n"
        return "accepted"

    explore(check, damaged(lambda rng: col(random_pairs(rng))), quick=500)
