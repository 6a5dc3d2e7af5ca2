"""Damaged checkpoints, records and archives: what was saved is read, or one sentence says what is wrong."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from fuzzing import damage, explore, explore_seeded, refusal
from hypothesis import strategies as st
from test_checkpoint import state

import gnn_training.jobs.run as job
from gnn_training.errors import UserError
from gnn_training.files import checksums, read_archive, write_archive
from gnn_training.jobs.run import StepRecord
from gnn_training.settings import smoke
from gnn_training.training import checkpoint
from gnn_training.training.logbook import read_metrics

pytestmark = pytest.mark.fuzz
RANDOM = st.integers(0, 2**32).map(Random)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda x: st.lists(x, max_size=3) | st.dictionaries(st.sampled_from(["seconds", "kind", "step", "a"]), x),
    max_leaves=8,
)


@pytest.fixture(autouse=True)
def quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No warnings for each of the inputs, and a folder of its own."""
    monkeypatch.chdir(tmp_path)
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def test_no_damage_to_a_checkpoint_is_read_and_the_newest_whole_one_is_taken(tmp_path: Path):
    for step in (1, 2):
        checkpoint.save(tmp_path / f"step-0000000{step}.pt", {**state(), "step": step})
    path = tmp_path / "step-00000002.pt"
    content = path.read_bytes()

    def damaged_newest_checkpoint(damaged: bytes) -> str:
        path.write_bytes(damaged)
        if damaged == content:
            assert checkpoint.newest(tmp_path)["step"] == 2
            return "unchanged"
        with pytest.raises(UserError) as caught:
            checkpoint.load(path, checkpoint.RESUMED)
        assert checkpoint.newest(tmp_path)["step"] == 1
        return refusal(caught.value)

    explore_seeded(damaged_newest_checkpoint, lambda rng: damage(content, rng))


def test_the_job_starts_and_ends_with_any_record(tmp_path: Path):
    run, record = Path("runs/smoke"), {"data": {"seconds": 1.0, "command": "generate", "settings": {}, "files": {}}}
    run.mkdir(parents=True)
    scores = {"summary": {"graphs": 40, "methods": {"dsatur": {"graphs": 40, "mean_gap": 1.0}}}, "verdict": "It pays."}
    whole = {"steps.json": record, "report.json": scores, "status.json": {"first_gap": 1.0, "best": 0.5}}
    (tmp_path / "models").mkdir()
    (tmp_path / "models/coloring_gnn.onnx").touch()

    def damaged_record(name: str, rng: Random, value: object, is_value: bool) -> str:
        for file, right in whole.items():
            (run / file).write_text(json.dumps(right))
        (run / name).write_bytes(json.dumps(value).encode() if is_value else damage((run / name).read_bytes(), rng))
        StepRecord(run / "steps.json")
        try:
            job._finish(smoke(), "done")
        except UserError as error:
            return refusal(error)
        return "accepted"

    assert damaged_record("steps.json", Random(0), record, True) == "accepted"
    explore(damaged_record, st.sampled_from(list(whole)), RANDOM, VALUES, st.booleans())


def test_of_damaged_metrics_every_whole_line_is_read(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    records = [{"kind": kind, "step": step, "gap": 0.5} for step in range(20) for kind in ("train", "validation")]
    whole = "".join(json.dumps(record) + "\n" for record in records).encode()

    def damaged_metrics(rng: Random, value: object) -> str:
        content = damage(whole, rng) + json.dumps(value).encode() + b"\n"
        path.write_bytes(content)
        read = read_metrics(path)
        lines = set(content.split(b"\n"))
        assert all(record in read for record in records if json.dumps(record).encode() in lines)
        return f"{len(read) // 10} times ten"

    explore(damaged_metrics, RANDOM, VALUES)


def test_a_damaged_archive_is_refused_or_has_the_same_files(tmp_path: Path):
    contents = {"model.onnx": b"a model" * 200, "report.json": b"{}"}
    contents["SHA256SUMS"] = checksums(contents).encode()
    path = tmp_path / "trained_model.tar.gz"
    write_archive(path, contents, 0)
    whole = path.read_bytes()

    def damaged_archive(content: bytes) -> str:
        path.write_bytes(content)
        try:
            assert read_archive(path) == contents
        except UserError as error:
            return refusal(error)
        return "the same"

    explore_seeded(damaged_archive, lambda rng: damage(whole, rng))
