"""Labelled graphs in one memory-mapped safetensors file with a manifest beside it; docs/DATA.md describes the bytes."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike

from gnn_training import files
from gnn_training.contract import GRAPH_TYPES
from gnn_training.errors import UserError
from gnn_training.graph import Graph, Instance

FORMAT = "gnn_training packed graphs"
VERSION = 5
GRAPHS_FILE = "graphs.safetensors"
MANIFEST_FILE = "manifest.json"
PACKED_NODES = 32_767  # most nodes of a graph, whose node ids have 16 bits
SCORED_NODES = 2048  # larger graphs are trained on, but would dominate the scores of a training
SPLITS = ("train", "validation")
# Tensors with one value per graph: (G,).
PER_GRAPH = {
    "num_nodes": np.int32, "num_edges": np.int32, "num_colors": np.int16, "lower_bound": np.int16,
    "dsatur_colors": np.int16, "optimal": np.uint8, "graph_type": np.uint8, "family": np.int16,
    "search_rounds": np.int32, "clique": np.int16, "search_colors": np.int16, "split": np.uint8,
    "fingerprint": np.uint64,
}  # fmt: skip
# Tensors that concatenate the values of all graphs, each with its tensor of offsets, (G + 1,) int64.
RAGGED = {
    "edges": ("edge_offset", np.int16),
    "coloring": ("node_offset", np.int16),
    "first": ("node_offset", np.int16),
    "names": ("name_offset", np.uint8),
    "reached": ("reached_offset", np.int32),
    "state_rounds": ("state_offset", np.int32),
    "states": ("feature_offset", np.float32),
}
_DTYPES = PER_GRAPH | {name: dtype for name, (_, dtype) in RAGGED.items()} | {o: np.int64 for o, _ in RAGGED.values()}
Columns = dict[str, np.ndarray]  # every tensor of the file by its name
Row = dict[str, Any]  # one graph: its value in every tensor of PER_GRAPH, its piece of every tensor of RAGGED


@dataclass(frozen=True)
class Label:
    """The best known coloring of a graph and how good it is, named as the tensors that docs/DATA.md defines.
    lower_bound <= chromatic number <= num_colors, which are equal if optimal.
    """

    coloring: np.ndarray  # (N,) int16 in 0..num_colors-1
    first: np.ndarray  # (N,) int16, greedy: the searches of a training begin with it
    num_colors: int
    lower_bound: int
    dsatur_colors: int
    optimal: bool
    # Of a long search with the shipped rule: what the network sees at some times, and what came later.
    search_rounds: int = 0  # 0: no such search was made
    clique: int = 0  # size of a clique
    search_colors: int = 0  # fewest colors that it found
    reached: ArrayLike = ()  # rounds at which it reached fewer colors, first 0
    state_rounds: ArrayLike = ()  # (S,)
    states: ArrayLike = ()  # (S, STATE_FEATURES), see network/states.py


def row(instance: Instance, label: Label, families: Sequence[str]) -> Row:
    """The row of a labelled graph. `split` and `fingerprint` are 0."""
    graph = instance.graph
    return vars(label) | {
        "num_nodes": graph.num_nodes, "num_edges": graph.num_edges, "graph_type": instance.graph_type,
        "family": families.index(instance.family), "split": 0, "fingerprint": 0,
        "edges": graph.edges,
        "names": np.frombuffer(graph.name.encode(), dtype=np.uint8),
    }  # fmt: skip


def join(rows: Sequence[Row]) -> Columns:
    """The tensors of a file that has these graphs in this order."""
    result = {name: np.array([row[name] for row in rows], dtype) for name, dtype in PER_GRAPH.items()}
    for name, (offset, dtype) in RAGGED.items():
        parts = [np.asarray(row[name], dtype).ravel() for row in rows]
        result[name] = np.concatenate([np.empty(0, dtype), *parts])
        result[offset] = np.cumsum([0, *map(len, parts)], dtype=np.int64)
    return result


def rows(tensors: Columns) -> list[Row]:
    """The rows of some columns, one per graph; the inverse of `join`."""
    return [
        {name: tensors[name][i] for name in PER_GRAPH} | {name: ragged_row(tensors, name, i) for name in RAGGED}
        for i in range(len(tensors["num_nodes"]))
    ]


def ragged_row(tensors: Columns, name: str, i: int) -> np.ndarray:
    """The piece of graph i in one of the RAGGED tensors."""
    offset = tensors[RAGGED[name][0]]
    return tensors[name][offset[i] : offset[i + 1]]


def check_size(graph: Graph) -> None:
    """Raise UserError if a graph has more than PACKED_NODES nodes."""
    if graph.num_nodes > PACKED_NODES:
        raise UserError(f"{graph.name}: {graph.num_nodes} nodes are too many to pack ({PACKED_NODES}); leave it out")


def write_columns(path: Path, tensors: Columns, metadata: dict[str, str] | None = None) -> None:
    """Write one safetensors file, atomically."""
    from safetensors.numpy import save  # part of [train]

    with files.replace_file(path) as temporary:
        temporary.write_bytes(save(tensors, metadata))  # save_file makes a file that other users cannot read


def read_columns(path: Path) -> tuple[Columns, dict[str, str]]:
    """Map a safetensors file into memory: tensors, and the metadata. UserError if it is damaged."""
    from safetensors import SafetensorError, safe_open  # part of [train], as torch

    try:
        with safe_open(path, framework="pt") as file:  # numpy would read all of it
            return {name: file.get_tensor(name).numpy() for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({files.reason(error)}); make the folder again") from error
    except (SafetensorError, TypeError, ValueError) as error:
        raise UserError(f"{path}: is damaged or not a safetensors file ({error}); remove it, make it again") from error


def write(folder: Path, tensors: Columns, families: Sequence[str], origin: dict) -> "PackedGraphs":
    """Write the file, then the manifest with the JSON `origin`, so that a folder with a manifest is complete."""
    write_columns(folder / GRAPHS_FILE, tensors)
    counts = Counter(zip(tensors["family"].tolist(), tensors["split"].tolist(), strict=True))
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "origin": origin,
        "graphs": len(tensors["num_nodes"]),
        "families": list(families),
        "graph_types": list(GRAPH_TYPES),
        "counts": {family: {name: counts[f, s] for s, name in enumerate(SPLITS)} for f, family in enumerate(families)},
        "sha256": files.sha256(folder / GRAPHS_FILE),
    }
    files.write_bytes(folder / MANIFEST_FILE, files.as_json(manifest))
    return PackedGraphs.open(folder)


def is_packed(folder: Path) -> bool:
    """Whether a folder has packed graphs, which a manifest makes complete."""
    return os.path.lexists(folder / MANIFEST_FILE)


def read_manifest(folder: Path) -> dict | None:
    """The manifest of a folder of packed graphs; None if there is none. UserError if it is damaged."""
    if not is_packed(folder):
        return None
    path = folder / MANIFEST_FILE
    manifest = files.read_json(path, "name another folder, or remove it and make it again")
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise UserError(f"{path}: is not a manifest of packed graphs; name another folder")
    if manifest.get("version") != VERSION:
        raise UserError(f"{path}: has version {manifest.get('version')}, this program reads {VERSION}; make it again")
    types = {"origin": dict, "graphs": int, "families": list, "graph_types": list, "counts": dict, "sha256": str}
    wrong = [key for key, kind in types.items() if type(manifest.get(key)) is not kind]
    if wrong or not all(isinstance(family, str) for family in manifest["families"]):
        raise UserError(f"{path}: is damaged ({', '.join(wrong or ['families'])}); remove the folder and make it again")
    return manifest


class PackedGraphs:
    """A folder of labelled graphs, mapped into memory. Every tensor of PER_GRAPH and RAGGED is an attribute."""

    def __init__(self, folder: Path, manifest: dict, tensors: Columns):
        self.folder, self.manifest = folder, manifest
        self.families: list[str] = manifest["families"]
        self.tensors = {name: tensors[name] for name in _DTYPES}
        vars(self).update(self.tensors)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> np.ndarray: ...

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Map the graphs of a folder into memory. UserError if there are none, or if they are damaged."""
        manifest = read_manifest(folder)
        if manifest is None:
            raise UserError(f"{folder}: has no packed graphs (no {MANIFEST_FILE}); generate or import them first")
        tensors, _ = read_columns(folder / GRAPHS_FILE)
        for name, dtype in _DTYPES.items():
            if name not in tensors or tensors[name].dtype != dtype or tensors[name].ndim != 1:
                what = f"has no {name} of type {dtype.__name__} and one dimension"
            elif name in PER_GRAPH and len(tensors[name]) != manifest["graphs"]:
                what = f"has {len(tensors[name])} values of {name}, not {manifest['graphs']}"
            else:
                continue
            raise UserError(f"{folder / GRAPHS_FILE}: {what}; make the folder again")
        return cls(folder, manifest, tensors)

    def verify(self) -> None:
        """Compare the file with the hash in the manifest; UserError if they differ."""
        path = self.folder / GRAPHS_FILE
        if files.sha256(path) != self.manifest["sha256"]:
            raise UserError(f"{path}: differs from its manifest; remove the folder and make it again")

    def __len__(self) -> int:
        return len(self.num_nodes)

    def indices(self, split: str) -> np.ndarray:
        """Positions of the graphs of `train` or `validation`, ascending."""
        return np.flatnonzero(self.split == SPLITS.index(split))

    def selection(self, count: int) -> np.ndarray:
        """Positions of the validation graphs by which a training chooses its weights: `count` graphs, or all for 0,
        spread evenly over those of up to SCORED_NODES nodes.
        """
        ids = self.indices("validation")
        ids = ids[self.num_nodes[ids] <= SCORED_NODES]
        return ids[evenly_spaced(len(ids), count or len(ids))]

    def graph(self, i: int) -> Graph:
        """Graph i with its name."""
        edges = ragged_row(self.tensors, "edges", i).reshape(-1, 2).astype(np.int32)
        return Graph(int(self.num_nodes[i]), edges, self.name(i))

    def name(self, i: int) -> str:
        """Name of graph i: family and number, or the file it was imported from."""
        return bytes(ragged_row(self.tensors, "names", i)).decode(errors="replace")


def evenly_spaced(total: int, count: int) -> list[int]:
    """At most `count` of the positions 0 to total - 1, evenly spaced: neighbours in packed data are of one family."""
    return np.linspace(0, total - 1, min(count, total)).astype(int).tolist() if total else []
