"""Measure how fast training is: beside two forms in PyTorch Geometric, beside the machine's limits, and on two ranks.

    python -m benchmarks.training_speed --page docs/SPEED.md  # measures both recipes, replaces the page's last section

docs/SPEED.md says how the numbers are obtained.
"""

import logging
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GAT

from benchmarks.roofline import measure_ceilings, phases_of_step
from gnn_training import files, machine
from gnn_training.console import set_up_logging
from gnn_training.contract import MAX_COLORS, NUM_FEATURES
from gnn_training.data.dataset import sample
from gnn_training.data.families import RECIPES
from gnn_training.data.packed import PackedGraphs
from gnn_training.distributed import Runtime, join
from gnn_training.launch.ranks import launch
from gnn_training.model.graphs import SparseGraph
from gnn_training.model.loss import WEIGHTS, ColoringNetwork
from gnn_training.settings import Device, RecipeName, TrainSettings, of_preset
from gnn_training.training.learner import Learner
from gnn_training.training.loader import GraphLoader, no_gradient_rounds_at, rounds_of
from gnn_training.training.sampler import Shape

HEADING = "## Measured\n"  # the last section of a page, which is replaced
PRESETS = {"cpu": "cpu", "cuda": "single"}
BATCH_SIZES = {"cpu": (1, 4), "cuda": (16, 64)}  # of the PyG forms; the better one counts
LONGEST_STEP = 1 / 8  # of the seconds of a form, about
MOST_MEMORY = 0.5  # of what is free, for a step
GOLDEN = (5**0.5 - 1) / 2
BUSY = "; other programs used the rest, so the two ranks had less than two cores"
log = logging.getLogger("gnn_training.benchmarks")


@dataclass(frozen=True)
class Options:
    """What to measure, and for how long."""

    recipe: tuple[RecipeName, ...] = ("cpu", "full")
    """Recipes to draw the graphs from."""
    graphs: int = 2600
    """Number of graphs to draw from each recipe."""
    seconds: float = 15.0
    """Time for each form of training (there are five) and for the ranks."""
    device: Device = "auto"
    """Where to train; auto takes a GPU if there is one."""
    compile: bool = True
    """Compile this training; --no-compile runs its rounds as they are."""
    page: Path | None = None
    """Markdown page whose section "Measured" is replaced; None prints the section."""


@dataclass
class Form:
    """A way to train, and the seconds per unit of work of a sample of its steps.

    work (S,) of the steps of an epoch, in any unit; num_bytes (S,) that they allocate; prepare(i) makes what step i
    finds in memory; take(prepared) is the step.
    """

    name: str
    batch_size: int
    device: torch.device
    work: np.ndarray
    num_bytes: np.ndarray
    prepare: Callable[[int], Any]
    take: Callable[[Any], object]
    times: list[float] = field(default_factory=list)
    spent: float = 0.0
    largest: int = 0

    def warm_up(self, limit: float) -> None:
        """Take larger and larger steps until one takes the limit in seconds. It stands in for all larger ones."""
        free = torch.cuda.mem_get_info()[0] if self.device.type == "cuda" else machine.available_bytes()
        order = self.work.argsort(kind="stable")
        order = order[self.num_bytes[order] < MOST_MEMORY * free]
        work, place, last = self.work[order], len(order) // 4, len(order) - 1
        self._seconds(order[place])
        while self._seconds(order[place]) < limit and place < last:
            place = min(last, max(place + 1, int(np.searchsorted(work, 2 * work[place]))))
        self.largest, self.draws = int(order[place]), sampled(self.work)

    def advance(self) -> None:
        """Take the next step of the sample."""
        i, work = next(self.draws), self.work
        i = i if work[i] <= work[self.largest] else self.largest
        seconds = self._seconds(i)
        self.spent += seconds
        self.times.append(seconds / work[i])

    def epoch_seconds(self) -> float:
        """Estimate for all steps of an epoch."""
        return float(self.work.sum() * np.mean(self.times))

    def columns(self, num_graphs: int) -> list[str]:
        """Graphs per batch and per second, standard error, share of the work in steps larger than the largest taken."""
        error = np.std(self.times) / np.mean(self.times) / len(self.times) ** 0.5
        beyond = self.work[self.work > self.work[self.largest]].sum() / self.work.sum()
        rate = num_graphs / self.epoch_seconds()
        return [self.name, str(self.batch_size or "planned"), f"{rate:.2f}", f"{error:.0%}", f"{beyond:.0%}"]

    def _seconds(self, i: int) -> float:
        """Time of step i. On a CPU, time of the processor: what other programs take does not count."""
        prepared, clock = self.prepare(i), time.monotonic if self.device.type == "cuda" else time.process_time
        return time_of(self.take, prepared, clock, self.device)


def sampled(work: np.ndarray) -> Iterator[int]:
    """Steps without end, drawn with probabilities in proportion to their work.

    The additive recurrence of the golden ratio spreads every number of draws evenly over small and large steps.
    """
    order, point = work.argsort(kind="stable"), 0.0
    cumulative = work[order].cumsum()
    while True:
        point = (point + GOLDEN) % 1
        yield int(order[np.searchsorted(cumulative, point * cumulative[-1])])


def time_of(take: Callable[[Any], object], argument: Any, clock: Callable[[], float], device: torch.device) -> float:
    """Time of take(argument), until a GPU has done it."""
    wait = torch.cuda.synchronize if device.type == "cuda" else int
    wait()
    started = clock()
    take(argument)
    wait()
    return clock() - started


def rounds_of_steps(buckets: Iterable[int], settings: TrainSettings) -> np.ndarray:
    """Rounds with and without gradient of the first steps, (S, 2), by the bucket of each."""
    mean, seed = settings.rounds, settings.seed
    return np.array([(rounds_of(b, mean, seed), no_gradient_rounds_at(i, mean, seed)) for i, b in enumerate(buckets)])


def passes(rounds: np.ndarray) -> np.ndarray:
    """Work (S,) of rounds (S, 2) with and without gradient: a backward pass counts as two rounds forward."""
    return 3 * rounds[:, 0] + rounds[:, 1]


class Epoch:
    """The first epoch of this training: its steps, their rounds (S, 2) and work (S,)."""

    def __init__(self, loader: GraphLoader):
        self.loader, self.steps = loader, list(loader.sampler)
        self.rounds = rounds_of_steps([step.bucket for step in self.steps], loader.settings)
        self.work = passes(self.rounds) * [step.shape.cost for step in self.steps]

    def take(self, learner: Learner, i: int) -> None:
        """A whole step: gather and unpack the batch, forward, backward, all-reduce, optimizer."""
        learner.update(self.loader.load(self.steps[i], i))


def begin(settings: TrainSettings, rt: Runtime) -> tuple[Epoch, Learner]:
    """What training begins with, on a CPU with one thread."""
    if rt.device.type == "cpu":
        torch.set_num_threads(1)
    loader, learner = GraphLoader(settings, PackedGraphs.open(settings.data), rt), Learner(settings, rt)
    learner.recompute_if_memory_is_short(loader)
    if settings.compile:
        learner.compile(loader)
    return Epoch(loader), learner


class Union(SparseGraph):
    """The disjoint union of a mini-batch, as PyG has it. Its triangles were counted when the graphs were loaded."""

    def __init__(self, batch: Batch):
        super().__init__(batch.edge_index, batch.num_nodes)
        self.stored_triangles = batch.triangles[None]  # (1, N)

    def triangles(self) -> Tensor:
        return self.stored_triangles


def as_data(data: PackedGraphs, i: int) -> Data:
    """Graph i as PyG's users hold it in memory."""
    adjacency = torch.from_numpy(data.adjacency(i)).float()  # (N, N)
    return Data(
        x=torch.zeros(len(adjacency), NUM_FEATURES),
        edge_index=adjacency.nonzero().T.contiguous(),
        y=torch.from_numpy(data.label(i).coloring.astype(np.int64)).clamp(max=MAX_COLORS - 1),
        triangles=(adjacency @ adjacency * adjacency).sum(1) / 2,
    )


def pyg_forms(loader: GraphLoader, size: int) -> list[Form]:
    """Two networks on mini-batches of a shuffled list of graphs, eager and in float32.

    The first is the network and loss of this training. The second classifies nodes by color: six GATv2 layers of width
    256 and 8 heads (Brody et al. 2022).
    """
    dataset, data, device = loader.dataset, loader.dataset.data, loader.dataset.device
    ids = np.random.default_rng(loader.settings.seed).permutation(loader.sampler.indices)
    epoch = [ids[start : start + size] for start in range(0, len(ids), size)]
    nodes, edges = (np.array([x[batch].sum() for batch in epoch]) for x in (data.num_nodes, data.num_edges))
    messages, draws = nodes + 2 * edges, [loader.draw(batch, i) for i, batch in enumerate(epoch)]
    colors, rounds = np.array([k.max() for k, _ in draws]), rounds_of_steps(range(len(epoch)), loader.settings)
    network = ColoringNetwork(loader.settings.width, loader.settings.damping).to(device)
    gatv2 = GAT(NUM_FEATURES, 256, 6, MAX_COLORS, v2=True, heads=8, jk="last").to(device)

    def prepare(i: int) -> tuple:
        """Graphs of mini-batch i, and labels of their union: those of the graph that needs the most colors."""
        k, seeds = draws[i]
        top = k.argmax(keepdims=True)
        labels = dataset.batch(epoch[i][top], k[top], seeds[top], Shape(1, int(nodes[i]), int(colors[i])))
        return [as_data(data, j) for j in epoch[i]], labels, rounds[i].tolist()

    def coloring_loss(graphs: list[Data], labels: Any, counts: list[int]) -> Tensor:
        batch = replace(labels, graphs=Union(Batch.from_data_list(graphs).to(device)))
        terms = network(batch, rounds=counts[0], no_gradient_rounds=counts[1])
        return sum(weight * terms[name] for name, weight in WEIGHTS.items())

    def classification_loss(graphs: list[Data], *_: Any) -> Tensor:
        batch = Batch.from_data_list(graphs).to(device)
        return cross_entropy(gatv2(batch.x, batch.edge_index), batch.y)

    work, num_bytes = messages * colors * passes(rounds), colors * (64 * messages + 880 * 16 * nodes)  # as measured
    ours, theirs = optimizer_step(network, coloring_loss), optimizer_step(gatv2, classification_loss)
    return [
        Form("same network, PyG", size, device, work, num_bytes, prepare, ours),
        Form("GATv2, PyG", size, device, messages, 22_400 * messages, prepare, theirs),
    ]


def optimizer_step(network: nn.Module, loss: Callable[..., Tensor]) -> Callable[[tuple], None]:
    """A function that minimizes loss(*prepared) with AdamW."""
    optimizer = torch.optim.AdamW(network.parameters())

    def take(prepared: tuple) -> None:
        loss(*prepared).backward()
        optimizer.step()
        optimizer.zero_grad()

    return take


def speedup_of_two_ranks(settings: TrainSettings) -> float:
    """How many times as fast as rank 0 alone both ranks take steps, alternately, on the same global batches."""
    with join(settings.device) as rt:
        halves, learner = begin(settings, rt)
        single, data = replace(rt, rank=0, world_size=1), halves.loader.dataset.data
        wholes = Epoch(GraphLoader(settings.model_copy(update={"accumulate": 2}), data, single))
        draws, end, totals = sampled(halves.work), time.monotonic() + 60 * settings.minutes, np.zeros(2)

        def alone(i: int) -> None:
            if rt.is_main:
                with learner.ddp.no_sync():
                    wholes.take(learner, i)
            rt.wait()

        def together(i: int) -> None:
            halves.take(learner, i)
            rt.wait()

        for _ in range(3):  # DistributedDataParallel arranges its gradients after the first
            together(next(draws))
        while not totals.all() or not any(rt.any(time.monotonic() > end)):
            i = next(draws)
            totals += [time_of(take, i, time.monotonic, rt.device) / halves.work[i] for take in (alone, together)]
        return float(totals[0] / totals[1])


def measure(options: Options, recipe: RecipeName, folder: Path) -> str:
    """Everything for one recipe, in Markdown."""
    log.info("recipe %s: drawing %d graphs", recipe, options.graphs)
    sample(RECIPES[recipe], options.graphs, 0, folder)
    with join(options.device) as rt:
        kind, own = rt.device.type, {"data": folder, "compile": options.compile, "minutes": options.seconds / 60}
        settings = of_preset(TrainSettings, PRESETS[kind], **own, device=kind)
        epoch, learner = begin(settings, rt)
        nothing, ids = np.zeros(len(epoch.work)), epoch.loader.sampler.indices
        ours = Form("this training", 0, rt.device, epoch.work, nothing, int, lambda i: epoch.take(learner, i))
        forms = [ours, *(form for size in BATCH_SIZES[kind] for form in pyg_forms(epoch.loader, size))]
        log.info("recipe %s: warming up", recipe)
        for form in forms:
            form.warm_up(options.seconds * LONGEST_STEP)
        log.info("recipe %s: measuring", recipe)
        used, passed = time.process_time(), time.monotonic()
        while unfinished := [form for form in forms if form.spent < options.seconds]:
            min(unfinished, key=lambda form: form.spent).advance()
        share = (time.process_time() - used) / (time.monotonic() - passed)
        tables = [speed_table(forms, len(ids)), roofline_table(epoch, learner.precision, ours.epoch_seconds())]
    places, name = (torch.cuda.device_count(), torch.cuda.get_device_name()) if kind == "cuda" else processor()
    if places > 1:
        log.info("recipe %s: two ranks", recipe)
        tables.append(f"Two ranks are {launch(speedup_of_two_ranks, settings, num_ranks=2):.2f} times as fast as one.")
    about = (
        f"{date.today()}, {name}, torch {version('torch')}, torch-geometric {version('torch-geometric')}, preset "
        f"`{settings.preset}`{'' if settings.compile else ', not compiled'}, {len(ids):,} graphs, "
        f"{options.seconds:.0f} seconds for each form. The process had {share:.0%} of a core"
        f"{'' if share > 0.9 else BUSY}."
    )
    return "\n\n".join([f"### Recipe `{recipe}`", about, *tables]) + "\n"


def speed_table(forms: Sequence[Form], num_graphs: int) -> str:
    """This training and the better batch size of every PyG form."""
    ours = forms[0].epoch_seconds()
    names = dict.fromkeys(form.name for form in forms)
    best = [min((form for form in forms if form.name == name), key=Form.epoch_seconds) for name in names]
    rows = [[*form.columns(num_graphs), f"{form.epoch_seconds() / ours:.1f}"] for form in best]
    return table(
        ["form", "graphs per batch", "graphs/s", "standard error", "not timed", "speedup of this training"], rows
    )


def roofline_table(epoch: Epoch, precision: torch.dtype, epoch_seconds: float) -> str:
    """Operations and bytes of an epoch against ceilings in the precision of the training and in float32."""
    form = epoch.loader.settings.width, precision.itemsize
    steps = zip(epoch.steps, epoch.rounds.tolist(), strict=True)
    phases = [phase for step, rounds in steps for phase in phases_of_step(step.shape, *rounds, *form)]
    rate, rows = sum(phase.flops for phase in phases) / epoch_seconds, []
    for dtype in dict.fromkeys((precision, torch.float32)):
        ceilings = measure_ceilings(epoch.loader.dataset.device, dtype)
        rates = [f"{value / 1e9:,.0f}" for value in (*ceilings, rate)]
        least = sum(phase.seconds(ceilings) for phase in phases)
        shares = [f"{share:.1%}" for share in (rate / ceilings.flops_per_second, least / epoch_seconds)]
        rows.append([str(dtype).removeprefix("torch."), *rates, *shares])
    header = ["products in", "best GFLOP/s", "best GB/s", "training GFLOP/s", "share of best", "share of roofline"]
    return table(header, rows)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, numbers on the right."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def processor() -> tuple[int, str]:
    """Cores, and the name of the processor."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return machine.num_cores(), f"one thread on {machine.num_cores()} cores of {names[0] if names else 'a CPU'}"


def main(options: Options) -> None:
    """Measure every recipe, then print or write the section."""
    sections = [HEADING]
    for recipe in options.recipe:
        with tempfile.TemporaryDirectory() as folder:
            sections.append(measure(options, recipe, Path(folder)))
    text = "\n".join(sections)
    if options.page:
        files.write_text(options.page, options.page.read_text().partition(HEADING)[0] + text)
    else:
        print(text)


if __name__ == "__main__":
    set_up_logging()
    main(tyro.cli(Options, description=__doc__))
