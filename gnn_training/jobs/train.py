"""Train a coloring network. The same command on the same folder continues where it was."""

import logging
import sys
import time
from contextlib import nullcontext
from dataclasses import asdict

from gnn_training import processes
from gnn_training.data.packed import PackedGraphs
from gnn_training.distributed import StopSignal, join
from gnn_training.errors import UserError
from gnn_training.files import lock_folder, write_text
from gnn_training.settings import TrainSettings
from gnn_training.training import checkpoint
from gnn_training.training.learner import Learner
from gnn_training.training.logbook import Logbook, Progress
from gnn_training.training.validation import Validation

log = logging.getLogger(__name__)
STOPPED = 143  # exit code of a run that was told to stop and can be resumed


def train(settings: TrainSettings) -> None:
    """Train until the schedule ends, time is up, patience is lost or a signal comes (then exit code 143).

    Raises:
        UserError: the data or the run folder cannot be used, or the loss stays non-finite.
    """
    signal = StopSignal()
    data = PackedGraphs.open(settings.data)
    with join(settings.device) as rt, lock_folder(settings.run) if rt.is_main else nullcontext():
        learner = Learner(settings, data, rt)
        validation = Validation(settings, learner.dataset, rt)
        progress = _begin(learner, validation)
        # A checkpoint may come before the evaluation of its own step, which then is done again.
        reached = {"train": learner.step, "validation": progress.evaluated_at}
        book = Logbook(settings.run, reached, rt.is_main)
        try:
            ended = _steps(learner, validation, progress, book, signal)
        except UserError as error:
            book.close({"status": "failed", "reason": str(error)})
            raise
        _save(learner, progress)
        book.close({"status": ended, "step": learner.step, "ranks": rt.world_size, "device": rt.device_name,
                    "skipped_steps": int(learner.skipped), **asdict(progress)})  # fmt: skip
    if ended == "stopped":
        sys.exit(STOPPED)


def _begin(learner: Learner, validation: Validation) -> Progress:
    """Put the learner where the newest checkpoint left it, if any; rank 0 reads, so all start from one file."""
    settings, data, rt, progress = learner.settings, learner.data, learner.rt, Progress()
    if any(rt.any(data.manifest["sha256"] != rt.broadcast(data.manifest["sha256"]))):
        raise UserError(f"{settings.data}: the machines hold different graphs; give all of them the same volume")
    on_disk = checkpoint.newest(settings.run / "checkpoints"), (settings.run / "best.pt").exists()
    state, has_best = rt.broadcast(on_disk if rt.is_main else None)
    if state is not None:
        _refuse_other_settings(settings, data, state)
        learner.load_state(state)
        progress = Progress(**state["progress"])
        if not has_best:  # somebody removed it: evaluate again, whatever the checkpoint remembers
            progress.best, progress.evaluated_at = None, -1
    elif settings.weights:
        learner.load_weights(rt.broadcast(checkpoint.load_best(settings.weights) if rt.is_main else None))
    if rt.is_main:
        write_text(settings.run / "config.json", settings.model_dump_json(indent=2) + "\n")
        start = f"continuing at step {learner.step}" if state else "starting"
        log.info(
            "%s: %d steps, %d graphs in %d steps an epoch, %d for validation, %d x %s, %d parameters",
            start, settings.steps, len(learner.plan.indices), learner.plan.steps_per_epoch, len(validation.ids),
            rt.world_size, rt.device.type, sum(p.numel() for p in learner.network.parameters()),
        )  # fmt: skip
    if settings.compile:
        _compile(learner)
    return progress


def _compile(learner: Learner) -> None:
    seconds, missing = learner.compile()
    origin = "from the cache of an earlier start" if seconds < 15 else "the next start finds it in a cache"
    done = f"compiled the refinement rounds in {seconds:.1f} s; {origin}"
    if learner.rt.is_main:
        log.info(f"trains uncompiled, about half as fast: {missing}" if missing else done)


def _steps(learner: Learner, validation: Validation, progress: Progress, book: Logbook, signal: StopSignal) -> str:
    """The loop; returns why it ended: "done" or "stopped"."""
    settings, rt = learner.settings, learner.rt
    # Ranks disagree on clocks and signals; one leaving alone would keep the others waiting in all-reduce.
    stopped, late = rt.any(signal.received, progress.is_late(settings.minutes))
    while learner.step < settings.steps:
        if 0 < learner.step != progress.evaluated_at and learner.step % settings.evaluate_every == 0:
            _evaluate(learner, validation, progress, book)
        processes.beat()
        started = time.monotonic()
        if stopped:
            return "stopped"
        if late or progress.out_of_patience(settings.patience):
            break
        terms = learner.update(signal.received, progress.is_late(settings.minutes))
        stopped, late = learner.heard()
        progress.count(terms["graphs"], time.monotonic() - started)
        if learner.step % settings.log_every == 0:
            _record(learner, progress, book, terms)
        if learner.step % settings.checkpoint_every == 0:
            _save(learner, progress)
    if progress.evaluated_at != learner.step:
        _evaluate(learner, validation, progress, book)
    return "done"


def _record(learner: Learner, progress: Progress, book: Logbook, terms: dict) -> None:
    epoch = learner.step / learner.plan.steps_per_epoch
    pace = {"epoch": epoch, "graphs_per_second": progress.graphs_per_second}
    left = {"minutes_left": progress.minutes_left(learner.step, learner.settings.steps)}
    book.record("train", learner.step, {**{name: float(value) for name, value in terms.items()}, **pace, **left})


def _evaluate(learner: Learner, validation: Validation, progress: Progress, book: Logbook) -> None:
    """Score the averaged weights and keep them when they are the best so far."""
    started = time.monotonic()
    with learner.averaging() as network:
        scores = validation.scores(network)
    book.record("validation", learner.step, scores)
    better = progress.judge(scores["gap"], learner.step)  # reduced scores: the same verdict on every rank
    progress.seconds += time.monotonic() - started
    if better and learner.rt.is_main:
        from gnn_training.training.validation import draw  # 0.6 s of matplotlib that no rank need wait for to start

        checkpoint.save(learner.settings.run / "best.pt", {**learner.best_state(), "scores": scores})
        with learner.averaging() as network:
            book.picture("validation graph", learner.step, draw(*validation.example(network)))


def _save(learner: Learner, progress: Progress) -> None:
    if learner.rt.is_main:
        state = {**learner.state(), "progress": asdict(progress)}
        checkpoint.save_step(learner.settings.run / "checkpoints", learner.step, state)


FREE_TO_CHANGE = {
    "preset", "data", "run", "device", "compile", "minutes", "patience", "checkpoint_every", "log_every", "dry_run",
}  # fmt: skip


def _refuse_other_settings(settings: TrainSettings, data: PackedGraphs, state: dict) -> None:
    """A run continues only as what it is: other settings or other graphs belong in another folder."""
    then, now = state["settings"], settings.model_dump(mode="json")
    if then.keys() != now.keys():
        raise UserError(
            f"{settings.run} was begun by another version of this program: finish it there or take another --run folder"
        )
    for name in sorted(now.keys() - FREE_TO_CHANGE):
        if then[name] != now[name]:
            raise UserError(
                f"{settings.run} was trained with {name} {then[name]}, not {now[name]}: "
                f"take the old value or another --run folder"
            )
    if state["data_sha256"] != data.manifest["sha256"]:
        raise UserError(f"{settings.run} was trained on other graphs than {settings.data}: take another --run folder")
