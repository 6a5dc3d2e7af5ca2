"""Labelled graphs in one memory-mapped safetensors file with a manifest beside it; docs/DATA.md describes the bytes."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from safetensors.numpy import save

from gnn_training import files
from gnn_training.contract import GRAPH_TYPES
from gnn_training.data.labels import Instance, Label
from gnn_training.errors import UserError
from gnn_training.graph import Graph

FORMAT = "gnn_training packed graphs"
VERSION = 1
GRAPHS_FILE = "graphs.safetensors"
MANIFEST_FILE = "manifest.json"
MAX_NODES = 20_000  # 50 MB of adjacency bits for one graph
SPLITS = ("train", "validation")
_MANIFEST_TYPES = {"origin": dict, "graphs": int, "families": list, "graph_types": list, "counts": dict, "sha256": str}
# One value per graph, and what belongs to all graphs in a row, cut by offsets (G + 1,) int64.
PER_GRAPH = {
    "num_nodes": np.int32,
    "num_edges": np.int32,
    "num_colors": np.int16,
    "lower_bound": np.int16,
    "dsatur_colors": np.int16,
    "optimal": np.uint8,
    "graph_type": np.uint8,
    "family": np.int16,
    "difficulty": np.float32,
    "split": np.uint8,
    "fingerprint": np.uint64,
}
RAGGED = {
    "adjacency_bits": ("adjacency_offset", np.uint8),
    "coloring": ("node_offset", np.int16),
    "names": ("name_offset", np.uint8),
}
Columns = dict[str, np.ndarray]
"""Every tensor of the file by its name."""


@dataclass(frozen=True)
class Record:
    """One graph on its way into the file."""

    instance: Instance
    label: Label
    fingerprint: int = 0
    split: int = 0


def columns(records: Sequence[Record], families: Sequence[str]) -> Columns:
    """Lay graphs out as the tensors of the file."""
    rows = [_row(record, families) for record in records]
    return _join([row[0] for row in rows], [row[1] for row in rows])


def check_size(graph: Graph) -> None:
    """Raise UserError if a graph has more than MAX_NODES nodes."""
    if graph.num_nodes > MAX_NODES:
        raise UserError(
            f"{graph.name}: {graph.num_nodes} nodes are more than the packed form holds ({MAX_NODES}); leave it out"
        )


def _row(record: Record, families: Sequence[str]) -> tuple[tuple, tuple]:
    instance, label, graph = record.instance, record.label, record.instance.graph
    values = (
        graph.num_nodes, graph.num_edges, label.num_colors, label.lower_bound, label.dsatur_colors, label.optimal,
        instance.graph_type, families.index(instance.family), label.difficulty, record.split, record.fingerprint,
    )  # fmt: skip
    bits = np.packbits(graph.adjacency(), axis=1, bitorder="little").ravel()
    name = np.frombuffer(graph.name.encode(), dtype=np.uint8)
    return values, (bits, label.coloring, name)


def _join(values: list[tuple], pieces: list[tuple]) -> Columns:
    result = {name: np.array([row[i] for row in values], dtype) for i, (name, dtype) in enumerate(PER_GRAPH.items())}
    for i, (name, (offset, dtype)) in enumerate(RAGGED.items()):
        parts = [row[i] for row in pieces]
        result[name] = np.concatenate([np.empty(0, dtype), *parts])
        result[offset] = np.cumsum([0, *map(len, parts)], dtype=np.int64)
    return result


def select(sources: Sequence[Columns], rows: Sequence[tuple[int, int]]) -> Columns:
    """The graphs (source, row), in that order, out of several sets of columns with the same families."""
    values = [tuple(sources[s][name][i] for name in PER_GRAPH) for s, i in rows]
    return _join(values, [tuple(cut(sources[s], name, i) for name in RAGGED) for s, i in rows])


def cut(tensors: Columns, name: str, i: int) -> np.ndarray:
    """What belongs to graph i in one of the RAGGED tensors."""
    offset = tensors[RAGGED[name][0]]
    return tensors[name][offset[i] : offset[i + 1]]


def name(tensors: Columns, i: int) -> str:
    """Name of graph i."""
    return bytes(cut(tensors, "names", i)).decode()


def write_columns(path: Path, tensors: Columns, metadata: dict[str, str] | None = None) -> None:
    """Write one safetensors file, atomically."""
    with files.replace_file(path) as temporary:
        temporary.write_bytes(save(tensors, metadata))  # save_file would keep others from reading it


def write(folder: Path, tensors: Columns, families: Sequence[str], origin: dict) -> "PackedGraphs":
    """Write file and manifest; the manifest comes last, so a folder that has one is complete.

    origin: what the graphs were made from, kept as it is (JSON).
    """
    write_columns(folder / GRAPHS_FILE, tensors)
    pairs = tensors["family"].astype(int) * len(SPLITS) + tensors["split"]
    counts = np.bincount(pairs, minlength=len(families) * len(SPLITS)).reshape(len(families), len(SPLITS)).tolist()
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "origin": origin,
        "graphs": len(tensors["num_nodes"]),
        "families": list(families),
        "graph_types": list(GRAPH_TYPES),
        "counts": {family: dict(zip(SPLITS, row, strict=True)) for family, row in zip(families, counts, strict=True)},
        "sha256": _sha256(folder / GRAPHS_FILE),
    }
    files.write_text(folder / MANIFEST_FILE, json.dumps(manifest, indent=1) + "\n")
    return PackedGraphs.open(folder)


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_columns(path: Path) -> tuple[Columns, dict[str, str]]:
    """Map a safetensors file into memory: read-only arrays that cost no time until touched, and its metadata.

    Raises:
        UserError: not readable, or not a whole safetensors file.
    """
    try:
        data = np.memmap(path, dtype=np.uint8, mode="r")
        length = int(data[:8].view("<u8")[0])
        header = json.loads(bytes(data[8 : 8 + length]))
        metadata = header.pop("__metadata__", {})
        body = data[8 + length :]
        end = max(entry["data_offsets"][1] for entry in header.values())
        if end != len(body):
            raise ValueError(f"it should have {8 + length + end} bytes and has {len(data)}")
        return {name: _view(body, entry) for name, entry in header.items()}, metadata
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({files.reason(error)})") from error
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise UserError(f"{path}: is damaged or no safetensors file ({error}); remove it and make it again") from error


_DTYPES = {"U8": "u1", "I16": "<i2", "I32": "<i4", "I64": "<i8", "U64": "<u8", "F32": "<f4"}


def _view(body: np.ndarray, entry: dict) -> np.ndarray:
    start, stop = entry["data_offsets"]
    return body[start:stop].view(_DTYPES[entry["dtype"]]).reshape(entry["shape"])


class PackedGraphs:
    """A folder of labelled graphs, mapped into memory. Every tensor of docs/DATA.md is an attribute."""

    num_nodes: np.ndarray
    num_edges: np.ndarray
    num_colors: np.ndarray
    lower_bound: np.ndarray
    dsatur_colors: np.ndarray
    optimal: np.ndarray
    graph_type: np.ndarray
    family: np.ndarray
    difficulty: np.ndarray
    split: np.ndarray
    fingerprint: np.ndarray
    adjacency_bits: np.ndarray
    adjacency_offset: np.ndarray
    coloring: np.ndarray
    node_offset: np.ndarray
    names: np.ndarray
    name_offset: np.ndarray

    def __init__(self, folder: Path, manifest: dict, tensors: Columns):
        self.folder = folder
        self.manifest = manifest
        self.families: list[str] = manifest["families"]
        self.__dict__.update(tensors)

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Map the graphs of a folder that `write` filled.

        Raises:
            UserError: the folder holds no packed graphs, or damaged ones, or ones of another version.
        """
        manifest = read_manifest(folder)
        if manifest is None:
            raise UserError(f"{folder}: holds no packed graphs (no {MANIFEST_FILE}); generate or import them first")
        tensors, _ = read_columns(folder / GRAPHS_FILE)
        _check_tensors(folder / GRAPHS_FILE, manifest["graphs"], tensors)
        return cls(folder, manifest, tensors)

    def verify(self) -> None:
        """Compare the file with the hash in the manifest.

        Raises:
            UserError: they differ.
        """
        if _sha256(self.folder / GRAPHS_FILE) != self.manifest["sha256"]:
            raise UserError(f"{self.folder / GRAPHS_FILE}: differs from its manifest; remove the folder, make it again")

    def __len__(self) -> int:
        return len(self.num_nodes)

    def indices(self, split: str) -> np.ndarray:
        """Numbers of the graphs of `train` or `validation`, ascending."""
        return np.flatnonzero(self.split == SPLITS.index(split))

    def adjacency(self, i: int) -> np.ndarray:
        """(N, N) bool of graph i."""
        n = int(self.num_nodes[i])
        bits = self.adjacency_bits[self.adjacency_offset[i] : self.adjacency_offset[i + 1]]
        return np.unpackbits(bits.reshape(n, -1), axis=1, count=n, bitorder="little").view(bool)

    def graph(self, i: int) -> Graph:
        """Graph i with its name."""
        return Graph.from_adjacency(self.adjacency(i), self.name(i))

    def name(self, i: int) -> str:
        """Name of graph i: family and number, or the file it was imported from."""
        return name(vars(self), i)

    def label(self, i: int) -> Label:
        """Best known coloring of graph i and what is known about it."""
        return Label(
            coloring=self.coloring[self.node_offset[i] : self.node_offset[i + 1]],
            num_colors=int(self.num_colors[i]),
            lower_bound=int(self.lower_bound[i]),
            dsatur_colors=int(self.dsatur_colors[i]),
            optimal=bool(self.optimal[i]),
            difficulty=float(self.difficulty[i]),
        )


def read_manifest(folder: Path) -> dict | None:
    """The manifest of a folder of packed graphs; None if there is none.

    Raises:
        UserError: it is no manifest, or of another version.
    """
    path = folder / MANIFEST_FILE
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({files.reason(error)}); name another folder") from error
    except ValueError as error:
        raise UserError(f"{path}: is damaged ({error}); remove the folder and make it again") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise UserError(f"{path}: is no manifest of packed graphs; name another folder")
    if manifest.get("version") != VERSION:
        raise UserError(f"{path}: version {manifest.get('version')}, this program reads {VERSION}; make it again")
    for key, kind in _MANIFEST_TYPES.items():
        if not isinstance(manifest.get(key), kind):
            raise UserError(f"{path}: is damaged ({key} is no {kind.__name__}); remove the folder and make it again")
    return manifest


def _check_tensors(path: Path, graphs: int, tensors: Columns) -> None:
    """Raise UserError unless every tensor is there with its type and as long as the others say."""
    types = dict(PER_GRAPH)
    for name, (offset, dtype) in RAGGED.items():
        types |= {name: dtype, offset: np.int64}
    for name, dtype in types.items():
        if name not in tensors or tensors[name].dtype != dtype or tensors[name].ndim != 1:
            raise UserError(f"{path}: has no {name} of type {dtype.__name__} in a row; make the folder again")
    for name in PER_GRAPH:
        if len(tensors[name]) != graphs:
            raise UserError(f"{path}: has {len(tensors[name])} values of {name}, not {graphs}; make the folder again")
    n = tensors["num_nodes"].astype(np.int64)
    lengths = {"adjacency_bits": n * -(-n // 8), "coloring": n, "names": np.diff(tensors["name_offset"])}
    for name, length in lengths.items():
        ends = np.concatenate([[0], np.cumsum(length)])
        if not np.array_equal(ends, tensors[RAGGED[name][0]]) or ends[-1] != len(tensors[name]) or (length < 0).any():
            raise UserError(f"{path}: {name} does not fit {RAGGED[name][0]} and num_nodes; make the folder again")
