"""Train and measure the network that says which classes a child of two colorings takes.

    python -m benchmarks.recombination children --out children.pkl --minutes 60
    python -m benchmarks.recombination train --children children.pkl --out crossover.json
    python -m benchmarks.recombination colors --weights crossover.json      # that are left after some seconds
    python -m benchmarks.recombination graphs --out graphs.pkl --seed 1    # where crossover decides, and their k
    python -m benchmarks.recombination measure --graphs graphs.pkl --weights crossover.json

`children` takes parents from searches as `color` makes them, makes several children of the same parents by random
choices of classes, and counts the conflicts that TabuCol leaves of each. `train` fits the network: the fewer conflicts,
the more the nodes in the chosen classes are worth. `colors` compares what is reached in the same time. `graphs` looks
for graphs and k for which HEAD needs 10 to 100 generations; `measure` counts moves and seconds until they are solved.
"""

import math
import pickle
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import networkx as nx
import numpy as np
import torch
import tyro
from torch import Tensor, nn
from torch_geometric.utils import scatter

from benchmarks.families import latin_square
from benchmarks.training_speed import table
from gnn_training.data import applications, families
from gnn_training.graph import Instance, NeighbourLists, as_graph
from gnn_training.onnx_program.session import Model
from gnn_training.search import kernels
from gnn_training.search.crossover import (
    FEATURES,
    GENERATION,
    LAYERS,
    MESSAGES,
    WIDTH,
    Parent,
    Weights,
    by_size,
    crossover,
    features_of,
    from_text,
    node_values,
    stacked,
    to_text,
)  # fmt: skip
from gnn_training.search.engine import Budget, Search, Trained, Worker
from gnn_training.search.first_colorings import clique_size, seeded
from gnn_training.search.portfolio import recombination
from gnn_training.training.learner import learning_rate


def gnp(p: float, rng: np.random.Generator, n: int) -> Instance:
    """A random graph with an edge between two nodes with probability p."""
    return Instance(as_graph(nx.gnp_random_graph(n, p, seed=int(rng.integers(2**32)))))


KINDS = {f"G(n,{p})": partial(gnp, p) for p in (0.3, 0.5, 0.7, 0.9)} | {
    "course timetables": applications.course_timetable, "Pauli strings": applications.pauli_strings,
    "exam timetables": applications.exam_timetable, "geometric": families.FAMILIES["geometric"].draw,
    "Leighton": families.FAMILIES["leighton"].draw, "Latin squares": latin_square,
}  # fmt: skip
GENERATIONS = 10, 100  # that HEAD needs of the graphs to train and measure on
LIMIT = 60  # generations of a measured search; one without a solution counts as twice as many
PARENTS, CHILDREN = 10, 12  # pairs of parents of a search that get further children, and these children
SECONDS = 0.3, 6.0  # of such a search
MORE_VARIANCE = 0.3  # than children have, whose conflicts may be all the same
CHOOSING = range(1000, 1003)  # seeds of the searches that choose k; others measure
NEVER = np.zeros(1, dtype=np.uint8)


class Task(NamedTuple):
    """A graph to color with k colors."""

    kind: str
    lists: NeighbourLists
    k: int


class Example(NamedTuple):
    """Two colorings of a task, and what became of children."""

    task: int
    parents: np.ndarray  # (2, N) int16
    features: np.ndarray  # (N, 2, F) float32
    origin: np.ndarray  # (CHILDREN, N) int8: the coloring from which the child has the class of the node, -1 for none
    conflicts: np.ndarray  # (CHILDREN,) float32, after TabuCol


class Watched(Worker):
    """A thread of a search that counts its moves and keeps the last parents."""

    def __init__(self, lists: NeighbourLists, colors: np.ndarray, weights: Weights, seed: int):
        """colors (N,): a coloring without gaps, whose number of colors is to fall."""
        super().__init__(Search(lists, colors, Budget(math.inf, seed=seed), Trained(None, weights)), seed)
        self.search.workers = [self]
        self.moves, self.k, self.parents = 0, 0, list[Parent]()

    def tabucol(self, colors: np.ndarray, k: int, moves: int) -> Any:
        """As in other threads."""
        found = best, ages, conflicts, made, _ = super().tabucol(colors, k, moves)
        before = [] if k != self.k or len(self.parents) == 2 else self.parents
        self.parents = [*before, Parent(conflicts, best, ages)] if conflicts else []
        self.moves, self.k = self.moves + made, k
        return found

    def recombine(self, seconds: float, clique: int) -> Iterator[None]:
        """Search for so many seconds of a core, with a stop after every call of TabuCol. clique: size of one."""
        end = time.process_time() + seconds
        for _ in recombination(self):
            if time.process_time() > end or self.search.num_colors <= max(2, clique):
                return
            yield


def solve(task: Task, weights: Weights, seed: int, limit: int = LIMIT) -> tuple[float, float, bool]:
    """Moves and seconds until a graph has k colors, and whether it has; twice those of `limit` generations, if not."""
    n, start = len(task.lists.offsets) - 1, time.process_time()
    worker = Watched(task.lists, np.arange(n) % (task.k + 1), weights, seed)  # no better than a random coloring
    turns = recombination(worker)
    for _ in range(2 * limit):
        next(turns)
        if worker.search.num_colors <= task.k:
            return worker.moves, time.process_time() - start, True
    return 2 * worker.moves, 2 * (time.process_time() - start), False


def improved(task: Task, colors: np.ndarray, state: np.ndarray) -> Parent:
    """What TabuCol makes of a child in a generation."""
    kernels.complete(*task.lists, colors, task.k, state, NEVER)
    best, ages, conflicts, *_ = kernels.tabucol(*task.lists, colors, task.k, GENERATION, state, NEVER)
    return Parent(conflicts, best, ages)


@dataclass(frozen=True)
class Graphs:
    """Look for graphs where crossover decides."""

    out: Path
    seed: int
    sizes: tuple[int, int] = (150, 400)
    seconds: float = 60.0
    """For each kind of graph."""
    kinds: tuple[str, ...] = tuple(KINDS)

    def run(self) -> None:
        """Write the tasks."""
        tasks = []
        for kind in self.kinds:
            start, index, before = time.monotonic(), 0, len(tasks)
            while time.monotonic() - start < self.seconds:
                rng = np.random.default_rng([self.seed, *kind.encode(), index])
                lists = KINDS[kind](rng, int(rng.integers(*self.sizes))).graph.csr()
                k = self.colors(kind, lists)
                tasks += [Task(kind, lists, k)] if k else []
                index += 1
            print(f"{kind}: {len(tasks) - before} of {index} graphs", flush=True)
        self.out.write_bytes(pickle.dumps(tasks))

    def colors(self, kind: str, lists: NeighbourLists) -> int | None:
        """The most colors for which the median of three searches needs GENERATIONS; None if no number has it."""
        fewest, most = GENERATIONS
        k = int(kernels.dsatur(*lists).max()) + 1
        step = max(1, k // 12)
        while k > 2:
            limit = most if step == 1 else fewest
            task = Task(kind, lists, k - step)
            moves, _, is_solved = sorted(solve(task, by_size(), seed, limit) for seed in CHOOSING)[1]
            if moves < 2 * fewest * GENERATION:
                k -= step
            elif step > 1:
                step = max(1, step // 2)
            else:
                return k - 1 if is_solved else None
        return None


def any_graph(rng: np.random.Generator, sizes: tuple[int, int]) -> tuple[NeighbourLists, np.ndarray, int]:
    """A graph of KINDS or of a family that training has, its coloring by DSATUR, and the size of a clique."""
    kinds = [*KINDS.values(), *(family.draw for family in families.FAMILIES.values())]
    while True:
        nodes = round(np.exp(rng.uniform(*np.log(sizes))))
        lists = kinds[rng.integers(len(kinds))](rng, nodes).graph.csr()
        first, clique = kernels.dsatur(*lists), clique_size(lists)
        if first.max() >= clique:
            return lists, first, clique


@dataclass(frozen=True)
class Children:
    """Make children by random choices near those of a network, of parents that its searches meet."""

    out: Path
    weights: Path | None = None
    """Of the network; without, every node is worth 1."""
    sizes: tuple[int, int] = (100, 1000)
    minutes: float = 60.0
    seed: int = 0

    def run(self) -> None:
        """Write the examples."""
        weights, tasks, examples, start = read_weights(self.weights), [], [], time.monotonic()
        for number in count():
            if time.monotonic() - start > 60 * self.minutes:
                break
            rng = np.random.default_rng([self.seed, number])
            (lists, first, clique), state = any_graph(rng, self.sizes), seeded(self.seed, number)
            for k, parents in self.parents(Watched(lists, first, weights, number), clique, rng):
                tasks.append(Task("", lists, k))
                examples.append(self.example(tasks[-1], len(tasks) - 1, parents, state, weights, rng))
            if number % 100 == 99:
                print(number + 1, "searches,", len(examples), "pairs of parents", flush=True)
        self.out.write_bytes(pickle.dumps((tasks, examples)))

    @staticmethod
    def parents(worker: Watched, clique: int, rng: np.random.Generator) -> list[tuple[int, list[Parent]]]:
        """PARENTS of all pairs of a search, each as likely as others (Vitter 1985), and their numbers of colors."""
        kept, met = list[tuple[int, list[Parent]]](), 0
        for _ in worker.recombine(np.exp(rng.uniform(*np.log(SECONDS))), clique):
            if len(worker.parents) == 2:
                met += 1
                place = int(rng.integers(met)) if len(kept) == PARENTS else len(kept)
                kept[place : place + 1] = [(worker.k, worker.parents)] if place < PARENTS else []
        return kept

    @staticmethod
    def example(
        task: Task, number: int, parents: list[Parent], state: np.ndarray, weights: Weights, rng: np.random.Generator
    ) -> Example:
        """Children of two parents."""
        colors, ages = stacked(parents)
        n, x = colors.shape[1], features_of(*task.lists, colors, ages, task.k)
        policy, origin, conflicts = node_values(x, colors, task.k, weights), np.zeros((CHILDREN, n), np.int8), []
        for i in range(CHILDREN):
            of_class, of_node, share = rng.choice([0.05, 0.15, 0.3]), rng.choice([0, 0.3]), rng.choice([0, 0.5, 1, 1])
            noise = of_class * np.take_along_axis(rng.normal(size=(2, task.k)), colors, 1)
            noise += of_node * rng.normal(size=(2, n))
            values = ((share * policy / abs(policy).mean() + 1 - share) * np.exp(noise)).astype(np.float32)
            first = i % 2
            child = crossover(colors[first], colors[1 - first], values[:: 1 - 2 * first].copy(), task.k)
            origin[i] = np.where(child < 0, -1, (child % 2) ^ first)
            conflicts.append(improved(task, child, state).conflicts)
        return Example(number, colors.astype(np.int16), x, origin, np.array(conflicts, np.float32))


class CrossoverNetwork(nn.Module):
    """The network of `search.crossover`. A node is worth 1 before training. In shapes, V are the nodes of some pairs of
    colorings, each node once for either coloring.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(len(FEATURES), WIDTH)
        self.layers = nn.ModuleList(nn.Linear(MESSAGES * WIDTH, WIDTH) for _ in range(LAYERS))
        self.out, self.direct = nn.Linear(WIDTH, 1, bias=False), nn.Linear(len(FEATURES), 1, bias=False)
        for last in (self.out, self.direct):
            nn.init.zeros_(last.weight)
        # Of a child, for each unit of value that it lacks: standard deviations of conflicts among its siblings.
        self.log_conflicts = nn.Parameter(torch.tensor(-3.9))

    def forward(self, features: Tensor, classes: Tensor, others: Tensor, twin: Tensor) -> Tensor:
        """Values (V,) of nodes. features (V, F); classes, others (V,): the class of a node in its coloring and in the
        other one, all numbered in a row; twin (V,): the same node in the other coloring.
        """
        h = self.first(features)
        for layer in self.layers:
            e = h.relu()
            of_class, of_other = (scatter(e, index, reduce="mean")[index] for index in (classes, others))
            h = h + layer(torch.cat([e, of_class, e[twin], of_other], 1))
        return 1 + (self.out(h.relu()) + self.direct(features))[:, 0]

    @torch.no_grad()
    def weights(self) -> Weights:
        """All that `search.crossover` needs."""
        layers = torch.stack([layer.weight.T.reshape(MESSAGES, WIDTH, WIDTH) for layer in self.layers])
        biases, first = torch.stack([layer.bias for layer in self.layers]), self.first.weight.T
        parts = first, self.first.bias, layers, biases, self.out.weight[0], self.direct.weight[0]
        return Weights(*(part.numpy().copy() for part in parts))

    def expected(self, examples: list[Example], tasks: list[Task]) -> list[Tensor]:
        """Of every pair of parents, the conflicts of its children (CHILDREN,) that their classes let one expect, less
        the mean, in standard deviations.
        """
        features, classes, others, twin, num_classes, num_nodes = [], [], [], [], 0, 0
        for example in examples:
            k, n = tasks[example.task].k, len(example.features)
            first, second = num_classes + example.parents.astype(np.int64) + [[0], [k]]
            features += [example.features[:, 0], example.features[:, 1]]
            classes += [first, second]
            others += [second, first]
            twin += [num_nodes + n + np.arange(n), num_nodes + np.arange(n)]
            num_classes, num_nodes = num_classes + 2 * k, num_nodes + 2 * n
        values = self(*(torch.from_numpy(np.concatenate(each)) for each in (features, classes, others, twin)))
        expected = []
        for example, value in zip(examples, values.split([2 * len(x.features) for x in examples]), strict=True):
            taken = np.concatenate([example.origin == 0, example.origin == 1], 1)
            worth = torch.from_numpy(taken).float() @ value
            expected.append((worth.mean() - worth) * self.log_conflicts.exp())
        return expected


@dataclass(frozen=True)
class Train:
    """Fit a network to what became of children."""

    children: tuple[Path, ...]
    out: Path
    epochs: int = 6
    batch: int = 16
    """Pairs of parents in a step."""
    rate: float = 2e-3
    seed: int = 0
    share: float = 1.0
    """Of the pairs of parents."""
    features_alone: bool = False
    """Train one weight for every feature, without the hidden units and their messages."""
    test: Path | None = None
    """Children of other graphs."""

    def run(self) -> None:
        """Write the weights."""
        torch.manual_seed(self.seed)
        rng, tasks, examples = np.random.default_rng(self.seed), [], []
        for path in self.children:
            more_tasks, more = pickle.loads(path.read_bytes())
            examples += [each._replace(task=each.task + len(tasks)) for each in more]
            tasks += more_tasks
        examples = [examples[i] for i in rng.permutation(len(examples))[: round(self.share * len(examples))]]
        test = pickle.loads(self.test.read_bytes()) if self.test else None
        network, done = CrossoverNetwork(), 0
        trained = [network.direct.weight, network.log_conflicts] if self.features_alone else network.parameters()
        optimizer = torch.optim.AdamW(trained, weight_decay=1e-2)
        num_steps = self.epochs * -(-len(examples) // self.batch)
        print(f"{len(examples)} pairs of parents, {num_steps} steps, {sum(map(np.size, network.weights()))} numbers")
        for epoch in range(1, self.epochs + 1):
            errors = []
            for places in np.array_split(rng.permutation(len(examples)), num_steps // self.epochs):
                loss = torch.stack(squared_errors(network, [examples[i] for i in places], tasks)).mean()
                for group in optimizer.param_groups:
                    group["lr"] = learning_rate(done, self.rate, num_steps // 20, num_steps)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(network.parameters(), 1.0)
                optimizer.step()
                errors.append(loss.item())
                done += 1
            explained = f", explained on other graphs {self.explained(network, *test):.4f}" if test else ""
            print(f"epoch {epoch}: squared error {np.mean(errors):.4f}{explained}", flush=True)
            self.out.write_text(to_text(network.weights()))

    @staticmethod
    @torch.no_grad()
    def explained(network: CrossoverNetwork, tasks: list[Task], examples: list[Example]) -> float:
        """Share of the variance among the children of a pair that the network explains."""
        batches = [examples[start : start + 64] for start in range(0, len(examples), 64)]
        left = sum(float(error) for batch in batches for error in squared_errors(network, batch, tasks))
        return 1 - left / sum(float(deviations(example).square().mean()) for example in examples)


def squared_errors(network: CrossoverNetwork, examples: list[Example], tasks: list[Task]) -> list[Tensor]:
    """Mean squared error of the expected conflicts, of every pair of parents."""
    pairs = zip(examples, network.expected(examples, tasks), strict=True)
    return [(deviations(example) - expected).square().mean() for example, expected in pairs]


def deviations(example: Example) -> Tensor:
    """Conflicts of the children (CHILDREN,) less their mean, in standard deviations."""
    found = torch.from_numpy(example.conflicts)
    return (found - found.mean()) / (found.var() + MORE_VARIANCE).sqrt()


@dataclass(frozen=True)
class Colors:
    """Compare networks with HEAD: colors after the same seconds of a core, of this method alone, on new graphs."""

    weights: tuple[Path, ...] = ()
    """Of networks, instead of the one that ships."""
    seconds: float = 3.0
    sizes: tuple[int, int] = (150, 1000)
    graphs: int = 100
    searches: int = 2
    """Of every graph, each with a seed of its own."""
    seed: int = 1

    def run(self) -> None:
        """Print the mean colors of every network less those of HEAD, with one standard error over graphs."""
        arms, found = arms_of(self.weights), []
        for number in range(self.graphs):
            lists, first, clique = any_graph(np.random.default_rng([self.seed, number]), self.sizes)
            each = [[self.colors(lists, first, clique, arm, s) for s in range(self.searches)] for arm in arms]
            found.append(np.mean(each, 1))
            saved = np.array(found) - np.array(found)[:, :1]
            error = saved.std(0) / math.sqrt(len(saved))
            print(len(found), *(f"{m:+.3f} ± {e:.3f}" for m, e in zip(saved.mean(0), error, strict=True)), flush=True)

    def colors(self, lists: NeighbourLists, first: np.ndarray, clique: int, weights: Weights, seed: int) -> int:
        """Colors that a search reaches."""
        worker = Watched(lists, first, weights, seed)
        for _ in worker.recombine(self.seconds, clique):
            pass
        return worker.search.num_colors


@dataclass(frozen=True)
class Measure:
    """Compare networks with HEAD, where every node is worth 1: moves and seconds until a graph is solved."""

    graphs: Path
    weights: tuple[Path, ...] = ()
    """Of networks, instead of the one that ships."""
    graphs_per_kind: int = 20
    searches: int = 3
    """Of every graph, each with a seed of its own."""

    def run(self) -> None:
        """Print a table: geometric means of ratios to HEAD, with one standard error over graphs."""
        tasks, arms = pickle.loads(self.graphs.read_bytes()), arms_of(self.weights)
        solve(tasks[0], arms[0], 0, 1)  # compiles
        found: dict[str, np.ndarray] = {}  # (graphs, searches, arms, 3)
        for kind in dict.fromkeys(task.kind for task in tasks):
            chosen = [task for task in tasks if task.kind == kind][: self.graphs_per_kind]
            seeds = range(self.searches)
            found[kind] = np.array([[[solve(task, arm, seed) for arm in arms] for seed in seeds] for task in chosen])
            print(kind, *cells(found[kind]), flush=True)
        found["all"] = np.concatenate(list(found.values()))
        rows = [[kind, *cells(each)] for kind, each in found.items()]
        names = ["kind", "graphs", "solved"]
        names += [f"{what}, network {number}" for number in range(1, len(arms)) for what in ("moves", "seconds")]
        print(table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))))


def cells(found: np.ndarray) -> list[str]:
    """Number of graphs, shares of solved searches, ratios of moves and seconds; found (graphs, searches, arms, 3)."""
    logs = np.log(found[..., :2]).mean(1)
    ratios = (logs[:, 1:] - logs[:, :1]).reshape(len(found), -1)
    means, errors = np.exp(ratios.mean(0)), ratios.std(0) / math.sqrt(len(found))
    solved = " / ".join(f"{share:.2f}" for share in found[..., 2].mean((0, 1)))
    return [str(len(found)), solved, *(f"{m:.2f} ± {m * e:.2f}" for m, e in zip(means, errors, strict=True))]


def arms_of(paths: tuple[Path, ...]) -> list[Weights]:
    """Weights of HEAD, then of the networks in files, or of the one that ships."""
    return [read_weights(None), *([read_weights(path) for path in paths] or [Model().crossover])]


def read_weights(path: Path | None) -> Weights:
    """Weights in a file; those with which every node is worth 1, for none."""
    return by_size() if path is None else from_text(path.read_text())


if __name__ == "__main__":
    from benchmarks import recombination as this  # files name its classes, not those of __main__

    tyro.cli(this.Children | this.Train | this.Colors | this.Graphs | this.Measure, description=__doc__).run()
