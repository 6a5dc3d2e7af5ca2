"""A contract-conforming file without learning: node i takes class (2 seed + 1) i mod k, k being 3 or what is asked."""

from pathlib import Path

import onnx

from gnn_training.network.crossover_weights import to_text, zero_weights
from gnn_training.network.rule import NUM_WEIGHTS

CROSSOVER = to_text(zero_weights(1, 1)).replace('"', '\\"')
MODEL = """
<ir_version: 9, opset_import: ["" : 18],
 metadata_props: ["steps": "2", "rule": "[RULE]", "crossover": "CROSSOVER", "max_colors": "256"]>
tiny (float[N, 16] node_features, int64[2, E] edge_index, int64[N] batch,
      int64[B] num_colors, int64 seed, int64 steps)
    => (float[N, 256] color_logits, float[B] chromatic, float[B, 8] graph_type_logits, float[B] difficulty)
    <int64[1] num_colors = {0}, int64 seed = {0}, int64 steps = {2}, int64 zero = {0}, int64 one = {1}, int64 two = {2},
     int64 three = {3}, int64[1] one_row = {1}, int64[1] eight = {8}, int64 depth = {256}, float[2] levels = {0, 8},
     float nothing = {0}, bool go = {1}, int64[2] side = {300, 300}>
{
    last = ReduceMax<keepdims = 0>(batch)
    num_graphs = Add(last, one)
    B = Unsqueeze(num_graphs, zero)
    asked = Greater(num_colors, zero)
    usable = Where(asked, num_colors, three)
    k = Expand(usable, B)
    N = Shape(batch)
    num_nodes = Squeeze(N)
    node = Range(zero, num_nodes, one)
    twice = Mul(seed, two)
    factor = Add(twice, one)
    place = Mul(node, factor)
    k_of_node = Gather(k, batch)
    color = Mod(place, k_of_node)
    color_logits = OneHot(color, depth, levels)
    chromatic = Cast<to = 1>(k)
    types_shape = Concat<axis = 0>(B, eight)
    graph_type_logits = Expand(nothing, types_shape)
    grid = ConstantOfShape(side)
    done, worn = Loop(steps, go, nothing, grid) <body = round (int64 i, bool c, float before, float[300, 300] a)
        => (bool on, float after, float[300, 300] b) {
            on = Identity(c)
            unit = Constant<value_float = 1.0>()
            after = Add(before, unit)
            b = MatMul(a, a)
        }>
    rest = ReduceSum<keepdims = 0>(worn)
    count = Add(done, rest)
    difficulty = Expand(count, B)
}
""".replace("RULE", ", ".join(["0"] * NUM_WEIGHTS)).replace("CROSSOVER", CROSSOVER)


def write(path: Path, text: str = MODEL) -> Path:
    """Check and save the model; `difficulty` tells the steps it took, a step costs a millisecond or so."""
    model = onnx.parser.parse_model(text)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
    return path
