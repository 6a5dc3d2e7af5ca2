"""What runs first on a new GPU, on a pretended one and up to the first failure, and the benchmark of training."""

import json
import shutil
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
import tiny_runs
import torch
from tiny_runs import ROOT

from benchmarks import first_gpu, training_speed
from benchmarks.first_gpu import STEPS, Failed, Options, Trial
from gnn_training.data.families import draw
from gnn_training.errors import MachineError, UserError


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packed graphs."""
    return tiny_runs.pack(tmp_path_factory.mktemp("graphs"), [draw(1, "er_dense", i, 300) for i in range(12)]).folder


OFFLINE = ["unshare", "--net", "--map-root-user", "sh", "-c", 'ip link set lo up && exec "$0" "$@"']


def start(out: Path, data: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run the script on pretended GPUs, without a network where the system lets a test do without."""
    flags = ["--quick", "--minutes", "1", "--data", data, "--out", out]
    environment |= {"GNN_VENV": sys.prefix}
    may_be_offline = shutil.which("unshare") and subprocess.run([*OFFLINE, "true"]).returncode == 0
    command = [*OFFLINE * bool(may_be_offline), ROOT / "scripts/first_gpu.sh", *flags]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1100)


@pytest.mark.nightly  # two minutes
@pytest.mark.timeout(1200)
def test_all_steps_are_done_and_leave_their_numbers(gpus, graphs: Path, tmp_path: Path):
    out = tmp_path / "out"
    done = start(out, graphs, gpus.environment(2))
    assert done.returncode == 0, done.stdout + done.stderr
    numbers, page = json.loads((out / "first_gpu.json").read_text()), (out / "first_gpu.md").read_text()
    assert numbers["failure"] is None and list(numbers["seconds"]) == list(numbers["found"]) == list(STEPS)
    assert all(f"\n## {name}\n" in page for name in STEPS) and "they mean nothing" in page
    found = numbers["found"]
    assert [row["device"] for row in found["compare"]["rows"]] == ["cpu fp32", "cuda fp32", "cuda bf16"]
    assert found["compare"]["rows"][0]["same_in_all_steps"] == 1
    assert found["rounds"]["rows"][0]["gpu_rounds_per_second"] > 0
    assert [row["ranks"] for row in found["ranks"]["rows"]] == [1, 2] and found["ranks"]["rows"][0]["efficiency"] == 1
    assert 0 < found["train"]["stopped_at_step"] < found["train"]["steps"] == 40
    assert [row["step of the job"] for row in found["train"]["rows"]] == ["check", "train", "export"]
    said = (out / "run-continued.log").read_text()
    assert "resuming at step" in said and "4/7 export: stopped" in said
    assert tiny_runs.status(out / "run")["ranks"] == 2 and not [log for log in gpus.logs() if "problem" in log]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "sentence", "done"),
    [
        pytest.param({"gib": 0.5}, "step 3/8 check: the job would not start: a rank needs about", ["machine", "graphs"],
                     marks=pytest.mark.nightly),
        ({"CUDA_VISIBLE_DEVICES": ""}, f"step 1/8 machine: torch {torch.__version__} cannot use the GPU", []),
    ],
)  # fmt: skip
def test_the_first_failure_stops_it_with_a_sentence_and_a_page(gpus, graphs: Path, tmp_path, options, sentence, done):
    out = tmp_path / "out"
    stopped = start(out, graphs, gpus.environment(**options))
    assert stopped.returncode == MachineError.exit_code and stopped.stderr.startswith(f"first_gpu: {sentence}")
    assert stopped.stderr.count("\n") == 1 and sentence in (out / "first_gpu.md").read_text()
    numbers = json.loads((out / "first_gpu.json").read_text())
    assert list(numbers["found"]) == done and sentence in numbers["failure"]


def test_results_are_not_overwritten(tmp_path: Path):
    (tmp_path / "first_gpu.json").touch()
    with pytest.raises(UserError, match="name another folder with --out"):
        first_gpu.main(Options(out=tmp_path))


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    return Trial(Options(out=tmp_path))


@pytest.mark.parametrize(
    ("program", "sentence", "code"),
    [
        ("import sys; print('coloring-gnn: a cause'); print('a warning'); sys.exit(3)", "a cause (exit code 3", 3),
        ("raise ValueError('a mistake')", "ValueError: a mistake (exit code 1", 1),
        ("import os; os.kill(os.getpid(), 9)", "killed by signal 9, perhaps out of memory", 137),
        ("import time; time.sleep(60)", "45 minutes are over: ", 124),
    ],
)
def test_a_process_that_fails_or_takes_too_long_is_told_by_its_sentence(trial: Trial, program, sentence, code: int):
    trial.deadline = time.monotonic() + (1 if "sleep" in program else 60)
    with pytest.raises(Failed) as raised:
        trial.child("x", ["-c", program])
    assert str(raised.value).startswith(sentence) and raised.value.exit_code == code


@pytest.mark.parametrize(("gpu", "is_refused"), [(1.05, False), (1.2, True), (float("nan"), True)])
def test_another_mean_gap_on_the_gpu_than_on_the_cpu_is_a_failure(monkeypatch, trial: Trial, gpu: float, is_refused):
    monkeypatch.setattr(trial, "measure", lambda *_: {"rows": [{"gap": 1.0}, {"gap": gpu}, {"gap": 1.0}]})
    with pytest.raises(MachineError, match="on the GPU and 1.00 on the CPU") if is_refused else nullcontext():
        first_gpu.compare(trial)
    assert "compare" in trial.results


def test_the_page_has_the_numbers_and_what_to_do_next(trial: Trial):
    trial.results = {"steps": {"rows": [{"batch_size": 128, "searches_per_second": 90.0}]}}
    first_gpu.write(trial, {"steps": 1.0}, "the disk is full")
    page = (trial.out / "first_gpu.md").read_text()
    for words in ("It stopped: the disk is full", "| 128 | 90 |", "start again with another folder"):
        assert words in page


@pytest.mark.parametrize(("call", "each"), [(5.0, 0.01), (0.0, 1e-6), (0.1, 2.0)])
def test_what_a_call_costs_besides_its_rounds_does_not_count(monkeypatch, call: float, each: float):
    clock = [0.0]
    monkeypatch.setattr(training_speed.time, "perf_counter", lambda: clock[0])

    def run(rounds: int) -> None:
        clock[0] += call + each * rounds

    assert training_speed.rounds_per_second(run, seconds=3.0) == pytest.approx(1 / each)


def test_compiled_loops_and_tensors_search_the_same_graph_from_the_same_coloring():
    forms = training_speed.forms(40)
    for rounds in (1, 30, 60):
        _, _, conflicts, *_ = forms["compiled, one thread"](rounds)
        assert forms["tensors"](rounds) == [conflicts] == forms["tensors, 16 graphs"](rounds)[:1]
    assert len(set(forms["tensors, 16 graphs"](60))) > 1
