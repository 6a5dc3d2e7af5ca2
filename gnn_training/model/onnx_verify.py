"""Proof that an ONNX model computes what torch computes, before it may be called a result."""

import logging

import networkx as nx
import numpy as np
import onnx
import torch

from gnn_training.contract import MAX_COLORS, MAX_IR_VERSION, OPSET, OUTPUTS
from gnn_training.errors import UserError
from gnn_training.graph import Graph
from gnn_training.model import golden
from gnn_training.model.graphs import flat
from gnn_training.model.program import Program

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
