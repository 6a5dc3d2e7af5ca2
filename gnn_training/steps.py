"""Steps of the whole job, and the memory of which are done."""

import json
from dataclasses import dataclass
from pathlib import Path

from gnn_training.atomic import write_text
from gnn_training.settings import Settings


@dataclass(frozen=True)
class Step:
    """One command of the door.

    files: all that it reads and makes; without any, the step is never done. serves: the step it prepares, with which
    it is done.
    """

    name: str
    command: str
    settings: Settings
    files: tuple[Path, ...] = ()
    serves: "Step | None" = None

    def arguments(self) -> list[str]:
        """Command line of the step, after `python -m gnn_training`."""
        return [self.command, *self.settings.flags()]


class Record:
    """Which steps have succeeded, how their files looked then, and the seconds they took, in a JSON file."""

    def __init__(self, path: Path):
        self.path = path
        self._states: dict[str, dict] = json.loads(path.read_text()) if path.exists() else {}

    def is_done(self, step: Step) -> bool:
        """Whether the step succeeded with these settings and none of its files has changed or gone since."""
        if step.serves:
            return self.is_done(step.serves)
        then = self._states.get(step.name, {})
        return bool(step.files) and all(then.get(name) == now for name, now in _state(step).items())

    def add(self, step: Step) -> None:
        """Note that the step has just succeeded."""
        self._states[step.name] = self._states.get(step.name, {}) | _state(step)
        self._write()

    def spend(self, step: Step, seconds: float) -> None:
        """Add to the time that the step took in all its starts, whether it succeeded or not."""
        state = self._states.setdefault(step.name, {})
        state["seconds"] = round(state.get("seconds", 0.0) + seconds, 1)
        self._write()

    def num_done(self) -> int:
        """Steps that have ever succeeded."""
        return sum("command" in state for state in self._states.values())

    def _write(self) -> None:
        write_text(self.path, json.dumps(self._states, indent=1) + "\n")


def _state(step: Step) -> dict:
    files = {str(path): _stamp(path) for path in step.files}
    return {"command": step.command, "settings": step.settings.model_dump(mode="json"), "files": files}


def _stamp(path: Path) -> list[int] | None:
    """Number, size and time of last change of a file or of all in a folder; None if there is nothing."""
    if not path.exists():
        return None
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    all_of_them = [file.stat() for file in files]
    newest = max((status.st_mtime_ns for status in all_of_them), default=0)
    return [len(files), sum(status.st_size for status in all_of_them), newest]
