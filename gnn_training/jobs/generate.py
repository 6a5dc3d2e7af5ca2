"""Generate labelled training graphs."""

from collections import Counter
from dataclasses import replace
from itertools import count

from gnn_training.data.labelling import Plan, finished, label_all
from gnn_training.data.packed import PackedGraphs
from gnn_training.data.recipes import RECIPES, Draw, draws
from gnn_training.settings import GenerateSettings


def generate(settings: GenerateSettings) -> PackedGraphs:
    """Draw and label the graphs of a recipe into `settings.out`; nothing to do if they are already there.

    Raises:
        UserError: the folder holds other graphs, cannot be written, or is being filled.
    """
    recipe = RECIPES[settings.recipe]
    graphs = list(draws(recipe, settings.seed, settings.graphs))
    origin = {"recipe": settings.recipe, "graphs": len(graphs), "iterations": recipe.iterations}
    origin |= settings.model_dump(include={"seed", "label_seconds"})
    if (there := finished(settings.out, origin)) is not None:
        return there
    unused = {family: count(number) for family, number in Counter(draw.family for draw in graphs).items()}

    def redraw(copies: list[Draw]) -> list[Draw]:
        return [replace(copy, index=next(unused[copy.family])) for copy in copies]

    plan = Plan(tuple(recipe.counts), recipe.iterations, settings.label_seconds, settings.seed, origin)
    return label_all(graphs, settings.out, plan, settings.workers, redraw)
