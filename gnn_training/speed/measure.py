"""All that a benchmark measures, part by part, as values for JSON."""

import logging
import time
from dataclasses import asdict
from pathlib import Path

import torch
from torch._dynamo.utils import counters

from gnn_training.data.packed import PackedGraphs
from gnn_training.host import machine
from gnn_training.model.objective import ColoringNetwork
from gnn_training.runtime import Runtime, join
from gnn_training.settings import TrainSettings
from gnn_training.speed import forecast, pace, peers, side_by_side
from gnn_training.speed.roofline import ceilings
from gnn_training.speed.scatter_form import ScatterNetwork
from gnn_training.training import growth
from gnn_training.training.cost import Formula, formula
from gnn_training.training.estimate import plan, sizes
from gnn_training.training.learner import Learner
from gnn_training.training.rounds import SPREAD, mean_free_rounds

log = logging.getLogger(__name__)

PROFILED_STEPS = 5
PLANNED_RANKS = (1, 2, 4, 8, 64)
FORECAST_RANKS = 8


def measure(settings: TrainSettings, data: PackedGraphs, graphs: int, most_ranks: int, seconds: float) -> dict:
    """Every part for about `seconds`; graphs: of the whole data set, of which `data` may be a sample.

    On a CPU in one thread, as a rank of one core trains, and so do the peers.
    """
    with join(settings.device) as rt:
        if rt.device.type == "cpu":
            torch.set_num_threads(1)
        log.info("measuring the first step")
        learner, report = _first_step(settings, data, rt)
        log.info("measuring the pace")
        taken, found = _pace(learner, seconds)
        report |= found | {"device": rt.device_name, "threads": torch.get_num_threads()}
        log.info("measuring the peers")
        report["peers"] = _peers(learner, seconds)
        log.info("measuring how time and memory grow")
        fitted, report["growth"] = _growth(learner, seconds, taken)
        report |= _plans(learner, graphs, fitted)
    log.info("measuring ranks side by side")
    return report | {"ranks": _ranks(settings, data.folder, most_ranks, seconds)}


def _first_step(settings: TrainSettings, data: PackedGraphs, rt: Runtime) -> tuple[Learner, dict]:
    start = time.monotonic()
    learner = Learner(settings, data, rt)
    compilation = "off"
    if settings.compile:
        _, missing = learner.compile()
        compilation = missing or ("cold cache" if counters["inductor"]["fxgraph_cache_miss"] else "warm cache")
    pace.advance(learner)
    pace.synchronize(learner)
    return learner, {"seconds_to_first_step": time.monotonic() - start, "compilation": compilation}


def _pace(learner: Learner, seconds: float) -> tuple[pace.Steps, dict]:
    limits = {dtype: ceilings(learner.rt.device, dtype) for dtype in {learner.precision, torch.float32}}
    if learner.recorder:
        growth.warm_up(learner)
    taken = pace.take(learner, seconds)
    rate = pace.graphs_per_second(learner, taken)
    return taken, {
        "graphs_per_second": rate,
        "edges_per_second": rate * 2 * float(learner.data.num_edges[learner.plan.indices].mean()),
        "precision": _name(learner.precision),
        "roofline_share": pace.roofline_share(learner, taken, limits[learner.precision]),
        "roofline_share_by_float32": pace.roofline_share(learner, taken, limits[torch.float32]),
        "ceilings": {_name(dtype): asdict(limit) for dtype, limit in limits.items()},
        "phase_seconds": pace.phases(learner, PROFILED_STEPS),
    }


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _peers(learner: Learner, seconds: float) -> dict:
    """The same graphs, in the same process with the same threads."""
    settings, device = learner.settings, learner.rt.device
    scatter = ScatterNetwork(ColoringNetwork(settings.width, settings.damping)).to(device)
    loss = peers.scatter_loss(scatter, settings.rounds, round(mean_free_rounds(settings.rounds)))
    gatv2, same = peers.GATv2().to(device), (learner.data, learner.plan.indices, seconds, settings.seed)
    rates = {
        "scatter": peers.fastest(scatter, loss, peers.scatter_load(settings.rounds), *same),
        "gatv2": peers.fastest(gatv2, gatv2, peers.attention_load, *same),
    }
    return {name: asdict(rate) for name, rate in rates.items()}


def _growth(learner: Learner, seconds: float, taken: pace.Steps) -> tuple[Formula, dict]:
    measured = growth.measure(learner, seconds, pace.peak_bytes)
    fitted = formula(measured)
    rows = [
        {
            **asdict(m),
            "predicted_seconds": fitted.seconds(m.shape, m.rounds, m.free_rounds),
            "predicted_bytes": fitted.bytes(m.shape, m.rounds),
        }
        for m in measured
    ]
    predicted = sum(fitted.seconds(*step) for step in taken.taken)
    peak = max(fitted.bytes(bucket.shape, learner.settings.rounds + SPREAD) for bucket in learner.plan.buckets)
    return fitted, {
        "formula": asdict(fitted),
        "error_on_training": predicted / taken.seconds - 1,
        "peak_bytes": peak,
        "measured": rows,
    }


def _plans(learner: Learner, graphs: int, fitted: Formula) -> dict:
    """Balance of the plan by ranks, and the epoch that follows from it on linked devices."""
    settings, most = learner.settings, learner.known + learner.reach
    nodes, colors = sizes(learner.data, most, graphs, settings.seed)
    plans = {ranks: plan(nodes, colors, settings, ranks) for ranks in PLANNED_RANKS}
    num_bytes = learner.shared.numel() * learner.shared.element_size()
    epochs = forecast.epochs(plans[1], plans[FORECAST_RANKS], FORECAST_RANKS, settings, fitted, num_bytes)
    return {
        "balance": [asdict(forecast.balance(plan, nodes, colors, ranks)) for ranks, plan in plans.items()],
        "message_bytes": num_bytes,
        "forecast": [asdict(epoch) for epoch in epochs],
    }


def _ranks(settings: TrainSettings, folder: Path, most: int, seconds: float) -> list[dict]:
    """Two, four, eight ... ranks on this machine, as many as it has places for."""
    places = machine.num_gpus() if machine.uses_gpus(settings) else machine.num_cores()
    counts = [2**power for power in range(1, 10) if 2**power <= min(most, places)]
    return [asdict(side_by_side.compare(settings, folder, ranks, seconds)) for ranks in counts]
