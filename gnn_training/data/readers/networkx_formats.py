"""Edge lists and GraphML. Nodes may have any labels: whole numbers are sorted, others keep the order they come in."""

from collections.abc import Iterable
from contextlib import suppress

from gnn_training.data.readers.read_graph import ReadGraph, checked_size
from gnn_training.errors import UserError
from gnn_training.graph import Graph


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
