"""The exported file as its callers see it: ONNX Runtime and numpy, no torch and no torch-geometric."""

import logging
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime

from gnn_training.contract import INPUTS, MAX_COLORS, NUM_FEATURES, OPTIONAL_INPUTS, OUTPUTS
from gnn_training.errors import UserError
from gnn_training.graph import Graph
from gnn_training.machine import available_bytes

logger = logging.getLogger(__name__)
# Measured from n = 1000 to 4000, rounded up; a pair is two nodes, a cell a node and a color.
BYTES_PER_PAIR = 32
BYTES_PER_CELL = 600
WAY_OUT = "name a file written by `python -m gnn_training export`"


@dataclass(frozen=True)
class Prediction:
    """What the file says about G graphs, in the order they were given."""

    logits: list[np.ndarray]
    """(N, C) float32 per graph; the argmax of a row is the node's class."""
    chromatic: np.ndarray
    """(G,) float32 estimated number of colors needed."""
    graph_type_logits: np.ndarray
    """(G, 8) float32, columns as in contract.GRAPH_TYPES."""
    difficulty: np.ndarray
    """(G,) float32, 0 easy to 100 hard."""


class Colorer:
    """An open model file."""

    def __init__(self, path: Path, threads: int = 0):
        """Open `path` for `threads` threads, 0 for every core this process may use.

        Raises:
            UserError: the file is missing, no ONNX, or has other tensors than the contract's.
        """
        start = time.monotonic()
        self.threads = threads or len(os.sched_getaffinity(0))
        self._session = _open(path, self.threads)
        _expect_contract(path, self._session)
        self.metadata: dict[str, str] = dict(self._session.get_modelmeta().custom_metadata_map)
        self.steps = int(self.metadata["steps"])
        self.loading_seconds = time.monotonic() - start

    def predict(
        self,
        graphs: Sequence[Graph],
        num_colors: Sequence[int] | None = None,
        seed: int | None = None,
        steps: int | None = None,
        seconds: float | None = None,
    ) -> Prediction:
        """Run G graphs as one batch; every option left out is not sent, so the file's own default holds.

        num_colors: colors to use per graph, 0 as predicted. seconds: give up after that long.

        Raises:
            TimeoutError: `seconds` are over; the runtime has stopped.
            MemoryError: the batch is too large for this machine.
        """
        need, left = needed_bytes(graphs), available_bytes()
        if need > left:
            raise MemoryError(f"the network needs about {need / 2**30:.1f} GiB and {left / 2**30:.1f} GiB are free")
        feeds = _collate(graphs)
        for name, value in zip(OPTIONAL_INPUTS, (num_colors, seed, steps), strict=True):
            if value is not None:
                feeds[name] = np.asarray(value, dtype=np.int64)
        logits, chromatic, types, difficulty = self._run(feeds, seconds)
        ends = np.cumsum([graph.num_nodes for graph in graphs])
        return Prediction(np.split(logits, ends[:-1]), chromatic, types, difficulty)

    def _run(self, feeds: dict[str, np.ndarray], seconds: float | None) -> list[np.ndarray]:
        # In a thread of its own: a call into the runtime hears neither the clock nor Ctrl-C, a waiting thread does.
        options = onnxruntime.RunOptions()
        options.log_severity_level = 4  # a stopped run is no error, and real ones are raised
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(self._session.run, list(OUTPUTS), feeds, options)
            try:
                return future.result(seconds)
            except TimeoutError:
                options.terminate = True
                raise TimeoutError(f"the network takes longer than {seconds:.0f} s") from None
            except KeyboardInterrupt:
                options.terminate = True
                raise
            except Exception as error:
                if "alloc" in str(error):
                    raise MemoryError(f"ONNX Runtime ran out of memory: {error}") from error
                raise


def needed_bytes(graphs: Sequence[Graph]) -> int:
    """Estimate what a call takes: graphs are padded to the largest, and every pair of nodes counts, edge or not."""
    size = max(graph.num_nodes for graph in graphs)
    colors = min(MAX_COLORS, 1 + max(int(graph.degrees().max()) for graph in graphs))
    return len(graphs) * size * (BYTES_PER_PAIR * size + BYTES_PER_CELL * colors)


def _open(path: Path, threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Threads that spin while they wait take the cores from those that work: half the speed on two cores, measured.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])
    except OSError as error:
        raise UserError(f"{path}: cannot be read, {error.strerror.lower()}; {WAY_OUT}") from error
    except Exception as error:  # the runtime's errors have no base class of their own
        reason = str(error).splitlines()[0].rpartition(" : ")[2].rstrip(".")
        raise UserError(f"{path}: ONNX Runtime {onnxruntime.__version__} refuses it ({reason}); {WAY_OUT}") from error


def _expect_contract(path: Path, session: onnxruntime.InferenceSession) -> None:
    found = (
        {tensor.name for tensor in session.get_inputs()},
        {tensor.name for tensor in session.get_overridable_initializers()},
        [tensor.name for tensor in session.get_outputs()],
    )
    for what, names, expected in zip(
        ("inputs", "optional inputs", "outputs"), found, (set(INPUTS), set(OPTIONAL_INPUTS), list(OUTPUTS)), strict=True
    ):
        if names != expected:
            raise UserError(
                f"{path}: is no coloring network, its {what} are {', '.join(sorted(names)) or 'none'} "
                f"instead of {', '.join(expected)}; {WAY_OUT}"
            )
    if not session.get_modelmeta().custom_metadata_map.get("steps", "").isdecimal():
        raise UserError(f"{path}: its metadata does not say how many steps a plain call takes; {WAY_OUT}")


def _collate(graphs: Sequence[Graph]) -> dict[str, np.ndarray]:
    sizes = [graph.num_nodes for graph in graphs]
    starts = np.cumsum([0, *sizes[:-1]])
    return {
        # The network reads the edges; what callers put here must not matter, so zeros are as good as any.
        "node_features": np.zeros((sum(sizes), NUM_FEATURES), dtype=np.float32),
        "edge_index": np.concatenate([g.edge_index() + start for g, start in zip(graphs, starts, strict=True)], axis=1),
        "batch": np.repeat(np.arange(len(graphs)), sizes),
    }
