"""Color graphs with a graph neural network and a search; train and export that network.

    import gnn_training, networkx
    gnn_training.color(networkx.petersen_graph())  # {0: 0, 1: 1, ...}
    gnn_training.Model().predict(networkx.petersen_graph()).chromatic  # estimated number of colors needed

The command line is `coloring-gnn`. The import loads no library before something is used.
"""

import math
import os
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from gnn_training.model.session import Model

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # or ONNX Runtime reports to Microsoft

__version__ = "0.6.0"
__all__ = ["Model", "color"]


def color(
    graph: Any, seconds: float = 1.0, seed: int = 0, model: "Model | Path | str | None" = None,
    num_nodes: int | None = None,
) -> Any:  # fmt: skip
    """Color a graph properly, with as few colors as the time allows; colors count from 0 without gaps.

    graph: a networkx graph gives a dict from node to color; an edge array (E, 2) of integers gives a numpy array (N,);
    a torch_geometric Data gives a tensor (N,). Directions, parallel edges and self loops are ignored.
    seconds: time limit. The first use after an installation also compiles the search, which takes some seconds.
    model: an open Model, the path of an exported file, or hf://owner/name on the Hugging Face Hub; None takes the
    shipped one.
    num_nodes: N of an edge array; None takes the largest node + 1.

    Raises TypeError or ValueError for an argument that cannot be used, UserError if the model file cannot be read.
    """
    import numpy as np

    from gnn_training.graph import as_graph
    from gnn_training.model.session import Model, cached_model
    from gnn_training.solve.portfolio import Budget, colorings, compile_all

    if not 0 <= seconds < math.inf:
        raise ValueError(f"seconds ({seconds}) must be a number of 0 or above")
    if seed < 0:
        raise ValueError(f"seed ({seed}) must be 0 or above")
    opened = model if isinstance(model, Model) else cached_model(model)
    compile_all()
    deadline = time.monotonic() + seconds
    source = as_graph(graph, num_nodes)
    colors = np.empty(0, dtype=np.int64)
    if source.num_nodes:
        *_, best = colorings(source, opened.rule, Budget(deadline, 1, opened.threads, seed))
        colors = best.colors.astype(np.int64)
    if hasattr(graph, "is_multigraph"):
        return dict(zip(graph, colors.tolist(), strict=True))
    if hasattr(graph, "edge_index"):
        import torch

        return torch.from_numpy(colors)
    return colors


def __getattr__(name: str) -> Any:
    if name == "Model":
        from gnn_training.model.session import Model

        return Model
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
