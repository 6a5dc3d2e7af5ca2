"""One optimizer step and one evaluation, on as many ranks as there are."""

from contextlib import nullcontext

import numpy as np
import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from gnn_training import heartbeat
from gnn_training.coloring import from_logits, num_colors
from gnn_training.data.packed import PackedGraphs
from gnn_training.errors import UserError
from gnn_training.graph import Graph
from gnn_training.model.graphs import batch_of, flat
from gnn_training.model.objective import WEIGHTS, Batch, ColoringNetwork
from gnn_training.model.program import Program
from gnn_training.runtime import Runtime
from gnn_training.settings import TrainSettings
from gnn_training.training.batches import BatchPlan, cost, deal
from gnn_training.training.checkpoint import without_prefix
from gnn_training.training.schedule import learning_rate, peak_rate

ROUNDS, COLORS = 1, 2  # purposes of random generators; 0 is the batch plan
DRAWN_NODES = 60  # more make no picture
SCORES = ("excess", "dsatur_excess", "at_best_known", "chromatic_error", "family_accuracy", "graphs")
MAX_SCORED_NODES = 2048  # larger graphs train, but the program's dense matrices would take a validation over
MIN_REACH = 2  # colors above the best known that a training step may allow, at least
MAX_BAD_STEPS = 10  # non-finite steps in a row before training gives up


class Learner:
    """The network with its optimizer and averaged weights, and where training stands."""

    def __init__(self, settings: TrainSettings, data: PackedGraphs, rt: Runtime):
        self.settings, self.data, self.rt = settings, data, rt
        torch.manual_seed(settings.seed)  # the same first weights on every rank
        self.network = ColoringNetwork(settings.width, settings.hidden, settings.damping).to(rt.device)
        self.averaged = AveragedModel(self.network, multi_avg_fn=get_ema_multi_avg_fn(settings.ema))
        self.ddp = DistributedDataParallel(self.network, device_ids=[rt.device] if rt.device.type == "cuda" else None)
        self.precision = _precision(settings.precision, rt.device)
        self.scaler = torch.amp.GradScaler(rt.device.type, enabled=self.precision == torch.float16)
        self.peak = peak_rate(settings.learning_rate, settings.lr_scaling, rt.world_size)
        self.optimizer = torch.optim.AdamW(self.network.parameters(), self.peak, weight_decay=settings.weight_decay)
        train = data.indices("train")
        parts = rt.world_size * settings.accumulate
        self.plan = BatchPlan(
            train, data.num_nodes[train], data.num_colors[train], settings.batch_cells, parts, settings.seed
        )
        held_out = data.indices("validation")
        held_out = held_out[data.num_nodes[held_out] <= MAX_SCORED_NODES]
        self.validation = _sample(held_out if len(held_out) else train, settings.validation_graphs)
        self.step = self.bad_steps = self.skipped = 0

    def close(self) -> None:
        """Let go of the process group; to be called while it is still there.

        The last owner of a gloo group waits for its threads, which may wait for the GIL. Python's own handle gives
        the GIL up meanwhile, DDP's does not (pytorch/pytorch#56297): as the last owner it hangs now and then.
        """
        del self.ddp

    def update(self) -> dict[str, float]:
        """Take one step; return the loss terms of the whole global batch, gradient norm, learning rate and graphs."""
        rate = learning_rate(self.step, self.peak, self.settings.warmup_steps, self.settings.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        parts = self.plan.at(self.step)
        num_graphs = sum(len(part) for part in parts)
        sums = torch.zeros(len(WEIGHTS), device=self.rt.device)
        for i in range(self.settings.accumulate):
            last = i + 1 == self.settings.accumulate
            with nullcontext() if last else self.ddp.no_sync():
                sums += self._backward(parts, parts[self.rt.rank + i * self.rt.world_size], num_graphs)
        sums = self.rt.total(sums)
        norm = self._apply(sums)
        self.step += 1
        terms = dict(zip(WEIGHTS, (sums / num_graphs).tolist(), strict=True))
        return {**terms, "gradient_norm": norm, "learning_rate": rate, "graphs": num_graphs}

    def state(self) -> dict:
        """Everything a checkpoint needs to go on, and `best_state`."""
        return {
            **self.best_state(),
            "weights": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "num_averaged": int(self.averaged.n_averaged),
            "bad_steps": self.bad_steps,
            "skipped": self.skipped,
        }

    def best_state(self) -> dict:
        """What an export needs: the averaged weights and where they come from."""
        return {
            "network": {name: value.detach().clone() for name, value in self.averaged.module.state_dict().items()},
            "settings": self.settings.model_dump(mode="json"),
            "data_sha256": self.data.manifest["sha256"],
            "step": self.step,
        }

    def load_state(self, state: dict) -> None:
        """Go on from what `state` returned, on any number of ranks."""
        self.network.load_state_dict(without_prefix(state["weights"]))
        self.averaged.module.load_state_dict(without_prefix(state["network"]))
        self.averaged.n_averaged.fill_(state["num_averaged"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        self.step, self.bad_steps, self.skipped = state["step"], state["bad_steps"], state["skipped"]

    def _backward(self, parts: list[np.ndarray], mine: np.ndarray, num_graphs: int) -> Tensor:
        """Gradient of this rank's part; returns the sums (terms,) over its graphs."""
        present = len(mine) > 0
        if not present:  # a rank without a graph works on a stand-in of no weight: DDP needs it in the all-reduce
            mine = next(part for part in parts if len(part))[:1]
        rng = np.random.default_rng([self.settings.seed, self.step, ROUNDS])
        rounds = self.settings.rounds + int(rng.integers(-3, 4))
        free_rounds = int(rng.integers(4, 4 * self.settings.rounds + 1)) if rng.random() < 0.6 else 0
        batch = self._collate(mine)  # outside of autocast: degrees must not be rounded to 8 bits
        with torch.autocast(self.rt.device.type, self.precision, enabled=self.precision != torch.float32):
            terms = self.ddp(batch, free_rounds, rounds)
        loss = sum(weight * terms[name] for name, weight in WEIGHTS.items())
        # DDP averages over ranks; each rank's sum over the global count, times ranks, makes that the global mean.
        self.scaler.scale(loss * (present * self.rt.world_size / num_graphs)).backward()
        return torch.stack([terms[name].detach().float() for name in WEIGHTS]) * present

    def _apply(self, sums: Tensor) -> float:
        """Step if loss terms and gradients are finite, else skip; returns the norm of the refiner's gradient.

        The terms `sums` and the gradients are all-reduced, so every rank sees the same and decides alike.
        """
        self.scaler.unscale_(self.optimizer)
        norm = clip_grad_norm_(self.network.refiner.parameters(), self.settings.clip)
        other = clip_grad_norm_(self.network.reader.parameters(), self.settings.clip)
        finite = bool(torch.isfinite(norm + other + sums.sum()))
        self.scaler.step(self.optimizer) if finite else None
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        if finite:
            self.averaged.update_parameters(self.network)
        self.bad_steps = 0 if finite else self.bad_steps + 1
        self.skipped += not finite
        if self.bad_steps == MAX_BAD_STEPS:
            raise UserError(
                f"the loss was not finite {MAX_BAD_STEPS} steps in a row (step {self.step}): "
                f"lower --learning-rate ({self.settings.learning_rate}) or --clip ({self.settings.clip})"
            )
        return float(norm)

    def evaluate(self) -> dict[str, float]:
        """Score of the averaged weights on the validation graphs, every graph once over all ranks.

        `excess` is the mean number of colors above the best known that a caller of the exported program would use;
        `dsatur_excess` is DSATUR's on the same graphs.
        """
        data, ids = self.data, self.validation
        costs = cost(data.num_nodes[ids].astype(float), data.num_colors[ids])
        mine = ids[deal(costs, self.rt.world_size)[self.rt.rank]]
        mine = mine[np.lexsort((data.num_colors[mine], data.num_nodes[mine]))]
        sums = np.zeros(len(SCORES))
        for chunk in _chunks(mine, data, self.settings.batch_cells):
            heartbeat.beat()
            sums += self._score(chunk)
        totals = self.rt.total(torch.from_numpy(sums).to(self.rt.device)).tolist()
        named = dict(zip(SCORES, totals, strict=True))
        count = named.pop("graphs")
        return {**{name: total / count for name, total in named.items()}, "graphs": count}

    def _score(self, ids: np.ndarray) -> np.ndarray:
        """Sums over the graphs `ids`, in the order of SCORES."""
        data = self.data
        colors, made = self._color(ids)
        used = np.array([num_colors(each) for each in colors])
        known, chromatic = data.num_colors[ids].astype(int), made["chromatic"].cpu().numpy()
        scores = (
            used - known,
            data.dsatur_colors[ids] - known,
            used <= known,
            np.abs(chromatic - known),
            made["graph_type_logits"].argmax(1).cpu().numpy() == data.graph_type[ids],
            np.ones(len(ids)),
        )
        return np.array([score.sum() for score in scores], dtype=float)

    def example(self) -> tuple[Graph, np.ndarray, str]:
        """The largest validation graph that can be drawn, its colors (N,) and a title."""
        sizes = self.data.num_nodes[self.validation]
        i = self.validation[np.argmax(np.where(sizes <= DRAWN_NODES, sizes, -sizes))]
        graph, colors = self.data.graph(i), self._color(np.array([i]))[0][0]
        known, dsatur = self.data.num_colors[i], self.data.dsatur_colors[i]
        return graph, colors, f"{graph.name}: {num_colors(colors)} colors, DSATUR {dsatur}, best known {known}"

    def _color(self, ids: np.ndarray) -> tuple[list[np.ndarray], dict[str, Tensor]]:
        """Colors (N,) of every graph as callers of the exported program get them, and all that the program made."""
        graphs = [self.data.graph(i) for i in ids]
        edge_index, batch = flat(graphs, self.rt.device)
        numbers = {"num_colors": [0], "seed": 0, "steps": self.settings.validation_rounds}
        options = {name: torch.tensor(value, device=self.rt.device) for name, value in numbers.items()}
        made = Program(self.averaged.module)(edge_index=edge_index, batch=batch, **options)
        logits = made["color_logits"].cpu().numpy()
        rows = np.split(logits, np.cumsum([graph.num_nodes for graph in graphs])[:-1])
        return [from_logits(graph, row) for graph, row in zip(graphs, rows, strict=True)], made

    def _collate(self, ids: np.ndarray) -> Batch:
        """The graphs `ids` with k and noise drawn by (seed, step, graph)."""
        data, device = self.data, self.rt.device
        rng = np.random.default_rng([self.settings.seed, self.step, COLORS])
        draw, seeds = rng.random(len(data))[ids], rng.integers(0, 2**31, len(data))[ids]
        known = data.num_colors[ids].astype(np.int64)
        # From one color too few to halfway up to DSATUR's number, where the descent of the exported program begins.
        reach = np.maximum(MIN_REACH, (data.dsatur_colors[ids] - known) // 2)
        k = np.maximum(known - 1 + (draw * (reach + 2)).astype(np.int64), 1)

        def tensor(x: np.ndarray, dtype: torch.dtype) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(x)).to(device, dtype, non_blocking=True)

        return Batch(
            batch_of([data.graph(i) for i in ids], device),
            tensor(known, torch.int64),
            tensor(data.lower_bound[ids], torch.float32),
            tensor(data.dsatur_colors[ids], torch.float32),
            tensor(data.graph_type[ids], torch.int64),
            tensor(data.difficulty[ids], torch.float32),
            tensor(seeds, torch.int64),
            tensor(k, torch.int64),
        )


def _precision(wanted: str, device: torch.device) -> torch.dtype:
    if wanted == "auto" and device.type == "cpu":
        return torch.float32
    if wanted == "auto":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[wanted]


def _sample(ids: np.ndarray, count: int) -> np.ndarray:
    """At most `count` of ids, evenly spread: packed order goes by family, so a head would hold one family only."""
    return ids if not 0 < count < len(ids) else ids[np.linspace(0, len(ids) - 1, count).astype(int)]


def _chunks(ids: np.ndarray, data: PackedGraphs, cells: int):
    """Runs of ids (sorted by size) whose padded cost stays within 4 x cells: no gradient, so more fits."""
    start = 0
    for end in range(1, len(ids) + 1):
        run = ids[start : end + 1]
        if end == len(ids) or len(run) * cost(data.num_nodes[run].max(), data.num_colors[run].max()) > 4 * cells:
            yield ids[start:end]
            start = end
