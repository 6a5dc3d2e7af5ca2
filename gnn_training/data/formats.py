"""Readers of graph files: bytes to Instance. UserError says what is wrong, with the line or the key.

docs/DATA.md describes the formats: .col of the DIMACS challenge (1993), edge lists, CSV, GraphML, networkx's node-link
data, and the two JSON schemas of PRISM's generator. All readers take less than 1 GB for any content up to their limit.
"""

import codecs
import csv
import io
import json
import math
import re
from array import array
from collections.abc import Callable, Iterator
from itertools import chain
from reprlib import repr as brief
from typing import Any, NamedTuple

import numpy as np
from defusedxml import ElementTree

from gnn_training.contract import GRAPH_TYPES
from gnn_training.errors import UserError
from gnn_training.graph import MAX_NODES, Graph, Instance

HEADER = re.compile(rb'\A"?source"?,"?target"?(?![^,\r\n])[^\r\n]*', re.IGNORECASE)
MAX_LINES = 20_000_000  # of which every one may have an edge
MAX_LINE = 1_000_000  # bytes of a line
MAX_VALUES = 2_000_000  # of JSON: lists, objects and quotes, which take the most memory for their bytes
# Class ids by name, without case and punctuation. The queen and geometric families share one id.
TYPE_IDS = {name.replace("_", ""): i for i, name in enumerate(GRAPH_TYPES)}
TYPE_IDS |= {"registerallocation": 2, "interval": 2, "queen": 4, "geometric": 4}


def checked_size(num_nodes: int) -> int:
    """Return `num_nodes`; UserError if it is below 1 or above MAX_NODES."""
    if not 1 <= num_nodes <= MAX_NODES:
        raise UserError(f"the graph has {num_nodes} nodes; it needs at least one; at most {MAX_NODES} are read")
    return num_nodes


def _lines(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Every line with its number, from 1. UserError if there are too many, or if one is too long."""
    text = content.removeprefix(codecs.BOM_UTF8).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if text.count(b"\n") > MAX_LINES:
        raise UserError(f"has more than {MAX_LINES} lines; a larger file is not read")
    for number, line in enumerate(io.BytesIO(text), 1):
        if len(line) > MAX_LINE:
            raise UserError(f"line {number}: has more than {MAX_LINE} bytes; is this the file of a graph?")
        yield number, line


def integer(word: bytes | str) -> int:
    """The number that a word of ASCII digits is; ValueError for all other words."""
    if not (word.isascii() and word.isdigit() and len(word) <= 18):
        raise ValueError(f"{brief(word)} is not a number")
    return int(word)


def parse_dimacs(content: bytes) -> Instance:
    """Read one graph. Repeated edges and loops are dropped. A wrong M gives a note, because many files have one."""
    num_nodes = stated_edges = 0
    edge_ends = array("i")
    for number, line in _lines(content):
        try:
            match line.split(None, 4):
                case [b"e", first, second, *_]:
                    u, v = integer(first), integer(second)
                    if not num_nodes:
                        raise UserError(f"edge {u}-{v} comes before the header `p edge N M`; move the header up")
                    if not (0 < u <= num_nodes and 0 < v <= num_nodes):
                        raise UserError(f"edge {u}-{v} is outside the nodes 1..{num_nodes} of the header; correct it")
                    edge_ends.append(u - 1)
                    edge_ends.append(v - 1)
                case [b"p", b"edge" | b"edges" | b"col", n, m, *_] if not num_nodes:
                    num_nodes, stated_edges = checked_size(integer(n)), integer(m)
                # Comments, node values, dimensions, coordinates, parameters.
                case [word, *_] if word[:1] != b"c" and word not in (b"n", b"d", b"v", b"x"):
                    raise ValueError
        except UserError as error:
            raise UserError(f"line {number}: {error}") from None
        except ValueError:
            shown = line[:40].rstrip().decode("ascii", "replace")
            message = f"line {number}: {shown!r} is neither `c`, one `p edge N M` nor `e u v`; fix it"
            raise UserError(message) from None
    if not num_nodes:
        raise UserError("there is no line `p edge N M`; a .col file begins with one")
    graph = Graph.from_edges(num_nodes, np.asarray(edge_ends).reshape(-1, 2))
    right = stated_edges in (len(edge_ends) // 2, graph.num_edges)
    note = "" if right else f"the header says {stated_edges} edges, the file has {graph.num_edges}; these are used"
    return Instance(graph, note=note, names=range(1, num_nodes + 1))


def parse_edge_list(content: bytes) -> Instance:
    """Read two labels per line, separated by blanks or commas. Further words are ignored; # and % begin a comment."""
    return _edges(content, lambda line: line.replace(b",", b" ").split(None, 2))


def parse_csv(content: bytes) -> Instance:
    """Read two labels per line, separated by a comma; they may be quoted and have blanks. Further cells are ignored,
    and so is a first line `source,target`; # and % begin a comment.
    """
    content = re.sub(HEADER, b"#", content.removeprefix(codecs.BOM_UTF8), count=1)
    return _edges(content, lambda line: [cell.strip().encode() for cell in next(csv.reader([line.decode()]))[:2]])


def _edges(content: bytes, split: Callable[[bytes], list[bytes]]) -> Instance:
    position: dict[bytes, int] = {}
    edge_ends = array("i")
    for number, line in _lines(content):  # networkx would skip broken lines silently
        try:
            line.decode()
            words = split(line)
        except UnicodeDecodeError:
            raise UserError(f"line {number}: has bytes that are not UTF-8 text; is this an edge list?") from None
        except csv.Error as error:
            raise UserError(f"line {number}: is no CSV ({error}); is this an edge list?") from None
        if not any(words) or words[0][:1] in (b"#", b"%"):
            continue
        if len(words) == 1 or not all(words[:2]):
            shown = brief(line.decode().strip())
            raise UserError(f"line {number}: {shown} is alone; an edge list has two nodes per line")
        edge_ends.append(position.setdefault(words[0], len(position)))
        edge_ends.append(position.setdefault(words[1], len(position)))
        if len(position) > MAX_NODES:
            raise UserError(f"line {number}: begins node {MAX_NODES + 1}; a larger graph is not read")
    if not position:
        raise UserError("there is no edge; an edge list has two nodes per line")
    return _numbered(position, edge_ends)


def parse_graphml(content: bytes) -> Instance:
    """Read one graph. Directions and parallel edges become one edge; data is passed over. networkx would take several
    times the memory, and would read the first of two graphs. Definitions (DTD), which could expand, are refused.
    """
    try:
        root = ElementTree.fromstring(content, forbid_dtd=True)
        space = root.tag.removesuffix("graphml")
        graphs = list(root.iter(f"{space}graph"))
        if len(graphs) != 1 or graphs != root.findall(f"{space}graph") or root.find(f".//{space}hyperedge") is not None:
            raise ValueError("it is not a <graphml> with one plain graph: a second graph or a hyperedge cannot be read")
        names = [node.get("id") for node in graphs[0].findall(f"{space}node")]
        edges = graphs[0].findall(f"{space}edge")
        names += [edge.get(end) for edge in edges for end in ("source", "target")]
        if None in names:
            raise ValueError("a node, or an end of an edge, has no id")
    except (ElementTree.ParseError, ValueError, LookupError) as error:  # LookupError: an unknown encoding
        raise UserError(f"{error}; write the file again as one plain graph in UTF-8") from error
    position: dict[bytes, int] = {}
    edge_ends = array("i", [position.setdefault(str(name).encode(), len(position)) for name in names])
    return _numbered(position, edge_ends[len(edge_ends) - 2 * len(edges) :])


def _numbered(position: dict[bytes, int], edge_ends: array) -> Instance:
    """Graph of pairs of positions of labels. Labels that all are whole numbers give the order of the nodes."""
    rank = np.arange(checked_size(len(position)), dtype=np.int32)
    if all(map(re.compile(rb"-?[0-9]{1,18}").fullmatch, position)):
        rank[np.fromiter(map(int, position), np.int64).argsort(kind="stable")] = np.arange(len(rank))
    labels = list(position)
    names = [labels[i].decode() for i in rank.argsort().tolist()]
    return Instance(Graph.from_edges(len(rank), rank[np.asarray(edge_ends).reshape(-1, 2)]), names=names)


def parse_json(content: bytes) -> Instance:
    """Read one graph of PRISM with its coloring and its graph type; each may be missing or null. Chromatic number,
    difficulty and node features are ignored, because they are computed again. Or read networkx's node-link data.
    UserError names a wrong entry.
    """
    if sum(map(content.count, (b"[", b"{", b'"'))) > MAX_VALUES:
        raise UserError(f"has more than {MAX_VALUES} lists, objects and quotes; write the matrix as one list")
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:  # also bytes that are not text, numbers of 5,000 digits
        raise UserError(f"broken JSON ({error}); write the file again") from error
    if not isinstance(document, dict) or not {"adjacency", "nodes"} & document.keys():
        raise UserError("is JSON without the key `adjacency` or `nodes`, which all schemas have; name files of graphs")
    return _prism(document) if "adjacency" in document else _node_link(document)


def _node_link(document: dict) -> Instance:
    try:
        links = document["edges"] if "edges" in document else document["links"]
        names = [str(node["id"]).encode() for node in document["nodes"]]
        edge_ends = [str(link[end]).encode() for link in links for end in ("source", "target")]
        position = {name: number for number, name in enumerate(names)}
        if len(position) < len(names):
            raise ValueError("two nodes have the same `id`")
        return _numbered(position, array("i", [position[end] for end in edge_ends]))
    except (TypeError, KeyError, ValueError) as error:
        rule = "`nodes` must be objects with `id`, `links` or `edges` objects with such a `source` and `target`"
        raise UserError(f"is no node-link data ({error!r}): {rule}") from error


def _prism(document: dict) -> Instance:
    older = "ground_truth" in document
    adjacency, labels = document["adjacency"], document["ground_truth"] if older else document
    for key, value in (("adjacency", adjacency), ("ground_truth", labels)):
        if not isinstance(value, dict):
            raise UserError(f"`{key}` is {brief(value)}; it must be an object")
    cells = _whole_numbers(adjacency.get("data"), 2, "adjacency")
    n = checked_size(math.isqrt(cells.size))
    shape = adjacency.get("shape", [document.get("n", n)] * 2)
    if shape != [n, n] or cells.size != n * n:
        raise UserError(f"the shape of `adjacency` is {brief(shape)}; it must be [n, n], with n x n numbers")
    matrix = cells.reshape(n, n)
    if (wrong := matrix != matrix.T).any():
        i, j = divmod(int((wrong & (matrix == 1)).argmax()), n)
        raise UserError(f"`adjacency` is not symmetric: ({i}, {j}) is 1, ({j}, {i}) is not; set both")
    graph, key, colors = Graph.from_adjacency(matrix), "node_colors" if older else "coloring", None
    if labels.get(key) is not None:
        colors = _whole_numbers(labels[key], n, key)  # perhaps not proper
        if len(colors) != n:
            raise UserError(f"`{key}` has {len(colors)} numbers; {n} nodes need {n}")
    type_id = _graph_type(labels, "graph_type_id" if older else "graph_type")
    if type_id is None:
        return Instance(graph, colors)
    return Instance(graph, colors, family=GRAPH_TYPES[type_id], graph_type=type_id)


def _whole_numbers(values: Any, below: int, key: str) -> np.ndarray:
    """Numbers from 0 to below - 1, given flat or as a list of rows: int32."""
    try:
        is_nested = all(isinstance(row, list) for row in values)
        if is_nested and len(set(map(len, values))) > 1:
            raise TypeError
        numbers = np.asarray(array("d", chain.from_iterable(values) if is_nested else values))
    except (TypeError, OverflowError):
        raise UserError(f"`{key}` is not a list of numbers, or its rows are uneven: {brief(values)}") from None
    for place in np.flatnonzero((numbers < 0) | (numbers >= below) | (numbers != np.floor(numbers))):
        raise UserError(f"`{key}` has {numbers[place]:g} at place {place}; it takes whole numbers in 0..{below - 1}")
    return numbers.astype(np.int32)


def _graph_type(labels: dict, key: str) -> int | None:
    """Class id, given as a number or as a name in any spelling: RandomSparse, random_sparse, ..."""
    value = labels.get(key)
    if isinstance(value, str):
        value = TYPE_IDS.get("".join(filter(str.isalnum, value)).lower(), -1)
    if value is not None and (type(value) not in (int, float) or value not in range(len(GRAPH_TYPES))):
        right = f"one of {', '.join(GRAPH_TYPES)}, a number in 0..{len(GRAPH_TYPES) - 1}"
        raise UserError(f"`{key}` is {brief(labels[key])}; it must be {right}, or left out")
    return value if value is None else int(value)


class Format(NamedTuple):
    """Reader of the bytes of a file, and how many of them are read."""

    parse: Callable[[bytes], Instance]
    limit: int


FORMATS = {
    ".json": Format(parse_json, 40_000_000),
    ".col": Format(parse_dimacs, 200_000_000),
    ".graphml": Format(parse_graphml, 10_000_000),
    ".csv": Format(parse_csv, 40_000_000),
    **dict.fromkeys((".edgelist", ".edges", ".txt"), Format(parse_edge_list, 200_000_000)),
}
