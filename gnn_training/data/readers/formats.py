"""One parser per format; the suffix of a file tells which."""

import gzip
import zlib
from dataclasses import replace
from pathlib import Path, PurePath

from gnn_training.atomic import reason
from gnn_training.data.readers import dimacs, networkx_formats, prism_json
from gnn_training.data.readers.read_graph import ReadGraph
from gnn_training.errors import UserError

PARSERS = {
    ".json": prism_json.parse,
    ".col": dimacs.parse,
    ".edgelist": networkx_formats.parse_edge_list,
    ".edges": networkx_formats.parse_edge_list,
    ".txt": networkx_formats.parse_edge_list,
    ".graphml": networkx_formats.parse_graphml,
}
KNOWN = f"{', '.join(PARSERS)} and .gz of them"


def read(path: Path) -> ReadGraph:
    """Read the graph of one file; its name is the file's, without folder and suffix.

    Raises:
        UserError: "FILE: line N: ..." or "FILE: ..." for whatever is wrong with it.
    """
    try:
        content = path.read_bytes()
        return parse(str(path), gzip.decompress(content) if path.suffix.lower() == ".gz" else content)
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise UserError(f"{path}: the compressed file is damaged ({error}); fetch or pack it again") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({reason(error)}); allow it or leave the file out") from error


def parse(file: str, content: bytes) -> ReadGraph:
    """Read the graph in the bytes of a file; they are not compressed any more, even if `file` ends in .gz.

    Raises:
        UserError: as `read`.
    """
    if suffix(file) not in PARSERS:
        raise UserError(f"{file}: no known kind of graph file; known are {KNOWN}")
    try:
        read_graph = PARSERS[suffix(file)](content)
    except UserError as error:
        raise UserError(f"{file}: {error}") from error
    name = PurePath(PurePath(file).name.removesuffix(".gz")).stem.encode(errors="replace").decode()
    note = f"{file}: {read_graph.note}" if read_graph.note else ""
    return replace(read_graph, graph=replace(read_graph.graph, name=name), note=note)


def suffix(file: str) -> str:
    """What tells the format: the last suffix before any .gz, in small letters."""
    return PurePath(file.lower().removesuffix(".gz")).suffix
