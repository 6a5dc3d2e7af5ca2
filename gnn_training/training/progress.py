"""Where a training stands: time and graphs spent, best score, patience. Kept in every checkpoint."""

from dataclasses import dataclass


@dataclass
class Progress:
    """Counts over the whole training, interruptions left out.

    seconds: steps and evaluations; step_seconds: steps alone; graphs: seen, repeats counted; best: lowest validation
    excess, None before the first evaluation; worse: evaluations since then.
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

    def judge(self, excess: float, step: int) -> bool:
        """Take a score in; True if none was better so far."""
        better = self.best is None or excess < self.best
        kept = better or excess == self.best  # of equals the longer trained
        if kept:
            self.best, self.best_step = excess, step
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
