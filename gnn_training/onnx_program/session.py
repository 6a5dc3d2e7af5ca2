"""An exported file as its callers use it: ONNX Runtime and numpy, without torch. A search reads only its metadata."""

import json
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from threading import TIMEOUT_MAX
from typing import Any

import numpy as np
from google.protobuf import empty_pb2
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from gnn_training import contract, files, hub
from gnn_training.contract import GRAPH_TYPES, INPUTS, MAX_COLORS, MAX_WEIGHT, OPTIONAL_INPUTS, OUTPUTS
from gnn_training.errors import UserError
from gnn_training.graph import Graph, concatenated
from gnn_training.graph_objects import as_graph, is_one_graph
from gnn_training.machine import available_bytes, usable_threads
from gnn_training.network import crossover_weights, rule
from gnn_training.search.engine import SearchWeights
from gnn_training.search.kernels import first_fit

log = logging.getLogger(__name__)
MAX_STEPS = 10**9  # with more, a call looks for independent sets too long, because their patience grows with the steps
MODEL_LIMIT = 20_000_000  # largest size of a model file in bytes, forty times that of the shipped file
HINT = "name a file written by `coloring-gnn export`"


@dataclass(frozen=True)
class Prediction:
    """The answers of the network for G graphs, in the order of the call."""

    logits: list[np.ndarray]  # (N, C) float32 per graph; the argmax of a row is the node's color
    chromatic: np.ndarray  # (G,) float32 estimated number of colors needed
    graph_type_logits: np.ndarray  # (G, 8) float32, columns as in contract.GRAPH_TYPES
    difficulty: np.ndarray  # (G,) float32, 0 easy to 100 hard

    @property
    def graph_types(self) -> list[str]:
        """Most likely type of every graph."""
        return [GRAPH_TYPES[i] for i in self.graph_type_logits.argmax(1)]


def from_logits(graph: Graph, logits: np.ndarray) -> np.ndarray:
    """Decode logits (N, C) to proper colors (N,) int32: best class per node, stable sort by class, first fit."""
    return first_fit(*graph.csr(), np.argsort(np.argmax(logits, axis=1), kind="stable"))


class Model:
    """An open model file: `Model().predict(graph)` runs the file that comes with the package."""

    def __init__(self, path: Path | str | None = None, threads: int = 0):
        """Open `path`, or the shipped file, for `threads` threads, at most one per core; 0 takes every core. A path
        hf://owner/name[@revision] is fetched from the Hugging Face Hub. Raises UserError if the file is missing, is not
        ONNX, or has other tensors than the contract's; ONNX Runtime reads it at the first call.
        """
        self.path = hub.model_file(path or contract.SHIPPED_MODEL)
        self.threads = usable_threads(threads)
        self._content = files.read_bytes(self.path, MODEL_LIMIT, HINT)
        self.metadata = _metadata(self.path, self._content)
        with files.damaged(f"the metadata of {self.path}", HINT):
            self.steps = int(self.metadata["steps"])  # rounds of a call that does not name them
            self.rule = np.array(json.loads(self.metadata["rule"]), np.float32).reshape(rule.NUM_WEIGHTS)
            if self.steps < 0 or not np.abs(self.rule).max() <= MAX_WEIGHT:
                raise ValueError(f"steps must be 0 or more, and weights of the rule at most {MAX_WEIGHT:g}")
            text = self.metadata.get("crossover")
            self.crossover = _no_crossover(self.path) if text is None else crossover_weights.from_text(text)

    def __reduce__(self) -> tuple:
        """Pickle only path and threads; the copy opens the file again."""
        return Model, (self.path, self.threads)

    @property
    def trained(self) -> SearchWeights:
        """The weights that a search takes from the file."""
        return SearchWeights(self.rule, self.crossover)

    @cached_property
    def _session(self) -> Any:
        """The onnxruntime.InferenceSession; UserError if ONNX Runtime refuses the file."""
        from gnn_training.onnx_program.golden import onnxruntime, session

        try:
            return session(self._content, self.threads)
        except Exception as error:  # the runtime's errors have no base class of their own
            version = onnxruntime.__version__
            raise UserError(f"{self.path}: ONNX Runtime {version} refuses it ({_cause(error)}): {HINT}") from error

    def predict(
        self, graphs: Any, num_colors: Sequence[int] | None = None, seed: int | None = None,
        steps: int | None = None, seconds: float | None = None,
    ) -> Prediction:  # fmt: skip
        """Run a graph, or a list of G graphs as one batch. An option that is left out has the file's own default.
        graphs: anything that `as_graph` takes. num_colors: colors to try first per graph, 0 for one less than the first
        coloring has. Raises TypeError or ValueError if an object is no graph or has no nodes, ValueError for more than
        MAX_STEPS steps, MemoryError if the batch is too large for this machine, TimeoutError after `seconds`, once the
        runtime has stopped, and UserError if the call shows that the file is no coloring network.
        """
        from gnn_training.onnx_program import golden

        is_batch = isinstance(graphs, list | tuple) and not is_one_graph(graphs)
        batch = [as_graph(graph) for graph in graphs] if is_batch else [as_graph(graphs)]
        sizes = [graph.num_nodes for graph in batch]
        if not batch or 0 in sizes:
            raise ValueError("predict needs a graph, and every graph needs at least one node")
        if steps is not None and not -MAX_STEPS <= steps <= MAX_STEPS:
            raise ValueError(f"steps ({steps}) must be at most {MAX_STEPS}: call again with another seed for more")
        need, left = needed_bytes(batch), available_bytes()
        if need > left:
            raise MemoryError(f"the network needs about {need / 2**30:.1f} GiB and {left / 2**30:.1f} GiB are free")
        options = dict(zip(OPTIONAL_INPUTS, (num_colors, seed, steps), strict=True))
        given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        feeds = golden.feeds(*concatenated(batch), **given)
        try:
            results = self._run(feeds, seconds)
        except (MemoryError, TimeoutError, UserError):
            raise
        except Exception as error:  # the runtime's errors have no base class of their own
            raise UserError(f"{self.path}: a call fails in ONNX Runtime ({_cause(error)}); {HINT}") from error
        return self._prediction(results, sizes)

    def _prediction(self, outputs: Sequence[Any], sizes: Sequence[int]) -> Prediction:
        """The outputs of a call on graphs of these sizes. UserError if they cannot come from a coloring network."""
        results, count = [np.asarray(output) for output in outputs], len(sizes)
        shapes = [(sum(sizes), MAX_COLORS), (count,), (count, len(GRAPH_TYPES)), (count,)]
        if [(x.dtype.name, x.shape) for x in results] != [("float32", shape) for shape in shapes]:
            answers = ", ".join(f"{name} {x.dtype}{list(x.shape)}" for name, x in zip(OUTPUTS, results, strict=True))
            raise UserError(f"{self.path} is not a coloring network: it answers {answers}; {HINT}")
        logits, chromatic, types, difficulty = results
        if not (np.isfinite(chromatic).all() and np.isfinite(difficulty).all()):
            raise UserError(f"{self.path} is not a coloring network: its predictions are not finite; {HINT}")
        return Prediction(np.split(logits, np.cumsum(sizes)[:-1]), chromatic, types, difficulty)

    def _run(self, feeds: dict[str, np.ndarray], seconds: float | None) -> list[np.ndarray]:
        import onnxruntime

        # In its own thread: a call into the runtime does not notice the clock or Ctrl-C, a waiting thread does.
        options = onnxruntime.RunOptions()
        options.log_severity_level = 4  # log nothing: a stopped run is no error, and errors are raised
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(self._session.run, list(OUTPUTS), feeds, options)
            try:
                return future.result(None if seconds is None else min(seconds, TIMEOUT_MAX))
            except TimeoutError:
                raise TimeoutError(f"the network takes longer than {seconds:.0f} s") from None
            except Exception as error:
                if "alloc" in str(error):
                    raise MemoryError(f"ONNX Runtime ran out of memory: {error}") from error
                raise
            finally:
                options.terminate = True  # otherwise the pool would wait until the run is complete


def cached_model(path: Path | str | None) -> Model:
    """Return the model of a file, which is opened again only after the file has changed."""
    file = Path(path or contract.SHIPPED_MODEL)
    return _opened(path, file.stat().st_mtime_ns if file.exists() else 0)


@cache
def _opened(path: Path | str | None, _changed: int) -> Model:
    return Model(path)


def needed_bytes(graphs: Sequence[Graph]) -> int:
    """An upper bound of the memory of a call in bytes. Graphs are padded to the largest one. The terms follow the
    program in the file; their factors were measured on paths, trees, stars, grids, bipartite, complete and random
    graphs, alone and in batches, and rounded up.
    """
    size, degree = max(graph.num_nodes for graph in graphs), max(int(graph.degrees().max()) for graph in graphs)
    nodes, edges = len(graphs) * size, sum(graph.num_edges for graph in graphs)
    pairs = nodes * min(MAX_COLORS, degree + 1)  # pairs of a node and a color
    # A start of a clique has rows of nodes and neighbours; a node that a round examines, rows of neighbours and colors.
    starts = min(size, max(contract.MIN_STARTS, contract.CLIQUE_WORK // nodes))
    active = min(size, max(rule.ACTIVE, size // rule.NODES_PER_ACTIVE))
    dense = (size + 1) ** 2 if size <= contract.SETS_MAX_NODES else 0  # adjacency
    every = 25 * starts * (size + degree) + 60 * active * (degree + MAX_COLORS) + 10 * dense  # for every graph
    return 20_000_000 + 500 * edges + 2700 * nodes + 7 * pairs + len(graphs) * every


@cache  # so that the message is logged once
def _no_crossover(path: Path) -> crossover_weights.CrossoverWeights:
    """The crossover weights for a file that has none."""
    log.info("%s: has no weights of crossover, so children take the largest classes; export it again", path)
    return crossover_weights.zero_weights()


def _cause(error: Exception) -> str:
    """The error message of ONNX Runtime, without its codes."""
    return str(error).splitlines()[0].rpartition(" : ")[2].rstrip(".")


def _metadata(path: Path, content: bytes) -> dict[str, str]:
    """The metadata of an ONNX file. UserError if its inputs and outputs are not those of the contract. They are read
    without ONNX Runtime, because `color` needs only the metadata, and opening a session would make its start a third
    longer. The numbers of fields are those of onnx.proto.
    """
    with files.damaged(path, HINT):
        model = _fields(content)
        graph = [field for number, part in model if number == 7 for field in _fields(part)]
        constants, inputs, outputs = (_texts(graph, *place) for place in ((5, 8), (11, 1), (12, 1)))
        for what, names, expected in (
            ("inputs", [name for name in inputs if name not in constants], INPUTS),
            ("optional inputs", [name for name in inputs if name in constants], OPTIONAL_INPUTS),
            ("outputs", outputs, OUTPUTS),
        ):
            if sorted(names) != sorted(expected):
                differ = f"{', '.join(names) or 'none'} instead of {', '.join(expected)}"
                raise UserError(f"{path} is not a coloring network: its {what} are {differ}; {HINT}")
        return dict(zip(_texts(model, 14, 1), _texts(model, 14, 2), strict=True))


def _texts(fields: Sequence[tuple[int, Any]], number: int, part: int) -> list[str]:
    """The text of the inner field `part` of every field `number`."""
    return [dict(_fields(content)).get(part, b"").decode() for field, content in fields if field == number]


def _fields(content: bytes) -> list[tuple[int, Any]]:
    """Numbers and contents of the fields of a protocol buffer. The content of an inner message is bytes. ValueError if
    `content` is no protocol buffer or ends too early.
    """
    try:
        message = empty_pb2.Empty.FromString(content)
    except DecodeError as error:
        raise ValueError("it is no ONNX file or ends too early") from error
    return [(field.field_number, field.data) for field in UnknownFieldSet(message)]
