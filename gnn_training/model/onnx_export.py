"""The program as one ONNX model: torch exports every part, and the names of their tensors join them."""
# DOC Proof that an ONNX model computes what torch computes, before it may be called a result.
# DOC The oldest ONNX Runtime that callers may have, in an environment of its own.

import logging
import os
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import networkx as nx
import numpy as np
import onnx
import onnx_ir as ir
import torch
from onnx import TensorProto, helper, numpy_helper

from gnn_training.contract import (
    GRAPH_TYPES,
    INPUTS,
    MAX_COLORS,
    MAX_IR_VERSION,
    NUM_FEATURES,
    OPSET,
    OPTIONAL_INPUTS,
    OUTPUTS,
)
from gnn_training.errors import UserError
from gnn_training.graph import Graph
from gnn_training.model import golden
from gnn_training.model.graphs import flat
from gnn_training.model.program import Program

for noisy in ("torch.onnx", "onnx_ir", "onnxscript"):  # what they warn of is no news to whoever trains
    logging.getLogger(noisy).setLevel(logging.ERROR)
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
INPUT_TYPES = {
    "node_features": (FLOAT, ["N", NUM_FEATURES]),
    "edge_index": (INT64, [2, "E"]),
    "batch": (INT64, ["N"]),
    "num_colors": (INT64, ["num_colors"]),  # one number for all graphs, or one for each
    "seed": (INT64, []),
    "steps": (INT64, []),
}
OUTPUT_TYPES = {
    "color_logits": (FLOAT, ["N", MAX_COLORS]),
    "chromatic": (FLOAT, ["B"]),
    "graph_type_logits": (FLOAT, ["B", len(GRAPH_TYPES)]),
    "difficulty": (FLOAT, ["B"]),
}


def build(program: Program, steps: int, metadata: dict[str, str]) -> onnx.ModelProto:
    """Export `program` with `steps` refinement rounds as the default of a plain call.

    The file has the contract's inputs and outputs, all sizes dynamic, weights inside.
    """
    tensors = program(**_example())
    shared = set(tensors)
    parts = [_part(part, tensors, shared) for part in program.parts]
    defaults = {"num_colors": [0], "seed": 0, "steps": steps}
    graph = helper.make_graph(
        [node for part in parts for node in part.graph.node],
        "coloring_gnn",
        [helper.make_tensor_value_info(name, *INPUT_TYPES[name]) for name in INPUTS + OPTIONAL_INPUTS],
        [helper.make_tensor_value_info(name, *OUTPUT_TYPES[name]) for name in OUTPUTS],
        [initializer for part in parts for initializer in part.graph.initializer]
        + [_constant(name, value) for name, value in defaults.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=MAX_IR_VERSION)
    helper.set_model_props(model, metadata)
    return model


def _example() -> dict[str, torch.Tensor]:
    """Four rings of seven: the exporter keeps none of these sizes (0 and 1 it would) but could mix up equal ones."""
    ring, first = torch.arange(7), 7 * torch.arange(4)[:, None]
    edges = torch.stack([(first + ring).ravel(), (first + (ring + 1) % 7).ravel()])
    return {
        "edge_index": torch.cat([edges, edges.flip(0)], 1),
        "batch": torch.arange(28) // 7,
        "num_colors": torch.zeros(4, dtype=torch.int64),
        "seed": torch.tensor(0),
        "steps": torch.tensor(2),
    }


def _part(part: torch.nn.Module, tensors: dict[str, torch.Tensor], shared: set[str]) -> onnx.ModelProto:
    """One part as an ONNX model whose tensors and nodes carry its name, but for those that parts share."""
    examples = tuple(tensors[name] for name in part.inputs)
    sizes = tuple({i: torch.export.Dim.DYNAMIC for i, size in enumerate(x.shape) if size != 2} for x in examples)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # torch warns about its own internals
        exported = torch.export.export(part, examples, dynamic_shapes=sizes)
        made = torch.onnx.export(
            exported, opset_version=OPSET, input_names=part.inputs, output_names=part.outputs, verbose=False
        )
    graph = made.model.graph
    prefix = f"{type(part).__name__}/"
    for value in list(_values(graph)):
        value.metadata_props.clear()
        value.name = value.name if value.name in shared else prefix + value.name
    for node in graph.all_nodes():
        node.metadata_props.clear()  # stack traces with paths of this machine
        node.name = prefix + (node.name or "")
    return ir.to_proto(made.model)


def _values(graph: ir.Graph):
    """Every tensor of a graph and of the loop bodies within it."""
    bodies = [a.value for n in graph.all_nodes() for a in n.attributes.values() if a.type == ir.AttributeType.GRAPH]
    for each in [graph, *bodies]:
        yield from each.inputs
        yield from each.initializers.values()
    for node in graph.all_nodes():
        yield from node.outputs


def _constant(name: str, value: int | list[int]) -> TensorProto:
    return numpy_helper.from_array(np.array(value, dtype=np.int64), name)


log = logging.getLogger(__name__)
Flat = tuple[np.ndarray, np.ndarray]
"""edge_index (2, E) and batch (N,)."""
TOLERANCE = 1e-3  # after ROUNDS rounds; measured differences are near 1e-5
ROUNDS = 3
THREADS = (1, 4)
SLACK = 0.05  # share of colors by which whole refinements of the two runtimes may differ, summed over the small probes
SMALL = 200  # nodes of a probe that is also refined to the end


def probes() -> dict[str, Flat]:
    """Graphs of many sizes and shapes, the awkward ones first."""
    gnp = nx.fast_gnp_random_graph
    return {
        "one node, no edge": _flat([nx.empty_graph(1)]),
        "one node, the pair (0, 0)": (np.zeros((2, 1), dtype=np.int64), np.zeros(1, dtype=np.int64)),
        "edgeless": _flat([nx.empty_graph(6)]),
        "one edge": _flat([nx.path_graph(2)]),
        "ring": _flat([nx.cycle_graph(7)]),
        "complete": _flat([nx.complete_graph(9)]),
        "petersen": _flat([nx.petersen_graph()]),
        "disconnected": _flat([nx.disjoint_union(gnp(20, 0.4, seed=1), nx.empty_graph(5))]),
        "sparse": _flat([gnp(120, 0.05, seed=2)]),
        "dense": _flat([gnp(60, 0.8, seed=3)]),
        "several graphs": _flat([gnp(30, 0.5, seed=4), nx.empty_graph(3), nx.complete_graph(5), gnp(80, 0.1, seed=5)]),
        "half the directions": _one_way(_flat([gnp(40, 0.3, seed=6)])),
        "thousand nodes": _flat([gnp(1000, 0.5, seed=7)]),
    }


def _flat(graphs: list[nx.Graph]) -> Flat:
    """Edges in the order of an adjacency matrix. Reshaped to (2, E) instead of transposed, pairs [i, j] in that order
    make another graph; all edges one way and then the other would make the same, and golden vectors miss the mistake.
    """
    edge_index, batch = flat([Graph.from_edges(len(graph), list(graph.edges)) for graph in graphs])
    order = np.lexsort(edge_index.numpy()[::-1])
    return edge_index.numpy()[:, order], batch.numpy()


def _one_way(graph: Flat) -> Flat:
    """Every edge once, one twice, and a loop: what a careless caller sends."""
    edges = graph[0][:, graph[0][0] < graph[0][1]]
    return np.concatenate([edges, edges[:, :1], [[0], [0]]], axis=1), graph[1]


def verify(model: onnx.ModelProto, program: Program) -> None:
    """Check the model's form, and its numbers against torch on every probe with 1 and 4 threads.

    Raises:
        UserError: it is not what the contract says, or differs from torch.
    """
    onnx.checker.check_model(model, full_check=True)
    opset = {entry.domain: entry.version for entry in model.opset_import}
    if model.ir_version > MAX_IR_VERSION or opset != {"": OPSET}:
        raise UserError(f"the model has IR {model.ir_version} and opsets {opset}, not IR {MAX_IR_VERSION} and {OPSET}")
    watched = onnx.ModelProto()
    watched.CopyFrom(model)
    watched.graph.output.append(onnx.helper.make_tensor_value_info("last", onnx.TensorProto.FLOAT, None))
    runtimes = {threads: golden.session(watched.SerializeToString(), threads) for threads in THREADS}
    used = np.zeros(2)
    for name, (edge_index, batch) in probes().items():
        inputs = golden.feeds(edge_index, batch, num_colors=[0], seed=3, steps=ROUNDS)
        expected = _torch(program, inputs)
        for threads, runtime in runtimes.items():
            got = dict(zip([*OUTPUTS, "last"], runtime.run(None, inputs), strict=True))
            _compare(f"{name}, {threads} threads", expected, got)
        if len(batch) <= SMALL:
            del inputs["steps"]
            logits = runtimes[1].run(["color_logits"], inputs)[0]
            steps = next(onnx.numpy_helper.to_array(x) for x in model.graph.initializer if x.name == "steps")
            both = logits, _torch(program, {**inputs, "steps": steps})["color_logits"]
            used += [_proper_colors(name, edge_index, batch, each) for each in both]
    if abs(used[0] - used[1]) > max(2, SLACK * used[1]):
        raise UserError(f"refined to the end the model uses {used[0]:.0f} colors on the probes, torch {used[1]:.0f}")
    log.info("parity with torch on %d probes, %.0f and %.0f colors after all rounds", len(probes()), *used)


def _torch(program: Program, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    made = program(**{name: torch.tensor(value) for name, value in inputs.items()})
    return {name: made[name].numpy() for name in [*OUTPUTS, "last"]}


def _compare(where: str, expected: dict[str, np.ndarray], got: dict[str, np.ndarray]) -> None:
    for name, value in expected.items():
        if got[name].shape != value.shape:
            raise UserError(f"{where}: {name} has shape {got[name].shape}, torch gives {value.shape}")
        error = float(np.abs(got[name] - value).max())
        if not error <= TOLERANCE * max(1.0, float(np.abs(value).max())):
            raise UserError(f"{where}: {name} differs from torch by {error:.2g}")


def _proper_colors(name: str, edge_index: np.ndarray, batch: np.ndarray, logits: np.ndarray) -> int:
    """Colors of all graphs of a probe, summed."""
    colors, (s, t) = logits.argmax(1), edge_index
    if np.any(colors[s[s != t]] == colors[t[s != t]]):
        raise UserError(f"{name}: the argmax of color_logits is not a proper coloring")
    return len(np.unique(batch * MAX_COLORS + colors))


log = logging.getLogger(__name__)
LOCK = Path(__file__).parents[2] / "requirements-oldest.lock"
HOME = Path(sys.prefix) / "oldest-onnxruntime"
SUPPORTED = (3, 11)  # the newest Python it was built for
WAY_OUT = "try again with a network, or take --no-oldest-runtime"


def check_in_oldest_runtime(model: Path, vectors: Path) -> None:
    """Run the golden vectors in the oldest runtime, which is installed first if it is not there.

    Raises:
        UserError: it cannot be installed, or the model does not give the golden outputs there.
    """
    version = re.search(r"onnxruntime==(\S+)", LOCK.read_text(encoding="utf-8"))[1]
    if sys.version_info[:2] != SUPPORTED:
        log.warning("NOT run in ONNX Runtime %s: it was never built for Python %d.%d", version, *sys.version_info[:2])
        return
    if not (HOME / "done").exists():
        log.info("installing ONNX Runtime %s (once)", version)
        _install()
    # Its folder comes first on the path, so its numpy and runtime hide the locked ones.
    command = [sys.executable, golden.__file__, str(model), str(vectors)]
    result = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(HOME)}, capture_output=True, text=True)
    if result.returncode:
        raise UserError(f"ONNX Runtime {version} does not run the model: {_last_line(result.stderr)}")
    log.info("ONNX Runtime %s gives the golden outputs", version)


def _install() -> None:
    pip = ["uv", "pip"] if shutil.which("uv") else [sys.executable, "-m", "pip"]
    command = [*pip, "install", "--quiet", "--no-deps", "--require-hashes", "--target", str(HOME), "-r", str(LOCK)]
    shutil.rmtree(HOME, ignore_errors=True)
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise UserError(f"the oldest ONNX Runtime cannot be installed ({_last_line(result.stderr)}); {WAY_OUT}")
    (HOME / "done").touch()


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no message"])[-1]
