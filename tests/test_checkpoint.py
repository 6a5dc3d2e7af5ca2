"""Checkpoints: whole or not there, readable without running code, the same for any number of ranks."""

import logging
import shutil
from pathlib import Path

import pytest
import torch

from gnn_training.errors import StorageError, UserError
from gnn_training.training import checkpoint


def state(value: float = 1.0) -> dict:
    return {"network": {"move_rule": torch.full((2, 3), value), "b.bias": torch.zeros(3)}, "step": 7}


def truncate(path: Path) -> None:
    """What a disk leaves that lost power."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def test_what_was_saved_is_loaded(tmp_path: Path):
    path = tmp_path / "new" / "best.pt"
    checkpoint.save(path, state())
    loaded = checkpoint.load(path)
    assert loaded["step"] == 7 and torch.equal(loaded["network"]["move_rule"], torch.ones(2, 3))


def test_a_failing_save_leaves_the_old_file_and_nothing_else(tmp_path: Path):
    path = tmp_path / "best.pt"
    checkpoint.save(path, state())
    with pytest.raises(Exception, match="pickle"):
        checkpoint.save(path, {"network": {}, "never": lambda: 0})
    assert checkpoint.load(path)["step"] == 7
    assert list(tmp_path.iterdir()) == [path]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="file/best.pt: cannot be written"):
        checkpoint.save(tmp_path / "file" / "best.pt", state())


def test_only_the_newest_two_are_kept(tmp_path: Path):
    for step in (90, 100, 110, 120):
        checkpoint.save_step(tmp_path, step, {**state(), "step": step})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000110.pt", "step-00000120.pt"]
    assert checkpoint.newest(tmp_path)["step"] == 120


def test_without_any_there_is_no_newest(tmp_path: Path):
    assert checkpoint.newest(tmp_path) is None
    assert checkpoint.newest(tmp_path / "nowhere") is None


def test_what_a_kill_while_saving_leaves_falls_back_to_the_one_before(tmp_path: Path, caplog):
    for step in (10, 20):
        checkpoint.save_step(tmp_path, step, {**state(), "step": step})
    newest = tmp_path / "step-00000020.pt"
    shutil.copy(newest, tmp_path / ".step-00000030.pt.4711.tmp")  # written, not renamed yet
    assert checkpoint.newest(tmp_path)["step"] == 20
    truncate(newest)
    with caplog.at_level(logging.WARNING):
        assert checkpoint.newest(tmp_path)["step"] == 10
    assert "step-00000020.pt: damaged" in caplog.text and "taking the one before" in caplog.text


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x80\x02.", b"no checkpoint at all\n" * 99, b"\xff" * 4096])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes):
    path = tmp_path / "best.pt"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"best\.pt: damaged or not a checkpoint .*delete it"):
        checkpoint.load(path)


def test_a_missing_file_and_a_strange_one_are_named(tmp_path: Path):
    with pytest.raises(UserError, match="no such checkpoint; train first"):
        checkpoint.load(tmp_path / "best.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    torch.save({"weights": {}}, tmp_path / "other.pt")
    for name in ("list.pt", "other.pt"):
        with pytest.raises(UserError, match=f"{name}: not a checkpoint of this program"):
            checkpoint.load(tmp_path / name)


def test_code_in_a_checkpoint_is_not_run(tmp_path: Path):
    class Trap:
        def __reduce__(self):
            return Path.touch, (tmp_path / "sprung",)

    torch.save({"network": Trap()}, tmp_path / "best.pt")
    with pytest.raises(UserError, match="damaged"):
        checkpoint.load(tmp_path / "best.pt")
    assert not (tmp_path / "sprung").exists()


def test_a_checkpoint_of_the_network_before_is_refused(tmp_path: Path):
    torch.save({"network": {"refinement.first.weight": torch.ones(2)}}, tmp_path / "best.pt")
    with pytest.raises(UserError, match=r"best.pt: made by a version before 0.4, .*; train again"):
        checkpoint.load(tmp_path / "best.pt")


def test_the_fingerprint_is_of_the_exported_weights_alone():
    assert checkpoint.weights_fingerprint(state(1.0)) != checkpoint.weights_fingerprint(state(1.5))
    assert checkpoint.weights_fingerprint({**state(), "step": 8}) == checkpoint.weights_fingerprint(state())


def test_a_checkpoint_of_a_training_loads_with_weights_only(trained: Path):
    for path in (trained / "best.pt", *(trained / "checkpoints").glob("*.pt")):
        assert torch.load(path, weights_only=True)["settings"]["steps"] == checkpoint.load(path)["settings"]["steps"]
