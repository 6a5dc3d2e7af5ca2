"""The door: help without torch, settings resolved and refused, errors in one sentence, exit codes."""

import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gnn_training.__main__ as door
from gnn_training import __version__, settings
from gnn_training.errors import MachineError, StorageError, TrainingError, UserError
from gnn_training.jobs import check

ROOT = Path(__file__).parents[1]
NEEDED = {"import": ["x"], "evaluate": ["x"], "color": ["x"]}


def refused(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """The one sentence that the door says to arguments it cannot take."""
    assert door.main(args) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    return err


def processor_seconds(*args: str) -> float:
    """The least of three runs of Python: what else runs on the machine does not count, how fast it is does."""
    untraced = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    seconds = []
    for _ in range(3):
        before = os.times()
        subprocess.run([sys.executable, *args], cwd=ROOT, env=untraced, check=True, stdout=subprocess.DEVNULL)
        after = os.times()
        seconds.append(sum(after[2:4]) - sum(before[2:4]))
    return min(seconds)


def test_help_takes_little_longer_than_its_libraries():
    libraries = processor_seconds("-c", "import pydantic, tyro, rich.console, rich.table, rich.panel")
    assert processor_seconds("-m", "gnn_training", "train", "--help") < 4 * libraries


@pytest.mark.parametrize("command", [None, *door.COMMANDS])
def test_help_loads_no_heavy_library(command: str | None):
    args = [command, "--help"] if command else ["--help"]
    program = (
        f"import sys, gnn_training.__main__ as door\ntry: door.main({args})\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'torch_geometric', 'numba', 'networkx', 'onnxruntime', 'onnx', 'matplotlib', 'numpy'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", door.COMMANDS)
def test_every_flag_has_its_default_in_the_help_and_there_are_not_too_many(command: str, capsys):
    with pytest.raises(SystemExit) as leaving:
        door.main([command, "--help"])
    assert not leaving.value.code
    text = capsys.readouterr().out
    flags = re.findall(r"^│ (?:-\w, )?(--[a-z-]+)", text, re.MULTILINE)
    assert len(flags) <= 35
    assert text.startswith(f"usage: python -m gnn_training {command}")


@pytest.mark.parametrize("command", [name for name in door.COMMANDS if name != "run"])
def test_dry_run_prints_the_resolved_settings_and_stops(command: str, capsys):
    assert door.main([command, *NEEDED.get(command, []), "--dry-run"]) == 0
    assert json.loads(capsys.readouterr().out)["dry_run"] is True


def test_version_is_printed(capsys):
    assert door.main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == __version__


@pytest.mark.parametrize("flags", [["--preset", "smoke"], ["--preset=smoke"]])
@pytest.mark.parametrize("command", ["run", "train", "check"])
def test_preset_sets_the_defaults_and_flags_override_them(command: str, flags: list[str]):
    resolved = door.parse(command, [*flags, "--seed", "5"])
    smoke = settings.smoke()
    assert resolved.seed == 5
    assert (resolved.steps, resolved.run, resolved.preset) == (smoke.steps, smoke.run, "smoke")


def test_preset_comes_from_the_environment_when_none_is_named(monkeypatch, capsys):
    monkeypatch.setenv("GNN_TRAINING_PRESET", "single")
    assert door.parse("run", []) == settings.single()
    monkeypatch.setenv("GNN_TRAINING_PRESET", "huge")
    assert "GNN_TRAINING_PRESET (huge) must be one of smoke, cpu" in refused(capsys, "run")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["dance"], "there is no command dance: take one of run, check, generate"),
        (["train", "--stepz", "3"], "--stepz, 3: Perhaps you meant: --steps INT"),
        (["train", "--steps", "x"], "Error parsing --steps"),
        (["train", "--steps", "0"], "steps (0) should be greater than 0"),
        (["train", "--steps", "7"], "warmup_steps (100) must be below steps (7)"),
        (["train", "--minutes", "nan"], "minutes (nan) should be a finite number"),
        (["run", "--preset", "huge"], "Expected one of ('smoke', 'cpu', 'single', 'multi')"),
        (["run", "--preset"], "Missing value for argument '--preset'"),
        (["color"], "PATH A DIMACS .col file"),
        (["import"], "sources must be given"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_in_one_sentence(args: list[str], words: str, capsys):
    assert words in refused(capsys, *args)


def test_settings_from_elsewhere_are_refused_in_the_same_words():
    with pytest.raises(UserError, match=r"^there is no setting colour$"):
        settings.TrainSettings.model_validate_json('{"colour": 1}')


def ending_with(error: BaseException):
    def job(_):
        raise error

    return job


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (UserError("graph.col, line 3: no"), 2, "gnn_training: graph.col, line 3: no\n"),
        (MachineError("no GPU"), 3, "gnn_training: no GPU\n"),
        (StorageError("no room"), 4, "gnn_training: no room\n"),
        (TrainingError("a rank died"), 5, "gnn_training: a rank died\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_endings_of_a_job_become_exit_codes(error, code, said, monkeypatch, capsys):
    monkeypatch.setattr(check, "check", ending_with(error))
    assert door.main(["check"]) == code
    assert capsys.readouterr().err == said


def test_mistakes_of_ours_keep_their_traceback(monkeypatch):
    monkeypatch.setattr(check, "check", ending_with(AssertionError("ours")))
    with pytest.raises(AssertionError):
        door.main(["check"])


def test_log_lines_of_the_package_go_to_stdout_with_their_time(monkeypatch, capsys):
    monkeypatch.setattr(check, "check", lambda _: logging.getLogger("gnn_training.jobs.check").info("all well"))
    assert door.main(["check"]) == 0
    assert re.fullmatch(r"\d\d:\d\d:\d\d all well\n", capsys.readouterr().out)


def test_reader_that_goes_away_leaves_no_traceback():
    done = subprocess.run(
        f"{sys.executable} -m gnn_training run --dry-run | true", shell=True, cwd=ROOT, capture_output=True, text=True
    )
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("command", "given"),
    [
        ("run", settings.smoke().model_copy(update={"seed": 1, "accumulate": 2, "data": Path("a b"), "minutes": 0.1})),
        ("run", settings.multi()),
        ("train", settings.TrainSettings(preset="single", learning_rate=1e-4)),
        ("check", settings.CheckSettings(processes=2)),
        ("import", settings.ImportSettings(sources=(Path("a"), Path("b")), skip_bad=True, seed=1)),
        ("export", settings.ExportSettings(run=Path("runs/x"), oldest_runtime=False)),
        ("evaluate", settings.EvaluateSettings(graphs=Path("x"), rlf=False, best_known=Path("y.csv"))),
        ("generate", settings.GenerateSettings(recipe="smoke", seed=0)),
    ],
)
def test_settings_survive_the_way_through_a_command_line(command: str, given: settings.Settings):
    assert door.parse(command, given.flags()) == given
