"""One training: steps, evaluations, checkpoints and records, from its start or from where it was interrupted."""

import logging
import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict

import torch

from gnn_training import run_files
from gnn_training.console import duration
from gnn_training.data.packed import PackedGraphs
from gnn_training.distributed import Runtime
from gnn_training.errors import StorageError, UserError
from gnn_training.files import damaged, write_text
from gnn_training.network.crossover_network import CrossoverNetwork
from gnn_training.network.network import ColoringNetwork
from gnn_training.search.batches import Searcher, has_kernels, search_on_cpu
from gnn_training.settings import EVALUATIONS, TrainSettings
from gnn_training.training import checkpoint
from gnn_training.training.learner import Learner
from gnn_training.training.loader import GraphLoader
from gnn_training.training.logbook import Logbook, Progress, Status, step_at
from gnn_training.training.monitor import Monitor
from gnn_training.training.resume import find_state, require_same
from gnn_training.training.self_check import self_check
from gnn_training.training.self_play import SelfPlay
from gnn_training.training.validation import PairValidation, Validation, explain_best

log = logging.getLogger(__name__)
SYNC_STEPS = 10  # steps between two reads of what a GPU has computed; each read waits for it


def searcher_for(data: PackedGraphs, device: torch.device) -> Searcher:
    """Return the fastest searcher for a device."""
    if has_kernels(device):
        from gnn_training.search.gpu_searches import BlockSearcher  # loads numba's CUDA

        return BlockSearcher(data, device)
    if device.type != "cpu":
        log.warning("the cores of the CPU do the searches: on GPUs, they need NVIDIA's and the package numba-cuda")
    return search_on_cpu


def prepare(settings: TrainSettings, data: PackedGraphs, rt: Runtime) -> tuple[GraphLoader, Monitor, Learner]:
    """Return what the steps of a training need; the monitor times the searches of the learner."""
    loader, monitor = GraphLoader(settings, data, rt), Monitor(searcher_for(data, rt.device), rt)
    num_steps = settings.num_steps(loader.sampler.graphs_per_step)
    learner = Learner(settings, monitor.search, rt, num_steps)
    learner.has_states = len(loader.state_sampler.indices) > 0
    return loader, monitor, learner


class Trainer:
    """The parts of one training and its progress. The constructor leaves the run folder alone. It communicates with no
    other rank, except that DDP copies the first weights.
    """

    def __init__(self, settings: TrainSettings, data: PackedGraphs, rt: Runtime):
        self.settings, self.rt, self.data_sha256 = settings, rt, data.manifest["sha256"]
        self.loader, self.monitor, self.learner = prepare(settings, data, rt)
        self.validation = Validation(settings, self.loader.dataset, self.monitor.searcher, rt)
        self.self_play = SelfPlay(settings, self.loader.dataset, self.loader.sampler.indices, rt)
        initial = self.learner.average.crossover
        self.pair_validation = PairValidation(self.self_play.buffer, self.loader.dataset, initial, rt)
        self.best_state: dict = {}  # content of best.pt: the best weights of each part of the network, and their origin
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
            with suppress(StorageError):  # only the first error is reported
                self._close({"status": "failed", "reason": str(error), "self_check": self.self_check})
            raise
        finally:
            self.self_play.close()
        learner, rt = self.learner, self.rt
        crossover = self._explain_crossover() if ended == "done" else {}  # a signal leaves only seconds
        self._close({"status": ended, "step": learner.step, "ranks": rt.world_size, "device": rt.device_name,
                     "self_check": self.self_check, "skipped_steps": int(learner.skipped_steps),
                     **crossover, **asdict(self.progress)})  # fmt: skip
        if rt.is_main:
            log.info(
                "%s at step %d after %s, %d x %s; the best rule is that of step %d", ended, learner.step,
                duration(self.progress.seconds), rt.world_size, rt.device_name, self.progress.best_step,
            )  # fmt: skip
        rt.barrier()  # wait for rank 0, or another machine would not find all files
        return ended

    def _start(self) -> None:
        """Resume from a state if there is one, check the GPUs, and open the logbook."""
        self._restore()
        self.self_check = self_check(self.learner, self.loader, self.rt)
        if self.rt.is_main:
            # If a checkpoint was written before the evaluation of its step, that evaluation is done again.
            reached = {"train": self.learner.step, "validation": self.progress.evaluated_at}
            self.logbook = Logbook(self.settings, reached, self.learner.num_steps, len(self.loader.sampler))
        self.counted_until = time.monotonic()

    def _loop(self, signals: Sequence[float]) -> str:
        """Take the steps; return how they ended. All ranks end alike, by a function of the step or a reduced number."""
        settings, learner, progress, rt = self.settings, self.learner, self.progress, self.rt
        evaluate_every = settings.evaluate_every or -(-learner.num_steps // EVALUATIONS)
        sync_every = math.gcd(SYNC_STEPS, settings.log_every) if rt.device.type == "cuda" else 1  # a read waits for it

        def interrupted() -> list[bool]:
            """Whether any rank has received a signal, and whether the time of any rank is over."""
            return rt.any_rank(bool(signals), self._is_out_of_time())

        stopped, out_of_time = interrupted()
        batches = self.loader.starting_at(learner.step)
        self.monitor.restart()
        reported = progress.step_seconds
        while True:
            is_due = learner.step % evaluate_every == 0
            if is_due and (not stopped or learner.step == 0):  # else the resumed training evaluates this step
                self._evaluate()
            if stopped:
                return "stopped"
            lost_patience = 0 < settings.patience <= progress.evaluations_without_gain
            if out_of_time or lost_patience or learner.step >= learner.num_steps:
                self._evaluate()
                return "done"
            network = learner.average.crossover
            if not self.self_play.advance(learner.step, learner.num_steps, network, lambda: any(interrupted())):
                stopped, out_of_time = interrupted()
                continue
            rate = learner.learning_rate
            self._add_time()  # time of what came between two steps
            graphs, states = next(batches)
            learner.update(graphs, states, self.self_play.batch(learner.step))
            if learner.step % sync_every == 0:
                learner.reduce()
                stopped, out_of_time = interrupted()
            progress.graphs += graphs.num_graphs
            progress.step_seconds += self._add_time()
            if learner.step % settings.log_every == 0:
                shares = self.monitor.report(progress.step_seconds - reported)
                self._log({**learner.means(), "learning_rate": rate, **shares})
                reported = progress.step_seconds
            if learner.step % settings.checkpoint_every == 0:
                self._save()

    def _add_time(self) -> float:
        """Add the time since the last call to the progress, and return it."""
        before, self.counted_until = self.counted_until, time.monotonic()
        self.progress.seconds += self.counted_until - before
        return self.counted_until - before

    def _is_out_of_time(self) -> bool:
        now = self.progress.seconds + time.monotonic() - self.counted_until
        return 0 < 60 * self.settings.minutes <= now

    def _close(self, status: Status) -> None:
        if self.logbook:
            self.logbook.close(status)

    def _log(self, values: dict[str, float]) -> None:
        if not self.logbook:
            return
        step, progress = self.learner.step, self.progress
        left = progress.seconds_left(step, self.learner.num_steps, self.settings.minutes)
        values |= {"graphs_per_second": progress.graphs / max(progress.step_seconds, 1e-9), "seconds_left": left}
        self.logbook.record("train", step, values)

    def _evaluate(self) -> None:
        """Score the averaged weights, unless this step has been evaluated, and keep them if they are the best."""
        step = self.learner.step
        if step == self.progress.evaluated_at:
            return
        average = self.learner.average
        scores = self.validation.scores(average)
        scores |= self.pair_validation.scores(average.crossover, self._best_crossover())
        better = self.progress.judge(scores, step)  # reduced scores: the same on every rank
        if self.logbook:
            self.logbook.record("validation", step, {**scores, "is_best": int("rule" in better)})
        self._add_time()
        if better:
            self._keep(better)

    def _keep(self, parts: list[str]) -> None:
        """Replace these parts of the best weights with the averaged weights."""
        exported = self.learner.exported_state()
        better = {name: weight for name, weight in exported["network"].items() if name.split(".")[0] in parts}
        copies = {name: weight.to("cpu", copy=True) for name, weight in better.items()}
        origin = {"data_sha256": self.data_sha256, "scores": {"gap": self.progress.best_gap}}
        self.best_state = {**exported, **origin, "network": self.best_state.get("network", {}) | copies}
        self._save_best()

    def _save_best(self) -> None:
        if self.rt.is_main:
            checkpoint.save(self.settings.run / run_files.BEST, self.best_state)

    def _explain_crossover(self) -> Status:
        """Log which weights of the crossover network are the best and why; return this for the status."""
        best = self._best_crossover()
        explanation = explain_best(self.progress.crossover_step, self.pair_validation.scores(best, best))
        if self.rt.is_main:
            log.info("crossover: %s", explanation)
        return {"crossover": explanation}

    def _best_crossover(self) -> CrossoverNetwork:
        """The crossover network with the best weights, or the present ones before the first evaluation."""
        state = self.best_state.get("network") or self.learner.average.state_dict()
        return ColoringNetwork.from_state(state).crossover.to(self.rt.device)

    def _save(self) -> None:
        """Write a checkpoint."""
        self.learner.reduce()
        if self.rt.is_main:
            state = {**self.learner.state(), "data_sha256": self.data_sha256, "progress": asdict(self.progress),
                     "self_play": self.self_play.state(), "best": self.best_state,
                     "initial_crossover": self.pair_validation.initial.state_dict(),
                     "steps_per_epoch": len(self.loader.sampler),
                     "resumed_from": str(self.settings.resume_from or "")}  # fmt: skip
            folder = self.settings.run / run_files.CHECKPOINT_FOLDER
            checkpoint.save_step(folder, self.learner.step, state, self.settings.keep)

    def _restore(self) -> None:
        """Continue from the state to resume from, which rank 0 reads for all ranks, or else begin with the weights that
        the settings name.
        """
        settings, rt, sha256 = self.settings, self.rt, self.data_sha256
        if rt.any_rank(sha256 != rt.broadcast(sha256))[0]:
            raise UserError(f"{settings.data}: the machines hold different graphs; give all of them the same volume")
        state = rt.broadcast(find_state(settings, sha256) if rt.is_main else None)
        if state is not None:
            require_same(settings, sha256, state)
            self._continue(state)
        elif settings.weights:
            self.learner.load_weights(rt.broadcast(checkpoint.read_weights(settings.weights) if rt.is_main else None))
            self.pair_validation.initial.load_state_dict(self.learner.average.crossover.state_dict())
        if rt.is_main:
            self._announce(f"resuming at step {self.learner.step}" if state else "starting")

    def _continue(self, state: dict) -> None:
        """Continue from a state, perhaps one of another number of ranks."""
        with damaged(f"the newest in {self.settings.run / run_files.CHECKPOINT_FOLDER}", "delete it"):
            self.learner.load_state(state)
            self.self_play.load_state(state["self_play"])
            self.pair_validation.initial.load_state_dict(state["initial_crossover"])
        self.progress, self.best_state = Progress(**state["progress"]), state["best"]
        if not self.settings.steps and state["steps_per_epoch"] != len(self.loader.sampler):
            self._renumber(state["steps_per_epoch"])
        self._save_best()  # a kill may have come between an evaluation and a checkpoint

    def _renumber(self, steps_per_epoch: int) -> None:
        """Convert the numbers of steps to the present number of ranks. steps_per_epoch: the former number."""

        def now(step: int) -> int:
            return step_at(step / steps_per_epoch, len(self.loader.sampler))

        self.learner.set_step(now(self.learner.step))
        self.best_state["step"] = now(self.best_state["step"])
        for name in ("best_step", "crossover_step", "evaluated_at"):
            setattr(self.progress, name, now(getattr(self.progress, name)))
        self._save()

    def _announce(self, beginning: str) -> None:
        """Write the settings, and log the numbers of steps, graphs, devices and parameters."""
        write_text(self.settings.run / run_files.CONFIG, self.settings.model_dump_json(indent=2) + "\n")
        sampler, num_parameters = self.loader.sampler, sum(p.numel() for p in self.learner.network.parameters())
        log.info(
            "%s: %d steps, %d graphs in %d steps an epoch, %d for validation, %d x %s, %d parameters", beginning,
            self.learner.num_steps, len(sampler.indices), len(sampler), len(self.validation.ids), self.rt.world_size,
            self.rt.device.type, num_parameters,
        )  # fmt: skip
