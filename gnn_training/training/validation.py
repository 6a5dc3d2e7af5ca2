"""The scores of an evaluation, where every graph and every pair counts once. Validation graphs show what a caller of
the exported program would get; held-out pairs of self-play show how well the crossover network predicts children.
"""

import copy
import logging
import math
from collections.abc import Mapping
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from gnn_training.contract import UNKNOWN_TYPE
from gnn_training.data.packed import evenly_spaced
from gnn_training.distributed import Runtime
from gnn_training.network import rule
from gnn_training.network.crossover_network import CrossoverNetwork, squared_errors
from gnn_training.network.network import ColoringNetwork
from gnn_training.search.batches import Searcher
from gnn_training.settings import TrainSettings
from gnn_training.training.games import Pair, batch_of
from gnn_training.training.loader import DeviceDataset, GraphBatch, partition, search_costs
from gnn_training.training.replay_buffer import ReplayBuffer

log = logging.getLogger(__name__)
STATE_BATCH, PAIR_BATCH = 16, 64
MIN_HELD_OUT_GRAPHS = 6  # fewest graphs for a comparison; its error cannot be told from fewer


class Validation:
    """The scores on the validation graphs."""

    def __init__(self, settings: TrainSettings, dataset: DeviceDataset, search: Searcher, rt: Runtime):
        self.dataset, self.search, self.rt, self.rounds = dataset, search, rt, settings.validation_rounds
        data = dataset.data
        self.ids = data.selection(settings.validation_graphs)
        if not len(self.ids):
            train = data.indices("train")
            self.ids = train[evenly_spaced(len(train), settings.validation_graphs or len(train))]
            if rt.is_main:
                log.warning("no validation graphs, or only very large ones: the training graphs judge the weights")
        self.dsatur_gap = float((data.dsatur_colors[self.ids].astype(int) - data.num_colors[self.ids]).mean())
        rank_ids = self.ids[partition(search_costs(data, self.ids), rt.world_size)[rt.rank]]
        self.batches = np.array_split(rank_ids, -(-len(rank_ids) // settings.batch_size)) if len(rank_ids) else []
        states = dataset.state_ids("validation")
        states = states[np.isin(dataset.state_graph[states], self.ids)]
        states = states[rt.rank :: rt.world_size]
        self.states = [states[start : start + STATE_BATCH] for start in range(0, len(states), STATE_BATCH)]

    @cached_property
    def untrained(self) -> list[Tensor]:
        """The number of colors (G,) that the untrained rule finds, for every batch."""
        weights = torch.from_numpy(rule.untrained()).to(self.rt.device)
        return [self._colors(weights, self.dataset.graphs(ids, len(ids))) for ids in self.batches]

    def scores(self, network: ColoringNetwork) -> dict[str, float]:
        """Return means over all graphs on all ranks, and the number of graphs, by the names of docs/TRAINING.md."""
        totals = self.rt.total(self.sums(network).cpu()).tolist()
        graphs, *sums, squares, num_states, errors, num_typed, num_right = totals
        means = {name: total / graphs for name, total in zip(("gap", "at_best_known", "gain"), sums, strict=True)}
        means |= {"chromatic_error": errors / max(1, num_states), "graph_type_accuracy": num_right / max(1, num_typed)}
        variance = max(0.0, squares / graphs - means["gain"] ** 2)
        means |= {"gain_error": math.sqrt(variance / graphs), "dsatur_gap": self.dsatur_gap}
        return {**means, "graphs": int(graphs)}

    @torch.no_grad()
    def sums(self, network: ColoringNetwork) -> Tensor:
        """Return the sums (9,) over this rank's graphs and states. Searches do not make the host wait for a GPU."""
        of_graphs, of_states = (torch.zeros(n, dtype=torch.float64, device=self.rt.device) for n in (5, 4))
        for number, ids in enumerate(self.batches):
            batch = self.dataset.graphs(ids, len(ids))
            used = self._colors(network.rule, batch)
            gap, gain = used - batch.num_colors, self.untrained[number] - used
            of_graphs += _sums(torch.ones_like(gap), gap, gap <= 0, gain, gain**2)
        for ids in self.states:
            states = self.dataset.states(ids, len(ids))
            assert states is not None
            predicted = network.predictions(states.inputs)
            error = predicted.chromatic(states.num_colors, states.lower) - (states.num_colors - states.saved)
            right = predicted.graph_type_logits.argmax(1) == states.graph_type
            of_states += _sums(torch.ones_like(error), error.abs(), states.graph_type != UNKNOWN_TYPE, right)
        return torch.cat([of_graphs, of_states])

    @torch.no_grad()
    def _colors(self, weights: Tensor, batch: GraphBatch) -> Tensor:
        """The number of colors (G,) that a search with the weights (NUM_WEIGHTS,) finds."""
        return self.search(weights.expand_as(batch.epsilon)[None], batch, self.rounds)[0][0]


def _sums(*values: Tensor) -> Tensor:
    return torch.stack([each.double() for each in values]).sum(1)


class PairValidation:
    """The scores on the held-out pairs of self-play."""

    def __init__(self, buffer: ReplayBuffer, dataset: DeviceDataset, initial: CrossoverNetwork, rt: Runtime):
        """initial: the network before the training, which is copied."""
        self.buffer, self.dataset, self.initial, self.rt = buffer, dataset, copy.deepcopy(initial), rt

    def scores(self, network: CrossoverNetwork, best: CrossoverNetwork) -> dict[str, float]:
        """Score how well a network predicts the conflicts of children, by itself and in comparison with the initial
        network and the best one so far, by the names of docs/TRAINING.md. Empty if the pairs are of too few graphs.
        """
        pairs = self.buffer.held_out
        _, graph = np.unique([pair.graph for pair in pairs], return_inverse=True)
        if len(set(graph.tolist())) < MIN_HELD_OUT_GRAPHS:
            return {}
        errors = self.relative_errors(pairs, network, self.initial, best)
        scores = {"held_out_pairs": len(pairs), "crossover_explained": 1 - float(errors[network].mean())}
        for name, other in (("crossover_gain", self.initial), ("crossover_change", best)):
            gains = errors[other] - errors[network]
            of_graph = np.bincount(graph, gains - gains.mean())  # pairs of one graph are alike
            scores |= {name: float(gains.mean()), f"{name}_error": math.sqrt((of_graph**2).sum()) / len(pairs)}
        return scores

    @torch.no_grad()
    def relative_errors(self, pairs: list[Pair], *networks: CrossoverNetwork) -> dict[CrossoverNetwork, np.ndarray]:
        """The squared error of each network on every pair (P,), divided by the mean variance among siblings."""
        errors = {network: torch.zeros(len(pairs), dtype=torch.float64) for network in networks}
        for start in range(self.rt.rank, len(pairs), PAIR_BATCH * self.rt.world_size):
            places = slice(start, start + PAIR_BATCH * self.rt.world_size, self.rt.world_size)
            batch = batch_of(pairs[places], self.dataset)
            for network in errors:
                errors[network][places] = squared_errors(network(batch), batch).cpu().double()
        variance = np.mean([np.square(pair.deviations).mean() for pair in pairs])
        return {network: self.rt.total(each).numpy() / variance for network, each in errors.items()}


def explain_best(step: int, scores: Mapping[str, float]) -> str:
    """Tell which weights of the crossover network are kept, and why. step, scores: of the kept weights."""
    if "crossover_gain" not in scores:
        return "the first weights are kept: there was no self-play, or too few validation graphs to judge it"
    gain, error, pairs = (scores[name] for name in ("crossover_gain", "crossover_gain_error", "held_out_pairs"))
    if not step:
        return f"the first weights are kept: no others are better on {pairs} held-out pairs of parents"
    explained = f"{scores['crossover_explained']:.4f} of the variance among the children of {pairs} held-out pairs"
    more = f"{gain:.4f} ± {error:.4f} more than the first weights"
    return f"the weights of step {step} are kept: they explain {explained}, {more}"
