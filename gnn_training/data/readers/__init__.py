"""From files to graphs."""

from gnn_training.data.readers.files import find, is_archive, unpack
from gnn_training.data.readers.formats import parse, read
from gnn_training.data.readers.read_graph import ReadGraph

__all__ = ["ReadGraph", "find", "is_archive", "parse", "read", "unpack"]
