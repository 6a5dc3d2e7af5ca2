"""Islands of crossover on GPUs: in numba's simulator, and what is said where there is no GPU."""

import math
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any
from unittest.mock import Mock

import fake_gpus
import numpy as np
import pytest
import torch
from simulated_cuda import Islands, Labels, Playing, properties, simulate
from small_graphs import check_pairs, random_graph

from gnn_training import machine
from gnn_training.contract import SHIPPED_MODEL
from gnn_training.data import packed
from gnn_training.data.label import label
from gnn_training.errors import MachineError, UserError
from gnn_training.graph import UNNAMED_FAMILY, Instance, is_proper
from gnn_training.network.crossover_weights import zero_weights
from gnn_training.onnx_program.session import Model
from gnn_training.search.crossover import Individual, children, crossover, features_of, node_values
from gnn_training.search.engine import UNTRAINED, Budget, Portfolio, Worker
from gnn_training.search.gpu_workers import GROUPS, chosen_gpus
from gnn_training.search.islands import Island
from gnn_training.training.replay_buffer import to_bytes

GRAPH = random_graph(40, 0.5, 1)
FEW = 9  # colors that the islands come down to, from 11
CASES = {
    "two GPUs": Islands(GRAPH, seconds=60, lower=FEW),
    "an error": Islands(GRAPH, seconds=60, lower=FEW, problem="error"),
    "wrong": Islands(GRAPH, (0,), seconds=60, problem="wrong"),
    "a GPU that hangs": Islands(GRAPH, (0,), seconds=3, problem="hangs"),
    "until the deadline": Islands(GRAPH, seconds=2),
    "too large": Islands(GRAPH, (0,), seconds=60, max_shared=1500),
}


PLAYING = Playing([random_graph(24, 0.5, 0), random_graph(30, 0.3, 1)], [(0, 2), (1, 6), (0, 3)])
LARGE = random_graph(500, 0.5, 2)


@pytest.fixture(scope="module")
def labelled() -> list[dict]:
    """Rows of graphs with the labels of a short search."""
    instances = map(Instance, (*PLAYING.graphs, LARGE))
    return [packed.row(each, label(each, 0, 0, 0), [UNNAMED_FAMILY]) for each in instances]


@pytest.fixture(scope="module")
def simulated(labelled: list[dict], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the simulator finds for every case, for the games and for the labels."""
    labels = Labels(labelled, max_shared=14_000)
    return simulate(tmp_path_factory.mktemp("islands"), {**CASES, "playing": PLAYING, "labels": labels})


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_labels_get_fewer_colors_on_gpus_and_graphs_that_are_too_large_are_named(labelled: list[dict], simulated):
    rows, too_large = simulated["labels"]
    assert too_large == [2] and rows[2]["num_colors"] == labelled[2]["num_colors"]
    for before, row, graph in zip(labelled, rows, [*PLAYING.graphs, LARGE], strict=True):
        assert is_proper(graph, row["coloring"]) and row["coloring"].max() + 1 == row["num_colors"]
        assert row.keys() == before.keys() and row["optimal"] == (row["num_colors"] == row["lower_bound"])
    assert sum(int(row["num_colors"]) for row in rows[:2]) < sum(int(row["num_colors"]) for row in labelled[:2])


def test_labels_on_gpus_end_as_soon_as_one_of_them_fails(labelled: list[dict], monkeypatch):
    pytest.importorskip("numba_cuda")
    from gnn_training.data import gpu_labels

    ended = Event()

    @contextmanager
    def on_stream(lists: object, weights: object, device: torch.device) -> Iterator[Mock]:
        if device.index == 0:
            raise RuntimeError("unspecified launch failure")
        yield Mock(capacity=lambda _: 4, search=lambda *_: ended.wait(30))

    monkeypatch.setattr(gpu_labels, "fitting", lambda nodes, *_: np.ones(len(nodes), bool))
    monkeypatch.setattr(gpu_labels.IslandBatch, "on_stream", on_stream)
    finish = Portfolio.finish
    monkeypatch.setattr(Portfolio, "finish", lambda search: (finish(search), ended.set()))
    started = time.monotonic()
    with pytest.raises(MachineError, match="GPU 0: unspecified launch failure; leave out --gpus"):
        gpu_labels.improve_labels(labelled[:2], [1000, 1000], 60.0, UNTRAINED, 0, [0, 1])
    assert time.monotonic() - started < 20


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_games_on_a_gpu_record_what_the_compiled_loops_make_of_the_same_children(simulated: dict[str, Any]):
    for (graph, _), pairs, same in zip(PLAYING.games, *simulated["playing"], strict=True):
        assert len(pairs) > 0 and to_bytes(pairs) == to_bytes(same)
        check_pairs(pairs, PLAYING.graphs[graph], graph)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", CASES)
def test_islands_color_on_gpus_that_work_and_end_without_those_that_do_not(name: str, simulated: dict[str, Any]):
    colorings, launches, warnings, seconds = simulated[name]
    numbers = [coloring.num_colors for coloring in colorings]
    assert all(is_proper(GRAPH, coloring.colors) for coloring in colorings)
    assert numbers == sorted(set(numbers), reverse=True)
    assert {coloring.method for coloring in colorings} <= {f"crossover search on GPU {gpu}" for gpu in (0, 1)}
    expected = {
        "an error": "GPU 0 colors no more, the cores go on: cuda error: an illegal memory access was encountered",
        "wrong": "GPU 0 colors no more, the cores go on: it returns a coloring with [1-9].* conflicts and counts 0",
        "too large": "GPU 0 colors no more, the cores go on: the graph is too large for a thread block",
    }
    assert len(warnings) == (name in expected) and all(re.fullmatch(expected[name], each) for each in warnings)
    if name in ("two GPUs", "an error"):
        assert numbers[-1] == FEW and all(count >= 3 for count in launches)
    late = seconds - CASES[name].seconds
    assert 0 <= late < 5 if name in ("a GPU that hangs", "until the deadline") else late < 0
    if name == "a GPU that hangs":
        assert launches == [GROUPS] and not colorings


@pytest.mark.parametrize(
    ("which", "count", "message"),
    [
        ("all", 0, "there is no GPU here: leave out --gpus"),
        ("0,2", 2, r"gpus \(0,2\) are counted from 0, and there are 2: name lower ones"),
        ("all", 2, "--gpus needs GPUs of NVIDIA: leave it out, and the cores color"),
        ("first", 2, r"gpus \(first\) must be all, none, or numbers of GPUs such as 0,1"),
    ],
)
def test_what_gpus_cannot_be_is_said(which: str, count: int, message: str, tmp_path: Path, monkeypatch):
    pytest.importorskip("numba_cuda")
    fake_gpus.no_gpus(monkeypatch, tmp_path)
    monkeypatch.setattr(torch.version, "hip", "7.2" if "NVIDIA" in message else None)
    if count:
        monkeypatch.setattr(machine, "may_have_gpus", lambda: True)
        monkeypatch.setattr(machine, "num_gpus", lambda: count)
    with pytest.raises(UserError, match=message):
        chosen_gpus(which)
    assert chosen_gpus("none") == ()


def test_an_island_whose_parents_are_alike_meets_another_that_is_far_and_else_begins_again():
    """Far: another color for more than a tenth of the nodes, under the best names of the colors."""
    island, colors = Island(GRAPH.csr()), np.arange(40, dtype=np.int32) % 4
    parents = [Individual(3, colors, colors)] * 2
    island.begin(colors, 4)
    for changed, is_far in ((3, False), (8, True)):
        other = (colors + 1) % 4  # other names
        other[:changed] = (other[:changed] + 1) % 4
        assert not island.choose_starts(parents, 0, other)
        assert island.starts[0].tolist() == colors.tolist()
        assert not np.shares_memory(island.starts[0], colors)  # which may be of the elite; a search changes its starts
        assert (island.starts[1] == (other if is_far else -1)).all()


KINDS = ((60, 0.5, 8), (90, 0.1, 3), (50, 0.9, 17))  # nodes, density and k


@pytest.mark.parametrize("kinds", [KINDS[:1], KINDS])
def test_many_pairs_of_some_graphs_are_crossed_at_once_as_one_pair_is(kinds: tuple, monkeypatch):
    pytest.importorskip("numba_cuda")
    from gnn_training.search import gpu_crossover
    from gnn_training.search.gpu_searches import ChildSearcher

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties())
    monkeypatch.setattr(gpu_crossover, "CROSSED", 50_000)  # some pairs at a time
    graphs, rng, pairs = [random_graph(n, density).csr() for n, density, _ in kinds], np.random.default_rng(0), []
    for place in np.arange(12) % len(kinds):
        n, _, k = kinds[place]
        colors = rng.integers(0, k, (2, n)).astype(np.int32)
        colors[1] = np.where(rng.random(n) < 0.6, (colors[0] + 1) % k, colors[1])
        pairs.append((place, k, colors, rng.integers(0, 5000, colors.shape).astype(np.int32)))
    weights = Model(SHIPPED_MODEL, 1).trained.crossover
    crossing = gpu_crossover.BatchedCrossover(ChildSearcher(graphs, torch.device("cpu")), graphs, weights)
    places, ks, *both = zip(*pairs, strict=True)
    given = [torch.tensor(each) for each in (places, ks)]
    given += [torch.from_numpy(gpu_crossover.pad_rows(each)).long() for each in both]
    by_network, number_same = rng.random((12, 2)) < 0.5, 0
    x, values, found = crossing.features(*given), crossing.values(*given), crossing(*given, torch.tensor(by_network))
    for i, (place, k, colors, ages) in enumerate(pairs):
        n, lists = colors.shape[1], graphs[place]
        expected = features_of(*lists, colors, ages, k)
        np.testing.assert_allclose(x[i, :, :n].numpy().swapaxes(0, 1), expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(values[i, :, :n], node_values(expected, colors, k, weights), rtol=1e-3, atol=1e-4)
        assert (found[:, i, n:] == -1).all()
        parents = [Individual(0, *each) for each in zip(colors, ages, strict=True)]
        one = children(lists, parents, k, weights, by_network[i])
        for flag, child, same in zip(by_network[i], found[:, i, :n], one, strict=True):
            assert flag or child.tolist() == same.tolist()
            number_same += child.tolist() == same.tolist()
    assert number_same >= 22  # rounding may make the network prefer another class


def test_islands_of_a_search_exchange_their_second_parents(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("numba_cuda")
    from gnn_training.search.gpu_islands import GpuIsland, IslandBatch

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties())
    monkeypatch.setattr(GpuIsland, "choose_next", lambda island, parents: False)
    lists, colors, islands = GRAPH.csr(), np.arange(40, dtype=np.int32) % 4, list[GpuIsland]()
    for seed in range(2):
        worker = Worker(Portfolio(lists, colors, Budget(math.inf, seed=seed), UNTRAINED), 0)
        others = list[GpuIsland]()
        others += (GpuIsland(worker, 0, number, others) for number in range(8))
        islands += others
    parents = [[Individual(2 * i + j, colors, colors) for j in range(2)] for i in range(16)]
    IslandBatch([lists], zero_weights(), torch.device("cpu")).cross(list(zip(islands, parents, strict=True)))
    firsts, seconds = ([pair[j].conflicts for pair in parents] for j in range(2))
    assert firsts == list(range(0, 32, 2)) and seconds != list(range(1, 32, 2))
    assert [sorted(part) for part in (seconds[:8], seconds[8:])] == [list(range(1, 17, 2)), list(range(17, 33, 2))]


def test_noise_changes_children_of_pairs_as_it_changes_one_child():
    pytest.importorskip("numba_cuda")
    from gnn_training.search.gpu_crossover import cross_pairs, pad_rows

    rng, k = np.random.default_rng(0), np.array([5, 9])
    parents = [rng.integers(0, k[i], (2, 40 + 10 * i)).astype(np.int32) for i in range(2)]
    values = [rng.integers(0, 9, each.shape).astype(np.float32) for each in parents]
    noise = rng.integers(0, 99, (2, 9, 9)).astype(float)
    filled = (torch.from_numpy(pad_rows(each)) for each in (parents, values))
    found = cross_pairs(next(filled).long(), next(filled), torch.from_numpy(k), torch.from_numpy(noise))
    for child, pair, of_nodes, of_pair, colors in zip(found, parents, values, noise, k.tolist(), strict=True):
        one = crossover(*pair, of_nodes, colors, of_pair[:colors, :colors].copy())
        assert child[: len(one)].tolist() == one.tolist() and (child[len(one) :] == -1).all()
