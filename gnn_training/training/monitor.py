"""Where the time of a step goes on every rank, and what NVIDIA's library says of every GPU meanwhile."""

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gnn_training.distributed import Runtime
from gnn_training.search.batches import SearchBatch, Searcher

log = logging.getLogger(__name__)
SAMPLE_SECONDS = 1.0  # between two looks at a GPU
MAX_SAMPLES = 3600  # the last ones count, if nobody takes them
SLOW = 1.5  # times as long as the others: a rank that takes so long for its searches is named
SLOW_SECONDS = 0.2  # that it takes longer, at least: less is chance


class GpuMonitor:
    """Looks at a GPU every second in a thread of its own, by torch's functions for nvidia-ml-py. It says nothing on a
    CPU, without that library, and where the driver refuses.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self._samples = deque[dict[str, float]](maxlen=MAX_SAMPLES)
        self.answers = device.type == "cuda" and self._look()
        if self.answers:
            threading.Thread(target=self._watch, daemon=True).start()

    def take(self) -> dict[str, float]:
        """Means since the last call: share of time busy, GiB of memory in use, watts and degrees Celsius."""
        if self.answers and not self._samples:
            self._look()
        samples, self._samples = self._samples, deque(maxlen=MAX_SAMPLES)
        return {name: float(np.mean([sample[name] for sample in samples])) for name in (samples or [{}])[0]}

    def _look(self) -> bool:
        """Add a sample; False if there is none to get."""
        try:
            sample = {
                "busy": torch.cuda.utilization(self.device) / 100,
                "memory_gib": torch.cuda.device_memory_used(self.device) / 2**30,
                "watts": torch.cuda.power_draw(self.device) / 1000,
                "celsius": torch.cuda.temperature(self.device),
            }
        except Exception:  # of many kinds: no library, an old driver, a slice of a GPU; none is worth a word
            return False
        self._samples.append(sample)
        return True

    def _watch(self) -> None:
        while self._look():
            time.sleep(SAMPLE_SECONDS)


class Monitor:
    """What the ranks have done since the last report."""

    def __init__(self, searcher: Searcher, rt: Runtime):
        self.searcher, self.rt, self.gpu = searcher, rt, GpuMonitor(rt.device)
        self._spans: list[tuple] = []  # of searches: when each began and ended
        self._named: set[int] = set()  # slow ranks

    def search(self, weights: Tensor, batch: SearchBatch, rounds: int) -> tuple[Tensor, Tensor]:
        """Search, see `Searcher`, and note how long it takes on the device, without waiting for a GPU."""
        began = self._now()
        results = self.searcher(weights, batch, rounds)
        self._spans.append((began, self._now()))
        return results

    def restart(self) -> None:
        """Forget what has been so far, such as searches that were compiled first."""
        self._take_seconds()
        self.gpu.take()

    def report(self, seconds: float) -> dict[str, float]:
        """Where the time since the last report went, as shares and as a mean over ranks: searches, gradients, waiting
        for other ranks. And what their GPUs did. Names are those of docs/TRAINING.md. Every rank calls it. seconds: of
        all steps since the last report.
        """
        ranks = self.rt.gather((self._take_seconds(), self.gpu.take(), self.rt.device_name))
        times = np.array([searches for searches, *_ in ranks])  # (ranks, steps), seconds
        self._name_slow_ranks(times.sum(1), [name for *_, name in ranks])
        values = shares(times, seconds)
        for rank, (_, gpu, _) in enumerate(ranks):
            values |= {f"gpu{rank}_{name}": value for name, value in gpu.items()}
        return values

    def _take_seconds(self) -> list[float]:
        """Seconds of every search since the last call. Waits for the GPU."""
        spans, self._spans = self._spans, []
        if self.rt.device.type != "cuda":
            return [ended - began for began, ended in spans]
        torch.cuda.synchronize(self.rt.device)
        return [began.elapsed_time(ended) / 1000 for began, ended in spans]

    def _now(self) -> float | torch.cuda.Event:
        if self.rt.device.type != "cuda":
            return time.monotonic()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _name_slow_ranks(self, seconds: np.ndarray, devices: Sequence[str]) -> None:
        slow = slow_ranks(seconds)
        for rank in slow.keys() - self._named if self.rt.is_main else ():
            log.warning(
                "rank %d (%s) takes %.1f times as long as others for its searches, and every step waits for it: "
                "see what else it does, or leave it out with --gpus or fewer --ranks", rank, devices[rank], slow[rank],
            )  # fmt: skip
        self._named |= slow.keys()


def shares(times: np.ndarray, seconds: float) -> dict[str, float]:
    """Shares of `seconds` by what ranks do, the mean over ranks. times (R, S): seconds of the searches of R ranks in S
    steps. A step ends when all ranks have a gradient, so each waits for the slowest search.
    """
    seconds = max(seconds, 1e-9, float(times.max(0).sum()))
    search = float(times.mean(0).sum()) / seconds
    waiting = float((times.max(0) - times.mean(0)).sum()) / seconds
    return {"search_share": search, "gradient_share": 1 - search - waiting, "waiting_share": waiting}


def slow_ranks(seconds: np.ndarray) -> dict[int, float]:
    """The ranks that take far longer than the others for as much work, and how many times as long as their median.
    seconds (R,).
    """
    slow = {}
    for rank, mine in enumerate(seconds.tolist() if len(seconds) > 1 else ()):
        others = float(np.median(np.delete(seconds, rank)))
        if mine > max(SLOW * others, others + SLOW_SECONDS):
            slow[rank] = mine / max(others, 1e-9)
    return slow
