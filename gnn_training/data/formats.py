"""Readers of graph files: bytes to Instance. UserError says what is wrong, with the line or the key.

docs/DATA.md describes the formats: .col of the DIMACS challenge (1993), Matrix Market, METIS, tables, GraphML, JSON of
networkx, and the two JSON schemas of PRISM's generator. A reader takes less than 1 GB for any content up to its limit.
"""

import codecs
import json
import math
import re
from array import array
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from reprlib import repr as brief
from typing import Any, NamedTuple

import numpy as np
from defusedxml import ElementTree

from gnn_training.contract import GRAPH_TYPES
from gnn_training.data.tables import Lines, Rows, adjacency_lists, checked_size, numbered, parse_table
from gnn_training.errors import UserError
from gnn_training.graph import Graph, Instance

MAX_VALUES = 2_000_000  # lists, objects and quotes in a JSON file, which take the most memory per byte
# Class ids by name, without case and punctuation. The queen and geometric families share one id.
TYPE_IDS = {name.replace("_", ""): i for i, name in enumerate(GRAPH_TYPES)}
TYPE_IDS |= {"registerallocation": 2, "interval": 2, "queen": 4, "geometric": 4}


def integer(word: bytes | str) -> int:
    """Convert a word of at most 18 ASCII digits to a number; ValueError for any other word."""
    if not (word.isascii() and word.isdigit() and len(word) <= 18):
        raise ValueError(f"{brief(word)} is not a number")
    return int(word)


def parse_dimacs(content: bytes) -> Instance:
    """Read one graph. Repeated edges and loops are dropped. A wrong number of edges M gives a warning: it is common."""
    num_nodes = stated_edges = 0
    edge_ends, unused = array("i"), set()
    with Lines(content, "{!r} is neither `c`, one `p edge N M` nor `e u v`; fix it") as lines:
        for line in lines:
            match line.split(None, 4):
                case [b"e", first, second, *more]:
                    u, v = integer(first), integer(second)
                    if not num_nodes:
                        raise UserError(f"edge {u}-{v} comes before the header `p edge N M`; begin with it")
                    if not (0 < u <= num_nodes and 0 < v <= num_nodes):
                        raise UserError(f"edge {u}-{v} is outside the nodes 1..{num_nodes} of the header; correct it")
                    edge_ends.append(u)
                    edge_ends.append(v)
                    if more:
                        unused.add("distances of edges")
                case [b"p", b"edge" | b"edges" | b"col", n, m, *_] if not num_nodes:
                    num_nodes, stated_edges = checked_size(integer(n)), integer(m)
                case [b"n", *_]:
                    unused.add("values of nodes")
                # Ignored are comments (c), dimensions (d), coordinates (v) and parameters (x).
                case [word, *_] if word[:1] != b"c" and word not in (b"d", b"v", b"x"):
                    raise ValueError
    if not num_nodes:
        raise UserError("there is no line `p edge N M`; a .col file begins with one")
    instance = _counted_from_1(num_nodes, edge_ends, "DIMACS")
    warnings, num_edges = [], instance.graph.num_edges
    if stated_edges not in (len(edge_ends) // 2, num_edges):
        warnings.append(f"the header says {stated_edges} edges, the file has {num_edges}; these are used")
    warnings += [f"{name} are not used: this is plain coloring" for name in sorted(unused)]
    return replace(instance, warning="; ".join(warnings))


def _counted_from_1(num_nodes: int, edge_ends: array, kind: str) -> Instance:
    """The graph of edges whose ends, numbered from 1 to N, follow each other in `edge_ends`."""
    edges = np.asarray(edge_ends).reshape(-1, 2)
    edges -= 1  # in place: there may be 20 million
    return Instance(Graph.from_edges(num_nodes, edges), names=range(1, num_nodes + 1), kind=kind)


def parse_text(content: bytes) -> Instance:
    """Read a table, or a .col or .mtx file that is recognized by its content."""
    if content.removeprefix(codecs.BOM_UTF8)[:14].lower() == b"%%matrixmarket":
        return parse_matrix_market(content)
    is_dimacs = re.search(rb"(\A|[\r\n])(p[ \t]+(edges?|col)[ \t]|e[ \t]+[0-9]+[ \t]+[0-9]+[ \t]*(\Z|[\r\n]))", content)
    return (parse_dimacs if is_dimacs else parse_table)(content)


def parse_matrix_market(content: bytes) -> Instance:
    """Read a square sparse matrix (https://math.nist.gov/MatrixMarket/formats.html). Entries other than 0 are edges."""
    edge_ends, num_missing, num_nodes = array("i"), -1, 0
    with Lines(content, "{!r} is no entry of this matrix; correct it") as lines:
        num_words = _words_of_an_entry(next(iter(lines), b""))
        for line in lines:
            words = line.split()
            if not words or words[0][:1] == b"%":
                continue
            if not num_nodes:
                height, width, num_missing = map(integer, words)
                num_nodes = checked_size(width)
                if height != width:
                    raise UserError(f"the matrix has {height} rows and {width} columns; that of a graph is square")
                continue
            u, v = map(integer, words[:2])
            if not (0 < u <= num_nodes and 0 < v <= num_nodes):
                raise UserError(f"entry ({u}, {v}) is outside the {num_nodes} rows and columns; correct it")
            if len(words) != num_words:
                raise ValueError
            num_missing -= 1
            if num_words == 2 or any(float(word) for word in words[2:]):
                edge_ends.extend((u, v))
    if num_missing != 0:
        raise UserError("has no line `rows columns entries`, or another number of entries; write it again")
    return _counted_from_1(num_nodes, edge_ends, "Matrix Market")


def _words_of_an_entry(header: bytes) -> int:
    """The number of words of an entry, by the first line of a Matrix Market file. UserError if it is not sparse."""
    match header.decode(errors="replace").lower().split():
        case ["%%matrixmarket", "matrix", "coordinate", field, _]:
            return {"pattern": 2, "complex": 4}.get(field, 3)
        case ["%%matrixmarket", "matrix", layout, _, _]:
            raise UserError(f"{layout!r} is no sparse matrix; write it as `coordinate`")
    raise UserError("there is no `%%MatrixMarket matrix coordinate pattern symmetric`; begin with it")


def parse_metis(content: bytes) -> Instance:
    """Read a .graph file (manual of METIS 5.1, 4.1.1): line v has the neighbours of node v. Weights are ignored."""
    num_nodes = num_edges = first = step = node = 0
    edge_ends = array("i")
    form = "a .graph file has `nodes edges`, then for every node a line of its neighbours"
    with Lines(content, f"has words that are no numbers; {form}") as lines:
        for line in lines:
            words = line.split()
            if line[:1] == b"%" or not (words or num_nodes):
                continue
            if not num_nodes:
                size, num_edges, *flags = map(integer, words)
                num_nodes, (flag, num_weights) = checked_size(size), [*flags, 0, 0][:2]
                first, step = flag // 100 + flag // 10 % 10 * (num_weights or 1), 1 + flag % 10
                continue
            node += 1
            for neighbour in map(integer, words[first::step]):
                if not (node <= num_nodes and 0 < neighbour <= num_nodes):
                    raise UserError(f"edge {node}-{neighbour} is outside the {num_nodes} nodes; correct it")
                edge_ends.extend((node, neighbour))
    if not num_nodes:
        raise UserError("there is no line `nodes edges`; a .graph file begins with one")
    instance, num_ends = _counted_from_1(num_nodes, edge_ends, "METIS"), len(edge_ends) // 2
    if not 2 * instance.graph.num_edges == 2 * num_edges == num_ends:
        problem = f"the header says {num_edges} edges, the lines have {num_ends} ends of {instance.graph.num_edges}"
        raise UserError(f"{problem}; each edge stands in the lines of both its nodes: correct it")
    return instance


def parse_graphml(content: bytes) -> Instance:
    """Read one graph. Edges in both directions and parallel edges become one edge. Nodes are named by their data `name`
    or `label`, or by yEd's label, if every node has one and all differ; else by their ids. networkx would take several
    times the memory, and would read the first of two graphs. A DTD is refused, because its definitions could expand.
    """
    try:
        root = ElementTree.fromstring(content, forbid_dtd=True)
        space = root.tag.removesuffix("graphml")
        graphs = list(root.iter(f"{space}graph"))
        if len(graphs) != 1 or graphs != root.findall(f"{space}graph") or root.find(f".//{space}hyperedge") is not None:
            raise ValueError("it is not a <graphml> with one plain graph: a second graph or a hyperedge cannot be read")
        nodes, edges = graphs[0].findall(f"{space}node"), graphs[0].findall(f"{space}edge")
        ids = [node.get("id") for node in nodes]
        ids += [edge.get(end) for edge in edges for end in ("source", "target")]
        if None in ids:
            raise ValueError("a node, or an end of an edge, has no id")
    except (ElementTree.ParseError, ValueError, LookupError) as error:  # LookupError: an unknown encoding
        raise UserError(f"{error}; write the file again as one plain graph in UTF-8") from error
    position: dict[bytes, int] = {}
    edge_ends = array("i", [position.setdefault(str(name).encode(), len(position)) for name in ids])
    instance = numbered(position, edge_ends[len(edge_ends) - 2 * len(edges) :], "GraphML")
    for texts in _texts(root, space, nodes):
        names = dict(zip((node.get("id") for node in nodes), texts, strict=True))
        if len(set(names.values()) - {""}) == len(position):
            return replace(instance, names=[names[name] for name in instance.names])
    return instance


def _texts(root: Any, space: str, nodes: list) -> Iterator[list[str]]:
    """Yield the `name` of every node, then the `label` of every node, then yEd's label; "" where a node has none."""
    keys = {key.get("id"): str(key.get("attr.name")).lower() for key in root.findall(f"{space}key")}
    data = [{keys.get(each.get("key")): each for each in reversed(node.findall(f"{space}data"))} for node in nodes]
    yield from ([_text(of_node.get(title)) for of_node in data] for title in ("name", "label"))
    yield [_text(next((one for one in node.iter() if one.tag.endswith("}NodeLabel")), None)) for node in nodes]


def _text(element: Any) -> str:
    return (element.text or "").strip() if element is not None else ""


def parse_json(content: bytes) -> Instance:
    """Read one graph of PRISM's generator, or one in networkx's node-link or adjacency data. PRISM's coloring and graph
    type may be missing or null; its chromatic number, difficulty and node features are ignored, because they are
    computed again. UserError names a wrong entry.
    """
    if sum(map(content.count, (b"[", b"{", b'"'))) > MAX_VALUES:
        raise UserError(f"has more than {MAX_VALUES} lists, objects and quotes; write the matrix as one list")
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:  # also bytes that are not text, numbers of 5,000 digits
        raise UserError(f"broken JSON ({error}); write the file again") from error
    if not isinstance(document, dict) or not {"adjacency", "nodes"} & document.keys():
        raise UserError("is JSON without the key `adjacency` or `nodes`, which all schemas have; name files of graphs")
    is_prism = "nodes" not in document or isinstance(document.get("adjacency"), dict)
    return _prism(document) if is_prism else _networkx(document)


def _networkx(document: dict) -> Instance:
    """The graph of networkx's node-link data or adjacency data."""
    try:
        names = [str(node["id"]).encode() for node in document["nodes"]]
        if "adjacency" in document:
            kind, rows = "adjacency data", zip(names, document["adjacency"], strict=True)
            named_edges = [(head.decode(), str(node["id"])) for head, row in rows for node in row]
        else:
            kind, links = "node-link data", document["edges"] if "edges" in document else document["links"]
            named_edges = [(str(link["source"]), str(link["target"])) for link in links]
        position = {name: number for number, name in enumerate(names)}
        if len(position) < len(names):
            raise ValueError("two nodes have the same `id`")
        return numbered(position, array("i", [position[end.encode()] for pair in named_edges for end in pair]), kind)
    except (TypeError, KeyError, ValueError) as error:
        rule = "`nodes` must be objects with `id`, `links` or `edges` objects with such a `source` and `target`"
        raise UserError(f"is no data of networkx ({error!r}): {rule}; or `adjacency` a list of such ids") from error


def _prism(document: dict) -> Instance:
    """The graph of one of PRISM's schemas; the older one has the labels in an object of their own."""
    adjacency, labels, keys = document["adjacency"], document, ("coloring", "graph_type")
    if "ground_truth" in document:
        labels, keys = document["ground_truth"], ("node_colors", "graph_type_id")
    coloring_key, type_key = keys
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
    instance = Instance(Graph.from_adjacency(matrix), kind="JSON with a matrix")
    if labels.get(coloring_key) is not None:
        colors = _whole_numbers(labels[coloring_key], n, coloring_key)  # perhaps not proper
        if len(colors) != n:
            raise UserError(f"`{coloring_key}` has {len(colors)} numbers; {n} nodes need {n}")
        instance = replace(instance, coloring=colors)
    type_id = _graph_type(labels, type_key)
    return instance if type_id is None else replace(instance, family=GRAPH_TYPES[type_id], graph_type=type_id)


def _whole_numbers(values: Any, below: int, key: str) -> np.ndarray:
    """Convert whole numbers from 0 to below - 1, a flat list or a list of rows, to int32. UserError for others."""
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
    """The id of a graph type, given as a number or as a name in any spelling: RandomSparse, random_sparse, ..."""
    value = labels.get(key)
    if isinstance(value, str):
        value = TYPE_IDS.get("".join(filter(str.isalnum, value)).lower(), -1)
    if value is not None and (type(value) not in (int, float) or value not in range(len(GRAPH_TYPES))):
        right = f"one of {', '.join(GRAPH_TYPES)}, a number in 0..{len(GRAPH_TYPES) - 1}"
        raise UserError(f"`{key}` is {brief(labels[key])}; it must be {right}, or left out")
    return value if value is None else int(value)


class Format(NamedTuple):
    """The reader of a file format, and the largest number of bytes that a file may have."""

    parse: Callable[[bytes], Instance]
    limit: int


FORMATS = {
    ".json": Format(parse_json, 40_000_000),
    **dict.fromkeys((".col", ".clq"), Format(parse_dimacs, 200_000_000)),
    ".mtx": Format(parse_matrix_market, 200_000_000),
    ".graph": Format(parse_metis, 200_000_000),
    ".graphml": Format(parse_graphml, 10_000_000),
    ".adjlist": Format(lambda content: adjacency_lists(Rows(content)), 200_000_000),
    **dict.fromkeys((".edgelist", ".edges", ".txt", ".csv", ".tsv"), Format(parse_text, 200_000_000)),
}
