"""One training: steps, evaluations, checkpoints and records, from its start or from where it was interrupted."""

import logging
import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace

from gnn_training import run_files
from gnn_training.console import duration
from gnn_training.data.packed import PackedGraphs
from gnn_training.distributed import Runtime
from gnn_training.errors import StorageError, UserError
from gnn_training.files import damaged, read_json, write_text
from gnn_training.network.crossover import CrossoverNetwork
from gnn_training.network.network import ColoringNetwork
from gnn_training.settings import EVALUATIONS, TrainSettings
from gnn_training.training import checkpoint
from gnn_training.training.learner import prepare
from gnn_training.training.logbook import Logbook, Progress, Status
from gnn_training.training.self_check import self_check
from gnn_training.training.self_play import SelfPlay, explain_kept
from gnn_training.training.validation import Validation

log = logging.getLogger(__name__)
GPU_STEPS = 10  # between two looks at what a GPU has computed; each look waits for it
FREE_TO_CHANGE = {
    "preset", "data", "run", "device", "minutes", "patience", "checkpoint_every", "keep", "resume_from", "log_every",
    "logger", "ranks", "gpus",
}  # fmt: skip


class Trainer:
    """The parts of one training and its progress. Before `run`, nothing asks other ranks, but for DDP, which copies the
    first weights, and nothing touches the run folder.
    """

    def __init__(self, settings: TrainSettings, data: PackedGraphs, rt: Runtime):
        self.settings, self.rt, self.data_sha256 = settings, rt, data.manifest["sha256"]
        self.loader, self.monitor, self.learner = prepare(settings, data, rt)
        self.validation = Validation(settings, self.loader.dataset, self.monitor.timed.search, rt)
        first = self.learner.average.crossover
        self.self_play = SelfPlay(settings, self.loader.dataset, self.loader.sampler.indices, first, rt)
        self.best: dict = {}  # what best.pt has: the best weights of every part of the network, and their origin
        self.progress, self.self_check = Progress(), list[dict]()
        self.logbook: Logbook | None = None
        self.counted_until = 0.0  # see `_add_time`

    def run(self, signals: Sequence[float]) -> str:
        """Train until the schedule, the time or the patience ends ("done"), or until there is a signal ("stopped")."""
        try:
            self._start()
            ended = self._loop(signals)
            self._save()
        except UserError as error:
            with suppress(StorageError):  # the first error is the one to tell
                self._close({"status": "failed", "reason": str(error), "self_check": self.self_check})
            raise
        finally:
            self.self_play.close()
        learner, rt = self.learner, self.rt
        best = self._best_crossover()
        crossover = explain_kept(self.progress.crossover_step, self.self_play.scores(best, best))
        self._close({"status": ended, "step": learner.step, "ranks": rt.world_size, "device": rt.device_name,
                     "self_check": self.self_check, "skipped_steps": int(learner.skipped_steps),
                     "crossover": crossover, **asdict(self.progress)})  # fmt: skip
        if rt.is_main:
            log.info(
                "%s at step %d after %s, %d x %s; the best rule is that of step %d", ended, learner.step,
                duration(self.progress.seconds), rt.world_size, rt.device_name, self.progress.best_step,
            )  # fmt: skip
            log.info("crossover: %s", crossover)
        rt.any(False)  # wait for rank 0, or another machine would not find all files
        return ended

    def _start(self) -> None:
        """Restore what there is, check the GPUs, and open the logbook."""
        step = self._restore()
        self.self_check = self_check(self.learner, self.loader, self.rt)
        if self.rt.is_main:
            # A checkpoint may have come before the evaluation of its own step, which is then done again.
            reached = {"train": step, "validation": self.progress.evaluated_at}
            self.logbook = Logbook(self.settings, reached, self.learner.num_steps)
        self.counted_until = time.monotonic()

    def _loop(self, signals: Sequence[float]) -> str:
        """Take the steps. What ends them is known on all ranks alike: a function of the step, or a reduced number."""
        settings, learner, progress, rt = self.settings, self.learner, self.progress, self.rt
        evaluate_every = settings.evaluate_every or -(-learner.num_steps // EVALUATIONS)
        look_every = math.gcd(GPU_STEPS, settings.log_every) if rt.device.type == "cuda" else 1  # a look waits for it
        stopped, late = rt.any(bool(signals), self._is_late())
        batches = self.loader.starting_at(learner.step)
        self.monitor.restart()
        reported = progress.step_seconds
        while True:
            if learner.step % evaluate_every == 0:
                self._evaluate()
            if stopped:
                return "stopped"
            lost_patience = 0 < settings.patience <= progress.evaluations_without_gain
            if late or lost_patience or learner.step >= learner.num_steps:
                break
            if not self.self_play.advance(learner.step, learner.num_steps, learner.average.crossover, signals):
                return "stopped"
            rate = learner.learning_rate
            self._add_time()  # of what came between
            pairs, num_pairs = self.self_play.batch(learner.step)
            batch = replace(next(batches), pairs=pairs, num_pairs=num_pairs)
            learner.update(batch)
            if learner.step % look_every == 0:
                learner.reduce()
                stopped, late = rt.any(bool(signals), self._is_late())
            progress.graphs += batch.num_graphs
            progress.step_seconds += self._add_time()
            if learner.step % settings.log_every == 0:
                shares = self.monitor.report(progress.step_seconds - reported)
                self._log({**learner.means(), "learning_rate": rate, **shares})
                reported = progress.step_seconds
            if learner.step % settings.checkpoint_every == 0:
                self._save()
        self._evaluate()
        return "done"

    def _add_time(self) -> float:
        """Count the time since the last call, and return it."""
        before, self.counted_until = self.counted_until, time.monotonic()
        self.progress.seconds += self.counted_until - before
        return self.counted_until - before

    def _is_late(self) -> bool:
        return 0 < 60 * self.settings.minutes <= self.progress.seconds

    def _close(self, status: Status) -> None:
        if self.logbook:
            self.logbook.close(status)

    def _log(self, values: dict[str, float]) -> None:
        if not self.logbook:
            return
        step, progress = self.learner.step, self.progress
        left = progress.seconds_left(step, self.learner.num_steps, self.settings.minutes)
        values |= {"epoch": step / len(self.loader.sampler)}
        values |= {"graphs_per_second": progress.graphs / max(progress.step_seconds, 1e-9), "seconds_left": left}
        self.logbook.record("train", step, values)

    def _evaluate(self) -> None:
        """Score the averaged weights, unless those of this step have been, and keep them if they are the best."""
        step = self.learner.step
        if step == self.progress.evaluated_at:
            return
        average = self.learner.average
        scores = self.validation.scores(average) | self.self_play.scores(average.crossover, self._best_crossover())
        better = self.progress.judge(scores, step)  # reduced scores: the same on every rank
        if self.logbook:
            self.logbook.record("validation", step, {**scores, "is_best": int("rule" in better)})
        self._add_time()
        if better:
            self._keep(better)

    def _keep(self, parts: list[str]) -> None:
        """Take these parts of the averaged weights into the best ones."""
        exported = self.learner.exported_state()
        better = {name: weight for name, weight in exported["network"].items() if name.split(".")[0] in parts}
        network = self.best.get("network", {}) | {name: weight.to("cpu", copy=True) for name, weight in better.items()}
        origin = {"data_sha256": self.data_sha256, "scores": {"gap": self.progress.best}}
        self.best = {**exported, **origin, "network": network}
        self._save_best()

    def _save_best(self) -> None:
        if self.rt.is_main:
            checkpoint.save(self.settings.run / run_files.BEST, self.best)

    def _best_crossover(self) -> CrossoverNetwork:
        """With the best weights; the present ones before the first evaluation."""
        state = self.best.get("network") or self.learner.average.state_dict()
        return ColoringNetwork.from_state(state).crossover.to(self.rt.device)

    def _save(self) -> None:
        """Write a checkpoint."""
        self.learner.reduce()
        if self.rt.is_main:
            state = {**self.learner.state(), "data_sha256": self.data_sha256, "progress": asdict(self.progress),
                     "self_play": self.self_play.state(), "best": self.best,
                     "steps_per_epoch": len(self.loader.sampler),
                     "resumed_from": str(self.settings.resume_from or "")}  # fmt: skip
            folder = self.settings.run / run_files.CHECKPOINT_FOLDER
            checkpoint.save_step(folder, self.learner.step, state, self.settings.keep)

    def _restore(self) -> int:
        """Continue from the state to resume from, which rank 0 reads for all ranks, or begin with the weights that are
        named. Returns the step of the state, or 0.
        """
        settings, rt, sha256 = self.settings, self.rt, self.data_sha256
        if any(rt.any(sha256 != rt.broadcast(sha256))):
            raise UserError(f"{settings.data}: the machines hold different graphs; give all of them the same volume")
        state = rt.broadcast(find_state(settings, sha256) if rt.is_main else None)
        if state is not None:
            require_same(settings, sha256, state)
            self._continue(state)
        elif settings.weights:
            self.learner.load_weights(rt.broadcast(checkpoint.read_weights(settings.weights) if rt.is_main else None))
            self.self_play.first.load_state_dict(self.learner.average.crossover.state_dict())
        if rt.is_main:
            self._announce(f"resuming at step {self.learner.step}" if state else "starting")
        return state["step"] if state else 0

    def _continue(self, state: dict) -> None:
        """Go on from a state, perhaps of another number of ranks."""
        with damaged(f"the newest in {self.settings.run / run_files.CHECKPOINT_FOLDER}", "delete it"):
            self.learner.load_state(state)
            self.self_play.load_state(state["self_play"])
        self.progress, self.best = Progress(**state["progress"]), state["best"]
        self._save_best()  # a kill may have come between an evaluation and a checkpoint
        steps_per_epoch = len(self.loader.sampler)
        if not self.settings.steps and state["steps_per_epoch"] != steps_per_epoch:  # other steps for the same searches
            self.learner.go_to(round(state["step"] * steps_per_epoch / state["steps_per_epoch"]))
            self._save()

    def _announce(self, beginning: str) -> None:
        """Write the settings, and log what is trained on what."""
        write_text(self.settings.run / run_files.CONFIG, self.settings.model_dump_json(indent=2) + "\n")
        sampler, num_parameters = self.loader.sampler, sum(p.numel() for p in self.learner.network.parameters())
        log.info(
            "%s: %d steps, %d graphs in %d steps an epoch, %d for validation, %d x %s, %d parameters", beginning,
            self.learner.num_steps, len(sampler.indices), len(sampler), len(self.validation.ids), self.rt.world_size,
            self.rt.device.type, num_parameters,
        )  # fmt: skip


def find_state(settings: TrainSettings, data_sha256: str) -> dict | None:
    """State to resume from, if any. Raises UserError if a training has ended there and its checkpoints are gone, or if
    the folder has files of these names that are not a training's.
    """
    run, named = settings.run, settings.resume_from
    state = checkpoint.newest(run / run_files.CHECKPOINT_FOLDER)
    if named and (state is None or state["resumed_from"] != str(named)):  # else a start before has gone back to it
        state = checkpoint.named(run, named)
        require_same(settings, data_sha256, state)  # before anything is moved
        checkpoint.set_later_aside(run, state)
    hint = "name another --run folder, or empty this one"
    if state is None and (ended := run / run_files.STATUS).exists():
        with damaged(ended, hint):
            if read_json(ended, hint)["status"] != "failed":
                raise UserError(f"{run} has a training without its checkpoints, which would begin again: {hint}")
    if state is None and any((run / name).exists() for name in (run_files.CONFIG, run_files.METRICS)):
        with damaged(config := run / run_files.CONFIG, hint):
            if "learning_rate" not in read_json(config, hint):
                raise UserError(f"{config}: is not of a training: {hint}")
    return state


def require_same(settings: TrainSettings, data_sha256: str, state: dict) -> None:
    """A run resumes only with its own settings and graphs: others belong in another folder."""
    then, now = state["settings"], settings.model_dump(mode="json")
    run, hint = settings.run, "name another --run folder"
    if then.keys() != now.keys() or state["progress"].keys() != asdict(Progress()).keys():
        raise UserError(f"{run} was started by another version of this program: finish it there or {hint}")
    for name in sorted(now.keys() - FREE_TO_CHANGE):
        if then[name] != now[name]:
            raise UserError(f"{run} was trained with {name} {then[name]}, not {now[name]}: go back or {hint}")
    if state["data_sha256"] != data_sha256:
        raise UserError(f"{run} was trained on other graphs than {settings.data}: {hint}")
