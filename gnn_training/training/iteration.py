"""An iteration of self-play: games with the same weights, which run in the background on cores and on the GPU."""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, wait
from typing import NamedTuple

import numpy as np
import torch

from gnn_training.errors import MachineError
from gnn_training.network.crossover_weights import CrossoverWeights
from gnn_training.search import kernels
from gnn_training.search.crossover import GENERATION
from gnn_training.training.games import Pair, Player
from gnn_training.training.loader import DeviceDataset


class PlannedGame(NamedTuple):
    """A game to play."""

    number: int  # index in its iteration
    graph: int  # position in the packed graphs
    seed: int


class FinishedGame(NamedTuple):
    """A game that is over."""

    number: int
    pairs: list[Pair]
    seconds: float  # time on a core, or share of the time on a GPU
    is_on_gpu: bool


class Iteration:
    """The games of this rank in one iteration."""

    def __init__(
        self, games: Sequence[PlannedGame], weights: CrossoverWeights, dataset: DeviceDataset, fits_gpu: np.ndarray,
        pool: Executor,
    ):  # fmt: skip
        """Begin the games. fits_gpu: whether each packed graph fits the GPU; games on the others run on cores."""
        self.weights, self.dataset = weights, dataset
        self._players, self._is_closed = list[Player](), False
        on_gpu = [game for game in games if fits_gpu[game.graph]]
        self._games: list[Future] = [pool.submit(self._play_on_gpu, on_gpu)] if on_gpu else []  # first, to begin early
        self._games += [pool.submit(self._play, game) for game in games if not fits_gpu[game.graph]]

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds` for the games to end; return whether all have ended."""
        return not wait(self._games, seconds).not_done

    def finished(self) -> list[FinishedGame]:
        """Return the games of this rank, after they have ended. An error of a game is raised here."""
        return [each for game in self._games for each in game.result()]

    def close(self) -> None:
        """End the games that are being played."""
        self._is_closed = True
        for game in self._games:
            game.cancel()
        for player in self._players:
            player.search.finish()

    def _play(self, game: PlannedGame) -> list[FinishedGame]:
        """Play a game on a core."""
        start = time.thread_time()
        pairs = self._player(Player, game).play()
        return [FinishedGame(game.number, pairs, time.thread_time() - start, is_on_gpu=False)]

    def _play_on_gpu(self, games: Sequence[PlannedGame]) -> list[FinishedGame]:
        """Play games side by side. The seconds of a game are an equal share of the time of all games."""
        from gnn_training.search.gpu_islands import compile_children
        from gnn_training.training.gpu_games import GameBatch, GpuPlayer

        device, players = self.dataset.device, dict[int, Player]()
        graphs = sorted({game.graph for game in games})

        def begun() -> Iterator[tuple[int, Player]]:
            for game in games:
                if self._is_closed:
                    return
                players[game.number] = self._player(GpuPlayer, game)
                yield graphs.index(game.graph), players[game.number]

        compile_children(device)
        start = time.monotonic()
        try:
            with GameBatch.on_stream([self.dataset.lists(graph) for graph in graphs], self.weights, device) as batch:
                batch.search(begun(), batch.capacity(self.dataset.data.dsatur_colors[graphs].tolist()), 1, GENERATION)
        except (MachineError, torch.OutOfMemoryError) as error:
            raise MachineError(f"self-play on {device}: {error}: report it; --self-play 0 leaves it out") from error
        seconds = (time.monotonic() - start) / len(games)
        return [FinishedGame(number, player.pairs, seconds, is_on_gpu=True) for number, player in players.items()]

    def _player(self, kind: type[Player], game: PlannedGame) -> Player:
        """Return a player for a game, with the weights of this iteration."""
        lists, lower = self.dataset.lists(game.graph), int(self.dataset.data.lower_bound[game.graph])
        player = kind(game.graph, lists, kernels.dsatur(*lists), lower, self.weights, game.seed)
        self._players.append(player)
        if self._is_closed:  # `close` may have missed this player
            player.search.finish()
        return player
