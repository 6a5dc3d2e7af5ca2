"""Where a training stands: time and graphs spent, best score, patience. Kept in every checkpoint."""
# DOC What rank 0 writes down: console, metrics.jsonl and TensorBoard. Other ranks hold a logbook that stays shut.

import json
import logging
from dataclasses import dataclass
from pathlib import Path

from gnn_training.files import write_text


@dataclass
class Progress:
    """Counts over the whole training, interruptions left out.

    seconds: steps and evaluations; step_seconds: steps alone; graphs: seen, repeats counted; best: lowest validation
    gap, None before the first evaluation; worse: evaluations since then.
    """

    seconds: float = 0.0
    step_seconds: float = 0.0
    graphs: int = 0
    best: float | None = None
    best_step: int = 0
    worse: int = 0
    evaluated_at: int = -1

    def count(self, graphs: int, seconds: float) -> None:
        """Add one step."""
        self.graphs += graphs
        self.step_seconds += seconds
        self.seconds += seconds

    def judge(self, gap: float, step: int) -> bool:
        """Take a score in; True if none was better so far."""
        better = self.best is None or gap < self.best
        kept = better or gap == self.best  # of equals the longer trained
        if kept:
            self.best, self.best_step = gap, step
        self.worse = 0 if better else self.worse + 1
        self.evaluated_at = step
        return kept

    def is_late(self, minutes: float) -> bool:
        """Whether so many minutes are over; 0 is no limit."""
        return 0 < minutes * 60 <= self.seconds

    def out_of_patience(self, patience: int) -> bool:
        """Whether so many evaluations in a row brought nothing; patience 0 never ends."""
        return 0 < patience <= self.worse

    @property
    def graphs_per_second(self) -> float:
        """Over all steps so far."""
        return self.graphs / self.step_seconds if self.step_seconds else 0.0

    def minutes_left(self, step: int, steps: int) -> float:
        """Until the schedule ends, at the pace so far."""
        return self.seconds / max(step, 1) * (steps - step) / 60


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
