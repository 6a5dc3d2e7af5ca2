"""Several ranks, real ones: they take the steps of one rank on the whole batch; all stop, skip and resume together, and
before the first step on GPUs, all stop if one of them searches wrongly.
"""

import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import tiny_runs
import torch
from tiny_runs import finish, in_group, metrics, newest, status, wait_for
from torch import Tensor

from gnn_training.data.packed import PackedGraphs
from gnn_training.distributed import Runtime
from gnn_training.errors import MachineError, UserError
from gnn_training.jobs.train import train
from gnn_training.network.crossover_weights import zero_weights
from gnn_training.search import kernels
from gnn_training.search.batches import Searcher, search_on_cpu
from gnn_training.settings import TrainSettings
from gnn_training.training import checkpoint
from gnn_training.training.games import Pair, Player
from gnn_training.training.learner import LOSS_WEIGHTS, MAX_BAD_STEPS, Learner
from gnn_training.training.loader import GraphBatch, GraphLoader
from gnn_training.training.self_check import self_check
from gnn_training.training.self_play import SelfPlay
from gnn_training.training.trainer import Trainer
from gnn_training.training.validation import Validation

NO_GPU = {
    "get_device_name": "a GPU", "reset_peak_memory_stats": None, "max_memory_reserved": 2**30,
    "mem_get_info": (0, 2**31),
}  # fmt: skip
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "gnn_training"]


def start(settings: TrainSettings, launcher: list[str] | None = None) -> subprocess.Popen:
    """`train` on two ranks, as run_multigpu.sh starts it or under a torchrun of the user's."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return tiny_runs.start_command("train", settings.model_copy(update={"ranks": 2}), launcher or (), **pipes)


def output_of(process: subprocess.Popen, code: int = 0) -> str:
    """What it prints until its end, which has this exit code."""
    output = process.communicate(timeout=200)[0]
    assert process.returncode == code, output
    return output


def learn(
    rt: Runtime, settings: TrainSettings, steps: int, pairs: Sequence[Pair] = (), poisoned: int = -1,
    resume: Path | None = None, save: Path | None = None,
) -> dict:  # fmt: skip
    """What one rank sees of so many steps, with these pairs of self-play; the rank `poisoned` has labels that make its
    loss NaN.
    """
    data = (tiny_runs.poisoned if rt.rank == poisoned else PackedGraphs.open)(settings.data)
    loader, reports, error = GraphLoader(settings, data, rt), [], ""
    learner = Learner(settings, search_on_cpu, rt, settings.steps)
    if resume:
        learner.load_state(checkpoint.load(resume))
    games = SelfPlay(settings, loader.dataset, loader.sampler.indices, rt)
    games.buffer.add(0, pairs)
    before = weights(learner).copy()
    try:
        for graphs, states in islice(loader.starting_at(learner.step), steps):
            learner.update(graphs, states, games.batch(learner.step))
            reports.append(learner.means())
    except UserError as mistake:
        error = str(mistake)
    if save:
        checkpoint.save(save, learner.state() | {"data_sha256": "0"})
    scores = Validation(settings, loader.dataset, learner.search, rt).scores(learner.average)
    counts = {"step": learner.step, "skipped": int(learner.skipped_steps), "bad_steps": int(learner.bad_steps)}
    numbers = {"before": before, "weights": weights(learner), "scores": scores}
    return {"reports": reports, "error": error, **counts, **numbers}


def weights(learner: Learner) -> np.ndarray:
    return torch.nn.utils.parameters_to_vector(learner.network.parameters()).detach().numpy()


def assert_same_reports(a: dict, b: dict) -> None:
    tiny_runs.assert_same_steps(*(torch.from_numpy(each) for each in (a["weights"], b["weights"], b["before"])))
    assert a["reports"] and a["step"] == b["step"]
    for mine, other in zip(a["reports"], b["reports"][-len(a["reports"]) :], strict=True):
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
    with pytest.raises(UserError) as refused:
        Trainer(settings, data, rt).run([])
    return str(refused.value)


def test_machines_with_different_graphs_are_refused_on_every_rank(tiny_data: Path, tmp_path: Path):
    said = in_group(2, begin, tiny_runs.settings(tiny_data, tmp_path / "run"))
    assert said[0] == said[1] and "hold different graphs" in said[0]


def shared(data: Path, ranks: int, **changes) -> TrainSettings:
    """Batches of so many ranks that together are those of one."""
    sizes = {"batch_size": 4 // ranks, "batch_states": 4 // ranks, "batch_pairs": 8 // ranks}
    return tiny_runs.settings(data, Path("nowhere"), **(sizes | changes))


@pytest.fixture(scope="module")
def pairs(tiny_data: Path) -> list[Pair]:
    """Of a game on a graph that is trained on."""
    lists = PackedGraphs.open(tiny_data).graph(8).csr()
    return Player(8, lists, kernels.dsatur(*lists), 1, zero_weights(), 0).play()


@pytest.fixture(scope="module")
def alone(tiny_data: Path, rt: Runtime, pairs: list[Pair]) -> dict:
    """What one rank sees of four steps."""
    return learn(rt, shared(tiny_data, 1), 4, pairs)


def test_two_ranks_take_the_steps_of_one_on_the_whole_batch_and_their_rate_grows_as_asked(tiny_data, alone, pairs):
    group = in_group(2, learn, shared(tiny_data, 2, lr_scaling="linear", learning_rate=1e-3), 4, pairs)
    assert_agree(group)
    assert_same_reports(group[0], alone)
    assert all(report["crossover"] > 0 for report in alone["reports"])
    assert group[0]["scores"]["graphs"] == alone["scores"]["graphs"] == 5  # five over two ranks: none twice


def test_a_rank_without_graphs_takes_part_and_changes_nothing(tmp_path: Path, rt: Runtime):
    tiny_runs.write_data(tmp_path, graphs=3)  # one to train on that is not easy, one for validation
    one = learn(rt, shared(tmp_path, 1, batch_states=12), 3)
    group = in_group(3, learn, shared(tmp_path, 1), 3)
    assert_agree(group)
    assert_same_reports(group[0], one)
    assert group[0]["scores"] == pytest.approx(one["scores"]) and one["scores"]["graphs"] == 1


def test_a_checkpoint_of_one_rank_continues_on_two(tiny_data: Path, tmp_path: Path, rt: Runtime, alone: dict, pairs):
    learn(rt, shared(tiny_data, 1), 2, pairs, save=tmp_path / "one.pt")
    group = in_group(2, learn, shared(tiny_data, 2), 2, pairs, -1, tmp_path / "one.pt")
    assert_agree(group)
    assert_same_reports(group[0], alone)
    assert group[0]["step"] == 4


def test_a_step_that_is_bad_on_one_rank_is_skipped_on_all_and_too_many_stop_all(tiny_data: Path):
    group = in_group(2, learn, shared(tiny_data, 2, steps=50), 50, (), 1)
    assert_agree(group)
    assert group[0]["skipped"] == MAX_BAD_STEPS and "lower --learning-rate" in group[0]["error"]
    assert np.array_equal(group[0]["weights"], group[0]["before"])


@pytest.mark.slow  # two ranks load torch
def test_two_ranks_of_torchrun_train_as_one_process_would(tiny_data: Path, trained: Path, tmp_path: Path):
    run = tmp_path / "run"
    output = output_of(start(tiny_runs.settings(tiny_data, run, batch_size=2, batch_states=2), TORCHRUN))
    assert output.count("starting: 40 steps") == 1 and "2 x cpu" in output  # rank 0 alone logs
    assert status(run)["status"] == "done" and status(run)["ranks"] == 2 and status(run)["step"] == 40
    for mine, other in zip(metrics(run, "train")[:4], metrics(trained, "train")[:4], strict=True):
        for name in ("step", "epoch", "learning_rate", *LOSS_WEIGHTS):
            assert mine[name] == pytest.approx(other[name], rel=1e-3, abs=1e-6)
    for kind in ("train", "validation"):
        counts = [[(line["step"], line.get("graphs")) for line in metrics(each, kind)] for each in (run, trained)]
        assert counts[0] == counts[1]


def run_training(rt: Runtime, settings: TrainSettings, signals: Sequence[float] = ()) -> str:
    return Trainer(settings, PackedGraphs.open(settings.data), rt).run(signals)


def test_early_stop_stops_every_rank_and_lost_patience_stays_lost(tiny_data: Path, tmp_path: Path):
    still = {"learning_rate": 1e-12, "weight_decay": 0, "evaluate_every": 1, "patience": 2, "steps": 100_000}
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    for _ in range(2):
        assert in_group(2, run_training, tiny_runs.settings(tiny_data, tmp_path / "run", **still)) == ["done"] * 2
        assert status(tmp_path / "run")["step"] == status(tmp_path / "run")["evaluations_without_gain"] == 2


class Signals(list):
    """Signals that come after some looks."""

    def __init__(self, looks: int):
        self.looks = looks

    def __bool__(self) -> bool:
        self.looks -= 1
        return self.looks < 0


def test_two_ranks_go_on_with_half_as_many_steps_of_twice_the_searches(tiny_data: Path, tmp_path: Path):
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    settings = tiny_runs.settings(tiny_data, tmp_path / "run", steps=0, searches=2 * 11 * 8, evaluate_every=6)
    assert in_group(1, run_training, settings, Signals(12)) == ["stopped"]
    before, epochs = status(settings.run), 12 / 3
    assert before["step"] == 12 and before["evaluated_at"] == 6  # what is due at a stop comes after the resume
    assert in_group(2, run_training, settings) == ["done"] * 2
    after = status(settings.run)
    assert after["step"] == 16 and after["graphs"] == 11 * 8 and after["best_step"] <= 16
    assert checkpoint.load(settings.run)["step"] == max(after["best_step"], after["crossover_step"])
    steps, passed = zip(*((line["step"], line["epoch"]) for line in metrics(settings.run, "train")), strict=True)
    assert list(steps) == sorted(steps) and steps[-8:] == (*range(9, 17),) and max(steps[:-8]) == 2 * epochs
    assert all(step == pytest.approx(2 * epoch, abs=0.5) for step, epoch in zip(steps, passed, strict=True))
    evaluated = [line["step"] for line in metrics(settings.run, "validation")]
    assert evaluated == [0, 4, 12, 16]


@pytest.mark.slow  # two ranks load torch
def test_sigterm_leaves_a_state_of_two_ranks_that_one_rank_continues(tiny_data: Path, tmp_path: Path):
    run = tmp_path / "run"
    settings = tiny_runs.settings(tiny_data, run, steps=100_000, evaluate_every=50_000, checkpoint_every=50_000)
    process = start(settings)
    wait_for(lambda: len(metrics(run, "train")) >= 3, process)
    process.send_signal(signal.SIGTERM)
    told = time.monotonic()
    output = output_of(process, 143)
    assert time.monotonic() - told < 20
    before = status(run)
    assert before["status"] == "stopped" and before["ranks"] == 2, output
    assert newest(run)["step"] == before["step"] >= 3

    minutes = (newest(run)["progress"]["seconds"] + 0.3) / 60
    assert finish(train, settings.model_copy(update={"minutes": minutes})) == 0
    after = status(run)
    assert after["status"] == "done" and after["ranks"] == 1 and after["step"] > before["step"]
    assert [line["step"] for line in metrics(run, "train")] == list(range(1, after["step"] + 1))


def one_color_more(weights: Tensor, batch: GraphBatch, rounds: int) -> tuple[Tensor, Tensor]:
    colors, conflicts = search_on_cpu(weights, batch, rounds)
    return colors + (torch.arange(len(batch.ids)) % 4 == 0), conflicts


class OldInputs:
    """A CUDA graph that is replayed with its first inputs."""

    def __init__(self) -> None:
        self.first: tuple[Tensor, GraphBatch] | None = None

    def __call__(self, weights: Tensor, batch: GraphBatch, rounds: int) -> tuple[Tensor, Tensor]:
        if not self.first or len(self.first[1].ids) != len(batch.ids):
            self.first = weights, batch
        return search_on_cpu(*self.first, rounds)


def checked(rt: Runtime, folder: Path, search: Searcher) -> list[dict] | str:
    """What the self-check finds or raises where rank 1 has this search."""
    for name, value in NO_GPU.items():
        setattr(torch.cuda, name, lambda *_, value=value: value)
    settings = tiny_runs.settings(folder, Path("nowhere"))
    loader = GraphLoader(settings, PackedGraphs.open(folder), rt)
    learner = Learner(settings, search if rt.rank == 1 else search_on_cpu, rt, settings.steps)
    try:
        return self_check(learner, loader, replace(rt, device=torch.device("cuda")))
    except MachineError as error:
        return str(error)


@pytest.mark.parametrize("search", [one_color_more, OldInputs()])
def test_all_ranks_stop_where_one_searches_wrongly(tiny_data: Path, search: Searcher):
    said = in_group(2, checked, tiny_data, search)
    assert said[0] == said[1] and "of the searches of rank 1" in said[0] and "or train with --device cpu" in said[0]


def test_where_all_search_rightly_every_rank_knows_it(tiny_data: Path):
    found = in_group(2, checked, tiny_data, search_on_cpu)
    assert [[rank["agreement"] for rank in ranks] for ranks in found] == [[1.0, 1.0]] * 2
    assert found[0][0]["peak_gib"] == 1
