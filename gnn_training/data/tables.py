"""Reader of tables of text: edge lists, adjacency lists, adjacency matrices. docs/DATA.md has the rules that tell them
apart. What may be two different graphs is refused."""

import codecs
import csv
import io
import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace
from reprlib import repr as brief
from typing import NamedTuple, NoReturn

import numpy as np

from gnn_training.errors import UserError
from gnn_training.graph import MAX_NODES, Graph, Instance

MAX_LINES = 20_000_000  # of which every one may have an edge
MAX_LINE = 1_000_000  # bytes of a line
WHOLE = re.compile(rb"-?[0-9]{1,18}")
FRACTION = re.compile(rb"-?([0-9]+\.|[0-9]*\.[0-9]+|[0-9]+(?=e))(e[-+]?[0-9]+)?", re.IGNORECASE)
PRINTED = rb"(?m)^[ \t]*\%c([^][(){}\n]*)\%c[ \t]*[,;]?[ \t]*$"  # a row in brackets
SIGNS = re.compile(rb"[!-/:-@\[-`{-~]+|[\[{].*|.*;", re.DOTALL)  # such as -> and [1], which are no names
# The two ends of an edge, as the header of a table names them; digits and other signs do not count.
ENDS = {"source": "target", "from": "to", "node": "node", "u": "v", "src": "dst", "start": "end", "vertex": "vertex",
        "head": "tail", "tail": "head", "fromnode": "tonode", "sourceid": "targetid", "fromid": "toid"}  # fmt: skip
BRACKETS = (b"()", b"[]", b"{}")
APART = "no name is in both columns, so two colors are enough; for exams, write pairs of exams with a common student"
SEVERAL = "an edge with more about it, or a node and its neighbours"
WAY_OUT = "begin an edge list with a line `source,target,weight`, or end the name of a file of neighbours in .adjlist"


def lines(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Every line with its number, from 1. UserError if there are too many, or if one is too long."""
    text = _normalized(content)
    if text.count(b"\n") > MAX_LINES:
        raise UserError(f"has more than {MAX_LINES} lines; a larger file is not read")
    for number, line in enumerate(io.BytesIO(text), 1):
        if len(line) > MAX_LINE:
            raise UserError(f"line {number}: has more than {MAX_LINE} bytes; is this the file of a graph?")
        yield number, line


def _normalized(content: bytes) -> bytes:
    """The content without a byte order mark, and with one kind of line ends."""
    return content.removeprefix(codecs.BOM_UTF8).replace(b"\r\n", b"\n").replace(b"\r", b"\n")


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
    if a row has it, in this order, else blanks. Cells may be quoted.
    """

    def __init__(self, content: bytes):
        content = _normalized(content)
        for brackets in BRACKETS:
            content = re.sub(PRINTED % tuple(brackets), rb"\1", content) if brackets[:1] in content else content
        if b"{" in content:  # networkx writes the attributes of an edge as a dict
            content = re.sub(rb"(?m)[ \t]\{.*\}[ \t]*$", b"", content)
        bare = re.sub(rb'"[^"\n]*"', b'""', content) if b'"' in content else content
        found = (sign for sign in (b"\t", b";", b",") if sign in content)
        row = rb"(?m)^[ \t]*(?![#%\s])[^\nX]*X[ \t\v\fX]*[^\sX#]"
        signs = (sign for sign in found if re.search(row.replace(b"X", sign), bare))
        self.content, self.separator = content, next(signs, None)
        self.skip, self.is_padded = 0, False  # rows to leave out; whether a row ended in empty cells
        # Some programs write a colon between a node and its neighbours.
        self.has_colons = False
        self.has_colons = all(cells[0][-1:] == b":" or cells[1:2] == [b":"] for _, cells in self)

    def __iter__(self) -> Iterator[tuple[int, list[bytes]]]:
        skip, is_ascii = self.skip, self.content.isascii()
        for number, line in lines(self.content):
            try:
                if not is_ascii:
                    line.decode()
                cells = self._cells(line)
            except (UnicodeDecodeError, csv.Error) as error:
                fault = f"is no CSV ({error})" if isinstance(error, csv.Error) else "has bytes that are not UTF-8 text"
                raise UserError(f"line {number}: {fault}; is this an edge list?") from None
            while cells and not cells[-1]:
                cells.pop()
                self.is_padded = True
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
            cells = csv.reader([text.decode()], delimiter=sign, strict=True, skipinitialspace=True)
            return [cell.encode().strip() for cell in next(cells, [])]
        if self.separator:
            return [cell.strip() for cell in line.split(self.separator)]
        words = line.split()
        return words[: next(i for i, word in enumerate([*words, b"#"]) if word[:1] == b"#")] if b"#" in line else words


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
        return adjacency_lists(rows)
    pairs, columns, kind = _pairs(rows), _named_columns(first), "edge list"
    if matrix := _matrix(rows, pairs, columns is not None):
        return matrix
    if columns and len(pairs.ends) == 1:
        raise UserError(f"line {number}: is a header without an edge below it; an edge list has two nodes per line")
    if columns == (0, 1) and not _is_apart(pairs):  # such as the edge between two nodes u and v
        columns = None
    if columns or _is_header(rows, number, first, pairs):
        shown = brief(b" ".join(first).decode())
        if pairs.widths.max() > len(first):
            raise UserError(f"line {number}: the header {shown} has fewer cells than another row; name all columns")
        rows.skip, kind = 1, f"edge list without its header {shown}"
        pairs = _pairs(rows, columns or (0, 1))
    elif counted := _counted(number, first, pairs):
        return counted
    if columns or pairs.widths.min() == pairs.widths.max() == 2:
        return _edge_list(rows, columns or (0, 1), kind, pairs)
    if _has_neighbours(rows, pairs):
        return adjacency_lists(rows)
    return _edge_list(rows, (0, 1), f"{kind}, the first two columns", pairs)


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


def _counted(number: int, first: Sequence[bytes], pairs: Pairs) -> Instance | None:
    """The graph of edges below a row with the numbers of nodes and edges, if it is one. UserError if it may be both."""
    labels, rest, ends = list(pairs.position), len(pairs.ends) - 1, pairs.ends
    is_even = rest and pairs.widths[1:].min() == pairs.widths[1:].max() > 1
    if len(first) != 2 or not is_even or not all(map(WHOLE.fullmatch, labels)):
        return None
    numbers = np.fromiter(map(int, labels), np.int64)
    num_nodes, num_edges = numbers[ends[0]].tolist()
    others = numbers[np.bincount(ends[1:].ravel(), minlength=len(labels)) > 0]  # of the rows below, each once
    low, high = int(others.min()), int(others.max())
    base, is_full = int(high == num_nodes), len(others) == high - low + 1 == num_nodes
    if low < base or high >= num_nodes + base or num_edges < 1:
        return None
    if num_edges != rest:
        if is_full and num_edges > high:
            raise UserError(f"line {number}: says {num_nodes} nodes and {num_edges} edges; {rest} lines follow; fix it")
        return None
    if low > 0 and num_edges <= num_nodes:
        if is_full and (np.sort(ends[1:], axis=1) == np.sort(ends[0])).all(1).any():
            return None  # both readings are one graph
        _refuse(number, first, "an edge, or the numbers of nodes and edges", "move it down, or write a .col file")
    graph, names = Graph.from_edges(checked_size(num_nodes), numbers[ends[1:]] - base), range(base, base + num_nodes)
    return Instance(graph, names=names, kind="edge list below its numbers of nodes and edges")


def _matrix(rows: Rows, pairs: Pairs, has_ends: bool) -> Instance | None:
    """The graph of a square of numbers, whose names may stand in a row above it, a column before it, or both; has_ends:
    they must stand in both. None if it is no matrix, UserError if it is not that of one graph.
    """
    height, width, is_binary = len(pairs.widths), int(pairs.widths[-1]), pairs.position.keys() <= {b"0", b"1"}
    if height == width == 2 and is_binary and [*pairs.position] != [b"0", b"1"]:
        _refuse(1, [b"two rows of 0 and 1"], "a matrix or two edges", WAY_OUT)
    for above, before in {0: ((0, 0), (1, 1)), 1: ((1, 0),), -1: ((0, 1),)}.get(height - width, ()):
        has_both, size = above + before == 2, height - above
        is_even = (pairs.widths[1:] == width).all() and pairs.widths[0] in (width, width - has_both)
        if not is_even or size < 3 - has_both or has_ends > has_both:
            continue
        above_names, names, matrix = [], [], np.empty((size, size), np.float32)
        try:
            for i, (_, cells) in enumerate(rows, -above):
                if i < 0:
                    above_names = cells[-size:]
                else:
                    names += cells[:before]
                    matrix[i] = np.array(cells[before:], dtype=np.float32)
        except ValueError:  # words
            continue
        if has_both and names != above_names:
            if has_ends:
                continue
            raise UserError(f"has rows and columns of different names; name both alike and in one order, or {WAY_OUT}")
        if above != before and all(map(_is_number, names or above_names)):
            if (matrix != matrix.T).any():
                continue
            if not np.isin(matrix, (0, 1)).all():
                _refuse(*next(iter(rows)), SEVERAL, WAY_OUT)
        _check_matrix(matrix, names or above_names)
        labels = [name.decode() for name in names or above_names] or range(size)
        return Instance(Graph.from_adjacency(matrix != 0), names=labels, kind="adjacency matrix")
    if is_binary and pairs.widths.min() > 2 and height not in (1, width):
        raise UserError(f"has {height} rows of {width} numbers, but a matrix is square; complete it, or {WAY_OUT}")
    return None


def _check_matrix(matrix: np.ndarray, names: Sequence[bytes]) -> None:
    """Set the diagonal to 0. UserError if a square of numbers (N, N), or with names (N,), is not that of one graph."""
    if len(set(names)) < len(names):
        raise UserError(f"{brief(max(names, key=names.count).decode())} is the name of two nodes; give each its own")
    if (wrong := (matrix != matrix.T)).any():
        i, j = divmod(int(wrong.argmax()), len(matrix))
        shown = f"row {i + 1} has {matrix[i, j]:g} for node {j + 1}, row {j + 1} has {matrix[j, i]:g} for node {i + 1}"
        raise UserError(f"the matrix is not symmetric: {shown}; edges have no direction: set both, or {WAY_OUT}")
    diagonal = matrix.diagonal().copy()
    np.fill_diagonal(matrix, 0)
    is_laplacian = matrix.max() <= 0 and np.allclose(-matrix.sum(1), diagonal, 0.01, 0.01)
    if not np.isfinite(matrix).all() or (matrix.min() < 0 and not is_laplacian):
        raise UserError("the matrix has inf or numbers below 0, which may be no edges: write 0 where there is no edge")
    is_counted = matrix[1:, 1:].max() <= 1 and np.ptp(matrix[0, 1:] - np.arange(1, len(matrix))) == 0
    if is_counted and not names and len(matrix) > 3:
        raise UserError("the first row and column of the matrix may be names or numbers: leave them out")


def _has_neighbours(rows: Rows, pairs: Pairs) -> bool:
    """Whether further cells of rows are neighbours, not weights or labels of an edge. UserError if not certain."""
    heads, seconds = pairs.ends.T
    num_heads, is_even = len(np.unique(heads)), not np.ptp(pairs.widths)
    begin_once, all_begin = num_heads == len(heads), num_heads == len(pairs.position)
    are_numbers = np.array([*map(_is_number, pairs.position)])
    cells = nodes = numbers = fractions = 0
    for _, row in rows:
        for cell in row[2:]:
            is_fraction = not cell.isdigit() and bool(FRACTION.fullmatch(cell))
            cells += 1
            nodes += cell in pairs.position
            numbers += is_fraction or bool(WHOLE.fullmatch(cell))
            fractions += is_fraction
    may_be_short = begin_once and all_begin and nodes == cells and pairs.widths.max() > 1 and not rows.skip
    if pairs.widths.min() == 1 and not may_be_short:
        _alone(*next(row for row in rows if len(row[1]) == 1))
    is_uneven, has_words = not (is_even or rows.is_padded), not are_numbers[seconds].any()
    are_alike = numbers == (0 if has_words else cells) and (has_words or are_numbers[seconds].all())
    are_lists = is_uneven and are_alike and (rows.separator or numbers)
    are_lists = are_lists or (nodes == cells and (not is_even or (all_begin and _is_mutual(rows))))
    if begin_once and are_lists and not rows.skip:  # such lists have no header
        return True
    if begin_once:
        are_attributes = numbers == cells and (are_numbers.all() if fractions else not are_numbers.any())
    else:
        are_attributes = not is_uneven and (nodes == 0 or numbers == cells)
    has_sign = any(np.ptp(column) == 0 and not are_numbers[column[0]] for column in (heads, seconds))
    is_narrow = pairs.widths.max() <= 4 and (rows.separator or numbers == cells)
    if not has_sign and are_attributes and is_narrow:
        return False
    number, row = next(row for row in rows if len(row[1]) > 2)
    _check_label(number, row[:2])
    _refuse(number, row, SEVERAL, WAY_OUT)


def _is_mutual(rows: Rows) -> bool:
    """Whether each of two neighbours names the other one."""
    named = {(row[0], cell) for _, row in rows for cell in row[1:]}
    return all((v, u) in named for u, v in named)


def adjacency_lists(rows: Rows) -> Instance:
    """The graph of rows of a node and its neighbours. UserError if a cell cannot be the name of a node."""
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


def _edge_list(rows: Rows, columns: tuple[int, int], kind: str, pairs: Pairs) -> Instance:
    """The graph of edges between two columns, with a note if these share no name. UserError for a bad name."""
    is_bad = any(map(_label_error, pairs.position)) or pairs.widths.min() <= max(columns)
    for number, cells in rows if is_bad else ():
        ends = [cells[column] for column in columns if column < len(cells)]
        if len(ends) < 2 or not all(ends):
            _alone(number, cells)
        _check_label(number, ends)
    are_apart = len(pairs.ends) > 1 and not np.isin(*pairs.ends.T).any()
    return replace(numbered(pairs.position, pairs.ends, kind), note=APART if are_apart else "")


def _label_error(label: bytes) -> str:
    """What is wrong with a name of a node, or nothing."""
    words = label.split()
    if not words:
        return "is empty"
    if FRACTION.fullmatch(label):
        return "is no whole number: write 1.0 as 1, as numpy does with fmt='%d' and pandas with astype(int)"
    if SIGNS.fullmatch(label) or any(label.count(left) != label.count(right) for left, right in BRACKETS):
        return "has signs that no name has: write two names in each line, such as `0 1`, or quote them"
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
    shown = brief(b" ".join(filter(None, cells)).decode())
    raise UserError(f"line {number}: {shown} is alone; an edge list has two nodes per line")


def _refuse(number: int, cells: Sequence[bytes], readings: str, way_out: str) -> NoReturn:
    shown = brief(b" ".join(cells).decode())
    raise UserError(f"line {number}: {shown} may be {readings}: {way_out}")
