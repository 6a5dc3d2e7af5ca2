"""What rank 0 writes down: console, metrics.jsonl and TensorBoard. Other ranks hold a logbook that stays shut."""

import json
import logging
from pathlib import Path

from gnn_training.atomic import write_text

log = logging.getLogger(__name__)


class Logbook:
    """Records of one run; what an interrupted run wrote past the state it is resumed from is dropped.

    reached: last step of each kind that this state knows of; the records of a kind end there.
    """

    def __init__(self, run: Path, reached: dict[str, int], is_main: bool):
        self.run, self.is_main = run, is_main
        if not is_main:
            return
        from torch.utils.tensorboard import SummaryWriter  # 1.5 s to import: only where it is needed

        self.metrics = run / "metrics.jsonl"
        records = ((line, json.loads(line)) for line in _lines(self.metrics))
        kept = [line for line, record in records if record["step"] <= reached[record["kind"]]]
        write_text(self.metrics, "".join(f"{line}\n" for line in kept))
        self.board = SummaryWriter(run / "tensorboard", purge_step=reached["train"] + 1)

    def record(self, kind: str, step: int, values: dict[str, float]) -> None:
        """Append numbers of one kind ("train" or "validation") at a step."""
        if not self.is_main:
            return
        with open(self.metrics, "a", encoding="utf-8") as file:
            file.write(json.dumps({"kind": kind, "step": step, **values}) + "\n")
        for name, value in values.items():
            self.board.add_scalar(f"{kind}/{name}", value, step)
        log.info(
            "%s", " | ".join([f"step {step:>6d}", kind, *(f"{name} {value:.4g}" for name, value in values.items())])
        )

    def picture(self, name: str, step: int, figure) -> None:
        """Show a matplotlib figure in TensorBoard."""
        if self.is_main:
            self.board.add_figure(name, figure, step)

    def close(self, status: dict[str, object]) -> None:
        """Flush everything and leave status.json: how the run ended ("done", "stopped" or "failed") and its counts."""
        if not self.is_main:
            return
        self.board.close()
        write_text(self.run / "status.json", json.dumps(status, indent=2) + "\n")
        log.info("%s", " | ".join(f"{name} {value}" for name, value in status.items()))


def _lines(path: Path) -> list[str]:
    """Whole lines of a file; a last line that a crash cut short is left out."""
    if not path.exists():
        return []
    return [line for line in path.read_text(encoding="utf-8").split("\n")[:-1] if line]
