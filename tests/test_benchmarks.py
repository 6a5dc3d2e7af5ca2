"""The benchmark counts what torch counts, samples what it says, and writes its page."""

import subprocess
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import tiny_runs
import torch
from torch.utils.flop_counter import FlopCounterMode
from torch_geometric.data import Batch

from benchmarks import roofline, training_speed
from gnn_training.data.packed import PackedGraphs
from gnn_training.distributed import Runtime
from gnn_training.model.loss import ColoringNetwork
from gnn_training.model.network import RefinementNetwork, first_colors
from gnn_training.training.loader import DeviceDataset, GraphLoader
from gnn_training.training.sampler import Shape

ROOT = Path(__file__).parents[1]


def test_roofline_counts_the_operations_that_torch_counts(data: PackedGraphs):
    shape, network, k = Shape(3, 24, 5), RefinementNetwork(width=16), np.full(3, 5)
    batch = DeviceDataset(data, torch.device("cpu")).batch(np.arange(3), k, k, shape)
    state = network.begin(batch.graphs, first_colors(batch.k, shape.colors), batch.seeds)
    h = state.h.detach().requires_grad_()
    state = state._replace(h=h, p=network.soft_colors(h, batch.graphs, state.color_mask).detach().requires_grad_())
    with FlopCounterMode(display=False) as forward:
        state, _ = network(state, batch.graphs)
    with FlopCounterMode(display=False) as backward:
        (state.h.sum() + state.p.sum()).backward()
    assert sum(phase.flops for phase in roofline.forward(shape, 16, 4)) == forward.get_total_flops()
    assert sum(phase.flops for phase in roofline.backward(shape, 16, 4)) == backward.get_total_flops()


def test_union_of_one_graph_has_the_loss_of_the_dense_form(data: PackedGraphs, rt: Runtime):
    loader = GraphLoader(tiny_runs.settings(data.folder, Path("runs")), data, rt)
    graphs, labels, _ = training_speed.pyg_forms(loader, size=1)[0].prepare(0)
    union = replace(labels, graphs=training_speed.Union(Batch.from_data_list(graphs)))
    network = ColoringNetwork()
    torch.testing.assert_close(network(union, 2, 5), network(labels, 2, 5))


def test_a_phase_is_bound_by_operations_or_by_bytes():
    ceilings = roofline.Ceilings(flops_per_second=100.0, bytes_per_second=10.0)
    assert roofline.Phase(flops=500.0, bytes=10.0).seconds(ceilings) == 5.0
    assert roofline.Phase(flops=500.0, bytes=90.0).seconds(ceilings) == 9.0


def test_steps_are_sampled_in_proportion_to_their_work():
    work = np.array([1.0, 6.0, 3.0])
    taken = np.bincount(list(islice(training_speed.sampled(work), 100)))
    assert np.abs(taken - 10 * work).max() <= 2


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_benchmark_replaces_the_last_section_of_its_page(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text(f"# Speed\n\n{training_speed.HEADING}\nold numbers\n")
    flags = ["--recipe", "smoke", "--graphs", "40", "--seconds", "0.3", "--no-compile", "--device", "cpu"]
    subprocess.run([sys.executable, "-m", "benchmarks.training_speed", *flags, "--page", page], cwd=ROOT, check=True)
    head, _, section = page.read_text().partition(training_speed.HEADING)
    assert head == "# Speed\n\n" and "old numbers" not in section
    assert all(text in section for text in ("### Recipe `smoke`", "this training", "GATv2, PyG", "float32"))
