"""The exported file is what the contract says and computes what torch computes; a bad one is never published."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper
from small_graphs import random_graph
from tiny_runs import ROOT

from gnn_training import __version__, contract
from gnn_training.__main__ import main
from gnn_training.contract import GOLDEN_FILE, MODEL_FILE, OPTIONAL_INPUTS, OUTPUTS, SHIPPED_MODEL, SUMS_FILE, WEB_FILE
from gnn_training.errors import UserError
from gnn_training.graph import Graph, concatenated, is_proper, num_colors
from gnn_training.jobs import export as job
from gnn_training.network.network import HIDDEN, ColoringNetwork, PredictionNetwork
from gnn_training.network.rule import NUM_WEIGHTS
from gnn_training.onnx_program import build as onnx_export
from gnn_training.onnx_program import golden
from gnn_training.onnx_program.program import Program
from gnn_training.onnx_program.session import Model, from_logits
from gnn_training.settings import SHIPPED, ExportSettings
from gnn_training.training import checkpoint

FOLDER = SHIPPED_MODEL.parent
ROUNDS = 24  # of an exported file, see conftest.py
OLDEST_RUNTIME = Path(sys.prefix) / "oldest-onnxruntime"  # where ./test.sh installs it; `done` when it is complete


@pytest.fixture(scope="module")
def file() -> onnx.ModelProto:
    """The shipped file: every export puts other weights into it, and nothing else."""
    return onnx.load(SHIPPED_MODEL)


@pytest.fixture(scope="module")
def session() -> onnxruntime.InferenceSession:
    return golden.session(SHIPPED_MODEL)


@pytest.fixture(scope="module")
def exported_session(exported: Path) -> onnxruntime.InferenceSession:
    return golden.session(exported / MODEL_FILE)


@pytest.fixture(scope="module")
def program(trained: Path) -> Program:
    return Program(ColoringNetwork.from_state(checkpoint.load(trained)["network"])).eval()


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A copy of the shipped folder, to be damaged."""
    return Path(shutil.copytree(FOLDER, tmp_path / "models"))


@pytest.fixture
def loaded() -> onnx.ModelProto:
    """The shipped file, to be changed."""
    return onnx.load(SHIPPED_MODEL)


def feeds(*graphs: Graph, **options: int | list[int]) -> dict[str, np.ndarray]:
    return golden.feeds(*concatenated(graphs), **options)


def run(session: onnxruntime.InferenceSession, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return dict(zip(OUTPUTS, session.run(list(OUTPUTS), inputs), strict=True))


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def bodies(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph and those within its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from bodies(attribute.g)


def test_a_round_of_the_search_is_at_most_155_nodes_and_a_question_to_the_network_100(file: onnx.ModelProto):
    (search,) = [node for node in file.graph.node if node.op_type == "Loop" and node.name.startswith("Search/")]
    sizes = [len(graph.node) for graph in bodies(search.attribute[0].g)]
    assert len(sizes) == 2 and sizes[0] <= 100 and sizes[1] <= 155


def test_tensors_have_the_names_order_and_types_of_the_contract(file: onnx.ModelProto):
    floats, integers = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
    tensors = [*file.graph.input, *file.graph.output]
    assert tuple(tensor.name for tensor in tensors) == contract.INPUTS + OPTIONAL_INPUTS + OUTPUTS
    types = (tensor.type.tensor_type for tensor in tensors)
    assert [(kind.elem_type, [d.dim_param or d.dim_value for d in kind.shape.dim]) for kind in types] == [
        (floats, ["N", 16]), (integers, [2, "E"]), (integers, ["N"]),
        (integers, ["num_colors"]), (integers, []), (integers, []),
        (floats, ["N", 256]), (floats, ["B"]), (floats, ["B", 8]), (floats, ["B"]),
    ]  # fmt: skip


def test_optional_inputs_are_initializers_that_a_caller_may_override(file, session):
    assert [tensor.name for tensor in session.get_inputs()] == list(contract.INPUTS)
    assert {tensor.name for tensor in session.get_overridable_initializers()} == set(OPTIONAL_INPUTS)
    defaults = {x.name: numpy_helper.to_array(x).tolist() for x in file.graph.initializer if x.name in OPTIONAL_INPUTS}
    steps = int(session.get_modelmeta().custom_metadata_map["steps"])
    assert defaults == {"num_colors": [0], "seed": 0, "steps": -steps}
    inputs = feeds(random_graph(12, 0.4))
    without, explicit = run(session, inputs), run(session, {**inputs, **{k: np.array(v) for k, v in defaults.items()}})
    assert all(np.array_equal(without[name], explicit[name]) for name in OUTPUTS)


def test_the_file_for_the_web_is_the_same_without_defaults(file: onnx.ModelProto):
    web = onnx.load(FOLDER / WEB_FILE)
    onnx.checker.check_model(web, full_check=True)
    session = golden.session(FOLDER / WEB_FILE)
    assert [tensor.name for tensor in session.get_inputs()] == list(contract.INPUTS + OPTIONAL_INPUTS)
    assert not session.get_overridable_initializers()
    kept, weights = ({tensor.name: tensor for tensor in each.graph.initializer} for each in (web, file))
    assert kept == {name: tensor for name, tensor in weights.items() if name not in OPTIONAL_INPUTS}
    for part in ("node", "input", "output"):
        assert list(getattr(web.graph, part)) == list(getattr(file.graph, part))
    assert web.metadata_props == file.metadata_props


def test_the_file_is_one_opset_18_and_readable_by_old_runtimes(file: onnx.ModelProto):
    graphs = list(bodies(file.graph))
    weights = [tensor for graph in graphs for tensor in graph.initializer]
    nodes = [node for graph in graphs for node in graph.node]
    assert [(entry.domain, entry.version) for entry in file.opset_import] == [("", 18)]
    assert file.ir_version <= 9 and not file.functions
    assert all(x.data_location == onnx.TensorProto.DEFAULT and not x.external_data for x in weights)
    names = {path.name for path in FOLDER.iterdir()} - {contract.WEIGHTS_FILE}
    assert names == {MODEL_FILE, WEB_FILE, GOLDEN_FILE, SUMS_FILE}
    scatters = [node for node in nodes if node.op_type.startswith("Scatter")]
    reductions = {a.s.decode() for node in scatters for a in node.attribute if a.name == "reduction"}
    assert not reductions & {"max", "min"}  # no CUDA kernel before 2024
    assert {node.domain for node in nodes} == {""}


@pytest.mark.slow
def test_an_export_has_the_weights_of_its_training_says_where_it_comes_from_and_names_no_path(
    exported: Path, trained: Path, tiny_data: Path
):
    model, best = Model(exported / MODEL_FILE), checkpoint.load(trained)
    read, expected, metadata = checkpoint.read_weights(exported / MODEL_FILE), best["network"], model.metadata
    assert read.keys() == expected.keys() and all(torch.equal(read[name], expected[name]) for name in read)
    assert np.array_equal(model.rule, read["rule"].numpy()) and np.any(model.crossover.first)
    assert metadata["model_version"] == __version__
    assert metadata["max_colors"] == str(contract.MAX_COLORS) and metadata["steps"] == str(ROUNDS)
    assert json.loads(metadata["graph_types"]) == list(contract.GRAPH_TYPES)
    assert metadata["data_sha256"] == json.loads((tiny_data / "manifest.json").read_text())["sha256"]
    weights = (exported / contract.WEIGHTS_FILE).read_bytes()
    assert metadata["training_fingerprint"] == hashlib.sha256(weights).hexdigest()
    assert metadata["trained_steps"] == str(best["step"])
    assert float(metadata["validation_gap"]) == pytest.approx(best["scores"]["gap"], abs=1e-4)
    assert json.loads(metadata["settings"])["rounds"] == best["settings"]["rounds"]
    for path in (ROOT, Path(torch.__file__).parent, trained, tiny_data, sys.prefix):
        assert str(path).encode() not in (exported / MODEL_FILE).read_bytes()


@pytest.mark.nightly  # torch exports for a minute; every export, and a test below, compare what both compute
@pytest.mark.timeout(600)
def test_the_program_that_ships_is_what_torch_exports_now(tmp_path: Path):
    subprocess.run([sys.executable, ROOT / "scripts/trace_program.py", tmp_path], check=True)
    assert content(tmp_path) == content(FOLDER), "start scripts/trace_program.py"


def test_an_export_changes_weights_and_metadata_alone(loaded: onnx.ModelProto):
    network = ColoringNetwork()
    made = onnx_export.build(network, ROUNDS, {"a": "b"})
    for part in ("node", "input", "output"):
        assert list(getattr(made.graph, part)) == list(getattr(loaded.graph, part))
    before, after = ({x.name: x for x in model.graph.initializer} for model in (loaded, made))
    changed = {name for name in before if before[name] != after[name]}
    names = {contract.WEIGHT_NAMES + name for name in network.state_dict() if name.startswith("predictions.")}
    names |= {onnx_export.RULE, "steps"}
    assert before.keys() == after.keys() and changed == names
    assert [(entry.key, entry.value) for entry in made.metadata_props] == [("a", "b")]


@pytest.mark.parametrize("predictions", [PredictionNetwork(HIDDEN - 1), PredictionNetwork(HIDDEN + 1)])
def test_a_network_that_was_not_traced_is_not_exported(predictions: PredictionNetwork):
    network = ColoringNetwork()
    network.predictions = predictions
    with pytest.raises(UserError, match=r"has no weight Search/predictions\.\S+ of .* with scripts/trace_program.py"):
        onnx_export.build(network, ROUNDS, {})


def test_a_training_can_begin_with_the_shipped_file_and_with_no_other_kind_of_file(tmp_path: Path):
    weights = checkpoint.read_weights(SHIPPED)
    assert np.array_equal(weights["rule"].numpy(), Model(SHIPPED_MODEL, 1).rule)
    (tmp_path / "other.onnx").write_bytes(onnx.helper.make_model(onnx.GraphProto()).SerializeToString())
    with pytest.raises(UserError, match=r"other.onnx: is damaged .*; name a run folder, a checkpoint or an exported"):
        checkpoint.read_weights(tmp_path / "other.onnx")


def test_a_training_takes_all_but_the_predictions_from_a_file_of_an_older_version(tmp_path: Path, caplog):
    model = onnx.load(SHIPPED_MODEL)
    for tensor in model.graph.initializer:
        tensor.name = tensor.name.replace("predictions.layers.", "predictions.node.")
    onnx.save(model, tmp_path / "old.onnx")
    old, shipped = (checkpoint.read_weights(path) for path in (tmp_path / "old.onnx", SHIPPED))
    assert "old.onnx: its predictions are those of an older version, so they begin untrained" in caplog.text
    differ = {name for name in shipped if not torch.equal(old[name], shipped[name])}
    assert differ == {name for name in shipped if name.startswith("predictions.")}


@pytest.mark.slow
@settings(max_examples=15)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 40), st.floats(0, 1)), min_size=1, max_size=4),
    seed=st.integers(0, 2**40),
    rounds=st.integers(-1, 30),
    asked=st.integers(0, 9),
)
def test_the_file_computes_what_torch_computes(exported_session, program: Program, sizes, seed, rounds, asked):
    graphs = [random_graph(n, density, seed + i) for i, (n, density) in enumerate(sizes)]
    inputs = feeds(*graphs, num_colors=[asked], seed=seed, steps=rounds)
    outputs = run(exported_session, inputs)
    expected = program(**{name: torch.tensor(value) for name, value in inputs.items()})
    onnx_export.compare("a batch", {name: expected[name].numpy() for name in OUTPUTS}, outputs)


@pytest.mark.parametrize("threads", [1, 4])
def test_a_call_colors_properly_with_any_number_of_threads(threads: int):
    session = golden.session(SHIPPED_MODEL, threads)
    graphs = [random_graph(30, 0.5), random_graph(1, 0), random_graph(70, 0.1), Graph.from_edges(9, [])]
    inputs = feeds(*graphs, steps=8)
    by_position = session.run(None, inputs)
    assert [x.dtype for x in by_position] == [np.float32] * 4
    assert [x.shape for x in by_position] == [(110, 256), (4,), (4, 8), (4,)]
    for i, graph in enumerate(graphs):
        logits = by_position[0][inputs["batch"] == i]
        used = num_colors(logits.argmax(1))
        assert is_proper(graph, logits.argmax(1)) and logits.argmax(1).max() == used - 1
        assert num_colors(from_logits(graph, logits)) <= used


def test_node_features_are_ignored(session):
    inputs = feeds(random_graph(20, 0.4))
    zeros = run(session, inputs)
    rng = np.random.default_rng(0)
    for features in (np.full((20, 16), np.nan), rng.normal(size=(20, 16)) * 1e30, np.full((20, 16), np.inf)):
        other = run(session, {**inputs, "node_features": features.astype(np.float32)})
        assert all(np.array_equal(zeros[name], other[name]) for name in OUTPUTS)


def test_a_node_reads_every_input_so_that_no_tool_drops_one(file: onnx.ModelProto):
    read = {name for graph in bodies(file.graph) for node in graph.node for name in node.input}
    assert read.issuperset(tensor.name for tensor in file.graph.input)


def test_golden_vectors_hold_without_the_package():
    command = [sys.executable, "-I", golden.__file__, str(SHIPPED_MODEL), str(FOLDER / GOLDEN_FILE)]
    assert subprocess.run(command).returncode == 0
    cases = json.loads((FOLDER / GOLDEN_FILE).read_text())["cases"]
    assert {case["name"] for case in cases} == set(onnx_export.GOLDEN_PROBES)
    assert all(set(case["outputs"]) == set(OUTPUTS) for case in cases)


@pytest.mark.parametrize("name", ["ring", "petersen", "several graphs"])
def test_golden_vectors_catch_a_caller_who_scrambles_the_edges_and_nan(models: Path, name: str):
    vectors = json.loads((models / GOLDEN_FILE).read_text())
    (case,) = [case for case in vectors["cases"] if case["name"] == name]
    pairs = np.array(case["inputs"]["edge_index"]).T
    for changes, message in (
        ({"inputs": case["inputs"] | {"edge_index": pairs.reshape(2, -1).tolist()}}, ""),  # should be transposed
        ({"outputs": case["outputs"] | {"chromatic": [float("nan")]}}, "nan"),
    ):
        (models / GOLDEN_FILE).write_text(json.dumps(vectors | {"cases": [case | changes]}))
        with pytest.raises(ValueError, match=f"'{name}' is off by {message}"):
            golden.check(models / MODEL_FILE, models / GOLDEN_FILE)


def test_a_file_that_fails_a_check_is_not_published(models, loaded, tmp_path: Path, monkeypatch, capsys):
    before, best = content(models), tmp_path / "best.pt"
    other = ColoringNetwork().state_dict()  # weights than the shipped file's
    checkpoint.save(best, {"network": other, "settings": {}, "data_sha256": "0", "step": 1})
    monkeypatch.setattr(onnx_export, "build", lambda *_: loaded)
    assert main(["export", str(best), "--models", str(models)]) == 2
    assert "differs from torch by" in capsys.readouterr().err
    assert content(models) == before


def test_another_form_an_improper_coloring_and_other_outputs_are_refused(loaded: onnx.ModelProto):
    loaded.ir_version = 10
    with pytest.raises(UserError, match="the model has IR 10"):
        onnx_export.verify(loaded, Program(ColoringNetwork()))
    with pytest.raises(UserError, match="ring: the argmax of color_logits is not a proper coloring"):
        onnx_export.check_proper("ring", onnx_export.probes()["ring"][0], np.zeros((7, 256)))
    with pytest.raises(UserError, match=r"ring: chromatic has shape \(2,\), torch gives \(1,\)"):
        onnx_export.compare("ring", {"chromatic": np.zeros(1)}, {"chromatic": np.zeros(2)})
    for name, difference, differs in [("chromatic", 1e-5, False), ("chromatic", 1e-3, True), ("last", 1e-5, True)]:
        arguments = "ring", {name: np.ones(1)}, {name: np.ones(1) + difference}
        with pytest.raises(UserError, match=f"ring: {name} differs from torch by") if differs else nullcontext():
            onnx_export.compare(*arguments)


def verify_again(models: Path) -> int:
    return main(["export", "--models", str(models), "--verify-only"])


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe\n", bytes(100)])
@pytest.mark.parametrize("name", [MODEL_FILE, WEB_FILE, GOLDEN_FILE, SUMS_FILE])
def test_a_published_file_that_was_changed_or_lost_is_named(models: Path, name: str, content: bytes | None, capsys):
    check = ["sha256sum", "--quiet", "-c", SUMS_FILE]
    subprocess.run(check, cwd=models, check=True)
    (models / name).unlink()
    if content is not None:
        (models / name).write_bytes(content)
    assert subprocess.run(check, cwd=models, capture_output=True).returncode
    assert verify_again(models) == 2
    what = "differs from its checksum in SHA256SUMS" if content is not None else "cannot be read .*"
    place = name if content is None or name != SUMS_FILE else ".*"
    assert re.fullmatch(f"coloring-gnn: .*/{place}: {what}; export again\n", capsys.readouterr().err)


@pytest.mark.parametrize("shape", [[1, NUM_WEIGHTS], [22, 64]], ids=["rule of moving", "predictions"])
@pytest.mark.parametrize("damaged", [MODEL_FILE, WEB_FILE])
def test_a_file_that_gives_other_answers_is_caught(models, loaded: onnx.ModelProto, capsys, damaged, shape: list[int]):
    (weights,) = [tensor for tensor in loaded.graph.initializer if list(tensor.dims) == shape]
    vectors = golden.make(loaded.SerializeToString(), {"dense": onnx_export.probes()["dense"]})
    weights.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(weights), weights.name))
    made = {name: (models / name).read_bytes() for name in (MODEL_FILE, WEB_FILE)}
    made |= {damaged: loaded.SerializeToString(), GOLDEN_FILE: json.dumps(vectors).encode()}
    job.publish(models, made)
    assert verify_again(models) == 2
    assert re.search(f"/{damaged}: .* of golden vector", capsys.readouterr().err)


def test_published_files_can_be_verified_again():
    before = content(FOLDER)
    job.export(ExportSettings(models=FOLDER, verify_only=True))
    assert content(FOLDER) == before


@pytest.mark.skipif(not (OLDEST_RUNTIME / "done").exists(), reason="ONNX Runtime 1.16.3 needs Python 3.11")
def test_the_oldest_runtime_gives_the_golden_outputs_and_refuses_a_file_for_newer_ones(models: Path, loaded):
    command = [sys.executable, golden.__file__, models / MODEL_FILE, models / GOLDEN_FILE]
    environment = os.environ | {"PYTHONPATH": str(OLDEST_RUNTIME)}  # its numpy and ONNX Runtime hide the installed ones
    subprocess.run(command, env=environment, check=True)
    loaded.ir_version = 10
    onnx.save(loaded, models / MODEL_FILE)
    refused = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert refused.returncode and "IR version" in refused.stderr
