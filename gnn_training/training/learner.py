"""The learning rate as a pure function of the step, and how it grows with the number of ranks."""
# DOC Compiled refinement rounds: one kernel where there were twenty, in one form for all sizes of graphs.
# DOC One optimizer step on as many ranks as there are; the host plans and launches, and waits for no device.

import math
import os
import shutil
import sysconfig
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import numpy as np
import torch
import torch._dynamo
import torch._inductor.codegen.cpp
from torch import Tensor
from torch.profiler import record_function

from gnn_training.data.packed import PackedGraphs
from gnn_training.distributed import Runtime
from gnn_training.errors import UserError
from gnn_training.model.graphs import Graphs
from gnn_training.model.loss import WEIGHTS, Batch, ColoringNetwork
from gnn_training.model.network import STRIDE, RefinementNetwork
from gnn_training.settings import TrainSettings
from gnn_training.training.checkpoint import without_prefix
from gnn_training.training.flat import flatten, named
from gnn_training.training.loader import SPREAD, DeviceDataset, no_gradient_rounds_at, rounds_of
from gnn_training.training.recording import Parts, Recorder
from gnn_training.training.sampler import BatchPlan, Planned, Shape

SCALINGS = {"none": lambda ranks: 1.0, "sqrt": math.sqrt, "linear": float}


def learning_rate(step: int, peak: float, warmup_steps: int, steps: int) -> float:
    """Linear warm-up to `peak`, then half a cosine down to zero at `steps` (Loshchilov and Hutter 2017)."""
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup_steps) / max(1, steps - warmup_steps)))


def peak_rate(base: float, scaling: str, ranks: int) -> float:
    """Highest learning rate of `ranks` ranks: base times 1, sqrt(ranks) or ranks."""
    return base * SCALINGS[scaling](ranks)


def compile_rounds(refiner: RefinementNetwork) -> None:
    """Let torch compile a round when it first runs. The result lies in a cache that later processes read."""
    # Else batches of as many graphs as colors, or of more than 4096 cells, would each be compiled in a form of their
    # own, which takes a minute. (The second adds long sums up in chunks; a few digits more than training needs.)
    torch.fx.experimental._config.use_duck_shape = False
    torch._inductor.codegen.cpp.CppKernel.need_use_acc_helper = lambda *_: False
    torch._dynamo.config.suppress_errors = True  # a compiler that fails is said, and the rounds run as written
    refiner.compile(dynamic=True)


def obstacle(device: torch.device) -> str | None:
    """What this machine lacks to compile for the device, in C++ for a CPU and in C around the kernels of a GPU."""
    variable, usual = ("CXX", "g++") if device.type == "cpu" else ("CC", "gcc")
    if not shutil.which(os.environ.get(variable, usual)):
        return "there is no C++ compiler (Debian: apt install g++)"
    header = Path(sysconfig.get_path("include"), "Python.h")
    return None if header.exists() else f"{header} is missing (Debian: apt install python3-dev)"


def as_written(graphs: Graphs) -> AbstractContextManager:
    """For graphs that stand alone, too rare to compile another form for: run the rounds as they are written."""
    return torch.compiler.set_stance("force_eager") if len(graphs.mask) == 1 else nullcontext()


COLORS = 2  # purpose of the random generator, beside those of batches.py and rounds.py
MIN_REACH = 2  # colors above the best known that a training step may allow, at least
MAX_BAD_STEPS = 10  # non-finite steps in a row before training gives up
FLAGS = ("stop", "late")
LATENESS = 2  # steps until the host reads what a GPU has to tell: it was done by then, and nobody waits


MOST_KEPT = 0.8  # of the memory that is free


def must_recompute(shape: Shape, rounds: int, number_bytes: int, free_bytes: float) -> bool:
    """Whether a step keeps too much for its backward pass; number_bytes: of the precision that its products have."""
    per_cell = 240 + 160 * number_bytes  # as fitted to uncompiled steps: docs/SPEED.md
    return per_cell * rounds * shape.graphs * shape.nodes * shape.colors > MOST_KEPT * free_bytes


class Learner:
    """The network with its optimizer and averaged weights, and where training stands."""

    def __init__(self, settings: TrainSettings, data: PackedGraphs, rt: Runtime):
        self.settings, self.data, self.rt = settings, data, rt
        torch.manual_seed(settings.seed)  # the same first weights on every rank
        self.network = ColoringNetwork(settings.width, settings.damping).to(rt.device)
        size = sum(parameter.numel() for parameter in self.network.parameters())
        # What ranks add up at every step, in one all-reduce: gradient, loss terms, flags.
        self.shared = torch.zeros(size + len(WEIGHTS) + len(FLAGS), device=rt.device)
        self.gradient, self.terms, self.flags = self.shared.split([size, len(WEIGHTS), len(FLAGS)])
        self.weights = flatten(self.network, self.gradient)
        self.averaged = self.weights.detach().clone()
        self.precision = _precision(settings.precision, rt.device)
        self.scaler = torch.amp.GradScaler(rt.device.type, enabled=self.precision == torch.float16)
        self.peak = peak_rate(settings.learning_rate, settings.lr_scaling, rt.world_size)
        self.optimizer = torch.optim.AdamW([self.weights], self.peak, weight_decay=settings.weight_decay, fused=True)
        self.dataset = DeviceDataset(data, rt.device)
        self.recorder: Recorder | None = None
        self.known = data.num_colors.astype(np.int64)
        # From one color too few to halfway up to DSATUR's number, where the descent of the exported program begins.
        self.reach = np.maximum(MIN_REACH, (data.dsatur_colors - self.known) // 2)
        train, parts = data.indices("train"), rt.world_size * settings.accumulate
        sizes = data.num_nodes[train], (self.known + self.reach)[train]
        alone = self.dataset.is_sparse[train]
        self.plan = BatchPlan(train, *sizes, settings.batch_size, parts, settings.seed, alone)
        if rt.device.type == "cuda":
            free, most = torch.cuda.mem_get_info()[0], settings.rounds + SPREAD
            self.network.recompute = any(
                must_recompute(bucket.shape, most, self.precision.itemsize, free) for bucket in self.plan.buckets
            )
        self.step = 0
        self.bad_steps, self.skipped = (torch.zeros((), device=rt.device) for _ in range(2))
        self._told: deque[tuple[Tensor, torch.cuda.Event | None]] = deque()
        self.lateness = LATENESS if rt.device.type == "cuda" else 0

    def update(self, *flags: bool) -> dict[str, Tensor | float]:
        """Take one step; return the loss terms of the whole global batch, gradient norm, learning rate and graphs.

        flags: in the order of FLAGS, what this rank wants all to know; `heard` tells. Reading a returned tensor waits
        for the device.
        """
        planned, settings = self.plan.at(self.step), self.settings
        num_graphs = sum(map(len, planned.parts))
        self.shared.zero_()
        for i in range(settings.accumulate):
            self._backward(planned, planned.parts[self.rt.rank + i * self.rt.world_size], num_graphs)
        with record_function("all_reduce"):
            for flag, raised in zip(self.flags, flags, strict=False):
                flag.fill_(float(raised))
            self.rt.total(self.shared)
        with record_function("optimizer"):
            rate = learning_rate(self.step, self.peak, settings.warmup_steps, settings.steps)
            norm = self._apply(rate)
        self.step += 1
        self._tell()
        terms = dict(zip(WEIGHTS, self.terms.clone(), strict=True))
        return {**terms, "gradient_norm": norm, "learning_rate": rate, "graphs": num_graphs}

    def heard(self) -> tuple[bool, ...]:
        """For each of FLAGS, whether a rank raised it: the same on all ranks, on a GPU LATENESS steps late.

        Raises:
            UserError: too many steps in a row were not finite.
        """
        if len(self._told) <= self.lateness:
            return (False,) * len(FLAGS)
        told, ready = self._told.popleft()
        if ready:
            ready.synchronize()
        *flags, bad_steps = told.tolist()
        if bad_steps >= MAX_BAD_STEPS:
            raise UserError(
                f"the loss was not finite {MAX_BAD_STEPS} steps in a row (step {self.step}): "
                f"lower --learning-rate ({self.settings.learning_rate}) or --clip ({self.settings.clip})"
            )
        return tuple(map(bool, flags))

    def compile(self) -> tuple[float, str | None]:
        """Compile the rounds, rank 0 first, so that the others find them in its cache.

        Returns the seconds it took, and what stood in the way, if a machine cannot.
        """
        missing, started = obstacle(self.rt.device), time.monotonic()
        if any(self.rt.any(missing is not None)):
            return 0.0, missing or "another machine has no compiler"
        compile_rounds(self.network.refiner)
        for turn in (self.rt.is_main, not self.rt.is_main):
            if turn:
                self._rehearse()
            self.rt.wait()
        if self.rt.device.type == "cuda":
            self.record()
        return time.monotonic() - started, None

    def record(self, record: Callable | None = None) -> None:
        """Record the launches of steps from now on; `record` as in Recorder."""
        parts = Parts(self._whole, self._begin, self._advance, self._finish)
        tolerance = 1e-4 if self.precision == torch.float32 else 1e-2
        self.recorder = Recorder(parts, (self.gradient, self.terms), tolerance, record, self.rt.is_main)

    @contextmanager
    def averaging(self) -> Iterator[ColoringNetwork]:
        """The network with the averaged weights, which are the ones to evaluate."""
        trained = self.weights.detach().clone()
        self.weights.data.copy_(self.averaged)
        yield self.network
        self.weights.data.copy_(trained)

    def state(self) -> dict:
        """Everything a checkpoint needs to go on, and `best_state`."""
        return {
            **self.best_state(),
            "weights": named(self.weights, self.network),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "bad_steps": int(self.bad_steps),
            "skipped": int(self.skipped),
        }

    def best_state(self) -> dict:
        """What an export needs: the averaged weights and where they come from."""
        return {
            "network": named(self.averaged, self.network),
            "settings": self.settings.model_dump(mode="json"),
            "data_sha256": self.data.manifest["sha256"],
            "step": self.step,
        }

    def load_weights(self, state: dict) -> None:
        """Start with the averaged weights of another training.

        Raises:
            UserError: they are of a network of another width.
        """
        width = state["settings"]["width"]
        if width != self.settings.width:
            raise UserError(
                f"--weights are of a network of width {width}, --width is {self.settings.width}: give {width}"
            )
        self.network.load_state_dict(without_prefix(state["network"]))
        self.averaged.copy_(self.weights.detach())

    def load_state(self, state: dict) -> None:
        """Go on from what `state` returned, on any number of ranks."""
        self.load_weights(state)
        self.network.load_state_dict(without_prefix(state["weights"]))
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        self.bad_steps.fill_(state["bad_steps"])
        self.skipped.fill_(state["skipped"])
        self.step = state["step"]

    def _backward(self, planned: Planned, mine: np.ndarray, num_graphs: int) -> None:
        """Add the part `mine` to gradient and terms. All ranks take the same rounds; a part without graphs adds 0."""
        settings, shape = self.settings, planned.shape
        rounds = rounds_of(planned.bucket, settings.rounds, settings.seed)
        no_gradient_rounds = no_gradient_rounds_at(self.step, settings.rounds, settings.seed)
        share = torch.full((), 1 / num_graphs, device=self.rt.device)
        if self.recorder and len(mine) and shape.graphs > 1:  # one graph alone is sparse, and has a form of its own
            self.recorder(
                shape, rounds, self.dataset.numbers(*self._draw(mine), shape.graphs), share, no_gradient_rounds
            )
            return
        with record_function("data"):
            batch = self._collate(mine, shape)
        self._differentiate(batch, no_gradient_rounds, rounds, share)

    def _differentiate(
        self, batch: Batch, no_gradient_rounds: int, rounds: int, share: Tensor | float, *start: Tensor
    ) -> None:
        """Each graph weighs `share` in the loss; start: as in ColoringNetwork."""
        with as_written(batch.graphs):
            with record_function("forward"), self._autocast():
                terms = self.network(batch, no_gradient_rounds, rounds, start)
                loss = sum(weight * terms[name] for name, weight in WEIGHTS.items()) * share
            with record_function("backward"):
                self.scaler.scale(loss).backward()
        self.terms += torch.stack([terms[name].detach() for name in WEIGHTS]) * share

    def _whole(self, shape: Shape, rounds: int, numbers: Tensor, share: Tensor, no_gradient_rounds: int) -> None:
        with record_function("data"):
            batch = self._unpack(shape, numbers)
        self._differentiate(batch, no_gradient_rounds, rounds, share)

    @torch.no_grad()
    def _begin(self, shape: Shape, numbers: Tensor) -> tuple[Batch, Tensor, Tensor, Tensor, Tensor]:
        batch, refine = self._unpack(shape, numbers), self.network.refiner
        with self._autocast():
            h, color_mask, seeds = refine.begin(batch.graphs, batch.k, batch.seeds, batch.max_colors)
            return batch, h, refine.soft_colors(h, batch.graphs, color_mask), color_mask, seeds.clone()

    @torch.no_grad()
    def _advance(self, batch: Batch, h: Tensor, p: Tensor, color_mask: Tensor, seeds: Tensor) -> None:
        with self._autocast():
            following = self.network.refiner(h, p, batch.graphs, color_mask, seeds)
        h.copy_(following[0])
        p.copy_(following[1])
        seeds.add_(STRIDE)

    def _finish(
        self, rounds: int, batch: Batch, h: Tensor, p: Tensor, color_mask: Tensor, seeds: Tensor, share: Tensor
    ) -> None:
        self._differentiate(batch, 0, rounds, share, h.detach().requires_grad_(), color_mask, seeds)

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.rt.device.type, self.precision, enabled=self.precision != torch.float32)

    def _apply(self, rate: float) -> Tensor:
        """Step if loss terms and gradient are finite, else skip, decided on the device; the refiner's gradient norm.

        Terms and gradient are all-reduced, so every rank decides alike.
        """
        self.scaler.unscale_(self.optimizer)
        sizes = [sum(map(Tensor.numel, part.parameters())) for part in (self.network.refiner, self.network.reader)]
        norm, other = (_clip(part, self.settings.clip) for part in self.gradient.split(sizes))
        bad = 1.0 - torch.isfinite(norm + other + self.terms.sum()).float()
        self.optimizer.param_groups[0]["lr"] = rate
        self.optimizer.found_inf = bad  # the fused kernel reads it and does nothing where it is 1
        self.optimizer.step()
        self.scaler.update()
        # The first average is the weights themselves.
        self.averaged.lerp_(self.weights.detach(), (1.0 - self.settings.ema if self.step else 1.0) * (1 - bad))
        self.bad_steps.add_(1).mul_(bad)
        self.skipped.add_(bad)
        return norm

    def _tell(self) -> None:
        """Send flags and count of bad steps to the host, without waiting for them."""
        told = torch.cat([self.flags, self.bad_steps[None]])
        if not self.lateness:
            self._told.append((told, None))
            return
        ready = torch.cuda.Event()
        told = told.to("cpu", non_blocking=True)
        ready.record()
        self._told.append((told, ready))

    def _collate(self, ids: np.ndarray, shape: Shape) -> Batch:
        """The graphs `ids` with k and noise drawn by (seed, step, graph)."""
        batch = self.dataset.batch(*self._draw(ids), shape)
        batch.graphs.to(self.precision)
        return batch

    def _unpack(self, shape: Shape, numbers: Tensor) -> Batch:
        batch = self.dataset.unpack(shape, numbers)
        batch.graphs.to(self.precision)
        return batch

    def _draw(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """`ids`, and k and seeds of the noise for each, drawn by (seed, step, graph)."""
        rng = np.random.default_rng([self.settings.seed, self.step, COLORS])
        draw, seeds = rng.random(len(self.data))[ids], rng.integers(0, 2**31, len(self.data))[ids]
        k = np.maximum(self.known[ids] - 1 + (draw * (self.reach[ids] + 2)).astype(np.int64), 1)
        return ids, k, seeds

    def _rehearse(self) -> None:
        """A step that changes nothing, on a batch of usual size, so that what is compiled suits those to come."""
        costs = [bucket.shape.cost for bucket in self.plan.buckets]
        usual = self.plan.buckets[int(np.argsort(costs)[len(costs) // 2])]
        batch = self._collate(usual.indices[: usual.shape.graphs], usual.shape)
        self._differentiate(batch, no_gradient_rounds=2, rounds=2, share=1.0)
        self.shared.zero_()


def _clip(gradient: Tensor, largest: float) -> Tensor:
    """Scale a gradient to a norm of at most `largest`, in place; the norm it had."""
    norm = gradient.norm()
    gradient.mul_((largest / (norm + 1e-6)).clamp(max=1.0))
    return norm


def _precision(wanted: str, device: torch.device) -> torch.dtype:
    if wanted == "auto" and device.type == "cpu":
        return torch.bfloat16 if torch.cpu._is_avx512_bf16_supported() else torch.float32
    if wanted == "auto":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[wanted]
