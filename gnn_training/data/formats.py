"""What every reader returns."""
# DOC DIMACS `.col`: `p edge N M`, then `e u v` per edge, nodes counted from 1 (DIMACS challenge format, 1993).
# DOC Edge lists and GraphML. Nodes may have any labels: whole numbers are sorted, others keep the order they come in.

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from gnn_training.errors import UserError
from gnn_training.graph import Graph

MAX_READ_NODES = 1_000_000  # a header that claims more is a lie or nothing we could color


@dataclass(frozen=True)
class ReadGraph:
    """A graph and what its file claims about it. The claims are in range, but nobody has proved them.

    note is one sentence for the owner of the file about a fault that does no harm.
    """

    graph: Graph
    coloring: np.ndarray | None = None  # (N,) int64 within 0..N-1, perhaps not proper
    num_colors: int | None = None
    graph_type: int | None = None  # position in contract.GRAPH_TYPES
    difficulty: float | None = None  # 0 easy to 100 hard
    note: str = ""


def checked_size(num_nodes: int) -> int:
    """Return `num_nodes` if a graph can have so many.

    Raises:
        UserError: fewer than one, or more than MAX_READ_NODES.
    """
    if num_nodes < 1:
        raise UserError(f"the graph has {num_nodes} nodes; it needs at least one")
    if num_nodes > MAX_READ_NODES:
        raise UserError(f"the graph has {num_nodes} nodes; at most {MAX_READ_NODES} are read")
    return num_nodes


PROBLEMS = (b"edge", b"edges", b"col")
IGNORED = (b"c", b"n", b"d", b"v", b"x")  # comments, node values, dimensions, coordinates, parameters


def parse_dimacs(content: bytes) -> ReadGraph:
    """Read one graph. Doubled edges and loops are folded away; a wrong M is only noted, since many files have one.

    Raises:
        UserError: "line N: ..." for a line that is no DIMACS or an edge beyond the header's N; no header.
    """
    num_nodes = stated_edges = 0
    pairs: list[tuple[int, int]] = []
    for number, line in enumerate(content.splitlines(), 1):
        words = line.split()
        try:
            if not words or words[0][:1] == b"c":
                continue
            if words[0] == b"e":
                u, v = int(words[1]), int(words[2])
                if not (0 < u <= num_nodes and 0 < v <= num_nodes):
                    raise UserError(_misplaced(u, v, num_nodes))
                pairs.append((u - 1, v - 1))
            elif words[0] == b"p" and not num_nodes and words[1] in PROBLEMS:
                num_nodes, stated_edges = checked_size(int(words[2])), int(words[3])
            elif words[0] not in IGNORED:
                raise ValueError
        except UserError as error:
            raise UserError(f"line {number}: {error}") from None
        except (ValueError, IndexError):
            shown = line[:40].decode("ascii", "replace")
            raise UserError(f"line {number}: {shown!r} is neither `c`, one `p edge N M` nor `e u v`; mend it") from None
    if not num_nodes:
        raise UserError("there is no line `p edge N M`; a .col file begins with one")
    graph = Graph.from_edges(num_nodes, pairs)
    right = stated_edges in (len(pairs), graph.num_edges)
    note = "" if right else f"the header says {stated_edges} edges, there are {graph.num_edges}, which are taken"
    return ReadGraph(graph, note=note)


def _misplaced(u: int, v: int, num_nodes: int) -> str:
    if not num_nodes:
        return f"edge {u}-{v} comes before the header `p edge N M`; move the header up"
    return f"edge {u}-{v} leaves the nodes 1..{num_nodes} of the header; correct either"


def parse_edge_list(content: bytes) -> ReadGraph:
    """Read two labels per line, parted by blanks or commas; further words are weights and ignored, # and % comment.

    Not by networkx, which passes over broken lines in silence.

    Raises:
        UserError: "line N: ..." for a line of one word or of no text; no edge at all.
    """
    pairs: list[tuple[str, str]] = []
    for number, line in enumerate(content.splitlines(), 1):
        words = _text(line, number).replace(",", " ").split()
        if not words or words[0][0] in "#%":
            continue
        if len(words) == 1:
            raise UserError(f"line {number}: {words[0][:40]!r} stands alone; an edge list has two nodes per line")
        pairs.append((words[0], words[1]))
    if not pairs:
        raise UserError("there is no edge; an edge list has two nodes per line")
    return ReadGraph(_numbered((label for pair in pairs for label in pair), pairs))


def parse_graphml(content: bytes) -> ReadGraph:
    """Read the first graph by networkx; directions and parallel edges are folded into one edge.

    Raises:
        UserError: "line N: ..." for broken XML; whatever else networkx cannot make a graph of.
    """
    import networkx as nx

    try:
        graph = nx.parse_graphml(content, node_type=_node_id)
    except SyntaxError as error:  # xml.etree's ParseError
        line = error.position[0] if hasattr(error, "position") else 1
        raise UserError(f"line {line}: broken XML ({error}); write the file again") from error
    except Exception as error:  # networkx does not check: a damaged file shows as whatever its code trips over
        words = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"is no GraphML that networkx can read ({words}); write the file again") from error
    return ReadGraph(_numbered(graph.nodes, graph.edges()))


def _node_id(text: str | None) -> str:
    if text is None:
        raise ValueError("a node, or an end of an edge, has no id")
    return text


def _text(line: bytes, number: int) -> str:
    try:
        return line.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"line {number}: holds bytes that are no UTF-8 text; is this an edge list?") from None


def _numbered(labels: Iterable[str], pairs: Iterable[tuple[str, str]]) -> Graph:
    order = list(dict.fromkeys(labels))
    checked_size(len(order))
    with suppress(ValueError):
        order.sort(key=int)
    position = {label: index for index, label in enumerate(order)}
    return Graph.from_edges(len(order), [(position[a], position[b]) for a, b in pairs])
