"""Command lines, settings files, calls of the ONNX file and of the package with generated values.

A command ends with 0, or with one sentence and an exit code of 2 to 5; what it reads stays as it is.
"""

import io
import json
import math
import os
import shutil
from collections.abc import Iterable
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from dimacs import assert_proper, read_solution
from fuzzing import explore, refusal
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

import gnn_training
from gnn_training import settings
from gnn_training.__main__ import COMMANDS, main
from gnn_training.contract import NUM_FEATURES, OUTPUTS
from gnn_training.errors import UserError
from gnn_training.graph import num_colors
from gnn_training.model.session import Model
from gnn_training.settings import Settings

pytestmark = [pytest.mark.fuzz, pytest.mark.usefixtures("compiled")]
FILES = {
    "g.col": b"p edge 5 5\ne 1 2\ne 2 3\ne 3 4\ne 4 5\ne 5 1\n",
    "one.col": b"p edge 1 0\n",
    "-x.col": b"p edge 2 1\r\ne 1 2\r\n",
    "broken.col": b"p edge 2 1\ne 1 3\n",
    "g.edgelist": b"a b\nb c\n",
    ".gz": b"",
    "g.col.gz": b"\x1f\x8b",
    "best_known.csv": b"name,best_known\ng,3\n",
    "short.csv": b"name,best_known\ng\n",
    "settings.json": b'{"seed": 1}',
    "folder/h.col": b"p edge 3 1\ne 1 3\n",
}
PLACES = (
    *FILES, "model.onnx", "linked", "hard", "pipe", "device", "dangling", "folder", "new", "new.json", "new.png",
    "new.svg", "absent/new", "folder/new.png", "x" * 251, "x" * 300, "a/" * 2500, ".", "/dev/null", "/dev/full",
    "./g.col", "g.col/new", "\u00f6.sol", "a b", "hf://me/none", "hf://", "hf:", "\udcff.col",
)  # fmt: skip
NUMBERS = (
    "0", "1", "2", "-1", "-0.0", "1e-300", "1e300", "1e999", "nan", "inf", "-inf", "9" * 20, "9" * 5000, "1_0", "+1",
    "0x10", "\u0661", "1.5", "1e9", "4294967296", "18446744073709551616", "65536", "true", "None",
)  # fmt: skip
WORDS = ("", "-", "--", "---", "-x", "=", "smoke", "huge", "dimacs", "wandb", "auto", "cuda", "fp16", "0,1", "0,0")
ANYTHING = st.sampled_from([*PLACES, *NUMBERS, *WORDS]) | st.text(max_size=6).filter(lambda text: "\0" not in text)
COMMAND = st.sampled_from([name for name in COMMANDS if name != "run"])
NUMBER = st.integers() | st.floats() | st.sampled_from([10**9, 10**10, 2**63, 10**30])
NEEDED = {"import": {"sources": ["x"]}, "evaluate": {"graphs": "x"}, "color": {"graphs": ["x"]},
          "push": {"repo": "me/x"}}  # fmt: skip
TEXT = st.text(max_size=5) | st.sampled_from([*PLACES, *NUMBERS, *WORDS, "\0", "\ud800"])
JSON = st.recursive(
    st.none() | st.booleans() | NUMBER | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)
INTEGER = st.integers(-3, 12) | st.integers(-(2**63), 2**63 - 1) | st.sampled_from([2**31, -(2**63), 2**63 - 1])


def kind_of(command: str) -> type[Settings]:
    return getattr(settings, COMMANDS[command].settings)


def flag(command: str, values: SearchStrategy[str], leave_out: Iterable[str] = ()) -> SearchStrategy[list[str]]:
    """A flag of a command with a value, in all ways to write it."""
    names = [name for name in (*kind_of(command).model_fields, "settings", "preset") if name not in leave_out]
    flags = st.sampled_from([f"--{name.replace('_', '-')}" for name in names])
    ways = [st.tuples(flags, values), st.builds("{}={}".format, flags, values).map(lambda one: (one,)),
            st.tuples(flags), flags.map(lambda name: (name.replace("--", "--no-", 1),)), st.tuples(values)]  # fmt: skip
    return st.one_of(ways).map(list)


def fill(folder: Path, model: Path) -> None:
    """Put files of all kinds into the folder."""
    (folder / "folder").mkdir()
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    shutil.copy(model, folder / "model.onnx")
    os.link(folder / "g.col", folder / "hard")
    os.mkfifo(folder / "pipe")
    for name, target in (("linked", "g.col"), ("device", "/dev/null"), ("dangling", "nothing")):
        (folder / name).symlink_to(target)


def outcome(args: list[str]) -> int:
    """The exit code of a command line, after a look at what it has said."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code, by_tyro = main(args), False
        except SystemExit as end:
            code, by_tyro = end.code or 0, True
    said = err.buffer.getvalue().decode()
    assert "Traceback" not in said, said
    if by_tyro:  # which draws boxes, or shows the help
        assert code in (0, 2), said
    elif code:
        assert code in (2, 3, 4, 5, 6), said
        assert said.startswith("coloring-gnn: ") and said.count("\n") == 1 and said.endswith("\n"), said
    return int(code)


def test_any_flags_are_taken_or_refused_in_a_sentence(tmp_path: Path, tiny_model: Path, monkeypatch):
    fill(tmp_path, tiny_model)
    monkeypatch.chdir(tmp_path)

    def flags(command: str) -> SearchStrategy[list[list[str]]]:
        some = st.lists(flag(command, ANYTHING) | ANYTHING.map(lambda one: [one]), max_size=4)
        return some.map(lambda parts: [[command], *parts, ["--dry-run"]])

    def check(parts: list[list[str]]) -> str:
        return f"exit code {outcome(sum(parts, []))}"

    explore(check, COMMAND.flatmap(flags), quick=50)


@pytest.mark.slow  # a hundred command lines
def test_any_settings_file_is_taken_or_refused_in_a_sentence(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def content(command: str) -> SearchStrategy[tuple[str, str]]:
        names = st.sampled_from([*kind_of(command).model_fields, "preset", "settings", "dry_run", "colour"])
        values = st.dictionaries(names, JSON, max_size=2).map(NEEDED.get(command, {}).__or__) | JSON
        return st.tuples(st.just(command), values.map(json.dumps) | st.text(max_size=10))

    def check(case: tuple[str, str]) -> str:
        command, text = case
        Path("settings.json").write_bytes(text.encode("utf-8", "surrogatepass"))
        return f"exit code {outcome([command, '--settings', 'settings.json', '--dry-run'])}"

    explore(check, COMMAND.flatmap(content), quick=100)


@pytest.mark.slow  # 80 commands with real searches
@pytest.mark.parametrize("command", ["color", "evaluate"])
def test_a_command_writes_what_it_should_and_nothing_else(command: str, tiny_model: Path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    places, quick = st.sampled_from(PLACES), st.sampled_from([*["0"] * 12, "0.01", "-1", "nan", "1e10", "x"])
    values = places | st.sampled_from(NUMBERS[:11])
    options = flag(command, values, ["seconds", "suite", "settings", "threads", "limit"])
    names = {"color": ("--model", "-o", "--picture"), "evaluate": ("--model", "--report", "--best-known")}
    paths = st.tuples(st.sampled_from(names[command]), places).map(list)
    files = (*["g.col"] * 12, "linked", "hard", "one.col", "./g.col", "folder", ".", "-x.col", "broken.col", "pipe")
    graphs = st.sampled_from(files) | places.filter(lambda name: name != ".gz")

    def check(graph: str, parts: list[list[str]], seconds: str) -> str:
        args = [*(word for part in parts for word in part), "--threads", "1", "--seconds", seconds]
        with TemporaryDirectory() as folder, chdir(folder):
            fill(Path(), tiny_model)
            special = {name: os.lstat(name) for name in ("pipe", "device", "dangling", "folder")}
            code = outcome([command, *args, "--", graph])
            for name, before in special.items():
                after = os.lstat(name)
                assert (after.st_mode, after.st_ino) == (before.st_mode, before.st_ino), name
            read = {graph, *(value for part in parts for value in part if part[0] in ("--model", "--best-known"))}
            for name in read & FILES.keys():
                assert Path(name).read_bytes() == FILES[name], name
            assert not list(Path().rglob("*.tmp"))
            if command == "color" and not code and Path("g.sol").exists():
                colors = read_solution(Path("g.sol"))
                if graph == "g.col":
                    assert_proper(Path(graph), colors)
                    assert num_colors(colors) == 3
        return f"exit code {code}"

    explore(check, graphs, st.lists(paths | options, max_size=3), quick, quick=40)


def test_any_input_of_the_file_is_answered_or_refused():
    model = Model(threads=1)
    two = {"min_size": 2, "max_size": 2}
    valid = st.lists(st.lists(st.integers(0, 5), **two), max_size=12).map(lambda edges: np.reshape(edges, (-1, 2)))
    batches = st.lists(st.integers(0, 2), min_size=6, max_size=8)
    batches |= st.lists(st.integers(-500, 500), max_size=6)
    batches |= st.lists(INTEGER, max_size=6)
    pairs = st.lists(st.lists(INTEGER, **two), max_size=12).map(np.array)
    few_steps = INTEGER.filter(lambda steps: steps < 100)
    optional = {"num_colors": st.lists(INTEGER, max_size=4), "steps": few_steps | st.lists(few_steps, max_size=2),
                "seed": INTEGER | st.lists(INTEGER, max_size=2)}  # fmt: skip

    def check(rows: int | None, edges: np.ndarray, batch: list[int], options: dict[str, Any]) -> str:
        feeds = {"node_features": np.zeros((len(batch) if rows is None else rows, NUM_FEATURES), np.float32),
                 "edge_index": edges.astype(np.int64).T, "batch": np.sort(np.array(batch, np.int64))}  # fmt: skip
        feeds |= {name: np.array(value, np.int64) for name, value in options.items()}
        try:
            outputs = model._run(feeds, seconds=9)
        except TimeoutError:
            raise AssertionError("the call hangs") from None
        except Exception as error:
            assert "onnxruntime" in type(error).__module__ or isinstance(error, MemoryError), repr(error)
            return "refused"
        assert len(outputs) == len(OUTPUTS) and outputs[0].shape == (len(batch), 256)
        assert np.isfinite(outputs[0]).all()
        return "accepted"

    edges, options = valid | pairs | pairs.map(np.transpose), st.fixed_dictionaries({}, optional=optional)
    explore(check, st.none() | st.integers(0, 8), edges, batches, options)


def test_any_arguments_of_the_package_are_taken_or_refused(tiny_model: Path):
    model = Model(tiny_model, threads=1)
    number = INTEGER | st.floats() | st.none() | st.text(max_size=2)
    graphs = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=20)
    graphs |= st.lists(st.lists(number, max_size=3), max_size=5) | st.lists(st.tuples(INTEGER, INTEGER), max_size=6)
    seconds = st.sampled_from([0, 0, 0, 0, 0.001, 0.002, -1, math.nan, math.inf])

    def check(graph: Any, seconds: float, seed: Any, num_nodes: Any, steps: Any) -> str:
        try:
            colors = gnn_training.color(graph, seconds=seconds, seed=seed, model=model, num_nodes=num_nodes)
            for u, v in graph:
                assert u == v or colors[u] != colors[v]
            model.predict(np.array(graph, int).reshape(-1, 2), num_colors=[steps], seed=seed, steps=steps)
        except (TypeError, ValueError):
            return "refused"
        except UserError as error:
            return refusal(error)
        return "accepted"

    few, sizes = st.integers(0, 9), st.none() | st.integers(10, 12)
    explore(check, graphs, seconds, few | INTEGER, sizes | INTEGER, few | INTEGER.filter(lambda steps: steps < 100))
