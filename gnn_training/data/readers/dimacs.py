"""DIMACS `.col`: `p edge N M`, then `e u v` per edge, nodes counted from 1 (DIMACS challenge format, 1993)."""

from gnn_training.data.readers.read_graph import ReadGraph, checked_size
from gnn_training.errors import UserError
from gnn_training.graph import Graph

PROBLEMS = (b"edge", b"edges", b"col")
IGNORED = (b"c", b"n", b"d", b"v", b"x")  # comments, node values, dimensions, coordinates, parameters


def parse(content: bytes) -> ReadGraph:
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
