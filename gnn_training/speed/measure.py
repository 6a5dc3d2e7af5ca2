"""All that a benchmark measures, part by part, as values for JSON."""

import logging
import time
from dataclasses import asdict
from pathlib import Path

from torch._dynamo.utils import counters

from gnn_training.data.packed import PackedGraphs
from gnn_training.host import machine
from gnn_training.model.objective import ColoringNetwork
from gnn_training.runtime import Runtime, join
from gnn_training.settings import TrainSettings
from gnn_training.speed import forecast, growth, pace, peers, side_by_side
from gnn_training.speed.roofline import Ceilings, ceilings
from gnn_training.speed.scatter_form import ScatterNetwork
from gnn_training.training.cost import Formula, formula
from gnn_training.training.learner import Learner
from gnn_training.training.rounds import mean_free_rounds

log = logging.getLogger(__name__)

PROFILED_STEPS = 5
PLANNED_RANKS = (1, 2, 4, 8, 64)
FORECAST_RANKS = 8


def measure(settings: TrainSettings, data: PackedGraphs, graphs: int, most_ranks: int, seconds: float) -> dict:
    """Every part for about `seconds`; graphs: of the whole data set, of which `data` may be a sample."""
    with join(settings.device) as rt:
        log.info("measuring the first step")
        learner, report = _first_step(settings, data, rt)
        log.info("measuring the pace")
        limits = ceilings(rt.device, learner.precision)
        taken, found = _pace(learner, seconds, limits)
        report |= found | {"device": rt.device_name}
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


def _pace(learner: Learner, seconds: float, limits: Ceilings) -> tuple[pace.Steps, dict]:
    largest = max((bucket.shape for bucket in learner.plan.buckets), key=lambda shape: shape.cost)
    with pace.following(learner, pace.only(learner, largest)):
        peak = pace.peak_bytes(learner)
    taken = pace.take(learner, seconds)
    rate = pace.graphs_per_second(learner, taken)
    return taken, {
        "graphs_per_second": rate,
        "edges_per_second": rate * 2 * float(learner.data.num_edges[learner.plan.indices].mean()),
        "roofline_share": pace.roofline_share(learner, taken, limits),
        "peak_bytes": peak,
        "phase_seconds": pace.phases(learner, PROFILED_STEPS),
        "ceilings": asdict(limits),
    }


def _peers(learner: Learner, seconds: float) -> dict:
    """The same graphs, in the same process with the same threads."""
    settings, device = learner.settings, learner.rt.device
    graphs = peers.as_list(learner.data, learner.plan.indices, settings.seed)
    scatter = ScatterNetwork(ColoringNetwork(settings.width, settings.hidden, settings.damping)).to(device)
    loss = peers.scatter_loss(scatter, settings.rounds, round(mean_free_rounds(settings.rounds)))
    gatv2 = peers.GATv2().to(device)
    rates = {
        "scatter": peers.fastest(scatter, loss, peers.scatter_work, graphs, seconds, settings.seed),
        "gatv2": peers.fastest(gatv2, gatv2, peers.attention_work, graphs, seconds, settings.seed),
    }
    return {name: asdict(rate) for name, rate in rates.items()}


def _growth(learner: Learner, seconds: float, taken: pace.Steps) -> tuple[Formula, dict]:
    measured = growth.measure(learner, seconds)
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
    return fitted, {"formula": asdict(fitted), "error_on_training": predicted / taken.seconds - 1, "measured": rows}


def _plans(learner: Learner, graphs: int, fitted: Formula) -> dict:
    """Balance of the plan by ranks, and the epoch that follows from it on linked devices."""
    settings, most = learner.settings, learner.known + learner.reach
    nodes, colors = forecast.sizes(learner.data, most, graphs, settings.seed)
    plans = {ranks: forecast.plan(nodes, colors, settings, ranks) for ranks in PLANNED_RANKS}
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
