"""Self-play: games, iterations on several ranks, the replay buffer, and what is kept."""

import itertools
import signal
from pathlib import Path

import numpy as np
import pytest
import simulated_cuda
import tiny_runs
import torch
from small_graphs import check_pairs, random_graph
from tiny_runs import assert_same_run, in_group, interrupt, reached

from gnn_training import training
from gnn_training.data.families import draw
from gnn_training.data.packed import PackedGraphs
from gnn_training.distributed import Runtime
from gnn_training.jobs.train import train
from gnn_training.network.crossover_network import CrossoverNetwork, squared_errors
from gnn_training.network.crossover_weights import zero_weights
from gnn_training.search import kernels
from gnn_training.search.crossover import Individual, children
from gnn_training.settings import TrainSettings
from gnn_training.training import self_play
from gnn_training.training.games import CHILDREN, RECORDED, Pair, Player, batch_of
from gnn_training.training.loader import DeviceDataset
from gnn_training.training.replay_buffer import ReplayBuffer, from_bytes, num_bytes, to_bytes
from gnn_training.training.self_play import ITERATIONS, SelfPlay
from gnn_training.training.validation import PairValidation

pytestmark = pytest.mark.usefixtures("compiled")


def play(seed: int, n: int = 60) -> tuple[list[Pair], Player]:
    """A game on a dense random graph."""
    lists = random_graph(n, 0.5, seed).csr()
    player = Player(3, lists, kernels.dsatur(*lists), 1, zero_weights(), seed)
    return player.play(), player


@pytest.mark.parametrize("seed", range(2))
def test_a_game_records_parents_and_different_children_and_repeats_itself(seed: int):
    pairs, player = play(seed)
    assert 0 < len(pairs) <= RECORDED and player.num_seen >= player.num_pairs
    check_pairs(pairs, random_graph(60, 0.5, seed), 3)
    again, _ = play(seed)
    assert to_bytes(again) == to_bytes(pairs) != to_bytes(play(seed + 10)[0])


def test_classes_are_drawn_on_a_gpu_as_they_are_on_cores(monkeypatch: pytest.MonkeyPatch):
    """The share of the nodes that a child has from elsewhere than without noise, in 720 children each."""
    pytest.importorskip("numba_cuda")
    from gnn_training.training.gpu_games import GameBatch, GpuIsland, GpuPlayer

    lists, k, ages, left = random_graph(60, 0.5).csr(), 10, np.zeros(60, np.int32), itertools.count()
    made = [Individual(i, ages, ages) for i in range(CHILDREN)]
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: simulated_cuda.properties())
    monkeypatch.setattr(GameBatch, "launch", lambda _, islands, *others: [made for _ in islands])
    monkeypatch.setattr(Player, "conflicts_left", lambda *_: next(left))
    torch.manual_seed(0)
    network, rng = CrossoverNetwork(width=4, layers=1), np.random.default_rng(0)
    torch.nn.init.normal_(network.direct.weight, std=0.1)
    weights, colors = network.weights(), kernels.dsatur(*lists)
    pairs = [[Individual(0, rng.integers(0, k, 60).astype(np.int32), ages) for _ in range(2)] for _ in range(60)]
    shares = {}
    for kind in (Player, GpuPlayer):
        players = [kind(0, lists, colors, 1, weights, seed) for seed in range(len(pairs))]
        for player, parents in zip(players, pairs, strict=True):
            player.record(parents, k)
        if kind is GpuPlayer:
            islands = [GpuIsland(player, 0, 0, []) for player in players]
            for island in islands:
                island.k, island.first = k, ages
            GameBatch([lists], weights, torch.device("cpu")).record(dict(zip(islands, players, strict=True)))
        shares[kind] = np.mean([
            (origin != np.where(child < 0, -1, (child + i) % 2)).mean()
            for player, parents in zip(players, pairs, strict=True)
            for both in [children(lists, parents, k, weights)]
            for i, (origin, child) in enumerate(zip(player.pairs[0].origin, both * (CHILDREN // 2), strict=True))
        ])  # fmt: skip
    assert shares[GpuPlayer] == pytest.approx(shares[Player], rel=0.1) and 0.15 < shares[Player] < 0.3


def test_a_game_ends_at_the_lower_bound_and_when_it_is_stopped():
    lists = random_graph(40, 0.9, 0).csr()
    colors = kernels.dsatur(*lists)
    player = Player(0, lists, colors, int(colors.max()) + 1, zero_weights(), 0)
    assert player.play() == [] and player.num_seen == 0
    player = Player(0, lists, colors, 1, zero_weights(), 0)
    player.search.finish()
    assert player.play() == []


def test_pairs_of_several_graphs_survive_a_file():
    pairs = [pair for seed in range(2) for pair in play(seed, 40 + 20 * seed)[0]]
    pairs = [pair._replace(graph=int(pair.colors.shape[1] == 60)) for pair in pairs]
    read = from_bytes(to_bytes(pairs), np.array([40, 60]))
    assert len(read) == len(pairs) > 2 and from_bytes(to_bytes([]), np.array([40])) == []
    for a, b in zip(pairs, read, strict=True):
        same = (np.array_equal(x, y) and np.asarray(x).dtype == np.asarray(y).dtype for x, y in zip(a, b, strict=True))
        assert all(same)


def patch_few_pairs() -> None:
    """In a process of a test: games of ten pairs instead of forty, and few validation graphs, which are enough."""
    training.games.PAIRS, self_play.HELD_OUT, training.validation.MIN_HELD_OUT_GRAPHS = (8, 12), 4, 2


def train_few_pairs(settings: TrainSettings) -> None:
    patch_few_pairs()
    train(settings)


def start(rt: Runtime, settings: TrainSettings) -> SelfPlay:
    data = PackedGraphs.open(settings.data)
    (settings.run / "self_play").mkdir(parents=True, exist_ok=True)
    return SelfPlay(settings, DeviceDataset(data, rt.device), data.indices("train"), rt)


def iterations_of(rt: Runtime, settings: TrainSettings) -> tuple[bytes, list[list[int]], dict, int]:
    """Play half of the iterations: the buffer, the pairs of this rank in three steps, scores, number of iterations."""
    patch_few_pairs()
    torch.manual_seed(0)
    games, network = start(rt, settings), CrossoverNetwork()
    for step in range(0, 10, 2):
        games.advance(step, 20, network, lambda: False)
    batches = [features(games, step) for step in range(3)]
    other = CrossoverNetwork()
    other.direct.weight.data[0, 0] = -1.0  # conflicts are bad
    scores = PairValidation(games.buffer, games.dataset, CrossoverNetwork(), rt).scores(other, network)
    games.close()
    pairs = list(itertools.chain(*games.buffer.iterations.values()))
    return to_bytes(pairs), batches, scores, games.num_played


def features(games: SelfPlay, step: int) -> list[bytes]:
    """Those of the nodes of every pair of a step for this rank."""
    batch = games.batch(step).data["node"]
    return [batch.x[batch.batch == pair].numpy().tobytes() for pair in range(int(batch.batch.max()) + 1)]


@pytest.mark.slow
def test_two_ranks_play_the_games_of_one_and_share_its_batches(tmp_path: Path):
    data = tiny_runs.pack(tmp_path / "data", [draw(1, "er_dense", i, 64 + i) for i in range(12)])  # none is easy

    def playing(name: str, **changes) -> TrainSettings:
        return tiny_runs.settings(data.folder, tmp_path / name, self_play=1.0, games=5, **changes)

    [(alone, batches, scores, played)] = in_group(1, iterations_of, playing("one", batch_pairs=8))
    group = in_group(2, iterations_of, playing("two", batch_pairs=4))
    assert played == ITERATIONS // 2 and len(from_bytes(alone, data.num_nodes)) > 20
    for mine, _, its_scores, _ in group:
        assert mine == alone and its_scores == pytest.approx(scores)
    assert scores["held_out_pairs"] > 0 and scores["crossover_explained"] != scores["crossover_gain"] != 0
    assert scores["crossover_change"] == pytest.approx(scores["crossover_gain"], abs=1e-2)
    for step, whole in enumerate(batches):
        halves = [batches[step] for _, batches, *_ in group]
        assert len(halves[0]) == len(halves[1]) == 4 and sorted(sum(halves, [])) == sorted(whole)
    files = [sorted((tmp_path / name / "self_play").glob("*")) for name in ("one", "two")]
    assert len(files[0]) == ITERATIONS // 2 and [f.read_bytes() for f in files[0]] == [f.read_bytes() for f in files[1]]


def test_the_network_fits_the_pairs_of_its_games(tiny_data: Path, tmp_path: Path, rt: Runtime):
    games, network = start(rt, tiny_runs.settings(tiny_data, tmp_path, self_play=1.0, games=8)), CrossoverNetwork()
    games.advance(0, 20, network, lambda: False)
    optimizer = torch.optim.AdamW(network.parameters(), 5e-3)
    pairs = batch_of(games.buffer.pairs, games.dataset)
    errors = []
    for _ in range(40):
        error = squared_errors(network(pairs), pairs).mean()
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
        errors.append(error.item())
    games.close()
    assert errors[-1] < 0.97 * errors[0]


@pytest.mark.slow
@pytest.mark.nightly  # two minutes of games
def test_from_nothing_games_teach_what_holds_for_other_graphs(tmp_path: Path, monkeypatch, rt: Runtime):
    monkeypatch.setattr(self_play, "HELD_OUT", 2)
    families = ("er_dense", "er_heavy", "leighton", "course_timetable", "geometric", "exam_timetable")
    graphs = [draw(0, family, i, 120 + 5 * i) for family in families for i in range(16)]
    data, rng = tiny_runs.pack(tmp_path / "data", graphs).folder, np.random.default_rng(0)
    games = start(rt, tiny_runs.settings(data, tmp_path / "run", self_play=1.0, games=200))
    torch.manual_seed(0)
    network = CrossoverNetwork()
    validation = PairValidation(games.buffer, games.dataset, network, rt)
    games.advance(0, 20, network, lambda: False)
    optimizer, steps = torch.optim.AdamW(network.parameters(), 2e-3), 300
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        chosen = [games.buffer.pairs[i] for i in rng.integers(len(games.buffer.pairs), size=16)]
        pairs = batch_of(chosen, games.dataset)
        optimizer.zero_grad()
        squared_errors(network(pairs), pairs).mean().backward()
        optimizer.step()
        schedule.step()
    scores = validation.scores(network, network)
    games.close()
    assert scores["crossover_gain"] > 2 * scores["crossover_gain_error"] > 0


def test_minutes_decide_how_many_games_an_iteration_has(tiny_data: Path, tmp_path: Path, monkeypatch, rt: Runtime):
    for name, value in (("ITERATIONS", 3), ("FIRST_GAMES", 2)):
        monkeypatch.setattr(self_play, name, value)
    games = start(rt, tiny_runs.settings(tiny_data, tmp_path / "run", self_play=0.5))
    games.advance(0, 10, CrossoverNetwork(), lambda: False)
    assert games.num_played == 1 and games.games > 1  # 30 s on all threads, less the first iteration, in two others
    games.close()


def test_a_signal_leaves_the_iteration_out_and_no_game_goes_on(tiny_data: Path, tmp_path: Path, rt: Runtime):
    games = start(rt, tiny_runs.settings(tiny_data, tmp_path / "run", self_play=1.0, games=1000))
    assert not games.advance(0, 10, CrossoverNetwork(), lambda: True)
    games.close()
    assert games.num_played == 0 and games.buffer.iterations == {} and not any((tmp_path / "run").glob("self_play/*"))


def test_the_oldest_iterations_leave_a_buffer_that_is_full(tmp_path: Path, rt: Runtime):
    pair, max_bytes = play(0)[0][0], 10
    buffer = ReplayBuffer(tmp_path, max_bytes * num_bytes(pair), (), rt)
    for iteration in range(3):
        buffer.add(iteration, [pair] * (max_bytes // 2))
    assert list(buffer.iterations) == [1, 2]
    buffer.add(3, [pair] * 2 * max_bytes)  # at least the last one stays
    assert list(buffer.iterations) == [3]


@pytest.mark.slow
def test_kill_9_while_games_are_played_changes_nothing(tiny_data: Path, tmp_path: Path):
    reference = tiny_runs.settings(tiny_data, tmp_path / "reference", self_play=1.0, games=2)
    assert tiny_runs.finish(train_few_pairs, reference) == 0
    settings = reference.model_copy(update={"run": tmp_path / "run", "checkpoint_every": 3})
    for step, number, code in ((5, signal.SIGKILL, -9), (14, signal.SIGTERM, 143), (30, signal.SIGKILL, -9)):
        assert interrupt(settings, number, lambda step=step: reached(settings.run, step), train_few_pairs) == code
    assert tiny_runs.finish(train_few_pairs, settings) == 0
    assert_same_run(settings.run, reference.run)
    best = tiny_runs.newest(reference.run)["network"]
    checkpoint = reference.run / "checkpoints/step-00000039.pt"
    other = reference.model_copy(update={"run": tmp_path / "other", "resume_from": checkpoint})
    assert tiny_runs.finish(train_few_pairs, other) == 0  # with the games of the other folder
    assert tiny_runs.differences(tiny_runs.newest(other.run)["network"], best) == []
    assert best["crossover.first.weight"].isfinite().all()
    assert any(record["crossover"] > 0 for record in tiny_runs.metrics(reference.run, "train"))
