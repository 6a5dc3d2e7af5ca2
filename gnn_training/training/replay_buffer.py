"""The results of self-play: pairs of parents to learn from, pairs that are held out, and their files."""

import io
from collections.abc import Container
from itertools import chain
from pathlib import Path

import numpy as np

from gnn_training.distributed import Runtime
from gnn_training.files import damaged, write_bytes
from gnn_training.training.games import Pair

HINT = "name another --run folder"


class ReplayBuffer:
    """The pairs of the last iterations, the same on every rank. Rank 0 writes a file for every iteration."""

    def __init__(self, folder: Path, max_bytes: int, held_out_graphs: Container[int], rt: Runtime):
        """max_bytes: the largest size of the pairs in memory; held_out_graphs: graphs whose pairs are held out."""
        self.folder, self.max_bytes, self.held_out_graphs, self.rt = folder, max_bytes, held_out_graphs, rt
        self.iterations = dict[int, list[Pair]]()
        self.pairs, self.held_out = list[Pair](), list[Pair]()

    def add(self, iteration: int, pairs: list[Pair]) -> None:
        """Add the pairs of an iteration, and drop the oldest iterations while all pairs exceed `max_bytes`."""
        self.iterations[iteration] = pairs
        while len(self.iterations) > 1 and sum(map(num_bytes, chain(*self.iterations.values()))) > self.max_bytes:
            del self.iterations[min(self.iterations)]
        self.pairs, self.held_out = [], []
        for pair in chain(*self.iterations.values()):
            (self.held_out if pair.graph in self.held_out_graphs else self.pairs).append(pair)

    def save(self, iteration: int, pairs: list[Pair]) -> None:
        """Write the file of an iteration."""
        write_bytes(self._file(iteration), to_bytes(pairs))

    def load(self, iteration: int, num_nodes: np.ndarray) -> None:
        """Add the pairs of a file. num_nodes: the nodes of every packed graph. UserError if the file is damaged."""
        path = self._file(iteration)
        with damaged(path, HINT):
            content = path.read_bytes() if self.rt.is_main else b""
            self.add(iteration, from_bytes(self.rt.broadcast(content), num_nodes))

    def _file(self, iteration: int) -> Path:
        return self.folder / f"iteration-{iteration:02d}.npz"


def num_bytes(pair: Pair) -> int:
    """The memory of a pair, in bytes."""
    return sum(part.nbytes for part in pair[2:])


def to_bytes(pairs: list[Pair]) -> bytes:
    """The content of a file of pairs, with one array for each field of all pairs."""
    parts = zip(*pairs, strict=True) if pairs else iter(())
    joined = [np.array(part) if np.ndim(part[0]) < 2 else np.concatenate(part, 1) for part in parts]
    np.savez_compressed(file := io.BytesIO(), *joined)
    return file.getvalue()


def from_bytes(content: bytes, num_nodes: np.ndarray) -> list[Pair]:
    """Return the pairs in the content of a file. num_nodes: the nodes of every packed graph."""
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        parts = [file[name] for name in file.files]
    if not parts:
        return []
    graphs, ks, *long, conflicts = parts
    offsets = np.cumsum(num_nodes[graphs].astype(int))[:-1]
    rows = zip(graphs, ks, *(np.split(part, offsets, 1) for part in long), conflicts, strict=True)
    return [Pair(int(graph), int(k), *others) for graph, k, *others in rows]
