"""Loggers that show the records of a training as curves: TensorBoard, and Weights & Biases, MLflow or Trackio."""

import importlib
import logging
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gnn_training.errors import UserError
from gnn_training.files import read_bytes, write_text
from gnn_training.machine import require_package
from gnn_training.settings import TrainSettings

log = logging.getLogger(__name__)
PROJECT = "coloring-gnn"  # in the logger: project or experiment


class TensorBoard:
    """Event files in the run folder. Those of an earlier start are hidden from first_step on."""

    def __init__(self, run: Path, first_step: int):
        from torch.utils.tensorboard import SummaryWriter  # takes 1.5 s to import

        self.writer = SummaryWriter(run / "tensorboard", purge_step=first_step)

    def log(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def compare(self, settings: TrainSettings, scores: dict[str, float | None]) -> None:
        """Note settings and final scores for the table of hyperparameters, which compares runs."""
        self.writer.add_hparams(settings.model_dump(mode="json"), scores, run_name=".")

    def close(self, status: str) -> None:
        self.writer.close()


@contextmanager
def errors_as_warnings(logger: str) -> Iterator[None]:
    """Go on when a logger fails, such as one whose server is away: the files of the run folder have everything."""
    try:
        yield
    except Exception as error:
        log.warning("%s does not log this: %s", logger, error)


class WandB:
    """Weights & Biases, or Trackio, which has the same functions. The run named run_id is continued if there is one."""

    def __init__(self, library: str, settings: TrainSettings, run_id: str):
        init, config = importlib.import_module(library).init, settings.model_dump(mode="json")
        options = {"id": run_id, "dir": settings.run} if library == "wandb" else {}
        self.run = init(project=PROJECT, name=run_id, resume="allow", config=config, **options)

    def log(self, step: int, values: dict[str, float]) -> None:
        self.run.log(values, step=step)

    def close(self, status: str) -> None:
        self.run.finish()


class MLflow:
    """MLflow. The run named run_id is continued if there is one."""

    def __init__(self, settings: TrainSettings, run_id: str):
        import mlflow

        self.mlflow, name = mlflow, f"attributes.run_name = '{run_id}'"
        experiment = mlflow.set_experiment(PROJECT).experiment_id
        found = mlflow.search_runs([experiment], name, output_format="list")
        mlflow.start_run(found[0].info.run_id if found else None, run_name=run_id)
        if not found:
            mlflow.log_params(settings.model_dump(mode="json"))

    def log(self, step: int, values: dict[str, float]) -> None:
        self.mlflow.log_metrics(values, step, synchronous=False)  # or a server that is away would stop all ranks

    def close(self, status: str) -> None:
        self.mlflow.flush_async_logging()
        self.mlflow.end_run({"done": "FINISHED", "stopped": "KILLED"}.get(status, "FAILED"))


Logger = TensorBoard | WandB | MLflow  # each has log(step, values by name) and close("done", "stopped" or "failed")


def require(name: str | None) -> None:
    """Raise UserError if the logger is not installed."""
    if name:
        require_package(name, f"--logger {name}", name)


def start(name: str, settings: TrainSettings) -> Logger:
    """Start a logger, or continue its run of this run folder. Raises UserError with its reason if it cannot start."""
    file = settings.run / "logger_id"
    if not file.exists():
        write_text(file, f"{settings.run.name}-{secrets.token_hex(4)}\n")
    run_id = read_bytes(file, 1000, "delete it").decode(errors="replace").strip()
    try:
        return MLflow(settings, run_id) if name == "mlflow" else WandB(name, settings, run_id)
    except Exception as error:  # each library has errors of its own
        raise UserError(f"--logger {name} cannot start: {' '.join(str(error).split())}") from error
