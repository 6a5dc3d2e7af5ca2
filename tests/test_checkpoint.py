"""Checkpoints: whole or not there, readable without running code, the same for any number of ranks."""

from pathlib import Path

import pytest
import torch
from tiny_runs import full_disk

from gnn_training.errors import StorageError, UserError
from gnn_training.network.network import ColoringNetwork
from gnn_training.training import checkpoint


def state(value: float = 1.0) -> dict:
    torch.manual_seed(0)
    network = ColoringNetwork().state_dict() | {"rule": torch.full_like(ColoringNetwork().rule, value)}
    progress = dict.fromkeys(("optimizer", "scaler", "progress", "self_play"), {})
    counts = dict.fromkeys(("num_averaged", "bad_steps", "skipped_steps", "steps_per_epoch"), 1)
    texts = {"data_sha256": "0", "resumed_from": ""}
    return {"network": network, "weights": network, "step": 7, "settings": {}, **texts, **progress, **counts}


@pytest.mark.parametrize(
    ("keep", "kept"), [(2, [110, 120]), (1, [120]), (3, [100, 110, 120]), (0, [90, 100, 110, 120])]
)
def test_as_many_of_the_newest_are_kept_as_asked(tmp_path: Path, keep: int, kept: list[int]):
    (tmp_path / "step-9-keep.pt").touch()  # by a user
    for step in (90, 100, 110, 120):
        checkpoint.save_step(tmp_path, step, {**state(), "step": step}, keep)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [*(f"step-{step:08d}.pt" for step in kept), "step-9-keep.pt"]
    assert checkpoint.newest(tmp_path)["step"] == 120


@pytest.mark.parametrize("key", [*checkpoint.RESUMED])
def test_a_checkpoint_without_a_key_is_named(tmp_path: Path, key: str):
    checkpoint.save(tmp_path / "step-00000007.pt", {name: value for name, value in state().items() if name != key})
    with pytest.raises(UserError, match=rf"step-00000007\.pt: is damaged .ValueError: it has no {key}.; delete it"):
        checkpoint.newest(tmp_path)


def test_a_disk_that_takes_no_more_is_told_in_a_sentence_and_the_old_file_stays(tmp_path: Path):
    path = tmp_path / "best.pt"
    checkpoint.save(path, state())
    with full_disk(), pytest.raises(StorageError, match=r"best\.pt: cannot be written \(file too large\)"):
        checkpoint.save(path, state(2.0))
    assert checkpoint.load(path)["network"]["rule"].max() == 1
    assert list(tmp_path.iterdir()) == [path]


def test_a_training_without_a_checkpoint_that_can_be_read_is_not_begun_again(tmp_path: Path):
    for step in (10, 20):
        (tmp_path / f"step-000000{step}.pt").touch()
    with pytest.raises(UserError, match="step-00000010.pt: is damaged"):
        checkpoint.newest(tmp_path)


def test_a_missing_file_and_a_strange_one_are_named(tmp_path: Path):
    with pytest.raises(UserError, match="best.pt: cannot be read .no such file or directory.; train first"):
        checkpoint.load(tmp_path / "best.pt")
    checkpoint.save(tmp_path / "list.pt", [1, 2])
    checkpoint.save(tmp_path / "other.pt", {"weights": {}})
    changed = state()
    checkpoint.save(tmp_path / "shape.pt", changed | {"network": changed["network"] | {"rule": torch.ones(2, 3)}})
    for name in ("list.pt", "other.pt", "shape.pt"):
        with pytest.raises(UserError, match=f"{name}: is damaged .*; delete it or name another file"):
            checkpoint.load(tmp_path / name)


def test_code_in_a_checkpoint_is_not_run(tmp_path: Path):
    class Trap:
        def __reduce__(self):
            return Path.touch, (tmp_path / "sprung",)

    checkpoint.save(tmp_path / "best.pt", {"network": Trap()})
    with pytest.raises(UserError, match="damaged"):
        checkpoint.load(tmp_path / "best.pt")
    assert not (tmp_path / "sprung").exists()
