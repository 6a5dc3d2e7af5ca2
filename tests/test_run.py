"""The whole job: its steps, what makes them done, its signals, and once for real."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from checkout import answers, free_port
from dimacs import write_col
from small_graphs import random_graph
from tiny_runs import ROOT, assert_end, marked, status, wait_for

import gnn_training.jobs.run as job
from gnn_training import __version__, machine
from gnn_training.__main__ import main
from gnn_training.data.location import locate
from gnn_training.errors import UserError
from gnn_training.jobs.run import Step, StepRecord
from gnn_training.settings import (
    GenerateSettings,
    ImportSettings,
    RunSettings,
    TrainSettings,
    from_preset,
)  # fmt: skip

smoke = partial(from_preset, RunSettings, "smoke")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own, and an environment without torchrun's variables."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in ("RANK", "LOCAL_RANK", "GNN_TRAINING_PRESET", "GNN_WORKSPACE", "GNN_NO_VOLUME", *machine.PODS):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def plan(settings: RunSettings) -> list[Step]:
    return job.plan(settings, locate(settings))


def step(*files: Path, seed: int = 0, **fields) -> Step:
    return Step("data", "generate", GenerateSettings(seed=seed), files, **fields)


@pytest.fixture
def record(here: Path) -> StepRecord:
    """Of a folder with a file `product` and another in the folder `deep`."""
    (here / "deep").mkdir()
    for name in ("product", "deep/graph.col"):
        (here / name).write_text("1")
    return StepRecord(here / "steps.json")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("product", lambda path: path.unlink()),
        ("product", lambda path: path.write_text("22")),
        ("deep", lambda path: (path / "other.col").touch()),
    ],
)
def test_step_is_done_until_settings_or_files_change(record: StepRecord, name: str, change):
    assert not record.is_done(step(Path(name)))
    record.add(step(Path(name)), 1.0, is_done=True)
    again = StepRecord(record.path)
    assert again.is_done(step(Path(name))) and not again.is_done(step(Path(name), seed=1))
    change(Path(name))
    assert not again.is_done(step(Path(name)))


def test_time_of_a_step_adds_up_over_its_starts(record: StepRecord):
    record.add(step(Path("product")), 2.0, is_done=False)
    assert not record.is_done(step(Path("product")))
    record.add(step(Path("product")), 0.5, is_done=True)
    assert json.loads(record.path.read_text())["data"]["seconds"] == 2.5


@pytest.mark.parametrize("content", [b"", b"[" * 100_000, b'{"data": {}}'])
def test_damaged_record_makes_no_step_done_and_is_written_again(record: StepRecord, caplog, content: bytes):
    record.path.write_bytes(content)
    damaged = StepRecord(record.path)
    assert "steps.json: is damaged" in caplog.text and "doing all steps again" in caplog.text
    assert not damaged.is_done(step(Path("product")))
    damaged.add(step(Path("product")), 1.0, is_done=True)
    assert StepRecord(record.path).is_done(step(Path("product")))


def test_training_whose_records_are_lost_is_not_done():
    train = next(step for step in plan(smoke()) if step.name == "train")
    assert {"best.pt", "status.json", "config.json", "metrics.jsonl"} <= {path.name for path in train.files}


def finished(here: Path, ranks: int = 1, device: str = "cpu") -> RunSettings:
    """Leave the files and records of a job on packed graphs, done by so many ranks; its settings."""
    (here / "mine").mkdir()
    (here / "mine/manifest.json").touch()
    settings = smoke().model_copy(update={"data": Path("mine"), "price_per_hour": 41.0})
    contents = {"status.json": {"ranks": ranks, "device": device},
                "report.json": {"summary": {"graphs": 1, "methods": {}}, "verdict": "use it"}}  # fmt: skip
    steps = plan(settings)
    for path in {path for step in steps for path in step.files}:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(contents.get(path.name)))
    (here / "models/trained_model.tar.gz").write_bytes(bytes(1_230_000))
    record = StepRecord(settings.run / "steps.json")
    for done in steps:
        record.add(done, 60.0, is_done=False)  # a start that was stopped counts
        record.add(done, 60.0, is_done=True)
    return settings


@pytest.mark.parametrize("version", ["0.6.0", None])
def test_what_another_version_has_done_is_done_again_and_told(here: Path, caplog, monkeypatch, version: str | None):
    caplog.set_level("INFO")
    settings = finished(here)
    states = json.loads((settings.run / "steps.json").read_text())
    assert states["export"].pop("version") == __version__
    states["export"] |= {"version": version} if version else {}
    (settings.run / "steps.json").write_text(json.dumps(states))
    monkeypatch.setattr(job.processes, "run_python", lambda _: 0)
    for is_told in (True, False):
        job.run(settings)
        told = f"4/7 export ... again: it was done by version {version or '0.6.0 or older'}"
        assert caplog.messages.count(told) == ("again" in caplog.text) == is_told
        caplog.clear()


@pytest.mark.parametrize(
    ("ranks", "device", "where"),
    [(8, "NVIDIA B200", "8 ranks on 8 x NVIDIA B200"), (1, "AMD MI300X", "1 rank on 1 x AMD MI300X"),
     (2, "cpu", "2 ranks on the cores")],
)  # fmt: skip
def test_the_end_of_a_job_says_what_it_took_and_what_to_fetch(here: Path, caplog, monkeypatch, ranks, device, where):
    caplog.set_level("INFO")
    settings = finished(here, ranks, device)
    job.run(settings)
    fetch = "fetch models/trained_model.tar.gz (1.2 MB): it has the model, the report and the weights"
    assert caplog.messages[-2:] == [f"{where}, 12 min 0 s in all, 8.20 at 41 an hour", fetch]
    caplog.clear()
    (here / "mounts").write_text(f"1 0 8:1 /docker/containers/{64 * 'c'}/hostname /etc/hostname rw - ext4 /dev/vda rw")
    monkeypatch.setattr(machine, "MOUNTS", here / "mounts")
    monkeypatch.setenv("GNN_WORKSPACE", str(here))
    job.run(settings)
    copied = f"docker cp {12 * 'c'}:{here}/models ."
    assert "--rm would delete them" in caplog.messages[0] and caplog.messages[0].endswith(copied)
    assert caplog.messages[-1] == f"the results are in this container, fetch them: {copied}"


def test_step_that_prepares_another_is_done_with_it(record: StepRecord):
    record.add(step(), 1.0, is_done=True)
    assert not record.is_done(step())
    assert not record.is_done(step(prepares=step(Path("product"))))
    record.add(step(Path("product")), 1.0, is_done=True)
    assert record.is_done(step(prepares=step(Path("product"))))


def test_number_of_ranks_does_not_make_a_training_undone(record: StepRecord):
    eight, four = (Step("train", "train", TrainSettings(ranks=n), (Path("product"),)) for n in (8, 4))
    record.add(eight, 1.0, is_done=True)
    assert record.is_done(four)


def test_data_is_generated_taken_or_imported(here: Path):
    """tests/test_readers.py has what is taken without --data."""

    def first_step(**changes: object) -> Step:
        return plan(smoke().model_copy(update=changes))[0]

    assert first_step().settings == GenerateSettings(recipe="smoke", out=Path("training_data/smoke-0"))
    assert [step.name for step in plan(smoke())] == list(job.STEPS)
    (here / "training_data/graphs").mkdir(parents=True)
    (here / "training_data/graphs/train_000000.json").touch()
    imported = ImportSettings(sources=(Path("training_data"),), out=Path("runs/smoke/data"))
    assert first_step().settings == imported
    assert first_step(data=Path("col")).settings == imported.model_copy(update={"sources": (Path("col"),)})
    for folder in (Path("training_data"), Path("mine")):
        folder.mkdir(exist_ok=True)
        (folder / "manifest.json").touch()
    assert first_step().name == "check" and first_step().settings.data == Path("training_data")
    assert first_step(data=Path("mine")).settings.data == Path("mine")


def test_results_inside_the_data_to_import_are_refused(here: Path):
    (here / "mine").mkdir()
    for changes in ({"run": Path("mine/run")}, {"run": here / "mine"}, {"models": Path("other/../mine/models")}):
        with pytest.raises(UserError, match="is inside mine, whose graphs are imported; name another --run"):
            plan(RunSettings(data=Path("mine"), **changes))


def test_gpus_are_selected_once_and_not_again_by_the_steps(here: Path):
    steps = plan(smoke().model_copy(update={"gpus": "1,4", "tensorboard": 6006}))
    settings = [step.settings for step in steps if isinstance(step.settings, TrainSettings)]
    assert [(each.gpus, getattr(each, "tensorboard", 0)) for each in settings] == [(None, 0), (None, 0)]


def test_dry_run_prints_commands_that_work_when_pasted(here: Path, capsys):
    job.dry_run(smoke().model_copy(update={"ranks": 2}))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"export PYTHONPATH={ROOT}"
    assert "# ranks on this machine: 2" in lines
    commands = [shlex.split(line)[1:] for line in lines if line.startswith(sys.executable)]
    assert [command[2] for command in commands] == [step.command for step in plan(smoke())]
    assert not any("--dry-run" in command for command in commands)
    generate = shlex.join([sys.executable, *commands[0], "--dry-run"])
    done = subprocess.run(["env", "-i", "bash", "-c", f"{lines[0]}\n{generate}"], capture_output=True, text=True)
    assert done.returncode == 0 and json.loads(done.stdout)["out"] == "training_data/smoke-0", done


def test_job_under_torchrun_is_refused_before_anything_is_done(here: Path, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    for start in (job.run, job.dry_run):
        with pytest.raises(UserError, match="RANK is set: start the job once and without torchrun"):
            start(smoke())
    assert not list(here.iterdir())


def test_pod_that_cannot_be_stopped_is_refused_at_the_start(here: Path, monkeypatch):
    monkeypatch.delenv("RUNPOD_POD_ID", raising=False)
    with pytest.raises(UserError, match="stop_pod needs RUNPOD_POD_ID"):
        job.run(smoke().model_copy(update={"stop_pod": True}))


def start(*flags: str, **options) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "gnn_training", "run", "--preset", "smoke", *flags]
    untraced = {name: value for name, value in os.environ.items() if not name.startswith("COV")}  # it may be killed
    return subprocess.Popen(command, env=untraced | {"OMP_NUM_THREADS": "1"}, text=True, **options)


def test_step_that_fails_ends_the_job_with_its_exit_code_and_its_own_words(here: Path, caplog, capfd):
    caplog.set_level("INFO")
    with pytest.raises(SystemExit, match="^2$"):
        job.run(smoke().model_copy(update={"data": Path("nowhere" * 40)}))  # longer than names may be
    assert re.fullmatch(r"coloring-gnn: .*nowhere.*\n", capfd.readouterr().err)
    first, *_, last = caplog.messages
    assert re.fullmatch(r"graphs: nowhere.* \(to import\)", first)
    assert re.fullmatch("1/7 data: failed with exit code 2 after .*; the same command continues here", last)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), pytest.param(signal.SIGKILL, 5, marks=pytest.mark.nightly)]
)
def test_no_process_outlives_a_job_that_is_stopped_or_loses_a_rank(here: Path, tiny_data, monkeypatch, number, code):
    monkeypatch.setenv("MARK", str(here))
    port = free_port()
    with open("said", "w") as said:
        flags = ["--data", str(tiny_data), "--ranks", "2", "--steps", "100000", "--tensorboard", str(port)]
        process = start(*flags, stdout=said, stderr=said)
    # Only this machine reaches TensorBoard: 127.0.0.2 is this machine, too, but not the address it listens on.
    wait_for(lambda: "step 10/" in Path("said").read_text() and answers(port), process)
    assert not answers(port, "127.0.0.2")
    running = [pid for pid in marked(f"MARK={here}") if pid != os.getpid()]
    ranks = [pid for pid, line in marked(f"MARK={here}").items() if "spawn_main" in line]
    assert len(ranks) == 2
    os.kill(process.pid if code == 143 else ranks[1], number)
    assert process.wait(timeout=60) == code, Path("said").read_text()
    assert_end(running)
    told = re.findall("^coloring-gnn: (.*)$", Path("said").read_text(), re.MULTILINE)
    assert told == (["rank 1 was killed by signal 9, perhaps out of memory"] if code == 5 else [])
    if code == 143:
        assert status(Path("runs/smoke"))["status"] == "stopped"
        assert "3/7 train: stopped after" in Path("said").read_text()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_whole_job_makes_a_model_and_then_has_nothing_left_to_do(here: Path, capsys):
    for seed in range(8):  # of which three are for validation
        write_col(here / "mine", random_graph(36 + seed, 0.5, seed), str(seed))
    flags = ["--data", "mine", "--games", "1", "--steps", "6", "--warmup-steps", "1", "--evaluate-every", "6"]
    flags += ["--ranks", "1", "--price-per-hour", "30"]
    first = start(*flags, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = first.communicate()
    assert first.returncode == 0, out + err
    for number, name in enumerate(job.STEPS, 1):
        assert f"{number}/7 {name}: done after" in out
    advice = "(use it|use the shipped|no clear gain)"  # whichever chance gives to so short a training
    compared = "On 3 graphs with 0.2 s each, this file .* TabuCol and .* untrained rule; the shipped file .* TabuCol"
    assert re.search(f"{compared}: {advice}", out)
    assert re.search("colors above the best known on 3 validation graphs: DSATUR .*TabuCol", out)
    last, fetch = out.splitlines()[-2:]
    assert re.search(r" 1 rank on the cores, [\d a-z]+ in all, [\d.]+ at 30 an hour$", last), last
    assert re.search(r" fetch models/trained_model.tar.gz \([\d.]+ MB\): it has the model", fetch), fetch
    assert "What was trained" in Path("runs/smoke/report.html").read_text()
    assert json.loads(Path("runs/smoke/report.json").read_text())["summary"]["graphs"] == 3
    assert main(["run", "--preset", "smoke", *flags]) == 0
    assert capsys.readouterr().out.count("already done") == 1
