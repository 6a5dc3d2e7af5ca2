"""The program as one ONNX model, and the proof that this model computes what torch computes.

torch exports every part of the program by itself. The names of the tensors that the parts share join them again.
"""

import copy
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import networkx as nx
import numpy as np
import onnx
import onnx_ir as ir
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from gnn_training import contract
from gnn_training.contract import GRAPH_TYPES, INPUTS, MAX_COLORS, MAX_IR_VERSION, OPSET, OPTIONAL_INPUTS, OUTPUTS
from gnn_training.errors import UserError
from gnn_training.graph import Graph
from gnn_training.network.graphs import concatenated
from gnn_training.onnx_program import golden
from gnn_training.onnx_program.program import Program

log = logging.getLogger(__name__)
for noisy in ("torch.onnx", "onnx_ir", "onnxscript"):  # their warnings say nothing to whoever trains
    logging.getLogger(noisy).setLevel(logging.ERROR)
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
TYPES: dict[str, tuple[int, list[int | str]]] = {  # and shapes of inputs and outputs
    "node_features": (FLOAT, ["N", contract.NUM_FEATURES]),
    "edge_index": (INT64, [2, "E"]),
    "batch": (INT64, ["N"]),
    "num_colors": (INT64, ["num_colors"]),  # one number for all graphs, or one for each
    "seed": (INT64, []),
    "steps": (INT64, []),
    "color_logits": (FLOAT, ["N", MAX_COLORS]),
    "chromatic": (FLOAT, ["B"]),
    "graph_type_logits": (FLOAT, ["B", len(GRAPH_TYPES)]),
    "difficulty": (FLOAT, ["B"]),
}
EXACT = ("color_logits", "last")  # conflicts after the last round say more than the coloring
COMPARED = (*OUTPUTS, "last")
ROUNDS, THREADS = 10, (1, 4)  # of the comparisons
TOLERANCE = 1e-4  # of the predictions; measured differences are below 1e-5
SMALL = 200  # nodes of a probe that is also searched as long as the file does by itself

EdgeList = tuple[np.ndarray, np.ndarray]  # edge_index (2, E) and batch (N,)


def build(program: Program, steps: int, metadata: dict[str, str]) -> onnx.ModelProto:
    """The contract's ONNX model with all sizes dynamic, for at most so many rounds where a call names none."""
    calls: list[tuple[nn.Module, Any, Any]] = []  # parts, inputs and outputs
    hooks = [part.register_forward_hook(lambda *call: calls.append(call)) for part in program.children()]
    # The exporter generalizes all sizes but 0, 1 and 2; equal ones it may mix up. Here no two are equal.
    edge_index, batch = _edge_list(*[nx.circulant_graph(23, [1, 2, 3])] * 3)
    example = golden.feeds(edge_index, np.where(batch == 2, 36, batch), num_colors=[0] * 3, seed=0, steps=2)
    tensors = _torch(program, example)
    for hook in hooks:
        hook.remove()
    names = {id(tensor): name for name, tensor in tensors.items()} | {id(tensors["batch"]): "nodes/batch"}
    graphs = [_part(*call, names).graph for call in calls]
    # Tools drop an input that no node reads, so none of the sizes of node_features is appended to the batch.
    nodes = [
        helper.make_node("Shape", ["node_features"], ["nodes/sizes"], end=1),
        helper.make_node("Gather", ["nodes/sizes", "nodes/none"], ["nodes/no_size"]),
        helper.make_node("Concat", ["batch", "nodes/no_size"], ["nodes/batch"], axis=0),
    ]
    nodes += [node for graph in graphs for node in graph.node]
    inputs = [helper.make_tensor_value_info(name, *TYPES[name]) for name in INPUTS + OPTIONAL_INPUTS]
    outputs = [helper.make_tensor_value_info(name, *TYPES[name]) for name in OUTPUTS]
    weights = [weight for graph in graphs for weight in graph.initializer]
    for name, default in {"num_colors": [0], "seed": 0, "steps": -steps, "nodes/none": []}.items():
        weights.append(numpy_helper.from_array(np.array(default, dtype=np.int64), name))
    graph = helper.make_graph(nodes, "coloring_gnn", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=MAX_IR_VERSION)
    helper.set_model_props(model, metadata)
    return model


def without_defaults(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same model with all inputs required: onnxruntime-web takes no value for an input that has a default."""
    required = copy.deepcopy(model)
    del required.graph.initializer[:]
    required.graph.initializer.extend(x for x in model.graph.initializer if x.name not in OPTIONAL_INPUTS)
    return required


def _part(part: nn.Module, inputs: Any, outputs: Any, names: dict[int, str]) -> onnx.ModelProto:
    """A part as an ONNX model. Its inputs and outputs have their names, all else begins with the part's name."""
    taken, given = ([names[id(x)] for x in tree_leaves(tensors)] for tensors in (inputs, outputs))
    sizes = tree_map(lambda x: {i: torch.export.Dim.DYNAMIC for i, size in enumerate(x.shape) if size != 2}, inputs)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # torch warns about its own internals
        exported = torch.export.export(part, inputs, dynamic_shapes=sizes)
        made = torch.onnx.export(exported, opset_version=OPSET, input_names=taken, output_names=given, verbose=False)
    assert made is not None
    hoist(made.model.graph)
    prefix = f"{type(part).__name__}/"
    everything: list[ir.Value | ir.Node] = [*_values(made.model.graph), *made.model.graph.all_nodes()]
    for named in everything:
        named.metadata_props.clear()  # stack traces with paths of this machine
        named.name = named.name if named.name in taken + given else f"{prefix}{named.name or ''}"
    return ir.to_proto(made.model)


def hoist(graph: ir.Graph) -> None:
    """Move the nodes out of loops whose result is the same in every round, such as the sizes of tensors."""
    for loop in [node for node in graph if node.op_type == "Loop"]:
        body = loop.attributes["body"].as_graph()
        hoist(body)
        before_first_round = dict(zip(body.inputs[2:], loop.inputs[2:], strict=True))
        varying = {*body.inputs, *(output for node in body for output in node.outputs)}
        for node in list(body):
            if node.op_type == "Shape" and node.inputs[0] in before_first_round:  # a loop keeps the shapes of its state
                node.replace_input_with(0, before_first_round[node.inputs[0]])
            if node.op_type != "Loop" and varying.isdisjoint(node.inputs) and not {*node.outputs} & {*body.outputs}:
                varying -= {*node.outputs}
                body.remove(node)
                graph.insert_before(loop, node)


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    """Every tensor of a graph and of the loop bodies within it."""
    bodies = [a.value for n in graph.all_nodes() for a in n.attributes.values() if a.type == ir.AttributeType.GRAPH]
    for each in [graph, *bodies]:
        yield from each.inputs
        yield from each.initializers.values()
    for node in graph.all_nodes():
        yield from node.outputs


def probes() -> dict[str, EdgeList]:
    """Graphs of many sizes and shapes, the awkward ones first."""
    gnp, empty, complete = nx.fast_gnp_random_graph, nx.empty_graph, nx.complete_graph
    edge_index, batch = _edge_list(gnp(40, 0.3, seed=6))
    once = edge_index[:, edge_index[0] < edge_index[1]]
    careless = np.concatenate([once, once[:, :1], [[0], [0]]], axis=1)  # one edge twice, and a loop
    two_graphs, numbers = _edge_list(nx.cycle_graph(7), nx.path_graph(4))
    return {
        "one node, no edge": _edge_list(empty(1)),
        "one node, the pair (0, 0)": (np.zeros((2, 1), dtype=np.int64), np.zeros(1, dtype=np.int64)),
        "edgeless": _edge_list(empty(6)),
        "one edge": _edge_list(nx.path_graph(2)),
        "ring": _edge_list(nx.cycle_graph(7)),
        "complete": _edge_list(complete(9)),
        "petersen": _edge_list(nx.petersen_graph()),
        "disconnected": _edge_list(nx.disjoint_union(gnp(20, 0.4, seed=1), empty(5))),
        "sparse": _edge_list(gnp(120, 0.05, seed=2)),
        "dense": _edge_list(gnp(60, 0.8, seed=3)),
        "several graphs": _edge_list(gnp(30, 0.5, seed=4), empty(3), complete(5), gnp(80, 0.1, seed=5)),
        "numbers left out": (two_graphs, 5 * numbers + 2),
        "half the directions": (careless, batch),
        "large": _edge_list(gnp(1500, 0.01, seed=7)),
    }


def _edge_list(*graphs: nx.Graph) -> EdgeList:
    """Edges in the order of an adjacency matrix: only there a caller who reshapes pairs to (2, E) always fails."""
    tensors = concatenated([Graph.from_edges(len(graph), list(graph.edges)) for graph in graphs])
    edge_index, batch = (tensor.numpy() for tensor in tensors)
    return edge_index[:, np.lexsort(edge_index[::-1])], batch


def verify(model: onnx.ModelProto, program: Program) -> None:
    """Raise UserError unless the model has the contract's form and gives torch's numbers on every probe."""
    onnx.checker.check_model(model, full_check=True)
    opset = {entry.domain: entry.version for entry in model.opset_import}
    if model.ir_version > MAX_IR_VERSION or opset != {"": OPSET}:
        raise UserError(f"the model has IR {model.ir_version} and opsets {opset}, not IR {MAX_IR_VERSION} and {OPSET}")
    watched = copy.deepcopy(model)
    watched.graph.output.append(onnx.helper.make_tensor_value_info("last", FLOAT, None))
    runtimes = {threads: golden.session(watched.SerializeToString(), threads) for threads in THREADS}
    for name, (edge_index, batch) in probes().items():
        inputs = golden.feeds(edge_index, batch, num_colors=[0], seed=3, steps=ROUNDS)
        made = _torch(program, inputs)
        expected = {output: made[output].numpy() for output in COMPARED}
        for threads, runtime in runtimes.items():
            compare(f"{name}, {threads} threads", expected, dict(zip(COMPARED, runtime.run(None, inputs), strict=True)))
        plain = golden.feeds(edge_index, batch) if len(batch) <= SMALL else inputs
        check_proper(name, edge_index, runtimes[1].run(["color_logits"], plain)[0])
    log.info("the same as in torch on %d probes", len(probes()))


def _torch(program: Program, inputs: dict[str, np.ndarray]) -> dict[str, Tensor]:
    return program(**{name: torch.tensor(value) for name, value in inputs.items()})


def compare(where: str, expected: dict[str, np.ndarray], got: dict[str, np.ndarray]) -> None:
    """Raise UserError if an output has another shape than torch's, or other numbers."""
    for name, value in expected.items():
        if got[name].shape != value.shape:
            raise UserError(f"{where}: {name} has shape {got[name].shape}, torch gives {value.shape}")
        error = float(np.abs(got[name] - value).max())
        allowed = 0.0 if name in EXACT else TOLERANCE * max(1.0, float(np.abs(value).max()))
        if not error <= allowed:
            raise UserError(f"{where}: {name} differs from torch by {error:.2g}")


def check_proper(name: str, edge_index: np.ndarray, logits: np.ndarray) -> None:
    """Raise UserError if two neighbours of a probe share the color with the highest of their color_logits (N, 256)."""
    colors, (s, t) = logits.argmax(1), edge_index
    if np.any(colors[s[s != t]] == colors[t[s != t]]):
        raise UserError(f"{name}: the argmax of color_logits is not a proper coloring")
