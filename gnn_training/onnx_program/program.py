"""The program inside the ONNX file: edges in, color scores out.

Its four parts run one after the other. Pad makes neighbour lists of the edge list. Bound colors the graphs with DSATUR
and, if they are dense, with independent sets, and finds cliques. Search starts from the better coloring and lets the
network look for fewer colors, so no answer has more than that coloring. Readout turns the best coloring into scores.

The parts are modules of their own because torch.while_loop can close over a tensor's size only if it is the size of an
input. Sizes that data decides (graphs, padded nodes, colors) are decided in one part and are input shapes of the next.

Letters in shapes: G graphs, N nodes (padded), K colors.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from gnn_training import contract
from gnn_training.network import rule, states
from gnn_training.network.network import ColoringNetwork
from gnn_training.onnx_program import tensor_search
from gnn_training.onnx_program.greedy import at_once, clique_bound, dsatur, independent_sets
from gnn_training.onnx_program.padded_graphs import Graphs, pad
from gnn_training.onnx_program.tensor_search import Limits

MAX_STARTS = 1024  # most nodes of a graph from which cliques grow, see CLIQUE_WORK and MIN_STARTS
CHAINS = 32  # independent sets that grow at the same time in a graph
PATIENCE = 2.0  # steps per member without a better set, in a call of CALL_ROUNDS; grows with the root of the rounds
SEARCH_WORK, MAX_SEARCHES = 10_000, 16  # searches of a graph: SEARCH_WORK / (nodes x colors), 1 to MAX_SEARCHES
SEED_STRIDE = 1009  # difference between the seeds of consecutive searches of a graph
MAX_GRAPHS = 1_000_000  # numbers of graphs in `batch` are below this
USED_SCORE = 9.2  # score of a node's own color: log(p / 0.0001) for p = 1; other colors have 0


class Ranges(NamedTuple):
    """Sizes that the data decide, as the lengths of tensors 0, 1, 2, ..."""

    greedy_color_ids: Tensor  # (largest degree + 1,) colors that a greedy algorithm could need
    rank_ids: Tensor          # (B,) nodes that DSATUR may color at once
    start_ids: Tensor         # (S,) starts of cliques
    chain_ids: Tensor         # (C,) chains of independent sets
    dense_ids: Tensor         # (N + 1,) nodes of a dense matrix and "no node"; (1,) if the graphs are too large


class GraphIds(NamedTuple):
    """The numbers of the graphs in `batch`. Some numbers may be missing; B is the largest number + 1."""

    node_graph: Tensor  # (V,) int64, the graph of every node, one of G
    number: Tensor      # (G,) int64, ascending
    rows: Tensor        # (B,) int64, the graph with that number, G if there is none


class Bounds(NamedTuple):
    """What is known before the search."""

    greedy: Tensor  # (G, N) int64, coloring by DSATUR or by independent sets, the better one
    clique: Tensor  # (G,) int64, size of a clique
    searches: Tensor  # (R,) int64, the graph of every search


class Options(NamedTuple):
    """What a caller may ask for."""

    num_colors: Tensor  # (B,) or (1,) int64, colors to try first; 0: one less than the first coloring has
    seed: Tensor        # () int64
    steps: Tensor       # () int64, rounds; -s for s at most, fewer for small graphs


class Searched(NamedTuple):
    """The results of the search."""

    colors: Tensor             # (G, N) int64, proper, from 0 without gaps
    last: Tensor               # (G, N, K) conflicts of every node in every color after the last round
    chromatic: Tensor          # (B,), this and the other predictions are 0 where there is no graph
    graph_type_logits: Tensor  # (B, 8)
    difficulty: Tensor         # (B,)


class Pad(nn.Module):
    """Turns edge_index (2, E) and batch (V,) into graphs, the position (V,) of every node in its graph, and sizes."""

    def forward(self, edge_index: Tensor, batch: Tensor) -> tuple[Graphs, Tensor, Ranges, GraphIds]:
        numbers = numbers_of(batch)
        graphs, position = pad(edge_index, numbers.node_graph)
        most_colors = (graphs.degrees.max() + 1).clamp(max=contract.MAX_COLORS)
        nodes = graphs.exists.long().sum(1).max()
        all_nodes = torch.ones_like(graphs.degrees).sum()
        starts = (contract.CLIQUE_WORK / all_nodes).clamp(contract.MIN_STARTS, MAX_STARTS).long()
        return graphs, position, Ranges(
            count_to(most_colors),
            count_to(torch.minimum(at_once(nodes) + 3, nodes)),  # an export needs an example above 2
            count_to(torch.minimum(starts, (nodes - 1).clamp(min=1))), count_to(0 * nodes + CHAINS),
            count_to(torch.where(nodes <= contract.SETS_MAX_NODES, nodes + 1, 1)),
        ), numbers  # fmt: skip


class Bound(nn.Module):
    """Finds colorings by DSATUR and independent sets, cliques, and the sizes of the search."""

    def forward(self, graphs: Graphs, ranges: Ranges, seed: Tensor, steps: Tensor) -> tuple[Bounds, Limits]:
        colors, n = dsatur(graphs, ranges.greedy_color_ids, ranges.rank_ids), graphs.num_nodes
        is_dense = graphs.degrees.sum(1) >= contract.SETS_MIN_DENSITY * n * (n - 1)
        is_dense = is_dense & (n.max() <= contract.SETS_MAX_NODES)
        ids, patience = ranges.dense_ids, PATIENCE * (rounds_of(steps, graphs) / contract.CALL_ROUNDS).sqrt()
        waiting = torch.nn.functional.pad(torch.where(is_dense[:, None], -1, colors), (0, 1))[:, ids]
        exists = torch.nn.functional.pad(graphs.exists, (0, 1))[:, ids]
        seeds = scalar(seed) + 0 * colors[:, 0]
        sets = independent_sets(graphs.adjacency(ids), exists, waiting, seeds, ranges.chain_ids, patience)
        better = is_dense & (sets.max(1).values < colors.max(1).values)
        sets = sets[:, torch.arange(colors.shape[1], device=ids.device).clamp(max=ids.max())]
        colors = torch.where(better[:, None], sets, colors)
        nodes = torch.ones_like(graphs.degrees[0]).sum()
        searches = (SEARCH_WORK / (n * (colors.max(1).values + 1))).clamp(1, MAX_SEARCHES).long()  # (G,)
        after = searches.cumsum(0)
        ids = count_to(after.max())                                                       # (R,)
        graph = torch.zeros_like(ids).scatter_add(0, after[:-1], torch.ones_like(after[:-1])).cumsum(0)
        return Bounds(colors, clique_bound(graphs, ranges.start_ids), graph), limits(nodes, colors.max() + 1)


class Search(nn.Module):
    """The search with the network's rule, and its predictions for the graphs."""

    def __init__(self, trained: ColoringNetwork):
        super().__init__()
        self.rule, self.predictions = trained.rule, trained.predictions

    def forward(self, graphs: Graphs, bounds: Bounds, limits: Limits, options: Options, numbers: GraphIds) -> Searched:
        seed = scalar(options.seed)
        rows = torch.arange(bounds.clique.shape[0], device=bounds.clique.device)          # (G,)
        asked = options.num_colors[numbers.number.clamp(max=options.num_colors.shape[0] - 1)]  # one for all or for each
        graph = bounds.searches                                                           # (R,)
        number = torch.arange(graph.shape[0], device=graph.device) - tensor_search.first_searches(graph, rows)[graph]
        task = tensor_search.Task(bounds.greedy, bounds.clique, asked, graph, seed + SEED_STRIDE * number)
        rounds = rounds_of(options.steps, graphs)
        # In graphs of more than a thousand nodes, a round moves more nodes, so a call makes fewer rounds.
        fewer = (rounds * rule.ACTIVE + limits.active_ids.max()) // (limits.active_ids.max() + 1)
        rounds = torch.minimum(rounds, fewer)
        result = tensor_search.search(tensor_search.split(self.rule[None]), graphs, task, limits, rounds)
        heads = self.predict(graphs, result, bounds.clique.float(), limits.color_ids)
        of_numbers = [torch.cat([x, torch.zeros_like(x[:1])]).index_select(0, numbers.rows) for x in heads]
        return Searched(renumbered(result.colors, graphs, limits.color_ids), result.counts, *of_numbers)

    def predict(
        self, graphs: Graphs, result: tensor_search.Result, lower: Tensor, color_ids: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The predictions (G,), (G, 8), (G,) of the contract."""
        k, reached = result.num_colors.float(), result.reached
        rounds = torch.where(k > lower, result.rounds, reached)  # a finished search counts no later rounds
        free, one, conflicts, moves = result.nodes.unbind(1)
        seen = states.SearchState(result.last, free, one, conflicts, moves, k, lower, rounds, reached, result.conflicts)
        values = states.features(graphs.exists, graphs.degrees, seen, color_ids)
        predicted = self.predictions(states.prediction_inputs(values, rounds, contract.HORIZON * rounds.clamp(min=1)))
        return predicted.chromatic(k, lower), predicted.graph_type_logits, predicted.difficulty(k, lower, reached)


class Readout(nn.Module):
    """Turns colorings into scores for the caller's rows. Their argmax, softmax and cosine are all meaningful."""

    def forward(self, colors: Tensor, node_graph: Tensor, position: Tensor) -> Tensor:
        """Scores (V, 256) of colors (G, N): 0 for all colors but the node's own."""
        color_ids = torch.arange(contract.MAX_COLORS, device=colors.device)
        return USED_SCORE * (colors[node_graph, position][:, None] == color_ids).float()


class Program(nn.Module):
    """All parts in order. In torch, it computes what the ONNX file computes."""

    def __init__(self, trained: ColoringNetwork):
        super().__init__()
        self.pad, self.bound, self.search, self.readout = Pad(), Bound(), Search(trained), Readout()

    @torch.no_grad()
    def forward(
        self, edge_index: Tensor, batch: Tensor, num_colors: Tensor, seed: Tensor, steps: Tensor,
        node_features: Tensor | None = None,
    ) -> dict[str, Tensor]:  # fmt: skip
        """Return the outputs of the contract and all intermediate tensors, by name. node_features are ignored."""
        options = Options(num_colors, seed, steps)
        graphs, position, ranges, numbers = self.pad(edge_index, batch)
        bounds, limits = self.bound(graphs, ranges, seed, steps)
        searched = self.search(graphs, bounds, limits, options, numbers)
        logits = self.readout(searched.colors, numbers.node_graph, position)
        tensors = {"edge_index": edge_index, "batch": batch, "position": position, "color_logits": logits}
        for group in (options, graphs, ranges, numbers, bounds, limits, searched):
            tensors |= group._asdict()
        return tensors


def numbers_of(batch: Tensor) -> GraphIds:
    """GraphIds of the graphs in `batch` (V,). A number that is negative, less than its predecessor, or at least
    MAX_GRAPHS is an error, in an exported file too.
    """
    previous = torch.cat([batch[:1] - 1, batch[:-1]])
    is_first = batch != previous
    number = torch.where(batch < previous.clamp(min=0), MAX_GRAPHS, batch)[is_first]
    rows = torch.full_like(count_to((number.max() + 1).clamp(max=MAX_GRAPHS)), number.shape[0])
    rows = rows.scatter(0, number, torch.arange(number.shape[0], device=batch.device))
    return GraphIds(is_first.long().cumsum(0) - 1, number, rows)


def scalar(value: Tensor) -> Tensor:
    """The only number of a tensor. Any other count is an error; ONNX Runtime does not check it for scalar inputs."""
    return value.reshape(1)[0]


def rounds_of(steps: Tensor, graphs: Graphs) -> Tensor:
    """Rounds () of a search: `steps`, or, if they are -s, the rounds for the size of the largest graph, at most s."""
    asked = scalar(steps).clamp(min=-torch.iinfo(torch.int64).max)  # 2**63 is no int64
    by_size = contract.rounds_by_size(graphs.num_nodes.max().long())
    return torch.where(asked < 0, torch.minimum(-asked, by_size), asked)


def limits(num_nodes: Tensor, num_colors: Tensor) -> Limits:
    """Sizes of a search in graphs padded to num_nodes () with num_colors () colors."""
    active = torch.minimum((num_nodes // rule.NODES_PER_ACTIVE).clamp(min=rule.ACTIVE), num_nodes)
    movers = torch.minimum((num_nodes // rule.NODES_PER_MOVER).clamp(min=rule.MOVERS), active)
    return Limits(count_to(num_colors), count_to(active), count_to(movers))


def count_to(number: Tensor) -> Tensor:
    """Return 0, 1, ..., number - 1, which turns a size that the data decide into the shape of a tensor."""
    return torch.arange(number.item(), device=number.device)


def renumbered(colors: Tensor, graphs: Graphs, color_ids: Tensor) -> Tensor:
    """Renumber colors (G, N) from 0 without gaps, in their order."""
    used = ((colors[:, :, None] == color_ids) & graphs.exists[:, :, None]).any(1).long()  # (G, K)
    return (used.cumsum(1) - used).gather(1, colors)
