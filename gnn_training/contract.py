"""The contract with programs that load `coloring_gnn.onnx`: names, order, shapes, class ids. Change nothing lightly."""

from pathlib import Path

MODEL_FILE = "coloring_gnn.onnx"
WEB_FILE = "coloring_gnn_web.onnx"  # the same model with all inputs required: onnxruntime-web cannot set optional ones
SHIPPED_MODEL = Path(__file__).resolve().parent / "shipped" / MODEL_FILE  # no job writes this file
NUM_FEATURES = 16  # columns of `node_features`; the network reads the edges instead, so any content is fine
MAX_COLORS = 256  # columns of `color_logits`
INPUTS = ("node_features", "edge_index", "batch")
OPTIONAL_INPUTS = ("num_colors", "seed", "steps")  # initializers a caller may override
OUTPUTS = ("color_logits", "chromatic", "graph_type_logits", "difficulty")
OPSET = 18
MAX_IR_VERSION = 9  # ONNX Runtime 1.16 refuses 10
# Columns of `graph_type_logits`; the position of a type is its class id.
GRAPH_TYPES = (
    "random_sparse", "random_dense", "register", "leighton",
    "queen_geometric", "mycielski", "scale_free", "small_world",
)  # fmt: skip
CALL_ROUNDS = 2500  # most rounds of a call without `steps`; small graphs take fewer, see rounds_by_size
HORIZON = 100  # predictions are for this many times the rounds of a call
DEFINITIONS = {  # definitions of two outputs, for the metadata of the file
    "chromatic": f"predicted median of the number of colors that {HORIZON} times the rounds of the call would reach",
    "difficulty": "20 log10(1 + r), 100 at most: r rounds from the first coloring to the last color saved, as "
    f"predicted for {HORIZON} times the rounds of the call",
}
SETS_MIN_DENSITY, SETS_MAX_NODES = 0.15, 2048  # limits of graphs that independent sets may color first
CLIQUE_WORK, MIN_STARTS = 1_000_000, 16  # starts of cliques in a graph: CLIQUE_WORK / nodes of the batch, or MIN_STARTS
MAX_WEIGHT = 1e6  # largest absolute weight accepted in the metadata; those of the shipped file are below 4
CROSSOVER_WIDTH, CROSSOVER_LAYERS = 24, 2  # size of the shipped crossover network; here, as settings import no numpy
WEIGHT_NAMES = "Search/"  # prefix of the names of the network's weights in an exported file
UNKNOWN_TYPE = 255  # stored for graphs whose type nobody named
WEIGHTS_FILE = "model.safetensors"
GOLDEN_FILE = "coloring_gnn.golden.json"
SUMS_FILE = "SHA256SUMS"
MODEL_FILES = (MODEL_FILE, WEB_FILE, GOLDEN_FILE, WEIGHTS_FILE)  # in the order in which `export` writes them


def rounds_by_size(num_nodes):  # type: ignore[no-untyped-def] # int, or an int64 tensor
    """The number of rounds of a call on a graph with num_nodes nodes, before the upper limit of the call."""
    return 20 + num_nodes**3 // 1000
