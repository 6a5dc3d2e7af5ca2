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
    """Which steps have succeeded and how their files looked then, in a JSON file."""

    def __init__(self, path: Path):
        self.path = path
        self._states: dict[str, dict] = json.loads(path.read_text()) if path.exists() else {}

    def is_done(self, step: Step) -> bool:
        """Whether the step succeeded with these settings and none of its files has changed or gone since."""
        if step.serves:
            return self.is_done(step.serves)
        return bool(step.files) and self._states.get(step.name) == _state(step)

    def add(self, step: Step) -> None:
        """Note that the step has just succeeded."""
        self._states[step.name] = _state(step)
        write_text(self.path, json.dumps(self._states, indent=1) + "\n")


def _state(step: Step) -> dict:
    files = {str(path): _stamp(path) for path in step.files}
    return {"command": step.command, "settings": step.settings.model_dump(mode="json"), "files": files}


def _stamp(path: Path) -> list[int] | None:
    """Size and time of last change; None if there is no such file."""
    if not path.exists():
        return None
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]
