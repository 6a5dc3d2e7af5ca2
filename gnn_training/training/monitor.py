"""Measure how every rank spends the time of a step, and what NVIDIA's library reports about its GPU."""

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
SAMPLE_SECONDS = 1.0  # time between two samples of a GPU
MAX_SAMPLES = 3600  # largest number of samples kept; older ones are dropped
SLOW = 1.5  # a rank is slow if its searches take at least this many times as long as those of the others
SLOW_SECONDS = 0.2  # smallest difference from the others that makes a rank slow; less may be chance


class GpuMonitor:
    """Samples a GPU every second in its own thread, by torch's functions for nvidia-ml-py. There are no samples on a
    CPU, without that library, or if the driver refuses.
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
        """Add a sample; return False if none is available."""
        try:
            sample = {
                "busy": torch.cuda.utilization(self.device) / 100,
                "memory_gib": torch.cuda.device_memory_used(self.device) / 2**30,
                "watts": torch.cuda.power_draw(self.device) / 1000,
                "celsius": torch.cuda.temperature(self.device),
            }
        except Exception:  # no library, an old driver, a slice of a GPU: none is worth a message
            return False
        self._samples.append(sample)
        return True

    def _watch(self) -> None:
        while self._look():
            time.sleep(SAMPLE_SECONDS)


class Monitor:
    """Measures what the ranks do between two reports."""

    def __init__(self, searcher: Searcher, rt: Runtime):
        self.searcher, self.rt, self.gpu = searcher, rt, GpuMonitor(rt.device)
        self._spans: list[tuple] = []  # begin and end of each search
        self._named: set[int] = set()  # slow ranks that have been reported

    def search(self, weights: Tensor, batch: SearchBatch, rounds: int) -> tuple[Tensor, Tensor]:
        """Search as a `Searcher` does, and measure its time on the device without waiting for a GPU."""
        began = self._now()
        results = self.searcher(weights, batch, rounds)
        self._spans.append((began, self._now()))
        return results

    def restart(self) -> None:
        """Forget what was measured so far, such as searches that were compiled first."""
        self._take_seconds()
        self.gpu.take()

    def report(self, seconds: float) -> dict[str, float]:
        """Return the shares of the time since the last report that ranks spent on searches, on gradients and on waiting
        for other ranks, as means over ranks, and the means of every GPU. The names are those of docs/TRAINING.md. Every
        rank must call this. seconds: the time of all steps since the last report.
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
    """The shares of `seconds` that ranks spend on each activity, means over ranks. times (R, S): seconds of the
    searches of R ranks in S steps. A step ends when all ranks have a gradient, so each waits for the slowest search.
    """
    seconds = max(seconds, 1e-9, float(times.max(0).sum()))
    search = float(times.mean(0).sum()) / seconds
    waiting = float((times.max(0) - times.mean(0)).sum()) / seconds
    return {"search_share": search, "gradient_share": 1 - search - waiting, "waiting_share": waiting}


def slow_ranks(seconds: np.ndarray) -> dict[int, float]:
    """Return the ranks whose searches take far longer than those of the others, and their ratio to the median of the
    others. seconds (R,): the time of the searches of each rank.
    """
    slow = {}
    for rank, rank_seconds in enumerate(seconds.tolist() if len(seconds) > 1 else ()):
        others = float(np.median(np.delete(seconds, rank)))
        if rank_seconds > max(SLOW * others, others + SLOW_SECONDS):
            slow[rank] = rank_seconds / max(others, 1e-9)
    return slow
