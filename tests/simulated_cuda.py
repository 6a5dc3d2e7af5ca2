"""Searches in numba's CUDA simulator, in a process of its own: python simulated_cuda.py <tasks> <found>, two pickles.

A task is a `Task`; what is found are colors and conflicts (S, G). Or it is a `Generation`, and `Children` are found; or
`Islands`, with what `color` returns; or `Playing`, with pairs.
"""

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import Any

import numpy as np

from gnn_training.graph import Graph


@dataclass(kw_only=True)
class Simulated:
    """The GPU of a task."""

    threads: int = 4
    max_shared: int = 98_304
    late: int | None = None  # a thread that begins every phase a millisecond after the others


@dataclass
class Task(Simulated):
    """Searches of G graphs with S vectors of weights, each; at the first call nothing is on the GPU yet."""

    graphs: list[Graph]
    first: list[np.ndarray]
    lower: np.ndarray  # (G,), at least 1
    seeds: np.ndarray  # (G,)
    weights: np.ndarray  # (S, G, NUM_WEIGHTS) float32
    rounds: int
    calls: int = 1  # of which the last counts

    def __len__(self) -> int:
        return len(self.graphs)

    @property
    def num_nodes(self) -> np.ndarray:
        return np.array([graph.num_nodes for graph in self.graphs], np.int32)

    @property
    def num_edges(self) -> np.ndarray:
        return np.array([graph.num_edges for graph in self.graphs], np.int32)


@dataclass
class Generation(Simulated):
    """Children of some graphs."""

    graphs: list[Graph]
    graph: np.ndarray  # (R,), as are k and seeds
    k: np.ndarray
    starts: np.ndarray  # (R, N)
    seeds: np.ndarray
    weights: np.ndarray  # (R, NUM_WEIGHTS) float32
    rounds: int


def make_children(task: Generation) -> tuple[np.ndarray, ...]:
    """Run a task."""
    prepare(task)
    children = ChildSearcher([graph.csr() for graph in task.graphs], torch.device("cpu"))(
        task.graph, task.k, task.starts, task.seeds, task.weights, task.rounds
    )
    return tuple(each.numpy() for each in children)


@dataclass
class Playing(Simulated):
    """Games of self-play, two at a time, with a few rounds for every child."""

    graphs: list[Graph]
    games: list[tuple[int, int]]  # graph and seed
    rounds: int = 4
    threads: int = field(default=1, kw_only=True)


def play(task: Playing) -> list[list[list]]:
    """Run a task: the pairs of every game with the children of the kernel, and with those of the compiled loops."""
    prepare(task)
    gpu_games.MOVES = task.rounds // 2

    class OnCores(ChildSearcher):
        def __call__(self, graph: Any, k: Any, starts: Any, seeds: Any, weights: Any, rounds: int) -> Children:
            found = Children(*(np.full(size, -1, np.int32) for size in (len(k), starts.shape, starts.shape)))
            for i, n in enumerate(self.nodes[graph]):
                made = search_child(lists[graph[i]], starts[i, :n], k[i], weights[i], rounds, seeds[i])
                found.colors[i, :n], found.ages[i, :n], found.conflicts[i] = made
            return Children(*map(torch.from_numpy, found))

        def is_done(self) -> bool:
            return True

    lists, found = [graph.csr() for graph in task.graphs], []
    for kind in (ChildSearcher, OnCores):
        gpu_islands.ChildSearcher = kind  # type: ignore[misc]
        first = [kernels.dsatur(*lists[graph]) for graph, _ in task.games]
        players = [
            gpu_games.GpuPlayer(graph, lists[graph], colors, 1, zero_weights(), seed)
            for colors, (graph, seed) in zip(first, task.games, strict=True)
        ]
        games = gpu_games.GameBatch(lists, zero_weights(), torch.device("cpu"))
        games.search(((player.graph, player) for player in players), games.capacity([10] * len(lists)), 1, task.rounds)
        assert all(player.search.is_over and player.num_seen == player.num_pairs for player in players)
        found.append([player.pairs for player in players])
    return found


@dataclass
class Labels(Simulated):
    """Rows of packed graphs whose labels two GPUs improve."""

    rows: list[dict]
    moves: int = 60
    threads: int = field(default=1, kw_only=True)


def improve(task: Labels) -> tuple[list[dict], list[int]]:
    """Run a task: the rows, and the places of graphs that are too large."""
    prepare(task)
    gpu_labels.GENERATION = 10
    gpu_islands.ChildSearcher = OneAtATime
    trained, moves = SearchWeights(None, zero_weights()), [task.moves] * len(task.rows)
    return task.rows, gpu_labels.improve_labels(task.rows, moves, 100.0, trained, 0, [0, 1])


@dataclass
class Islands(Simulated):
    """A search on GPUs alone, each for two islands in two groups."""

    graph: Graph
    gpus: tuple[int, ...] = (0, 1)
    seconds: float = 10.0
    lower: int = 1
    problem: str = ""  # of GPU 0: "error" at its third launch, "wrong" conflicts, or it "hangs"
    threads: int = field(default=1, kw_only=True)


def color(task: Islands) -> tuple[list, list[int], list[str], float]:
    """Run a task; the better colorings, launches of every GPU, warnings and seconds."""
    prepare(task)
    search_gpus.ROUNDS, messages = 3, list[str]()
    launches = [0] * len(task.gpus)

    class Failing(OneAtATime):
        def __call__(self, *arguments: Any) -> Any:
            children = super().__call__(*arguments)
            launches[self.gpu] += 1
            if self.gpu == 0 and task.problem == "error" and launches[0] >= 3:
                raise RuntimeError("CUDA error: an illegal memory access was encountered\nand a long story")
            if self.gpu == 0 and task.problem == "wrong":
                children.conflicts[:] = 0
            return children

        def is_done(self) -> bool:
            return not (self.gpu == 0 and task.problem == "hangs")

    def idle(worker: Any) -> Any:
        while len(messages) < len(task.gpus):
            time.sleep(0.01)
            yield 0
        yield FOREVER  # ends a search that no GPU goes on with

    gpu_islands.ChildSearcher = Failing
    search_gpus.log.warning = lambda text, *arguments: messages.append(text % arguments)  # type: ignore[method-assign]
    lists, start = task.graph.csr(), time.monotonic()
    budget, extra = Budget(start + task.seconds, task.lower), search_gpus.on_gpus(task.gpus)
    first = kernels.dsatur(*lists)
    colorings = list(improvements(lists, first, budget, {idle: 1}, extra=extra))
    return colorings, launches, messages, time.monotonic() - start


def simulate(folder: Path, tasks: dict[str, Simulated]) -> dict[str, Any]:
    """What a process finds for the tasks, by their names."""
    given, found = folder / "tasks", folder / "found"
    given.write_bytes(pickle.dumps(list(tasks.values())))
    subprocess.run([sys.executable, __file__, given, found], check=True, timeout=500)
    return dict(zip(tasks, pickle.loads(found.read_bytes()), strict=True))


def prepare(task: Simulated) -> None:
    """Give the GPU the threads and the memory of a task."""
    search_cuda.THREADS = task.threads
    vars(search_cuda).update(PHASES if task.late is None else {name: late(PHASES[name], task.late) for name in PHASES})
    torch.cuda.get_device_properties = lambda device: properties(task.max_shared)


def properties(max_shared: int = 98_304) -> SimpleNamespace:
    """Of a GPU for two islands."""
    return SimpleNamespace(shared_memory_per_block_optin=max_shared, multi_processor_count=1)


def search(task: Task) -> tuple[np.ndarray, np.ndarray]:
    """Run a task; the task stands for the packed graphs."""
    prepare(task)
    searcher = BlockSearcher(task, torch.device("cpu"))
    batch: Any = SimpleNamespace(
        ids=np.arange(len(task)), first=task.first, lower=torch.from_numpy(task.lower),
        seeds=torch.from_numpy(task.seeds), lists=lambda row: task.graphs[row].csr(),
    )  # fmt: skip
    for call in reversed(range(task.calls)):
        colors, conflicts = searcher(torch.from_numpy(task.weights) * (1 + call), batch, task.rounds)
    return colors.numpy(), conflicts.numpy()


def late(phase: Callable[..., Any], thread: int) -> Callable[..., Any]:
    """A phase that one thread begins late, so that a missing barrier shows."""

    def phase_of_thread(*arguments: Any) -> Any:
        if search_cuda.cuda.threadIdx.x == thread:
            time.sleep(1e-3)
        return phase(*arguments)

    return phase_of_thread


if __name__ == "__main__":
    os.environ["NUMBA_ENABLE_CUDASIM"] = "1"  # before numba is imported
    sys.path.append(str(Path(__file__).parent))  # for the class of the tasks
    import torch
    from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

    from gnn_training.data import gpu_labels
    from gnn_training.network.crossover_weights import zero_weights
    from gnn_training.search import gpu_islands, kernels, search_cuda
    from gnn_training.search import gpu_workers as search_gpus
    from gnn_training.search.engine import FOREVER, Budget, SearchWeights, improvements
    from gnn_training.search.gpu_searches import BlockSearcher, Children, ChildSearcher
    from gnn_training.search.search_kernel import search_child
    from gnn_training.training import gpu_games

    class OneAtATime(ChildSearcher):
        """On the memory of the CPU; a launch at a time, as the simulator needs it."""

        lock = Lock()

        def __init__(self, graphs: Any, device: Any):
            self.gpu = device.index
            super().__init__(graphs, torch.device("cpu"))

        def __call__(self, *arguments: Any) -> Any:
            with self.lock:
                return super().__call__(*arguments)

    # The memory of the GPU is that of the CPU.
    search_cuda.as_array = lambda tensor: FakeCUDAArray(tensor.contiguous().numpy())
    stream = SimpleNamespace(cuda_stream=0, wait_stream=lambda other: None)
    torch.cuda.Event = lambda: SimpleNamespace(record=lambda: None, query=lambda: True)
    torch.cuda.Stream = torch.cuda.current_stream = lambda device: stream
    torch.cuda.stream = torch.cuda.device = lambda stream: nullcontext()
    torch.cuda.mem_get_info = lambda device: (2**30, 2**30)
    search_cuda.cuda.external_stream = lambda pointer: 0
    # Half of the time went into waiting for the thread that polls the others, and into the simulator's wrappers of
    # device functions, which find their `cuda` without them, too.
    sys.setswitchinterval(1e-5)
    vars(search_cuda).update({k: v.py_func for k, v in vars(search_cuda).items() if getattr(v, "_device", False)})
    names = ("begin", "complete", "give_color", "close", "weigh", "draw", "choose", "move", "apply", "leave")
    PHASES = {name: vars(search_cuda)[name] for name in (*names, "count_conflicts", "count_colors")}
    tasks = pickle.loads(Path(sys.argv[1]).read_bytes())
    run = {"Task": search, "Generation": make_children, "Islands": color, "Playing": play, "Labels": improve}
    found = [run[type(task).__name__](task) for task in tasks]
    Path(sys.argv[2]).write_bytes(pickle.dumps(found))
