"""The Python interface: color() and Model for networkx graphs, edge arrays and torch_geometric Data."""

import os
import subprocess
import sys
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import gnn_training
from gnn_training import Model
from gnn_training.contract import GRAPH_TYPES, SHIPPED_MODEL

ROOT = Path(__file__).parents[1]
TRAIN_PACKAGES = ("torch", "torch_geometric", "onnx", "onnxscript", "tensorboard", "safetensors", "matplotlib", "gcol")
PETERSEN = nx.petersen_graph()

pytestmark = pytest.mark.usefixtures("compiled")


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Model:
    return Model(tiny_model, threads=1)


def is_proper(graph: nx.Graph, colors: dict) -> bool:
    return all(colors[u] != colors[v] for u, v in graph.edges() if u != v)


def test_nodes_of_a_networkx_graph_may_have_any_labels(model: Model):
    graph = nx.Graph([("a", (1, 2)), ((1, 2), 3.5), (3.5, "a"), ("a", frozenset())])
    colors = gnn_training.color(graph, 0.1, model=model)
    assert is_proper(graph, colors) and sorted(set(colors.values())) == [0, 1, 2]
    assert all(type(color) is int for color in colors.values())


def test_directions_parallel_edges_and_loops_are_ignored(model: Model):
    graph = nx.MultiDiGraph([(0, 1), (1, 0), (0, 1), (1, 2), (2, 2)])
    colors = gnn_training.color(graph, 0.1, model=model)
    assert is_proper(graph, colors) and set(colors.values()) == {0, 1}


def test_an_edge_array_gives_an_array_and_the_model_may_be_a_path(tiny_model: Path):
    colors = gnn_training.color(np.array([[0, 1], [1, 2], [2, 0], [3, 3]], dtype=np.uint8), 0.1, model=tiny_model)
    assert isinstance(colors, np.ndarray) and colors.dtype == np.int64
    assert sorted(colors[:3].tolist()) == [0, 1, 2] and colors.shape == (4,)
    assert gnn_training.color([(0, 1)], 0.1, model=str(tiny_model), num_nodes=5).shape == (5,)


def test_a_torch_geometric_data_gives_a_tensor(model: Model):
    data = Data(edge_index=torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), num_nodes=4)
    colors = gnn_training.color(data, 0.1, model=model)
    assert isinstance(colors, torch.Tensor) and colors.dtype == torch.int64 and colors.shape == (4,)
    assert (colors[data.edge_index[0]] != colors[data.edge_index[1]]).all()


def test_without_nodes_the_result_is_empty_and_without_edges_there_is_one_color(model: Model):
    assert gnn_training.color(nx.Graph()) == {}
    assert gnn_training.color([]).shape == gnn_training.color(np.empty((0, 2), dtype=int)).shape == (0,)
    assert gnn_training.color(Data(edge_index=torch.empty(2, 0, dtype=torch.long), num_nodes=0)).shape == (0,)
    assert gnn_training.color(nx.empty_graph(3), model=model) == {0: 0, 1: 0, 2: 0}
    assert gnn_training.color([], model=model, num_nodes=2).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("graph", "error", "sentence"),
    [
        ("petersen", TypeError, "a graph is a networkx graph, an edge array .* not str"),
        (None, TypeError, "a graph is a networkx graph, an edge array .* not NoneType"),
        ([(0, 1), (1,)], TypeError, "an edge array .* of integers .* not list"),
        (np.zeros((3, 2)), TypeError, "an edge array .* of integers .* not ndarray of float64"),
        (np.zeros((2, 5), dtype=int), ValueError, r"shape \(E, 2\), not \(2, 5\): give one row per edge"),
        ([(0, -1)], ValueError, "edge 0--1 leaves the nodes 0..0"),
        (Data(num_nodes=3), ValueError, "this Data has no edge_index: set it"),
    ],
)
def test_what_is_not_a_graph_is_refused_in_one_sentence(graph: object, error: type[Exception], sentence: str):
    with pytest.raises(error, match=sentence) as caught:
        gnn_training.color(graph)
    assert "\n" not in str(caught.value)


def test_the_shipped_model_predicts_for_one_graph():
    model = Model()
    assert model.path == SHIPPED_MODEL
    prediction = model.predict(PETERSEN)
    assert prediction.logits[0].shape == (10, 256)
    assert 1 < prediction.chromatic[0] < 5
    assert 0 <= prediction.difficulty[0] <= 100
    assert prediction.graph_types[0] in GRAPH_TYPES


def test_a_model_predicts_for_a_list_of_graphs_of_any_kind_and_a_list_of_edges_is_one_graph(model: Model):
    data = Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2)
    prediction = model.predict([PETERSEN, np.array([[0, 1], [1, 2]]), [(0, 1)], data])
    assert [len(logits) for logits in prediction.logits] == [10, 3, 2, 2]
    assert prediction.graph_type_logits.shape == (4, 8) and len(prediction.graph_types) == 4
    assert [len(logits) for logits in model.predict([(0, 1), (1, 2)]).logits] == [3]


@pytest.mark.parametrize("graphs", [[], nx.Graph(), [PETERSEN, nx.Graph()]])
def test_a_prediction_needs_a_graph_with_nodes(graphs: object, model: Model):
    with pytest.raises(ValueError, match="predict needs a graph, and every graph needs at least one node"):
        model.predict(graphs)


def test_the_package_has_no_other_names():
    with pytest.raises(AttributeError, match="gnn_training.*colour"):
        gnn_training.colour  # noqa: B018


def python(program: str, folder: Path = ROOT) -> str:
    path = os.environ | {"PYTHONPATH": f"{ROOT}:{folder}"}
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_color_model_and_their_modules_need_nothing_from_the_train_extra():
    program = f"""if True:
        import sys
        sys.modules.update(dict.fromkeys({(*TRAIN_PACKAGES, "filelock", "threadpoolctl")}))  # None: ImportError
        import gnn_training, gnn_training.jobs.color, numpy
        gnn_training.Model().predict(numpy.array([[0, 1]]))
        print(gnn_training.color(numpy.array([[0, 1], [1, 2]])).tolist())
    """
    assert python(program).split() in (["[0,", "1,", "0]"], ["[1,", "0,", "1]"])
