"""Generated graphs are the same for any number of processes, continue after a kill, and never replace other data."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from small_graphs import label_of

from gnn_training.coloring import is_proper
from gnn_training.data import labels, packed
from gnn_training.data.families import Draw
from gnn_training.data.labels import Plan, label_all, split
from gnn_training.data.packed import PackedGraphs
from gnn_training.errors import StorageError, UserError
from gnn_training.graph import Graph, Instance
from gnn_training.jobs.dataset import generate
from gnn_training.settings import GenerateSettings

ROOT = Path(__file__).parent.parent


def settings(out: Path, **changes) -> GenerateSettings:
    return GenerateSettings(**{"recipe": "smoke", "out": out, "graphs": 64, "label_seconds": 30, **changes})


def start(out: Path, **changes) -> subprocess.Popen:
    """A process of its own that generates."""
    file = out.with_name(f"{out.name}.json")
    file.write_text(settings(out, **changes).model_dump_json())
    command = [sys.executable, "-m", "gnn_training", "generate", "--settings", str(file)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, cwd=ROOT, start_new_session=True, **pipes)


def parts(out: Path) -> list[Path]:
    return sorted(out.glob(".parts/*/*.safetensors"))


def wait_for_parts(out: Path, number: int, process: subprocess.Popen) -> None:
    while len(parts(out)) < number:
        assert process.poll() is None, "it ended before it could be interrupted"
        time.sleep(0.01)


def all_leave(group: int) -> bool:
    """Whether a process group is empty within ten seconds."""
    for _ in range(200):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


@pytest.fixture(scope="module")
def generated(tmp_path_factory) -> PackedGraphs:
    return generate(settings(tmp_path_factory.mktemp("generated"), workers=2))


def test_the_number_of_processes_changes_not_a_byte(generated, tmp_path):
    alone = generate(settings(tmp_path, workers=1))
    assert alone.manifest == generated.manifest
    assert (alone.folder / packed.GRAPHS_FILE).read_bytes() == (generated.folder / packed.GRAPHS_FILE).read_bytes()


def test_every_label_is_proper_and_bounded(generated):
    for i in range(len(generated)):
        best = label_of(generated, i)
        assert is_proper(generated.graph(i), best.coloring) and best.coloring.max() + 1 == best.num_colors
        assert best.lower_bound <= best.num_colors <= best.dsatur_colors
        assert best.optimal == (best.lower_bound == best.num_colors)


def test_all_families_are_there_in_their_counts_and_no_graph_twice(generated):
    counts = {family: sum(splits.values()) for family, splits in generated.manifest["counts"].items()}
    assert len(generated) == sum(counts.values()) == 64 and min(counts.values()) >= 3
    assert len(set(generated.fingerprint.tolist())) == 64
    assert len(generated.indices("validation")) == 13


def test_copies_are_replaced_by_further_graphs_of_the_family(tmp_path, monkeypatch, caplog):
    same = [Draw(0, "rook", index, ((18, 18, 1.0),)) for index in (0, 0, 1)]
    monkeypatch.setattr("gnn_training.jobs.dataset.draws", lambda *_: same)
    caplog.set_level("INFO")
    graphs = generate(settings(tmp_path, workers=1))
    assert "copies of other graphs, replaced: 1" in caplog.text
    assert [graphs.name(i) for i in range(len(graphs))] == ["rook-00000", "rook-00001", "rook-00003"]
    assert len(set(graphs.fingerprint.tolist())) == 3


def test_what_is_there_is_not_made_again(generated, caplog):
    caplog.set_level("INFO")
    before = (generated.folder / packed.GRAPHS_FILE).stat().st_mtime_ns
    (generated.folder / ".parts").mkdir()
    assert len(generate(settings(generated.folder))) == 64
    assert (generated.folder / packed.GRAPHS_FILE).stat().st_mtime_ns == before
    assert "already has these 64 graphs" in caplog.text
    assert not (generated.folder / ".parts").exists()


def test_graphs_of_other_settings_are_never_overwritten(generated):
    before = (generated.folder / packed.GRAPHS_FILE).read_bytes()
    for change in ({"seed": 1}, {"recipe": "cpu"}, {"graphs": 65}, {"label_seconds": 2}):
        with pytest.raises(UserError, match="has graphs of other sources or settings; name another --out"):
            generate(settings(generated.folder, **change))
    assert (generated.folder / packed.GRAPHS_FILE).read_bytes() == before


def test_a_file_of_somebody_else_is_never_overwritten(tmp_path):
    (tmp_path / packed.GRAPHS_FILE).write_text("mine")
    with pytest.raises(UserError, match="without a manifest"):
        generate(settings(tmp_path))
    assert (tmp_path / packed.GRAPHS_FILE).read_text() == "mine"


@pytest.mark.slow
def test_killed_at_any_moment_the_same_command_ends_with_the_same_bytes(generated, tmp_path):
    for number in (1, 2):
        process = start(tmp_path, workers=1)
        wait_for_parts(tmp_path, number, process)
        process.kill()
        process.wait()
        assert all_leave(process.pid)  # orphans notice
    kept = len(parts(tmp_path))
    said, _ = start(tmp_path, workers=1).communicate()
    assert f"continuing: {16 * kept} of 64 graphs are labelled" in said
    assert (tmp_path / packed.GRAPHS_FILE).read_bytes() == (generated.folder / packed.GRAPHS_FILE).read_bytes()
    assert not (tmp_path / ".parts").exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_within_seconds_and_it_says_how_to_continue(tmp_path, number):
    process = start(tmp_path, graphs=3000)
    wait_for_parts(tmp_path, 1, process)
    begin = time.monotonic()
    os.killpg(process.pid, number)  # the whole group, as a terminal or `docker stop` with an init does
    said, _ = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert time.monotonic() - begin < 5
    assert "SpawnProcess" not in said  # no traceback of a worker
    assert all_leave(process.pid)
    assert not (tmp_path / packed.MANIFEST_FILE).exists()


def test_a_damaged_part_is_made_again(generated, tmp_path, monkeypatch, caplog):
    with monkeypatch.context() as patched, pytest.raises(InterruptedError):
        patched.setattr(packed, "select", Mock(side_effect=InterruptedError))
        generate(settings(tmp_path, workers=1))
    first, *whole = parts(tmp_path)
    first.write_bytes(first.read_bytes()[:-1])
    before = [path.stat().st_mtime_ns for path in whole]
    monkeypatch.setattr("shutil.rmtree", lambda *_, **__: None)
    again = generate(settings(tmp_path, workers=1))
    assert (again.folder / packed.GRAPHS_FILE).read_bytes() == (generated.folder / packed.GRAPHS_FILE).read_bytes()
    assert [f"{path}: is damaged" in caplog.text for path in parts(tmp_path)] == [True, False, False, False]
    assert [path.stat().st_mtime_ns for path in whole] == before


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file/data.* \(not a directory\); name another"):
        generate(settings(tmp_path / "file" / "data"))


def test_a_full_disk_is_one_sentence_and_leaves_no_manifest(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, limits[1]))
    try:
        with pytest.raises(StorageError, match=r"cannot be written \(file too large\); make room"):
            generate(settings(tmp_path, workers=1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not (tmp_path / packed.MANIFEST_FILE).exists() and not list(tmp_path.glob("*.tmp"))


@dataclass(frozen=True)
class Fake:
    """A source whose graph is a path of n nodes; n = 0 is bad."""

    n: int

    def load(self) -> Instance:
        if self.n == 0:
            raise UserError("fake.col: holds no nodes")
        note = "its coloring is not proper" if self.n == 7 else ""
        return Instance(Graph.from_edges(self.n, [(i, i + 1) for i in range(self.n - 1)], f"path{self.n}"), note=note)


def plan(**changes) -> Plan:
    return Plan(**{"families": ("imported",), "iterations": 100, "seconds": 1, "seed": 0, **changes})


def test_a_bad_source_stops_everything_with_its_own_sentence(tmp_path):
    with pytest.raises(UserError, match=r"^fake\.col: holds no nodes$"):
        label_all([Fake(3), Fake(0)], tmp_path, plan(), workers=1)
    assert not (tmp_path / packed.MANIFEST_FILE).exists()


def test_skipped_sources_notes_and_copies_are_logged(tmp_path, caplog):
    caplog.set_level("INFO")
    graphs = label_all([Fake(n) for n in (7, 0, 4, 4, 21_000, 9)], tmp_path, plan(skip_bad=True), workers=1)
    assert [graphs.name(i) for i in range(len(graphs))] == ["path7", "path4", "path9"]
    assert "left out: fake.col: holds no nodes" in caplog.text
    assert "left out: path21000: 21000 nodes are too many to pack" in caplog.text
    assert "its coloring is not proper" in caplog.text
    assert "copies of other graphs, left out: 1" in caplog.text


def test_one_graph_in_five_of_every_family_and_size_is_for_validation():
    rng = np.random.default_rng(0)
    tensors = {"family": rng.integers(4, size=2000), "num_nodes": rng.integers(10, 800, size=2000)}
    chosen = split(tensors, seed=0)
    assert chosen.sum() == 400
    bucket = np.searchsorted(labels.SIZE_BOUNDS, tensors["num_nodes"], side="right")
    for family in range(4):
        for size in range(4):
            inside = chosen[(tensors["family"] == family) & (bucket == size)]
            assert abs(inside.sum() - len(inside) / 5) <= 1
    assert not np.array_equal(chosen, split(tensors, seed=1))


@pytest.mark.parametrize(("graphs", "validation"), [(1, 0), (2, 1), (3, 1), (4, 1), (5, 1), (7, 1), (8, 2)])
def test_few_graphs_leave_one_for_training_and_one_for_validation(graphs, validation):
    tensors = {"family": np.zeros(graphs, int), "num_nodes": np.full(graphs, 20)}
    assert split(tensors, seed=0).sum() == validation


def test_progress_and_the_labels_against_dsatur_are_logged(tmp_path, caplog):
    caplog.set_level("INFO")
    label_all([Fake(n) for n in range(2, 7)], tmp_path, plan(), workers=1)
    assert any(line.startswith("labelling: 5 of 5, ") for line in caplog.messages)
    assert caplog.messages[-1] == "5 graphs: labels 0.00 colors below DSATUR, 100% proven optimal"


def test_a_worker_loads_no_torch():
    program = (
        "import sys; import gnn_training.data.labels, gnn_training.data.families; "
        "assert not {'torch', 'torch_geometric', 'onnxruntime', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_the_manifest_says_what_the_graphs_were_made_from(generated):
    manifest = json.loads((generated.folder / packed.MANIFEST_FILE).read_text())
    assert manifest["origin"] == {
        "recipe": "smoke", "graphs": 64, "iterations": 5000, "seed": 0, "label_seconds": 30.0,
    }  # fmt: skip
    assert generated.name(0) == "er_sparse-00000"
