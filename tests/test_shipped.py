"""The shipped file is whole, the report is about it, and the commands take it when no model is named."""

from pathlib import Path

from dimacs import queens, read_solution, write_col

from gnn_training import files
from gnn_training.coloring import num_colors
from gnn_training.contract import SHIPPED_MODEL
from gnn_training.jobs.color import color
from gnn_training.jobs.export import export
from gnn_training.settings import ColorSettings, EvaluateSettings, ExportSettings, RunSettings

ROOT = Path(__file__).parents[1]


def test_the_shipped_file_gives_its_golden_vectors():
    settings = ExportSettings(run=ROOT, models=SHIPPED_MODEL.parent, verify_only=True, oldest_runtime=False)
    assert export(settings) == SHIPPED_MODEL


def test_the_report_is_about_the_shipped_file():
    checksum = files.checksums({SHIPPED_MODEL.name: SHIPPED_MODEL.read_bytes()}).split()[0]
    assert checksum in (ROOT / "models" / "REPORT.md").read_text()


def test_color_and_evaluate_take_the_shipped_file_when_no_model_is_named_and_no_job_writes_there(tmp_path: Path):
    assert EvaluateSettings(graphs=tmp_path).model == str(SHIPPED_MODEL)
    assert RunSettings().models.resolve() != SHIPPED_MODEL.parent
    assert num_colors(read_solution(color(ColorSettings(graph=write_col(tmp_path, queens(5, 5)))))) == 5
