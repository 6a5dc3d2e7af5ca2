"""What the benchmark compares, counts and predicts is what it says."""

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import tiny_runs
import torch
from torch.utils.flop_counter import FlopCounterMode
from torch_geometric.data import Batch

from gnn_training.data.packed import PackedGraphs
from gnn_training.errors import UserError
from gnn_training.jobs import benchmark as job
from gnn_training.model.objective import WEIGHTS, ColoringNetwork
from gnn_training.runtime import join
from gnn_training.settings import BenchmarkSettings
from gnn_training.speed import forecast, pace, peers, roofline
from gnn_training.speed.scatter_form import ScatterNetwork
from gnn_training.speed.strata import expected, spread
from gnn_training.training import growth
from gnn_training.training.batches import Shape
from gnn_training.training.cost import Formula, Measurement, formula, must_recompute
from gnn_training.training.estimate import epoch_seconds, plan, sizes
from gnn_training.training.learner import Learner
from gnn_training.training.resident import ResidentGraphs
from gnn_training.training.rounds import SPREAD

CPU = torch.device("cpu")


@pytest.mark.parametrize("free_rounds", [0, 3])
def test_network_in_scatter_form_has_the_loss_and_the_gradient_of_ours(data: PackedGraphs, free_rounds: int):
    torch.manual_seed(0)
    network, ids = ColoringNetwork(), np.arange(len(data))
    k = peers.colors(data, seed=1)
    graphs = peers.as_list(data, ids, k)
    seeds = np.array([graph.seed for graph in graphs])
    shape = Shape(len(ids) + 2, int(data.num_nodes.max()) + 3, int(k.max()) + 1)
    padded = ResidentGraphs(data, CPU).batch(ids, k, seeds, shape)

    def gradient(terms: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        loss = sum(weight * terms[name] for name, weight in WEIGHTS.items())
        return torch.autograd.grad(loss, list(network.parameters()), materialize_grads=True)

    ours = network(padded, free_rounds, 5)
    theirs = ScatterNetwork(network)(Batch.from_data_list(graphs), free_rounds, 5)
    torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gradient(theirs), gradient(ours), rtol=1e-3, atol=1e-4)


def test_operations_of_a_round_are_those_that_torch_counts(data: PackedGraphs):
    shape, settings = Shape(3, 24, 5), tiny_runs.settings(data.folder, Path("runs"))
    network, k = ColoringNetwork(settings.width), np.full(3, 5)
    batch = ResidentGraphs(data, CPU).batch(np.arange(3), k, k, shape)
    state = network.refiner.begin(batch.graphs, batch.k, batch.seeds, shape.colors)
    h, p = (
        x.detach().requires_grad_() for x in (state[0], network.refiner.soft_colors(state[0], batch.graphs, state[1]))
    )
    with FlopCounterMode(display=False) as seen:
        h, p, _ = network.refiner(h, p, batch.graphs, *state[1:])
    once = seen.get_total_flops()
    with FlopCounterMode(display=False) as seen:
        (h.sum() + p.sum()).backward()
    counted = [
        sum(phase.flops for phase in phases(shape, settings.width, 2 * settings.width, 4))
        for phases in (roofline.forward, roofline.backward)
    ]
    assert counted == [once, seen.get_total_flops()]


def test_time_of_work_is_bound_by_operations_or_by_bytes():
    limits = roofline.Ceilings(flops_per_second=100.0, bytes_per_second=10.0)
    assert roofline.Work(flops=500.0, bytes=10.0).seconds(limits) == 5.0
    assert roofline.Work(flops=500.0, bytes=90.0).seconds(limits) == 9.0


def test_every_beginning_of_a_sample_is_spread_evenly_over_the_work():
    works = np.random.default_rng(0).lognormal(0, 2, 1000)
    order, ranks = spread(works, seed=1), works.argsort().argsort()
    assert sorted(order) == list(range(1000))
    for length in (10, 30, 100):
        taken = np.sort(ranks[order[:length]])
        gaps = np.diff([taken[-1] - 1000, *taken])
        assert gaps.max() < 3 * 1000 / length
    assert list(order) != list(spread(works, seed=2))


def test_steps_without_a_time_count_with_the_pace_of_those_as_large():
    works, times = np.array([4.0, 1.0, 2.0, 8.0]), np.array([4.0, 3.0, np.nan, np.nan])
    assert expected(works, times, works) == pytest.approx([4.0, 3.0, 2 * (3 - 2 / 3), 8.0])


def test_rate_of_a_peer_is_that_of_all_graphs_and_leaves_out_what_does_not_fit(monkeypatch):
    epoch = [np.arange(4 * i, 4 * i + 4) for i in range(50)]
    works, fits = np.arange(1.0, 51), np.arange(50) < 40
    taken = []

    def step(batch: np.ndarray) -> float:
        taken.append(int(batch[0]) // 4)
        return 0.5 * works[taken[-1]]

    rate = peers._rate(step, epoch, works, fits, seconds=100.0, seed=0)
    assert rate.graphs_per_second == pytest.approx(200 / (0.5 * works.sum()))
    assert rate.batch_size == 4
    assert max(taken) < 40 and 0.5 * works[taken[1:]].sum() <= 100.0
    assert rate.beyond_share == pytest.approx(works[max(taken) + 1 :].sum() / works.sum())


def test_peers_learn_from_the_graphs_they_are_timed_on(data: PackedGraphs):
    torch.manual_seed(0)
    network = peers.GATv2(width=16, layers=1, heads=2)
    before = [parameter.detach().clone() for parameter in network.parameters()]
    rate = peers.fastest(network, network, peers.attention_load, data, data.indices("train"), 0.1, seed=0)
    assert rate.graphs_per_second > 0 and rate.batch_size in peers.BATCH_SIZES["cpu"]
    assert any(not torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True))


def made_up(shape: Shape, rounds: int, free_rounds: int) -> Measurement:
    cells = shape.graphs * shape.nodes * shape.colors
    seconds = 0.01 + rounds * (1e-3 + 3e-8 * cells + 2e-10 * cells * shape.nodes) + free_rounds * 1e-8 * cells
    return Measurement(shape, rounds, free_rounds, seconds, 1e6 + 560.0 * rounds * cells)


def test_formula_finds_what_time_and_memory_are_made_of():
    shapes = [Shape(g, n, k) for g in (2, 9) for n in (16, 64, 256) for k in (4, 32)]
    fitted = formula([made_up(shape, *rounds) for shape in shapes for rounds in ((13, 0), (19, 16))])
    assert max(fitted.time_error, fitted.memory_error) < 1e-6
    far = made_up(Shape(30, 500, 60), 16, 20)
    assert fitted.seconds(far.shape, 16, 20) == pytest.approx(far.seconds, rel=0.01)
    assert fitted.bytes(far.shape, 16) == pytest.approx(far.bytes)
    assert min(fitted.of_time + fitted.of_memory) >= 0


def test_rounds_are_made_again_where_their_states_would_not_fit():
    shape, gib = Shape(8, 1000, 250), 2**30  # 2 million cells keep 19 GB in bf16, over 17 rounds
    assert must_recompute(shape, 17, 2, 16 * gib)
    assert not must_recompute(shape, 17, 2, 32 * gib)
    assert must_recompute(shape, 17, 4, 32 * gib)


def test_growth_measures_shapes_and_gives_the_plan_back(data: PackedGraphs):
    with join("cpu") as rt:
        learner = Learner(tiny_runs.settings(data.folder, Path("runs")), data, rt)
        own, stepped = learner.plan, []

        def peak_bytes(learner: Learner) -> float:
            stepped.append(learner.plan.at(learner.step).shape)
            growth.advance(learner)
            return 1.0

        first, second, *_ = growth.measure(learner, 0.0, peak_bytes)
        assert learner.plan is own
    assert stepped[0] == first.shape == second.shape
    assert (first.rounds, first.free_rounds, second.rounds) == (4 - SPREAD, 0, 4 + SPREAD)
    assert first.seconds > 0 and second.free_rounds == 4


def test_pace_counts_the_work_of_the_steps_it_took(data: PackedGraphs):
    with join("cpu") as rt:
        learner = Learner(tiny_runs.settings(data.folder, Path("runs")), data, rt)
        whole, few = pace.take(learner, 60.0), pace.take(learner, 0.0)
    assert len(whole.taken) == learner.plan.steps_per_epoch and len(few.taken) == 1
    assert sorted(shape.cost for shape, _, _ in whole.taken) == sorted(
        bucket.shape.cost for bucket in learner.plan.buckets for _ in range(bucket.steps)
    )
    twice = pace.Steps(2 * whole.taken, whole.seconds)
    assert pace.graphs_per_second(learner, twice) == pytest.approx(2 * pace.graphs_per_second(learner, whole))


def test_sizes_of_a_sample_stand_for_the_whole(data: PackedGraphs):
    colors = data.num_colors.astype(int) + 2
    train = data.indices("train")
    nodes, _ = sizes(data, colors, 3000, seed=0)
    assert len(nodes) == 3000 and nodes.mean() == pytest.approx(data.num_nodes[train].mean(), rel=0.1)
    assert len(sizes(data, colors, len(train), seed=0)[0]) == len(train)


def test_more_ranks_share_the_work_evenly_and_save_what_the_links_leave(data: PackedGraphs):
    settings = tiny_runs.settings(data.folder, Path("runs"))
    nodes, colors = sizes(data, data.num_colors.astype(int) + 2, 3000, seed=0)
    alone, together = (plan(nodes, colors, settings, ranks) for ranks in (1, 8))
    found = forecast.balance(together, nodes, colors, 8)
    assert (found.ranks, found.steps, found.imbalance) == (8, together.steps_per_epoch, 1.0)
    assert 0.6 < found.useful_share < 1
    only_cells = Formula((0, 0, 1e-6, 0, 0, 1e-6, 0), (0,) * 5, 0.0, 0.0)
    rows = forecast.epochs(alone, together, 8, settings, only_cells, num_bytes=60_000)
    for row, link in zip(rows, forecast.LINKS, strict=True):
        waiting = together.steps_per_epoch * forecast.all_reduce_seconds(60_000, 8, link)
        assert row.seconds == pytest.approx(epoch_seconds(together, settings, only_cells) + waiting)
        assert row.speedup < 8.5
    assert rows[0].speedup > rows[-1].speedup


def test_all_reduce_takes_a_ring_around_the_ranks():
    link = forecast.Link("slow", bytes_per_second=1e6, hop_seconds=1e-3)
    assert forecast.all_reduce_seconds(8_000_000, 8, link) == pytest.approx(14 * (1e-3 + 1.0), rel=1e-4)


@pytest.mark.slow
def test_job_prints_tables_and_writes_numbers_and_a_plot(data: PackedGraphs, tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setattr(roofline, "MATRICES", {"cpu": (64,)})
    monkeypatch.setattr(roofline, "COPIES", {"cpu": (2**16,)})
    threads = torch.get_num_threads()
    json_file, plot = tmp_path / "speed.json", tmp_path / "speed.png"
    job.benchmark(
        BenchmarkSettings(preset="smoke", data=data.folder, device="cpu", compile=False, seconds=0.1, ranks=1,
                          report=json_file, plot=plot)
    )  # fmt: skip
    torch.set_num_threads(threads)
    report = json.loads(json_file.read_text())
    assert report["speedup_over_gatv2"] == report["graphs_per_second"] / report["peers"]["gatv2"]["graphs_per_second"]
    assert 0 < report["roofline_share"] < 1 and report["threads"] == 1
    assert report["planned_imbalance"]["8"] <= 1.02
    assert report["seconds_to_first_step"] > 0 and report["compilation"] == "off"
    assert sum(report["phase_seconds"].values()) > report["phase_seconds"]["forward"] > 0
    assert report["speedup_by_ranks"] == {} and "speedup_over_gatv2_all_cores" not in report
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert re.search(r"PyG, GATv2 .* times as fast", capsys.readouterr().out)


def test_peers_are_credited_with_all_cores(monkeypatch):
    monkeypatch.setattr(job.machine, "num_cores", lambda: 4)
    ranks = [{"ranks": 2, "speedup": 1.9}, {"ranks": 4, "speedup": 3.0}]
    assert job._on_all_cores({"gatv2": 20.0}, ranks) == {"speedup_over_gatv2_all_cores": 15.0}
    assert job._on_all_cores({"gatv2": 20.0}, ranks[:1]) == {}


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (
            {"report": Path("nowhere/speed.json")},
            "nowhere/speed.json: its folder does not exist; make it or name another",
        ),
        ({"data": Path("nowhere")}, "nowhere"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_sentence(tmp_path: Path, monkeypatch, bad: dict, sentence: str):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=sentence) as refused:
        job.benchmark(BenchmarkSettings(device="cpu", compile=False, **bad))
    assert "\n" not in str(refused.value)
    with pytest.raises(UserError, match=r"seconds \(0\) should be greater than 0"):
        BenchmarkSettings(seconds=0)


def test_warming_up_meets_every_recorded_form_of_an_epoch_twice(data: PackedGraphs):
    met = []
    with join("cpu") as rt:
        learner = Learner(tiny_runs.settings(data.folder, Path("runs")), data, rt)
        learner.recorder = lambda shape, rounds, numbers, share, free_rounds: met.append(
            (shape, rounds, free_rounds > 0)
        )
        growth.warm_up(learner)
        assert learner.step == 0
        warm = Counter(met)
        for _ in range(learner.plan.steps_per_epoch):
            growth.advance(learner)
    assert set(met[warm.total() :]) == set(warm) and min(warm.values()) >= 2
