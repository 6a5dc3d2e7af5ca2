"""Find the state that a training resumes from, and protect what it must not replace."""

import logging
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path

from gnn_training import run_files
from gnn_training.errors import UserError
from gnn_training.files import damaged, read_json, storage_errors
from gnn_training.settings import TrainSettings
from gnn_training.training import checkpoint
from gnn_training.training.logbook import Progress

log = logging.getLogger(__name__)
FREE_TO_CHANGE = {
    "preset", "data", "run", "device", "minutes", "patience", "checkpoint_every", "keep", "resume_from", "log_every",
    "logger", "ranks", "gpus",
}  # fmt: skip


def find_state(settings: TrainSettings, data_sha256: str) -> dict | None:
    """Return the state to resume from, None if there is none. UserError if the checkpoints of a training that has ended
    are gone, or if files with the names of a training's files are not those of a training.
    """
    run, origin = settings.run, settings.resume_from
    state = checkpoint.load_newest(run / run_files.CHECKPOINT_FOLDER)
    if origin and (state is None or state["resumed_from"] != str(origin)):  # else an earlier start has gone back to it
        state = load_named(run, origin)
        require_same(settings, data_sha256, state)  # before anything is moved
        set_later_aside(run, state)
        copy_games(run, origin)
    hint = "name another --run folder, or empty this one"
    if state is None and (ended := run / run_files.STATUS).exists():
        with damaged(ended, hint):
            if read_json(ended, hint)["status"] != "failed":
                raise UserError(f"{run} has a training without its checkpoints, which would begin again: {hint}")
    if state is None and any((run / name).exists() for name in (run_files.CONFIG, run_files.METRICS)):
        with damaged(config := run / run_files.CONFIG, hint):
            if "learning_rate" not in read_json(config, hint):
                raise UserError(f"{config}: is not of a training: {hint}")
    return state


def require_same(settings: TrainSettings, data_sha256: str, state: dict) -> None:
    """Raise UserError unless the run has its own settings and graphs: others belong in another folder."""
    then, now = state["settings"], settings.model_dump(mode="json")
    run, hint = settings.run, "name another --run folder"
    if then.keys() != now.keys() or state["progress"].keys() != asdict(Progress()).keys():
        raise UserError(f"{run} was started by another version of this program: finish it there or {hint}")
    for name in sorted(now.keys() - FREE_TO_CHANGE):
        if then[name] != now[name]:
            raise UserError(f"{run} was trained with {name} {then[name]}, not {now[name]}: go back or {hint}")
    if state["data_sha256"] != data_sha256:
        raise UserError(f"{run} was trained on other graphs than {settings.data}: {hint}")


def load_named(run: Path, path: Path) -> dict:
    """Return the state of a checkpoint of the run folder, given by name or path, or of another folder. UserError as in
    `load`, or if the checkpoint is of another folder and the run folder has a training of its own.
    """
    folder = run / run_files.CHECKPOINT_FOLDER
    path = folder / path if path.parent == Path() else path
    if path.resolve().parent != folder.resolve() and any(folder.glob(run_files.CHECKPOINTS)):
        raise UserError(f"{run} has a training of its own: name another --run folder to resume from {path}")
    return checkpoint.load(path, checkpoint.RESUMED)


def copy_games(run: Path, path: Path) -> None:
    """Copy the games of self-play of a checkpoint in another folder. They lie beside it or one folder above."""
    if path.parent == Path():
        return
    target = run / run_files.GAMES_FOLDER
    for folder in (path.parent, path.parent / target.name, path.parent.parent / target.name):
        games = sorted(folder.glob(run_files.GAMES))
        if games and folder.resolve() != target.resolve():
            with storage_errors(target):
                target.mkdir(exist_ok=True)
                for each in games:
                    shutil.copy2(each, target)
            return


def set_later_aside(run: Path, state: dict) -> None:
    """Move the checkpoints later than `state` into a new folder in the run folder. Copy the files that later steps
    change into it as well, games included, so that nothing is lost.
    """
    path = run / run_files.CHECKPOINT_FOLDER / f"step-{state['step']:08d}.pt"
    if later := sorted(each for each in path.parent.glob(run_files.CHECKPOINTS) if each > path):
        with storage_errors(run):
            aside = Path(tempfile.mkdtemp(prefix=f"until-{later[-1].stem}-", dir=run))
            for name in (run_files.BEST, run_files.METRICS, run_files.STATUS):
                if (run / name).exists():
                    shutil.copy2(run / name, aside)
            for each in (run / run_files.GAMES_FOLDER).glob(run_files.GAMES):
                shutil.copy2(each, aside)
            for each in later:
                each.rename(aside / each.name)
        log.info("what %s has of later steps is now in %s", run, aside)
