"""The command line: `coloring-gnn COMMAND [flags]`. It loads a command's libraries after the flags are read."""

import argparse
import atexit
import gc
import importlib
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_type_hints

PROGRAM = "coloring-gnn"
is_program = __name__ == "__main__" or Path(sys.argv[0]).name == PROGRAM
if is_program and signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not if a shell has switched it off
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until `interruptible`: Ctrl-C ends these imports without a traceback

from gnn_training import __version__, processes  # noqa: E402
from gnn_training.errors import StorageError, UserError  # noqa: E402
from gnn_training.files import DISK_ERRORS, read_json, reason  # noqa: E402

if TYPE_CHECKING:
    from gnn_training.settings import Settings

SHARED_MEMORY = Path("/dev/shm")
INSTALL_EXTRA = "install the extra, pip install '.[train]' in a clone"


class Command(NamedTuple):
    """What a command does, its settings, and the function in gnn_training.jobs that does it."""

    help: str
    settings: str
    job: str


COMMANDS = {
    "run": Command("Do the whole job: data, check, train, export, verify, evaluate, pack.", "RunSettings", "run.run"),
    "check": Command("Check whether `run` can start, and estimate time and memory.", "CheckSettings", "check.check"),
    "generate": Command("Generate graphs with good colorings to train on.", "GenerateSettings", "dataset.generate"),
    "import": Command("Read and color your graphs to train on them.", "ImportSettings", "dataset.import_graphs"),
    "train": Command("Train the network on packed graphs, or resume a training.", "TrainSettings", "train.train"),
    "export": Command("Write the trained network as one verified ONNX file.", "ExportSettings", "export.export"),
    "evaluate": Command("Count colors, beside those of DSATUR and TabuCol.", "EvaluateSettings", "evaluate.evaluate"),
    "pack": Command("Pack the exported model and its records into one archive.", "PackSettings", "pack.pack"),
    "push": Command("Push the packed archive to the Hugging Face Hub.", "PushSettings", "push.push"),
    "color": Command("Color one graph, or many.", "ColorSettings", "color.color"),
    "serve": Command("Show a page on this machine that colors graphs.", "ServeSettings", "serve.serve"),
}  # fmt: skip
BOXES = {  # of --help, for the flags of a training; the others come first
    "input": ("data", "recipe", "seed", "weights", "resume_from"),
    "output": ("run", "models", "checkpoint_every", "keep", "log_every", "logger", "tensorboard", "tensorboard_host"),
    "machine": ("device", "ranks", "gpus", "precision", "assume", "price_per_hour", "stop_pod"),
    "search": ("rounds", "steps", "searches", "minutes", "batch_size"),
    "learning": ("learning_rate", "lr_scaling", "warmup_steps", "weight_decay", "clip", "ema", "batch_states"),
    "crossover": ("self_play", "games", "batch_pairs", "replay_mib", "width", "layers"),
    "evaluation": ("evaluate_every", "validation_graphs", "validation_rounds", "patience"),
}


def main(args: Sequence[str] | None = None) -> int:
    """Run one command; return 0, 2 to 6 after an error that one sentence explains, or 128 + number of a signal.
    SystemExit(2) for flags that cannot be read; or with the exit code of a job that has explained it.
    """
    atexit.register(gc.freeze)  # otherwise the last collection takes a second for what torch has loaded
    _set_up_output()
    os.environ["MPLBACKEND"] = "agg"  # figures are files; a notebook names one that is not there
    # Before torch loads OpenMP: beside other work, threads that spin while they wait take up to ten times as long.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        with processes.interruptible():
            _run(sys.argv[1:] if args is None else args)
        sys.stdout.flush()
        return 0
    except UserError as error:
        return _explain(error)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("gnn_training"):
            raise
        return _explain(UserError(f"this command needs {error.name}: {INSTALL_EXTRA}"))
    except KeyboardInterrupt as interrupt:
        return 128 + (interrupt.args or [signal.SIGINT])[0]
    except OSError as error:
        if isinstance(error, BrokenPipeError):  # the reader, such as `head`, has ended
            return _without_output(141)
        if error.errno not in DISK_ERRORS:
            raise
        place, hint = error.filename or "the output", "make room"
        # The error of a semaphore, which processes share, names no file.
        if not error.filename and SHARED_MEMORY.exists() and shutil.disk_usage(SHARED_MEMORY).free < 2**12:
            place, hint = SHARED_MEMORY, "make room, in a container with --shm-size=1g"
        return _without_output(_explain(StorageError(f"{place} cannot be written ({reason(error)}); {hint}")))


def _set_up_output() -> None:
    """Make output possible where there is none, and in any encoding."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever has started this process
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        getattr(sys, name).reconfigure(errors="backslashreplace")


def _without_output(exit_code: int) -> int:
    """The exit code. What is left of the output, which Python writes at its end, goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return exit_code


def _explain(error: UserError) -> int:
    sys.stderr.write(f"{PROGRAM}: {error}\n")
    return error.exit_code


def _run(args: Sequence[str]) -> None:
    name, *flags = args or ["--help"]
    if name in ("-h", "--help"):
        print(f"usage: {PROGRAM} COMMAND [flags]\n\ncommands:")
        print("".join(f"  {name:11}{command.help}\n" for name, command in COMMANDS.items()))
        print(f"flags of a command: {PROGRAM} COMMAND --help")
    elif name == "--version":
        print(__version__)
    elif name not in COMMANDS:
        raise UserError(f"there is no command {name}: take one of {', '.join(COMMANDS)}")
    else:
        settings, dry_run = parse(name, flags)
        if dry_run and name not in ("run", "push"):  # these show the commands of the steps, and the model card
            print(settings.model_dump_json(indent=2))
            return
        from gnn_training.console import set_up_logging

        set_up_logging()
        module, function = COMMANDS[name].job.split(".")
        job = getattr(importlib.import_module(f"gnn_training.jobs.{module}"), "dry_run" if dry_run else function)
        job(settings)


def parse(name: str, flags: Sequence[str]) -> "tuple[Settings, bool]":
    """The settings of a command and whether only to show them. Flags override --settings and --preset. SystemExit if
    tyro has explained what is wrong with the flags, or has shown the help. UserError if a value does not fit, or the
    settings file cannot be read.
    """
    import tyro
    from pydantic import create_model

    from gnn_training import settings
    from gnn_training.settings import PathOrNone, Settings, TrainSettings

    class CommandLine(Settings):
        settings: PathOrNone = None
        """JSON file of settings, as --dry-run prints them. Flags override it."""
        dry_run: bool = False
        """Show what would be done and stop."""

    kind = getattr(settings, COMMANDS[name].settings)
    both: Any = type(kind.__name__, (CommandLine, kind), {})
    for field in both.model_fields.values():  # without the line breaks of the code
        field.description = " ".join(field.description.split()) if field.description else None
    types = get_type_hints(both, include_extras=True)
    fields = {name: (types[name], field) for name, field in both.model_fields.items()}
    boxes: dict[str, Any] = {}  # settings in settings, which tyro's help shows in boxes
    for title, names in BOXES.items() if issubclass(kind, TrainSettings) else ():
        chosen: dict[str, Any] = {name: fields.pop(name) for name in names if name in fields}
        boxes[title] = create_model(title, __base__=Settings, **chosen)
    others: dict[str, Any] = fields | {title: (box, ...) for title, box in boxes.items()}
    nested = create_model(kind.__name__, __base__=Settings, **others)
    default = _default(both, flags)
    if default:
        values = dict(default["default"])
        parts = {title: box.model_construct(**values) for title, box in boxes.items()}
        default = {"default": nested.model_construct(**values, **parts)}
    resolved = tyro.cli(
        nested, prog=f"{PROGRAM} {name}", description=COMMANDS[name].help, args=flags,
        config=(tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes), **default,
    )  # fmt: skip
    values = dict(resolved) | {field: value for title in boxes for field, value in getattr(resolved, title)}
    return kind(**{field: values[field] for field in kind.model_fields}), values["dry_run"]


def _default(kind: Any, flags: Sequence[str]) -> dict[str, Any]:
    """The defaults of flags that differ from those of the settings, by --settings, --preset and the environment."""
    from gnn_training.settings import from_preset

    scan = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for flag in ("--preset", "--settings"):
        scan.add_argument(flag, nargs="?")
    first = scan.parse_known_args(flags)[0]
    if not first.settings and "preset" not in kind.model_fields:
        return {}
    values = read_json(Path(first.settings)) if first.settings else {}
    try:
        if "preset" not in kind.model_fields:
            return {"default": kind(**values)}
        preset = first.preset or values.get("preset") or os.environ.get("GNN_TRAINING_PRESET", "cpu")
        return {"default": from_preset(kind, str(preset), **values)}
    except AttributeError as error:
        raise UserError(f"{first.settings}: is JSON, but no object of settings; see --dry-run") from error
    except UserError as error:
        raise UserError(f"{first.settings}: {error}" if first.settings else error) from error


if __name__ == "__main__":
    sys.exit(main())
