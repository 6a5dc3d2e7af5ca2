"""Readers of graph files: bytes to Instance. UserError says what is wrong, with the line or the key.

DIMACS `.col` has `p edge N M`, then `e u v` per edge, nodes counted from 1 (DIMACS challenge format, 1993). In edge
lists and GraphML, nodes may have any labels: whole numbers are sorted, others keep the order in which they appear.
Lines end with LF, CR LF or CR; blanks are those of ASCII; numbers are digits, as `1_0`, `+1` and those of other
scripts are not. All readers take less than 1 GB for any content up to their limit.
The JSON of PRISM's generator has one object per graph, in one of two schemas:
writer's: adjacency {shape: [n, n], data: flat}, node_features {shape: [n, 16], data: flat}, coloring,
    chromatic_number, graph_type, difficulty_score, metadata {name}
older:    n, adjacency {data: flat}, node_features: n lists of 16,
    ground_truth {node_colors, chromatic_number, graph_type_id, difficulty}
"""

import codecs
import io
import json
import re
from array import array
from collections.abc import Callable, Iterator, Sequence, Sized
from itertools import chain
from reprlib import repr as brief
from typing import NamedTuple, NoReturn
from xml.parsers import expat

import numpy as np

from gnn_training.contract import GRAPH_TYPES
from gnn_training.errors import UserError
from gnn_training.graph import MAX_NODES, Graph, Instance

MAX_READ_EDGES = 20_000_000  # of which every one may stand twice
MAX_LINES, MAX_LINE = 25_000_000, 1_000_000  # lines, bytes of one
BLANKS = bytes.maketrans(b"\t,", b"  ")
BLOCK = 1 << 22  # bytes of text that are read at once
MAX_DEPTH, MAX_NAMES = 100, 10_000  # of XML: elements inside each other, different names of elements and attributes
MAX_VALUES = 100_000  # of JSON: lists, objects and quotes, which take the most memory for their bytes
WRITER_KEYS = ("coloring", "graph_type")
OLDER_KEYS = ("node_colors", "graph_type_id")
# Class ids by name, without case and punctuation. The queen and geometric families share one id.
TYPE_IDS = {name.replace("_", ""): i for i, name in enumerate(GRAPH_TYPES)}
NUMBERS = {int, float, bool, type(None)}
TYPE_IDS |= {"registerallocation": 2, "interval": 2, "queen": 4, "geometric": 4}


def checked_size(num_nodes: int) -> int:
    """Return `num_nodes`; UserError if it is below 1 or above MAX_NODES."""
    if not 1 <= num_nodes <= MAX_NODES:
        raise UserError(f"the graph has {num_nodes} nodes; it needs at least one; at most {MAX_NODES} are read")
    return num_nodes


def _blocks(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Whole lines of about BLOCK bytes together, with the number of the first one."""
    text = content.removeprefix(codecs.BOM_UTF8).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if text.count(b"\n") > MAX_LINES:
        raise UserError(f"has more than {MAX_LINES} lines; a larger file is not read")
    first, file = 1, io.BytesIO(text)
    while block := file.read(BLOCK) + file.readline():
        yield first, block
        first += block.count(b"\n")


def _lines(block: bytes, first: int) -> Iterator[tuple[int, bytes]]:
    for number, line in enumerate(io.BytesIO(block), first):
        if len(line) > MAX_LINE:
            raise UserError(f"line {number}: has more than {MAX_LINE} bytes; is this the file of a graph?")
        yield number, line


def _plain_pairs(block: bytes, begin: bytes = b"") -> np.ndarray | None:
    """Numbers (E, 2) int64 of lines that all are `begin`, a number, a blank and a number without zeros in front; None
    for other lines. This takes a tenth of the time that a loop over the lines takes.
    """
    num_lines, text = block.count(b"\n"), (b"\n" + block).replace(b"\n" + begin, b"\n")[1:]
    is_plain = text.translate(None, b"0123456789") == b" \n" * num_lines and block.endswith(b"\n")
    if not is_plain or len(block) - len(text) != len(begin) * num_lines:
        return None
    numbers = np.fromstring(text, np.int64, sep=" ")
    num_digits = np.searchsorted(10 ** np.arange(1, 19), numbers, side="right") + 1
    if len(numbers) != 2 * num_lines or num_digits.sum() != len(text) - 2 * num_lines or num_digits.max() > 18:
        return None
    return numbers.reshape(-1, 2)


def _check_growth(position: Sized, ends: Sized) -> None:
    """Raise UserError as soon as a graph that is being read has too many nodes or edges."""
    if len(position) > MAX_NODES or len(ends) > 2 * MAX_READ_EDGES:
        most = f"{MAX_NODES} nodes or {MAX_READ_EDGES} edges"
        raise UserError(f"the file has more than {most}; a larger graph is not read")


def _pairs(ends: array) -> np.ndarray:
    return np.asarray(ends).reshape(-1, 2)


def whole(word: bytes | str) -> int:
    """The number that a word of ASCII digits is; ValueError for all other words."""
    if not (word.isascii() and word.isdigit() and len(word) <= 18):
        raise ValueError(f"{brief(word)} is not a number")
    return int(word)


def parse_dimacs(content: bytes) -> Instance:
    """Read one graph. Repeated edges and loops are dropped. A wrong M gives a note, because many files have one."""
    num_nodes = stated_edges = 0
    ends = array("i")
    for first, block in _blocks(content):
        pairs = _plain_pairs(block, b"e ")
        if pairs is not None and pairs.min() > 0 and pairs.max() <= num_nodes:
            ends.frombytes((pairs - 1).astype(np.int32).tobytes())
            _check_growth((), ends)
            continue
        for number, line in _lines(block, first):
            words = line.split(None, 4)
            try:
                if not words or words[0][:1] == b"c":
                    continue
                if words[0] == b"e":
                    u, v = whole(words[1]), whole(words[2])
                    if not num_nodes:
                        raise UserError(f"edge {u}-{v} comes before the header `p edge N M`; move the header up")
                    if not (0 < u <= num_nodes and 0 < v <= num_nodes):
                        raise UserError(f"edge {u}-{v} is outside the nodes 1..{num_nodes} of the header; correct it")
                    ends.append(u - 1)
                    ends.append(v - 1)
                    _check_growth((), ends)
                elif words[0] == b"p" and not num_nodes and words[1] in (b"edge", b"edges", b"col"):
                    num_nodes, stated_edges = checked_size(whole(words[2])), whole(words[3])
                elif words[0] not in (b"n", b"d", b"v", b"x"):  # node values, dimensions, coordinates, parameters
                    raise ValueError
            except UserError as error:
                raise UserError(f"line {number}: {error}") from None
            except (ValueError, IndexError):
                shown, wanted = line[:40].rstrip().decode("ascii", "replace"), "`c`, one `p edge N M` nor `e u v`"
                raise UserError(f"line {number}: {shown!r} is neither {wanted}; fix it") from None
    if not num_nodes:
        raise UserError("there is no line `p edge N M`; a .col file begins with one")
    graph = Graph.from_edges(num_nodes, _pairs(ends))
    right = stated_edges in (len(ends) // 2, graph.num_edges)
    note = "" if right else f"the header says {stated_edges} edges, the file has {graph.num_edges}; these are used"
    return Instance(graph, note=note)


def parse_edge_list(content: bytes) -> Instance:
    """Read two labels per line, separated by blanks or commas. Further words are ignored; # and % begin a comment."""
    position: dict[bytes, int] = {}  # networkx would skip broken lines silently
    ends = array("i")
    for first, block in _blocks(content):
        if (pairs := _plain_pairs(block.translate(BLANKS))) is not None:
            labels, index, inverse = np.unique(pairs, return_index=True, return_inverse=True)
            order, places = index.argsort(), np.empty(len(labels), dtype=np.int32)
            places[order] = [position.setdefault(b"%d" % label, len(position)) for label in labels[order].tolist()]
            ends.frombytes(places[inverse].tobytes())
            _check_growth(position, ends)
            continue
        for number, line in _lines(block, first):
            words = line.replace(b",", b" ").split(None, 2)
            try:
                line.decode()
            except UnicodeDecodeError:
                raise UserError(f"line {number}: has bytes that are not UTF-8 text; is this an edge list?") from None
            if not words or words[0][0] in b"#%":
                continue
            if len(words) == 1:
                shown = words[0].decode()[:40]
                raise UserError(f"line {number}: {shown!r} is alone; an edge list has two nodes per line")
            ends.extend([position.setdefault(label, len(position)) for label in words[:2]])
            _check_growth(position, ends)
    if not position:
        raise UserError("there is no edge; an edge list has two nodes per line")
    return Instance(_numbered(position, ends))


def parse_graphml(content: bytes) -> Instance:
    """Read the first graph. Directions and parallel edges become one edge; data is passed over. networkx would take 80
    times the memory of the file, and does not check it.
    """
    if re.search(rb"<[^<>]{%d}" % MAX_LINE, content):
        raise UserError(f"has a tag of more than {MAX_LINE} bytes; is this GraphML?")
    position: dict[bytes, int] = {}
    declared, ends = array("i"), array("i")
    path: list[str] = []
    namespace, graphs = "", 0

    def refuse(what: str) -> NoReturn:
        raise UserError(f"line {parser.CurrentLineNumber}: {what}; write the file again as one plain graph")

    def number(label: str | None) -> int:
        if label is None:
            refuse("a node, or an end of an edge, has no id")
        return position.setdefault(label.encode(), len(position))

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal namespace, graphs
        if not path:
            namespace = tag.removesuffix("graphml")
        path.append(tag.removeprefix(namespace))
        graphs += path == ["graphml", "graph"]
        if path[0] != "graphml":
            refuse(f"the XML is {brief(tag)}, not GraphML")
        if len(path) > MAX_DEPTH or len(parser.intern) > MAX_NAMES:
            refuse("the XML has too many levels or names")
        if graphs != 1 or path[1] != "graph":
            return
        _check_growth(position, ends)
        match path[2:]:
            case ["node"]:
                declared.append(number(attributes.get("id")))
            case ["edge"]:
                ends.extend((number(attributes.get("source")), number(attributes.get("target"))))
            case [*_, "graph" | "hyperedge" as kind]:
                refuse(f"a {kind} inside a graph cannot be read")

    def doctype(_name: str, _system: str | None, _public: str | None, has_definitions: int) -> None:
        if has_definitions:  # of entities and defaults, with which few bytes become many
            refuse("the XML defines its own entities or attributes")

    parser = expat.ParserCreate(namespace_separator="}")
    parser.StartElementHandler, parser.StartDoctypeDeclHandler = start, doctype
    parser.EndElementHandler = lambda _tag: path.pop()
    try:
        parser.Parse(content, True)
    except expat.ExpatError as error:
        raise UserError(f"line {error.lineno}: broken XML ({error}); write the file again") from error
    except (ValueError, LookupError) as error:
        raise UserError(f"line 1: the XML has an encoding that cannot be read ({error}); write it in UTF-8") from error
    if not graphs:
        raise UserError("is GraphML without a graph; write the file again")
    return Instance(_numbered(position, ends, declared))


def _numbered(position: dict[bytes, int], ends: array, first: Sequence[int] = ()) -> Graph:
    """Graph of pairs of positions of labels. Labels that are whole numbers give the order of the nodes, else `first`,
    then the positions.
    """
    order = list(dict.fromkeys(chain(first, range(checked_size(len(position))))))
    if all(map(re.compile(rb"-?[0-9]{1,18}").fullmatch, position)):
        labels = [int(label) for label in position]
        order.sort(key=labels.__getitem__)
    rank = np.empty(len(order), dtype=np.int32)
    rank[order] = np.arange(len(order))
    return Graph.from_edges(len(order), rank[_pairs(ends)])


def parse_prism_json(content: bytes) -> Instance:
    """Read one graph with its coloring and its graph type; each may be missing or null. UserError names a wrong entry.
    Chromatic number, difficulty and node features are ignored, because they are computed again.
    """
    document = _document(content)
    older = "ground_truth" in document
    labels = _object(document, "ground_truth") if older else document
    coloring, graph_type = OLDER_KEYS if older else WRITER_KEYS
    graph = Graph.from_adjacency(_adjacency(document))
    colors, type_id = _coloring(labels, coloring, graph.num_nodes), _graph_type(labels, graph_type)
    if type_id is None:
        return Instance(graph, colors)
    return Instance(graph, colors, family=GRAPH_TYPES[type_id], graph_type=type_id)


def _document(content: bytes) -> dict:
    if sum(map(content.count, (b"[", b"{", b'"'))) > MAX_VALUES:
        raise UserError(f"has more than {MAX_VALUES} lists, objects and quotes; write the matrix as one list")
    try:
        document = json.loads(content)
    except json.JSONDecodeError as error:
        cut = error.pos >= len(error.doc.rstrip())
        what = "the JSON ends in the middle" if cut else f"broken JSON ({error.msg}, column {error.colno})"
        raise UserError(f"line {error.lineno}: {what}; write the file again") from error
    except (ValueError, RecursionError) as error:  # bytes that are not text, numbers of 5,000 digits, 1,000 brackets
        raise UserError(f"line 1: is not the JSON of a graph ({error}); write the file again") from error
    if not isinstance(document, dict) or "adjacency" not in document:
        raise UserError("is JSON without the key `adjacency`, which both schemas have; name files of graphs")
    return document


def _object(document: dict, key: str) -> dict:
    found = document.get(key)
    if not isinstance(found, dict):
        raise UserError(f"`{key}` is {brief(found)}; it must be an object")
    return found


def _adjacency(document: dict) -> np.ndarray:
    adjacency = _object(document, "adjacency")
    shape = adjacency.get("shape", [document.get("n")] * 2)
    if not isinstance(shape, list) or len(shape) != 2 or any(type(side) is not int for side in shape):
        raise UserError(f"the shape of `adjacency` is {brief(shape)}; it must be [n, n]")
    if shape[0] != shape[1] or document.get("n", shape[0]) != shape[0]:
        raise UserError(f"`adjacency` is {shape[0]} by {shape[1]}; it must be square, with a row per node")
    matrix = _floats(adjacency.pop("data", None), (checked_size(shape[0]), shape[0]), "adjacency")
    edges = matrix == 1
    if not (right := edges | (matrix == 0)).all():
        i, j = divmod(int(right.argmin()), len(matrix))
        raise UserError(f"`adjacency` entry ({i}, {j}) is {matrix[i, j]:g}; entries are 0 or 1")
    if (wrong := edges != edges.T).any():
        i, j = divmod(int(wrong.argmax()), len(matrix))
        raise UserError(f"`adjacency` is not symmetric: ({i}, {j}) is {matrix[i, j]:g}, ({j}, {i}) is not; set both")
    return edges


def _coloring(labels: dict, key: str, num_nodes: int) -> np.ndarray | None:
    """Colors (N,) int64 within 0..N-1, perhaps not proper."""
    if labels.get(key) is None:
        return None
    colors = _floats(labels[key], (num_nodes,), key)
    whole = (colors >= 0) & (colors < num_nodes) & (colors == np.floor(colors))
    for node in np.flatnonzero(~whole):
        raise UserError(f"`{key}` of node {node} is {colors[node]:g}; colors are whole numbers in 0..{num_nodes - 1}")
    return colors.astype(np.int64)


def _graph_type(labels: dict, key: str) -> int | None:
    """Class id, given as a number or as a name in any spelling: RandomSparse, random_sparse, ..."""
    value = labels.get(key)
    if value is None or value != value:
        return None
    if isinstance(value, str):
        value = TYPE_IDS.get("".join(filter(str.isalnum, value)).lower())
    if type(value) not in (int, float) or value not in range(len(GRAPH_TYPES)):
        known = f"one of {', '.join(GRAPH_TYPES)}, a number in 0..{len(GRAPH_TYPES) - 1}"
        raise UserError(f"`{key}` is {brief(labels[key])}; it must be {known}, or left out")
    return int(value)  # type: ignore[arg-type]


def _floats(values: object, shape: tuple[int, ...], key: str) -> np.ndarray:
    """Numbers in `shape`, given flat or as a list of rows; null becomes NaN."""
    try:
        if not isinstance(values, list):
            raise TypeError
        rows = values if values and all(isinstance(row, list) for row in values) else [values]
        if any(set(map(type, row)) - NUMBERS for row in rows):
            raise TypeError
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise UserError(f"`{key}` is not a list of numbers, or its rows are uneven: {brief(values)}") from None
    if array.shape not in (shape, (int(np.prod(shape)),)):
        raise UserError(f"`{key}` has {array.size} numbers; {shape[0]} nodes need {' x '.join(map(str, shape))}")
    return array.reshape(shape)


class Format(NamedTuple):
    """Reader of the bytes of a file, and how many of them are read."""

    parse: Callable[[bytes], Instance]
    limit: int


FORMATS = {
    ".json": Format(parse_prism_json, 40_000_000),
    ".col": Format(parse_dimacs, 200_000_000),
    ".graphml": Format(parse_graphml, 40_000_000),
    **dict.fromkeys((".edgelist", ".edges", ".txt"), Format(parse_edge_list, 200_000_000)),
}
