"""Self-play: searches in the background, whose pairs of parents the crossover network learns from.

An iteration is many games, see `training/games.py`, with the same weights. A game is a function of seed, iteration and
weights, on any number of ranks; the clock decides how many there are, unless `--games` does.
"""

import copy
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from torch_geometric.data import Batch, HeteroData

from gnn_training.distributed import Runtime
from gnn_training.errors import MachineError
from gnn_training.network.crossover_network import CrossoverNetwork, squared_errors
from gnn_training.network.crossover_weights import CrossoverWeights
from gnn_training.search import kernels
from gnn_training.search.batches import has_kernels
from gnn_training.search.crossover import GENERATION
from gnn_training.search.portfolio import compile_all
from gnn_training.settings import TrainSettings
from gnn_training.training.games import Pair, Player, as_data
from gnn_training.training.loader import DeviceDataset
from gnn_training.training.replay_buffer import ReplayBuffer

log = logging.getLogger(__name__)
ITERATIONS = 10  # of a training, with the same number of steps between them
FIRST_GAMES = 8  # of the first iteration on cores, which measures how many games the others can have
HELD_OUT = 8  # one of so many games is on a validation graph
MIN_HELD_OUT_GRAPHS = 6  # for a comparison: fewer cannot tell its error
PLAYED_NODES = 2048  # of the graph of a game
GAMES, CHOICE = 10, 11  # purposes of random generators
EVALUATED = 64  # pairs at a time
WAIT_SECONDS = 0.5  # between two looks whether another rank has got a signal to stop
FOLDER = "self_play"


class FinishedGame(NamedTuple):
    """A game that is over."""

    number: int  # in its iteration
    pairs: list[Pair]
    seconds: float  # of a core, or of a GPU


class SelfPlay:
    """Iterations of games in the background, whose pairs go into a replay buffer."""

    def __init__(
        self, settings: TrainSettings, dataset: DeviceDataset, graphs: np.ndarray, first: CrossoverNetwork, rt: Runtime
    ):
        """graphs: positions of the training graphs to play on; first: the network before the training."""
        self.settings, self.dataset, self.rt, data = settings, dataset, rt, dataset.data
        is_played = (data.num_nodes <= PLAYED_NODES) & (data.dsatur_colors > data.lower_bound)
        graphs, held_out = (ids[is_played[ids]] for ids in (graphs, data.indices("validation")))
        self.graphs, self.held_out_graphs = graphs, np.random.default_rng(settings.seed).permutation(held_out).tolist()
        self.buffer = ReplayBuffer(settings.run / FOLDER, 2**20 * settings.replay_mib, {*self.held_out_graphs}, rt)
        self.is_on = settings.self_play > 0 and len(graphs) > 0
        self.num_played, self.games = 0, settings.games  # iterations, and the games of each, 0 until they are counted
        self.weights: CrossoverWeights | None = None  # of the players of the iteration that is being played
        self.initial_network = copy.deepcopy(first)
        self.fits_gpu, self.slots = np.zeros(len(data), dtype=bool), 0  # games that the GPU plays at the same time
        if has_kernels(rt.device):
            from gnn_training.search.gpu_searches import fitting  # loads numba's CUDA
            from gnn_training.training.gpu_games import slots

            self.fits_gpu, self.slots = fitting(data.num_nodes, data.dsatur_colors, rt.device), slots(rt.device)
        self._pool, self._games = ThreadPoolExecutor(torch.get_num_threads()), list[Future]()
        self._players, self._is_closed = list[Player](), False

    def advance(self, step: int, num_steps: int, network: CrossoverNetwork, signals: Sequence[float]) -> bool:
        """Before a step: take in the iterations that are due, and begin the next one with this network. False if a
        signal to stop has come to any rank while they were played; they are then left out.
        """
        while self.is_on and self.num_played < ITERATIONS and self.num_played <= step * ITERATIONS // num_steps:
            if self.weights is None:
                self._begin(network.weights())
            if not self._end(signals):
                return False
            if self.num_played < ITERATIONS:
                self._begin(network.weights())
        return True

    def batch(self, step: int) -> tuple[HeteroData | None, int]:
        """Pairs of a step for this rank, drawn by (seed, step), and their number on all ranks."""
        pairs = self.buffer.pairs
        if not pairs:
            return None, 0
        rng, ranks = np.random.default_rng([self.settings.seed, step, CHOICE]), self.rt.world_size
        places = rng.integers(len(pairs), size=self.settings.batch_pairs * ranks)
        return self.batch_of([pairs[i] for i in places[self.rt.rank :: ranks]]), len(places)

    def batch_of(self, pairs: list[Pair]) -> HeteroData:
        """Pairs in one graph of PyG."""
        data = Batch.from_data_list([as_data(pair, self.dataset.lists(pair.graph)) for pair in pairs])
        return data.to(self.rt.device)

    def scores(self, network: CrossoverNetwork, best: CrossoverNetwork) -> dict[str, float]:
        """How well a network predicts the conflicts of held-out pairs, on all ranks, beside the first weights and the
        best so far, by the names of docs/TRAINING.md; empty if these pairs are of too few graphs.
        """
        pairs = self.buffer.held_out
        _, graph = np.unique([pair.graph for pair in pairs], return_inverse=True)
        if len(set(graph.tolist())) < MIN_HELD_OUT_GRAPHS:
            return {}
        errors = self.unexplained(pairs, network, self.initial_network, best)
        found = {"held_out_pairs": len(pairs), "crossover_explained": 1 - float(errors[network].mean())}
        for name, other in (("crossover_gain", self.initial_network), ("crossover_change", best)):
            gains = errors[other] - errors[network]
            of_graph = np.bincount(graph, gains - gains.mean())  # pairs of one graph are alike
            found |= {name: float(gains.mean()), f"{name}_error": math.sqrt((of_graph**2).sum()) / len(pairs)}
        return found

    @torch.no_grad()
    def unexplained(self, pairs: list[Pair], *networks: CrossoverNetwork) -> dict[CrossoverNetwork, np.ndarray]:
        """Squared errors (P,) of networks, each asked once, as shares of the mean variance among siblings."""
        errors = {network: torch.zeros(len(pairs), dtype=torch.float64) for network in networks}
        for start in range(self.rt.rank, len(pairs), EVALUATED * self.rt.world_size):
            places = slice(start, start + EVALUATED * self.rt.world_size, self.rt.world_size)
            batch = self.batch_of(pairs[places])
            for network in errors:
                errors[network][places] = squared_errors(network(batch), batch).cpu().double()
        variance = np.mean([np.square(pair.deviations).mean() for pair in pairs])
        return {network: self.rt.total(each).numpy() / variance for network, each in errors.items()}

    def state(self) -> dict:
        """What a checkpoint needs; the pairs are in files beside it."""
        weights = [torch.from_numpy(part) for part in self.weights or ()]
        first = self.initial_network.state_dict()
        return {"num_played": self.num_played, "games": self.games, "weights": weights, "first": first}

    def load_state(self, state: dict) -> None:
        """Read the pairs, and begin the iteration again that was being played."""
        self.num_played, self.games = state["num_played"], state["games"]
        self.initial_network.load_state_dict(state["first"])
        for number in range(self.num_played):
            self.buffer.load(number, self.dataset.data.num_nodes)
        if state["weights"] and self.num_played < ITERATIONS:
            self._begin(CrossoverWeights(*(part.numpy() for part in state["weights"])))

    def close(self) -> None:
        """End the games that are being played."""
        for game in self._games:
            game.cancel()
        self._is_closed = True
        for player in self._players:
            player.search.finish()
        self._pool.shutdown()

    def _begin(self, weights: CrossoverWeights) -> None:
        """Let this rank's games of the next iteration run."""
        compile_all()
        self.weights, self._players = weights, []
        rng, ranks = np.random.default_rng([self.settings.seed, self.num_played, GAMES]), self.rt.world_size
        games, count = [], self.games or sum(self.rt.gather(self.slots)) or FIRST_GAMES  # at first, enough for all GPUs
        for number in range(count):
            graph, (turn, place) = rng.choice(self.graphs), divmod(self.num_played * count + number, HELD_OUT)
            if place == 0 and self.held_out_graphs:
                graph = self.held_out_graphs[turn % len(self.held_out_graphs)]
            games.append((number, int(graph), int(rng.integers(2**31))))
        mine = games[self.rt.rank :: ranks]
        on_gpu = [game for game in mine if self.fits_gpu[game[1]]]
        self._games = [self._pool.submit(self._play, *game) for game in mine if not self.fits_gpu[game[1]]]
        if on_gpu:
            self._games.append(self._pool.submit(self._play_on_gpu, on_gpu))

    def _play(self, number: int, graph: int, seed: int) -> list[FinishedGame]:
        """Play a game on a core."""
        start = time.thread_time()
        player = self._player(Player, graph, seed)
        return [FinishedGame(number, player.play(), time.thread_time() - start)]

    def _play_on_gpu(self, games: list[tuple[int, int, int]]) -> list[FinishedGame]:
        """Play games side by side. The seconds of a game are its share of those of all."""
        from gnn_training.search.gpu_islands import compile_children
        from gnn_training.training.gpu_games import Games, GpuPlayer

        assert self.weights is not None

        device, data, players = self.rt.device, self.dataset.data, dict[int, Player]()
        places = {graph: place for place, graph in enumerate(sorted({graph for _, graph, _ in games}))}

        def begun() -> Iterator[tuple[int, Player]]:
            for number, graph, seed in games:
                if self._is_closed:
                    return
                players[number] = self._player(GpuPlayer, graph, seed)
                yield places[graph], players[number]

        compile_children(device)
        start = time.monotonic()
        try:
            lists = [self.dataset.lists(graph) for graph in places]
            with Games.on_stream(lists, self.weights, device) as group:
                group.search(begun(), group.capacity(data.dsatur_colors[list(places)].tolist()), 1, GENERATION)
        except MachineError as error:
            raise MachineError(f"self-play on {device}: {error}: report it; --self-play 0 leaves it out") from error
        seconds = (time.monotonic() - start) / len(games)
        return [FinishedGame(number, player.pairs, seconds) for number, player in players.items()]

    def _player(self, kind: type[Player], graph: int, seed: int) -> Player:
        """A player of a game with the weights of this iteration."""
        assert self.weights is not None
        lists, lower = self.dataset.lists(graph), int(self.dataset.data.lower_bound[graph])
        player = kind(graph, lists, kernels.dsatur(*lists), lower, self.weights, seed)
        self._players.append(player)
        if self._is_closed:  # since this game began
            player.search.finish()
        return player

    def _end(self, signals: Sequence[float]) -> bool:
        """Wait for the games of all ranks, and add what they brought; False if a signal has come."""
        rt, is_open = self.rt, True
        while is_open:
            wait(self._games, WAIT_SECONDS)
            stopped, is_open = rt.any(bool(signals), not all(game.done() for game in self._games))
            if stopped:
                return False
        played = sorted(chain(*rt.gather([each for game in self._games for each in game.result()])))
        pairs, seconds = [pair for game in played for pair in game.pairs], sum(game.seconds for game in played)
        if not self.games:  # as many as the minutes allow on all GPUs or threads
            players = sum(rt.gather(1 if self.slots else torch.get_num_threads()))
            left = 60 * self.settings.self_play * players / seconds * len(played) - len(played)
            self.games = max(1, round(left / (ITERATIONS - 1)))
        self.buffer.add(self.num_played, pairs)
        if rt.is_main:
            self.buffer.save(self.num_played, pairs)
            log.info(
                "self-play: iteration %d of %d: %d pairs of parents from %d games in %.0f s of a %s",
                self.num_played + 1, ITERATIONS, len(pairs), len(played), seconds, "GPU" if self.slots else "core",
            )  # fmt: skip
        self.num_played, self.weights = self.num_played + 1, None
        return True


def explain_best(step: int, scores: Mapping[str, float]) -> str:
    """Which weights of the crossover network are kept, and why. step: of these; scores: theirs."""
    if "crossover_gain" not in scores:
        return "the first weights are kept: there was no self-play, or too few validation graphs to judge it"
    gain, error, pairs = (scores[name] for name in ("crossover_gain", "crossover_gain_error", "held_out_pairs"))
    if not step:
        return f"the first weights are kept: no others are better on {pairs} held-out pairs of parents"
    explained = f"{scores['crossover_explained']:.4f} of the variance among the children of {pairs} held-out pairs"
    more = f"{gain:.4f} ± {error:.4f} more than the first weights"
    return f"the weights of step {step} are kept: they explain {explained}, {more}"
