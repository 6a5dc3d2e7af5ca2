"""Before the first step on GPUs, all ranks stop if one of them searches wrongly."""

from dataclasses import replace
from pathlib import Path

import pytest
import tiny_runs
import torch
from torch import Tensor

from gnn_training.data.packed import PackedGraphs
from gnn_training.distributed import Runtime
from gnn_training.errors import MachineError
from gnn_training.search.batches import Searcher, search_on_cpu
from gnn_training.training.learner import Learner
from gnn_training.training.loader import GraphBatch, GraphLoader
from gnn_training.training.self_check import self_check

NO_GPU = {
    "get_device_name": "a GPU", "reset_peak_memory_stats": None, "max_memory_reserved": 2**30,
    "mem_get_info": (0, 2**31),
}  # fmt: skip


def one_color_more(weights: Tensor, batch: GraphBatch, rounds: int) -> tuple[Tensor, Tensor]:
    colors, conflicts = search_on_cpu(weights, batch, rounds)
    return colors + (torch.arange(len(batch.ids)) % 4 == 0), conflicts


class OldInputs:
    """What a launch would do that does not see the inputs of the next one."""

    def __init__(self) -> None:
        self.first: tuple[Tensor, GraphBatch] | None = None

    def __call__(self, weights: Tensor, batch: GraphBatch, rounds: int) -> tuple[Tensor, Tensor]:
        if not self.first or len(self.first[1].ids) != len(batch.ids):
            self.first = weights, batch
        return search_on_cpu(*self.first, rounds)


def checked(rt: Runtime, folder: Path, search: Searcher) -> list[dict] | str:
    """What the self-check finds or raises where rank 1 has this search."""
    for name, value in NO_GPU.items():
        setattr(torch.cuda, name, lambda *_, value=value: value)
    settings = tiny_runs.settings(folder, Path("nowhere"))
    loader = GraphLoader(settings, PackedGraphs.open(folder), rt)
    learner = Learner(settings, search if rt.rank == 1 else search_on_cpu, rt, settings.steps)
    try:
        return self_check(learner, loader, replace(rt, device=torch.device("cuda")))
    except MachineError as error:
        return str(error)


@pytest.mark.parametrize("search", [one_color_more, OldInputs()])
def test_all_ranks_stop_where_one_searches_wrongly(tiny_data: Path, search: Searcher):
    said = tiny_runs.in_group(2, checked, tiny_data, search)
    assert said[0] == said[1] and "of the searches of rank 1" in said[0] and "or train with --device cpu" in said[0]


def test_where_all_search_rightly_every_rank_knows_it(tiny_data: Path):
    found = tiny_runs.in_group(2, checked, tiny_data, search_on_cpu)
    assert [[rank["agreement"] for rank in ranks] for ranks in found] == [[1.0, 1.0]] * 2
    assert found[0][0]["peak_gib"] == 1
