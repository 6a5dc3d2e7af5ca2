"""Steps of the whole job, and the memory of which are done."""
# DOC The whole job, from nothing to a packed, scored ONNX file. Every step is a command in its own process.

import json
import logging
import os
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from gnn_training import machine, processes
from gnn_training.console import duration
from gnn_training.contract import ARCHIVE_FILE, MODEL_FILE, SUMS_FILE
from gnn_training.data.packed import MANIFEST_FILE
from gnn_training.data.sources import DataLocation, locate, written
from gnn_training.errors import StorageError
from gnn_training.files import write_text
from gnn_training.launch import gpus, runpod
from gnn_training.launch.nodes import resolve
from gnn_training.launch.ranks import DOOR, STOPPED, Ranks
from gnn_training.processes import Supervisor, beside
from gnn_training.settings import (
    CheckSettings,
    EvaluateSettings,
    ExportSettings,
    GenerateSettings,
    ImportSettings,
    PackSettings,
    RunSettings,
    Settings,
    TrainSettings,
)


@dataclass(frozen=True)
class Step:
    """One command.

    files: all that it reads and makes; without any, the step is never done. serves: the step it prepares, with which
    it is done.
    """

    name: str
    command: str
    settings: Settings
    files: tuple[Path, ...] = ()
    serves: "Step | None" = None

    def arguments(self) -> list[str]:
        """Command line of the step, after `python -m gnn_training`."""
        return [self.command, *self.settings.flags()]


class StepRecord:
    """Which steps have succeeded, how their files looked then, and the seconds they took, in a JSON file."""

    def __init__(self, path: Path):
        self.path = path
        self._states: dict[str, dict] = json.loads(path.read_text()) if path.exists() else {}

    def is_done(self, step: Step) -> bool:
        """Whether the step succeeded with these settings and none of its files has changed or gone since."""
        if step.serves:
            return self.is_done(step.serves)
        then = self._states.get(step.name, {})
        return bool(step.files) and all(then.get(name) == now for name, now in _step_state(step).items())

    def add(self, step: Step) -> None:
        """Note that the step has just succeeded."""
        self._states[step.name] = self._states.get(step.name, {}) | _step_state(step)
        self._write()

    def spend(self, step: Step, seconds: float) -> None:
        """Add to the time that the step took in all its starts, whether it succeeded or not."""
        state = self._states.setdefault(step.name, {})
        state["seconds"] = round(state.get("seconds", 0.0) + seconds, 1)
        self._write()

    def num_done(self) -> int:
        """Steps that have ever succeeded."""
        return sum("command" in state for state in self._states.values())

    def _write(self) -> None:
        write_text(self.path, json.dumps(self._states, indent=1) + "\n")


def _step_state(step: Step) -> dict:
    files = {str(path): _stamp(path) for path in step.files}
    return {"command": step.command, "settings": step.settings.model_dump(mode="json"), "files": files}


def _stamp(path: Path) -> list[int] | None:
    """Number, size and time of last change of a file or of all in a folder; None if there is nothing."""
    if not path.exists():
        return None
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    all_of_them = [file.stat() for file in files]
    newest = max((status.st_mtime_ns for status in all_of_them), default=0)
    return [len(files), sum(status.st_size for status in all_of_them), newest]


log = logging.getLogger(__name__)
STEPS = ("data", "check", "train", "export", "verify", "evaluate", "pack")
PAID_FOR = ("data", "train")  # what may take hours of a rented machine
SCORED_GRAPHS = 64  # of the validation graphs, for the report at the end
WAIT_SECONDS = 3600  # for the graphs that the first machine draws and labels
TENSORBOARD = ["-m", "tensorboard.main", "--bind_all", "--logdir"]


def run(settings: RunSettings) -> None:
    """Do every step that is not done; the same command continues what was interrupted.

    Raises:
        UserError: the settings, this machine or its folders will not do, or a rank failed.
        SystemExit: the exit code of a step that failed and has said why, or 128 + the signal that stopped the job.
    """
    if settings.dry_run:
        return _print_commands(settings)
    started, record = time.monotonic(), StepRecord(settings.run / "steps.json")
    with Supervisor() as supervisor:
        if settings.stop_pod:
            runpod.require(os.environ)
        steps = plan(settings)
        how = "already done"
        if not all(map(record.is_done, steps)):
            machine.require_storage(written(settings))
            gpus.select(settings.gpus)
            ranks = Ranks(settings, resolve(os.environ), supervisor)
            with _watched(settings):
                if ranks.nodes.rank > 0:
                    return _train_along(settings, steps, record, ranks)
                _do_all(steps, record, ranks)
            how = f"ready after {duration(time.monotonic() - started)}"
        _finish(settings, how)


@contextmanager
def _watched(settings: RunSettings) -> Iterator[None]:
    """Show the curves in a browser, if that is wanted."""
    board = [*TENSORBOARD, str(settings.run), "--port", str(settings.tensorboard)]
    if settings.tensorboard:
        machine.require_port(settings.tensorboard)
    with beside(board, settings.run / "tensorboard.log") if settings.tensorboard else nullcontext():
        yield


def _do_all(steps: list[Step], record: StepRecord, ranks: Ranks) -> None:
    if not all(record.is_done(step) for step in steps if step.name in PAID_FOR):
        ranks.prepare()  # GPUs that will not do are found now, not after the graphs are labelled
    for step in steps:
        title = f"{STEPS.index(step.name) + 1}/{len(STEPS)} {step.name}"
        if record.is_done(step):
            log.info("%s: already done", title)
            continue
        log.info("%s: %s", title, shlex.join(step.arguments()))
        begun = time.monotonic()
        try:
            _do(step, ranks)
        finally:
            record.spend(step, time.monotonic() - begun)
        record.add(step)
        log.info("%s: done in %s", title, duration(time.monotonic() - begun))


def _do(step: Step, ranks: Ranks) -> None:
    supervisor = ranks.supervisor
    if step.name == "train":
        code = ranks.train(step)
    else:
        code = supervisor.run([*DOOR, *step.arguments()], watch=processes.beat)
    if supervisor.signals:
        code = 128 + supervisor.signals[0]
    if code:
        how = "stopped" if supervisor.signals or code == STOPPED else f"failed with exit code {code}"
        log.info("%s %s; the same command continues here", step.name, how)
        sys.exit(code)


def _train_along(settings: RunSettings, steps: list[Step], record: StepRecord, ranks: Ranks) -> None:
    """On every machine but the first: wait for the packed graphs, train, and leave the rest to the first."""
    ranks.prepare()
    graphs, begun, signals = locate(settings).graphs, time.monotonic(), ranks.supervisor.signals
    log.info("machine %d of %d: waiting for the graphs in %s", ranks.nodes.rank + 1, ranks.nodes.count, graphs)
    while not (graphs / MANIFEST_FILE).exists():
        processes.beat()
        time.sleep(0.5)
        if signals:
            sys.exit(128 + signals[0])
        if time.monotonic() - begun > WAIT_SECONDS:
            raise StorageError(f"{graphs}: still no graphs of the first machine: give all machines the same volume")
    train = next(step for step in steps if step.name == "train")
    if not record.is_done(train):
        _do(train, ranks)
    log.info("training is done; the first machine does the rest")


def _print_commands(settings: RunSettings) -> None:
    """What would be started, as a shell would read it."""
    visible = gpus.select(settings.gpus)
    ranks = Ranks(settings, resolve(os.environ), Supervisor())
    training = ranks.environment  # first of all: a machine that will not do is refused before anything is printed
    for step in plan(settings):
        arguments = ranks.command(step) if step.name == "train" else [*DOOR, *step.arguments()]
        variables = visible | (training if step.name == "train" else {})
        print(shlex.join([*(f"{name}={value}" for name, value in variables.items()), "python", *arguments]))


def plan(settings: RunSettings) -> list[Step]:
    """The steps of the whole job; the first is missing if the graphs are packed already."""
    shared = settings.model_dump()
    source = locate(settings)
    graphs = source.graphs
    manifest, best, report = graphs / MANIFEST_FILE, settings.run / "best.pt", settings.run / "report.json"
    model, sums = settings.models / MODEL_FILE, settings.models / SUMS_FILE
    training = TrainSettings(**{name: shared[name] for name in TrainSettings.model_fields} | {"data": graphs})
    # By then the GPUs are chosen, and the port is taken by ourselves.
    checking = CheckSettings(**shared | {"data": graphs, "gpus": None, "tensorboard": 0, "dry_run": False})
    exporting = ExportSettings(run=settings.run, models=settings.models, oldest_runtime=settings.oldest_runtime)
    verifying = exporting.model_copy(update={"verify_only": True})
    evaluating = EvaluateSettings(graphs=graphs, model=model, limit=SCORED_GRAPHS, report=report)
    packing = PackSettings(run=settings.run, models=settings.models, price_per_hour=settings.price_per_hour)
    train = Step("train", "train", training, (manifest, best))
    return [
        *_data(settings, source),
        Step("check", "check", checking, serves=train),
        train,
        Step("export", "export", exporting, (best, model, sums)),
        Step("verify", "export", verifying, (model, sums)),
        Step("evaluate", "evaluate", evaluating, (manifest, model, report)),
        Step("pack", "pack", packing, (best, model, sums, report, settings.models / ARCHIVE_FILE)),
    ]


def _data(settings: RunSettings, source: DataLocation) -> list[Step]:
    """The step that fills the folder of packed graphs; none if the user's are packed already."""
    if source.imported is not None:
        importing = ImportSettings(sources=(source.imported,), out=source.graphs, seed=settings.seed)
        return [Step("data", "import", importing, (source.imported, source.graphs / MANIFEST_FILE))]
    if source.generated:
        generating = GenerateSettings(recipe=settings.recipe, out=source.graphs, seed=settings.seed)
        return [Step("data", "generate", generating, (source.graphs / MANIFEST_FILE,))]
    return []


def _finish(settings: RunSettings, how: str) -> None:
    """Say what there is, and where; stop the pod if that was asked for."""
    model, report = settings.models / MODEL_FILE, settings.run / "report.json"
    summary = json.loads(report.read_text())["summary"]
    scores = [f"{name} {score['mean_gap']:.2f}" for name, score in summary["methods"].items()]
    log.info("%s: %.1f MB, %s", model, model.stat().st_size / 1e6, how)
    log.info("colors above the best known on %d validation graphs: %s", summary["graphs"], ", ".join(scores))
    log.info("look into %s for report.json and metrics.jsonl, or tensorboard --logdir %s", settings.run, settings.run)
    if settings.stop_pod:
        runpod.stop_pod(os.environ)
