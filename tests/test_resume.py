"""Interrupted and continued is the same as never interrupted, bit for bit; checkpoints are whole, and run no code."""

import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from random import Random
from statistics import fmean

import numpy as np
import pytest
import tiny_runs
import torch
from checkout import flip_last_byte
from tiny_runs import assert_same_run, finish, interrupt, last_step, metrics, newest, reached, refusal, status, wait_for

from gnn_training import jobs
from gnn_training.data import packed
from gnn_training.errors import StorageError, UserError
from gnn_training.jobs.train import train
from gnn_training.network.network import ColoringNetwork
from gnn_training.settings import TrainSettings
from gnn_training.training import checkpoint, trainer
from gnn_training.training.learner import GRADIENT_NORMS, LOSS_WEIGHTS, MAX_BAD_STEPS
from gnn_training.training.trainer import require_same

LOSSES = [
    [0.25, 0.93419, 2.2827, 0], [0.125, 0.91268, 2.2980, 2.3168], [0.5, 0.79549, 2.2357, 3.5032],
    [0.25, 1.1919, 2.2691, 0], [0.375, 0.91069, 2.3289, 2.4453],
]  # fmt: skip


@pytest.fixture
def settings(tiny_data: Path, tmp_path: Path) -> TrainSettings:
    """Those of `trained`, in a folder of its own."""
    return tiny_runs.settings(tiny_data, tmp_path / "run")


@pytest.fixture
def finished(trained: Path, settings: TrainSettings) -> TrainSettings:
    """Of a copy of `trained`: one process at a time may train in a folder, and tests run side by side."""
    shutil.copytree(trained, settings.run)
    return settings


def kill(settings: TrainSettings, moments: Iterable[Callable[[], bool]]) -> None:
    """Start and kill -9, at each of these moments."""
    for moment in moments:
        before = saved_step(settings.run)
        assert interrupt(settings, signal.SIGKILL, moment) == -signal.SIGKILL
        # A crash loses what came after the last checkpoint and none of what was saved.
        assert saved_step(settings.run) >= max(before, last_step(settings.run) - settings.checkpoint_every)


def saved_step(run: Path) -> int:
    return (newest(run) or {"step": 0})["step"]


def saving(run: Path, step: int) -> bool:
    """Whether a checkpoint after `step` is being written and not yet in its place."""
    return last_step(run) >= step and any((run / "checkpoints").glob(".*.tmp"))


def test_stops_around_an_evaluation_change_nothing(settings, trained):
    begun = settings.model_copy(update={"checkpoint_every": 3, "minutes": 60.0, "patience": 9})
    assert interrupt(begun, signal.SIGTERM, partial(reached, settings.run, 6)) == 143
    stopped = status(settings.run)
    assert stopped["status"] == "stopped" and newest(settings.run)["step"] == stopped["step"] < 40
    for step in (7, 13, 14):
        interrupt(begun, signal.SIGTERM, partial(reached, settings.run, step))
    assert finish(train, settings) == 0
    assert_same_run(settings.run, trained)


def test_kill_9_and_files_that_a_crash_of_the_machine_left_half_written_change_nothing(settings, trained: Path):
    """Killed after an evaluation, and while a checkpoint is written."""
    run = settings.run
    kill(settings, [partial(saving, run, 1), lambda: len(metrics(run, "validation")) > 1, partial(saving, run, 20)])
    *_, before, damaged = sorted((run / "checkpoints").glob("step-*.pt"))
    damaged.write_bytes(damaged.read_bytes()[:1000])
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"kind": "train", "step": 3, "ga')
    assert newest(run)["step"] == checkpoint.load(before)["step"]
    assert finish(train, settings) == 0
    assert_same_run(run, trained)


@pytest.mark.nightly  # the long way of the test before
def test_kill_9_at_random_moments_changes_nothing(tiny_data: Path, tmp_path: Path):
    reference = tiny_runs.settings(tiny_data, tmp_path / "reference", steps=200)
    assert finish(train, reference) == 0
    settings, rng = reference.model_copy(update={"run": (run := tmp_path / "run"), "checkpoint_every": 2}), Random(1)
    kills = (partial(reached, run, last_step(run) + rng.randint(1, 12), rng.uniform(0, 0.04)) for _ in range(20))
    kill(settings, kills)
    assert finish(train, settings) == 0
    assert_same_run(settings.run, reference.run)


def test_a_training_whose_checkpoints_are_gone_does_not_begin_again(finished: TrainSettings):
    shutil.rmtree(finished.run / "checkpoints")
    before = (finished.run / "best.pt").read_bytes()
    assert "run has a training without its checkpoints, which would begin again: name" in refusal(finished)
    assert (finished.run / "best.pt").read_bytes() == before


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl"])
def test_files_of_others_in_the_run_folder_are_not_replaced(settings: TrainSettings, name: str):
    settings.run.mkdir()
    (settings.run / name).write_text('{"lr": 0.1}\n')
    assert "run/config.json: " in (said := refusal(settings)) and "name another --run folder" in said
    assert (settings.run / name).read_text() == '{"lr": 0.1}\n'


def test_a_finished_training_started_again_changes_nothing_and_mends_its_best_weights(finished, trained: Path):
    flip_last_byte(finished.run / "best.pt")
    assert finish(train, finished) == 0
    for name in ("best.pt", "metrics.jsonl"):
        assert (finished.run / name).read_bytes() == (trained / name).read_bytes()
    assert_same_run(finished.run, trained)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # TensorBoard's thread
def test_a_volume_that_disappears_ends_a_training_with_a_sentence(settings: TrainSettings, tmp_path: Path, monkeypatch):
    save, elsewhere = checkpoint.save_step, tmp_path / "elsewhere"

    def lose_volume(folder: Path, step: int, *state: object) -> None:
        if step == 3:
            settings.run.rename(elsewhere)
        save(folder, step, *state)

    monkeypatch.setattr(checkpoint, "save_step", lose_volume)
    with pytest.raises(StorageError, match="run/checkpoints.*cannot be written"):
        train(settings)
    assert newest(elsewhere)["step"] == 2


def test_tensorboard_shows_every_record_and_compares_settings_and_final_scores(trained: Path):
    from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer
    from tensorboard.plugins.hparams.metadata import SESSION_START_INFO_TAG, parse_session_start_info_plugin_data

    multiplexer = EventMultiplexer().AddRunsFromDirectory(str(trained / "tensorboard")).Reload()
    assert list(multiplexer.Runs()) == ["."]  # a run of TensorBoard for the settings alone would be another one
    events = multiplexer.GetAccumulator(".")
    shown = {f"train/{name}" for name in (*LOSS_WEIGHTS, *GRADIENT_NORMS, "learning_rate", "graphs_per_second")}
    assert shown | {"validation/gap", "validation/dsatur_gap"} < set(events.Tags()["scalars"])
    assert [event.step for event in events.Scalars("validation/gap")] == [0, 7, 14, 21, 28, 35, 40]
    data = events.SummaryMetadata(SESSION_START_INFO_TAG).plugin_data.content
    compared = parse_session_start_info_plugin_data(data).hparams
    assert compared["steps"].number_value == 40 and compared["precision"].string_value == "fp32"
    for name, key in (("gap", "best_gap"), ("gap_at_step_0", "first_gap"), ("dsatur_gap", "dsatur_gap")):
        assert events.Scalars(f"final/{name}")[-1].value == pytest.approx(status(trained)[key])


def test_a_seed_gives_the_losses_that_it_gave_before(trained: Path):
    """To three digits, on any CPU. After a change of what is trained, they are written again."""
    names = ("gap", "saved", "graph_type", "rule_gradient_norm")
    found = [[record[name] for name in names] for record in metrics(trained, "train")[:5]]
    assert np.array(found) == pytest.approx(np.array(LOSSES), rel=1e-3)


@pytest.mark.parametrize("change", [{"rounds": 6}, {"seed": 3}, {"steps": 41}])
def test_other_settings_on_the_same_folder_are_refused(finished: TrainSettings, change: dict[str, int]):
    ((name, value),) = change.items()
    said = refusal(finished.model_copy(update=change))
    assert f"{finished.run} was trained with {name} {getattr(finished, name)}, not {value}" in said
    assert "another --run folder" in said


def test_other_graphs_on_the_same_folder_and_damaged_ones_are_refused(finished: TrainSettings, tmp_path: Path):
    other = finished.model_copy(update={"data": tmp_path / "other"})
    tiny_runs.write_data(other.data, graphs=3)
    assert f"was trained on other graphs than {other.data}" in refusal(other)
    flip_last_byte(other.data / packed.GRAPHS_FILE)
    assert "differs from its manifest" in refusal(other)


def test_a_time_budget_ends_with_a_score_and_a_larger_one_goes_on(tiny_data: Path, tmp_path: Path):
    short = tiny_runs.settings(tiny_data, tmp_path / "run", steps=10_000, evaluate_every=10_000, minutes=1e-4)
    for _ in range(2):  # the second start finds nothing to do
        assert finish(train, short) == 0
        first = status(short.run)
        assert first["status"] == "done" and first["seconds"] >= 60e-4 and first["evaluated_at"] == first["step"]
        assert len(metrics(short.run, "validation")) == 2  # untrained, and at the end
        assert checkpoint.load(short.run)["step"] in (0, first["step"]) and first["step"] < 10
    longer = short.model_copy(update={"minutes": (first["seconds"] + 0.3) / 60})
    assert finish(train, longer) == 0
    assert status(short.run)["step"] > first["step"]
    steps = [line["step"] for line in metrics(short.run, "train")]
    assert steps == list(range(1, status(short.run)["step"] + 1))


def test_a_training_goes_back_to_a_checkpoint_and_loses_nothing(tiny_data: Path, tmp_path: Path, trained: Path):
    settings = tiny_runs.settings(tiny_data, tmp_path / "run", keep=0)
    assert finish(train, settings) == 0
    assert len(list((settings.run / "checkpoints").iterdir())) == 40
    marks = {name: (settings.run / name).read_bytes() for name in ("best.pt", "metrics.jsonl", "status.json")}
    back = settings.model_copy(update={"resume_from": Path("step-00000017.pt")})
    assert interrupt(back, signal.SIGTERM, lambda: any(settings.run.glob("until-*"))) == 143
    assert 17 <= newest(settings.run)["step"] < 40
    [aside] = settings.run.glob("until-step-00000040-*")
    assert {name: (aside / name).read_bytes() for name in marks} == marks
    steps = sorted(path.name for path in aside.glob("step-*.pt"))
    assert steps == [f"step-{step:08d}.pt" for step in range(18, 41)]
    # The same command goes on from where it is then, as after a kill.
    for _ in range(2):
        assert finish(train, back) == 0
        assert_same_run(settings.run, trained)
    assert len(list(settings.run.glob("until-*"))) == 1


def test_records_are_means_of_all_steps_since_the_last_also_after_an_interruption(tiny_data, tmp_path: Path, trained):
    settings = tiny_runs.settings(tiny_data, tmp_path / "run", log_every=10)
    assert interrupt(settings, signal.SIGTERM, lambda: (newest(settings.run) or {"step": 0})["step"] > 11) == 143
    assert finish(train, settings) == 0
    single, found = metrics(trained, "train"), metrics(settings.run, "train")
    assert [record["step"] for record in found] == [10, 20, 30, 40]
    for i, record in enumerate(found):
        for name in (*LOSS_WEIGHTS, *GRADIENT_NORMS):
            assert record[name] == pytest.approx(fmean(one[name] for one in single[10 * i : 10 * i + 10]), rel=1e-6)


def test_a_training_resumes_from_a_checkpoint_of_another_folder(finished: TrainSettings, trained: Path, tmp_path: Path):
    path = finished.run / "checkpoints/step-00000039.pt"
    other = finished.model_copy(update={"run": tmp_path / "other", "resume_from": path})
    assert finish(train, other) == 0
    assert tiny_runs.differences(newest(other.run)["network"], newest(trained)["network"]) == []
    assert [record["step"] for record in metrics(other.run, "train")] == [40]


@pytest.mark.parametrize(
    ("name", "changes", "sentence"),
    [
        ("step-00000003.pt", {}, r"step-00000003\.pt: cannot be read \(no such file"),
        ("step-00000039.pt", {"seed": 5}, "was trained with seed 0, not 5"),
        ("../other/checkpoints/step-00000039.pt", {}, "has a training of its own: name another --run folder to resume"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_and_nothing_moves(finished: TrainSettings, name, changes, sentence):
    files = sorted(finished.run.rglob("*"))
    assert re.search(sentence, refusal(finished.model_copy(update={"resume_from": Path(name), **changes})))
    assert sorted(finished.run.rglob("*")) == files


def train_in_one_long_step(settings: TrainSettings, begun: Path) -> None:
    jobs.train.SAME_SIGNAL_SECONDS = 0.5
    trainer.searcher_for = lambda *_: lambda *_: begun.touch() or time.sleep(60)
    train(settings)


def test_a_second_training_of_a_folder_is_refused_and_a_second_signal_ends_the_first_at_once(settings, tmp_path: Path):
    """But not one that comes with the first, as `timeout` sends two."""
    process = tiny_runs.fork(train_in_one_long_step, settings, begun := tmp_path / "begun")
    wait_for(begun.exists, process)
    assert "another process is writing it" in refusal(settings)
    for number in (signal.SIGTERM, signal.SIGHUP):  # two of the same would be one
        os.kill(process.pid, number)
    time.sleep(0.7)
    assert process.is_alive()
    for _ in range(50):  # a signal that reaches another thread does not wake the main one, which sleeps here
        if process.is_alive():
            os.kill(process.pid, signal.SIGTERM)
            process.join(0.2)
    assert process.exitcode == 143


def test_a_training_begins_with_the_weights_of_another(settings: TrainSettings, trained: Path):
    changes = {"weights": trained, "steps": 3, "learning_rate": 1e-9}
    assert finish(train, settings.model_copy(update=changes)) == 0
    before, after = (checkpoint.load(run)["network"] for run in (trained, settings.run))
    assert all(torch.allclose(before[name], after[name], atol=1e-6) for name in before)


def test_a_loss_that_stays_non_finite_ends_with_a_sentence_and_is_told_in_the_status(tiny_data: Path, tmp_path: Path):
    data = tiny_runs.poisoned(tiny_data)
    (tmp_path / "bad").mkdir()
    packed.write(tmp_path / "bad", data.tensors, data.families, {})
    said = refusal(tiny_runs.settings(tmp_path / "bad", tmp_path / "run"))
    assert f"not finite {MAX_BAD_STEPS} steps in a row" in said
    assert status(tmp_path / "run") == {"status": "failed", "reason": said, "self_check": []}


def state(value: float = 1.0) -> dict:
    torch.manual_seed(0)
    network = ColoringNetwork().state_dict() | {"rule": torch.full_like(ColoringNetwork().rule, value)}
    progress = dict.fromkeys(("optimizer", "scaler", "totals", "progress", "self_play", "initial_crossover"), {})
    counts = dict.fromkeys(("num_averaged", "bad_steps", "skipped_steps", "steps_per_epoch"), 1)
    texts = {"data_sha256": "0", "resumed_from": ""}
    networks = {"network": network, "weights": network, "best": {"network": network}}
    return {**networks, "step": 7, "settings": {}, **texts, **progress, **counts}


@pytest.mark.parametrize(("keep", "kept"), [(2, [30, 40]), (1, [40]), (3, [20, 30, 40]), (0, [8, 20, 30, 40])])
def test_as_many_of_the_newest_are_kept_as_asked(tmp_path: Path, keep: int, kept: list[int]):
    (tmp_path / "step-9-keep.pt").touch()  # by a user
    for step in (8, 20, 30, 40):
        checkpoint.save_step(tmp_path, step, {**state(), "step": step}, keep)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [*(f"step-{step:08d}.pt" for step in kept), "step-9-keep.pt"]
    assert checkpoint.load_newest(tmp_path)["step"] == 40


@pytest.mark.parametrize("key", [*checkpoint.RESUMED])
def test_a_checkpoint_without_a_key_is_named(tmp_path: Path, key: str):
    checkpoint.save(tmp_path / "step-00000007.pt", {name: value for name, value in state().items() if name != key})
    with pytest.raises(UserError, match=rf"step-00000007\.pt: has no {key}, so it is of another version of this"):
        checkpoint.load_newest(tmp_path)


def test_a_disk_that_takes_no_more_is_told_in_a_sentence_and_the_old_file_stays(tmp_path: Path):
    path = tmp_path / "best.pt"
    checkpoint.save(path, state())
    with tiny_runs.full_disk(), pytest.raises(StorageError, match=r"best\.pt: cannot be written \(file too large\)"):
        checkpoint.save(path, state(2.0))
    assert checkpoint.load(path)["network"]["rule"].max() == 1
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_file_and_a_strange_one_are_named(tmp_path: Path):
    with pytest.raises(UserError, match="best.pt: cannot be read .no such file or directory.; train first"):
        checkpoint.load(tmp_path / "best.pt")
    checkpoint.save(tmp_path / "list.pt", [1, 2])
    changed = state()
    checkpoint.save(tmp_path / "shape.pt", changed | {"network": changed["network"] | {"rule": torch.ones(2, 3)}})
    checkpoint.save(tmp_path / "nan.pt", state(float("nan")))
    for name in ("list.pt", "shape.pt", "nan.pt"):
        with pytest.raises(UserError, match=f"{name}: is damaged .*; delete it or name another file"):
            checkpoint.load(tmp_path / name)


def test_a_checkpoint_of_another_version_is_refused(settings: TrainSettings):
    with pytest.raises(UserError, match="was started by another version of this program: finish it there or name anot"):
        require_same(settings, "0", state())


def test_code_in_a_checkpoint_is_not_run(tmp_path: Path):
    class Trap:
        def __reduce__(self):
            return Path.touch, (tmp_path / "sprung",)

    checkpoint.save(tmp_path / "best.pt", {"network": Trap()})
    with pytest.raises(UserError, match="damaged"):
        checkpoint.load(tmp_path / "best.pt")
    assert not (tmp_path / "sprung").exists()
