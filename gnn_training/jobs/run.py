"""The whole job, from nothing to a scored ONNX file. Every step is a command of the door in a process of its own."""

import json
import logging
import os
import re
import shlex
import signal
import sys
import time
from pathlib import Path

from gnn_training import machine
from gnn_training.contract import MODEL_FILE
from gnn_training.data.packed import MANIFEST_FILE
from gnn_training.data.source import Source, locate
from gnn_training.errors import UserError
from gnn_training.processes import Supervisor
from gnn_training.settings import (
    CheckSettings,
    EvaluateSettings,
    ExportSettings,
    GenerateSettings,
    ImportSettings,
    RunSettings,
    TrainSettings,
)
from gnn_training.steps import Record, Step
from gnn_training.words import duration

log = logging.getLogger(__name__)

STEPS = ("data", "check", "train", "export", "verify", "evaluate")
SCORED_GRAPHS = 64  # of the validation graphs, for the report at the end
DOOR = ["-m", "gnn_training"]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node"]
STOPPED = 128 + signal.SIGTERM


def run(settings: RunSettings) -> None:
    """Do every step that is not done; the same command continues what was interrupted.

    Raises:
        UserError: the settings do not fit this machine, or a rank failed.
        SystemExit: the exit code of a step that failed and has said why, or 128 + the signal that stopped the job.
    """
    started = time.monotonic()
    record, steps = Record(settings.run / "steps.json"), plan(settings)
    if not all(map(record.is_done, steps)):
        machine.num_ranks(settings)  # what the check would refuse is refused now, not after hours of labelling
    with Supervisor() as supervisor:
        for step in steps:
            title = f"{STEPS.index(step.name) + 1}/{len(STEPS)} {step.name}"
            if record.is_done(step):
                log.info("%s: already done", title)
                continue
            log.info("%s: %s", title, shlex.join(step.arguments()))
            begun = time.monotonic()
            _do(step, settings, supervisor)
            record.add(step)
            log.info("%s: done in %s", title, duration(time.monotonic() - begun))
    _summarize(settings, time.monotonic() - started)


def plan(settings: RunSettings) -> list[Step]:
    """The steps of the whole job; the first is missing if the graphs are packed already."""
    shared = settings.model_dump()
    source = locate(settings)
    graphs = source.graphs
    manifest, best, report = graphs / MANIFEST_FILE, settings.run / "best.pt", settings.run / "report.json"
    model, sums = settings.models / MODEL_FILE, settings.models / "SHA256SUMS"
    training = TrainSettings(**{name: shared[name] for name in TrainSettings.model_fields} | {"data": graphs})
    checking = CheckSettings(**shared | {"data": graphs})
    exporting = ExportSettings(run=settings.run, models=settings.models, oldest_runtime=settings.oldest_runtime)
    verifying = exporting.model_copy(update={"verify_only": True})
    evaluating = EvaluateSettings(graphs=graphs, model=model, limit=SCORED_GRAPHS, report=report)
    train = Step("train", "train", training, (manifest, best))
    return [
        *_data(settings, source),
        Step("check", "check", checking, serves=train),
        train,
        Step("export", "export", exporting, (best, model, sums)),
        Step("verify", "export", verifying, (model, sums)),
        Step("evaluate", "evaluate", evaluating, (manifest, model, report)),
    ]


def _data(settings: RunSettings, source: Source) -> list[Step]:
    """The step that fills the folder of packed graphs; none if the user's are packed already."""
    if source.imported is not None:
        importing = ImportSettings(sources=(source.imported,), out=source.graphs, seed=settings.seed)
        # No files: only the import itself can tell whether one of its many sources has changed.
        return [Step("data", "import", importing)]
    if source.generated:
        generating = GenerateSettings(recipe=settings.recipe, out=source.graphs, seed=settings.seed)
        return [Step("data", "generate", generating, (source.graphs / MANIFEST_FILE,))]
    log.info("1/%d data: the packed graphs in %s", len(STEPS), source.graphs)
    return []


def _do(step: Step, settings: RunSettings, supervisor: Supervisor) -> None:
    code = _train(step, settings, supervisor) if step.name == "train" else supervisor.run([*DOOR, *step.arguments()])
    if supervisor.signals:
        code = 128 + supervisor.signals[0]
    if code:
        how = "stopped" if supervisor.signals or code == STOPPED else f"failed with exit code {code}"
        log.info("%s %s; the same command continues here", step.name, how)
        sys.exit(code)


def _train(step: Step, settings: RunSettings, supervisor: Supervisor) -> int:
    """Train on every rank, through torchrun if there are several; return the exit code."""
    ranks = machine.num_ranks(settings)
    threads = os.environ.get("OMP_NUM_THREADS", str(max(1, machine.num_cores() // ranks)))
    if ranks == 1:
        return supervisor.run([*DOOR, *step.arguments()], OMP_NUM_THREADS=threads)
    status, errors = settings.run / "status.json", settings.run / "torchrun.log"
    status.unlink(missing_ok=True)
    # After "--" torchrun leaves the flags alone; before it, --run would be short for its own --run-path.
    command = [*TORCHRUN, str(ranks), "-m", "--", "gnn_training", *step.arguments()]
    code = supervisor.run(command, errors, OMP_NUM_THREADS=threads)
    # torchrun says 1 whatever happened, also when every rank was told to stop and has saved; rank 0 knows.
    if code and status.exists() and json.loads(status.read_text())["status"] == "stopped":
        return STOPPED
    if code and not supervisor.signals:
        raise UserError(_reason(errors))
    return code


def _reason(errors: Path) -> str:
    """What ended the ranks, out of all that they and torchrun wrote to stderr."""
    text = errors.read_text(errors="replace")
    if said := re.search(r"^gnn_training: (.*)$", text, re.MULTILINE):  # the door's sentence, once for all ranks
        return said[1]
    killed = re.search(r"\(exitcode: -(\d+)\) local_rank: (\d+)", text)
    raised = re.search(r"^(?:\[rank\d+\]: )?((?:[\w.]*(?:Error|Exception)|\S+ error): .*)$", text, re.MULTILINE)
    cause = raised[1] if raised else "without a word"
    if killed:
        cause = f"rank {killed[2]} was killed by signal {killed[1]}, perhaps for want of memory"
    return f"training failed: {cause} (all that was said is in {errors})"


def _summarize(settings: RunSettings, seconds: float) -> None:
    model, report = settings.models / MODEL_FILE, settings.run / "report.json"
    summary = json.loads(report.read_text())["summary"]
    scores = [f"{name} {score['mean_excess']:.2f}" for name, score in summary["methods"].items()]
    log.info("%s: %.1f MB, ready after %s", model, model.stat().st_size / 1e6, duration(seconds))
    log.info("colors above the best known on %d validation graphs: %s", summary["graphs"], ", ".join(scores))
    log.info("look into %s for report.json and metrics.jsonl, or tensorboard --logdir %s", settings.run, settings.run)
