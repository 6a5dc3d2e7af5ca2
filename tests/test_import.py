"""Importing packs folders of a user's own graphs, with the real worker processes."""

import errno
import json
import logging
import os
import re
import tarfile
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import networkx as nx
import numpy as np
import pytest
from dimacs import json_graph, write_col
from small_graphs import label_of

from gnn_training import coloring, files
from gnn_training.data import packed
from gnn_training.data.packed import PackedGraphs
from gnn_training.errors import StorageError, UserError
from gnn_training.graph import Graph
from gnn_training.jobs.dataset import import_graphs
from gnn_training.settings import ImportSettings

PLANTED_COLORS = 7


def planted(seed: int, num_nodes: int = 70) -> tuple[Graph, np.ndarray]:
    """A graph that DSATUR colors badly, and the few colors it was built around."""
    rng = np.random.default_rng(seed)
    colors = rng.permutation(num_nodes) % PLANTED_COLORS
    allowed = colors[:, None] != colors[None, :]
    return Graph.from_adjacency(np.triu((rng.random((num_nodes, num_nodes)) < 0.5) & allowed)), colors


def write_json(path: Path, graph: Graph, colors: np.ndarray, older: bool = False, graph_type: int = 3) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(json_graph(graph, colors, older, graph_type)))


def write_dimacs(folder: Path, name: str, graph: Graph) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_col(folder, replace(graph, name=name))


def settings(*sources: Path, out: Path, **changes) -> ImportSettings:
    return ImportSettings(sources=sources, out=out, workers=1, **({"label_seconds": 0.05} | changes))


def named(graphs: PackedGraphs) -> dict[str, int]:
    return {graphs.name(i): i for i in range(len(graphs))}


def test_a_folder_of_training_json_in_both_schemas_is_packed(tmp_path: Path, caplog):
    source = tmp_path / "training_data"
    for i in range(6):
        graph, colors = planted(i)
        write_json(source / "graphs" / f"train_{i:06}.json", graph, colors, older=i % 2 == 1, graph_type=i % 3)
    write_json(source / "graphs" / "val_000000.json", *planted(0))  # a copy of a training graph
    improper = planted(9)[0]
    write_json(source / "graphs" / "val_000001.json", improper, np.zeros(70, dtype=int))
    (source / "metadata.json").write_text(json.dumps({"total_graphs": 9, "train_graphs": 6, "val_graphs": 2}))
    with caplog.at_level(logging.INFO):
        graphs = import_graphs(settings(source, out=tmp_path / "packed", label_seconds=0))
    assert (
        f"val_000001.json: its coloring is not proper (conflicts: {improper.num_edges}) and is not used" in caplog.text
    )
    assert "7 graphs from 8 files, 1 bad or copies" in caplog.text
    names = named(graphs)
    assert sorted(names) == [f"train_{i:06}" for i in range(6)] + ["val_000001"]
    for name, i in names.items():
        graph, label = graphs.graph(i), label_of(graphs, i)
        assert coloring.is_proper(graph, label.coloring)
        if name.startswith("train"):
            number = int(name[-6:])
            assert np.array_equal(graph.edges, planted(number)[0].edges)
            assert graphs.graph_type[i] == number % 3
            assert label.num_colors <= PLANTED_COLORS  # the file's own, as no time was given to find better ones
    assert graphs.dsatur_colors.max() > PLANTED_COLORS
    assert set(graphs.split.tolist()) == {0, 1}
    left = sorted(path.name for path in (tmp_path / "packed").iterdir())
    assert left == [".lock", packed.GRAPHS_FILE, packed.MANIFEST_FILE]


@pytest.fixture(scope="module")
def imported(tmp_path_factory) -> tuple[Path, ImportSettings]:
    """A folder of DIMACS, edge list and GraphML files with an archive, imported."""
    folder = tmp_path_factory.mktemp("mixed")
    source = folder / "graphs"
    for i in range(3):
        write_dimacs(source, f"a{i}", planted(i)[0])
    nx.write_graphml(nx.petersen_graph(), source / "petersen.graphml")
    nx.write_edgelist(nx.complete_graph(5), source / "complete.edgelist")
    write_dimacs(folder / "packing" / "graphs", "inside", planted(7)[0])
    with tarfile.open(source / "pool.tar.gz", "w:gz") as archive:
        archive.add(folder / "packing", arcname="pool")
    chosen = settings(source, out=folder / "packed")
    import_graphs(chosen)
    return folder, chosen


def test_dimacs_edge_list_graphml_and_archive_are_packed_together(imported):
    folder, chosen = imported
    graphs = PackedGraphs.open(chosen.out)
    names = named(graphs)
    assert sorted(names) == ["a0", "a1", "a2", "complete", "inside", "petersen"]
    assert (graphs.num_colors[names["petersen"]], graphs.num_colors[names["complete"]]) == (3, 5)
    assert graphs.families[graphs.family[names["a0"]]] == "imported"
    assert not (chosen.out / ".unpacked").exists()


def test_the_same_import_again_is_one_line_and_changed_files_never_overwrite_it(imported, caplog):
    folder, chosen = imported
    caplog.set_level(logging.INFO)
    before = (chosen.out / packed.GRAPHS_FILE).stat().st_mtime_ns
    import_graphs(chosen)
    assert caplog.messages == [f"{chosen.out}: already has these 6 graphs"]
    os.utime(folder / "graphs" / "a0.col", ns=(0, 0))
    with pytest.raises(UserError, match="packed: has graphs of other sources or settings; name another --out or re"):
        import_graphs(chosen)
    assert (chosen.out / packed.GRAPHS_FILE).stat().st_mtime_ns == before


@pytest.fixture
def partly_bad(tmp_path: Path) -> Path:
    source = tmp_path / "graphs"
    write_dimacs(source, "good", planted(1)[0])
    (source / "bad.col").write_text("p edge 3 1\ne 1 9\n")
    (source / "cut.json").write_text('{"adjacency": {"shape": [2, 2], "data": [0, 1,')
    (source / "gone.col").symlink_to(tmp_path / "nowhere.col")
    (source / "pool.tgz").write_bytes(b"no archive")
    os.mkfifo(source / "pipe.col")
    return source


def test_a_bad_file_stops_the_import_and_skip_bad_leaves_it_out(tmp_path: Path, partly_bad: Path, caplog):
    chosen = settings(partly_bad, out=tmp_path / "packed")
    with pytest.raises(UserError, match="/pool.tgz: is damaged or not a tar archive .*; fetch or pack it again"):
        import_graphs(chosen)
    assert not (tmp_path / "packed" / packed.GRAPHS_FILE).exists()
    assert list(named(import_graphs(chosen.model_copy(update={"skip_bad": True})))) == ["good"]
    left_out = re.findall(rf"left out: {partly_bad}/(.*?): ", caplog.text)
    assert left_out == ["pool.tgz", "bad.col", "cut.json", "gone.col", "pipe.col"]
    assert "bad.col: line 2: edge 1-9 is outside the nodes 1..3 of the header; correct it" in caplog.text
    (partly_bad / "good.col").unlink()
    with pytest.raises(UserError, match="there is no graph to write"):
        import_graphs(settings(partly_bad, out=tmp_path / "none", skip_bad=True))


def test_a_second_import_touches_nothing_of_the_first(tmp_path: Path, partly_bad: Path):
    out = tmp_path / "packed"
    write_dimacs(out / ".unpacked" / "0-pool.tgz", "a", planted(0)[0])
    with files.lock_folder(out), pytest.raises(UserError, match="packed: another process is writing it"):
        import_graphs(settings(partly_bad, out=out, skip_bad=True))
    assert (out / ".unpacked" / "0-pool.tgz" / "a.col").exists()


def test_out_may_be_inside_the_source_again_and_after_a_kill(tmp_path: Path, caplog):
    write_dimacs(tmp_path, "a", planted(0)[0])
    chosen = settings(tmp_path, out=tmp_path / "packed")
    write_dimacs(chosen.out / ".unpacked" / "0-pool.tgz", "b", planted(1)[0])  # as after a kill
    for _ in range(2):
        assert list(named(import_graphs(chosen))) == ["a"]
    inside = settings(tmp_path / "packed", tmp_path, out=tmp_path)  # the source itself
    assert [list(named(import_graphs(inside))) for _ in range(2)] == [["a"], ["a"]]


def test_a_full_disk_is_no_bad_archive(tmp_path: Path, monkeypatch):
    def full_disk(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    write_dimacs(tmp_path, "a", planted(0)[0])
    with tarfile.open(tmp_path / "pool.tgz", "w:gz") as archive:
        archive.add(tmp_path / "a.col")
    monkeypatch.setattr(tarfile, "copyfileobj", full_disk)
    with pytest.raises(StorageError, match=r"pool.tgz: cannot be unpacked to .* \(no space left on device\)"):
        import_graphs(settings(tmp_path / "pool.tgz", out=tmp_path / "packed", skip_bad=True))


def test_an_interrupted_import_continues(tmp_path: Path, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    for i in range(20):
        write_dimacs(tmp_path / "graphs", str(i), planted(i)[0])
    chosen = settings(tmp_path / "graphs", out=tmp_path / "packed", label_seconds=0)
    for seed in (1, 0):
        with monkeypatch.context() as patched, pytest.raises(InterruptedError):
            patched.setattr(packed, "select", Mock(side_effect=InterruptedError))
            import_graphs(chosen.model_copy(update={"seed": seed}))
    assert "continuing" not in caplog.text  # with the parts of other settings
    for path in (tmp_path / "packed").glob(".parts/*/0-000000.safetensors"):
        path.unlink()
    assert len(import_graphs(chosen)) == 20 and "continuing: 10 of 20 graphs are labelled" in caplog.text
