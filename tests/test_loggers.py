"""Loggers get every record of a training, from rank 0 alone, and a resumed training goes on in the same run."""

import json
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
import tiny_runs

from gnn_training.__main__ import main
from gnn_training.errors import UserError
from gnn_training.jobs.train import train
from gnn_training.settings import TrainSettings
from gnn_training.training.logbook import Logbook, Logger, Progress

Numbers = dict[tuple[str, int], float]  # by name and step


def recorded(run: Path) -> Numbers:
    """The numbers of metrics.jsonl."""
    lines = ((line, name) for line in tiny_runs.metrics(run) for name in line.keys() - {"kind", "step"})
    return {(f"{line['kind']}/{name}", line["step"]): line[name] for line, name in lines}


def of_wandb(run: Path) -> Numbers:
    """What `wandb sync` would send: protocol buffers in a log in the format of LevelDB."""
    from wandb.proto.wandb_internal_pb2 import Record

    def records(data: bytes) -> Iterator[Record]:
        at, content = 7, b""  # after the header of the file
        while at + 7 <= len(data):
            if (left := -at % 32_768) < 7 and left:  # a block ends with zeros if no header fits
                at += left
                continue
            _, length, kind = struct.unpack("<IHB", data[at : at + 7])
            content += data[at + 7 : at + 7 + length]
            at += 7 + length
            if kind in (1, 4):  # the whole record, or its last part
                yield Record.FromString(content)
                content = b""

    numbers: Numbers = {}
    files = sorted(run.glob("wandb/offline-run-*/run-*.wandb"))
    assert len(files) == 2 and len({file.name for file in files}) == 1  # two parts of one run
    for record in (record for file in files for record in records(file.read_bytes())):
        items = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
        numbers |= {(name, items["_step"]): value for name, value in items.items() if not name.startswith("_")}
    return numbers


def train_offline(settings: TrainSettings) -> None:
    os.environ["WANDB_MODE"] = "offline"
    train(settings)


@pytest.mark.slow  # two trainings in processes of their own
def test_wandb_gets_every_record_of_a_training_that_was_interrupted(tiny_data, tmp_path):
    settings = tiny_runs.settings(tiny_data, tmp_path / "run", logger="wandb", steps=8)
    for minutes in (1e-4, 0.0):  # the first training ends after a step or two
        changed = settings.model_copy(update={"minutes": minutes})
        assert tiny_runs.finish(train_offline, changed) == 0
    expected = recorded(settings.run)
    assert max(step for _, step in expected) == 8 and ("validation/gap", 0) in expected
    assert of_wandb(settings.run) == pytest.approx(expected)


@pytest.mark.parametrize("command", ["train", "run", "check"])
def test_a_logger_that_is_not_installed_is_refused_before_any_work(command: str, tmp_path: Path, monkeypatch, capfd):
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.chdir(tmp_path)
    assert main([command, "--logger", "wandb", "--preset", "smoke", "--device", "cpu"]) == 2
    assert "--logger wandb needs wandb: pip install wandb\n" in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_logger_that_fails_does_not_end_the_training(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    book = Logbook(TrainSettings(run=tmp_path), {"train": 0, "validation": -1})
    away = Mock(side_effect=ConnectionError("the server is away"))
    book.loggers.insert(0, Logger("wandb", away, away))
    book.record("train", 1, {"gap": 0.5})
    book.close({"status": "stopped"})
    assert recorded(tmp_path) == {("train/gap", 1): 0.5}
    assert tiny_runs.status(tmp_path) == {"status": "stopped"}
    assert caplog.text.count("wandb does not log this: the server is away") == 2


def test_a_line_tells_the_scores_of_an_evaluation_once_and_of_which_step(tmp_path: Path, caplog):
    book = Logbook(TrainSettings(run=tmp_path), {"train": 0, "validation": -1})
    scores = {"gap": 0.5, "dsatur_gap": 4.0, "gain": 0.25, "gain_error": 0.06}
    progress = Progress()
    with caplog.at_level("INFO"):
        for step in (5, 10, 15, 20):
            progress.judge(scores, step) if step in (5, 20) else None
            book.say(step, 40, progress, 60)
    assert ["saves 0.25" in line for line in caplog.messages] == [True, False, False, True]
    assert "step 5/40 | at step 5 gap +0.50 (untrained +0.75, DSATUR +4.00) |" in caplog.messages[0]


def test_a_logger_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WANDB_MODE", "nonsense")
    with pytest.raises(UserError, match="--logger wandb cannot start: .*nonsense"):
        Logbook(TrainSettings(run=tmp_path, logger="wandb"), {"train": 0, "validation": -1})
