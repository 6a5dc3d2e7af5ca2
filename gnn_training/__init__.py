"""Color graphs by a local search whose moves are learned; train the moves and export the search.

    import gnn_training, networkx
    gnn_training.color(networkx.petersen_graph())  # {0: 0, 1: 1, ...}
    gnn_training.Model().predict(networkx.petersen_graph()).chromatic  # estimated number of colors needed

The command line is `coloring-gnn`. The import loads no library before something is used.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gnn_training.api import color, color_many
    from gnn_training.errors import NoColoringError
    from gnn_training.onnx_program.session import Model
    from gnn_training.search.problem import Solution

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # or ONNX Runtime reports to Microsoft

__version__ = "0.7.0"
__all__ = ["Model", "NoColoringError", "Solution", "color", "color_many"]
MODULES = {"Model": "onnx_program.session", "NoColoringError": "errors", "Solution": "search.problem"}


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module(f"gnn_training.{MODULES.get(name, 'api')}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
