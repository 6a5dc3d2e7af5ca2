"""One optimizer step on as many ranks as there are."""

import math
import os
import shutil
import sysconfig
import time
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import torch
import torch._dynamo
import torch._inductor.codegen.cpp
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from gnn_training.distributed import Runtime
from gnn_training.errors import UserError
from gnn_training.model.loss import WEIGHTS, Batch, ColoringNetwork
from gnn_training.settings import TrainSettings
from gnn_training.training.checkpoint import without_prefix
from gnn_training.training.loader import ROUNDS_SPREAD, GraphLoader, StepBatch

LR_SCALINGS = {"none": lambda ranks: 1.0, "sqrt": math.sqrt, "linear": float}
MAX_BAD_STEPS = 10  # non-finite steps in a row before training gives up
MAX_KEPT = 0.8  # of the free GPU memory, for what the backward pass needs
NEVER = 2**31 - 1  # steps after which a loss scale that is not needed would grow


class Learner:
    """The network with its optimizer and averaged weights, and the number of steps taken."""

    def __init__(self, settings: TrainSettings, rt: Runtime):
        self.settings, self.rt = settings, rt
        torch.manual_seed(settings.seed)  # the same first weights on every rank
        self.network = ColoringNetwork(settings.width, settings.damping).to(rt.device)
        self.average = AveragedModel(self.network, multi_avg_fn=get_ema_multi_avg_fn(settings.ema))
        with warnings.catch_warnings(action="ignore", category=FutureWarning):  # the new name came after torch 2.11
            self.ddp = DistributedDataParallel(self.network, gradient_as_bucket_view=True, broadcast_buffers=False)
        self.precision = _precision(settings.precision, rt.device)
        # The scaler also skips steps that are not finite, on the device. Only fp16 needs it to scale.
        scale, growth_interval = (2.0**16, 2000) if self.precision == torch.float16 else (1.0, NEVER)
        self.scaler = torch.amp.GradScaler(rt.device.type, scale, growth_interval=growth_interval)
        self.peak_rate = settings.learning_rate * LR_SCALINGS[settings.lr_scaling](rt.world_size)
        weights, decay = self.network.parameters(), settings.weight_decay
        self.optimizer = torch.optim.AdamW(weights, self.peak_rate, weight_decay=decay, fused=True)
        self.step = 0
        self.bad_steps, self.skipped_steps = (torch.zeros((), device=rt.device) for _ in range(2))
        self._sums = torch.zeros(len(WEIGHTS) + 2, device=rt.device)  # loss terms, gradient norm, steps

    def update(self, batch: StepBatch) -> None:
        """Take one optimizer step. The loss is the mean over all graphs of the step on all ranks."""
        share = 1 / batch.num_graphs
        for micro_batch in batch.micro_batches:
            is_last = micro_batch is batch.micro_batches[-1]
            with nullcontext() if is_last else self.ddp.no_sync():
                self._backward(micro_batch, batch.rounds, batch.no_gradient_rounds, share)
        self._apply_gradient()
        self.step += 1

    def reduce(self, *flags: bool) -> tuple[dict[str, float], list[bool]]:
        """Mean loss terms and gradient norm since the last call over all ranks, and which flags any rank has set.
        Raises UserError after too many steps in a row that were not finite.
        """
        raised = torch.tensor(flags, dtype=torch.float32, device=self.rt.device)
        totals = self.rt.total(torch.cat([self._sums, self.bad_steps[None], raised])).tolist()
        self._sums.zero_()
        *terms, norm, steps, bad_steps = totals[: len(WEIGHTS) + 3]  # the last three are the same on all ranks
        if bad_steps >= MAX_BAD_STEPS * self.rt.world_size:
            raise UserError(
                f"the loss was not finite {MAX_BAD_STEPS} steps in a row (step {self.step}): "
                f"lower --learning-rate ({self.settings.learning_rate}) or --clip ({self.settings.clip})"
            )
        means = {name: term * self.rt.world_size / steps for name, term in zip(WEIGHTS, terms, strict=True)}
        return {**means, "gradient_norm": norm / steps}, [total > 0 for total in totals[len(WEIGHTS) + 3 :]]

    def compile(self, loader: GraphLoader) -> tuple[float, str | None]:
        """Compile the refinement rounds, rank 0 first, so that the other ranks find them in its cache.

        Returns the seconds it took, and what is missing if a machine of the group cannot compile.
        """
        missing, started = _missing_compiler(self.rt.device), time.monotonic()
        if any(self.rt.any(missing is not None)):
            return 0.0, missing or "another machine has no compiler"
        _compile_rounds(self.network.refinement)
        for is_turn in (self.rt.is_main, not self.rt.is_main):
            if is_turn:
                self._warm_up(loader)
            self.rt.wait()
        return time.monotonic() - started, None

    @contextmanager
    def averaged_weights(self) -> Iterator[ColoringNetwork]:
        """The network with the averaged weights, which are the ones to evaluate and export."""
        trained = _copy(self.network)
        self.network.load_state_dict(self.average.module.state_dict())
        try:
            yield self.network
        finally:
            self.network.load_state_dict(trained)

    def state(self) -> dict:
        """Everything a checkpoint needs to resume, `best_state` included."""
        return {
            **self.best_state(),
            "weights": _copy(self.network),
            "num_averaged": int(self.average.n_averaged),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "bad_steps": int(self.bad_steps),
            "skipped_steps": int(self.skipped_steps),
        }

    def best_state(self) -> dict:
        """What an export needs: the averaged weights and the settings and step they come from."""
        settings = self.settings.model_dump(mode="json")
        return {"network": _copy(self.average.module), "settings": settings, "step": self.step}

    def load_weights(self, state: dict) -> None:
        """Start with the averaged weights of another training. Raises UserError if its network has another width."""
        width = state["settings"]["width"]
        if width != self.settings.width:
            raise UserError(f"--weights has a network of width {width}, --width is {self.settings.width}: set {width}")
        for network in (self.network, self.average.module):
            network.load_state_dict(without_prefix(state["network"]))

    def load_state(self, state: dict) -> None:
        """Resume from what `state` returned, on any number of ranks."""
        self.load_weights(state)
        self.network.load_state_dict(without_prefix(state["weights"]))
        self.average.n_averaged.fill_(state["num_averaged"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        self.bad_steps.fill_(state["bad_steps"])
        self.skipped_steps.fill_(state["skipped_steps"])
        self.step = state["step"]

    def recompute_if_memory_is_short(self, loader: GraphLoader) -> None:
        """On a GPU: let the backward pass compute the rounds again if there is no memory to keep them all."""
        if self.rt.device.type == "cuda":
            shapes = [bucket.shape for bucket in loader.sampler.buckets]
            pairs = max(shape.graphs * shape.nodes * shape.colors for shape in shapes)
            per_pair = 240 + 160 * self.precision.itemsize  # bytes a round, fitted to measured steps: docs/SPEED.md
            kept = per_pair * (self.settings.rounds + ROUNDS_SPREAD) * pairs
            self.network.recompute = kept > MAX_KEPT * torch.cuda.mem_get_info()[0]

    def _backward(self, batch: Batch, rounds: int, no_gradient_rounds: int, share: float) -> None:
        """Add a micro-batch to the gradient. All ranks take the same rounds; a batch without graphs adds 0."""
        batch.graphs.to(self.precision)
        with _uncompiled_if_singleton(batch):
            with torch.autocast(self.rt.device.type, self.precision, enabled=self.precision != torch.float32):
                terms = self.ddp(batch, no_gradient_rounds, rounds)
                loss = sum(weight * terms[name] for name, weight in WEIGHTS.items()) * share
            self.scaler.scale(loss * self.rt.world_size).backward()  # DDP divides the sum over ranks by their number
        self._sums[: len(WEIGHTS)] += torch.stack([terms[name].detach() for name in WEIGHTS]) * share

    def _apply_gradient(self) -> None:
        """Clip the gradient and step, or skip the step if the gradient is not finite, decided on the device. The
        gradient is the same on all ranks, so every rank decides alike.
        """
        self.optimizer.param_groups[0]["lr"] = self.learning_rate
        self.scaler.unscale_(self.optimizer)
        parts = self.network.refinement, self.network.graph_head
        norm, other = (clip_grad_norm_(part.parameters(), self.settings.clip) for part in parts)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=False)
        self.average.update_parameters(self.network)
        is_bad = 1.0 - torch.isfinite(norm + other).float()
        self.bad_steps.add_(1).mul_(is_bad)
        self.skipped_steps.add_(is_bad)
        self._sums[-2] += norm
        self._sums[-1] += 1

    @property
    def learning_rate(self) -> float:
        """Of the next step."""
        return learning_rate(self.step, self.peak_rate, self.settings.warmup_steps, self.settings.steps)

    def _warm_up(self, loader: GraphLoader) -> None:
        """Run a step of usual size that changes nothing, so that what is compiled suits the steps to come."""
        buckets = sorted(loader.sampler.buckets, key=lambda bucket: bucket.shape.cost)
        usual = buckets[len(buckets) // 2]
        ids = usual.indices[: usual.shape.graphs]
        with self.ddp.no_sync():
            self._backward(loader.dataset.batch(ids, *loader.draw(ids, 0), usual.shape), 2, 2, 1.0)
        self.optimizer.zero_grad()
        self._sums.zero_()


def learning_rate(step: int, peak: float, warmup_steps: int, steps: int) -> float:
    """Linear warm-up to `peak`, then half a cosine down to zero at `steps` (Loshchilov and Hutter 2017)."""
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup_steps) / max(1, steps - warmup_steps)))


def _precision(wanted: str, device: torch.device) -> torch.dtype:
    if wanted != "auto":
        return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[wanted]
    if device.type == "cpu":
        return torch.bfloat16 if torch.cpu._is_avx512_bf16_supported() else torch.float32
    return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16


def _copy(network: torch.nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in network.state_dict().items()}


def _compile_rounds(refinement: torch.nn.Module) -> None:
    """Let torch compile a round when it first runs. The result lies in a cache that later processes read."""
    # Otherwise batches of as many graphs as colors, or of more than 4096 pairs, would each be compiled in a form of
    # their own, which takes a minute. (The second sums in chunks; a few digits more than training needs.)
    torch.fx.experimental._config.use_duck_shape = False
    torch._inductor.codegen.cpp.CppKernel.need_use_acc_helper = lambda *_: False  # type: ignore[method-assign]
    torch._dynamo.config.suppress_errors = True  # a compiler that fails is reported, and the rounds run uncompiled
    torch._dynamo.config.optimize_ddp = False  # there is one bucket of gradients, so nothing overlaps with it
    refinement.compile(dynamic=True)


def _missing_compiler(device: torch.device) -> str | None:
    """What this machine lacks to compile for the device: C++ for a CPU, C around the kernels of a GPU."""
    variable, usual = ("CXX", "g++") if device.type == "cpu" else ("CC", "gcc")
    if not shutil.which(os.environ.get(variable, usual)):
        return "there is no C++ compiler (Debian: apt install g++)"
    header = Path(sysconfig.get_path("include"), "Python.h")
    return None if header.exists() else f"{header} is missing (Debian: apt install python3-dev)"


def _uncompiled_if_singleton(batch: Batch) -> AbstractContextManager:
    """Single graphs are too rare to compile another form for them."""
    return torch.compiler.set_stance("force_eager") if len(batch.k) == 1 else nullcontext()
