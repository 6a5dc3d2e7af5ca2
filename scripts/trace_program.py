"""Trace the program again, after a change of what it computes: `python scripts/trace_program.py`.

torch exports every part of the program by itself, in a minute. The names of the tensors that the parts share join them
again. The file that comes with the package gets the new graph and keeps its weights; every later export puts its own
weights into it. `python scripts/trace_program.py FOLDER` writes to another folder.
"""

import logging
import sys
import warnings
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import onnx
import onnx_ir as ir
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from gnn_training import contract
from gnn_training.files import make_folder
from gnn_training.jobs.export import publish
from gnn_training.network.network import ColoringNetwork
from gnn_training.onnx_program import golden
from gnn_training.onnx_program.build import edge_list, in_torch, verified
from gnn_training.onnx_program.program import Program
from gnn_training.settings import SHIPPED
from gnn_training.training import checkpoint

for noisy in ("torch.onnx", "onnx_ir", "onnxscript"):  # their warnings say nothing
    logging.getLogger(noisy).setLevel(logging.ERROR)
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
TYPES: dict[str, tuple[int, list[int | str]]] = {  # and shapes of inputs and outputs
    "node_features": (FLOAT, ["N", contract.NUM_FEATURES]),
    "edge_index": (INT64, [2, "E"]),
    "batch": (INT64, ["N"]),
    "num_colors": (INT64, ["num_colors"]),  # one number for all graphs, or one for each
    "seed": (INT64, []),
    "steps": (INT64, []),
    "color_logits": (FLOAT, ["N", contract.MAX_COLORS]),
    "chromatic": (FLOAT, ["B"]),
    "graph_type_logits": (FLOAT, ["B", len(contract.GRAPH_TYPES)]),
    "difficulty": (FLOAT, ["B"]),
}


def trace(program: Program, steps: int, metadata: dict[str, str]) -> onnx.ModelProto:
    """The contract's ONNX model with all sizes dynamic, for at most so many rounds where a call names none."""
    calls: list[tuple[nn.Module, Any, Any]] = []  # parts, inputs and outputs
    hooks = [part.register_forward_hook(lambda *call: calls.append(call)) for part in program.children()]
    # The exporter generalizes all sizes but 0, 1 and 2; equal ones it may mix up. Here no two are equal.
    edge_index, batch = edge_list(*[nx.circulant_graph(23, [1, 2, 3])] * 3)
    example = golden.feeds(edge_index, np.where(batch == 2, 36, batch), num_colors=[0] * 3, seed=0, steps=2)
    tensors = in_torch(program, example)
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
    inputs = [helper.make_tensor_value_info(name, *TYPES[name]) for name in contract.INPUTS + contract.OPTIONAL_INPUTS]
    outputs = [helper.make_tensor_value_info(name, *TYPES[name]) for name in contract.OUTPUTS]
    weights = [weight for graph in graphs for weight in graph.initializer]
    for name, default in {"num_colors": [0], "seed": 0, "steps": -steps, "nodes/none": []}.items():
        weights.append(numpy_helper.from_array(np.array(default, dtype=np.int64), name))
    graph = helper.make_graph(nodes, "coloring_gnn", inputs, outputs, weights)
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", contract.OPSET)], ir_version=contract.MAX_IR_VERSION
    )
    helper.set_model_props(model, metadata)
    return model


def _part(part: nn.Module, inputs: Any, outputs: Any, names: dict[int, str]) -> onnx.ModelProto:
    """A part as an ONNX model. Its inputs and outputs have their names, all else begins with the part's name."""
    taken, given = ([names[id(x)] for x in tree_leaves(tensors)] for tensors in (inputs, outputs))
    sizes = tree_map(lambda x: {i: torch.export.Dim.DYNAMIC for i, size in enumerate(x.shape) if size != 2}, inputs)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # torch warns about its own internals
        exported = torch.export.export(part, inputs, dynamic_shapes=sizes)
        made = torch.onnx.export(
            exported, opset_version=contract.OPSET, input_names=taken, output_names=given, verbose=False
        )
    assert made is not None
    graph, prefix = made.model.graph, f"{type(part).__name__}/"
    hoist(graph)
    tensors = [each for part in (graph, *graph.subgraphs()) for each in (*part.inputs, *part.initializers.values())]
    results = [output for node in graph.all_nodes() for output in node.outputs]
    for named in (*tensors, *results, *graph.all_nodes()):
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


def main(folder: Path) -> None:
    """Write the files of the shipped weights."""
    old, network = onnx.load(contract.SHIPPED_MODEL), ColoringNetwork.from_state(checkpoint.read_weights(SHIPPED))
    metadata = {entry.key: entry.value for entry in old.metadata_props}
    model = trace(Program(network).eval(), int(metadata["steps"]), metadata)
    make_folder(folder)
    publish(folder, verified(model, network))


if __name__ == "__main__":
    main(Path(*sys.argv[1:]) if sys.argv[1:] else contract.SHIPPED_MODEL.parent)
