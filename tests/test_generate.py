"""Generated and imported graphs: the same for any number of processes, or after a kill; nothing is replaced."""

import errno
import json
import logging
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import networkx as nx
import numpy as np
import pytest
import small_graphs
from dimacs import json_graph, write_col
from tiny_runs import ROOT, full_disk, start_command, wait_for

from gnn_training import files
from gnn_training.data import labelling, packed
from gnn_training.data.families import GraphSpec
from gnn_training.data.labelling import split
from gnn_training.data.packed import PackedGraphs
from gnn_training.errors import StorageError, UserError
from gnn_training.graph import Graph, is_proper
from gnn_training.jobs import dataset
from gnn_training.jobs.dataset import generate, import_graphs
from gnn_training.settings import GenerateSettings, ImportSettings


def settings(out: Path, **changes) -> GenerateSettings:
    return GenerateSettings(**{"recipe": "smoke", "out": out, "graphs": 64, "label_seconds": 30, **changes})


def start(out: Path, **changes) -> subprocess.Popen:
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "start_new_session": True}
    return start_command("generate", settings(out, **changes), **options)


def parts(out: Path) -> list[Path]:
    return sorted(out.glob(".parts/*/*.safetensors"))


def assert_all_leave(group: int) -> None:
    """A process group is empty within ten seconds."""
    with pytest.raises(ProcessLookupError):
        wait_for(lambda: os.killpg(group, 0), seconds=10)


@pytest.fixture(scope="module")
def generated(tmp_path_factory) -> PackedGraphs:
    return generate(settings(tmp_path_factory.mktemp("generated"), workers=2))


def test_all_families_are_there_in_their_counts_and_no_graph_twice(generated):
    made_from = {"recipe": "smoke", "graphs": 64, "iterations": 5000, "seed": 0, "label_seconds": 30.0}
    assert generated.manifest["origin"] == made_from and generated.name(0) == "er_sparse-00000"
    counts = {family: sum(splits.values()) for family, splits in generated.manifest["counts"].items()}
    assert len(generated) == sum(counts.values()) == 64 and min(counts.values()) >= 2
    assert len(set(generated.fingerprint.tolist())) == 64
    assert len(generated.indices("validation")) == 21  # at least 20, where they are not more than half


def test_copies_are_replaced_by_further_graphs_of_the_family(tmp_path, monkeypatch, caplog):
    same = [GraphSpec(0, "rook", index, ((18, 18, 1.0),)) for index in (0, 0, 1)]
    monkeypatch.setattr("gnn_training.jobs.dataset.graph_specs", lambda *_: same)
    caplog.set_level("INFO")
    graphs = generate(settings(tmp_path, workers=1))
    assert "copies of other graphs, replaced: 1" in caplog.text
    assert [graphs.name(i) for i in range(len(graphs))] == ["rook-00000", "rook-00001", "rook-00003"]
    assert len(set(graphs.fingerprint.tolist())) == 3


def test_a_file_of_somebody_else_is_never_overwritten(tmp_path):
    (tmp_path / packed.GRAPHS_FILE).write_text("mine")
    with pytest.raises(UserError, match="without a manifest"):
        generate(settings(tmp_path))
    assert (tmp_path / packed.GRAPHS_FILE).read_text() == "mine"


@pytest.mark.slow
def test_killed_at_any_moment_the_same_command_ends_with_the_same_bytes(generated, tmp_path):
    for number in (1, 2):
        process = start(tmp_path, workers=1)
        wait_for(lambda number=number: len(parts(tmp_path)) >= number, process)
        process.kill()
        process.wait()
        assert_all_leave(process.pid)  # orphans notice
    kept = len(parts(tmp_path))
    said, _ = start(tmp_path, workers=1).communicate()
    assert f"continuing: {16 * kept} of 64 graphs are labelled" in said
    assert (tmp_path / packed.GRAPHS_FILE).read_bytes() == (generated.folder / packed.GRAPHS_FILE).read_bytes()
    assert not (tmp_path / ".parts").exists()


@pytest.mark.slow
def test_a_signal_ends_it_within_seconds(tmp_path):
    process = start(tmp_path, graphs=3000)
    wait_for(lambda: parts(tmp_path), process)
    begin = time.monotonic()
    os.killpg(process.pid, signal.SIGTERM)  # the whole group, as a terminal or `docker stop` with an init does
    said, _ = process.communicate(timeout=30)
    assert process.returncode == 143
    assert time.monotonic() - begin < 30
    assert "SpawnProcess" not in said  # no traceback of a worker
    assert_all_leave(process.pid)
    assert not (tmp_path / packed.MANIFEST_FILE).exists()


def test_a_damaged_part_is_made_again_and_the_number_of_processes_changes_not_a_byte(
    generated, tmp_path, monkeypatch, caplog
):
    with monkeypatch.context() as patched, pytest.raises(InterruptedError):
        patched.setattr(packed, "write", Mock(side_effect=InterruptedError))
        generate(settings(tmp_path, workers=1))
    first, *whole = parts(tmp_path)
    first.write_bytes(first.read_bytes()[:-1])
    before = [path.stat().st_mtime_ns for path in whole]
    monkeypatch.setattr("shutil.rmtree", lambda *_, **__: None)
    again = generate(settings(tmp_path, workers=1))
    assert again.manifest == generated.manifest
    assert (again.folder / packed.GRAPHS_FILE).read_bytes() == (generated.folder / packed.GRAPHS_FILE).read_bytes()
    assert [f"{path}: is damaged" in caplog.text for path in parts(tmp_path)] == [True, *[False] * len(whole)]
    assert [path.stat().st_mtime_ns for path in whole] == before


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file/data.* \(not a directory\); make room or name another"):
        generate(settings(tmp_path / "file" / "data"))


def test_a_full_disk_is_one_sentence_and_leaves_no_manifest(tmp_path):
    with full_disk(2000), pytest.raises(StorageError, match=r"cannot be written \(file too large\); make room"):
        generate(settings(tmp_path, workers=1))
    assert not (tmp_path / packed.MANIFEST_FILE).exists() and not list(tmp_path.glob("*.tmp"))


def test_one_graph_in_five_of_every_family_and_size_is_for_validation():
    rng = np.random.default_rng(0)
    families, num_nodes = rng.integers(4, size=2000), rng.integers(10, 800, size=2000)
    chosen = split(num_nodes, families, seed=0)
    assert chosen.sum() == 400
    bucket = np.searchsorted(labelling.SIZE_BOUNDS, num_nodes, side="right")
    for family in range(4):
        for size in range(4):
            inside = chosen[(families == family) & (bucket == size)]
            assert abs(inside.sum() - len(inside) / 5) <= 1
    assert not np.array_equal(chosen, split(num_nodes, families, seed=1))
    assert split(num_nodes, families, 0, every=2).sum() == 999


@pytest.mark.parametrize(("graphs", "validation"), [(1, 0), (2, 1), (3, 1), (4, 1), (5, 1), (7, 1), (8, 2)])
def test_few_graphs_leave_one_for_training_and_one_for_validation(graphs, validation):
    assert split(np.full(graphs, 20), np.zeros(graphs, int), seed=0).sum() == validation


def test_a_worker_loads_no_torch():
    program = (
        "import sys; import gnn_training.data.labelling, gnn_training.data.families; "
        "assert not {'torch', 'torch_geometric', 'onnxruntime', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


PLANTED_COLORS = 7
planted = partial(small_graphs.planted, 70, PLANTED_COLORS, 0.5)  # of a seed; DSATUR colors these graphs badly


def write_json(path: Path, graph: Graph, colors: np.ndarray, older: bool = False, graph_type: int = 3) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(json_graph(graph, colors, older, graph_type)))


def importing(*sources: Path, out: Path, **changes) -> ImportSettings:
    return ImportSettings(sources=sources, out=out, workers=1, **({"label_seconds": 0.05} | changes))


def import_here(settings: ImportSettings) -> PackedGraphs:
    """Import without workers, which take seconds to start."""
    with pytest.MonkeyPatch.context() as patch:
        here = lambda f, calls, _: (f(*call) or i for i, call in enumerate(calls))  # noqa: E731
        patch.setattr(labelling, "run_in_processes", here)
        return import_graphs(settings)


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
    (source / "notes.csv").touch()
    (source / "metadata.json").write_text(json.dumps({"total_graphs": 9, "train_graphs": 6, "val_graphs": 2}))
    with caplog.at_level(logging.INFO):
        graphs = import_here(importing(source, out=tmp_path / "packed", label_seconds=0))
    assert f"val_000001.json: its coloring is not proper (conflicts: {improper.num_edges}) and is not" in caplog.text
    assert "7 graphs from 8 sources" in caplog.text
    assert f"not read: 1 tables, such as {source}/notes.csv; .txt, .csv, .tsv are taken only if you" in caplog.text
    names = named(graphs)
    assert sorted(names) == [f"train_{i:06}" for i in range(6)] + ["val_000001"]
    for name, i in names.items():
        graph = graphs.graph(i)
        assert is_proper(graph, packed.ragged_row(graphs.tensors, "coloring", i))
        if name.startswith("train"):
            number = int(name[-6:])
            assert np.array_equal(graph.edges, planted(number)[0].edges)
            assert graphs.graph_type[i] == number % 3
            assert graphs.num_colors[i] <= PLANTED_COLORS  # the file's own, as no time was given to find better ones
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
        write_col(source, planted(i)[0], f"a{i}")
    nx.write_graphml(nx.petersen_graph(), source / "petersen.graphml")
    nx.write_edgelist(nx.complete_graph(5), source / "complete.edgelist")
    write_col(folder / "packing" / "graphs", planted(7)[0], "inside")
    with tarfile.open(source / "pool.tar.gz", "w:gz") as archive:
        archive.add(folder / "packing", arcname="pool")
    chosen = importing(source, out=folder / "packed")
    import_graphs(chosen)
    return folder, chosen


def test_dimacs_edge_list_graphml_and_archive_are_packed_together(imported):
    folder, chosen = imported
    graphs = PackedGraphs.open(chosen.out)
    names = named(graphs)
    assert sorted(names) == ["a0", "a1", "a2", "complete", "inside", "petersen"]
    assert (graphs.num_colors[names["petersen"]], graphs.num_colors[names["complete"]]) == (3, 5)
    assert graphs.families[graphs.family[names["a0"]]] == "imported"
    assert not (chosen.out / ".parts").exists()


def test_the_same_import_again_is_one_line_and_changed_files_never_overwrite_it(imported, caplog):
    folder, chosen = imported
    caplog.set_level(logging.INFO)
    before = (chosen.out / packed.GRAPHS_FILE).stat().st_mtime_ns
    (chosen.out / ".parts").mkdir()  # left by a kill
    import_here(chosen)
    assert caplog.messages == [f"{chosen.out}: already has these 6 graphs"] and not (chosen.out / ".parts").exists()
    os.utime(folder / "graphs" / "a0.col", ns=(0, 0))
    with pytest.raises(UserError, match="packed: has graphs of other sources or settings; name another --out or re"):
        import_here(chosen)
    assert (chosen.out / packed.GRAPHS_FILE).stat().st_mtime_ns == before


@pytest.fixture
def partly_bad(tmp_path: Path) -> Path:
    source = tmp_path / "graphs"
    write_col(source, planted(1)[0], "good")
    write_col(source, planted(1)[0], "again")
    write_col(source, nx.path_graph(33_000), "large")
    (source / "bad.col").write_text("p edge 3 1\ne 1 9\n")
    (source / "cut.json").write_text('{"adjacency": {"shape": [2, 2], "data": [0, 1,')
    (source / "gone.col").symlink_to(tmp_path / "nowhere.col")
    (source / "pool.tgz").write_bytes(b"no archive")
    return source


def test_a_bad_file_stops_the_import_and_skip_bad_leaves_it_out(tmp_path: Path, partly_bad: Path, caplog):
    caplog.set_level(logging.INFO)
    chosen = importing(partly_bad, out=tmp_path / "packed")
    with pytest.raises(UserError, match="/pool.tgz: is damaged .*; fetch it again or pack it as a tar archive"):
        import_here(chosen)
    (partly_bad / "pool.tgz").unlink()
    with pytest.raises(UserError, match="^.*/bad.col: line 2: edge 1-9 is outside the nodes 1..3 of the header; cor"):
        import_here(chosen)
    assert not (tmp_path / "packed" / packed.GRAPHS_FILE).exists()
    (partly_bad / "pool.tgz").touch()
    assert list(named(import_here(chosen.model_copy(update={"skip_bad": True})))) == ["again"]
    left_out = re.findall(rf"left out: (?:{partly_bad}/)?(.*?): ", caplog.text)
    assert left_out == ["pool.tgz", "bad.col", "cut.json", "gone.col", "large"]
    assert "large: 33000 nodes are too many to pack" in caplog.text
    assert "copies of other graphs, left out: 1" in caplog.text
    assert any(line.startswith("labelling: 6 of 6, ") for line in caplog.messages)
    assert re.match("2 graphs, .* nodes, .* edges, DIMACS", caplog.messages[-3])
    assert caplog.messages[-1] == "1 graphs from 6 sources"
    for name in ("good", "again"):
        (partly_bad / f"{name}.col").unlink()
    with pytest.raises(UserError, match="there is no graph to write"):
        import_here(importing(partly_bad, out=tmp_path / "none", skip_bad=True))


def test_a_second_import_touches_nothing_of_the_first(tmp_path: Path, partly_bad: Path):
    out = tmp_path / "packed"
    write_col(out / ".parts/unpacked" / "0-pool.tgz", planted(0)[0], "a")
    with files.lock_folder(out), pytest.raises(UserError, match="packed: another process is writing it"):
        import_here(importing(partly_bad, out=out, skip_bad=True))
    assert (out / ".parts/unpacked" / "0-pool.tgz" / "a.col").exists()


def test_out_may_be_inside_the_source_again_and_after_a_kill(tmp_path: Path, caplog):
    write_col(tmp_path, planted(0)[0], "a")
    chosen = importing(tmp_path, out=tmp_path / "packed")
    write_col(chosen.out / ".parts/unpacked" / "0-pool.tgz", planted(1)[0], "b")  # as after a kill
    for _ in range(2):
        assert list(named(import_here(chosen))) == ["a"]
    inside = importing(tmp_path / "packed", tmp_path, out=tmp_path)  # the source itself
    assert [list(named(import_here(inside))) for _ in range(2)] == [["a"], ["a"]]


def test_a_full_disk_is_no_bad_archive(tmp_path: Path, monkeypatch):
    write_col(tmp_path, planted(0)[0], "a")
    with tarfile.open(tmp_path / "pool.tgz", "w:gz") as archive:
        archive.add(tmp_path / "a.col")
    monkeypatch.setattr(tarfile, "copyfileobj", Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    with pytest.raises(StorageError, match=r"pool.tgz: cannot be unpacked to .* \(no space left on device\)"):
        import_here(importing(tmp_path / "pool.tgz", out=tmp_path / "packed", skip_bad=True))


def test_an_interrupted_import_continues(tmp_path: Path, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    for i in range(20):
        write_col(tmp_path / "graphs", planted(i)[0], str(i))
    chosen = importing(tmp_path / "graphs", out=tmp_path / "packed", label_seconds=0)
    for seed in (1, 0):
        with monkeypatch.context() as patched, pytest.raises(InterruptedError):
            patched.setattr(packed, "write", Mock(side_effect=InterruptedError))
            import_here(chosen.model_copy(update={"seed": seed}))
    assert "continuing" not in caplog.text  # with the parts of other settings
    for path in (tmp_path / "packed").glob(".parts/*/0-000000.safetensors"):
        path.unlink()
    assert len(import_here(chosen)) == 20 and "continuing: 10 of 20 graphs are labelled" in caplog.text


def test_graphs_of_an_archive_share_the_long_searches_of_an_import(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(dataset, "LONG_SEARCHES", 2)
    with tarfile.open(tmp_path / "graphs.tar.gz", "w:gz") as archive:
        for seed in range(6):
            archive.add(write_col(tmp_path, small_graphs.random_graph(40, 0.5, seed), f"{seed}"), f"{seed}.col")
    archive = tmp_path / "graphs.tar.gz"
    data = import_here(importing(archive, out=tmp_path / "packed", label_seconds=0.1))
    assert len(data) == 6 and 0 < (data.search_rounds > 0).sum() <= 2
