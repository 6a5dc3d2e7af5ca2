"""Build the program as one ONNX model with trained weights, and check that it computes what torch computes."""

import copy
import json
import logging
import math

import networkx as nx
import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from gnn_training import contract
from gnn_training.errors import UserError
from gnn_training.graph import Graph, concatenated
from gnn_training.network.network import ColoringNetwork
from gnn_training.onnx_program import golden
from gnn_training.onnx_program.program import Program

log = logging.getLogger(__name__)
RULE = f"{contract.WEIGHT_NAMES}unsqueeze"  # name of the rule's weights in the model
GOLDEN_PROBES = ("one node, the pair (0, 0)", "edgeless", "ring", "petersen", "several graphs")
EXACT_OUTPUTS = ("color_logits", "last")  # conflicts after the last round show more differences than colors
COMPARED = (*contract.OUTPUTS, "last")
ROUNDS, THREADS = 10, (1, 4)  # rounds, and numbers of threads, of the comparisons with torch
TOLERANCE = 1e-4  # largest relative difference of predictions; those measured are below 1e-5
SMALL = 200  # most nodes of a probe that is also searched for the default number of rounds

EdgeList = tuple[np.ndarray, np.ndarray]  # edge_index (2, E) and batch (N,)


def build(network: ColoringNetwork, rounds: int, metadata: dict[str, str]) -> onnx.ModelProto:
    """Return the program with the weights of a network. rounds: most rounds of a call that names none. Its operators do
    not depend on the weights, so they are taken from the file that comes with this package (see
    scripts/trace_program.py). UserError if that file has weights of other shapes.
    """
    model = onnx.load(contract.SHIPPED_MODEL)
    predictions = network.predictions.state_dict(prefix=f"{contract.WEIGHT_NAMES}predictions.")
    weights = {name: weight.detach().cpu().numpy() for name, weight in {RULE: network.rule, **predictions}.items()}
    values = {"steps": np.array(-rounds), **weights}
    for tensor in model.graph.initializer:
        if (value := values.get(tensor.name)) is not None and value.size == math.prod(tensor.dims):
            tensor.CopyFrom(numpy_helper.from_array(value.reshape(tensor.dims), tensor.name))
            del values[tensor.name]
    if values:
        missing = f"{contract.SHIPPED_MODEL}: has no weight {next(iter(values))} of the shape that this network has"
        raise UserError(f"{missing}: put the network into it with scripts/trace_program.py")
    del model.metadata_props[:]
    helper.set_model_props(model, metadata)
    return model


def verified(model: onnx.ModelProto, network: ColoringNetwork) -> dict[str, bytes]:
    """Return the files of a model by name. UserError if it does not compute what the program computes in torch."""
    content = model.SerializeToString()
    log.info("%.0f kB; checking it against torch", len(content) / 1000)
    verify(model, Program(network).eval())
    graphs = probes()
    vectors = golden.make(content, {name: graphs[name] for name in GOLDEN_PROBES})
    required = without_defaults(model).SerializeToString()
    return {
        contract.MODEL_FILE: content,
        contract.WEB_FILE: required,
        contract.GOLDEN_FILE: json.dumps(vectors).encode(),
    }


def without_defaults(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same model with all inputs required: onnxruntime-web takes no value for an input that has a default."""
    required = copy.deepcopy(model)
    del required.graph.initializer[:]
    required.graph.initializer.extend(x for x in model.graph.initializer if x.name not in contract.OPTIONAL_INPUTS)
    return required


def probes() -> dict[str, EdgeList]:
    """Graphs of many sizes and shapes, the awkward ones first."""
    gnp, empty, complete = nx.fast_gnp_random_graph, nx.empty_graph, nx.complete_graph
    edge_index, batch = edge_list(gnp(40, 0.3, seed=6))
    once = edge_index[:, edge_index[0] < edge_index[1]]
    careless = np.concatenate([once, once[:, :1], [[0], [0]]], axis=1)  # one edge twice, and a loop
    two_graphs, numbers = edge_list(nx.cycle_graph(7), nx.path_graph(4))
    return {
        "one node, no edge": edge_list(empty(1)),
        "one node, the pair (0, 0)": (np.zeros((2, 1), dtype=np.int64), np.zeros(1, dtype=np.int64)),
        "edgeless": edge_list(empty(6)),
        "one edge": edge_list(nx.path_graph(2)),
        "ring": edge_list(nx.cycle_graph(7)),
        "complete": edge_list(complete(9)),
        "petersen": edge_list(nx.petersen_graph()),
        "disconnected": edge_list(nx.disjoint_union(gnp(20, 0.4, seed=1), empty(5))),
        "sparse": edge_list(gnp(120, 0.05, seed=2)),
        "dense": edge_list(gnp(60, 0.8, seed=3)),
        "several graphs": edge_list(gnp(30, 0.5, seed=4), empty(3), complete(5), gnp(80, 0.1, seed=5)),
        "numbers left out": (two_graphs, 5 * numbers + 2),
        "half the directions": (careless, batch),
        "large": edge_list(gnp(1500, 0.01, seed=7)),
    }


def edge_list(*graphs: nx.Graph) -> EdgeList:
    """Edges sorted by source, then by target. This order exposes callers that reshape pairs (E, 2) to (2, E)."""
    edge_index, batch = concatenated([Graph.from_edges(len(graph), list(graph.edges)) for graph in graphs])
    return edge_index[:, np.lexsort(edge_index[::-1])], batch


def verify(model: onnx.ModelProto, program: Program) -> None:
    """Raise UserError unless the model has the contract's form and gives torch's numbers on every probe."""
    onnx.checker.check_model(model, full_check=True)
    opset = {entry.domain: entry.version for entry in model.opset_import}
    if model.ir_version > contract.MAX_IR_VERSION or opset != {"": contract.OPSET}:
        needed = f"IR {contract.MAX_IR_VERSION} and {contract.OPSET}"
        raise UserError(f"the model has IR {model.ir_version} and opsets {opset}, not {needed}")
    watched = copy.deepcopy(model)
    watched.graph.output.append(helper.make_tensor_value_info("last", TensorProto.FLOAT, None))
    runtimes = {threads: golden.session(watched.SerializeToString(), threads) for threads in THREADS}
    for name, (edge_index, batch) in probes().items():
        inputs = golden.feeds(edge_index, batch, num_colors=[0], seed=3, steps=ROUNDS)
        made = in_torch(program, inputs)
        expected = {output: made[output].numpy() for output in COMPARED}
        for threads, runtime in runtimes.items():
            compare(f"{name}, {threads} threads", expected, dict(zip(COMPARED, runtime.run(None, inputs), strict=True)))
        plain = golden.feeds(edge_index, batch) if len(batch) <= SMALL else inputs
        check_proper(name, edge_index, runtimes[1].run(["color_logits"], plain)[0])
    log.info("the same as in torch on %d probes", len(probes()))


def in_torch(program: Program, inputs: dict[str, np.ndarray]) -> dict[str, Tensor]:
    """Run the program in torch and return its tensors by name."""
    return program(**{name: torch.tensor(value) for name, value in inputs.items()})


def compare(where: str, expected: dict[str, np.ndarray], got: dict[str, np.ndarray]) -> None:
    """Raise UserError if the shape or the numbers of an output differ from those of torch."""
    for name, value in expected.items():
        if got[name].shape != value.shape:
            raise UserError(f"{where}: {name} has shape {got[name].shape}, torch gives {value.shape}")
        error = float(np.abs(got[name] - value).max())
        allowed = 0.0 if name in EXACT_OUTPUTS else TOLERANCE * max(1.0, float(np.abs(value).max()))
        if not error <= allowed:
            raise UserError(f"{where}: {name} differs from torch by {error:.2g}")


def check_proper(name: str, edge_index: np.ndarray, logits: np.ndarray) -> None:
    """Raise UserError if two neighbours of a probe share the color with the highest of their color_logits (N, 256)."""
    colors, (s, t) = logits.argmax(1), edge_index
    if np.any(colors[s[s != t]] == colors[t[s != t]]):
        raise UserError(f"{name}: the argmax of color_logits is not a proper coloring")
