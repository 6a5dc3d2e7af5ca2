"""Recorded steps: the numbers of plain ones, from memory that every replay overwrites; no recording that is wrong."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import tiny_runs
import torch
from torch import Tensor

from gnn_training import runtime
from gnn_training.data.packed import PackedGraphs
from gnn_training.runtime import Runtime
from gnn_training.training.learner import Learner
from gnn_training.training.recording import WARM_UPS

STEPS = 16  # four epochs, so that every form is met several times
on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU")


def start(folder: Path, rt: Runtime, **changes) -> Learner:
    settings = tiny_runs.settings(folder, Path("nowhere"), **changes)
    return Learner(settings.model_copy(update={"device": rt.device.type}), PackedGraphs.open(folder), rt)


def tensors(results: object) -> list[Tensor]:
    """All tensors of a state: of a tuple, of a batch, of the graphs in it."""
    if isinstance(results, Tensor):
        return [results]
    if isinstance(results, tuple):
        return [x for part in results for x in tensors(part)]
    return [x for part in vars(results).values() for x in tensors(part)] if hasattr(results, "__dict__") else []


class StandIn:
    """Behaves as a GPU's recording does: inputs and results stay where they were, and recording computes nothing."""

    def __init__(self, function: Callable, inputs: Sequence[Tensor]):
        self.function, self.inputs = function, [x.clone() for x in inputs]
        for _ in range(WARM_UPS):
            self.results = function(*self.inputs)
        for x in tensors(self.results):
            x.zero_()
        for mine, given in zip(self.inputs, inputs, strict=True):
            mine.copy_(given)  # results may be views of them

    def __call__(self, *inputs: Tensor) -> object:
        for mine, given in zip(self.inputs, inputs, strict=True):
            mine.copy_(given)
        for mine, fresh in zip(tensors(self.results), tensors(self.function(*self.inputs)), strict=True):
            mine.copy_(fresh)
        return self.results


class Stale(StandIn):
    """Replays what it was recorded with."""

    def __call__(self, *inputs: Tensor) -> object:
        return super().__call__(*self.inputs)


class Twice(StandIn):
    """Adds everything twice."""

    def __call__(self, *inputs: Tensor) -> object:
        super().__call__(*inputs)
        return super().__call__(*inputs)


def impossible(function: Callable, inputs: Sequence[Tensor]) -> StandIn:
    StandIn(function, inputs)
    raise RuntimeError("operation not permitted when stream is capturing\nand more lines")


def trained(one: Learner, steps: int = STEPS) -> list[dict[str, float]]:
    return [{name: float(value) for name, value in one.update().items()} for _ in range(steps)]


@pytest.mark.parametrize("changes", [{}, {"accumulate": 2}])
def test_recorded_steps_are_plain_steps_bit_for_bit(tiny_data: Path, rt: Runtime, changes: dict):
    plain, one = start(tiny_data, rt, **changes), start(tiny_data, rt, **changes)
    one.record(StandIn)
    assert trained(one) == trained(plain)
    assert tiny_runs.differences(one.state(), plain.state()) == []
    forms = list(one.recorder.recorded)
    assert {form.is_free for form in forms} == {True, False} and len({form.shape for form in forms}) > 1


def test_a_form_is_recorded_when_it_is_met_again(tiny_data: Path, rt: Runtime):
    one = start(tiny_data, rt)
    one.record(StandIn)
    seen, take = [], one.recorder
    one.recorder = lambda *step: (seen.append((step[0], step[1], step[4] > 0)), take(*step))
    for _ in range(STEPS):
        one.update()
        assert set(take.recorded) == {form for form in seen if seen.count(form) > 1}
    assert take.recorded


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (Stale, "a recorded step was wrong by"),
        (Twice, "a recorded step was wrong by 1.0e+00"),
        (impossible, "operation not permitted"),
    ],
)
def test_what_cannot_be_recorded_or_is_wrong_is_launched_plainly_and_said_once(
    tiny_data: Path, rt: Runtime, caplog, record: Callable, reason: str
):
    plain, one = start(tiny_data, rt), start(tiny_data, rt)
    one.record(record)
    assert trained(one) == trained(plain)
    assert tiny_runs.differences(one.state(), plain.state()) == []
    said = [x.getMessage() for x in caplog.records if x.levelno == logging.WARNING]
    assert len(said) == 1 and said[0].startswith(f"GPU steps are launched one by one, which is slower: {reason}")
    assert not one.recorder.works and not one.recorder.recorded and "\n" not in said[0]


def test_a_step_that_is_not_finite_is_no_reason_to_give_up_recording(tiny_data: Path, rt: Runtime, caplog):
    one = start(tiny_data, rt)
    one.record(StandIn)
    truth = one.resident.difficulty.clone()
    one.resident.difficulty.fill_(torch.nan)
    trained(one, 8)
    assert one.skipped == 8 and one.recorder.works and not one.recorder.recorded
    one.resident.difficulty.copy_(truth)
    trained(one, 8)
    assert one.skipped == 8 and one.recorder.recorded and not caplog.records


def test_a_rank_without_a_graph_records_nothing(tiny_data: Path, rt: Runtime):
    one = start(tiny_data, rt)
    one.record(StandIn)
    for _ in range(3):
        one._backward(one.plan.at(0), np.array([], dtype=np.int64), num_graphs=3)
    assert not one.recorder.met and not one.shared.any()


@pytest.mark.gpu
@on_a_gpu
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-3), ("bf16", 5e-2)])
@pytest.mark.parametrize("compiled", [False, True])
def test_on_a_gpu_recorded_training_is_plain_training(
    tiny_data: Path, caplog, precision: str, tolerance: float, compiled: bool
):
    with runtime.join("cuda") as rt:
        plain, one = (start(tiny_data, rt, precision=precision) for _ in range(2))
        if compiled:
            assert [each.compile()[1] for each in (plain, one)] == [None, None]
        plain.recorder = None
        one.record()
        losses = [[terms["conflicts"] for terms in trained(each)] for each in (plain, one)]
    assert losses[1] == pytest.approx(losses[0], rel=tolerance)
    assert one.recorder.works and len(one.recorder.recorded) > 2 and not caplog.records
