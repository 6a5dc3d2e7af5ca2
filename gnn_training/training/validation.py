"""Scores on the validation graphs: what a caller of the exported program would get, every graph counted once."""

import logging
import math
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from gnn_training.data.packed import evenly_spaced
from gnn_training.distributed import Runtime
from gnn_training.network import rule
from gnn_training.network.network import ColoringNetwork
from gnn_training.search.batches import Searcher
from gnn_training.settings import TrainSettings
from gnn_training.training.loader import DeviceDataset, GraphBatch, partition, search_costs

log = logging.getLogger(__name__)
STATE_BATCH = 16
SCORED_NODES = 2048  # larger graphs are trained on, but would dominate the scores


class Validation:
    """The validation graphs."""

    def __init__(self, settings: TrainSettings, dataset: DeviceDataset, search: Searcher, rt: Runtime):
        self.dataset, self.search, self.rt, self.rounds = dataset, search, rt, settings.validation_rounds
        data = dataset.data
        held_out = data.indices("validation")
        held_out = held_out[data.num_nodes[held_out] <= SCORED_NODES]
        if not len(held_out):
            held_out = data.indices("train")
            if rt.is_main:
                log.warning("no validation graphs up to %d nodes: the training graphs judge the weights", SCORED_NODES)
        self.ids = held_out[evenly_spaced(len(held_out), settings.validation_graphs or len(held_out))]
        self.dsatur_gap = float((data.dsatur_colors[self.ids].astype(int) - data.num_colors[self.ids]).mean())
        rank_ids = self.ids[partition(search_costs(data, self.ids), rt.world_size)[rt.rank]]
        self.batches = np.array_split(rank_ids, -(-len(rank_ids) // settings.batch_size)) if len(rank_ids) else []
        states = dataset.state_ids("validation")
        states = states[np.isin(dataset.state_graph[states], self.ids)]
        states = states[rt.rank :: rt.world_size]
        self.states = [states[start : start + STATE_BATCH] for start in range(0, len(states), STATE_BATCH)]

    @cached_property
    def untrained(self) -> list[Tensor]:
        """Colors (G,) that the untrained rule finds, of every batch."""
        weights = torch.from_numpy(rule.untrained()).to(self.rt.device)
        return [self._colors(weights, self.dataset.batch(ids, len(ids))) for ids in self.batches]

    def scores(self, network: ColoringNetwork) -> dict[str, float]:
        """Means over all graphs on all ranks, and their number, by the names of docs/TRAINING.md."""
        totals = self.rt.total(self.sums(network).cpu()).tolist()
        graphs, *sums, squares, num_states, errors, num_right = totals
        means = {name: total / graphs for name, total in zip(("gap", "at_best_known", "gain"), sums, strict=True)}
        means |= {"chromatic_error": errors / max(1, num_states), "graph_type_accuracy": num_right / max(1, num_states)}
        variance = max(0.0, squares / graphs - means["gain"] ** 2)
        means |= {"gain_error": math.sqrt(variance / graphs), "dsatur_gap": self.dsatur_gap}
        return {**means, "graphs": int(graphs)}

    @torch.no_grad()
    def sums(self, network: ColoringNetwork) -> Tensor:
        """What `scores` needs of this rank's graphs and states: (8,). Searches do not make the host wait for a GPU."""
        of_graphs, of_states = (torch.zeros(n, dtype=torch.float64, device=self.rt.device) for n in (5, 3))
        for number, ids in enumerate(self.batches):
            batch = self.dataset.batch(ids, len(ids))
            used = self._colors(network.rule, batch)
            gap, gain = used - batch.num_colors, self.untrained[number] - used
            of_graphs += _sums(torch.ones_like(gap), gap, gap <= 0, gain, gain**2)
        for ids in self.states:
            states = self.dataset.states(ids, len(ids))
            assert states is not None
            predicted = network.predictions(states.inputs)
            error = predicted.chromatic(states.num_colors, states.lower) - (states.num_colors - states.saved)
            right = predicted.graph_type_logits.argmax(1) == states.graph_type
            of_states += _sums(torch.ones_like(error), error.abs(), right)
        return torch.cat([of_graphs, of_states])

    @torch.no_grad()
    def _colors(self, weights: Tensor, batch: GraphBatch) -> Tensor:
        """Colors (G,) that a search with the weights (NUM_WEIGHTS,) finds."""
        return self.search(weights.expand_as(batch.epsilon)[None], batch, self.rounds)[0][0]


def _sums(*values: Tensor) -> Tensor:
    return torch.stack([each.double() for each in values]).sum(1)
