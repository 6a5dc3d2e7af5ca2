"""Write graphs of the public DIMACS/COLOR collection as .col files, with the fewest colors known for each.

These are the graphs that a rule defines, up to 1,100 nodes: queen graphs, Mycielski graphs, Insertions, FullIns and a
Latin square. The network is not trained on any of them.
"""

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator
from itertools import combinations, product
from pathlib import Path

import networkx as nx

INSERTIONS = {1: (4, 5, 6), 2: (3, 4, 5), 3: (3, 4), 4: (3, 4)}  # orders for each k
FULL_INSERTIONS = {1: (3, 4, 5), 2: (3, 4, 5), 3: (3, 4), 4: (3, 4), 5: (3, 4)}
QUEENS = dict(enumerate((5, 7, 7, 9, 10, 11, 11, 12, 13, 14, 15, 16), start=5))  # OEIS A088202


def main(folder: Path) -> None:
    """Write FOLDER/NAME.col for every graph, and FOLDER/best_known.csv."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = ["name,best_known"]
    for name, graph, best in graphs():
        numbered = nx.convert_node_labels_to_integers(graph, first_label=1)
        edges = [f"e {u} {v}" for u, v in numbered.edges]
        (folder / f"{name}.col").write_text("\n".join([f"p edge {len(graph)} {len(edges)}", *edges]) + "\n")
        rows.append(f"{name},{best}")
    (folder / "best_known.csv").write_text("\n".join(rows) + "\n")


def graphs() -> Iterator[tuple[str, nx.Graph, int]]:
    """Every graph with its name and the fewest colors known."""
    for order in range(3, 8):
        yield f"myciel{order}", nx.mycielski_graph(order + 1), order + 1
    for size, best in QUEENS.items():
        yield f"queen{size}_{size}", queens(size, size), best
    yield "queen8_12", queens(8, 12), 12
    yield "qg.order30", nx.cartesian_product(nx.complete_graph(30), nx.complete_graph(30)), 30
    for k, orders in INSERTIONS.items():
        yield from ((f"{k}-Insertions_{order}", insertions(k, order, tops=1), order + 1) for order in orders)
    for k, orders in FULL_INSERTIONS.items():
        yield from ((f"{k}-FullIns_{order}", insertions(k, order, tops=k + 2), order + k) for order in orders)


def queens(rows: int, columns: int) -> nx.Graph:
    """Squares of a chess board, adjacent where a queen moves."""
    squares = list(product(range(rows), range(columns)))
    graph = nx.empty_graph(squares)
    graph.add_edges_from(
        ((a, b), (c, d)) for (a, b), (c, d) in combinations(squares, 2) if a == c or b == d or abs(a - c) == abs(b - d)
    )
    return graph


def insertions(k: int, order: int, tops: int) -> nx.Graph:
    """Apply a generalized Mycielskian of k + 2 levels, with a clique of `tops` nodes, order - 1 times to an edge.

    Level 0 is the previous graph. A node of another level has the neighbours of its original, one level below. The
    first top is joined to the last level, top i to level i. Stiebitz, Beiträge zur Theorie der färbungskritischen
    Graphen (1985), has one top; the graphs named FullIns have k + 2.
    """
    edges, size, levels = [(0, 1)], 2, k + 2
    for _ in range(order - 1):
        top = levels * size
        climbs = [
            (level * size + a, (level + 1) * size + b)
            for level in range(levels - 1)
            for u, v in edges
            for a, b in ((u, v), (v, u))
        ]
        joins = [((i or levels - 1) * size + node, top + i) for i in range(tops) for node in range(size)]
        edges += climbs + joins + list(combinations(range(top, top + tops), 2))
        size = top + tops
    graph = nx.empty_graph(size)
    graph.add_edges_from(edges)
    return graph


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where to write them, and best_known.csv")
    main(parser.parse_args().folder)
