"""Where the time of a step goes, which rank is slow, and what a GPU does meanwhile."""

import logging
import re
import time
from pathlib import Path

import numpy as np
import pytest
import tiny_runs
import torch
from tiny_runs import metrics

from gnn_training.distributed import Runtime
from gnn_training.jobs import check
from gnn_training.search.batches import search_on_cpu
from gnn_training.training import monitor, trainer
from gnn_training.training.monitor import GpuMonitor, Monitor, shares, slow_ranks


@pytest.mark.parametrize(
    ("times", "seconds", "search", "waiting"),
    [
        ([[1, 2, 3]], 10, 0.6, 0),  # one rank never waits
        ([[1, 2], [1, 2]], 4, 0.75, 0),
        ([[1, 3], [3, 1]], 8, 0.5, 0.25),  # as fast as each other, but not in each step
        ([[4, 4], [2, 2], [2, 2], [2, 2]], 10, 0.5, 0.3),  # one at half the speed
        (np.zeros((2, 0)), 0, 0, 0),  # no step yet
    ],
)
def test_time_is_divided_into_searches_gradients_and_waiting_for_the_slowest(times, seconds, search, waiting):
    found = shares(np.array(times, float), seconds)
    assert found == pytest.approx(
        {"search_share": search, "gradient_share": 1 - search - waiting, "waiting_share": waiting}
    )


@pytest.mark.parametrize(
    ("seconds", "slow"),
    [
        ([5.0], {}), ([5.0, 5.1], {}), ([0.02, 0.09], {}), ([1.0, 2.0], {1: 2.0}), ([2.0, 2.0, 5.0, 2.0], {2: 2.5}),
        ([4.0, 2.0, 4.0, 2.0, 2.0], {0: 2.0, 2: 2.0}), ([0.0, 1.0], {1: 1e9}),
    ],
)  # fmt: skip
def test_a_rank_is_slow_if_others_take_far_less_for_as_much(seconds: list[float], slow: dict[int, float]):
    assert slow_ranks(np.array(seconds)) == pytest.approx(slow)


def measured(rt: Runtime, data: Path) -> tuple[float, list[str]]:
    """Share of the time that ranks wait, as `check` finds it, and its warnings. Rank 1 is of another kind, and slow."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("gnn_training").addHandler(handler)
    Runtime.device_name = property(lambda self: f"card {self.rank}")
    monitor.SLOW_SECONDS = 0.01

    def slow(*search: object) -> tuple[torch.Tensor, torch.Tensor]:
        started = time.monotonic()
        results = search_on_cpu(*search)
        time.sleep(4 * rt.rank * (time.monotonic() - started))
        return results

    trainer.searcher_for = lambda *_: slow
    *_, waiting = check.measure_steps.__wrapped__(tiny_runs.settings(data, Path("unused"), rounds=500), rt)
    return waiting, [line for line in lines if "every step waits" in line]


def test_check_warns_of_unequal_gpus_and_of_a_rank_that_is_slow(tiny_data: Path):
    (waiting, lines), (there, others) = tiny_runs.in_group(2, measured, tiny_data)
    assert waiting == pytest.approx(there, rel=0.3) and waiting > 0.1 and others == []  # rank 0 alone warns
    assert "unequal GPUs, 1 x card 0 and 1 x card 1: every step waits for the slowest" in lines[-1]
    assert re.match(r"rank 1 \(card 1\) takes [2-9]\.\d times as long as others for its searches", lines[0])
    assert len(lines) == 2  # each once, in however many reports


def test_the_log_of_a_training_has_the_shares_of_its_time(trained: Path):
    for record in metrics(trained, "train"):
        parts = [record[f"{name}_share"] for name in ("search", "gradient", "waiting")]
        assert min(parts[:2]) > 0 and parts[2] == 0
        assert not any(name.startswith("gpu") for name in record)


def test_a_gpu_is_watched_and_reported_by_its_rank(rt: Runtime, monkeypatch):
    values = [50, 40, 90]
    monkeypatch.setattr(torch.cuda, "utilization", lambda _device: values.pop())
    for name, answer in (("device_memory_used", 3 * 2**30), ("power_draw", 700_000), ("temperature", 61)):
        monkeypatch.setattr(torch.cuda, name, lambda _device, answer=answer: answer)
    monkeypatch.setattr(monitor, "SAMPLE_SECONDS", 0.01)
    seen = Monitor(search_on_cpu, rt)
    seen.gpu = GpuMonitor(torch.device("cuda"))
    tiny_runs.wait_for(lambda: not values)  # then the driver does not answer
    report = seen.report(1.0)
    mean = {"gpu0_busy": 0.6, "gpu0_memory_gib": 3, "gpu0_watts": 700, "gpu0_celsius": 61}
    assert {name: report[name] for name in report if name.startswith("gpu")} == pytest.approx(mean)
    assert "gpu0_busy" not in seen.report(1.0)
    assert GpuMonitor(torch.device("cuda")).take() == {} == GpuMonitor(torch.device("cpu")).take()
