"""steps.py DATA ROUNDS: what the host asks of a GPU in a training step and in an evaluation, as JSON on stdout."""

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
from gnn_training.training.searcher import searcher_for, self_check
from gnn_training.training.validation import Validation

COUNTS = ("launches", "searches", "syncs", "reads", "pageable copies", "allocations", "problems", "all-reduces",
          "streams")  # fmt: skip
WARM_UP = 12  # steps: DDP measures its first ten with events
fake = ctypes.CDLL(None)
fake.fake_cuda_count.restype = ctypes.c_size_t


def counts() -> dict[str, int]:
    return {name: fake.fake_cuda_count(name.encode()) for name in COUNTS}


def main(data: str, rounds: str) -> None:
    settings = TrainSettings(data=Path(data), device="cuda", rounds=int(rounds), validation_rounds=int(rounds))
    result = {}
    with join("cuda") as rt:
        graphs = PackedGraphs.open(settings.data)
        search = searcher_for(graphs, rt.device)
        loader, learner = GraphLoader(settings, graphs, rt), Learner(settings, search, rt)
        validation = Validation(settings, loader.dataset, search, rt)
        result["check"] = self_check(learner, loader, rt)
        step = loader.starting_at(0)
        for _ in range(WARM_UP):
            learner.update(next(step))
        torch.cuda.synchronize()
        fake.fake_cuda_reset()
        learner.update(next(step))
        result["step"] = counts()
        validation.scores(learner.average)
        with torch.cuda.stream(torch.cuda.Stream()):  # not the one that numba would take by itself
            fake.fake_cuda_reset()
            validation.score_batch(learner.average, 0)
            result["evaluation"] = counts()
    print(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
