"""Importing packs folders of a user's own graphs, with the real worker processes."""

import json
import logging
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from small_graphs import label_of

from gnn_training import coloring, files
from gnn_training.data import packed, sources
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
    n, matrix = graph.num_nodes, graph.adjacency().astype(int).ravel().tolist()
    labels = {"chromatic_number": int(colors.max()) + 1}
    if older:
        labels |= {"node_colors": colors.tolist(), "graph_type_id": graph_type, "difficulty": 10.0}
        document = {"n": n, "adjacency": {"data": matrix}, "node_features": [[0.5] * 16] * n, "ground_truth": labels}
    else:
        labels |= {"coloring": colors.tolist(), "graph_type": graph_type, "difficulty_score": 10.0}
        features = {"shape": [n, 16], "data": [0.5] * (16 * n)}
        document = {"adjacency": {"shape": [n, n], "data": matrix}, "node_features": features, "metadata": {}} | labels
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))


def write_dimacs(path: Path, graph: Graph) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    edges = "".join(f"e {u + 1} {v + 1}\n" for u, v in graph.edges)
    path.write_text(f"p edge {graph.num_nodes} {graph.num_edges}\n{edges}")


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
        write_dimacs(source / f"a{i}.col", planted(i)[0])
    nx.write_graphml(nx.petersen_graph(), source / "petersen.graphml")
    nx.write_edgelist(nx.complete_graph(5), source / "complete.edgelist")
    write_dimacs(folder / "packing" / "graphs" / "inside.col", planted(7)[0])
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


def test_the_same_import_again_is_one_line(imported, caplog):
    _, chosen = imported
    before = (chosen.out / packed.GRAPHS_FILE).stat().st_mtime_ns
    with caplog.at_level(logging.INFO):
        import_graphs(chosen)
    assert [record.getMessage() for record in caplog.records] == [f"{chosen.out}: already has these 6 graphs"]
    assert (chosen.out / packed.GRAPHS_FILE).stat().st_mtime_ns == before


def test_other_settings_or_files_never_overwrite_an_import(imported):
    folder, chosen = imported
    with pytest.raises(
        UserError, match="packed: has graphs of other sources or settings; name another --out or remove"
    ):
        import_graphs(chosen.model_copy(update={"seed": 1}))
    path = folder / "graphs" / "a0.col"
    before = path.stat()
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    try:
        with pytest.raises(UserError, match="packed: has graphs of other sources or settings"):
            import_graphs(chosen)
    finally:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.fixture
def partly_bad(tmp_path: Path) -> Path:
    source = tmp_path / "graphs"
    write_dimacs(source / "good.col", planted(1)[0])
    (source / "bad.col").write_text("p edge 3 1\ne 1 9\n")
    (source / "cut.json").write_text('{"adjacency": {"shape": [2, 2], "data": [0, 1,')
    (source / "gone.col").symlink_to(tmp_path / "nowhere.col")
    (source / "pool.tgz").write_bytes(b"no archive")
    return source


def test_a_bad_file_stops_the_import_with_its_sentence_and_nothing_written(tmp_path: Path, partly_bad: Path):
    (partly_bad / "pool.tgz").unlink()
    with pytest.raises(UserError, match=r"bad.col: line 2: edge 1-9 is outside the nodes 1..3 of the header"):
        import_graphs(settings(partly_bad / "bad.col", out=tmp_path / "packed"))
    assert packed.read_manifest(tmp_path / "packed") is None
    assert not (tmp_path / "packed" / packed.GRAPHS_FILE).exists()


def test_skip_bad_lists_every_file_it_leaves_out(tmp_path: Path, partly_bad: Path, caplog):
    with caplog.at_level(logging.INFO):
        graphs = import_graphs(settings(partly_bad, out=tmp_path / "packed", skip_bad=True))
    assert list(named(graphs)) == ["good"]
    left_out = sorted(line for line in caplog.messages if line.startswith("left out: "))
    assert [line.removeprefix(f"left out: {partly_bad}/") for line in left_out] == [
        "bad.col: line 2: edge 1-9 is outside the nodes 1..3 of the header; correct it",
        "cut.json: line 1: broken JSON (Expecting value, column 47); write the file again",
        "gone.col: cannot be read (no such file or directory); allow it or leave the file out",
        "pool.tgz: is damaged or not a tar archive (truncated header); fetch or pack it again",
    ]


def test_an_import_without_any_good_graph_is_refused(tmp_path: Path, partly_bad: Path):
    (partly_bad / "good.col").unlink()
    with pytest.raises(UserError, match="there is no graph to write"):
        import_graphs(settings(partly_bad, out=tmp_path / "packed", skip_bad=True))
    assert packed.read_manifest(tmp_path / "packed") is None


def test_a_bad_archive_stops_the_import(tmp_path: Path, partly_bad: Path):
    with pytest.raises(UserError, match="pool.tgz: is damaged or not a tar archive"):
        import_graphs(settings(partly_bad, out=tmp_path / "packed"))
    assert list((tmp_path / "packed").iterdir()) == [tmp_path / "packed" / ".lock"]


def test_a_second_import_touches_nothing_of_the_first(tmp_path: Path, partly_bad: Path):
    out = tmp_path / "packed"
    write_dimacs(out / ".unpacked" / "0-pool.tgz" / "a.col", planted(0)[0])
    with files.lock_folder(out), pytest.raises(UserError, match="packed: another process is writing it"):
        import_graphs(settings(partly_bad, out=out, skip_bad=True))
    assert (out / ".unpacked" / "0-pool.tgz" / "a.col").exists()


def test_a_pipe_named_like_a_graph_is_refused_or_left_out(tmp_path: Path, caplog):
    write_dimacs(tmp_path / "graphs" / "good.col", planted(1)[0])
    os.mkfifo(tmp_path / "graphs" / "pipe.col")
    with pytest.raises(UserError, match=r"pipe.col: is not a regular file but a device or a pipe"):
        import_graphs(settings(tmp_path / "graphs", out=tmp_path / "packed"))
    graphs = import_graphs(settings(tmp_path / "graphs", out=tmp_path / "packed", skip_bad=True))
    assert list(named(graphs)) == ["good"] and "left out: " in caplog.text


def test_out_may_be_inside_the_source_again_and_after_a_kill(tmp_path: Path, caplog):
    write_dimacs(tmp_path / "a.col", planted(0)[0])
    chosen = settings(tmp_path, out=tmp_path / "packed")
    write_dimacs(chosen.out / ".unpacked" / "0-pool.tgz" / "b.col", planted(1)[0])  # as after a kill
    for _ in range(2):
        assert list(named(import_graphs(chosen))) == ["a"]
    inside = settings(tmp_path / "packed", tmp_path, out=tmp_path)  # the source itself
    assert [list(named(import_graphs(inside))) for _ in range(2)] == [["a"], ["a"]]


def test_a_full_disk_is_no_bad_archive(tmp_path: Path, partly_bad: Path, monkeypatch):
    def full_disk(*_: object) -> None:
        raise StorageError("pool.tgz: no room")

    monkeypatch.setattr(sources, "unpack", full_disk)
    with pytest.raises(StorageError, match="no room"):
        import_graphs(settings(partly_bad, out=tmp_path / "packed", skip_bad=True))


def test_a_proper_coloring_of_the_file_is_kept_and_counted_from_0(tmp_path: Path):
    graph, colors = planted(3)
    write_json(tmp_path / "graph.json", graph, 2 * colors + 1)
    instance = sources.read(tmp_path / "graph.json")
    assert instance.coloring.tolist() == colors.tolist()
    assert instance.note == ""


def test_a_header_that_counts_wrongly_is_noted(tmp_path: Path):
    (tmp_path / "graph.col").write_text("p edge 3 5\ne 1 2\n")
    assert sources.read(tmp_path / "graph.col").note == (
        f"{tmp_path}/graph.col: the header says 5 edges, the file has 1; these are used"
    )


@pytest.mark.slow
def test_the_same_command_completes_an_interrupted_import(tmp_path: Path):
    for i in range(20):
        write_dimacs(tmp_path / "graphs" / f"{i}.col", planted(i)[0])
    command = [
        sys.executable,
        "-m",
        "gnn_training",
        "import",
        str(tmp_path / "graphs"),
        "--out",
        str(tmp_path / "packed"),
    ]
    command += ["--workers", "1", "--label-seconds", "0.05"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        deadline = time.monotonic() + 60
        while not list((tmp_path / "packed").glob(".parts/*/*.safetensors")) and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        output = process.communicate(timeout=30)[0]
    assert process.returncode == 130
    assert "Traceback" not in output
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "of 20 graphs are labelled" in done.stdout
    assert len(PackedGraphs.open(tmp_path / "packed")) == 20
