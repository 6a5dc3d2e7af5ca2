"""Longer searches for labels of validation graphs on GPUs: islands of many graphs, with a launch for a generation."""

import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np
import torch

from gnn_training.console import progress
from gnn_training.data.packed import Row
from gnn_training.errors import MachineError
from gnn_training.files import reason
from gnn_training.graph import Graph
from gnn_training.search.crossover import GENERATION, Individual
from gnn_training.search.engine import Budget, Portfolio, SearchWeights, Worker
from gnn_training.search.gpu_islands import IslandBatch
from gnn_training.search.gpu_searches import fitting

ISLANDS = 4  # islands per graph


class Labeller(Worker):
    """The search for the label of one graph. It ends after `moves` of TabuCol without a gain, or `seconds`."""

    def __init__(self, row: Row, moves: int, seconds: float, trained: SearchWeights, seed: int):
        lists = Graph.from_edges(int(row["num_nodes"]), row["edges"]).csr()
        budget = Budget(math.inf, int(row["lower_bound"]), seed=seed)
        super().__init__(Portfolio(lists, np.asarray(row["coloring"]), budget, trained), 0)
        self.seconds, self.until = seconds, math.inf
        self.left = self.generations = math.ceil(moves / (2 * GENERATION))

    def offer(self, colors: np.ndarray) -> None:
        """Take a better coloring, and restart the count of generations."""
        super().offer(colors)
        self.left = self.generations

    def on_generation(self, parents: Sequence[Individual], k: int) -> None:
        """Count a generation of an island; end the search if no generation or no time is left."""
        self.left -= 1
        self.until = min(self.until, time.monotonic() + self.seconds)
        if self.left <= 0 or time.monotonic() >= self.until:
            self.search.finish()


def improve_labels(
    rows: Sequence[Row], moves: Sequence[int], seconds: float, trained: SearchWeights, seed: int, gpus: Sequence[int]
) -> list[int]:
    """Search longer for the labels in these rows, and improve them; return the places of graphs that are too large.
    moves: for each graph, after how many without a gain its search ends; seconds: the limit per graph. MachineError if
    a GPU does not work.
    """
    nodes, colors = (np.array([row[name] for row in rows]) for name in ("num_nodes", "num_colors"))
    fits = fitting(nodes, colors, torch.device("cuda", gpus[0]))
    places = np.flatnonzero(fits).tolist()
    searches = [Labeller(rows[i], moves[i], seconds, trained, seed) for i in places]

    def search(gpu: int, mine: Sequence[Labeller]) -> None:
        lists, device = [each.lists for each in mine], torch.device("cuda", gpu)
        with IslandBatch.on_stream(lists, trained.crossover, device) as batch:
            capacity = max(ISLANDS, batch.capacity([each.search.num_colors for each in mine]))
            batch.search(enumerate(mine), capacity, ISLANDS, GENERATION)

    with ThreadPoolExecutor(len(gpus)) as pool, progress("labelling validation graphs", 0, len(places)) as advance:
        parts = [searches[i :: len(gpus)] for i in range(len(gpus))]
        running = {pool.submit(search, gpu, part): gpu for gpu, part in zip(gpus, parts, strict=True) if part}
        try:
            done, pending = 0, set(running)
            while pending:
                ended, pending = wait(pending, 1)
                for future in ended:
                    try:
                        future.result()
                    except Exception as error:  # whatever torch, numba and the driver raise
                        raise MachineError(f"GPU {running[future]}: {reason(error)}; leave out --gpus") from error
                done, before = sum(not each.search.is_running for each in searches), done
                advance(done - before)
        finally:
            for each in searches:
                each.search.finish()
    for i, each in zip(places, searches, strict=True):
        if each.search.num_colors < rows[i]["num_colors"]:
            rows[i] |= {"coloring": each.search.best.astype(np.int16), "num_colors": each.search.num_colors}
            rows[i] |= {"optimal": each.search.num_colors == rows[i]["lower_bound"]}
    return np.flatnonzero(~fits).tolist()
