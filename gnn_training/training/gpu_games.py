"""The games of self-play on an NVIDIA GPU. The games of a rank run side by side: one launch makes a generation of all
games, another one makes the children of all recorded pairs.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gnn_training.search import search_cuda
from gnn_training.search.crossover import Individual
from gnn_training.search.gpu_crossover import cross_pairs
from gnn_training.search.gpu_islands import GpuIsland, IslandBatch
from gnn_training.training.games import CHILDREN, MOVES, TEMPERATURE, Player


class GpuPlayer(Player):
    """A player whose pair waits until it can be recorded together with the pairs of other players."""

    waiting: Sequence[Individual] = ()

    def record(self, parents: Sequence[Individual], k: int) -> None:
        """Let a pair wait for `GameBatch.cross`."""
        self.waiting = tuple(parents)


class GameBatch(IslandBatch):
    """A batch of games, played as by `Player`, each with one island."""

    def cross(self, generation: Sequence[tuple[GpuIsland, list[Individual]]]) -> None:
        """Make the next starts, record the waiting pairs, and end the games that have seen all their pairs."""
        super().cross(generation)
        players = {island: island.worker for island, _ in generation if isinstance(island.worker, GpuPlayer)}
        self.record({island: player for island, player in players.items() if player.waiting})
        for player in players.values():
            player.waiting = ()
            if player.num_seen >= player.num_pairs:
                player.search.finish()

    def record(self, players: dict[GpuIsland, GpuPlayer]) -> None:
        """Make the children of the pairs of these players. A softmax draws their classes, see `Player.record`."""
        if not players:
            return
        islands, pairs = list(players), [player.waiting for player in players.values()]
        graph, k, parents, ages = self.tensors(islands, pairs)
        values = self.crossover.values(graph, k, parents, ages).masked_fill(parents < 0, 0)
        noise = self.noise(players, values.sum((1, 2)))
        is_turned = torch.arange(CHILDREN, device=self.device)[:, None, None] % 2 == 1
        parents, values = (
            torch.where(is_turned, x[:, None].flip(2), x[:, None].expand(-1, CHILDREN, -1, -1)).flatten(0, 1)
            for x in (parents, values)
        )
        crossed = cross_pairs(parents, values, k.repeat_interleave(CHILDREN), noise.flatten(0, 1)).int().cpu().numpy()
        children = [
            list(rows[:, : len(island.first)])
            for island, rows in zip(islands, crossed.reshape(len(islands), CHILDREN, -1), strict=True)
        ]
        made = self.launch(islands, children, MOVES)
        for (island, player), pair, rows, after in zip(players.items(), pairs, children, made, strict=False):
            player.add(pair, island.k, np.stack(rows), np.array([child.conflicts for child in after], np.int32))

    def noise(self, players: dict[GpuIsland, GpuPlayer], totals: Tensor) -> Tensor:
        """Gumbel noise (P, CHILDREN, K, K) for every choice of a class. totals (P,): the sum of values of each pair."""
        most = max(island.k for island in players)
        noise = torch.ones(len(players), CHILDREN, most, most, device=self.device)
        generator, (coldest, hottest) = torch.Generator(self.device), np.log(TEMPERATURE)
        for of_pair, (island, player), total in zip(noise, players.items(), totals, strict=True):
            generator.manual_seed(int(player.random.integers(2**63)))
            temperature = np.exp(player.random.uniform(coldest, hottest, size=CHILDREN))
            gumbel = -of_pair[:, : island.k, : island.k].exponential_(generator=generator).log()
            scale = torch.from_numpy(temperature).to(gumbel)[:, None, None] * total.abs() / (2 * island.k)
            of_pair[:, : island.k, : island.k] = gumbel * scale
        return noise


def slots(device: torch.device) -> int:
    """The number of games that a GPU can play at the same time, if their graphs are small."""
    return torch.cuda.get_device_properties(device).multi_processor_count * search_cuda.BLOCKS // 2
