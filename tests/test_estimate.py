"""The estimate of a training: measured on real ranks, in proportion to what is planned."""

import json
from pathlib import Path

import pytest
import tiny_runs

from gnn_training.data.packed import PackedGraphs
from gnn_training.errors import UserError
from gnn_training.training.estimate import estimate


@pytest.mark.slow  # whole trainings in processes of their own
def test_ranks_measure_memory_and_time_and_both_follow_the_plan(tiny_data: Path):
    data, settings = PackedGraphs.open(tiny_data), tiny_runs.settings(tiny_data, Path("nowhere"))
    found = estimate(settings, data, share=1.0, num_ranks=2)
    assert found.steps_per_epoch == 2  # 11 graphs on two ranks
    assert 2**28 < found.peak_bytes < 2**32  # torch alone takes some hundred MiB
    assert found.training_seconds == pytest.approx(found.epoch_seconds / 2 * 40)
    assert found.epoch_seconds > 0 and found.evaluation_seconds > 0
    tenfold = estimate(settings, data, share=0.1, num_ranks=1)
    assert 20 <= tenfold.steps_per_epoch <= 50  # 110 graphs like these


def test_a_rank_that_fails_ends_it_with_a_sentence(tiny_data: Path):
    settings = tiny_runs.settings(tiny_data, Path("nowhere"))
    (data := PackedGraphs.open(tiny_data)).folder = Path("/nowhere")
    with pytest.raises(UserError, match="/nowhere: "):
        estimate(settings, data, share=1.0, num_ranks=1)


@pytest.mark.slow  # compares with a whole training
def test_the_estimate_is_close_to_what_the_training_then_takes(tiny_data: Path, tmp_path: Path):
    from gnn_training.jobs.train import train

    settings = tiny_runs.settings(tiny_data, tmp_path / "run", steps=200, evaluate_every=200)
    found = estimate(settings, PackedGraphs.open(tiny_data), share=1.0, num_ranks=1)
    assert tiny_runs.finish(train, settings) == 0
    taken = json.loads((tmp_path / "run" / "status.json").read_text())["step_seconds"]
    assert 0.25 < found.training_seconds / taken < 4  # tests share the cores
