"""The whole job: its steps, what makes them done, its processes and signals, and once for real."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

import gnn_training.jobs.run as job
from gnn_training.errors import MachineError, StorageError, UserError
from gnn_training.jobs.run import Step, StepRecord
from gnn_training.launch import ranks
from gnn_training.launch.nodes import resolve
from gnn_training.processes import TIMED_OUT, Supervisor, beside
from gnn_training.settings import GenerateSettings, ImportSettings, RunSettings, smoke

ROOT = Path(__file__).parents[1]
SUPERVISE = """
import sys
from gnn_training.processes import Supervisor
with Supervisor() as supervisor:
    code = supervisor.run(["-c", sys.argv[1]])
print(code, supervisor.signals)
"""
PARENT_OF_SLEEPER = """
import subprocess, sys
child = subprocess.Popen(["sleep", "60"])
print("started", child.pid, flush=True)
child.wait()
"""
STOPPED = '{"status": "stopped"}'
DEAF = """
import signal, time
signal.signal(signal.SIGTERM, lambda *_: print("heard", flush=True))
print("started", 0, flush=True)
while True: time.sleep(1)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def supervise(script: str) -> tuple[subprocess.Popen[str], int]:
    """A process that supervises `script`, which prints "started" and the process to watch."""
    command = [sys.executable, "-c", SUPERVISE, script]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, int(process.stdout.readline().removeprefix("started "))


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def assert_ends(pid: int) -> None:
    deadline = time.monotonic() + 10
    while is_running(pid):
        assert time.monotonic() < deadline, "the process lives on"
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_child_and_its_children(number: signal.Signals):
    process, sleeper = supervise(PARENT_OF_SLEEPER)
    process.send_signal(number)
    assert f"[{int(number)}]" in process.communicate(timeout=10)[0]
    assert_ends(sleeper)


def test_second_signal_kills_a_child_that_does_not_leave():
    process, _ = supervise(DEAF)
    process.terminate()
    assert process.stdout is not None and process.stdout.readline() == "heard\n"
    process.terminate()
    assert process.communicate(timeout=10)[0] == "137 [15, 15]\n"


def test_no_process_outlives_a_supervisor_that_is_killed():
    script = "import os, time; print('started', os.getpid(), flush=True); time.sleep(60)"
    process, child = supervise(script)
    process.kill()
    process.wait()
    assert_ends(child)


def test_supervisor_returns_the_exit_code_and_keeps_what_went_to_stderr(tmp_path: Path):
    with Supervisor() as supervisor:
        assert supervisor.run(["-c", "raise SystemExit('why')"], tmp_path / "new" / "errors") == 1
    assert (tmp_path / "new" / "errors").read_text() == "why\n"


def step(*files: Path, seed: int = 0, **fields) -> Step:
    return Step("data", "generate", GenerateSettings(seed=seed), files, **fields)


def test_step_is_done_until_settings_or_files_change(tmp_path: Path):
    product, record = tmp_path / "product", StepRecord(tmp_path / "steps.json")
    product.write_text("1")
    assert not record.is_done(step(product))
    record.add(step(product))
    again = StepRecord(tmp_path / "steps.json")
    assert again.is_done(step(product))
    assert not again.is_done(step(product, seed=1))
    product.write_text("22")
    assert not again.is_done(step(product))
    product.unlink()
    assert not again.is_done(step(product))


def test_folder_has_changed_when_any_of_its_files_has(tmp_path: Path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/graph.col").write_text("1")
    record = StepRecord(tmp_path / "steps.json")
    record.add(step(tmp_path / "deep"))
    assert record.is_done(step(tmp_path / "deep"))
    (tmp_path / "deep/other.col").write_text("1")
    assert not record.is_done(step(tmp_path / "deep"))


def test_time_of_a_step_adds_up_over_its_starts(tmp_path: Path):
    product, record = tmp_path / "product", StepRecord(tmp_path / "steps.json")
    product.touch()
    record.spend(step(product), 2.0)
    assert not record.is_done(step(product)) and record.num_done() == 0
    record.add(step(product))
    StepRecord(record.path).spend(step(product), 0.5)
    again = StepRecord(record.path)
    assert again.is_done(step(product)) and again.num_done() == 1
    assert json.loads(record.path.read_text())["data"]["seconds"] == 2.5


def test_step_without_files_is_done_only_with_the_step_it_serves(tmp_path: Path):
    product, record = tmp_path / "product", StepRecord(tmp_path / "steps.json")
    product.touch()
    record.add(step())
    assert not record.is_done(step())
    assert not record.is_done(step(serves=step(product)))
    record.add(step(product))
    assert record.is_done(step(serves=step(product)))


def names(settings: RunSettings) -> list[str]:
    return [step.name for step in job.plan(settings)]


def test_without_data_a_recipe_is_generated(here: Path):
    data, *_, evaluate, _ = job.plan(smoke())
    assert data.settings == GenerateSettings(recipe="smoke", out=Path("training_data/smoke-0"))
    assert evaluate.arguments()[:2] == ["evaluate", "training_data/smoke-0"]
    assert names(smoke()) == list(job.STEPS)


def test_packed_data_is_taken_as_it_is(here: Path):
    for folder in (Path("training_data"), Path("mine")):
        folder.mkdir()
        (folder / "manifest.json").touch()
    assert names(smoke()) == list(job.STEPS[1:])
    assert job.plan(smoke())[0].settings.data == Path("training_data")
    named = smoke().model_copy(update={"data": Path("mine")})
    assert job.plan(named)[0].settings.data == Path("mine")


def test_other_data_is_imported_into_the_run_folder(here: Path):
    (here / "training_data/graphs").mkdir(parents=True)
    (here / "training_data/graphs/train_000000.json").touch()
    imported = ImportSettings(sources=(Path("training_data/graphs"),), out=Path("runs/smoke/data"))
    assert job.plan(smoke())[0].settings == imported
    named = job.plan(smoke().model_copy(update={"data": Path("col")}))[0]
    assert named.settings == imported.model_copy(update={"sources": (Path("col"),)})


def test_archive_in_training_data_is_imported_and_of_several_none(here: Path):
    (here / "training_data").mkdir()
    (here / "training_data/mine.tar.gz").touch()
    assert job.plan(smoke())[0].settings.sources == (Path("training_data/mine.tar.gz"),)
    (here / "training_data/other.tar.gz").touch()
    with pytest.raises(UserError, match=r"mine.tar.gz, other.tar.gz .* name one with --data"):
        job.plan(smoke())


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("gnn_training: no data\ngnn_training: no data\nTraceback\nRuntimeError: x\n", "no data"),
        ("[rank1]: Traceback\n[rank1]: torch.OutOfMemoryError: CUDA out of memory\n", "torch.OutOfMemoryError: CUDA"),
        ("[rank0]: RuntimeError: reset\nE1 failed (exitcode: -9) local_rank: 1 (pid: 7)\n", "rank 1 was killed"),
        ("usage: run.py\nrun.py: error: ambiguous option\n", "run.py: error: ambiguous option"),
        ("", "without a word"),
    ],
)
def test_end_of_the_ranks_is_told_in_one_sentence(tmp_path: Path, text: str, sentence: str):
    (tmp_path / "torchrun.log").write_text(text)
    assert str(ranks._cause(tmp_path / "torchrun.log")).startswith((sentence, f"training failed: {sentence}"))


@pytest.mark.parametrize(("code", "error"), [(2, UserError), (3, MachineError), (4, StorageError), (1, UserError)])
def test_kind_of_what_a_rank_said_is_kept(tmp_path: Path, code: int, error: type[UserError]):
    said = f"gnn_training: why\nE1 failed (exitcode: {code}) local_rank: 1 (pid: 7)\n  exitcode  : {code} (pid: 7)\n"
    (tmp_path / "torchrun.log").write_text(said)
    assert type(ranks._cause(tmp_path / "torchrun.log")) is error


def start_training(monkeypatch: pytest.MonkeyPatch, torchrun: str) -> None:
    """The training step with a torchrun that is a script."""
    monkeypatch.setattr(ranks, "TORCHRUN", ["-c", f"import sys; from pathlib import Path\n{torchrun}"])
    settings = smoke().model_copy(update={"processes": 2, "device": "cpu"})
    step = next(step for step in job.plan(settings) if step.name == "train")
    with Supervisor() as supervisor:
        job._do(step, ranks.Ranks(settings, resolve({}), supervisor))


def test_ranks_that_were_stopped_and_saved_give_143_though_torchrun_says_1(here: Path, monkeypatch):
    with pytest.raises(SystemExit) as leaving:
        start_training(monkeypatch, f"Path('runs/smoke/status.json').write_text({STOPPED!r}); sys.exit(1)")
    assert leaving.value.code == 143


def test_sentence_of_an_earlier_run_is_not_taken_for_this_one(here: Path, monkeypatch):
    (here / "runs/smoke").mkdir(parents=True)
    (here / "runs/smoke/status.json").write_text(STOPPED)
    with pytest.raises(UserError, match="no data"):
        start_training(monkeypatch, "sys.exit('gnn_training: no data')")


def test_torchrun_gets_the_door_after_a_separator(here: Path, monkeypatch):
    start_training(monkeypatch, "Path('argv').write_text(' '.join(sys.argv[1:]))")
    assert "2 -m -- gnn_training train --preset smoke --data training_data/smoke-0" in Path("argv").read_text()


def test_dry_run_prints_the_commands_and_does_nothing(here: Path, capsys):
    job.run(smoke().model_copy(update={"processes": 2, "dry_run": True}))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "python -m gnn_training generate --recipe smoke --out training_data/smoke-0"
    assert re.match(
        r"OMP_NUM_THREADS=\d+ python -m torch.distributed.run --standalone .*-m -- gnn_training train", lines[2]
    )
    assert len(lines) == len(job.STEPS)
    assert not list(here.iterdir())


def test_child_that_takes_too_long_is_killed_with_its_children(tmp_path: Path):
    watched: list[int] = []
    with Supervisor() as supervisor:
        assert supervisor.run(["-c", PARENT_OF_SLEEPER], limit=1, watch=lambda: watched.append(1)) == TIMED_OUT
    assert watched


def test_process_beside_ends_with_the_body(tmp_path: Path):
    script = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    with beside(["-c", script], tmp_path / "errors"):
        deadline = time.monotonic() + 10
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.02)
    assert_ends(int((tmp_path / "pid").read_text()))


def test_failing_step_ends_the_job_with_its_exit_code_and_its_own_words(here: Path):
    command = [sys.executable, "-m", "gnn_training", "run", "--preset", "smoke", "--data", "nowhere"]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == 2
    assert re.fullmatch(r"gnn_training: .*nowhere.*\n", done.stderr)
    assert "data failed with exit code 2; the same command continues here" in done.stdout


def marked(mark: str) -> dict[int, str]:
    """Command lines of the processes that have this in their environment."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark.encode() in (process / "environ").read_bytes():
                found[int(process.name)] = (process / "cmdline").read_bytes().decode().replace("\0", " ")
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("whom", "number", "code"),
    [("run", signal.SIGTERM, 143), ("run", signal.SIGINT, 130), ("train", signal.SIGKILL, 5)],
)
def test_no_process_outlives_a_job_that_is_stopped_or_loses_a_rank(here: Path, tiny_data: Path, whom, number, code):
    flags = ["--preset", "smoke", "--data", str(tiny_data), "--processes", "2", "--steps", "100000"]
    mark = f"MARK={here}"
    untraced = {name: value for name, value in os.environ.items() if not name.startswith("COV")}  # it may be killed
    env = untraced | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MARK": str(here)}
    command = [sys.executable, "-m", "gnn_training", "run", *flags]
    with open("said", "w") as said:
        job = subprocess.Popen(command, env=env, stdout=said, stderr=said)
    deadline = time.monotonic() + 120
    while "step     10 | train" not in Path("said").read_text():
        assert time.monotonic() < deadline and job.poll() is None, Path("said").read_text()
        time.sleep(0.1)
    running = marked(mark)
    ranks = [pid for pid, line in running.items() if "gnn_training train" in line and "distributed" not in line]
    assert len(ranks) == 2
    os.kill(job.pid if whom == "run" else ranks[1], number)
    assert job.wait(timeout=60) == code, Path("said").read_text()
    for pid in running:
        if pid != os.getpid():
            assert_ends(pid)
    told = re.findall("^gnn_training: .*$", Path("said").read_text(), re.MULTILINE)
    assert len(told) == (code == 5)
    if code != 5:
        assert json.loads(Path("runs/smoke/status.json").read_text())["status"] == "stopped"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_whole_job_makes_a_model_and_then_has_nothing_left_to_do(here: Path):
    flags = ["--preset", "smoke", "--steps", "6", "--warmup-steps", "1", "--evaluate-every", "6", "--processes", "2"]
    command = [sys.executable, "-m", "gnn_training", "run", *flags]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    first = subprocess.run(command, env=env, capture_output=True, text=True)
    assert first.returncode == 0, first.stdout + first.stderr
    for number, name in enumerate(job.STEPS, 1):
        assert f"{number}/7 {name}: done in" in first.stdout
    assert "colors above the best known on 40 validation graphs: dsatur" in first.stdout
    assert json.loads(Path("runs/smoke/report.json").read_text())["summary"]["graphs"] == 40
    second = subprocess.run(command, env=env, capture_output=True, text=True)
    assert second.returncode == 0
    assert second.stdout.count("already done") == 1
