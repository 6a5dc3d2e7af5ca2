"""The records of a training: progress, console lines, metrics.jsonl, loggers and status.json."""

import importlib
import json
import logging
import math
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from gnn_training import run_files
from gnn_training.console import errors_as_warnings
from gnn_training.errors import UserError
from gnn_training.files import MAX_FILE_BYTES, as_json, read_bytes, storage_errors, write_bytes, write_text
from gnn_training.machine import require_package
from gnn_training.settings import TrainSettings

log = logging.getLogger(__name__)
PROJECT = "coloring-gnn"  # name of the project in the logger
Status = dict[str, Any]  # content of status.json: how the run ended ("done", "stopped" or "failed") and its counts


@dataclass
class Progress:
    """Counts and scores of the whole training, interruptions left out. Every checkpoint has them."""

    seconds: float = 0.0  # time of the whole training
    step_seconds: float = 0.0  # time of the steps alone
    graphs: int = 0  # graphs seen, repeats counted
    gap: float | None = None  # mean colors above the best known on the validation graphs, at the last evaluation
    first_gap: float | None = None  # gap at step 0
    dsatur_gap: float | None = None  # gap of DSATUR
    gain: float = 0.0  # mean number of colors saved in comparison with the untrained rule
    gain_error: float = 0.0  # standard error of `gain`
    lowest_gap: float | None = None  # lowest gap so far, None before the first evaluation
    best_gap: float | None = None  # gap of the weights that are kept
    best_step: int = 0  # step of the weights that are kept
    evaluations_without_gain: int = 0  # evaluations since the lowest gap
    evaluated_at: int = -1  # step of the last evaluation
    crossover_step: int = 0  # step of the kept weights of the crossover network

    def judge(self, scores: dict[str, float], step: int) -> list[str]:
        """Note the scores of an evaluation; return the parts of the network whose weights to keep, at first all."""
        self.gap, self.dsatur_gap, self.evaluated_at = scores["gap"], scores["dsatur_gap"], step
        self.gain, self.gain_error = scores["gain"], scores["gain_error"]
        if step == 0:
            self.first_gap = self.gap
        self.evaluations_without_gain += 1
        is_first = self.lowest_gap is None
        if self.lowest_gap is None or self.gap < self.lowest_gap:
            self.lowest_gap, self.evaluations_without_gain = self.gap, 0
        # If so few graphs cannot tell weights apart, keep the longest trained: the lowest gap may be due to chance.
        # Keep no weights that are worse than the first ones, which may come from another training.
        first = math.inf if self.first_gap is None else self.first_gap
        is_kept = self.gap <= min(self.lowest_gap + 2 * self.gain_error, first)
        if is_kept:
            self.best_gap, self.best_step = self.gap, step
        # Keep a crossover network only if the held-out pairs show that it is better than the kept one.
        is_better = is_first or scores.get("crossover_change", 0.0) > scores.get("crossover_change_error", 0.0)
        if is_better:
            self.crossover_step = step
        parts = ["rule", "predictions"] if is_kept else []
        return [*parts, "crossover"] if is_better else parts

    def seconds_left(self, step: int, steps: int, minutes: float) -> float:
        """Seconds until the schedule or the time limit ends, whichever comes first, at the speed so far."""
        left = self.seconds / max(step, 1) * (steps - step)
        return min(left, max(0.0, 60 * minutes - self.seconds)) if minutes else left


class Logger(NamedTuple):
    """A place, such as TensorBoard, that gets the records besides the run folder."""

    name: str
    log: Callable[[dict[str, float], int], object]  # values by name, at a step
    close: Callable[[Status], object]


def tensorboard(settings: TrainSettings, first_step: int) -> Logger:
    """Write event files into the run folder. Those of an earlier start are hidden from first_step on."""
    from torch.utils.tensorboard import SummaryWriter  # takes 1.5 s to import

    writer = SummaryWriter(settings.run / run_files.CURVES_FOLDER, purge_step=first_step)

    def log(values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)

    def close(status: Status) -> None:
        if status["status"] == "done":  # for the table of hyperparameters, which compares runs
            scores = {"gap": "best_gap", "gap_at_step_0": "first_gap", "dsatur_gap": "dsatur_gap"}
            final = {f"final/{name}": status[key] for name, key in scores.items()}
            writer.add_hparams(settings.model_dump(mode="json"), final, run_name=".")
        writer.close()

    return Logger("TensorBoard", log, close)


def wandb(settings: TrainSettings) -> Logger:
    """Log to Weights & Biases, in the run that the run folder names. UserError if it cannot start."""
    file = settings.run / run_files.LOGGER_ID
    if not file.exists():
        write_text(file, f"{settings.run.name}-{secrets.token_hex(4)}\n")
    run_id = read_bytes(file, 1000, "delete it").decode(errors="replace").strip()
    options = {"project": PROJECT, "name": run_id, "id": run_id, "resume": "allow", "dir": settings.run}
    try:
        run = importlib.import_module("wandb").init(config=settings.model_dump(mode="json"), **options)
    except Exception as error:  # of many kinds
        raise UserError(f"--logger wandb cannot start: {' '.join(str(error).split())}") from error
    return Logger("wandb", lambda values, step: run.log(values, step=step), lambda _status: run.finish())


def require_logger(name: str | None) -> None:
    """Raise UserError if the logger is not installed."""
    if name:
        require_package(name, f"--logger {name}", name)


class Logbook:
    """The records of one run, which rank 0 alone writes. reached: the last step of each kind in the state to resume
    from; later records are dropped. num_steps: the steps of the whole training. Records of another number of ranks,
    which needs other steps for the same searches, get the step numbers of the present ranks.
    """

    def __init__(self, settings: TrainSettings, reached: dict[str, int], num_steps: int, steps_per_epoch: int):
        self.run, self.metrics, self.num_steps = settings.run, settings.run / run_files.METRICS, num_steps
        self.steps_per_epoch = steps_per_epoch
        records = read_metrics(self.metrics)
        if not settings.steps:
            records = [record | {"step": step_at(record["epoch"], steps_per_epoch)} for record in records]
        kept = [record for record in records if record["step"] <= reached[record["kind"]]]
        write_text(self.metrics, "".join(json.dumps(record) + "\n" for record in kept))
        with storage_errors(self.run / run_files.CURVES_FOLDER):
            self.loggers = [tensorboard(settings, reached["train"] + 1)]
        if settings.logger:
            self.loggers.append(wandb(settings))

    def record(self, kind: str, step: int, values: dict[str, float]) -> None:
        """Append numbers of one kind ("train" or "validation") at a step, and log them as a line for people."""
        values = {"epoch": step / self.steps_per_epoch, **values}
        with storage_errors(self.metrics), open(self.metrics, "r+", encoding="utf-8") as file:
            # Mode "a" would create a new file if the volume is gone.
            file.seek(0, os.SEEK_END)
            file.write(json.dumps({"kind": kind, "step": step, **values}) + "\n")
        for logger in self.loggers:
            with errors_as_warnings(logger.name):
                logger.log({f"{kind}/{name}": value for name, value in values.items()}, step)
        log.info("step %d/%d | %s", step, self.num_steps, " | ".join(LINES[kind](values)))

    def close(self, status: Status) -> None:
        """Write status.json, and close the loggers."""
        write_bytes(self.run / run_files.STATUS, as_json(status))
        for logger in self.loggers:
            with errors_as_warnings(logger.name):
                logger.close(status)


def step_at(epoch: float, steps_per_epoch: int) -> int:
    """The step at which `epoch` epochs are over."""
    return round(epoch * steps_per_epoch)


def train_line(values: dict[str, float]) -> list[str]:
    """The parts of the console line of a training record."""
    losses = ", ".join(f"{name} {values[name]:.2f}" for name in ("gap", "saved", "graph_type", "rounds", "crossover"))
    names = (name for name in ("search", "gradient", "waiting") if values[f"{name}_share"])  # one rank never waits
    shares = (f"{values[f'{name}_share']:.0%} {name}" for name in names)
    busy = [value for name, value in values.items() if name.startswith("gpu") and name.endswith("_busy")]
    minutes, seconds = divmod(round(values["seconds_left"]), 60)
    return [
        f"epoch {values['epoch']:.1f}", losses, f"{values['graphs_per_second']:.0f} graphs/s", ", ".join(shares),
        *([f"GPUs {min(busy):.0%} to {max(busy):.0%} busy"] if busy else []), f"{minutes}:{seconds:02d} left",
    ]  # fmt: skip


def validation_line(values: dict[str, float]) -> list[str]:
    """The parts of the console line of an evaluation."""
    others = f"untrained {values['gap'] + values['gain']:+.2f}, DSATUR {values['dsatur_gap']:+.2f}"
    parts = [f"training saves {values['gain']:.2f} ± {values['gain_error']:.2f} colors"]
    if "crossover_gain" in values:
        gain, error = values["crossover_gain"], values["crossover_gain_error"]
        parts += [f"R² of crossover {values['crossover_explained']:.4f} ({gain:+.4f} ± {error:.4f} by training)"]
    return [f"evaluation: gap {values['gap']:+.2f} ({others})", *parts, *["new best"] * int(values["is_best"])]


LINES = {"train": train_line, "validation": validation_line}


def read_metrics(path: Path) -> list[dict]:
    """Return the records of metrics.jsonl. A last line that a crash cut short is left out. Damaged lines are left out
    with a warning.
    """
    *lines, _ = read_bytes(path, MAX_FILE_BYTES, "name another run folder").split(b"\n") if path.exists() else [b""]
    records = []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            numbers = [record["step"], record["epoch"], *(value for name, value in record.items() if name != "kind")]
            if record["kind"] not in LINES or not all(isinstance(value, int | float) for value in numbers):
                raise ValueError("is no record")
            records.append(record)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            log.warning("%s: line %d is damaged and left out (%s)", path, number, error)
    return records
