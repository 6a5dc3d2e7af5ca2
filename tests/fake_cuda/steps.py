"""steps.py DATA MODE ROUNDS: what the host asks of a GPU in training steps and searches, as JSON on stdout."""

import ctypes
import json
import sys
from pathlib import Path

import torch

from gnn_training.data.packed import PackedGraphs
from gnn_training.distributed import join
from gnn_training.settings import TrainSettings
from gnn_training.training.learner import Learner
from gnn_training.training.loader import GraphLoader
from gnn_training.training.self_check import self_check
from gnn_training.training.validation import Validation

COUNTS = ("launches", "syncs", "reads", "pageable copies", "allocations", "problems", "peak")
WARM_UP = 12  # steps: DDP measures its first ten with events
fake = ctypes.CDLL(None)
fake.fake_cuda_count.restype = ctypes.c_size_t


def counts() -> dict[str, int]:
    return {name: fake.fake_cuda_count(name.encode()) for name in COUNTS}


def main(data: str, mode: str, rounds: str) -> None:
    settings = TrainSettings(
        data=Path(data), device="cuda", compile=mode == "compiled", rounds=int(rounds),
        validation_rounds=int(rounds), batch_size=16_000,
    )  # fmt: skip
    result = {}
    with join("cuda") as rt:
        loader, learner = GraphLoader(settings, PackedGraphs.open(settings.data), rt), Learner(settings, rt)
        validation = Validation(settings, loader.dataset, learner.search, rt)
        result["check"] = self_check(learner, loader, rt)
        step = loader.starting_at(0)
        for _ in range(WARM_UP):
            learner.update(next(step))
        batch = next(step)
        torch.cuda.synchronize()
        result["peak"] = counts()["peak"]
        fake.fake_cuda_reset()
        learner.update(batch)
        result["step"] = counts()
        with learner.averaged_weights() as network:
            validation.score_batch(network, 0)
            fake.fake_cuda_reset()
            validation.score_batch(network, 0)
        result["evaluation"] = counts()
    print(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
