"""Several ranks, real ones: they take the steps of one rank on the whole batch; all stop, skip and resume together."""

import json
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import tiny_runs
import torch

from gnn_training.data.packed import PackedGraphs
from gnn_training.distributed import Runtime, join
from gnn_training.errors import UserError
from gnn_training.jobs.train import Training, train
from gnn_training.settings import TrainSettings
from gnn_training.training import checkpoint
from gnn_training.training.learner import MAX_BAD_STEPS, Learner
from gnn_training.training.loader import GraphLoader
from gnn_training.training.loss import WEIGHTS
from gnn_training.training.searcher import search_on_cpu
from gnn_training.training.validation import Validation

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "gnn_training"]


def start_command(settings: TrainSettings, launcher: list[str] | None = None) -> subprocess.Popen:
    """`train` as run_multigpu.sh starts it, or under a torchrun of the user's."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return tiny_runs.start_command("train", settings, launcher or (), **pipes)


def output_of(settings: TrainSettings, launcher: list[str] | None = None) -> str:
    """Train to the end on two ranks; what they print."""
    process = start_command(settings.model_copy(update={"processes": 2}), launcher)
    output = process.communicate(timeout=200)[0].decode()
    assert process.returncode == 0, output
    return output


def metrics(run: Path, kind: str) -> list[dict]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == kind]


def status(run: Path) -> dict:
    return json.loads((run / "status.json").read_text())


def newest(run: Path) -> dict:
    return checkpoint.newest(run / "checkpoints")


def learn(rt: Runtime, settings: TrainSettings, steps: int, resume: Path | None = None, poisoned: int = -1) -> dict:
    """What one rank sees of so many steps; the rank `poisoned` has labels that make its loss NaN."""
    data = PackedGraphs.open(settings.data)
    if rt.rank == poisoned:
        data.tensors["reached"] = np.full_like(data.reached, -1)  # logarithms of 0 rounds
    loader, learner, reports, error = GraphLoader(settings, data, rt), Learner(settings, search_on_cpu, rt), [], ""
    if resume:
        learner.load_state(checkpoint.load(resume))
    before = weights(learner).copy()
    try:
        for _, batch in zip(range(steps), loader.starting_at(learner.step), strict=False):
            learner.update(batch)
            reports.append(learner.reduce())
    except UserError as mistake:
        error = str(mistake)
    with learner.averaged_weights() as network:
        scores = Validation(settings, loader.dataset, learner.search, rt).scores(network)
    counts = {"step": learner.step, "skipped": int(learner.skipped_steps), "bad_steps": int(learner.bad_steps)}
    return {"reports": reports, "error": error, **counts, "rate": learner.peak_rate, "before": before,
            "weights": weights(learner), "scores": scores}  # fmt: skip


def weights(learner: Learner) -> np.ndarray:
    return torch.nn.utils.parameters_to_vector(learner.network.parameters()).detach().numpy()


def assert_same_steps(a: dict, b: dict) -> None:
    """By the norm: where a gradient is near 0, Adam makes a step of its last bits."""
    assert np.linalg.norm(a["weights"] - b["weights"]) < 1e-3 * np.linalg.norm(a["weights"] - a["before"])
    for mine, other in zip(a["reports"], b["reports"], strict=True):
        assert mine == pytest.approx(other, rel=1e-3, abs=1e-6)


def assert_agree(ranks: list[dict]) -> None:
    """All ranks hold the same weights, bit for bit, and saw the same numbers."""
    for other in ranks[1:]:
        assert np.array_equal(other["weights"], ranks[0]["weights"])
        for name in ("reports", "scores", "step", "skipped", "bad_steps", "error"):
            assert str(other[name]) == str(ranks[0][name])  # NaN is no NaN, but reads the same


def begin(rt: Runtime, settings: TrainSettings) -> str:
    """What one rank raises about its graphs, those of the last rank being others."""
    data = PackedGraphs.open(settings.data)
    if rt.rank == rt.world_size - 1:
        data.manifest["sha256"] = "another"
    try:
        Training(settings, data, rt)
    except UserError as mistake:
        return str(mistake)
    return "began"


def test_machines_with_different_graphs_are_refused_on_every_rank(tiny_data: Path, tmp_path: Path):
    said = tiny_runs.in_group(2, begin, tiny_runs.settings(tiny_data, tmp_path / "run"))
    assert said[0] == said[1] and "hold different graphs" in said[0]


def whole(data: Path) -> TrainSettings:
    """One rank that takes every step in one batch."""
    return tiny_runs.settings(data, Path("nowhere"))


def shared(data: Path, ranks: int, **changes) -> TrainSettings:
    """Batches of so many ranks that together are those of one."""
    return tiny_runs.settings(data, Path("nowhere"), batch_size=4 // ranks, **changes)


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_take_the_steps_of_one_rank_on_the_whole_batch(tiny_data: Path, ranks: int):
    (alone,) = tiny_runs.in_group(1, learn, whole(tiny_data), 4)
    group = tiny_runs.in_group(ranks, learn, shared(tiny_data, ranks), 4)
    assert_agree(group)
    assert_same_steps(group[0], alone)
    assert group[0]["scores"]["graphs"] == alone["scores"]["graphs"] == 5  # five over two ranks: none twice


def test_the_learning_rate_grows_with_the_ranks_as_asked(tiny_data: Path):
    group = tiny_runs.in_group(2, learn, shared(tiny_data, 2, lr_scaling="linear"), 2)
    assert_agree(group)
    assert group[0]["rate"] == pytest.approx(2 * 2e-3)


def test_a_rank_without_graphs_takes_part_and_changes_nothing(tmp_path: Path):
    tiny_runs.write_data(tmp_path, graphs=3)  # one to train on that is not easy, one for validation
    (one,) = tiny_runs.in_group(1, learn, tiny_runs.settings(tmp_path, Path("nowhere")), 3)
    group = tiny_runs.in_group(3, learn, tiny_runs.settings(tmp_path, Path("nowhere")), 3)
    assert_agree(group)
    assert_same_steps(group[0], one)
    assert group[0]["scores"] == pytest.approx(one["scores"]) and one["scores"]["graphs"] == 1


def test_a_checkpoint_of_one_rank_continues_on_two(tiny_data: Path, tmp_path: Path):
    (alone,) = tiny_runs.in_group(1, learn, whole(tiny_data), 4)
    begun = tmp_path / "one.pt"
    assert tiny_runs.finish(_save_after, whole(tiny_data), 2, begun) == 0
    group = tiny_runs.in_group(2, learn, shared(tiny_data, 2), 2, begun)
    assert_agree(group)
    assert group[0]["step"] == 4 and group[0]["reports"][0] == pytest.approx(alone["reports"][2], rel=1e-3, abs=1e-6)
    assert_same_steps({**group[0], "reports": []}, {**alone, "reports": []})


def _save_after(settings: TrainSettings, steps: int, path: Path) -> None:
    with join("cpu") as rt:
        loader, learner = (
            GraphLoader(settings, PackedGraphs.open(settings.data), rt),
            Learner(settings, search_on_cpu, rt),
        )
        for _, batch in zip(range(steps), loader.starting_at(0), strict=False):
            learner.update(batch)
        checkpoint.save(path, learner.state() | {"data_sha256": "0"})


def test_a_step_that_is_bad_on_one_rank_is_skipped_on_all(tiny_data: Path):
    group = tiny_runs.in_group(2, learn, shared(tiny_data, 2), 3, None, 1)
    assert_agree(group)
    for rank in group:
        assert (rank["step"], rank["skipped"], rank["bad_steps"]) == (3, 3, 3)
        assert np.array_equal(rank["weights"], rank["before"])


def test_too_many_bad_steps_stop_every_rank_with_the_same_sentence(tiny_data: Path):
    group = tiny_runs.in_group(2, learn, shared(tiny_data, 2, steps=50), 50, None, 0)
    assert_agree(group)
    assert group[0]["skipped"] == MAX_BAD_STEPS and "lower --learning-rate" in group[0]["error"]


def test_what_one_rank_knows_all_ranks_know():
    assert tiny_runs.in_group(3, _shared_knowledge) == [([True, False], "of rank 0", [0, 1, 2])] * 3


def _shared_knowledge(rt: Runtime) -> tuple[list[bool], object, list]:
    return rt.any(rt.rank == 1, False), rt.broadcast(f"of rank {rt.rank}"), rt.gather(rt.rank)


def test_a_flag_that_one_rank_raises_is_known_to_all_at_the_same_step(tiny_data: Path):
    seen = tiny_runs.in_group(3, _flags_seen, shared(tiny_data, 3))
    assert seen == [[[False, False], [True, False], [False, False], [False, True], [True, True]]] * 3


def _flags_seen(rt: Runtime, settings: TrainSettings) -> list[list[bool]]:
    loader, learner, seen = (
        GraphLoader(settings, PackedGraphs.open(settings.data), rt),
        Learner(settings, search_on_cpu, rt),
        [],
    )
    raised_by = ((), ()), ((1,), ()), ((), ()), ((), (0, 2)), ((2,), (0, 1, 2))
    for (stop, late), batch in zip(raised_by, loader.starting_at(0), strict=False):
        learner.update(batch)
        learner.reduce()
        seen.append(rt.any(rt.rank in stop, rt.rank in late))
    return seen


@pytest.mark.slow  # whole trainings in processes of their own
@pytest.mark.parametrize("launcher", [None, pytest.param(TORCHRUN, marks=pytest.mark.slow, id="torchrun")])
def test_two_ranks_train_as_one_process_would(tiny_data: Path, tmp_path: Path, launcher: list[str] | None):
    run, alone = tmp_path / "run", tmp_path / "alone"
    output = output_of(tiny_runs.settings(tiny_data, run, batch_size=2), launcher)
    assert tiny_runs.finish(train, tiny_runs.settings(tiny_data, alone)) == 0
    assert output.count("starting: 40 steps") == 1 and "2 x cpu" in output  # rank 0 alone logs
    assert status(run)["status"] == "done" and status(run)["ranks"] == 2 and status(run)["step"] == 40
    for mine, other in zip(metrics(run, "train")[:4], metrics(alone, "train")[:4], strict=True):
        for name in ("step", "epoch", "learning_rate", *WEIGHTS):
            assert mine[name] == pytest.approx(other[name], rel=1e-3, abs=1e-6)
    assert [line["step"] for line in metrics(run, "train")] == list(range(1, 41))
    assert [line["step"] for line in metrics(run, "validation")] == [0, 7, 14, 21, 28, 35, 40]
    assert {line["graphs"] for line in metrics(run, "validation")} == {5}


@pytest.mark.slow  # whole trainings in processes of their own
def test_early_stop_stops_every_rank(tiny_data: Path, tmp_path: Path):
    still = {"learning_rate": 1e-12, "weight_decay": 0, "evaluate_every": 1, "patience": 2, "steps": 100_000}
    output_of(tiny_runs.settings(tiny_data, tmp_path / "run", **still))
    assert status(tmp_path / "run")["status"] == "done"
    assert status(tmp_path / "run")["step"] == 2 and status(tmp_path / "run")["evaluations_without_gain"] == 2


@pytest.mark.slow  # whole trainings in processes of their own
def test_sigterm_leaves_a_state_of_two_ranks_that_one_rank_continues(tiny_data: Path, tmp_path: Path):
    run = tmp_path / "run"
    settings = tiny_runs.settings(tiny_data, run, steps=100_000, evaluate_every=50_000, checkpoint_every=50_000)
    process = start_command(settings.model_copy(update={"processes": 2}))
    while not (run / "metrics.jsonl").exists() or len(metrics(run, "train")) < 3:
        assert process.poll() is None, process.communicate()[0].decode()
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    told = time.monotonic()
    output = process.communicate(timeout=60)[0].decode()
    assert time.monotonic() - told < 20 and process.returncode == 143, output
    before = status(run)
    assert before["status"] == "stopped" and before["ranks"] == 2, output
    assert newest(run)["step"] == before["step"] >= 3

    minutes = (newest(run)["progress"]["seconds"] + 0.3) / 60
    assert tiny_runs.finish(train, settings.model_copy(update={"minutes": minutes})) == 0
    after = status(run)
    assert after["status"] == "done" and after["ranks"] == 1 and after["step"] > before["step"]
    assert [line["step"] for line in metrics(run, "train")] == list(range(1, after["step"] + 1))
