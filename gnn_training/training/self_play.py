"""Self-play: searches in the background give pairs of parents, from which the crossover network learns.

An iteration is many games (see `training/games.py`) with the same weights. A game depends on seed, iteration, number
and weights, but not on the ranks. The clock decides how many games an iteration has, unless `--games` does.
"""

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import numpy as np
import torch

from gnn_training import run_files
from gnn_training.distributed import Runtime
from gnn_training.network.crossover_network import CrossoverNetwork
from gnn_training.network.crossover_weights import CrossoverWeights
from gnn_training.search.batches import has_kernels
from gnn_training.search.portfolio import compile_all
from gnn_training.settings import TrainSettings
from gnn_training.training.games import PLAYED_NODES, PairBatch, batch_of
from gnn_training.training.iteration import Iteration, PlannedGame
from gnn_training.training.loader import DeviceDataset
from gnn_training.training.replay_buffer import ReplayBuffer

log = logging.getLogger(__name__)
ITERATIONS = 10  # iterations in a training, with the same number of steps between them
FIRST_GAMES = 8  # games of the first iteration on cores, which measures how many games the others can have
HELD_OUT = 8  # one game in this many is on a validation graph
GAMES, CHOICE = 10, 11  # purposes of random generators
WAIT_SECONDS = 0.5  # time between two checks whether any rank has a signal to stop


class SelfPlay:
    """Iterations of games in the background, whose pairs go into a replay buffer."""

    def __init__(self, settings: TrainSettings, dataset: DeviceDataset, graphs: np.ndarray, rt: Runtime):
        """graphs: positions of the training graphs to play on."""
        self.settings, self.dataset, self.rt, data = settings, dataset, rt, dataset.data
        is_played = (data.num_nodes <= PLAYED_NODES) & (data.dsatur_colors > data.lower_bound)
        selection = data.selection(settings.validation_graphs)  # no report scores these graphs
        graphs, held_out = (ids[is_played[ids]] for ids in (graphs, selection))
        self.graphs, self.held_out_graphs = graphs, np.random.default_rng(settings.seed).permutation(held_out).tolist()
        folder, max_bytes = settings.run / run_files.GAMES_FOLDER, 2**20 * settings.replay_mib
        self.buffer = ReplayBuffer(folder, max_bytes, {*self.held_out_graphs}, rt)
        self.is_on = settings.self_play > 0 and len(graphs) > 0
        self.num_played, self.games = 0, settings.games  # iterations; games in each, 0 until it is known
        self.fits_gpu, self.slots = np.zeros(len(data), dtype=bool), 0  # games that the GPU plays at the same time
        if has_kernels(rt.device):
            from gnn_training.search.gpu_searches import fitting  # loads numba's CUDA
            from gnn_training.training.gpu_games import slots

            self.fits_gpu = fitting(data.num_nodes, data.dsatur_colors, rt.device)
            self.slots = slots(rt.device) if self.fits_gpu[graphs].any() else 0
        self._pool = ThreadPoolExecutor(torch.get_num_threads())
        self._iteration: Iteration | None = None  # the one being played

    def advance(self, step: int, num_steps: int, network: CrossoverNetwork, is_interrupted: Callable[[], bool]) -> bool:
        """Before a step, add the pairs of the iterations that are due, and begin the next iteration with this network.
        False if the training is interrupted while an iteration is played, which is then left out. is_interrupted:
        returns the same on all ranks.
        """
        while self.is_on and self.num_played < ITERATIONS and self.num_played <= step * ITERATIONS // num_steps:
            iteration = self._iteration or self._begin(network.weights())
            if not self._wait(iteration, is_interrupted):
                return False
            self._take(iteration)
            if self.num_played < ITERATIONS:
                self._begin(network.weights())
        return True

    def batch(self, step: int) -> PairBatch | None:
        """Return the pairs of this rank in a step, drawn by (seed, step), or None if there are none yet."""
        pairs = self.buffer.pairs
        if not pairs:
            return None
        rng, ranks = np.random.default_rng([self.settings.seed, step, CHOICE]), self.rt.world_size
        places = rng.integers(len(pairs), size=self.settings.batch_pairs * ranks)
        return PairBatch(batch_of([pairs[i] for i in places[self.rt.rank :: ranks]], self.dataset), len(places))

    def state(self) -> dict:
        """Return what a checkpoint needs; the pairs are in files of their own."""
        weights = [torch.from_numpy(part) for part in self._iteration.weights] if self._iteration else []
        return {"num_played": self.num_played, "games": self.games, "weights": weights}

    def load_state(self, state: dict) -> None:
        """Read the pairs, and begin again the iteration that was being played."""
        self.num_played, self.games = state["num_played"], state["games"]
        for number in range(self.num_played):
            self.buffer.load(number, self.dataset.data.num_nodes)
        if state["weights"]:
            self._begin(CrossoverWeights(*(part.numpy() for part in state["weights"])))

    def close(self) -> None:
        """End the games that are being played."""
        if self._iteration:
            self._iteration.close()
        self._pool.shutdown()

    def _begin(self, weights: CrossoverWeights) -> Iteration:
        """Begin this rank's games of the next iteration."""
        compile_all()
        rank_games = list(self._planned())[self.rt.rank :: self.rt.world_size]
        self._iteration = Iteration(rank_games, weights, self.dataset, self.fits_gpu, self._pool)
        return self._iteration

    def _planned(self) -> Iterator[PlannedGame]:
        """Yield the games of the next iteration on all ranks."""
        rng = np.random.default_rng([self.settings.seed, self.num_played, GAMES])
        count = self.games or sum(self.rt.gather(self.slots)) or FIRST_GAMES  # at first, enough for all GPUs
        for number in range(count):
            graph, (turn, place) = rng.choice(self.graphs), divmod(self.num_played * count + number, HELD_OUT)
            if place == 0 and self.held_out_graphs:
                graph = self.held_out_graphs[turn % len(self.held_out_graphs)]
            yield PlannedGame(number, int(graph), int(rng.integers(2**31)))

    def _wait(self, iteration: Iteration, is_interrupted: Callable[[], bool]) -> bool:
        """Wait for the games of all ranks; return False if the training is interrupted."""
        while self.rt.any_rank(not iteration.wait(WAIT_SECONDS))[0]:
            if is_interrupted():
                return False
        return True

    def _take(self, iteration: Iteration) -> None:
        """Add the pairs of the games of all ranks. The first time, set the number of games in the other iterations."""
        rt = self.rt
        played = sorted(chain(*rt.gather(iteration.finished())))
        pairs, seconds = [pair for game in played for pair in game.pairs], sum(game.seconds for game in played)
        if not self.games:  # as many as the minutes allow on all GPUs or threads
            players = sum(rt.gather(1 if self.slots else torch.get_num_threads()))
            timed = [game for game in played if game.is_on_gpu == (self.slots > 0)] or played
            timed_seconds = sum(game.seconds for game in timed)
            left = 60 * self.settings.self_play * players / timed_seconds * len(timed) - len(played)
            self.games = max(1, round(left / (ITERATIONS - 1)))
        self.buffer.add(self.num_played, pairs)
        if rt.is_main:
            self.buffer.save(self.num_played, pairs)
            log.info(
                "self-play: iteration %d of %d: %d pairs of parents from %d games in %.0f s of a %s",
                self.num_played + 1, ITERATIONS, len(pairs), len(played), seconds, "GPU" if self.slots else "core",
            )  # fmt: skip
        self.num_played, self._iteration = self.num_played + 1, None
