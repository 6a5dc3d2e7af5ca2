"""The measurement of GPUs: on pretended ones, and what it keeps where parts fail."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny_runs
from tiny_runs import ROOT

from benchmarks import gpu
from benchmarks.gpu import PARTS, Options, measure_part
from gnn_training.errors import UserError


def start(data: Path, out: Path, environment: dict[str, str], *flags: object) -> tuple[str, str, dict]:
    """Measure in small; stderr, the page and the numbers."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--preset", "smoke", "--seconds", "0.2", "--data", data]
    command = [*map(str, [*command, "--out", out, *flags])]
    done = subprocess.run(command, env=environment, cwd=out.parent, capture_output=True, text=True, timeout=500)
    page = (out / "gpu.md").read_text()
    assert done.returncode == 1 and page in done.stdout, done.stdout + done.stderr
    return done.stderr, page, json.loads((out / "gpu.json").read_text())


@pytest.mark.nightly  # ten processes that load torch
@pytest.mark.timeout(600)
def test_on_pretended_gpus_all_is_measured_and_a_gap_unlike_that_of_the_cpu_is_told(
    gpus, tiny_data: Path, tmp_path: Path
):
    """They compute nothing, so the gap is another one."""
    said, page, found = start(tiny_data, tmp_path / "out", gpus.environment(2))
    problems = (
        r"agreement: the mean gap is \S+ on the GPU and \S+ on the CPU: report it",
        r"children: only \d+% .*: report it",
    )
    assert re.fullmatch(f"gpu: {'; '.join(problems)}\n", said), said
    assert list(found) == list(PARTS)
    assert [row["device"] for row in found["agreement"]["rows"]] == ["cpu fp32", "cuda fp32", "cuda bf16"]
    assert len(found["rounds"]["rows"]) == 5 and all(row["GPU"] > 0 < row["cores"] for row in found["rounds"]["rows"])
    assert [row["batch size"] for row in found["step"]["rows"]] == [1, 4, 8, 32]
    assert [(row["ranks"], row["batch size"]) for row in found["ranks"]["rows"]] == [(1, 16), (2, 8)]
    assert all(row["peak GiB"] > 0 and row["busy"] > 0 for row in found["ranks"]["rows"])
    for name, part in found.items():  # what the page explains is there
        columns = {*part["rows"][0], *(row.get("") for row in part["rows"])}
        named = re.findall(r"\*(\w[\w -]+)\*", " ".join(PARTS[name].__doc__.split()))
        assert named and columns.issuperset(named) and all(f"| {column} " in page for column in named), name
    assert not [log for log in gpus.logs() if "problem" in log]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_without_a_gpu_a_part_says_so_and_cores_are_measured_by_the_one_file_of_the_image(tiny_data, tmp_path: Path):
    (tmp_path / "benchmarks").mkdir()
    shutil.copy(ROOT / "benchmarks/gpu.py", tmp_path / "benchmarks")
    (tmp_path / "gnn_training").symlink_to(ROOT / "gnn_training")
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    flags = ("--parts", "rounds", "ranks", "--ranks", 1, 2, "--price-per-hour", 3)
    said, page, found = start(tiny_data, tmp_path / "out", environment, *flags)
    assert said.startswith("gpu: rounds: ") and said.count("\n") == 1 and said[len("gpu: rounds: ") : -1] in page
    alone, both = found["ranks"]["rows"]
    assert alone["efficiency"] == 1 == 2 * both["efficiency"] / both["speed-up"]
    assert alone["steps"] == both["steps"] and alone["waiting"] == 0 < both["waiting"]
    assert both["cost"] == pytest.approx(both["seconds"] * 3 / 3600) and alone["cost"] < alone["seconds"] * 3 / 3600


def test_results_are_not_overwritten_parts_are_those_there_are_and_end_in_time(tiny_data: Path, tmp_path: Path):
    with pytest.raises(UserError, match=r"^machine: 0 minutes are over: --minutes allows more$"):
        gpu.main(Options(tiny_data, tmp_path / "out", ("machine",), minutes=0.0))
    with pytest.raises(UserError, match="--parts step2: the parts are machine, agreement"):
        gpu.main(Options(tiny_data, tmp_path, ("machine", "step2")))
    (tmp_path / "gpu.json").touch()
    with pytest.raises(UserError, match="name another folder with --out"):
        gpu.main(Options(tiny_data, tmp_path))


def measure(out: Path, end: Exception | signal.Signals | None) -> None:

    def part(options: Options) -> Iterator[dict]:
        """Two of *a*."""
        yield {"a": 1}
        yield {"a": 12345.6}
        if isinstance(end, Exception):
            raise end
        if end:
            signal.raise_signal(end)

    PARTS["step"] = part
    gpu.note(out, "step", failed="it was interrupted")
    measure_part("step", Options(out, out), os.getppid())


@pytest.mark.parametrize(
    ("end", "code", "failed"),
    [
        (signal.SIGKILL, -9, "it was interrupted"),
        (UserError("no GPU"), 0, "no GPU"),
        (ValueError("a mistake"), 0, "ValueError: a mistake"),
        (None, 0, ""),
    ],
)
def test_what_was_measured_before_the_end_is_kept(tmp_path: Path, end, code: int, failed: str):
    assert tiny_runs.finish(measure, tmp_path, end) == code
    found, page = json.loads((tmp_path / "gpu.json").read_text()), (tmp_path / "gpu.md").read_text()
    assert found["step"] == {"rows": [{"a": 1}, {"a": 12345.6}], "failed": failed}
    assert "| a      |\n|--------|\n| 1      |\n| 12,346 |\n" in page
    assert (f"**It failed: {failed}**" in page) == bool(failed)
