"""The whole job, from nothing to a packed, scored ONNX file. Every step is a command in a process of its own."""

import logging
import os
import shlex
import sys
import time
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnn_training import __version__, files, machine, processes, run_files
from gnn_training.console import duration
from gnn_training.contract import MODEL_FILE, SUMS_FILE, WEB_FILE
from gnn_training.data.location import DataLocation, locate, output_folders
from gnn_training.data.packed import MANIFEST_FILE
from gnn_training.errors import StorageError, UserError
from gnn_training.ranks import num_ranks
from gnn_training.report.scores import METHODS
from gnn_training.runpod import require_pod, stop_pod
from gnn_training.settings import (
    CheckSettings,
    EvaluateSettings,
    ExportSettings,
    GenerateSettings,
    ImportSettings,
    PackSettings,
    RunSettings,
    Settings,
)  # fmt: skip
from gnn_training.training.logbook import require_logger

log = logging.getLogger(__name__)
STEPS = ("data", "check", "train", "export", "verify", "evaluate", "pack")
SCORED_GRAPHS, CALLED_GRAPHS = 150, 16  # validation graphs that the report scores, and those that get one call


@dataclass(frozen=True)
class Step:
    """One command. It is done when it has succeeded and none of its files, read or written, has changed since.
    prepares: another step; this one is done when that one is, and has no files.
    """

    name: str
    command: str
    settings: Settings
    files: tuple[Path, ...] = ()
    prepares: "Step | None" = None

    def arguments(self, run: Path) -> list[str]:
        """Write the settings to a file in the run folder; return the arguments of the Python that does the step."""
        file = run / run_files.SETTINGS_FOLDER / f"{self.name}.json"
        files.write_text(file, self.settings.model_dump_json(indent=2) + "\n")
        return ["-m", "gnn_training", self.command, f"--settings={file}"]  # the path may begin with a dash


def run(settings: RunSettings) -> None:
    """Do every step that is not done. The same command continues what was interrupted. UserError if the settings, this
    machine or its folders cannot be used. SystemExit with the exit code of a step that failed and has said why.
    """
    started, source = time.monotonic(), locate(settings)
    steps = plan(settings, source)
    if warning := machine.require_storage(output_folders(settings, source)):
        log.warning("%s", warning)
    log.info("graphs: %s", source.description)
    if settings.stop_pod:
        require_pod(os.environ)
    require_logger(settings.logger)
    record = StepRecord(settings.run / run_files.STEPS)
    if is_new := not all(map(record.is_done, steps)):
        files.make_folder(settings.run / run_files.SETTINGS_FOLDER)
        machine.select_gpus(settings.gpus)
        num_ranks(settings)  # GPUs that are missing are found before graphs are made
        with _tensorboard(settings):
            for step in steps:
                _run_step(step, settings, record)
    _finish(settings, record, f"ready after {duration(time.monotonic() - started)}" if is_new else "already done")


def dry_run(settings: RunSettings) -> None:
    """Write the settings files of the steps and print the commands of a shell that do the job. UserError as `run`."""
    steps, variables = plan(settings, locate(settings)), machine.select_gpus(settings.gpus)
    # Whether this is a rehearsal of a job for GPUs on a machine without GPUs.
    is_elsewhere = settings.preset in ("single", "multi") and settings.device != "cpu" and not machine.may_have_gpus()
    ranks = "one for each GPU; here is none" if is_elsewhere else num_ranks(settings)
    files.make_folder(settings.run / run_files.SETTINGS_FOLDER)
    if path := os.environ.get("PYTHONPATH"):
        variables["PYTHONPATH"] = path
    for name, value in variables.items():
        print(f"export {name}={shlex.quote(value)}")
    for step in steps:
        if step.name == "train":
            print(f"# ranks on this machine: {ranks}")
        print(shlex.join([sys.executable, *step.arguments(settings.run)]))


def plan(settings: RunSettings, source: DataLocation) -> list[Step]:
    """The steps of the whole job. The first is missing if the graphs of `source` are packed already. UserError if every
    rank of torchrun would do the whole job.
    """
    if "RANK" in os.environ:
        raise UserError("RANK is set: start the job once and without torchrun, or unset it")
    run, models = settings.run, settings.models
    manifest, best, report = source.graphs / MANIFEST_FILE, run / run_files.BEST, run / run_files.REPORT
    model, web, sums = (models / name for name in (MODEL_FILE, WEB_FILE, SUMS_FILE))
    training = settings.train_settings(source.graphs, source.generated)
    checked = settings.model_dump() | training.model_dump() | {"tensorboard": 0}  # this job takes the port
    exporting = ExportSettings(run=run, models=models)
    verifying = exporting.model_copy(update={"verify_only": True})
    evaluating = EvaluateSettings(
        graphs=source.graphs, model=str(model), exclude_selection=settings.validation_graphs, limit=SCORED_GRAPHS,
        calls=CALLED_GRAPHS, tabucol=True, report=report,
    )  # fmt: skip
    packing = PackSettings(run=run, models=models, price_per_hour=settings.price_per_hour)
    steps = []
    if source.imported is not None:
        importing = ImportSettings(sources=(source.imported,), out=source.graphs, seed=settings.seed)
        steps.append(Step("data", "import", importing, (source.imported, manifest)))
    if source.generated:
        generating = GenerateSettings(recipe=settings.recipe, out=source.graphs, seed=settings.seed)
        steps.append(Step("data", "generate", generating, (manifest,)))
    records = (run / name for name in (run_files.CONFIG, run_files.METRICS, run_files.STATUS))  # which pack needs
    packed = run / run_files.PAGE, models / run_files.ARCHIVE
    train = Step("train", "train", training, (manifest, best, *records))
    return [
        *steps,
        Step("check", "check", CheckSettings(**checked), prepares=train),
        train,
        Step("export", "export", exporting, (best, model, web, sums)),
        Step("verify", "export", verifying, (model, web, sums)),
        Step("evaluate", "evaluate", evaluating, (manifest, model, report)),
        Step("pack", "pack", packing, (best, model, web, sums, report, *packed)),
    ]


class StepRecord:
    """A JSON file that records the steps: with which version of this program, settings and files each has succeeded,
    and how long it took in all. If the file is damaged, no step counts as done; the steps find what they have made.
    """

    def __init__(self, path: Path):
        self.path = path
        self._states: dict[str, dict[str, Any]] = {}
        try:
            with files.damaged(path, "doing all steps again"):
                states = files.read_json(path, "doing all steps again") if path.exists() else {}
                self._states = {name: {**state, "seconds": float(state["seconds"])} for name, state in states.items()}
        except UserError as error:
            log.warning("%s", error)

    def is_done(self, step: Step) -> bool:
        """Whether this version has done the step with these settings and its files have not changed since."""
        if step.prepares:
            return self.is_done(step.prepares)
        then = self._states.get(step.name, {})
        return bool(step.files) and all(then.get(name) == now for name, now in _state(step).items())

    def other_version(self, step: Step) -> str | None:
        """The version that has done the step, if it was another one than this; else None."""
        then = self._states.get(step.name, {})
        version = then.get("version", "0.6.0 or older")  # these did not record it
        return version if "files" in then and version != __version__ else None

    @property
    def seconds(self) -> float:
        """The seconds of all steps in all starts."""
        return sum(state["seconds"] for state in self._states.values())

    def add(self, step: Step, seconds: float, is_done: bool) -> None:
        """Record a start of a step: its seconds, and whether it succeeded."""
        state = self._states.setdefault(step.name, {"seconds": 0.0})
        state["seconds"] = round(state["seconds"] + seconds, 1)
        state |= _state(step) if is_done else {}
        files.write_bytes(self.path, files.as_json(self._states))


def _state(step: Step) -> dict[str, Any]:
    settings = step.settings.model_dump(mode="json", exclude={"ranks"})  # any number of ranks makes the same
    stamps = {str(path): _stamp(path) for path in step.files}
    return {"version": __version__, "command": step.command, "settings": settings, "files": stamps}


def _stamp(path: Path) -> list[int]:
    """Number, size and latest change of a file, or of the files in a folder."""
    inside = [Path(folder, name) for folder, _, names in os.walk(path) for name in names]
    stats = [file.stat() for file in (path, *inside) if os.path.isfile(file)]
    return [len(stats), sum(stat.st_size for stat in stats), max((stat.st_mtime_ns for stat in stats), default=0)]


def _tensorboard(settings: RunSettings) -> AbstractContextManager[object]:
    """A context in which TensorBoard shows the curves in a browser, if a port is named."""
    host, port = settings.tensorboard_host, settings.tensorboard
    if not port:
        return nullcontext()
    machine.require_port(port, host)
    arguments = ["-m", "tensorboard.main", "--host", host, "--port", str(port), f"--logdir={settings.run}"]
    return processes.python(arguments, settings.run / run_files.TENSORBOARD_LOG)


def _run_step(step: Step, settings: RunSettings, record: StepRecord) -> None:
    """Run the command of a step if it is not done; end this process if it fails."""
    title = f"{STEPS.index(step.name) + 1}/{len(STEPS)} {step.name}"
    if record.is_done(step):
        log.info("%s: already done", title)
        return
    other = record.other_version(step)
    log.info("%s ...%s", title, f" again: it was done by version {other}" if other else "")
    started, outcome, advice = time.monotonic(), "stopped", "; the same command continues here"
    try:
        code = processes.run_python(step.arguments(settings.run))
        if code not in (0, processes.STOPPED):
            outcome = f"failed with exit code {code}"
        if code:
            sys.exit(code)
        outcome, advice = "done", ""
    finally:
        seconds = time.monotonic() - started
        with nullcontext() if outcome == "done" else suppress(StorageError):  # which the step has told
            record.add(step, seconds, is_done=outcome == "done")
        log.info("%s: %s after %s%s", title, outcome, duration(seconds), advice)


def _finish(settings: RunSettings, record: StepRecord, how: str) -> None:
    """Tell what there is, what it took, and what to fetch; stop the pod if that was asked for."""
    model, archive = settings.models / MODEL_FILE, settings.models / run_files.ARCHIVE
    report, ended = settings.run / run_files.REPORT, settings.run / run_files.STATUS
    hint = "delete it, then the same command makes it again"
    with files.damaged(ended, hint):
        ranks, device = (files.read_json(ended, hint)[name] for name in ("ranks", "device"))
        place = "the cores" if device == "cpu" else f"{ranks} x {device}"
        used = [f"{ranks} rank{'s' * (ranks != 1)} on {place}", f"{duration(record.seconds)} in all"]
    with files.damaged(report, hint):
        content = files.read_json(report, hint)
        graphs, methods = content["summary"]["graphs"], content["summary"]["methods"].items()
        everywhere = {METHODS[method]: score["mean_gap"] for method, score in methods if score["graphs"] == graphs}
        scores = [f"{method} {gap:.2f}" for method, gap in everywhere.items()]
        verdict = str(content["verdict"])
    log.info("%s: %.1f MB, %s", model, model.stat().st_size / 1e6, how)
    log.info("colors above the best known on %d validation graphs: %s", graphs, ", ".join(scores))
    log.info("%s", verdict)
    log.info("open %s in a browser, or see tensorboard --logdir %s", settings.run / run_files.PAGE, settings.run)
    if price := settings.price_per_hour:
        used.append(f"{record.seconds / 3600 * price:.2f} at {price:g} an hour")
    log.info("%s", ", ".join(used))
    if command := machine.copy_command(settings.models):
        log.info("the results are in this container, fetch them: %s", command)
    else:
        size = archive.stat().st_size / 1e6
        log.info("fetch %s (%.1f MB): it has the model, the report and the weights", archive, size)
    if settings.stop_pod:
        stop_pod(os.environ)
