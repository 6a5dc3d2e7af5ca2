"""The command line: help without torch, settings from presets, files and flags, errors, exit codes, progress."""

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
from unittest.mock import Mock

import pytest
from checkout import loaded_by
from tiny_runs import ROOT

from gnn_training import __main__ as program
from gnn_training import __version__, console, settings
from gnn_training.__main__ import COMMANDS, main, parse
from gnn_training.data.location import locate
from gnn_training.errors import MachineError, StorageError, TrainingError, UserError
from gnn_training.jobs import check
from gnn_training.jobs.run import plan

AS_PROGRAM = ["-c", "import sys; sys.argv[0] = 'coloring-gnn'; import gnn_training.__main__"]
COLOR = ["-m", "gnn_training", "color", "x"]
FULL = "coloring-gnn: the output cannot be written (no space left on device); make room"
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


@pytest.mark.parametrize(("words", "heavy"), [(["--help"], {"pydantic", "tyro"}), (["train", "--help"], set())])
def test_help_loads_no_heavy_library(words: list[str], heavy: set[str]):
    heavy = heavy | {"torch", "torch_geometric", "numba", "networkx", "onnxruntime", "onnx", "matplotlib", "numpy"}
    assert not heavy & loaded_by(*words)


def test_help_names_every_command(capsys):
    assert main([]) == main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(re.search(rf"^  {name} +[A-Z].*\.$", text, re.MULTILINE) for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_explains_every_flag_without_breaking_lines(command: str, capsys, monkeypatch):
    kind = getattr(settings, COMMANDS[command].settings)
    has_boxes = issubclass(kind, settings.TrainSettings)  # side by side if there is room, and then narrow
    monkeypatch.setenv("COLUMNS", "120" if has_boxes else "1000")
    with pytest.raises(SystemExit) as leaving:
        main([command, "--help"])
    assert not leaving.value.code
    text = capsys.readouterr().out
    text = re.sub(r"[│\s]+", " ", text) if has_boxes else text
    assert text.startswith(f"usage: coloring-gnn {command}")
    assert not re.search(r"\{None|None\}|default: (None)?\)", text)  # read as if one typed them
    helps = {name: " ".join(field.description.split()) for name, field in kind.model_fields.items()}
    assert [name for name, sentence in helps.items() if not sentence.endswith(".") or sentence not in text] == []
    on = [name for name, field in kind.model_fields.items() if field.default is True]
    assert all(f"--no-{name.replace('_', '-')} " in kind.model_fields[name].description for name in on)


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in ("run", "push")])
def test_dry_run_prints_settings_that_the_command_can_read(command: str, tmp_path: Path, capsys):
    assert main([command, *REQUIRED.get(command, []), "--dry-run"]) == 0
    file = tmp_path / "settings.json"
    file.write_text(capsys.readouterr().out)
    assert parse(command, ["--settings", str(file)]) == parse(command, REQUIRED.get(command, []))


def test_version_is_printed_also_in_a_notebook(capsys, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "module://of.the.notebook")
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == __version__
    assert os.environ["MPLBACKEND"] == "agg"  # which needs no module


@pytest.mark.parametrize("policy", ["passive", "active"])
def test_threads_of_a_training_wait_without_spinning_unless_the_user_wants_it(policy: str, tmp_path: Path):
    """With a module in the place of torch, which loads OpenMP."""
    (tmp_path / "torch.py").write_text("import os, sys; sys.exit(os.environ['OMP_WAIT_POLICY'])")
    chosen = {"PYTHONPATH": f"{tmp_path}:{ROOT}", **({"OMP_WAIT_POLICY": policy} if policy == "active" else {})}
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"} | chosen
    command = [sys.executable, "-m", "gnn_training", "train"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stderr == f"{policy}\n"


@pytest.mark.parametrize("flags", [["--preset", "smoke"], ["--preset=smoke"]])
@pytest.mark.parametrize("command", ["run", "train", "check"])
def test_preset_sets_the_defaults_and_flags_override_them(command: str, flags: list[str]):
    resolved, _ = parse(command, [*flags, "--seed", "5"])
    smoke = settings.from_preset(settings.RunSettings, "smoke")
    assert resolved.seed == 5
    assert (resolved.steps, resolved.run, resolved.preset) == (smoke.steps, smoke.run, "smoke")


def test_preset_comes_from_the_environment_if_none_is_named(monkeypatch, capsys):
    monkeypatch.setenv("GNN_TRAINING_PRESET", "single")
    assert parse("run", []) == (settings.from_preset(settings.RunSettings, "single"), False)
    monkeypatch.setenv("GNN_TRAINING_PRESET", "huge")
    assert "preset (huge) should be 'smoke', 'cpu'" in refused(capsys, "run")


def test_a_preset_in_the_environment_changes_no_command_without_presets(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("GNN_TRAINING_PRESET", "smoke")  # in which `rounds` are those of a training
    (file := tmp_path / "settings.json").write_text('{"models": "mine"}')
    assert parse("export", ["--settings", str(file)])[0] == settings.ExportSettings(models=Path("mine"))


def test_flags_override_the_settings_file_which_overrides_the_preset(tmp_path: Path):
    file = tmp_path / "settings.json"
    file.write_text('{"preset": "smoke", "steps": 7, "warmup_steps": 3}')
    resolved, _ = parse("train", ["--settings", str(file), "--steps", "8"])
    assert resolved == settings.from_preset(settings.TrainSettings, "smoke", steps=8, warmup_steps=3)
    file.write_text('{"steps": 3}')  # the old name of `rounds`
    for flags in (["--settings", str(file)], ["--steps", "3"], ["--rounds", "3"]):
        assert parse("export", flags)[0] == settings.ExportSettings(rounds=3)
    file.write_text('{"seed": 3}')  # for a command without presets
    assert parse("generate", ["--settings", str(file)])[0] == settings.GenerateSettings(seed=3)


def test_folders_whose_names_begin_with_a_dash_reach_every_step(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("-r/settings").mkdir(parents=True)
    job = settings.from_preset(settings.RunSettings, "smoke").model_copy(
        update={"run": Path("-r"), "models": Path("-m")}
    )
    for step in plan(job, locate(job)):
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
        (["train", "--rounds", "0"], "coloring-gnn: rounds (0) should be greater than 0"),
        (["train", "--steps", "7"], "coloring-gnn: warmup_steps (10) must be below steps (7)"),
        (["train", "--minutes", "nan"], "minutes (nan) should be a finite number"),
        (["train", "--gpus", "0,0"], "gpus (0,0) must be numbers of GPUs, each once, such as 0,1,4"),
        (["color"], "graphs must be given"),
        (["import"], "sources must be given"),
        (["color", "x", "--seconds", "-1"], "seconds (-1.0) should be greater than or equal to 0"),
        (["color", "\udcff.col"], r"graphs ('\udcff.col') must be UTF-8 without zero bytes: rename it"),
        (["train", "--gpus", "\u0661"], "must be numbers of GPUs"),
        (["check", "--assume", "h20x8"], "assume (h20x8) should match pattern"),
        (["color", "x", "--picture", "x.gif"], "picture (x.gif) must end in .png or .svg"),
        (["evaluate"], "graphs must be given: a file or a folder"),
        (["evaluate", "--suite", "dimacs"], "graphs must be given"),
        (["evaluate", "x", "--suite", "q-coloring"], "suite q-coloring makes its own graphs: leave out x"),
        (["evaluate", "x", "--report", "x.html"], "report (x.html) is for the numbers: name a .json file"),
        (["evaluate", "x", "--gpus", "all"], "GPUs search for --seconds: give them, or leave out --gpus"),
        (["evaluate", "x", "--report", "."], "report (.) is for the numbers: name a .json file"),
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


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (UserError("graph.col, line 3: no"), 2, "coloring-gnn: graph.col, line 3: no\n"),
        (MachineError("no GPU"), 3, "coloring-gnn: no GPU\n"),
        (StorageError("no room"), 4, "coloring-gnn: no room\n"),
        (TrainingError("a rank died"), 5, "coloring-gnn: a rank died\n"),
        (KeyboardInterrupt(), 130, ""),
        (ModuleNotFoundError(name="torch"), 2,
         "coloring-gnn: this command needs torch: install the extra, pip install '.[train]' in a clone\n"),
    ],
)  # fmt: skip
def test_endings_of_a_job_become_exit_codes(error, code, said, monkeypatch, capsys):
    monkeypatch.setattr(check, "check", Mock(side_effect=error))
    assert main(["check"]) == code
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("error", [AssertionError("ours"), ModuleNotFoundError(name="gnn_training.gone")])
def test_mistakes_of_the_program_keep_their_traceback(error, monkeypatch):
    monkeypatch.setattr(check, "check", Mock(side_effect=error))
    with pytest.raises(type(error)):
        main(["check"])


def test_log_lines_of_the_package_go_to_stdout_with_their_time(monkeypatch, capsys):
    def say(_: object) -> None:
        logging.getLogger("gnn_training.jobs.check").info("all well")
        logging.getLogger("library").info("not seen")

    monkeypatch.setattr(check, "check", say)
    assert main(["check"]) == 0
    assert re.fullmatch(r"\d\d:\d\d:\d\d all well\n", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("number", "module", "command", "code"),
    [("SIGINT", "multiprocessing", AS_PROGRAM, -2), ("SIGINT", "tyro", COLOR, 130), ("SIGHUP", "tyro", COLOR, 129)],
)
def test_a_signal_while_libraries_are_loaded_leaves_no_traceback(tmp_path: Path, number, module, command, code: int):
    """Also in code that a library compiles, such as the methods of a dataclass."""
    (tmp_path / f"{module}.py").write_text(f"exec('import os, signal; os.kill(os.getpid(), signal.{number})')")
    done = subprocess.run(
        [sys.executable, *command], env=os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL), capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


def test_shared_memory_that_is_full_is_named(monkeypatch, tmp_path: Path, capfd):
    """Semaphores are there, and the error of one has no name of a file."""
    monkeypatch.setattr(check, "check", Mock(side_effect=OSError(errno.ENOSPC, "no space")))
    monkeypatch.setattr(program, "SHARED_MEMORY", tmp_path)
    monkeypatch.setattr(program.shutil, "disk_usage", lambda folder: SimpleNamespace(free=0))
    assert main(["check"]) == 4
    assert f"{tmp_path} cannot be written (no space); make room, in a container with --" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("job", "redirection", "code", "out", "err"),
    [
        ("print", ">/dev/full", 4, "", FULL),
        ("log", ">/dev/full", 0, "", ""),  # the work goes on
        ("log", ">&-", 0, "", ""),
        ("log", ">&- 2>&-", 0, "", ""),
        ("print", "| true", 0, "", ""),  # a reader that has gone away
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


@pytest.mark.parametrize(("pause", "lines"), [(60.0, 1), (0.0, 3)])
def test_progress_in_a_log_is_a_line_every_few_seconds_and_at_the_end(caplog, monkeypatch, pause: float, lines: int):
    caplog.set_level("INFO")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False)
    monkeypatch.setattr(console, "SECONDS_BETWEEN_LINES", pause)
    with console.progress("labelling", 3, 6) as advance:
        for _ in range(3):
            advance(1)
    assert len(caplog.messages) == lines
    assert caplog.messages[-1].startswith("labelling: 6 of 6, ") and caplog.messages[-1].endswith("/s, 0.0 s left")


def test_escape_sequences_in_names_do_not_reach_the_terminal(capsys):
    console.set_up_logging()
    logging.getLogger("gnn_training.test").info("wrote %s", "\x1b[31mred.col")
    console.print_tables(console.markdown_table({"graph": ["\x1b[31mred"]}))
    assert capsys.readouterr().out.count(r"\x1b[31mred") == 2


def test_progress_in_a_terminal_is_a_bar(caplog, monkeypatch, capfd):
    caplog.set_level("INFO")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with console.progress("labelling", 0, 5) as advance:
        advance(5)
    shown = capfd.readouterr().err
    assert "labelling" in shown and "5/5" in shown and "━" in shown and not caplog.messages


def test_tables_are_markdown_with_numbers_on_the_right(capsys):
    columns = {"graph": ["queen8_8", "myciel3"], "colors": [9, None], "seconds": [1.234, 10.0]}
    console.print_tables(console.markdown_table(columns))
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines() if line.strip()] == [
        "| graph    | colors | seconds |",
        "|----------|--------|---------|",
        "| queen8_8 |      9 |    1.23 |",
        "| myciel3  |      - |   10.00 |",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.42, "0.4 s"), (59, "59 s"), (119.4, "119 s"), (133, "2 min 13 s"), (7199, "119 min 59 s"), (7260, "2 h 1 min")],
)
def test_durations_have_the_unit_that_fits(seconds: float, text: str):
    assert console.duration(seconds) == text
