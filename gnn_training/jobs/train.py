"""Train a coloring network. The same command on the same folder resumes."""

import logging
import math
import os
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gnn_training import machine, processes
from gnn_training.console import duration
from gnn_training.data.packed import PackedGraphs
from gnn_training.distributed import Runtime, join
from gnn_training.errors import StorageError, UserError
from gnn_training.files import damaged, identity, lock_folder, make_folder, read_json, write_text
from gnn_training.model.network import ColoringNetwork
from gnn_training.model.search import first_weights
from gnn_training.ranks import Nodes, launch, num_ranks
from gnn_training.settings import EVALUATIONS, TrainSettings
from gnn_training.training import checkpoint
from gnn_training.training.learner import Batch, Learner, Searcher
from gnn_training.training.loader import DeviceDataset, GraphLoader, search_costs, share
from gnn_training.training.logbook import Logbook, Progress, require_logger
from gnn_training.training.searcher import searcher_for, self_check

log = logging.getLogger(__name__)

GPU_STEPS = 10  # between two looks at what a GPU has computed; each look waits for it
STATE_BATCH = 16
MAX_NODES = 2048  # of validation graphs: larger ones are trained on, but would dominate the scores


def train(settings: TrainSettings) -> None:
    """Train on all ranks: those that torchrun has started, or else those started here, one per GPU or core. Raises
    UserError if machine, data, logger or run folder cannot be used, SystemExit if a signal stopped it; state is saved.
    """
    require_logger(settings.logger)
    if os.environ.get("LOCAL_RANK", "0") == "0":  # once per machine: a gigabyte takes a second
        PackedGraphs.open(settings.data).verify()
    if "RANK" in os.environ:
        outcome = train_rank(settings)
    else:
        machine.select_gpus(settings.gpus)
        outcome = launch(train_rank, settings, num_ranks(settings), Nodes.from_environment())
    if outcome == "stopped":
        sys.exit(processes.STOPPED)


def train_rank(settings: TrainSettings) -> str:
    """Train as one rank until the schedule, time or patience ends ("done") or a signal comes ("stopped")."""
    signals: list[int] = []  # to stop: the training saves its state and ends
    processes.handle_stop_signals(lambda number, _frame: signals.append(number))
    data = PackedGraphs.open(settings.data)
    with join(settings.device) as rt, lock_folder(settings.run) if rt.is_main else nullcontext():
        if rt.is_main:
            make_folder(settings.run / checkpoint.FOLDER)
        return Training(settings, data, rt).run(signals)


class Training:
    """The parts of one training and its progress."""

    def __init__(self, settings: TrainSettings, data: PackedGraphs, rt: Runtime):
        self.settings, self.rt, self.data_sha256 = settings, rt, data.manifest["sha256"]
        self.folder = identity(settings.run)
        self.loader = GraphLoader(settings, data, rt)
        self.learner = Learner(settings, searcher_for(data, rt.device), rt)
        self.learner.num_steps = settings.num_steps(self.loader.sampler.graphs_per_step)
        self.validation = Validation(settings, self.loader.dataset, self.learner.search, rt)
        self.progress = Progress()
        # A checkpoint may have come before the evaluation of its own step, which is then done again.
        reached = {"train": self._restore(), "validation": self.progress.evaluated_at}
        self.self_check = self_check(self.learner, self.loader, rt)
        self.logbook = Logbook(settings, reached) if rt.is_main else None

    def run(self, signals: Sequence[int]) -> str:
        """Train to the end, or until there is a signal; return "done" or "stopped"."""
        try:
            ended = self._steps(signals)
        except UserError as error:
            with suppress(StorageError):  # the first error is the one to tell
                self._require_folder()
                if self.logbook:
                    self.logbook.close({"status": "failed", "reason": str(error), "self_check": self.self_check})
            raise
        self._save()
        learner, rt = self.learner, self.rt
        if self.logbook:
            self.logbook.close({"status": ended, "step": learner.step, "ranks": rt.world_size, "device": rt.device_name,
                                "self_check": self.self_check, "skipped_steps": int(learner.skipped_steps),
                                **asdict(self.progress)})  # fmt: skip
            log.info("%s at step %d after %s", ended, learner.step, duration(self.progress.seconds))
        rt.wait()  # or another machine would not find all files
        return ended

    def _steps(self, signals: Sequence[int]) -> str:
        settings, learner, progress = self.settings, self.learner, self.progress
        evaluate_every = settings.evaluate_every or -(-learner.num_steps // EVALUATIONS)
        # On a CPU a look costs nothing. What follows from one is a function of the step, so all ranks agree.
        look_every = math.gcd(GPU_STEPS, settings.log_every) if self.rt.device.type == "cuda" else 1

        def flags() -> list[bool]:  # reduced, because ranks disagree on signals and clocks
            return self.rt.any(bool(signals), 0 < 60 * settings.minutes <= progress.seconds)

        stopped, late = flags()
        for batch in self.loader.starting_at(learner.step):
            if learner.step != progress.evaluated_at and learner.step % evaluate_every == 0:
                self._evaluate()
            if stopped:
                return "stopped"
            lost_patience = 0 < settings.patience <= progress.evaluations_without_gain
            if late or lost_patience or learner.step >= learner.num_steps:
                break
            rate, started = learner.learning_rate, time.monotonic()
            learner.update(batch)
            if learner.step % look_every == 0:
                losses = learner.reduce()
                stopped, late = flags()
            progress.count(batch.num_graphs, time.monotonic() - started)
            if self.logbook and learner.step % settings.log_every == 0:
                self._log(self.logbook, {**losses, "learning_rate": rate})
            if learner.step % settings.checkpoint_every == 0:
                self._save()
        if progress.evaluated_at != learner.step:
            self._evaluate()
        return "done"

    def _log(self, logbook: Logbook, values: dict[str, float]) -> None:
        step, progress = self.learner.step, self.progress
        left = progress.seconds_left(step, self.learner.num_steps, self.settings.minutes)
        values |= {"epoch": step / len(self.loader.sampler)}
        values |= {"graphs_per_second": progress.graphs / max(progress.step_seconds, 1e-9), "seconds_left": left}
        logbook.record("train", step, values)
        logbook.say(step, self.learner.num_steps, progress, left)

    def _evaluate(self) -> None:
        """Score the averaged weights and keep them when they are the best so far."""
        started, step = time.monotonic(), self.learner.step
        scores = self.validation.scores(self.learner.average)
        if self.logbook:
            self.logbook.record("validation", step, scores)
        is_kept = self.progress.judge(scores, step)  # reduced scores: the same on every rank
        self.progress.seconds += time.monotonic() - started
        if is_kept and self.rt.is_main:
            self._require_folder()
            best = {**self.learner.best_state(), "data_sha256": self.data_sha256, "scores": scores}
            checkpoint.save(self.settings.run / "best.pt", best)

    def _require_folder(self) -> None:
        """Raise StorageError if the run folder is gone: a new one in its place would be outside of the volume."""
        if identity(self.settings.run) != self.folder:
            way_out = "mount its volume again, then the same command continues"
            raise StorageError(f"{self.settings.run}: cannot be written (it has disappeared); {way_out}")

    def _save(self) -> None:
        if self.rt.is_main:
            self._require_folder()
            state = {**self.learner.state(), "data_sha256": self.data_sha256, "progress": asdict(self.progress),
                     "steps_per_epoch": len(self.loader.sampler)}  # fmt: skip
            checkpoint.save_step(self.settings.run / checkpoint.FOLDER, self.learner.step, state)

    def _restore(self) -> int:
        """Continue from the newest checkpoint, if any; rank 0 reads it, so all ranks start from one file. Returns its
        step.
        """
        settings, rt, sha256 = self.settings, self.rt, self.data_sha256
        if any(rt.any(sha256 != rt.broadcast(sha256))):
            raise UserError(f"{settings.data}: the machines hold different graphs; give all of them the same volume")
        state, has_best = rt.broadcast(_on_disk(settings.run) if rt.is_main else None)
        if state is not None:
            _refuse_other_settings(settings, sha256, state)
            with damaged(f"the newest in {settings.run / checkpoint.FOLDER}", "delete it"):
                self.learner.load_state(state)
            self.progress = Progress(**state["progress"])
            if not settings.steps and state["steps_per_epoch"] != len(self.loader.sampler):
                # Another number of ranks takes other steps for the same searches.
                self.learner.step = round(state["step"] * len(self.loader.sampler) / state["steps_per_epoch"])
                self._save()
            if not has_best:  # evaluate again, whatever the checkpoint remembers
                self.progress.lowest, self.progress.evaluated_at = None, -1
        elif settings.weights:
            self.learner.load_weights(rt.broadcast(checkpoint.load(settings.weights) if rt.is_main else None))
        if rt.is_main:
            write_text(settings.run / "config.json", settings.model_dump_json(indent=2) + "\n")
            sampler, num_parameters = self.loader.sampler, sum(p.numel() for p in self.learner.network.parameters())
            log.info(
                "%s: %d steps, %d graphs in %d steps an epoch, %d for validation, %d x %s, %d parameters",
                f"resuming at step {self.learner.step}" if state else "starting", self.learner.num_steps,
                len(sampler.indices), len(sampler), len(self.validation.ids), rt.world_size, rt.device.type,
                num_parameters,
            )  # fmt: skip
        return state["step"] if state else 0


FREE_TO_CHANGE = {
    "preset", "data", "run", "device", "minutes", "patience", "checkpoint_every", "log_every",
    "logger", "processes", "gpus",
}  # fmt: skip


def _on_disk(run: Path) -> tuple[dict | None, bool]:
    """State to resume from, if any, and whether there are best weights that can be read. Raises UserError if a training
    has ended there and its checkpoints are gone.
    """
    state, best, ended = checkpoint.newest(run / checkpoint.FOLDER), run / "best.pt", run / "status.json"
    way_out = "name another --run folder, or empty this one"
    if state is None and ended.exists():
        with damaged(ended, way_out):
            if read_json(ended, way_out)["status"] != "failed":
                raise UserError(f"{run} has a training without its checkpoints, which would begin anew: {way_out}")
    if state is None or not best.exists():
        return state, False
    try:
        checkpoint.load(best)
    except UserError as error:
        log.warning("%s; taking the weights of the next evaluation", error)
        return state, False
    return state, True


def _refuse_other_settings(settings: TrainSettings, data_sha256: str, state: dict) -> None:
    """A run resumes only with its own settings and graphs: others belong in another folder."""
    then, now = state["settings"], settings.model_dump(mode="json")
    run, way_out = settings.run, "name another --run folder"
    if then.keys() != now.keys() or state["progress"].keys() != asdict(Progress()).keys():
        raise UserError(f"{run} was started by another version of this program: finish it there or {way_out}")
    for name in sorted(now.keys() - FREE_TO_CHANGE):
        if then[name] != now[name]:
            raise UserError(f"{run} was trained with {name} {then[name]}, not {now[name]}: go back or {way_out}")
    if state["data_sha256"] != data_sha256:
        raise UserError(f"{run} was trained on other graphs than {settings.data}: {way_out}")


class Validation:
    """Scores on the validation graphs: what a caller of the exported program would get, every graph counted once."""

    def __init__(self, settings: TrainSettings, dataset: DeviceDataset, search: Searcher, rt: Runtime):
        self.dataset, self.search, self.rt, self.rounds = dataset, search, rt, settings.validation_rounds
        data = dataset.data
        held_out = data.indices("validation")
        held_out = held_out[data.num_nodes[held_out] <= MAX_NODES]
        held_out = held_out if len(held_out) else data.indices("train")
        # Evenly spread: packed order goes by family, so the first ones would be of one family.
        count = min(settings.validation_graphs or len(held_out), len(held_out))
        self.ids = held_out[np.linspace(0, len(held_out) - 1, count).astype(int)]
        self.dsatur_gap = float((data.dsatur_colors[self.ids].astype(int) - data.num_colors[self.ids]).mean())
        mine = self.ids[share(search_costs(data, self.ids), rt.world_size)[rt.rank]]
        self.batches = np.array_split(mine, -(-len(mine) // settings.batch_size)) if len(mine) else []
        states = dataset.state_ids("validation")
        states = states[np.isin(dataset.state_graph[states], self.ids)]
        states = states[share(data.num_edges[dataset.state_graph[states]], rt.world_size)[rt.rank]]
        self.states = [states[start : start + STATE_BATCH] for start in range(0, len(states), STATE_BATCH)]

    @cached_property
    def untrained(self) -> list[Tensor]:
        """Colors (G,) that the untrained rule finds, of every batch."""
        with torch.random.fork_rng(devices=[]):
            rule = first_weights().to(self.rt.device)
        return [self._colors(rule, self._batch(ids)) for ids in self.batches]

    def scores(self, network: ColoringNetwork) -> dict[str, float]:
        """Means over all graphs on all ranks, and their number, by the names of docs/TRAINING.md."""
        sums = torch.zeros(8, dtype=torch.float64, device=self.rt.device)
        for number in range(len(self.batches)):
            sums[:5] += self.score_batch(network, number)
        for ids in self.states:
            sums[5:] += self.score_predictions(network, ids)
        *of_graphs, graphs, error, right, states = self.rt.total(sums.cpu()).tolist()
        means = {name: total / graphs for name, total in zip(("gap", "at_best_known", "gain"), of_graphs, strict=False)}
        means |= {"chromatic_error": error / max(1, states), "family_accuracy": right / max(1, states)}
        variance = max(0.0, of_graphs[3] / graphs - means["gain"] ** 2)
        means |= {"gain_error": math.sqrt(variance / graphs), "dsatur_gap": self.dsatur_gap}
        return {**means, "graphs": int(graphs)}

    @torch.no_grad()
    def score_batch(self, network: ColoringNetwork, number: int) -> Tensor:
        """Sums over this rank's graphs of a batch: gap, whether it is at most 0, gain, its square, and 1."""
        batch = self._batch(self.batches[number])
        used = self._colors(network.move_rule, batch)
        gap, gain = used - batch.num_colors, self.untrained[number] - used
        return _sums(gap, gap <= 0, gain, gain**2, torch.ones_like(gap))

    @torch.no_grad()
    def score_predictions(self, network: ColoringNetwork, ids: np.ndarray) -> Tensor:
        """Sums over these states: error of the number of colors, whether the type of graph is right, and 1."""
        batch = self.dataset.states(ids, len(ids))
        assert batch is not None
        predicted, search = network.predictions(batch.inputs), batch.search
        error = predicted.chromatic(search) - (search.num_colors - batch.saved)
        right = predicted.graph_type_logits.argmax(1) == batch.graph_type
        return _sums(error.abs(), right, torch.ones_like(error))

    def _batch(self, ids: np.ndarray) -> Batch:
        return self.dataset.batch(ids, len(ids))

    @torch.no_grad()
    def _colors(self, weights: Tensor, batch: Batch) -> Tensor:
        """Colors (G,) that a search with the weights (NUM_WEIGHTS,) finds."""
        return self.search(weights.expand_as(batch.change)[None], batch, self.rounds)[0][0]


def _sums(*values: Tensor) -> Tensor:
    return torch.stack([each.double() for each in values]).sum(1)
