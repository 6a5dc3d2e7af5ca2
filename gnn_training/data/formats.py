"""Readers of DIMACS, edge lists and GraphML: bytes to Instance. UserError says what is wrong, with the line.

DIMACS `.col` has `p edge N M`, then `e u v` per edge, nodes counted from 1 (DIMACS challenge format, 1993). In edge
lists and GraphML, nodes may have any labels: whole numbers are sorted, others keep the order in which they appear.
"""

from collections.abc import Iterable
from contextlib import suppress

from gnn_training.errors import UserError
from gnn_training.graph import Graph, Instance

MAX_READ_NODES = 1_000_000  # a header that claims more is wrong, or the graph is too large to color


def checked_size(num_nodes: int) -> int:
    """Return `num_nodes`; UserError if it is below 1 or above MAX_READ_NODES."""
    if num_nodes < 1:
        raise UserError(f"the graph has {num_nodes} nodes; it needs at least one")
    if num_nodes > MAX_READ_NODES:
        raise UserError(f"the graph has {num_nodes} nodes; at most {MAX_READ_NODES} are read")
    return num_nodes


def parse_dimacs(content: bytes) -> Instance:
    """Read one graph. Repeated edges and loops are dropped. A wrong M gives a note, because many files have one."""
    num_nodes = stated_edges = 0
    pairs: list[tuple[int, int]] = []
    for number, line in enumerate(content.splitlines(), 1):
        words = line.split()
        try:
            if not words or words[0][:1] == b"c":
                continue
            if words[0] == b"e":
                u, v = int(words[1]), int(words[2])
                if not num_nodes:
                    raise UserError(f"edge {u}-{v} comes before the header `p edge N M`; move the header up")
                if not (0 < u <= num_nodes and 0 < v <= num_nodes):
                    raise UserError(f"edge {u}-{v} is outside the nodes 1..{num_nodes} of the header; correct it")
                pairs.append((u - 1, v - 1))
            elif words[0] == b"p" and not num_nodes and words[1] in (b"edge", b"edges", b"col"):
                num_nodes, stated_edges = checked_size(int(words[2])), int(words[3])
            elif words[0] not in (b"n", b"d", b"v", b"x"):  # node values, dimensions, coordinates, parameters
                raise ValueError
        except UserError as error:
            raise UserError(f"line {number}: {error}") from None
        except (ValueError, IndexError):
            shown = line[:40].decode("ascii", "replace")
            raise UserError(f"line {number}: {shown!r} is neither `c`, one `p edge N M` nor `e u v`; fix it") from None
    if not num_nodes:
        raise UserError("there is no line `p edge N M`; a .col file begins with one")
    graph = Graph.from_edges(num_nodes, pairs)
    right = stated_edges in (len(pairs), graph.num_edges)
    note = "" if right else f"the header says {stated_edges} edges, the file has {graph.num_edges}; these are used"
    return Instance(graph, note=note)


def parse_edge_list(content: bytes) -> Instance:
    """Read two labels per line, separated by blanks or commas. Further words are ignored; # and % begin a comment."""
    pairs: list[tuple[str, str]] = []  # networkx would skip broken lines silently
    for number, line in enumerate(content.splitlines(), 1):
        try:
            words = line.decode("utf-8-sig").replace(",", " ").split()
        except UnicodeDecodeError:
            raise UserError(f"line {number}: has bytes that are not UTF-8 text; is this an edge list?") from None
        if not words or words[0][0] in "#%":
            continue
        if len(words) == 1:
            raise UserError(f"line {number}: {words[0][:40]!r} is alone; an edge list has two nodes per line")
        pairs.append((words[0], words[1]))
    if not pairs:
        raise UserError("there is no edge; an edge list has two nodes per line")
    return Instance(_numbered((label for pair in pairs for label in pair), pairs))


def parse_graphml(content: bytes) -> Instance:
    """Read the first graph with networkx. Directions and parallel edges become one edge."""
    import networkx as nx

    def node_id(text: str | None) -> str:
        if text is None:
            raise ValueError("a node, or an end of an edge, has no id")
        return text

    try:
        graph = nx.parse_graphml(content, node_type=node_id)
    except SyntaxError as error:  # xml.etree's ParseError
        line = error.position[0] if hasattr(error, "position") else 1
        raise UserError(f"line {line}: broken XML ({error}); write the file again") from error
    except Exception as error:  # networkx does not check its input: a damaged file raises anything
        words = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"networkx cannot read this GraphML ({words}); write the file again") from error
    return Instance(_numbered(graph.nodes, graph.edges()))


def _numbered(labels: Iterable[str], pairs: Iterable[tuple[str, str]]) -> Graph:
    order = list(dict.fromkeys(labels))
    checked_size(len(order))
    with suppress(ValueError):
        order.sort(key=int)
    position = {label: index for index, label in enumerate(order)}
    return Graph.from_edges(len(order), [(position[a], position[b]) for a, b in pairs])
