"""Islands on an NVIDIA GPU, of one or many searches. One launch makes the next generation of all islands."""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Self

import numpy as np
import torch
from torch import Tensor

from gnn_training.errors import MachineError
from gnn_training.graph import NeighbourLists
from gnn_training.network import rule
from gnn_training.network.crossover_weights import CrossoverWeights
from gnn_training.search import search_cuda
from gnn_training.search.batches import copied_to
from gnn_training.search.crossover import Individual, stacked
from gnn_training.search.engine import Worker
from gnn_training.search.gpu_crossover import BatchedCrossover, pad_rows
from gnn_training.search.gpu_searches import ChildSearcher, shared_memory
from gnn_training.search.islands import Island

POLL_SECONDS = 1e-3


def compile_children(device: torch.device) -> None:
    """Compile the kernels that make children on a GPU, before a time limit begins. The first time takes a minute."""
    with torch.cuda.device(device):
        for in_shared in (True, False):
            search_cuda.kernel(in_shared, shared_memory(device), True, device.index)


class GpuIsland(Island):
    """An island of a worker's search, whose children a GPU makes."""

    def __init__(self, worker: Worker, graph: int, number: int, others: "list[GpuIsland]"):
        """graph: position among the graphs of the GPU; number: position among others, the islands of the search."""
        super().__init__(worker.lists)
        self.worker, self.graph, self.others = worker, graph, others
        self.random = np.random.default_rng([*worker.rng, number])
        self.best: np.ndarray | None = None  # the best of the search when the island began
        trained = worker.search.trained.rule  # every second island moves by this rule, if there is one
        self.rule = rule.untrained() if trained is None or number % 2 == 0 else trained

    def follow(self) -> None:
        """Look for one color fewer than the best coloring: the first island from it, the others from their own."""
        self.best = self.worker.search.best
        self.begin(self.best if self is self.others[0] else self.first, int(self.best.max()))

    def keep(self, children: list[Individual]) -> bool:
        """Keep the children, and offer a child without conflicts to the search. Return False if the search now looks
        for fewer colors; otherwise `children` holds the next parents afterwards.
        """
        self.first, self.second = (child.colors for child in children)
        for child in children:
            if not child.conflicts and self.worker.search.best is self.best:
                self.check(child)
                self.worker.offer(child.colors)
        if self.worker.search.best is not self.best:
            return False
        self.take(children)
        self.worker.on_generation(children, self.k)
        return True

    def check(self, child: Individual) -> None:
        """Raise MachineError if a child has another number of conflicts than the GPU has counted."""
        counted = int((child.colors[self.lists.sources] == child.colors[self.lists.neighbours]).sum()) // 2
        if counted != child.conflicts:
            raise MachineError(f"it returns a coloring with {counted} conflicts and counts {child.conflicts}")

    def choose_next(self, parents: list[Individual]) -> bool:
        """Choose the next starts, see `choose_starts`, with the elite of a random island as `other`."""
        mate = self.others[self.random.integers(len(self.others))]
        other = mate.elite[0].colors if mate is not self and mate.elite else None
        return self.choose_starts(parents, int(self.random.integers(2**63)), other)


class IslandBatch:
    """Searches in one or several graphs; one launch makes the children of all their islands. When an island has found k
    colors, all islands of its search look for fewer.
    """

    def __init__(self, graphs: Sequence[NeighbourLists], weights: CrossoverWeights, device: torch.device):
        """The device must be that of the present thread. weights: of the crossover of all searches."""
        self.searcher = ChildSearcher(graphs, device)
        self.device = self.searcher.device
        self.crossover = BatchedCrossover(self.searcher, graphs, weights)

    @classmethod
    @contextmanager
    def on_stream(
        cls, graphs: Sequence[NeighbourLists], weights: CrossoverWeights, device: torch.device
    ) -> Iterator[Self]:
        """A batch for the present thread, which gets the device and a stream of its own."""
        with torch.cuda.device(device), torch.cuda.stream(torch.cuda.Stream(device)):
            yield cls(graphs, weights, device)

    def capacity(self, colors: Sequence[int]) -> int:
        """The number of islands that fit on the GPU. colors: of every graph. MachineError if a graph is too large."""
        if not (count := self.searcher.capacity(colors) // 2):
            raise MachineError("the graph is too large for a thread block")
        return count

    def search(
        self, searches: Iterable[tuple[int, Worker]], max_islands: int, islands_per_search: int, rounds: int
    ) -> None:
        """Run searches until all are over. searches: pairs of a position among the graphs and a worker; a search begins
        when there is room for its islands. rounds: of each child. MachineError if the GPU returns a wrong result.
        """
        waiting, islands = iter(searches), list[GpuIsland]()
        while True:
            islands = [island for island in islands if island.worker.search.is_running]
            for graph, worker in islice(waiting, (max_islands - len(islands)) // islands_per_search):
                others = list[GpuIsland]()
                others += (GpuIsland(worker, graph, number, others) for number in range(islands_per_search))
                islands += others
            if not islands:
                return
            for island in islands:
                if island.best is not island.worker.search.best:
                    island.follow()
            made = self.launch(islands, [island.starts for island in islands], rounds)
            generation = zip(islands, made, strict=False)  # nothing was made if all searches are over
            self.cross([(island, children) for island, children in generation if island.keep(children)])

    def launch(
        self, islands: Sequence[GpuIsland], starts: Sequence[Sequence[np.ndarray]], rounds: int
    ) -> list[list[Individual]]:
        """Search from the starts (N,) of islands. Return the children of each, or [] if all searches are over."""
        owners = [island for island, several in zip(islands, starts, strict=True) for _ in several]
        graph, k, seeds = np.array([(each.graph, each.k, each.random.integers(2**31)) for each in owners]).T
        rules = np.stack([each.rule for each in owners])
        children = self.searcher(graph, k, pad_rows([x for several in starts for x in several]), seeds, rules, rounds)
        while not self.searcher.is_done():
            if all(island.worker.search.is_over for island in islands):
                return []
            time.sleep(POLL_SECONDS)
        conflicts, colors, ages = (each.cpu().numpy().astype(np.int32) for each in children)
        made = [
            Individual(int(left), *(x[: len(owner.first)] for x in (of_nodes, since)))
            for owner, left, of_nodes, since in zip(owners, conflicts, colors, ages, strict=True)
        ]
        if any(child.colors.min() < 0 or child.colors.max() >= most for most, child in zip(k, made, strict=True)):
            raise MachineError("it returns other colors than it was given")
        i = int(owners[0].random.integers(len(made)))
        owners[i].check(made[i])
        offsets = np.cumsum([0, *map(len, starts)])
        return [made[i:end] for i, end in zip(offsets, offsets[1:], strict=False)]

    def cross(self, generation: Sequence[tuple[GpuIsland, list[Individual]]]) -> None:
        """Make the next starts of islands from parents. Islands of a search first exchange their second parents."""
        for island, _ in generation:
            if island is island.others[0] and len(island.others) > 1:
                pairs = [parents for other, parents in generation if other.others is island.others]
                seconds = [parents[1] for parents in pairs]
                for parents, place in zip(pairs, island.random.permutation(len(pairs)), strict=True):
                    parents[1] = seconds[place]
        crossed = [(island, parents) for island, parents in generation if island.choose_next(parents)]
        if not crossed:
            return
        islands, pairs = zip(*crossed, strict=True)
        by_network = torch.tensor([island.by_network for island in islands], device=self.device)
        children = self.crossover(*self.tensors(islands, pairs), by_network).int().cpu().numpy()
        for island, *starts in zip(islands, *children, strict=True):
            island.starts = [start[: len(island.first)] for start in starts]

    def tensors(
        self, islands: Sequence[GpuIsland], pairs: Sequence[Sequence[Individual]]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Graph, k, colors and ages of pairs, as `BatchedCrossover` takes them."""
        places = np.array([(island.graph, island.k) for island in islands]).T
        of_nodes = (pad_rows(each) for each in zip(*map(stacked, pairs), strict=True))
        graph, k, colors, ages = (copied_to(self.device, each.astype(np.int64)) for each in (*places, *of_nodes))
        return graph, k, colors, ages
