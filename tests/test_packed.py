"""Packed graphs come back as they were written, any language can read them, and damage is named."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnn_training.data import packed
from gnn_training.data.families import draw
from gnn_training.data.packed import Label, PackedGraphs
from gnn_training.errors import UserError
from gnn_training.graph import Graph, Instance

FAMILIES = ("er_dense", "imported")


def row(graph: Graph) -> packed.Row:
    """A graph with as many colors as nodes."""
    n = graph.num_nodes
    search = 700, 3, n, np.arange(n % 5 + 1), [20, 90], np.arange(60).reshape(2, 30) / 4
    label = Label(np.arange(n, dtype=np.int16), np.arange(n, dtype=np.int16), n, 1, n, n == 1, *search)
    return packed.row(Instance(graph), label, FAMILIES) | {"fingerprint": 2**64 - 1}


def columns(graphs: list[Graph]) -> packed.Columns:
    return packed.join([row(graph) for graph in graphs])


def write(folder: Path, graphs: list[Graph]) -> PackedGraphs:
    folder.mkdir(parents=True, exist_ok=True)
    return packed.write(folder, columns(graphs), FAMILIES, {"seed": 4})


@pytest.fixture
def folder(tmp_path) -> Path:
    write(tmp_path / "data", [draw(0, "er_dense", index, 10 + 7 * index).graph for index in range(5)])
    return tmp_path / "data"


@given(st.lists(st.tuples(st.integers(1, 40), st.floats(0, 1), st.text(max_size=8)), min_size=1, max_size=6), st.data())
def test_graphs_and_labels_come_back_as_they_were(tmp_path_factory, shapes, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    graphs = [Graph.from_edges(n, np.argwhere(rng.random((n, n)) < p), name) for n, p, name in shapes]
    opened = write(tmp_path_factory.mktemp("packed"), graphs)
    assert len(opened) == len(graphs)
    for i, (graph, read) in enumerate(zip(graphs, packed.rows(opened.tensors), strict=True)):
        assert np.array_equal(opened.graph(i).edges, graph.edges) and opened.name(i) == graph.name
        assert opened.families[opened.family[i]] == "imported"
        assert all(np.ravel(value).tolist() == read[name].ravel().tolist() for name, value in row(graph).items())


def test_splits_are_separated_and_counted_in_the_manifest(tmp_path):
    graphs = [draw(0, "er_dense", index, 12).graph for index in range(4)]
    changes = {"split": np.array([0, 1, 0, 1], dtype=np.uint8), "family": np.array([0, 0, 0, 1], dtype=np.int16)}
    opened = packed.write(tmp_path, columns(graphs) | changes, FAMILIES, {})
    assert opened.indices("train").tolist() == [0, 2] and opened.indices("validation").tolist() == [1, 3]
    assert opened.manifest["counts"] == {
        "er_dense": {"train": 2, "validation": 1},
        "imported": {"train": 0, "validation": 1},
    }


def test_a_reader_written_from_the_documentation_alone_sees_the_same_graph(folder):
    raw = (folder / "graphs.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header, body = json.loads(raw[8 : 8 + length]), raw[8 + length :]

    def values(name: str, code: str) -> tuple:
        start, stop = header[name]["data_offsets"]
        return struct.unpack(f"<{(stop - start) // struct.calcsize(code)}{code}", body[start:stop])

    start, end = values("edge_offset", "q")[3:5]
    edges = values("edges", "h")[start:end]
    assert np.array_equal(np.reshape(edges, (-1, 2)), PackedGraphs.open(folder).graph(3).edges)


def test_everybody_may_read_what_is_written_and_opening_it_maps_the_file(folder):
    opened = PackedGraphs.open(folder)
    assert str(folder / "graphs.safetensors") in Path("/proc/self/maps").read_text() and len(opened)
    assert (folder / "graphs.safetensors").stat().st_mode & 0o044 == 0o044


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 3}, "has version 3, this program reads 5"),
        ({"format": "something else"}, "not a manifest of packed graphs"),
        ({"graphs": 6}, "has 5 values of num_nodes, not 6"),
        ({"families": None}, "damaged"),
        ({"graphs": True}, "damaged"),
        ({"families": [1]}, "damaged"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(folder, change, message):
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UserError, match=message):
        PackedGraphs.open(folder)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("num_colors", np.zeros(5, np.int32), "no num_colors of type int16"),
        ("num_colors", np.zeros((5, 1), np.int16), "no num_colors of type int16"),
        ("clique", np.zeros(4, np.int16), "4 values of clique, not 5"),
    ],
)
def test_tensors_of_another_type_or_length_are_named(folder, name, values, message):
    tensors, _ = packed.read_columns(folder / "graphs.safetensors")
    packed.write_columns(folder / "graphs.safetensors", {**tensors, name: values})
    with pytest.raises(UserError, match=message):
        PackedGraphs.open(folder)


def test_a_graph_above_the_limit_is_refused():
    packed.check_size(Graph.from_edges(packed.PACKED_NODES, []))
    with pytest.raises(UserError, match="huge: 32768 nodes are too many to pack"):
        packed.check_size(Graph.from_edges(32_768, [], "huge"))


@pytest.mark.parametrize("name", ["graphs.safetensors", "manifest.json"])
@pytest.mark.parametrize(("make", "reason"), [(Path.mkdir, r"cannot be read \("), (Path.touch, "is damaged")])
def test_a_file_that_cannot_be_read_is_named(folder, name, make, reason):
    path = folder / name
    path.unlink()
    if name == "manifest.json":
        with pytest.raises(UserError, match="generate or import them first"):
            PackedGraphs.open(folder)
    make(path)
    with pytest.raises(UserError, match=rf"{name}: {reason}"):
        PackedGraphs.open(folder)
