"""The shipped file is whole, the report is about it, and the commands take it when no model is named."""

from pathlib import Path

import numpy as np
import pytest
from dimacs import queens, read_solution, write_col

from gnn_training import files
from gnn_training.coloring import num_colors
from gnn_training.contract import SHIPPED_MODEL
from gnn_training.jobs.color import color
from gnn_training.model import golden
from gnn_training.model.session import Model
from gnn_training.settings import ColorSettings, EvaluateSettings, RunSettings

ROOT = Path(__file__).parents[1]


def test_the_report_is_about_the_shipped_file():
    checksum = files.checksums({SHIPPED_MODEL.name: SHIPPED_MODEL.read_bytes()}).split()[0]
    assert checksum in (ROOT / "models" / "REPORT.md").read_text()


def test_color_and_evaluate_take_the_shipped_file_when_no_model_is_named_and_no_job_writes_there(tmp_path: Path):
    assert EvaluateSettings(graphs=tmp_path).model == str(SHIPPED_MODEL)
    assert RunSettings().models.resolve() != SHIPPED_MODEL.parent
    assert num_colors(read_solution(*color(ColorSettings(graphs=(write_col(tmp_path, queens(5, 5)),))))) == 5


@pytest.mark.parametrize(
    "wrong",
    [
        {"edge_index": [[0, 1], [1, -1]]}, {"edge_index": [[0, 1], [1, -(2**63)]]}, {"edge_index": [[0, 1], [1, 5]]},
        {"batch": [0, 0, 1, 1, 0]}, {"batch": [-1, 0, 0, 0, 0]}, {"batch": [-1] * 5}, {"batch": [0, 0, 0, 0, 10**6]},
        {"batch": [0, 0, 0, 0, 2**63 - 1]}, {"batch": []}, {"seed": []}, {"seed": [1, 2]}, {"steps": []},
        {"num_colors": []},
    ],
)  # fmt: skip
def test_a_wrong_input_is_an_error_and_not_an_answer(wrong: dict[str, list]):
    right = {"edge_index": [[0, 1, 2], [1, 2, 0]], "batch": [0, 0, 0, 1, 1], "steps": 10}
    with pytest.raises(Exception, match="ONNXRuntimeError"):
        Model(threads=1)._run(golden.feeds(**right | wrong), seconds=10)


def test_numbers_that_the_batch_leaves_out_cost_nothing_and_have_predictions_of_zero():
    edge_index, batch = np.array([[0, 1, 2, 3], [1, 2, 0, 4]]), np.array([0, 0, 0, 1, 1])
    model, few, many = Model(threads=1), [2, 1], [2] * 8 + [1]
    dense = model._run(golden.feeds(edge_index, batch, num_colors=few), seconds=10)
    sparse = model._run(golden.feeds(edge_index, 5 * batch + 3, num_colors=many), seconds=10)
    assert np.array_equal(dense[0], sparse[0])
    for alone, among in zip(dense[1:], sparse[1:], strict=True):
        assert np.array_equal(among[[3, 8]], alone)
        assert len(among) == 9 and not among[[0, 1, 2, 4, 5, 6, 7]].any()
    last = model._run(golden.feeds(edge_index, 999_999 * batch), seconds=5)
    assert np.array_equal(last[0], dense[0])
