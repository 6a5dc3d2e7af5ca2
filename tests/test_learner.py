"""One rank, one step: what it minimizes, what it skips, what it scores, and what a checkpoint of it holds."""

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tiny_runs
import torch

from gnn_training import runtime
from gnn_training.data.packed import PackedGraphs
from gnn_training.errors import UserError
from gnn_training.model.graphs import batch_of
from gnn_training.model.objective import WEIGHTS
from gnn_training.model.program import Program
from gnn_training.proof import prove
from gnn_training.runtime import Runtime
from gnn_training.training import checkpoint, learner
from gnn_training.training.batches import cost
from gnn_training.training.learner import MAX_BAD_STEPS, Learner
from gnn_training.training.progress import Progress


@pytest.fixture(scope="module")
def rt() -> Iterator[Runtime]:
    with runtime.join("cpu") as rt:
        yield rt


@pytest.fixture
def data(tiny_data: Path) -> PackedGraphs:
    return PackedGraphs.open(tiny_data)


def start(data: PackedGraphs, rt: Runtime, **changes) -> Learner:
    return Learner(tiny_runs.settings(data.folder, Path("nowhere"), **changes), data, rt)


def weights(trained: Learner) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(trained.network.parameters()).detach()


def test_a_plain_offsetis_a_group_of_one(rt: Runtime):
    assert (rt.rank, rt.world_size, rt.is_main, rt.device_name) == (0, 1, True, "cpu")
    assert rt.total(torch.tensor([1.5, 2.0])).tolist() == [1.5, 2.0]
    assert rt.any(True, False) == [True, False]
    assert rt.broadcast({"any": "object"}) == {"any": "object"}


def test_a_missing_gpu_is_said(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="device is cuda but torch finds no GPU"), runtime.join("cuda"):
        pass
    assert runtime._device("auto", 0).type == "cpu"


def test_more_ranks_than_gpus_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UserError, match="rank 2 has no GPU: there are 2, lower --processes"):
        runtime._device("auto", 2)


def test_a_step_reports_the_mean_terms_of_its_graphs(data: PackedGraphs, rt: Runtime):
    one = start(data, rt)
    (mine,) = one.plan.at(0)
    terms = one.update()
    assert terms["graphs"] == len(mine) and one.step == 1
    assert terms["learning_rate"] == pytest.approx(one.settings.learning_rate / 2)  # the first of two warm-up steps
    assert terms["gradient_norm"] > 0
    assert all(np.isfinite(terms[name]) for name in WEIGHTS)
    again = start(data, rt)
    assert again.update() == terms and torch.equal(weights(again), weights(one))


def test_every_step_draws_colors_and_noise_anew_for_every_graph(data: PackedGraphs, rt: Runtime):
    one, ids = start(data, rt), np.arange(24)
    first = one._collate(ids)
    assert torch.equal(one._collate(ids[4:6]).seeds, first.seeds[4:6])  # whatever company a graph is in
    one.step = 5
    later = one._collate(ids)
    assert not torch.equal(first.seeds, later.seeds) and not torch.equal(first.k, later.k)


def test_a_step_allows_from_one_color_too_few_to_halfway_up_to_dsatur(data: PackedGraphs, rt: Runtime):
    one = start(data, rt)
    data.num_colors, data.dsatur_colors = np.full(24, 10), np.full(24, 20)
    data.num_colors[:2], data.dsatur_colors[:2] = 1, 1
    seen = []
    for one.step in range(60):
        seen.append(one._collate(np.arange(24)).k)
    seen = torch.stack(seen)
    assert set(seen[:, :2].unique().tolist()) == {1, 2, 3}
    assert set(seen[:, 2:].unique().tolist()) == set(range(9, 16))


def test_a_batch_carries_the_labels_of_its_graphs(data: PackedGraphs, rt: Runtime):
    ids = np.array([3, 17, 8])
    batch = start(data, rt)._collate(ids)
    for row, i in enumerate(ids):
        label, graph = data.label(i), data.graph(i)
        assert batch.graphs.num_nodes[row] == graph.num_nodes
        assert batch.graphs.degrees[row].sum() == 2 * graph.num_edges
        assert (batch.num_colors[row], batch.lower[row]) == (label.num_colors, label.lower_bound)
        assert (batch.upper[row], batch.graph_type[row]) == (label.dsatur_colors, data.graph_type[i])
        assert batch.difficulty[row].item() == pytest.approx(label.difficulty)


def test_accumulated_micro_batches_take_the_step_of_one_large_batch(data: PackedGraphs, rt: Runtime):
    whole, halves = start(data, rt), start(data, rt, batch_cells=500, accumulate=2)
    first = weights(whole)
    for _ in range(3):
        a, b = whole.update(), halves.update()
        assert a["graphs"] == b["graphs"]
        for name in WEIGHTS:
            assert a[name] == pytest.approx(b[name], rel=1e-4, abs=1e-6)
    # By the norm: where a gradient is near 0, Adam makes a step of its last bits.
    assert (weights(halves) - weights(whole)).norm() < 1e-3 * (weights(whole) - first).norm()


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_every_precision_takes_finite_steps_close_to_those_in_fp32(data: PackedGraphs, rt: Runtime, precision: str):
    exact, other = start(data, rt), start(data, rt, precision=precision)
    assert other.scaler.is_enabled() == (precision == "fp16")
    for _ in range(2):
        a, b = exact.update(), other.update()
        assert b["conflicts"] == pytest.approx(a["conflicts"], rel=0.05)
    assert other.skipped == 0
    torch.testing.assert_close(weights(other), weights(exact), rtol=0, atol=3 * exact.settings.learning_rate)


def test_precision_follows_the_device(monkeypatch):
    assert learner._precision("auto", torch.device("cpu")) == torch.float32
    for supported, expected in ((True, torch.bfloat16), (False, torch.float16)):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda supported=supported: supported)
        assert learner._precision("auto", torch.device("cuda")) == expected


def test_the_averaged_weights_follow_the_trained_ones(data: PackedGraphs, rt: Runtime):
    one = start(data, rt, ema=0.5)
    one.update()
    first = weights(one)
    torch.testing.assert_close(torch.nn.utils.parameters_to_vector(one.averaged.module.parameters()), first)
    one.update()
    averaged = torch.nn.utils.parameters_to_vector(one.averaged.module.parameters())
    torch.testing.assert_close(averaged, (first + weights(one)) / 2)
    torch.testing.assert_close(one.best_state()["network"], one.averaged.module.state_dict())


def test_a_step_is_no_longer_than_the_clip_allows(data: PackedGraphs, rt: Runtime):
    one = start(data, rt, clip=1e-3)
    seen = []
    one.optimizer.register_step_pre_hook(
        lambda *_: seen.append(torch.cat([w.grad.ravel() for w in one.network.refiner.parameters()]).norm())
    )
    assert one.update()["gradient_norm"] > 1e-3
    assert seen[0] == pytest.approx(1e-3, rel=1e-3)


def test_a_step_that_is_not_finite_is_skipped_and_counted(data: PackedGraphs, rt: Runtime):
    one = start(data, rt)
    one.update()
    before, averaged, truth = weights(one), one.best_state()["network"], data.difficulty
    data.difficulty = np.full(len(data), np.nan, dtype=np.float32)
    one.update()
    assert (one.step, one.skipped, one.bad_steps) == (2, 1, 1)
    assert torch.equal(weights(one), before)
    torch.testing.assert_close(one.best_state()["network"], averaged, rtol=0, atol=0)
    data.difficulty = truth
    one.update()
    assert (one.skipped, one.bad_steps) == (1, 0) and not torch.equal(weights(one), before)


def test_too_many_bad_steps_in_a_row_end_the_training_with_a_way_out(data: PackedGraphs, rt: Runtime):
    one = start(data, rt, steps=20)
    data.difficulty = np.full(len(data), np.nan, dtype=np.float32)
    with pytest.raises(UserError, match=rf"not finite {MAX_BAD_STEPS} steps in a row .*--learning-rate \(0.002\)"):
        for _ in range(20):
            one.update()
    assert one.skipped == MAX_BAD_STEPS


def test_the_score_is_what_a_caller_gets_who_colors_along_the_classes(data: PackedGraphs, rt: Runtime):
    one = start(data, rt, validation_rounds=20)
    for _ in range(8):
        one.update()
    scores = one.evaluate()
    ids = data.indices("validation")
    ids = ids[np.lexsort((data.num_colors[ids], data.num_nodes[ids]))]
    pairs = [data.graph(i).edges.tolist() for i in ids]
    first = np.cumsum([0, *data.num_nodes[ids]])
    edges = [[a + start, b + start] for start, edges in zip(first, pairs, strict=False) for a, b in edges]
    outputs = Program(one.averaged.module)(
        edge_index=torch.tensor(edges).T,
        batch=torch.repeat_interleave(torch.from_numpy(data.num_nodes[ids].astype(int))),
        num_colors=torch.tensor([0]),
        seed=torch.tensor(0),
        steps=torch.tensor(20),
    )
    classes, excess = outputs["color_logits"].argmax(1).tolist(), []
    for i, offset, edges in zip(ids, first, pairs, strict=False):
        colors: dict[int, int] = {}
        for v in sorted(range(data.num_nodes[i]), key=lambda v, offset=offset: classes[offset + v]):
            around = {colors.get(b if a == v else a) for a, b in edges if v in (a, b)}
            colors[v] = next(c for c in range(data.num_nodes[i]) if c not in around)
        wrong, used = prove(edges, [colors[v] for v in range(data.num_nodes[i])])
        assert wrong == 0
        excess.append(used - data.num_colors[i])
    assert scores["graphs"] == len(excess) == 5
    assert scores["excess"] == pytest.approx(np.mean(excess))
    assert scores["at_best_known"] == pytest.approx(np.mean(np.array(excess) <= 0))
    assert scores["dsatur_excess"] == pytest.approx((data.dsatur_colors[ids] - data.num_colors[ids]).mean())
    assert scores["chromatic_error"] == pytest.approx(
        np.abs(outputs["chromatic"].numpy() - data.num_colors[ids]).mean(), abs=1e-4
    )


def test_how_validation_graphs_are_batched_does_not_change_the_score(data: PackedGraphs, rt: Runtime):
    one, other = start(data, rt), start(data, rt, batch_cells=10)
    for name, value in one.evaluate().items():
        assert other.evaluate()[name] == pytest.approx(value, abs=1e-6)


def test_graphs_too_large_for_the_program_are_trained_on_but_not_scored(data: PackedGraphs, rt: Runtime, monkeypatch):
    monkeypatch.setattr(learner, "MAX_SCORED_NODES", 10)
    one = start(data, rt)
    assert 0 < len(one.validation) < 5 and data.num_nodes[one.validation].max() <= 10
    assert len(one.plan.indices) == 19


def test_fewer_validation_graphs_are_spread_over_all(data: PackedGraphs, rt: Runtime):
    assert start(data, rt, validation_graphs=3).validation.tolist() == data.indices("validation")[[0, 2, 4]].tolist()
    assert start(data, rt, validation_graphs=99).validation.tolist() == data.indices("validation").tolist()


def test_a_single_graph_can_be_trained_on(tmp_path: Path, rt: Runtime):
    one = start(tiny_runs.write_data(tmp_path, graphs=1), rt)
    one.update()
    assert one.evaluate()["graphs"] == 1


def test_the_example_is_a_validation_graph_small_enough_to_draw(data: PackedGraphs, rt: Runtime, monkeypatch):
    one = start(data, rt)
    held = data.indices("validation")
    graph, colors, title = one.example()
    assert graph.num_nodes == max(data.num_nodes[held]) and graph.name in title
    assert prove(graph.edges.tolist(), colors)[0] == 0
    monkeypatch.setattr(learner, "DRAWN_NODES", 3)  # none is as small as that: the smallest
    assert one.example()[0].num_nodes == min(data.num_nodes[held])


@pytest.mark.parametrize("cells", [1, 60, 100_000])
def test_chunks_take_every_validation_graph_once_within_the_cells(data: PackedGraphs, cells: int):
    ids = np.lexsort((data.num_colors, data.num_nodes))
    chunks = list(learner._chunks(ids, data, cells))
    assert np.array_equal(np.concatenate(chunks), ids)
    for chunk in chunks:
        padded = len(chunk) * cost(data.num_nodes[chunk].max(), data.num_colors[chunk].max())
        assert len(chunk) == 1 or padded <= 4 * cells


def test_a_learner_goes_on_from_its_state_bit_for_bit(data: PackedGraphs, rt: Runtime, tmp_path: Path):
    one = start(data, rt)
    for _ in range(3):
        one.update()
    checkpoint.save(tmp_path / "x.pt", one.state())
    other = start(data, rt, seed=0)
    other.load_state(checkpoint.load(tmp_path / "x.pt"))
    for _ in range(3):
        assert one.update() == other.update()
    assert tiny_runs.differences(one.state(), other.state()) == []


def test_a_closed_learner_is_no_owner_of_the_process_group(data: PackedGraphs, rt: Runtime):
    closed = start(data, rt)
    closed.update()
    ddp = weakref.ref(closed.ddp)
    gc.disable()  # which runs when it likes
    try:
        closed.close()
        assert ddp() is None
    finally:
        gc.enable()


def test_a_checkpoint_of_a_ddp_wrapper_goes_on_as_well(data: PackedGraphs, rt: Runtime):
    one, other = start(data, rt), start(data, rt)
    one.update()
    state = one.state()
    state["weights"] = one.ddp.state_dict()
    state["network"] = {f"module.{name}": value for name, value in state["network"].items()}
    assert all(name.startswith("module.") for name in state["weights"])
    other.load_state(state)
    assert one.update() == other.update()


def test_dense_batches_hold_the_graphs_of_the_file(data: PackedGraphs):
    graphs = batch_of([data.graph(i) for i in range(4)])
    for i in range(4):
        n = data.num_nodes[i]
        assert np.array_equal(graphs.adjacency[i, :n, :n].numpy(), data.adjacency(i).astype(np.float32))


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
