"""steps.py DATA ROUNDS: what the host asks of a GPU in a training step and in an evaluation, and the shape of children
of pairs that are crossed there, as JSON on stdout.
"""

import ctypes
import json
import sys
import tempfile
from pathlib import Path

import torch

from gnn_training.contract import SHIPPED_MODEL
from gnn_training.data.packed import PackedGraphs
from gnn_training.distributed import join
from gnn_training.graph import Graph
from gnn_training.onnx_program.session import Model
from gnn_training.search.gpu_crossover import BatchedCrossover
from gnn_training.search.gpu_searches import ChildSearcher
from gnn_training.settings import TrainSettings
from gnn_training.training.trainer import Trainer

COUNTS = ("launches", "searches", "syncs", "reads", "pageable copies", "allocations", "problems", "all-reduces",
          "streams")  # fmt: skip
WARM_UP = 12  # steps: DDP measures its first ten with events
fake = ctypes.CDLL(None)
fake.fake_cuda_count.restype = ctypes.c_size_t


def counts() -> dict[str, int]:
    return {name: fake.fake_cuda_count(name.encode()) for name in COUNTS}


def crossed(device: torch.device) -> torch.Size:
    """The shape of the children of five pairs of colorings of a path."""
    path = Graph.from_edges(4, [(0, 1), (1, 2), (2, 3)]).csr()
    crossing = BatchedCrossover(ChildSearcher([path], device), [path], Model(SHIPPED_MODEL, 1).trained.crossover)
    zeros, colors = torch.zeros(5, dtype=int, device=device), torch.zeros(5, 2, 4, dtype=int, device=device)
    return crossing(zeros, zeros + 3, colors, colors, colors[..., 0] == 0).shape


def main(data: str, rounds: str) -> None:
    changes = {"rounds": int(rounds), "validation_rounds": int(rounds), "run": Path(tempfile.mkdtemp())}
    settings = TrainSettings(data=Path(data), device="cuda", **changes)
    result = {}
    with join("cuda") as rt:
        trainer = Trainer(settings, PackedGraphs.open(settings.data), rt)
        learner, validation, step = trainer.learner, trainer.validation, trainer.loader.starting_at(0)
        for _ in range(WARM_UP):
            learner.update(*next(step))
        torch.cuda.synchronize()
        fake.fake_cuda_reset()
        learner.update(*next(step))
        result["step"] = counts()
        validation.scores(learner.average)
        with torch.cuda.stream(torch.cuda.Stream()):  # not the one that numba would take by itself
            fake.fake_cuda_reset()
            validation.states = []  # the searches alone
            validation.sums(learner.average)
            result["evaluation"] = counts()
        result["children"] = crossed(rt.device)
    print(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
