"""Scores on the validation graphs: what a caller of the exported program would get, every graph counted once."""

import math

import numpy as np
import torch
from torch import Tensor

from gnn_training.distributed import Runtime
from gnn_training.model.network import ColoringNetwork
from gnn_training.model.search import first_weights
from gnn_training.settings import TrainSettings
from gnn_training.training.loader import DeviceDataset, search_costs, share
from gnn_training.training.loss import Batch, Searcher

SCORES = ("gap", "at_best_known", "gain", "gain_squared")
PREDICTED = ("chromatic_error", "family_accuracy")
STATE_BATCH = 16
MAX_NODES = 2048  # larger graphs are trained on, but would dominate a validation


class Validation:
    """The validation graphs."""

    def __init__(self, settings: TrainSettings, dataset: DeviceDataset, search: Searcher, rt: Runtime):
        self.dataset, self.data, self.search, self.rt = dataset, dataset.data, search, rt
        self.steps = settings.validation_rounds
        held_out = self.data.indices("validation")
        held_out = held_out[self.data.num_nodes[held_out] <= MAX_NODES]
        held_out = held_out if len(held_out) else self.data.indices("train")
        # Evenly spread: packed order goes by family, so the first ones would be of one family.
        count = min(settings.validation_graphs or len(held_out), len(held_out))
        self.ids = held_out[np.linspace(0, len(held_out) - 1, count).astype(int)]
        dsatur = self.data.dsatur_colors[self.ids].astype(int)
        self.dsatur_gap = float((dsatur - self.data.num_colors[self.ids]).mean())
        costs = search_costs(self.data.num_nodes[self.ids], self.data.num_edges[self.ids])
        mine = self.ids[share(costs, rt.world_size)[rt.rank]]
        self.batches = np.array_split(mine, -(-len(mine) // settings.batch_size)) if len(mine) else []
        states = dataset.state_ids("validation")
        graphs = dataset.state_graph[states]
        chosen = np.isin(graphs, self.ids)
        states, costs = states[chosen], self.data.num_edges[graphs[chosen]]
        self.states = states[share(costs, rt.world_size)[rt.rank]]
        self._untrained: list[Tensor] = []  # colors (G,) that the untrained rule finds, of every batch

    def scores(self, network: ColoringNetwork) -> dict[str, float]:
        """Means over all graphs on all ranks, and their number. `gap` is the number of colors above the best known that
        a caller of the exported program would use; `dsatur_gap` is DSATUR's on the same graphs. In the same
        searches, the untrained rule needs `gain` colors more; `gain_error` is the standard error of that mean.
        """
        if not self._untrained:
            with torch.random.fork_rng(devices=[]):
                untrained = first_weights().to(self.rt.device)
            self._untrained = [self._colors(untrained, self._batch(ids)) for ids in self.batches]
        sums = torch.zeros(len(SCORES), dtype=torch.float64, device=self.rt.device)
        for number in range(len(self.batches)):
            sums += self.score_batch(network, number)
        count = sum(map(len, self.batches))
        predicted = torch.zeros(len(PREDICTED), dtype=torch.float64, device=self.rt.device)
        for start in range(0, len(self.states), STATE_BATCH):
            predicted += self.score_predictions(network, self.states[start : start + STATE_BATCH])
        mine = [*sums.tolist(), *predicted.tolist(), count, len(self.states)]
        totals = self.rt.total(torch.tensor(mine, dtype=torch.float64))
        counts = [totals[-2]] * len(SCORES) + [totals[-1].clamp(min=1)] * len(PREDICTED)
        means = dict(zip(SCORES + PREDICTED, (totals[:-2] / torch.stack(counts)).tolist(), strict=True))
        variance = max(0.0, means.pop("gain_squared") - means["gain"] ** 2)
        error = math.sqrt(variance / float(totals[-2]))
        return {**means, "gain_error": error, "dsatur_gap": self.dsatur_gap, "graphs": int(totals[-2])}

    @torch.no_grad()
    def score_batch(self, network: ColoringNetwork, number: int) -> Tensor:
        """Sums (S,) over this rank's graphs of a batch, in the order of SCORES."""
        batch = self._batch(self.batches[number])
        used = self._colors(network.move_rule, batch)
        fewest, gain = batch.num_colors, self._untrained[number] - used
        scores = (used - fewest, used <= fewest, gain, gain**2)
        return torch.stack([score.double() for score in scores]).sum(1)

    @torch.no_grad()
    def score_predictions(self, network: ColoringNetwork, ids: np.ndarray) -> Tensor:
        """Sums over these states, in the order of PREDICTED."""
        batch = self.dataset.states(ids, len(ids))
        assert batch is not None
        predicted, search = network.predictions(batch.inputs), batch.search
        error = predicted.chromatic(search) - (search.num_colors - batch.saved)
        right = predicted.graph_type_logits.argmax(1) == batch.graph_type
        return torch.stack([error.abs().double(), right.double()]).sum(1)

    def _batch(self, ids: np.ndarray) -> Batch:
        return self.dataset.batch(ids, len(ids))

    @torch.no_grad()
    def _colors(self, weights: Tensor, batch: Batch) -> Tensor:
        """Colors (G,) that a search with the weights (NUM_WEIGHTS,) finds."""
        return self.search(weights.expand_as(batch.change)[None], batch, self.steps)[0][0]
