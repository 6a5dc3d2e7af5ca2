"""Reader of tables of text: edge lists, adjacency lists and adjacency matrices. docs/DATA.md tells how they are told
apart. What may be read in two ways is refused, if the two are different graphs.
"""

import codecs
import csv
import io
import re
from array import array
from collections.abc import Iterator, Sequence
from reprlib import repr as brief
from typing import NamedTuple, NoReturn

import numpy as np

from gnn_training.errors import UserError
from gnn_training.graph import MAX_NODES, Graph, Instance

MAX_LINES = 20_000_000  # of which every one may have an edge
MAX_LINE = 1_000_000  # bytes of a line
WHOLE = re.compile(rb"-?[0-9]{1,18}")
FRACTION = re.compile(rb"-?[0-9]*\.[0-9]+(e-?[0-9]+)?|-?[0-9]+\.?[0-9]*e-?[0-9]+", re.IGNORECASE)
# The two ends of an edge, as the header of a table names them; digits and other signs do not count.
ENDS = {"source": "target", "from": "to", "node": "node", "u": "v", "src": "dst", "start": "end", "vertex": "vertex",
        "head": "tail", "tail": "head", "fromnode": "tonode", "sourceid": "targetid", "fromid": "toid"}  # fmt: skip
WAY_OUT = "begin an edge list with a line `source,target,weight`, or end the name of a file of neighbours in .adjlist"


def lines(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Every line with its number, from 1. UserError if there are too many, or if one is too long."""
    return _lines(_normalized(content))


def _normalized(content: bytes) -> bytes:
    """The content without a byte order mark, and with one kind of line ends."""
    return content.removeprefix(codecs.BOM_UTF8).replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _lines(text: bytes) -> Iterator[tuple[int, bytes]]:
    if text.count(b"\n") > MAX_LINES:
        raise UserError(f"has more than {MAX_LINES} lines; a larger file is not read")
    for number, line in enumerate(io.BytesIO(text), 1):
        if len(line) > MAX_LINE:
            raise UserError(f"line {number}: has more than {MAX_LINE} bytes; is this the file of a graph?")
        yield number, line


def checked_size(num_nodes: int) -> int:
    """Return `num_nodes`; UserError if it is below 1 or above MAX_NODES."""
    if not 1 <= num_nodes <= MAX_NODES:
        raise UserError(f"the graph has {num_nodes} nodes; it needs at least one; at most {MAX_NODES} are read")
    return num_nodes


def numbered(position: dict[bytes, int], edge_ends: array | np.ndarray, kind: str) -> Instance:
    """Graph of pairs of positions of labels. Labels that all are whole numbers give the order of the nodes."""
    rank = np.arange(checked_size(len(position)), dtype=np.int32)
    if all(map(WHOLE.fullmatch, position)):
        rank[np.fromiter(map(int, position), np.int64).argsort(kind="stable")] = np.arange(len(rank))
    labels = list(position)
    names = [labels[i].decode() for i in rank.argsort().tolist()]
    return Instance(Graph.from_edges(len(rank), rank[np.asarray(edge_ends).reshape(-1, 2)]), names=names, kind=kind)


class Rows:
    """The rows of a table, again at every iteration: the number of the line and its cells, without empty ones at the
    end. A line that begins with # or % is a comment. One sign separates the cells of all rows: tab, semicolon or comma
    if a row has it, in this order, else blanks. Cells may be quoted. skip: rows to leave out at the beginning.
    """

    def __init__(self, content: bytes):
        content = _normalized(content)
        if b"{" in content:  # networkx writes the attributes of an edge as a dict
            content = re.sub(rb"(?m)[ \t]\{.*\}[ \t]*$", b"", content)
        bare = re.sub(rb'"[^"\n]*"', b'""', content) if b'"' in content else content
        found = (sign for sign in (b"\t", b";", b",") if sign in content)
        row = rb"(?m)^[ \t]*(?![#%\s])[^\nX]*X[ \t\v\fX]*[^\sX#]"
        signs = (sign for sign in found if re.search(row.replace(b"X", sign), bare))
        self.content, self.separator = content, next(signs, None)
        self.skip = 0
        # Some programs write a colon between a node and its neighbours.
        self.has_colons = False
        self.has_colons = all(cells[0][-1:] == b":" or cells[1:2] == [b":"] for _, cells in self)

    def __iter__(self) -> Iterator[tuple[int, list[bytes]]]:
        skip, is_ascii, has_quotes, separator = self.skip, self.content.isascii(), b'"' in self.content, self.separator
        for number, line in _lines(self.content):
            try:
                if not is_ascii:
                    line.decode()
                if has_quotes or b"#" in line:
                    cells = self._cells(line)
                else:
                    cells = [cell.strip() for cell in line.split(separator)] if separator else line.split()
            except UnicodeDecodeError:
                raise UserError(f"line {number}: has bytes that are not UTF-8 text; is this an edge list?") from None
            except csv.Error as error:
                raise UserError(f"line {number}: is no CSV ({error}); is this an edge list?") from None
            while cells and not cells[-1]:
                cells.pop()
            if not cells or cells[0][:1] in (b"#", b"%"):
                continue
            if self.has_colons:
                cells = [cells[0].removesuffix(b":").rstrip(), *cells[1 + (cells[1:2] == [b":"]) :]]
            if skip:
                skip -= 1
            else:
                yield number, cells

    def _cells(self, line: bytes) -> list[bytes]:
        if b'"' in line:
            text = line.strip(b"\n") if self.separator else b" ".join(line.split())
            sign = (self.separator or b" ").decode()
            return [
                cell.encode().strip() for cell in next(csv.reader([text.decode()], delimiter=sign, strict=True), [])
            ]
        if self.separator:
            return [cell.strip() for cell in line.split(self.separator)]
        words = line.split()
        return words[: next((i for i, word in enumerate(words) if word[:1] == b"#"), len(words))]


class Pairs(NamedTuple):
    """Two cells of every row; of a row of one cell twice the same. widths: the numbers of cells."""

    position: dict[bytes, int]  # of every label
    ends: np.ndarray  # (rows, 2) positions
    widths: np.ndarray  # (rows,)


def _pairs(rows: Rows, columns: tuple[int, int] = (0, 1)) -> Pairs:
    """The cells of all rows in two columns."""
    position: dict[bytes, int] = {}
    ends, widths = array("i"), array("i")
    first, second = columns
    for number, cells in rows:
        width = len(cells)
        widths.append(width)
        one = cells[first] if first < width else b""
        ends.append(position.setdefault(one, len(position)))
        ends.append(position.setdefault(cells[second] if second < width else one, len(position)))
        _check_count(number, position)
    return Pairs(position, np.asarray(ends).reshape(-1, 2), np.asarray(widths))


def parse_table(content: bytes) -> Instance:
    """Read an edge list, adjacency lists or an adjacency matrix, whichever it is. UserError if it may be several."""
    rows = Rows(content)
    number, first = next(iter(rows), (0, [b""]))
    if not number:
        raise UserError("there is no edge; an edge list has two nodes per line")
    if rows.has_colons:
        return _adjacency_lists(rows)
    pairs, columns = _pairs(rows), _named_columns(first)
    if columns is None and (matrix := _matrix(rows, pairs)):
        return matrix
    if columns and len(pairs.ends) == 1:
        raise UserError(f"line {number}: is a header without an edge below it; an edge list has two nodes per line")
    if columns == (0, 1) and not _is_apart(pairs):  # such as the edge between two nodes u and v
        columns = None
    if columns or _is_header(rows, number, first, pairs):
        rows.skip = 1
        shown = brief(" ".join(cell.decode() for cell in first))
        return _edge_list(rows, columns or (0, 1), f"edge list without its header {shown}")
    if (base := _counted_from(number, first, pairs)) is not None:
        rows.skip = 1
        return _counted(rows, int(first[0]), base)
    if pairs.widths.min() == pairs.widths.max() == 2:
        return _edge_list(rows, (0, 1), "edge list", pairs)
    if _has_neighbours(rows, pairs):
        return _adjacency_lists(rows)
    return _edge_list(rows, (0, 1), "edge list, the first two columns", pairs)


def parse_adjacency_lists(content: bytes) -> Instance:
    """Read lines of a node and its neighbours, which networkx calls an adjacency list."""
    return _adjacency_lists(Rows(content))


def _named_columns(first: Sequence[bytes]) -> tuple[int, int] | None:
    """The columns that a header calls the ends of an edge."""
    names = ["".join(filter(str.isalpha, cell.decode().lower())) for cell in first]
    for i, name in enumerate(names):
        if (end := ENDS.get(name)) in names[i + 1 :]:
            return i, names.index(end, i + 1)
    return None


def _is_apart(pairs: Pairs) -> bool:
    """Whether the two cells of the first row stand in no other row, and there are others."""
    counts = np.bincount(pairs.ends.ravel())
    return len(pairs.ends) > 1 and bool((counts[pairs.ends[0]] == 1).all())


def _is_header(rows: Rows, number: int, first: Sequence[bytes], pairs: Pairs) -> bool:
    """Whether the first row is no edge: its words are no numbers and stand in no other row, while all others are
    numbers, or no other row stands apart like it. UserError if that is not certain.
    """
    if len(first) < 2 or not all(first[:2]) or not _is_apart(pairs) or any(map(_is_number, first[:2])):
        return False
    num_apart = (np.bincount(pairs.ends.ravel())[pairs.ends] == 1).all(1).sum()
    if num_apart == 1 or all(map(_is_number, list(pairs.position)[2:])):
        return True
    if rows.separator:
        _refuse(number, first, "a header or an edge", "begin with a line `source,target`, with the same separator")
    return False


def _is_number(cell: bytes) -> bool:
    return bool(WHOLE.fullmatch(cell) or FRACTION.fullmatch(cell))


def _counted_from(number: int, first: Sequence[bytes], pairs: Pairs) -> int | None:
    """The smallest node if the first row has the numbers of nodes and edges. UserError if it may as well be an edge of
    another graph, or if it does not fit the other rows.
    """
    labels, rest = list(pairs.position), len(pairs.ends) - 1
    if len(first) != 2 or not rest or not all(map(WHOLE.fullmatch, labels)):
        return None
    numbers, ends = np.fromiter(map(int, labels), np.int64), pairs.ends
    num_nodes, num_edges = numbers[ends[0]].tolist()
    others = numbers[np.bincount(ends[1:].ravel(), minlength=len(labels)) > 0]  # of the rows below, each once
    low, high = int(others.min()), int(others.max())
    base, is_full = int(high == num_nodes), len(others) == high - low + 1 == num_nodes
    if low < base or high >= num_nodes + base or num_edges < 1:
        return None
    if num_edges != rest:
        if is_full and num_edges > high:
            message = f"line {number}: says {num_nodes} nodes and {num_edges} edges, but {rest} lines follow"
            raise UserError(f"{message}; correct it, or remove it if the lines are right")
        return None
    if low == 0 or num_edges > num_nodes:
        return base
    if is_full and (np.sort(ends[1:], axis=1) == np.sort(ends[0])).all(1).any():
        return None  # both readings are one graph
    way_out = "move an edge to another line, or write a .col file"
    _refuse(number, first, "an edge, or the numbers of nodes and edges", way_out)


def _counted(rows: Rows, num_nodes: int, base: int) -> Instance:
    """The graph of the edges below a line with the numbers of nodes and edges."""
    pairs = _check_pairs(rows, (0, 1), _pairs(rows))
    ends = np.fromiter(map(int, pairs.position), np.int64)[pairs.ends] - base
    graph, names = Graph.from_edges(checked_size(num_nodes), ends), range(base, base + num_nodes)
    return Instance(graph, names=names, kind="edge list below its numbers of nodes and edges")


def _matrix(rows: Rows, pairs: Pairs) -> Instance | None:
    """The graph of a square, symmetric table of numbers: those that are not 0 are edges. Names of the nodes may stand
    in a row above it, in a column before it, or in both. None if it is no matrix: numbers other than 0 and 1 are one
    only if those of the diagonal are 0.
    """
    height, width = len(pairs.widths), int(pairs.widths.max())
    if height < 2 or pairs.widths.min() < width or (height > width + 1 and not pairs.position.keys() <= {b"0", b"1"}):
        return None
    if width == 2:
        is_square = height == 2 and pairs.position.keys() <= {b"0", b"1"} and pairs.ends[0, 0] == pairs.ends[1, 1]
        if is_square and pairs.ends[0, 1] == pairs.ends[1, 0] and list(pairs.position) != [b"0", b"1"]:
            _refuse(1, [b"two rows of 0 and 1"], "a matrix or two edges", WAY_OUT)
    for above, before in ((0, 0), (1, 1), (1, 0), (0, 1))[: 4 * (width > 2)]:
        names: list[bytes] = []
        matrix = []
        try:
            for i, (_, cells) in enumerate(rows, -above):
                if i < 0:
                    names = cells[before:]
                elif cells[:before] != names[i : i + before] and above:
                    raise ValueError
                else:
                    names += cells[: max(0, before - above)]
                    matrix.append(np.array(cells[before:], dtype=np.float32))
        except ValueError:
            continue
        numbers = np.array(matrix)
        is_binary = bool(((numbers == 0) | (numbers == 1)).all())
        has_zeros = (above, before) in ((0, 0), (1, 1)) and not numbers.diagonal().any()
        if not ((numbers >= 0) & (numbers < np.inf)).all() or not (is_binary or has_zeros):
            continue
        if height - above != width - before:
            shape = f"{height - above} rows of {width - before} numbers"
            raise UserError(f"has {shape}, but an adjacency matrix is square; complete it, or {WAY_OUT}")
        if len(one_way := np.argwhere((numbers != 0) & (numbers.T == 0))):
            i, j = one_way[0] + 1
            message = f"the matrix is not symmetric: row {i} has an edge to node {j}, row {j} has none to node {i}"
            raise UserError(f"{message}; edges have no direction: set both numbers")
        labels = [name.decode() for name in names] or range(len(numbers))
        return Instance(Graph.from_adjacency(numbers != 0), names=labels, kind="adjacency matrix")
    return None


def _has_neighbours(rows: Rows, pairs: Pairs) -> bool:
    """Whether further cells of rows are neighbours of the first cell, and not weights or labels of an edge. UserError
    if that is not certain.
    """
    heads = np.unique(pairs.ends[:, 0])
    are_heads_unique, all_begin = len(heads) == len(pairs.ends), len(heads) == len(pairs.position)
    is_even = pairs.widths.min() == pairs.widths.max()
    cells = nodes = numbers = fractions = 0
    short = wide = None
    for number, row in rows:
        if len(row) == 1:
            short = short or (number, row)
        for cell in row[2:]:
            wide = wide or (number, row)
            cells += 1
            nodes += cell in pairs.position
            if cell.isdigit() or WHOLE.fullmatch(cell):
                numbers += 1
            elif FRACTION.fullmatch(cell):
                numbers += 1
                fractions += 1
    if short and not (pairs.widths.max() > 1 and are_heads_unique and all_begin and nodes == cells):
        _alone(*short)
    if are_heads_unique and nodes == cells and (not is_even or (all_begin and _is_mutual(rows))):
        return True
    assert wide, "a row is short, or wide, or all have two cells"
    labels = list(pairs.position)
    counts_rows = are_heads_unique and not fractions and [labels[i] for i in pairs.ends[:, 0]] in (
        [b"%d" % i for i in range(start, start + len(pairs.ends))] for start in (0, 1)
    )  # fmt: skip
    are_attributes = nodes == 0 or (not are_heads_unique and is_even and numbers == cells)
    if counts_rows or not are_attributes or not (rows.separator or numbers == cells):
        _refuse(*wide, "an edge with more about it, or a node and its neighbours", WAY_OUT)
    return False


def _is_mutual(rows: Rows) -> bool:
    """Whether each of two neighbours names the other one."""
    named = {(row[0], cell) for _, row in rows for cell in row[1:]}
    return all((v, u) in named for u, v in named)


def _adjacency_lists(rows: Rows) -> Instance:
    """The graph of rows of a node and its neighbours."""
    position: dict[bytes, int] = {}
    ends = array("i")
    for number, cells in rows:
        _check_label(number, cells)
        ids = [position.setdefault(cell, len(position)) for cell in cells]
        for other in ids[1:] or ids:  # of a node alone a loop, which is dropped
            ends.append(ids[0])
            ends.append(other)
        _check_count(number, position)
    return numbered(position, ends, "adjacency lists")


def _edge_list(rows: Rows, columns: tuple[int, int], kind: str, pairs: Pairs | None = None) -> Instance:
    """The graph of rows with an edge each, whose ends stand in two columns."""
    pairs = _check_pairs(rows, columns, pairs or _pairs(rows, columns))
    return numbered(pairs.position, pairs.ends, kind)


def _check_pairs(rows: Rows, columns: tuple[int, int], pairs: Pairs) -> Pairs:
    """Return the cells of all rows in two columns. UserError if one is missing or cannot be the name of a node."""
    is_bad = any(map(_label_error, pairs.position)) or pairs.widths.min() <= max(columns)
    for number, cells in rows if is_bad else ():
        ends = [cells[column] for column in columns if column < len(cells)]
        if len(ends) < 2 or not all(ends):
            _alone(number, cells)
        _check_label(number, ends)
    return pairs


def _label_error(label: bytes) -> str:
    """What is wrong with a name of a node, or nothing."""
    words = label.split()
    if not words:
        return "is empty"
    if FRACTION.fullmatch(label):
        return "is no whole number: is this an edge list?"
    if len(words) > 1 and all(map(_is_number, words)):
        return "has blanks, and the file another separator, too: use one of them"
    return "has a comment in it: give it a line of its own" if b"#" in words else ""


def _check_label(number: int, cells: Sequence[bytes]) -> None:
    for cell in cells:
        if error := _label_error(cell):
            raise UserError(f"line {number}: the node {brief(cell.decode())} {error}")


def _check_count(number: int, position: dict[bytes, int]) -> None:
    if len(position) > MAX_NODES:
        raise UserError(f"line {number}: begins node {MAX_NODES + 1}; a larger graph is not read")


def _alone(number: int, cells: Sequence[bytes]) -> NoReturn:
    shown = brief(" ".join(cell.decode() for cell in cells if cell))
    raise UserError(f"line {number}: {shown} is alone; an edge list has two nodes per line")


def _refuse(number: int, cells: Sequence[bytes], readings: str, way_out: str) -> NoReturn:
    shown = brief(" ".join(cell.decode() for cell in cells))
    raise UserError(f"line {number}: {shown} may be {readings}: {way_out}")
