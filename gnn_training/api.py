"""The Python interface: `gnn_training.color` and `color_many`."""

import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np

from gnn_training.graph_objects import is_one_graph, named_graph
from gnn_training.machine import num_cores, usable_threads
from gnn_training.onnx_program.session import Model, cached_model
from gnn_training.search.engine import Budget
from gnn_training.search.gpu_workers import chosen_gpus
from gnn_training.search.portfolio import compile_all
from gnn_training.search.problem import Problem, Solution


def color(
    graph: Any, seconds: float = 1.0, seed: int = 0, model: Model | Path | str | None = None,
    num_nodes: int | None = None, *, k: int | None = None, precolored: Mapping[Any, int] | None = None,
    allowed: Mapping[Any, Collection[int]] | None = None, equitable: bool = False, start: Any = None,
    threads: int | None = None, gpus: str = "none", details: bool = False,
) -> Any:  # fmt: skip
    """Color a graph properly, with as few colors as the time allows; colors count from 0 without gaps.

    graph: its kind decides what is returned. A networkx or rustworkx graph, the edges of a networkx graph, a dict from
    node to neighbours or a symmetric pandas DataFrame of 0 and 1 gives a dict from node to color. A torch_geometric
    Data gives a tensor (N,). An edge array (E, 2) of integers, a symmetric adjacency matrix (N, N) of 0 and 1, a
    symmetric scipy sparse matrix or an igraph graph gives a numpy array (N,). Integers (2, 2) are an edge array.
    Directions, weights, parallel edges and self loops are ignored.
    seconds: time limit. The search ends earlier if the coloring is proven optimal. The first use after an
    installation compiles the search for some 20 seconds, before the time limit begins.
    model: an open Model, the path of an exported file, or hf://owner/name on the Hugging Face Hub; None takes the
    shipped one.
    num_nodes: N of an edge array; None takes the largest node + 1.
    k: take the first coloring with at most k different colors.
    precolored: a dict from node to the color that it must have, 0 to 999. Other colors are the smallest possible
    ones, so there may be gaps.
    allowed: a dict from node to the colors that it may have, 0 to 999. All nodes then get colors from 0 to k - 1 or,
    without k, up to the largest color named. The first coloring found is taken, and some of these colors may not occur.
    equitable: among colorings with the same number of colors, look for one whose classes have almost the same size.
    start: a proper coloring that obeys precolored and allowed, in the form that this function returns for the graph.
    The search begins with it, unless DSATUR's coloring has fewer colors.
    threads: number of threads of the search, at most one per core; None takes the number of the model.
    gpus: NVIDIA GPUs that search beside the cores: "all", numbers such as "0,1", or "none". They pay off in searches of
    minutes, and need torch and numba-cuda.
    details: return a Solution, which also has the number of colors, a lower bound and whether this proves it optimal.

    Raises TypeError or ValueError for an argument that cannot be used, UserError if the model file cannot be read, and
    its subclass NoColoringError if k, precolored or allowed cannot be met, or no such coloring was found in the time.
    """
    seconds, seed = float(_number("seconds", seconds, Real, 0)), int(_number("seed", seed, Integral, 0))
    k = None if k is None else int(_number("k", k, Integral, 1))
    threads = 0 if threads is None else int(_number("threads", threads, Integral, 1))
    num_nodes = None if num_nodes is None else int(_number("num_nodes", num_nodes, Integral, 0))
    for name, mapping in (("precolored", precolored), ("allowed", allowed)):
        if mapping is not None and not isinstance(mapping, Mapping):
            raise TypeError(f"{name} must be a dict with a node as the key, not {type(mapping).__name__}")
    opened = model if isinstance(model, Model) else cached_model(model)
    compile_all()
    numbers = chosen_gpus(gpus)
    begin = time.monotonic()
    source, named = named_graph(graph, num_nodes)
    names: Sequence[Any] = range(source.num_nodes) if named is None else named
    solution = Solution(np.empty(0, dtype=np.int64), 0, 0, True, 0, 0.0, "none")
    problem = Problem.create(source, names, k, precolored, allowed, equitable, begin + seconds)
    if start is not None:
        problem = problem.with_start(source, names, _by_node(start, named is not None))
    if source.num_nodes:
        budget = Budget(begin + seconds, 1, usable_threads(threads or opened.threads), seed, numbers)
        *_, best = problem.colorings(opened.trained, budget)
        solution = problem.solution(best, begin, budget)
    colors = solution.colors
    if named is not None:
        colors = dict(zip(named, colors.tolist(), strict=True))
    elif hasattr(graph, "edge_index"):
        import torch

        colors = torch.from_numpy(colors)
    return replace(solution, colors=colors) if details else colors


def color_many(
    graphs: Iterable[Any], seconds: float = 1.0, *, starts: Iterable[Any] | None = None, **options: Any
) -> list[Any]:
    """Color many graphs on all cores, each with one thread, and return what `color` returns for each, in their order.

    seconds: time limit of each graph. starts: the `start` of each graph, None for those without. options: other
    arguments of `color`, the same for all graphs. Raises the first error that occurs, TypeError for a single graph, and
    ValueError if there are not as many starts as graphs. Progress is shown on a terminal.
    """
    from gnn_training.console import in_threads  # here, because rich takes long to import

    if is_one_graph(graphs) or isinstance(graphs, str):
        raise TypeError("color_many takes a list of graphs: give [graph], or call color")
    if not isinstance(graphs, Iterable):
        raise TypeError(f"color_many takes a list of graphs, not {type(graphs).__name__}")
    if "start" in options:
        raise TypeError("color_many takes starts, a list with one for each graph, in the place of start")
    graphs = list(graphs)
    pairs = list(zip(graphs, [None] * len(graphs) if starts is None else starts, strict=True))
    compile_all()

    def work(pair: tuple[Any, Any]) -> Any:
        return color(pair[0], seconds, threads=1, start=pair[1], **options)

    return list(in_threads(work, pairs, num_cores()))


def _by_node(start: Any, is_named: bool) -> Mapping[Any, int]:
    """Return a coloring as a dict from node to color. TypeError if it is none, or an array for nodes with names."""
    if isinstance(start, Mapping):
        return start
    colors = np.asarray(start.cpu() if hasattr(start, "cpu") else start)
    if is_named or colors.ndim != 1:
        kind = "dict from node to color" if is_named else "color per node, or a dict from node to color"
        raise TypeError(f"start must be a {kind}, as color returns it, not {type(start).__name__}")
    return dict(enumerate(colors.tolist()))


def _number(name: str, value: Any, kind: type, least: int) -> Any:
    """Return a number of Python or numpy. TypeError if it is none, ValueError if it is too small or not finite."""
    if isinstance(value, bool) or not isinstance(value, kind):
        what = "an integer" if kind is Integral else "a number"
        raise TypeError(f"{name} ({value!r}) must be {what}, not {type(value).__name__}")
    if not least <= value < math.inf:  # type: ignore[operator]
        raise ValueError(f"{name} ({value}) must be a number of {least} or above")
    return value
