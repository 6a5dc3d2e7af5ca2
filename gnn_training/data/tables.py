"""Reader of tables of text: edge lists, adjacency lists, adjacency matrices. docs/DATA.md has the rules that tell them
apart. What may be two different graphs is refused."""

import codecs
import csv
import io
import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, takewhile
from reprlib import repr as brief
from typing import NamedTuple, NoReturn, Self

import numpy as np

from gnn_training.errors import UserError
from gnn_training.graph import MAX_NODES, Graph, Instance

MAX_LINES = 20_000_000  # most lines of a file; each may have an edge
MAX_LINE = 1_000_000  # most bytes of a line
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
HINT = "begin an edge list with a line `source,target,weight`, or end the name of a file of neighbours in .adjlist"


class Lines:
    """The lines of a file. In a `with` block, an error gets the number of the line that was read last; a ValueError
    becomes the sentence `fault`, with the line in the place of {}.
    """

    def __init__(self, content: bytes, fault: str = ""):
        self.number, self.line, self.fault, self._text = 0, b"", fault, _normalized(content)
        if self._text.count(b"\n") > MAX_LINES:
            raise UserError(f"has more than {MAX_LINES} lines; a larger file is not read")

    def __iter__(self) -> Iterator[bytes]:
        for number, line in enumerate(io.BytesIO(self._text), 1):
            self.number, self.line = number, line
            if len(line) > MAX_LINE:
                raise UserError(f"has more than {MAX_LINE} bytes; is this the file of a graph?")
            yield line

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, UserError) and self.number:
            raise UserError(f"line {self.number}: {error}") from None
        if isinstance(error, ValueError):
            shown = self.line[:40].rstrip().decode("ascii", "replace")
            raise UserError(f"line {self.number}: {self.fault.format(shown)}") from None


def _normalized(content: bytes) -> bytes:
    """The content without a byte order mark, and with one kind of line ends."""
    return content.removeprefix(codecs.BOM_UTF8).replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def checked_size(num_nodes: int) -> int:
    """`num_nodes`; UserError if it is below 1 or above MAX_NODES."""
    if not 1 <= num_nodes <= MAX_NODES:
        raise UserError(f"the graph has {num_nodes} nodes; it needs at least one; at most {MAX_NODES} are read")
    return num_nodes


def numbered(position: dict[bytes, int], edge_ends: array | np.ndarray, kind: str) -> Instance:
    """The graph of pairs of positions of labels. If all labels are whole numbers, they order the nodes."""
    labels, order = list(position), np.arange(checked_size(len(position)))
    if all(map(WHOLE.fullmatch, labels)):
        order = np.fromiter(map(int, labels), np.int64).argsort(kind="stable")
    rank, names = order.argsort().astype(np.int32), [labels[i].decode() for i in order.tolist()]
    return Instance(Graph.from_edges(len(rank), rank[np.asarray(edge_ends).reshape(-1, 2)]), names=names, kind=kind)


class Rows:
    """The rows of a table, read again at every iteration: the number of the line and its cells, without empty cells at
    the end. A line that begins with # or % is a comment. One sign separates the cells of all rows: tab, semicolon or
    comma if a row has it, in this order, else blanks. Cells may be quoted.
    """

    def __init__(self, content: bytes):
        content = _normalized(content)
        for brackets in BRACKETS:
            content = re.sub(PRINTED % tuple(brackets), rb"\1", content) if brackets[:1] in content else content
        if b"{" in content:  # networkx writes the attributes of an edge as a dict
            content = re.sub(rb"(?m)[ \t]\{.*\}[ \t]*$", b"", content)
        bare = re.sub(rb'"[^"\n]*"', b'""', content) if b'"' in content else content
        candidates = (sign for sign in (b"\t", b";", b",") if sign in content)
        row = rb"(?m)^[ \t]*(?![#%\s])[^\nX]*X[ \t\v\fX]*[^\sX#]"
        signs = (sign for sign in candidates if re.search(row.replace(b"X", sign), bare))
        self.content, self.separator = content, next(signs, None)
        self.skip, self.is_padded = 0, False  # rows to leave out; whether a row ended in empty cells
        # Some programs write a colon between a node and its neighbours.
        self.has_colons = False
        self.has_colons = all(cells[0][-1:] == b":" or cells[1:2] == [b":"] for _, cells in self)

    def __iter__(self) -> Iterator[tuple[int, list[bytes]]]:
        skip, is_ascii = self.skip, self.content.isascii()
        with Lines(self.content) as lines:
            for line in lines:
                cells = self._cells(line, is_ascii)
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
                    yield lines.number, cells

    def _cells(self, line: bytes, is_ascii: bool) -> list[bytes]:
        try:
            if not is_ascii:
                line.decode()
            if b'"' in line:
                text = line.strip(b"\n").decode() if self.separator else b" ".join(line.split()).decode()
                sign = (self.separator or b" ").decode()
                cells = csv.reader([text], delimiter=sign, strict=True, skipinitialspace=True)
                return [cell.encode().strip() for cell in next(cells, [])]
        except UnicodeDecodeError:
            raise UserError("has bytes that are not UTF-8 text; is this an edge list?") from None
        except csv.Error as error:
            raise UserError(f"is no CSV ({error}); is this an edge list?") from None
        if self.separator:
            return [cell.strip() for cell in line.split(self.separator)]
        words = line.split()
        return list(takewhile(lambda word: word[:1] != b"#", words)) if b"#" in line else words


class Pairs(NamedTuple):
    """Two cells of every row; a row of one cell has it twice. widths: the number of cells of every row."""

    position: dict[bytes, int]  # of every label
    ends: np.ndarray  # (rows, 2) positions
    widths: np.ndarray  # (rows,)

    @classmethod
    def of(cls, rows: Rows, first: int = 0, second: int = 1) -> Self:
        """The cells of all rows in two columns."""
        position: dict[bytes, int] = {}
        edge_ends, widths = array("i"), array("i")
        for number, cells in rows:
            width = len(cells)
            widths.append(width)
            one = cells[first] if first < width else b""
            edge_ends.append(position.setdefault(one, len(position)))
            edge_ends.append(position.setdefault(cells[second] if second < width else one, len(position)))
            _check_count(number, position)
        return cls(position, np.asarray(edge_ends).reshape(-1, 2), np.asarray(widths))


def parse_table(content: bytes) -> Instance:
    """Read an edge list, adjacency lists or an adjacency matrix. UserError if the table could be several of them."""
    rows = Rows(content)
    number, first = next(iter(rows), (0, [b""]))
    if not number:
        raise UserError("there is no edge; an edge list has two nodes per line")
    if rows.has_colons:
        return adjacency_lists(rows)
    pairs, columns, kind = Pairs.of(rows), _named_columns(first), "edge list"
    if matrix := _matrix(rows, pairs, columns is not None):
        return matrix
    if columns and len(pairs.ends) == 1:
        raise UserError(f"line {number}: is a header without an edge below it; an edge list has two nodes per line")
    if columns == (0, 1) and not _is_apart(pairs):  # the row is an edge, such as that of two nodes u and v
        columns = None
    if columns or _is_header(rows, number, first, pairs):
        shown = brief(b" ".join(first).decode())
        if pairs.widths.max() > len(first):
            raise UserError(f"line {number}: the header {shown} has fewer cells than another row; name all columns")
        rows.skip, kind = 1, f"edge list without its header {shown}"
        pairs = Pairs.of(rows, *columns or (0, 1))
    elif counted := _counted(number, first, pairs):
        return counted
    if columns or pairs.widths.min() == pairs.widths.max() == 2:
        return _edge_list(rows, columns or (0, 1), kind, pairs)
    if _has_neighbours(rows, pairs):
        return adjacency_lists(rows)
    return _edge_list(rows, (0, 1), f"{kind}, the first two columns", pairs)


def _named_columns(first: Sequence[bytes]) -> tuple[int, int] | None:
    """The two columns that a header calls the ends of an edge, or None."""
    names = ["".join(filter(str.isalpha, cell.decode().lower())) for cell in first]
    for i, name in enumerate(names):
        if (end := ENDS.get(name)) in names[i + 1 :]:
            return i, names.index(end, i + 1)
    return None


def _is_apart(pairs: Pairs) -> bool:
    """Whether the two cells of the first row are in no other row, and there are other rows."""
    counts = np.bincount(pairs.ends.ravel())
    return len(pairs.ends) > 1 and bool((counts[pairs.ends[0]] == 1).all())


def _is_header(rows: Rows, number: int, first: Sequence[bytes], pairs: Pairs) -> bool:
    """Whether the first row is a header: its two words are no numbers and are in no other row, and either all other
    words are numbers or every other row shares a word with another row. UserError if that is not certain.
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
    """The graph of edges below a row with the numbers of nodes and edges, or None. UserError if it may be both."""
    labels, num_below, ids = list(pairs.position), len(pairs.ends) - 1, pairs.ends
    is_even = num_below and pairs.widths[1:].min() == pairs.widths[1:].max() > 1
    if len(first) != 2 or not is_even or not all(map(WHOLE.fullmatch, labels)):
        return None
    numbers = np.fromiter(map(int, labels), np.int64)
    num_nodes, num_edges = numbers[ids[0]].tolist()
    others = numbers[np.bincount(ids[1:].ravel(), minlength=len(labels)) > 0]  # those in the rows below, each once
    low, high = int(others.min()), int(others.max())
    base, is_full = int(high == num_nodes), len(others) == high - low + 1 == num_nodes
    if low < base or high >= num_nodes + base or num_edges < 1:
        return None
    if num_edges != num_below:
        if is_full and num_edges > high:
            says = f"line {number}: says {num_nodes} nodes and {num_edges} edges"
            raise UserError(f"{says}; {num_below} lines follow; fix it")
        return None
    if low > 0 and num_edges <= num_nodes:
        if is_full and (np.sort(ids[1:], axis=1) == np.sort(ids[0])).all(1).any():
            return None  # both readings are one graph
        _refuse(number, first, "an edge, or the numbers of nodes and edges", "move it down, or write a .col file")
    graph, names = Graph.from_edges(checked_size(num_nodes), numbers[ids[1:]] - base), range(base, base + num_nodes)
    return Instance(graph, names=names, kind="edge list below its numbers of nodes and edges")


def _matrix(rows: Rows, pairs: Pairs, has_ends: bool) -> Instance | None:
    """The graph of a square of numbers, whose names may stand in a row above it, a column before it, or both. has_ends:
    they must stand in both. None if the table is no matrix, UserError if it is not the matrix of one graph.
    """
    height, width, is_binary = len(pairs.widths), int(pairs.widths[-1]), pairs.position.keys() <= {b"0", b"1"}
    if height == width == 2 and is_binary and [*pairs.position] != [b"0", b"1"]:
        _refuse(1, [b"two rows of 0 and 1"], "a matrix or two edges", HINT)
    names = {0: ((False, False), (True, True)), 1: ((True, False),), -1: ((False, True),)}
    for is_above, is_before in names.get(height - width, ()):
        has_both, size = is_above and is_before, height - is_above
        is_even = (pairs.widths[1:] == width).all() and pairs.widths[0] in (width, width - has_both)
        if is_even and size >= 3 - has_both and has_ends <= has_both:
            matrix, above, before = _square(rows, size, is_above, is_before)
            if matrix is not None and _is_matrix(rows, matrix, above, before, has_ends):
                return _graph_of(matrix, before or above)
    if is_binary and pairs.widths.min() > 2 and height not in (1, width):
        raise UserError(f"has {height} rows of {width} numbers, but a matrix is square; complete it, or {HINT}")
    return None


def _square(
    rows: Rows, size: int, is_above: bool, is_before: bool
) -> tuple[np.ndarray | None, list[bytes], list[bytes]]:
    """The numbers (N, N) of the rows, and the names above and before them. Other words than numbers are no matrix."""
    above, before, matrix = [], [], np.empty((size, size), np.float32)
    for i, (_, cells) in enumerate(rows, -is_above):
        if i < 0:
            above = cells[-size:]
            continue
        before += cells[:is_before]
        try:
            matrix[i] = np.array(cells[is_before:], dtype=np.float32)
        except ValueError:
            return None, [], []
    return matrix, above, before


def _is_matrix(rows: Rows, matrix: np.ndarray, above: list[bytes], before: list[bytes], has_ends: bool) -> bool:
    """Whether numbers (N, N) are an adjacency matrix, judged by the names around them. UserError if they may be one."""
    if above and before:
        if above != before and not has_ends:
            raise UserError(f"has rows and columns of different names; name both alike and in one order, or {HINT}")
        return above == before
    if (above or before) and all(map(_is_number, above or before)):
        if (matrix != matrix.T).any():
            return False
        if not np.isin(matrix, (0, 1)).all():
            _refuse(*next(iter(rows)), SEVERAL, HINT)
    return True


def _graph_of(matrix: np.ndarray, names: Sequence[bytes]) -> Instance:
    """The graph of numbers (N, N), with names (N,) or none. UserError if they are not the matrix of one graph."""
    if len(set(names)) < len(names):
        raise UserError(f"{brief(max(names, key=names.count).decode())} is the name of two nodes; give each its own")
    if (wrong := (matrix != matrix.T)).any():
        i, j = divmod(int(wrong.argmax()), len(matrix))
        shown = f"row {i + 1} has {matrix[i, j]:g} for node {j + 1}, row {j + 1} has {matrix[j, i]:g} for node {i + 1}"
        raise UserError(f"the matrix is not symmetric: {shown}; edges have no direction: set both, or {HINT}")
    diagonal = matrix.diagonal().copy()
    np.fill_diagonal(matrix, 0)
    is_laplacian = matrix.max() <= 0 and np.allclose(-matrix.sum(1), diagonal, 0.01, 0.01)
    if not np.isfinite(matrix).all() or (matrix.min() < 0 and not is_laplacian):
        raise UserError("the matrix has inf or numbers below 0, which may be no edges: write 0 where there is no edge")
    is_counted = matrix[1:, 1:].max() <= 1 and np.ptp(matrix[0, 1:] - np.arange(1, len(matrix))) == 0
    if is_counted and not names and len(matrix) > 3:
        raise UserError("the first row and column of the matrix may be names or numbers: leave them out")
    labels = [name.decode() for name in names] or range(len(matrix))
    return Instance(Graph.from_adjacency(matrix != 0), names=labels, kind="adjacency matrix")


class FurtherCells:
    """The cells after the second of all rows: whether all or some of them are labels, numbers or fractions."""

    def __init__(self, rows: Rows, pairs: Pairs):
        cells = labels = numbers = fractions = 0
        for cell in chain.from_iterable(row[2:] for _, row in rows):
            is_fraction = not cell.isdigit() and bool(FRACTION.fullmatch(cell))
            cells += 1
            labels += cell in pairs.position
            numbers += is_fraction or bool(WHOLE.fullmatch(cell))
            fractions += is_fraction
        self.are_labels, self.have_labels = labels == cells, labels > 0
        self.are_numbers, self.have_numbers, self.have_fractions = numbers == cells, numbers > 0, fractions > 0
        num_heads = len(np.unique(pairs.ends[:, 0]))
        self.begin_once, self.all_begin = num_heads == len(pairs.ends), num_heads == len(pairs.position)  # labels, rows
        self.is_uneven = bool(np.ptp(pairs.widths)) and not rows.is_padded  # not for empty cells at the end of rows
        self.labels_are_numbers = np.array([*map(_is_number, pairs.position)])


def _has_neighbours(rows: Rows, pairs: Pairs) -> bool:
    """Whether further cells of rows are neighbours, not weights or labels of an edge. UserError if not certain."""
    further = FurtherCells(rows, pairs)
    may_be_lists = further.begin_once and not rows.skip  # adjacency lists have no header
    if pairs.widths.min() == 1:
        may_be_short = further.are_labels and further.all_begin and pairs.widths.max() > 1
        if not (may_be_lists and may_be_short):
            _refuse_single_cell(*next(row for row in rows if len(row[1]) == 1))
    if may_be_lists and _are_neighbours(rows, pairs, further):
        return True
    if _are_attributes(rows, pairs, further):
        return False
    number, row = next(row for row in rows if len(row[1]) > 2)
    _check_label(number, row[:2])
    _refuse(number, row, SEVERAL, HINT)


def _are_neighbours(rows: Rows, pairs: Pairs, further: FurtherCells) -> bool:
    """Whether further cells are names of nodes, or like the second cells in rows of several lengths."""
    if further.are_labels and (np.ptp(pairs.widths) or (further.all_begin and _is_mutual(rows))):
        return True
    seconds = further.labels_are_numbers[pairs.ends[:, 1]]
    are_alike = further.are_numbers if seconds.all() else not (seconds.any() or further.have_numbers)
    return further.is_uneven and are_alike and bool(rows.separator or further.have_numbers)


def _are_attributes(rows: Rows, pairs: Pairs, further: FurtherCells) -> bool:
    """Whether further cells are attributes of the edge between the first two."""
    numbers = further.labels_are_numbers
    if any(np.ptp(column) == 0 and not numbers[column[0]] for column in pairs.ends.T):
        return False  # a column has only a sign between two names
    if pairs.widths.max() > 4 or not (rows.separator or further.are_numbers):
        return False
    if not further.begin_once:
        return not further.is_uneven and (further.are_numbers or not further.have_labels)
    return further.are_numbers and bool(numbers.all() if further.have_fractions else not numbers.any())


def _is_mutual(rows: Rows) -> bool:
    """Whether the rows name every edge from both of its ends."""
    named = {(row[0], cell) for _, row in rows for cell in row[1:]}
    return all((v, u) in named for u, v in named)


def adjacency_lists(rows: Rows) -> Instance:
    """The graph of rows of a node and its neighbours. UserError if a cell cannot be the name of a node."""
    position: dict[bytes, int] = {}
    edge_ends = array("i")
    for number, cells in rows:
        _check_label(number, cells)
        ids = [position.setdefault(cell, len(position)) for cell in cells]
        for other in ids[1:] or ids:  # a node alone gets a loop, which is dropped
            edge_ends.append(ids[0])
            edge_ends.append(other)
        _check_count(number, position)
    return numbered(position, edge_ends, "adjacency lists")


def _edge_list(rows: Rows, columns: tuple[int, int], kind: str, pairs: Pairs) -> Instance:
    """The graph of edges between two columns, with a warning if the columns share no name. UserError for a bad name."""
    is_bad = any(map(_label_error, pairs.position)) or pairs.widths.min() <= max(columns)
    for number, cells in rows if is_bad else ():
        edge_cells = [cells[column] for column in columns if column < len(cells)]
        if len(edge_cells) < 2 or not all(edge_cells):
            _refuse_single_cell(number, cells)
        _check_label(number, edge_cells)
    are_apart = len(pairs.ends) > 1 and not np.isin(*pairs.ends.T).any()
    return replace(numbered(pairs.position, pairs.ends, kind), warning=APART if are_apart else "")


def _label_error(label: bytes) -> str:
    """What is wrong with the name of a node; "" if nothing is."""
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


def _refuse_single_cell(number: int, cells: Sequence[bytes]) -> NoReturn:
    shown = brief(b" ".join(filter(None, cells)).decode())
    raise UserError(f"line {number}: {shown} is alone; an edge list has two nodes per line")


def _refuse(number: int, cells: Sequence[bytes], readings: str, hint: str) -> NoReturn:
    shown = brief(b" ".join(cells).decode())
    raise UserError(f"line {number}: {shown} may be {readings}: {hint}")
