"""The networks that are trained: the rule of the search, CrossoverNetwork, which says what a child takes from two
colorings, and PredictionNetwork, which sees how far a search has come and predicts what more rounds will bring.

Letters in shapes: G graphs, N nodes (padded) or V nodes of all graphs in a row, E edges in both directions, K colors,
W wedges, H hidden width, T entries of SAVED.
"""

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, silu
from torch_geometric.data import HeteroData

from gnn_training.contract import CROSSOVER_LAYERS, CROSSOVER_WIDTH, GRAPH_TYPES
from gnn_training.network import rule
from gnn_training.network.crossover import CrossoverNetwork, size_of
from gnn_training.network.graphs import FEW_ROWS, Graphs, noise_table, take

warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
NUM_NODE_FEATURES, NUM_GRAPH_FEATURES = 5, 5  # of `structure`
NODE_INPUTS, GRAPH_INPUTS = NUM_NODE_FEATURES + 5, NUM_GRAPH_FEATURES + 11  # of States
HIDDEN, LAYERS, MESSAGE = 32, 3, 16  # width, messages that follow each other, and width of a message
SAVED = (1, 2, 3, 4, 5, 6, 8, 11, 15, 20, 28, 40, 60)  # colors that more rounds may save: a probability for each
NONE_SINCE = 1e5  # conflicts: a search has more where it has just saved a color
HARDEST = 5.0  # decimal logarithm of the rounds that difficulty 100 stands for
WEDGES = 8  # pairs of neighbours of every node that are looked at for triangles
HALVINGS = 17  # of a neighbour list until one entry is left, in an exported file: enough for 131,072 neighbours


class SearchState(NamedTuple):
    """What a search of every graph has seen. The first five are of its last coloring."""

    colors: Tensor      # (V,) int64
    free: Tensor        # (V,) float, open colors without a conflict, other than the node's own
    one: Tensor         # (V,) float, open colors with one conflict
    conflicts: Tensor   # (V,) float
    moves: Tensor       # (V,) float
    num_colors: Tensor  # (G,) float, fewest so far
    lower: Tensor       # (G,) float, bound on the number of colors
    rounds: Tensor      # (G,) float, so far
    reached: Tensor     # (G,) float, the round in which `num_colors` were reached
    fewest_conflicts: Tensor  # (G,) float, since then, with one color less
    horizon: Tensor     # (G,) float, rounds for which to predict; 0 for all that any method may find


class Edges(NamedTuple):
    """Nodes of G graphs one after the other, and their edges in both directions, sorted by source."""

    node_graph: Tensor  # (V,) int64
    degrees: Tensor     # (V,) int64
    source: Tensor      # (E,) int64
    neighbours: Tensor  # (E,) int64


class States(NamedTuple):
    """Searches as PredictionNetwork sees them."""

    edges: Edges
    node: Tensor        # (V, NODE_INPUTS) float
    graph: Tensor       # (G, GRAPH_INPUTS) float
    node_class: Tensor  # (V,) int64, the color class of every node, one of G K
    class_sizes: Tensor  # (G K,) float
    num_nodes: Tensor   # (G,) float


class Predictions(NamedTuple):
    """What PredictionNetwork says of every search."""

    saved_logits: Tensor       # (G, T), see `chances`
    graph_type_logits: Tensor  # (G, 8)
    log_rounds: Tensor         # (G,) decimal logarithm of 1 + the rounds up to the last color that is saved

    def chances(self) -> Tensor:
        """Probabilities (G, T) of saving at least SAVED colors until the horizon. A logit is of one of them if the one
        before has come true, so they fall.
        """
        return logsigmoid(self.saved_logits.float()).cumsum(1).exp()

    def chromatic(self, search: SearchState) -> Tensor:
        """Median (G,) of the number of colors at the horizon. It falls from one color to the next while the probability
        of that rises from .45 to .55, so that rounding decides nothing.
        """
        steps = torch.tensor(SAVED).diff(prepend=torch.zeros(1, dtype=torch.int64)).to(self.saved_logits.device)
        saved = ((10 * (self.chances() - 0.5) + 0.5).clamp(0, 1) * steps).sum(1)
        return torch.maximum(search.num_colors - saved, search.lower)

    def difficulty(self, search: SearchState) -> Tensor:
        """Difficulty (G,), 0 to 100: 20 times `log_rounds`, where the search is not over."""
        is_over = search.num_colors <= search.lower
        log_rounds = torch.where(is_over, search.reached.log1p() / torch.tensor(10.0).log(), self.log_rounds)
        return (100 / HARDEST * log_rounds).clamp(0, 100)


def first_weights() -> Tensor:
    """Weights (NUM_WEIGHTS,) of an untrained network: every conflict weighs 1, so that a round is one of TabuCol."""
    parts, controls = {name: torch.zeros(shape) for name, shape in rule.SHAPES.items()}, len(rule.CONTROLS)
    parts["by_graph"][controls:-1] = 0.5 * torch.randn(rule.HIDDEN, len(rule.GRAPH_FEATURES))
    parts["by_graph_bias"][:controls] = torch.tensor(rule.FIRST_CONTROLS).log()
    parts["by_node"] = 0.5 * torch.randn(rule.SHAPES["by_node"])
    return torch.cat([part.flatten() for part in parts.values()])


class ColoringNetwork(nn.Module):
    """Everything that is trained. width, layers: of the crossover network."""

    def __init__(self, width: int = CROSSOVER_WIDTH, layers: int = CROSSOVER_LAYERS) -> None:
        super().__init__()
        self.rule = nn.Parameter(first_weights())  # by evolution strategies
        self.predictions = PredictionNetwork()  # by gradient
        self.crossover = CrossoverNetwork(width, layers)  # by gradient, from the pairs of self-play

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> "ColoringNetwork":
        """The network with a state dict, of whatever width and number of layers."""
        network = cls(*size_of(state, "crossover."))
        network.load_state_dict(state)
        return network

    def forward(
        self, states: States | None, pairs: HeteroData | None
    ) -> tuple[Tensor, Predictions | None, Tensor | None]:
        """The weights of the rule, the predictions for some searches, and the conflicts of the children of pairs."""
        predictions = None if states is None else self.predictions(states)
        return self.rule, predictions, None if pairs is None else self.crossover(pairs)


class PredictionNetwork(nn.Module):
    """A graph neural network: LAYERS times, every node gets messages from its neighbours, its color class and its
    graph (Gilmer et al. 2017). It is equivariant to the numbers of nodes and colors.
    """

    def __init__(self, hidden: int = HIDDEN, layers: int = LAYERS):
        super().__init__()
        self.node = nn.Sequential(nn.Linear(NODE_INPUTS + GRAPH_INPUTS, hidden), nn.SiLU(), nn.Linear(hidden, hidden))
        self.layers = nn.ModuleList(MessageLayer(hidden) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)
        self.graph = nn.Linear(3 * hidden + GRAPH_INPUTS, 4 * hidden)
        self.head = nn.Linear(4 * hidden, len(SAVED) + len(GRAPH_TYPES) + 1)

    def forward(self, states: States) -> Predictions:
        """Predictions for the searches of G graphs."""
        graph, n = states.edges.node_graph, states.num_nodes[:, None]
        h = self.node(torch.cat([states.node, states.graph.index_select(0, graph)], 1))                   # (V, H)
        adjacency = sparse(states.edges)
        for layer in self.layers:
            h = layer(h, states, adjacency)
        h = self.norm(h).float()
        zeros = h.new_zeros(n.shape[0], h.shape[1])
        mean = zeros.index_add(0, graph, h) / n                                           # (G, H)
        spread = (zeros.index_add(0, graph, (h - mean.index_select(0, graph)) ** 2) / n + 1e-6).sqrt()
        peak = (zeros.index_add(0, graph, h.exp()) / n).log()  # a smooth maximum; h is at most the root of H
        y = self.head(silu(self.graph(torch.cat([mean, spread, peak, states.graph], 1))))
        saved, types, rounds = y.float().split([len(SAVED), len(GRAPH_TYPES), 1], 1)
        return Predictions(saved, types, rounds[:, 0])


class MessageLayer(nn.Module):
    """One exchange of messages."""

    def __init__(self, hidden: int):
        super().__init__()
        self.norm, self.message = nn.LayerNorm(hidden), nn.Linear(hidden, MESSAGE)
        self.update = nn.Sequential(
            nn.Linear(hidden + 3 * MESSAGE, 2 * hidden), nn.SiLU(), nn.Linear(2 * hidden, hidden)
        )

    def forward(self, h: Tensor, states: States, adjacency: Tensor | None) -> Tensor:
        """The next features (V, H) of the nodes."""
        x = self.norm(h)                                                                  # (V, H)
        message = self.message(x).float()                                                 # (V, M)
        edges = states.edges
        around = sum_neighbours(message, edges, adjacency) / edges.degrees.clamp(min=1)[:, None]
        in_class = mean_of(message, states.node_class, states.class_sizes)                # (G K, M)
        in_graph = mean_of(message, edges.node_graph, states.num_nodes)                   # (G, M)
        in_class = in_class.index_select(0, states.node_class)                            # (V, M)
        in_graph = in_graph.index_select(0, edges.node_graph)                             # (V, M)
        inputs = torch.cat([x.float(), around, in_class, in_graph], 1)
        return h + self.update(inputs)


class SparseSum(torch.autograd.Function):
    """Product of a symmetric sparse matrix and (V, M); its gradient is the same product."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx: Any, x: Tensor, matrix: Tensor) -> Tensor:
        ctx.matrix = matrix
        return matrix @ x

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.matrix @ gradients[0], None


def sparse(edges: Edges) -> Tensor | None:
    """The adjacency matrix (V, V) in compressed rows, with which a CPU sums ten times as fast; elsewhere None."""
    if torch.compiler.is_exporting() or edges.degrees.is_cuda:
        return None
    rows = torch.nn.functional.pad(edges.degrees.cumsum(0), (1, 0))
    size = len(edges.degrees), len(edges.degrees)
    ones = torch.ones(len(edges.neighbours))
    return torch.sparse_csr_tensor(rows, edges.neighbours, ones, size, check_invariants=False)


def sum_neighbours(x: Tensor, edges: Edges, adjacency: Tensor | None) -> Tensor:
    """Sum (V, M) of x (V, M) over the neighbours of every node."""
    if adjacency is not None:
        return SparseSum.apply(x, adjacency)
    return torch.zeros_like(x).index_add(0, edges.source, x.index_select(0, edges.neighbours))


def mean_of(x: Tensor, group: Tensor, sizes: Tensor) -> Tensor:
    """Mean (C, M) of x (V, M) over the nodes of every group. group: (V,) int64; sizes: (C,) float."""
    return x.new_zeros(sizes.shape[0], x.shape[1]).index_add(0, group, x) / sizes.clamp(min=1)[:, None]


def states(edges: Edges, node: Tensor, graph: Tensor, search: SearchState, color_ids: Tensor) -> States:
    """Searches of G graphs as PredictionNetwork sees them. node (V, 5), graph (G, 5): of structure; color_ids: (K,)."""
    ones = torch.ones_like(search.free)                                                   # (V,)
    num_nodes = torch.zeros_like(search.lower).index_add(0, edges.node_graph, ones)       # (G,)
    node_class = edges.node_graph * color_ids.shape[0] + search.colors
    class_sizes = (0.0 * num_nodes[:, None] * color_ids).flatten().index_add(0, node_class, ones)
    k, rounds, since = search.num_colors, search.rounds.log1p(), (search.rounds - search.reached).log1p()
    crowding = class_sizes.index_select(0, node_class) * (k / num_nodes).index_select(0, edges.node_graph) - 1
    counts = torch.stack([search.free, search.one, search.conflicts, search.moves], 1).log1p()  # (V, 4)
    mean = mean_of(counts, edges.node_graph, num_nodes)                                   # (G, 4)
    moves = counts[:, 3:] - mean[:, 3:].index_select(0, edges.node_graph)
    is_limited = search.horizon > 0
    horizon = torch.where(is_limited, search.horizon.clamp(min=1).log1p() - rounds, 0.0)
    conflicts = torch.where(search.fewest_conflicts < NONE_SINCE, search.fewest_conflicts, 0).log1p()
    seen = [
        k.log(), search.lower.log(), search.lower / k, num_nodes / k / 10, rounds / 5, since / 5, (since - rounds) / 5,
        conflicts, mean[:, 3], horizon / 2, 1.0 - is_limited.float(),
    ]  # fmt: skip
    return States(
        edges,
        torch.cat([node, counts[:, :3], moves, crowding[:, None]], 1),
        torch.cat([graph, torch.stack(seen, 1)], 1),
        node_class,
        class_sizes,
        num_nodes,
    )


def structure(graphs: Graphs) -> tuple[Tensor, Tensor]:
    """Features of nodes (G, N, 5) and of graphs (G, 5) that do not depend on any coloring."""
    mask, n = graphs.exists.float(), graphs.num_nodes                                     # (G, N), (G,)
    d = graphs.degrees.float()                                                            # (G, N)
    mean = d.sum(1, keepdim=True) / n[:, None] + 1e-6                                     # (G, 1) a divisor
    around = graphs.sum_neighbours(d) / d.clamp(min=1)                                    # (G, N)
    wedges = d * (d - 1) / 2                                                              # (G, N)
    clustering = clustering_coefficients(graphs)                                          # (G, N)
    node = torch.stack([d.log1p(), d / mean - 1, d / n[:, None], around / mean - 1, clustering], 2)
    deviation = (((d - mean) ** 2 * mask).sum(1) / n).sqrt() / mean[:, 0]                 # (G,) of the degrees
    transitivity = (clustering * wedges).sum(1) / wedges.sum(1).clamp(min=1)
    graph = [n.log(), mean[:, 0] / (n - 1).clamp(min=1), mean[:, 0].log1p(), deviation, transitivity]
    return node, torch.stack(graph, 1)


def clustering_coefficients(graphs: Graphs) -> Tensor:
    """Share (G, N) of a node's pairs of neighbours that are adjacent, estimated from WEDGES pairs; 0 below degree 2."""
    size, last = graphs.exists.shape[1], graphs.neighbours.shape[0] - 1
    random = noise_table(torch.arange(2 * WEDGES, device=graphs.degrees.device), FEW_ROWS)
    random = random[torch.arange(size, device=random.device) % FEW_ROWS]           # (N, 2 W)
    d, first = graphs.degrees[:, :, None], graphs.first[:, :, None]                       # (G, N, 1)
    i = (random[:, :WEDGES] * d).long()                                                   # (G, N, W)
    j = i + 1 + (random[:, WEDGES:] * (d - 1)).long()
    j = torch.where(j >= d, j - d, j)
    a, b = (take(graphs.neighbours, torch.where(d > 1, first + place, last)) for place in (i, j))  # (G, N, W)
    in_list = a.clamp(max=size - 1).flatten(1)
    low = graphs.first.gather(1, in_list).view_as(a)
    high = low + graphs.degrees.gather(1, in_list).view_as(a)  # b may stand in low <= place < high
    for _ in range(HALVINGS if torch.compiler.is_exporting() else len(graphs.window).bit_length()):
        middle = (low + high) // 2
        after = take(graphs.neighbours, middle.clamp(max=last)) <= b
        low, high = torch.where(after & (middle < high), middle, low), torch.where(after, high, middle)
    is_edge = (take(graphs.neighbours, low.clamp(max=last)) == b) & (a < size)
    return is_edge.float().mean(2)
