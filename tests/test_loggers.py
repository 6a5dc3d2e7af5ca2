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
from gnn_training.training.logbook import Logbook, Logger

NOTHING = {"train": 0, "validation": -1}  # recorded before
STEP = {"gap": 1.24, "saved": 0.6, "graph_type": 0.3, "rounds": 0.2, "crossover": 0.58, "epoch": 2.5,
        "graphs_per_second": 91.2, "search_share": 0.9, "gradient_share": 0.06, "waiting_share": 0.04,
        "seconds_left": 66.0}  # fmt: skip
Numbers = dict[tuple[str, int], float]  # by name and step


def recorded(run: Path) -> Numbers:
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
    book = Logbook(TrainSettings(run=tmp_path), NOTHING, 40, 4)
    away = Mock(side_effect=ConnectionError("the server is away"))
    book.loggers.insert(0, Logger("wandb", away, away))
    book.record("train", 1, STEP)
    book.close({"status": "stopped"})
    assert recorded(tmp_path) == {(f"train/{name}", 1): value for name, value in STEP.items()}
    assert tiny_runs.status(tmp_path) == {"status": "stopped"}
    assert caplog.text.count("wandb does not log this: the server is away") == 2


def test_a_line_tells_where_the_training_stands_and_another_one_what_an_evaluation_has_found(tmp_path: Path, caplog):
    book = Logbook(TrainSettings(run=tmp_path), NOTHING, 40, 4)
    scores = {"gap": 0.5, "dsatur_gap": 4.0, "gain": 0.25, "gain_error": 0.06}
    with caplog.at_level("INFO"):
        book.record("train", 5, STEP)
        book.record("train", 10, STEP | {"gpu0_busy": 0.93, "gpu1_busy": 0.71, "gpu1_watts": 700.0, "waiting_share": 0})
        for is_best in (1, 0):
            book.record("validation", 10, scores | {"is_best": is_best})
        crossover = {"crossover_explained": 0.0211, "crossover_gain": 0.0024, "crossover_gain_error": 0.001}
        book.record("validation", 10, scores | crossover | {"is_best": 0})
    losses = "epoch 2.5 | gap 1.24, saved 0.60, graph_type 0.30, rounds 0.20, crossover 0.58"
    losses += " | 91 graphs/s | 90% search, 6% gradient"
    found = "step 10/40 | evaluation: gap +0.50 (untrained +0.75, DSATUR +4.00) | training saves 0.25 ± 0.06 colors"
    assert caplog.messages == [
        f"step 5/40 | {losses}, 4% waiting | 1:06 left", f"step 10/40 | {losses} | GPUs 71% to 93% busy | 1:06 left",
        f"{found} | new best", found, f"{found} | R² of crossover 0.0211 (+0.0024 ± 0.0010 by training)",
    ]  # fmt: skip


def test_a_logger_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WANDB_MODE", "nonsense")
    with pytest.raises(UserError, match="--logger wandb cannot start: .*nonsense"):
        Logbook(TrainSettings(run=tmp_path, logger="wandb"), NOTHING, 40, 4)
