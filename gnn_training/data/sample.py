"""A few graphs of a recipe with labels that cost nothing: to measure a training before its data is there."""

from pathlib import Path

import numpy as np

from gnn_training.coloring import greedy_along
from gnn_training.data import packed
from gnn_training.data.instance import Instance, Label
from gnn_training.data.packed import PackedGraphs, Record
from gnn_training.data.recipes import Recipe, draws


def sample(recipe: Recipe, graphs: int, seed: int, folder: Path) -> PackedGraphs:
    """Draw `graphs` graphs in the recipe's proportions and pack them into `folder`, all of them for training."""
    instances = [draw.load() for draw in draws(recipe, seed, graphs)]
    records = [Record(instance, _label(instance)) for instance in instances]
    families = tuple(recipe.counts)
    return packed.write(folder, packed.columns(records, families), families, {"sample": graphs})


def _label(instance: Instance) -> Label:
    """First fit from the largest degree down: a little above what a search would find, so costs are not too low."""
    graph = instance.graph
    colors = greedy_along(graph, np.argsort(-graph.degrees(), kind="stable"))
    count = int(colors.max()) + 1
    return Label(colors.astype(np.int16), count, 1, count, optimal=False, difficulty=0.0)
