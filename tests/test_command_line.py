"""The command line: help without torch, settings from presets, files and flags, errors in one sentence, exit codes."""

import contextlib
import errno
import logging
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from gnn_training import __main__ as program
from gnn_training import __version__, settings
from gnn_training.__main__ import COMMANDS, main, parse
from gnn_training.errors import MachineError, StorageError, TrainingError, UserError
from gnn_training.jobs import check
from gnn_training.jobs.run import plan

ROOT = Path(__file__).parents[1]
REQUIRED = {"import": ["x"], "evaluate": ["x"], "color": ["x"], "push": ["me/x"]}


def refused(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """What the command line prints about arguments that it cannot take."""
    try:
        code = main(args)
    except SystemExit as end:  # tyro has explained it
        code = end.code
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert "Traceback" not in err
    return err


@pytest.mark.parametrize("command", [None, "train", "color"])
def test_help_loads_no_heavy_library(command: str | None):
    args = [command, "--help"] if command else ["--help"]
    program = (
        f"import sys, gnn_training.__main__ as program\ntry: program.main({args})\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'torch_geometric', 'numba', 'networkx', 'onnxruntime', 'onnx', 'matplotlib', 'numpy'}\n"
        f"heavy |= set() if {command!r} else {{'pydantic', 'tyro'}}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_help_names_every_command(capsys):
    assert main([]) == main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(re.search(rf"^  {name} +[A-Z].*\.$", text, re.MULTILINE) for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_explains_every_flag(command: str, capsys):
    with pytest.raises(SystemExit) as leaving:
        main([command, "--help"])
    assert not leaving.value.code
    text = capsys.readouterr().out
    assert text.startswith(f"usage: coloring-gnn {command}")
    assert len(re.findall(r"^│ (?:-\w, )?(--[a-z-]+)", text, re.MULTILINE)) <= 40
    kind = getattr(settings, COMMANDS[command].settings)
    assert [name for name, field in kind.model_fields.items() if not field.description] == []
    on = [name for name, field in kind.model_fields.items() if field.default is True]
    assert all(f"--no-{name.replace('_', '-')} " in kind.model_fields[name].description for name in on)


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in ("run", "push")])
def test_dry_run_prints_settings_that_the_command_can_read(command: str, tmp_path: Path, capsys):
    assert main([command, *REQUIRED.get(command, []), "--dry-run"]) == 0
    file = tmp_path / "settings.json"
    file.write_text(capsys.readouterr().out)
    assert parse(command, ["--settings", str(file)]) == parse(command, REQUIRED.get(command, []))


def test_version_is_printed(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == __version__


@pytest.mark.parametrize("flags", [["--preset", "smoke"], ["--preset=smoke"]])
@pytest.mark.parametrize("command", ["run", "train", "check"])
def test_preset_sets_the_defaults_and_flags_override_them(command: str, flags: list[str]):
    resolved, _ = parse(command, [*flags, "--seed", "5"])
    smoke = settings.smoke()
    assert resolved.seed == 5
    assert (resolved.steps, resolved.run, resolved.preset) == (smoke.steps, smoke.run, "smoke")


def test_preset_comes_from_the_environment_if_none_is_named(monkeypatch, capsys):
    monkeypatch.setenv("GNN_TRAINING_PRESET", "single")
    assert parse("run", []) == (settings.single(), False)
    monkeypatch.setenv("GNN_TRAINING_PRESET", "huge")
    assert "preset (huge) should be 'smoke', 'cpu'" in refused(capsys, "run")


def test_flags_override_the_settings_file_which_overrides_the_preset(tmp_path: Path):
    file = tmp_path / "settings.json"
    file.write_text('{"preset": "smoke", "steps": 7, "warmup_steps": 3}')
    resolved, _ = parse("train", ["--settings", str(file), "--steps", "8"])
    assert resolved == settings.of_preset(settings.TrainSettings, "smoke", steps=8, warmup_steps=3)


def test_ctrl_c_while_the_program_is_imported_shows_no_traceback(tmp_path: Path):
    (tmp_path / "multiprocessing.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGINT)")
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv[0] = 'coloring-gnn'; import gnn_training.__main__"],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}, capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_folders_whose_names_begin_with_a_dash_reach_every_step(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("-r/settings").mkdir(parents=True)
    for step in plan(settings.smoke().model_copy(update={"run": Path("-r"), "models": Path("-m")})):
        _, _, command, *flags = step.arguments(Path("-r"))
        assert parse(command, flags) == (step.settings, False)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"colour": 1}', "settings.json: there is no setting colour"),
        ('{"self": 1}', "settings.json: there is no setting self"),
        ('{"steps": 7}', "settings.json: warmup_steps (10) must be below steps (7)"),
        ('{"preset": "huge"}', "settings.json: preset (huge) should be"),
        ('{"preset": [1]}', "settings.json: preset ([1]) should be"),
        ('{"name": 1, "kind": 2}', "settings.json: there is no setting name"),
        ("{", "settings.json: is damaged or not JSON"),
        ("[1]", "settings.json: is JSON, but no object of settings"),
        ("[" * 100_000, "settings.json: is damaged or not JSON"),
        (None, "settings.json: cannot be read (no such file or directory)"),
    ],
)
def test_bad_settings_file_is_refused_in_one_sentence(content: str | None, words: str, tmp_path: Path, capsys):
    file = tmp_path / "settings.json"
    if content is not None:
        file.write_text(content)
    said = refused(capsys, "train", "--settings", str(file))
    assert words in said and said.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["dance"], "coloring-gnn: there is no command dance: take one of run, check, generate"),
        (["train", "--stepz", "3"], "Unrecognized options: --stepz"),
        (["train", "--steps", "x"], "Error parsing --steps"),
        (["train", "--rounds", "0"], "coloring-gnn: rounds (0) should be greater than 0"),
        (["train", "--steps", "7"], "coloring-gnn: warmup_steps (10) must be below steps (7)"),
        (["train", "--minutes", "nan"], "minutes (nan) should be a finite number"),
        (["train", "--gpus", "0,0"], "gpus (0,0) must be numbers of GPUs, each once, such as 0,1,4"),
        (["run", "--preset", "huge"], "huge"),
        (["run", "--preset"], "Missing value for argument '--preset'"),
        (["color"], "graphs must be given"),
        (["import"], "sources must be given"),
        (["color", "x", "--seconds", "-1"], "seconds (-1.0) should be greater than or equal to 0"),
        (["color", "\udcff.col"], r"graphs ('\udcff.col') must be UTF-8 without zero bytes: rename it"),
        (["train", "--gpus", "\u0661"], "must be numbers of GPUs"),
    ],
)
def test_flags_that_cannot_be_used_are_refused(args: list[str], words: str, capsys):
    assert words in refused(capsys, *args)


def test_every_number_of_every_command_has_an_upper_limit():
    for command in COMMANDS.values():
        kind = getattr(settings, command.settings)
        for name, content in kind.model_json_schema()["properties"].items():
            if content.get("type") in ("integer", "number"):
                assert {"maximum", "exclusiveMaximum"} & content.keys(), f"{kind.__name__}.{name}"


def ending_with(error: BaseException):
    def job(_):
        raise error

    return job


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (UserError("graph.col, line 3: no"), 2, "coloring-gnn: graph.col, line 3: no\n"),
        (MachineError("no GPU"), 3, "coloring-gnn: no GPU\n"),
        (StorageError("no room"), 4, "coloring-gnn: no room\n"),
        (TrainingError("a rank died"), 5, "coloring-gnn: a rank died\n"),
        (KeyboardInterrupt(), 130, ""),
        (
            ModuleNotFoundError(name="torch"), 2,
            "coloring-gnn: this command needs torch: install the extra, pip install '.[train]' in a clone\n",
        ),
    ],
)  # fmt: skip
def test_endings_of_a_job_become_exit_codes(error, code, said, monkeypatch, capsys):
    monkeypatch.setattr(check, "check", ending_with(error))
    assert main(["check"]) == code
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("error", [AssertionError("ours"), ModuleNotFoundError(name="gnn_training.gone")])
def test_mistakes_of_the_program_keep_their_traceback(error, monkeypatch):
    monkeypatch.setattr(check, "check", ending_with(error))
    with pytest.raises(type(error)):
        main(["check"])


def test_log_lines_of_the_package_go_to_stdout_with_their_time(monkeypatch, capsys):
    def say(_: object) -> None:
        logging.getLogger("gnn_training.jobs.check").info("all well")
        logging.getLogger("library").info("not seen")

    monkeypatch.setattr(check, "check", say)
    assert main(["check"]) == 0
    assert re.fullmatch(r"\d\d:\d\d:\d\d all well\n", capsys.readouterr().out)


def test_reader_that_goes_away_leaves_no_traceback(tmp_path: Path):
    done = subprocess.run(
        f"{sys.executable} -m gnn_training run --dry-run | true", shell=True, cwd=tmp_path, capture_output=True,
        text=True, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_signal_while_libraries_are_loaded_leaves_no_traceback(tmp_path: Path, number: signal.Signals, code: int):
    """Also in code that a library compiles, such as the methods of a dataclass."""
    (tmp_path / "tyro.py").write_text(f"exec('import os; os.kill(os.getpid(), {number.value})')")
    done = subprocess.run(
        [sys.executable, "-m", "gnn_training", "color", "x"], env=os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL), capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (code, "")


def test_a_signal_that_a_library_drops_while_it_is_loaded_ends_the_command(monkeypatch):
    def load(name: str) -> SimpleNamespace:
        with contextlib.suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
        return SimpleNamespace(check=ending_with(UserError("the command has begun")))

    monkeypatch.setattr(program.importlib, "import_module", load)
    assert main(["check"]) == 128 + signal.SIGTERM


def test_shared_memory_that_is_full_is_named(monkeypatch, tmp_path: Path, capfd):
    """Semaphores are there, and the error of one has no name of a file."""
    monkeypatch.setattr(check, "check", ending_with(OSError(errno.ENOSPC, "no space")))
    monkeypatch.setattr(program, "SHARED_MEMORY", tmp_path)
    monkeypatch.setattr(program.shutil, "disk_usage", lambda folder: SimpleNamespace(free=0))
    assert main(["check"]) == 4
    assert f"{tmp_path} cannot be written (no space); make room, in a container with --" in capfd.readouterr().err


FULL = "coloring-gnn: the output cannot be written (no space left on device); make room"


@pytest.mark.parametrize(
    ("job", "redirection", "code", "out", "err"),
    [
        ("print", ">/dev/full", 4, "", FULL),
        ("log", ">/dev/full", 0, "", ""),  # the work goes on
        ("log", ">&-", 0, "", ""),
        ("log", ">&- 2>&-", 0, "", ""),
        ("print", "", 0, "ö\\udcff", ""),
        ("print", "ascii", 0, "\\xf6\\udcff", ""),
    ],
)
def test_output_that_cannot_be_written_leaves_no_traceback(job: str, redirection: str, code: int, out: str, err: str):
    program = (
        "import logging, sys; from gnn_training.__main__ import main; from gnn_training.jobs import serve;"
        "log = logging.getLogger('gnn_training').info;"
        f"serve.serve = lambda _: {job}('\\xf6\\udcff'); sys.exit(main(['serve']))"
    )
    encoding = "ascii" if redirection == "ascii" else "utf-8"
    done = subprocess.run(
        f"{shlex.join([sys.executable, '-c', program])} {redirection.removeprefix('ascii')}", shell=True, cwd=ROOT,
        capture_output=True, text=True, env=os.environ | {"PYTHONIOENCODING": encoding},
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip(), done.stderr.strip()) == (code, out, err)
