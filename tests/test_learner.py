"""One rank, one step: what it minimizes, what it skips, what it tells, and what a checkpoint of it holds."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny_runs
import torch
from torch.nn.utils import clip_grad_norm_, parameters_to_vector

from gnn_training import distributed
from gnn_training.data.packed import PackedGraphs
from gnn_training.distributed import Runtime
from gnn_training.errors import UserError
from gnn_training.model.loss import WEIGHTS, Batch, ColoringNetwork
from gnn_training.training import checkpoint, learner
from gnn_training.training.learner import FLAGS, LATENESS, MAX_BAD_STEPS, Learner
from gnn_training.training.logbook import Progress
from gnn_training.training.sampler import BatchPlan, Planned, Shape


def start(data: PackedGraphs, rt: Runtime, **changes) -> Learner:
    return Learner(tiny_runs.settings(data.folder, Path("nowhere"), **changes), data, rt)


def poison(one: Learner, value: float = float("nan")) -> None:
    """Labels that make every loss this value."""
    one.dataset.difficulty = torch.full_like(one.dataset.difficulty, value)


def update(one: Learner) -> dict[str, float]:
    """A step and its terms, as numbers."""
    return {name: float(value) for name, value in one.update().items()}


def weights(trained: Learner) -> torch.Tensor:
    return parameters_to_vector(trained.network.parameters()).detach()


def everything(one: Learner) -> dict:
    """What a step changes, in copies."""
    return {
        **one.state(),
        "optimizer": {name: value.clone() for name, value in one.optimizer.state[one.weights].items()},
    }


def collate(one: Learner, ids: np.ndarray) -> Batch:
    return one._collate(ids, Shape(len(ids), 24, 20))


class Merged(BatchPlan):
    """The steps of another plan, all parts of each as one."""

    def __init__(self, plan: BatchPlan):
        self.plan = plan

    def at(self, step: int) -> Planned:
        planned = self.plan.at(step)
        graphs = planned.shape.graphs * len(planned.parts)
        return replace(planned, shape=replace(planned.shape, graphs=graphs), parts=[np.concatenate(planned.parts)])


def test_a_plain_offsetis_a_group_of_one(rt: Runtime):
    assert (rt.rank, rt.world_size, rt.is_main, rt.device_name) == (0, 1, True, "cpu")
    assert rt.total(torch.tensor([1.5, 2.0])).tolist() == [1.5, 2.0]
    assert rt.any(True, False) == [True, False]
    assert rt.broadcast({"any": "object"}) == {"any": "object"}


def test_a_missing_gpu_is_said(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="device is cuda but torch finds no GPU"), distributed.join("cuda"):
        pass
    assert distributed._device("auto", 0).type == "cpu"


def test_more_ranks_than_gpus_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UserError, match="rank 2 has no GPU: there are 2, lower --processes"):
        distributed._device("auto", 2)


def test_a_step_reports_the_mean_terms_of_its_graphs(data: PackedGraphs, rt: Runtime):
    one = start(data, rt)
    (mine,) = one.plan.at(0).parts
    terms = update(one)
    assert terms["graphs"] == len(mine) and one.step == 1
    assert terms["learning_rate"] == pytest.approx(one.settings.learning_rate / 2)  # the first of two warm-up steps
    assert terms["gradient_norm"] > 0
    assert all(np.isfinite(terms[name]) for name in WEIGHTS)
    again = start(data, rt)
    assert update(again) == terms and torch.equal(weights(again), weights(one))


def test_the_terms_of_a_step_stay_what_they_were_when_more_are_taken(data: PackedGraphs, rt: Runtime):
    one = start(data, rt)
    terms = one.update()
    then = {name: float(value) for name, value in terms.items()}
    update(one)
    assert {name: float(value) for name, value in terms.items()} == then


@pytest.mark.parametrize("changes", [{}, {"clip": 1e-2}, {"weight_decay": 0.3, "damping": 0.5, "ema": 0.6}])
def test_steps_are_those_of_adamw_on_the_plain_network(data: PackedGraphs, rt: Runtime, changes: dict):
    one = start(data, rt, **changes)
    plain = ColoringNetwork(one.settings.width, one.settings.damping)
    plain.load_state_dict(one.network.state_dict())
    optimizer = torch.optim.AdamW(plain.parameters(), weight_decay=one.settings.weight_decay)
    calls, averaged, first = [], None, weights(one)
    one.network.register_forward_hook(lambda _, inputs, __: calls.append(inputs))
    for weight in plain.parameters():
        weight.grad = torch.zeros_like(weight)  # a weight that takes no part is no reason to leave it out of the step
    for _ in range(5):
        planned, seen = one.plan.at(one.step), update(one)
        terms = plain(*calls.pop())
        loss = sum(weight * terms[name] for name, weight in WEIGHTS.items()) / len(planned.parts[0])
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        norm = clip_grad_norm_(plain.refiner.parameters(), one.settings.clip)
        clip_grad_norm_(plain.reader.parameters(), one.settings.clip)
        optimizer.param_groups[0]["lr"] = seen["learning_rate"]
        optimizer.step()
        mine = parameters_to_vector(plain.parameters()).detach()
        averaged = mine if averaged is None else one.settings.ema * averaged + (1 - one.settings.ema) * mine
        assert seen["gradient_norm"] == pytest.approx(norm.item(), rel=1e-3)
        for name in WEIGHTS:
            assert seen[name] == pytest.approx(terms[name].item() / len(planned.parts[0]), rel=1e-3, abs=1e-6)
    # By the norm: where a gradient is near 0, Adam makes a step of its last bits.
    assert (weights(one) - mine).norm() < 1e-3 * (mine - first).norm()
    assert (one.averaged - averaged).norm() < 1e-3 * (averaged - first).norm()


def test_every_step_draws_colors_and_noise_anew_for_every_graph(data: PackedGraphs, rt: Runtime):
    one, ids = start(data, rt), np.arange(24)
    first = collate(one, ids)
    assert torch.equal(collate(one, ids[4:6]).seeds, first.seeds[4:6])  # whatever company a graph is in
    one.step = 5
    later = collate(one, ids)
    assert not torch.equal(first.seeds, later.seeds) and not torch.equal(first.k, later.k)


def test_a_step_allows_from_one_color_too_few_to_halfway_up_to_dsatur(data: PackedGraphs, rt: Runtime):
    data.num_colors, data.dsatur_colors = np.full(24, 10), np.full(24, 20)
    data.num_colors[:2], data.dsatur_colors[:2] = 1, 1
    one, seen = start(data, rt), []
    for one.step in range(60):
        seen.append(collate(one, np.arange(24)).k)
    seen = torch.stack(seen)
    assert set(seen[:, :2].unique().tolist()) == {1, 2, 3}
    assert set(seen[:, 2:].unique().tolist()) == set(range(9, 16))


def test_no_step_asks_for_more_colors_than_its_shape_holds(data: PackedGraphs, rt: Runtime):
    one = start(data, rt)
    for one.step in range(60):
        planned = one.plan.at(one.step)
        assert one._collate(planned.parts[0], planned.shape).k.max() <= planned.shape.colors


def test_accumulated_micro_batches_take_the_step_of_one_large_batch(data: PackedGraphs, rt: Runtime):
    whole, halves = start(data, rt), start(data, rt, batch_size=500, accumulate=2)
    whole.plan = Merged(halves.plan)
    first = weights(whole)
    for _ in range(3):
        a, b = update(whole), update(halves)
        assert a["graphs"] == b["graphs"]
        for name in WEIGHTS:
            assert a[name] == pytest.approx(b[name], rel=1e-4, abs=1e-6)
    # By the norm: where a gradient is near 0, Adam makes a step of its last bits.
    assert (weights(halves) - weights(whole)).norm() < 1e-3 * (weights(whole) - first).norm()


def test_recomputed_activations_take_the_same_steps(data: PackedGraphs, rt: Runtime):
    one, other = start(data, rt), start(data, rt)
    first, other.network.recompute = weights(one), True
    for _ in range(3):
        assert update(other) == pytest.approx(update(one), rel=1e-4, abs=1e-6)
    assert (weights(other) - weights(one)).norm() < 1e-3 * (weights(one) - first).norm()


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_every_precision_takes_finite_steps_close_to_those_in_fp32(data: PackedGraphs, rt: Runtime, precision: str):
    exact, other = start(data, rt), start(data, rt, precision=precision)
    assert other.scaler.is_enabled() == (precision == "fp16")
    for _ in range(2):
        a, b = update(exact), update(other)
        assert b["conflicts"] == pytest.approx(a["conflicts"], rel=0.05)
    assert other.skipped == 0
    torch.testing.assert_close(weights(other), weights(exact), rtol=0, atol=3 * exact.settings.learning_rate)


def test_precision_follows_the_device(monkeypatch):
    for supported, expected in ((True, torch.bfloat16), (False, torch.float32)):
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda supported=supported: supported)
        assert learner._precision("auto", torch.device("cpu")) == expected
    for supported, expected in ((True, torch.bfloat16), (False, torch.float16)):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda supported=supported: supported)
        assert learner._precision("auto", torch.device("cuda")) == expected


def test_the_averaged_weights_follow_the_trained_ones(data: PackedGraphs, rt: Runtime):
    one = start(data, rt, ema=0.5)
    one.update()
    first = weights(one)
    assert torch.equal(one.averaged, first)
    one.update()
    torch.testing.assert_close(one.averaged, (first + weights(one)) / 2)
    state = one.best_state()["network"]
    assert list(state) == list(one.network.state_dict())
    assert torch.equal(parameters_to_vector(state.values()), one.averaged)


def test_averaging_puts_the_averaged_weights_in_and_the_trained_ones_back(data: PackedGraphs, rt: Runtime):
    one = start(data, rt, ema=0.5)
    update(one), update(one)
    trained, averaged = weights(one), one.averaged.clone()
    assert not torch.equal(trained, averaged)
    with one.averaging() as network:
        assert network is one.network and torch.equal(weights(one), averaged)
    assert torch.equal(weights(one), trained) and torch.equal(one.averaged, averaged)


def test_a_step_is_no_longer_than_the_clip_allows(data: PackedGraphs, rt: Runtime):
    one = start(data, rt, clip=1e-3)
    seen = []
    one.optimizer.register_step_pre_hook(
        lambda *_: seen.extend(
            torch.cat([weight.grad.ravel() for weight in part.parameters()]).norm()
            for part in (one.network.refiner, one.network.reader)
        )
    )
    assert update(one)["gradient_norm"] > 1e-3
    assert seen == pytest.approx([1e-3, 1e-3], rel=1e-3)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_step_that_is_not_finite_changes_nothing_and_is_counted(data, rt, precision: str, value: float):
    one = start(data, rt, precision=precision)
    one.update()
    before, truth = everything(one), one.dataset.difficulty
    poison(one, value)
    one.update()
    assert (one.step, one.skipped, one.bad_steps) == (2, 1, 1)
    changed = {name.split("/")[1] for name in tiny_runs.differences(before, everything(one))}
    assert changed == {"step", "skipped", "bad_steps"} | ({"scaler"} if precision == "fp16" else set())
    one.dataset.difficulty = truth
    one.update()
    assert (one.skipped, one.bad_steps) == (1, 0)
    assert not torch.equal(weights(one), parameters_to_vector(before["weights"].values()))
    assert everything(one)["optimizer"]["step"] == 2


def test_a_gradient_that_is_not_finite_beside_finite_terms_is_skipped_too(data: PackedGraphs, rt: Runtime):
    one = start(data, rt)
    one.network.refiner.update.weight.register_hook(lambda slope: slope * float("inf"))
    before = weights(one)
    terms = update(one)
    assert all(np.isfinite(terms[name]) for name in WEIGHTS)
    assert one.skipped == 1 and torch.equal(weights(one), before) and torch.equal(one.averaged, before)


class Event:
    """Of a device that is always done."""

    def record(self) -> None:
        self.recorded = True

    def synchronize(self) -> None:
        assert self.recorded


@pytest.fixture
def late(monkeypatch) -> int:
    """Lets the host hear of a step as late as it does on a GPU."""
    monkeypatch.setattr(torch.cuda, "Event", Event)
    return LATENESS


@pytest.mark.parametrize("lateness", [0, LATENESS])
def test_too_many_bad_steps_in_a_row_end_the_training_with_a_way_out(data, rt, late: int, lateness: int):
    one = start(data, rt, steps=20)
    one.lateness = lateness
    poison(one)
    with pytest.raises(UserError, match=rf"not finite {MAX_BAD_STEPS} steps in a row .*--learning-rate \(0.002\)"):
        for _ in range(20):
            one.update()
            one.heard()
    assert one.skipped == MAX_BAD_STEPS + lateness


def test_bad_steps_between_good_ones_end_nothing(data: PackedGraphs, rt: Runtime):
    one = start(data, rt, steps=40)
    truth = one.dataset.difficulty
    for i in range(MAX_BAD_STEPS + 5):
        one.dataset.difficulty = truth if i % 5 == 0 else torch.full_like(truth, torch.nan)
        one.update()
        one.heard()
    assert one.skipped == 12


@pytest.mark.parametrize("lateness", [0, LATENESS])
def test_a_flag_is_heard_once_and_as_late_as_the_device_tells(data, rt, late: int, lateness: int):
    one, heard = start(data, rt), []
    one.lateness = lateness
    for i in range(6):
        one.update(i == 1, i == 3)
        heard.append(one.heard())
    assert len(FLAGS) == 2
    assert heard.index((True, False)) == 1 + lateness and heard.count((True, False)) == 1
    assert (False, True) not in heard[: 3 + lateness]
    assert heard.count((False, True)) == (3 + lateness < 6)
    assert torch.equal(weights(one), weights(after_updates(start(data, rt), 6)))  # flags are no part of the gradient


def after_updates(one: Learner, steps: int) -> Learner:
    for _ in range(steps):
        one.update()
    return one


def test_the_host_looks_at_no_tensor_during_a_step(data: PackedGraphs, rt: Runtime, late: int, monkeypatch):
    one = start(data, rt)
    update(one)  # the optimizer begins its state

    def looked(*_: object) -> None:
        raise AssertionError("a look at a tensor waits for the device")

    one.lateness = late
    for name in ("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "cpu", "numpy"):
        monkeypatch.setattr(torch.Tensor, name, looked)
    one.update()
    one.update()
    monkeypatch.undo()
    assert one.step == 3 and one.heard() == (False, False)


def test_a_single_graph_can_be_trained_on(tmp_path: Path, rt: Runtime):
    one = start(tiny_runs.write_data(tmp_path, graphs=1), rt)
    before = weights(one)
    assert update(one)["graphs"] == 1 and not torch.equal(weights(one), before)


def test_a_learner_goes_on_from_its_state_bit_for_bit(data: PackedGraphs, rt: Runtime, tmp_path: Path):
    one = start(data, rt)
    for _ in range(3):
        one.update()
    checkpoint.save(tmp_path / "x.pt", one.state())
    other = start(data, rt)
    update(other)  # what is there before does not matter
    other.load_state(checkpoint.load(tmp_path / "x.pt"))
    assert tiny_runs.differences(one.state(), other.state()) == []
    for _ in range(3):
        assert update(one) == update(other)
    assert tiny_runs.differences(one.state(), other.state()) == []


def test_a_state_is_a_copy_that_later_steps_leave_alone(data: PackedGraphs, rt: Runtime):
    one = start(data, rt)
    state = one.state()
    before = {kind: {name: value.clone() for name, value in state[kind].items()} for kind in ("weights", "network")}
    one.update()
    assert tiny_runs.differences(before, {kind: state[kind] for kind in before}) == []


def test_a_checkpoint_of_a_ddp_wrapper_goes_on_as_well(data: PackedGraphs, rt: Runtime):
    one, other = start(data, rt), start(data, rt)
    one.update()
    state = one.state()
    for kind in ("weights", "network"):
        state[kind] = {f"module.{name}": value for name, value in state[kind].items()}
    other.load_state(state)
    assert update(one) == update(other)


def test_progress_judges_counts_and_loses_patience():
    progress = Progress()
    assert progress.graphs_per_second == 0.0
    progress.count(graphs=30, seconds=1.5)
    progress.count(graphs=30, seconds=0.5)
    assert progress.graphs_per_second == 30 and progress.minutes_left(step=2, steps=62) == 1.0
    # Of equal scores the later weights are kept, but they are no reason for patience.
    assert progress.judge(2.0, step=10) and progress.judge(2.0, step=20) and not progress.judge(3.0, step=30)
    assert (progress.best, progress.best_step, progress.worse, progress.evaluated_at) == (2.0, 20, 2, 30)
    assert not progress.out_of_patience(0) and not progress.out_of_patience(3) and progress.out_of_patience(2)
    assert progress.judge(0.5, step=40) and progress.worse == 0
