"""The program as one ONNX model: torch exports every part, and the names of their tensors join them."""

import logging
import warnings

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
