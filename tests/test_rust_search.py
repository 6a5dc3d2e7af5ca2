"""Golden searches: what the compiled loops find with the rule, for the Rust crate to find the same.

`python tests/test_rust_search.py` writes them again after a change of the search.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gnn_training.graph import Graph
from gnn_training.network.crossover_weights import zero_weights
from gnn_training.onnx_program.session import Model
from gnn_training.search.crossover import GENERATION, Individual, children
from gnn_training.search.kernels import first_fit
from gnn_training.search.search_kernel import SearchTask, search_graph

GOLDEN = Path(__file__).parents[1] / "clients" / "rust" / "tests" / "rule_search.json"
# Nodes, groups without inner edges (as many as nodes: none), percent of the other edges, colors to start with, lower
CASES = [
    (1, 1, 0, 0, 1), (60, 60, 50, 0, 1), (120, 120, 50, 0, 1), (125, 125, 90, 0, 1), (150, 150, 10, 0, 1),
    (200, 12, 60, 0, 12), (250, 5, 20, 0, 1), (300, 300, 50, 40, 1), (1300, 1300, 1, 0, 1), (1300, 30, 10, 0, 1),
]  # fmt: skip
ROUNDS = (1, 3, 10, 100, 1_000, 10_000)


def random_numbers(state: int) -> Iterator[int]:
    """Knuth's linear congruential generator, as in clients/rust/src/rule_search.rs."""
    while True:
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        yield state >> 33


def same_graph(nodes: int, groups: int, percent: int) -> Graph:
    """The graph that Rust makes from that generator."""
    edges, random = [], random_numbers(nodes)
    for u in range(nodes):
        for v in range(u):
            number = next(random)
            if u % groups != v % groups and number % 100 < percent:
                edges.append((u, v))
    return Graph.from_edges(nodes, np.reshape(edges, (-1, 2)))


def checksum(colors: np.ndarray) -> int:
    """FNV-1a, 32 bits, of a color per step."""
    total = 2166136261
    for color in colors.tolist():
        total = (total ^ color) * 16777619 % 2**32
    return total


def searches(weights: np.ndarray) -> list[dict]:
    """Every case, and what is found in so many rounds: a checksum of the colors, their number, the fewest conflicts."""
    cases = []
    for seed, (nodes, groups, percent, num_colors, lower) in enumerate(CASES):
        lists, found = same_graph(nodes, groups, percent).csr(), []
        first = first_fit(*lists, np.arange(nodes))
        for rounds in ROUNDS:
            end = search_graph(lists, SearchTask(first, rounds, seed, lower, num_colors), weights)
            found.append([rounds, checksum(end.best), end.num_colors, end.conflicts])
        cases.append({"graph": [nodes, groups, percent], "task": [num_colors, lower, seed], "found": found})
    return cases


def crossovers() -> list[dict]:
    """Pairs of colorings and ages from the same generator, and checksums of their two children."""
    cases = []
    for nodes, groups, percent, k in [(1, 1, 0, 1), (60, 60, 50, 7), (200, 12, 60, 20), (300, 300, 10, 9)]:
        limits = [k] * nodes + [GENERATION] * nodes
        numbers = [number % limit for number, limit in zip(random_numbers(k), limits * 2, strict=False)]
        parents = [Individual(1, *each) for each in np.array(numbers, np.int32).reshape(2, 2, nodes)]
        lists, sums = same_graph(nodes, groups, percent).csr(), {}
        for name, weights in (("found", Model().crossover), ("by_size", zero_weights())):
            found = children(lists, parents, k, weights)
            sums[name] = [checksum(np.where(child < 0, k, child)) for child in found]
        cases.append({"graph": [nodes, groups, percent], "k": k, **sums})
    return cases


def test_the_golden_children_are_those_of_the_compiled_loops():
    assert json.loads(GOLDEN.read_text())["children"] == crossovers()


def test_the_golden_searches_are_those_of_the_compiled_loops():
    golden = json.loads(GOLDEN.read_text())
    expected = searches(np.array(golden["rule"], dtype=np.float32))
    assert golden["cases"] == expected, f"the search has changed; python {Path(__file__).name} writes them again"


if __name__ == "__main__":
    rule = Model().rule
    cases, pairs = (",\n".join(map(json.dumps, each)) for each in (searches(rule), crossovers()))
    GOLDEN.write_text(f'{{"rule": {json.dumps(rule.tolist())}, "cases": [\n{cases}\n], "children": [\n{pairs}\n]}}\n')
